//! Servers that make up their answers, and remember which of them may let a client in.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use fastrand::Rng;

use crate::helpers::ms;
use crate::support::fake::{self, FakeServer, Reply};
use crate::support::resp::{bulk, frame_len};

/// What the odd server has sent that may let a client in.
#[derive(Default)]
struct Told {
    /// By token: the attempts that were refused. A hand-off can name them.
    refused: HashMap<Vec<u8>, Vec<u64>>,
    /// The channel of the client's inbox.
    address: Option<Vec<u8>>,
    /// Connections that have subscribed.
    subscribed: HashSet<usize>,
    grants: usize,
}

/// A server that makes up its answers, most of them from what a real server might say.
pub(super) struct Odd {
    pub(super) server: FakeServer,
    told: Arc<Mutex<Told>>,
}

impl Odd {
    /// `oddness`: how many of a hundred answers are not of the right kind.
    pub(super) fn start(seed: u64, oddness: u32) -> Odd {
        let told = Arc::new(Mutex::new(Told::default()));
        let (shared, rng) = (Arc::clone(&told), Mutex::new(Rng::with_seed(seed)));
        let server = FakeServer::start(move |connection, command| {
            let is_subscribed = shared
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .subscribed
                .contains(&connection);
            if is_subscribed && fake::is(command, "PING") {
                // Sent once the subscription is confirmed. By then there should be a waiter that
                // can be handed something.
                thread::sleep(ms(10));
            }
            let mut rng = rng.lock().unwrap_or_else(PoisonError::into_inner);
            let mut told = shared.lock().unwrap_or_else(PoisonError::into_inner);
            reply(&mut rng, connection, command, oddness, &mut told)
        });
        Odd { server, told }
    }

    pub(super) fn grants(&self) -> usize {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).grants
    }
}

const ERRORS: [&str; 17] = [
    "ERR",
    "NOSCRIPT No matching script",
    "WRONGTYPE Operation against a key",
    "LOADING Redis is loading",
    "BUSY a script runs",
    "MOVED 1 a:1",
    "ASK 1 a:1",
    "OOM command not allowed when used memory",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM no permissions",
    "READONLY",
    "MASTERDOWN",
    "MISCONF",
    "",
    "EXECABORT",
    "ERR max number of clients reached",
];
const NUMBERS: [i64; 12] =
    [0, 1, 2, 3, 4, -1, -2, 50, 30_000, 1_753_000_000_000_000, i64::MAX, i64::MIN];

/// What the server answers to `command`. What of it lets somebody in is noted in `told`.
fn reply(
    rng: &mut Rng,
    connection: usize,
    command: &[Vec<u8>],
    oddness: u32,
    told: &mut Told,
) -> Reply {
    let name = String::from_utf8_lossy(&command[0]).to_uppercase();
    let setup = !matches!(
        &*name,
        "SET"
            | "EVALSHA"
            | "EVAL"
            | "PING"
            | "SUBSCRIBE"
            | "PUBLISH"
            | "ZREM"
            | "HDEL"
            | "UNSUBSCRIBE"
            | "GET"
    );
    let odd = rng.u32(0..100) < if setup { oddness / 8 } else { oddness };
    let bytes = if odd {
        match rng.u32(0..10) {
            0 => return Reply::Silence,
            1 | 2 => return Reply::Close,
            3 | 4 => format!("-{}\r\n", rng.choice(ERRORS).unwrap()).into_bytes(),
            5 => (0..rng.usize(1..40)).map(|_| rng.u8(..)).collect(),
            6 => any(rng, 3),
            _ => {
                let bytes = plausible(rng, &name, command);
                changed(rng, bytes)
            }
        }
    } else if setup {
        return Reply::usual(command);
    } else {
        plausible(rng, &name, command)
    };
    if name == "SUBSCRIBE" {
        told.subscribed.insert(connection);
    }
    if !odd && name == "PING" && told.subscribed.contains(&connection) {
        return Reply::Bytes(
            [b"*2\r\n$4\r\npong\r\n$0\r\n\r\n".to_vec(), messages(rng, told)].concat(),
        );
    }
    // An incomplete reply stays incomplete: the client waits for the rest. Of several replies only
    // the first is sent: a second one would be the answer to the next command.
    let bytes = match frame_len(&bytes) {
        Ok(Some(length)) => bytes[..length].to_vec(),
        _ => bytes,
    };
    note(&name, command, &bytes, told);
    Reply::Bytes(bytes)
}

/// What a subscriber receives next: hand-offs to waiters that were refused, true and forged ones.
fn messages(rng: &mut Rng, told: &mut Told) -> Vec<u8> {
    let Some(address) = told.address.clone() else { return Vec::new() };
    let mut all = Vec::new();
    for (token, attempts) in told.refused.clone() {
        let attempt = match rng.u32(0..3) {
            0 => rng.u64(0..5),
            _ => *rng.choice(&attempts).unwrap(),
        };
        if attempts.contains(&attempt) {
            told.grants += 1;
        }
        let words = format!("{attempt} {} ", rng.choice(["0 0", "0 0", "7 1"]).unwrap());
        let words = [words.as_bytes(), &token, b" a"].concat();
        let words = if rng.u32(0..4) == 0 { changed(rng, words) } else { words };
        all.extend([b"*3\r\n$7\r\nmessage\r\n".to_vec(), bulk(&address), bulk(&words)].concat());
    }
    all
}

