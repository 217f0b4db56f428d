//! Rot: changes of bytes at rest that no operation asked for.

use super::content::offset_of;

/// A page of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedPage {
    /// The file's name.
    pub file: String,
    /// Page number.
    pub page: u64,
}

/// One change of bytes at rest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// Bit `bit` (0 to 7) of byte `byte` of the page is inverted.
    Flip {
        /// The page.
        at: DamagedPage,
        /// Byte in the page.
        byte: u16,
        /// Bit in the byte.
        bit: u8,
    },
    /// The page reads as zeros.
    Zero(DamagedPage),
    /// The page holds noise drawn from this seed.
    Garbage(DamagedPage, u64),
    /// The page holds what it held before its last write.
    Stale(DamagedPage),
    /// The page `hit` holds the bytes of the page `meant`, of the same file or another.
    Misdirected {
        /// Where the bytes belong.
        meant: DamagedPage,
        /// Where they went.
        hit: DamagedPage,
    },
    /// Reading the page fails with EIO until it is written.
    Unreadable(DamagedPage),
    /// The file ends here.
    Truncate {
        /// The file's name.
        file: String,
        /// The new length in bytes, shorter than before.
        len: u64,
    },
}

/// Classes of [`Damage`] for [`SimDisk::damage_randomly`](super::SimDisk::damage_randomly).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of `Damage`")]
pub enum DamageKind {
    Flip,
    Zero,
    Garbage,
    Stale,
    Misdirected,
    Unreadable,
    Truncate,
}

impl DamageKind {
    /// All classes.
    pub const ALL: [Self; 7] = [
        Self::Flip,
        Self::Zero,
        Self::Garbage,
        Self::Stale,
        Self::Misdirected,
        Self::Unreadable,
        Self::Truncate,
    ];
}

impl Damage {
    /// File and byte offset of what is damaged.
    pub fn target(&self) -> (&str, u64) {
        match self {
            Self::Flip { at, byte, .. } => (&at.file, offset_of(at.page) + u64::from(*byte)),
            Self::Zero(at)
            | Self::Garbage(at, _)
            | Self::Stale(at)
            | Self::Unreadable(at)
            | Self::Misdirected { hit: at, .. } => (&at.file, offset_of(at.page)),
            Self::Truncate { file, len } => (file, *len),
        }
    }
}
