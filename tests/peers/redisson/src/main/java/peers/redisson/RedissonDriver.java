package peers.redisson;

import java.net.URI;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.SentinelServersConfig;
import org.redisson.config.SingleServerConfig;
import peers.Driver;
import peers.Peer;

/** Redisson as it comes, but for fewer idle connections and threads: a test starts several of these. */
public final class RedissonDriver implements Peer {
    private final URI url;
    private RedissonClient redisson;
    private String kind = "lock";
    /** One object per key, as in a user's field: it remembers the lease that it was last given. */
    private final Map<String, RLock> locks = new ConcurrentHashMap<>();
    private final Map<String, RPermitExpirableSemaphore> semaphores = new ConcurrentHashMap<>();
    private int permits = 10;
    /** Which permit the thread has, of each semaphore. */
    private final ThreadLocal<Map<String, String>> held = ThreadLocal.withInitial(HashMap::new);

    private RedissonDriver(String url) {
        this.url = URI.create(url);
        redisson = connect(30_000);
    }

    public static void main(String[] args) {
        Driver.main(args, RedissonDriver::new);
    }

    private RedissonClient connect(long watchdogMs) {
        Config config = new Config();
        config.setLockWatchdogTimeout(watchdogMs).setThreads(4).setNettyThreads(4);
        String user = url.getUserInfo();
        if (user != null) {
            int colon = user.indexOf(':');
            if (colon > 0) {
                config.setUsername(user.substring(0, colon));
            }
            config.setPassword(user.substring(colon + 1));
        }
        String path = url.getPath();
        if ("redis+sentinel".equals(url.getScheme())) {
            SentinelServersConfig service = config.useSentinelServers();
            for (String sentinel : url.getAuthority().split(",")) {
                service.addSentinelAddress("redis://" + sentinel);
            }
            service.setMasterName(path.substring(1))
                    .setMasterConnectionMinimumIdleSize(1)
                    .setSlaveConnectionMinimumIdleSize(1)
                    .setSubscriptionConnectionMinimumIdleSize(1);
            return Redisson.create(config);
        }
        if ("redis+cluster".equals(url.getScheme())) {
            ClusterServersConfig cluster = config.useClusterServers();
            for (String node : url.getAuthority().split(",")) {
                cluster.addNodeAddress("redis://" + node);
            }
            cluster.setMasterConnectionMinimumIdleSize(1)
                    .setSlaveConnectionMinimumIdleSize(1)
                    .setSubscriptionConnectionMinimumIdleSize(1);
            return Redisson.create(config);
        }
        int port = url.getPort() < 0 ? 6379 : url.getPort();
        SingleServerConfig server = config.useSingleServer();
        server.setAddress(url.getScheme() + "://" + url.getHost() + ":" + port)
                .setDatabase(path == null || path.length() < 2 ? 0 : Integer.parseInt(path.substring(1)))
                .setConnectionMinimumIdleSize(1)
                .setSubscriptionConnectionMinimumIdleSize(1);
        return Redisson.create(config);
    }

    private RLock of(String key) {
        return locks.computeIfAbsent(key, this::newLock);
    }

    private RLock newLock(String key) {
        switch (kind) {
            case "fenced":
                return redisson.getFencedLock(key);
            case "fair":
                return redisson.getFairLock(key);
            case "spin":
                return redisson.getSpinLock(key);
            case "read":
                return redisson.getReadWriteLock(key).readLock();
            case "write":
                return redisson.getReadWriteLock(key).writeLock();
            case "permit":
                throw new Unsupported();
            default:
                return redisson.getLock(key);
        }
    }

    private RPermitExpirableSemaphore semaphore(String key) {
        return semaphores.computeIfAbsent(key, name -> {
            RPermitExpirableSemaphore semaphore = redisson.getPermitExpirableSemaphore(name);
            semaphore.trySetPermits(permits);
            return semaphore;
        });
    }

    private boolean keep(String key, String permit) {
        if (permit != null) {
            held.get().put(key, permit);
        }
        return permit != null;
    }

    @Override
    public Object lock(String key, long leaseMs) throws InterruptedException {
        if (kind.equals("permit")) {
            RPermitExpirableSemaphore semaphore = semaphore(key);
            keep(key, leaseMs == 0 ? semaphore.acquire() : semaphore.acquire(leaseMs, TimeUnit.MILLISECONDS));
            return null;
        }
        RLock lock = of(key);
        if (lock instanceof RFencedLock fenced) {
            if (leaseMs == 0) {
                return fenced.lockAndGetToken();
            }
            // Not lockAndGetToken(lease, unit): in 4.7.0 it drops its arguments, and the watchdog keeps the lock for ever.
            return fenced.lockAndGetTokenAsync(leaseMs, TimeUnit.MILLISECONDS).toCompletableFuture().join();
        }
        if (leaseMs == 0) {
            lock.lock();
        } else {
            lock.lock(leaseMs, TimeUnit.MILLISECONDS);
        }
        return null;
    }

    @Override
    public boolean tryLock(String key, long waitMs, long leaseMs) throws InterruptedException {
        if (kind.equals("permit")) {
            RPermitExpirableSemaphore semaphore = semaphore(key);
            return keep(key, leaseMs == 0
                    ? semaphore.tryAcquire(waitMs, TimeUnit.MILLISECONDS)
                    : semaphore.tryAcquire(waitMs, leaseMs, TimeUnit.MILLISECONDS));
        }
        return leaseMs == 0
                ? of(key).tryLock(waitMs, TimeUnit.MILLISECONDS)
                : of(key).tryLock(waitMs, leaseMs, TimeUnit.MILLISECONDS);
    }

    @Override
    public boolean unlock(String key) {
        if (kind.equals("permit")) {
            String permit = held.get().remove(key);
            return permit != null && semaphore(key).tryRelease(permit);
        }
        try {
            of(key).unlock();
            return true;
        } catch (IllegalMonitorStateException e) {
            return false;
        }
    }

    @Override
    public String get(String key) {
        return redisson.<String>getBucket(key, StringCodec.INSTANCE).get();
    }

    @Override
    public void set(String key, String value) {
        redisson.<String>getBucket(key, StringCodec.INSTANCE).set(value);
    }

    @Override
    public String command(String name, List<String> args) {
        switch (name) {
            case "kind":
                if (!List.of("lock", "fenced", "fair", "spin", "read", "write", "permit").contains(args.get(0))) {
                    throw new Unsupported();
                }
                kind = args.get(0);
                locks.clear();
                semaphores.clear();
                return "ok";
            case "permits":
                permits = Integer.parseInt(args.get(0));
                semaphores.clear();
                return "ok";
            case "watchdog":
                locks.clear();
                semaphores.clear();
                redisson.shutdown();
                redisson = connect(Long.parseLong(args.get(0)));
                return "ok";
            case "holds":
                return "ok " + of(args.get(0)).getHoldCount();
            case "locked":
                return of(args.get(0)).isLocked() ? "yes" : "no";
            case "value":
                return of(args.get(0)).isHeldByCurrentThread()
                        ? "ok " + redisson.getId() + ":" + Thread.currentThread().getId()
                        : "no";
            case "force":
                return of(args.get(0)).forceUnlock() ? "ok" : "no";
            case "sleep", "owner", "persist", "extend", "limit", "tries", "islocking":
                throw new Unsupported();
            default:
                return null;
        }
    }
}
