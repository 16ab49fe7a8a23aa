//! Which command gets which fault, and how the test learns of it.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::Shared;

/// What happens to one command or to its reply. "Fires" says when the test hears of it.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The request, and what follows on its connection, reaches the server late. Fires as the delay
    /// begins.
    DelayRequest(Duration),
    /// The request, and what follows on its connection, waits for [`Held::release`], also when the
    /// client has gone meanwhile: a late copy. Fires when it is held.
    HoldRequest,
    /// The connection ends before the server sees the request. Fires afterwards.
    CutBefore,
    /// The server never sees the request; the client gets these bytes. Fires as they leave.
    Answer(Vec<u8>),
    /// The server has run the request, and the connection ends instead of a reply. Fires
    /// afterwards.
    CutAfter,
    /// The server has run the request, and the client never gets the reply. Later replies do come
    /// through, as if one were missing in the stream. Fires when the server has replied.
    SwallowReply,
    /// The reply, and what follows, comes late. Fires as the delay begins.
    DelayReply(Duration),
    /// The reply, and what follows, waits for [`Held::release`]. Fires when it is held: the server
    /// has run the request.
    HoldReply,
    /// The reply comes twice.
    DuplicateReply,
    /// The reply has all its bits flipped: as long as before, and not RESP.
    GarbleReply,
    /// The first half of the reply comes, then nothing more, on a connection that stays open.
    TruncateReply,
    /// The reply comes byte by byte with this pause between them.
    DribbleReply(Duration),
    /// These bytes come instead of the reply; the server has run the request.
    ReplaceReply(Vec<u8>),
}

type Predicate = Box<dyn Fn(&[Vec<u8>]) -> bool + Send>;

/// A fault and its target. If several rules match, the one that was added first counts.
pub struct Rule {
    command: Option<String>,
    when: Option<Predicate>,
    skip: usize,
    left: usize,
    fault: Fault,
}

impl Rule {
    /// Every command of this name (`"SET"`, `"evalsha"`), but for an `EVALSHA` without keys: a
    /// log-in asks by it whether scripts can be called. `"message"` (and `"pmessage"`) are the
    /// pushes of a subscription: faults on a reply can be aimed at them too.
    pub fn on(command: &str, fault: Fault) -> Rule {
        Rule { command: Some(command.to_owned()), ..Rule::any(fault) }
    }

    /// Every command, whatever its name; no pushes.
    pub fn any(fault: Fault) -> Rule {
        Rule { command: None, when: None, skip: 0, left: usize::MAX, fault }
    }

    /// Only commands (name and arguments) of which this is true. The proxy stands still while it is
    /// asked.
    pub fn when(mut self, predicate: impl Fn(&[Vec<u8>]) -> bool + Send + 'static) -> Rule {
        self.when = Some(Box::new(predicate));
        self
    }

    /// Lets the first `n` that match pass.
    pub fn skip(mut self, n: usize) -> Rule {
        self.skip = n;
        self
    }

    /// Only the next `n` that match; without it, all of them.
    pub fn next(mut self, n: usize) -> Rule {
        self.left = n;
        self
    }

    fn matches(&self, command: &[Vec<u8>], push: bool) -> bool {
        let name = command.first().map_or(&[][..], Vec::as_slice);
        let named = self
            .command
            .as_ref()
            .map_or(!push, |wanted| wanted.as_bytes().eq_ignore_ascii_case(name));
        let of_log_in = name.eq_ignore_ascii_case(b"EVALSHA")
            && command.get(2).is_some_and(|keys| keys == b"0");
        named && !of_log_in && self.left > 0 && self.when.as_ref().is_none_or(|when| when(command))
    }
}

/// A rule in force. Dropping it leaves the rule in force, but discards what the rule holds.
pub struct Planned {
    name: String,
    fired: Arc<AtomicUsize>,
    firings: Receiver<Firing>,
    id: usize,
    shared: Arc<Shared>,
}

impl Planned {
    /// How often the fault has happened.
    pub fn fired(&self) -> usize {
        self.fired.load(Ordering::SeqCst)
    }

