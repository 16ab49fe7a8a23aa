//! The first words over a new connection: who we are, and what the server is.

use redis::Value;

use super::connection::Connection;
use super::demotion;
use super::dial::{Asking, Dialer};
use super::reply;
use crate::base::error::{ErrorKind, Result};
use crate::base::store_error::StoreError;

/// The result of opening a connection.
pub(crate) enum Opened {
    /// The connection can be used. `untold`: why the server does not tell its role, if it does not.
    Ready { connection: Connection, untold: Option<StoreError> },
    /// The server is a replica, and of no use (R22).
    Replica,
    /// The server has answered, but must not be used.
    Refused(StoreError),
}

/// Sends AUTH and SELECT, and asks for the role and a sign of life.
pub(crate) fn log_in(mut ask: Asking, dialer: &Dialer) -> Result<Opened, StoreError> {
    let login = dialer.login();
    ask.authenticate(login)?;
    if login.db() != 0 {
        ask.send(&redis::cmd("SELECT").arg(login.db()).get_packed_command())?;
        match reply::value(ask.reply()?) {
            Err(error) if is_unknown_command(&error) => return Ok(Opened::Refused(sentinel())),
            selected => selected?,
        };
    }
    // The kernel of a server that hangs, or is about to close the connection, accepts connections
    // all the same; and with TLS the handshake takes place only now. All commands go in one packet:
    // a server that is loading its data answers ROLE, but refuses PING, as it will refuse
    // everything else.
    let questions = [
        redis::cmd("ROLE").get_packed_command(),
        redis::cmd("CLUSTER").arg("INFO").get_packed_command(),
        redis::cmd("EVALSHA").arg("0".repeat(40)).arg(0).get_packed_command(),
        redis::cmd("PING").get_packed_command(),
    ];
    ask.send(&questions.concat())?;
    let role = sign_of_life(ask.reply()?)?;
    let cluster = sign_of_life(ask.reply()?)?;
    let scripts = ask.reply()?;
    let script = if reply::unknown_script(&scripts) { Ok(scripts) } else { sign_of_life(scripts)? };
    match &role {
        // In a cluster a replica redirects every command to its primary.
        Ok(role) if demotion::is_replicas_role(role) && !dialer.in_cluster => {
            return Ok(Opened::Replica);
        }
        Ok(role) if demotion::is_sentinels_role(role) => return Ok(Opened::Refused(sentinel())),
        _ => {}
    }
    match cluster {
        Ok(Value::BulkString(_)) if !dialer.in_cluster => {
            return Ok(Opened::Refused(of_a_cluster()));
        }
        Err(error) if dialer.in_cluster && has_no_cluster(&error) => {
            return Ok(Opened::Refused(of_no_cluster()));
        }
        _ => {}
    }
    // A lock that was granted without a script could not be released.
    match script {
        Err(error) if error.kind == ErrorKind::Denied => return Ok(Opened::Refused(error)),
        Err(error) if is_unknown_command(&error) => return Ok(Opened::Refused(without_scripts())),
        _ => {}
    }
    let _ = sign_of_life(ask.reply()?)?;
    Ok(Opened::Ready { connection: ask.connection, untold: role.err() })
}

/// A server that is loading, or turns us away, is of no use yet: that is the outer error. Any other
/// answer is a sign of life, also a refusal: what a refusal means will show at the next command.
fn sign_of_life(reply: Value) -> Result<Result<Value, StoreError>, StoreError> {
    match reply::value(reply) {
        Err(error) if error.kind == ErrorKind::Unavailable => Err(error),
        answer => Ok(answer),
    }
}

fn is_unknown_command(error: &StoreError) -> bool {
    says(error, "unknown command")
}

fn has_no_cluster(error: &StoreError) -> bool {
    says(error, "cluster support disabled")
}

fn says(error: &StoreError, words: &str) -> bool {
    error.source.as_ref().is_some_and(|said| said.to_string().contains(words))
}

fn sentinel() -> StoreError {
    unusable(
        "this address is a sentinel's: open the client by Client::sentinel or redis+sentinel://",
    )
}

/// Until a primary has answered at an address, a replica there means a wrong address.
pub(crate) fn replica() -> StoreError {
    unusable(
        "this address is a replica's, which cannot keep a lock: name the primary, or its sentinels",
    )
}

/// Names in the slots of this node would work, and others would not.
fn of_a_cluster() -> StoreError {
    unusable(
        "this server is part of a Redis Cluster: open the client by Client::cluster or \
         redis+cluster://",
    )
}

fn of_no_cluster() -> StoreError {
    unusable("this server is no part of a Redis Cluster: open the client by Client::open")
}

fn without_scripts() -> StoreError {
    unusable("this server has no EVALSHA, or calls it by another name: locks need scripts")
}

fn unusable(message: &'static str) -> StoreError {
    StoreError::not_sent(ErrorKind::Unsupported, message).permanent()
}
