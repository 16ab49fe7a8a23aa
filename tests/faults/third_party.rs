//! A third party that takes locks away: it deletes them, and puts values of its own under their
//! keys. A deleted key must not come back, and an overwritten one must keep its new value: no
//! renewal may create or extend it, no release delete it (I12).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::admin::Admin;
use super::clock::{Random, nanos, now};
use super::load::key_name;

/// The result of taking keys away once.
#[derive(Default)]
pub struct Round {
    /// Which keys, and when.
    pub taken: Vec<(u64, u64)>,
    pub back: Vec<Back>,
    pub problems: Vec<String>,
}

/// A key that was deleted, and seen again with the same token.
pub struct Back {
    pub key: u64,
    pub deleted: u64,
    pub seen: u64,
}

/// Takes these keys away where they are held, a third of them by `DEL` and the others by `SET`, and
/// checks them again after the time of a renewal. No key may be given twice.
pub fn take(
    keys: &[u64],
    lease: Duration,
    ask: &mut dyn FnMut(&[&str]) -> Option<redis::Value>,
) -> Round {
    let (look, foreign) = (lease * 2 / 5, lease * 4 / 5);
    let mut round = Round::default();
    let (mut deleted, mut overwritten) = (Vec::new(), Vec::new());
    for (i, key) in keys.iter().enumerate() {
        let name = key_name(*key);
        let Some(token @ redis::Value::BulkString(_)) = ask(&["GET", &name]) else { continue };
        let before = now();
        if i % 3 == 0 {
            if ask(&["DEL", &name]) == Some(redis::Value::Int(1)) {
                round.taken.push((*key, now()));
                deleted.push((*key, now(), token));
            }
        } else if ask(&["SET", &name, "foreign", "PX", &foreign.as_millis().to_string()]).is_some()
        {
            round.taken.push((*key, now()));
            overwritten.push((name, before, now()));
        }
    }
    thread::sleep(look);
    for (key, deleted, token) in deleted {
        if ask(&["GET", &key_name(key)]) == Some(token) {
            round.back.push(Back { key, deleted, seen: now() });
        }
    }
    for (name, before, after) in overwritten {
        // A server under load reads its clock some time before it answers. A renewal would leave
        // more than is allowed for that.
        let most = nanos(foreign + look / 4).saturating_sub(now() - after) / 1_000_000;
        let (Some(left), Some(value)) = (ask(&["PTTL", &name]), ask(&["GET", &name])) else {
            continue;
        };
        let is_bait = matches!(&value, redis::Value::BulkString(value) if value == b"foreign");
        let whole = is_bait
            && matches!(left, redis::Value::Int(left)
                if u64::try_from(left).is_ok_and(|left| left <= most));
        // On a machine under load it may have ended by itself before the check.
        if !whole && now() - before < nanos(foreign) {
            round
                .problems
                .push(format!("a foreign value was touched (I12): {value:?}, {left:?} ms left"));
        }
    }
    round
}

/// Keys in a random order.
pub fn shuffled(random: &mut Random, keys: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut keys: Vec<u64> = keys.into_iter().collect();
    for i in (1..keys.len()).rev() {
        keys.swap(i, usize::try_from(random.below(i as u64 + 1)).expect("an index"));
    }
    keys
}

/// A third party that runs beside a row, on keys that do not count for the verdict.
pub struct Background {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Round>,
}

impl Background {
    pub fn start(
        mut admin: Admin,
        keys: Vec<u64>,
        lease: Duration,
        mut random: Random,
    ) -> Background {
        let stop = Arc::new(AtomicBool::new(keys.is_empty()));
        let told = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut all = Round::default();
            while !told.load(Ordering::SeqCst) {
                let keys = shuffled(&mut random, keys.iter().copied());
                let round = take(&keys, lease, &mut |words| admin.command(words));
                all.taken.extend(round.taken);
                all.back.extend(round.back);
                all.problems.extend(round.problems);
                // An overwritten key is free again after a while.
                thread::sleep(lease * 2 / 5 + random.between((Duration::ZERO, lease / 5)));
            }
            all
        });
        Background { stop, thread }
    }

    pub fn end(self) -> Round {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("it only asks")
    }
}
