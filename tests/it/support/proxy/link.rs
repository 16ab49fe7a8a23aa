//! One proxied connection: two threads read frames and decide, two threads deliver them when they
//! are due.
//!
//! Reading and delivering are separate, so that many frames can be under way at once during a
//! delay. Each direction keeps its order. The end of a stream travels in the same queue as its
//! frames, so everything that a client sent before it closed still arrives, however late.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::SockRef;

use super::super::resp::{self, Frame, FrameReader};
use super::deliver::{Load, Parcel};
use super::rules::{Fault, Held, Hit, Slot};
use super::{Direction, Shared};

/// One client's connection and the one that we opened to the server for it. The sockets close with
/// the last thread.
pub(super) struct Link {
    pub(super) shared: Arc<Shared>,
    pub(super) client: TcpStream,
    /// `None`: nothing is ever forwarded or answered.
    pub(super) server: Option<TcpStream>,
    /// Set by `cut`, under the plan's mutex, so that no waiting thread misses it.
    pub(super) dead: AtomicBool,
    /// After a truncated reply the client receives nothing more.
    mute: AtomicBool,
    /// The client has subscribed: from now on arrays called "message" are pushes.
    subscribed: AtomicBool,
    /// Requests on their way or at the server, oldest first: replies come in this order.
    waiting: Mutex<VecDeque<Waiting>>,
}

/// A request whose reply has not come yet.
struct Waiting {
    name: Vec<u8>,
    /// One, except for `SUBSCRIBE a b c`.
    replies: usize,
    hit: Option<Hit>,
    /// The reply, if the proxy gives it itself.
    answer: Option<Vec<u8>>,
}

impl Link {
    /// Takes over a client's connection and serves it with threads of its own.
    pub(super) fn start(
        shared: &Arc<Shared>,
        client: TcpStream,
        server: Option<TcpStream>,
    ) -> Arc<Link> {
        for socket in [Some(&client), server.as_ref()].into_iter().flatten() {
            let _ = socket.set_nodelay(true);
        }
        let link = Arc::new(Link {
            shared: Arc::clone(shared),
            client,
            server,
            dead: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            subscribed: AtomicBool::new(false),
            waiting: Mutex::default(),
        });
        let (to_server, for_server) = mpsc::channel();
        let (to_client, for_client) = mpsc::channel();
        let spawn = |role: &str, work: Box<dyn FnOnce(&Link) + Send>| {
            let link = Arc::clone(&link);
            shared.spawn(role, move || work(&link));
        };
        if link.server.is_some() {
            let replies_to = to_client.clone();
            spawn("reply", Box::new(move |link| link.read_replies(&replies_to)));
            spawn("to-client", Box::new(move |link| link.deliver_to_client(for_client)));
            spawn("to-server", Box::new(move |link| link.deliver_to_server(for_server)));
        }
        spawn("request", Box::new(move |link| link.read_requests(&to_server, &to_client)));
        link
    }

