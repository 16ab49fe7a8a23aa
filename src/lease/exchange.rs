//! Exchanging a lease for one with another share, without a gap.

use std::sync::Arc;

use super::acquisition::{Acquisition, Remains};
use super::events::How;
use super::granted::Lease;
use super::leaving::Leaving;
use super::lost::{Ended, LostReason};
use super::store::Release;
use crate::base::store_error::StoreError;

/// What became of an exchange.
pub(crate) enum Exchanged {
    /// The old lease has ended, and this one is in its place, and in renewal.
    Yes(Arc<Lease>),
    /// The old lease is lost.
    Lost,
    /// Certainly not carried out: the old lease is held as before.
    No(StoreError),
    /// The store has one of the two, nobody knows which: the old lease is lost, and both are
    /// withdrawn in the background.
    Unknown(StoreError),
}

impl Acquisition {
    /// Exchanges `old` for a lease with the token of this acquisition (R28).
    ///
    /// The old lease leaves renewal before the question is sent: an extend behind it would find
    /// nothing, and tell a loss. The question is repeated after a lost answer, as that of a release
    /// is; the store then finds the new token.
    pub(crate) fn exchange(mut self, old: &Arc<Lease>) -> Exchanged {
        if old.has_ended() {
            return Exchanged::Lost;
        }
        let context = Arc::clone(&self.context);
        let leaving = Leaving::new(&context, old);
        let (mut unanswered, asked_at) = (false, context.clock.now());
        // A lease is granted to an attempt.
        self.attempts += 1;
        let answer =
            context.ask_to_end(&leaving, &mut unanswered, |what: &Release<'_>, deadline| {
                self.store.exchange(what, &self.token, self.options().lease, deadline)
            });
        if unanswered {
            self.may_be_left(Remains::Unanswered);
        }
        if !leaving.take() {
            // The thread that ended it reports the loss and withdraws what is left.
            leaving.let_go();
            return Exchanged::Lost;
        }
        match answer {
            Err(error) if !unanswered => {
                leaving.let_go();
                return Exchanged::No(error);
            }
            Err(error) => {
                leaving.end(Ended::Lost(LostReason::Expired));
                return Exchanged::Unknown(error);
            }
            Ok(false) => {
                leaving.end(Ended::Lost(LostReason::Taken));
                return Exchanged::Lost;
            }
            Ok(true) => {}
        }
        match self.granted(How::Asked, asked_at, self.options().lease, old.fences()) {
            Some(lease) => {
                leaving.end(Ended::Released { copy_in_flight: unanswered });
                let lease = self.hand_out(lease);
                // While closing still waits for this acquisition (R41).
                if !context.renewers.of(&lease).add(&lease) {
                    context.finish(&lease, Ended::Lost(LostReason::Closed));
                }
                Exchanged::Yes(lease)
            }
            // The answer came after the end of the new lease.
            None => {
                self.may_be_left(Remains::Known);
                leaving.end(Ended::Lost(LostReason::Expired));
                Exchanged::Lost
            }
        }
    }
}
