package peers.jedis;

import java.net.URI;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.function.Function;
import peers.Driver;
import peers.Peer;
import peers.jedis.old.IpLimit;
import peers.jedis.old.LuaLock;
import peers.jedis.old.NxpxLock;
import peers.jedis.old.RedisDistributedLock;
import peers.jedis.old.RedisLock;
import peers.jedis.old.SetnxLock;
import peers.jedis.old.SimpleRedisLock;
import peers.jedis.old.TimestampLock;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPool;
import redis.clients.jedis.JedisPoolConfig;

/** The old code's locks, each through the calls that its users make. */
public final class JedisDriver implements Peer {
    /** Half of what currentTimeMillis can be added to: as good as no limit. */
    private static final long NO_LIMIT = Long.MAX_VALUE / 2;
    private static final Map<String, Long> SLEEPS = Map.of(
            "setnx", 100L, "timestamp", 100L, "nxpx", 1000L, "lua", 1000L, "endless", 10L, "simple", 100L, "pooled", 100L);

    private final JedisPool pool;
    private String kind = "nxpx";
    private long sleepMs = SLEEPS.get(kind);
    private String owner = "peer-" + ProcessHandle.current().pid();
    private RedisDistributedLock pooled;
    /** What acquiring returned, for the release; the old code left it to its callers to keep. */
    private ThreadLocal<Map<String, Object>> kept;

    private JedisDriver(String url) {
        JedisPoolConfig config = new JedisPoolConfig();
        config.setMaxTotal(128);
        config.setMaxIdle(128);
        config.setJmxEnabled(false);
        pool = new JedisPool(config, URI.create(url), 60_000);
        with(Jedis::ping);
        reset();
    }

    public static void main(String[] args) {
        Driver.main(args, JedisDriver::new);
    }

    private void reset() {
        pooled = new RedisDistributedLock(pool);
        kept = ThreadLocal.withInitial(HashMap::new);
    }

    private <T> T with(Function<Jedis, T> caller) {
        try (Jedis jedis = pool.getResource()) {
            return caller.apply(jedis);
        }
    }

    private static int seconds(long ms) {
        return (int) ((ms + 999) / 1000);
    }

    private static void needsLease(long leaseMs) {
        if (leaseMs == 0) {
            throw new Unsupported();
        }
    }

    @Override
    public Object lock(String key, long leaseMs) throws Exception {
        if (kind.equals("endless")) {
            RedisLock lock = new RedisLock(pool, key, leaseMs == 0 ? 30 : Math.max(2, seconds(leaseMs)), sleepMs);
            lock.lock();
            kept.get().put(key, lock);
        } else {
            acquire(key, NO_LIMIT, leaseMs);
        }
        return null;
    }

    @Override
    public boolean tryLock(String key, long waitMs, long leaseMs) throws Exception {
        return acquire(key, waitMs, leaseMs);
    }

    private boolean acquire(String key, long waitMs, long leaseMs) throws Exception {
        switch (kind) {
            case "setnx":
                return tries(key, (int) Math.min(Integer.MAX_VALUE, 1 + waitMs / Math.max(1, sleepMs)));
            case "timestamp": {
                needsLease(leaseMs);
                try (Jedis redis = pool.getResource()) {
                    long deadline = TimestampLock.acquire_loca_with_timeout(redis, key, waitMs, leaseMs, sleepMs);
                    return keep(key, deadline == 0 ? null : deadline);
                }
            }
            case "nxpx": {
                needsLease(leaseMs);
                try (Jedis redis = pool.getResource()) {
                    return keep(key, NxpxLock.acquire_loca_nxpx(redis, key, waitMs, leaseMs, sleepMs));
                }
            }
            case "lua": {
                needsLease(leaseMs);
                try (Jedis redis = pool.getResource()) {
                    return keep(key, LuaLock.acquire_loca_lua(redis, key, waitMs, seconds(leaseMs), sleepMs));
                }
            }
            case "simple": {
                needsLease(leaseMs);
                SimpleRedisLock lock = new SimpleRedisLock(key, pool);
                return poll(waitMs, () -> lock.tryLock(seconds(leaseMs))) && keep(key, SimpleRedisLock.value());
            }
            case "pooled": {
                int lease = leaseMs == 0 ? RedisDistributedLock.DEFAULT_SECONDS : seconds(leaseMs);
                if (waitMs == NO_LIMIT) {
                    pooled.lock(key, owner, lease, sleepMs);
                } else if (!poll(waitMs, () -> pooled.tryLock(key, owner, lease))) {
                    return false;
                }
                return keep(key, owner);
            }
            default:
                throw new Unsupported();
        }
    }

