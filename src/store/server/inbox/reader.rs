//! The thread that reads the subscription of an inbox.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use redis::{Msg, PubSub, RedisResult};

use super::{Ears, parse};
use crate::base::locked;
use crate::store::server::demotion::Watch;
use crate::store::server::node::Node;
use crate::store::server::subscriptions::Channels;

/// How long the reader stays in a read before it looks for other work. It is poked when there is
/// anything new, so this is for lost pokes, and for channels that have no waiter any more.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// After this long without a message the reader sends a PING: a subscription that was cut off
/// silently looks like a quiet one.
const QUIET: Duration = Duration::from_secs(5);
/// A reader that has been in one read for this long is given up. While bytes arrive, no timeout of
/// the connection ends the read: after a lost or garbled reply the reader may take every message
/// for a part of the reply that it waits for.
const STUCK: Duration = Duration::from_secs(3);
/// The pause between two attempts to open the subscription.
const PAUSE: Duration = Duration::from_millis(100);
/// The same pause if this user may not subscribe, which somebody has to change first.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);
const REFUSED: redis::ErrorKind = redis::ErrorKind::Client;

/// One thread that reads a subscription, as other threads see it.
#[derive(Default)]
pub(super) struct Reader {
    /// When its present read began; `None`: it is in no read.
    pub(super) reads_since: Mutex<Option<Instant>>,
    /// When the subscription came up; `None`: it is not up.
    pub(super) stands_since: Mutex<Option<Instant>>,
    /// The subscription is at another server than the one that answers: it has to be opened again.
    pub(super) elsewhere: AtomicBool,
    /// Another thread reads instead. Changed with the channels locked, so that a stuck reader does
    /// not change them any more.
    pub(super) replaced: AtomicBool,
}

impl Reader {
    fn is_in_a_read(&self) {
        *locked(&self.reads_since) = Some(Instant::now());
    }

    pub(super) fn is_stuck(&self) -> bool {
        locked(&self.reads_since).is_some_and(|since| since.elapsed() > STUCK)
    }

    fn is_out_of_a_read(&self) {
        *locked(&self.reads_since) = None;
    }
}

impl Ears {
    pub(super) fn start(
        self: &Arc<Self>,
        node: &Arc<Node>,
    ) -> io::Result<(Arc<Reader>, Receiver<()>)> {
        let (ending, ended) = bounded::<()>(0);
        let (ears, reader, node) =
            (Arc::clone(self), Arc::<Reader>::default(), Arc::downgrade(node));
        let its = Arc::clone(&reader);
        thread::Builder::new().name("distlock-inbox".into()).spawn(move || {
            let _ending = ending;
            ears.run(&its, &node);
        })?;
        Ok((reader, ended))
    }

    /// Notes that another thread reads instead of this reader, or that this reader goes on after
    /// all.
    pub(super) fn replace(&self, reader: Option<&(Arc<Reader>, Receiver<()>)>, replaced: bool) {
        let _channels = locked(&self.channels);
        if let Some((reader, _)) = reader {
            reader.replaced.store(replaced, Ordering::SeqCst);
        }
    }

