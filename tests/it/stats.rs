//! What a client counts: each outcome once, and as the server counts it.

use std::time::{Duration, Instant};

use distlock::testing::{FakeClock, scripts};
use distlock::{Client, ClientBuilder, LockOptions, Queue, Renewal, Retry, Stats};

use crate::elsewhere::Elsewhere;
use crate::faults::through_proxy;
use crate::helpers::{Notes, SOON, Underway, client, delete, error, ms, on_another_thread};
use crate::support::{Fault, Rule, Server, eventually};

/// Calls and holds add up, while nobody waits.
#[track_caller]
fn add_up(stats: &Stats, held: u64) {
    assert_eq!((stats.waits.count(), stats.waiting), (stats.grants.total(), 0), "{stats:?}");
    assert_eq!((stats.grants.total() - stats.holds.count(), stats.held), (held, held), "{stats:?}");
}

/// How many got it when they asked, by a direct and by a local hand-off, and by joining.
fn grants(client: &Client) -> [u64; 4] {
    let distlock::Grants { asked, direct, local, joined, .. } = client.stats().grants;
    [asked, direct, local, joined]
}

/// Two clients of a server, and two of a store in memory.
fn pairs<T>(client: impl Fn(ClientBuilder) -> T) -> (Server, [[T; 2]; 2]) {
    let server = Server::start();
    let memory = format!("memory://stats-{}", server.port());
    let pair = |url: &str| [(); 2].map(|()| client(Client::builder(url)));
    let pairs = [pair(&server.url()), pair(&memory)];
    (server, pairs)
}

#[test]
fn a_grant_counts_by_how_it_came() {
    let (_server, pairs) = pairs(Notes::of);
    for [(here, _), (there, notes)] in pairs {
        let lock = here.lock("a");
        lock.lock().unwrap();
        lock.lock().unwrap();
        assert_eq!(here.stats().held, 1);
        lock.unlock().unwrap();
        assert_eq!((grants(&here), here.stats().holds.count()), ([1, 0, 0, 0], 0), "re-entry");
        // To another client: the server hands it over.
        let waiting = Elsewhere::locks(&there.lock("a"));
        notes.queued(&lock);
        assert_eq!(there.stats().waiting, 1);
        let waited = Instant::now();
        std::thread::sleep(ms(20));
        let waited = waited.elapsed();
        lock.unlock().unwrap();
        waiting.has_it();
        assert_eq!(grants(&there), [0, 1, 0, 0]);
        assert!(there.stats().waits.sum() >= waited, "{:?}", there.stats());
        waiting.unlock().unwrap();
        // To another thread.
        lock.lock().unwrap();
        let waiting = Elsewhere::locks(&lock);
        eventually(SOON, || here.waiting("a") == 1);
        lock.unlock().unwrap();
        waiting.unlock().unwrap();
        assert_eq!(grants(&here), [2, 0, 1, 0]);
        // A claim and permits are holds, too.
        here.lock("a").claim().unwrap().release().unwrap();
        here.semaphore("s", 3).acquire_many(2).unwrap().release().unwrap();
        assert_eq!(grants(&here), [4, 0, 1, 0]);
        [here, there].iter().for_each(|client| add_up(&client.stats(), 0));
    }
}

#[test]
fn readers_that_share_a_lease_join_it() {
    // The clock stands still: a lease may be joined for 2 ms.
    let clock = FakeClock::new();
    let (_server, pairs) = pairs(|builder| builder.clock(clock.clone()).build().unwrap());
    for [here, _] in pairs {
        let both = here.rw_lock("rw");
        both.write_lock().lock().unwrap();
        both.read_lock().lock().unwrap();
        assert_eq!((grants(&here), here.stats().held), ([1, 0, 0, 1], 1), "under the write lock");
        // It reads on, under another lease.
        both.write_lock().unlock().unwrap();
        assert_eq!((grants(&here), here.stats().holds.count()), ([1, 0, 0, 1], 1));
        add_up(&here.stats(), 1);
        both.read_lock().unlock().unwrap();
        add_up(&here.stats(), 0);
        // Two that waited for a writer read under one lease.
        both.write_lock().lock().unwrap();
        let readers = [(); 2].map(|()| {
            let before = here.waiting_at_rw_lock("rw");
            let reader = Elsewhere::locks(both.read_lock());
            eventually(SOON, || here.waiting_at_rw_lock("rw") > before);
            reader
        });
        both.write_lock().unlock().unwrap();
        readers.iter().for_each(Elsewhere::has_it);
        assert_eq!((grants(&here), here.stats().held), ([3, 0, 0, 2], 1));
        readers.into_iter().for_each(|reader| reader.unlock().unwrap());
        add_up(&here.stats(), 0);
    }
}

