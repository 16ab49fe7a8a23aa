//! What every store promises to those who acquire permits of a semaphore.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use distlock::testing::{Answer, Ask, Bell, LeaseStore, Place as InQueue, Token, Withdraw};
use distlock::{Interrupt, Permit, Renewal, Retry, Semaphore};

use super::{LEASE, Place, deadline, key};
use crate::helpers::{SOON, Underway, error, held, lease, ms, on_another_thread};
use crate::support::{eventually, within};

/// The same semaphore, as two clients have it. A place that has none says so.
fn semaphores(place: &Place, permits: u32) -> Option<[Semaphore; 2]> {
    if !place.has_shares {
        let made = place.client.semaphore("s", permits);
        let options = place.options.clone();
        let refused = [
            error(made.acquire()),
            error(made.try_acquire(SOON)),
            error(made.available()),
            error(made.holders()),
            error(place.client.semaphore_with("s", permits, options)),
        ];
        assert!(refused.iter().all(distlock::Error::is_unsupported), "{refused:?}");
        return None;
    }
    Some([&place.client, &place.other].map(|client| {
        let options = place.options.clone();
        client.semaphore_with("s", permits, options).unwrap()
    }))
}

fn is_refused(semaphore: &Semaphore, permits: u32) -> bool {
    semaphore.try_acquire_many(permits, Duration::ZERO).unwrap().is_none()
}

/// Begins to acquire, and returns once nothing is left for anybody who asks now.
fn waits_for(semaphore: &Semaphore, permits: u32) -> Underway<Permit> {
    let waiting = semaphore.clone();
    let waiting = Underway::start(move || waiting.acquire_many(permits).unwrap());
    eventually(SOON, || is_refused(semaphore, 1));
    waiting
}

pub(super) fn all_permits_or_none_and_never_more_than_there_are(place: &Place) {
    let Some([mine, theirs]) = semaphores(place, 3) else { return };
    assert_eq!((mine.permits(), mine.available().unwrap()), (3, 3));
    let two = mine.acquire_many(2).unwrap();
    assert!(two.permits() == 2 && two.is_valid() && two.remaining() > Duration::ZERO);
    assert_eq!(theirs.available().unwrap(), 1);
    for semaphore in [&mine, &theirs] {
        assert!(is_refused(semaphore, 2) && is_refused(semaphore, 3));
        assert!(within(ms(40)..SOON, || {
            semaphore.try_acquire_many(2, ms(40)).unwrap().is_none()
        }));
    }
    let one = theirs.try_acquire(Duration::ZERO).unwrap().unwrap();
    assert!(is_refused(&mine, 1) && mine.available().unwrap() == 0);
    // On any thread.
    on_another_thread(|| two.release().unwrap());
    assert_eq!(mine.available().unwrap(), 2);
    drop(one);
    let all = theirs.acquire_many(3).unwrap();
    assert!(is_refused(&mine, 1));
    all.release().unwrap();
    assert_eq!(mine.available().unwrap(), 3);
}

pub(super) fn holders_are_listed_with_what_they_have(place: &Place) {
    let Some([mine, theirs]) = semaphores(place, 10) else { return };
    assert_eq!(mine.holders().unwrap(), []);
    let (seven, two) = (mine.acquire_many(7).unwrap(), theirs.acquire_many(2).unwrap());
    seven.extend(SOON * 60).unwrap();
    let holders = mine.holders().unwrap();
    assert_eq!(holders.iter().map(|holder| holder.permits).collect::<Vec<_>>(), [2, 7]);
    let ends: Vec<_> = holders.iter().map(|holder| holder.remaining.unwrap()).collect();
    assert!(ends[0] > Duration::ZERO && ends[1] > SOON * 50, "{ends:?}");
    assert_ne!(holders[0].token, holders[1].token);
    two.release().unwrap();
    assert_eq!(theirs.holders().unwrap().len(), 1);
    drop(seven);
}

pub(super) fn who_wants_many_permits_is_not_overtaken(place: &Place) {
    // Where nobody is woken, the first that asks is let in.
    let Some([mine, theirs]) = semaphores(place, 3).filter(|_| place.wakes) else { return };
    let two = mine.acquire_many(2).unwrap();
    let all = waits_for(&theirs, 3);
    // One permit is free, and is kept for who waits.
    assert_eq!(mine.available().unwrap(), 1);
    let one = Underway::start({
        let mine = mine.clone();
        move || mine.acquire().unwrap()
    });
    thread::sleep(ms(60));
    two.release().unwrap();
    let all = all.result();
    assert!(!one.is_done() && mine.available().unwrap() == 0);
    all.release().unwrap();
    one.result().release().unwrap();
}

