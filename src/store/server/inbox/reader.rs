//! The thread that reads the subscription of an inbox.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};
use redis::{Msg, PubSub, RedisError, RedisResult};

use super::{Ears, parse};
use crate::base::locked;
use crate::base::log;
use crate::store::server::demotion::Watch;
use crate::store::server::node::Endpoint;

/// How long the reader stays in a read before it looks for other work. It is poked when there is
/// anything new, so this is for lost pokes, and for channels that have no waiter any more.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// After this long without a message the reader sends a PING: a subscription that was cut off
/// silently looks like a quiet one.
const QUIET: Duration = Duration::from_secs(5);
/// The pause between two attempts to open the subscription.
const PAUSE: Duration = Duration::from_millis(100);
/// The same pause if this user may not subscribe, which somebody has to change first.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);
const REFUSED: redis::ErrorKind = redis::ErrorKind::Client;

fn refused() -> RedisError {
    (REFUSED, "the server refused the subscription").into()
}

/// Whether the thread has been told to end.
fn is_over(stop: &Receiver<()>) -> bool {
    stop.try_recv() == Err(TryRecvError::Disconnected)
}

impl Ears {
    pub(super) fn run(&self, endpoint: &Weak<Endpoint>, stop: &Receiver<()>) {
        while !is_over(stop) {
            let mut pause = PAUSE;
            // It is held only to connect, so that a waiting thread keeps nothing of the client
            // alive.
            let Some(connecting) = endpoint.upgrade() else { return };
            let demoted = connecting.demotions();
            let opened = connecting.open_for_itself(LOOK_AROUND);
            drop(connecting);
            match opened {
                Ok(mut connection) => {
                    let mut subscription = connection.as_pubsub();
                    match self.read(&mut subscription, stop, &demoted) {
                        Ok(()) => {}
                        Err(error) if error.kind() == REFUSED => {
                            log::warn!(
                                "this user may not subscribe to {}, or not PING, so waiters poll",
                                self.address
                            );
                            pause = REFUSED_PAUSE;
                        }
                        Err(error) => log::debug!(
                            "the subscription for wake-ups was lost: {}",
                            error.category()
                        ),
                    }
                    *locked(&self.stands_since) = None;
                    locked(&self.channels).end();
                    // Unsubscribing is polite, but not worth waiting for.
                    let _ = subscription.set_read_timeout(Some(Duration::from_millis(20)));
                }
                Err(error) => log::debug!("no subscription for wake-ups: {}", error.message),
            }
            let _ = stop.recv_timeout(pause);
        }
    }

    fn read(
        &self,
        subscription: &mut PubSub<'_>,
        stop: &Receiver<()>,
        demoted: &Watch,
    ) -> RedisResult<()> {
        subscription.subscribe(&*self.address)?;
        // redis-rs takes a refusal for a confirmation. But PING answers a subscriber with a list,
        // and anybody else with one word.
        match subscription.ping()? {
            redis::Value::Array(_) => {}
            // Whoever may not call PING would never find out whether the subscription stands.
            redis::Value::SimpleString(word) if word == "PONG" => return Err(refused()),
            redis::Value::ServerError(_) => return Err(refused()),
            _ => return Err((redis::ErrorKind::UnexpectedReturnType, "no answer to a ping").into()),
        }
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
            self.join(subscription)?;
            if looked.elapsed() >= LOOK_AROUND {
                self.leave(subscription)?;
                looked = Instant::now();
            }
            match subscription.get_message() {
                Ok(message) => self.hear(&message),
                Err(error) if error.is_timeout() && heard.elapsed() < QUIET => continue,
                Err(error) if error.is_timeout() => {
                    subscription.ping::<redis::Value>().map(drop)?
                }
                Err(error) => return Err(error),
            }
            heard = Instant::now();
        }
        Ok(())
    }

    /// Subscribes to the channels of new waiters. One channel per call: redis-rs reads one
    /// confirmation per call.
    fn join(&self, subscription: &mut PubSub<'_>) -> RedisResult<()> {
        let next = || locked(&self.channels).next_join();
        while let Some(name) = next() {
            subscription.subscribe(&*name)?;
            locked(&self.channels).joined(&name);
        }
        Ok(())
    }

    /// Unsubscribes from channels that have no waiter any more.
    fn leave(&self, subscription: &mut PubSub<'_>) -> RedisResult<()> {
        let idle = locked(&self.channels).take_idle();
        idle.iter().try_for_each(|name| subscription.unsubscribe(&**name))
    }

    /// A message in our own channel names a hand-off: `attempt fence count token key`; anything
    /// else there is ignored. A message in another library's channel is a hint, whatever its text.
    fn hear(&self, message: &Msg) {
        if message.get_channel_name() != &*self.address {
            return locked(&self.channels).heard(message.get_channel_name());
        }
        let Some((grant, token, key)) =
            std::str::from_utf8(message.get_payload_bytes()).ok().and_then(parse)
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
