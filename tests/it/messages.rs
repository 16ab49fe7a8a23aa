//! `src/guide/errors.md` shows every message that a user can meet, as the crate gives it.
//!
//! After a change of a message, `DISTLOCK_UPDATE=1 cargo test messages -- --test-threads=1` writes
//! its tables anew.

mod locks;
mod servers;
mod settings;

use std::path::Path;
use std::{env, fs};

use distlock::ErrorKind;

use crate::layers::files_in;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/guide/errors.md");

/// An error that a user can meet: a row of a table.
struct Case {
    /// What the user, the server or the network did.
    when: &'static str,
    kind: ErrorKind,
    /// The error's text, and that of its causes.
    text: String,
    /// Other columns.
    rest: Vec<&'static str>,
}

impl Case {
    #[track_caller]
    fn new<T>(when: &'static str, result: distlock::Result<T>) -> Self {
        let error = result.err().unwrap_or_else(|| panic!("no error: {when}"));
        let (kind, text) = (error.kind(), format!("{error:?}"));
        let text = text.strip_prefix(&format!("{kind:?}: ")).unwrap().to_owned();
        Self { when, kind, text, rest: Vec::new() }
    }

    fn row(&self) -> String {
        let Self { when, kind, text, rest } = self;
        let rest: String = rest.iter().map(|cell| format!(" {cell} |")).collect();
        format!("| {when} | `{kind:?}` | {} |{rest}\n", text.replace('|', "\\|"))
    }
}

/// The lines between `<!-- name -->` and the next comment are these rows, below two lines of head.
#[track_caller]
fn shows(name: &str, cases: &[Case]) {
    let page = fs::read_to_string(PAGE).unwrap();
    let begin = format!("<!-- {name} -->\n");
    let (before, rest) = page.split_once(&begin).expect(name);
    let (table, after) = rest.split_once("<!-- end -->").expect(name);
    let head: String = table.split_inclusive('\n').take(2).collect();
    let rows: String = cases.iter().map(Case::row).collect();
    let table_is = format!("{head}{rows}");
    if env::var_os("DISTLOCK_UPDATE").is_some() {
        return fs::write(PAGE, format!("{before}{begin}{table_is}<!-- end -->{after}")).unwrap();
    }
    let [on_page, said] = [table, &table_is].map(|table| table.lines().collect::<Vec<_>>());
    for (row, said) in on_page.iter().zip(&said) {
        assert_eq!(row, said, "{PAGE} differs from what the crate says");
    }
    assert_eq!(on_page.len(), said.len(), "rows of {name}");
}

/// What stands between the placeholders of the first literal in this code.
fn literal(code: &str) -> Option<Vec<String>> {
    let mut text = String::new();
    let mut chars = code.trim_start().strip_prefix('"')?.chars().peekable();
    loop {
        match chars.next()? {
            '"' => break,
            '\\' if chars.peek() == Some(&'\n') => {
                while chars.peek().is_some_and(|next| next.is_whitespace()) {
                    chars.next();
                }
            }
            '\\' => text.push(chars.next()?),
            char => text.push(char),
        }
    }
    let pieces = text.split('{').map(|piece| piece.split_once('}').map_or(piece, |(_, rest)| rest));
    Some(pieces.map(str::to_owned).collect())
}

/// Each row of the log's table has the level and every piece of the line that it stands for.
#[test]
fn every_line_of_the_log_is_explained() {
    let page = include_str!("../../src/guide/operations.md");
    let (_, table) = page.split_once("<!-- log -->\n").unwrap();
    let (table, _) = table.split_once("<!-- end -->").unwrap();
    let rows: Vec<&str> = table.lines().skip(2).collect();
    let mut found = Vec::new();
    for path in files_in(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), "rs") {
        let code = fs::read_to_string(&path).unwrap();
        for (at, _) in code.match_indices("log::") {
            let Some((level, line)) = code[at + 5..].split_once("!(") else { continue };
            if !["error", "warn", "info", "debug", "trace"].contains(&level) {
                continue;
            }
            let pieces = literal(line).expect("a literal");
            let is_it = |row: &str| {
                row.starts_with(&format!("| {level} | "))
                    && pieces.iter().all(|piece| row.contains(piece.as_str()))
            };
            let said = pieces.iter().any(|piece| piece.len() > 10);
            assert!(said, "{}: {pieces:?} says nothing", path.display());
            let row = rows.iter().position(|row| is_it(row));
            found.push(row.unwrap_or_else(|| panic!("{level}: {pieces:?} is not explained")));
        }
    }
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, (0..rows.len()).collect::<Vec<_>>(), "a row for each line");
}

#[test]
fn no_message_is_missing() {
    const BEFORE: [&str; 4] =
        ["Error::invalid(", "Error::unsupported(", "unusable(", "unreachable_node("];
    let page: String = fs::read_to_string(PAGE).unwrap().split_whitespace().collect();
    let (mut found, mut missing) = (0, Vec::new());
    let mut files = files_in(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), "rs");
    files.retain(|path| !path.ends_with("tests.rs"));
    for path in files {
        let code = fs::read_to_string(&path).unwrap();
        let code = code.split("#[cfg(test)]").next().unwrap();
        let kinds = code.match_indices("ErrorKind::").filter_map(|(at, _)| {
            let rest = &code[at + 11..];
            let name = rest.find(|char: char| !char.is_alphabetic())?;
            rest[name..].strip_prefix(',')
        });
        let others = BEFORE.iter().flat_map(|before| {
            code.match_indices(before).map(|(at, _)| &code[at + before.len()..])
        });
        for pieces in kinds.chain(others).filter_map(literal) {
            found += 1;
            for piece in pieces {
                if !page.contains(&piece.split_whitespace().collect::<String>()) {
                    missing.push(piece);
                }
            }
        }
    }
    assert_eq!(missing, [""; 0], "not in {PAGE}");
    assert!(found > 80, "{found}");
}
