//! What a room and its queue are meant to do, said again.

use super::{FIRST, Told};

/// Which inboxes there are.
pub const INBOXES: [&str; 3] = ["inbox-0", "inbox-1", "inbox-2"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All of a plain lock.
    Whole,
    Writer,
    Reader,
    Permits {
        taken: usize,
        of: usize,
    },
}

impl Share {
    /// What stands before the UUID in a token.
    pub fn prefix(self) -> String {
        match self {
            Share::Whole => String::new(),
            Share::Writer => "w:".to_owned(),
            Share::Reader => "r:".to_owned(),
            Share::Permits { taken, of } => format!("p{taken}/{of}:"),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Waiter {
    pub token: String,
    pub share: Share,
    pub inbox: usize,
    pub attempt: u64,
    pub lives: bool,
}

#[derive(Clone, Debug)]
pub struct Holder {
    pub token: String,
    pub share: Share,
    /// How long its lease lasts (ms). The time that a test takes is nothing beside it.
    pub lease: u64,
}

#[derive(Default, Debug)]
pub struct Model {
    pub holders: Vec<Holder>,
    pub queue: Vec<Waiter>,
    pub listens: [bool; INBOXES.len()],
    /// Inbox, attempt, token: those of this step.
    pub messages: Vec<(usize, u64, String)>,
}

impl Model {
    pub fn holder(&mut self, token: &str) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.token == token)
    }

    fn taken(&self) -> usize {
        let permits = |holder: &Holder| match holder.share {
            Share::Permits { taken, .. } => taken,
            _ => 1,
        };
        self.holders.iter().map(permits).sum()
    }

    pub fn fits(&self, share: Share) -> bool {
        match share {
            Share::Whole | Share::Writer => self.holders.is_empty(),
            Share::Reader => self.holders.iter().all(|holder| holder.share == Share::Reader),
            Share::Permits { taken, of } => self.taken() + taken <= of,
        }
    }

    /// Whether nothing fits, whatever its share.
    fn is_full(&self) -> bool {
        let all = |holder: &Holder| matches!(holder.share, Share::Whole | Share::Writer);
        self.holders.iter().any(all)
    }

    fn put(&mut self, token: &str, share: Share, lease: u64) {
        match self.holder(token) {
            Some(holder) => holder.lease = holder.lease.max(lease),
            None => self.holders.push(Holder { token: token.to_owned(), share, lease }),
        }
    }

    fn leave(&mut self, token: &str) {
        self.queue.retain(|waiter| waiter.token != token);
    }

    /// Whether it is the asker's turn.
    fn serve(&mut self, asking: &str) -> bool {
        let mut passed = 0;
        while let Some(next) = self.queue.get(passed).cloned() {
            if self.is_full() {
                return false;
            } else if next.token == asking {
                if self.fits(next.share) || self.listens[next.inbox] {
                    return true;
                }
                passed += 1;
            } else if !next.lives || self.holder(&next.token).is_some() {
                self.queue.remove(passed);
            } else if !self.listens[next.inbox] {
                passed += 1;
            } else if self.fits(next.share) {
                self.queue.remove(passed);
                self.put(&next.token, next.share, FIRST);
                self.messages.push((next.inbox, next.attempt, next.token));
            } else {
                return false;
            }
        }
        true
    }

    pub fn acquire(
        &mut self,
        (token, share): (&str, Share),
        lease: u64,
        place: Option<(usize, u64)>,
    ) -> Told {
        let is_mine = self.holder(token).is_some();
        if is_mine || (self.fits(share) && self.serve(token) && self.fits(share)) {
            self.put(token, share, lease);
            self.leave(token);
            self.serve("");
            return Told::Granted { fence: 0 };
        }
        let heard = place.is_some_and(|(inbox, _)| self.listens[inbox]);
        if let Some((inbox, attempt)) = place {
            let place = self.queue.iter_mut().find(|waiter| waiter.token == token);
            match place {
                // The script does not look for the entry of a first attempt.
                Some(waiter) if heard || attempt > 1 => {
                    (waiter.inbox, waiter.attempt) = (inbox, attempt);
                }
                None if heard => {
                    let token = token.to_owned();
                    self.queue.push(Waiter { token, share, inbox, attempt, lives: true });
                }
                _ => {}
            }
        }
        Told::Refused { left: self.left(share), heard }
    }

    /// What must be true after each step, however it came about: who is in fits, and nobody waits
    /// who could be in. Scripts that do not serve the queue leave that to the next who asks.
    pub fn is_sound(&self, served: bool) {
        let is = |share| move |holder: &&Holder| holder.share == share;
        let count = |share| self.holders.iter().filter(is(share)).count();
        let (whole, writers) = (count(Share::Whole), count(Share::Writer));
        assert!(whole + writers <= 1 && (writers == 0 || self.holders.len() == 1), "{self:?}");
        for holder in &self.holders {
            if let Share::Permits { of, .. } = holder.share {
                assert!(self.taken() <= of, "{self:?}");
            }
        }
        let listens = |waiter: &&Waiter| waiter.lives && self.listens[waiter.inbox];
        let waits = |waiter: &&Waiter| self.holders.iter().all(|it| it.token != waiter.token);
        if let Some(first) = self.queue.iter().filter(waits).find(listens) {
            assert!(!served || !self.fits(first.share), "nobody serves {first:?}: {self:?}");
        }
    }

    /// How long it takes until enough leases have ended, or the next one if that would not help.
    pub fn left(&self, share: Share) -> i64 {
        let mut ends: Vec<u64> = Vec::new();
        for holder in &self.holders {
            let places = if let Share::Permits { taken, .. } = holder.share { taken } else { 1 };
            ends.extend(std::iter::repeat_n(holder.lease, places));
        }
        ends.sort_unstable();
        let end = match share {
            Share::Permits { taken, of } => {
                let needed = (ends.len() + taken).saturating_sub(of).clamp(1, ends.len());
                ends[needed - 1]
            }
            _ => *ends.last().unwrap(),
        };
        end.try_into().unwrap()
    }

    /// Without a look at the queue.
    pub fn alone(&mut self, (token, share): (&str, Share), lease: u64) -> Told {
        if self.holder(token).is_none() && !self.fits(share) {
            return Told::Refused { left: self.left(share), heard: false };
        }
        self.put(token, share, lease);
        Told::Granted { fence: 0 }
    }

    fn remove(&mut self, token: &str) -> bool {
        let before = self.holders.len();
        self.holders.retain(|holder| holder.token != token);
        self.holders.len() < before
    }

    pub fn release(&mut self, token: &str) -> bool {
        let released = self.remove(token);
        self.serve("");
        released
    }

    pub fn release_alone(&mut self, token: &str) -> bool {
        self.remove(token)
    }

    pub fn withdraw(&mut self, token: &str) -> bool {
        self.leave(token);
        self.release(token)
    }

    pub fn extend(&mut self, token: &str, lease: u64) -> bool {
        let Some(holder) = self.holder(token) else { return false };
        holder.lease = holder.lease.max(lease);
        true
    }

    /// From a writer to a reader.
    pub fn exchange(&mut self, from: &str, to: &str, lease: u64) -> bool {
        let exchanged = self.holder(to).is_some() || self.holder(from).is_some();
        if exchanged {
            self.remove(from);
            self.put(to, Share::Reader, lease);
            self.serve("");
        }
        exchanged
    }

    pub fn force(&mut self, share: Share) -> bool {
        let before = self.holders.len();
        let is_of_this_kind = |held: Share| match share {
            Share::Permits { .. } => true,
            _ => held == share,
        };
        self.holders.retain(|holder| !is_of_this_kind(holder.share));
        let held = self.holders.len() < before;
        if held {
            self.serve("");
        }
        held
    }
}
