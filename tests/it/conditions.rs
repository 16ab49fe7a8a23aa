//! Conditions: waiting under a lock for what another holder of it brings about.

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use distlock::{
    Client, Condition, ErrorKind, Interrupt, Layout, Lock, LockOptions, Queue, RedisLock, Renewal,
    Result,
};

use crate::helpers::{Busy, lease, ms};
use crate::support::{Fault, Proxy, Rule, Server, eventually, within};

const SOON: Duration = Duration::from_secs(10);
const A_WHILE: Duration = Duration::from_millis(150);

/// Runs a statement over every store that has conditions: `open` makes another client of the same
/// store.
fn everywhere(statement: impl Fn(&dyn Fn() -> Client)) {
    let named = format!("memory://conditions-{:?}", thread::current().id());
    let first = Client::open(&named).unwrap();
    statement(&|| Client::open(&named).unwrap());
    drop(first);
    let server = Server::start();
    statement(&|| Client::open(&server.url()).unwrap());
}

fn lock_and_condition(client: &Client) -> (RedisLock, Condition) {
    let lock = client.lock_with("buffer", LockOptions::new().fenced()).unwrap();
    let condition = lock.new_condition("not-empty").unwrap();
    (lock, condition)
}

/// Starts a thread that waits in the condition. Returns when it is in, with the way to hear how its
/// wait ended.
///
/// It is in as soon as somebody else can lock: entering and releasing are one step.
fn waiting<T: Send + 'static>(
    client: Client,
    wait: impl FnOnce(&Condition) -> T + Send + 'static,
) -> Receiver<T> {
    let (say, hear) = mpsc::channel();
    let (locked, is_locked) = mpsc::channel();
    let probe = client.clone();
    thread::spawn(move || {
        let (lock, condition) = lock_and_condition(&client);
        let _guard = lock.guard().unwrap();
        locked.send(()).unwrap();
        let ended = wait(&condition);
        assert!(lock.is_held() && lock.is_valid(), "held again, whatever the outcome");
        say.send(ended).unwrap();
    });
    is_locked.recv_timeout(SOON).unwrap();
    let (lock, _) = lock_and_condition(&probe);
    assert!(lock.try_lock(SOON).unwrap(), "a waiting thread does not hold the lock");
    lock.unlock().unwrap();
    hear
}

fn notify(client: &Client, notify: impl FnOnce(&Condition) -> Result<()>) {
    let (lock, condition) = lock_and_condition(client);
    lock.with(|_| notify(&condition)).unwrap().unwrap();
}

#[test]
fn a_notified_waiter_has_the_lock_again() {
    everywhere(|open| {
        let woken = waiting(open(), |condition| condition.wait());
        assert!(woken.recv_timeout(A_WHILE).is_err(), "nobody has notified it");
        notify(&open(), Condition::notify_one);
        woken.recv_timeout(SOON).unwrap().unwrap();
    });
}

#[test]
fn a_wait_restores_all_holds_under_a_new_lease_with_a_larger_fence() {
    everywhere(|open| {
        let client = open();
        let (lock, _) = lock_and_condition(&client);
        let woken = waiting(client, move |condition| {
            lock.lock().unwrap();
            lock.lock().unwrap();
            let (before, holds) = (lock.fence().unwrap(), lock.hold_count());
            condition.wait().unwrap();
            assert_eq!((lock.hold_count(), holds), (3, 3));
            lock.unlock().unwrap();
            lock.unlock().unwrap();
            (before, lock.fence().unwrap())
        });
        notify(&open(), Condition::notify_one);
        let (before, after) = woken.recv_timeout(SOON).unwrap();
        assert!(after > before, "{after} is not larger than {before}");
    });
}

#[test]
fn notify_one_wakes_in_the_order_of_waiting_and_notify_all_wakes_all() {
    everywhere(|open| {
        let (say, hear) = mpsc::channel();
        let start = |number: u32| {
            let say = say.clone();
            waiting(open(), move |condition| {
                condition.wait().unwrap();
                say.send(number).unwrap();
            })
        };
        let _threads: Vec<_> = (0..5).map(start).collect();
        let client = open();
        for expected in 0..2 {
            notify(&client, Condition::notify_one);
            assert_eq!(hear.recv_timeout(SOON).unwrap(), expected);
        }
        assert!(hear.recv_timeout(A_WHILE).is_err(), "one notification wakes one");
        notify(&client, Condition::notify_all);
        let rest: Vec<_> = (2..5).map(|_| hear.recv_timeout(SOON).unwrap()).collect();
        assert_eq!(rest, [2, 3, 4]);
    });
}

#[test]
fn a_notification_that_nobody_waits_for_is_not_kept() {
    everywhere(|open| {
        notify(&open(), Condition::notify_all);
        let woken = waiting(open(), |condition| condition.wait_timeout(A_WHILE));
        assert!(!woken.recv_timeout(SOON).unwrap().unwrap());
    });
}

