//! Tokens: who owns a lease (R3).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use uuid::{Builder, Uuid};

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::options::Share;
use crate::base::{client_name, locked};

/// What stands before a token while its lock is kept; also in the scripts `keep.lua`.
const KEPT: &str = "kept:";

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

    /// The token under which the lock is kept after this token's lease.
    pub(crate) fn kept(&self) -> Self {
        Self([KEPT.as_bytes(), &self.0].concat().into())
    }

    /// Whether it is one under which a lock is kept. A caller's own value may begin in the same
    /// way, so a UUID has to follow.
    pub(crate) fn is_kept(&self) -> bool {
        let token = self.0.strip_prefix(KEPT.as_bytes()).unwrap_or_default();
        let uuid = token.get(..uuid::fmt::Hyphenated::LENGTH).unwrap_or_default();
        Uuid::try_parse_ascii(uuid).is_ok()
    }

    /// The name of the client that drew it, and when it did so by its own clock, in whole
    /// milliseconds. `None`: it has not the form that [`Tokens::fresh_for`] gives it.
    pub(crate) fn origin(&self) -> Option<(String, SystemTime)> {
        let text = std::str::from_utf8(&self.0).ok()?;
        let (front, client) = text.strip_prefix(KEPT).unwrap_or(text).split_once('@')?;
        let uuid = match front.split_once(':') {
            None => front,
            Some((_, uuid)) => Share::in_token(&self.0).map(|_| uuid)?,
        };
        if uuid.len() != uuid::fmt::Hyphenated::LENGTH || !client_name::is_valid(client) {
            return None;
        }
        let uuid = Uuid::try_parse(uuid).ok().filter(|uuid| uuid.get_version_num() == 7)?;
        let (seconds, nanos) = uuid.get_timestamp()?.to_unix();
        let drawn_at = SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))?;
        Some((client.to_owned(), drawn_at))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

const BUFFERED: usize = 32;

/// How many random bytes a UUID of version 7 has.
type Random = [u8; 10];

/// Draws tokens from a buffer of random bytes, because asking the system for 10 bytes costs more
/// than 1 % of a lock cycle.
///
/// The buffer belongs to one client. A fork would copy a buffer per thread, and a new client of the
/// child would then draw the tokens of its parent. A *client* that was forked is refused before it
/// can send anything.
pub(crate) struct Tokens {
    /// A UUID of the client's own, of version 4.
    client_uuid: Box<str>,
    client_name: Box<str>,
    buffer: Mutex<Vec<Random>>,
    /// How many have been drawn in Redisson's form.
    numbered: AtomicU64,
}

impl Tokens {
    /// Those of a client with this name. `None`: with a name that tells the host and the process.
    pub(crate) fn new(name: Option<String>) -> Result<Self> {
        let mut random = [0; 16];
        fill(&mut random)?;
        let client_uuid = Builder::from_random_bytes(random).into_uuid().to_string();
        let name = match name {
            Some(name) => {
                client_name::check(&name)?;
                name
            }
            None => client_name::by_default(&client_uuid[..8]),
        };
        Ok(Self {
            client_uuid: client_uuid.into(),
            client_name: name.into(),
            buffer: Mutex::default(),
            numbered: AtomicU64::new(0),
        })
    }

    /// The client's own UUID.
    pub(crate) fn client_uuid(&self) -> &str {
        &self.client_uuid
    }

    /// The client's name.
    pub(crate) fn client_name(&self) -> &str {
        &self.client_name
    }

    /// A token of the form `uuid:number`. Redisson's owners are `uuid:thread`, with one UUID per
    /// client and one number per thread, so one hold of a thread looks like the next. Our number is
    /// fresh (R3).
    pub(crate) fn numbered(&self) -> Token {
        let number = self.numbered.fetch_add(1, Ordering::Relaxed) + 1;
        Token::new(format!("{}:{number}", self.client_uuid))
    }

