//! Says in the log that calls wait for the server.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::base::store_error::StoreError;
use crate::base::{locked, log};

/// A shorter outage is over before anybody could look.
const WORTH_A_WORD: Duration = Duration::from_secs(1);
/// Between two messages of one client, however many of its threads wait.
const PAUSE: Duration = Duration::from_secs(30);

/// When a client has last said that its calls wait for the server.
#[derive(Default)]
pub(crate) struct Outages(Mutex<Option<Instant>>);

impl Outages {
    /// A call has been without an answer for so long, `now` because of `why`.
    pub(crate) fn say(&self, outage: Duration, now: Instant, why: &StoreError) {
        if outage < WORTH_A_WORD {
            return;
        }
        let is_news = {
            let mut said = locked(&self.0);
            let is_news = said.is_none_or(|said| now.saturating_duration_since(said) >= PAUSE);
            if is_news {
                *said = Some(now);
            }
            is_news
        };
        if is_news {
            log::warn!("a call has waited for the server for {:.1} s: {why}", outage.as_secs_f64());
        }
    }
}