#[test]
fn a_timed_wait_says_whether_it_was_notified_and_holds_in_both_cases() {
    everywhere(|open| {
        let woken =
            waiting(open(), |condition| within(A_WHILE..SOON, || condition.wait_timeout(A_WHILE)));
        assert!(!woken.recv_timeout(SOON).unwrap().unwrap(), "the time was over");
        let woken = waiting(open(), |condition| condition.wait_timeout(Duration::MAX));
        notify(&open(), Condition::notify_one);
        assert!(woken.recv_timeout(SOON).unwrap().unwrap(), "it was notified");
    });
}

#[test]
fn a_waiter_that_timed_out_takes_no_notification_from_another() {
    everywhere(|open| {
        let first = waiting(open(), |condition| condition.wait_timeout(A_WHILE));
        let second = waiting(open(), |condition| condition.wait());
        assert!(!first.recv_timeout(SOON).unwrap().unwrap());
        notify(&open(), Condition::notify_one);
        second.recv_timeout(SOON).unwrap().unwrap();
    });
}

#[test]
fn an_interrupted_wait_holds_the_lock_and_takes_no_notification() {
    everywhere(|open| {
        let interrupt = Interrupt::new();
        let given = interrupt.clone();
        let first = waiting(open(), move |condition| condition.wait_interruptibly(&given));
        let second = waiting(open(), |condition| condition.wait());
        interrupt.interrupt();
        assert!(first.recv_timeout(SOON).unwrap().unwrap_err().is_interrupted());
        notify(&open(), Condition::notify_one);
        second.recv_timeout(SOON).unwrap().unwrap();
    });
}

#[test]
fn a_wait_that_nothing_could_be_sent_for_ends_in_its_time_with_the_lock_held_and_renewed_once() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let (lock, condition) = lock_and_condition(&client);
    lock.lock().unwrap();
    server.kill();
    // What goes out over a connection that has died unseen may have arrived.
    client.ping().unwrap_err();
    let is_as_before = || lock.is_held() && lock.is_valid() && client.remembered().1 == 1;
    let ended = within(A_WHILE..SOON, || condition.wait_timeout(A_WHILE));
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(is_as_before());
    let interrupt = Interrupt::new();
    let interrupted = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(A_WHILE);
            interrupt.interrupt();
        });
        within(A_WHILE..SOON, || condition.wait_interruptibly(&interrupt))
    });
    assert_eq!(interrupted.unwrap_err().kind(), ErrorKind::Interrupted);
    assert!(is_as_before());
    server.restart();
}

/// Waits until a timeout, or an interrupt, while the client has no connection.
fn wait_without_a_connection(condition: &Condition, interrupts: bool) -> ErrorKind {
    let interrupt = Interrupt::new();
    let wait = || match interrupts {
        true => condition.wait_interruptibly(&interrupt),
        false => condition.wait_timeout(A_WHILE).map(drop),
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(A_WHILE);
            interrupt.interrupt();
        });
        within(A_WHILE..ms(1800), wait).unwrap_err().kind()
    })
}

#[test]
fn a_wait_that_finds_no_connection_takes_one_command_timeout_more_at_most() {
    let server = Server::start();
    let client =
        Client::builder(&server.url()).pool_size(1).command_timeout(ms(1000)).build().unwrap();
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
    let client =
        Client::builder(&server.url()).pool_size(1).command_timeout(ms(1000)).build().unwrap();
    for interrupts in [false, true] {
        let lock = client.lock_with("buffer", lease(ms(300)).renewal(Renewal::Never)).unwrap();
        let condition = lock.new_condition("not-empty").unwrap();
        lock.lock().unwrap();
        let _busy = Busy::connection_of(&client);
        let ended = wait_without_a_connection(&condition, interrupts);
        assert_eq!(ended, ErrorKind::Lost, "and not: held as before");
        assert!(lock.is_held() && !lock.is_valid());
        assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::Lost);
    }
}

#[test]
fn a_lease_is_renewed_while_its_wait_is_refused() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::open(&proxy.url()).unwrap();
    let lock = client.lock_with("buffer", lease(ms(2000))).unwrap();
    let condition = lock.new_condition("not-empty").unwrap();
    lock.lock().unwrap();
    // So slow that an extend near the end would come too late: each refusal must leave the next one
    // where it was.
    proxy.set_delay(ms(65), ms(65));
    // The script that enters a condition has six keys. As where a proxy refuses some scripts for a
    // while.
    let busy = Fault::Answer(b"-BUSY Redis is busy running a script.\r\n".to_vec());
    let refused =
        proxy.add(Rule::any(busy).when(|command| command.get(2).is_some_and(|keys| keys == b"6")));
    let ended = within(ms(3000)..SOON, || condition.wait_timeout(ms(3000)));
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(refused.fired() > 1);
    assert!(lock.is_held() && lock.is_valid());
    lock.unlock().unwrap();
}

