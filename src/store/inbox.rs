//! The inbox: wake-ups, over one subscription per client, in a cluster per node.
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
use crate::base::worker::{Stopped, Worker};
use crate::base::{locked, log};
use crate::lease::store::Listening;
use crate::lease::token::Token;
use crate::server::servers::Servers;
use channels::Channels;

/// What the channels of all inboxes begin with. In a cluster a number in braces follows, which puts
/// the channel into a slot of its node; and the client's id.
const PREFIX: &str = "distlock:inbox:";

/// Called for a grant whose token nobody here knows any more: its wait was cancelled, and the grant
/// came late. It has to be withdrawn.
pub(crate) type Stray = Arc<dyn Fn(Key, Token) + Send + Sync>;

/// The inboxes of a client: one; in a cluster one for each node where somebody waits, because a
/// script can publish to no other node.
pub(crate) struct Inboxes {
    servers: Servers,
    id: String,
    stray: Stray,
    /// Whether it has been said that a server refuses the subscription.
    said_refused: Arc<AtomicBool>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    inboxes: Vec<Arc<Inbox>>,
    /// The number in the last address.
    last: u64,
    /// Those that were not needed any more.
    ending: Vec<Ending>,
    is_closed: bool,
}

/// An inbox whose thread ends.
struct Ending {
    address: Arc<str>,
    stopped: Stopped,
}

impl Ending {
    fn new(inbox: &Inbox) -> Self {
        Self { address: Arc::clone(&inbox.ears.address), stopped: inbox.reader.stop() }
    }

    fn is_over(&self) -> bool {
        self.stopped.wait(Instant::now())
    }
}

impl Inboxes {
    /// `id`: the client's.
    pub(crate) fn new(servers: Servers, id: &str, stray: Stray) -> Self {
        let (said_refused, known) = Default::default();
        Self { servers, id: id.to_owned(), stray, said_refused, known }
    }

    /// The inbox for the waiters of a lock.
    ///
    /// No address is used twice, not even after its inbox has ended: an inbox that ends reads
    /// messages for a moment more, and withdraws grants for tokens that it does not know.
    fn of(&self, key: &Key, known: &mut Known) -> Arc<Inbox> {
        let is_there =
            |inbox: &&Arc<Inbox>| self.servers.share_a_node(&inbox.ears.address, key.as_str());
        if let Some(inbox) = known.inboxes.iter().find(is_there) {
            return Arc::clone(inbox);
        }
        self.end_unneeded(known);
        let name = self.servers.channel_beside(key.as_str(), &mut known.last, &self.id);
        let address = format!("{PREFIX}{name}");
        let (stray, said_refused) = (Arc::clone(&self.stray), Arc::clone(&self.said_refused));
        let inbox = Arc::new(Inbox::new(address, stray, said_refused));
        if known.is_closed {
            inbox.reader.stop();
        }
        known.inboxes.push(Arc::clone(&inbox));
        inbox
    }

    /// Slots move: an inbox where nobody waits ends if its node has another one.
    fn end_unneeded(&self, known: &mut Known) {
        known.ending.retain(|ending| !ending.is_over());
        let mut kept: Vec<Arc<Inbox>> = Vec::new();
        for inbox in known.inboxes.drain(..) {
            let has_its_node = |other: &Arc<Inbox>| {
                self.servers.share_a_node(&inbox.ears.address, &other.ears.address)
            };
            if inbox.is_idle() && kept.iter().any(has_its_node) {
                known.ending.push(Ending::new(&inbox));
            } else {
                kept.push(inbox);
            }
        }
        known.inboxes = kept;
    }

    /// Lets hand-offs of a lock to `token` ring `bell` until the returned value is dropped. Does
    /// not wait for the subscription: until it is up, its waiters poll.
    pub(crate) fn listen(&self, key: &Key, token: &Token, bell: &Arc<Bell>) -> Option<Listening> {
        // Until somebody listens there, the inbox is one that may end.
        let mut known = locked(&self.known);
        self.of(key, &mut known).listen(&self.servers, token, bell)
    }

    /// Lets messages on `channel`, beside a lock, ring `bell`, as hints, until the returned value
    /// is dropped. Does not wait for the subscription; `bell` is rung once the channel is
    /// confirmed.
    pub(crate) fn listen_at(
        &self,
        key: &Key,
        channel: Arc<str>,
        token: &Token,
        bell: &Arc<Bell>,
    ) -> Option<Listening> {
        let mut known = locked(&self.known);
        self.of(key, &mut known).listen_at(&self.servers, channel, token, bell)
    }

