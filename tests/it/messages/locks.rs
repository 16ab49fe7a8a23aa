//! What becomes of a lock, a wait or a client.

use std::thread;

use distlock::{Client, Interrupt, LockOptions, Retry};

use super::{Case, shows};
use crate::helpers::{Elsewhere, SOON, lease, memory, ms, put};
use crate::support::{Proxy, Server};

#[test]
fn locks() {
    let here = memory();
    let lock = here.lock("job");
    let mut cases = vec![Case::new("`unlock` without a hold", lock.unlock())];
    lock.lock().unwrap();
    let fenced = here.lock_with("job", LockOptions::new().fenced()).unwrap();
    cases.push(Case::new("held with other options", fenced.lock()));
    cases.push(Case::new("`claim` of a lock that this thread holds", lock.claim().map(drop)));
    let rw = here.rw_lock("rw");
    let reading = rw.read().unwrap();
    cases.push(Case::new("`write` of a thread that reads", rw.write()));
    reading.release().unwrap();
    let (writing, _again) = (rw.write().unwrap(), rw.write().unwrap());
    let claimed = rw.read_lock().claim().map(drop);
    cases.push(Case::new("`claim` of the read side by a thread that writes", claimed));
    let reading = rw.read().unwrap();
    let waited = rw.write_lock().new_condition("c").unwrap().wait();
    cases.push(Case::new("a wait in a condition of a thread that also reads", waited));
    reading.release().unwrap();
    cases.push(Case::new("`downgrade` of one of two holds", rw.downgrade(writing)));
    lock.force_unlock().unwrap();
    cases.push(Case::new("`unlock` after the lease was lost", lock.unlock()));
    cases.push(unconfirmed());

    let holder = Elsewhere::holds(&lock);
    let interrupt = Interrupt::new();
    interrupt.interrupt();
    cases.push(Case::new("`lock_interruptibly`", lock.lock_interruptibly(&interrupt)));
    holder.unlock().unwrap();
    lock.lock().unwrap();
    let condition = lock.new_condition("c").unwrap();
    let waited = condition.wait_interruptibly(&interrupt);
    cases.push(Case::new("`wait_interruptibly`", waited));
    lock.unlock().unwrap();
    cases.push(Case::new("`notify_one` without a hold", condition.notify_one()));

    let server = Server::start();
    put(&server, "job", "another's", SOON * 6);
    let client = Client::open(&server.url()).unwrap();
    let once = LockOptions::new().retry(Retry::fixed(ms(1)).attempts(1));
    cases.push(Case::new("`Retry::attempts`", client.lock_with("job", once).unwrap().lock()));

    let busy = Client::builder(&server.url()).pool_size(1).command_timeout(ms(200)).build();
    let busy = busy.unwrap();
    let case = busy.execute(|_| {
        let waiting = busy.lock("other");
        let waiting = thread::spawn(move || waiting.try_lock(ms(0)));
        Ok(Case::new("every pooled connection is in use", waiting.join().unwrap()))
    });
    cases.push(case.unwrap());

    let lock = client.lock("other");
    client.close(SOON).unwrap();
    cases.push(Case::new("a client that is closed", lock.lock()));
    shows("locks", &cases);
}

/// An unlock that the server does not answer.
fn unconfirmed() -> Case {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::builder(&proxy.url()).command_timeout(ms(200)).build().unwrap();
    let lock = client.lock_with("job", lease(SOON)).unwrap();
    lock.lock().unwrap();
    proxy.freeze();
    let mut case = Case::new("`unlock`, and no reply", lock.unlock());
    // The cause depends on how often the server was asked.
    case.text.truncate(case.text.rfind(": the lease may still last").unwrap());
    case.text += ": the lease may still last: ...";
    proxy.thaw();
    case
}
