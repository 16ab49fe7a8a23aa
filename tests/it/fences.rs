//! Fences: they always grow, whatever happens to holders, clients, and the counter on the server.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use distlock::{Client, LockOptions, LostReason, RedisLock};

use crate::helpers::{Underway, client, delete, error, get, keys, lease, memory, ms};
use crate::queue::{At, ByHand, listen};
use crate::support::{Server, eventually};

fn fenced(client: &Client) -> RedisLock {
    client.lock_with("job", LockOptions::new().fenced()).unwrap()
}

/// Locks and unlocks, and returns the fence of the hold.
fn next(lock: &RedisLock) -> u64 {
    let guard = lock.guard().unwrap();
    let fence = guard.fence();
    assert_eq!(fence, lock.fence());
    guard.release().unwrap();
    fence.unwrap()
}

#[test]
fn every_hold_has_a_greater_fence_than_the_one_before() {
    for open in [memory_twice(), server_twice()] {
        let (_server, [mine, theirs]) = open;
        let locks = [fenced(&mine), fenced(&theirs)];
        let mut last = 0;
        for round in 0..20 {
            let fence = next(&locks[round % 2]);
            assert!(fence > last, "{fence} after {last}");
            last = fence;
        }
        assert!(last < 1 << 53);
    }
}

fn memory_twice() -> (Option<Server>, [Client; 2]) {
    (None, [(); 2].map(|()| Client::open("memory://fences").unwrap()))
}

fn server_twice() -> (Option<Server>, [Client; 2]) {
    let server = Server::start();
    let clients = [client(&server), client(&server)];
    (Some(server), clients)
}

#[test]
fn a_hold_keeps_its_fence_however_often_it_is_locked_again() {
    let lock = fenced(&memory());
    assert_eq!(lock.fence(), None);
    let guard = lock.guard().unwrap();
    let again = lock.guard().unwrap();
    assert!(
        guard.fence().is_some() && guard.fence() == again.fence() && lock.fence() == guard.fence()
    );
    lock.extend(ms(5_000)).unwrap();
    drop(again);
    assert_eq!(lock.fence(), guard.fence());
    assert_eq!(thread::scope(|scope| scope.spawn(|| lock.fence()).join().unwrap()), None);
    drop(guard);
    assert_eq!(lock.fence(), None);
}

#[test]
fn a_lock_that_is_not_fenced_has_none() {
    let server = Server::start();
    let guard = client(&server).lock("job").guard().unwrap();
    assert_eq!((guard.fence(), guard.lock().fence()), (None, None));
    assert_eq!(keys(&server), ["job"]);
}

#[test]
fn a_hand_off_to_another_thread_has_a_greater_fence() {
    let server = Server::start();
    let client = client(&server);
    for hand_offs in [0, 1, 3, 16] {
        let lock = client
            .lock_with("job", LockOptions::new().fenced().local_hand_offs(hand_offs))
            .unwrap();
        let (tell, told) = mpsc::channel();
        let guard = lock.guard().unwrap();
        tell.send(guard.fence().unwrap()).unwrap();
        let waiters: Vec<_> = (0..8)
            .map(|_| {
                let (lock, tell) = (lock.clone(), tell.clone());
                Underway::behind(&client, "job", move || {
                    let guard = lock.guard().unwrap();
                    tell.send(guard.fence().unwrap()).unwrap();
                    guard.release().unwrap();
                })
            })
            .collect();
        guard.release().unwrap();
        waiters.into_iter().for_each(Underway::result);
        let fences: Vec<_> = told.try_iter().collect();
        assert!(fences.len() == 9 && fences.is_sorted_by(|a, b| a < b), "{fences:?}");
        assert!(next(&lock) > fences[8]);
    }
}

#[test]
fn holders_of_several_processes_see_fences_grow_in_the_order_of_their_holds() {
    let (_server, clients) = server_twice();
    let seen = std::sync::Mutex::new(Vec::new());
    thread::scope(|scope| {
        for client in &clients {
            for _ in 0..3 {
                scope.spawn(|| {
                    let lock = fenced(client);
                    for _ in 0..15 {
                        let guard = lock.guard().unwrap();
                        seen.lock().unwrap().push(guard.fence().unwrap());
                        guard.release().unwrap();
                    }
                });
            }
        }
    });
    let seen = seen.into_inner().unwrap();
    assert!(seen.len() == 90 && seen.is_sorted_by(|a, b| a < b), "{seen:?}");
}

#[test]
fn a_lost_counter_never_makes_a_fence_smaller() {
    let server = Server::start();
    let lock = fenced(&client(&server));
    let mut last = next(&lock);
    let losses: [fn(&Server); 3] = [
        |server| delete(server, "{job}:fence"),
        |server| redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap(),
        Server::restart,
    ];
    for lose in losses {
        assert_eq!(keys(&server), ["{job}:fence"]);
        lose(&server);
        let fence = next(&lock);
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
}

#[test]
fn many_local_hand_offs_never_make_the_counter_outrun_the_servers_clock() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock_with("job", LockOptions::new().fenced().local_hand_offs(1000)).unwrap();
    for _ in 0..3 {
        // Holds with a lease each, as fast as possible.
        let last = (0..200).map(|_| next(&lock)).max().unwrap();
        let counter: u64 =
            redis::cmd("GET").arg("{job}:fence").query(&mut server.connection()).unwrap();
        let (seconds, micros): (u64, u64) =
            redis::cmd("TIME").query(&mut server.connection()).unwrap();
        assert!(
            counter <= seconds * 1_000_000 + micros,
            "{counter}, and it is {seconds}.{micros:06}"
        );
        delete(&server, "{job}:fence");
        let fence = next(&lock);
        assert!(fence > last, "{fence} after {last}");
    }
}

