//! Little-endian reading and writing of bounded byte strings, shared by the layouts of the log.
//!
//! [`BodyCursor`] is total: no length in the bytes is used before it is compared with the bytes that exist, and nothing
//! is allocated.

/// A body with a right checksum and invalid contents: written by a faulty or hostile writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// A length or count reaches past the end.
    #[error("a length reaches past the end of the record")]
    Truncated,
    /// Bytes are left after the last field.
    #[error("bytes are left after the last field")]
    Trailing,
    /// Keys, prefixes or namespaces are not strictly ascending.
    #[error("keys, prefixes or namespaces are not strictly ascending")]
    Unsorted,
    /// A prefix of more than 256 bits, or with bits after its length.
    #[error("not a prefix")]
    Prefix,
    /// An unknown kind of value.
    #[error("unknown kind of value {0}")]
    Kind(u8),
    /// An unknown kind of trie.
    #[error("unknown kind of trie {0}")]
    Trie(u8),
    /// An unknown kind of entry.
    #[error("unknown kind of entry {0}")]
    EntryKind(u8),
    /// An entry of a namespace that contradicts its kind.
    #[error("the entry of namespace {ns} contradicts its kind {kind}")]
    Entry {
        /// The namespace.
        ns: u8,
        /// The entry's kind.
        kind: u8,
    },
    /// An unknown flag.
    #[error("unknown flags {0:#x}")]
    Flags(u16),
    /// A reserved byte is set.
    #[error("a reserved byte is not zero")]
    Reserved,
    /// The application's blob is longer than allowed.
    #[error("a blob of {0} bytes")]
    Blob(u32),
    /// The new pages of a range do not tile it.
    #[error("the pages of a range do not tile it")]
    Tiling,
}

/// Writes a fixed-size field at a constant offset.
#[inline]
pub fn put<const N: usize>(bytes: &mut [u8], at: usize, field: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&field);
}

/// Reads a fixed-size field at a constant offset of a fixed-size layout.
///
/// # Panics
/// When the layout is shorter; callers pass arrays or slices whose length they checked.
#[inline]
pub(crate) fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

/// A field as a number.
#[inline]
pub fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(get(bytes, at))
}

/// A field as a number.
#[inline]
pub fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(get(bytes, at))
}

/// The rest of a byte string.
#[derive(Clone, Copy, Debug)]
pub struct BodyCursor<'a> {
    rest: &'a [u8],
}

impl<'a> BodyCursor<'a> {
    /// A cursor before the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// True when no byte is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Number of bytes left.
    pub fn len(&self) -> usize {
        self.rest.len()
    }

    /// The next `len` bytes; an error when fewer are left.
    #[inline]
    pub fn take(&mut self, len: u64) -> Result<&'a [u8], BodyError> {
        let len = usize::try_from(len).map_err(|_| BodyError::Truncated)?;
        let (head, rest) = self.rest.split_at_checked(len).ok_or(BodyError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    #[inline]
    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], BodyError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(BodyError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    #[inline]
    /// The next field of this type.
    pub fn u8(&mut self) -> Result<u8, BodyError> {
        Ok(self.array::<1>()?[0])
    }

    #[inline]
    /// The next field of this type.
    pub fn u16(&mut self) -> Result<u16, BodyError> {
        Ok(u16::from_le_bytes(*self.array()?))
    }

    #[inline]
    pub(crate) fn u24(&mut self) -> Result<u32, BodyError> {
        let [a, b, c] = *self.array()?;
        Ok(u32::from_le_bytes([a, b, c, 0]))
    }

    #[inline]
    /// The next field of this type.
    pub fn u32(&mut self) -> Result<u32, BodyError> {
        Ok(u32::from_le_bytes(*self.array()?))
    }

    #[inline]
    pub(crate) fn u40(&mut self) -> Result<u64, BodyError> {
        let [a, b, c, d, e] = *self.array()?;
        Ok(u64::from_le_bytes([a, b, c, d, e, 0, 0, 0]))
    }

    #[inline]
    /// The next field of this type.
    pub fn u64(&mut self) -> Result<u64, BodyError> {
        Ok(u64::from_le_bytes(*self.array()?))
    }

    /// Skips reserved bytes, which must be zero.
    pub fn reserved<const N: usize>(&mut self) -> Result<(), BodyError> {
        if *self.array::<N>()? == [0; N] { Ok(()) } else { Err(BodyError::Reserved) }
    }
}

/// The items of a section, each read by `take`, until the first error. Bytes after the last one are an error.
#[inline]
pub(super) fn items<'a, T>(
    section: &'a [u8],
    mut left: u32,
    mut take: impl FnMut(&mut BodyCursor<'a>) -> Result<T, BodyError>,
) -> impl Iterator<Item = Result<T, BodyError>> {
    let mut rest = BodyCursor::new(section);
    core::iter::from_fn(move || {
        let item = match left.checked_sub(1) {
            Some(fewer) => {
                left = fewer;
                take(&mut rest)
            }
            None if rest.is_empty() => return None,
            None => Err(BodyError::Trailing),
        };
        if item.is_err() {
            (left, rest) = (0, BodyCursor::new(&[]));
        }
        Some(item)
    })
}

/// Checks that the next one of a list is above the last one.
#[inline]
pub(super) fn ascend<T: Copy + PartialOrd>(last: &mut Option<T>, next: T) -> Result<(), BodyError> {
    match last.replace(next) {
        Some(last) if next <= last => Err(BodyError::Unsorted),
        _ => Ok(()),
    }
}

/// Appends the low three bytes of a number.
#[inline]
pub(crate) fn push_u24(out: &mut Vec<u8>, number: u32) {
    debug_assert!(number < 1 << 24, "fits three bytes");
    out.extend_from_slice(&number.to_le_bytes()[..3]);
}

/// Appends the low five bytes of a number.
#[inline]
pub(crate) fn push_u40(out: &mut Vec<u8>, number: u64) {
    debug_assert!(number < 1 << 40, "fits five bytes");
    out.extend_from_slice(&number.to_le_bytes()[..5]);
}
