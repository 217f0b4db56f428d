//! Bytes as hexadecimal digits, and back.

use alloc::{string::String, vec::Vec};

/// Bytes in hexadecimal, in lower case.
pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    let digits = bytes.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

/// The bytes of an even number of hexadecimal digits in either case; `None` of any other text.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.chars().map(|digit| u8::try_from(digit.to_digit(16)?).ok());
    let digits = digits.collect::<Option<Vec<u8>>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_their_digits_and_nothing_else_does() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(hex([0x00, 0x0f, 0xa0, 0xff]), "000fa0ff");
        assert_eq!(from_hex(&hex(&bytes)), Some(bytes.clone()));
        assert_eq!(from_hex(&hex(&bytes).to_uppercase()), Some(bytes));
        assert_eq!(from_hex(""), Some(Vec::new()));
        for wrong in ["0", "0x", "+1", "0g", " 00", "00 ", "\u{663}0", "00\0"] {
            assert_eq!(from_hex(wrong), None, "{wrong:?}");
        }
    }
}
