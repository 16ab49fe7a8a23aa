//! Finding out that a server which nobody writes to has become a replica (R22).

use std::sync::atomic::Ordering;

use super::{Node, Talk, TimeLimit};
use crate::store::server::demotion;
use crate::store::server::pool::Pool;
use crate::store::server::script;
use crate::store::server::script::Part;
use crate::store::server::shape::Shape;

/// A server that replied within the last two seconds need not be asked for its role: a replica
/// would have refused to write.
const QUIET_NANOS: u64 = 2_000_000_000;

impl Node {
    /// Asks the server for its role, if a connection is idle. If the server has become a replica,
    /// all its connections are dropped, also those that only listen (R22).
    pub(crate) fn look_at_role(&self) {
        let quiet_for =
            self.since_made(self.clock.now()).saturating_sub(self.answered.load(Ordering::Relaxed));
        let is_quiet = quiet_for >= QUIET_NANOS;
        if !is_quiet || !self.tells_role.load(Ordering::SeqCst) {
            return;
        }
        let deadline = self.clock.now() + self.command_timeout;
        let talk: Talk<'_, ()> = &mut |mut exchange, buffer, _| {
            buffer.clear();
            script::pack(&[Part::Text("ROLE")], buffer);
            let role = exchange.ask(buffer, Shape::Array)?;
            if demotion::is_replicas_role(&role) { Err(demotion::is_replica()) } else { Ok(()) }
        };
        // Any other failure shows at the next use of a connection.
        let _ = match &self.pool {
            Pool::Own(pool) => pool.idle().map_or(Ok(()), |mut idle| {
                let slot = idle.slot();
                let trusted = slot.connection.is_some() && slot.generation == self.generation();
                if trusted { self.talk(slot, TimeLimit::By(deadline), talk) } else { Ok(()) }
            }),
            Pool::Theirs(pool) => self.talk_if_idle(pool, deadline, talk),
            // Nobody listens at a node of a quorum.
            Pool::One(_) => Ok(()),
        };
    }
}