    /// The inbox with this address.
    fn at(&self, address: &str) -> Option<Arc<Inbox>> {
        let known = locked(&self.known);
        known.inboxes.iter().find(|inbox| *inbox.ears.address == *address).cloned()
    }

    /// Makes sure that a thread reads this inbox. A waiter calls this each time it asks.
    pub(crate) fn start(&self, address: &str) {
        self.at(address).and_then(|inbox| inbox.start(&self.servers));
    }

    /// Makes sure that a thread reads the inbox of a lock, and that it subscribes to new channels
    /// at once, instead of within a second.
    pub(crate) fn hurry(&self, key: &Key, deadline: Instant) {
        let inbox = self.of(key, &mut locked(&self.known));
        let _ = inbox.start(&self.servers);
        let poke = locked(&inbox.ears.channels).wants_a_poke();
        if poke {
            self.servers.publish(&inbox.ears.address, "", deadline);
        }
    }

    /// Called when a server that was asked about a lock at `asked_at`, or later, found no
    /// subscriber of this inbox (R21). If the subscription was up by then, it is at another server,
    /// such as one that was the master until a failover: Redis closes no subscription for that. The
    /// reader opens it again within a second, and waiters poll meanwhile.
    pub(crate) fn is_not_heard(&self, key: &Key, address: &str, asked_at: Instant) {
        // The lock may have moved to another node while its waiter waited.
        let Some(inbox) =
            self.at(address).filter(|_| self.servers.share_a_node(address, key.as_str()))
        else {
            return;
        };
        if locked(&inbox.ears.stands_since).is_some_and(|since| since < asked_at) {
            inbox.ears.elsewhere.store(true, Ordering::SeqCst);
        }
    }

    /// Ends the threads. `false`: not by `deadline`.
    pub(crate) fn close(&self, deadline: Instant) -> bool {
        let mut known = locked(&self.known);
        known.is_closed = true;
        let mut ending = std::mem::take(&mut known.ending);
        ending.extend(known.inboxes.iter().map(|inbox| Ending::new(inbox)));
        drop(known);
        // A reader that waits for a message is woken by one.
        for ending in ending.iter().filter(|ending| !ending.is_over()) {
            self.servers.publish(&ending.address, "", deadline);
        }
        ending.iter().all(|ending| ending.stopped.wait(deadline))
    }
}

/// Where a client receives wake-ups from one node.
struct Inbox {
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
    said_refused: Arc<AtomicBool>,
    /// When the subscription came up; `None`: it is not up.
    stands_since: Mutex<Option<Instant>>,
    /// The subscription is at another server than the one that answers: it has to be opened again.
    elsewhere: AtomicBool,
}

impl Inbox {
    fn new(address: String, stray: Stray, said_refused: Arc<AtomicBool>) -> Self {
        let ears = Ears {
            address: address.into(),
            waiting: Mutex::default(),
            channels: Mutex::default(),
            stray,
            said_refused,
            stands_since: Mutex::default(),
            elsewhere: AtomicBool::new(false),
        };
        Self { ears: Arc::new(ears), reader: Worker::new("distlock-inbox") }
    }

    fn listen(&self, servers: &Servers, token: &Token, bell: &Arc<Bell>) -> Option<Listening> {
        // First: a subscription that comes up from here on rings the bell.
        locked(&self.ears.waiting).insert(token.clone(), Arc::downgrade(bell));
        let ear = WaiterEntry { ears: Arc::clone(&self.ears), token: token.clone() };
        self.start(servers)?;
        Some(Listening {
            address: Arc::clone(&self.ears.address),
            queues: true,
            until_dropped: Box::new(ear),
        })
    }

    fn listen_at(
        &self,
        servers: &Servers,
        channel: Arc<str>,
        token: &Token,
        bell: &Arc<Bell>,
    ) -> Option<Listening> {
        self.start(servers)?;
        locked(&self.ears.channels).join(&channel, token, bell);
        let waiting = ChannelEntry {
            ears: Arc::clone(&self.ears),
            channel: Arc::clone(&channel),
            token: token.clone(),
        };
        Some(Listening { address: channel, queues: false, until_dropped: Box::new(waiting) })
    }

    fn is_idle(&self) -> bool {
        locked(&self.ears.waiting).is_empty() && locked(&self.ears.channels).is_idle()
    }

    /// `None`: there is no thread.
    fn start(&self, servers: &Servers) -> Option<()> {
        if self.reader.has_started() {
            return Some(());
        }
        let (ears, subscriber) = (Arc::clone(&self.ears), servers.subscriber());
        let started = self.reader.start(move |stop| ears.run(&subscriber, stop));
        if let Err(error) = &started {
            log::warn!("no thread could be started to hear wake-ups, so waiters poll: {error}");
        }
        started.ok()
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
