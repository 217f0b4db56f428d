//! Limits of a verification. A caller that accepts bytes from strangers sets [`Limits`]; they are checked before
//! anything is hashed.
//!
//! Two numbers bound the time: reading is linear in the bytes, and everything else is hashing. The number of hashes
//! does not follow from the bytes: two operations of 65 bytes whose keys differ in the last bit need 256 internal
//! nodes. So the hashes are counted, from the records, before the first is made.

use super::error::{Limit, VerifyError};

/// Limits of a verification.
///
/// ```
/// use pleach_core::proof::{Limits, VerifyError, witness};
/// use pleach_core::{Hasher, TERMINATOR};
///
/// let limits = Limits { bytes: 1 << 20, ..Limits::default() };
/// let refused = witness::verify_with(Hasher::BLAKE3, &[0; 2 << 20], &TERMINATOR, &limits);
/// assert!(matches!(refused, Err(VerifyError::OverLimit { .. })));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the encoding. They bound the memory too: four times as much, plus 64 KiB.
    pub bytes: u64,
    /// Hashes of 64 bytes that the verification needs at most: one for each leaf, before and after the batch or on both
    /// sides of a change; one for each sibling and each fork of each side (two in a witness: before and after); and one
    /// for each internal node that a batch puts below a terminal.
    pub hashes: u64,
}

impl Limits {
    /// What the functions without limits use: 256 MiB and 2^24 hashes, which is less than two seconds of one core, and
    /// ten times what a batch of 25,000 transfers between 2^27 accounts takes.
    pub const DEFAULT: Self = Self { bytes: 256 << 20, hashes: 1 << 24 };

    /// No limits, for bytes that the caller has made itself.
    pub const UNLIMITED: Self = Self { bytes: u64::MAX, hashes: u64::MAX };

    pub(super) fn check_bytes(&self, bytes: &[u8]) -> Result<(), VerifyError> {
        let needed = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        within(Limit::Bytes, needed, self.bytes)
    }

    pub(super) fn check_hashes(&self, needed: u64) -> Result<(), VerifyError> {
        within(Limit::Hashes, needed, self.hashes)
    }
}

impl Default for Limits {
    /// [`Limits::DEFAULT`].
    fn default() -> Self {
        Self::DEFAULT
    }
}

fn within(limit: Limit, needed: u64, allowed: u64) -> Result<(), VerifyError> {
    if needed <= allowed {
        return Ok(());
    }
    Err(VerifyError::OverLimit { limit, needed, allowed })
}
