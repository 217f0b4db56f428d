//! The table at the end of an image: the parts of each namespace, and where they lie. The superblock has the table's
//! hash; the table has a checksum of each stream, and the tag of each root's branch page, which leads to all others. So
//! no part of an image can be exchanged for a part of another one.
//!
//! ```text
//! offset  size
//! 0       4     bytes of the whole table
//! 4       2     namespaces that follow, 1 to 256
//! 6       2     past roots that follow, 0 to 256
//! 8       8     first page of the overflow map stream
//! 16      8     bytes of the overflow map stream
//! 24      8     checksum of the overflow map stream: XXH3-64 of its bytes
//! 32      4     bytes of the blob
//! 36      4     zero
//! 40      8     first page of the stream of the history; 0 without bytes
//! 48      8     bytes of it
//! 56      8     checksum of it
//! 64      8     log position of the first record whose undo is in no run of the history, at most the replay start
//! 72      8     the oldest commit of the history, as the newest record says
//! 80      8     first page of the map of used leaf pages; 0 without bytes
//! 88      8     bytes of it
//! 96      8     checksum of it
//! 104     104   per namespace, ascending, 0 first:
//!               number 1, level of its root branch page 1, kind of trie 1 (0 Merkle, 1 plain), zero 1, tag of that page 4, the page 8,
//!               root 32, or digest (zeros when dropped), commit that dropped it 8 (0: none did),
//!               buffered changes: first page 8, bytes 8, checksum 8; without bytes there is no page: 0;
//!               leaf pages 8, buffered changes 8, their bytes in memory 8
//! ..      34    per past root, ascending, 0 first: number 1, kind of trie 1, root or digest 32
//! ..      ..    blob
//! ```
//!
//! *Past roots* are those of the state before the first record whose undo is in no run, where there is one: a record
//! has only the roots that it replaced. In the *map* bit n % 8 of byte n / 8 is set when a branch page of the image names
//! leaf page n; it has no zeros at its end. The *history* stream has the descriptor of each run, oldest first.

use std::ops::{AddAssign, SubAssign};

use pleach_beatree::region::{BufferedChange, RegionState};
use pleach_beatree::{Error, PageNo, Result};
use pleach_core::{Node, TERMINATOR};
use twox_hash::XxHash3_64;

use super::bytes::{get, get_u32, get_u64};
use super::position::LogPos;
use super::trie_kind::TrieKind;

const HEAD: usize = 104;
const ENTRY: usize = 104;
const PAST: usize = 34;
/// Most namespaces: their numbers have one byte.
const MOST: usize = 256;

/// A stream of the image: its place, length and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRef {
    /// Number of its first page.
    pub page: u64,
    /// Number of bytes.
    pub len: u64,
    /// XXH3 of the bytes.
    pub checksum: u64,
}

impl StreamRef {
    /// The reference to a stream of these bytes at a page.
    pub fn of(page: u64, bytes: &[u8]) -> Self {
        Self { page, len: bytes.len() as u64, checksum: XxHash3_64::oneshot(bytes) }
    }

    /// True for the stream's bytes.
    pub(crate) fn fits(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 == self.len && XxHash3_64::oneshot(bytes) == self.checksum
    }

    fn encode(&self, out: &mut Vec<u8>) {
        for field in [self.page, self.len, self.checksum] {
            out.extend_from_slice(&field.to_le_bytes());
        }
    }

    fn decode(bytes: &[u8], at: usize) -> Self {
        let [page, len, checksum] = [0, 8, 16].map(|field| get_u64(bytes, at + field));
        Self { page, len, checksum }
    }
}

/// A namespace's entry in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrieRef {
    /// The number of the namespace.
    pub namespace: u8,
    /// The kind of its trie.
    pub kind: TrieKind,
    /// Level of the branch page with the empty prefix.
    pub level: u8,
    /// Tag of that page.
    pub root_tag: u32,
    /// Number of that page.
    pub root_page: u64,
    /// The root or digest in the image's commit; none when that state has no such namespace.
    pub root: Option<Node>,
    /// The commit that dropped it, when `root` is none.
    pub dropped: u64,
    /// Its buffered changes.
    pub buffered: StreamRef,
    /// What the image has of it.
    pub sums: TrieSums,
}

/// Sums over all regions of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrieSums {
    /// Leaf pages.
    pub pages: u64,
    /// Buffered changes.
    pub changes: u64,
    /// Bytes of buffered changes in memory.
    pub bytes: u64,
}

impl TrieSums {
    /// The sums of one region.
    pub fn of(state: &RegionState) -> Self {
        let children = state.children();
        let pages = (0..children.len()).filter(|child| children.page(*child).is_some());
        let bytes = state.buffered().iter().map(BufferedChange::bytes).sum::<usize>();
        Self {
            pages: pages.count() as u64,
            changes: state.buffered().len() as u64,
            bytes: bytes as u64,
        }
    }

    /// Each sum with the other's.
    fn with(self, other: Self, sum: fn(u64, u64) -> u64) -> Self {
        Self {
            pages: sum(self.pages, other.pages),
            changes: sum(self.changes, other.changes),
            bytes: sum(self.bytes, other.bytes),
        }
    }
}

