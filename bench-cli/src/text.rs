//! Numbers, bytes and other values as people read them.

use crate::measure::float;

/// Serializes a type as the text that it prints and parses.
macro_rules! as_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                <String as serde::Deserialize>::deserialize(from)?
                    .parse()
                    .map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use as_text;

/// 32 bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use core::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The reverse of [`hex`] for 32 bytes.
pub(crate) fn from_hex(text: &str) -> Option<[u8; 32]> {
    let text = text.trim();
    if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// A number with its thousands apart.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number, rounded to the digits that are worth reading.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        "0".to_owned()
    } else if size >= 100.0 {
        rounded(value)
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else if size >= 0.01 {
        format!("{value:.3}")
    } else {
        // Two digits, wherever they begin: three places would be 0.000.
        let text = format!("{value:.1e}");
        let places = text.split_once("e-").and_then(|(_, power)| power.parse().ok());
        format!("{value:.*}", places.map_or(3, |power: usize| power + 1))
    }
}

/// A whole number, its thousands apart.
fn rounded(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let text = digits.parse().map_or(digits, grouped);
    if value < 0.0 { format!("-{text}") } else { text }
}

/// Bytes as GiB.
pub(crate) fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", float(bytes) / f64::from(1 << 30))
}

/// `1 finding`, `2 findings`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// A text on one line.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_grouped() {
        assert_eq!(number(0.0), "0");
        assert_eq!(number(0.0625), "0.062");
        assert_eq!(number(0.000_412), "0.00041");
        assert_eq!(number(-0.000_000_099_9), "-0.00000010");
        assert_eq!(number(12.345), "12.35");
        assert_eq!(number(999.6), "1,000");
        assert_eq!(number(10_000.0), "10,000");
        assert_eq!(number(1_234_567.8), "1,234,568");
    }
}
