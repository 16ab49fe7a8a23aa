//! The slot of a key, as Redis Cluster computes it.

/// How many slots there are.
pub(crate) const SLOTS: u16 = 16_384;

/// The slot of a key: the CRC16 (XMODEM) of its hash tag, which is the text between the first `{`
/// and the next `}`, or of the whole key if it has none.
pub(crate) fn of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|byte| *byte == b'}').filter(|end| *end > 0).map(|end| &rest[..end])
    });
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn the_slot_is_that_of_the_hash_tag() {
        // The check value of CRC-16/XMODEM is 0x31C3.
        assert_eq!(of(b"123456789"), 0x31C3);
        assert_eq!(of(b""), 0);
        for (key, tag) in [
            ("{orders}:fence", "orders"),
            ("a{b}c{d}", "b"),
            ("foo{{bar}}zap", "{bar"),
            ("{a}{b}", "a"),
        ] {
            assert_eq!(of(key.as_bytes()), of(tag.as_bytes()), "{key}");
        }
        for key in ["foo{}{bar}", "a}b{", "{unclosed", "{}"] {
            let whole = key.bytes().filter(|byte| !b"{}".contains(byte)).collect::<Vec<_>>();
            assert_ne!(of(key.as_bytes()), of(&whole), "{key}");
        }
    }
}
