//! Waits and notifications while there is no connection, or a reply is lost, refused or nonsense.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use distlock::{Client, Condition, ErrorKind, Interrupt, LostReason, Renewal};

use super::{A_WHILE, SOON, lock_and_condition, notify, waiting};
use crate::faults::through_proxy;
use crate::helpers::{Asked, Busy, Notes, close_connections, error, lease, ms, on_another_thread};
use crate::support::{Fault, Rule, Server, eventually, within};

/// A command timeout so long that a second one would stand out, also on a machine under load.
const COMMAND_TIMEOUT: Duration = ms(2000);

/// Waits until it is interrupted, after a while.
fn wait_until_interrupted(condition: &Condition) -> distlock::Result<()> {
    let interrupt = Interrupt::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(A_WHILE);
            interrupt.interrupt();
        });
        condition.wait_interruptibly(&interrupt)
    })
}

#[test]
fn an_unsent_wait_ends_on_time_with_the_lock_held_and_registered_for_renewal_once() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let (lock, condition) = lock_and_condition(&client);
    lock.lock().unwrap();
    server.kill();
    // A command sent over a connection that has died unnoticed may have arrived.
    client.ping().unwrap_err();
    let is_as_before = || lock.is_held() && lock.is_valid() && client.remembered().1 == 1;
    let ended = within(A_WHILE..SOON, || condition.wait_timeout(A_WHILE));
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(is_as_before());
    let interrupted = within(A_WHILE..SOON, || wait_until_interrupted(&condition));
    assert_eq!(interrupted.unwrap_err().kind(), ErrorKind::Interrupted);
    assert!(is_as_before());
    server.restart();
}

/// A client with a single connection.
fn with_one_connection(server: &Server) -> Client {
    let builder = Client::builder(&server.url()).pool_size(1);
    builder.command_timeout(COMMAND_TIMEOUT).build().unwrap()
}

/// Waits until a timeout or an interrupt while the client has no connection.
fn wait_without_a_connection(condition: &Condition, interrupts: bool) -> ErrorKind {
    let wait = || match interrupts {
        true => wait_until_interrupted(condition),
        false => condition.wait_timeout(A_WHILE).map(drop),
    };
    // Less than two command timeouts.
    within(A_WHILE..COMMAND_TIMEOUT + ms(1800), wait).unwrap_err().kind()
}

#[test]
fn a_wait_without_a_connection_takes_at_most_one_command_timeout_longer() {
    let server = Server::start();
    let client = with_one_connection(&server);
    let (lock, condition) = lock_and_condition(&client);
    lock.lock().unwrap();
    let _busy = Busy::connection_of(&client);
    assert_eq!(wait_without_a_connection(&condition, false), ErrorKind::Unavailable);
    assert_eq!(wait_without_a_connection(&condition, true), ErrorKind::Interrupted);
    assert!(lock.is_held() && lock.is_valid());
}

#[test]
fn a_wait_that_could_not_be_sent_before_its_lease_was_lost_is_lost() {
    let server = Server::start();
    let client = with_one_connection(&server);
    // Long enough to begin the wait, and over before the wait for a connection ends.
    let options = || lease(COMMAND_TIMEOUT * 3 / 4).renewal(Renewal::Never);
    for interrupts in [false, true] {
        let lock = client.lock_with("buffer", options()).unwrap();
        let condition = lock.new_condition("not-empty").unwrap();
        lock.lock().unwrap();
        let _busy = Busy::connection_of(&client);
        let ended = wait_without_a_connection(&condition, interrupts);
        assert_eq!(ended, ErrorKind::Lost, "and not: held as before");
        assert!(lock.is_held() && !lock.is_valid());
        assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::Lost);
    }
}