#[test]
fn a_wait_in_a_condition_ends_a_hold_and_begins_one() {
    let (_server, pairs) = pairs(|builder| builder.build().unwrap());
    for [here, there] in pairs {
        let (waits, notifies) = (here.lock("c"), there.lock("c"));
        let waiting = Underway::start(move || {
            waits.with(|_| waits.new_condition("ready").unwrap().wait().unwrap()).unwrap();
        });
        eventually(SOON, || here.stats().holds.count() == 1);
        let during = here.stats();
        assert_eq!((grants(&here), during.waiting, during.held), ([1, 0, 0, 0], 0, 0));
        notifies.with(|_| notifies.new_condition("ready").unwrap().notify_one().unwrap()).unwrap();
        waiting.result();
        let stats = here.stats();
        assert_eq!((stats.grants.total(), stats.holds.count()), (2, 2), "{stats:?}");
        // One that ends without the lock has failed.
        let waits = here.lock("c");
        let waiting = Underway::start(move || {
            waits.lock().unwrap();
            assert!(error(waits.new_condition("ready").unwrap().wait()).is_closed());
            assert!(!waits.is_held());
        });
        eventually(SOON, || here.stats().holds.count() == 3);
        assert_eq!(here.stats().failed, 0);
        here.close(SOON).unwrap();
        waiting.result();
        assert_eq!(here.stats().failed, 1);
        [here, there].iter().for_each(|client| add_up(&client.stats(), 0));
    }
}

#[test]
fn a_call_without_a_lock_was_refused_or_failed() {
    let (_server, pairs) = pairs(|builder| builder.build().unwrap());
    for [here, there] in pairs {
        let held = there.lock("a").claim().unwrap();
        let lock = here.lock("a");
        assert!(!lock.try_lock(Duration::ZERO).unwrap());
        assert!(lock.try_claim(ms(20)).unwrap().is_none());
        let options = LockOptions::new().retry(Retry::fixed(ms(10)).attempts(2));
        let few = here.lock_with("a", options).unwrap();
        assert!(error(few.lock()).is_exhausted());
        let stats = here.stats();
        assert_eq!((stats.refused, stats.failed, stats.grants.total()), (2, 1, 0));
        add_up(&stats, 0);
        // Refused before it begins, and no wait: no call.
        assert!(error(here.lock("").lock()).is_invalid_input());
        held.release().unwrap();
        lock.lock().unwrap();
        assert!(error(few.lock()).is_conflict() && error(lock.claim()).is_conflict());
        let stats = here.stats();
        assert_eq!((stats.refused, stats.failed, stats.waits.count()), (2, 1, 1));
        lock.unlock().unwrap();
    }
}

#[test]
fn a_lease_that_was_not_released_counts_by_how_it_ended() {
    let (server, proxy) = through_proxy();
    let client = Client::builder(&proxy.url()).command_timeout(ms(500)).build().unwrap();
    let lock = client.lock("a");
    let ended = || {
        let Stats { lost, unknown, abandoned, .. } = client.stats();
        [lost, unknown, abandoned]
    };
    lock.lock().unwrap();
    delete(&server, "a");
    assert!(error(lock.unlock()).is_lost());
    assert_eq!(ended(), [1, 0, 0]);
    on_another_thread(|| lock.lock().unwrap());
    eventually(SOON, || ended() == [1, 0, 1]);
    eventually(SOON, || client.stats().pending_withdrawals == 0);
    assert_eq!(client.stats().withdrawals, 1);
    // Neither the release is answered, nor at first the withdrawal.
    lock.lock().unwrap();
    proxy.add(Rule::on("EVALSHA", Fault::CutBefore));
    assert!(error(lock.unlock()).is_unknown());
    let stats = client.stats();
    assert_eq!((ended(), stats.withdrawals, stats.pending_withdrawals), ([1, 1, 1], 2, 1));
    proxy.clear_rules();
    eventually(SOON, || client.stats().pending_withdrawals == 0);
    // Closing the client ends the lease of a holder, which lets go later.
    lock.lock().unwrap();
    client.close(SOON).unwrap();
    assert_eq!(ended(), [2, 1, 1]);
    assert!(error(lock.unlock()).is_lost());
    assert_eq!(ended(), [2, 1, 1]);
    add_up(&client.stats(), 0);
}

