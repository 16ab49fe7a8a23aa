//! Threads of one process that read at the same time.

use std::thread;
use std::time::Duration;

use distlock::{Client, LockOptions};

use super::{Elsewhere, at_rest, may_read, may_write, waiting, waits};
use crate::faults::{nothing_is_left, through_proxy};
use crate::helpers::{SOON, Underway, client, delete, error, ms, on_another_thread};
use crate::loss::{HOUR, timed};
use crate::support::{Fault, Rule, Server, eventually};

/// With at most so many joins in a row.
fn joins(most: u32) -> LockOptions {
    LockOptions::new().local_hand_offs(most)
}

#[test]
fn readers_of_one_process_share_a_lease_and_the_last_one_releases_it() {
    let (server, proxy) = through_proxy();
    let rw = at_rest(&proxy.url()).rw_lock("rw");
    // The server does not know the scripts yet.
    drop(rw.read().unwrap());
    let first = rw.read().unwrap();
    let before = proxy.requests();
    let others = [(); 3].map(|()| Elsewhere::locks(rw.read_lock()));
    others.iter().for_each(Elsewhere::has_it);
    let claim = on_another_thread(|| rw.read_lock().claim().unwrap());
    // The first to read is not the last.
    first.release().unwrap();
    let [one, two, three] = others;
    two.unlock().unwrap();
    one.unlock().unwrap();
    assert_eq!(proxy.requests(), before);
    assert_eq!(rw.readers().unwrap(), 1);
    three.unlock().unwrap();
    assert!(claim.is_valid() && !may_write(&rw));
    let before = proxy.requests();
    claim.release().unwrap();
    assert_eq!(proxy.requests() - before, 1);
    assert_eq!(rw.readers().unwrap(), 0);
    nothing_is_left(&server);
}

#[test]
fn a_lease_is_joined_as_often_as_it_may_pass_on_and_not_once_more() {
    let server = Server::start();
    let client = at_rest(&server.url());
    for (most, threads, leases) in [(2, 3, 1), (2, 4, 2), (2, 7, 3), (0, 3, 3)] {
        let rw = client.rw_lock_with("rw", joins(most)).unwrap();
        let readers: Vec<_> = (0..threads)
            .map(|_| {
                let reader = Elsewhere::locks(rw.read_lock());
                reader.has_it();
                reader
            })
            .collect();
        assert_eq!(rw.readers().unwrap(), leases, "{most}, {threads}");
        for reader in readers {
            reader.unlock().unwrap();
        }
        assert_eq!(rw.readers().unwrap(), 0);
    }
}

#[test]
fn nobody_joins_while_a_thread_of_the_process_waits_to_write() {
    let server = Server::start();
    let rw = at_rest(&server.url()).rw_lock_with("rw", joins(1000)).unwrap();
    let reading = rw.read().unwrap();
    assert!(may_read(&rw));
    let writer = waits(&server, rw.write_lock());
    assert!(!may_read(&rw));
    // This one is behind the writer. The first reads on, also if it locks again.
    let behind = Elsewhere::locks(rw.read_lock());
    rw.read_lock().lock().unwrap();
    rw.read_lock().unlock().unwrap();
    reading.release().unwrap();
    writer.has_it();
    assert_eq!(rw.readers().unwrap(), 0);
    writer.unlock().unwrap();
    behind.has_it();
    behind.unlock().unwrap();
    nothing_is_left(&server);
}

#[test]
fn readers_that_come_and_go_do_not_keep_a_writer_of_another_process_out() {
    let server = Server::start();
    let rw = at_rest(&server.url()).rw_lock_with("rw", joins(4)).unwrap();
    let reading = Elsewhere::holds(rw.read_lock());
    let other = client(&server).rw_lock("rw");
    let writer = waits(&server, other.write_lock());
    // Somebody of this process reads all the time.
    let mut joined = 0;
    while let Ok(true) =
        on_another_thread(|| rw.try_read(Duration::ZERO).map(|guard| guard.is_some()))
    {
        joined += 1;
        assert!(joined <= 4, "they join for ever");
    }
    assert_eq!(joined, 4);
    reading.unlock().unwrap();
    writer.has_it();
    writer.unlock().unwrap();
}

