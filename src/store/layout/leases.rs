//! Leases on one server, written once for every layout.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::Value;

use super::answers;
use super::table::{Name, QueueScripts, Table, Wakes};
use crate::base::bell::Bell;
use crate::base::error::{Error, ErrorKind};
use crate::base::key::Key;
use crate::base::log;
use crate::base::options::LockOptions;
use crate::base::store_error::StoreError;
use crate::base::within::Within;
use crate::lease::store::{
    Abilities, Answer, Ask, Extend, Gone, Held, InCondition, LeaseStore, Listening, Notify, Place,
    Release, Withdraw,
};
use crate::lease::token::Token;
use crate::server::call::{Call, Command, Resend};
use crate::server::reply;
use crate::server::script::{Part, Script};
use crate::server::servers::Servers;
use crate::server::shape::Shape;
use crate::store::inbox::Inboxes;

/// No waiter counts as alive for longer without asking again, however long its pause.
const LONGEST_PLACE: Duration = Duration::from_secs(24 * 60 * 60);

/// Leases on one server, in one layout.
pub(crate) struct ServerLeases {
    servers: Servers,
    /// The same, for grants and extends, which replicas may have to confirm.
    granting: Servers,
    inboxes: Arc<Inboxes>,
    table: Table,
    /// Whether it has been said that the server does not say who listens.
    may_not_ask: AtomicBool,
}

impl ServerLeases {
    pub(crate) fn new(
        (servers, granting): (Servers, Servers),
        inboxes: Arc<Inboxes>,
        table: Table,
    ) -> Self {
        Self { servers, granting, inboxes, table, may_not_ask: AtomicBool::new(false) }
    }

