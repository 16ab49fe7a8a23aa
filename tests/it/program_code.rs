//! Code of the program that the client's own threads call, or used to call: its logger, its pool.
//! It may block or panic, and costs no lock (R9).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use distlock::Client;
use r2d2::HandleEvent;
use r2d2::event::CheckoutEvent;

use crate::helpers::{SOON, client, delete, lease};
use crate::holds::forked;
use crate::loss::{HOUR, renewal_finds, timed};
use crate::support::{Server, eventually, in_own_process};

/// A logger that panics, or waits, at each message of the crate.
struct Nasty {
    panics: bool,
}

static CALLED: AtomicBool = AtomicBool::new(false);
static GO_ON: AtomicBool = AtomicBool::new(false);

impl log::Log for Nasty {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.target().starts_with("distlock") {
            CALLED.store(true, Ordering::SeqCst);
            assert!(!self.panics, "nobody reads the log");
            eventually(SOON * 6, || GO_ON.load(Ordering::SeqCst));
        }
    }

    fn flush(&self) {}
}

fn costs_no_lock(logger: &'static Nasty) {
    log::set_logger(logger).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let server = Server::start();
    let (builder, clock) = timed(Client::builder(&server.url()));
    let mine = builder.build().unwrap();
    let [taken, kept] = ["taken", "kept"].map(|name| mine.lock_with(name, lease(HOUR)).unwrap());
    taken.lock().unwrap();
    kept.lock().unwrap();
    delete(&server, "taken");
    renewal_finds(&clock, || !taken.is_valid());
    eventually(SOON, || CALLED.load(Ordering::SeqCst));
    // Renewal goes on.
    for _ in 0..3 {
        // An extend that is under way counts from before, so the clock has to go on.
        renewal_finds(&clock, || kept.remaining().unwrap() > HOUR * 9 / 10);
    }
    // So does the cleaner, which says that a thread ended while it held.
    for name in ["first", "second"] {
        ends_holding(&server, &mine, name);
    }
    kept.unlock().unwrap();
    GO_ON.store(true, Ordering::SeqCst);
}

/// A thread ends while it holds, and the cleaner frees the lock, and says so.
fn ends_holding(server: &Server, mine: &Client, name: &str) {
    let lock = mine.lock(name);
    thread::spawn(move || lock.lock().unwrap()).join().unwrap();
    assert!(client(server).lock(name).try_lock(SOON).unwrap());
}

#[test]
fn a_logger_that_panics_costs_no_lock() {
    in_own_process("program_code::a_logger_that_panics_costs_no_lock", || {
        costs_no_lock(&Nasty { panics: true });
    });
}

#[test]
fn a_logger_that_blocks_costs_no_lock() {
    in_own_process("program_code::a_logger_that_blocks_costs_no_lock", || {
        costs_no_lock(&Nasty { panics: false });
    });
}

#[test]
fn a_logger_that_blocks_costs_no_lock_in_a_forked_child() {
    in_own_process("program_code::a_logger_that_blocks_costs_no_lock_in_a_forked_child", || {
        // The parent's logger blocks: a thread of the parent is in it while the child is made.
        static LOGGER: Nasty = Nasty { panics: false };
        log::set_logger(&LOGGER).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
        let server = Server::start();
        ends_holding(&server, &Client::open(&server.url()).unwrap(), "parent");
        eventually(SOON, || CALLED.load(Ordering::SeqCst));
        forked(|| {
            let own = Client::open(&server.url()).map_err(|_| 1)?;
            // A cleaner that waits for the logger frees the first at most.
            CALLED.store(false, Ordering::SeqCst);
            for name in ["first", "second"] {
                ends_holding(&server, &own, name);
            }
            eventually(SOON, || CALLED.load(Ordering::SeqCst));
            Ok(())
        });
        GO_ON.store(true, Ordering::SeqCst);
    });
}

/// Panics when the cleaner takes its first connection.
#[derive(Debug, Default)]
struct PanicsOnce(AtomicBool);

impl HandleEvent for PanicsOnce {
    fn handle_checkout(&self, _: CheckoutEvent) {
        let is_cleaner = thread::current().name() == Some("distlock-cleaner");
        assert!(!is_cleaner || self.0.swap(true, Ordering::SeqCst), "the program's own panic");
    }
}

#[test]
fn a_thread_of_ours_goes_on_after_a_panic_of_the_programs_pool() {
    let server = Server::start();
    let pool = r2d2::Pool::builder()
        // r2d2 does not get back a connection whose check-out panicked.
        .max_size(2)
        .min_idle(Some(0))
        .test_on_check_out(false)
        .event_handler(Box::<PanicsOnce>::default())
        .build(redis::Client::open(server.url()).unwrap())
        .unwrap();
    let mine = Client::builder(&server.url()).pool(pool).build().unwrap();
    let lock = mine.lock("job");
    thread::spawn(move || lock.lock().unwrap()).join().unwrap();
    assert!(client(&server).lock("job").try_lock(SOON).unwrap());
    mine.close(Duration::from_secs(5)).unwrap();
}
