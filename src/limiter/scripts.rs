//! Rate limits on one server.

use std::time::Duration;

use super::port::{Decision, Form, LimitStore, Take, foreign};
use crate::base::store_error::StoreError;
use crate::server::call::{Call, Command, Resend};
use crate::server::reply;
use crate::server::script::{Part, Script};
use crate::server::servers::Servers;
use crate::server::shape::Shape;

/// Rate limits on one server. Only the server's clock counts, so that processes need not agree on
/// the time.
pub(crate) struct ServerLimits {
    servers: Servers,
    fixed: Script,
    smooth: Script,
}

impl ServerLimits {
    pub(crate) fn new(servers: Servers) -> Self {
        Self {
            servers,
            fixed: Script::new(Shape::Array, include_str!("fixed.lua")),
            smooth: Script::new(Shape::Array, include_str!("smooth.lua")),
        }
    }
}

impl LimitStore for ServerLimits {
    fn take(&self, take: &Take<'_>) -> Result<Decision, StoreError> {
        let (script, window) = match take.form {
            Form::Fixed => (&self.fixed, take.window.as_millis()),
            Form::Smooth => (&self.smooth, take.window.as_micros()),
        };
        let number = |number: u128| Part::Number(u64::try_from(number).unwrap_or(u64::MAX));
        let parts = [
            Part::Text(take.key.as_str()),
            Part::Number(take.capacity),
            number(window),
            Part::Number(take.wanted),
            number(take.longest_wait.as_micros()),
        ];
        // If both copies run, the permits are taken twice: the limit becomes stricter, never laxer.
        let call = Call::new(Command::script(script, 1, &parts)).resend(Resend::Always);
        let reply = self.servers.call(&call, take.deadline)?;
        let decision = match *reply::counts(&reply.value)?.as_slice() {
            [allowed @ (0 | 1), remaining, retry_after, reset] => Decision {
                allowed: allowed == 1,
                remaining,
                retry_after: Duration::from_micros(retry_after),
                limit: take.capacity,
                reset: Duration::from_micros(reset),
            },
            [2] => return Err(foreign()),
            _ => return Err(reply::nonsense()),
        };
        // The caller sleeps for as long as it is told, and this is longer than it allowed.
        if decision.allowed && decision.retry_after > take.longest_wait {
            return Err(reply::nonsense());
        }
        Ok(decision)
    }
}