#[test]
fn an_extend_is_as_late_as_its_confirmation_after_it_was_due() {
    let ((_server, proxy), clock) = (through_proxy(), FakeClock::new());
    let client = Client::builder(&proxy.url()).clock(clock.clone()).build().unwrap();
    let late = || client.stats().late;
    let lock = client.lock("a");
    lock.lock().unwrap();
    assert_eq!((late().count(), client.stats().failed_extends), (0, 0));
    // Due after ten seconds. On the fake clock the extend itself takes no time.
    clock.advance(ms(10_000));
    eventually(SOON, || late().count() == 1);
    let first = late().sum();
    assert!(first < ms(500), "{first:?}");
    // The next is tried in vain, and again a second later.
    let failing = proxy.add(Rule::on("EVALSHA", Fault::CutBefore).next(1));
    clock.advance(ms(10_000));
    failing.wait_fired(SOON);
    eventually(SOON, || client.stats().failed_extends == 1);
    assert_eq!(late().count(), 1);
    clock.advance(ms(1_000));
    eventually(SOON, || late().count() == 2);
    let second = late().sum() - first;
    assert!((ms(1_000)..ms(1_500)).contains(&second), "{second:?}");
    // The one after that is in time again.
    clock.advance(ms(10_000));
    eventually(SOON, || late().count() == 3);
    assert!(late().sum() - second < ms(1_000), "{:?}", late());
    assert!(lock.is_valid());
    lock.unlock().unwrap();
    assert_eq!((client.stats().failed_extends, client.stats().lost), (1, 0));
}

#[test]
fn connections_and_outages_count_as_the_server_has_seen_them() {
    let server = Server::start();
    let received = || -> u64 {
        let info = server.info("stats");
        let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().trim().parse().unwrap()
    };
    let client = client(&server);
    assert_eq!(client.stats(), Stats::default());
    let before = received();
    let lock = client.lock("a");
    let hold = Elsewhere::holds(&lock);
    let [there, quiet] = [(); 2].map(|()| Client::open(&server.url()).unwrap());
    // One more for wake-ups.
    assert!(!there.lock("a").try_lock(ms(100)).unwrap());
    hold.unlock().unwrap();
    quiet.lock("b").with(|_| ()).unwrap();
    let counted: u64 = [&client, &there, &quiet].map(|one| one.stats().connections).iter().sum();
    // The question itself opens one.
    assert_eq!(counted, received() - before - 1);
    assert_eq!((client.stats().outages, client.stats().unreachable), (0, 0));

    server.kill();
    // The clients share their attempts: while one of them tries, the other is turned away.
    std::thread::scope(|scope| {
        for client in [&client, &quiet] {
            let lock = client.lock("a");
            scope.spawn(move || {
                assert!(error(lock.try_lock(ms(3_000))).is_unavailable());
                assert!(error(lock.try_lock(ms(300))).is_unavailable());
            });
        }
    });
    for client in [&client, &quiet] {
        let Stats { outages, unreachable, failed, .. } = client.stats();
        assert_eq!((outages, unreachable, failed), (1, 1, 2));
    }
    server.restart();
    lock.with(|_| ()).unwrap();
    assert_eq!((client.stats().outages, client.stats().unreachable), (1, 0));
}

#[test]
fn a_server_that_renewal_alone_finds_silent_is_an_outage() {
    let server = Server::start();
    let options = LockOptions::new().lease(ms(12_000));
    let client = Client::builder(&server.url()).lock_options(options).build().unwrap();
    let lock = client.lock("a");
    lock.lock().unwrap();
    server.stop_process();
    eventually(SOON * 3, || client.stats().unreachable == 1);
    // Nobody else has asked.
    let stats = client.stats();
    assert_eq!((stats.outages, stats.lost, stats.withdrawals), (1, 0, 0), "{stats:?}");
    assert!(lock.is_valid());
    server.cont();
    eventually(SOON, || client.stats().unreachable == 0);
    lock.unlock().unwrap();
    assert_eq!((client.stats().outages, client.stats().lost), (1, 0));
}

