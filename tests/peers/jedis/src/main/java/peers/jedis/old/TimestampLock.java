package peers.jedis.old;

import redis.clients.jedis.Jedis;

/** The value is the deadline. Once it has passed, whoever GETSETs first and gets the old one back has taken over. */
public final class TimestampLock {
    /** The deadline, or 0 when waitMs ran out. */
    public static long acquire_loca_with_timeout(Jedis redis, String name, long waitMs, long leaseMs, long sleepMs)
            throws InterruptedException {
        long end = System.currentTimeMillis() + waitMs;
        while (true) {
            long deadline = System.currentTimeMillis() + leaseMs;
            if (redis.setnx(name, String.valueOf(deadline)) == 1) {
                return deadline;
            }
            String current = redis.get(name);
            if (current != null && Long.parseLong(current) < System.currentTimeMillis()) {
                // A loser has still moved the winner's deadline by now: the hazard of this lock.
                String old = redis.getSet(name, String.valueOf(deadline));
                if (old == null || old.equals(current)) {
                    return deadline;
                }
            }
            if (System.currentTimeMillis() + sleepMs > end) {
                return 0;
            }
            Thread.sleep(sleepMs);
        }
    }

    public static boolean release_lock(Jedis redis, String name, long deadline) {
        if (System.currentTimeMillis() < deadline) {
            return redis.del(name) == 1;
        }
        return false;
    }
}