    /// A fresh token with this share in it: a UUID of version 7, which has the time and 74 random
    /// bits, and the client's name. `p3/10:01980ca4-…@billing-3`.
    pub(crate) fn fresh_for(&self, share: Share) -> Result<Token> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let uuid = Builder::from_unix_timestamp_millis(millis, &self.random()?).into_uuid();
        // Put together by hand: `format!` would double what a token costs.
        let mut text = share.to_string();
        text.reserve(uuid::fmt::Hyphenated::LENGTH + "@".len() + self.client_name.len());
        text.push_str(uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()));
        text.push('@');
        text.push_str(&self.client_name);
        Ok(Token::new(text))
    }

    fn random(&self) -> Result<Random> {
        let mut buffer = locked(&self.buffer);
        loop {
            if let Some(bytes) = buffer.pop() {
                return Ok(bytes);
            }
            let mut random = [0; size_of::<Random>() * BUFFERED];
            fill(&mut random)?;
            buffer.extend(random.as_chunks().0);
        }
    }
}

fn fill(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|error| {
        Error::new(ErrorKind::Unavailable, "the operating system's random source failed")
            .because(error)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::base::options::Side;

    fn tokens(name: &str) -> Tokens {
        Tokens::new(Some(name.into())).expect("randomness and a name")
    }

    #[test]
    fn no_token_is_drawn_twice() {
        let tokens = tokens("me");
        let fresh = |_| tokens.fresh_for(Share::Whole).expect("randomness");
        let mut drawn: HashSet<_> = (0..BUFFERED * 3).map(fresh).collect();
        drawn.extend((0..BUFFERED).map(|_| tokens.numbered()));
        assert_eq!(drawn.len(), BUFFERED * 4);
    }

    #[test]
    fn a_token_says_who_drew_it_and_when() {
        let tokens = tokens("billing-3");
        assert_eq!(tokens.client_name(), "billing-3");
        for share in [Share::Whole, Share::Side(Side::Read), Share::Permits { taken: 3, of: 9 }] {
            let token = tokens.fresh_for(share).expect("randomness");
            assert!(token.text().starts_with(&share.to_string()));
            let (client, drawn_at) = token.origin().expect("one of ours");
            assert_eq!(client, "billing-3");
            let since = SystemTime::now().duration_since(drawn_at).expect("not to come");
            assert!(since < Duration::from_secs(60), "{since:?}");
        }
        let token = tokens.fresh_for(Share::Whole).expect("randomness");
        assert_eq!(token.kept().origin(), token.origin());
        let numbered = tokens.numbered();
        for token in [&token, &numbered] {
            assert!(token.kept().is_kept() && !token.is_kept());
        }
        assert!(!Token::new("kept:me").is_kept());
        assert_eq!(numbered.text(), format!("{}:1", tokens.client_uuid()));
        assert_eq!(numbered.origin(), None);
    }

    #[test]
    fn what_another_wrote_has_no_origin() {
        let uuid = "01980ca4-7a00-7000-8000-000000000000";
        let origin = |text: String| Token::new(text).origin().map(|(client, _)| client);
        assert_eq!(origin(format!("{uuid}@me")), Some("me".into()));
        for text in [
            uuid.to_owned(),
            format!("{uuid}@"),
            format!("{uuid}@a b"),
            format!("{uuid}@a@b"),
            format!("{{{uuid}}}@me"),
            "01980ca4-7a00-4000-8000-000000000000@me".into(),
            "01980ca4-7a00-1000-8000-000000000000@me".into(),
            format!("job:{uuid}@me"),
            "job@host".into(),
        ] {
            assert_eq!(origin(text.clone()), None, "{text}");
        }
        assert_eq!(Token::new(b"\xff@me").origin(), None);
    }

    #[test]
    fn a_client_without_a_name_gets_one() {
        let tokens = Tokens::new(None).expect("randomness");
        assert!(client_name::is_valid(tokens.client_name()));
        assert!(tokens.client_name().ends_with(&tokens.client_uuid()[..8]));
        assert!(Tokens::new(Some("a b".into())).is_err());
    }
}
