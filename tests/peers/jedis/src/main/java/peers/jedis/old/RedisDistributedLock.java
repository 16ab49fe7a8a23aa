package peers.jedis.old;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import redis.clients.jedis.JedisPool;
import redis.clients.jedis.params.SetParams;

/** The caller brings the value. Re-entrant by thread-local counts; a lease is extended at most n times. */
public final class RedisDistributedLock {
    public static final int DEFAULT_SECONDS = 10;
    private static final String EXPIRE_IF_MINE =
            "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('expire', KEYS[1], ARGV[2]) else return 0 end";

    private final RedisUtil redis;
    private final int persistentExpire;
    private final ThreadLocal<Map<String, Integer>> counts = ThreadLocal.withInitial(HashMap::new);
    private final Map<String, Thread> persisting = new ConcurrentHashMap<>();

    public RedisDistributedLock(JedisPool pool) {
        this(pool, 4);
    }

    public RedisDistributedLock(JedisPool pool, int persistentExpire) {
        this.redis = new RedisUtil(pool);
        this.persistentExpire = persistentExpire;
    }

    public boolean tryLock(String key, String value, int seconds) {
        Map<String, Integer> mine = counts.get();
        if (mine.containsKey(key)) {
            mine.merge(key, 1, Integer::sum);
            return true;
        }
        if (!"OK".equals(redis.execute(jedis -> jedis.set(key, value, SetParams.setParams().nx().ex(seconds))))) {
            return false;
        }
        mine.put(key, 1);
        persist(key, value, seconds);
        return true;
    }

    public void lock(String key, String value, int seconds, long sleepMs) throws InterruptedException {
        while (!tryLock(key, value, seconds)) {
            Thread.sleep(sleepMs);
        }
    }

    /** Each time after two thirds of the lease. */
    private void persist(String key, String value, int seconds) {
        if (persistentExpire == 0) {
            return;
        }
        Thread thread = new Thread(() -> {
            try {
                for (int i = 0; i < persistentExpire; i++) {
                    Thread.sleep(seconds * 2000L / 3);
                    Object done = redis.execute(jedis ->
                            jedis.eval(EXPIRE_IF_MINE, List.of(key), List.of(value, String.valueOf(seconds))));
                    if (!Long.valueOf(1).equals(done)) {
                        return;
                    }
                }
            } catch (InterruptedException e) {
                // Unlocked.
            }
        }, "persist-" + key);
        thread.setDaemon(true);
        persisting.put(key, thread);
        thread.start();
    }

    /** False for a stranger, and for a holder whose lease is gone. */
    public boolean unLock(String key, String value) {
        Map<String, Integer> mine = counts.get();
        Integer count = mine.get(key);
        if (count == null) {
            return false;
        }
        if (count > 1) {
            mine.put(key, count - 1);
            return true;
        }
        mine.remove(key);
        Thread thread = persisting.remove(key);
        if (thread != null) {
            thread.interrupt();
        }
        return redis.execute(jedis -> NxpxLock.del_lock(jedis, key, value));
    }

    public boolean isLocking(String key, String value) {
        return value.equals(redis.execute(jedis -> jedis.get(key)));
    }

    public int count(String key) {
        return counts.get().getOrDefault(key, 0);
    }
}