impl AddAssign for TrieSums {
    fn add_assign(&mut self, other: Self) {
        *self = self.with(other, u64::saturating_add);
    }
}

impl SubAssign for TrieSums {
    fn sub_assign(&mut self, other: Self) {
        *self = self.with(other, u64::saturating_sub);
    }
}

/// The end of the last page in a map of leaf pages.
pub fn map_end(map: &[u8]) -> u32 {
    let Some(last) = map.iter().rposition(|byte| *byte != 0) else { return 0 };
    u32::try_from((last + 1) * 8).unwrap_or(u32::MAX) - map[last].leading_zeros()
}

/// The pages in a map of leaf pages.
///
/// # Panics
/// When the last one is no page's number ([`map_end`]).
pub fn map_pages(map: &[u8]) -> impl Iterator<Item = PageNo> {
    let pages = (0..).step_by(8).zip(map).filter(|(_, byte)| **byte != 0);
    let set = |(at, byte)| (at..at + 8).filter(move |page| byte >> (page % 8) & 1 == 1);
    pages.flat_map(set).map(PageNo::new)
}

/// The table of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageTable {
    /// Ascending; namespace 0 is the first.
    pub tries: Vec<TrieRef>,
    /// The overflow map.
    pub overflow_map: StreamRef,
    /// The map of used leaf pages.
    pub leaf_map: StreamRef,
    /// The descriptors of the history's runs; without bytes there is no run.
    pub history: StreamRef,
    /// The first record whose undo is in no run.
    pub records_from: LogPos,
    /// The oldest commit of the history.
    pub kept_from: u64,
    /// Namespaces and their roots before that record; empty without one.
    pub prior_roots: Vec<(u8, TrieKind, Node)>,
    /// The blob of the image's commit.
    pub blob: Vec<u8>,
}

impl ImageTable {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let len = HEAD + self.tries.len() * ENTRY + self.prior_roots.len() * PAST + self.blob.len();
        let mut bytes = Vec::with_capacity(len);
        let length = |len: usize| u32::try_from(len).expect("a blob has at most 64 KiB");
        let count = |count: usize| u16::try_from(count).expect("at most 256 namespaces");
        bytes.extend_from_slice(&length(len).to_le_bytes());
        bytes.extend_from_slice(&count(self.tries.len()).to_le_bytes());
        bytes.extend_from_slice(&count(self.prior_roots.len()).to_le_bytes());
        self.overflow_map.encode(&mut bytes);
        bytes.extend_from_slice(&length(self.blob.len()).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        self.history.encode(&mut bytes);
        bytes.extend_from_slice(&self.records_from.get().to_le_bytes());
        bytes.extend_from_slice(&self.kept_from.to_le_bytes());
        self.leaf_map.encode(&mut bytes);
        for trie in &self.tries {
            bytes.extend_from_slice(&[trie.namespace, trie.level, trie.kind as u8, 0]);
            bytes.extend_from_slice(&trie.root_tag.to_le_bytes());
            bytes.extend_from_slice(&trie.root_page.to_le_bytes());
            bytes.extend_from_slice(trie.root.unwrap_or(TERMINATOR).as_ref());
            bytes.extend_from_slice(&trie.dropped.to_le_bytes());
            trie.buffered.encode(&mut bytes);
            for sum in [trie.sums.pages, trie.sums.changes, trie.sums.bytes] {
                bytes.extend_from_slice(&sum.to_le_bytes());
            }
        }
        for (namespace, kind, root) in &self.prior_roots {
            bytes.extend_from_slice(&[*namespace, *kind as u8]);
            bytes.extend_from_slice(root.as_ref());
        }
        bytes.extend_from_slice(&self.blob);
        bytes
    }

    /// Bytes of a table, from the first page's payload.
    pub fn len_of(first: &[u8]) -> Result<u64> {
        let len = first.first_chunk::<4>().map(|len| u64::from(u32::from_le_bytes(*len)));
        len.filter(|len| (HEAD as u64 + ENTRY as u64..=1 << 20).contains(len)).ok_or_else(bad)
    }

    /// The table in these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.len() < HEAD || get_u32(bytes, 0) as usize != bytes.len() {
            return Err(bad());
        }
        let count = |at: usize| usize::from(u16::from_le_bytes(get(bytes, at)));
        let (tries, past, blob) = (count(4), count(6), get_u32(bytes, 32) as usize);
        let fits = HEAD + tries * ENTRY + past * PAST + blob == bytes.len();
        if !fits || !(1..=MOST).contains(&tries) || past > MOST || get_u32(bytes, 36) != 0 {
            return Err(bad());
        }
        let (entries, rest) = bytes[HEAD..].split_at(tries * ENTRY);
        let (past, blob) = rest.split_at(past * PAST);
        let tries: Vec<TrieRef> = entries.chunks_exact(ENTRY).map(entry).collect::<Result<_>>()?;
        let past: Vec<(u8, TrieKind, Node)> = past
            .chunks_exact(PAST)
            .map(|past| Ok((past[0], kind(past[0], past[1])?, get::<32>(past, 2).into())))
            .collect::<Result<_>>()?;
        let ascend = tries.is_sorted_by(|a, b| a.namespace < b.namespace)
            && past.is_sorted_by(|a, b| a.0 < b.0);
        let zero_exists = tries[0].namespace == 0
            && tries[0].root.is_some()
            && past.first().is_none_or(|first| first.0 == 0);
        if !ascend || !zero_exists {
            return Err(bad());
        }
        Ok(Self {
            tries,
            overflow_map: StreamRef::decode(bytes, 8),
            leaf_map: StreamRef::decode(bytes, 80),
            history: StreamRef::decode(bytes, 40),
            records_from: get_u64(bytes, 64).into(),
            kept_from: get_u64(bytes, 72),
            prior_roots: past,
            blob: blob.to_vec(),
        })
    }
}

