//! The thread that reads the subscription of an inbox.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};
use redis::{RedisError, RedisResult};

use super::{Ears, parse};
use crate::base::{locked, log};
use crate::server::demotion::DemotionWatch;
use crate::server::reply;
use crate::server::subscriber::{Opened, Subscriber};
use crate::server::subscription::{Message, Subscription};

/// How long the reader stays in a read before it looks for other work. It is poked when there is
/// anything new, so this is for lost pokes, and for channels that have no waiter any more.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// After this long without a message the reader sends a PING: a subscription that was cut off
/// silently looks like a quiet one.
const QUIET: Duration = Duration::from_secs(5);
/// The pause between two attempts to open the subscription.
const PAUSE: Duration = Duration::from_millis(100);
/// The same pause grows to this while nodes name another one for the channel: each attempt logs in
/// at a healthy node, because of one that is not.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The same pause if the server refuses the subscription, which somebody has to change first.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// Whether the server answered, and will not answer otherwise by itself.
fn is_refusal(error: &RedisError) -> bool {
    let refused = |code| reply::refused(code, error.detail().unwrap_or_default());
    // Another node has the channel.
    error.code().is_some_and(|code| code != "MOVED" && refused(code).permanent)
}

/// Whether the thread has been told to end.
fn is_over(stop: &Receiver<()>) -> bool {
    stop.try_recv() == Err(TryRecvError::Disconnected)
}

impl Ears {
    pub(super) fn run(&self, subscriber: &Subscriber, stop: &Receiver<()>) {
        let mut after_moved = PAUSE;
        while !is_over(stop) {
            let mut pause = PAUSE;
            match subscriber.open(&self.address, LOOK_AROUND) {
                None => return,
                Some(Ok(Opened { subscription, demoted, at })) => {
                    match self.read(subscription, stop, &demoted) {
                        Ok(()) => {}
                        Err(error) if is_refusal(&error) => {
                            pause = REFUSED_PAUSE;
                            if !self.said_refused.swap(true, Ordering::Relaxed) {
                                log::warn!(
                                    "the server refuses the subscription to {}, so waiters poll",
                                    self.address
                                );
                            }
                        }
                        Err(error) => {
                            if error.code() == Some("MOVED") {
                                pause = after_moved;
                                after_moved = (after_moved * 2).min(LONGEST_PAUSE);
                            } else {
                                after_moved = PAUSE;
                            }
                            subscriber.learn(&error, at.as_ref());
                            log::debug!(
                                "the subscription for wake-ups was lost: {}",
                                error.category()
                            );
                        }
                    }
                    *locked(&self.stands_since) = None;
                    locked(&self.channels).end();
                }
                Some(Err(error)) => log::debug!("no subscription for wake-ups: {}", error.message),
            }
            let _ = stop.recv_timeout(pause);
        }
    }

    fn read(
        &self,
        mut subscription: Subscription,
        stop: &Receiver<()>,
        demoted: &DemotionWatch,
    ) -> RedisResult<()> {
        subscription.subscribe(&self.address)?;
        self.elsewhere.store(false, Ordering::SeqCst);
        *locked(&self.stands_since) = Some(Instant::now());
        // What was published while nobody listened is lost: every waiter asks again.
        locked(&self.waiting).values().filter_map(Weak::upgrade).for_each(|bell| bell.ring());
        locked(&self.channels).begin();
        let mut heard = Instant::now();
        let mut looked = heard;
        // A server that has become a replica keeps its subscribers. The new master does not see
        // them, so it sends them no hand-offs (R21, R22).
        while !is_over(stop) && !demoted.is_over() {
            if self.elsewhere.load(Ordering::SeqCst) {
                log::debug!(
                    "the subscription for wake-ups stands at another server than the one that \
                     answers"
                );
                return Ok(());
            }
            self.join(&mut subscription)?;
            if looked.elapsed() >= LOOK_AROUND {
                self.leave(&mut subscription)?;
                looked = Instant::now();
            }
            match subscription.message() {
                Ok(message) => self.hear(&message),
                Err(error) if error.is_timeout() && heard.elapsed() < QUIET => continue,
                Err(error) if error.is_timeout() => subscription.ping()?,
                Err(error) => return Err(error),
            }
            heard = Instant::now();
        }
        Ok(())
    }

    /// Subscribes to the channels of new waiters.
    fn join(&self, subscription: &mut Subscription) -> RedisResult<()> {
        let next = || locked(&self.channels).next_join();
        while let Some(name) = next() {
            match subscription.subscribe(&name) {
                Ok(()) => locked(&self.channels).joined(&name),
                // Its slot has left the node: whoever waits there polls.
                Err(error) if error.code() == Some("MOVED") => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Unsubscribes from channels that have no waiter any more.
    fn leave(&self, subscription: &mut Subscription) -> RedisResult<()> {
        let idle = locked(&self.channels).take_idle();
        idle.iter().try_for_each(|name| subscription.unsubscribe(name))
    }

    /// A message in our own channel names a hand-off: `attempt fence count token key`; anything
    /// else there is ignored. A message in another library's channel is a hint, whatever its text.
    fn hear(&self, message: &Message) {
        let Ok(channel) = std::str::from_utf8(&message.channel) else { return };
        if channel != &*self.address {
            return locked(&self.channels).heard(channel);
        }
        let Some((grant, token, key)) = std::str::from_utf8(&message.text).ok().and_then(parse)
        else {
            return;
        };
        let bell = locked(&self.waiting).get(&token).map(Weak::upgrade);
        match bell {
            Some(Some(bell)) => bell.grant(grant),
            // The waiter holds the lock by now: one of its attempts was granted meanwhile.
            Some(None) => {}
            None => (self.stray)(key, token),
        }
    }
}
