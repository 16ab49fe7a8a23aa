package peers.jedis.old;

import java.util.List;
import java.util.UUID;
import redis.clients.jedis.Jedis;

/** From before SET knew NX: SETNX and EXPIRE made one by a script. Released like {@link NxpxLock}. */
public final class LuaLock {
    private static final String SETNX_EXPIRE =
            "if redis.call('setnx', KEYS[1], ARGV[1]) == 1 then return redis.call('expire', KEYS[1], ARGV[2]) else return 0 end";

    /** The value, or null when waitMs ran out. */
    public static String acquire_loca_lua(Jedis redis, String name, long waitMs, long seconds, long sleepMs)
            throws InterruptedException {
        String value = UUID.randomUUID().toString();
        long end = System.currentTimeMillis() + waitMs;
        while (!Long.valueOf(1).equals(redis.eval(SETNX_EXPIRE, List.of(name), List.of(value, String.valueOf(seconds))))) {
            if (System.currentTimeMillis() + sleepMs > end) {
                return null;
            }
            Thread.sleep(sleepMs);
        }
        return value;
    }
}
