//! Interrupts: they end a wait for the server or for the local turn, and leave nothing behind.

use std::thread;
use std::time::{Duration, Instant};

use distlock::{Interrupt, LockOptions, Queue, RedisLock};

use crate::helpers::{
    Elsewhere, SOON, Underway, client, delete, error, is_free, keys, memory, ms, put,
};
use crate::support::{Server, eventually, within};

/// Both ways to wait that an interrupt can end.
fn interruptible(lock: &RedisLock, interrupt: &Interrupt, timed: bool) -> distlock::Result<()> {
    if timed {
        lock.try_lock_interruptibly(SOON * 3, interrupt).map(|locked| assert!(locked))
    } else {
        lock.lock_interruptibly(interrupt)
    }
}

#[test]
fn an_interruptible_call_without_an_interrupt_locks_like_any_other() {
    let lock = memory().lock("job");
    let interrupt = Interrupt::new();
    lock.lock_interruptibly(&interrupt).unwrap();
    assert!(lock.try_lock_interruptibly(Duration::ZERO, &interrupt).unwrap());
    assert_eq!(lock.hold_count(), 2);
    let holder_in_the_way = thread::scope(|scope| {
        scope
            .spawn(|| {
                within(ms(50)..SOON, || lock.try_lock_interruptibly(ms(50), &interrupt).unwrap())
            })
            .join()
            .unwrap()
    });
    assert!(!holder_in_the_way);
    lock.unlock().unwrap();
    lock.unlock().unwrap();
}

#[test]
fn an_interrupt_before_the_wait_ends_it_before_anything_is_sent() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock("job");
    let interrupt = Interrupt::new();
    interrupt.interrupt();
    for timed in [false, true] {
        let ended = error(interruptible(&lock, &interrupt, timed));
        assert!(ended.is_interrupted() && ended.lock_name() == Some("job"));
    }
    assert!(error(lock.try_lock_interruptibly(Duration::ZERO, &interrupt)).is_interrupted());
    assert!(!lock.is_held());
    assert_eq!(server.client_count(), 0);
    assert_eq!(client.waiting("job"), 0);
}

#[test]
fn an_interrupt_ends_the_wait_for_the_server() {
    let server = Server::start();
    for (queue, timed) in
        [(Queue::Fifo, false), (Queue::Fifo, true), (Queue::None, false), (Queue::None, true)]
    {
        put(&server, "job", "somebody", SOON * 6);
        let client = client(&server);
        let lock = client.lock_with("job", LockOptions::new().queue(queue)).unwrap();
        let interrupt = Interrupt::new();
        let waiter = {
            let (lock, interrupt) = (lock.clone(), interrupt.clone());
            Underway::start(move || {
                (interruptible(&lock, &interrupt, timed), lock.is_held(), Instant::now())
            })
        };
        eventually(SOON, || server.command_count("set") > 0 && !waiter.is_done());
        thread::sleep(ms(30));
        let interrupted_at = Instant::now();
        interrupt.interrupt();
        let (ended, held, ended_at) = waiter.result();
        assert!(error(ended).is_interrupted() && !held);
        assert!(ended_at - interrupted_at < ms(2000));
        // Nobody waits any more, in this process or on the server: the next holder's release finds
        // no waiter.
        delete(&server, "job");
        eventually(SOON, || keys(&server).is_empty());
        thread::sleep(ms(60));
        assert_eq!(keys(&server), [""; 0], "it was granted after it had given up");
        interrupt.reset();
        interruptible(&lock, &interrupt, timed).unwrap();
        lock.unlock().unwrap();
    }
}

#[test]
fn an_interrupt_ends_the_wait_for_the_local_turn() {
    let client = memory();
    let lock = client.lock("job");
    let holder = Elsewhere::holds(&lock);
    for timed in [false, true] {
        let interrupt = Interrupt::new();
        let waiter = {
            let (lock, interrupt) = (lock.clone(), interrupt.clone());
            Underway::behind(&client, "job", move || interruptible(&lock, &interrupt, timed))
        };
        interrupt.interrupt();
        assert!(error(waiter.result()).is_interrupted());
        assert_eq!(client.waiting("job"), 0);
    }
    holder.unlock().unwrap();
    assert!(is_free(&lock));
}

