//! Many calls of one script at once: written together, read one by one.

use redis::{RedisResult, Value};

use super::ask::by_body;
use super::confirm::Wanted;
use super::exchange::Exchange;
use super::reply;
use super::script::{Part, Script};
use crate::base::error::ErrorKind;
use crate::lease::store::StoreError;

/// One call of the script for each list of parts, and the replies so far.
pub(crate) struct Bulk<'a> {
    script: &'a Script,
    keys: usize,
    calls: Vec<Vec<Part<'a>>>,
    values: Vec<Value>,
    /// Asked for once, after all calls.
    wanted: Wanted,
    confirmed: Option<Value>,
}

impl<'a> Bulk<'a> {
    pub(crate) fn new(
        script: &'a Script,
        keys: usize,
        calls: impl Iterator<Item = Vec<Part<'a>>>,
        wanted: Wanted,
    ) -> Self {
        Self { script, keys, calls: calls.collect(), values: Vec::new(), wanted, confirmed: None }
    }

    /// Sends the calls and reads their replies. At the first failure the rest is unknown: reading
    /// on would wait for each reply in turn.
    pub(crate) fn talk(
        &mut self,
        mut exchange: Exchange<'_>,
        buffer: &mut Vec<u8>,
    ) -> RedisResult<()> {
        let Self { script, keys, calls, values, wanted, confirmed } = self;
        values.clear();
        *confirmed = None;
        buffer.clear();
        if calls.is_empty() {
            // An empty packet is an error, and that would cost the connection.
            return Ok(());
        }
        calls.iter().for_each(|parts| script.by_hash(*keys, parts, buffer));
        exchange.ask_for(*wanted, buffer);
        exchange.send(buffer)?;
        for _ in &*calls {
            exchange.bound()?;
            values.push(exchange.receive(script.shape)?);
        }
        if let Some(wanted) = *wanted {
            *confirmed = Some(exchange.receive_confirmations(wanted)?);
        }
        for (value, parts) in
            values.iter_mut().zip(&*calls).filter(|(value, _)| reply::unknown_script(value))
        {
            // Each of these writes is later than the question above.
            let (late, of_it) = by_body(&mut exchange, buffer, script, *keys, parts, *wanted)?;
            (*value, *confirmed) = (late, of_it);
        }
        Ok(())
    }

    /// One answer per call, and the reply to the question for confirmations. What was read before a
    /// failure counts. A script that the server did not know has no answer.
    pub(crate) fn answers(
        self,
        talked: Result<(), StoreError>,
    ) -> (Vec<Result<Value, StoreError>>, Option<Value>) {
        let unknown = || {
            StoreError::not_sent(ErrorKind::Unavailable, "the connection failed before this reply")
                .maybe_run()
        };
        let heard = |value| {
            if reply::unknown_script(&value) { Err(unknown()) } else { reply::value(value) }
        };
        let total = self.calls.len();
        let mut answers: Vec<_> = self.values.into_iter().map(heard).collect();
        if let Err(error) = talked {
            if answers.len() < total {
                answers.push(Err(error));
            }
            answers.resize_with(total, || Err(unknown()));
        }
        (answers, self.confirmed)
    }
}