    /// Waits until the fault happens; each call consumes one firing. Panics if there is none within
    /// `limit`.
    #[track_caller]
    pub fn wait_fired(&self, limit: Duration) -> Firing {
        let Ok(firing) = self.firings.recv_timeout(limit) else {
            panic!("{} has not fired within {limit:?}", self.name);
        };
        firing
    }

    /// Waits until a request or reply is held. Panics if there is none within `limit`.
    #[track_caller]
    pub fn wait_held(&self, limit: Duration) -> Held {
        self.wait_fired(limit).held.expect("only HoldRequest and HoldReply hold")
    }

    /// Takes the rule out of force; what it holds stays held.
    pub fn remove(&self) {
        self.shared.plan().rules.remove(self.id);
    }
}

/// One occurrence of a fault.
#[derive(Debug)]
pub struct Firing {
    /// The command that it hit, name first; for a push, the elements of that.
    pub command: Vec<Vec<u8>>,
    held: Option<Held>,
}

/// A request or reply that waits in the proxy. Dropped without `release`, it is lost and its
/// connection ends.
#[must_use = "dropping it loses what is held and ends its connection"]
pub struct Held {
    pub(super) slot: Arc<Slot>,
    pub(super) shared: Arc<Shared>,
}

impl Held {
    /// Sends it on its way.
    pub fn release(self) {
        self.slot.0.store(Slot::RELEASED, Ordering::SeqCst);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.slot.0.compare_exchange(
            Slot::HELD,
            Slot::LOST,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        self.shared.wake();
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}

/// What a [`Held`] and the thread that waits for it share.
pub(super) struct Slot(AtomicU8);

impl Slot {
    const HELD: u8 = 0;
    const RELEASED: u8 = 1;
    const LOST: u8 = 2;

    pub(super) fn new() -> Arc<Slot> {
        Arc::new(Slot(AtomicU8::new(Slot::HELD)))
    }

    pub(super) fn is_held(&self) -> bool {
        self.0.load(Ordering::SeqCst) == Slot::HELD
    }

    pub(super) fn is_lost(&self) -> bool {
        self.0.load(Ordering::SeqCst) == Slot::LOST
    }
}

/// All rules in force, in the order in which they were added.
#[derive(Default)]
pub(super) struct Rules {
    rules: Vec<(usize, Rule, Arc<AtomicUsize>, Sender<Firing>)>,
    added: usize,
}

impl Rules {
    pub(super) fn add(&mut self, rule: Rule, shared: &Arc<Shared>) -> Planned {
        let (tell, firings) = mpsc::channel();
        let fired = Arc::new(AtomicUsize::new(0));
        let id = self.added;
        let name =
            format!("{:?} on {}", rule.fault, rule.command.as_deref().unwrap_or("any command"));
        self.added += 1;
        self.rules.push((id, rule, Arc::clone(&fired), tell));
        Planned { name, fired, firings, id, shared: Arc::clone(shared) }
    }

    fn remove(&mut self, id: usize) {
        self.rules.retain(|(rule_id, ..)| *rule_id != id);
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    /// The fault for this command, if any. Uses up one of the rule's times.
    pub(super) fn hit(&mut self, command: &[Vec<u8>], push: bool) -> Option<Hit> {
        for (_, rule, fired, tell) in &mut self.rules {
            if !rule.matches(command, push) {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            rule.left -= 1;
            let (fault, fired, tell) = (rule.fault.clone(), Arc::clone(fired), tell.clone());
            return Some(Hit { fault, command: command.to_vec(), fired, tell });
        }
        None
    }
}

/// A fault that will happen to one command.
pub(super) struct Hit {
    pub(super) fault: Fault,
    command: Vec<Vec<u8>>,
    fired: Arc<AtomicUsize>,
    tell: Sender<Firing>,
}

impl Hit {
    pub(super) fn fire(self) {
        self.fire_with(None);
    }

    /// Tells the test. If nobody listens any more, the held frame is dropped here, and so lost.
    pub(super) fn fire_with(self, held: Option<Held>) {
        self.fired.fetch_add(1, Ordering::SeqCst);
        let _ = self.tell.send(Firing { command: self.command, held });
    }
}
