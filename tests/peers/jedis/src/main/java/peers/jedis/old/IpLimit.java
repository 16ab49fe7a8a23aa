package peers.jedis.old;

import redis.clients.jedis.Jedis;

/** At most count calls in seconds, from the first one on. Dies between INCR and EXPIRE: refused for ever. */
public final class IpLimit {
    public static boolean ip_limit(Jedis redis, String ip, int seconds, int count) {
        long calls = redis.incr(ip);
        if (calls == 1) {
            redis.expire(ip, seconds);
        }
        return calls <= count;
    }
}
