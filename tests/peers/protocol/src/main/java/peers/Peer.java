package peers;

import java.util.List;

/** What one lock library does for the driver. Holds belong to the calling thread, as in the library itself. */
public interface Peer {
    /** Thrown where the library, or the chosen kind of lock, has no such thing. */
    final class Unsupported extends RuntimeException {
        public Unsupported() {
            super("unsupported", null, false, false);
        }
    }

    /** Blocks until held. Returns what is said after "ok", or null. */
    Object lock(String key, long leaseMs) throws Exception;

    /** As lock, but gives up after waitMs: false. The token of a kind that has tokens is left out. */
    boolean tryLock(String key, long waitMs, long leaseMs) throws Exception;

    /** False: the library refused, because this thread does not hold the lock. */
    boolean unlock(String key) throws Exception;

    /** Of the plain counter that the count command works on. */
    String get(String key);

    void set(String key, String value);

    /** A command that only this peer has. Returns its whole answer, or null if there is no such command. */
    String command(String name, List<String> args) throws Exception;
}
