//! The inbox: wake-ups, over one subscription per client.
//!
//! Opened at the first contended wait, opened again after a loss. Everything that it brings is
//! checked by the waiter that it is for; losing all of it costs a waiter at most one pause (R15).
//! Hand-offs of our own queues come through the client's own channel; the same subscription also
//! hears the channels of other libraries, for as long as somebody waits there.

mod reader;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};

use super::channels::Channels;
use super::node::Node;
use crate::base::bell::{Bell, Fences, Grant};
use crate::base::locked;
use crate::lease::key::Key;
use crate::lease::store::Listening;
use crate::lease::token::Token;
use reader::Reader;

/// A reader that has been in one read for so long is given up. No time limit of a connection ends
/// that while bytes come: after a reply that was lost or garbled it may take every message for a
/// part of what it waits for.
const STUCK: Duration = Duration::from_secs(3);
/// So many of them may be stuck at a time. With more, waiters poll.
const MOST_STUCK: usize = 4;
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
