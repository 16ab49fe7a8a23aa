//! The inbox: wake-ups, over one subscription per client.
//!
//! Opened at the first contended wait, opened again after a loss. Everything that it brings is
//! checked by the waiter that it is for; losing all of it costs a waiter at most one pause (R15).
//! Hand-offs of our own queues come through the client's own channel; the same subscription also
//! hears the channels of other libraries, for as long as somebody waits there.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError, bounded};
use redis::{Msg, PubSub, RedisResult};

use super::channels::Channels;
use super::demotion::Watch;
use super::node::Node;
use crate::base::bell::{Bell, Fences, Grant};
use crate::base::locked;
use crate::lease::key::Key;
use crate::lease::store::Listening;
use crate::lease::token::Token;

/// How long the reader sleeps in a read before it looks around. It is poked when there is anything
/// new, so this is for lost pokes, and for channels that nobody waits at any more.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// After this long without a word the server is asked for one: a subscription that was cut off
/// silently looks like a quiet one.
const QUIET: Duration = Duration::from_secs(5);
/// A reader that has been in one read for so long is given up. No time limit of a connection ends
/// that while bytes come: after a reply that was lost or garbled it may take every message for a
/// part of what it waits for.
const STUCK: Duration = Duration::from_secs(3);
/// So many of them may be stuck at a time. With more, waiters poll.
const MOST_STUCK: usize = 4;
/// Between two attempts to open the subscription.
const PAUSE: Duration = Duration::from_millis(100);
/// And where this user may not subscribe, which somebody has to change first.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);
const REFUSED: redis::ErrorKind = redis::ErrorKind::Client;

/// A grant for a token that nobody here knows: what was cancelled, and came back. Whoever hears it
/// withdraws.
pub(crate) type Stray = Box<dyn Fn(Key, Token) + Send + Sync>;

/// Where a client hears wake-ups.
pub(crate) struct Inbox {
    ears: Arc<Ears>,
    readers: Mutex<Readers>,
}

#[derive(Default)]
struct Readers {
    /// The one that reads, and what tells that its thread has ended.
    now: Option<(Arc<Reader>, Receiver<()>)>,
    /// Those that were stuck. Each ends with its connection, or after a second without a message.
    stuck: Vec<Receiver<()>>,
}

/// One thread that reads a subscription, as others see it.
#[derive(Default)]
struct Reader {
    /// Since when it has been in its present read; `None`: in none.
    reads_since: Mutex<Option<Instant>>,
    /// Since when the subscription stands.
    stands_since: Mutex<Option<Instant>>,
    /// It stands at a server that is not the one that answers: it has to be opened again.
    elsewhere: AtomicBool,
    /// Another thread reads instead. Changes with the channels locked, so that a stuck reader says
    /// nothing of them any more.
    replaced: AtomicBool,
}

struct Ears {
    /// The channel that hand-offs to this client are published on.
    address: Arc<str>,
    waiting: Mutex<HashMap<Token, Weak<Bell>>>,
    /// Whose releases other libraries publish.
    channels: Mutex<Channels>,
    stray: Stray,
    stopped: AtomicBool,
}

impl Inbox {
    pub(super) fn new(id: &str, stray: Stray) -> Self {
        let ears = Ears {
            address: format!("distlock:inbox:{id}").into(),
            waiting: Mutex::default(),
            channels: Mutex::default(),
            stray,
            stopped: AtomicBool::new(false),
        };
        Self { ears: Arc::new(ears), readers: Mutex::default() }
    }

    /// Has hand-offs to `token` ring `bell` until the returned value is dropped. Does not wait for
    /// the subscription: until it stands, its waiters poll.
    pub(super) fn listen(
        &self,
        node: &Arc<Node>,
        token: &Token,
        bell: &Arc<Bell>,
    ) -> Option<Listening> {
        self.start(node)?;
        locked(&self.ears.waiting).insert(token.clone(), Arc::downgrade(bell));
        let ear = Ear { ears: Arc::clone(&self.ears), token: token.clone() };
        Some(Listening {
            address: Arc::clone(&self.ears.address),
            queues: true,
            until_dropped: Box::new(ear),
        })
    }

