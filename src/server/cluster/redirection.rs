//! Redirections: what a node says of a slot that it does not serve.

use redis::Value;

use crate::server::dial::Address;

/// What a node says instead of carrying a command out (R25).
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirection {
    /// Another node owns the slot. Without a host: that of the node which said so.
    Moved(u16, Option<String>, u16),
    /// The slot is moving, and its key is not here, or not any more. Only the very same command may
    /// ask at that node, and only now.
    Ask(Option<String>, u16),
    /// The slot is moving, and some of the keys are here, some not.
    TryAgain,
}

impl Redirection {
    /// The redirection in a reply, if it is one.
    pub(super) fn of(reply: &Value) -> Option<Self> {
        let Value::ServerError(error) = reply else { return None };
        let details = error.details().unwrap_or_default();
        match error.code() {
            "MOVED" => {
                let (slot, to) = at(details)?;
                Some(Self::Moved(slot, to.0, to.1))
            }
            "ASK" => at(details).map(|(_, to)| Self::Ask(to.0, to.1)),
            "TRYAGAIN" => Some(Self::TryAgain),
            _ => None,
        }
    }
}

/// `3999 host:port`. An IPv6 address has no brackets. The host may be empty, or `?` if the node
/// announces a name that it does not have.
fn at(details: &str) -> Option<(u16, (Option<String>, u16))> {
    let (slot, to) = details.split_once(' ')?;
    let (host, port) = to.trim_end().rsplit_once(':')?;
    let host = (!matches!(host, "" | "?")).then(|| host.to_owned());
    Some((slot.parse().ok()?, (host, port.parse().ok()?)))
}

/// The address at which a redirection leads to a node, from the node at `from`.
pub(super) fn address(host: Option<String>, port: u16, from: &Address) -> Address {
    Address { host: host.map_or_else(|| from.host.clone(), Into::into), port }
}

#[cfg(test)]
mod tests {
    use redis::parse_redis_value;

    use super::*;

    fn of(error: &str) -> Option<Redirection> {
        Redirection::of(&parse_redis_value(format!("-{error}\r\n").as_bytes()).expect("a reply"))
    }

    #[test]
    fn a_redirection_names_a_node() {
        let host = |host: &str| Some(host.to_owned());
        let moved = |host, port| Some(Redirection::Moved(3999, host, port));
        assert_eq!(of("MOVED 3999 10.0.0.1:6381"), moved(host("10.0.0.1"), 6381));
        assert_eq!(of("MOVED 3999 node-1.example:6381"), moved(host("node-1.example"), 6381));
        assert_eq!(of("MOVED 3999 2001:db8::1:6381"), moved(host("2001:db8::1"), 6381));
        assert_eq!(of("MOVED 3999 :6381"), moved(None, 6381));
        assert_eq!(of("MOVED 3999 ?:6381"), moved(None, 6381));
        assert_eq!(of("ASK 3999 10.0.0.1:6381"), Some(Redirection::Ask(host("10.0.0.1"), 6381)));
        let again = "TRYAGAIN Multiple keys request during rehashing of slot";
        assert_eq!(of(again), Some(Redirection::TryAgain));
    }

    #[test]
    fn anything_else_is_none() {
        for error in ["MOVED", "MOVED 1", "MOVED x h:1", "MOVED 1 h", "MOVED 1 h:x", "ERR MOVED"] {
            assert_eq!(of(error), None, "{error}");
        }
        assert_eq!(Redirection::of(&Value::Okay), None);
    }
}
