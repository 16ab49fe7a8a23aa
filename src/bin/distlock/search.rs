//! The keys of a server that match a pattern, and may be locks.

use std::collections::BTreeSet;

use distlock::redis::cmd;
use distlock::{Client, Result};
use uuid::Uuid;

/// How many keys one step looks at.
const STEP: usize = 1_000;
/// No token is longer, in bytes: a longer text is no lock, and may be very long.
const LONGEST_TOKEN: usize = 200;
/// What the names of the companions of a lock end in.
const COMPANIONS: [&str; 6] = ["fence", "queue", "waiters", "conditions", "owner", "smooth"];

/// Whether it names a set of keys, as `SCAN` knows it.
pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// What has to be read to know whether keys may be locks, of each: its text, the one field of its
/// hash, or the first member of its sorted set. Never more than ARGV[1] bytes and one, which shows
/// that there are more.
const READ: &str = "
local all = {}
for at, key in ipairs(KEYS) do
  local kind, text = redis.call('TYPE', key).ok, ''
  if kind == 'string' then
    text = redis.call('GETRANGE', key, 0, ARGV[1])
  elseif kind == 'hash' and redis.call('HLEN', key) == 1 then
    text = redis.call('HKEYS', key)[1]
  elseif kind == 'zset' then
    text = redis.call('ZRANGE', key, 0, 0)[1]
  end
  all[at] = {kind, text:sub(1, ARGV[1] + 1)}
end
return all";

/// The keys that match, in the order of their names. `foreign`: also those with a short text that
/// this crate has not written. Each step is a call of its own, because a search may take longer
/// than a call may.
pub(crate) fn search(client: &Client, pattern: &str, foreign: bool) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut cursor = 0_u64;
    loop {
        let (next, keys) = client.execute(|connection| {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
            let (next, keys): (u64, Vec<Vec<u8>>) = scan.query(connection)?;
            let names = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
            let names: Vec<_> = names.filter(|name| !is_companion(name)).collect();
            let mut read = cmd("EVAL");
            read.arg(READ).arg(names.len()).arg(&names).arg(LONGEST_TOKEN);
            let texts: Vec<(String, Vec<u8>)> = read.query(connection)?;
            let read = names.into_iter().zip(texts);
            let locks = read.filter(|(_, (kind, text))| may_be_lock(kind, text, foreign));
            Ok((next, locks.map(|(name, _)| name).collect::<Vec<_>>()))
        })?;
        found.extend(keys);
        cursor = next;
        if cursor == 0 {
            return Ok(found);
        }
    }
}

/// Whether a key of this type may be a lock, after the text that was read there.
fn may_be_lock(kind: &str, text: &[u8], foreign: bool) -> bool {
    text.len() <= LONGEST_TOKEN
        && match kind {
            "string" => foreign || is_token(text) || is_deadline(text),
            "hash" => !text.is_empty(),
            "zset" => is_token(text),
            _ => false,
        }
}

/// Whether it has the form of this crate's tokens: a UUID, after a share or `kept`, and a name.
fn is_token(value: &[u8]) -> bool {
    let text = String::from_utf8_lossy(value);
    let front = text.split_once('@').map_or("", |(front, _)| front);
    let uuid = front.rsplit(':').next().unwrap_or_default();
    Uuid::try_parse(uuid).is_ok()
}

/// Whether it has the form of an owner in Redisson's layout: a UUID and a number.
pub(crate) fn is_redisson_owner(value: &str) -> bool {
    let owner = value.strip_prefix("kept:").unwrap_or(value);
    owner.split_once(':').is_some_and(|(uuid, number)| {
        Uuid::try_parse(uuid).is_ok() && number.parse::<u64>().is_ok()
    })
}

/// Whether it has the form of a lock of the timestamp layout.
pub(crate) fn is_deadline(value: &[u8]) -> bool {
    value.len() >= 13 && value.iter().all(u8::is_ascii_digit)
}

/// Whether this is a key beside a lock, such as `{orders:42}:queue`, or `{orders}:42::queue` where
/// the lock's name has a hash tag of its own. The guide's *internals* has a list of these keys.
fn is_companion(name: &str) -> bool {
    name.starts_with("redisson_lock_token:")
        || name.rsplit_once(':').is_some_and(|(stem, end)| {
            let has_tag = stem.split_once('{').is_some_and(|(_, rest)| rest.contains('}'));
            let is_stem =
                has_tag && (stem.ends_with(':') || (stem.starts_with('{') && stem.ends_with('}')));
            is_stem && COMPANIONS.contains(&end)
        })
}
