//! A withdrawal, and its progress.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::backlog::SETTLE;
use crate::base::clock::Clock;
use crate::base::key::Key;
use crate::base::log;
use crate::base::options::{Share, Side};
use crate::base::store_error::StoreError;
use crate::base::subject::Subject;
use crate::lease::durations::{FIRST_LEASE, rest_of};
use crate::lease::store::{Gone, LeaseStore, Withdraw};
use crate::lease::token::Token;

/// Something to withdraw.
pub(crate) struct Withdrawal {
    pub(crate) store: Arc<dyn LeaseStore>,
    pub(crate) subject: Subject,
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) lease: Duration,
    /// Until when the lock has to be kept.
    pub(crate) kept_until: Option<Instant>,
    /// Whether a copy of an unanswered attempt may arrive after the withdrawal.
    pub(crate) in_flight: bool,
    /// Whether the token is the caller's own value, which the next acquisition uses again.
    pub(crate) reused: bool,
    /// Whether a release of it has had no answer, and may still arrive.
    pub(crate) release_in_flight: bool,
    /// Whether its thread ended while it held the lock (R11).
    pub(crate) abandoned: AtomicBool,
}

impl Withdrawal {
    /// For a grant whose token nobody uses any more.
    pub(crate) fn stray(store: Arc<dyn LeaseStore>, key: Key, token: Token) -> Self {
        let name = key.as_str().into();
        let share = Share::in_token(token.as_bytes()).unwrap_or_default();
        Self {
            subject: match share {
                Share::Whole => Subject::lock(name),
                Share::Side(Side::Read) => Subject::read_lock(name),
                Share::Side(Side::Write) => Subject::write_lock(name),
                Share::Permits { .. } => Subject::semaphore(name),
            },
            store,
            key,
            token,
            lease: FIRST_LEASE,
            kept_until: None,
            in_flight: false,
            reused: false,
            release_in_flight: false,
            abandoned: AtomicBool::new(false),
        }
    }

    pub(super) fn as_withdraw(&self, now: Instant) -> Withdraw<'_> {
        let keep = self.kept_until.and_then(|until| rest_of(until, now));
        Withdraw { keep, ..Withdraw::of(&self.key, &self.token) }
    }

    pub(super) fn try_once(&self, clock: &Clock, deadline: Instant) -> Result<Gone, StoreError> {
        let answer = self.store.withdraw_one(self.as_withdraw(clock.now()), deadline);
        answer.inspect_err(|error| {
            log::debug!("{}: no answer to a withdrawal: {}", self.subject, error.message)
        })
    }
}

/// A withdrawal that the cleaner works on.
pub(super) struct OpenWithdrawal {
    pub(super) number: u64,
    /// The shard whose thread works on it.
    pub(super) shard: u16,
    pub(super) what: Arc<Withdrawal>,
    pub(super) since: Instant,
    pub(super) next: Instant,
    pub(super) pause: Duration,
    pub(super) answered_at: Option<Instant>,
    /// Whether a copy of a withdrawal or a release may still be on its way.
    pub(super) release_in_flight: bool,
    /// Whether it is being tried now.
    pub(super) running: bool,
    /// How often it was tried.
    pub(super) tries: u64,
}

impl OpenWithdrawal {
    pub(super) fn is(&self, key: &Key, token: &Token) -> bool {
        self.what.token == *token && self.what.key == *key
    }

    /// Whether nothing is left to do after an answer at `now`.
    pub(super) fn is_settled(&self, now: Instant) -> bool {
        let may_arrive = self.what.in_flight || (self.what.reused && self.release_in_flight);
        !may_arrive
            || self
                .answered_at
                .is_some_and(|answered| now.saturating_duration_since(answered) >= SETTLE)
    }
}