    /// The keys of a lock, and how many they are.
    fn keys<'a>(&self, key: &'a Key) -> (usize, Vec<Part<'a>>) {
        named(self.table.keys, key)
    }

    /// The keys of the lease alone.
    fn lease_keys<'a>(&self, key: &'a Key) -> (usize, Vec<Part<'a>>) {
        named(&self.table.keys[..self.table.lease_keys], key)
    }

    /// The channel where a release is published, and by which command, for the scripts that
    /// publish it.
    fn channel<'a>(&self, key: &'a Key) -> impl Iterator<Item = Part<'a>> + use<'a> {
        let channel = match self.table.wakes {
            Wakes::Channel(name) => {
                Some([name.of(key), Part::Text(self.servers.publish_command())])
            }
            Wakes::Nobody | Wakes::Queue(_) => None,
        };
        channel.into_iter().flatten()
    }

    fn has_fences(&self) -> bool {
        self.table.no_fences.is_none()
    }

    fn queue(&self) -> Option<&QueueScripts> {
        match &self.table.wakes {
            Wakes::Queue(scripts) => Some(scripts),
            Wakes::Nobody | Wakes::Channel(_) => None,
        }
    }

    fn conditions(&self) -> Result<&QueueScripts, StoreError> {
        self.queue().ok_or_else(StoreError::without_conditions)
    }

    /// `SET key token NX PX lease`: the whole of an uncontended acquire.
    fn set(&self, ask: &Ask<'_>) -> Result<Option<Answer>, StoreError> {
        let parts = [
            Part::Text("SET"),
            Part::Text(ask.key.as_str()),
            Part::Bytes(ask.token.as_bytes()),
            Part::Text("NX"),
            Part::Text("PX"),
            Part::millis(ask.lease),
        ];
        let call = acquiring(ask, Command::with_key(&parts, Shape::Set));
        let reply = self.granting.call(&call, ask.deadline)?;
        match reply.value {
            Value::Okay => {
                reply.confirmed()?;
                Ok(Some(Answer::Granted { asked_at: reply.asked_at, fences: None }))
            }
            Value::Nil => Ok(None),
            _ => Err(reply::nonsense()),
        }
    }

    /// The script: acquires, or looks closer, and queues where there is a place to take.
    fn ask(&self, ask: &Ask<'_>, place: Option<(&str, Place<'_>)>) -> Result<Answer, StoreError> {
        let (mut keys, mut parts) = self.keys(ask.key);
        if let Some(counter) = self.table.counter.filter(|_| ask.fences > 0) {
            parts.push(counter.of(ask.key));
            keys += 1;
        }
        parts.extend([
            Part::Bytes(ask.token.as_bytes()),
            Part::millis(ask.lease),
            Part::Number(u64::from(ask.may_be_mine)),
        ]);
        parts.extend(self.has_fences().then(|| Part::Number(u64::from(ask.fences))));
        let address = place.map(|(address, _)| address);
        if let Some((address, place)) = place {
            parts.extend(place_parts(ask, address, place));
            self.inboxes.start(address);
        }
        let before = Instant::now();
        let call = acquiring(ask, Command::script(&self.table.acquire, keys, parts));
        let reply = self.granting.call(&call, ask.deadline).map_err(answers::half_way)?;
        if let Some(address) = address {
            self.is_heard(ask.key, address, before, &reply.value);
        }
        answers::answer(&reply)
    }

    fn try_acquire_queued(&self, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        if !ask.contended {
            // In the simplest way first, without listening for anything: most likely it is granted.
            let simple = self.table.holds_token && ask.fences == 0;
            let answer = if simple { self.set(ask)? } else { Some(self.ask(ask, None)?) };
            match answer {
                Some(answer @ Answer::Granted { .. }) => return Ok(answer),
                Some(refused) if ask.place.is_none() => return Ok(refused),
                // A hash refuses `SET NX` as a held lock does, and the rest of the lease is not
                // known: the script looks closer.
                _ => {}
            }
        }
        let answer = self.ask(ask, ask.place.and_then(|place| Some(((place.listen)()?, place))));
        match (answer, self.queue()) {
            (Err(error), Some(queue)) if error.moving && ask.fences == 0 => {
                self.ask_alone(&queue.acquire_alone, ask)
            }
            (answer, _) => answer,
        }
    }

    /// Acquires, and looks at nothing but the lease. The queue waits until its slot has moved.
    fn ask_alone(&self, script: &Script, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        let (keys, mut parts) = self.lease_keys(ask.key);
        parts.extend([
            Part::Bytes(ask.token.as_bytes()),
            Part::millis(ask.lease),
            Part::Number(u64::from(ask.may_be_mine)),
        ]);
        let call = acquiring(ask, Command::script(script, keys, parts));
        answers::answer(&self.granting.call(&call, ask.deadline)?)
    }

    /// Makes the inbox check its subscription if the server does not see it. `asked_at`:
    /// before anything was sent, and not by the client's clock, which a test may advance.
    fn is_heard(&self, key: &Key, address: &str, asked_at: Instant, answer: &Value) {
        let Value::Array(words) = answer else { return };
        match words.as_slice() {
            [Value::Int(0 | 5), .., Value::Int(0)] => {
                self.inboxes.is_not_heard(key, address, asked_at);
            }
            [Value::Int(0 | 5), .., Value::Int(2)]
                if !self.may_not_ask.swap(true, Ordering::Relaxed) =>
            {
                log::warn!("the server does not say who listens to a channel, so waiters poll");
            }
            _ => {}
        }
    }

    /// The command that releases or withdraws, by this script.
    fn giving_up<'a>(&self, script: &'a Script, key: &'a Key, token: &'a Token) -> Command<'a> {
        let (keys, mut parts) = self.keys(key);
        parts.push(Part::Bytes(token.as_bytes()));
        parts.extend(self.channel(key));
        Command::script(script, keys, parts)
    }

    /// A script with the keys of the lease and a token.
    fn alone<'a>(&self, script: &'a Script, key: &'a Key, token: &'a Token) -> Command<'a> {
        let (keys, mut parts) = self.lease_keys(key);
        parts.push(Part::Bytes(token.as_bytes()));
        Command::script(script, keys, parts)
    }

    fn extending<'a>(&'a self, lease: &Extend<'a>) -> Command<'a> {
        let (keys, mut parts) = self.lease_keys(lease.key);
        parts.extend([Part::Bytes(lease.token.as_bytes()), Part::millis(lease.lease)]);
        Command::script(&self.table.extend, keys, parts)
    }
}

