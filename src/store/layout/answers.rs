//! The replies of the layouts' scripts.

use std::time::Duration;

use redis::Value;

use crate::base::bell::Fences;
use crate::base::error::ErrorKind;
use crate::base::store_error::StoreError;
use crate::lease::store::{Answer, Gone, Held, InCondition, State};
use crate::lease::token::Token;
use crate::server::call::Reply;
use crate::server::reply::{bytes, list, nonsense, number};

/// The reply as yes or no; 2 says that the key holds foreign data.
pub(crate) fn yes(value: &Value) -> Result<bool, StoreError> {
    match value {
        Value::Int(1) => Ok(true),
        Value::Int(0) => Ok(false),
        Value::Int(2) => Err(StoreError::foreign()),
        _ => Err(nonsense()),
    }
}

/// What a script that acquires says: `{1, last fence or 0, how many}`,
/// `{0, rest of the lease, whether the waiter is heard}`, `{2}` for foreign data. A layout without
/// a queue leaves out whether the waiter is heard.
pub(crate) fn answer(reply: &Reply) -> Result<Answer, StoreError> {
    let asked_at = reply.asked_at;
    match list(&reply.value)? {
        [Value::Int(1), last, count] => {
            reply.confirmed()?;
            Ok(Answer::Granted { asked_at, fences: fences(last, count)? })
        }
        [Value::Int(0), Value::Int(remaining)] => {
            Ok(Answer::Refused { asked_at, remaining: left(*remaining), heard: true })
        }
        [Value::Int(0), Value::Int(remaining), Value::Int(heard @ 0..=2)] => {
            Ok(Answer::Refused { asked_at, remaining: left(*remaining), heard: *heard == 1 })
        }
        [Value::Int(2)] => Err(StoreError::foreign()),
        _ => Err(nonsense()),
    }
}

/// The reply of wait.lua.
pub(crate) fn in_condition(reply: &Reply) -> Result<InCondition, StoreError> {
    let asked_at = reply.asked_at;
    match list(&reply.value)? {
        [Value::Int(0), Value::Int(_)] => Ok(InCondition::Waiting { asked_at }),
        [Value::Int(1), last, count] => {
            reply.confirmed()?;
            Ok(InCondition::Granted { asked_at, fences: fences(last, count)? })
        }
        [Value::Int(2)] => Err(StoreError::foreign()),
        [Value::Int(3)] => Ok(InCondition::Nowhere),
        [Value::Int(4)] => Ok(InCondition::NotOurs),
        [Value::Int(5), Value::Int(remaining), Value::Int(heard)] => {
            Ok(InCondition::Notified { asked_at, remaining: left(*remaining), heard: *heard == 1 })
        }
        [Value::Int(6)] => Ok(InCondition::Left),
        _ => Err(nonsense()),
    }
}

/// What a script that inspects says: `{token and rest of the lease of each holder}, fence counter
/// or 0, {token of each waiter}`, or `{2}` for foreign data, as a counter that is no number.
pub(crate) fn state(value: &Value) -> Result<State, StoreError> {
    let (holders, fence, waiting) = match list(value)? {
        [Value::Int(2)] => return Err(StoreError::foreign()),
        [holders, fence, waiting] => {
            let fence = number(fence).map_err(|_| StoreError::foreign())?;
            (list(holders)?, fence, list(waiting)?)
        }
        _ => return Err(nonsense()),
    };
    let (holders, []) = holders.as_chunks() else { return Err(nonsense()) };
    let holder = |words: &[Value; 2]| match words {
        [token, Value::Int(remaining)] => {
            Ok(Held { token: Token::new(bytes(token)?), remaining: left(*remaining) })
        }
        _ => Err(nonsense()),
    };
    Ok(State {
        held: holders.iter().map(holder).collect::<Result<_, StoreError>>()?,
        fence: u64::try_from(fence).ok().filter(|fence| *fence > 0),
        waiting: waiting
            .iter()
            .map(|token| Ok(Token::new(bytes(token)?)))
            .collect::<Result<_, StoreError>>()?,
    })
}

/// A key with foreign data is certainly not our lease.
fn or_not_ours(ours: Result<bool, StoreError>) -> Result<bool, StoreError> {
    match ours {
        Err(error) if error.kind == ErrorKind::WrongType => Ok(false),
        ours => ours,
    }
}

/// Whether the lease is ours, and if so, with all confirmations.
pub(crate) fn ours(reply: &Reply) -> Result<bool, StoreError> {
    let ours = yes(&reply.value)?;
    if ours { reply.confirmed().map(|()| true) } else { Ok(false) }
}

/// The reply to an extend: whether the lease is ours.
pub(crate) fn extended(reply: Result<Reply, StoreError>) -> Result<bool, StoreError> {
    or_not_ours(reply.and_then(|reply| ours(&reply)))
}

/// The reply to a release or a withdrawal.
pub(crate) fn gone(reply: Result<Reply, StoreError>) -> Result<Gone, StoreError> {
    let released = or_not_ours(reply.and_then(|reply| yes(&reply.value)))?;
    Ok(if released { Gone::Released } else { Gone::NotOurs })
}

/// A script that acquires or exchanges looks at the type of the lock's own key first. So other data
/// of somebody else is found after the lock may have been set.
pub(crate) fn half_way(error: StoreError) -> StoreError {
    if error.kind == ErrorKind::WrongType { error.maybe_run() } else { error }
}

/// The last fence of a block, and how many it has; a last one of 0 stands for none.
fn fences(last: &Value, count: &Value) -> Result<Option<Fences>, StoreError> {
    let last = u64::try_from(number(last)?).map_err(|_| nonsense())?;
    let count = u32::try_from(number(count)?).map_err(|_| nonsense())?;
    match (last, count) {
        (0, _) => Ok(None),
        (_, 0) => Err(nonsense()),
        (last, count) => Ok(Some(Fences { last, count })),
    }
}

/// The rest of a lease, as `PTTL` says it.
fn left(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}