fn entry(bytes: &[u8]) -> Result<TrieRef> {
    let (root, dropped) = (get::<32>(bytes, 16).into(), get_u64(bytes, 48));
    let buffered = StreamRef::decode(bytes, 56);
    let [pages, changes, sum] = [80, 88, 96].map(|at| get_u64(bytes, at));
    if bytes[3] != 0
        || (dropped > 0 && root != TERMINATOR)
        || (buffered.len == 0 && buffered.page > 0)
    {
        return Err(bad());
    }
    Ok(TrieRef {
        namespace: bytes[0],
        kind: kind(bytes[0], bytes[2])?,
        level: bytes[1],
        root_tag: get_u32(bytes, 4),
        root_page: get_u64(bytes, 8),
        root: (dropped == 0).then_some(root),
        dropped,
        buffered,
        sums: TrieSums { pages, changes, bytes: sum },
    })
}

/// The kind of a namespace's trie; namespace 0 is not plain.
fn kind(namespace: u8, byte: u8) -> Result<TrieKind> {
    let kind = TrieKind::of_byte(byte).filter(|kind| namespace > 0 || *kind == TrieKind::Merkle);
    kind.ok_or_else(bad)
}

fn bad() -> Error {
    Error::Table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ImageTable {
        let trie = |namespace, root: Option<Node>, dropped| TrieRef {
            namespace,
            kind: if namespace == 255 { TrieKind::Plain } else { TrieKind::Merkle },
            level: 2,
            root_tag: 7,
            root_page: 8,
            root,
            dropped,
            buffered: StreamRef::of(0, &[]),
            sums: TrieSums { pages: 2, changes: 1, bytes: 100 },
        };
        ImageTable {
            tries: vec![
                trie(0, Some(TERMINATOR), 0),
                TrieRef { buffered: StreamRef::of(9, b"pending"), ..trie(3, None, 12) },
                trie(255, Some(Node::from([5; 32])), 0),
            ],
            overflow_map: StreamRef::of(4, b"map"),
            leaf_map: StreamRef::of(6, b"leaves"),
            history: StreamRef::of(5, b"runs"),
            records_from: LogPos::new(4096),
            kept_from: 3,
            prior_roots: vec![
                (0, TrieKind::Merkle, Node::from([6; 32])),
                (3, TrieKind::Plain, TERMINATOR),
            ],
            blob: b"blob".to_vec(),
        }
    }

    #[test]
    fn a_table_reads_as_it_was_written_and_no_field_is_ignored() {
        let table = sample();
        let bytes = table.encode();
        assert_eq!(ImageTable::len_of(&bytes).expect("its length"), bytes.len() as u64);
        assert_eq!(ImageTable::decode(&bytes).expect("as written"), table);
        let bare = ImageTable { prior_roots: Vec::new(), blob: Vec::new(), ..sample() };
        assert_eq!(ImageTable::decode(&bare.encode()).expect("as written"), bare);
        // Each byte has a meaning, or is refused: no two byte strings are the same table.
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            if let Ok(decoded) = ImageTable::decode(&other) {
                assert_ne!(decoded, table, "byte {at}");
                assert_eq!(decoded.encode(), other, "byte {at}");
            }
        }
        for len in 0..bytes.len() {
            assert!(ImageTable::decode(&bytes[..len]).is_err());
        }
    }

    #[test]
    fn tables_that_no_writer_makes_are_refused() {
        let refused = |change: fn(&mut ImageTable)| {
            let mut table = sample();
            change(&mut table);
            assert!(ImageTable::decode(&table.encode()).is_err(), "{table:?}");
        };
        refused(|table| table.tries.clear());
        refused(|table| table.tries.swap(1, 2));
        refused(|table| table.tries[1].namespace = 0);
        refused(|table| table.tries[0].kind = TrieKind::Plain);
        refused(|table| table.prior_roots[0].1 = TrieKind::Plain);
        refused(|table| {
            table.tries.remove(0);
        });
        refused(|table| (table.tries[0].root, table.tries[0].dropped) = (None, 4));
        refused(|table| table.tries[1].root = Some(Node::from([1; 32])));
        refused(|table| table.tries[2].buffered.page = 1);
    }
}
