//! What is said at most once in a while.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::locked;

/// When something was last said.
#[derive(Default)]
pub(crate) struct Rarely(Mutex<Option<Instant>>);

impl Rarely {
    /// Whether it may be said `now`: not within this time since it was last said. `true` counts as
    /// said.
    pub(crate) fn may_say(&self, now: Instant, pause: Duration) -> bool {
        let mut said = locked(&self.0);
        let may = said.is_none_or(|said| now.saturating_duration_since(said) >= pause);
        if may {
            *said = Some(now);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_again_once_the_pause_is_over() {
        let (rarely, now) = (Rarely::default(), Instant::now());
        let pause = Duration::from_secs(10);
        let says = [0, 1, 9, 10, 11, 19, 20]
            .map(|at| rarely.may_say(now + Duration::from_secs(at), pause));
        assert_eq!(says, [true, false, false, true, false, false, true]);
        assert!(!rarely.may_say(now, pause), "a clock that another thread has read before");
    }
}
