//! Which server each node of a quorum is: a server has one vote, however many names lead to it
//! (R31).

use std::sync::{Arc, Mutex};
use std::time::Instant;

use redis::Value;

use crate::base::error::ErrorKind;
use crate::base::locked;
use crate::base::log;
use crate::lease::store::StoreError;
use crate::store::server::connect::Greeting;
use crate::store::server::connection::Connection;
use crate::store::server::reply;

/// The servers behind the nodes, as their last connections found them. A server's name is its run
/// id, which it draws at each start.
#[derive(Default)]
pub(super) struct Servers(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// Which node has which server's vote. A node is named by its place in the list of URLs, from
    /// 1, and has at most one server.
    votes: Vec<(usize, String)>,
    /// The pairs of nodes for which a warning was logged.
    warned: Vec<(usize, usize)>,
}

impl Servers {
    /// What is asked over each new connection of this node, before anything else.
    pub(super) fn greeting(self: &Arc<Self>, node: usize) -> Greeting {
        let servers = Arc::clone(self);
        Arc::new(move |connection, until| match run_id(connection, until)? {
            Some(run_id) => Ok(servers.admit(node, run_id).err()),
            None => Ok(None),
        })
    }

    /// The first node that reaches a server has its vote, until that node reaches another server.
    /// Other nodes that reach it have none.
    fn admit(&self, node: usize, run_id: String) -> Result<(), StoreError> {
        let mut seen = locked(&self.0);
        // The node gives its old vote back first: otherwise two nodes whose names were swapped
        // would wait for each other for ever.
        seen.votes.retain(|(voter, _)| *voter != node);
        if let Some((other, _)) =
            seen.votes.iter().find(|(other, known)| *other != node && *known == run_id)
        {
            let pair = (node.min(*other), node.max(*other));
            let message =
                format!("nodes {} and {} are the same server, which has one vote", pair.0, pair.1);
            if !seen.warned.contains(&pair) {
                log::warn!("quorum: {message}");
                seen.warned.push(pair);
            }
            return Err(StoreError::not_sent(ErrorKind::Unavailable, message));
        }
        seen.votes.push((node, run_id));
        Ok(())
    }
}

/// The server's run id. `None`: it does not say, or this user may not ask.
fn run_id(connection: &mut Connection, until: Instant) -> Result<Option<String>, StoreError> {
    let question = redis::cmd("INFO").arg("server").get_packed_command();
    let reply = connection.ask(&question, until).map_err(|error| reply::connecting(&error))?;
    let text = match reply::value(reply) {
        Ok(Value::BulkString(text)) => text,
        Err(error) if error.kind == ErrorKind::Unavailable => return Err(error),
        _ => return Ok(None),
    };
    let text = String::from_utf8_lossy(&text);
    Ok(text
        .lines()
        .find_map(|line| line.strip_prefix("run_id:"))
        .map(|id| id.trim().to_owned())
        .filter(|id| !id.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_votes_for_the_first_node_that_reaches_it_until_that_reaches_another() {
        let servers = Servers::default();
        let admit = |node, id: &str| {
            servers.admit(node, id.to_owned()).map_err(|error| error.message.into_owned())
        };
        let same = Err("nodes 1 and 2 are the same server, which has one vote".to_owned());
        assert_eq!(admit(2, "a"), Ok(()));
        assert_eq!(admit(1, "a"), same);
        // Another connection to the same server, as renewal has.
        assert_eq!(admit(2, "a"), Ok(()));
        assert_eq!(admit(2, "b"), Ok(()));
        assert_eq!(admit(1, "a"), Ok(()));
        assert_eq!(admit(2, "a"), same);
    }
}