#[test]
fn an_interrupt_ends_only_the_waits_that_were_given_it() {
    let client = memory();
    let lock = client.lock("job");
    let holder = Elsewhere::holds(&lock);
    let (one, two) = (Interrupt::new(), Interrupt::new());
    let start = |interrupt: &Interrupt| {
        let (lock, interrupt) = (lock.clone(), interrupt.clone());
        Underway::behind(&client, "job", move || {
            lock.lock_interruptibly(&interrupt).and_then(|()| lock.unlock())
        })
    };
    // One interrupt ends any number of waits, wherever they are in the queue.
    let (first, other, last) = (start(&one), start(&two), start(&one));
    let plain = {
        let lock = lock.clone();
        Underway::behind(&client, "job", move || lock.lock().and_then(|()| lock.unlock()))
    };
    one.interrupt();
    assert!(error(first.result()).is_interrupted() && error(last.result()).is_interrupted());
    assert_eq!(client.waiting("job"), 2);
    assert!(!two.is_interrupted() && !other.is_done() && !plain.is_done());
    holder.unlock().unwrap();
    other.result().unwrap();
    plain.result().unwrap();
}

#[test]
fn an_interrupt_stays_set_until_it_is_reset_and_its_clones_share_it() {
    let lock = memory().lock("job");
    let interrupt = Interrupt::new();
    let clone = interrupt.clone();
    assert!(!clone.is_interrupted());
    interrupt.interrupt();
    interrupt.interrupt();
    for _ in 0..2 {
        assert!(clone.is_interrupted() && error(lock.lock_interruptibly(&clone)).is_interrupted());
    }
    clone.reset();
    assert!(!interrupt.is_interrupted());
    lock.lock_interruptibly(&interrupt).unwrap();
    lock.unlock().unwrap();
}

#[test]
fn an_interrupted_thread_adds_no_hold_to_a_lock_that_it_holds() {
    let lock = memory().lock("job");
    let interrupt = Interrupt::new();
    lock.lock_interruptibly(&interrupt).unwrap();
    interrupt.interrupt();
    assert!(error(lock.lock_interruptibly(&interrupt)).is_interrupted());
    assert!(error(lock.try_lock_interruptibly(Duration::ZERO, &interrupt)).is_interrupted());
    assert_eq!(lock.hold_count(), 1);
    // A re-entrant lock without the interrupt does not wait, so nothing ends it.
    lock.lock().unwrap();
    interrupt.reset();
    lock.lock_interruptibly(&interrupt).unwrap();
    assert_eq!(lock.hold_count(), 3);
    (0..3).for_each(|_| lock.unlock().unwrap());
}

#[test]
fn interrupts_race_with_grants_and_nothing_stays_held() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock("job");
    let mut outcomes = [0, 0];
    for round in 0..60_u32 {
        let holder = Elsewhere::holds(&lock);
        let interrupt = Interrupt::new();
        let waiter = {
            let (lock, interrupt) = (lock.clone(), interrupt.clone());
            Underway::behind(&client, "job", move || {
                lock.lock_interruptibly(&interrupt).and_then(|()| lock.unlock())
            })
        };
        let release = thread::spawn(|| holder.unlock().unwrap());
        thread::sleep(Duration::from_micros(u64::from(round) * 7));
        interrupt.interrupt();
        release.join().unwrap();
        match waiter.result() {
            Ok(()) => outcomes[0] += 1,
            Err(error) => {
                assert!(error.is_interrupted());
                outcomes[1] += 1;
            }
        }
        assert!(is_free(&lock), "after {outcomes:?}");
    }
    assert_eq!(outcomes[0] + outcomes[1], 60);
}

/// The waiter wakes up, and looks only after the interrupt was reset.
#[test]
fn an_interrupt_that_is_reset_at_once_has_ended_the_waits_of_before() {
    let server = Server::start();
    for (client, timed) in [(client(&server), false), (memory(), true)] {
        let holder = Elsewhere::holds(&client.lock("job"));
        for _ in 0..10 {
            let interrupt = Interrupt::new();
            let waiter = {
                let (lock, interrupt) = (client.lock("job"), interrupt.clone());
                Underway::behind(&client, "job", move || interruptible(&lock, &interrupt, timed))
            };
            interrupt.interrupt();
            interrupt.reset();
            assert!(error(within(..SOON, || waiter.result())).is_interrupted());
        }
        holder.unlock().unwrap();
        let interrupt = Interrupt::new();
        interrupt.interrupt();
        interrupt.reset();
        interruptible(&client.lock("job"), &interrupt, timed).unwrap();
        client.lock("job").unlock().unwrap();
    }
}
