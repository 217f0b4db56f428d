//! Encoded proofs, a type for each claim, so that none is given to the verifier of another one.

use alloc::vec::Vec;
use core::ops::{Deref, RangeBounds};

use super::{DecodeError, VerifyError, change, multi, path, range};
use crate::{Hasher, Key, Node, range::key_range};

macro_rules! encoded {
    ($(#[$doc:meta] $name:ident;)*) => {$(
        #[$doc]
        ///
        /// Made from the bytes of a proof, whole or not: verifying judges them.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name(Vec<u8>);

        impl From<Vec<u8>> for $name {
            fn from(bytes: Vec<u8>) -> Self {
                Self(bytes)
            }
        }

        impl From<$name> for Vec<u8> {
            fn from(proof: $name) -> Self {
                proof.0
            }
        }

        impl Deref for $name {
            type Target = [u8];

            fn deref(&self) -> &[u8] {
                &self.0
            }
        }
    )*};
}

encoded! {
    /// What a state says of one key: an encoded path proof.
    KeyProof;
    /// What a state says of several keys: an encoded multiproof.
    KeysProof;
    /// All pairs of a range of keys, and that there is no other.
    RangeProof;
    /// What differs between two states in a range of keys.
    ChangeProof;
}

impl KeyProof {
    /// Checks the proof against a root.
    pub fn verify(&self, hasher: Hasher, root: &Node) -> Result<path::VerifiedPath, VerifyError> {
        path::verify(hasher, self, root)
    }
}

impl KeysProof {
    /// Checks the proof against a root.
    pub fn verify(
        &self,
        hasher: Hasher,
        root: &Node,
    ) -> Result<multi::VerifiedMulti<'_>, VerifyError> {
        multi::verify(hasher, self, root)
    }
}

impl RangeProof {
    /// Checks the proof of a range against a root.
    pub fn verify(
        &self,
        hasher: Hasher,
        root: &Node,
        keys: impl RangeBounds<Key>,
    ) -> Result<range::VerifiedRange<'_>, VerifyError> {
        let (first, last) = key_range(&keys).ok_or(DecodeError::EmptyRange)?;
        range::verify(hasher, self, root, &first, &last)
    }
}

impl ChangeProof {
    /// Checks the proof of the changes in a range against the roots of both states.
    pub fn verify(
        &self,
        hasher: Hasher,
        from_root: &Node,
        to_root: &Node,
        keys: impl RangeBounds<Key>,
    ) -> Result<change::VerifiedChange<'_>, VerifyError> {
        let (first, last) = key_range(&keys).ok_or(DecodeError::EmptyRange)?;
        change::verify(hasher, self, from_root, to_root, &first, &last)
    }
}
