//! Histories: the calls of each thread of each process, and their results, in files of fixed
//! records, one file per thread.
//!
//! A hold is written when it is granted and again when it has ended, so that a process that is
//! killed leaves what it had begun.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

const FIELDS: usize = 19;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u64)]
pub enum Outcome {
    /// The hold goes on, or its process was killed.
    Open = 0,
    Ok = 1,
    /// `Ok(false)`, and for a hold that it was lost.
    Lost = 2,
    Refused = 3,
    Unknown = 4,
    Unavailable = 5,
    Denied = 6,
    WrongType = 7,
    Server = 8,
    Exhausted = 9,
    /// An error that no row expects.
    Other = 10,
    /// A reply that belonged to another command.
    Mismatched = 11,
    /// The thread ended, by plan, while it held.
    Abandoned = 12,
    /// No call: the thread forked.
    Forked = 13,
}

impl Outcome {
    const ALL: [Outcome; 14] = [
        Outcome::Open,
        Outcome::Ok,
        Outcome::Lost,
        Outcome::Refused,
        Outcome::Unknown,
        Outcome::Unavailable,
        Outcome::Denied,
        Outcome::WrongType,
        Outcome::Server,
        Outcome::Exhausted,
        Outcome::Other,
        Outcome::Mismatched,
        Outcome::Abandoned,
        Outcome::Forked,
    ];
}

/// One record. A hold's two records have the same `number`.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The number of the hold, or of the call without a hold, within its thread.
    pub number: u64,
    pub key: u64,
    /// Which thread of which process.
    pub owner: u64,
    /// When the call was made.
    pub called: u64,
    /// When it got the lock; 0 if it did not.
    pub granted: u64,
    /// The end of the validity, as last seen.
    pub valid_until: u64,
    /// When the lease was last seen valid.
    pub last_valid: u64,
    /// When the last unlock was called; 0 before.
    pub released: u64,
    /// When the call, or the last unlock, ended.
    pub ended: u64,
    pub fence: u64,
    pub outcome: Outcome,
    /// What was read at witness A plus one, if it was written in a window that was valid before and
    /// after; 0 otherwise.
    pub wrote: u64,
    /// When something was written at witness A in a window that was valid before and not after; 0
    /// otherwise.
    pub tainted: u64,
    /// The timeout in ns plus one; 0 without.
    pub timeout: u64,
    /// How often the end of the validity was seen to move.
    pub renewed: u64,
    /// What the hold takes of its key, and how much of it there is: a lock takes 1 of 1, so nobody
    /// fits beside it.
    pub share: u64,
    pub room: u64,
    /// What all holds inside took when it entered, as witness C counted it, and how many other
    /// processes had some of them; 0: it did not count.
    pub inside: u64,
    pub beside: u64,
}

impl Record {
    /// A call that has not ended.
    pub fn call(number: u64, key: u64, owner: u64, called: u64, timeout: u64) -> Record {
        Record {
            number,
            key,
            owner,
            called,
            granted: 0,
            valid_until: 0,
            last_valid: 0,
            released: 0,
            ended: 0,
            fence: 0,
            outcome: Outcome::Open,
            wrote: 0,
            tainted: 0,
            timeout,
            renewed: 0,
            share: 1,
            room: 1,
            inside: 0,
            beside: 0,
        }
    }

    /// Whether another hold of the same key may be valid beside this one.
    pub fn fits_beside(&self, other: &Record) -> bool {
        self.share + other.share <= self.room
    }

    /// Whether this hold's fence must be above that of another one of its key, which is over. Not
    /// if it is what a downgrade has left of that one: it begins where that one ended, with its
    /// fence.
    pub fn must_be_newer_than(&self, other: &Record) -> bool {
        let is_left = self.owner == other.owner
            && self.granted == other.released
            && self.fence == other.fence;
        !self.fits_beside(other) && !is_left
    }

    /// Whether no other hold may be valid beside this one.
    pub fn is_exclusive(&self) -> bool {
        self.share == self.room
    }

    /// The end of what the hold may rely on: its validity, or the unlock where that came first.
    pub fn end(&self) -> u64 {
        // The lease was still valid at the moment of the unlock, even if a renewal had moved its
        // end since the last check.
        if self.released != 0 && self.last_valid >= self.released {
            self.released
        } else {
            self.valid_until.min(self.released_or_never())
        }
    }

    /// Until when its holder may have believed in it: a lease that it saw as lost before the unlock
    /// no longer counts, whenever its validity would have ended.
    pub fn believed_until(&self) -> u64 {
        if self.released == 0 { self.end() } else { self.end().min(self.last_valid) }
    }

    fn released_or_never(&self) -> u64 {
        if self.released == 0 { u64::MAX } else { self.released }
    }

    fn bytes(&self) -> Vec<u8> {
        let fields: [u64; FIELDS] = [
            self.number,
            self.key,
            self.owner,
            self.called,
            self.granted,
            self.valid_until,
            self.last_valid,
            self.released,
            self.ended,
            self.fence,
            self.outcome as u64,
            self.wrote,
            self.tainted,
            self.timeout,
            self.renewed,
            self.share,
            self.room,
            self.inside,
            self.beside,
        ];
        fields.iter().flat_map(|field| field.to_le_bytes()).collect()
    }

    fn read(bytes: &[u8]) -> Record {
        let mut fields =
            bytes.chunks_exact(8).map(|field| u64::from_le_bytes(field.try_into().unwrap()));
        let mut next = || fields.next().unwrap();
        Record {
            number: next(),
            key: next(),
            owner: next(),
            called: next(),
            granted: next(),
            valid_until: next(),
            last_valid: next(),
            released: next(),
            ended: next(),
            fence: next(),
            outcome: Outcome::ALL[usize::try_from(next()).unwrap()],
            wrote: next(),
            tainted: next(),
            timeout: next(),
            renewed: next(),
            share: next(),
            room: next(),
            inside: next(),
            beside: next(),
        }
    }
}

/// Where one thread writes.
pub struct Writer(File);

impl Writer {
    /// A new file in `dir`.
    pub fn create(dir: &Path, owner: u64, life: u64) -> Writer {
        Writer(
            File::create_new(dir.join(format!("{owner}-{life}.history"))).expect("a new history"),
        )
    }

    /// Writes at once: a SIGKILL may follow.
    pub fn write(&mut self, record: &Record) {
        self.0.write_all(&record.bytes()).expect("the history can be written");
    }
}

/// Everything in `dir`: (holds, calls without one), each in the order of their calls.
pub fn read_all(dir: &Path) -> (Vec<Record>, Vec<Record>) {
    let mut all: HashMap<(u64, u64, String), Record> = HashMap::new();
    for entry in fs::read_dir(dir).expect("the histories") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "history") {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            // A killed process may have left half a record at the end.
            for bytes in fs::read(&path).expect("a history").chunks_exact(FIELDS * 8) {
                let record = Record::read(bytes);
                all.insert((record.owner, record.number, name.clone()), record);
            }
        }
    }
    let (mut holds, mut calls): (Vec<_>, Vec<_>) =
        all.into_values().partition(|record| record.granted != 0);
    holds.sort_by_key(|record| (record.granted, record.called));
    calls.sort_by_key(|record| record.called);
    (holds, calls)
}
