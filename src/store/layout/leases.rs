//! Leases on one server, written once for every layout.

mod acquire;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use self::acquire::{acquiring, place_parts};
use super::answers;
use super::table::{Name, QueueScripts, Table, Wakes};
use crate::base::bell::Bell;
use crate::base::error::{Error, ErrorKind};
use crate::base::key::Key;
use crate::base::options::LockOptions;
use crate::base::store_error::StoreError;
use crate::base::within::Within;
use crate::lease::store::{
    Abilities, Answer, Ask, Extend, Gone, InCondition, LeaseStore, Listening, Look, Notify,
    Release, State, Withdraw,
};
use crate::lease::token::Token;
use crate::server::call::{Call, Command, Resend};
use crate::server::reply;
use crate::server::script::{Part, Script};
use crate::server::servers::Servers;
use crate::store::inbox::Inboxes;

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

    /// The command that releases or withdraws, with these keys: by this script, or by the one that
    /// keeps the lock for a while.
    fn giving_up<'a>(
        &'a self,
        script: &'a Script,
        what: &Withdraw<'a>,
        (keys, mut parts): (usize, Vec<Part<'a>>),
    ) -> Command<'a> {
        debug_assert!(
            what.keep.is_none() || self.table.keep.is_some(),
            "options that the layout does not support"
        );
        let keeping = what.keep.zip(self.table.keep.as_ref());
        parts.push(Part::Bytes(what.token.as_bytes()));
        parts.extend(keeping.map(|(time, _)| Part::millis(time)));
        parts.extend(self.channel(what.key));
        Command::script(keeping.map_or(script, |(_, keep)| keep), keys, parts)
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
        let ended = Withdraw { keep: what.keep, ..Withdraw::of(what.key, what.token) };
        let all_keys = self.keys(what.key);
        match (call(self.giving_up(&self.table.release, &ended, all_keys)), self.queue()) {
            // The waiters ask again by themselves.
            (Err(error), Some(queue)) if error.moving => {
                call(self.giving_up(&queue.release_alone, &ended, self.lease_keys(what.key)))
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
        let all = what.iter().map(|what| self.giving_up(script, what, self.keys(what.key)));
        let mut answers = batch(all.collect());
        let Some(queue) = self.queue() else { return answers };
        let (moving, alone): (Vec<_>, Vec<_>) = (what.iter().zip(&mut answers))
            .filter(|(_, answer)| answer.as_ref().is_err_and(|error| error.moving))
            .map(|(what, answer)| {
                let keys = self.lease_keys(what.key);
                (answer, self.giving_up(&queue.release_alone, what, keys))
            })
            .unzip();
        // Where it is not released, a place may be left.
        for (answer, released) in moving.into_iter().zip(batch(alone)) {
            if let Ok(Gone::Released) = released {
                *answer = released;
            }
        }
        answers
    }

    fn exchange(
        &self,
        what: &Release<'_>,
        token: &Token,
        lease: Duration,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        let script = self.table.exchange.as_ref().ok_or_else(StoreError::without_exchange)?;
        let (keys, mut parts) = self.keys(what.key);
        parts.extend([
            Part::Bytes(what.token.as_bytes()),
            Part::Bytes(token.as_bytes()),
            Part::millis(lease),
        ]);
        let check = || what.check();
        let call = Call::new(Command::script(script, keys, parts)).check(&check);
        let call = call.confirm_within(lease / 10);
        let reply = self.granting.call(&call, deadline).map_err(answers::half_way)?;
        answers::ours(&reply)
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

    fn inspect(&self, key: &Key, look: Look, deadline: Instant) -> Result<State, StoreError> {
        let (mut keys, mut parts) = match look {
            Look::Holders => self.lease_keys(key),
            Look::All { .. } => self.keys(key),
        };
        let is_fenced = look == Look::All { fenced: true };
        if let Some(counter) = self.table.counter.filter(|_| is_fenced) {
            parts.push(counter.of(key));
            keys += 1;
        }
        self.servers.check_keys(key.as_str(), || parts.clone())?;
        parts.push(Part::Number(u64::from(is_fenced)));
        let call = Call::new(Command::script(&self.table.inspect, keys, parts));
        answers::state(&self.servers.call(&call.resend(Resend::Always), deadline)?.value)
    }

    fn force_release(&self, key: &Key, share: &str, deadline: Instant) -> Result<bool, StoreError> {
        let (keys, mut parts) = self.keys(key);
        parts.extend(self.channel(key));
        parts.extend(self.table.has_shares.then_some(Part::Text(share)));
        let call = Call::new(Command::script(&self.table.force, keys, parts));
        answers::yes(&self.servers.call(&call.resend(Resend::Never), deadline)?.value)
    }

    fn supports(&self, options: &LockOptions) -> Result<(), Error> {
        self.table.supports(options)
    }
}