/// Notes what lets somebody in, and what a later grant may name.
fn note(name: &str, command: &[Vec<u8>], bytes: &[u8], told: &mut Told) {
    let Ok(value) = redis::parse_redis_value(bytes) else { return };
    if name == "SUBSCRIBE" {
        told.address.get_or_insert(command[1].clone());
    }
    if name == "SET" && value == redis::Value::Okay {
        told.grants += 1;
    }
    if let redis::Value::Array(elements) = value
        && name.starts_with("EVAL")
    {
        match elements.as_slice() {
            [redis::Value::Int(1), _, _] => told.grants += 1,
            [redis::Value::Int(0), ..] => {
                // The first of the arguments is the token; of a waiter's question the sixth is the
                // attempt, in a condition the fifth.
                let keys: usize = String::from_utf8_lossy(&command[2]).parse().unwrap();
                let arguments = &command[3 + keys..];
                let number =
                    |at: usize| String::from_utf8_lossy(arguments.get(at)?).parse::<u64>().ok();
                let attempts: Vec<u64> = [4, 5].into_iter().filter_map(number).collect();
                if let Some(token) = arguments.first().filter(|_| !attempts.is_empty()) {
                    told.refused.entry(token.clone()).or_default().extend(attempts);
                }
            }
            _ => {}
        }
    }
}

/// What a healthy server might answer to this command; to a script, what any script might return.
fn plausible(rng: &mut Rng, name: &str, command: &[Vec<u8>]) -> Vec<u8> {
    let number = |rng: &mut Rng| format!(":{}\r\n", rng.choice(NUMBERS).unwrap());
    match name {
        "SET" => rng.choice(["+OK\r\n", "$-1\r\n"]).unwrap().into(),
        "PING" => b"+PONG\r\n".to_vec(),
        "SUBSCRIBE" | "UNSUBSCRIBE" => [
            b"*3\r\n".to_vec(),
            bulk(name.to_lowercase().as_bytes()),
            bulk(command.get(1).map_or(&[][..], Vec::as_slice)),
            b":1\r\n".to_vec(),
        ]
        .concat(),
        "EVAL" | "EVALSHA" => match rng.u32(0..8) {
            0 | 1 => format!("*3\r\n:1\r\n{}{}", number(rng), number(rng)).into_bytes(),
            2 => format!("*2\r\n:0\r\n{}", number(rng)).into_bytes(),
            3 => format!("*3\r\n:0\r\n{}:{}\r\n", number(rng), rng.u32(0..2)).into_bytes(),
            4 => [b"*2\r\n".to_vec(), bulk(b"somebody"), number(rng).into_bytes()].concat(),
            5 => format!("*3\r\n:{}\r\n{}{}", rng.u32(0..3), number(rng), number(rng)).into_bytes(),
            6 => rng
                .choice(["*0\r\n", "*1\r\n:0\r\n", "*1\r\n:2\r\n", "*1\r\n:3\r\n", "*1\r\n:4\r\n"])
                .unwrap()
                .into(),
            _ => format!(":{}\r\n", rng.u32(0..3)).into_bytes(),
        },
        "GET" => bulk(b"value"),
        _ => number(rng).into_bytes(),
    }
}

/// Any value at all, of RESP2 or RESP3, sometimes with a wrong length.
fn any(rng: &mut Rng, depth: u32) -> Vec<u8> {
    let length = |rng: &mut Rng| {
        if rng.u32(0..8) == 0 {
            *[-1, -2, 7, 1 << 31, i64::MAX].get(rng.usize(0..5)).unwrap()
        } else {
            rng.i64(0..4)
        }
    };
    match rng.u32(0..if depth == 0 { 6 } else { 9 }) {
        0 => format!(":{}\r\n", rng.choice(NUMBERS).unwrap()).into_bytes(),
        1 => format!("+{}\r\n", rng.choice(["OK", "", "QUEUED", "1"]).unwrap()).into_bytes(),
        2 => bulk(rng.choice(["1", "0", "", "OK", "-1"]).unwrap().as_bytes()),
        3 => rng
            .choice([
                "$-1\r\n",
                "*-1\r\n",
                "_\r\n",
                "#t\r\n",
                ",nan\r\n",
                "(12345678901234567890\r\n",
                "=5\r\ntxt:1\r\n",
            ])
            .unwrap()
            .into(),
        4 => format!("-{}\r\n", rng.choice(ERRORS).unwrap()).into_bytes(),
        5 => format!("${}\r\nab\r\n", length(rng)).into_bytes(),
        _ => {
            let (sort, length) =
                (rng.choice(["*", "*", "*", "~", "%", ">", "|"]).unwrap(), length(rng));
            let inner: Vec<u8> =
                (0..length.clamp(0, 4)).flat_map(|_| any(rng, depth - 1)).collect();
            [format!("{sort}{length}\r\n").into_bytes(), inner].concat()
        }
    }
}

/// A few of its bytes changed, lost, doubled or cut off.
fn changed(rng: &mut Rng, mut bytes: Vec<u8>) -> Vec<u8> {
    for _ in 0..rng.u32(1..4) {
        let at = rng.usize(0..bytes.len().max(1));
        match rng.u32(0..4) {
            0 if at < bytes.len() => bytes[at] = rng.u8(..),
            1 if at < bytes.len() => drop(bytes.remove(at)),
            2 => bytes.insert(at, *rng.choice(b"*$:+-0129\r\n").unwrap()),
            _ => bytes.truncate(at.max(1)),
        }
    }
    bytes
}
