//! `Share`: what a lease takes of what it is a lease of.

use std::fmt;

use crate::base::error::{Error, Result};

/// A permit is one member of a sorted set, and a script can name a few thousand at once.
const MOST_PERMITS: u32 = 1024;

/// What a lease takes of what it is a lease of. It stands at the front of the token (R26).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Share {
    /// All of it, as the lease of a lock does. Nothing stands in the token.
    #[default]
    Whole,
    /// One side of a read-write lock.
    Side(Side),
    /// This many permits of so many.
    Permits { taken: u32, of: u32 },
}

/// A side of a read-write lock, as [`inspect`](crate::RedisLock::inspect) tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// [`RwLock::read_lock`](crate::RwLock::read_lock): any number of readers hold it at once.
    Read,
    /// [`RwLock::write_lock`](crate::RwLock::write_lock): one writer holds it, and nobody reads
    /// meanwhile.
    Write,
}

impl Share {
    /// The share in a token of a lock with shares. `None`: it has none. What another program gives
    /// a lock as a value of its own may look like a token with a share.
    pub(crate) fn in_token(token: &[u8]) -> Option<Self> {
        let (share, _) = std::str::from_utf8(token).ok()?.split_once(':')?;
        match share {
            "r" => return Some(Self::Side(Side::Read)),
            "w" => return Some(Self::Side(Side::Write)),
            _ => {}
        }
        let (taken, of) = share.strip_prefix('p')?.split_once('/')?;
        Some(Self::Permits { taken: taken.parse().ok()?, of: of.parse().ok()? })
    }

    pub(crate) fn is_whole(self) -> bool {
        self == Self::Whole
    }

    /// How many permits it takes; a lock counts as one.
    pub(crate) fn permits(self) -> u32 {
        match self {
            Self::Whole | Self::Side(_) => 1,
            Self::Permits { taken, .. } => taken,
        }
    }

    /// The side of a read-write lock, if it is one.
    pub(crate) fn side(self) -> Option<Side> {
        match self {
            Self::Side(side) => Some(side),
            Self::Whole | Self::Permits { .. } => None,
        }
    }

    /// Whether the threads of a process have turns. Those that acquire permits have none: each asks
    /// the server, and has a place of its own in the server's queue.
    pub(crate) fn has_turns(self) -> bool {
        !matches!(self, Self::Permits { .. })
    }

    /// Whether a room may have leases of both at once, or one after the other.
    pub(crate) fn is_of_one_kind_with(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    /// Refuses what can never be granted (R18).
    pub(crate) fn check(self) -> Result<()> {
        let problem = match self {
            Self::Permits { of: 0, .. } => "a semaphore has at least one permit",
            Self::Permits { taken: 0, .. } => "a call acquires at least one permit",
            Self::Permits { taken, of } if taken > of => {
                "a call cannot acquire more permits than the semaphore has"
            }
            Self::Permits { taken, .. } if taken > MOST_PERMITS => {
                "a call can acquire at most 1,024 permits"
            }
            _ => return Ok(()),
        };
        Err(Error::invalid(problem))
    }
}

/// What stands before the UUID in a token.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => Ok(()),
            Self::Side(Side::Read) => f.write_str("r:"),
            Self::Side(Side::Write) => f.write_str("w:"),
            Self::Permits { taken, of } => write!(f, "p{taken}/{of}:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_PERMITS, Share, Side};

    const UUID: &str = "00000000-0000-4000-8000-000000000000";

    #[test]
    fn a_share_stands_in_the_token() {
        let share = Share::Permits { taken: 3, of: 10 };
        let token = format!("{share}{UUID}");
        assert!(token.starts_with("p3/10:0"));
        assert_eq!(Share::in_token(token.as_bytes()), Some(share));
        let whole = format!("{}{UUID}", Share::Whole);
        assert_eq!((whole.as_str(), Share::in_token(whole.as_bytes())), (UUID, None));
        for (side, prefix) in [(Side::Read, "r:"), (Side::Write, "w:")] {
            let (share, token) = (Share::Side(side), format!("{prefix}{UUID}"));
            assert_eq!(share.to_string(), prefix);
            assert_eq!(Share::in_token(token.as_bytes()), Some(share));
            assert!(!share.is_whole() && share.has_turns() && share.permits() == 1);
            assert_eq!(share.side(), Some(side));
            assert!(share.check().is_ok() && share.is_of_one_kind_with(Share::Side(Side::Read)));
            assert!(!share.is_of_one_kind_with(Share::Whole));
        }
        assert!(Share::Whole.is_whole() && !share.is_whole());
        assert!(Share::Whole.has_turns() && !share.has_turns());
        assert_eq!((Share::Whole.permits(), share.permits()), (1, 3));
        assert_eq!((Share::Whole.side(), share.side()), (None, None));
        for text in ["p3:x", "p3/:x", "p/3:x", "3/10:x", "p3/10", "px/10:x", "p3/4294967296:x", ""]
        {
            assert_eq!(Share::in_token(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Share::in_token(b"p3/10:\xff"), None);
    }

    #[test]
    fn what_can_never_be_granted_is_refused() {
        let check = |taken, of| Share::Permits { taken, of }.check().is_ok();
        assert!(check(1, 1) && check(10, 10) && check(MOST_PERMITS, u32::MAX));
        assert!(!check(0, 0) && !check(1, 0) && !check(0, 1) && !check(11, 10));
        assert!(!check(MOST_PERMITS + 1, u32::MAX) && Share::Whole.check().is_ok());
    }
}
