//! Asking once more, and asking by a script.

use redis::{RedisResult, Value};

use super::exchange::{Exchange, Reply};
use super::reply;
use super::script::{Part, Script};
use crate::lease::store::StoreError;

/// Asks once more, at once, where an idle connection was of no use and certainly nothing was
/// carried out.
pub(crate) fn again_if_not_run<T>(
    mut ask: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    match ask() {
        Err(error) if error.stale && !error.may_have_run => ask(),
        answer => answer,
    }
}

/// Asks once more, at once, where an idle connection turned out to be closed. For questions that
/// may be carried out twice.
pub(crate) fn again_if_stale<T>(
    mut ask: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    match ask() {
        Err(error) if error.stale => ask(),
        answer => answer,
    }
}

/// Runs a script by its hash, and where the server does not know it, by its body.
pub(crate) fn run(
    exchange: &mut Exchange<'_>,
    buffer: &mut Vec<u8>,
    script: &Script,
    keys: usize,
    parts: &[Part<'_>],
) -> RedisResult<Value> {
    buffer.clear();
    script.by_hash(keys, parts, buffer);
    let value = exchange.ask(buffer, script.shape)?;
    // One that is not known did not run, so this is no second try.
    if reply::unknown_script(&value) {
        by_body(exchange, buffer, script, keys, parts)
    } else {
        Ok(value)
    }
}

/// Sends the whole of a script to a server that does not know it.
pub(crate) fn by_body(
    exchange: &mut Exchange<'_>,
    buffer: &mut Vec<u8>,
    script: &Script,
    keys: usize,
    parts: &[Part<'_>],
) -> RedisResult<Value> {
    buffer.clear();
    script.by_body(keys, parts, buffer);
    exchange.bound()?;
    exchange.ask(buffer, script.shape)
}

pub(crate) fn understood(reply: Reply) -> Result<Reply, StoreError> {
    Ok(Reply { asked_at: reply.asked_at, value: reply::value(reply.value)? })
}
