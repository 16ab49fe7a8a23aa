//! The layers: which layer may use which, and what every file must look like. The checker itself is
//! tested on small texts.

mod planted;
mod text;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) use text::{without_comments_and_strings, words};

/// In lines. A longer one says in its head why it is one.
const LONGEST_FILE: usize = 400;
const WHY_ONE: &str = "In one file: ";
const LONGEST_FUNCTION: usize = 70;
/// In columns. A row of a table in a doc comment cannot be broken.
const LONGEST_LINE: usize = 100;

/// What each layer, and each file at the top, may name after `crate::`. Arrows point down.
const MAY_USE: &[(&str, &[&str])] = &[
    ("base", &["base"]),
    ("server", &["base", "server"]),
    ("lease", &["base", "lease"]),
    ("local", &["base", "lease", "local"]),
    ("limiter", &["base", "server", "lease", "limiter"]),
    // It implements the limiter's own trait, too.
    ("store", &["base", "server", "lease", "limiter", "store"]),
    ("lock", &["base", "lease", "local", "lock"]),
    ("client", &["base", "server", "lease", "local", "limiter", "store", "lock"]),
    // It has module lines and re-exports of everything.
    ("lib", &["base", "server", "lease", "local", "limiter", "store", "lock", "client", "guide"]),
    ("guide", &[]),
];

/// The folder of the command, which is a crate of its own, and what each of its files may name.
const COMMAND: &str = "bin/distlock/";
const COMMAND_MAY_USE: &[(&str, &[&str])] = &[
    ("say", &[]),
    ("exit", &["say"]),
    ("args", &["exit"]),
    ("signals", &[]),
    ("server", &["args", "exit"]),
    ("starter", &["exit", "say"]),
    ("job", &["say", "starter"]),
    ("search", &[]),
    ("look", &["search"]),
    ("table", &["look"]),
    ("hold", &["args", "table"]),
    ("run", &["args", "exit", "hold", "job", "say", "server", "signals"]),
    ("who", &["args", "exit", "look", "server", "table"]),
    ("watch", &["args", "exit", "look", "say", "server", "table", "who"]),
    ("force", &["args", "exit", "look", "say", "server", "table"]),
    ("pages", &["args", "exit"]),
    // It has module lines of everything.
    ("main", &[]),
];

/// The only lines outside server and store that name redis and r2d2: the program's pool, commands.
const CLIENTS_SIGNATURES: [&str; 3] = [
    "pub use {r2d2, redis};",
    "mut work: impl FnMut(&mut dyn redis::ConnectionLike) -> redis::RedisResult<T>,",
    "pub fn pool(mut self, pool: r2d2::Pool<redis::Client>) -> Self {",
];

/// What is wrong with a file, in words.
fn problems(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if !text.starts_with("//!") {
        problems.push("does not begin with a module doc".to_owned());
    }
    let head: Vec<_> = text.lines().map_while(|line| line.strip_prefix("//!")).collect();
    if text.lines().count() > LONGEST_FILE && !head.join(" ").contains(WHY_ONE) {
        problems.push(format!("has more than {LONGEST_FILE} lines"));
    }
    let is_row = |line: &str| line.starts_with("//! |") || line.trim_start().starts_with("/// |");
    let wide = |line: &&str| line.chars().count() > LONGEST_LINE && !is_row(line);
    problems.extend(text.lines().filter(wide).map(|line| format!("has a wide line: {line}")));
    let (path, may_use) = match path.strip_prefix(COMMAND) {
        Some(path) => (path, COMMAND_MAY_USE),
        None => (path, MAY_USE),
    };
    let layer = path.split('/').next().unwrap().trim_end_matches(".rs");
    let Some((_, allowed)) = may_use.iter().find(|(name, _)| *name == layer) else {
        problems.push("belongs to no layer: say in MAY_USE what it may use".to_owned());
        return problems;
    };
    let code = without_comments_and_strings(text);
    problems.extend(
        long_functions(&code)
            .iter()
            .map(|name| format!("has a function of too many lines: {name}")),
    );
    for used in used_modules(path, &code) {
        if !allowed.contains(&used.as_str()) {
            problems.push(format!("{layer} must not use {used}"));
        }
    }
    // The command's search has commands of its own.
    if !matches!(layer, "server" | "store" | "search") {
        for line in code.lines().map(str::trim).filter(|line| names_redis(line)) {
            if !matches!(layer, "client" | "lib") || !CLIENTS_SIGNATURES.contains(&line) {
                problems.push(format!("names redis or r2d2: {line}"));
            }
        }
    }
    problems
}

/// The functions of more than [`LONGEST_FUNCTION`] lines, by name.
fn long_functions(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    // The functions that are open, each with its first line and its depth in braces.
    let mut open: Vec<(String, usize, usize)> = Vec::new();
    let (mut depth, mut brackets, mut declared) = (0, 0_i32, None);
    for (number, line) in code.lines().enumerate() {
        let words = words(line);
        for (at, word) in words.iter().enumerate() {
            match *word {
                // Otherwise it is the type of a function.
                "fn" if words.get(at + 1) != Some(&"(") => {
                    declared = words.get(at + 1).map(|name| ((*name).to_owned(), number));
                    brackets = 0;
                }
                "(" | "[" => brackets += 1,
                ")" | "]" => brackets -= 1,
                // A function without a body.
                ";" if brackets == 0 => declared = None,
                "{" => {
                    depth += 1;
                    open.extend(declared.take().map(|(name, from)| (name, from, depth)));
                }
                "}" => {
                    let ends = open.pop_if(|(_, _, at)| *at == depth);
                    depth -= 1;
                    let long = ends.filter(|(_, from, _)| number + 1 - from > LONGEST_FUNCTION);
                    found.extend(long.map(|(name, ..)| name));
                }
                _ => {}
            }
        }
    }
    found
}

