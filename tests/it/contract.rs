//! The contract of every place that keeps leases: one suite, run over each of them.
//!
//! A further store is one more line in `over_every_store!` at the end. What a store says it cannot
//! do, it has to refuse.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::{
    Answer, Ask, Bell, Clock, End, Extend, Gone, Grant, Key, LeaseStore, Listening,
    Place as InQueue, Release, Rung, Token, Withdraw, Within,
};
use distlock::{Client, ClientBuilder, Layout, Lock, LockOptions, Renewal};

use crate::helpers::{Elsewhere, SOON, error, is_free, ms, on_another_thread};
use crate::support::{Server, eventually, within};

/// A place that keeps leases, and how clients get there.
struct Place {
    client: Client,
    /// Another client of the same place.
    other: Client,
    store: Arc<dyn LeaseStore>,
    options: LockOptions,
    /// What must live as long as the place.
    _servers: Vec<Server>,
}

impl Place {
    /// The place that clients of this URL use, with this layout.
    fn at(url: &str, layout: Layout, servers: Vec<Server>) -> Place {
        Place::of(|| Client::builder(url), layout, servers)
    }

    fn of(builder: impl Fn() -> ClientBuilder, layout: Layout, servers: Vec<Server>) -> Place {
        let options = LockOptions::new().layout(layout);
        let open = || builder().lock_options(options.clone()).build().unwrap();
        let (client, other) = (open(), open());
        // Starts what looks after leases in the background.
        client.lock("contract").with(|_| ()).unwrap();
        Place { store: client.store(layout).unwrap(), client, other, options, _servers: servers }
    }

