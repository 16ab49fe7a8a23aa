//! The permissions that the guide gives to a user of semaphores.

use std::thread;
use std::time::Duration;

use distlock::{Client, LockOptions, Permit};

use crate::helpers::{SOON, delete};
use crate::permissions::{refused, suffice_and_are_the_smallest};
use crate::support::eventually;

/// So long that no stall of the machine ends it.
const LEASE: Duration = Duration::from_secs(3);

#[test]
fn those_of_the_guide_suffice_and_are_the_smallest() {
    suffice_and_are_the_smallest("semaphore", &|server, url| {
        let (ours, theirs) = (Client::open(url)?, Client::open(url)?);
        ours.ping()?;
        let options = LockOptions::new().lease(LEASE).fenced();
        let semaphore = ours.semaphore_with("exports:9", 3, options.clone())?;
        let other = theirs.semaphore_with("exports:9", 3, options)?;
        // Left by a process that has died.
        let () = redis::cmd("ZADD")
            .arg("exports:9")
            .arg(&["1", "p1/3:aa-bb@x"])
            .query(&mut server.connection())
            .unwrap();
        let permit = semaphore.acquire_many(2)?;
        permit.extend(LEASE * 2)?;
        semaphore.available()?;
        other.try_acquire_many(2, Duration::from_millis(20))?;
        let waiting = || -> usize {
            let queue = "{exports:9}:queue";
            redis::cmd("ZCARD").arg(queue).query(&mut server.connection()).unwrap()
        };
        thread::scope(|scope| {
            let waiter = scope.spawn(|| other.acquire_many(2).and_then(Permit::release));
            let is_over = || waiter.is_finished() || !refused(server).is_empty();
            eventually(SOON, || is_over() || waiting() == 1);
            // The waiter asks again, and makes its entry last longer.
            let brief = redis::cmd("PEXPIRE").arg("{exports:9}:waiters").arg(4000).clone();
            let before = server.command_count("type");
            brief.exec(&mut server.connection()).unwrap();
            eventually(SOON, || is_over() || server.command_count("type") > before);
            let looked = semaphore.inspect();
            let released = permit.release();
            if released.is_err() {
                delete(server, "exports:9");
            }
            released.and(waiter.join().unwrap()).and(looked.map(drop))
        })?;
        theirs.close(LEASE)?;
        ours.close(LEASE)
    });
}
