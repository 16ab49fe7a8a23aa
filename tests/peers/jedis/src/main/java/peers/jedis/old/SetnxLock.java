package peers.jedis.old;

import java.util.UUID;
import redis.clients.jedis.Jedis;

/** The oldest: no lease at all. A holder that dies keeps the lock for ever; anyone may delete it. */
public final class SetnxLock {
    public static String acquire_lock(Jedis redis, String name, int tryNum, long sleepMs) throws InterruptedException {
        String value = UUID.randomUUID().toString();
        while (tryNum-- > 0) {
            if (redis.setnx(name, value) == 1) {
                return value;
            }
            if (tryNum > 0) {
                Thread.sleep(sleepMs);
            }
        }
        return null;
    }

    public static boolean release_lock(Jedis redis, String name) {
        return redis.del(name) == 1;
    }
}
