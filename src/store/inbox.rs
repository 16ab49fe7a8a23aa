//! The inbox: wake-ups, over one subscription per client.
//!
//! The subscription is opened at the first contended wait, and again after a loss. Each waiter
//! checks the messages that it gets; losing all of them costs a waiter at most one pause (R15).
//! Hand-offs of our own queues come through the client's own channel. The same subscription also
//! joins the channels of other libraries, as long as somebody waits there.

pub(crate) mod channels;
mod reader;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use crate::base::bell::{Bell, Fences, Grant};
use crate::base::key::Key;
use crate::base::worker::Worker;
use crate::base::{locked, log};
use crate::lease::store::Listening;
use crate::lease::token::Token;
use crate::server::node::Node;
use channels::Channels;

/// Called for a grant whose token nobody here knows any more: its wait was cancelled, and the grant
/// came late. It has to be withdrawn.
pub(crate) type Stray = Box<dyn Fn(Key, Token) + Send + Sync>;

/// Where a client receives wake-ups.
pub(crate) struct Inbox {
    ears: Arc<Ears>,
    /// Reads the subscription.
    reader: Worker<()>,
}

struct Ears {
    /// The channel that hand-offs to this client are published on.
    address: Arc<str>,
    waiting: Mutex<HashMap<Token, Weak<Bell>>>,
    /// The channels on which other libraries publish releases.
    channels: Mutex<Channels>,
    stray: Stray,
    /// When the subscription came up; `None`: it is not up.
    stands_since: Mutex<Option<Instant>>,
    /// The subscription is at another server than the one that answers: it has to be opened again.
    elsewhere: AtomicBool,
}

impl Inbox {
    pub(crate) fn new(id: &str, stray: Stray) -> Self {
        let ears = Ears {
            address: format!("distlock:inbox:{id}").into(),
            waiting: Mutex::default(),
            channels: Mutex::default(),
            stray,
            stands_since: Mutex::default(),
            elsewhere: AtomicBool::new(false),
        };
        Self { ears: Arc::new(ears), reader: Worker::new("distlock-inbox") }
    }

    /// Lets hand-offs to `token` ring `bell` until the returned value is dropped. Does not wait for
    /// the subscription: until it is up, its waiters poll.
    pub(crate) fn listen(&self, node: &Node, token: &Token, bell: &Arc<Bell>) -> Option<Listening> {
        // First: a subscription that comes up from here on rings the bell.
        locked(&self.ears.waiting).insert(token.clone(), Arc::downgrade(bell));
        let ear = WaiterEntry { ears: Arc::clone(&self.ears), token: token.clone() };
        self.start(node)?;
        Some(Listening {
            address: Arc::clone(&self.ears.address),
            queues: true,
            until_dropped: Box::new(ear),
        })
    }

    /// Lets messages on `channel` ring `bell`, as hints, until the returned value is dropped. Does
    /// not wait for the subscription; `bell` is rung once the channel is confirmed.
    pub(crate) fn listen_at(
        &self,
        node: &Node,
        channel: Arc<str>,
        token: &Token,
        bell: &Arc<Bell>,
    ) -> Option<Listening> {
        self.start(node)?;
        locked(&self.ears.channels).join(&channel, token, bell);
        let waiting = ChannelEntry {
            ears: Arc::clone(&self.ears),
            channel: Arc::clone(&channel),
            token: token.clone(),
        };
        Some(Listening { address: channel, queues: false, until_dropped: Box::new(waiting) })
    }

    /// Makes the reader subscribe to new channels at once, instead of within a second.
    pub(crate) fn hurry(&self, node: &Node, deadline: Instant) {
        let poke = locked(&self.ears.channels).wants_a_poke();
        if poke {
            node.publish(&self.ears.address, "", deadline);
        }
    }

    /// Called when a server that was asked at `asked_at`, or later, found no subscriber of this
    /// inbox (R21). If the subscription was up by then, it is at another server, such as one that
    /// was the master until a failover: Redis closes no subscription for that. The reader opens it
    /// again within a second, and waiters poll meanwhile.
    pub(crate) fn is_not_heard(&self, asked_at: Instant) {
        if locked(&self.ears.stands_since).is_some_and(|since| since < asked_at) {
            self.ears.elsewhere.store(true, Ordering::SeqCst);
        }
    }

    /// Makes sure that a thread reads the subscription. A waiter calls this each time it asks.
    /// `None`: there is no thread.
    pub(crate) fn start(&self, node: &Node) -> Option<()> {
        let (ears, endpoint) = (Arc::clone(&self.ears), Arc::downgrade(node.endpoint()));
        let started = self.reader.start(move |stop| ears.run(&endpoint, stop));
        if let Err(error) = &started {
            log::warn!("no thread could be started to hear wake-ups, so waiters poll: {error}");
        }
        started.ok()
    }

    /// Ends the thread. `false`: not by `deadline`.
    pub(crate) fn close(&self, node: &Node, deadline: Instant) -> bool {
        let stopped = self.reader.stop();
        if stopped.wait(Instant::now()) {
            return true;
        }
        // A reader that waits for a message is woken by one.
        node.publish(&self.ears.address, "", deadline);
        stopped.wait(deadline)
    }
}

/// One waiter's entry, which is removed when this is dropped. It lasts as long as the lease that
/// the wait leads to: a late message for a lease that is held must not be taken for a stray one.
struct WaiterEntry {
    ears: Arc<Ears>,
    token: Token,
}

impl Drop for WaiterEntry {
    fn drop(&mut self) {
        locked(&self.ears.waiting).remove(&self.token);
    }
}

/// One waiter at a channel, which leaves it when this is dropped.
struct ChannelEntry {
    ears: Arc<Ears>,
    channel: Arc<str>,
    token: Token,
}

impl Drop for ChannelEntry {
    fn drop(&mut self) {
        locked(&self.ears.channels).leave(&self.channel, &self.token);
    }
}

pub(crate) fn parse(message: &str) -> Option<(Grant, Token, Key)> {
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
        assert_eq!((token.as_bytes(), key.as_str()), (&b"0a1b"[..], "a key with spaces"));
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
