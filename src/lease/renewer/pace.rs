//! How long to wait for the answer to an extend.

use std::time::Duration;

/// The shortest wait for an answer, if the lease allows it: a server may be busy for some time.
const SHORTEST: Duration = Duration::from_millis(100);
/// An answer may take this many times as long as the last.
const SLOWER: u32 = 4;
/// The extra time for each lease of a bulk.
const EACH: Duration = Duration::from_micros(50);

/// The wait is as long as the server seems to need, not as long as the leases allow, because all
/// other leases wait meanwhile (R9). A reply that never comes costs them a tenth of a second; the
/// next try has a new connection, and twice the time.
pub(super) struct Pace {
    /// What the quickest grant took. Only the quickest is sure to be a round trip: a lease that was
    /// handed over counts from long before.
    round_trip: Option<Duration>,
    /// Doubled by each time-out. Halved by each answer, but at least `SLOWER` times what that took.
    wait: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { round_trip: None, wait: SHORTEST }
    }
}

impl Pace {
    /// How long to wait for the answer to the extends of this many leases.
    pub(super) fn wait(&self, leases: usize) -> Duration {
        let each = EACH.saturating_mul(u32::try_from(leases).unwrap_or(u32::MAX));
        self.wait
            .max(self.round_trip.unwrap_or_default().saturating_mul(SLOWER))
            .saturating_add(each)
    }

    /// A lease was added whose validity began `took` ago.
    pub(super) fn granted_within(&mut self, took: Duration) {
        self.round_trip = Some(self.round_trip.map_or(took, |quickest| quickest.min(took)));
    }

    /// `most`: the longest wait for any answer.
    pub(super) fn answered(&mut self, took: Duration, most: Duration) {
        self.set((self.wait / 2).max(took.saturating_mul(SLOWER)), most);
    }

    pub(super) fn timed_out(&mut self, most: Duration) {
        self.set(self.wait.saturating_mul(2), most);
    }

    fn set(&mut self, wait: Duration, most: Duration) {
        self.wait = wait.min(most).max(SHORTEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_secs(2);
    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// One extend over a link on which an answer takes `needs`: how many connections that costs.
    /// Opening a connection takes three times as long.
    fn extend(pace: &mut Pace, needs: Duration) -> u32 {
        for timed_out in 0.. {
            if needs < pace.wait(1).min(MOST) {
                pace.answered(needs + needs * 3 * timed_out.min(1), MOST);
                return timed_out;
            }
            assert!(timed_out < 10, "it never gets through");
            pace.timed_out(MOST);
        }
        unreachable!("it got through, or did not")
    }

    #[test]
    fn a_quick_server_gets_a_tenth_of_a_second() {
        let mut pace = Pace::default();
        pace.granted_within(ms(1));
        assert!((0..100).all(|_| extend(&mut pace, ms(1)) == 0) && pace.wait(1) < ms(101));
    }

    #[test]
    fn a_slow_link_is_known_from_the_first_grant() {
        let mut pace = Pace::default();
        pace.granted_within(ms(300));
        // A lease that was handed over counts from long before, and tells nothing.
        pace.granted_within(ms(9_000));
        assert_eq!(pace.wait(1).as_millis(), 1200);
        assert!((0..100).all(|_| extend(&mut pace, ms(300)) == 0));
    }

    #[test]
    fn a_link_that_becomes_slow_is_learned_and_forgotten() {
        let mut pace = Pace::default();
        pace.granted_within(ms(1));
        let reconnected: u32 = (0..100).map(|_| extend(&mut pace, ms(300))).sum();
        assert_eq!(reconnected, 2, "100 ms and 200 ms were not enough, and then it was known");
        (0..10).for_each(|_| assert_eq!(extend(&mut pace, ms(1)), 0));
        assert!(pace.wait(1) < ms(101));
    }

    #[test]
    fn an_outage_leads_up_to_the_command_timeout_and_an_answer_back_down() {
        let mut pace = Pace::default();
        let waits: Vec<_> = (0..7)
            .map(|_| {
                let wait = pace.wait(0);
                pace.timed_out(MOST);
                wait
            })
            .collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 2000, 2000].map(ms));
        pace.answered(ms(1), MOST);
        assert_eq!(pace.wait(0), ms(1000));
        (0..4).for_each(|_| pace.answered(ms(1), MOST));
        assert_eq!(pace.wait(0), SHORTEST);
    }

    #[test]
    fn a_bulk_gets_more_than_one_lease() {
        assert!(Pace::default().wait(4096) > ms(250));
    }
}
