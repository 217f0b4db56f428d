//! Ranges of keys, which a fetch divides among servers.

use pleach::Key;
use pleach::range::{key_after, key_before};

/// First and last key of a range that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) first: Key,
    pub(crate) last: Key,
}

impl KeyRange {
    pub(crate) const ALL: Self = Self { first: [0; 32], last: [0xff; 32] };

    /// What follows a key within the range.
    pub(crate) fn behind(&self, key: &Key) -> Option<Self> {
        let first = key_after(key).filter(|first| *first <= self.last)?;
        Some(Self { first, ..*self })
    }

    /// What comes before a key within the range.
    pub(crate) fn before(&self, key: &Key) -> Option<Self> {
        let last = key_before(key).filter(|last| *last >= self.first)?;
        Some(Self { last, ..*self })
    }

    /// Both halves; none of a single key.
    pub(crate) fn halves(&self) -> Option<[Self; 2]> {
        let middle = middle(&self.first, &self.last);
        let behind = self.behind(&middle)?;
        Some([Self { last: middle, ..*self }, behind])
    }

    /// The range in the parts of it that the 64 ranges of all keys by their leading six bits have.
    pub(crate) fn divided(self) -> Vec<Self> {
        let (mut parts, mut left) = (Vec::new(), Some(self));
        while let Some(range) = left {
            let mut last = [0xff; 32];
            last[0] = range.first[0] | 3;
            let last = last.min(range.last);
            parts.push(Self { last, ..range });
            left = range.behind(&last);
        }
        parts
    }

    /// The share of all keys, by the leading 64 bits.
    pub(crate) fn share(&self) -> f64 {
        (leading(&self.last) - leading(&self.first)) / leading(&[0xff; 32])
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn leading(key: &Key) -> f64 {
    u64::from_be_bytes(*key.first_chunk().expect("32 bytes")) as f64
}

/// The key halfway: half of the sum, rounded down.
fn middle(first: &Key, last: &Key) -> Key {
    let (mut sum, mut carry) = ([0; 32], 0);
    for at in (0..32).rev() {
        let digit = u16::from(first[at]) + u16::from(last[at]) + carry;
        (sum[at], carry) = ((digit & 0xff) as u8, digit >> 8);
    }
    for digit in &mut sum {
        let odd = *digit & 1;
        *digit = (*digit >> 1) | u8::try_from(carry << 7).expect("a bit");
        carry = u16::from(odd);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_divided_without_gap_and_overlap() {
        let parts = KeyRange::ALL.divided();
        assert_eq!(parts.len(), 64);
        let some = KeyRange { first: [0x13; 32], last: [0xc4; 32] };
        for parts in [parts, some.divided(), KeyRange::ALL.halves().expect("two").to_vec()] {
            for pair in parts.windows(2) {
                assert_eq!(key_after(&pair[0].last), Some(pair[1].first));
            }
        }
        assert_eq!(
            (some.divided()[0].first, some.divided().last().expect("some").last),
            (some.first, some.last)
        );
        let one = KeyRange { first: [0xff; 32], last: [0xff; 32] };
        assert_eq!((one.halves(), one.divided()), (None, vec![one]));
        // Down to a single key, at the upper end of all keys.
        let mut range = KeyRange { first: [0xfe; 32], ..KeyRange::ALL };
        let mut halvings = 0;
        while let Some([_, upper]) = range.halves() {
            (range, halvings) = (upper, halvings + 1);
        }
        assert_eq!(range.first, [0xff; 32]);
        assert!(halvings <= 256, "{halvings}");
    }
}