#[test]
fn a_notification_that_came_before_the_interrupt_wins() {
    everywhere(|open| {
        let interrupt = Interrupt::new();
        let given = interrupt.clone();
        let woken = waiting(open(), move |condition| condition.wait_interruptibly(&given));
        let (lock, condition) = lock_and_condition(&open());
        let guard = lock.guard().unwrap();
        condition.notify_one().unwrap();
        interrupt.interrupt();
        guard.release().unwrap();
        woken.recv_timeout(SOON).unwrap().unwrap();
    });
}

#[test]
fn waiting_and_notifying_need_the_lock() {
    everywhere(|open| {
        let (_lock, condition) = lock_and_condition(&open());
        for refused in [condition.wait(), condition.notify_one(), condition.notify_all()] {
            assert!(refused.unwrap_err().is_not_held());
        }
    });
}

#[test]
fn a_lost_lease_neither_waits_nor_notifies() {
    everywhere(|open| {
        let woken = waiting(open(), |condition| condition.wait_timeout(A_WHILE * 2));
        let (lock, condition) = lock_and_condition(&open());
        lock.lock().unwrap();
        lock_and_condition(&open()).0.force_unlock().unwrap();
        assert!(condition.notify_one().unwrap_err().is_lost());
        assert!(condition.wait().unwrap_err().is_lost());
        assert!(lock.unlock().unwrap_err().is_lost());
        assert!(
            !woken.recv_timeout(SOON).unwrap().unwrap(),
            "who does not own the lock notifies nobody"
        );
    });
}

#[test]
fn a_dead_waiter_passes_its_notification_on() {
    everywhere(|open| {
        let doomed = open();
        let dead = waiting(doomed.clone(), |condition| {
            condition.wait_timeout(SOON).map_err(|error| error.kind())
        });
        let alive = waiting(open(), |condition| condition.wait());
        let client = open();
        let (lock, condition) = lock_and_condition(&client);
        let guard = lock.guard().unwrap();
        condition.notify_one().unwrap();
        // Notified, and gone before the lock comes to it: its process ends as far as the server can
        // tell.
        let gone = thread::spawn(move || doomed.close(SOON));
        gone.join().unwrap().unwrap();
        drop(dead);
        guard.release().unwrap();
        alive.recv_timeout(SOON).unwrap().unwrap();
    });
}

#[test]
fn a_condition_is_told_apart_by_its_name_and_its_lock() {
    everywhere(|open| {
        let woken = waiting(open(), |condition| condition.wait_timeout(A_WHILE * 2));
        let client = open();
        let (lock, _) = lock_and_condition(&client);
        lock.with(|_| lock.new_condition("other").unwrap().notify_all()).unwrap().unwrap();
        let other = client.lock("other");
        other.with(|_| other.new_condition("not-empty").unwrap().notify_all()).unwrap().unwrap();
        assert!(!woken.recv_timeout(SOON).unwrap().unwrap());
    });
}

#[test]
fn a_closed_client_ends_its_waits() {
    everywhere(|open| {
        let client = open();
        let (say, hear) = mpsc::channel();
        let (locked, is_locked) = mpsc::channel();
        let waiter = client.clone();
        thread::spawn(move || {
            let (lock, condition) = lock_and_condition(&waiter);
            lock.lock().unwrap();
            locked.send(()).unwrap();
            say.send((condition.wait().map_err(|error| error.kind()), lock.is_held())).unwrap();
        });
        is_locked.recv_timeout(SOON).unwrap();
        let (lock, _) = lock_and_condition(&open());
        lock.lock().unwrap();
        client.close(SOON).unwrap();
        assert_eq!(hear.recv_timeout(SOON).unwrap(), (Err(ErrorKind::Unavailable), false));
        lock.unlock().unwrap();
    });
}

#[test]
fn conditions_need_the_queue_and_the_plain_layout() {
    let client = Client::open("memory://").unwrap();
    let refused = |options| client.lock_with("a", options).unwrap().new_condition("c").unwrap_err();
    assert!(refused(LockOptions::new().queue(Queue::None)).is_unsupported());
    assert!(refused(LockOptions::new().owner("me")).is_unsupported());
    assert_eq!(Layout::default(), Layout::Plain);
    let lock = client.lock("a");
    assert!(lock.new_condition("").unwrap_err().is_invalid_input());
    assert!(lock.new_condition(&"x".repeat(257)).unwrap_err().is_invalid_input());
}

