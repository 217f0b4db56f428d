//! Numbers as people write them: `25000`, `25,000`, `25_000`, `64k`, `2^20`; sizes with a unit.

use std::ops::RangeInclusive;

use crate::text::grouped;

/// Bytes of a MiB.
const MIB: u64 = 1 << 20;
/// Bytes of a KiB.
const KIB: u64 = 1 << 10;

/// Units of counts, in lower case.
const COUNTS: &[(&str, u64)] = &[("k", 1_000), ("m", 1_000_000), ("g", 1_000_000_000)];

/// Units of sizes, in lower case. A letter alone is binary, as for `dd` and `truncate`.
const SIZES: &[(&str, u64)] = &[
    ("kib", KIB),
    ("mib", MIB),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", KIB),
    ("m", MIB),
    ("g", 1 << 30),
    ("t", 1 << 40),
];

/// A parser of counts in this range.
pub(crate) fn count<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = whole(text).filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
            let ways = if *range.end() >= 100_000 {
                ", such as 25000, 25,000, 25_000, 64k (64,000) or 2^16"
            } else {
                ""
            };
            let (least, most) = (grouped(*range.start()), grouped(*range.end()));
            match *range.end() {
                u64::MAX => format!("say a number from {least}{ways}"),
                _ => format!("say a number from {least} to {most}{ways}"),
            }
        })
    }
}

/// A parser of sizes in MiB, in this range.
pub(crate) fn mib(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    size(MIB, "MiB", range)
}

/// A parser of sizes in KiB, in this range.
pub(crate) fn kib(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    size(KIB, "KiB", range)
}

fn size(
    unit: u64,
    name: &'static str,
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    move |text| {
        in_units(text, unit).filter(|size| range.contains(size)).ok_or_else(|| {
            format!(
                "say {} to {} {name}: a number of {name}, or one with a unit, such as 512MiB, 1GiB \
                 or 1GB",
                grouped(*range.start()),
                grouped(*range.end())
            )
        })
    }
}

/// A size in units of `unit` bytes, rounded down; a bare number is in these units already.
fn in_units(text: &str, unit: u64) -> Option<u64> {
    let text = text.trim();
    match with_unit(text, SIZES) {
        Some((number, bytes)) => Some(digits(number)?.checked_mul(bytes)? / unit),
        None => whole(text),
    }
}

/// A count.
pub(crate) fn whole(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Some((base, exponent)) = text.split_once('^') {
        return digits(base)?.checked_pow(u32::try_from(digits(exponent)?).ok()?);
    }
    match with_unit(text, COUNTS) {
        Some((number, times)) => digits(number)?.checked_mul(times),
        None => digits(text),
    }
}

/// The number before a unit, and what the unit stands for.
fn with_unit<'a>(text: &'a str, units: &[(&str, u64)]) -> Option<(&'a str, u64)> {
    let at = text.find(|letter: char| letter.is_ascii_alphabetic())?;
    let (number, name) = text.split_at(at);
    let name = name.to_ascii_lowercase();
    let unit = units.iter().find(|unit| unit.0 == name)?;
    Some((number.trim_end(), unit.1))
}

/// Digits, in groups of three separated by commas, or with `_` between any of them.
fn digits(text: &str) -> Option<u64> {
    let mut groups = text.split(',');
    let first = groups.next()?;
    let grouped = text.contains(',');
    let plain = |part: &str| part.bytes().all(|digit| digit.is_ascii_digit());
    if grouped && !((1..=3).contains(&first.len()) && plain(first)) {
        return None;
    }
    if !groups.all(|group| group.len() == 3 && plain(group)) {
        return None;
    }
    if !text.starts_with(|digit: char| digit.is_ascii_digit()) || text.ends_with('_') {
        return None;
    }
    text.replace([',', '_'], "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_people_write_them() {
        for (text, number) in [
            ("25000", 25_000),
            ("25,000", 25_000),
            ("25_000", 25_000),
            ("1,234,567", 1_234_567),
            ("64k", 64_000),
            ("64 K", 64_000),
            ("3M", 3_000_000),
            ("2^20", 1 << 20),
            ("10^3", 1000),
            (" 7 ", 7),
        ] {
            assert_eq!(whole(text), Some(number), "{text}");
        }
        for text in [
            "",
            ",",
            "k",
            "2^",
            "^2",
            "25,00",
            "2,5",
            "1,0000",
            ",000",
            "25000,",
            "_1",
            "1_",
            "1.5",
            "-1",
            "+1",
            "1kk",
            "2^99",
            "0x10",
            "64q",
            "99999999999999999999",
            "20000000000G",
        ] {
            assert_eq!(whole(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_take_units_and_bare_numbers_are_in_the_flag_s_own() {
        for (text, mib) in [
            ("1024", 1024),
            ("1,024", 1024),
            ("2^10", 1024),
            ("1GiB", 1024),
            ("1 gib", 1024),
            ("1G", 1024),
            ("512MiB", 512),
            ("512m", 512),
            ("2048k", 2),
            ("1GB", 953),
            ("1TiB", 1 << 20),
        ] {
            assert_eq!(in_units(text, MIB), Some(mib), "{text}");
        }
        assert_eq!(in_units("1MiB", KIB), Some(1024));
        for text in ["GB", "1XB", "1.5GiB", "99999999999TiB"] {
            assert_eq!(in_units(text, MIB), None, "{text}");
        }
    }

    #[test]
    fn refusals_say_what_is_accepted() {
        let error = count::<u32>(1..=10_000_000)("lots").expect_err("no number");
        assert!(error.contains("1 to 10,000,000") && error.contains("2^16"), "{error}");
        let error = count::<u8>(1..=32)("33").expect_err("out of range");
        assert_eq!(error, "say a number from 1 to 32");
        let error = mib(8..=1024)("4").expect_err("out of range");
        assert!(error.contains("8 to 1,024 MiB") && error.contains("1GiB"), "{error}");
    }
}