#[test]
fn a_lease_is_joined_for_two_milliseconds_and_a_writer_does_not_wait_for_read_after_read() {
    let server = Server::start();
    for url in ["memory://joined", &server.url()] {
        let (builder, clock) = timed(Client::builder(url));
        let rw = builder.build().unwrap().rw_lock("rw");
        let reads = || {
            let reader = Elsewhere::holds(rw.read_lock());
            (reader, rw.readers().unwrap())
        };
        let (first, second) = (reads(), reads());
        clock.advance(ms(2));
        let third = reads();
        clock.advance(ms(1));
        // This one asks the server, and others read with it.
        let (fourth, fifth) = (reads(), reads());
        assert_eq!(
            [&first, &second, &third, &fourth, &fifth].map(|reader| reader.1),
            [1, 1, 1, 2, 2]
        );
        let other = Client::open(url).unwrap().rw_lock("rw");
        let writer = Elsewhere::locks(other.write_lock());
        eventually(SOON, || !rw.write_lock().inspect().unwrap().waiters.is_empty());
        clock.advance(ms(3));
        assert!(!may_read(&rw), "a writer waits");
        for reader in [first, second, third, fourth, fifth] {
            reader.0.unlock().unwrap();
        }
        writer.has_it();
        writer.unlock().unwrap();
    }
    nothing_is_left(&server);
}

#[test]
fn who_waits_behind_a_thread_that_asks_to_read_reads_with_it() {
    let server = Server::start();
    let (builder, clock) = timed(Client::builder(&server.url()));
    let (mine, other) = (builder.build().unwrap(), client(&server));
    let rw = mine.rw_lock("rw");
    let writing = other.rw_lock("rw").write().unwrap();
    let first = waits(&server, rw.read_lock());
    let behind = [(); 3].map(|()| Elsewhere::locks(rw.read_lock()));
    eventually(SOON, || mine.waiting_at_rw_lock("rw") == 3);
    assert_eq!(waiting(&server), 1);
    // The time in which they may join begins when the first has got the lock.
    clock.advance(ms(50));
    writing.release().unwrap();
    first.has_it();
    behind.iter().for_each(Elsewhere::has_it);
    assert_eq!(rw.readers().unwrap(), 1);
    for reader in behind.into_iter().chain([first]) {
        reader.unlock().unwrap();
    }
    nothing_is_left(&server);
}

#[test]
fn a_lost_lease_is_lost_to_all_who_read_under_it_and_nobody_joins_it() {
    let server = Server::start();
    let client = at_rest(&server.url());
    let rw = client.rw_lock("rw");
    let (tell, told) = std::sync::mpsc::channel();
    rw.read_lock().on_lost(move |lost| tell.send(lost.clone()).unwrap());
    let (tell, told_writers) = std::sync::mpsc::channel();
    rw.write_lock().on_lost(move |lost| tell.send(lost.clone()).unwrap());
    let first = rw.read().unwrap();
    let second = Elsewhere::locks(rw.read_lock());
    second.has_it();
    delete(&server, "rw");
    assert!(error(first.extend(SOON * 6)).is_lost());
    assert!(!first.is_valid() && error(rw.read()).is_lost());
    // Another thread has a lease of its own.
    let third = Elsewhere::locks(rw.read_lock());
    third.has_it();
    assert_eq!(rw.readers().unwrap(), 1);
    let text = error(first.release()).to_string();
    assert!(text.starts_with("read lock \"rw\": the lease was lost"), "{text}");
    assert!(error(second.unlock()).is_lost());
    third.unlock().unwrap();
    // Under a writer's lease it is the writer's loss.
    let (writing, reading) = (rw.write().unwrap(), rw.read().unwrap());
    delete(&server, "rw");
    assert!(error(reading.extend(SOON * 6)).is_lost());
    assert!(!reading.is_valid() && !writing.is_valid());
    let text = error(writing.release()).to_string();
    assert!(text.starts_with("write lock \"rw\": the lease was lost"), "{text}");
    assert!(error(reading.release()).is_lost());
    assert_eq!(told.recv_timeout(SOON).unwrap().name(), "rw");
    assert_eq!(told_writers.recv_timeout(SOON).unwrap().name(), "rw");
    assert!(may_write(&rw));
    client.close(SOON).unwrap();
    assert!(told.try_recv().is_err() && told_writers.try_recv().is_err(), "once each");
    nothing_is_left(&server);
}

#[test]
fn every_reader_under_a_lease_that_ran_out_learns_of_it() {
    for last in [false, true] {
        let (builder, clock) = timed(Client::builder("memory://"));
        let rw = builder.build().unwrap().rw_lock("rw");
        let first = rw.read().unwrap();
        let second = Elsewhere::holds(rw.read_lock());
        // A pause in which renewal has not looked, either.
        clock.advance(HOUR);
        let released = if last {
            assert!(error(second.unlock()).is_lost());
            first.release()
        } else {
            let released = first.release();
            assert!(error(second.unlock()).is_lost());
            released
        };
        assert!(error(released).is_lost());
    }
}

