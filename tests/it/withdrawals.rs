//! What the background threads still have to release, and that closing waits for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use distlock::{Client, Lock, LockOptions};

use crate::faults::{impatient, through_proxy};
use crate::helpers::{SOON, Underway, error, get, ms};
use crate::support::{Fault, Rule, eventually, in_own_process};

/// A logger that blocks the thread that logs the loss of a lease.
struct Slow;
static LOSES: AtomicBool = AtomicBool::new(false);
static GO_ON: AtomicBool = AtomicBool::new(false);

impl log::Log for Slow {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.args().to_string().contains("lease lost") {
            LOSES.store(true, Ordering::SeqCst);
            eventually(SOON, || GO_ON.load(Ordering::SeqCst));
        }
    }

    fn flush(&self) {}
}

/// 1. Extends run, and are not answered: the lease ends for its holder, but not on the server; 2.
///    renewal takes it out of its book; 3. the client is closed;
/// 4. renewal gives what is left to the cleaner.
#[test]
fn close_knows_of_a_lost_lease_that_is_on_its_way_to_the_cleaner() {
    in_own_process(
        "withdrawals::close_knows_of_a_lost_lease_that_is_on_its_way_to_the_cleaner",
        || {
            log::set_logger(&Slow).unwrap();
            log::set_max_level(log::LevelFilter::Warn);
            let (server, proxy) = through_proxy();
            let client = impatient(&proxy.url()).build().unwrap();
            let lock = client.lock_with("job", LockOptions::new().lease(ms(3_000))).unwrap();
            lock.lock().unwrap();
            // So that the server knows the script.
            eventually(SOON, || lock.extend(ms(3_000)).is_ok());
            let unanswered = proxy.add(Rule::on("EVALSHA", Fault::HoldReply));
            eventually(SOON, || LOSES.load(Ordering::SeqCst));
            unanswered.remove();
            proxy.freeze();
            let closing = Underway::start(move || client.close(ms(3_000)));
            thread::sleep(ms(300));
            GO_ON.store(true, Ordering::SeqCst);
            let closed = closing.result_within(SOON);
            assert!(
                closed.is_err() || get(&server, "job").is_none(),
                "the server still has it, and close said Ok"
            );
        },
    );
}

#[test]
fn close_releases_what_it_can_beside_many_that_are_refused() {
    const REFUSED: usize = 300;
    let (server, proxy) = through_proxy();
    let mut operator = server.connection();
    let mut user = |rule: &str| {
        redis::cmd("ACL")
            .arg("SETUSER")
            .arg(rule.split(' ').collect::<Vec<_>>())
            .exec(&mut operator)
            .unwrap()
    };
    user("u on >password +@all allkeys &*");
    let client = Client::open(&proxy.url_with("u", "password")).unwrap();
    let refused: Vec<_> = (0..REFUSED).map(|i| client.lock(&format!("refused-{i}"))).collect();
    refused.iter().for_each(|lock| lock.lock().unwrap());
    user("u resetkeys ~ok* ~{ok*");
    client.lock("ok").lock().unwrap();
    // These come first, and there are more of them than fit into one command.
    refused.iter().for_each(|lock| assert!(error(lock.unlock()).is_unknown()));
    // The cleaner is in the middle of a command.
    proxy.set_delay(ms(0), ms(400));
    thread::sleep(ms(300));
    let left = error(client.close(ms(6_000)));
    assert!(
        left.to_string().contains(&format!(" {REFUSED} of")) && get(&server, "ok").is_none(),
        "{left}"
    );
}
