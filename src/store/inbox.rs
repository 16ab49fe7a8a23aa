//! The inbox: wake-ups, over one subscription per client.
//!
//! Opened at the first contended wait, opened again after a loss. Everything that it brings is checked by the waiter that it is
//! for; losing all of it costs a waiter at most one pause (R15). Hand-offs of our own queues come through the client's own channel; the same subscription
//! also hears the channels of other libraries, for as long as somebody waits there.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use redis::{Msg, PubSub, RedisResult};

use super::channels::Channels;
use super::demotion::Watch;
use super::node::Node;
use crate::base::bell::{Bell, Fences, Grant};
use crate::base::locked;
use crate::lease::key::Key;
use crate::lease::store::Listening;
use crate::lease::token::Token;

/// How long the reader sleeps in a read before it looks around. It is poked when there is anything new, so this is for lost pokes, and for
/// channels that nobody waits at any more.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// After this long without a word the server is asked for one: a subscription that was cut off silently looks like a quiet one.
const QUIET: Duration = Duration::from_secs(5);
/// Between two attempts to open the subscription.
const PAUSE: Duration = Duration::from_millis(100);
/// And where this user may not subscribe, which somebody has to change first.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);
const REFUSED: redis::ErrorKind = redis::ErrorKind::Client;

/// A grant for a token that nobody here knows: what was cancelled, and came back. Whoever hears it withdraws.
pub(crate) type Stray = Box<dyn Fn(Key, Token) + Send + Sync>;

/// Where a client hears wake-ups.
pub(crate) struct Inbox {
    ears: Arc<Ears>,
    thread: Mutex<Option<Receiver<()>>>,
}

struct Ears {
    /// The channel that hand-offs to this client are published on.
    address: Arc<str>,
    waiting: Mutex<HashMap<Token, Weak<Bell>>>,
    /// Whose releases other libraries publish.
    channels: Mutex<Channels>,
    stray: Stray,
    stopped: AtomicBool,
    /// Since when the subscription stands.
    stands_since: Mutex<Option<Instant>>,
    /// It stands at a server that is not the one that answers: it has to be opened again.
    elsewhere: AtomicBool,
}

impl Inbox {
    pub(super) fn new(id: &str, stray: Stray) -> Self {
        let ears = Ears {
            address: format!("distlock:inbox:{id}").into(),
            waiting: Mutex::default(),
            channels: Mutex::default(),
            stray,
            stopped: AtomicBool::new(false),
            stands_since: Mutex::default(),
            elsewhere: AtomicBool::new(false),
        };
        Self { ears: Arc::new(ears), thread: Mutex::default() }
    }

    /// Has hand-offs to `token` ring `bell` until the returned value is dropped. Does not wait for the subscription: until it stands, its waiters poll.
    pub(super) fn listen(&self, node: &Arc<Node>, token: &Token, bell: &Arc<Bell>) -> Option<Listening> {
        self.start(node)?;
        locked(&self.ears.waiting).insert(token.clone(), Arc::downgrade(bell));
        let ear = Ear { ears: Arc::clone(&self.ears), token: token.clone() };
        Some(Listening { address: Arc::clone(&self.ears.address), queues: true, until_dropped: Box::new(ear) })
    }

    /// Has messages on `channel` ring `bell`, as hints, until the returned value is dropped. Does not wait for the subscription; `bell` is rung once it stands.
    pub(super) fn listen_at(&self, node: &Arc<Node>, channel: Arc<str>, token: &Token, bell: &Arc<Bell>) -> Option<Listening> {
        self.start(node)?;
        locked(&self.ears.channels).join(&channel, token, bell);
        let waiting = WaitingAt { ears: Arc::clone(&self.ears), channel: Arc::clone(&channel), token: token.clone() };
        Some(Listening { address: channel, queues: false, until_dropped: Box::new(waiting) })
    }

    /// Has the reader subscribe at once to what was just asked for, instead of within a second.
    pub(super) fn hurry(&self, node: &Node, deadline: Instant) {
        let poke = locked(&self.ears.channels).wants_a_poke();
        if poke {
            node.publish(&self.ears.address, "", deadline);
        }
    }

    /// A server that was asked at `asked_at`, or later, heard nobody at this inbox (R21). If it stood by then, it stands at another server, such as one that was
    /// the master until a failover: Redis closes no subscription for that. It is opened again within a second, and its waiters poll meanwhile.
    pub(super) fn is_not_heard(&self, asked_at: Instant) {
        let since = locked(&self.ears.stands_since);
        if since.is_some_and(|since| since < asked_at) {
            self.ears.elsewhere.store(true, Ordering::SeqCst);
        }
    }

    /// `None`: there is no thread to hear anything.
    fn start(&self, node: &Arc<Node>) -> Option<()> {
        self.try_start(node).inspect_err(|error| log::warn!("no thread could be started to hear wake-ups, so waiters poll: {error}")).ok()
    }

    fn try_start(&self, node: &Arc<Node>) -> io::Result<()> {
        let mut thread = locked(&self.thread);
        if thread.is_none() {
            let (ending, ended) = bounded::<()>(0);
            let (ears, node) = (Arc::clone(&self.ears), Arc::downgrade(node));
            thread::Builder::new().name("distlock-inbox".into()).spawn(move || {
                let _ending = ending;
                ears.run(&node);
            })?;
            *thread = Some(ended);
        }
        Ok(())
    }