    /// Ends the connection to both sides, once; what is under way is lost.
    pub(super) fn cut(&self, reset: bool) {
        let plan = self.shared.plan();
        let was_dead = self.dead.swap(true, Ordering::SeqCst);
        drop(plan);
        if was_dead {
            return;
        }
        self.shared.wake();
        if reset {
            // Reading ends, so our thread wakes, and nothing is sent: the RST goes out when the
            // socket closes.
            let _ = SockRef::from(&self.client).set_linger(Some(Duration::ZERO));
            let _ = self.client.shutdown(Shutdown::Read);
        } else {
            let _ = self.client.shutdown(Shutdown::Both);
        }
        if let Some(server) = &self.server {
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    /// Like `cut`, and also wakes a thread that writes to a client that does not read.
    pub(super) fn end(&self) {
        self.cut(false);
        let _ = self.client.shutdown(Shutdown::Both);
    }

    /// Like `cut`, with an end or a reset, as the plan says.
    pub(super) fn cut_as_planned(&self) {
        let reset = self.shared.plan().resets;
        self.cut(reset);
    }

    fn read_requests(&self, to_server: &Sender<Parcel>, to_client: &Sender<Parcel>) {
        let mut frames = FrameReader::commands(&self.client);
        while let Ok(Some(frame)) = frames.next() {
            self.shared.requests.fetch_add(1, Ordering::SeqCst);
            match frame {
                Frame::Raw(bytes) => self.send(to_server, Direction::ToServer, Load::Bytes(bytes)),
                Frame::Whole(bytes) => self.request(bytes, to_server, to_client),
            }
        }
        self.send(to_server, Direction::ToServer, Load::End);
    }

    fn request(&self, bytes: Vec<u8>, to_server: &Sender<Parcel>, to_client: &Sender<Parcel>) {
        if self.server.is_none() {
            return;
        }
        let command = resp::elements(&bytes);
        let mut hit = self.shared.plan().rules.hit(&command, false);
        let (mut later, mut answer) = (Duration::ZERO, None);
        let load = match hit.as_ref().map(|hit| hit.fault.clone()) {
            Some(Fault::CutBefore) => {
                self.cut_as_planned();
                return hit.into_iter().for_each(Hit::fire);
            }
            Some(Fault::Answer(reply)) => {
                answer = Some(reply);
                None
            }
            Some(Fault::HoldRequest) => Some(self.hold(bytes, hit.take())),
            Some(Fault::DelayRequest(delay)) => {
                later = delay;
                hit.take().into_iter().for_each(Hit::fire);
                Some(Load::Bytes(bytes))
            }
            _ => Some(Load::Bytes(bytes)),
        };
        self.expect_reply(&command, hit, answer, to_client);
        if let Some(load) = load {
            let due = self.shared.due(Direction::ToServer) + later;
            let _ = to_server.send(Parcel { due, load });
        }
    }

    /// Notes that the server owes a reply; must come before the request is on its way.
    fn expect_reply(
        &self,
        command: &[Vec<u8>],
        hit: Option<Hit>,
        answer: Option<Vec<u8>>,
        to_client: &Sender<Parcel>,
    ) {
        let name = command.first().map_or(Vec::new(), |name| name.to_ascii_lowercase());
        let mut replies = 1;
        if is_subscription(&name) {
            self.subscribed.store(true, Ordering::SeqCst);
            replies = (command.len() - 1).max(1);
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back(Waiting { name, replies, hit, answer });
        self.give_own_answers(&mut waiting, to_client);
    }

    fn read_replies(&self, to_client: &Sender<Parcel>) {
        let Some(server) = &self.server else { return };
        let mut frames = FrameReader::replies(server);
        while let Ok(Some(frame)) = frames.next() {
            match frame {
                Frame::Raw(bytes) => self.send(to_client, Direction::ToClient, Load::Bytes(bytes)),
                Frame::Whole(bytes) => self.reply(bytes, to_client),
            }
        }
        self.send(to_client, Direction::ToClient, Load::End);
    }

    fn reply(&self, frame: Vec<u8>, to_client: &Sender<Parcel>) {
        // Locked until the reply is in the queue: an answer of the proxy's own must not overtake
        // it.
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let push = self.push_kind(&frame);
        let hit = match push {
            Some(kind) if !is_subscription(&kind) => {
                self.shared.plan().rules.hit(&resp::elements(&frame), true)
            }
            // The server confirms a subscription that nobody asked for (it took one away): a push
            // as well.
            Some(kind) if waiting.front().is_none_or(|first| first.name != kind) => None,
            _ => waiting.front_mut().and_then(|first| {
                first.replies -= 1;
                first.hit.take()
            }),
        };
        if waiting.front().is_some_and(|first| first.replies == 0) {
            waiting.pop_front();
        }
        self.deliver(frame, hit, to_client);
        self.give_own_answers(&mut waiting, to_client);
    }

    fn give_own_answers(&self, waiting: &mut VecDeque<Waiting>, to_client: &Sender<Parcel>) {
        while let Some(bytes) = waiting.front_mut().and_then(|first| first.answer.take()) {
            self.send(to_client, Direction::ToClient, Load::Bytes(bytes));
            waiting.pop_front().and_then(|first| first.hit).into_iter().for_each(Hit::fire);
        }
    }

    /// The kind of a frame that is no reply to one request: always so in RESP3, by its name in
    /// RESP2.
    fn push_kind(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let subscribed = self.subscribed.load(Ordering::SeqCst);
        let marked = match frame.first() {
            Some(b'>') => true,
            Some(b'*') if subscribed => false,
            _ => return None,
        };
        let kind = resp::elements(frame).into_iter().next()?;
        (marked || is_subscription(&kind) || kind.ends_with(b"message")).then_some(kind)
    }

    /// Sends a reply to the client, or applies the rule's fault to it.
    fn deliver(&self, frame: Vec<u8>, hit: Option<Hit>, to_client: &Sender<Parcel>) {
        let send = |load| self.send(to_client, Direction::ToClient, load);
        let Some(hit) = hit else {
            return send(Load::Bytes(frame));
        };
        match hit.fault.clone() {
            Fault::CutAfter => self.cut_as_planned(),
            Fault::SwallowReply => {}
            Fault::DelayReply(delay) => {
                let due = self.shared.due(Direction::ToClient) + delay;
                let _ = to_client.send(Parcel { due, load: Load::Bytes(frame) });
            }
            Fault::HoldReply => return send(self.hold(frame, Some(hit))),
            Fault::DuplicateReply => {
                send(Load::Bytes(frame.clone()));
                send(Load::Bytes(frame));
            }
            Fault::GarbleReply => send(Load::Bytes(frame.iter().map(|byte| !byte).collect())),
            Fault::TruncateReply => {
                send(Load::Bytes(frame[..frame.len() / 2].to_vec()));
                self.mute.store(true, Ordering::SeqCst);
            }
            Fault::DribbleReply(pause) => send(Load::Slowly(frame, pause)),
            Fault::ReplaceReply(bytes) => send(Load::Bytes(bytes)),
            // A fault on a request; a push has no request.
            _ => return send(Load::Bytes(frame)),
        }
        hit.fire();
    }

    fn hold(&self, bytes: Vec<u8>, hit: Option<Hit>) -> Load {
        let slot = Slot::new();
        let held = Held { slot: Arc::clone(&slot), shared: Arc::clone(&self.shared) };
        if let Some(hit) = hit {
            hit.fire_with(Some(held));
        }
        Load::Held(bytes, slot)
    }

    fn send(&self, queue: &Sender<Parcel>, direction: Direction, load: Load) {
        if direction == Direction::ToClient
            && self.mute.load(Ordering::SeqCst)
            && !matches!(load, Load::End)
        {
            return;
        }
        // An error: the deliverer has ended, because the connection was cut.
        let _ = queue.send(Parcel { due: self.shared.due(direction), load });
    }
}

fn is_subscription(name: &[u8]) -> bool {
    let name = name.strip_prefix(b"p").unwrap_or(name);
    matches!(name, b"subscribe" | b"unsubscribe" | b"ssubscribe" | b"sunsubscribe")
}
