//! The store itself, called directly: what a replica refuses and never confirms, and the
//! connections for extends and for the inbox.

use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock::testing::{
    Answer, Ask, Bell, Extend, InCondition, Key, LeaseStore, Place, StoreError, Token, Within,
};
use distlock::{Client, Layout};

use super::{Pair, become_a_replica, errors_that_begin};
use crate::faults::through_proxy;
use crate::helpers::{SOON, Underway, inboxes, ms, pttl};
use crate::support::fake::{self, FakeServer, Reply};
use crate::support::{Fault, Proxy, Rule, Server, eventually, ports, within};

/// Redis 6.2 wraps the error with which a command inside a script is refused.
#[test]
fn a_refusal_inside_a_script_is_recognised_in_its_old_form() {
    let wrapped = "ERR Error running script (call to f_1f): @user_script:9: @user_script: 9: \
                   -READONLY You can't write against a read only replica. ";
    let server = FakeServer::start(move |connection, command| match connection {
        0 if fake::is(command, "EVALSHA") && command[2] != b"0" => Reply::error(wrapped),
        _ if fake::is(command, "EVALSHA") && command[2] != b"0" => {
            Reply::array(&[Reply::int(1), Reply::int(0), Reply::int(0)])
        }
        _ => Reply::usual(command),
    });
    let client = Client::builder(&server.url()).build().unwrap();
    client.ping().unwrap();
    let store = client.store(Layout::Plain).unwrap();
    let answer = acquire(&*store, &key(), &Token::new("t"), ms(1000));
    assert!(matches!(answer, Ok(Answer::Granted { .. })), "{answer:?}");
    assert_eq!(server.accepted(), 2);
}

fn key() -> Key {
    Key::new("x".to_owned())
}

fn deadline() -> Instant {
    Instant::now() + SOON
}

fn acquire(
    store: &dyn LeaseStore,
    key: &Key,
    token: &Token,
    lease: Duration,
) -> Result<Answer, StoreError> {
    let ask = Ask {
        key,
        token,
        attempt: 2,
        lease,
        fences: 0,
        place: None,
        contended: true,
        may_be_mine: true,
        deadline: deadline(),
    };
    store.try_acquire(&ask)
}

/// A question to a store, which must not answer "yours" without a write.
type Question = fn(&dyn LeaseStore, &Key, &Token) -> Result<bool, StoreError>;

const SHORTER: Duration = ms(10_000);

fn acquire_again(store: &dyn LeaseStore, key: &Key, token: &Token) -> Result<bool, StoreError> {
    acquire(store, key, token, SHORTER).map(|answer| matches!(answer, Answer::Granted { .. }))
}

fn extend(store: &dyn LeaseStore, key: &Key, token: &Token) -> Result<bool, StoreError> {
    let lease = Extend { key, token, lease: SHORTER };
    store.extend(&[lease], Within::until(deadline())).remove(0)
}

fn extend_one(store: &dyn LeaseStore, key: &Key, token: &Token) -> Result<bool, StoreError> {
    store.extend_one(&Extend { key, token, lease: SHORTER }, deadline())
}

fn wait_in(store: &dyn LeaseStore, key: &Key, token: &Token) -> Result<bool, StoreError> {
    let listen = || Some("distlock:inbox:nobody");
    let place = Some(Place { listen: &listen, alive_for: SOON, first_lease: ms(3000) });
    let ask = Ask {
        key,
        token,
        attempt: 2,
        lease: SHORTER,
        fences: 0,
        place,
        contended: true,
        may_be_mine: true,
        deadline: deadline(),
    };
    store
        .wait_in(&ask, "c", None, false)
        .map(|answer| matches!(answer, InCondition::Granted { .. }))
}