    /// Has messages on `channel` ring `bell`, as hints, until the returned value is dropped. Does
    /// not wait for the subscription; `bell` is rung once it stands.
    pub(super) fn listen_at(
        &self,
        node: &Arc<Node>,
        channel: Arc<str>,
        token: &Token,
        bell: &Arc<Bell>,
    ) -> Option<Listening> {
        self.start(node)?;
        locked(&self.ears.channels).join(&channel, token, bell);
        let waiting = WaitingAt {
            ears: Arc::clone(&self.ears),
            channel: Arc::clone(&channel),
            token: token.clone(),
        };
        Some(Listening { address: channel, queues: false, until_dropped: Box::new(waiting) })
    }

    /// Has the reader subscribe at once to what was just asked for, instead of within a second.
    pub(super) fn hurry(&self, node: &Node, deadline: Instant) {
        let poke = locked(&self.ears.channels).wants_a_poke();
        if poke {
            node.publish(&self.ears.address, "", deadline);
        }
    }

    /// A server that was asked at `asked_at`, or later, heard nobody at this inbox (R21). If it
    /// stood by then, it stands at another server, such as one that was the master until a
    /// failover: Redis closes no subscription for that. It is opened again within a second, and its
    /// waiters poll meanwhile.
    pub(super) fn is_not_heard(&self, asked_at: Instant) {
        let readers = locked(&self.readers);
        let Some((reader, _)) = &readers.now else { return };
        if locked(&reader.stands_since).is_some_and(|since| since < asked_at) {
            reader.elsewhere.store(true, Ordering::SeqCst);
        }
    }

    /// Sees to it that a thread reads. Whoever waits does so as often as it asks. `None`: there is
    /// no thread.
    pub(super) fn start(&self, node: &Arc<Node>) -> Option<()> {
        let mut readers = locked(&self.readers);
        let stuck = |(reader, _): &(Arc<Reader>, _)| {
            locked(&reader.reads_since).is_some_and(|since| since.elapsed() > STUCK)
        };
        readers.stuck.retain(|ended| ended.try_recv() == Err(TryRecvError::Empty));
        if readers.now.as_ref().is_some_and(|reader| !stuck(reader))
            || readers.stuck.len() == MOST_STUCK
        {
            return Some(());
        }
        let new = self.ears.start(node);
        let new = new
            .inspect_err(|error| {
                log::warn!("no thread could be started to hear wake-ups, so waiters poll: {error}")
            })
            .ok()?;
        if let Some((reader, ended)) = readers.now.replace(new) {
            log::debug!(
                "the reader of the subscription for wake-ups is stuck, and another one takes its \
                 place"
            );
            let _channels = locked(&self.ears.channels);
            reader.replaced.store(true, Ordering::SeqCst);
            readers.stuck.push(ended);
        }
        Some(())
    }

    /// Ends the thread. `false`: not by `deadline`.
    pub(super) fn close(&self, node: &Node, deadline: Instant) -> bool {
        self.ears.stopped.store(true, Ordering::SeqCst);
        let Some((_, ended)) = locked(&self.readers).now.clone() else { return true };
        // A reader that waits for a message is woken by one.
        node.publish(&self.ears.address, "", deadline);
        !matches!(ended.recv_deadline(deadline), Err(crossbeam_channel::RecvTimeoutError::Timeout))
    }
}

/// One waiter's entry; ends when dropped. It lasts as long as the lease that comes of the wait: a
/// late message for a lease that is held must not be taken for a stray one.
struct Ear {
    ears: Arc<Ears>,
    token: Token,
}

impl Drop for Ear {
    fn drop(&mut self) {
        locked(&self.ears.waiting).remove(&self.token);
    }
}

/// One waiter at a channel; ends when dropped.
struct WaitingAt {
    ears: Arc<Ears>,
    channel: Arc<str>,
    token: Token,
}

impl Drop for WaitingAt {
    fn drop(&mut self) {
        locked(&self.ears.channels).leave(&self.channel, &self.token);
    }
}

