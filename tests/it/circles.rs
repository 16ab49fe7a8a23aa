//! No circles between files: to read a file, one needs only the files below it.
//!
//! A private module is a part of the file that declares it. Every other file counts by itself, even
//! in the same folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::layers::{files_in, without_comments_and_strings, words};

/// A module, from the top: `["server", "node"]`. The top itself is empty.
type Module = Vec<String>;

struct Source {
    module: Module,
    /// The modules that it declares, and whether each is private.
    children: BTreeMap<String, bool>,
    /// What it names, from the top.
    named: BTreeSet<Module>,
}

fn module_of(path: &str) -> Module {
    let parts = path.trim_end_matches(".rs").split('/');
    parts.filter(|part| !["lib", "main"].contains(part)).map(str::to_owned).collect()
}

fn read(path: &str, text: &str) -> Source {
    let code = without_comments_and_strings(text);
    let words = words(&code);
    let module = module_of(path);
    let mut children = BTreeMap::new();
    for (at, three) in words.windows(3).enumerate() {
        if three[0] == "mod" && three[2] == ";" {
            let private = at == 0 || [";", "}", "]"].contains(&words[at - 1]);
            children.insert(three[1].to_owned(), private);
        }
    }
    let named = named(&module, &children, &words);
    Source { module, children, named }
}

/// Every path after `crate::` or `super::`, and in a `use` of a module that is declared here.
fn named(module: &Module, children: &BTreeMap<String, bool>, words: &[&str]) -> BTreeSet<Module> {
    let mut named = BTreeSet::new();
    // Where each inline module ends, by its depth in braces.
    let (mut depth, mut inline) = (0_usize, Vec::new());
    let mut at = 0;
    while at < words.len() {
        let begins = words.get(at + 1) == Some(&"::");
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
            "crate" if begins => named.extend(paths(&[], &words[at + 2..])),
            "super" if begins => {
                let mut base = module.clone();
                let mut levels = inline.len();
                while words.get(at) == Some(&"super") && words.get(at + 1) == Some(&"::") {
                    if levels > 0 {
                        levels -= 1;
                    } else {
                        base.pop();
                    }
                    at += 2;
                }
                named.extend(paths(&base, &words[at..]));
                continue;
            }
            "use" if words.get(at + 1).is_some_and(|name| children.contains_key(*name)) => {
                named.extend(paths(module, &words[at + 1..]));
            }
            _ => {}
        }
        at += 1;
    }
    named
}

/// The paths that begin here, with their groups in braces written out.
fn paths(base: &[String], words: &[&str]) -> Vec<Module> {
    fn read(base: &[String], words: &[&str], at: &mut usize, found: &mut Vec<Module>) {
        let mut path = base.to_vec();
        loop {
            match words.get(*at) {
                Some(&"{") => {
                    *at += 1;
                    while let Some(word) = words.get(*at) {
                        match *word {
                            "}" => break,
                            "," => *at += 1,
                            _ => read(&path, words, at, found),
                        }
                    }
                    *at += 1;
                    return;
                }
                Some(name) if *name != "self" && *name != "*" => path.push((*name).to_owned()),
                _ => {}
            }
            *at += 1;
            if words.get(*at) != Some(&"::") {
                break;
            }
            *at += 1;
        }
        if words.get(*at) == Some(&"as") {
            *at += 2;
        }
        found.push(path);
    }
    let mut found = Vec::new();
    read(base, words, &mut 0, &mut found);
    found
}