    fn memory() -> Place {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("memory://contract-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        Place::at(&name, Layout::Plain, Vec::new())
    }

    fn server() -> Place {
        Place::on_a_server(Layout::Plain)
    }

    /// A majority of servers.
    fn quorum() -> Place {
        let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
        let urls: Vec<_> = servers.iter().map(Server::url).collect();
        Place::of(|| Client::redlock_builder(&urls), Layout::Plain, servers)
    }

    /// A majority of stores in memory.
    fn quorum_in_memory() -> Place {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let urls: Vec<_> =
            (0..5).map(|node| format!("memory://contract-node-{id}-{node}")).collect();
        Place::of(|| Client::redlock_builder(&urls), Layout::Plain, Vec::new())
    }

    fn redisson() -> Place {
        Place::on_a_server(Layout::Redisson)
    }

    fn timestamp() -> Place {
        Place::on_a_server(Layout::Timestamp)
    }

    fn on_a_server(layout: Layout) -> Place {
        let server = Server::start();
        Place::at(&server.url(), layout, vec![server])
    }

    fn ask(&self, key: &Key, token: &Token, lease: Duration) -> Answer {
        self.ask_with(key, token, lease, 0, true)
    }

    fn ask_with(
        &self,
        key: &Key,
        token: &Token,
        lease: Duration,
        fences: u32,
        may_be_mine: bool,
    ) -> Answer {
        let ask = Ask {
            key,
            token,
            attempt: 1,
            lease,
            fences,
            place: None,
            contended: false,
            may_be_mine,
            deadline: deadline(),
        };
        self.store.try_acquire(&ask).unwrap()
    }

    fn is_granted(&self, key: &Key, token: &Token) -> bool {
        matches!(self.ask(key, token, LEASE), Answer::Granted { .. })
    }

    fn fence(&self, key: &Key, token: &Token, block: u32) -> u64 {
        match self.ask_with(key, token, LEASE, block, true) {
            Answer::Granted { fences: Some(fences), .. } => fences.last,
            answer => panic!("{answer:?}"),
        }
    }

    /// How long whoever holds it has left.
    fn remaining(&self, key: &Key) -> Option<Duration> {
        self.store.inspect(key, deadline()).unwrap().map(|holder| holder.remaining.unwrap())
    }

    /// Its end was moved to that long from now at least. A minority of a quorum may be behind for a
    /// moment, and be heard first.
    #[track_caller]
    fn lasts_longer_than(&self, key: &Key, length: Duration) {
        eventually(ms(1000), || self.remaining(key).unwrap() > length);
    }

    fn holder(&self, key: &Key) -> Option<String> {
        self.store.inspect(key, deadline()).unwrap().map(|holder| holder.token)
    }

    fn extend(&self, leases: &[(&Key, &Token, Duration)]) -> Vec<bool> {
        let leases: Vec<_> = leases
            .iter()
            .map(|(key, token, lease)| Extend { key, token, lease: *lease, settles: false })
            .collect();
        self.store
            .extend(&leases, Within::until(deadline()))
            .into_iter()
            .map(Result::unwrap)
            .collect()
    }

    fn move_end(&self, key: &Key, token: &Token, lease: Duration, end: End) -> bool {
        self.store.move_end(&Extend { key, token, lease, settles: false }, end, deadline()).unwrap()
    }

    fn release(&self, key: &Key, token: &Token) -> Gone {
        self.store.release(&Release::of(key, token), deadline()).unwrap()
    }

    fn withdraw(&self, key: &Key, token: &Token) -> Gone {
        self.store.withdraw_one(Withdraw::of(key, token), deadline()).unwrap()
    }
}

const LEASE: Duration = Duration::from_secs(20);

fn deadline() -> Instant {
    Instant::now() + SOON
}

fn key(name: &str) -> Key {
    Key::new(name.to_owned())
}

/// A token that no other call has had, in the form that every layout can write.
fn token() -> Token {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Token::new(format!("00000000-0000-4000-8000-{:012x}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

fn nobody_has_it(place: &Place) {
    let a = key("a");
    assert_eq!(place.holder(&a), None);
    assert_eq!(place.release(&a, &token()), Gone::NotOurs);
    assert!(!place.store.force_release(&a, deadline()).unwrap());
}

fn a_free_lock_is_granted(place: &Place) {
    let (a, mine) = (key("a"), token());
    let before = Instant::now();
    let Answer::Granted { asked_at, fences } = place.ask(&a, &mine, LEASE) else {
        panic!("refused")
    };
    assert!((before..=Instant::now()).contains(&asked_at), "validity counts from within the call");
    assert_eq!(fences, None);
    assert_eq!(place.holder(&a).as_deref(), Some(mine.as_str()));
    let remaining = place.remaining(&a).unwrap();
    assert!(remaining <= LEASE && remaining > LEASE - SOON, "{remaining:?}");
}

fn a_held_lock_is_refused_with_the_rest_of_its_lease(place: &Place) {
    let (a, mine) = (key("a"), token());
    place.ask(&a, &mine, LEASE);
    let before = Instant::now();
    let Answer::Refused { asked_at, remaining: Some(remaining), .. } =
        place.ask(&a, &token(), LEASE * 2)
    else {
        panic!("granted")
    };
    assert!((before..=Instant::now()).contains(&asked_at));
    assert!(remaining <= LEASE && remaining > LEASE - SOON, "{remaining:?}");
    assert_eq!(place.holder(&a).as_deref(), Some(mine.as_str()));
}

fn locks_of_different_names_have_nothing_to_do_with_each_other(place: &Place) {
    for name in ["x", "{x}", "x:", "{x}:", "x::", "a}b", "a{b", "ü\n \0"] {
        assert!(place.is_granted(&key(name), &token()), "{name:?}");
    }
}

fn asking_again_with_the_same_token_makes_the_lease_whole(place: &Place) {
    let (a, mine) = (key("a"), token());
    place.ask(&a, &mine, LEASE);
    assert!(place.move_end(&a, &mine, ms(500), End::Exactly));
    assert!(place.is_granted(&a, &mine));
    assert!(place.remaining(&a).unwrap() > LEASE - SOON);
    // One hold, not two: a single release frees it.
    assert_eq!(place.release(&a, &mine), Gone::Released);
    assert_eq!(place.holder(&a), None);
}

fn the_same_token_is_refused_where_it_cannot_be_mine(place: &Place) {
    let (a, mine) = (key("a"), token());
    assert!(matches!(place.ask_with(&a, &mine, LEASE, 0, false), Answer::Granted { .. }));
    assert!(matches!(place.ask_with(&a, &mine, LEASE, 0, false), Answer::Refused { .. }));
}

fn a_lease_runs_out_by_itself(place: &Place) {
    let (a, next) = (key("a"), token());
    // Long enough for a quorum on a machine under load: its nodes have a fifth of it to grant it.
    place.ask(&a, &token(), ms(1000));
    within(ms(500)..SOON, || eventually(SOON, || place.is_granted(&a, &next)));
}

fn extend_compares_the_token(place: &Place) {
    let (a, mine) = (key("a"), token());
    place.ask(&a, &mine, LEASE);
    assert_eq!(place.extend(&[(&a, &token(), LEASE * 3)]), [false]);
    assert!(place.remaining(&a).unwrap() <= LEASE);
    assert_eq!(place.extend(&[(&a, &mine, LEASE * 3)]), [true]);
    place.lasts_longer_than(&a, LEASE * 2);
}

fn extend_never_creates(place: &Place) {
    let (a, mine) = (key("a"), token());
    assert_eq!(place.extend(&[(&a, &mine, LEASE)]), [false]);
    place.ask(&a, &mine, LEASE);
    place.release(&a, &mine);
    assert_eq!(place.extend(&[(&a, &mine, LEASE)]), [false]);
    assert_eq!(place.holder(&a), None);
}

fn extend_never_shortens(place: &Place) {
    let (a, mine) = (key("a"), token());
    place.ask(&a, &mine, LEASE);
    assert_eq!(place.extend(&[(&a, &mine, ms(100))]), [true]);
    assert!(place.remaining(&a).unwrap() > LEASE - SOON);
}

fn extend_answers_for_each_lease_by_itself(place: &Place) {
    let names: Vec<_> = (0..300).map(|i| (key(&format!("bulk-{i}")), token())).collect();
    for (key, token) in &names {
        place.ask(key, token, LEASE);
    }
    let stranger = token();
    // Every third is somebody else's, or was deleted.
    let asked: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(i, (key, token))| match i % 6 {
            0 => (key, &stranger, LEASE * 3),
            3 => {
                place.release(key, token);
                (key, token, LEASE * 3)
            }
            _ => (key, token, LEASE * 3),
        })
        .collect();
    let expected: Vec<_> = (0..300).map(|i| i % 3 != 0).collect();
    assert_eq!(place.extend(&asked), expected);
    place.lasts_longer_than(&names[1].0, LEASE * 2);
    assert!(place.remaining(&names[0].0).unwrap() <= LEASE);
    assert_eq!(place.extend(&[]), []);
}

fn an_end_moves_both_ways_when_that_is_asked_for(place: &Place) {
    let (a, mine) = (key("a"), token());
    place.ask(&a, &mine, LEASE);
    assert!(place.move_end(&a, &mine, LEASE * 3, End::NotBefore));
    place.lasts_longer_than(&a, LEASE * 2);
    assert!(place.move_end(&a, &mine, LEASE, End::NotBefore));
    place.lasts_longer_than(&a, LEASE * 2);
    assert!(place.move_end(&a, &mine, LEASE, End::Exactly));
    assert!(place.remaining(&a).unwrap() <= LEASE);
    assert!(place.move_end(&a, &mine, LEASE * 3, End::Exactly));
    place.lasts_longer_than(&a, LEASE * 2);
}

fn an_end_moves_only_for_the_owner(place: &Place) {
    let (a, mine) = (key("a"), token());
    for end in [End::NotBefore, End::Exactly] {
        assert!(!place.move_end(&a, &mine, LEASE, end));
        assert_eq!(place.holder(&a), None, "never creates");
    }
    place.ask(&a, &mine, LEASE);
    for end in [End::NotBefore, End::Exactly] {
        assert!(!place.move_end(&a, &token(), LEASE * 3, end));
    }
    assert!(place.remaining(&a).unwrap() <= LEASE);
}

fn release_by_an_old_owner_leaves_the_new_owner_alone(place: &Place) {
    let (a, old, new) = (key("a"), token(), token());
    place.ask(&a, &old, LEASE);
    assert_eq!(place.release(&a, &old), Gone::Released);
    assert_eq!(place.release(&a, &old), Gone::NotOurs);
    assert!(place.is_granted(&a, &new));
    assert_eq!(place.release(&a, &old), Gone::NotOurs);
    assert_eq!(place.holder(&a).as_deref(), Some(new.as_str()));
    assert_eq!(place.release(&a, &new), Gone::Released);
    assert_eq!(place.holder(&a), None);
}

fn withdraw_may_be_repeated_and_removes_only_what_is_ours(place: &Place) {
    let (a, mine, other) = (key("a"), token(), token());
    assert_eq!(place.withdraw(&a, &mine), Gone::NotOurs);
    place.ask(&a, &mine, LEASE);
    assert_eq!(place.withdraw(&a, &mine), Gone::Released);
    assert_eq!(place.withdraw(&a, &mine), Gone::NotOurs);
    place.ask(&a, &other, LEASE);
    assert_eq!(place.withdraw(&a, &mine), Gone::NotOurs);
    assert_eq!(place.holder(&a).as_deref(), Some(other.as_str()));
}

fn force_release_frees_it_whoever_has_it(place: &Place) {
    let (a, mine) = (key("a"), token());
    place.ask(&a, &mine, LEASE);
    assert!(place.store.force_release(&a, deadline()).unwrap());
    assert!(!place.store.force_release(&a, deadline()).unwrap());
    assert_eq!(place.holder(&a), None);
    assert_eq!(place.release(&a, &mine), Gone::NotOurs);
    assert!(place.is_granted(&a, &token()));
}

fn fences_grow_with_every_token(place: &Place) {
    let fenced = place.options.clone().fenced();
    if let Err(error) = place.store.supports(&fenced) {
        assert!(error.is_unsupported());
        assert!(place.client.lock_with("a", fenced).unwrap_err().is_unsupported());
        return;
    }
    let a = key("a");
    let mut last = 0;
    for block in [1, 5, 17, 1, 1] {
        let mine = token();
        let fence = place.fence(&a, &mine, block);
        assert!(fence >= last + u64::from(block), "{fence} after {last}, with a block of {block}");
        last = fence;
        place.release(&a, &mine);
    }
    assert!(last < 1 << 53, "{last} is no exact number in Lua");
}

fn a_repeated_attempt_reserves_fences_that_grow(place: &Place) {
    if place.store.supports(&place.options.clone().fenced()).is_err() {
        return fences_grow_with_every_token(place);
    }
    let (a, mine) = (key("a"), token());
    let first = place.fence(&a, &mine, 4);
    assert!(
        place.fence(&a, &mine, 4) >= first + 4,
        "nobody knows whether the first block was used"
    );
}

/// A waiter in the store's queue.
struct Waiter {
    token: Token,
    bell: Arc<Bell>,
    listening: Listening,
}

impl Waiter {
    /// Listens and is refused; its place names this attempt.
    fn queue(place: &Place, key: &Key, attempt: u64) -> Waiter {
        let (token, bell) = (token(), Bell::new());
        let listening =
            place.store.listen(key, &token, &bell).expect("a store that queues can wake");
        let waiter = Waiter { token, bell, listening };
        let answer = place.store.try_acquire(&Ask {
            key,
            token: &waiter.token,
            attempt,
            lease: LEASE,
            fences: 0,
            place: Some(&waiter),
            contended: true,
            may_be_mine: true,
            deadline: deadline(),
        });
        assert!(matches!(answer.unwrap(), Answer::Refused { .. }));
        waiter
    }

    /// The grant that it hears. Hints, which say no more than "ask again", do not count.
    fn heard(&self, within: Duration) -> Option<Grant> {
        let until = Instant::now() + within;
        loop {
            match self.bell.wait(&Clock::default(), Some(until)) {
                Rung::Grant(grant) => return Some(grant),
                Rung::Silent => return None,
                Rung::Hint => {}
            }
        }
    }
}

impl InQueue for Waiter {
    fn listen(&self) -> Option<&str> {
        Some(&self.listening.address)
    }

    fn alive_for(&self) -> Duration {
        LEASE
    }

    fn first_lease(&self) -> Duration {
        ms(3000)
    }
}

/// Whether the store has a queue, and if so, once its waiters are heard: a store may begin to
/// listen a little later. One that has none says so in both ways.
fn queues(place: &Place) -> bool {
    let listening = place.store.listen(&key("a"), &token(), &Bell::new());
    assert_eq!(place.store.abilities().wakes, listening.is_some());
    // Some only say when to ask again.
    let listens = listening.is_some_and(|listening| listening.queues);
    if listens {
        eventually(SOON, || {
            let (probe, holder) = (key("probe"), token());
            place.ask(&probe, &holder, LEASE);
            let waiter = Waiter::queue(place, &probe, 1);
            place.release(&probe, &holder);
            let heard = waiter.heard(ms(50)).is_some();
            place.withdraw(&probe, &waiter.token);
            heard
        });
    }
    listens
}

fn a_release_hands_the_lock_to_the_first_in_the_queue(place: &Place) {
    if !queues(place) {
        return;
    }
    let (a, holder) = (key("a"), token());
    place.ask(&a, &holder, LEASE);
    let (first, second) = (Waiter::queue(place, &a, 7), Waiter::queue(place, &a, 2));
    assert_eq!(place.release(&a, &holder), Gone::Released);
    // Named by the attempt that was refused, and for a short lease at first.
    assert_eq!(first.heard(SOON), Some(Grant { attempt: 7, fences: None }));
    assert_eq!(place.holder(&a).as_deref(), Some(first.token.as_str()));
    assert!(place.remaining(&a).unwrap() <= ms(3000));
    assert!(!place.is_granted(&a, &token()), "nobody overtakes");
    assert_eq!(second.heard(ms(20)), None);
    assert_eq!(place.release(&a, &first.token), Gone::Released);
    assert_eq!(second.heard(SOON), Some(Grant { attempt: 2, fences: None }));
    assert_eq!(place.holder(&a).as_deref(), Some(second.token.as_str()));
    assert_eq!(place.release(&a, &second.token), Gone::Released);
    assert_eq!(place.holder(&a), None);
}

fn a_waiter_that_withdrew_or_does_not_listen_is_passed_over(place: &Place) {
    if !queues(place) {
        return;
    }
    let (a, holder) = (key("a"), token());
    place.ask(&a, &holder, LEASE);
    let withdrawn = Waiter::queue(place, &a, 1);
    drop(Waiter::queue(place, &a, 1));
    let last = Waiter::queue(place, &a, 1);
    assert_eq!(place.withdraw(&a, &withdrawn.token), Gone::NotOurs);
    // However it is freed.
    assert!(place.store.force_release(&a, deadline()).unwrap());
    assert!(last.heard(SOON).is_some());
    assert_eq!(place.holder(&a).as_deref(), Some(last.token.as_str()));
    assert_eq!(withdrawn.heard(ms(20)), None);
    // One that was served and does not want it any more passes it on.
    let next = Waiter::queue(place, &a, 3);
    assert_eq!(place.withdraw(&a, &last.token), Gone::Released);
    assert_eq!(next.heard(SOON), Some(Grant { attempt: 3, fences: None }));
}

fn lock_holds_until_it_is_unlocked_as_often(place: &Place) {
    let lock = place.client.lock("a");
    lock.lock().unwrap();
    assert!(lock.try_lock(Duration::ZERO).unwrap());
    lock.lock().unwrap();
    assert_eq!((lock.hold_count(), lock.is_held(), lock.is_valid()), (3, true, true));
    for left in [2, 1, 0] {
        assert!(lock.is_locked().unwrap());
        lock.unlock().unwrap();
        assert_eq!(lock.hold_count(), left);
    }
    assert!(!lock.is_locked().unwrap() && !lock.is_held());
    assert!(error(lock.unlock()).is_not_held());
}

fn two_clients_exclude_each_other(place: &Place) {
    let (mine, theirs) = (place.client.lock("a"), place.other.lock("a"));
    mine.lock().unwrap();
    assert!(!theirs.try_lock(Duration::ZERO).unwrap());
    assert!(!within(ms(40)..SOON, || theirs.try_lock(ms(40)).unwrap()));
    assert!(error(theirs.unlock()).is_not_held());
    mine.unlock().unwrap();
    assert!(theirs.try_lock(Duration::ZERO).unwrap());
    assert!(!mine.try_lock(Duration::ZERO).unwrap());
    theirs.unlock().unwrap();
}

fn a_waiting_client_gets_the_lock_when_it_is_released(place: &Place) {
    let holder = Elsewhere::holds(&place.other.lock("a"));
    let lock = place.client.lock("a");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.lock().and_then(|()| lock.unlock()));
        thread::sleep(ms(60));
        assert!(!waiter.is_finished());
        holder.unlock().unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert!(is_free(&lock));
}

fn guards_unlock_when_they_are_dropped(place: &Place) {
    let lock = place.client.lock("a");
    let guard = lock.guard().unwrap();
    assert!(guard.is_valid() && guard.remaining() > Duration::ZERO);
    guard.ensure_valid().unwrap();
    assert!(place.other.lock("a").try_guard(Duration::ZERO).unwrap().is_none());
    drop(guard);
    let guard = place.other.lock("a").try_guard(Duration::ZERO).unwrap().unwrap();
    assert!(lock.try_guard(ms(30)).unwrap().is_none());
    guard.release().unwrap();
    assert_eq!(lock.with(|guard| guard.is_valid()).ok(), Some(true));
    assert!(!lock.is_locked().unwrap());
}

fn an_end_is_moved_by_the_holder(place: &Place) {
    let options = place.options.clone().lease(LEASE).renewal(Renewal::Never);
    let lock = place.client.lock_with("a", options).unwrap();
    lock.lock().unwrap();
    lock.extend(LEASE * 3).unwrap();
    assert!(lock.remaining().unwrap() > LEASE * 2);
    assert!(lock.inspect().unwrap().unwrap().remaining.unwrap() > LEASE * 2);
    lock.extend(LEASE).unwrap();
    assert!(lock.remaining().unwrap() < LEASE);
    assert!(lock.inspect().unwrap().unwrap().remaining.unwrap() <= LEASE);
    lock.unlock().unwrap();
    assert!(error(lock.extend(LEASE)).is_not_held());
}

fn force_unlock_lets_the_next_in_and_the_holder_learns_of_it(place: &Place) {
    let lock = place.client.lock("a");
    lock.lock().unwrap();
    assert!(place.other.lock("a").force_unlock().unwrap());
    // A node of a quorum whose turn comes late may still have granted it to the holder.
    eventually(SOON, || !place.other.lock("a").force_unlock().unwrap());
    let guard = place.other.lock("a").guard().unwrap();
    assert!(error(lock.unlock()).is_lost());
    assert!(error(lock.unlock()).is_not_held());
    guard.release().unwrap();
}

fn a_lease_is_renewed_until_it_is_unlocked(place: &Place) {
    let lock = place.client.lock_with("a", place.options.clone().lease(ms(1200))).unwrap();
    lock.lock().unwrap();
    let start = Instant::now();
    while start.elapsed() < ms(2000) {
        assert!(lock.is_valid());
        assert!(!on_another_thread(|| place.other.lock("a").try_lock(Duration::ZERO).unwrap()));
        thread::sleep(ms(20));
    }
    lock.unlock().unwrap();
    assert!(is_free(&place.other.lock("a")));
}

fn a_lease_that_is_not_renewed_runs_out(place: &Place) {
    let lock = place
        .client
        .lock_with("a", place.options.clone().lease(ms(200)).renewal(Renewal::Never))
        .unwrap();
    lock.lock().unwrap();
    let next = place.other.lock("a");
    within(ms(100)..SOON, || assert!(next.try_lock(SOON).unwrap()));
    assert!(!lock.is_valid() && lock.is_held());
    assert!(error(lock.unlock()).is_lost());
    next.unlock().unwrap();
}

fn threads_of_two_clients_never_hold_it_at_once(place: &Place) {
    let locks = [place.client.lock("a"), place.other.lock("a")];
    let inside = AtomicU64::new(0);
    let entered = AtomicU64::new(0);
    thread::scope(|scope| {
        for lock in &locks {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..8 {
                        let guard = lock.guard().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        thread::yield_now();
                        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                        entered.fetch_add(1, Ordering::SeqCst);
                        guard.release().unwrap();
                    }
                });
            }
        }
    });
    assert_eq!(entered.into_inner(), 48);
    assert!(!locks[0].is_locked().unwrap());
}

