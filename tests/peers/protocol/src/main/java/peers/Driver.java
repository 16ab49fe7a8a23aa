package peers;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Stream;

/** The line protocol of PROTOCOL.md around a {@link Peer}. System.nanoTime() is CLOCK_MONOTONIC on Linux. */
public final class Driver {
    private static final long MS = 1_000_000;

    private final Peer peer;
    private long leaseMs = 30_000;
    private long warmupMs = 3_000;

    private Driver(Peer peer) {
        this.peer = peer;
    }

    /** How a peer is made; it has talked to the server when this returns. */
    public interface Connect {
        Peer to(String url) throws Exception;
    }

    public static void main(String[] args, Connect connect) {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        if (args.length != 1) {
            out.println("error usage: driver REDIS-URL");
            System.exit(1);
        }
        try {
            Driver driver = new Driver(connect.to(args[0]));
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            out.println("ready");
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                out.println(driver.answer(line));
                if (line.equals("quit")) {
                    break;
                }
            }
        } catch (Throwable e) {
            out.println(error(e));
            Runtime.getRuntime().halt(1);
        }
        // No orderly shutdown: a library's own clean-up must not release what the driver still holds.
        Runtime.getRuntime().halt(0);
    }

    private static String error(Throwable e) {
        return "error " + e.toString().replaceAll("\\s+", " ");
    }

    private String answer(String line) {
        List<String> words = List.of(line.split(" "));
        try {
            return run(words.get(0), words.subList(1, words.size()));
        } catch (Peer.Unsupported e) {
            return "unsupported";
        } catch (IndexOutOfBoundsException | NumberFormatException e) {
            return "error usage: see PROTOCOL.md";
        } catch (Throwable e) {
            return error(e);
        }
    }

    private String run(String name, List<String> args) throws Exception {
        switch (name) {
            case "quit":
                return "ok";
            case "lease":
                leaseMs = number(args, 0);
                return "ok";
            case "warmup":
                warmupMs = number(args, 0);
                return "ok";
            case "lock": {
                Object more = peer.lock(args.get(0), number(args, 1));
                return more == null ? "ok" : "ok " + more;
            }
            case "try":
                return peer.tryLock(args.get(0), number(args, 1), number(args, 2)) ? "ok" : "no";
            case "unlock":
                return verdict(peer.unlock(args.get(0)));
            case "wait":
                peer.lock(args.get(0), number(args, 1));
                return "ok " + System.nanoTime();
            case "release": {
                long called = System.nanoTime();
                return verdict(peer.unlock(args.get(0))) + " " + called;
            }
            case "hold": {
                peer.lock(args.get(0), number(args, 1));
                long acquired = System.nanoTime();
                Thread.sleep(number(args, 2));
                long called = System.nanoTime();
                return verdict(peer.unlock(args.get(0))) + " " + acquired + " " + called;
            }
            case "count":
                return count(args.get(0), args.get(1), number(args, 2), number(args, 3));
            case "bench":
                return bench(args.get(0), (int) number(args, 1));
            case "benchcs":
                return benchcs(args.get(0), number(args, 1), number(args, 2), Path.of(args.get(3)),
                        args.size() > 4 ? number(args, 4) : 0);
            case "benchsleep":
                return benchsleep(args.get(0), number(args, 1), number(args, 2), Path.of(args.get(3)),
                        number(args, 4), (int) number(args, 5));
            case "threads":
                return threads(args.get(0), (int) number(args, 1), number(args, 2));
            default: {
                String answer = peer.command(name, args);
                return answer != null ? answer : "error unknown command " + name;
            }
        }
    }

    private static long number(List<String> args, int at) {
        return Long.parseLong(args.get(at));
    }

    private static String verdict(boolean released) {
        return released ? "ok" : "refused";
    }

    private void unlockOrFail(String key) throws Exception {
        if (!peer.unlock(key)) {
            throw new IllegalStateException("unlock was refused");
        }
    }

    private String count(String key, String counter, long n, long lease) throws Exception {
        long longest = 0;
        for (long i = 0; i < n; i++) {
            long called = System.nanoTime();
            peer.lock(key, lease);
            longest = Math.max(longest, System.nanoTime() - called);
            String before = peer.get(counter);
            peer.set(counter, Long.toString((before == null ? 0 : Long.parseLong(before)) + 1));
            unlockOrFail(key);
        }
        return "ok " + n + " " + longest / 1000;
    }

    private void cycle(String key) throws Exception {
        peer.lock(key, leaseMs);
        unlockOrFail(key);
    }

    private String bench(String key, int n) throws Exception {
        for (long end = System.nanoTime() + warmupMs * MS; System.nanoTime() < end;) {
            cycle(key);
        }
        long[] took = new long[n];
        long start = System.nanoTime();
        long before = start;
        for (int i = 0; i < n; i++) {
            cycle(key);
            long now = System.nanoTime();
            took[i] = now - before;
            before = now;
        }
        Arrays.sort(took);
        return "ok " + took[n / 2] + " " + took[(int) (n * 0.99)] + " " + (before - start);
    }

    private String benchcs(String key, long seconds, long spinUs, Path file, long startAt) throws Exception {
        Spans spans = new Spans();
        long start = startAt != 0 ? startAt : System.nanoTime() + warmupMs * MS;
        contend(key, start, start + seconds * 1000 * MS, spans, acquired -> {
            long done = acquired + spinUs * 1000;
            while (System.nanoTime() < done) {
                Thread.onSpinWait();
            }
        });
        return write(file, List.of(spans));
    }

    private String benchsleep(String key, long seconds, long holdUs, Path file, long start, int threads)
            throws Exception {
        List<Spans> all = Stream.generate(Spans::new).limit(threads).toList();
        inThreads(threads, me -> contend(key, start, start + seconds * 1000 * MS, all.get(me),
                acquired -> TimeUnit.MICROSECONDS.sleep(holdUs)));
        return write(file, all);
    }

    /** What is done in a hold, which began at this time. */
    private interface Hold {
        void spend(long acquired) throws Exception;
    }

    /** Acquires and releases until the end; keeps the holds that began after the start. */
    private void contend(String key, long start, long end, Spans spans, Hold hold) throws Exception {
        for (long called = System.nanoTime(); called < end; called = System.nanoTime()) {
            peer.lock(key, leaseMs);
            long acquired = System.nanoTime();
            hold.spend(acquired);
            long released = System.nanoTime();
            unlockOrFail(key);
            if (acquired >= start) {
                spans.add(acquired, released, called);
            }
        }
    }

    /** The holds of one thread. */
    private static final class Spans {
        private long[] times = new long[3 * 4096];
        private int holds;
        private long longest;

        private void add(long acquired, long released, long called) {
            longest = Math.max(longest, acquired - called);
            if (3 * holds == times.length) {
                times = Arrays.copyOf(times, 2 * times.length);
            }
            times[3 * holds] = acquired;
            times[3 * holds + 1] = released;
            times[3 * holds + 2] = called;
            holds++;
        }
    }

    private static String write(Path file, List<Spans> all) throws IOException {
        StringBuilder text = new StringBuilder();
        for (Spans spans : all) {
            for (int at = 0; at < 3 * spans.holds; at += 3) {
                text.append(spans.times[at]).append(' ').append(spans.times[at + 1])
                        .append(' ').append(spans.times[at + 2]).append('\n');
            }
        }
        Files.writeString(file, text);
        long longest = all.stream().mapToLong(spans -> spans.longest).max().orElse(0);
        return "ok " + all.stream().mapToInt(spans -> spans.holds).sum() + " " + longest / 1000;
    }

    private String threads(String key, int threads, long seconds) throws Exception {
        long start = System.nanoTime() + warmupMs * MS;
        long end = start + seconds * 1000 * MS;
        long[] counts = new long[threads];
        long[] longest = new long[threads];
        inThreads(threads, me -> {
            long n = 0;
            long wait = 0;
            for (long called = System.nanoTime(); called < end; called = System.nanoTime()) {
                peer.lock(key, leaseMs);
                long acquired = System.nanoTime();
                unlockOrFail(key);
                if (acquired >= start) {
                    n++;
                    wait = Math.max(wait, acquired - called);
                }
            }
            counts[me] = n;
            longest[me] = wait;
        });
        StringBuilder text = new StringBuilder("ok ").append(Arrays.stream(counts).sum())
                .append(' ').append(Arrays.stream(counts).min().getAsLong())
                .append(' ').append(Arrays.stream(counts).max().getAsLong())
                .append(' ').append(Arrays.stream(longest).max().getAsLong() / 1000);
        Arrays.stream(counts).forEach(n -> text.append(' ').append(n));
        return text.toString();
    }

    /** What the thread of this number does. */
    private interface Work {
        void run(int me) throws Exception;
    }

    /** Ends when all have ended. What the first one failed with is thrown. */
    private static void inThreads(int threads, Work work) throws Exception {
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Thread[] all = new Thread[threads];
        for (int i = 0; i < threads; i++) {
            int me = i;
            all[i] = new Thread(() -> {
                try {
                    work.run(me);
                } catch (Throwable e) {
                    failure.compareAndSet(null, e);
                }
            });
            all[i].start();
        }
        for (Thread thread : all) {
            thread.join();
        }
        if (failure.get() instanceof Exception e) {
            throw e;
        } else if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
    }
}
