//! A sentinel that says what the test wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Server;
use super::fake::{FakeServer, Reply, is};
use super::sentinels::SERVICE;

/// What a fake sentinel says, and may change its mind about.
#[derive(Default)]
pub struct Says {
    port: AtomicU64,
    epoch: AtomicU64,
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

    /// As `name`, for whatever listens at this port.
    pub fn at(&self, port: u16, epoch: u64) {
        self.port.store(port.into(), Ordering::SeqCst);
        self.epoch.store(epoch, Ordering::SeqCst);
    }
}

/// A sentinel that names no others.
pub fn sentinel(says: &Arc<Says>) -> FakeServer {
    let says = Arc::clone(says);
    let text = |text: &str| Reply::bulk(text.as_bytes());
    FakeServer::start(move |_, command| {
        let port = says.port.load(Ordering::SeqCst).to_string();
        let epoch = says.epoch.load(Ordering::SeqCst).to_string();
        let asked = command.get(1).map(|word| word.to_ascii_uppercase()).unwrap_or_default();
        match asked.as_slice() {
            _ if is(command, "SUBSCRIBE") => {
                Reply::array(&[text("subscribe"), Reply::bulk(&command[1]), Reply::int(1)])
            }
            _ if is(command, "PING") => Reply::array(&[text("pong"), text("")]),
            b"MASTER" => Reply::array(
                &["name", SERVICE, "flags", "master", "config-epoch", &epoch].map(text),
            ),
            b"GET-MASTER-ADDR-BY-NAME" => Reply::array(&["127.0.0.1", &port].map(text)),
            b"SENTINELS" => Reply::array(&[]),
            b"MYID" => text(&format!("{:p}", Arc::as_ptr(&says))),
            _ => Reply::ok(),
        }
    })
}
