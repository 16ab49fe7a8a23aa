//! Jobs that every instance starts, and one shall run: `RedisLock::run_once`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use distlock::testing::FakeClock;
use distlock::{Client, LockOptions};

use crate::helpers::{SOON, delete, error, keys, ms, on_another_thread, pttl};
use crate::support::Server;

const TICK: Duration = Duration::from_secs(60);

/// Three instances start a job of so long at three ticks, by clocks that are 10 s apart. `start`:
/// what each does then, given the lock and a job that takes a while. Returns how often the job has
/// run.
fn runs(name: &str, job: Duration, start: impl Fn(&Client, &dyn Fn())) -> u32 {
    let (clock, runs) = (FakeClock::new(), std::cell::Cell::new(0));
    let open = || Client::builder(&format!("memory://{name}")).clock(clock.clone()).build();
    let (instances, begin) = ([(); 3].map(|()| open().unwrap()), clock.now());
    let work = || {
        runs.set(runs.get() + 1);
        clock.advance(job);
    };
    for tick in 0..3 {
        for (instance, behind) in instances.iter().zip(0..) {
            let starts = begin + TICK * tick + ms(10_000) * behind;
            clock.advance(starts.saturating_duration_since(clock.now()));
            start(instance, &work);
        }
    }
    runs.get()
}

#[test]
fn one_of_three_instances_runs_a_job_at_each_tick() {
    for job in [Duration::ZERO, ms(5000)] {
        let once = runs("cron", job, |client, job| {
            client.lock("nightly").run_once(TICK / 2, |_| job()).unwrap();
        });
        assert_eq!(once, 3, "a job of {job:?}");
        // What `run_once` is for.
        let obvious = runs("obvious", job, |client, job| {
            let lock = client.lock("nightly");
            if lock.try_lock(Duration::ZERO).unwrap() {
                job();
                lock.unlock().unwrap();
            }
        });
        assert_eq!(obvious, 9, "a job of {job:?}");
    }
}

/// Kept for 40 s of a minute: an instance may be behind by less than that, and the next tick is
/// lost to one that is ahead by more than 20 s.
#[test]
fn starts_may_differ_by_less_than_the_time_and_what_it_leaves_of_the_tick() {
    let clock = FakeClock::new();
    let open = || Client::builder("memory://skew").clock(clock.clone()).build().unwrap();
    let (first, second) = (open(), open());
    let run = |client: &Client| client.lock("x").run_once(ms(40_000), |_| ()).unwrap().is_some();
    assert!(run(&first));
    clock.advance(ms(39_999));
    assert!(!run(&second), "it is behind by less than 40 s");
    clock.advance(ms(1));
    assert!(run(&second), "it runs it once more, or is 20 s ahead");
    clock.advance(ms(20_000));
    assert!(!run(&first), "at the next tick");
}

#[test]
fn a_job_that_takes_longer_than_a_tick_keeps_the_lock_until_its_end() {
    let clock = FakeClock::new();
    let open = || Client::builder("memory://long").clock(clock.clone()).build().unwrap();
    // No lease that renewal would have to extend meanwhile.
    let long = || open().lock_with("x", LockOptions::new().lease(TICK * 60)).unwrap();
    let (lock, other) = (long(), long());
    let outcome = lock.run_once(TICK / 2, |guard| {
        clock.advance(TICK);
        assert!(on_another_thread(|| other.run_once(TICK / 2, |_| ()).unwrap()).is_none());
        guard.is_valid()
    });
    assert_eq!(outcome.unwrap(), Some(true));
    assert_eq!(other.run_once(TICK / 2, |_| 7).unwrap(), Some(7), "the next start");
}

#[test]
fn a_thread_that_holds_the_lock_with_other_options_is_refused() {
    let lock = Client::open("memory://").unwrap().lock("x");
    let inside = lock.run_once(SOON, |guard| {
        assert!(error(lock.try_lock(Duration::ZERO)).is_conflict());
        let again = guard.lock().guard();
        again.is_ok_and(|again| again.release().is_ok())
    });
    assert_eq!(inside.unwrap(), Some(true));
    assert!(lock.inspect().unwrap().holders[0].is_kept);
    assert!(lock.force_unlock().unwrap());
    let _guard = lock.guard().unwrap();
    assert!(error(lock.run_once(SOON, |_| ())).is_conflict());
}

#[test]
fn a_job_that_fails_or_panics_has_run() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let failed = client.lock("fails").run_once(SOON, |_| Err::<(), _>("no paper"));
    assert_eq!(failed.unwrap(), Some(Err("no paper")));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        client.lock("panics").run_once(SOON, |_| panic!("on purpose"))
    }));
    assert!(panicked.is_err());
    for name in ["fails", "panics"] {
        let rest = pttl(&server, name);
        assert!(0 < rest && rest <= 10_000, "{name}: {rest} ms");
        assert!(client.lock(name).run_once(SOON, |_| ()).unwrap().is_none());
    }
    assert_eq!(client.stats().abandoned, 0);
}

#[test]
fn a_job_that_loses_its_lock_is_told_and_leaves_nothing() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let lost = client.lock("x").run_once(SOON, |_| delete(&server, "x"));
    assert!(error(lost).is_lost());
    assert!(keys(&server).is_empty());
}

/// What the lock is otherwise stays as it is, and so does the lock itself.
#[test]
fn the_other_options_are_those_of_the_lock() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let lock = client.lock_with("x", LockOptions::new().fenced().lease(SOON * 6)).unwrap();
    let (fence, lease) =
        lock.run_once(ms(300), |guard| (guard.fence(), guard.remaining())).unwrap().unwrap();
    assert!(fence.is_some() && lease > SOON * 5);
    lock.lock().unwrap();
    lock.unlock().unwrap();
    assert_eq!(pttl(&server, "x"), -2, "an unlock of this lock frees it at once");
}
