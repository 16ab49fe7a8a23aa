//! An old primary that is back and takes writes until the sentinels demote it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use distlock::Client;

use crate::helpers::{SOON, ms};
use crate::support::sentinels::{SERVICE, Sentinels};
use crate::support::{Server, eventually, on_time};

/// With Redis's own timers, an old primary takes writes for about ten seconds after the failover.
const GOES_ON: Duration = Duration::from_secs(20);
/// How late the last write may be. It is seen by one thread, and the news by another.
const LIMIT: Duration = ms(500);

/// Says that it is over when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// How often `SET` was called there, as `INFO` says; `None`: it does not answer.
fn sets(server: &Server) -> Option<String> {
    let stats = server.try_info("commandstats").ok()?;
    stats.lines().find(|line| line.starts_with("cmdstat_set:")).map(str::to_owned)
}

#[test]
#[ignore = "slow: .ci/full slow"]
fn it_gets_no_write_of_an_idle_client_once_the_failover_is_published() {
    on_time(LIMIT / 10, nothing_is_written_after_the_news);
}

fn nothing_is_written_after_the_news() {
    // 1. The primary is frozen, and the clients are idle; 2. its replica is promoted; 3. the old
    // primary goes on, and so do the clients, over the connections that they have; 4. the sentinels
    // publish `+switch-master`; 5. they demote the old primary.
    let all = Sentinels::builder().default_timers().start();
    let clients: Vec<Client> = (0..4).map(|_| Client::open(&all.url()).unwrap()).collect();
    clients.iter().for_each(|client| client.lock("first").with(|_| ()).unwrap());
    let published = Mutex::new(None::<Instant>);
    let is_over = AtomicBool::new(false);
    let (old, new) = (&all.servers[0], &all.servers[1]);
    let (mut last_write, mut took) = (None, Duration::ZERO);
    thread::scope(|scope| {
        let sentinel = redis::Client::open(all.sentinels[0].url()).unwrap();
        let mut subscription = sentinel.get_connection().unwrap();
        let published = &published;
        scope.spawn(move || {
            let mut subscription = subscription.as_pubsub();
            subscription.subscribe("+switch-master").unwrap();
            subscription.set_read_timeout(Some(SOON * 4)).unwrap();
            let told = subscription.get_message();
            let is_ours =
                told.is_ok_and(|told| told.get_payload_bytes().starts_with(SERVICE.as_bytes()));
            *published.lock().unwrap_or_else(PoisonError::into_inner) = is_ours.then(Instant::now);
        });
        old.stop_process();
        // The sentinels close the connections of a server whose role they change.
        let is_primary =
            || new.try_info("replication").is_ok_and(|info| info.contains("role:master"));
        eventually(SOON * 4, is_primary);
        old.cont();
        // Whatever fails here: the threads must not go on.
        let _ends = Ends(&is_over);
        for (n, client) in clients.iter().enumerate() {
            let is_over = &is_over;
            scope.spawn(move || {
                for round in 0.. {
                    if is_over.load(Ordering::SeqCst) {
                        break;
                    }
                    let lock = client.lock(&format!("job {n} {round}"));
                    let _ = lock.try_lock(ms(200)).map(|_| lock.unlock());
                    thread::sleep(ms(5));
                }
            });
        }
        let since = Instant::now();
        let mut before = sets(old);
        while since.elapsed() < GOES_ON {
            let count = sets(old);
            // A replica gets the writes of its primary. Sentinels close its connections.
            if !old.try_info("replication").is_ok_and(|info| info.contains("role:master")) {
                break;
            }
            if count != before {
                (before, last_write) = (count, Some(Instant::now()));
            }
            thread::sleep(ms(2));
        }
        took = since.elapsed();
    });
    let published = published.into_inner().unwrap().expect("the sentinels have published it");
    let late = last_write.map(|last| last.saturating_duration_since(published));
    println!("a primary for {took:?}, and written to until {late:?} after +switch-master");
    let late = late.unwrap_or_default();
    assert!(late < LIMIT, "the old primary was written to {late:?} after the news");
}
