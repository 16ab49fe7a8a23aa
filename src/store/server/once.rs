//! Scripts that must not run twice.

use std::cell::Cell;
use std::time::Instant;

use super::ask::{again_if_not_run, run, understood};
use super::exchange::Reply;
use super::node::Node;
use super::script::{Part, Script};
use crate::lease::store::StoreError;

impl Node {
    /// As [`script`](Self::script), for a script that must not run twice. It is not sent again if
    /// an idle connection turns out to be closed. Instead, that connection has to give a sign of
    /// life first. With a second copy this could happen:
    ///
    /// 1. a script that shortens a lease is sent over an idle connection that fails, and so is sent
    ///    once more;
    /// 2. the lease is made whole again;
    /// 3. the first copy arrives, because only the way back was cut: the lease ends early on the
    ///    server, and this client does not know.
    pub(crate) fn script_once(
        &self,
        script: &Script,
        keys: usize,
        parts: &[Part<'_>],
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        let (checking, sent) = (Cell::new(false), Cell::new(false));
        again_if_not_run(|| {
            checking.set(false);
            sent.set(false);
            let answer = self.pooled(deadline, &mut |mut exchange, buffer, asked_at| {
                checking.set(true);
                exchange.check(buffer)?;
                sent.set(true);
                let (value, _) = run(&mut exchange, buffer, script, keys, parts, None)?;
                Ok(Reply { asked_at, value, confirmed: None })
            });
            answer.map_err(|mut error| {
                error.may_have_run &= sent.get();
                // Also if the sign of life came too late: another connection may work.
                error.stale |= checking.get() && !sent.get();
                error
            })
        })
        .and_then(understood)
    }
}
