package peers.jedis.old;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.UUID;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPool;
import redis.clients.jedis.params.SetParams;

/** One attempt, no wait. The value names process and thread, so that two holds of one thread look the same. */
public final class SimpleRedisLock {
    private static final String KEY_PREFIX = "lock:";
    private static final String ID_PREFIX = UUID.randomUUID() + "-";
    private static final String UNLOCK = load("/unlock.lua");

    private final String name;
    private final JedisPool template;

    public SimpleRedisLock(String name, JedisPool template) {
        this.name = name;
        this.template = template;
    }

    public static String value() {
        return ID_PREFIX + Thread.currentThread().getId();
    }

    public boolean tryLock(long seconds) {
        try (Jedis jedis = template.getResource()) {
            return "OK".equals(jedis.set(KEY_PREFIX + name, value(), SetParams.setParams().nx().ex(seconds)));
        }
    }

    public boolean unlock() {
        try (Jedis jedis = template.getResource()) {
            return Long.valueOf(1).equals(jedis.eval(UNLOCK, List.of(KEY_PREFIX + name), List.of(value())));
        }
    }

    private static String load(String resource) {
        try (InputStream in = SimpleRedisLock.class.getResourceAsStream(resource)) {
            return new String(in.readAllBytes(), StandardCharsets.UTF_8);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
