//! An owned byte string: a value in a session, a log record, a buffered change or a page.
//!
//! Invariant: strings of at most [`Value::INLINE`] bytes are in the struct itself, longer ones in a shared allocation
//! that is never written again. So a clone costs a copy of 24 bytes or a reference count, and a short value such as a
//! balance needs no allocation.
//!
//! ```
//! use pleach_beatree::Value;
//!
//! let balance = Value::from(&[0, 0, 0, 42]);
//! assert_eq!((&*balance, balance.heap_bytes()), (&[0, 0, 0, 42][..], 0));
//!
//! let long = Value::from(vec![7; 1000]);
//! // Clones share the bytes.
//! assert_eq!(long.clone().as_ptr(), long.as_ptr());
//! ```

use core::cmp::Ordering;
use core::hash::{Hash, Hasher};
use std::sync::Arc;

use pleach_core::hexadecimal::hex;

/// An immutable byte string, cheap to clone. Equality, order and hash are those of the bytes.
#[derive(Clone)]
pub struct Value(Repr);

#[derive(Clone)]
enum Repr {
    Inline { len: u8, bytes: [u8; Value::INLINE] },
    Shared(Arc<[u8]>),
}

const _: () = assert!(size_of::<Value>() == 24, "three words");

impl Value {
    /// Bytes of the longest string that needs no allocation.
    pub const INLINE: usize = 22;

    /// Heap bytes of this value. Clones share them.
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Repr::Inline { .. } => 0,
            // Two reference counts are before the bytes.
            Repr::Shared(bytes) => bytes.len() + 2 * size_of::<usize>(),
        }
    }

    /// A string of at most [`Self::INLINE`] bytes, written in whole words of the struct: a move soon after reads each
    /// word as it was written, without a store-forwarding stall.
    #[inline]
    fn inline(from: &[u8]) -> Self {
        let [first, second, third] = words(from);
        let mut bytes = [0; Self::INLINE];
        bytes[..6].copy_from_slice(&first.to_le_bytes()[..6]);
        bytes[6..14].copy_from_slice(&(first >> 48 | second << 16).to_le_bytes());
        bytes[14..].copy_from_slice(&(second >> 48 | third << 16).to_le_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "at most 22")]
        let len = from.len() as u8;
        Self(Repr::Inline { len, bytes })
    }
}

/// The bytes of a string of at most [`Value::INLINE`], and zeros after them, by loads of fixed lengths.
#[inline]
fn words(from: &[u8]) -> [u64; 3] {
    let len = from.len();
    let word = |at: usize| u64::from_le_bytes(from[at..at + 8].try_into().expect("8 bytes"));
    // The last word is loaded with the bytes before it, which are shifted out; with none left it is 0.
    let last = |at: usize| {
        #[expect(clippy::cast_possible_truncation, reason = "at most 64")]
        let before = 8 * (8 - (len - at)) as u32;
        word(len - 8).checked_shr(before).unwrap_or(0)
    };
    match len {
        0..8 => {
            let mut bytes = [0; 8];
            bytes[..len].copy_from_slice(from);
            [u64::from_le_bytes(bytes), 0, 0]
        }
        8..16 => [word(0), last(8), 0],
        _ => [word(0), word(8), last(16)],
    }
}

impl core::ops::Deref for Value {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Shared(bytes) => bytes,
        }
    }
}

impl Default for Value {
    fn default() -> Self {
        Self(Repr::Inline { len: 0, bytes: [0; Self::INLINE] })
    }
}

/// A shared allocation begins with its counts, so that the bytes of a `Vec` or a `Box` are copied into it; an
/// `Arc<[u8]>` is taken as it is.
macro_rules! from_bytes {
    ($([$($of:tt)*] $from:ty,)*) => {$(
        impl<$($of)*> From<$from> for Value {
            #[inline]
            fn from(bytes: $from) -> Self {
                let bytes: &[u8] = bytes.as_ref();
                if bytes.len() <= Self::INLINE {
                    Self::inline(bytes)
                } else {
                    Self(Repr::Shared(bytes.into()))
                }
            }
        }
    )*};
}

from_bytes! {
    [] &[u8],
    [const N: usize] &[u8; N],
    [const N: usize] [u8; N],
    [] Vec<u8>,
    [] &Vec<u8>,
    [] Box<[u8]>,
    [] &str,
    [] String,
}

impl From<Arc<[u8]>> for Value {
    fn from(bytes: Arc<[u8]>) -> Self {
        if bytes.len() <= Self::INLINE { Self::inline(&bytes) } else { Self(Repr::Shared(bytes)) }
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl core::borrow::Borrow<[u8]> for Value {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Value {}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl core::fmt::Debug for Value {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        const SHOWN: usize = 32;
        f.write_str(&hex(&self[..self.len().min(SHOWN)]))?;
        if self.len() > SHOWN { write!(f, "... ({} bytes)", self.len()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_around_the_inline_limit_keeps_its_bytes() {
        for len in (0..=Value::INLINE + 1).chain([255, 256, 5000]) {
            let bytes: Vec<u8> = (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect();
            let value = Value::from(bytes.as_slice());
            assert_eq!(&*value, bytes.as_slice());
            assert_eq!(value, Value::from(bytes.clone()));
            assert_eq!(value, Value::from(&bytes));
            assert_eq!(value, Value::from(Arc::<[u8]>::from(bytes.as_slice())));
            assert_eq!(value.clone(), value);
            assert_eq!(value.heap_bytes() > 0, len > Value::INLINE);
        }
        assert_eq!(Value::default(), Value::from(&[]));
        let text = "a text that is longer than 22 bytes";
        for value in
            [Value::from(text), text.to_owned().into(), Box::<[u8]>::from(text.as_bytes()).into()]
        {
            assert_eq!(&*value, text.as_bytes());
        }
        assert_eq!(Value::from(7_u64.to_be_bytes()), Value::from(&[0, 0, 0, 0, 0, 0, 0, 7]));
    }

    #[test]
    fn order_and_equality_are_those_of_the_bytes() {
        let strings = [vec![], vec![0], vec![0; 22], vec![0; 23], vec![1], vec![1; 40], vec![2, 0]];
        for a in &strings {
            for b in &strings {
                let (left, right) = (Value::from(a.as_slice()), Value::from(b.as_slice()));
                assert_eq!(left.cmp(&right), a.cmp(b));
                assert_eq!(left == right, a == b);
            }
        }
    }

    #[test]
    fn a_long_value_is_printed_in_part() {
        assert_eq!(format!("{:?}", Value::from(&[0xab, 1])), "ab01");
        assert!(format!("{:?}", Value::from(vec![0; 33])).ends_with("... (33 bytes)"));
    }
}