pub(super) fn a_release_lets_in_as_many_as_fit(place: &Place) {
    let Some([mine, theirs]) = semaphores(place, 4) else { return };
    let all = mine.acquire_many(4).unwrap();
    let waiting = [(&mine, 1), (&theirs, 2), (&theirs, 1)].map(|(semaphore, permits)| {
        let semaphore = semaphore.clone();
        Underway::start(move || semaphore.acquire_many(permits).unwrap())
    });
    thread::sleep(ms(60));
    assert!(waiting.iter().all(|one| !one.is_done()));
    all.release().unwrap();
    let permits = waiting.map(Underway::result);
    assert!(permits.iter().all(Permit::is_valid) && is_refused(&mine, 1));
    drop(permits);
    assert_eq!(mine.available().unwrap(), 4);
}

pub(super) fn releases_add_up_for_who_wants_many(place: &Place) {
    let Some([mine, theirs]) = semaphores(place, 5) else { return };
    let [one, two, three] = [&mine, &theirs, &mine].map(|one| one.acquire().unwrap());
    let waiting = {
        let theirs = theirs.clone();
        Underway::start(move || theirs.try_acquire_many(4, SOON * 3).unwrap().unwrap())
    };
    for released in [one, two] {
        thread::sleep(ms(60));
        assert!(!waiting.is_done());
        released.release().unwrap();
    }
    let four = waiting.result();
    assert_eq!((four.permits(), mine.available().unwrap()), (4, 0));
    three.ensure_valid().unwrap();
}

pub(super) fn who_gives_up_lets_in_those_behind(place: &Place) {
    // Where nobody is woken, nobody keeps others waiting.
    let Some([mine, theirs]) = semaphores(place, 3).filter(|_| place.wakes) else { return };
    // It does not ask again by itself.
    let patient = place.options.clone().retry(Retry::fixed(SOON * 6));
    let behind = place.client.semaphore_with("s", 3, patient).unwrap();
    let two = mine.acquire_many(2).unwrap();
    for time in [SOON * 6, ms(300)] {
        let interrupt = Interrupt::new();
        let first = Underway::start({
            let (theirs, interrupt) = (theirs.clone(), interrupt.clone());
            move || theirs.try_acquire_many_interruptibly(3, time, &interrupt)
        });
        eventually(SOON, || first.is_done() || is_refused(&mine, 1));
        let behind = behind.clone();
        let behind = Underway::start(move || behind.acquire().unwrap());
        if time > SOON {
            thread::sleep(ms(60));
            assert!(!behind.is_done() && !first.is_done());
            interrupt.interrupt();
            assert!(error(first.result()).is_interrupted());
        } else {
            assert!(first.result().unwrap().is_none());
        }
        let one = behind.result();
        assert_eq!(mine.available().unwrap(), 0);
        one.release().unwrap();
    }
    two.release().unwrap();
    assert_eq!(theirs.available().unwrap(), 3);
}

pub(super) fn a_permit_is_renewed_and_a_permit_that_is_not_comes_back(place: &Place) {
    if semaphores(place, 1).is_none() {
        return;
    }
    let options = |renewal| {
        let options = lease(ms(1500)).renewal(renewal);
        distlock::LockOptions::replicas(options, if place.confirms { 1 } else { 0 })
    };
    let with = |client: &distlock::Client, renewal| {
        client.semaphore_with("s", 2, options(renewal)).unwrap()
    };
    let mine = with(&place.client, Renewal::UntilUnlock);
    let renewed = mine.acquire().unwrap();
    let left = with(&place.other, Renewal::Never).acquire().unwrap();
    let again = within(..SOON, || mine.acquire().unwrap());
    assert!(!left.is_valid() && error(left.release()).is_lost());
    thread::sleep(ms(800));
    renewed.ensure_valid().unwrap();
    assert_eq!(mine.holders().unwrap().len(), 2);
    again.release().unwrap();
    renewed.release().unwrap();
}

pub(super) fn a_lock_and_a_semaphore_of_one_name_are_refused(place: &Place) {
    let Some([mine, theirs]) = semaphores(place, 2) else { return };
    let lock = place.client.lock("s");
    let permit = theirs.acquire().unwrap();
    assert!(error(lock.try_lock(ms(10))).is_wrong_type());
    assert!(error(lock.inspect()).is_wrong_type() && error(lock.force_unlock()).is_wrong_type());
    assert!(permit.is_valid() && mine.available().unwrap() == 1);
    permit.release().unwrap();
    let guard = lock.guard().unwrap();
    let refused = error(mine.try_acquire(ms(10)));
    assert!(refused.is_wrong_type() && refused.to_string().starts_with("semaphore \"s\": "));
    assert!(error(mine.holders()).is_wrong_type() && error(theirs.available()).is_wrong_type());
    guard.release().unwrap();
    mine.acquire().unwrap().release().unwrap();
}

pub(super) fn a_limiter_and_a_semaphore_of_one_name_are_refused(place: &Place) {
    let Some([mine, theirs]) = semaphores(place, 2) else { return };
    let limiter = place.client.rate_limiter("s", 3, SOON * 60);
    let permit = mine.acquire().unwrap();
    assert!(error(limiter.check()).is_wrong_type());
    permit.release().unwrap();
    assert!(limiter.check().unwrap().allowed);
    assert!(error(theirs.try_acquire(ms(10))).is_wrong_type());
    assert!(error(mine.available()).is_wrong_type());
    assert_eq!(limiter.check().unwrap().remaining, 1);
}

