//! Redirections: what a node says of a slot that it does not serve.

use redis::Value;

use crate::server::dial::Address;

/// What a node says instead of carrying a command out (R25).
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirection {
    /// Another node owns the slot.
    Moved(u16, To),
    /// The slot is moving, and its key is not here, or not any more. Only the very same command may
    /// ask at that node, and only now.
    Ask(To),
    /// The slot is moving, and some of the keys are here, some not.
    TryAgain,
}

/// Where a redirection leads.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct To {
    /// Empty: that of the node which said so. `?`: it announces a name, and nobody knows which yet.
    host: String,
    port: u16,
}

impl To {
    /// The address, from the node at `from`. `None`: the node does not know it.
    pub(super) fn at(self, from: &Address) -> Option<Address> {
        let host = match &*self.host {
            "?" => return None,
            "" => from.host.clone(),
            _ => self.host.into(),
        };
        Some(Address { host, port: self.port })
    }
}

impl Redirection {
    /// The redirection in a reply, if it is one.
    pub(super) fn of(reply: &Value) -> Option<Self> {
        let Value::ServerError(error) = reply else { return None };
        Self::read(error.code(), error.details().unwrap_or_default())
    }

    /// The redirection in an error, if it is one.
    pub(super) fn read(code: &str, details: &str) -> Option<Self> {
        match code {
            "MOVED" => to(details).map(|(slot, to)| Self::Moved(slot, to)),
            "ASK" => to(details).map(|(_, to)| Self::Ask(to)),
            "TRYAGAIN" => Some(Self::TryAgain),
            _ => None,
        }
    }
}

/// `3999 host:port`. An IPv6 address has no brackets.
fn to(details: &str) -> Option<(u16, To)> {
    let (slot, to) = details.split_once(' ')?;
    let (host, port) = to.trim_end().rsplit_once(':')?;
    Some((slot.parse().ok()?, To { host: host.to_owned(), port: port.parse().ok()? }))
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
        let to = |host: &str, port| To { host: host.to_owned(), port };
        let moved = |host, port| Some(Redirection::Moved(3999, to(host, port)));
        assert_eq!(of("MOVED 3999 10.0.0.1:6381"), moved("10.0.0.1", 6381));
        assert_eq!(of("MOVED 3999 node-1.example:6381"), moved("node-1.example", 6381));
        assert_eq!(of("MOVED 3999 2001:db8::1:6381"), moved("2001:db8::1", 6381));
        assert_eq!(of("MOVED 3999 :6381"), moved("", 6381));
        assert_eq!(of("ASK 3999 10.0.0.1:6381"), Some(Redirection::Ask(to("10.0.0.1", 6381))));
        let from = Address { host: "asked".into(), port: 1 };
        let at = |host| to(host, 2).at(&from);
        assert_eq!(at("h"), Some(Address { host: "h".into(), port: 2 }));
        assert_eq!(at(""), Some(Address { host: "asked".into(), port: 2 }));
        assert_eq!(at("?"), None);
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
