//! Writing an export stream.

use std::io::Write;

use pleach::Roots;
use pleach::internals::error::Contradiction;
use pleach_core::fold::{FoldValue, NotAscending, RootFolder};
use pleach_core::{Hasher, Key};
use pleach_journal::format::trie_kind::TrieKind;

use super::records::RecordWriter;
use crate::error::Result;
use crate::error::StreamError;
use crate::export::format::{BlockKind, VERSION};

/// The result of an export.
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

/// Writes a stream: all namespaces in order, of each all pairs in order, then [`StreamWriter::finish`]. The pairs of a
/// Merkle namespace must lead to its root: else the stream is left unfinished.
pub(crate) struct StreamWriter<W> {
    hasher: Hasher,
    records: RecordWriter<W>,
    roots: Roots,
    /// The namespace in progress, and the fold of its pairs, where it has a root.
    namespace: (u8, Option<RootFolder>),
    report: ExportReport,
}

impl<W: Write> StreamWriter<W> {
    /// Begins a stream of a database's state; `None` for a salvage, whose state no database has had.
    pub(crate) fn new(
        hasher: Hasher,
        to: W,
        (database, commit): (Option<u64>, u64),
        blob: &[u8],
        roots: &Roots,
    ) -> Result<Self, StreamError> {
        let namespaces = roots.all().len();
        let mut head = Vec::new();
        head.extend(VERSION.to_le_bytes());
        head.extend([hasher.id(), 0]);
        head.extend(u16::try_from(namespaces).expect("at most 256").to_le_bytes());
        head.extend([0; 2]);
        head.extend(database.unwrap_or_default().to_le_bytes());
        head.extend(commit.to_le_bytes());
        head.extend(u32::try_from(blob.len()).expect("at most 64 KiB").to_le_bytes());
        head.extend(blob);
        for (namespace, root) in roots.all() {
            head.extend([namespace, u8::from(root.kind == TrieKind::Plain), 0, 0]);
            head.extend(root.node.to_bytes());
        }
        let records = RecordWriter::new(to, (BlockKind::Head, head), BlockKind::Pairs)?;
        let namespaces = namespaces as u64;
        let report = ExportReport { commit, namespaces, pairs: 0, bytes: 0 };
        Ok(Self { hasher, records, roots: roots.clone(), namespace: (0, None), report })
    }

    /// Begins the pairs of this namespace.
    pub(crate) fn begin(&mut self, namespace: u8) {
        self.records.begin(namespace);
        self.namespace =
            (namespace, self.roots.get(namespace).map(|_| RootFolder::new(self.hasher)));
    }

    /// Writes the next pair.
    pub(crate) fn pair(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        if let Some(folder) = &mut self.namespace.1 {
            let taken = folder.pair(key, FoldValue::Bytes(value));
            taken.map_err(|NotAscending| Contradiction::KeyOrder { key: *key })?;
        }
        Ok(self.records.record(key, Some(value))?)
    }

    /// Ends the namespace.
    pub(crate) fn end(&mut self) -> Result<()> {
        let (namespace, folder) = (self.namespace.0, self.namespace.1.take());
        if let (Some(folder), Some(expected)) = (folder, self.roots.get(namespace)) {
            let (commit, found) = (self.report.commit, folder.root());
            if found != expected {
                return Err(Contradiction::Pairs { commit, namespace, expected, found }.into());
            }
        }
        Ok(self.records.end()?)
    }

    /// Ends the stream.
    pub(crate) fn finish(self) -> Result<ExportReport, StreamError> {
        let (pairs, bytes) = self.records.finish()?;
        Ok(ExportReport { pairs, bytes, ..self.report })
    }
}

#[cfg(test)]
mod tests {
    use pleach_core::TERMINATOR;

    use super::*;
    use crate::error::Error;
    use pleach::internals::roots::TrieRoot;

    #[test]
    fn a_stream_whose_pairs_lead_to_another_root_is_not_finished() {
        let mut root = RootFolder::new(Hasher::BLAKE3);
        root.pair(&[1; 32], FoldValue::Bytes(b"one")).expect("the first");
        let root = TrieRoot { kind: TrieKind::Merkle, node: root.root() };
        let roots = Roots::new([(0, root)]);
        let write = |value: &[u8]| -> Result<ExportReport> {
            let mut writer = StreamWriter::new(Hasher::BLAKE3, Vec::new(), (None, 7), b"", &roots)?;
            writer.begin(0);
            writer.pair(&[1; 32], value)?;
            writer.end()?;
            Ok(writer.finish()?)
        };
        assert_eq!(write(b"one").expect("its pair").pairs, 1);
        let other = write(b"two").expect_err("another value");
        assert!(
            matches!(&other, Error::Db(pleach::Error::Corrupt(Contradiction::Pairs { commit: 7, namespace: 0, expected, .. }))
                if *expected == root.node),
            "{other}"
        );
        let mut writer =
            StreamWriter::new(Hasher::BLAKE3, Vec::new(), (None, 7), b"", &roots).expect("begun");
        writer.begin(0);
        let none = writer.end().expect_err("no pair");
        assert!(
            matches!(&none, Error::Db(pleach::Error::Corrupt(Contradiction::Pairs { found, .. })) if *found == TERMINATOR),
            "{none}"
        );
        let mut writer =
            StreamWriter::new(Hasher::BLAKE3, Vec::new(), (None, 7), b"", &roots).expect("begun");
        writer.begin(0);
        writer.pair(&[2; 32], b"").expect("the first");
        let order = writer.pair(&[1; 32], b"").expect_err("a key before it");
        assert!(
            matches!(order, Error::Db(pleach::Error::Corrupt(Contradiction::KeyOrder { .. }))),
            "{order}"
        );
    }
}
