//! Scripts that must not run twice.

use std::cell::Cell;
use std::time::Instant;

use super::ask::{again_if_not_run, run, understood};
use super::exchange::Reply;
use super::node::Node;
use super::script::{Part, Script};
use crate::lease::store::StoreError;

impl Node {
    /// As [`script`](Self::script), for one that must not run twice, and so is not sent again if an
    /// idle connection turns out to be closed: that connection has to answer something first.
    ///
    /// 1. sent over an idle connection that failed, and so once more: a lease is shortened;
    /// 2. it is made whole again;
    /// 3. the first copy arrives, because only the way back was cut: the lease ends early on the
    ///    server, and nobody here knows.
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
                let value = run(&mut exchange, buffer, script, keys, parts)?;
                Ok(Reply { asked_at, value })
            });
            answer.map_err(|mut error| {
                error.may_have_run &= sent.get();
                // Also where the sign of life came too late: another connection may be well.
                error.stale |= checking.get() && !sent.get();
                error
            })
        })
        .and_then(understood)
    }
}