#[test]
fn a_server_that_refuses_a_password_is_no_outage() {
    let server = Server::start();
    let client = Client::open(&server.url_with("nobody", "wrong")).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < ms(1_200) {
        assert!(error(client.lock("a").try_lock(Duration::ZERO)).is_denied());
        std::thread::sleep(ms(50));
    }
    assert_eq!((client.stats().outages, client.stats().unreachable), (0, 0));
}

/// What clients have sent, as the server has noted it.
fn sent(server: &Server) -> Vec<Vec<String>> {
    type Noted = (u64, u64, u64, Vec<String>, String, String);
    let noted: Vec<Noted> =
        redis::cmd("SLOWLOG").arg(&["GET", "-1"]).query(&mut server.connection()).unwrap();
    noted.into_iter().map(|(_, _, _, words, ..)| words).collect()
}

/// A server that notes all that is sent to it, and knows the scripts.
fn noting() -> Server {
    let server = Server::start();
    let mut connection = server.connection();
    for (name, body) in scripts(false) {
        let loaded = redis::Script::new(body).prepare_invoke().load(&mut connection);
        assert!(loaded.is_ok(), "{name}: {loaded:?}");
    }
    for (name, value) in [("slowlog-max-len", "1000000"), ("slowlog-log-slower-than", "0")] {
        redis::cmd("CONFIG").arg(&["SET", name, value]).exec(&mut connection).unwrap();
    }
    server
}

/// How often these scripts were called.
fn calls(sent: &[Vec<String>], names: &[&str]) -> u64 {
    let hashes: Vec<String> = scripts(false)
        .into_iter()
        .filter(|(name, _)| names.contains(name))
        .map(|(_, body)| redis::Script::new(body).get_hash().to_owned())
        .collect();
    assert_eq!(hashes.len(), names.len());
    sent.iter().filter(|words| words[0] == "EVALSHA" && hashes.contains(&words[1])).count() as u64
}

/// Some threads of two clients want the same lock, some of them only for a moment.
fn crowd(server: &Server, options: &LockOptions) -> [Stats; 2] {
    let clients = [(); 2].map(|()| client(server));
    std::thread::scope(|scope| {
        for (client, thread) in clients.iter().flat_map(|client| (0..3).map(move |n| (client, n))) {
            let lock = client.lock_with("crowd", options.clone()).unwrap();
            scope.spawn(move || {
                let once = |n: u64| match n % 3 {
                    0 => lock.try_lock(Duration::ZERO).unwrap(),
                    1 => lock.try_lock(ms(n % 7)).unwrap(),
                    _ => lock.lock().is_ok(),
                };
                for _ in (0..40).filter(|n| once(n + thread)) {
                    lock.unlock().unwrap();
                }
            });
        }
    });
    clients.map(|client| {
        add_up(&client.stats(), 0);
        client.stats()
    })
}

#[test]
fn the_sums_are_those_of_the_server() {
    for queue in [Queue::None, Queue::Fifo] {
        let server = noting();
        let mut options = LockOptions::new().queue(queue).renewal(Renewal::Never);
        if queue == Queue::None {
            // No `SET`, after which a script looks closer: one question for each attempt.
            options = options.fenced();
        }
        let stats = crowd(&server, &options);
        let sum = |of: fn(&Stats) -> u64| stats.iter().map(of).sum::<u64>();
        let sent = sent(&server);
        let sets = sent.iter().filter(|words| words[0] == "SET" && words[3] == "NX").count() as u64;
        let asked = sets + calls(&sent, &["acquire", "acquire_alone"]);
        // With a queue, the first attempt may look twice.
        match queue {
            Queue::None => assert_eq!(sum(|stats| stats.attempts), asked),
            _ => assert!((asked - sets..=asked).contains(&sum(|stats| stats.attempts))),
        }
        // Each lease ends with a release, or is handed on within the process.
        let leases = sum(|stats| stats.grants.asked + stats.grants.direct);
        assert_eq!(leases, calls(&sent, &["release", "release_alone"]));
        assert_eq!(sum(|stats| stats.failed + stats.lost + stats.unknown + stats.abandoned), 0);
        assert_eq!(sum(|stats| stats.grants.total() + stats.refused), 2 * 3 * 40);
    }
}