impl Reader {
    fn is_in_a_read(&self) {
        *locked(&self.reads_since) = Some(Instant::now());
    }

    fn is_out_of_a_read(&self) {
        *locked(&self.reads_since) = None;
    }
}

impl Ears {
    fn start(self: &Arc<Self>, node: &Arc<Node>) -> io::Result<(Arc<Reader>, Receiver<()>)> {
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

    /// The channels, for whoever reads; `None`: another does.
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
            // Held only to connect, so that a thread that waits keeps nothing of the client alive.
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
                    // Leaving it is polite, and not worth waiting for.
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
        // redis-rs takes a refusal for a confirmation. Only a subscriber is answered with a list,
        // and who is none with one word.
        match subscription.ping()? {
            redis::Value::Array(_) => {}
            redis::Value::SimpleString(word) if word == "PONG" => {
                return Err((REFUSED, "the server refused the subscription").into());
            }
            _ => return Err((redis::ErrorKind::UnexpectedReturnType, "no answer to a ping").into()),
        }
        *locked(&reader.stands_since) = Some(Instant::now());
        reader.elsewhere.store(false, Ordering::SeqCst);
        // What was published while nobody listened is lost: everybody asks again.
        locked(&self.waiting).values().filter_map(Weak::upgrade).for_each(|bell| bell.ring());
        let Some(()) = self.channels(reader).map(|mut channels| channels.begin()) else {
            return Ok(());
        };
        let mut heard = Instant::now();
        let mut looked = heard;
        // A server that has become a replica keeps its subscribers, and they would hear nothing of
        // the new master's (R22).
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

    /// Whether somebody sleeps until something comes. Who waits in a condition says nothing for
    /// seconds, and so does not find out by itself.
    fn is_waited_for(&self) -> bool {
        locked(&self.waiting).values().any(|bell| bell.strong_count() > 0)
    }

    /// Subscribes to what somebody has begun to wait at. One channel per call: redis-rs takes one
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

    /// Unsubscribes from what nobody waits at any more.
    fn leave(&self, reader: &Reader, subscription: &mut PubSub<'_>) -> RedisResult<()> {
        let idle =
            self.channels(reader).map(|mut channels| channels.take_idle()).unwrap_or_default();
        idle.iter().try_for_each(|name| {
            reader.is_in_a_read();
            subscription.unsubscribe(&**name)
        })
    }

    /// A message in our own channel names a hand-off: `attempt fence count token key`; anything
    /// else there is ignored. In another library's channel, whatever it says, it is a hint.
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
            // It holds the lock by now, through an attempt that was answered meanwhile.
            Some(None) => {}
            None => (self.stray)(key, token),
        }
    }
}

pub(super) fn parse(message: &str) -> Option<(Grant, Token, Key)> {
    let mut words = message.splitn(5, ' ');
    let attempt = words.next()?.parse().ok()?;
    let last: u64 = words.next()?.parse().ok()?;
    let count: u32 = words.next()?.parse().ok()?;
    let token = Token::new(words.next()?);
    let key = Key::new(words.next()?.to_owned());
    Some((
        Grant { attempt, fences: (last > 0 && count > 0).then_some(Fences { last, count }) },
        token,
        key,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_attempt_fence_token_and_key() {
        let (grant, token, key) = parse("3 17 2 0a1b a key with spaces").expect("well formed");
        assert_eq!(grant, Grant { attempt: 3, fences: Some(Fences { last: 17, count: 2 }) });
        assert_eq!((token.as_str(), key.as_str()), ("0a1b", "a key with spaces"));
        assert_eq!(parse("1 0 0 t k").expect("well formed").0.fences, None);
    }

    #[test]
    fn anything_else_is_ignored() {
        for message in [
            "",
            "0",
            "x 1 1 t k",
            "1 x 1 t k",
            "1 1 x t k",
            "1 2 1 t",
            "-1 2 1 t k",
            "99999999999999999999 1 1 t k",
        ] {
            assert!(parse(message).is_none(), "{message}");
        }
    }
}
