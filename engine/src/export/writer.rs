//! Writing an export stream.

use std::io::Write;

use pleach_core::fold::{FoldValue, NotAscending, RootFolder};
use pleach_core::{Hasher, Key};

use crate::access::MAX_VALUE;
use crate::error::{Contradiction, Result};
use crate::format::bytes::put;
use crate::format::export_block::{
    self, FULL, HEADER, Kind, MAGIC, PAIRS_HEAD, SUMMED, StreamError, VERSION,
};
use crate::format::trie_kind::TrieKind;
use crate::roots::Roots;

const _: () = assert!(export_block::MAX_VALUE == MAX_VALUE, "each value has a place");

/// What an export has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportReport {
    /// Number of the commit.
    pub commit: u64,
    /// Namespaces.
    pub namespaces: u64,
    /// Pairs.
    pub pairs: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Writes a stream: all namespaces in order, of each all pairs in order, then [`StreamWriter::finish`]. The pairs of a Merkle
/// namespace must lead to its root: else the stream is left unfinished.
pub(crate) struct StreamWriter<H, W> {
    to: W,
    roots: Roots,
    /// The pairs of the namespace until now, where it has a root.
    folder: Option<RootFolder<H>>,
    /// The checksum of the block before.
    before: u64,
    /// The payload of the block that is made.
    payload: Vec<u8>,
    /// The namespace whose pairs come, and how many came.
    namespace: Option<(u8, u64)>,
    /// Pairs of the block that is made.
    in_block: u32,
    report: ExportReport,
}

impl<H: Hasher, W: Write> StreamWriter<H, W> {
    /// Begins a stream of a state.
    pub(crate) fn new(to: W, commit: u64, blob: &[u8], roots: &Roots) -> Result<Self, StreamError> {
        let namespaces = roots.all().len();
        let report =
            ExportReport { commit, namespaces: namespaces as u64, ..ExportReport::default() };
        let mut writer = Self {
            to,
            roots: roots.clone(),
            folder: None,
            before: 0,
            payload: Vec::new(),
            namespace: None,
            in_block: 0,
            report,
        };
        let payload = &mut writer.payload;
        payload.extend(VERSION.to_le_bytes());
        payload.extend([H::ID, 0]);
        payload.extend(u16::try_from(namespaces).expect("at most 256").to_le_bytes());
        payload.extend([0; 2]);
        payload.extend(commit.to_le_bytes());
        payload.extend(u32::try_from(blob.len()).expect("at most 64 KiB").to_le_bytes());
        payload.extend(blob);
        for (namespace, root) in roots.all() {
            payload.extend([namespace, u8::from(root.kind == TrieKind::Plain), 0, 0]);
            payload.extend(root.node.to_bytes());
        }
        writer.block(Kind::Head)?;
        Ok(writer)
    }

    /// The pairs of this namespace follow.
    pub(crate) fn begin(&mut self, namespace: u8) {
        debug_assert!(self.namespace.is_none(), "the one before has its end");
        self.namespace = Some((namespace, 0));
        self.folder = self.roots.get(namespace).map(|_| RootFolder::new());
    }

    /// The next pair.
    pub(crate) fn pair(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        if let Some(folder) = &mut self.folder {
            let taken = folder.pair(key, FoldValue::Bytes(value));
            taken.map_err(|NotAscending| Contradiction::KeyOrder { key: *key })?;
        }
        if self.payload.len() + 36 + value.len() > FULL {
            self.pairs()?;
        }
        let (namespace, pairs) = self.namespace.as_mut().expect("a namespace was begun");
        if self.payload.is_empty() {
            self.payload.extend([*namespace, 0, 0, 0]);
            self.payload.extend([0; 4]);
        }
        self.payload.extend(key);
        let length = u32::try_from(value.len()).expect("no value is so long");
        self.payload.extend(length.to_le_bytes());
        self.payload.extend(value);
        self.in_block += 1;
        *pairs += 1;
        Ok(())
    }

