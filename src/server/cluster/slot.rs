//! The slot of a key, as Redis Cluster computes it.

use crate::base::key::hash_tag;

/// How many slots there are.
pub(crate) const SLOTS: u16 = 16_384;

/// The slot of a key: the CRC16 (XMODEM) of its hash tag, or of the whole key if it has none.
pub(crate) fn of(key: &str) -> u16 {
    let crc = hash_tag(key).unwrap_or(key).bytes().fold(0_u16, |crc, byte| {
        // The polynomial, 0x1021, times eight bits at once.
        let eight = (crc >> 8) ^ u16::from(byte);
        let eight = eight ^ (eight >> 4);
        (crc << 8) ^ (eight << 12) ^ (eight << 5) ^ eight
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn the_slot_is_that_of_the_hash_tag() {
        // The check value of CRC-16/XMODEM is 0x31C3.
        assert_eq!(of("123456789"), 0x31C3);
        assert_eq!(of(""), 0);
        for (key, tag) in [
            ("{orders}:fence", "orders"),
            ("a{b}c{d}", "b"),
            ("foo{{bar}}zap", "{bar"),
            ("{a}{b}", "a"),
        ] {
            assert_eq!(of(key), of(tag), "{key}");
        }
        for key in ["foo{}{bar}", "a}b{", "{unclosed", "{}"] {
            let whole = key.replace(['{', '}'], "");
            assert_ne!(of(key), of(&whole), "{key}");
        }
    }
}
