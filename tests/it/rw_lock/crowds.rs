//! Many threads of several processes, which do all that a read-write lock allows.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use distlock::{Client, Interrupt, LockOptions, RedisLock, Retry, RwLock};

use super::{may_read, may_write};
use crate::faults::nothing_is_left;
use crate::helpers::{SOON, ms};
use crate::support::{Server, eventually};

/// Who is inside.
#[derive(Default)]
struct Inside(AtomicU32);

/// A writer counts for many readers.
const WRITER: u32 = 1_000;

impl Inside {
    fn comes(&self, weight: u32) {
        let now = self.0.fetch_add(weight, Ordering::SeqCst) + weight;
        assert!(now <= WRITER, "{now}: a writer is beside another");
        thread::yield_now();
    }

    fn goes(&self, weight: u32) {
        self.0.fetch_sub(weight, Ordering::SeqCst);
    }

    fn becomes_a_reader(&self) {
        self.0.fetch_sub(WRITER - 1, Ordering::SeqCst);
    }
}

/// A thread of the crowd.
struct Person<'a> {
    rw: &'a RwLock,
    inside: &'a Inside,
    random: fastrand::Rng,
}

impl Person<'_> {
    fn acts(&mut self) {
        match self.random.u8(..8) {
            0..=3 => self.reads(),
            4 => self.claims(),
            _ => self.writes(),
        }
    }

    /// Locks by some call, which may give up.
    fn locks(&mut self, side: &RedisLock) -> bool {
        let interrupt = Interrupt::new();
        let brief = Duration::from_micros(self.random.u64(..4_000));
        match self.random.u8(..4) {
            0 => side.try_lock(SOON * 3).unwrap() || panic!("it waits for ever"),
            1 => side.try_lock(Duration::ZERO).unwrap(),
            2 => side.try_lock(brief).unwrap(),
            _ => thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(brief);
                    interrupt.interrupt();
                });
                let ended = side.lock_interruptibly(&interrupt);
                assert!(ended.as_ref().err().is_none_or(|error| error.is_interrupted()));
                ended.is_ok()
            }),
        }
    }

    fn reads(&mut self) {
        let rw = self.rw;
        if self.locks(rw.read_lock()) {
            self.inside.comes(1);
            if self.random.bool() {
                rw.read().unwrap().release().unwrap();
            }
            self.inside.goes(1);
            rw.read_lock().unlock().unwrap();
        }
    }

    fn claims(&mut self) {
        let sides = [(self.rw.read_lock(), 1), (self.rw.write_lock(), WRITER)];
        let (side, weight) = sides[self.random.usize(..2)];
        let patient = self.random.bool();
        let claim = side.try_claim(if patient { SOON * 3 } else { ms(2) }).unwrap();
        assert!(claim.is_some() || !patient, "it waits for ever");
        if let Some(claim) = claim {
            self.inside.comes(weight);
            self.inside.goes(weight);
            claim.release().unwrap();
        }
    }

    fn writes(&mut self) {
        let write = self.rw.write_lock();
        if !self.locks(write) {
            return;
        }
        self.inside.comes(WRITER);
        match self.random.u8(..4) {
            0 => self.waits(),
            1 => return self.reads_on(),
            2 => self.rw.read().unwrap().release().unwrap(),
            _ => {}
        }
        self.inside.goes(WRITER);
        write.unlock().unwrap();
    }

    fn waits(&mut self) {
        let condition = self.rw.write_lock().new_condition("c").unwrap();
        if self.random.bool() {
            return condition.notify_one().unwrap();
        }
        self.inside.goes(WRITER);
        condition.wait_timeout(Duration::from_micros(self.random.u64(..4_000))).unwrap();
        self.inside.comes(WRITER);
    }

    fn reads_on(&mut self) {
        self.rw.read_lock().lock().unwrap();
        self.inside.becomes_a_reader();
        self.rw.write_lock().unlock().unwrap();
        thread::yield_now();
        self.inside.goes(1);
        self.rw.read_lock().unlock().unwrap();
    }
}

#[test]
fn no_writer_is_ever_beside_another_whatever_threads_of_several_processes_do() {
    let server = Server::start();
    for url in ["memory://rw-crowds".to_owned(), server.url()] {
        let inside = Inside::default();
        let clients = [(); 3].map(|()| Client::open(&url).unwrap());
        let options = LockOptions::new().local_hand_offs(3).retry(Retry::fixed(ms(500)));
        thread::scope(|scope| {
            for number in 0..9 {
                let rw = clients[number % 3].rw_lock_with("rw", options.clone()).unwrap();
                let (inside, random) = (&inside, fastrand::Rng::with_seed(number as u64));
                scope.spawn(move || {
                    let mut person = Person { rw: &rw, inside, random };
                    (0..80).for_each(|_| person.acts());
                });
            }
        });
        assert_eq!(inside.0.into_inner(), 0);
        for client in &clients {
            let rw = client.rw_lock("rw");
            assert!(may_read(&rw) && may_write(&rw));
            eventually(SOON, || client.remembered().1 == 0);
        }
    }
    nothing_is_left(&server);
}
