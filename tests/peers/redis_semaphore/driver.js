// The line protocol of PROTOCOL.md around redis-semaphore's Semaphore.

import { writeFileSync } from "node:fs";
import process from "node:process";
import { createInterface } from "node:readline";
import { setImmediate, setTimeout as sleep } from "node:timers/promises";

import { Redis } from "ioredis";
import { Semaphore } from "redis-semaphore";

// CLOCK_MONOTONIC on Linux. As a number it is exact to a microsecond for a hundred days.
const now = () => Number(process.hrtime.bigint());
const MS = 1_000_000;

class Unsupported extends Error {}
class Usage extends Error {}

function number(text) {
  if (!/^\d+$/.test(text ?? "")) throw new Usage();
  return Number(text);
}

class Driver {
  settings = { permits: 10, sleep: 10, lease: 30_000, warmup: 200 };
  held = new Map();

  constructor(redis) {
    this.redis = redis;
  }

  // A Semaphore of this library is one holder. A lease of 0: its own lease, which it renews. Null: the wait is over.
  async acquire(key, lease, wait = Infinity) {
    const options = lease === 0 ? {} : { lockTimeout: lease, refreshInterval: 0 };
    const holder = new Semaphore(this.redis, key, this.settings.permits, {
      ...options,
      retryInterval: this.settings.sleep,
      acquireTimeout: wait === 0 ? 60_000 : wait,
      acquireAttemptsLimit: wait === 0 ? 1 : Infinity,
    });
    return (await holder.tryAcquire()) ? holder : null;
  }

  async lock(key, lease) {
    this.held.set(key, await this.acquire(key, lease));
  }

  // Like the library, does not ask what has become of the lease.
  async unlock(key) {
    const holder = this.held.get(key);
    if (!holder) return "refused";
    this.held.delete(key);
    await holder.release();
    return "ok";
  }

  // Acquires and releases until the end; says which holds began after the start.
  async contend(key, start, end, hold) {
    const spans = [];
    for (let called = now(); called < end; called = now()) {
      const holder = await this.acquire(key, this.settings.lease);
      const acquired = now();
      await hold(acquired);
      const released = now();
      await holder.release();
      if (acquired >= start) spans.push([acquired, released, called]);
    }
    return spans;
  }

  async at_once(threads, work) {
    return Promise.all(Array.from({ length: threads }, () => work()));
  }

  commands = {
    lock: async (key, lease) => {
      await this.lock(key, number(lease));
      return "ok";
    },
    try: async (key, wait, lease) => {
      const holder = await this.acquire(key, number(lease), number(wait));
      if (holder) this.held.set(key, holder);
      return holder ? "ok" : "no";
    },
    unlock: (key) => this.unlock(key),
    wait: async (key, lease) => {
      await this.lock(key, number(lease));
      return `ok ${now()}`;
    },
    release: async (key) => {
      const called = now();
      return `${await this.unlock(key)} ${called}`;
    },
    hold: async (key, lease, hold) => {
      await this.lock(key, number(lease));
      const acquired = now();
      await sleep(number(hold));
      const called = now();
      return `${await this.unlock(key)} ${acquired} ${called}`;
    },
    count: async (key, counter, n, lease) => {
      let longest = 0;
      for (let i = 0; i < number(n); i++) {
        const called = now();
        await this.lock(key, number(lease));
        longest = Math.max(longest, now() - called);
        await this.redis.set(counter, Number((await this.redis.get(counter)) ?? 0) + 1);
        await this.unlock(key);
      }
      return `ok ${n} ${Math.floor(longest / 1000)}`;
    },
    value: (key) => (this.held.has(key) ? `ok ${this.held.get(key).identifier}` : "no"),
    bench: async (key, n) => {
      const end = now() + this.settings.warmup * MS;
      await this.contend(key, end, end, () => {});
      const took = [];
      const start = now();
      for (let before = start; took.length < number(n); ) {
        const holder = await this.acquire(key, this.settings.lease);
        await holder.release();
        const after = now();
        took.push(after - before);
        before = after;
      }
      const total = now() - start;
      took.sort((a, b) => a - b);
      return `ok ${took[Math.floor(n / 2)]} ${took[Math.floor(n * 0.99)]} ${total}`;
    },
    benchcs: async (key, seconds, spin, file, at) => {
      const start = at === undefined ? now() + this.settings.warmup * MS : number(at);
      const end = start + number(seconds) * 1000 * MS;
      const busy = (acquired) => {
        while (now() < acquired + number(spin) * 1000);
      };
      return written(file, [await this.contend(key, start, end, busy)]);
    },
    benchsleep: async (key, seconds, hold, file, at, threads) => {
      const end = number(at) + number(seconds) * 1000 * MS;
      const idle = async (acquired) => {
        await sleep(number(hold) / 1000);
        // A timer of Node may end up to a millisecond early.
        while (now() < acquired + number(hold) * 1000) await setImmediate();
      };
      const one = () => this.contend(key, number(at), end, idle);
      return written(file, await this.at_once(number(threads), one));
    },
    threads: async (key, threads, seconds) => {
      const start = now() + this.settings.warmup * MS;
      const end = start + number(seconds) * 1000 * MS;
      const one = () => this.contend(key, start, end, () => {});
      const all = await this.at_once(number(threads), one);
      const counts = all.map((spans) => spans.length);
      const [total, longest] = sums(all);
      return `ok ${total} ${Math.min(...counts)} ${Math.max(...counts)} ${longest} ${counts.join(" ")}`;
    },
    kind: (name) => {
      if (name !== "permit") throw new Unsupported();
      return "ok";
    },
    quit: () => "ok",
  };

  async answer(line) {
    const [name, ...args] = line.split(" ");
    try {
      if (name in this.settings) {
        this.settings[name] = number(args[0]);
        return "ok";
      }
      if (OF_OTHERS.has(name)) throw new Unsupported();
      if (!(name in this.commands)) return `error unknown command ${name}`;
      return await this.commands[name](...args);
    } catch (error) {
      if (error instanceof Unsupported) return "unsupported";
      if (error instanceof Usage) return "error usage: see PROTOCOL.md";
      return text(error);
    }
  }
}

const OF_OTHERS = new Set("holds locked extend force watchdog owner persist limit tries islocking".split(" "));

// How many holds, and the longest wait in microseconds.
function sums(all) {
  const waits = all.flat().map(([acquired, , called]) => acquired - called);
  const longest = waits.reduce((a, b) => Math.max(a, b), 0);
  return [waits.length, Math.floor(longest / 1000)];
}

function written(file, all) {
  writeFileSync(file, all.flat().map((span) => `${span.join(" ")}\n`).join(""));
  const [total, longest] = sums(all);
  return `ok ${total} ${longest}`;
}

function text(error) {
  return `error ${String(error).replace(/\s+/g, " ")}`;
}

const redis = new Redis(process.argv[2] ?? "", { lazyConnect: true, retryStrategy: () => null });
redis.on("error", () => {}); // the first call says it, too
try {
  if (process.argv.length !== 3) throw new Usage("usage: driver REDIS-URL");
  await redis.connect();
  await redis.ping();
} catch (error) {
  console.log(text(error));
  process.exit(1);
}
const driver = new Driver(redis);
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  console.log(await driver.answer(line));
  if (line === "quit") break;
}
process.exit(0);
