//! Other servers: some rows against each that `tests/faults/servers` has fetched, and one line of
//! the report from all of them.

use std::path::{Path, PathBuf};

use super::super::judge::REMARKS;
use super::super::problems::{Class, reasons, verdict_of, word};
use super::{Row, USUAL};

pub const NUMBER: u32 = 62;
/// The rows that each server must pass.
pub const ROWS: [u32; 3] = [1, 5, 21];

/// Only the line of this row: the rows above run, in their own processes.
pub fn rows() -> Vec<Row> {
    vec![Row { number: NUMBER, name: "other servers", ..USUAL }]
}

/// The servers that have been fetched: name, and program.
pub fn found() -> Vec<(String, PathBuf)> {
    let servers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/build.out/servers");
    let entries = std::fs::read_dir(servers).into_iter().flatten().flatten();
    let server = |dir: PathBuf| {
        Some((
            std::fs::read_to_string(dir.join("name")).ok()?.trim().to_owned(),
            dir.join("redis-server"),
        ))
    };
    let mut found: Vec<_> = entries.filter_map(|entry| server(entry.path())).collect();
    found.sort();
    found
}

/// The columns whose largest value counts, and not the sum: idle time; longest stuck time, orphan
/// and wait, acquire, recovery.
const LARGEST: [usize; 6] = [6, 13, 14, 15, 16, 17];

/// Joins several lines, (server, row, line), into one. Its verdict is the worst of theirs.
pub fn together(lines: &[(String, u32, String)]) -> String {
    let mut cells: Vec<String> = Vec::new();
    let mut remarks = Vec::new();
    for (server, number, line) in lines {
        let new: Vec<&str> = line.split('|').map(str::trim).collect();
        let verdict = word(verdict_of(line));
        let why = match (verdict_of(line), reasons(line)) {
            (None, _) => String::new(),
            (_, why) if why.is_empty() => new.get(REMARKS).copied().unwrap_or_default().to_owned(),
            (_, why) => why,
        };
        // In this order a problem is found among the remarks as in every other line.
        remarks.push(if why.is_empty() {
            format!("{server}, row {number}: {verdict}")
        } else {
            format!("{verdict}: {server}, row {number}: {why}")
        });
        if cells.is_empty() {
            cells = new.into_iter().map(str::to_owned).collect();
        } else {
            cells = cells
                .iter()
                .zip(new)
                .enumerate()
                .map(|(column, (a, b))| combine(a, b, LARGEST.contains(&column)))
                .collect();
        }
    }
    let middle = cells
        .get(4..REMARKS)
        .map_or_else(|| " |".repeat(REMARKS - 4), |cells| format!(" {} |", cells.join(" | ")));
    let worst = lines.iter().filter_map(|(_, _, line)| verdict_of(line)).max();
    let verdict = word(worst.or(lines.is_empty().then_some(Class::Red)));
    format!("| {NUMBER} | N | other servers |{middle} {} | {verdict} |", remarks.join("; "))
}

/// Number by number, if a cell has several.
fn combine(a: &str, b: &str, largest: bool) -> String {
    let word = |(a, b): (&str, &str)| match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) if largest => a.max(b).to_string(),
        (Ok(a), Ok(b)) => (a + b).to_string(),
        (Ok(_), Err(_)) => b.to_owned(),
        _ => a.to_owned(),
    };
    a.split(' ').zip(b.split(' ')).map(word).collect::<Vec<_>>().join(" ")
}