/// 1. our attempt is granted by the master, and its answer lost;
/// 2. the master becomes a replica, and its successor may know nothing of the grant;
/// 3. we ask again, for no more than is left: the old server sees our token, and would have nothing
///    to write.
#[test]
fn a_replica_confirms_nothing_over_a_connection_opened_before_its_demotion() {
    for layout in [Layout::Plain, Layout::Redisson, Layout::Timestamp] {
        let server = Server::start();
        let mut questions: Vec<Question> = vec![acquire_again, extend, extend_one];
        if layout == Layout::Plain {
            questions.push(wait_in);
        }
        // Each question has its own client: a refusal closes all connections of a client.
        let asking: Vec<_> = questions
            .iter()
            .enumerate()
            .map(|(n, question)| {
                let client = Client::open(&server.url()).unwrap();
                let store: Arc<dyn LeaseStore> = client.store(layout).unwrap();
                let (key, token) = (Key::new(format!("x{n}")), Token::new("t"));
                assert!(matches!(
                    acquire(&*store, &key, &token, SHORTER * 2),
                    Ok(Answer::Granted { .. })
                ));
                // As the master it says "yours", and the end does not move.
                assert!(question(&*store, &key, &token).unwrap(), "{layout:?} {n}");
                assert!(pttl(&server, key.as_str()) > 15_000, "{layout:?} {n}");
                (client, store, key, token, question)
            })
            .collect();
        become_a_replica(&server, ports::refused());
        for (n, (_client, store, key, token, question)) in asking.iter().enumerate() {
            // Redis 6.2 counts what it refuses to a script as any error.
            let refusals = || errors_that_begin(&server, "");
            let before = refusals();
            let answer = question(&**store, key, token);
            assert!(
                answer.as_ref().is_err_and(|error| !error.permanent && !error.may_have_run),
                "{layout:?} {n}: {answer:?}"
            );
            assert!(refusals() > before, "{layout:?} {n}: not even asked");
        }
    }
}

#[test]
fn a_connection_has_its_own_time_to_open_before_an_extend() {
    let server = Server::builder().password("secret").start();
    let near = Client::open(&server.url()).unwrap();
    let (key, token) = (key(), Token::new("t"));
    let store = near.store(Layout::Plain).unwrap();
    assert!(matches!(acquire(&*store, &key, &token, SHORTER), Ok(Answer::Granted { .. })));
    // So that the server knows the script.
    assert!(extend(&*store, &key, &token).unwrap());
    let proxy = Proxy::start(server.port());
    proxy.set_delay(ms(30), ms(30));
    let far =
        Client::open(&proxy.url_with("default", "secret")).unwrap().store(Layout::Plain).unwrap();
    // A sixth of a lease of 1 s, and a third of it. Logging in takes two round trips.
    let within = Within { reply: ms(166), connect_by: Instant::now() + ms(330) };
    let lease = Extend { key: &key, token: &token, lease: SHORTER };
    assert!(far.extend(&[lease], within).remove(0).unwrap());
}

#[test]
fn close_does_not_wait_for_an_extend_whose_connection_ends_when_the_extend_does() {
    let (_server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let store = client.store(Layout::Plain).unwrap();
    let held = proxy.add(Rule::on("EVALSHA", Fault::HoldReply).next(1));
    let extending = Underway::start(move || extend(&*store, &key(), &Token::new("t")));
    let reply = held.wait_held(SOON);
    within(..ms(2000), || client.close(ms(100))).unwrap();
    assert!(!extending.is_done());
    reply.release();
    assert!(!extending.result().unwrap());
    eventually(SOON, || proxy.open() == 0);
}

#[test]
fn a_bell_rings_when_the_inbox_has_moved() {
    let pair = Pair::start();
    let client = pair.client();
    let store = client.store(Layout::Plain).unwrap();
    let (bell, token) = (Bell::new(), Token::new("t"));
    let _listening = store.listen(&key(), &token, &bell).unwrap();
    eventually(SOON, || inboxes(&pair.old) == 1);
    client.ping().unwrap();
    pair.demote();
    // A replica refuses it, and then it is asked at the new master.
    let other = Token::new("other");
    assert!(matches!(acquire(&*store, &key(), &other, SHORTER), Ok(Answer::Granted { .. })));
    eventually(SOON, || inboxes(&pair.new) == 1);
}
