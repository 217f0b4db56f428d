//! Bytes as text.

use pleach_core::hexadecimal::hex;

/// Shows bytes in the `Debug` output of handles.
pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl std::fmt::Debug for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex(self.0))
    }
}