/// Otherwise the wait would look as if it may have been sent, and the hold would be over.
#[test]
fn a_wait_whose_lease_is_lost_before_it_is_sent_is_lost_also_if_the_primary_moves_meanwhile() {
    let server = Server::start();
    let (client, notes) = Notes::of(Client::builder(&server.url()));
    let lock = client.lock_with("job", lease(ms(900))).unwrap();
    let (tell, told) = mpsc::channel();
    lock.on_lost(move |lost| tell.send(lost.reason()).unwrap());
    lock.lock().unwrap();
    let (told, operator) = (Mutex::new(told), Mutex::new(server.connection()));
    let (other, times) = (client.clone(), AtomicUsize::new(0));
    // The wait has a connection, and is about to ask whether it may be sent.
    notes.before(move |asked| {
        if *asked != Asked::ReleaseIsSent || times.fetch_add(1, Ordering::SeqCst) > 0 {
            return;
        }
        let mut operator = operator.lock().unwrap();
        redis::cmd("DEL").arg("job").exec(&mut operator).unwrap();
        assert_eq!(told.lock().unwrap().recv_timeout(SOON), Ok(LostReason::Taken));
        redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).exec(&mut operator).unwrap();
        let set =
            |conn: &mut dyn redis::ConnectionLike| redis::cmd("SET").arg("x").arg(1).exec(conn);
        assert!(on_another_thread(|| other.execute(set)).is_err(), "it is a replica");
        redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut operator).unwrap();
    });
    assert!(error(lock.new_condition("c").unwrap().wait()).is_lost());
    assert!(lock.is_held());
    assert!(error(lock.unlock()).is_lost());
}

#[test]
fn a_lease_is_renewed_while_its_wait_is_refused() {
    let (_server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let lock = client.lock_with("buffer", lease(ms(3000))).unwrap();
    let condition = lock.new_condition("not-empty").unwrap();
    lock.lock().unwrap();
    // So slow that an extend near the end would come too late: a refusal must not postpone the next
    // extend.
    proxy.set_delay(ms(65), ms(65));
    // The script that enters a condition has ten arguments. Only that script is refused, as by a
    // proxy that refuses some scripts for a while.
    let busy = Fault::Answer(b"-BUSY Redis is busy running a script.\r\n".to_vec());
    let refused = proxy.add(Rule::on("EVALSHA", busy).when(|command| command.len() == 3 + 5 + 10));
    let ended = within(ms(4500)..SOON, || condition.wait_timeout(ms(4500)));
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(refused.fired() > 1);
    assert!(lock.is_held() && lock.is_valid());
    lock.unlock().unwrap();
}

#[test]
fn notify_and_force_unlock_succeed_after_their_connection_was_closed_while_idle() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let woken = waiting(Client::open(&server.url()).unwrap(), |condition| condition.wait());
    let (lock, condition) = lock_and_condition(&client);
    let cut = || close_connections(&mut server.connection());
    let guard = lock.guard().unwrap();
    cut();
    condition.notify_one().unwrap();
    guard.release().unwrap();
    woken.recv_timeout(SOON).unwrap().unwrap();
    let _guard = lock.guard().unwrap();
    cut();
    assert!(lock.force_unlock().unwrap());
}

/// It may wake one waiter more: both copies may run.
#[test]
fn a_notification_whose_reply_was_cut_off_is_sent_again_and_succeeds() {
    let (server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let open = || Client::open(&server.url()).unwrap();
    // The server knows the script, so that the first copy runs.
    notify(&open(), Condition::notify_one);
    let first = waiting(open(), |condition| condition.wait());
    let (lock, condition) = lock_and_condition(&client);
    let guard = lock.guard().unwrap();
    let notified = proxy.add(Rule::on("EVALSHA", Fault::CutAfter).next(1));
    condition.notify_one().unwrap();
    assert_eq!(notified.fired(), 1);
    guard.release().unwrap();
    first.recv_timeout(SOON).unwrap().unwrap();
}

#[test]
fn a_waiter_whose_request_to_leave_gets_a_nonsense_answer_asks_with_pauses() {
    let (_server, proxy) = through_proxy();
    let lock = Client::open(&proxy.url()).unwrap().lock("job");
    // The answer "you wait" to a request to leave.
    let leaves = |command: &[Vec<u8>]| command.len() == 3 + 5 + 10 && command[17] == b"1";
    let told = proxy
        .add(Rule::on("EVALSHA", Fault::ReplaceReply(b"*2\r\n:0\r\n:1\r\n".to_vec())).when(leaves));
    let waiter = thread::spawn(move || {
        lock.lock().unwrap();
        lock.new_condition("c").unwrap().wait_timeout(Duration::from_millis(100))
    });
    eventually(SOON, || told.fired() > 0);
    thread::sleep(Duration::from_secs(1));
    let asked = told.fired();
    told.remove();
    assert!((2..60).contains(&asked), "asked {asked} times in a second");
    // It has left, and does not know that: so it may have been notified.
    assert!(waiter.join().unwrap().unwrap());
}
