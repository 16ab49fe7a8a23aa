package peers.jedis.old;

import java.util.List;
import java.util.UUID;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.params.SetParams;

/** SET NX PX, and a script that deletes only the own value. */
public final class NxpxLock {
    private static final String DEL_IF_MINE =
            "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

    /** The value, or null when waitMs ran out. */
    public static String acquire_loca_nxpx(Jedis redis, String name, long waitMs, long leaseMs, long sleepMs)
            throws InterruptedException {
        String value = UUID.randomUUID().toString();
        SetParams params = SetParams.setParams().nx().px(leaseMs);
        long end = System.currentTimeMillis() + waitMs;
        while (!"OK".equals(redis.set(name, value, params))) {
            if (System.currentTimeMillis() + sleepMs > end) {
                return null;
            }
            Thread.sleep(sleepMs);
        }
        return value;
    }

    public static boolean del_lock(Jedis redis, String name, String value) {
        return Long.valueOf(1).equals(redis.eval(DEL_IF_MINE, List.of(name), List.of(value)));
    }
}
