//! An export stream of a closed database.

use std::io::Write;
use std::path::Path;

use pleach_core::{Hasher, Key};
use pleach_io::Device;

use super::writer::{ExportReport, StreamWriter};
use crate::error::Result;
use crate::tools::{Opened, UnderHasher, device, pairs, with_hasher};

/// Writes all pairs of the newest commit of the folder's database to an export stream, with roots and blob
/// ([`export`](super::export())). Give a buffered writer. `each` is told of each pair's namespace and key.
///
/// # Errors
/// As [`tools::dump`](crate::tools::dump()); [`Error::Stream`](crate::Error::Stream) when the stream cannot be written.
pub fn export_closed(
    path: &Path,
    to: &mut dyn Write,
    each: &mut dyn FnMut(u8, &Key),
) -> Result<ExportReport> {
    export_closed_on(&device(path)?, to, each)
}

/// The same on any device.
pub fn export_closed_on<D: Device>(
    device: &D,
    to: &mut dyn Write,
    each: &mut dyn FnMut(u8, &Key),
) -> Result<ExportReport> {
    with_hasher(device, Export { to, each })
}

struct Export<'a> {
    to: &'a mut dyn Write,
    each: &'a mut dyn FnMut(u8, &Key),
}

impl<D: Device> UnderHasher<D> for Export<'_> {
    type Output = ExportReport;

    fn run<H: Hasher>(self, opened: &Opened<D>) -> Result<ExportReport> {
        let recovered = opened.examine_present::<H>()?.recovered;
        let tip = &recovered.tip;
        let mut writer = StreamWriter::new(self.to, H::ID, tip.number, &tip.blob, &tip.roots)?;
        for (namespace, _) in tip.roots.all() {
            writer.begin(namespace);
            pairs::<H, D>(opened, recovered.trie(namespace)?, |key, value| {
                writer.pair(key, value)?;
                (self.each)(namespace, key);
                Ok(true)
            })?;
            writer.end()?;
        }
        Ok(writer.finish()?)
    }
}
