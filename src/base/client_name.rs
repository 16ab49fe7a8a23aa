//! The name of a client, which stands in its tokens: so whoever looks at a lock sees who holds it.

use std::{env, fs, process};

use super::error::{Error, Result};

/// The longest name.
const LONGEST: usize = 64;

/// How much of a host's name a default name has at most: then it is never too long, with two
/// hyphens, up to 10 digits of the process, and 8 random ones.
const MOST_OF_HOST: usize = 40;

/// Whether a client can have this name. It has none of the characters that stand between the parts
/// of a token, of a waiter's entry or of a message: `:`, `@`, `#`, `|` and the space. The scripts
/// of locks with shares know a token by the same characters: see `shared/room.lua`.
pub(crate) fn is_valid(name: &str) -> bool {
    (1..=LONGEST).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// An error unless a client can have this name.
pub(crate) fn check(name: &str) -> Result<()> {
    if is_valid(name) {
        return Ok(());
    }
    Err(Error::invalid("a client's name has 1 to 64 characters of A-Z, a-z, 0-9, '.', '_' and '-'"))
}

fn is_allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

/// The name of a client that was given none: its host, its process and this random part.
pub(crate) fn by_default(random: &str) -> String {
    format!("{}-{}-{random}", host_part(&host()), process::id())
}

/// The name of this host, as far as the standard library can find it out.
fn host() -> String {
    let of_linux = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let of_environment = || env::var("HOSTNAME").or_else(|_| env::var("COMPUTERNAME")).ok();
    of_linux.or_else(of_environment).unwrap_or_default()
}

/// The name of a host, as it can stand in a client's.
fn host_part(host: &str) -> String {
    let host = host.trim().bytes().take(MOST_OF_HOST);
    let part: String = host.map(|b| if is_allowed(b) { char::from(b) } else { '-' }).collect();
    if part.is_empty() { "host".to_owned() } else { part }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_no_character_that_stands_between_the_parts_of_a_token() {
        let longest = "n".repeat(LONGEST);
        for name in ["a", "billing-3", "host.example_1", &longest] {
            assert!(is_valid(name) && check(name).is_ok(), "{name}");
        }
        let longer = "n".repeat(LONGEST + 1);
        for name in ["", " ", "a b", "a@b", "a:b", "a|b", "a#2", "ä", "a\n", &longer] {
            assert!(!is_valid(name) && check(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_default_name_tells_the_host_and_the_process() {
        let name = by_default("0a1b2c3d");
        assert!(is_valid(&name), "{name}");
        assert!(name.ends_with(&format!("-{}-0a1b2c3d", process::id())), "{name}");
        assert!(name.starts_with(&host_part(&host())), "{name}");
        assert_eq!(host_part("web 1.example\n"), "web-1.example");
        assert_eq!((host_part("\n").as_str(), host_part("ü").as_str()), ("host", "--"));
        let longest = host_part(&"h".repeat(255));
        assert!(is_valid(&format!("{longest}-{}-0a1b2c3d", u32::MAX)), "{longest}");
    }
}
