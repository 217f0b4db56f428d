//! An export stream of a closed database.

use std::io::Write;
use std::path::Path;

use pleach_core::Hasher;
use pleach_io::Device;

use super::dump::pairs;
use super::{Opened, UnderHasher, device, with_hasher};
use crate::error::Result;
use crate::export::ExportReport;
use crate::export::writer::StreamWriter;

/// Writes all pairs of the newest commit of the folder's database to an export stream, with roots and blob
/// ([`crate::export`]). Give a buffered writer. `each` is told after each pair of its namespace, and how many there were.
///
/// # Errors
/// As [`dump`](super::dump()); [`Error::Stream`](crate::Error::Stream) when the stream cannot be written.
pub fn export(
    path: &Path,
    to: &mut dyn Write,
    each: &mut dyn FnMut(u8, u64),
) -> Result<ExportReport> {
    export_on(&device(path)?, to, each)
}

/// The same on any device.
pub fn export_on<D: Device>(
    device: &D,
    to: &mut dyn Write,
    each: &mut dyn FnMut(u8, u64),
) -> Result<ExportReport> {
    with_hasher(device, Export { to, each })
}

struct Export<'a> {
    to: &'a mut dyn Write,
    each: &'a mut dyn FnMut(u8, u64),
}

impl<D: Device> UnderHasher<D> for Export<'_> {
    type Output = ExportReport;

    fn run<H: Hasher>(self, opened: &Opened<D>) -> Result<ExportReport> {
        let recovered = opened.examine_present::<H>()?.recovered;
        let tip = &recovered.tip;
        let mut writer = StreamWriter::new(self.to, H::ID, tip.number, &tip.blob, &tip.roots)?;
        for (namespace, _) in tip.roots.all() {
            writer.begin(namespace);
            let mut count = 0;
            pairs::<H, D>(opened, recovered.trie(namespace)?, |key, value| {
                writer.pair(key, value)?;
                count += 1;
                (self.each)(namespace, count);
                Ok(true)
            })?;
            writer.end()?;
        }
        Ok(writer.finish()?)
    }
}