/// These names of a lock, with room for the arguments of a script.
fn named<'a>(names: &[Name], key: &'a Key) -> (usize, Vec<Part<'a>>) {
    let mut parts = Vec::with_capacity(16);
    parts.extend(names.iter().map(|name| name.of(key)));
    (names.len(), parts)
}

/// What a waiter leaves in the queue.
fn place_parts<'a>(ask: &Ask<'_>, address: &'a str, place: Place<'_>) -> [Part<'a>; 4] {
    [
        Part::Text(address),
        Part::Number(ask.attempt),
        Part::millis(place.alive_for.min(LONGEST_PLACE)),
        Part::millis(place.first_lease),
    ]
}

/// A call that acquires. Renewal waits more than twice as long for confirmations: so a lease that
/// was granted over slow replicas can be kept.
fn acquiring<'a>(ask: &Ask<'_>, command: Command<'a>) -> Call<'a> {
    Call::new(command).confirm_within(ask.lease / 10)
}

impl LeaseStore for ServerLeases {
    fn try_acquire(&self, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        self.servers.check_keys(ask.key.as_str(), || {
            let counter = self.table.counter.filter(|_| ask.fences > 0);
            let (_, mut keys) = self.keys(ask.key);
            keys.extend(counter.map(|counter| counter.of(ask.key)));
            keys
        })?;
        if self.queue().is_some() {
            return self.try_acquire_queued(ask);
        }
        let answer = self.ask(ask, None)?;
        if let (Answer::Refused { .. }, Some(place)) = (&answer, ask.place)
            && (place.listen)().is_some()
        {
            // It has begun to listen just now, or before.
            self.inboxes.hurry(ask.key, ask.deadline);
        }
        Ok(answer)
    }