    /// The channels, for the reader that reads; `None`: another one has replaced it.
    fn channels(&self, reader: &Reader) -> Option<MutexGuard<'_, Channels>> {
        let channels = locked(&self.channels);
        (!reader.replaced.load(Ordering::SeqCst)).then_some(channels)
    }

    fn is_over(&self, reader: &Reader) -> bool {
        self.stopped.load(Ordering::SeqCst) || reader.replaced.load(Ordering::SeqCst)
    }

    fn run(&self, reader: &Reader, node: &Weak<Node>) {
        while !self.is_over(reader) {
            let mut pause = PAUSE;
            // The node is held only to connect, so that a waiting thread keeps nothing of the
            // client alive.
            let Some(connecting) = node.upgrade() else { return };
            let demoted = connecting.demotions();
            let opened = connecting.open_for_itself(LOOK_AROUND);
            drop(connecting);
            match opened {
                Ok(mut connection) => {
                    let mut subscription = connection.as_pubsub();
                    match self.read(reader, &mut subscription, node, &demoted) {
                        Ok(()) => {}
                        Err(error) if error.kind() == REFUSED => {
                            log::warn!(
                                "this user may not subscribe to {}, so waiters poll",
                                self.address
                            );
                            pause = REFUSED_PAUSE;
                        }
                        Err(error) => log::debug!(
                            "the subscription for wake-ups was lost: {}",
                            error.category()
                        ),
                    }
                    *locked(&reader.stands_since) = None;
                    if let Some(mut channels) = self.channels(reader) {
                        channels.end();
                    }
                    // Unsubscribing is polite, but not worth waiting for.
                    let _ = subscription.set_read_timeout(Some(Duration::from_millis(20)));
                    drop(subscription);
                    reader.is_out_of_a_read();
                }
                Err(error) => log::debug!("no subscription for wake-ups: {}", error.message),
            }
            let until = Instant::now() + pause;
            while !self.is_over(reader) && Instant::now() < until {
                thread::sleep(PAUSE);
            }
        }
    }

    fn read(
        &self,
        reader: &Reader,
        subscription: &mut PubSub<'_>,
        node: &Weak<Node>,
        demoted: &Watch,
    ) -> RedisResult<()> {
        reader.is_in_a_read();
        subscription.subscribe(&*self.address)?;
        // redis-rs takes a refusal for a confirmation. But PING answers a subscriber with a list,
        // and anybody else with one word.
        match subscription.ping()? {
            redis::Value::Array(_) => {}
            redis::Value::SimpleString(word) if word == "PONG" => {
                return Err((REFUSED, "the server refused the subscription").into());
            }
            _ => return Err((redis::ErrorKind::UnexpectedReturnType, "no answer to a ping").into()),
        }
        reader.elsewhere.store(false, Ordering::SeqCst);
        *locked(&reader.stands_since) = Some(Instant::now());
        // What was published while nobody listened is lost: every waiter asks again.
        locked(&self.waiting).values().filter_map(Weak::upgrade).for_each(|bell| bell.ring());
        let Some(()) = self.channels(reader).map(|mut channels| channels.begin()) else {
            return Ok(());
        };
        let mut heard = Instant::now();
        let mut looked = heard;
        // A server that has become a replica keeps its subscribers. The new master does not see
        // them, so it sends them no hand-offs (R21, R22).
        while !self.is_over(reader) && !demoted.is_over() {
            if reader.elsewhere.load(Ordering::SeqCst) {
                log::debug!(
                    "the subscription for wake-ups stands at another server than the one that \
                     answers"
                );
                return Ok(());
            }
            reader.is_in_a_read();
            self.join(reader, subscription)?;
            if looked.elapsed() >= LOOK_AROUND {
                self.leave(reader, subscription)?;
                reader.is_out_of_a_read();
                if let Some(node) = node.upgrade().filter(|_| self.is_waited_for()) {
                    node.look_at_role();
                }
                looked = Instant::now();
                continue;
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

    /// Whether a waiter sleeps until a message comes. A waiter in a condition sends nothing for
    /// seconds, and so does not find a demotion by itself.
    fn is_waited_for(&self) -> bool {
        locked(&self.waiting).values().any(|bell| bell.strong_count() > 0)
    }

    /// Subscribes to the channels of new waiters. One channel per call: redis-rs reads one
    /// confirmation per call.
    fn join(&self, reader: &Reader, subscription: &mut PubSub<'_>) -> RedisResult<()> {
        while let Some(name) = self.channels(reader).and_then(|mut channels| channels.next_join()) {
            reader.is_in_a_read();
            subscription.subscribe(&*name)?;
            if let Some(mut channels) = self.channels(reader) {
                channels.joined(&name);
            }
        }
        Ok(())
    }

    /// Unsubscribes from channels that have no waiter any more.
    fn leave(&self, reader: &Reader, subscription: &mut PubSub<'_>) -> RedisResult<()> {
        let idle =
            self.channels(reader).map(|mut channels| channels.take_idle()).unwrap_or_default();
        idle.iter().try_for_each(|name| {
            reader.is_in_a_read();
            subscription.unsubscribe(&**name)
        })
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