    /// The namespace has no more pairs.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.pairs()?;
        let (namespace, pairs) = self.namespace.take().expect("a namespace was begun");
        if let (Some(folder), Some(expected)) = (self.folder.take(), self.roots.get(namespace)) {
            let (commit, found) = (self.report.commit, folder.root());
            if found != expected {
                return Err(Contradiction::Pairs { commit, namespace, expected, found }.into());
            }
        }
        self.payload.extend([namespace, 0, 0, 0, 0, 0, 0, 0]);
        self.payload.extend(pairs.to_le_bytes());
        self.report.pairs += pairs;
        Ok(self.block(Kind::EndOfNamespace)?)
    }

    /// The stream is whole.
    pub(crate) fn finish(mut self) -> Result<ExportReport, StreamError> {
        self.payload.extend(self.report.pairs.to_le_bytes());
        self.block(Kind::End)?;
        self.to.flush().map_err(written)?;
        Ok(self.report)
    }

    /// Writes the block of pairs that is made, if there is one.
    fn pairs(&mut self) -> Result<(), StreamError> {
        if self.in_block == 0 {
            return Ok(());
        }
        let count = std::mem::take(&mut self.in_block);
        put(&mut self.payload, PAIRS_HEAD - 4, count.to_le_bytes());
        self.block(Kind::Pairs)
    }

    fn block(&mut self, kind: Kind) -> Result<(), StreamError> {
        let mut header = [0; HEADER];
        put(&mut header, 0, MAGIC);
        put(&mut header, 4, [kind as u8]);
        let length = u32::try_from(self.payload.len()).expect("blocks are bounded");
        put(&mut header, 8, length.to_le_bytes());
        let summed = header.first_chunk::<SUMMED>().expect("a part of it");
        self.before = export_block::checksum(self.before, summed, &self.payload);
        put(&mut header, SUMMED, self.before.to_le_bytes());
        self.to.write_all(&header).map_err(written)?;
        self.to.write_all(&self.payload).map_err(written)?;
        self.report.bytes += (HEADER + self.payload.len()) as u64;
        self.payload.clear();
        Ok(())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "a function for map_err")]
fn written(error: std::io::Error) -> StreamError {
    StreamError::Write(error.to_string())
}

#[cfg(test)]
mod tests {
    use pleach_core::{Blake3, TERMINATOR};

    use super::*;
    use crate::error::Error;
    use crate::roots::TrieRoot;

    #[test]
    fn a_stream_whose_pairs_lead_to_another_root_is_not_finished() {
        let mut root = RootFolder::<Blake3>::new();
        root.pair(&[1; 32], FoldValue::Bytes(b"one")).expect("the first");
        let root = TrieRoot { kind: TrieKind::Merkle, node: root.root() };
        let roots = Roots::new([(0, root)]);
        let write = |value: &[u8]| -> Result<ExportReport> {
            let mut writer = StreamWriter::<Blake3, _>::new(Vec::new(), 7, b"", &roots)?;
            writer.begin(0);
            writer.pair(&[1; 32], value)?;
            writer.end()?;
            Ok(writer.finish()?)
        };
        assert_eq!(write(b"one").expect("its pair").pairs, 1);
        let other = write(b"two").expect_err("another value");
        assert!(
            matches!(&other, Error::Corrupt(Contradiction::Pairs { commit: 7, namespace: 0, expected, .. })
                if *expected == root.node),
            "{other}"
        );
        let mut writer = StreamWriter::<Blake3, _>::new(Vec::new(), 7, b"", &roots).expect("begun");
        writer.begin(0);
        let none = writer.end().expect_err("no pair");
        assert!(
            matches!(&none, Error::Corrupt(Contradiction::Pairs { found, .. }) if *found == TERMINATOR),
            "{none}"
        );
        let mut writer = StreamWriter::<Blake3, _>::new(Vec::new(), 7, b"", &roots).expect("begun");
        writer.begin(0);
        writer.pair(&[2; 32], b"").expect("the first");
        let order = writer.pair(&[1; 32], b"").expect_err("a key before it");
        assert!(matches!(order, Error::Corrupt(Contradiction::KeyOrder { .. })), "{order}");
    }
}
