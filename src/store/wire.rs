//! One connection and what travels over it: commands packed straight into a buffer that is used again and again.

use std::time::Duration;

use redis::{Connection, RedisResult, Script as Hashed, Value};

/// A script, sent by its hash.
pub(super) struct Script {
    body: &'static str,
    hash: String,
}

impl Script {
    pub(super) fn new(body: &'static str) -> Self {
        Self { body, hash: Hashed::new(body).get_hash().to_owned() }
    }

    pub(super) fn by_hash<'a>(&'a self, keys: usize, parts: &[Part<'a>], buffer: &mut Vec<u8>) {
        self.pack("EVALSHA", &self.hash, keys, parts, buffer);
    }

    /// The whole body, for a server that does not know it (any more): it keeps it from then on.
    pub(super) fn by_body<'a>(&'a self, keys: usize, parts: &[Part<'a>], buffer: &mut Vec<u8>) {
        self.pack("EVAL", self.body, keys, parts, buffer);
    }

    fn pack(&self, command: &str, script: &str, keys: usize, parts: &[Part<'_>], buffer: &mut Vec<u8>) {
        begin(buffer, 3 + parts.len());
        Part::Text(command).pack(buffer);
        Part::Text(script).pack(buffer);
        Part::Number(keys as u64).pack(buffer);
        parts.iter().for_each(|part| part.pack(buffer));
    }
}

/// One argument of a command.
#[derive(Clone, Copy)]
pub(super) enum Part<'a> {
    Text(&'a str),
    /// Two texts that make one argument, such as a companion key.
    Joined(&'a str, &'a str),
    Number(u64),
}

impl Part<'_> {
    pub(super) fn millis(duration: Duration) -> Self {
        Self::Number(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    fn pack(&self, buffer: &mut Vec<u8>) {
        match self {
            Self::Text(text) => Self::Joined(text, "").pack(buffer),
            Self::Joined(first, second) => {
                buffer.push(b'$');
                digits(buffer, (first.len() + second.len()) as u64);
                buffer.extend_from_slice(b"\r\n");
                buffer.extend_from_slice(first.as_bytes());
                buffer.extend_from_slice(second.as_bytes());
                buffer.extend_from_slice(b"\r\n");
            }
            Self::Number(number) => {
                buffer.push(b'$');
                digits(buffer, u64::from(number.checked_ilog10().unwrap_or(0)) + 1);
                buffer.extend_from_slice(b"\r\n");
                digits(buffer, *number);
                buffer.extend_from_slice(b"\r\n");
            }
        }
    }
}

/// Packs a command that is no script.
pub(super) fn pack(parts: &[Part<'_>], buffer: &mut Vec<u8>) {
    begin(buffer, parts.len());
    parts.iter().for_each(|part| part.pack(buffer));
}

fn begin(buffer: &mut Vec<u8>, parts: usize) {
    buffer.push(b'*');
    digits(buffer, parts as u64);
    buffer.extend_from_slice(b"\r\n");
}

fn digits(buffer: &mut Vec<u8>, mut number: u64) {
    let at = buffer.len();
    loop {
        buffer.push(b'0' + (number % 10) as u8);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    buffer[at..].reverse();
}

/// An open connection, and what its socket's timeouts are set to: setting them costs a system call each.
pub(super) struct Wire<'a> {
    pub(super) connection: &'a mut Connection,
    pub(super) timeout: &'a mut Option<Duration>,
}

impl Wire<'_> {
    /// Bounds each read and write from now on. Two parts in a hundred too long are not worth two system calls.
    pub(super) fn set_timeout(&mut self, timeout: Duration) -> RedisResult<()> {
        if self.timeout.is_some_and(|now| timeout <= now && timeout >= now - now / 50) {
            return Ok(());
        }
        // Zero would mean no limit, or an error.
        let timeout = timeout.max(Duration::from_millis(1));
        self.connection.set_read_timeout(Some(timeout))?;
        self.connection.set_write_timeout(Some(timeout))?;
        *self.timeout = Some(timeout);
        Ok(())
    }

    pub(super) fn send(&mut self, packed: &[u8]) -> RedisResult<()> {
        self.connection.send_packed_command(packed)
    }

    pub(super) fn receive(&mut self) -> RedisResult<Value> {
        let reply = self.connection.recv_response()?;
        if super::reply::turned_away(&reply) {
            return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into());
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_packed_as_redis_reads_them() {
        let mut buffer = Vec::new();
        pack(&[Part::Text("SET"), Part::Joined("{a}:", "fence"), Part::Number(0), Part::Number(1050)], &mut buffer);
        assert_eq!(String::from_utf8(buffer).expect("text"), "*4\r\n$3\r\nSET\r\n$9\r\n{a}:fence\r\n$1\r\n0\r\n$4\r\n1050\r\n");
    }

    #[test]
    fn packed_like_the_redis_crate_packs() {
        for number in [0, 9, 10, 99, 100, 1_000_000, u64::MAX] {
            let mut ours = Vec::new();
            pack(&[Part::Text("PEXPIRE"), Part::Text("schlüssel"), Part::Number(number)], &mut ours);
            assert_eq!(ours, redis::cmd("PEXPIRE").arg("schlüssel").arg(number).get_packed_command());
        }
    }
}
