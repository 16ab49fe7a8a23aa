//! Errors: every kind can occur, can be told from the others, says what it is about, and reveals no
//! secret.

use std::collections::HashSet;
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use distlock::{Client, Error, ErrorKind, Layout, Lock, LockOptions, LostReason, Queue, Retry};

use crate::helpers::{Asked, Notes, SOON, client, delete, error, get, lease, memory, ms, put};
use crate::logs;
use crate::support::{Fault, Proxy, Rule, Server, eventually};

type Predicate = fn(&Error) -> bool;

const KINDS: [(ErrorKind, Predicate); 13] = [
    (ErrorKind::NotHeld, Error::is_not_held),
    (ErrorKind::Lost, Error::is_lost),
    (ErrorKind::Unknown, Error::is_unknown),
    (ErrorKind::Interrupted, Error::is_interrupted),
    (ErrorKind::Exhausted, Error::is_exhausted),
    (ErrorKind::Unavailable, Error::is_unavailable),
    (ErrorKind::Closed, Error::is_closed),
    (ErrorKind::Denied, Error::is_denied),
    (ErrorKind::WrongType, Error::is_wrong_type),
    (ErrorKind::InvalidInput, Error::is_invalid_input),
    (ErrorKind::Conflict, Error::is_conflict),
    (ErrorKind::Unsupported, Error::is_unsupported),
    (ErrorKind::Server, Error::is_server),
];

/// The error is of this kind and no other, names its lock, and has a cause or none.
#[track_caller]
fn assert_is(error: &Error, kind: ErrorKind, lock_name: Option<&str>, has_source: bool) {
    assert_kind(error, kind, lock_name);
    assert_eq!(error.source().is_some(), has_source, "{error:?}");
}

/// The error is of this kind and no other, and names its lock.
#[track_caller]
pub fn assert_kind(error: &Error, kind: ErrorKind, lock_name: Option<&str>) {
    assert_eq!(error.kind(), kind, "{error:?}");
    for (other, predicate) in KINDS {
        assert_eq!(predicate(error), other == kind, "{error:?} and {other:?}");
    }
    assert_eq!(error.lock_name(), lock_name, "{error:?}");
    let text = error.to_string();
    assert!(!text.is_empty() && text.len() < 300, "{text}");
    if let Some(name) = lock_name {
        assert!(text.contains(name), "{text}");
    }
    assert!(format!("{error:?}").contains(&format!("{kind:?}")));
}

#[test]
fn every_kind_has_a_predicate_of_its_own() {
    let kinds: HashSet<_> = KINDS.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds.len(), KINDS.len());
}

#[test]
fn every_kind_has_words_of_its_own_and_makes_an_error() {
    let words: HashSet<_> = KINDS.iter().map(|(kind, _)| kind.to_string()).collect();
    assert_eq!(words.len(), KINDS.len());
    for (kind, predicate) in KINDS {
        let error = Error::from(kind);
        assert!(predicate(&error));
        assert_eq!(error.to_string(), kind.to_string());
        assert_eq!(error.may_be_held(), kind == ErrorKind::Unknown);
    }
}

#[test]
fn layouts_and_queues_are_read_as_they_are_written() {
    for layout in [Layout::Plain, Layout::Redisson, Layout::Timestamp] {
        assert_eq!(layout.to_string().parse::<Layout>().unwrap(), layout);
    }
    for queue in [Queue::Fifo, Queue::None] {
        assert_eq!(queue.to_string().parse::<Queue>().unwrap(), queue);
    }
    for unknown in ["", "Plain", "hash"] {
        assert!(error(unknown.parse::<Layout>()).is_invalid_input());
        assert!(error(unknown.parse::<Queue>()).is_invalid_input());
    }
    let reasons = [LostReason::Expired, LostReason::Taken, LostReason::Closed];
    assert_eq!(reasons.map(|reason| reason.to_string()), ["expired", "taken", "closed"]);
}

#[test]
fn an_error_says_whether_the_call_may_have_left_the_lock_held() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::builder(&proxy.url()).command_timeout(ms(200)).build().unwrap();
    let lock = client.lock("job");
    lock.with(|_| ()).unwrap();
    // Refused: nothing was left.
    put(&server, "job", "another's", SOON * 6);
    let once = LockOptions::new().retry(Retry::fixed(ms(5)).attempts(1));
    let exhausted = error(client.lock_with("job", once).unwrap().lock());
    assert!(exhausted.is_exhausted() && !exhausted.may_be_held());
    delete(&server, "job");
    // The request arrives, and the answer does not.
    let lost = proxy.add(Rule::on("SET", Fault::SwallowReply).next(1));
    let unanswered = error(client.lock("other").try_lock(ms(0)));
    lost.wait_fired(SOON);
    assert!(unanswered.is_unavailable() && unanswered.may_be_held(), "{unanswered:?}");
    // Nobody is asked.
    eventually(SOON, || get(&server, "other").is_none());
    server.kill();
    client.ping().unwrap_err();
    let down = error(lock.try_lock(ms(0)));
    assert!(down.is_unavailable() && !down.may_be_held(), "{down:?}");
}

