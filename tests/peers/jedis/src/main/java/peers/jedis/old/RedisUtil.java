package peers.jedis.old;

import java.util.function.Function;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPool;
import redis.clients.jedis.exceptions.JedisConnectionException;

/** Runs the caller with a pooled connection, once more if the connection failed. */
public final class RedisUtil {
    private final JedisPool pool;

    public RedisUtil(JedisPool pool) {
        this.pool = pool;
    }

    public <T> T execute(Function<Jedis, T> caller) {
        try (Jedis jedis = pool.getResource()) {
            return caller.apply(jedis);
        } catch (JedisConnectionException e) {
            try (Jedis jedis = pool.getResource()) {
                return caller.apply(jedis);
            }
        }
    }
}