/// A circle, if there is one, as the files on its way.
fn circle(sources: &[Source]) -> Option<String> {
    let known: BTreeMap<&Module, &Source> =
        sources.iter().map(|source| (&source.module, source)).collect();
    // The file that a module is a part of.
    let file_of = |module: &Module| -> Module {
        let mut file = module.clone();
        while file.len() > 1 {
            let parent = file[..file.len() - 1].to_vec();
            let is_part = known
                .get(&parent)
                .and_then(|parent| parent.children.get(&file[file.len() - 1]))
                .copied();
            if is_part != Some(true) {
                break;
            }
            file = parent;
        }
        file
    };
    let mut arrows: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.module.is_empty()) {
        let from = file_of(&source.module);
        for path in &source.named {
            let mut to = path.clone();
            while !to.is_empty() && !known.contains_key(&to) {
                to.pop();
            }
            let to = file_of(&to);
            if !to.is_empty() && to != from {
                arrows.entry(from.clone()).or_default().insert(to);
            }
        }
    }
    // A file without arrows to other files cannot be on a circle.
    loop {
        let ends: BTreeSet<Module> = arrows.keys().cloned().collect();
        let before = arrows.values().map(BTreeSet::len).sum::<usize>();
        for to in arrows.values_mut() {
            to.retain(|to| ends.contains(to));
        }
        arrows.retain(|_, to| !to.is_empty());
        if arrows.values().map(BTreeSet::len).sum::<usize>() == before {
            break;
        }
    }
    let mut way = vec![arrows.keys().next()?.clone()];
    loop {
        let next = arrows[&way[way.len() - 1]].first()?.clone();
        if let Some(at) = way.iter().position(|file| *file == next) {
            way.push(next);
            let names: Vec<_> = way[at..].iter().map(|file| file.join("::")).collect();
            return Some(names.join(" -> "));
        }
        way.push(next);
    }
}

#[test]
fn no_files_need_each_other_in_a_circle() {
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let command = library.join("bin/distlock");
    for (root, at_least) in [(&library, 60), (&command, 7)] {
        let sources: Vec<_> = files_in(root, "rs")
            .iter()
            .filter(|file| file.starts_with(&command) == (*root == command))
            .map(|file| {
                let path = file.strip_prefix(root).unwrap().to_str().unwrap();
                read(path, &fs::read_to_string(file).unwrap())
            })
            .collect();
        assert!(sources.len() > at_least, "only {} files in {}", sources.len(), root.display());
        assert_eq!(circle(&sources), None);
    }
}

#[track_caller]
fn found(files: &[(&str, &str)]) -> Option<String> {
    circle(&files.iter().map(|(path, text)| read(path, text)).collect::<Vec<_>>())
}

#[test]
fn a_planted_circle_is_found() {
    let room = ("room.rs", "pub(crate) mod a;\npub(crate) mod b;\npub(crate) mod c;");
    let a = ("room/a.rs", "use super::b::B;\nuse crate::room::c;");
    assert_eq!(found(&[room, a, ("room/b.rs", ""), ("room/c.rs", "use super::b;")]), None);
    let closed = found(&[room, a, ("room/b.rs", "fn f() { super::c::f() }"), ("room/c.rs", "")]);
    assert_eq!(closed, None);
    let b = ("room/b.rs", "mod tests { use super::super::c::{C, D as E}; }");
    let c = ("room/c.rs", "use crate::{base::x, room::{a::{self, A}}};");
    assert_eq!(found(&[room, a, b, c]).unwrap(), "room::a -> room::b -> room::c -> room::a");
}

#[test]
fn a_public_child_can_form_a_circle_with_its_parent_and_a_private_one_cannot() {
    let inside = ("room/a.rs", "use super::Settings;");
    let public = ("room.rs", "pub(crate) mod a;\nuse a::A;\npub struct Settings;");
    assert_eq!(found(&[public, inside]).unwrap(), "room -> room::a -> room");
    let private = ("room.rs", "mod a;\nuse a::A;\npub struct Settings;");
    assert_eq!(found(&[private, inside]), None);
    // A circle through another file is not allowed for a part either.
    let other = ("other.rs", "use crate::room::Settings;");
    let inside = ("room/a.rs", "use crate::other::X;");
    assert_eq!(found(&[private, inside, other]).unwrap(), "other -> room -> other");
}