    /// Ends the thread. `false`: not by `deadline`.
    pub(super) fn close(&self, node: &Node, deadline: Instant) -> bool {
        self.ears.stopped.store(true, Ordering::SeqCst);
        let Some(ended) = locked(&self.thread).clone() else { return true };
        // A reader that waits for a message is woken by one.
        node.publish(&self.ears.address, "", deadline);
        !matches!(ended.recv_deadline(deadline), Err(crossbeam_channel::RecvTimeoutError::Timeout))
    }
}

/// One waiter's entry; ends when dropped. It lasts as long as the lease that comes of the wait: a late message for a
/// lease that is held must not be taken for a stray one.
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

impl Ears {
    fn run(&self, node: &Weak<Node>) {
        while !self.stopped.load(Ordering::SeqCst) {
            let mut pause = PAUSE;
            // Held only to connect, so that a thread that waits keeps nothing of the client alive.
            let Some(connecting) = node.upgrade() else { return };
            let demoted = connecting.demotions();
            let opened = connecting.open_for_itself(LOOK_AROUND);
            drop(connecting);
            match opened {
                Ok(mut connection) => {
                    let mut subscription = connection.as_pubsub();
                    match self.read(&mut subscription, node, &demoted) {
                        Ok(()) => {}
                        Err(error) if error.kind() == REFUSED => {
                            log::warn!("this user may not subscribe to {}, so waiters poll", self.address);
                            pause = REFUSED_PAUSE;
                        }
                        Err(error) => log::debug!("the subscription for wake-ups was lost: {}", error.category()),
                    }
                    *locked(&self.stands_since) = None;
                    locked(&self.channels).end();
                    // Leaving it is polite, and not worth waiting for.
                    let _ = subscription.set_read_timeout(Some(Duration::from_millis(20)));
                }
                Err(error) => log::debug!("no subscription for wake-ups: {}", error.message),
            }
            let until = Instant::now() + pause;
            while !self.stopped.load(Ordering::SeqCst) && Instant::now() < until {
                thread::sleep(PAUSE);
            }
        }
    }

    fn read(&self, subscription: &mut PubSub<'_>, node: &Weak<Node>, demoted: &Watch) -> RedisResult<()> {
        subscription.subscribe(&*self.address)?;
        // redis-rs takes a refusal for a confirmation. Only a subscriber is answered with a list, and who is none with one word.
        match subscription.ping()? {
            redis::Value::Array(_) => {}
            redis::Value::SimpleString(word) if word == "PONG" => return Err((REFUSED, "the server refused the subscription").into()),
            _ => return Err((redis::ErrorKind::UnexpectedReturnType, "no answer to a ping").into()),
        }
        {
            let mut since = locked(&self.stands_since);
            *since = Some(Instant::now());
            self.elsewhere.store(false, Ordering::SeqCst);
        }
        // What was published while nobody listened is lost: everybody asks again.
        locked(&self.waiting).values().filter_map(Weak::upgrade).for_each(|bell| bell.ring());
        locked(&self.channels).begin();
        let mut heard = Instant::now();
        let mut looked = heard;
        // A server that has become a replica keeps its subscribers, and they would hear nothing of the new master's (R22).
        while !self.stopped.load(Ordering::SeqCst) && !demoted.is_over() {
            if self.elsewhere.load(Ordering::SeqCst) {
                log::debug!("the subscription for wake-ups stands at another server than the one that answers");
                return Ok(());
            }
            self.join(subscription)?;
            if looked.elapsed() >= LOOK_AROUND {
                self.leave(subscription)?;
                if let Some(node) = node.upgrade().filter(|_| self.is_waited_for()) {
                    node.look_at_role();
                }
                looked = Instant::now();
                continue;
            }
            match subscription.get_message() {
                Ok(message) => self.hear(&message),
                Err(error) if error.is_timeout() && heard.elapsed() < QUIET => continue,
                Err(error) if error.is_timeout() => subscription.ping::<redis::Value>().map(drop)?,
                Err(error) => return Err(error),
            }
            heard = Instant::now();
        }
        Ok(())
    }

    /// Whether somebody sleeps until something comes. Who waits in a condition says nothing for seconds, and
    /// so does not find out by itself.
    fn is_waited_for(&self) -> bool {
        locked(&self.waiting).values().any(|bell| bell.strong_count() > 0)
    }

    /// Subscribes to what somebody has begun to wait at. One channel per call: redis-rs takes one confirmation per call.
    fn join(&self, subscription: &mut PubSub<'_>) -> RedisResult<()> {
        loop {
            let next = locked(&self.channels).next_join();
            let Some(name) = next else { return Ok(()) };
            subscription.subscribe(&*name)?;
            locked(&self.channels).joined(&name);
        }
    }

    /// Unsubscribes from what nobody waits at any more.
    fn leave(&self, subscription: &mut PubSub<'_>) -> RedisResult<()> {
        let idle = locked(&self.channels).take_idle();
        idle.iter().try_for_each(|name| subscription.unsubscribe(&**name))
    }

    /// A message in our own channel names a hand-off: `attempt fence count token key`; anything else there is ignored. In another library's
    /// channel, whatever it says, it is a hint.
    fn hear(&self, message: &Msg) {
        if message.get_channel_name() != &*self.address {
            return locked(&self.channels).heard(message.get_channel_name());
        }
        let Some((grant, token, key)) = std::str::from_utf8(message.get_payload_bytes()).ok().and_then(parse) else { return };
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
    Some((Grant { attempt, fences: (last > 0 && count > 0).then_some(Fences { last, count }) }, token, key))
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
        for message in ["", "0", "x 1 1 t k", "1 x 1 t k", "1 1 x t k", "1 2 1 t", "-1 2 1 t k", "99999999999999999999 1 1 t k"] {
            assert!(parse(message).is_none(), "{message}");
        }
    }
}
