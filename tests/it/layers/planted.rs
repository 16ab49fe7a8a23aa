//! The checker finds what was planted.

use super::{CLIENTS_SIGNATURES, LONGEST_FILE, LONGEST_FUNCTION, LONGEST_LINE, WHY_ONE, problems};

#[track_caller]
fn assert_found(path: &str, code: &str, problem: &str) {
    let found = problems(path, &format!("//! A doc.\n{code}\n"));
    assert!(found.iter().any(|found| found.contains(problem)), "{code:?} in {path}: {found:?}");
}

#[track_caller]
fn assert_clean(path: &str, code: &str) {
    assert_eq!(problems(path, &format!("//! A doc.\n{code}\n")), [""; 0], "{code:?} in {path}");
}

#[test]
fn a_planted_use_of_a_higher_layer_is_found() {
    assert_found("base/bell.rs", "use crate::lease::Lease;", "base must not use lease");
    assert_found(
        "lease/renewal.rs",
        "use crate::{base::clock::Clock, store::{Node, Pool}};",
        "lease must not use store",
    );
    assert_found("lease/renewal.rs", "fn f() { crate::local::f() }", "lease must not use local");
    assert_found(
        "local/turn.rs",
        "use crate::lock::redis_lock::RedisLock;",
        "local must not use lock",
    );
    assert_found("store/plain.rs", "use crate::local::turn::Turn;", "store must not use local");
    assert_found("server/node.rs", "use crate::lease::token::T;", "server must not use lease");
    assert_found("lock/redis_lock.rs", "use crate::store::Backend;", "lock must not use store");
    assert_found("limiter.rs", "use crate::store::Backend;", "limiter must not use store");
    // A name that the crate re-exports may come from any layer.
    assert_found("lease.rs", "use crate::Error;", "lease must not use Error");
    assert_found("bin/distlock/job.rs", "use crate::run::run;", "job must not use run");
    assert_found("bin/distlock/lease.rs", "", "belongs to no layer");
}

#[test]
fn a_planted_use_by_super_is_found() {
    assert_found("lease.rs", "use super::store::Node;", "lease must not use store");
    assert_found("lease/token.rs", "use super::super::local::Names;", "lease must not use local");
    assert_found(
        "store.rs",
        "mod tests { use super::super::client::Client; }",
        "store must not use client",
    );
    assert_found("lock.rs", "fn f() { super::client::f() }", "lock must not use client");
    assert_clean(
        "lease/token.rs",
        "use super::store::LeaseStore;\nmod tests { use super::super::key::Key; use super::*; }",
    );
    assert_clean("store.rs", "pub(super) struct S;\nmod tests { fn f() { { super::g() } } }");
    assert_clean("client.rs", "mod testing { use super::Client; use crate::base::error::Result; }");
}

#[test]
fn a_planted_redis_is_found() {
    assert_found("lease.rs", "use redis::Value;", "names redis");
    assert_found("base/error.rs", "use redis;", "names redis");
    assert_found("local.rs", "use {std::fmt, r2d2 as pool};", "names redis");
    assert_found("lock/redis_lock.rs", "fn f(value: ::redis::Value) {}", "names redis");
    assert_found("client.rs", "fn f(pool: r2d2::Pool<Slots>) {}", "names redis");
    assert_found("limiter/server.rs", "use redis::Value;", "names redis");
    assert_clean("server/node.rs", "use redis::Value;");
    assert_clean("client.rs", CLIENTS_SIGNATURES[1]);
    assert_clean("lib.rs", "mod lock;\npub use lock::redis_lock::RedisLock;");
}

#[test]
fn comments_and_strings_are_no_uses() {
    assert_clean(
        "base/error.rs",
        "/// See [`x`](crate::Interrupt) and redis::Value.\n/* crate::lease::x\n redis::y */",
    );
    assert_clean(
        "base/error.rs",
        "const X: &str = \"\\\"crate::lease redis::Value // \"; // crate::local::x",
    );
    assert_clean(
        "base/error.rs",
        "const X: &str = r#\"a \"crate::lease::x\" b\"#; \
         const C: char = '\"'; fn f<'a>(x: &'a str) {}",
    );
    assert_found(
        "base/error.rs",
        "const C: char = '\"'; use crate::lease::Lease; const D: char = '\\'';",
        "base must not use lease",
    );
}

#[test]
fn a_file_that_is_too_long_or_has_no_doc_or_no_place_is_found() {
    assert_found("base/error.rs", &"\n".repeat(LONGEST_FILE), "more than 400 lines");
    assert_found("base/error.rs", &"x".repeat(LONGEST_LINE + 1), "a wide line");
    assert_clean("base/error.rs", &format!("//! {WHY_ONE}x\n{}", "\n".repeat(LONGEST_FILE)));
    assert_clean("base/error.rs", &"ä".repeat(LONGEST_LINE));
    let function = |lines: usize| {
        format!(
            "impl X {{\n    fn short(a: [u8; 2]);\n    fn f() {{{}    }}\n}}",
            "\n".repeat(lines - 1)
        )
    };
    assert_found("base/error.rs", &function(LONGEST_FUNCTION + 1), "too many lines: f");
    let field = format!("struct X {{ f: fn(u8) -> u8 }}\nimpl X {{{}}}", "\n".repeat(100));
    assert_clean("base/error.rs", &field);
    assert_clean("base/error.rs", &function(LONGEST_FUNCTION));
    assert_clean("base/error.rs", &format!("    /// | {} |", "x".repeat(LONGEST_LINE)));
    assert!(problems("base/error.rs", "// A comment.\n")[0].contains("module doc"));
    assert_found("elsewhere/new.rs", "", "belongs to no layer");
    assert_found("new.rs", "", "belongs to no layer");
}