/// The first names after `crate::`, and those that `super::` reaches when it leads out of the
/// file's own module to the top.
fn used_modules(path: &str, code: &str) -> BTreeSet<String> {
    let own = Path::new(path).with_extension("");
    let own: Vec<&str> = own
        .iter()
        .map(|part| part.to_str().unwrap())
        .filter(|part| *part != "mod" && *part != "lib")
        .collect();
    let words = words(code);
    let mut used = BTreeSet::new();
    // Where each inline module ends, by its depth in braces.
    let (mut depth, mut inline) = (0_usize, Vec::new());
    let mut at = 0;
    while at < words.len() {
        match words[at] {
            "{" => {
                depth += 1;
                if at >= 2 && words[at - 2] == "mod" {
                    inline.push(depth);
                }
            }
            "}" => {
                if inline.last() == Some(&depth) {
                    inline.pop();
                }
                depth = depth.saturating_sub(1);
            }
            // `pub(super)` and `pub(in crate::x)` only name their own branch. Only paths count.
            "crate" | "super" if words.get(at + 1) == Some(&"::") => {
                let mut levels = own.len() + inline.len();
                if words[at] == "crate" {
                    levels = 0;
                    at += 2;
                } else {
                    while words.get(at) == Some(&"super") && words.get(at + 1) == Some(&"::") {
                        levels = levels.saturating_sub(1);
                        at += 2;
                    }
                }
                // A deeper path is in the file's own branch.
                if levels == 0 {
                    used.extend(first_names(&words[at..]));
                }
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    used
}

/// The first name of a path, or each first name of a group in braces.
fn first_names(words: &[&str]) -> Vec<String> {
    if words.first() != Some(&"{") {
        return words.first().map(|name| (*name).to_owned()).into_iter().collect();
    }
    let (mut depth, mut names, mut first) = (0, Vec::new(), true);
    for word in words {
        match *word {
            "{" => depth += 1,
            "}" if depth == 1 => break,
            "}" => depth -= 1,
            "," if depth == 1 => first = true,
            name if depth == 1 && first => {
                names.push(name.to_owned());
                first = false;
            }
            _ => {}
        }
    }
    names
}

fn names_redis(code: &str) -> bool {
    let words = words(code);
    words.iter().enumerate().any(|(at, word)| {
        let named = ["redis", "r2d2"].contains(word);
        let path_goes_on = words.get(at + 1) == Some(&"::");
        let imported = at > 0
            && ["use", "crate", "as", "{", ","].contains(&words[at - 1])
            && words.contains(&"use");
        named && (path_goes_on || imported)
    })
}

/// The files with this extension, in the folder and below it.
pub(crate) fn files_in(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            // The build folders of the peers' drivers contain no source.
            if !path.ends_with("target") {
                files.extend(files_in(&path, extension));
            }
        } else if path.extension().is_some_and(|its| its == extension) {
            files.push(path);
        }
    }
    files
}

/// The program's logger is called by a thread of its own only.
#[test]
fn nothing_but_its_own_thread_calls_the_logger() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in files_in(&root, "rs") {
        let text = fs::read_to_string(&file).unwrap();
        let logs = ["error", "warn", "info", "debug", "trace"]
            .iter()
            .any(|level| text.contains(&format!("log::{level}!(")));
        let ours =
            text.lines().any(|line| line.starts_with("use ") && words(line).contains(&"log"));
        assert!(!logs || ours, "{} logs past base/log.rs", file.display());
    }
}

#[test]
fn every_file_keeps_to_its_layer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = files_in(&root, "rs");
    assert!(files.len() > 20, "only {} files in {}", files.len(), root.display());
    let mut found = Vec::new();
    for file in files {
        let path = file.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&file).unwrap();
        found.extend(
            problems(&path, &text).into_iter().map(|problem| format!("src/{path} {problem}")),
        );
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn no_file_of_the_tests_is_long_and_no_line_there_or_in_a_script_is_wide() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests = ["tests", "benches", "examples"].map(|dir| files_in(&root.join(dir), "rs"));
    let scripts = files_in(&root.join("src"), "lua");
    assert!(scripts.len() > 10, "only {scripts:?}");
    for file in tests.concat().into_iter().chain(scripts) {
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.lines().count() <= LONGEST_FILE, "{} is long", file.display());
        let wide = text.lines().find(|line| line.chars().count() > LONGEST_LINE);
        assert_eq!(wide, None, "{}", file.display());
    }
}

#[test]
fn each_line_that_may_name_redis_outside_the_stores_is_there() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let client = ["client.rs", "client/builder.rs", "lib.rs"]
        .map(|file| fs::read_to_string(src.join(file)).unwrap())
        .concat();
    for signature in CLIENTS_SIGNATURES {
        assert!(
            client.lines().any(|line| line.trim() == signature),
            "an exception that nobody needs: {signature}"
        );
    }
}
