//! The hasher that a database was created with, as the superblock records it.

use std::fmt;

use pleach_core::Hasher;

/// Bytes of a name.
pub(super) const NAME: usize = 32;

/// The number of a hasher and, for one of an application, its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordedHasher {
    /// [`Hasher::id`].
    pub id: u8,
    /// The name, then zeros; only zeros for a hasher of Pleach's own.
    pub name: [u8; NAME],
}

impl RecordedHasher {
    /// True for an application's hasher, which has a name.
    pub(super) fn is_named(&self) -> bool {
        self.id == Hasher::APPLICATION
    }

    /// The hasher: `wanted`, or without that one of Pleach's own. `None` where the database has another one.
    pub fn hasher(self, wanted: Option<Hasher>) -> Option<Hasher> {
        let found = wanted.or_else(|| Hasher::of_id(self.id))?;
        (Self::from(found) == self).then_some(found)
    }
}

impl From<Hasher> for RecordedHasher {
    fn from(hasher: Hasher) -> Self {
        let mut name = [0; NAME];
        if hasher.id() == Hasher::APPLICATION {
            let bytes = hasher.name().as_bytes();
            name[..bytes.len()].copy_from_slice(bytes);
        }
        Self { id: hasher.id(), name }
    }
}

impl fmt::Display for RecordedHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(own) = self.hasher(None) {
            return f.write_str(own.name());
        }
        let len = self.name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        match std::str::from_utf8(&self.name[..len]) {
            Ok(name) if len > 0 => write!(f, "{}", name.escape_default()),
            // Where it is compiled in, an earlier arm has its name.
            _ if self.id == 2 => f.write_str("sha2-256 (which this program was built without)"),
            _ => write!(f, "number {}", self.id),
        }
    }
}
