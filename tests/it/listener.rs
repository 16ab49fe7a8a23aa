//! What the program's listener hears, and what it cannot disturb.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use distlock::{Client, ClientBuilder, Event, Listener, LockOptions, Retry, Stats};
use log::Level;

use crate::elsewhere::Elsewhere;
use crate::faults::through_proxy;
use crate::helpers::{self, Notes, SOON, Underway, delete, error, ms, on_another_thread};
use crate::logs;
use crate::support::{Fault, Rule, Server, eventually};

/// What a listener has heard, each event in a few words.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    /// With a listener.
    fn of(builder: ClientBuilder) -> (ClientBuilder, Heard) {
        let heard = Heard::default();
        let words = Arc::clone(&heard.0);
        let listener = move |event| words.lock().unwrap().push(in_words(&event));
        (builder.listener(listener), heard)
    }

    fn by(builder: ClientBuilder) -> (Client, Heard) {
        let (builder, heard) = Heard::of(builder);
        (builder.build().unwrap(), heard)
    }

    fn events(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has heard these since the last call, and in this order.
    #[track_caller]
    fn says(&self, expected: &[&str]) {
        eventually(SOON, || self.events().len() >= expected.len());
        let heard = std::mem::take(&mut *self.events());
        assert_eq!(heard, expected);
    }

    fn count(&self, words: &str) -> u64 {
        self.events().iter().filter(|event| event.contains(words)).count() as u64
    }
}

fn in_words(event: &Event) -> String {
    match event {
        Event::Granted { subject, how, .. } => format!("granted {subject}: {how}"),
        Event::Refused { subject, .. } => format!("refused {subject}"),
        Event::Failed { subject, .. } => format!("failed {subject}"),
        Event::Ended { subject, .. } => format!("ended {subject}"),
        Event::Lost { subject, reason, .. } => format!("lost {subject}: {reason}"),
        Event::Unknown { subject, .. } => format!("unknown {subject}"),
        Event::Abandoned { subject, .. } => format!("abandoned {subject}"),
        Event::Extended { subject, .. } => format!("extended {subject}"),
        Event::Unreachable { server, .. } => format!("unreachable {server}"),
        Event::Reachable { server, .. } => format!("reachable {server}"),
        event => panic!("of no known kind: {event:?}"),
    }
}

#[test]
fn each_event_is_heard_once_and_in_order() {
    let server = Server::start();
    for url in [server.url(), format!("memory://listener-{}", server.port())] {
        let (builder, heard) = Heard::of(Client::builder(&url));
        let (here, notes) = Notes::of(builder);
        let there = Client::open(&url).unwrap().lock("a");
        let lock = here.lock("a");
        lock.lock().unwrap();
        lock.lock().unwrap();
        let other = Elsewhere::locks(&lock);
        eventually(SOON, || here.waiting("a") == 1);
        lock.unlock().unwrap();
        lock.unlock().unwrap();
        other.has_it();
        assert!(!lock.try_lock(Duration::ZERO).unwrap());
        other.unlock().unwrap();
        heard.says(&[
            "granted lock \"a\": asked",
            "ended lock \"a\"",
            "granted lock \"a\": local",
            "refused lock \"a\"",
            "ended lock \"a\"",
        ]);
        let claim = there.claim().unwrap();
        let few = LockOptions::new().retry(Retry::fixed(ms(1)).attempts(1));
        assert!(error(here.lock_with("a", few).unwrap().lock()).is_exhausted());
        let waiting = Elsewhere::locks(&lock);
        notes.queued(&lock);
        claim.release().unwrap();
        waiting.unlock().unwrap();
        heard.says(&["failed lock \"a\"", "granted lock \"a\": direct", "ended lock \"a\""]);
    }
}

