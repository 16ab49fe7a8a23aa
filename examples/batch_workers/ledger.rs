//! The ledger: the file that the workers share.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io, thread};

use crate::support::Failure;

/// What the workers share. Each line of the file is a name and a number.
#[derive(Default)]
pub struct Ledger {
    /// The fence of the last writer.
    pub fence: u64,
    /// The next line to take.
    pub next: u64,
    /// How many updates have been made.
    pub updates: u64,
    pub words: BTreeMap<String, u64>,
}

impl Ledger {
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let mut ledger = Self::default();
        for line in fs::read_to_string(path)?.lines() {
            let (name, number) = line.rsplit_once(' ').ok_or("the ledger is damaged")?;
            let number = number.parse()?;
            match name {
                "fence:" => ledger.fence = number,
                "next line:" => ledger.next = number,
                "updates:" => ledger.updates = number,
                word => drop(ledger.words.insert(word.to_owned(), number)),
            }
        }
        Ok(ledger)
    }

    /// Counts these lines, and returns how many words they have.
    pub fn count(&mut self, batch: &[String]) -> u64 {
        self.next += batch.len() as u64;
        self.updates += 1;
        let words = batch
            .iter()
            .flat_map(|line| line.split(|c: char| !c.is_alphanumeric()))
            .filter(|word| !word.is_empty());
        words.map(|word| *self.words.entry(word.to_lowercase()).or_default() += 1).count() as u64
    }

    /// Writes a new file and gives it the old one's name: a reader of the ledger sees the old one
    /// or the new one, never a half-written one.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let new =
            path.with_extension(format!("{}-{:?}", std::process::id(), thread::current().id()));
        fs::write(&new, self.to_text())?;
        fs::rename(new, path)
    }

    /// For `--kill`: stops writing half-way. Only once; `false` if it has happened before.
    pub fn write_half(&self, path: &Path) -> io::Result<bool> {
        let new = path.with_extension("half");
        let text = self.to_text();
        if new.exists() {
            Ok(false)
        } else {
            fs::write(new, &text.as_bytes()[..text.len() / 2]).map(|()| true)
        }
    }

    fn to_text(&self) -> String {
        let head =
            format!("fence: {}\nnext line: {}\nupdates: {}\n", self.fence, self.next, self.updates);
        self.words
            .iter()
            .fold(head, |text, (word, count)| text + word + " " + &count.to_string() + "\n")
    }

    pub fn total(&self) -> u64 {
        self.words.values().sum()
    }
}
