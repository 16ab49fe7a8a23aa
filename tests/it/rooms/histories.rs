//! Random histories, step by step against the model: who is in, who waits, what was sent, what was
//! said. Every history is the same each time.

use redis::Commands;

use super::model::{INBOXES, Model, Share};
use super::{KEYS, Room, Told, token};
use crate::support::Server;

const STEPS: usize = 300;
/// Lengths that differ by more than any history takes (ms).
const LEASES: [u64; 4] = [1_000_000, 2_000_000, 4_000_000, 5_000_000];
/// No history takes as long (ms).
const A_HISTORY: u64 = 400_000;
/// Nor do a few questions (ms).
const LITTLE: i64 = 400_000;

/// Which leases a room is for.
type Draw = fn(&mut fastrand::Rng) -> Share;

fn whole(_: &mut fastrand::Rng) -> Share {
    Share::Whole
}

fn reader_or_writer(random: &mut fastrand::Rng) -> Share {
    if random.u8(..3) == 0 { Share::Writer } else { Share::Reader }
}

fn permits(random: &mut fastrand::Rng) -> Share {
    Share::Permits { taken: random.choice([1, 1, 2, 3, 7]).unwrap(), of: 7 }
}

/// Somebody who asks, over and over, each time with a new token.
struct Person {
    token: String,
    share: Share,
    attempt: u64,
}

struct History {
    room: Room,
    model: Model,
    random: fastrand::Rng,
    draw: Draw,
    people: Vec<Person>,
    tokens: u64,
    hand_overs: usize,
    batches: usize,
}

impl History {
    fn new(server: Server, draw: Draw, shared: bool) -> History {
        let random = fastrand::Rng::new();
        let (room, model) = (Room::on(server, shared), Model::default());
        let people = Vec::new();
        Self { room, model, random, draw, people, tokens: 0, hand_overs: 0, batches: 0 }
    }

    /// A room that nobody has been in.
    fn begin(&mut self, seed: u64) {
        self.random = fastrand::Rng::with_seed(seed);
        redis::cmd("FLUSHALL").exec(&mut self.room.connection).unwrap();
        for inbox in INBOXES {
            self.room.listen(inbox, true);
        }
        self.model = Model { listens: [true; INBOXES.len()], ..Model::default() };
        self.people = (0..10).map(|_| self.somebody()).collect();
    }

    fn somebody(&mut self) -> Person {
        let share = (self.draw)(&mut self.random);
        self.one_with(share)
    }

    fn one_with(&mut self, share: Share) -> Person {
        self.tokens += 1;
        Person { token: token(&share.prefix(), self.tokens), share, attempt: 0 }
    }

    fn step(&mut self) {
        let at = self.random.usize(..self.people.len());
        let lease = self.random.choice(LEASES).unwrap();
        let Person { token, share, .. } = &self.people[at];
        let (token, share) = (token.clone(), *share);
        let queues = self.model.queue.iter().any(|waiter| waiter.token == token);
        let served = match self.random.u8(..20) {
            0..=7 => {
                // Or a late copy of the last attempt.
                if self.people[at].attempt == 0 || self.random.u8(..6) > 0 {
                    self.people[at].attempt += 1;
                }
                let inbox = self.random.usize(..INBOXES.len());
                let place = (self.random.u8(..8) > 0).then_some((inbox, self.people[at].attempt));
                let expected = self.model.acquire((&token, share), lease, place);
                let place = place.map(|(inbox, attempt)| (INBOXES[inbox], attempt));
                agrees(&self.room.acquire(&token, lease, place), &expected);
                matches!(expected, Told::Granted { .. })
            }
            8..=10 if !queues => {
                let released = self.room.yes("release", &[&token]);
                assert_eq!(released, self.model.release(&token));
                self.people[at] = self.somebody();
                true
            }
            13 if share == Share::Writer && !queues => self.exchange(at, &token, lease),
            // A holder that is in the queue was let in by a script that does not look there: it
            // leaves both.
            8..=12 => {
                let withdrawn = self.room.yes("withdraw", &[&token]);
                assert_eq!(withdrawn, self.model.withdraw(&token));
                self.people[at] = self.somebody();
                true
            }
            _ => {
                self.step_that_serves_nobody(at, lease, queues);
                false
            }
        };
        self.compare();
        self.model.is_sound(served);
    }

    /// A writer reads from now on, also if it has to ask again after a lost reply.
    fn exchange(&mut self, at: usize, from: &str, lease: u64) -> bool {
        let reader = self.one_with(Share::Reader);
        let arguments = [from, &reader.token, &lease.to_string()];
        let exchanged = self.room.yes("exchange", &arguments);
        assert_eq!(exchanged, self.model.exchange(from, &reader.token, lease));
        if self.random.bool() {
            assert_eq!(self.room.yes("exchange", &arguments), exchanged);
            self.model.exchange(from, &reader.token, lease);
        }
        if exchanged {
            self.people[at] = reader;
        }
        exchanged
    }

    fn step_that_serves_nobody(&mut self, at: usize, lease: u64, queues: bool) {
        let Person { token, share, .. } = &self.people[at];
        let (token, share) = (token.clone(), *share);
        match self.random.u8(..8) {
            0 => {
                let extended = self.room.yes("extend", &[&token, &lease.to_string()]);
                assert_eq!(extended, self.model.extend(&token, lease));
            }
            1 => {
                let expected = self.model.alone((&token, share), lease);
                agrees(&self.room.alone(&token, lease), &expected);
            }
            2 if !queues => {
                let released = self.room.yes("release_alone", &[&token]);
                assert_eq!(released, self.model.release_alone(&token));
                self.people[at] = self.somebody();
            }
            3 => self.expire(),
            4 if queues => {
                // It is dead from now on, and its place with it.
                self.die(&token);
                self.people[at] = self.somebody();
            }
            5 if self.random.u8(..6) == 0 => {
                assert_eq!(self.room.yes("force", &[&share.prefix()]), self.model.force(share));
            }
            _ => {
                let inbox = self.random.usize(..INBOXES.len());
                let listens = self.random.u8(..4) > 0;
                self.room.listen(INBOXES[inbox], listens);
                self.model.listens[inbox] = listens;
            }
        }
    }

