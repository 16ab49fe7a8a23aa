//! How holds of both sides end with their thread, their process, or their client.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;

use distlock::{LostReason, RwLock};

use super::{Elsewhere, at_rest, may_read, may_write, waiting, waits};
use crate::faults::{nothing_is_left, through_proxy};
use crate::helpers::{SOON, client, error};
use crate::holds::forked;
use crate::support::{Server, eventually, in_own_process};

#[test]
fn a_thread_that_ends_takes_nothing_from_those_who_read_with_it() {
    let server = Server::start();
    let rw = at_rest(&server.url()).rw_lock("rw");
    let reading = rw.read().unwrap();
    thread::spawn({
        let rw = rw.clone();
        move || std::mem::forget(rw.read().unwrap())
    })
    .join()
    .unwrap();
    reading.extend(SOON * 6).unwrap();
    assert_eq!(rw.readers().unwrap(), 1);
    reading.release().unwrap();
    assert!(may_write(&rw));
    // And the last one, whatever it holds.
    let leaves: [fn(&RwLock); 3] = [
        |rw| std::mem::forget(rw.read().unwrap()),
        |rw| std::mem::forget((rw.write().unwrap(), rw.read().unwrap())),
        |rw| std::mem::forget((rw.read().unwrap(), rw.read().unwrap())),
    ];
    for leave in leaves {
        let there = rw.clone();
        thread::spawn(move || leave(&there)).join().unwrap();
        eventually(SOON, || may_write(&rw));
    }
    drop(rw);
    nothing_is_left(&server);
}

#[test]
fn a_panic_unlocks_both_sides() {
    let server = Server::start();
    let rw = client(&server).rw_lock("rw");
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _writing = rw.write().unwrap();
        let _reading = rw.read().unwrap();
        panic!("planned")
    }));
    assert!(panicked.is_err() && !rw.read_lock().is_held() && !rw.write_lock().is_held());
    // This order downgrades.
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let writing = rw.write().unwrap();
        let reading = rw.read().unwrap();
        let _other_way_round = (writing, reading);
        panic!("planned")
    }));
    assert!(panicked.is_err() && may_write(&rw));
    nothing_is_left(&server);
}

#[test]
fn closing_the_client_ends_holds_and_waits_of_both_sides() {
    let server = Server::start();
    let (mine, other) = (at_rest(&server.url()), client(&server));
    let rw = mine.rw_lock("rw");
    let (tell, told) = mpsc::channel();
    rw.read_lock().on_lost(move |lost| tell.send(lost.reason()).unwrap());
    let reading = rw.read().unwrap();
    let second = Elsewhere::locks(rw.read_lock());
    second.has_it();
    let writer = waits(&server, rw.write_lock());
    let behind = Elsewhere::locks(rw.read_lock());
    eventually(SOON, || mine.waiting_at_rw_lock("rw") == 1);
    mine.close(SOON).unwrap();
    assert!(error(writer.unlock()).is_closed());
    // The writer's end may have let this one read, for a moment.
    let ended = error(behind.unlock());
    assert!(ended.is_closed() || ended.is_lost(), "{ended}");
    assert!(error(rw.read()).is_lost() && error(rw.write_lock().is_locked()).is_closed());
    assert!(!reading.is_valid() && error(reading.release()).is_lost());
    assert!(error(second.unlock()).is_lost());
    assert_eq!(told.recv_timeout(SOON), Ok(LostReason::Closed));
    assert!(told.try_recv().is_err());
    assert!(may_write(&other.rw_lock("rw")) && waiting(&server) == 0);
    // A writer that reads.
    let third = client(&server);
    let rw = third.rw_lock("rw");
    let (writing, reading) = (rw.write().unwrap(), rw.read().unwrap());
    third.close(SOON).unwrap();
    assert!(error(writing.release()).is_lost() && error(reading.release()).is_lost());
    nothing_is_left(&server);
}

#[test]
fn a_forked_child_neither_locks_nor_unlocks_nor_downgrades() {
    in_own_process(
        "rw_lock::ends::a_forked_child_neither_locks_nor_unlocks_nor_downgrades",
        || {
            let (server, proxy) = through_proxy();
            let client = at_rest(&proxy.url());
            let (rw, shared) = (client.rw_lock("rw"), client.rw_lock("shared"));
            let (writing, reading) = (rw.write().unwrap(), rw.read().unwrap());
            let both = (shared.read().unwrap(), Elsewhere::locks(shared.read_lock()));
            both.1.has_it();
            let said = (proxy.requests(), proxy.accepted());
            let in_child = RefCell::new(Some((writing, reading, both)));
            forked(|| {
                let (writing, reading, both) = in_child.take().ok_or(1)?;
                let says = |error: &distlock::Error| error.to_string().contains("was forked from");
                let refused = [
                    writing.release(),
                    reading.release(),
                    both.0.release(),
                    client.rw_lock("new").read().map(drop),
                    client.rw_lock("new").write().map(drop),
                    client.rw_lock("new").readers().map(drop),
                ];
                let all = refused.iter().all(|refused| refused.as_ref().is_err_and(says));
                if all { Ok(()) } else { Err(2) }
            });
            assert_eq!((proxy.requests(), proxy.accepted()), said, "the child said something");
            assert!(!may_read(&rw) && !may_write(&shared));
            let (writing, reading, both) = in_child.take().unwrap();
            writing.release().unwrap();
            assert!(may_read(&rw));
            reading.release().unwrap();
            both.0.release().unwrap();
            both.1.unlock().unwrap();
            drop((rw, shared, client));
            nothing_is_left(&server);
        },
    );
}
