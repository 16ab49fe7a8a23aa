//! What was seen under keys, as a table for people and as JSON for scripts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use distlock::{Holder, Side, Waiter};
use humantime::format_duration;
use serde_json::{Value, json};

use crate::look::{Kind, Seen};

const HEAD: [&str; 7] = ["KEY", "KIND", "WHO", "ASKED", "REST", "FENCE", "WAITING"];
/// The longest value of another program that is shown, in characters.
const LONGEST_VALUE: usize = 50;

type Row = [String; HEAD.len()];

/// A table with a row for each holder, and one for each waiter.
pub(crate) fn table(seen: &[Seen]) -> String {
    aligned(seen.iter().flat_map(|seen| {
        holders(seen).into_iter().chain(seen.state.waiters.iter().map(row_of_waiter))
    }))
}

/// A table with a row for each holder; waiters are only counted.
pub(crate) fn holders_only(seen: &[Seen]) -> String {
    aligned(seen.iter().flat_map(holders))
}

fn aligned(rows: impl Iterator<Item = Row>) -> String {
    let rows: Vec<_> = [HEAD.map(str::to_owned)].into_iter().chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..HEAD.len()).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Row| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

fn holders(seen: &Seen) -> Vec<Row> {
    let state = &seen.state;
    let fence = state.fence.map_or("-".into(), |fence| fence.to_string());
    let waiting = state.waiters.len().to_string();
    let key = printable(&seen.key, usize::MAX);
    let row = |[kind, who, asked, rest]: [String; 4]| {
        [key.clone(), kind, who, asked, rest, fence.clone(), waiting.clone()]
    };
    if state.holders.is_empty() {
        let dash = || "-".to_owned();
        return vec![row([seen.kind.name().into(), dash(), dash(), dash()])];
    }
    let of_holder = |holder: &Holder| {
        let who = match &holder.client {
            Some(client) => client.clone(),
            None => printable(&holder.token, LONGEST_VALUE),
        };
        let rest = holder.remaining.map_or("for ever".into(), short);
        row([kind(seen.kind, holder), who, age(holder.drawn_at), rest])
    };
    state.holders.iter().map(of_holder).collect()
}

fn kind(kind: Kind, holder: &Holder) -> String {
    let kept = if holder.is_kept { " (kept)" } else { "" };
    match (kind, holder.side) {
        (Kind::Semaphore, _) => share(holder.permits, None),
        (_, side @ Some(_)) => share(1, side),
        _ => format!("{}{kept}", kind.name()),
    }
}

fn row_of_waiter(waiter: &Waiter) -> Row {
    let what = match (waiter.permits, waiter.side) {
        (1, None) => "  waits".to_owned(),
        (permits, side) => format!("  waits: {}", share(permits, side)),
    };
    let who = waiter.client.clone().unwrap_or("?".into());
    let nothing = String::new;
    [nothing(), what, who, age(waiter.drawn_at), nothing(), nothing(), nothing()]
}

/// What somebody has, or waits for, of a lock that many can have.
fn share(permits: u32, side: Option<Side>) -> String {
    match side {
        Some(Side::Read) => "read".into(),
        Some(Side::Write) => "write".into(),
        None if permits == 1 => "1 permit".into(),
        None => format!("{permits} permits"),
    }
}

/// A line of JSON for each key.
pub(crate) fn json(seen: &[Seen]) -> String {
    seen.iter().map(|seen| format!("{}\n", object(seen))).collect()
}

fn object(seen: &Seen) -> Value {
    let holder = |holder: &Holder| {
        json!({
            "client": holder.client,
            // The token of a lock of ours is all that a release needs.
            "value": holder.client.is_none().then_some(&holder.token),
            "permits": holder.permits,
            "side": holder.side.map(side),
            "kept": holder.is_kept,
            "asked_unix_ms": holder.drawn_at.map(unix_ms),
            "remaining_ms": holder.remaining.map(millis),
        })
    };
    let waiter = |waiter: &Waiter| {
        json!({
            "client": waiter.client,
            "permits": waiter.permits,
            "side": waiter.side.map(side),
            "asked_unix_ms": waiter.drawn_at.map(unix_ms),
        })
    };
    json!({
        "key": seen.key,
        "kind": seen.kind.name(),
        "fence": seen.state.fence,
        "holders": seen.state.holders.iter().map(holder).collect::<Vec<_>>(),
        "waiters": seen.state.waiters.iter().map(waiter).collect::<Vec<_>>(),
    })
}

fn side(side: Side) -> &'static str {
    match side {
        Side::Read => "read",
        Side::Write => "write",
    }
}

fn unix_ms(time: SystemTime) -> u64 {
    millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How long ago it was, by this host's clock.
fn age(since: Option<SystemTime>) -> String {
    let ago = |since: SystemTime| short(since.elapsed().unwrap_or_default()) + " ago";
    since.map_or("-".into(), ago)
}

/// A duration as people read it: tenths of a second matter only below ten seconds.
pub(crate) fn short(duration: Duration) -> String {
    let unit = if duration >= Duration::from_secs(10) { 1_000 } else { 100 };
    format_duration(Duration::from_millis(millis(duration) / unit * unit)).to_string()
}

/// A text that another program chose: no character of it controls the terminal.
fn printable(text: &str, longest: usize) -> String {
    let mut shown = String::new();
    for character in text.chars().take(longest) {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    if text.chars().nth(longest).is_some() {
        shown.push('…');
    }
    shown
}
