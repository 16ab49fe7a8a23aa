//! Rate limits on one server.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::lease::store::StoreError;
use crate::limiter::port::{Decision, Form, LimitStore, Take, foreign};
use crate::store::server::node::Node;
use crate::store::server::reply;
use crate::store::server::script::{Part, Script};
use crate::store::server::shape::Shape;

/// Rate limits on one server. Only the server's clock counts, so that processes need not agree on
/// the time.
pub(crate) struct ServerLimits {
    node: Arc<Node>,
    fixed: Script,
    smooth: Script,
}

impl ServerLimits {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            fixed: Script::new(Shape::Array, include_str!("limits/fixed.lua")),
            smooth: Script::new(Shape::Array, include_str!("limits/smooth.lua")),
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
        let reply = self.node.script(script, 1, &parts, take.deadline)?;
        let decision = match reply::list(reply.value)?.as_slice() {
            [Value::Int(allowed @ (0 | 1)), numbers @ ..] => {
                let [remaining, retry_after, reset] = counts(numbers)?;
                Decision {
                    allowed: *allowed == 1,
                    remaining,
                    retry_after: Duration::from_micros(retry_after),
                    limit: take.capacity,
                    reset: Duration::from_micros(reset),
                }
            }
            [Value::Int(2)] => return Err(foreign()),
            _ => return Err(reply::nonsense()),
        };
        // The caller sleeps for as long as it is told, and this is longer than it allowed.
        if decision.allowed && decision.retry_after > take.longest_wait {
            return Err(reply::nonsense());
        }
        Ok(decision)
    }
}

fn counts(numbers: &[Value]) -> Result<[u64; 3], StoreError> {
    let number = |value: &Value| match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    let counts: Option<Vec<u64>> = numbers.iter().map(number).collect();
    counts.and_then(|counts| counts.try_into().ok()).ok_or_else(reply::nonsense)
}