    private interface Attempt {
        boolean held();
    }

    private boolean poll(long waitMs, Attempt attempt) throws InterruptedException {
        long end = System.currentTimeMillis() + waitMs;
        while (!attempt.held()) {
            if (System.currentTimeMillis() + sleepMs > end) {
                return false;
            }
            Thread.sleep(sleepMs);
        }
        return true;
    }

    private boolean tries(String key, int n) throws InterruptedException {
        try (Jedis redis = pool.getResource()) {
            return keep(key, SetnxLock.acquire_lock(redis, key, n, sleepMs));
        }
    }

    private boolean keep(String key, Object value) {
        if (value != null) {
            kept.get().put(key, value);
        }
        return value != null;
    }

    @Override
    public boolean unlock(String key) {
        Object value = kept.get().get(key);
        if (!kind.equals("pooled") || pooled.count(key) <= 1) {
            kept.get().remove(key);
        }
        switch (kind) {
            case "setnx":
                return with(redis -> SetnxLock.release_lock(redis, key));
            case "timestamp":
                return with(redis -> TimestampLock.release_lock(redis, key, value == null ? 0 : (Long) value));
            case "nxpx", "lua":
                return with(redis -> NxpxLock.del_lock(redis, key, value == null ? UUID.randomUUID().toString() : (String) value));
            case "endless":
                try {
                    RedisLock lock = value == null ? new RedisLock(pool, key, 30, sleepMs) : (RedisLock) value;
                    lock.unlock();
                    return true;
                } catch (IllegalMonitorStateException e) {
                    return false;
                }
            case "simple":
                return new SimpleRedisLock(key, pool).unlock();
            default:
                return pooled.unLock(key, value == null ? owner : (String) value);
        }
    }

    @Override
    public String get(String key) {
        return with(redis -> redis.get(key));
    }

    @Override
    public void set(String key, String value) {
        with(redis -> redis.set(key, value));
    }

    @Override
    public String command(String name, List<String> args) throws Exception {
        switch (name) {
            case "kind":
                if (!SLEEPS.containsKey(args.get(0))) {
                    throw new Unsupported();
                }
                kind = args.get(0);
                sleepMs = SLEEPS.get(kind);
                reset();
                return "ok";
            case "sleep":
                sleepMs = Long.parseLong(args.get(0));
                return "ok";
            case "owner":
                owner = args.get(0);
                return "ok";
            case "persist":
                pooled = new RedisDistributedLock(pool, Integer.parseInt(args.get(0)));
                return "ok";
            case "value": {
                Object value = kept.get().get(args.get(0));
                return value == null ? "no" : "ok " + (value instanceof RedisLock lock ? lock.value() : value);
            }
            case "holds":
                only("pooled");
                return "ok " + pooled.count(args.get(0));
            case "islocking":
                only("pooled");
                return pooled.isLocking(args.get(0), args.get(1)) ? "yes" : "no";
            case "tries":
                only("setnx");
                return tries(args.get(0), Integer.parseInt(args.get(1))) ? "ok" : "no";
            case "limit": {
                int seconds = Integer.parseInt(args.get(1));
                int count = Integer.parseInt(args.get(2));
                return with(redis -> IpLimit.ip_limit(redis, args.get(0), seconds, count)) ? "ok" : "no";
            }
            case "locked", "extend", "force", "watchdog":
                throw new Unsupported();
            default:
                return null;
        }
    }

    private void only(String which) {
        if (!kind.equals(which)) {
            throw new Unsupported();
        }
    }
}
