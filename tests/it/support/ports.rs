//! Ports of 127.0.0.1, below the range from which the kernel takes ports by itself.
//!
//! Ports from bind(0) come from that range, and there a port that is closed for a moment (a server
//! being restarted) is in danger: the kernel may give a client that tries to connect to it the same
//! port as its own port. Then the client is connected to itself, and the server cannot use the port
//! again.
//!
//! For the same reason each process has ports of its own, in blocks: another process that looks for
//! a free port must not find that of a server that is being restarted here. A process has a block
//! while it has the block's first port, so that a block is free again whatever ended the process.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener};
use std::sync::{Mutex, PoisonError};

use socket2::{Domain, SockRef, Socket, Type};

const FIRST: u16 = 10_240;
const BLOCKS: u32 = 220;
const BLOCK: u16 = 100;

struct Ports {
    next: u16,
    /// Up to here, the ports are this process's.
    end: u16,
    /// What is taken for as long as this process lives.
    taken: Vec<Socket>,
}

static PORTS: Mutex<Ports> = Mutex::new(Ports { next: 0, end: 0, taken: Vec::new() });

/// Listens on a port that nobody uses.
pub fn listen() -> TcpListener {
    next(TcpListener::bind)
}

/// Nobody listens there any more when this returns. Closing the socket is not enough: a child that
/// another test is just starting has a copy of it until it becomes another program, and meanwhile
/// the port accepts connections, and nobody can bind it.
pub fn stop_listening(listener: &TcpListener) {
    let _ = SockRef::from(listener).shutdown(Shutdown::Both);
}

/// A port that a server can use.
pub fn free() -> u16 {
    // A copy in a half-started child does no harm: both sockets allow that the address is used
    // again, and this one does not listen.
    number(&next(|at| bind(at, true)))
}

/// A port that refuses connections for as long as this process lives: nobody listens there.
pub fn refused() -> u16 {
    let socket = next(|at| bind(at, false));
    let port = number(&socket);
    PORTS.lock().unwrap_or_else(PoisonError::into_inner).taken.push(socket);
    port
}

/// How many descriptors this process has open to take ports.
pub fn taken() -> usize {
    PORTS.lock().unwrap_or_else(PoisonError::into_inner).taken.len()
}

/// What `bind` makes of the next port of ours that nobody uses. No other call gets that port.
fn next<T>(bind: impl Fn(SocketAddrV4) -> io::Result<T>) -> T {
    let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if ports.next == ports.end {
            ports.take_a_block();
        }
        let at = SocketAddrV4::new(Ipv4Addr::LOCALHOST, ports.next);
        ports.next += 1;
        if let Ok(bound) = bind(at) {
            return bound;
        }
    }
}

/// Binds the port and does not listen.
fn bind(at: SocketAddrV4, again: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(again)?;
    socket.bind(&at.into())?;
    Ok(socket)
}

fn number(socket: &Socket) -> u16 {
    socket.local_addr().unwrap().as_socket().expect("an address of IPv4").port()
}

impl Ports {
    fn take_a_block(&mut self) {
        // Every process begins at another block, so that two of them rarely try the same one.
        let start = std::process::id().wrapping_mul(79) % BLOCKS;
        for block in (0..BLOCKS).map(|n| (start + n) % BLOCKS) {
            let first = FIRST + u16::try_from(block).expect("a small number") * BLOCK;
            if let Ok(socket) = bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, first), false) {
                self.taken.push(socket);
                (self.next, self.end) = (first + 1, first + BLOCK);
                return;
            }
        }
        panic!("no free port on 127.0.0.1");
    }
}
