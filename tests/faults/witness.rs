//! The witnesses: a plain counter for each key, which shows lost updates; a resource that refuses
//! old fences; and a count of who is inside of a key that several may hold.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::clock::now;
use super::history::Record;

/// Witness A: one cell per key in a file that every process has open.
pub struct Cells(File);

impl Cells {
    /// Opens the cells, or creates them with zeros.
    pub fn open(dir: &Path) -> Cells {
        let open = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(dir.join("cells"));
        Cells(open.expect("the cells"))
    }

    /// The value in a key's cell.
    pub fn read(&self, key: u64) -> u64 {
        let mut bytes = [0; 8];
        match self.0.read_at(&mut bytes, key * 8).expect("the cells can be read") {
            8 => u64::from_le_bytes(bytes),
            _ => 0,
        }
    }

    /// Writes a value.
    pub fn write(&self, key: u64, value: u64) {
        self.0.write_all_at(&value.to_le_bytes(), key * 8).expect("the cells can be written");
    }
}

/// A write that reached witness B.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    pub at: u64,
    pub key: u64,
    pub fence: u64,
    pub owner: u64,
    /// The number of the owner's hold.
    pub number: u64,
    pub accepted: bool,
}

/// Witness B: accepts a write only if its fence is not older than the last accepted, and equal only
/// from the same holder.
pub struct Resource {
    seen: Arc<Mutex<Vec<Offer>>>,
}

impl Resource {
    /// Listens in `dir`.
    pub fn start(dir: &Path) -> Resource {
        let listener = UnixListener::bind(dir.join("resource")).expect("a socket for the resource");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let last = Arc::new(Mutex::new(HashMap::new()));
        let for_thread = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, last) = (Arc::clone(&for_thread), Arc::clone(&last));
                thread::spawn(move || serve(stream, &seen, &last));
            }
        });
        Resource { seen }
    }

    /// All that was offered so far.
    pub fn offers(&self) -> Vec<Offer> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

type Last = Mutex<HashMap<u64, (u64, u64, u64)>>;

fn serve(mut stream: UnixStream, seen: &Mutex<Vec<Offer>>, last: &Last) {
    let mut bytes = [0; 32];
    while stream.read_exact(&mut bytes).is_ok() {
        let field = |i: usize| u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().unwrap());
        let (key, fence, owner, number) = (field(0), field(1), field(2), field(3));
        let accepted = {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            let newest = last.entry(key).or_insert((0, 0, 0));
            let accepted = fence > newest.0 || *newest == (fence, owner, number);
            if accepted {
                *newest = (fence, owner, number);
            }
            // Noted under the lock, so that the order of the notes is the order of the writes.
            seen.lock().unwrap_or_else(PoisonError::into_inner).push(Offer {
                at: now(),
                key,
                fence,
                owner,
                number,
                accepted,
            });
            accepted
        };
        if stream.write_all(&[u8::from(accepted)]).is_err() {
            return;
        }
    }
}

/// A writer's end of witness B.
pub struct Client(UnixStream);

impl Client {
    /// Connects to the resource in `dir`.
    pub fn connect(dir: &Path) -> Client {
        Client(UnixStream::connect(dir.join("resource")).expect("the resource listens"))
    }

    /// Offers a write; whether it was accepted.
    pub fn write(&mut self, key: u64, fence: u64, owner: u64, number: u64) -> bool {
        let bytes: Vec<u8> =
            [key, fence, owner, number].iter().flat_map(|field| field.to_le_bytes()).collect();
        let mut answer = [0];
        self.0
            .write_all(&bytes)
            .and_then(|()| self.0.read_exact(&mut answer))
            .expect("the resource answers");
        answer == [1]
    }
}

/// Witness C: who is inside of a key. Each thread has a place in the key's file, which says what
/// its hold takes and until when it is valid. So a process that is killed leaves with its lease.
///
/// A thread first writes its place and then reads the others: of two that enter at the same moment,
/// one sees both.
pub struct Inside {
    places: File,
    /// Which process this is, and which of its threads.
    process: u64,
    thread: u64,
}

/// How many places a process has.
const PLACES: u64 = 64;
/// The most that a hold can take: it shares a word with the end of the validity.
pub const LARGEST_SHARE: u64 = 0xff;

impl Inside {
    /// The places of a key in `dir`, for thread number `thread` of a process.
    pub fn open(dir: &Path, key: u64, process: u64, thread: u64) -> Inside {
        assert!(thread < PLACES, "a process has fewer threads");
        let mut open = OpenOptions::new();
        open.read(true).write(true).create(true).truncate(false);
        let places = open.open(dir.join(format!("inside-{key}"))).expect("the places of a key");
        Inside { places, process, thread }
    }

    /// Enters, and notes in the record how much those inside take together, and how many other
    /// processes have some of it.
    pub fn enter(&self, record: &mut Record) {
        self.stay(record);
        let length = self.places.metadata().expect("the places have a length").len();
        let mut bytes = vec![0; usize::try_from(length).expect("a few places")];
        self.places.read_exact_at(&mut bytes, 0).expect("the places can be read");
        let (at, mut processes) = (now(), HashSet::new());
        if at >= record.valid_until {
            return;
        }
        record.inside = record.share;
        for (place, word) in (0..).zip(bytes.chunks_exact(8)) {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            if place != self.place() && word >> 8 > at / 1000 {
                record.inside += word & LARGEST_SHARE;
                processes.insert(place / PLACES);
            }
        }
        processes.remove(&self.process);
        record.beside = processes.len() as u64;
    }

    /// Notes that the validity has another end, or that the hold takes less than before.
    pub fn stay(&self, record: &Record) {
        self.write(((record.valid_until / 1000) << 8) | record.share);
    }

    /// Leaves, before the hold is released.
    pub fn leave(&self) {
        self.write(0);
    }

    fn write(&self, word: u64) {
        let at = self.place() * 8;
        self.places.write_all_at(&word.to_le_bytes(), at).expect("the place can be written");
    }

    fn place(&self) -> u64 {
        self.process * PLACES + self.thread
    }
}
