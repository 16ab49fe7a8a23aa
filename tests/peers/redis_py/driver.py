"""The line protocol of PROTOCOL.md around redis-py's Lock."""

import os
import sys
import threading
import time

import redis
from redis.exceptions import LockError

now = time.monotonic_ns  # CLOCK_MONOTONIC on Linux
MS = 1_000_000


class Unsupported(Exception):
    pass


class Driver:
    def __init__(self, url):
        self.redis = redis.Redis.from_url(url)
        self.redis.ping()
        self.sleep_s = 0.1
        self.lease_ms = 30_000
        self.warmup_ms = 200
        self.held = {}

    def new_lock(self, key, lease_ms):
        if lease_ms == 0:
            raise Unsupported  # timeout=None would be a lock for ever, not one that is renewed
        return self.redis.lock(key, timeout=lease_ms / 1000, sleep=self.sleep_s)

    def release(self, key):
        # One that never locked is refused by the library itself.
        lock = self.held.pop(key, None) or self.new_lock(key, 1000)
        try:
            lock.release()
            return "ok"
        except LockError:
            return "refused"

    # Commands: name and arguments as in PROTOCOL.md.

    def do_lock(self, key, lease_ms):
        lock = self.new_lock(key, int(lease_ms))
        lock.acquire()
        self.held[key] = lock
        return "ok"

    def do_try(self, key, wait_ms, lease_ms):
        lock = self.new_lock(key, int(lease_ms))
        wait_s = int(wait_ms) / 1000
        if not (lock.acquire(blocking_timeout=wait_s) if wait_s else lock.acquire(blocking=False)):
            return "no"
        self.held[key] = lock
        return "ok"

    def do_unlock(self, key):
        return self.release(key)

    def do_wait(self, key, lease_ms):
        self.do_lock(key, lease_ms)
        return f"ok {now()}"

    def do_release(self, key):
        called = now()
        return f"{self.release(key)} {called}"

    def do_hold(self, key, lease_ms, hold_ms):
        self.do_lock(key, lease_ms)
        acquired = now()
        time.sleep(int(hold_ms) / 1000)
        called = now()
        return f"{self.release(key)} {acquired} {called}"

    def do_count(self, key, counter, n, lease_ms):
        longest = 0
        for _ in range(int(n)):
            called = now()
            self.do_lock(key, lease_ms)
            longest = max(longest, now() - called)
            self.redis.set(counter, int(self.redis.get(counter) or 0) + 1)
            if self.release(key) != "ok":
                return "error unlock was refused"
        return f"ok {n} {longest // 1000}"

    def do_locked(self, key):
        return "yes" if self.new_lock(key, 1000).locked() else "no"

    def do_value(self, key):
        return f"ok {self.held[key].local.token.decode()}" if key in self.held else "no"

    def do_extend(self, key, lease_ms):
        lock = self.held.get(key) or self.new_lock(key, 1000)
        try:
            lock.extend(int(lease_ms) / 1000, replace_ttl=True)
            return "ok"
        except LockError:
            return "refused"

    def do_kind(self, name):
        if name != "lock":
            raise Unsupported
        return "ok"

    def do_sleep(self, ms):
        self.sleep_s = int(ms) / 1000
        return "ok"

    def do_lease(self, ms):
        self.lease_ms = int(ms)
        return "ok"

    def do_warmup(self, ms):
        self.warmup_ms = int(ms)
        return "ok"

    def do_quit(self):
        return "ok"

    def do_bench(self, key, n):
        n = int(n)
        lock = self.new_lock(key, self.lease_ms)
        end = now() + self.warmup_ms * MS
        while now() < end:
            lock.acquire()
            lock.release()
        took = [0] * n
        start = before = now()
        for i in range(n):
            lock.acquire()
            lock.release()
            after = now()
            took[i] = after - before
            before = after
        took.sort()
        return f"ok {took[n // 2]} {took[int(n * 0.99)]} {before - start}"

    def do_benchcs(self, key, seconds, cs_us, file, start_ns="0"):
        lock = self.new_lock(key, self.lease_ms)
        start = int(start_ns) or now() + self.warmup_ms * MS
        end = start + int(seconds) * 1000 * MS
        spin = int(cs_us) * 1000
        spans = []
        longest = 0
        while (called := now()) < end:
            lock.acquire()
            acquired = now()
            done = acquired + spin
            while (released := now()) < done:
                pass
            lock.release()
            if acquired >= start:
                longest = max(longest, acquired - called)
                spans.append((acquired, released, called))
        with open(file, "w", encoding="ascii") as out:
            out.writelines("%d %d %d\n" % span for span in spans)
        return f"ok {len(spans)} {longest // 1000}"

    def do_threads(self, key, threads, seconds):
        threads = int(threads)
        start = now() + self.warmup_ms * MS
        end = start + int(seconds) * 1000 * MS
        counts = [0] * threads
        longest = [0] * threads
        failures = []

        def run(me, lock):
            try:
                while (called := now()) < end:
                    lock.acquire()
                    acquired = now()
                    lock.release()
                    if acquired >= start:
                        counts[me] += 1
                        longest[me] = max(longest[me], acquired - called)
            except Exception as e:
                failures.append(e)

        all_threads = [threading.Thread(target=run, args=(i, self.new_lock(key, self.lease_ms))) for i in range(threads)]
        for thread in all_threads:
            thread.start()
        for thread in all_threads:
            thread.join()
        if failures:
            raise failures[0]
        return f"ok {sum(counts)} {min(counts)} {max(counts)} {max(longest) // 1000} {' '.join(map(str, counts))}"

    OF_OTHERS = {"holds", "force", "watchdog", "owner", "persist", "limit", "tries", "islocking"}

    def answer(self, line):
        name, *args = line.split(" ")
        command = getattr(self, "do_" + name, None)
        if command is None:
            return "unsupported" if name in self.OF_OTHERS else f"error unknown command {name}"
        try:
            return command(*args)
        except Unsupported:
            return "unsupported"
        except (TypeError, ValueError) as e:
            return f"error usage: see PROTOCOL.md ({e})"
        except Exception as e:
            return "error " + " ".join(f"{type(e).__name__}: {e}".split())


def main():
    try:
        (url,) = sys.argv[1:]
        driver = Driver(url)
    except Exception as e:
        print("error", " ".join(f"{type(e).__name__}: {e}".split()), flush=True)
        sys.exit(1)
    print("ready", flush=True)
    for line in sys.stdin:
        line = line.rstrip("\n")
        print(driver.answer(line), flush=True)
        if line == "quit":
            break
    os._exit(0)


main()
