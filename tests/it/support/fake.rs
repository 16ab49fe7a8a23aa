//! A server that sends what the test wants: replies that a real server gives only in a cluster, in
//! trouble, or never.

use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::ports;
use super::resp::{self, Frame, FrameReader};

/// What a fake server does on a command.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Sends these bytes, RESP or not.
    Bytes(Vec<u8>),
    /// Sends nothing, and goes on reading.
    Silence,
    /// Ends the connection.
    Close,
}

impl Reply {
    /// `+OK`
    pub fn ok() -> Reply {
        Reply::line('+', "OK")
    }

    /// An error, its code first: `"MOVED 866 127.0.0.1:7000"`, `"LOADING Redis is loading"`.
    pub fn error(text: &str) -> Reply {
        Reply::line('-', text)
    }

    /// An integer.
    pub fn int(value: i64) -> Reply {
        Reply::line(':', &value.to_string())
    }

    /// A bulk string.
    pub fn bulk(value: &[u8]) -> Reply {
        Reply::Bytes(resp::bulk(value))
    }

    /// The null of RESP2.
    pub fn nil() -> Reply {
        Reply::line('$', "-1")
    }

    /// These bytes, and behind them those of another reply.
    pub fn and(&self, other: &Reply) -> Reply {
        match (self, other) {
            (Reply::Bytes(first), Reply::Bytes(second)) => {
                Reply::Bytes([first.as_slice(), second].concat())
            }
            _ => panic!("only bytes can follow each other"),
        }
    }

    /// An array of replies; only those that send bytes count.
    pub fn array(replies: &[Reply]) -> Reply {
        let mut bytes = format!("*{}\r\n", replies.len()).into_bytes();
        for reply in replies {
            if let Reply::Bytes(more) = reply {
                bytes.extend_from_slice(more);
            }
        }
        Reply::Bytes(bytes)
    }

    /// The answers of a healthy server while a client sets up its connection: PONG to PING, and OK
    /// to everything else.
    pub fn usual(command: &[Vec<u8>]) -> Reply {
        match command {
            [_, said] if is(command, "PING") => Reply::bulk(said),
            _ if is(command, "PING") => Reply::line('+', "PONG"),
            _ => Reply::ok(),
        }
    }

    fn line(kind: char, text: &str) -> Reply {
        Reply::Bytes(format!("{kind}{text}\r\n").into_bytes())
    }
}

/// Whether a command has this name.
pub fn is(command: &[Vec<u8>], name: &str) -> bool {
    command.first().is_some_and(|first| first.eq_ignore_ascii_case(name.as_bytes()))
}

type Script = dyn Fn(usize, &[Vec<u8>]) -> Reply + Send + Sync;

/// A running fake server. Dropping it ends its connections and joins its threads.
pub struct FakeServer {
    port: u16,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

/// What the server and its threads share.
struct Shared {
    script: Box<Script>,
    closing: AtomicBool,
    commands: Mutex<Vec<(usize, Vec<Vec<u8>>)>>,
    connections: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    accepted: usize,
    open: Vec<(Arc<TcpStream>, JoinHandle<()>)>,
}

impl FakeServer {
    /// Listens on a free port; `script` gets the number of the connection (from 0) and the command,
    /// name first.
    pub fn start(
        script: impl Fn(usize, &[Vec<u8>]) -> Reply + Send + Sync + 'static,
    ) -> FakeServer {
        let listener = ports::listen();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            script: Box::new(script),
            closing: AtomicBool::new(false),
            commands: Mutex::default(),
            connections: Mutex::default(),
        });
        let for_thread = Arc::clone(&shared);
        let acceptor = spawn(port, "accept", move || accept(&for_thread, &listener, port));
        FakeServer { port, shared, acceptor: Some(acceptor) }
    }

    /// `redis://` to this server.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections have been accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner).accepted
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        let connections = self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.open.iter().filter(|(_, thread)| !thread.is_finished()).count()
    }

    /// Every command so far with the number of its connection, in the order in which they came.
    pub fn commands(&self) -> Vec<(usize, Vec<Vec<u8>>)> {
        self.shared.commands.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many commands of this name there were so far.
    pub fn count(&self, name: &str) -> usize {
        self.commands().iter().filter(|(_, command)| is(command, name)).count()
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        // Ends its accept().
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        let mut failed = self.acceptor.take().is_some_and(|thread| thread.join().is_err());
        let open = std::mem::take(
            &mut self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner).open,
        );
        for (stream, thread) in open {
            let _ = stream.shutdown(Shutdown::Both);
            failed |= thread.join().is_err();
        }
        assert!(!failed || thread::panicking(), "the script of the fake server has panicked");
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener, port: u16) {
    loop {
        let accepted = listener.accept();
        if shared.closing.load(Ordering::SeqCst) {
            ports::stop_listening(listener);
            return;
        }
        let Ok((stream, _)) = accepted else { continue };
        let _ = stream.set_nodelay(true);
        let stream = Arc::new(stream);
        let mut connections = shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let number = connections.accepted;
        connections.accepted += 1;
        let (for_thread, to_serve) = (Arc::clone(shared), Arc::clone(&stream));
        let thread = spawn(port, "serve", move || serve(&for_thread, number, &to_serve));
        let open = std::mem::take(&mut connections.open);
        let (ended, mut open): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|(_, thread)| thread.is_finished());
        open.push((stream, thread));
        connections.open = open;
        drop(connections);
        for (_, thread) in ended {
            thread.join().expect("the script of the fake server has panicked");
        }
    }
}

fn serve(shared: &Shared, number: usize, mut stream: &TcpStream) {
    let mut frames = FrameReader::commands(stream);
    while let Ok(Some(Frame::Whole(frame))) = frames.next() {
        let command = resp::elements(&frame);
        shared
            .commands
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((number, command.clone()));
        match (shared.script)(number, &command) {
            Reply::Bytes(bytes) if stream.write_all(&bytes).is_ok() => {}
            Reply::Silence => {}
            Reply::Bytes(_) | Reply::Close => break,
        }
    }
    // The server keeps the socket until its thread is joined, so it is shut down here.
    let _ = stream.shutdown(Shutdown::Both);
}

fn spawn(port: u16, role: &str, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    thread::Builder::new().name(format!("fk{port}{role}")).spawn(work).expect("a thread")
}
