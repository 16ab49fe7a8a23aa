//! Many commands at once: written together, read one by one.

use std::time::Instant;

use redis::{RedisResult, Value};

use super::call::{Command, Reply};
use super::confirm::Wanted;
use super::exchange::Exchange;
use super::reply;
use crate::base::error::ErrorKind;
use crate::base::store_error::StoreError;

/// Commands, and the replies so far.
pub(super) struct Batch<'a, 'c> {
    commands: &'a [Command<'c>],
    asked_at: Instant,
    values: Vec<Value>,
    /// Asked for once, after all commands.
    wanted: Wanted,
    confirmed: Option<Value>,
}

impl<'a, 'c> Batch<'a, 'c> {
    pub(super) fn new(commands: &'a [Command<'c>], wanted: Wanted, now: Instant) -> Self {
        Self { commands, asked_at: now, values: Vec::new(), wanted, confirmed: None }
    }

    /// Sends the commands and reads their replies. At the first failure the rest is unknown:
    /// reading on would wait for each reply in turn.
    pub(super) fn talk(
        &mut self,
        mut exchange: Exchange<'_>,
        buffer: &mut Vec<u8>,
        asked_at: Instant,
    ) -> RedisResult<()> {
        let Self { commands, values, wanted, confirmed, .. } = self;
        self.asked_at = asked_at;
        values.clear();
        *confirmed = None;
        buffer.clear();
        if commands.is_empty() {
            // An empty packet is an error, and that would cost the connection.
            return Ok(());
        }
        commands.iter().for_each(|command| command.pack(buffer));
        exchange.ask_for(*wanted, buffer);
        exchange.send(buffer)?;
        for command in *commands {
            exchange.bound()?;
            values.push(exchange.reply_to(command)?);
        }
        if let Some(wanted) = *wanted {
            *confirmed = Some(exchange.receive_confirmations(wanted)?);
        }
        for (value, command) in
            values.iter_mut().zip(*commands).filter(|(value, _)| reply::unknown_script(value))
        {
            // Each of these writes is later than the question above.
            (*value, *confirmed) = exchange.run_whole(command, buffer, *wanted)?;
        }
        Ok(())
    }

    /// One reply per command, perhaps an error reply. A reply that came before a failure counts. A
    /// script that the server did not know has no reply.
    pub(super) fn replies(self, talked: Result<(), StoreError>) -> Vec<Result<Reply, StoreError>> {
        let unknown = || {
            StoreError::not_sent(ErrorKind::Unavailable, "the connection failed before this reply")
                .maybe_run()
        };
        let Self { commands, asked_at, values, wanted, confirmed } = self;
        let heard = |value| {
            if reply::unknown_script(&value) {
                return Err(unknown());
            }
            let confirmations = wanted.map(|wanted| (wanted.what, confirmed.clone()));
            Ok(Reply { asked_at, value, confirmations })
        };
        let mut replies: Vec<_> = values.into_iter().map(heard).collect();
        if let Err(error) = talked {
            if replies.len() < commands.len() {
                replies.push(Err(error));
            }
            replies.resize_with(commands.len(), || Err(unknown()));
        }
        debug_assert_eq!(replies.len(), commands.len(), "each command has one answer");
        replies
    }
}