#[test]
fn events_tell_sides_and_semaphores_apart() {
    let server = Server::start();
    for url in [server.url(), "memory://".into()] {
        let (here, heard) = Heard::by(Client::builder(&url));
        let both = here.rw_lock("rw");
        both.write_lock().lock().unwrap();
        both.read_lock().lock().unwrap();
        both.write_lock().unlock().unwrap();
        both.read_lock().unlock().unwrap();
        here.semaphore("s", 2).acquire().unwrap().release().unwrap();
        heard.says(&[
            "granted write lock \"rw\": asked",
            "granted read lock \"rw\": joined",
            "ended write lock \"rw\"",
            "ended read lock \"rw\"",
            "granted semaphore \"s\": asked",
            "ended semaphore \"s\"",
        ]);
    }
}

#[test]
fn it_hears_how_a_lease_ended_and_of_outages() {
    let (server, proxy) = through_proxy();
    let (client, heard) = Heard::by(Client::builder(&proxy.url()).command_timeout(ms(500)));
    let lock = client.lock("a");
    lock.lock().unwrap();
    delete(&server, "a");
    assert!(error(lock.unlock()).is_lost());
    on_another_thread(|| lock.lock().unwrap());
    heard.says(&[
        "granted lock \"a\": asked",
        "ended lock \"a\"",
        "lost lock \"a\": taken",
        "granted lock \"a\": asked",
        "ended lock \"a\"",
        "abandoned lock \"a\"",
    ]);
    lock.lock().unwrap();
    proxy.add(Rule::on("EVALSHA", Fault::CutBefore));
    assert!(error(lock.unlock()).is_unknown());
    heard.says(&["granted lock \"a\": asked", "ended lock \"a\"", "unknown lock \"a\""]);
    proxy.clear_rules();
    let options = LockOptions::new().lease(ms(1_500));
    let short = client.lock_with("short", options).unwrap();
    short.lock().unwrap();
    eventually(SOON, || heard.count("extended lock \"short\"") > 0);
    short.unlock().unwrap();
    client.close(SOON).unwrap();
}

#[test]
fn it_hears_that_a_server_goes_down_and_comes_back() {
    let server = Server::start();
    let (client, heard) = Heard::by(Client::builder(&server.url()));
    let lock = client.lock("a");
    lock.with(|_| ()).unwrap();
    server.kill();
    assert!(error(lock.try_lock(ms(3_000))).is_unavailable());
    server.restart();
    lock.with(|_| ()).unwrap();
    let at = format!("127.0.0.1:{}", server.port());
    heard.says(&[
        "granted lock \"a\": asked",
        "ended lock \"a\"",
        &format!("unreachable {at}"),
        "failed lock \"a\"",
        &format!("reachable {at}"),
        "granted lock \"a\": asked",
        "ended lock \"a\"",
    ]);
}

/// A listener that hears an event only when it is let, and says so when it is dropped.
struct Slow {
    let_on: Receiver<()>,
    heard: mpsc::Sender<Option<String>>,
}

impl Listener for Slow {
    fn hear(&mut self, event: Event) {
        let _ = self.let_on.recv();
        let _ = self.heard.send(Some(in_words(&event)));
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        let thread = thread::current().name().unwrap_or_default().to_owned();
        let _ = self.heard.send((thread == "distlock-events").then_some("dropped".into()));
    }
}

#[test]
fn a_slow_listener_loses_events_and_nothing_else() {
    let server = Server::start();
    let ((let_it, let_on), (tell, heard)) = (mpsc::channel(), mpsc::channel());
    let slow = Slow { let_on, heard: tell };
    let client = Client::builder(&server.url()).listener(slow).build().unwrap();
    // A lease that would not last without renewal.
    let options = LockOptions::new().lease(ms(3_000));
    let long = client.lock_with("long", options).unwrap();
    long.lock().unwrap();
    let lock = client.lock("a");
    while client.stats().dropped_events == 0 {
        lock.with(|_| ()).unwrap();
    }
    eventually(SOON, || client.stats().late.count() > 1);
    assert!(long.is_valid());
    long.unlock().unwrap();
    // The client is closed in time, and says that a thread of its is still there.
    let closed = client.close(ms(200));
    assert!(error(closed).to_string().contains("did not end in time"));
    // Let on, it hears all but those that were dropped, and is dropped on its own thread.
    let Stats { grants, holds, late, dropped_events, .. } = client.stats();
    drop(let_it);
    let heard: Vec<Option<String>> = heard.iter().collect();
    let events = grants.total() + holds.count() + late.count() - dropped_events;
    assert_eq!(heard.len() as u64, events + 1);
    assert_eq!(heard[0].as_deref(), Some("granted lock \"long\": asked"));
    assert_eq!(heard.last().unwrap().as_deref(), Some("dropped"));
}