#[test]
fn not_held_lost_conflict_and_invalid_input_name_the_lock() {
    let client = memory();
    let lock = client.lock("job");
    assert_is(&error(lock.unlock()), ErrorKind::NotHeld, Some("job"), false);
    assert_is(&error(lock.extend(SOON)), ErrorKind::NotHeld, Some("job"), false);
    assert_is(&error(lock.extend(Duration::ZERO)), ErrorKind::InvalidInput, Some("job"), false);
    lock.lock().unwrap();
    let other = client.lock_with("job", LockOptions::new().fenced()).unwrap();
    assert_is(&error(other.lock()), ErrorKind::Conflict, Some("job"), false);
    assert!(lock.force_unlock().unwrap());
    assert_is(&error(lock.unlock()), ErrorKind::Lost, Some("job"), false);
    // A refused name is not repeated in the error.
    assert_is(&error(client.lock("").lock()), ErrorKind::InvalidInput, None, false);
    assert_is(&error(client.lock_with("job", lease(ms(1)))), ErrorKind::InvalidInput, None, false);
    assert_is(&error(Client::open("redis//nonsense")), ErrorKind::InvalidInput, None, false);
}

#[test]
fn unsupported_says_what_a_store_cannot_do() {
    let client = memory();
    assert_is(
        &error(client.execute(|conn| redis::cmd("PING").query::<()>(conn))),
        ErrorKind::Unsupported,
        None,
        false,
    );
    assert_is(
        &error(client.lock_with("job", LockOptions::new().layout(Layout::Redisson))),
        ErrorKind::Unsupported,
        None,
        false,
    );
    let fenced = LockOptions::new().layout(Layout::Timestamp).fenced();
    assert_is(&error(client.lock_with("job", fenced)), ErrorKind::Unsupported, None, false);
}

#[test]
fn interrupted_and_exhausted_name_the_lock() {
    let server = Server::start();
    put(&server, "job", "somebody", SOON);
    let client = client(&server);
    let interrupt = distlock::Interrupt::new();
    interrupt.interrupt();
    assert_is(
        &error(client.lock("job").lock_interruptibly(&interrupt)),
        ErrorKind::Interrupted,
        Some("job"),
        false,
    );
    let lock =
        client.lock_with("job", LockOptions::new().retry(Retry::fixed(ms(5)).attempts(2))).unwrap();
    assert_is(&error(lock.lock()), ErrorKind::Exhausted, Some("job"), false);
}

#[test]
fn unavailable_and_unknown_come_with_their_cause() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client =
        Client::builder(&proxy.url()).command_timeout(ms(150)).max_outage(ms(100)).build().unwrap();
    let lock = client.lock("job");
    lock.lock().unwrap();
    proxy.freeze();
    assert_is(&error(lock.extend(SOON * 6)), ErrorKind::Unknown, Some("job"), true);
    let unlocked = error(lock.unlock());
    assert_is(&unlocked, ErrorKind::Unknown, Some("job"), true);
    assert!(!lock.is_held());
    assert!(unlocked.source().unwrap().downcast_ref::<Error>().unwrap().is_unavailable());
    let failed = error(lock.try_lock(ms(50)));
    assert_eq!((failed.kind(), failed.lock_name()), (ErrorKind::Unavailable, Some("job")));
    let failed = error(lock.lock());
    assert_eq!((failed.kind(), failed.lock_name()), (ErrorKind::Unavailable, Some("job")));
    assert_eq!(error(client.ping()).kind(), ErrorKind::Unavailable);
    assert!(error(lock.is_locked()).is_unavailable() && error(lock.inspect()).is_unavailable());
    proxy.thaw();
    // The lock that the unlock left behind is removed in the background.
    eventually(SOON, || !lock.is_locked().unwrap_or(true));
}

/// Everything that a program can print of the values that it has.
fn printed(client: &Client, options: &LockOptions) -> String {
    let lock = client.lock_with("job", options.clone()).unwrap();
    let guard = lock.guard().unwrap();
    let holder = lock.inspect().unwrap().holders.remove(0);
    let other = client.lock_with("job", LockOptions::new().fenced()).unwrap();
    let conflict = error(other.lock());
    delete_by(client, "job");
    let lost = error(guard.release());
    let claim = lock.claim().unwrap();
    format!(
        "{client:?} {lock:?} {options:?} {holder:?} {conflict:?} {conflict} {lost:?} {lost} {:?} \
         {claim:?}",
        distlock::Interrupt::new()
    )
}

