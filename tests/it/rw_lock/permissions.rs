//! The permissions that the guide gives to a user of read-write locks.

use std::thread;
use std::time::Duration;

use distlock::{Client, LockOptions};

use crate::helpers::{SOON, delete};
use crate::permissions::{refused, suffice_and_are_the_smallest};
use crate::support::eventually;

/// So long that no stall of the machine ends it.
const LEASE: Duration = Duration::from_secs(3);

#[test]
fn those_of_the_guide_suffice_and_are_the_smallest() {
    suffice_and_are_the_smallest("rw-lock", &|server, url| {
        let (ours, theirs) = (Client::open(url)?, Client::open(url)?);
        ours.ping()?;
        let options = LockOptions::new().lease(LEASE).fenced();
        let rw = ours.rw_lock_with("catalogue:9", options.clone())?;
        let other = theirs.rw_lock_with("catalogue:9", options)?;
        // Left by a process that has died.
        let () = redis::cmd("ZADD")
            .arg("catalogue:9")
            .arg(&["1", "r:aa-bb@x"])
            .query(&mut server.connection())
            .unwrap();
        let writing = rw.write()?;
        writing.extend(LEASE * 2)?;
        let reading = rw.downgrade(writing)?;
        rw.readers()?;
        other.try_read(Duration::from_millis(20))?;
        other.try_write(Duration::from_millis(20))?;
        let waiting = || -> usize {
            let queue = "{catalogue:9}:queue";
            redis::cmd("ZCARD").arg(queue).query(&mut server.connection()).unwrap()
        };
        thread::scope(|scope| {
            let waiter = scope.spawn(|| other.write()?.release());
            let is_over = || waiter.is_finished() || !refused(server).is_empty();
            eventually(SOON, || is_over() || waiting() == 1);
            // The waiter asks again, and makes its entry last longer.
            let brief = redis::cmd("PEXPIRE").arg("{catalogue:9}:waiters").arg(4000).clone();
            let before = server.command_count("type");
            brief.exec(&mut server.connection()).unwrap();
            eventually(SOON, || is_over() || server.command_count("type") > before);
            let looked = rw.write_lock().inspect();
            let released = reading.release();
            if released.is_err() {
                delete(server, "catalogue:9");
            }
            released.and(waiter.join().unwrap()).and(looked.map(drop))
        })?;
        theirs.close(LEASE)?;
        ours.close(LEASE)
    });
}