#[test]
fn a_listener_that_panics_hears_the_next_event() {
    logs::keep();
    let heard = Heard::default();
    let words = Arc::clone(&heard.0);
    let listener = move |event| {
        words.lock().unwrap().push(in_words(&event));
        assert!(!matches!(event, Event::Granted { .. }), "planned");
    };
    let client = Client::builder("memory://").listener(listener).build().unwrap();
    for _ in 0..3 {
        client.lock("a").with(|_| ()).unwrap();
    }
    heard.says(&["granted lock \"a\": asked", "ended lock \"a\""].repeat(3));
    eventually(SOON, || logs::lines(Level::Error, &["a listener panicked"]).len() == 1);
    client.close(SOON).unwrap();
}

#[test]
fn closing_lets_it_hear_how_each_call_and_hold_ended() {
    let there = Client::open("memory://closing").unwrap().lock("held").claim().unwrap();
    // So many threads that they do not all fail at once.
    for _ in 0..3 {
        let (client, heard) = Heard::by(Client::builder("memory://closing"));
        let held = client.lock("mine").claim().unwrap();
        let waiting = [(); 200].map(|()| {
            let lock = client.lock("held");
            Underway::start(move || lock.lock().is_err_and(|error| error.is_closed()))
        });
        eventually(SOON, || client.stats().waiting == 200);
        client.close(SOON).unwrap();
        let events = heard.events().clone();
        assert_eq!(heard.count("failed lock \"held\""), 200);
        assert_eq!(heard.count("lost lock \"mine\": closed"), 1, "{events:?}");
        assert!(waiting.into_iter().all(Underway::result));
        // What ends later is not heard any more, and was not dropped for a slow listener.
        assert!(error(held.release()).is_lost());
        assert_eq!((heard.events().clone(), client.stats().dropped_events), (events, 0));
    }
    there.release().unwrap();
}

#[test]
fn a_closed_client_has_dropped_its_listener() {
    struct Last(Arc<AtomicBool>);
    impl Drop for Last {
        fn drop(&mut self) {
            thread::sleep(ms(100));
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let dropped = Arc::<AtomicBool>::default();
    let last = Last(Arc::clone(&dropped));
    let listener = move |_| assert!(!last.0.load(Ordering::SeqCst));
    let client = Client::builder("memory://").listener(listener).build().unwrap();
    client.lock("a").with(|_| ()).unwrap();
    client.close(SOON).unwrap();
    assert!(dropped.load(Ordering::SeqCst));
}

#[test]
fn all_that_is_counted_is_heard() {
    let server = Server::start();
    let (client, heard) = Heard::by(Client::builder(&server.url()));
    let there = helpers::client(&server).lock("crowd");
    thread::scope(|scope| {
        for _ in 0..4 {
            let (lock, there) = (client.lock("crowd"), there.clone());
            scope.spawn(move || {
                for n in 0..50 {
                    if lock.try_lock(ms(n % 3)).unwrap() {
                        lock.unlock().unwrap();
                    }
                    there.with(|_| ()).unwrap();
                }
            });
        }
    });
    // Closing waits until the listener has heard the last of them.
    client.close(SOON).unwrap();
    let Stats { grants, refused, holds, dropped_events, .. } = client.stats();
    for (how, count) in
        [("asked", grants.asked), ("direct", grants.direct), ("local", grants.local)]
    {
        assert_eq!(heard.count(&format!("granted lock \"crowd\": {how}")), count, "{how}");
    }
    assert_eq!(heard.count("refused"), refused);
    assert_eq!(heard.count("ended"), holds.count());
    assert_eq!((heard.events().len() as u64, dropped_events), (4 * 50 + holds.count(), 0));
}
