//! The thread that accepts connections, or refuses them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::super::ports;
use super::link::Link;
use super::{Mode, Shared};

/// Accepts until the proxy is dropped.
pub(super) fn accept(shared: &Arc<Shared>, mut listener: TcpListener) {
    loop {
        let accepted = listener.accept();
        let mut plan = shared.plan();
        if plan.mode == Mode::Refuse && !plan.closing {
            ports::stop_listening(&listener);
            drop((accepted, listener));
            plan.listening = false;
            shared.changed.notify_all();
            while plan.mode == Mode::Refuse && !plan.closing {
                plan = shared.changed.wait(plan).unwrap_or_else(PoisonError::into_inner);
            }
            if plan.closing {
                return;
            }
            listener = listen_again(shared.port);
            plan.listening = true;
            shared.changed.notify_all();
            continue;
        }
        if plan.closing {
            ports::stop_listening(&listener);
            return;
        }
        let (mode, upstream, resets) = (plan.mode, plan.upstream, plan.resets);
        drop(plan);
        let Ok((client, _)) = accepted else { continue };
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        let server = match mode {
            Mode::Silent => None,
            Mode::Forward => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, upstream));
                // No server: the client's connection ends. A proxy has no other way to tell.
                let Ok(server) = TcpStream::connect_timeout(&address, Duration::from_secs(1))
                else {
                    continue;
                };
                Some(server)
            }
            Mode::Close | Mode::Refuse => {
                if resets {
                    let _ = socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO));
                }
                continue;
            }
        };
        shared.forget_ended();
        let link = Link::start(shared, client, server);
        shared.links().push(Arc::downgrade(&link));
    }
}

/// Listens on our earlier port. Another test may use it for a moment, for instance while it chooses
/// a port.
fn listen_again(port: u16) -> TcpListener {
    let start = Instant::now();
    loop {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(listener) => return listener,
            Err(error) => {
                assert!(start.elapsed() < Duration::from_secs(10), "port {port}: {error}")
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
}
