package peers.jedis.old;

import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPool;
import redis.clients.jedis.params.SetParams;

/** java.util.concurrent's Lock, as far as its author got: lock, unlock and a thread that renews. */
public final class RedisLock implements Lock {
    private final JedisPool pool;
    private final String name;
    private final int seconds;
    private final long sleepMs;
    private volatile String value;
    private Thread renewal;

    public RedisLock(JedisPool pool, String name, int seconds, long sleepMs) {
        this.pool = pool;
        this.name = name;
        this.seconds = seconds;
        this.sleepMs = sleepMs;
    }

    public String value() {
        return value;
    }

    @Override
    public void lock() {
        String mine = UUID.randomUUID().toString();
        SetParams params = SetParams.setParams().nx().ex(seconds);
        while (true) {
            try (Jedis jedis = pool.getResource()) {
                if ("OK".equals(jedis.set(name, mine, params))) {
                    break;
                }
            }
            try {
                Thread.sleep(sleepMs);
            } catch (InterruptedException e) {
                // lock() cannot be interrupted.
            }
        }
        value = mine;
        renewal = new Thread(this::renew, "renew-" + name);
        renewal.setDaemon(true);
        renewal.start();
    }

    private void renew() {
        try {
            while (true) {
                Thread.sleep((seconds - 1) * 1000L);
                try (Jedis jedis = pool.getResource()) {
                    // Asks nobody whose lock this is by now.
                    jedis.expire(name, seconds);
                }
            }
        } catch (InterruptedException e) {
            // Unlocked.
        }
    }

    @Override
    public void unlock() {
        String mine = value;
        if (mine == null) {
            throw new IllegalMonitorStateException("not locked");
        }
        value = null;
        renewal.interrupt();
        try (Jedis jedis = pool.getResource()) {
            if (!NxpxLock.del_lock(jedis, name, mine)) {
                throw new IllegalMonitorStateException("not mine any more");
            }
        }
    }

    @Override
    public void lockInterruptibly() {
    }

    @Override
    public boolean tryLock() {
        return false;
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) {
        return false;
    }

    @Override
    public Condition newCondition() {
        return null;
    }
}
