//! Hears of failovers: one thread for each sentinel, subscribed there. Together they also ask all
//! sentinels now and then.
//!
//! Sentinel tells an old primary that it is a replica only seconds after the failover. Until then,
//! connections to it would go on writing there. News of a failover ends the use of all of them
//! (R22). The sentinel that leads a failover has the news first, the others up to two seconds
//! later: so each of them is listened to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};
use redis::RedisResult;

use super::{Sentinel, Sentinels};
use crate::base::worker::{Stopped, Worker};
use crate::base::{locked, log};
use crate::server::dial::Address;
use crate::server::subscription::Subscription;

/// The pause between two rounds of questions. A failover that the subscriptions missed is found
/// within it.
const LOOK_AROUND: Duration = Duration::from_secs(2);
/// How long the thread sleeps in a read, and so how late it notices that it has to end.
const READ: Duration = Duration::from_millis(200);
/// Between two tries to subscribe at a sentinel.
const AGAIN: Duration = Duration::from_secs(1);

/// The threads that listen to the sentinels of one service.
pub(crate) struct Watchers {
    pub(crate) sentinels: Arc<Sentinels>,
    threads: Vec<Worker<()>>,
}

impl Watchers {
    pub(crate) fn new(sentinels: Arc<Sentinels>) -> Self {
        let threads = sentinels.all.iter().map(|_| Worker::new("distlock-sentinel")).collect();
        Self { sentinels, threads }
    }

    /// Starts them, unless they run.
    pub(crate) fn start(&self) {
        for (thread, sentinel) in self.threads.iter().zip(&self.sentinels.all) {
            let (sentinels, sentinel) = (Arc::clone(&self.sentinels), Arc::clone(sentinel));
            let started = thread.start(move |stop| {
                let sentinels = Arc::clone(&sentinels);
                Watcher { sentinels, sentinel: &sentinel, stop }.run();
            });
            if let Err(error) = started {
                log::warn!("no thread could be started to listen to the sentinels: {error}");
            }
        }
    }

    /// Ends them. `false`: not by `deadline`.
    pub(crate) fn stop(&self, deadline: Instant) -> bool {
        let stopped: Vec<Stopped> = self.threads.iter().map(Worker::stop).collect();
        stopped.iter().all(|stopped| stopped.wait(deadline))
    }
}

/// What one of the threads knows: all sentinels, its own, and the channel that tells it to end.
struct Watcher<'a> {
    sentinels: Arc<Sentinels>,
    sentinel: &'a Arc<Sentinel>,
    stop: &'a Receiver<()>,
}

impl Watcher<'_> {
    fn run(&self) {
        while !self.is_over() {
            match self.sentinels.open(self.sentinel, Instant::now() + self.sentinels.within) {
                Ok(ask) => {
                    let subscription = Subscription::new(ask.connection, self.sentinels.within);
                    if let Err(error) = self.listen(subscription) {
                        log::debug!("a sentinel was lost: {}", error.category());
                    }
                }
                Err(error) => log::debug!("no subscription at a sentinel: {}", error.message),
            }
            // Without a subscription there are only questions.
            self.look_around(LOOK_AROUND);
            let _ = self.stop.recv_timeout(AGAIN);
        }
    }

    fn is_over(&self) -> bool {
        self.stop.try_recv() == Err(TryRecvError::Disconnected)
    }

    fn listen(&self, mut subscription: Subscription) -> RedisResult<()> {
        subscription.subscribe("+switch-master")?;
        // News from before the subscription stood has to be asked for.
        self.look_around(Duration::ZERO);
        let mut looked = Instant::now();
        while !self.is_over() {
            if looked.elapsed() >= LOOK_AROUND {
                self.look_around(LOOK_AROUND);
                // A sentinel that hangs looks like one that has nothing to say.
                subscription.wait_for(self.sentinels.within);
                subscription.ping()?;
                looked = Instant::now();
            }
            subscription.wait_for(READ);
            match subscription.message() {
                Ok(message) => {
                    if let Some(moved) = told(&self.sentinels.service, &message.text) {
                        self.hear_of_a_failover(moved);
                    }
                }
                Err(error) if error.is_timeout() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// At once, every user of a connection has to ask where the primary is: the one that it had may
    /// go on taking writes for seconds.
    ///
    /// The news may be old: this sentinel, or this thread, was stopped for a while, and the primary
    /// has moved back since. The sentinel's own answer shows that.
    fn hear_of_a_failover(&self, Switch { old, new }: Switch) {
        let mut state = locked(&self.sentinels.state);
        let known = state.known.as_ref().map(|known| &known.address);
        let (was_there, is_there) = (known == Some(&old), known == Some(&new));
        if is_there && !state.in_doubt {
            // Another sentinel was sooner.
            return;
        }
        if !is_there {
            (state.in_doubt, state.moved) = (true, true);
        }
        if was_there {
            // Others may name it for some time.
            state.leave(old);
        }
        drop(state);
        if !is_there {
            self.sentinels.tell();
        }
        self.sentinels.ask_alone(self.sentinel, was_there);
    }

    /// Asks all sentinels, unless they have been asked within that time. Without an answer
    /// nothing changes: the next connection will show.
    fn look_around(&self, within: Duration) {
        let now = Instant::now();
        let mut asked_at = locked(&self.sentinels.asking);
        if asked_at.is_none_or(|asked_at| asked_at + within <= now) {
            let _ = self.sentinels.ask(&mut asked_at, Instant::now() + self.sentinels.within);
        }
    }
}

/// A failover, as `+switch-master` tells of it.
#[derive(Debug, PartialEq)]
struct Switch {
    old: Address,
    new: Address,
}

/// The failover, if a message on `+switch-master` is about this service. It has the name of the
/// service, the old address, and the new one.
fn told(service: &str, message: &[u8]) -> Option<Switch> {
    let message = std::str::from_utf8(message).ok()?;
    let mut words = message.split(' ');
    let name = words.next()?;
    let mut address = || {
        let (host, port) = (words.next()?.into(), words.next()?.parse().ok()?);
        Some(Address { host, port })
    };
    let moved = Switch { old: address()?, new: address()? };
    (name == service).then_some(moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_of_another_service_are_none() {
        let address = |host: &str| Address { host: host.into(), port: 6379 };
        let moved = Switch { old: address("10.0.0.1"), new: address("10.0.0.2") };
        assert_eq!(told("a", b"a 10.0.0.1 6379 10.0.0.2 6379"), Some(moved));
        assert_eq!(told("a", b"ab 10.0.0.1 6379 10.0.0.2 6379"), None);
        assert_eq!(told("ab", b"a 10.0.0.1 6379 10.0.0.2 6379"), None);
        assert_eq!(told("a", b"a"), None);
        assert_eq!(told("a", b"a 10.0.0.1 6379"), None);
        assert_eq!(told("a", b"a 10.0.0.1 \xff"), None);
    }
}