/// Each promise as a test of its own, for each store.
macro_rules! over_every_store {
    (@promises $place:ident: $($promise:ident)*) => {$(
        #[test]
        fn $promise() {
            super::$promise(&super::Place::$place());
        }
    )*};
    ($($place:ident)*) => {$(
        mod $place {
            over_every_store! { @promises $place:
                nobody_has_it
                a_free_lock_is_granted
                a_held_lock_is_refused_with_the_rest_of_its_lease
                locks_of_different_names_have_nothing_to_do_with_each_other
                asking_again_with_the_same_token_makes_the_lease_whole
                the_same_token_is_refused_where_it_cannot_be_mine
                a_lease_runs_out_by_itself
                extend_compares_the_token
                extend_never_creates
                extend_never_shortens
                extend_answers_for_each_lease_by_itself
                an_end_moves_both_ways_when_that_is_asked_for
                an_end_moves_only_for_the_owner
                release_by_an_old_owner_leaves_the_new_owner_alone
                withdraw_may_be_repeated_and_removes_only_what_is_ours
                force_release_frees_it_whoever_has_it
                fences_grow_with_every_token
                a_repeated_attempt_reserves_fences_that_grow
                a_release_hands_the_lock_to_the_first_in_the_queue
                a_waiter_that_withdrew_or_does_not_listen_is_passed_over
                lock_holds_until_it_is_unlocked_as_often
                two_clients_exclude_each_other
                a_waiting_client_gets_the_lock_when_it_is_released
                guards_unlock_when_they_are_dropped
                an_end_is_moved_by_the_holder
                force_unlock_lets_the_next_in_and_the_holder_learns_of_it
                a_lease_is_renewed_until_it_is_unlocked
                a_lease_that_is_not_renewed_runs_out
                threads_of_two_clients_never_hold_it_at_once
            }
        }
    )*};
}

over_every_store! {
    memory
    server
    redisson
    timestamp
    quorum
    quorum_in_memory
}
