//! Confirmations: which replicas, and whether the server's own disk, must have a write before it
//! counts (R24).
//!
//! `WAIT` and `WAITAOF` speak of what their own connection has written. So they go in one packet
//! with the write. The answer to a connection that has written nothing counts for nothing: it is
//! told that everything is confirmed.

use std::time::Duration;

use redis::Value;

use super::reply;
use super::script::{Part, pack};
use super::shape::Shape;
use crate::base::error::ErrorKind;
use crate::base::options::Confirm;
use crate::base::store_error::StoreError;

/// The server looks only ten times a second whether the time of a `WAIT` is over.
const COARSE: Duration = Duration::from_millis(250);

/// The confirmations that a command needs; `None`: none.
pub(crate) type Wanted = Option<Confirmations>;

#[derive(Clone, Copy)]
pub(crate) struct Confirmations {
    pub(crate) what: Confirm,
    /// The longest wait for them. They never get more than what is left of the exchange.
    pub(crate) most: Duration,
}

/// Appends `WAIT` or `WAITAOF`. The reply is due `within` this time.
pub(crate) fn ask(confirm: Confirm, within: Duration, buffer: &mut Vec<u8>) {
    debug_assert!(confirm.is_wanted(), "there is nothing to confirm");
    // A `WAIT` without an end would be asked for by 0.
    let wait = within.saturating_sub(COARSE).max(within / 2).max(Duration::from_millis(1));
    let (replicas, wait) = (Part::Number(u64::from(confirm.replicas)), Part::millis(wait));
    if confirm.fsynced {
        pack(&[Part::Text("WAITAOF"), Part::Number(1), replicas, wait], buffer);
    } else {
        pack(&[Part::Text("WAIT"), replicas, wait], buffer);
    }
}

/// The shape of the reply.
pub(crate) fn shape(confirm: Confirm) -> Shape {
    if confirm.fsynced { Shape::Array } else { Shape::Number }
}

/// An error unless all confirmations are there. The grant or extend then does not count, but the
/// server may have carried it out.
pub(crate) fn check(confirm: Confirm, answer: Option<&Value>) -> Result<(), StoreError> {
    let answer = answer.ok_or_else(reply::nonsense)?;
    let said = reply::value(answer.clone()).map_err(|error| why(confirm, error).maybe_run())?;
    let (fsynced, replicas) = match said {
        Value::Int(replicas) if !confirm.fsynced => (true, replicas),
        Value::Array(both) if confirm.fsynced => match both.as_slice() {
            [Value::Int(fsynced), Value::Int(replicas)] => (*fsynced > 0, *replicas),
            _ => return Err(reply::nonsense()),
        },
        _ => return Err(reply::nonsense()),
    };
    if fsynced && replicas >= i64::from(confirm.replicas) {
        return Ok(());
    }
    let message = if fsynced {
        format!("{replicas} of {} replicas have confirmed the lease", confirm.replicas)
    } else {
        "the server's own disk has not confirmed the lease".to_owned()
    };
    Err(StoreError::not_sent(ErrorKind::Unavailable, message).maybe_run())
}

/// A server that has no `WAITAOF`, or no append-only file, will not have it tomorrow.
fn why(confirm: Confirm, error: StoreError) -> StoreError {
    if !confirm.fsynced || error.kind != ErrorKind::Server {
        return error;
    }
    let why = "fsynced() needs Redis 7.2 or later, and an append-only file at the server";
    let unsupported = StoreError::not_sent(ErrorKind::Unsupported, why).permanent();
    match error.source {
        Some(source) => unsupported.because(source),
        None => unsupported,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Confirm = Confirm { replicas: 2, fsynced: false };
    const TWO_AND_DISK: Confirm = Confirm { replicas: 2, fsynced: true };

    fn packed(confirm: Confirm, millis: u64) -> String {
        let mut buffer = Vec::new();
        ask(confirm, Duration::from_millis(millis), &mut buffer);
        String::from_utf8(buffer).unwrap().replace("\r\n", " ")
    }

    #[test]
    fn the_server_has_less_time_than_the_reply_and_always_some() {
        assert_eq!(packed(TWO, 1000), "*3 $4 WAIT $1 2 $3 750 ");
        assert_eq!(packed(TWO, 300), "*3 $4 WAIT $1 2 $3 150 ");
        assert_eq!(packed(TWO, 0), "*3 $4 WAIT $1 2 $1 1 ");
        assert_eq!(packed(TWO_AND_DISK, 1000), "*4 $7 WAITAOF $1 1 $1 2 $3 750 ");
    }

    #[test]
    fn fewer_confirmations_are_no_answer() {
        let of = |confirm, value| check(confirm, Some(&value));
        assert!(of(TWO, Value::Int(2)).is_ok() && of(TWO, Value::Int(3)).is_ok());
        let both = |disk, replicas| Value::Array(vec![Value::Int(disk), Value::Int(replicas)]);
        assert!(of(TWO_AND_DISK, both(1, 2)).is_ok());
        for (confirm, value) in [
            (TWO, Value::Int(1)),
            (TWO_AND_DISK, both(0, 2)),
            (TWO_AND_DISK, both(1, 1)),
            (TWO, Value::Nil),
            (TWO_AND_DISK, Value::Int(2)),
        ] {
            let error = of(confirm, value).unwrap_err();
            assert!(error.may_have_run && !error.permanent, "{error:?}");
        }
    }
}