    fn extend(&self, leases: &[Extend<'_>], within: Within) -> Vec<Result<bool, StoreError>> {
        let commands: Vec<_> = leases.iter().map(|lease| self.extending(lease)).collect();
        self.granting.renew(&commands, within).into_iter().map(answers::extended).collect()
    }

    fn extend_one(&self, lease: &Extend<'_>, deadline: Instant) -> Result<bool, StoreError> {
        let call = Call::new(self.extending(lease)).resend(Resend::Always);
        answers::extended(self.granting.call(&call, deadline))
    }

    fn release(&self, what: &Release<'_>, deadline: Instant) -> Result<Gone, StoreError> {
        let check = || what.check();
        let call =
            |command| answers::gone(self.servers.call(&Call::new(command).check(&check), deadline));
        match (call(self.giving_up(&self.table.release, what.key, what.token)), self.queue()) {
            // The waiters ask again by themselves.
            (Err(error), Some(queue)) if error.moving => {
                call(self.alone(&queue.release_alone, what.key, what.token))
            }
            (answer, _) => answer,
        }
    }

    fn withdraw(&self, what: &[Withdraw<'_>], deadline: Instant) -> Vec<Result<Gone, StoreError>> {
        // Without a queue there is only a lease to release.
        let script = self.queue().map_or(&self.table.release, |queue| &queue.withdraw);
        let batch = |commands: Vec<_>| -> Vec<_> {
            self.servers.batch(&commands, deadline).into_iter().map(answers::gone).collect()
        };
        let mut answers =
            batch(what.iter().map(|what| self.giving_up(script, what.key, what.token)).collect());
        let Some(queue) = self.queue() else { return answers };
        let (moving, alone): (Vec<_>, Vec<_>) = (what.iter().zip(&mut answers))
            .filter(|(_, answer)| answer.as_ref().is_err_and(|error| error.moving))
            .map(|(what, answer)| (answer, self.alone(&queue.release_alone, what.key, what.token)))
            .unzip();
        // Where it is not released, a place may be left.
        for (answer, released) in moving.into_iter().zip(batch(alone)) {
            if let Ok(Gone::Released) = released {
                *answer = released;
            }
        }
        answers
    }

    fn listen(&self, key: &Key, token: &Token, bell: &Arc<Bell>) -> Option<Listening> {
        match self.table.wakes {
            Wakes::Nobody => None,
            Wakes::Channel(name) => {
                self.inboxes.listen_at(key, (&*name.of(key).text()).into(), token, bell)
            }
            Wakes::Queue(_) => self.inboxes.listen(key, token, bell),
        }
    }

    fn shard(&self, key: &Key) -> u16 {
        self.servers.shard(key.as_str())
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            wakes: !matches!(self.table.wakes, Wakes::Nobody),
            conditions: self.queue().is_some(),
            one_shot_tokens: false,
            confirm: self.granting.confirm(),
            numbered_tokens: self.table.numbered_tokens,
        }
    }

    fn wait_in(
        &self,
        ask: &Ask<'_>,
        condition: &str,
        release: Option<&Release<'_>>,
        leave: bool,
    ) -> Result<InCondition, StoreError> {
        let queue = self.conditions()?;
        let place = ask.place.and_then(|place| Some(((place.listen)()?, place)));
        let Some((address, place)) = place else {
            return Err(StoreError::not_sent(
                ErrorKind::Unavailable,
                "conditions need wake-ups, and this client cannot receive any",
            ));
        };
        self.inboxes.start(address);
        let (keys, mut parts) = self.keys(ask.key);
        parts.extend([
            Part::Bytes(ask.token.as_bytes()),
            Part::millis(ask.lease),
            Part::Number(u64::from(ask.fences)),
        ]);
        parts.extend(place_parts(ask, address, place));
        parts.extend([
            Part::Text(condition),
            Part::Bytes(release.map_or(&[], |release| release.token.as_bytes())),
            Part::Number(u64::from(leave)),
        ]);
        let before = Instant::now();
        let check = || release.map_or(Ok(()), Release::check);
        let call = acquiring(ask, Command::script(&queue.wait, keys, parts)).check(&check);
        let reply = self.granting.call(&call, ask.deadline)?;
        self.is_heard(ask.key, address, before, &reply.value);
        answers::in_condition(&reply)
    }

    fn notify(&self, what: &Notify<'_>, deadline: Instant) -> Result<Option<u64>, StoreError> {
        let queue = self.conditions()?;
        let (keys, mut parts) = self.keys(what.key);
        parts.extend([
            Part::Bytes(what.token.as_bytes()),
            Part::Text(what.condition),
            Part::Number(u64::from(what.most)),
        ]);
        // If both copies run, one waiter more wakes.
        let call = Call::new(Command::script(&queue.notify, keys, parts)).resend(Resend::Always);
        let moved = reply::number(&self.servers.call(&call, deadline)?.value)?;
        // -1: not ours.
        Ok(u64::try_from(moved).ok())
    }

    fn inspect(&self, key: &Key, deadline: Instant) -> Result<Vec<Held>, StoreError> {
        let (keys, parts) = self.lease_keys(key);
        let call = Call::new(Command::script(&self.table.inspect, keys, parts));
        answers::held(&self.servers.call(&call.resend(Resend::Always), deadline)?.value)
    }

    fn force_release(&self, key: &Key, deadline: Instant) -> Result<bool, StoreError> {
        let (keys, mut parts) = self.keys(key);
        parts.extend(self.channel(key));
        let call = Call::new(Command::script(&self.table.force, keys, parts));
        answers::yes(&self.servers.call(&call.resend(Resend::Never), deadline)?.value)
    }

    fn supports(&self, options: &LockOptions) -> Result<(), Error> {
        self.table.supports(options)
    }
}