/// Leases of a semaphore of three permits, asked for by tokens of the test's own.
struct ByToken<'a> {
    place: &'a Place,
    store: std::sync::Arc<dyn LeaseStore>,
}

impl<'a> ByToken<'a> {
    fn of(place: &'a Place) -> Option<Self> {
        semaphores(place, 3)?;
        let store = place.client.store_of_permits(3, &place.options).unwrap();
        Some(Self { place, store })
    }

    fn token(&self, permits: u32) -> Token {
        Token::new(format!("p{permits}/3:{}", self.place.token().text()))
    }

    fn ask(&self, token: &Token, lease: Duration) -> Answer {
        self.ask_from(token, lease, None)
    }

    fn ask_from(&self, token: &Token, lease: Duration, heard_at: Option<&str>) -> Answer {
        let (key, listen) = (key("s"), || heard_at);
        let place = InQueue { listen: &listen, alive_for: LEASE, first_lease: ms(3000) };
        let ask = Ask {
            key: &key,
            token,
            attempt: 1,
            lease,
            fences: 0,
            place: heard_at.map(|_| place),
            contended: true,
            may_be_mine: true,
            deadline: deadline(),
        };
        self.store.try_acquire(&ask).unwrap()
    }

    fn holders(&self) -> Vec<String> {
        let held = held(&*self.store, &key("s"));
        held.into_iter().map(|held| held.token.text()).collect()
    }
}

pub(super) fn a_refusal_tells_when_enough_leases_will_have_ended(place: &Place) {
    let Some(room) = ByToken::of(place) else { return };
    // The one that ends last was granted first.
    let tokens = [3, 1, 2].map(|minutes| {
        let token = room.token(1);
        assert!(matches!(room.ask(&token, SOON * 6 * minutes), Answer::Granted { .. }));
        token
    });
    let in_order = [&tokens[1], &tokens[2], &tokens[0]].map(Token::text);
    assert_eq!(room.holders(), in_order);
    for (permits, minutes) in [(1, 1), (2, 2), (3, 3)] {
        let Answer::Refused { remaining, .. } = room.ask(&room.token(permits), LEASE) else {
            panic!("there is no permit left");
        };
        let remaining = remaining.unwrap();
        assert!(remaining <= SOON * 6 * minutes && remaining > SOON * (6 * minutes - 2));
    }
    // With its end it changes its place, too.
    assert!(matches!(room.ask(&tokens[1], SOON * 24), Answer::Granted { .. }));
    assert_eq!(room.holders().last(), Some(&tokens[1].text()));
}

pub(super) fn those_behind_an_asker_that_fits_are_served_with_it(place: &Place) {
    let Some(room) = ByToken::of(place).filter(|_| place.wakes) else { return };
    let tokens = [room.token(1), room.token(1)];
    let bell = Bell::new();
    let listening = tokens.each_ref().map(|token| {
        room.store.listen(&key("s"), token, &bell).expect("a store that queues can wake")
    });
    let address = Some(&*listening[0].address);
    // Once the server knows that the waiters listen, they have places.
    let (probe, blocks) = (room.token(1), room.token(3));
    room.ask(&blocks, LEASE);
    let heard = |token: &Token| {
        matches!(room.ask_from(token, LEASE, address), Answer::Refused { heard: true, .. })
    };
    let probing = room.store.listen(&key("s"), &probe, &bell).unwrap();
    eventually(SOON, || heard(&probe));
    drop(probing);
    for token in [&probe, &blocks] {
        room.store.withdraw_one(Withdraw::of(&key("s"), token), deadline()).unwrap();
    }
    assert!(matches!(room.ask(&room.token(3), ms(300)), Answer::Granted { .. }));
    assert!(tokens.iter().all(heard));
    eventually(SOON, || room.holders().is_empty());
    // The first asks, and both are in.
    assert!(matches!(room.ask_from(&tokens[0], LEASE, address), Answer::Granted { .. }));
    assert_eq!(room.holders().len(), 2);
}

pub(super) fn threads_of_two_clients_never_have_more_than_there_are(place: &Place) {
    let Some(semaphores) = semaphores(place, 3) else { return };
    let (taken, cycles) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for number in 0..6 {
            let (semaphore, taken, cycles) = (&semaphores[number % 2], &taken, &cycles);
            scope.spawn(move || {
                for round in 0..12_u32 {
                    let permits = (round + u32::try_from(number).unwrap()) % 3 + 1;
                    let permit = semaphore.acquire_many(permits).unwrap();
                    assert!(taken.fetch_add(permits, Ordering::SeqCst) + permits <= 3);
                    thread::sleep(ms(1));
                    taken.fetch_sub(permits, Ordering::SeqCst);
                    permit.release().unwrap();
                    cycles.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(cycles.load(Ordering::SeqCst), 72);
    assert_eq!(semaphores[0].available().unwrap(), 3);
}