#[test]
fn an_extend_is_for_all_who_read_under_the_lease_and_then_nobody_joins_it() {
    let server = Server::start();
    let rw = at_rest(&server.url()).rw_lock("rw");
    let first = rw.read().unwrap();
    let second = Elsewhere::holds(rw.read_lock());
    let third = on_another_thread(|| {
        let third = rw.read_lock().claim().unwrap();
        third.extend(SOON * 360).unwrap();
        third
    });
    assert!(first.remaining() > SOON * 300 && third.remaining() > SOON * 300);
    assert_eq!(rw.readers().unwrap(), 1);
    // If this process dies, the others are free after a lease of the usual length.
    let fourth = Elsewhere::holds(rw.read_lock());
    assert_eq!(rw.readers().unwrap(), 2);
    fourth.unlock().unwrap();
    second.unlock().unwrap();
    third.release().unwrap();
    first.release().unwrap();
    nothing_is_left(&server);
}

#[test]
fn what_a_reader_was_told_while_it_waited_says_nothing_to_the_next() {
    let (server, proxy) = through_proxy();
    let mine = Client::open(&proxy.url()).unwrap();
    let rw = mine.rw_lock("rw");
    // Readers that do not share with it.
    let length = LockOptions::new().lease(Duration::from_secs(20));
    let others = mine.rw_lock_with("rw", length).unwrap();
    let writing = client(&server).rw_lock("rw").write().unwrap();
    let first = waits(&server, rw.read_lock());
    let second = Elsewhere::locks(others.read_lock());
    eventually(SOON, || mine.waiting_at_rw_lock("rw") == 1);
    // The first gets the lock. What the second is told comes late.
    let is_its = |words: &[Vec<u8>]| words.iter().any(|word| word == b"20000");
    let rule = proxy.add(Rule::any(Fault::HoldReply).when(is_its).next(1));
    writing.release().unwrap();
    let held = rule.wait_held(SOON);
    let third = Underway::start({
        let rw = rw.clone();
        move || rw.try_read(Duration::ZERO).unwrap().is_some()
    });
    eventually(SOON, || mine.waiting_at_rw_lock("rw") == 1 || third.is_done());
    held.release();
    assert!(third.result(), "only readers hold it, and nobody waits to write");
    first.unlock().unwrap();
    second.unlock().unwrap();
}

#[test]
fn each_reader_has_the_next_fence_of_the_lease_also_after_a_downgrade() {
    let server = Server::start();
    for url in ["memory://", &server.url()] {
        let (builder, clock) = timed(Client::builder(url));
        let options = LockOptions::new().fenced();
        let rw = builder.build().unwrap().rw_lock_with("rw", options).unwrap();
        // The first block is a single fence, and the next ones are not longer than the time.
        drop(rw.write().unwrap());
        clock.advance(ms(5));
        thread::sleep(ms(5));
        let writing = rw.write().unwrap();
        let first = writing.fence().unwrap();
        let reading = rw.downgrade(writing).unwrap();
        let claims = [(); 2].map(|()| on_another_thread(|| rw.read_lock().claim().unwrap()));
        assert_eq!(rw.readers().unwrap(), 1);
        assert_eq!(claims.each_ref().map(|claim| claim.fence().unwrap()), [first + 1, first + 2]);
        assert_eq!(reading.fence(), Some(first));
    }
}

#[test]
fn handles_with_other_options_do_not_share() {
    let server = Server::start();
    let client = at_rest(&server.url());
    let (one, other) = (client.rw_lock("rw"), client.rw_lock_with("rw", joins(9)).unwrap());
    let first = one.read().unwrap();
    let second = Elsewhere::locks(other.read_lock());
    second.has_it();
    assert_eq!(one.readers().unwrap(), 2);
    second.unlock().unwrap();
    first.release().unwrap();
    nothing_is_left(&server);
}

#[test]
fn a_thread_that_begins_to_read_while_the_last_one_ends_reads_under_a_valid_lease() {
    let server = Server::start();
    let rw = client(&server).rw_lock("rw");
    let other = client(&server).rw_lock("rw");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..300 {
                    let reading = rw.read().unwrap();
                    reading.ensure_valid().unwrap();
                    reading.release().unwrap();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..20 {
                other.write().unwrap().release().unwrap();
            }
        });
    });
    assert_eq!(rw.readers().unwrap(), 0);
    nothing_is_left(&server);
}