fn delete_by(client: &Client, key: &str) {
    client.execute(|conn| redis::cmd("DEL").arg(key).exec(conn)).unwrap();
}

#[test]
fn nothing_printable_contains_a_token_a_password_or_a_url() {
    logs::keep();
    let server = Server::builder().password("correcthorse").start();
    let builder = Client::builder(&server.url());
    let built = format!("{builder:?}");
    let (client, notes) = Notes::of(builder);
    let owner = "a-value-of-my-own";
    let mut text = printed(&client, &LockOptions::new())
        + &printed(&client, &LockOptions::new().owner(owner))
        + &built;
    // Errors from the wire, with their causes, and what the background threads logged meanwhile.
    server.kill();
    for failed in [
        client.lock("job").try_lock(ms(50)).map(drop),
        client.ping(),
        client.lock("job").force_unlock().map(drop),
    ] {
        let failed = error(failed);
        text += &format!("{failed:?} {failed} {:?}", failed.source().map(ToString::to_string));
    }
    let wrong = Client::open(&server.url_with("worker", "batterystaple")).unwrap();
    server.restart();
    for failed in [
        wrong.ping(),
        wrong.lock("job").lock(),
        error_from(&format!("redis://user:swordfish@[::{}/", server.port())),
    ] {
        let failed = error(failed);
        text += &format!("{failed:?} {failed} {:?}", failed.source().map(ToString::to_string));
    }
    text += &logs::everything();
    let tokens: Vec<String> = notes
        .asked()
        .into_iter()
        .filter_map(
            |(_, _, asked)| {
                if let Asked::Acquire { token, .. } = asked { Some(token) } else { None }
            },
        )
        .collect();
    assert!(tokens.len() >= 2);
    let secrets =
        ["correcthorse", "batterystaple", "swordfish", owner, "redis://"].map(str::to_owned);
    for secret in tokens.iter().chain(&secrets) {
        // The scheme alone, in a sentence that lists what is known, is no URL.
        let text = text.replace("redis://, rediss://, redis+unix:// and memory:// are known", "");
        assert!(!text.contains(secret.as_str()), "{secret} in {text}");
    }
}

fn error_from(url: &str) -> distlock::Result<()> {
    Client::open(url).map(drop)
}

#[test]
fn errors_move_between_threads_and_convert_like_any_other() {
    fn questions(lock: &dyn Lock) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        lock.unlock()?;
        Ok(())
    }
    let lock = memory().lock("job");
    let boxed = questions(&lock).unwrap_err();
    assert!(boxed.downcast_ref::<Error>().unwrap().is_not_held());
    let shared = Arc::new(error(lock.unlock()));
    let elsewhere = Arc::clone(&shared);
    assert!(std::thread::spawn(move || elsewhere.is_not_held()).join().unwrap());
}

/// What else can stand where a lock keeps its waiters: another lock of that name, for one.
fn put_beside(server: &Server, key: &str) {
    put(server, key, "somebody's", SOON * 6);
}

#[test]
fn foreign_data_beside_a_lock_does_not_keep_it_from_being_released() {
    let server = Server::start();
    let client = client(&server);
    for companion in ["queue", "waiters", "conditions"] {
        for options in [LockOptions::new(), LockOptions::new().fenced()] {
            let lock = client.lock_with("job", options).unwrap();
            lock.lock().unwrap();
            put_beside(&server, &format!("{{job}}:{companion}"));
            lock.unlock().unwrap();
            assert_eq!(get(&server, "job"), None, "beside foreign data under {companion}");
            assert!(get(&server, &format!("{{job}}:{companion}")).is_some(), "it was left alone");
            delete(&server, &format!("{{job}}:{companion}"));
        }
    }
}

#[test]
fn foreign_data_beside_a_lock_does_not_keep_it_from_being_withdrawn() {
    let server = Server::start();
    let client = client(&server);
    for companion in ["queue", "waiters", "conditions"] {
        let lock = client.lock("job");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                lock.lock().unwrap();
                put_beside(&server, &format!("{{job}}:{companion}"));
                // Ends without an unlock.
            });
        });
        eventually(SOON, || get(&server, "job").is_none());
        delete(&server, &format!("{{job}}:{companion}"));
    }
}

/// 1. the script sets the lock; 2. somebody else's data stands where it has its waiters.
#[test]
fn foreign_data_beside_a_lock_does_not_keep_what_a_script_did_before_it_found_it() {
    let server = Server::start();
    let client = client(&server);
    // The counter is ahead of the clock, which is the long script's business.
    put(&server, "{job}:fence", "9000000000000000", SOON * 6);
    put_beside(&server, "{job}:waiters");
    let lock = client.lock_with("job", LockOptions::new().fenced()).unwrap();
    assert_eq!(error(lock.try_lock(Duration::ZERO)).kind(), ErrorKind::WrongType);
    eventually(SOON, || get(&server, "job").is_none());
}
