//! A sentinel that says what the test wants.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::Server;
use super::fake::{FakeServer, Reply, is};
use super::sentinels::SERVICE;

/// What a fake sentinel says, and may change its mind about.
#[derive(Default)]
pub struct Says {
    port: AtomicU64,
    epoch: AtomicU64,
    news: Mutex<Option<String>>,
    hangs: AtomicBool,
    refuses_subscriptions: AtomicBool,
}

impl Says {
    pub fn new(server: &Server, epoch: u64) -> Arc<Says> {
        let says = Arc::<Says>::default();
        says.name(server, epoch);
        says
    }

    pub fn name(&self, server: &Server, epoch: u64) {
        self.at(server.port(), epoch);
    }

    /// Publishes `+switch-master` behind its next answer to a subscriber's PING.
    pub fn publish(&self, old: &Server, new: &Server) {
        let news = format!("{SERVICE} 127.0.0.1 {} 127.0.0.1 {}", old.port(), new.port());
        *self.news.lock().unwrap_or_else(PoisonError::into_inner) = Some(news);
    }

    /// The same, and answers no question any more.
    pub fn publish_and_hang(&self, old: &Server, new: &Server) {
        self.publish(old, new);
        self.hangs.store(true, Ordering::SeqCst);
    }

    pub fn refuse_subscriptions(&self) {
        self.refuses_subscriptions.store(true, Ordering::SeqCst);
    }

    /// As `name`, for whatever listens at this port.
    pub fn at(&self, port: u16, epoch: u64) {
        self.port.store(port.into(), Ordering::SeqCst);
        self.epoch.store(epoch, Ordering::SeqCst);
    }
}

/// A sentinel.
pub fn sentinel(says: &Arc<Says>) -> FakeServer {
    let says = Arc::clone(says);
    let text = |text: &str| Reply::bulk(text.as_bytes());
    FakeServer::start(move |_, command| {
        let port = says.port.load(Ordering::SeqCst).to_string();
        let epoch = says.epoch.load(Ordering::SeqCst).to_string();
        let asked = command.get(1).map(|word| word.to_ascii_uppercase()).unwrap_or_default();
        match asked.as_slice() {
            _ if is(command, "SUBSCRIBE") && says.refuses_subscriptions.load(Ordering::SeqCst) => {
                Reply::error("NOPERM this user has no permissions to run the 'subscribe' command")
            }
            _ if is(command, "SUBSCRIBE") => {
                Reply::array(&[text("subscribe"), Reply::bulk(&command[1]), Reply::int(1)])
            }
            _ if is(command, "PING") => {
                let pong = Reply::array(&[text("pong"), text("")]);
                match says.news.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    None => pong,
                    Some(news) => {
                        let news = ["message", "+switch-master", &news].map(text);
                        pong.and(&Reply::array(&news))
                    }
                }
            }
            _ if says.hangs.load(Ordering::SeqCst) => Reply::Silence,
            b"MASTER" => Reply::array(
                &["name", SERVICE, "flags", "master", "config-epoch", &epoch].map(text),
            ),
            b"GET-MASTER-ADDR-BY-NAME" => Reply::array(&["127.0.0.1", &port].map(text)),
            _ => Reply::ok(),
        }
    })
}