#[test]
fn the_first_block_of_fences_after_a_loss_repeats_no_fence_that_was_given_out() {
    let server = Server::start();
    let client = client(&server);
    let [one, block] = [0, 1_000_000].map(|times| {
        client.lock_with("job", LockOptions::new().fenced().local_hand_offs(times)).unwrap()
    });
    let mut connection = server.connection();
    // As quickly after each other as possible: a block covers at most a thousand microseconds.
    for _ in 0..100 {
        let last = next(&one);
        redis::cmd("DEL").arg("{job}:fence").exec(&mut connection).unwrap();
        let fence = next(&block);
        assert!(fence > last, "{fence} after {last}");
    }
}

#[test]
fn a_counter_that_is_somebody_elses_data_is_refused_and_left_alone() {
    let server = Server::start();
    let lock = fenced(&client(&server));
    for foreign in ["nonsense", "", "-5", "1.5", "1e9", " 7", "9007199254740992"] {
        redis::cmd("SET").arg("{job}:fence").arg(foreign).exec(&mut server.connection()).unwrap();
        assert!(error(lock.lock()).is_wrong_type(), "{foreign:?}");
        assert_eq!(get(&server, "{job}:fence").as_deref(), Some(foreign));
        assert_eq!(get(&server, "job"), None, "{foreign:?}");
    }
    delete(&server, "{job}:fence");
    redis::cmd("HSET").arg("{job}:fence").arg("a").arg("b").exec(&mut server.connection()).unwrap();
    assert!(error(lock.lock()).is_wrong_type());
    delete(&server, "{job}:fence");
    next(&lock);
}

#[test]
fn a_counter_near_the_largest_whole_number_is_refused_and_left_alone() {
    let server = Server::start();
    let client = client(&server);
    let last = (1_u64 << 53) - (1 << 32);
    let set = |counter: u64| {
        redis::cmd("SET").arg("{job}:fence").arg(counter).exec(&mut server.connection()).unwrap()
    };
    for hand_offs in [0, 1000] {
        let options = LockOptions::new().fenced().local_hand_offs(hand_offs);
        let lock = client.lock_with("job", options).unwrap();
        set(last);
        assert_eq!(next(&lock), last + 1);
        set(last + 1);
        assert!(error(lock.lock()).is_wrong_type());
        assert_eq!(get(&server, "{job}:fence"), Some((last + 1).to_string()));
        assert_eq!(get(&server, "job"), None);
    }
}

#[test]
fn a_lock_is_not_handed_over_with_a_foreign_counter() {
    let server = Server::start();
    let lock = ByHand::new(&server);
    let ear = listen(&server, "b");
    lock.ask("holder", 1, &At::new("none"));
    lock.is_refused("b", 1, &At::new("b"));
    let () = lock.redis("SET {a}:fence somebodys");
    lock.release("holder");
    assert_eq!((lock.holder(), get(&server, "{a}:fence").as_deref()), (None, Some("somebodys")));
    ear.hears_nothing();
}

#[test]
fn a_counter_ahead_of_the_servers_clock_still_grows() {
    let server = Server::start();
    let lock = fenced(&client(&server));
    let ahead = next(&lock) + 3_600_000_000;
    redis::cmd("SET").arg("{job}:fence").arg(ahead).exec(&mut server.connection()).unwrap();
    let fence = next(&lock);
    assert!(fence > ahead && fence < ahead + 1_000, "one block further: {fence} after {ahead}");
    assert!(next(&lock) > fence);
    // Nor does the counter lose digits on its way through the script.
    let kept: u64 = redis::cmd("GET").arg("{job}:fence").query(&mut server.connection()).unwrap();
    assert!(kept >= fence && kept < ahead + 10_000);
}

#[test]
fn the_holder_after_a_loss_has_a_greater_fence_than_the_loser() {
    let server = Server::start();
    let (mine, theirs) = (client(&server), client(&server));
    let options = lease(ms(900)).fenced();
    let lock = mine.lock_with("job", options.clone()).unwrap();
    let (tell, told) = mpsc::channel();
    lock.on_lost(move |lost| tell.send((lost.fence(), lost.reason())).unwrap());
    lock.lock().unwrap();
    let old = lock.fence();
    delete(&server, "job");
    let new = theirs.lock_with("job", options).unwrap().guard().unwrap();
    assert!(new.fence() > old);
    // On a machine that is paused for a while, the lease runs out first.
    let (fence, reason) = told.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(fence == old && [LostReason::Taken, LostReason::Expired].contains(&reason));
    eventually(Duration::from_secs(10), || !lock.is_valid());
    assert!(error(lock.unlock()).is_lost());
    new.release().unwrap();
}

#[test]
fn locks_that_share_a_name_across_prefixes_have_fences_of_their_own() {
    let server = Server::start();
    for prefix in ["a:", "b:"] {
        let client = Client::builder(&server.url()).key_prefix(prefix).build().unwrap();
        next(&fenced(&client));
    }
    assert_eq!(keys(&server), ["{a:job}:fence", "{b:job}:fence"]);
}

#[test]
fn fences_in_memory_grow_although_their_store_was_gone_meanwhile() {
    let fence = || {
        let client = Client::open("memory://fences-grow").unwrap();
        fenced(&client).guard().unwrap().fence()
    };
    let first = fence();
    assert!(fence() > first);
}
