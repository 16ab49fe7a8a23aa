//! Keys: the key of a lock in the store, and its companion keys in the same slot.

use std::fmt;
use std::sync::Arc;

/// The longest name, with its prefix.
pub(crate) const LONGEST_KEY: usize = 1024;

/// The key of a lock: `prefix + name`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(Arc<Parts>);

#[derive(PartialEq, Eq, Hash)]
struct Parts {
    full: Box<str>,
    stem: Box<str>,
}

impl Key {
    /// The key with this text.
    ///
    /// Companion keys begin with the stem, which Redis Cluster hashes to the same slot as the key:
    /// `{key}:` if the key has no hash tag of its own, else `key::`. The two forms differ so that
    /// the locks `x` and `{x}` never share a companion: a shared queue would hand one lock to a
    /// waiter of the other. (A stem `{k}:` ends in `}:`, a stem `k::` in `::`.)
    #[must_use]
    pub fn new(full: String) -> Self {
        let stem =
            if hash_tag(&full).is_some() { format!("{full}::") } else { format!("{{{full}}}:") };
        Self(Arc::new(Parts { full: full.into(), stem: stem.into() }))
    }

    /// The key itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.full
    }

    /// The start of every companion key.
    #[must_use]
    pub fn stem(&self) -> &str {
        &self.0.stem
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// The part of a key that Redis Cluster hashes alone: the text between the first `{` and the next
/// `}`, unless it is empty.
pub(crate) fn hash_tag(key: &str) -> Option<&str> {
    let (tag, _) = key.split_once('{')?.1.split_once('}')?;
    Some(tag).filter(|tag| !tag.is_empty())
}

#[cfg(test)]
mod tests {
    use super::Key;

    #[test]
    fn companions_share_the_slot_of_the_key() {
        assert_eq!(Key::new("orders".into()).stem(), "{orders}:");
        assert_eq!(Key::new("a{b}c".into()).stem(), "a{b}c::");
        assert_eq!(Key::new("a{b".into()).stem(), "{a{b}:");
    }

    #[test]
    fn a_key_is_shown_as_it_is() {
        assert_eq!(Key::new("orders".into()).as_str(), "orders");
        assert_eq!(format!("{:?}", Key::new("orders".into())), "\"orders\"");
    }

    #[test]
    fn no_two_locks_share_a_companion() {
        let names =
            ["x", "{x}", "a}b", "{a}b}", "{}x", "{{}x}", "x:", "x::", "{x}:", "{x}::", "{{x}:}"];
        let stems: std::collections::HashSet<_> =
            names.iter().map(|name| Key::new((*name).into()).stem().to_owned()).collect();
        assert_eq!(stems.len(), names.len());
    }
}