    /// The lease of one holder ends, and nobody is told.
    fn expire(&mut self) {
        if self.model.holders.is_empty() {
            return;
        }
        let at = self.random.usize(..self.model.holders.len());
        let holder = self.model.holders.remove(at);
        if !self.room.shared {
            let _: u64 = self.room.connection.del(KEYS[0]).unwrap();
            return;
        }
        for member in self.room.members() {
            if member.split('#').next() == Some(&holder.token) {
                let _: u64 = self.room.connection.zadd(KEYS[0], member, 1).unwrap();
            }
        }
    }

    fn die(&mut self, token: &str) {
        self.room.die(token);
        let waiter = self.model.queue.iter_mut().find(|waiter| waiter.token == token).unwrap();
        waiter.lives = false;
    }

    /// What the server has, and has sent, is what the model has.
    fn compare(&mut self) {
        let sent: Vec<_> = (self.room.messages().into_iter())
            .map(|(inbox, attempt, _, token)| {
                let inbox = INBOXES.iter().position(|known| *known == inbox).unwrap();
                (inbox, attempt, token)
            })
            .collect();
        assert_eq!(sent, self.model.messages);
        self.hand_overs += sent.len();
        self.batches += usize::from(sent.len() > 1);
        self.model.messages.clear();
        assert_eq!(self.holders(), self.expected_holders());
        // The server forgets the dead, and holders that are in the queue, sooner or later.
        let mut expected: Vec<_> = self.model.queue.iter().filter(|waiter| waiter.lives).collect();
        let holders: Vec<_> = self.model.holders.iter().map(|holder| &holder.token).collect();
        expected.retain(|waiter| !holders.contains(&&waiter.token));
        let expected: Vec<_> = expected.iter().map(|waiter| waiter.token.clone()).collect();
        let mut queue = self.room.queue();
        queue.retain(|token| expected.contains(token));
        assert_eq!(queue, expected);
    }

    /// Every member, with the rest of its lease in units that no history is long enough for.
    fn holders(&mut self) -> Vec<(String, u64)> {
        let rounded = |rest: u64| (rest + A_HISTORY) / 1_000_000;
        if !self.room.shared {
            let holder: Option<String> = self.room.connection.get(KEYS[0]).unwrap();
            let rest: i64 = self.room.connection.pttl(KEYS[0]).unwrap();
            return holder
                .map(|token| (token, rounded(rest.try_into().unwrap())))
                .into_iter()
                .collect();
        }
        let (seconds, micros): (u64, u64) =
            redis::cmd("TIME").query(&mut self.room.connection).unwrap();
        let now = seconds * 1_000 + micros / 1_000;
        let members: Vec<(String, u64)> =
            self.room.connection.zrange_withscores(KEYS[0], 0, -1).unwrap();
        let key_lasts: i64 = self.room.connection.pttl(KEYS[0]).unwrap();
        let mut living: Vec<_> = (members.into_iter())
            .filter(|(_, end)| *end >= now)
            .map(|(member, end)| {
                assert!(key_lasts >= i64::try_from(end - now).unwrap() - LITTLE, "{key_lasts}");
                (member, rounded(end - now))
            })
            .collect();
        living.sort();
        living
    }

    fn expected_holders(&self) -> Vec<(String, u64)> {
        let mut expected = Vec::new();
        for holder in &self.model.holders {
            let places = if let Share::Permits { taken, .. } = holder.share { taken } else { 1 };
            for number in 1..=places {
                let member = match number {
                    1 => holder.token.clone(),
                    _ => format!("{}#{number}", holder.token),
                };
                expected.push((member, holder.lease / 1_000_000));
            }
        }
        expected.sort();
        expected
    }
}

/// The same answer; what is left of a lease is less by the time that has passed.
fn agrees(said: &Told, expected: &Told) {
    match (said, expected) {
        (Told::Refused { left, heard }, Told::Refused { left: whole, heard: expected }) => {
            let passed = whole - left;
            assert!((-1..A_HISTORY.try_into().unwrap()).contains(&passed), "{said:?}, {whole}");
            assert_eq!(heard, expected);
        }
        _ => assert_eq!(said, expected),
    }
}

fn play(draw: Draw, shared: bool, seeds: std::ops::Range<u64>) -> (usize, usize) {
    let mut history = History::new(Server::start(), draw, shared);
    for seed in seeds {
        history.begin(seed);
        for step in 0..STEPS {
            eprintln!("history {seed}, step {step}");
            history.step();
        }
    }
    (history.hand_overs, history.batches)
}

#[test]
fn a_lock_for_one_does_what_the_model_does() {
    let (hand_overs, batches) = play(whole, false, 0..20);
    assert!(hand_overs > 300 && batches == 0, "{hand_overs}, {batches}");
}

#[test]
fn readers_and_writers_do_what_the_model_does() {
    let (hand_overs, batches) = play(reader_or_writer, true, 100..120);
    assert!(hand_overs > 250 && batches > 25, "{hand_overs}, {batches}");
}

#[test]
fn permits_do_what_the_model_does() {
    let (hand_overs, batches) = play(permits, true, 200..220);
    assert!(hand_overs > 250 && batches > 25, "{hand_overs}, {batches}");
}
