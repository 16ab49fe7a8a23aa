//! Asking once more, and asking by a script.

use redis::{RedisResult, Value};

use super::confirm::Wanted;
use super::exchange::{Exchange, Reply};
use super::reply;
use super::script::{Part, Script};
use crate::lease::store::StoreError;

/// Asks once more, at once, if an idle connection was of no use and certainly nothing was carried
/// out.
pub(crate) fn again_if_not_run<T>(
    mut ask: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    match ask() {
        Err(error) if error.stale && !error.may_have_run => ask(),
        answer => answer,
    }
}

/// Asks once more, at once, if an idle connection turned out to be closed. For questions that may
/// be carried out twice.
pub(crate) fn again_if_stale<T>(
    mut ask: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    match ask() {
        Err(error) if error.stale => ask(),
        answer => answer,
    }
}

/// Runs a script by its hash, or by its body if the server does not know it. With what was said of
/// its confirmations.
pub(crate) fn run(
    exchange: &mut Exchange<'_>,
    buffer: &mut Vec<u8>,
    script: &Script,
    keys: usize,
    parts: &[Part<'_>],
    wanted: Wanted,
) -> RedisResult<(Value, Option<Value>)> {
    buffer.clear();
    script.by_hash(keys, parts, buffer);
    let replies = exchange.ask_confirmed(buffer, script.shape, wanted)?;
    // A script that the server does not know did not run, so this is not a second try.
    if reply::unknown_script(&replies.0) {
        by_body(exchange, buffer, script, keys, parts, wanted)
    } else {
        Ok(replies)
    }
}

/// Sends the whole of a script to a server that does not know it.
pub(crate) fn by_body(
    exchange: &mut Exchange<'_>,
    buffer: &mut Vec<u8>,
    script: &Script,
    keys: usize,
    parts: &[Part<'_>],
    wanted: Wanted,
) -> RedisResult<(Value, Option<Value>)> {
    buffer.clear();
    script.by_body(keys, parts, buffer);
    exchange.bound()?;
    exchange.ask_confirmed(buffer, script.shape, wanted)
}

pub(crate) fn understood(reply: Reply) -> Result<Reply, StoreError> {
    Ok(Reply { value: reply::value(reply.value)?, ..reply })
}
