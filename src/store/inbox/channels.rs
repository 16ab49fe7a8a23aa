//! Channels of locks that other libraries share with us: who waits at each, and which channels the
//! one subscription has to join or leave.
//!
//! Only bookkeeping: the inbox's reader subscribes and unsubscribes. A new waiter is rung once the
//! server has confirmed the channel: nobody here heard of a release between the waiter's refusal
//! and that moment.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::base::bell::Bell;
use crate::lease::token::Token;

/// The channels of one client.
#[derive(Default)]
pub(crate) struct Channels {
    known: HashMap<Arc<str>, Channel>,
    /// The channels to subscribe to: somebody began to wait there before the server had confirmed
    /// them.
    joins: Vec<Arc<str>>,
    /// Whether the subscription is up. Then its reader is in a read, and has to be poked to look at
    /// `joins`.
    reading: bool,
}

#[derive(Default)]
struct Channel {
    waiting: Vec<(Token, Weak<Bell>)>,
    /// Whether the server has confirmed it.
    stands: bool,
}

impl Channels {
    /// Rings `bell` for messages on this channel, from the server's confirmation until
    /// [`leave`](Self::leave).
    pub(crate) fn join(&mut self, name: &Arc<str>, token: &Token, bell: &Arc<Bell>) {
        let channel = self.known.entry(Arc::clone(name)).or_default();
        channel.waiting.push((token.clone(), Arc::downgrade(bell)));
        if channel.stands {
            // A message after the waiter's refusal may have been read before this call.
            bell.ring();
        } else {
            self.joins.push(Arc::clone(name));
        }
    }

    /// The channel itself is kept for a moment: a waiter at a contended lock soon comes back.
    pub(crate) fn leave(&mut self, name: &str, token: &Token) {
        if let Some(channel) = self.known.get_mut(name) {
            channel.waiting.retain(|(waiting, _)| waiting != token);
        }
    }

    /// Whether nobody waits at any channel.
    pub(crate) fn is_idle(&self) -> bool {
        self.known.values().all(|channel| channel.waiting.is_empty())
    }

    /// Whether the reader has something to subscribe to, and sleeps.
    pub(crate) fn wants_a_poke(&self) -> bool {
        self.reading && !self.joins.is_empty()
    }

    /// A new subscription is up: its server knows none of the channels yet.
    pub(crate) fn begin(&mut self) {
        self.reading = true;
        self.known.values_mut().for_each(|channel| channel.stands = false);
        self.joins = self.known.keys().cloned().collect();
    }

    /// The subscription is lost.
    pub(crate) fn end(&mut self) {
        self.reading = false;
    }

    /// The next channel to subscribe to.
    pub(crate) fn next_join(&mut self) -> Option<Arc<str>> {
        while let Some(name) = self.joins.pop() {
            if self
                .known
                .get(&name)
                .is_some_and(|channel| !channel.stands && !channel.waiting.is_empty())
            {
                return Some(name);
            }
        }
        None
    }

    /// The server has confirmed the channel.
    pub(crate) fn joined(&mut self, name: &str) {
        if let Some(channel) = self.known.get_mut(name) {
            channel.stands = true;
            channel
                .waiting
                .iter()
                .filter_map(|(_, bell)| bell.upgrade())
                .for_each(|bell| bell.ring());
        }
    }

    /// The channels to unsubscribe from, because nobody waits there. They are removed: the next
    /// waiter has them subscribed to again.
    pub(crate) fn take_idle(&mut self) -> Vec<Arc<str>> {
        let mut idle = Vec::new();
        self.known.retain(|name, channel| {
            if channel.waiting.is_empty() && channel.stands {
                idle.push(Arc::clone(name));
            }
            !channel.waiting.is_empty()
        });
        idle
    }

    /// A release: one waiter asks again. In Redisson, too, a message lets one thread of a client go
    /// on.
    pub(crate) fn heard(&self, name: &str) {
        let mut waiting = self.known.get(name).into_iter().flat_map(|channel| &channel.waiting);
        if let Some(bell) = waiting.find_map(|(_, bell)| bell.upgrade()) {
            bell.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::base::bell::Rung;
    use crate::base::clock::Clock;

    fn rings(bell: &Bell) -> bool {
        bell.wait(&Clock::default(), Some(Instant::now())) == Rung::Hint
    }

    #[test]
    fn who_waits_is_rung_when_the_channel_stands_and_when_it_stood_before() {
        let (mut channels, name) = (Channels::default(), Arc::from("c"));
        let (early, late) = (Bell::new(), Bell::new());
        channels.join(&name, &Token::new("1"), &early);
        assert!(!channels.wants_a_poke(), "nobody reads yet");
        channels.begin();
        assert!(channels.wants_a_poke());
        assert_eq!(channels.next_join().as_deref(), Some("c"));
        assert!(!rings(&early));
        channels.joined("c");
        assert!(rings(&early));
        channels.join(&name, &Token::new("2"), &late);
        assert!(rings(&late) && !rings(&early));
        assert_eq!(channels.next_join(), None);
    }

    #[test]
    fn a_message_rings_one_waiter() {
        let (mut channels, name) = (Channels::default(), Arc::from("c"));
        let bells = [Bell::new(), Bell::new()];
        channels.join(&name, &Token::new("gone"), &Bell::new());
        for (token, bell) in ["1", "2"].into_iter().zip(&bells) {
            channels.join(&name, &Token::new(token), bell);
        }
        channels.heard("c");
        assert_eq!(bells.iter().map(|bell| rings(bell)).collect::<Vec<_>>(), [true, false]);
        channels.leave("c", &Token::new("1"));
        channels.heard("c");
        assert_eq!(bells.iter().map(|bell| rings(bell)).collect::<Vec<_>>(), [false, true]);
        channels.heard("another");
    }

    #[test]
    fn a_channel_is_left_when_nobody_waits_and_joined_again_after_a_loss() {
        let (mut channels, name) = (Channels::default(), Arc::from("c"));
        let (token, bell) = (Token::new("1"), Bell::new());
        channels.begin();
        channels.join(&name, &token, &bell);
        channels.next_join();
        channels.joined("c");
        assert!(channels.take_idle().is_empty());
        channels.end();
        channels.begin();
        assert_eq!(channels.next_join().as_deref(), Some("c"));
        channels.joined("c");
        channels.leave("c", &token);
        assert_eq!(channels.take_idle(), [Arc::from("c")]);
        assert!(channels.take_idle().is_empty());
        channels.join(&name, &token, &bell);
        assert_eq!(
            channels.next_join().as_deref(),
            Some("c"),
            "forgotten, and so subscribed to again"
        );
    }
}
