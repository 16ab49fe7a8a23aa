//! Says in the log that calls wait for the server.

use std::time::{Duration, Instant};

use crate::base::log;
use crate::base::rarely::Rarely;
use crate::base::store_error::StoreError;

/// A shorter outage is over before anybody could look.
const WORTH_A_WORD: Duration = Duration::from_secs(1);
/// Between two messages of one client, however many of its threads wait.
const PAUSE: Duration = Duration::from_secs(30);

/// When a client has last said that its calls wait for the server.
#[derive(Default)]
pub(crate) struct Outages(Rarely);

impl Outages {
    /// A call has been without an answer for so long, `now` because of `why`.
    pub(crate) fn say(&self, outage: Duration, now: Instant, why: &StoreError) {
        if outage >= WORTH_A_WORD && self.0.may_say(now, PAUSE) {
            log::warn!("a call has waited for the server for {:.1} s: {why}", outage.as_secs_f64());
        }
    }
}