#[test]
fn waiters_of_a_server_that_lost_its_data_wake_for_no_reason() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let woken = waiting(client, |condition| condition.wait());
    server.kill();
    server.restart();
    // At the latest after one sign of life, and in fact as soon as the inbox is open again.
    within(..SOON, || woken.recv_timeout(SOON).unwrap().unwrap());
}

#[test]
fn nothing_is_left_on_the_server_after_waits() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let woken = waiting(client.clone(), |condition| condition.wait());
    let timed_out = waiting(client.clone(), |condition| condition.wait_timeout(A_WHILE));
    notify(&client, Condition::notify_one);
    woken.recv_timeout(SOON).unwrap().unwrap();
    assert!(!timed_out.recv_timeout(SOON).unwrap().unwrap());
    eventually(SOON, || {
        let keys: Vec<String> =
            redis::cmd("KEYS").arg("*").query(&mut server.connection()).unwrap();
        keys == ["{buffer}:fence"]
    });
}

#[test]
fn a_wait_costs_one_round_trip_to_enter_and_a_notification_one() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    // The scripts and the inbox are there from now on.
    let woken = waiting(client.clone(), |condition| condition.wait());
    notify(&client, Condition::notify_one);
    woken.recv_timeout(SOON).unwrap().unwrap();
    let before = server.command_count("evalsha");
    let woken = waiting(client.clone(), |condition| condition.wait());
    notify(&client, Condition::notify_one);
    woken.recv_timeout(SOON).unwrap().unwrap();
    eventually(SOON, || !client.lock("buffer").is_locked().unwrap());
    let spent = server.command_count("evalsha") - before;
    // Locks and unlocks of three holders (six), the wait, the notification, at most one question of
    // a woken waiter, and this look.
    assert!((8..=14).contains(&spent), "{spent} scripts");
}

#[test]
fn a_notification_and_a_forced_unlock_do_not_fail_over_a_connection_that_was_closed_while_idle() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let woken = waiting(Client::open(&server.url()).unwrap(), |condition| condition.wait());
    let (lock, condition) = lock_and_condition(&client);
    let cut = || {
        let mut connection = server.connection();
        let _: u32 = redis::cmd("CLIENT")
            .arg("KILL")
            .arg("TYPE")
            .arg("NORMAL")
            .query(&mut connection)
            .unwrap();
    };
    let guard = lock.guard().unwrap();
    cut();
    condition.notify_one().unwrap();
    guard.release().unwrap();
    woken.recv_timeout(SOON).unwrap().unwrap();
    let _guard = lock.guard().unwrap();
    cut();
    assert!(lock.force_unlock().unwrap());
}

#[test]
fn a_client_that_is_closed_while_the_lock_is_on_its_way_to_it_leaves_its_notification_to_another() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let doomed = Client::open(&proxy.url()).unwrap();
    let _ended = waiting(doomed.clone(), |condition| {
        condition.wait_timeout(SOON).map_err(|error| error.kind())
    });
    let alive = waiting(Client::open(&server.url()).unwrap(), |condition| condition.wait());
    let (lock, condition) = lock_and_condition(&Client::open(&server.url()).unwrap());
    // It is handed the lock, and neither that nor the hint has come to it when it is closed.
    proxy.set_delay(Duration::ZERO, Duration::from_millis(400));
    let guard = lock.guard().unwrap();
    condition.notify_one().unwrap();
    guard.release().unwrap();
    doomed.close(SOON).unwrap();
    within(..Duration::from_secs(3), || alive.recv_timeout(SOON).unwrap().unwrap());
}

#[test]
fn a_notification_that_is_sent_again_because_its_reply_was_cut_off_wakes_nobody_more() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::open(&proxy.url()).unwrap();
    let open = || Client::open(&server.url()).unwrap();
    // The server knows the script, so that the first copy runs.
    notify(&open(), Condition::notify_one);
    let woken = [
        waiting(open(), |condition| condition.wait_timeout(SOON)),
        waiting(open(), |condition| condition.wait_timeout(A_WHILE * 4)),
    ];
    let (lock, condition) = lock_and_condition(&client);
    let guard = lock.guard().unwrap();
    let notified = proxy.add(Rule::on("EVALSHA", Fault::CutAfter).next(1));
    condition.notify_one().unwrap();
    assert_eq!(notified.fired(), 1);
    guard.release().unwrap();
    assert_eq!(
        woken.map(|woken| woken.recv_timeout(SOON).unwrap().unwrap()),
        [true, false],
        "one notification wakes one"
    );
}

#[test]
fn a_waiter_whose_leaving_is_answered_with_nonsense_asks_with_pauses() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let lock = Client::open(&proxy.url()).unwrap().lock("job");
    // "You wait", to a question that leaves.
    let leaves = |command: &[Vec<u8>]| command.len() == 18 && command[17] == b"1";
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
    assert!(!waiter.join().unwrap().unwrap(), "it timed out");
}
