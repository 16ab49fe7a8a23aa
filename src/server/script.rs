//! Commands and scripts, packed straight into a buffer that is reused.

use std::borrow::Cow;
use std::time::Duration;

use redis::Script as Hashed;

use super::shape::Shape;

/// A script, sent by its hash.
pub(crate) struct Script {
    pub(crate) body: &'static str,
    /// `EVALSHA` and the hash, packed.
    by_hash: Vec<u8>,
    pub(crate) shape: Shape,
}

impl Script {
    pub(crate) fn new(shape: Shape, body: &'static str) -> Self {
        let mut by_hash = Vec::new();
        Part::Text("EVALSHA").pack(&mut by_hash);
        Part::Text(Hashed::new(body).get_hash()).pack(&mut by_hash);
        Self { body, by_hash, shape }
    }

    pub(crate) fn by_hash(&self, keys: usize, parts: &[Part<'_>], buffer: &mut Vec<u8>) {
        begin(buffer, 3 + parts.len());
        buffer.extend_from_slice(&self.by_hash);
        pack_call(keys, parts, buffer);
    }

    /// The whole body, for a server that does not know the script (any more): it keeps the script
    /// from then on.
    pub(crate) fn by_body(&self, keys: usize, parts: &[Part<'_>], buffer: &mut Vec<u8>) {
        begin(buffer, 3 + parts.len());
        Part::Text("EVAL").pack(buffer);
        Part::Text(self.body).pack(buffer);
        pack_call(keys, parts, buffer);
    }
}

/// What follows a script: the number of its keys, the keys, and the arguments.
fn pack_call(keys: usize, parts: &[Part<'_>], buffer: &mut Vec<u8>) {
    Part::Number(keys as u64).pack(buffer);
    parts.iter().for_each(|part| part.pack(buffer));
}

/// One argument of a command.
#[derive(Clone, Copy)]
pub(crate) enum Part<'a> {
    Text(&'a str),
    /// What need not be text: another library's token.
    Bytes(&'a [u8]),
    /// Two texts that make one argument, such as a companion key.
    Joined(&'a str, &'a str),
    /// The second text in braces behind the first.
    Braced(&'a str, &'a str),
    Number(u64),
}

impl Part<'_> {
    pub(crate) fn millis(duration: Duration) -> Self {
        Self::Number(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    /// The argument as text.
    pub(crate) fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => (*text).into(),
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes),
            Self::Joined(first, second) => format!("{first}{second}").into(),
            Self::Braced(first, second) => format!("{first}{{{second}}}").into(),
            Self::Number(number) => number.to_string().into(),
        }
    }

    fn pack(&self, buffer: &mut Vec<u8>) {
        match self {
            Self::Text(text) => pack_bytes(&[text.as_bytes()], buffer),
            Self::Bytes(bytes) => pack_bytes(&[bytes], buffer),
            Self::Joined(first, second) => {
                pack_bytes(&[first.as_bytes(), second.as_bytes()], buffer);
            }
            Self::Braced(first, second) => {
                pack_bytes(&[first.as_bytes(), b"{", second.as_bytes(), b"}"], buffer);
            }
            Self::Number(number) => pack_bytes(&[digits(*number, &mut [0; 20])], buffer),
        }
    }
}

/// Packs one argument, made of these.
fn pack_bytes(pieces: &[&[u8]], buffer: &mut Vec<u8>) {
    header(b'$', pieces.iter().map(|piece| piece.len()).sum(), buffer);
    pieces.iter().for_each(|piece| buffer.extend_from_slice(piece));
    buffer.extend_from_slice(b"\r\n");
}

/// Packs a command that is no script.
pub(crate) fn pack(parts: &[Part<'_>], buffer: &mut Vec<u8>) {
    begin(buffer, parts.len());
    parts.iter().for_each(|part| part.pack(buffer));
}

fn begin(buffer: &mut Vec<u8>, parts: usize) {
    header(b'*', parts, buffer);
}

/// Appends how many parts a command, or how many bytes a part has.
fn header(kind: u8, number: usize, buffer: &mut Vec<u8>) {
    let mut room = [b'\n'; 23];
    let digits = digits(number as u64, &mut room[1..21]);
    let first = 21 - digits.len();
    room[first - 1] = kind;
    room[21] = b'\r';
    buffer.extend_from_slice(&room[first - 1..]);
}

/// The digits of a number, at the end of `room`, which has place for twenty.
fn digits(mut number: u64, room: &mut [u8]) -> &[u8] {
    let mut at = room.len();
    loop {
        at -= 1;
        room[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &room[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_packed_as_redis_reads_them() {
        let mut buffer = Vec::new();
        pack(
            &[
                Part::Text("SET"),
                Part::Joined("{a}:", "fence"),
                Part::Braced("channel:", "a"),
                Part::Number(0),
                Part::Number(1050),
            ],
            &mut buffer,
        );
        assert_eq!(
            String::from_utf8(buffer).expect("text"),
            "*5\r\n$3\r\nSET\r\n$9\r\n{a}:fence\r\n$11\r\nchannel:{a}\r\n$1\r\n0\r\n$4\r\n1050\r\n"
        );
    }

    #[test]
    fn packed_like_the_redis_crate_packs() {
        for number in [0, 9, 10, 99, 100, 1_000_000, u64::MAX] {
            let mut ours = Vec::new();
            pack(
                &[Part::Text("PEXPIRE"), Part::Text("schlüssel"), Part::Number(number)],
                &mut ours,
            );
            assert_eq!(
                ours,
                redis::cmd("PEXPIRE").arg("schlüssel").arg(number).get_packed_command()
            );
        }
    }

    fn packed(pack: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut buffer = Vec::new();
        pack(&mut buffer);
        String::from_utf8(buffer).expect("text")
    }

    #[test]
    fn a_script_is_sent_by_its_hash_or_whole() {
        let script = Script::new(Shape::Number, "return 1");
        let parts = [Part::Text("key"), Part::Bytes(b"value")];
        let by_hash = packed(|buffer| script.by_hash(1, &parts, buffer));
        let hash = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
        let rest = "$1\r\n1\r\n$3\r\nkey\r\n$5\r\nvalue\r\n";
        assert_eq!(by_hash, format!("*5\r\n$7\r\nEVALSHA\r\n$40\r\n{hash}\r\n{rest}"));
        let by_body = packed(|buffer| script.by_body(1, &parts, buffer));
        assert_eq!(by_body, format!("*5\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n{rest}"));
    }

    #[test]
    fn an_argument_as_text_is_what_is_sent() {
        for (part, text) in [
            (Part::Text("a"), "a"),
            (Part::Bytes(b"b"), "b"),
            (Part::Joined("a:", "b"), "a:b"),
            (Part::Braced("a:", "b"), "a:{b}"),
            (Part::Number(7), "7"),
            (Part::millis(Duration::from_secs(2)), "2000"),
        ] {
            assert_eq!(part.text(), text);
            let sent = packed(|buffer| pack(&[part], buffer));
            assert_eq!(sent, format!("*1\r\n${}\r\n{text}\r\n", text.len()));
        }
    }
}
