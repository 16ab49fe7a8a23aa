//! Just enough RESP (2 and 3) to cut a byte stream into whole frames and to look inside them.
//!
//! The proxy and the fake server need to know where a command or a reply ends and what it is
//! called; they never need its full value. What is not RESP at all (TLS, deliberate garbage) comes
//! out as [`Frame::Raw`].

use std::io::{self, Read};

/// One piece of a byte stream.
pub enum Frame {
    /// A whole frame, exactly as it came over the wire.
    Whole(Vec<u8>),
    /// Bytes that are not RESP. From the first such piece on, a stream has only raw pieces.
    Raw(Vec<u8>),
}

/// Bytes that cannot be the start of a frame.
#[derive(Debug, PartialEq)]
pub struct NotResp;

/// The length of the first whole frame in `bytes`; `Ok(None)` if more bytes are needed to tell.
pub fn frame_len(bytes: &[u8]) -> Result<Option<usize>, NotResp> {
    let mut at = 0;
    // Elements still to come. An aggregate is counted, not recursed into: depth costs nothing.
    let mut open = 1_usize;
    while open > 0 {
        let Some(&kind) = bytes.get(at) else {
            return Ok(None);
        };
        if !b"+-:_#,($=!*~>%|".contains(&kind) {
            return Err(NotResp);
        }
        let Some(end) = find_crlf(bytes, at + 1) else {
            return Ok(None);
        };
        let header = &bytes[at + 1..end];
        at = end + 2;
        open -= 1;
        match kind {
            b'$' | b'=' | b'!' => {
                if let Some(len) = length(header)? {
                    at = at.saturating_add(len).saturating_add(2);
                    if bytes.len() < at {
                        return Ok(None);
                    }
                }
            }
            b'*' | b'~' | b'>' => open = open.saturating_add(length(header)?.unwrap_or(0)),
            b'%' => open = open.saturating_add(length(header)?.unwrap_or(0).saturating_mul(2)),
            // An attribute comes before the value that it describes.
            b'|' => {
                open = open
                    .saturating_add(length(header)?.unwrap_or(0).saturating_mul(2))
                    .saturating_add(1)
            }
            _ => {}
        }
    }
    Ok(Some(at))
}

/// The elements of an array frame; of any other frame, its one value. Nested aggregates stay
/// encoded.
pub fn elements(frame: &[u8]) -> Vec<Vec<u8>> {
    if !matches!(frame.first(), Some(b'*' | b'~' | b'>')) {
        return vec![value(frame)];
    }
    let mut rest = find_crlf(frame, 0).map_or(&[][..], |end| &frame[end + 2..]);
    let mut found = Vec::new();
    while let Ok(Some(len)) = frame_len(rest) {
        found.push(value(&rest[..len]));
        rest = &rest[len..];
    }
    found
}

/// A command as clients send it: an array of bulk strings.
pub fn command(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts {
        bytes.extend_from_slice(&bulk(part));
    }
    bytes
}

/// A bulk string.
pub fn bulk(value: &[u8]) -> Vec<u8> {
    let mut bytes = format!("${}\r\n", value.len()).into_bytes();
    bytes.extend_from_slice(value);
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// Cuts what a socket delivers into frames.
pub struct FrameReader<R> {
    stream: R,
    buffer: Vec<u8>,
    inline: bool,
    raw: bool,
}

impl<R: Read> FrameReader<R> {
    /// Reads what a server sends.
    pub fn replies(stream: R) -> FrameReader<R> {
        FrameReader { stream, buffer: Vec::new(), inline: false, raw: false }
    }

    /// Reads what a client sends: as replies, and a bare line of words is a command too, converted
    /// to the usual form.
    pub fn commands(stream: R) -> FrameReader<R> {
        FrameReader { inline: true, ..FrameReader::replies(stream) }
    }

    /// Blocks for the next frame. `Ok(None)` at the end of the stream; a frame cut short by it
    /// comes as raw first.
    pub fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.take_buffered() {
                return Ok(Some(frame));
            }
            let mut chunk = [0; 16 * 1024];
            let read = match self.stream.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if read == 0 {
                let rest = std::mem::take(&mut self.buffer);
                return Ok((!rest.is_empty()).then_some(Frame::Raw(rest)));
            }
            self.buffer.extend_from_slice(&chunk[..read]);
        }
    }

    fn take_buffered(&mut self) -> Option<Frame> {
        let first = *self.buffer.first()?;
        if self.inline && !self.raw && first.is_ascii_alphabetic() {
            let end = self.buffer.iter().position(|&byte| byte == b'\n')?;
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let words: Vec<&[u8]> =
                line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
            return Some(Frame::Whole(command(&words)));
        }
        if !self.raw {
            match frame_len(&self.buffer) {
                Ok(Some(len)) => return Some(Frame::Whole(self.buffer.drain(..len).collect())),
                Ok(None) => return None,
                Err(NotResp) => self.raw = true,
            }
        }
        Some(Frame::Raw(std::mem::take(&mut self.buffer)))
    }
}

fn value(frame: &[u8]) -> Vec<u8> {
    let Some(end) = find_crlf(frame, 0) else {
        return Vec::new();
    };
    match frame[0] {
        b'$' | b'=' | b'!' => frame[end + 2..].strip_suffix(b"\r\n").unwrap_or_default().to_vec(),
        b'*' | b'~' | b'>' | b'%' | b'|' => frame.to_vec(),
        _ => frame[1..end].to_vec(),
    }
}

fn find_crlf(bytes: &[u8], from: usize) -> Option<usize> {
    bytes.get(from..)?.windows(2).position(|pair| pair == b"\r\n").map(|at| from + at)
}

/// The length in a header; `None` for the null that RESP2 writes as -1.
fn length(header: &[u8]) -> Result<Option<usize>, NotResp> {
    if header == b"-1" {
        return Ok(None);
    }
    let text = std::str::from_utf8(header).map_err(|_| NotResp)?;
    text.parse().map(Some).map_err(|_| NotResp)
}
