//! Hears of failovers: one thread, subscribed at one sentinel, which also asks all of them now and
//! then.
//!
//! Sentinel tells an old primary that it is a replica only seconds after the failover. Until then,
//! connections to it would go on writing there. News of a failover ends the use of all of them
//! (R22).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};
use redis::RedisResult;

use super::{Address, Sentinel, Sentinels};
use crate::base::locked;
use crate::base::log;
use crate::store::server::subscription::Subscription;

/// Between two rounds of questions: a failover that the subscription missed is found so soon.
const LOOK_AROUND: Duration = Duration::from_secs(2);
/// How long the thread sleeps in a read, and so how late it notices that it has to end.
const READ: Duration = Duration::from_millis(200);

/// What the thread knows: the sentinels, and the channel that tells it to end.
pub(crate) struct Watcher<'a> {
    pub(crate) sentinels: Arc<Sentinels>,
    pub(crate) stop: &'a Receiver<()>,
}

impl Watcher<'_> {
    pub(crate) fn run(&self) {
        let mut at = 0;
        while !self.is_over() {
            let all = &self.sentinels.all;
            let Some(sentinel) = all.get(at % all.len().max(1)) else { return };
            at += 1;
            match self.sentinels.open(sentinel, Instant::now() + self.sentinels.within) {
                Ok(ask) => {
                    let subscription = Subscription::new(ask.connection, self.sentinels.within);
                    if let Err(error) = self.listen(sentinel, subscription) {
                        log::debug!("a sentinel was lost: {}", error.category());
                    }
                }
                Err(error) => log::debug!("no subscription at a sentinel: {}", error.message),
            }
            let _ = self.stop.recv_timeout(READ);
        }
    }

    fn is_over(&self) -> bool {
        self.stop.try_recv() == Err(TryRecvError::Disconnected)
    }

    fn listen(&self, sentinel: &Arc<Sentinel>, mut subscription: Subscription) -> RedisResult<()> {
        subscription.subscribe("+switch-master")?;
        // What was said before the subscription stood has to be asked for.
        let mut looked = None::<Instant>;
        while !self.is_over() {
            if looked.is_none_or(|looked| looked.elapsed() >= LOOK_AROUND) {
                self.look_around();
                // A sentinel that hangs looks like one that has nothing to say.
                subscription.wait_for(self.sentinels.within);
                subscription.ping()?;
                subscription.wait_for(READ);
                looked = Some(Instant::now());
            }
            match subscription.message() {
                Ok(message) => {
                    if let Some(old) = told(&self.sentinels.service, &message.text) {
                        self.hear_of_a_failover(sentinel, old);
                    }
                }
                Err(error) if error.is_timeout() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// At once, whoever uses a connection has to ask where the primary is: the one that it had may
    /// go on taking writes for seconds.
    fn hear_of_a_failover(&self, sentinel: &Arc<Sentinel>, old: Address) {
        let mut state = locked(&self.sentinels.state);
        (state.in_doubt, state.moved) = (true, true);
        // Others may name it for some time.
        if state.known.as_ref().is_some_and(|known| known.address == old) {
            state.leave(old);
        }
        drop(state);
        self.sentinels.tell();
        self.sentinels.ask_alone(sentinel);
    }

    /// Asks all sentinels. Without an answer everything stays as it is: whoever needs a connection
    /// will see.
    fn look_around(&self) {
        let _asking = locked(&self.sentinels.asking);
        let _ = self.sentinels.ask(Instant::now() + self.sentinels.within);
    }
}

/// The old primary, if a message on `+switch-master` is about this service. It has the name of the
/// service, the old address, and the new one.
fn told(service: &str, message: &[u8]) -> Option<Address> {
    let message = std::str::from_utf8(message).ok()?;
    let mut words = message.split(' ');
    let (name, host, port) = (words.next()?, words.next()?, words.next()?);
    let port = port.parse().ok()?;
    (name == service).then(|| Address { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_of_another_service_are_none() {
        let old = Address { host: "10.0.0.1".into(), port: 6379 };
        assert_eq!(told("a", b"a 10.0.0.1 6379 10.0.0.2 6379"), Some(old));
        assert_eq!(told("a", b"ab 10.0.0.1 6379 10.0.0.2 6379"), None);
        assert_eq!(told("ab", b"a 10.0.0.1 6379 10.0.0.2 6379"), None);
        assert_eq!(told("a", b"a"), None);
        assert_eq!(told("a", b"a 10.0.0.1 \xff"), None);
    }
}
