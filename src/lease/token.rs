//! Tokens: who owns a lease (R3).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use uuid::Builder;

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::locked;
use crate::base::options::Share;

/// Names one lease. Fresh for every acquisition, kept over its attempts, never reused; the text of
/// a lease's token never reaches a log or a `Debug` (R19).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Token(Arc<[u8]>);

impl Token {
    /// The token with this text: a caller's own, or one that was read back.
    #[must_use]
    pub fn new(text: impl AsRef<[u8]>) -> Self {
        Self(text.as_ref().into())
    }

    /// As it stands in the store. Other libraries write bytes that are no text.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its text; what is not UTF-8 in it is replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

const BUFFERED: usize = 32;

/// Draws tokens from a buffer of random bytes, because asking the system for 16 bytes costs more
/// than 1 % of a lock cycle.
///
/// The buffer belongs to one client. A fork would copy a buffer per thread, and a new client of the
/// child would then draw the tokens of its parent. A *client* that was forked is refused before it
/// can send anything.
#[derive(Default)]
pub(crate) struct Tokens {
    buffer: Mutex<Vec<[u8; 16]>>,
    /// How many have been drawn in Redisson's form.
    numbered: AtomicU64,
}

impl Tokens {
    /// A fresh token of the form `uuid:number`. Redisson's owners are `uuid:thread`, with one UUID
    /// per client and one number per thread, so one hold of a thread looks like the next. Both
    /// parts of ours are fresh (R3).
    pub(crate) fn numbered(&self) -> Result<Token> {
        let token = self.fresh()?;
        let number = self.numbered.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Token::new(format!("{}:{number}", token.text())))
    }

    /// A fresh token with this share in it.
    pub(crate) fn fresh_for(&self, share: Share) -> Result<Token> {
        let token = self.fresh()?;
        Ok(if share.is_whole() { token } else { Token::new(format!("{share}{}", token.text())) })
    }

    /// A fresh random token: a UUID of version 4.
    pub(crate) fn fresh(&self) -> Result<Token> {
        let mut buffer = locked(&self.buffer);
        let bytes = loop {
            if let Some(bytes) = buffer.pop() {
                break bytes;
            }
            let mut random = [0; 16 * BUFFERED];
            getrandom::fill(&mut random).map_err(|error| {
                Error::new(ErrorKind::Unavailable, "the operating system's random source failed")
                    .because(error)
            })?;
            buffer.extend(random.as_chunks().0);
        };
        drop(buffer);
        let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
        let uuid = Builder::from_random_bytes(bytes).into_uuid();
        Ok(Token::new(uuid.hyphenated().encode_lower(&mut text)))
    }
}

#[cfg(test)]
mod tests {
    use super::{BUFFERED, Tokens};

    #[test]
    fn no_token_is_drawn_twice() {
        let tokens = Tokens::default();
        let drawn: std::collections::HashSet<_> =
            (0..BUFFERED * 3).map(|_| tokens.fresh().expect("randomness")).collect();
        assert_eq!(drawn.len(), BUFFERED * 3);
    }
}
