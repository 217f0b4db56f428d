//! Entries of a run on the device, and their encoding in its pages.
//!
//! ```text
//! page     kind 1 | contents
//! kind 0   entries, in order
//! kind 1   the same; each is the first entry of a page, and its value is the number of that page in the run
//! kind 2   a piece of a value that is longer than an entry has room for
//! kind 3   lines of the filter
//!
//! entry    shared 1 | length 1 | rest of the key .. | commit 3 | form 2 | value ..
//! ```
//!
//! `shared` bytes of the key are those of the entry before; 35 of 35: it is the same key, and `length` is left out.
//! Zeros at the end of a key are not stored. Commits are counted from the one that the run begins after. The upper two
//! bits of `form` are the form of the value, the others the number of bytes that follow.

use pleach_core::page::overflow::{MAX_EXTENTS, cell_len};
use pleach_core::page::stream::PAYLOAD;
use pleach_core::{Key, Prefix};

/// Bytes of an entry's key.
const KEY: usize = 35;
/// Longer values have pages of their own.
pub(super) const MOST_INLINE: usize = 1024;
/// The largest commit number in a run.
pub(crate) const MOST_COMMITS: u64 = (1 << 24) - 1;
/// Bytes of a value in a page of its own.
pub(super) const PIECE: usize = PAYLOAD - 1;

/// The kind of a page of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum PageKind {
    Entries = 0,
    Index = 1,
    Piece = 2,
    Filter = 3,
}

/// The section of a run that an entry belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RunSection {
    /// The value of a key.
    Values = 0,
    /// The node of a page's prefix.
    Pages = 1,
    /// The node of a region's prefix.
    Regions = 2,
    /// Long values that a commit replaced, by the commit.
    LongValues = 3,
    /// The record of a commit, by the commit.
    Commits = 4,
}

/// Sort key of entries, before their commit: part, namespace, key or first key of a prefix, length of the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EntryKey([u8; KEY]);

impl EntryKey {
    fn new(part: RunSection, namespace: u8, key: &Key, len: u8) -> Self {
        let mut bytes = [0; KEY];
        (bytes[0], bytes[1], bytes[KEY - 1]) = (part as u8, namespace, len);
        bytes[2..KEY - 1].copy_from_slice(key);
        Self(bytes)
    }

    /// The sort key of a namespace's key.
    pub(crate) fn of_key(namespace: u8, key: &Key) -> Self {
        Self::new(RunSection::Values, namespace, key, 0)
    }

    /// The sort key of the prefix of a page or a region.
    pub(crate) fn of_prefix(part: RunSection, namespace: u8, prefix: &Prefix) -> Self {
        let len = u8::try_from(prefix.len()).expect("prefixes of pages have at most 255 bits");
        Self::new(part, namespace, prefix.first_key(), len)
    }

    /// The sort key of the `count`th entry of a commit.
    pub(crate) fn of_commit(part: RunSection, commit: u64, count: u32) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&commit.to_be_bytes());
        key[8..12].copy_from_slice(&count.to_be_bytes());
        Self::new(part, 0, &key, 0)
    }

    /// True for an entry of this part and namespace.
    pub(super) fn is_of(&self, part: RunSection, namespace: u8) -> bool {
        self.0[..2] == [part as u8, namespace]
    }

    pub(super) fn namespace(&self) -> u8 {
        self.0[1]
    }

    /// The key, or the first key of the prefix.
    pub(super) fn key(&self) -> &Key {
        self.0[2..].first_chunk().expect("35 bytes")
    }

    /// The prefix. `None` where the key has bits behind its length.
    pub(super) fn prefix(&self) -> Option<Prefix> {
        let prefix = Prefix::new(self.key(), self.0[KEY - 1].into());
        (prefix.first_key() == self.key()).then_some(prefix)
    }

    pub(super) fn length(&self) -> u8 {
        self.0[KEY - 1]
    }
}

/// The contents of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents<'a> {
    Absent,
    Inline(&'a [u8]),
    /// The cell of a value in the overflow file.
    Overflow(&'a [u8]),
    /// The first page of a value's pieces, and its length in bytes.
    InPieces {
        page: u32,
        bytes: u32,
    },
}

const LENGTH: u16 = (1 << 14) - 1;

/// A page of entries, or of the index, that is being filled.
pub(super) struct PageBuilder {
    payload: Vec<u8>,
    last: EntryKey,
    /// The first entry.
    pub(super) first: Option<(EntryKey, u64)>,
}

impl PageBuilder {
    pub(super) fn new(kind: PageKind) -> Self {
        let mut payload = Vec::with_capacity(PAYLOAD);
        payload.push(kind as u8);
        Self { payload, last: EntryKey([0; KEY]), first: None }
    }

    /// Adds an entry after all others. False when the page has no room for it.
    pub(super) fn push(&mut self, key: &EntryKey, commit: u64, contents: &Contents<'_>) -> bool {
        let apart;
        let (form, bytes): (u16, &[u8]) = match contents {
            Contents::Absent => (0, &[]),
            Contents::Inline(bytes) => (1, bytes),
            Contents::Overflow(bytes) => (2, bytes),
            Contents::InPieces { page, bytes } => {
                apart = [page.to_le_bytes(), bytes.to_le_bytes()].concat();
                (3, &apart)
            }
        };
        let shared = match self.first {
            Some(_) => key.0.iter().zip(&self.last.0).take_while(|(a, b)| a == b).count(),
            None => 0,
        };
        let end = key.0.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1).max(shared);
        let rest = &key.0[shared..end];
        if self.payload.len() + 2 + rest.len() + 5 + bytes.len() > PAYLOAD {
            return false;
        }
        let byte = |count: usize| u8::try_from(count).expect("a key has 35 bytes");
        self.payload.push(byte(shared));
        if shared < KEY {
            self.payload.push(byte(rest.len()));
            self.payload.extend_from_slice(rest);
        }
        self.payload.extend_from_slice(&commit.to_le_bytes()[..3]);
        let length = u16::try_from(bytes.len()).expect("longer values have pages of their own");
        self.payload.extend_from_slice(&(form << 14 | length).to_le_bytes());
        self.payload.extend_from_slice(bytes);
        self.first.get_or_insert((*key, commit));
        self.last = *key;
        true
    }

    pub(super) fn payload(&self) -> &[u8] {
        &self.payload
    }
}

/// An entry of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunEntry<'a> {
    pub(super) key: EntryKey,
    /// Counted from the commit that the run begins after.
    pub(super) commit: u64,
    pub(super) contents: Contents<'a>,
}

/// The number of entries in a page of a run with this payload; 0 in a page of another kind. For tests of parsers.
///
/// # Errors
/// What is wrong with the page.
#[doc(hidden)]
pub fn entries_of(payload: &[u8]) -> Result<usize, &'static str> {
    let page = RunPage::parse(payload)?;
    let mut builder = PageBuilder::new(page.kind);
    for at in 0..page.entries.len() {
        let RunEntry { key, commit, contents } = page.entry(at).ok_or("an entry is not there")?;
        if !builder.push(&key, commit, &contents) {
            return Err("entries of a page fit a page");
        }
    }
    // Zeros at the end of a key, and shared bytes, may be stored explicitly.
    let again = RunPage::parse(builder.payload());
    let same = |again: RunPage| {
        (0..page.entries.len()).all(|at| {
            let both = (page.entry(at), again.entry(at));
            matches!(both, (Some(one), Some(other))
            if (one.key, one.commit, one.contents) == (other.key, other.commit, other.contents))
        })
    };
    let is_empty = page.entries.is_empty();
    if is_empty || again.is_ok_and(same) { Ok(page.entries.len()) } else { Err("other entries") }
}

/// A page of a run, validated.
pub(super) struct RunPage {
    pub(super) kind: PageKind,
    payload: Box<[u8]>,
    entries: Vec<PlacedEntry>,
}

/// The place of an entry in its page.
struct PlacedEntry {
    key: EntryKey,
    commit: u64,
    form: u16,
    /// Where the value ends.
    end: usize,
}

impl RunPage {
    /// A page without entries.
    pub(super) fn empty() -> Self {
        Self { kind: PageKind::Entries, payload: Box::default(), entries: Vec::new() }
    }

    /// Parses the page with this payload.
    pub(super) fn parse(payload: &[u8]) -> Result<Self, &'static str> {
        let kinds = [PageKind::Entries, PageKind::Index, PageKind::Piece, PageKind::Filter];
        let kind =
            payload.first().and_then(|kind| kinds.into_iter().find(|one| *one as u8 == *kind));
        let kind = kind.ok_or("a page of no kind")?;
        let mut page = Self { kind, payload: payload.into(), entries: Vec::new() };
        if matches!(kind, PageKind::Entries | PageKind::Index) {
            let mut at = 1;
            while at < payload.len() {
                let entry = page.next(at).ok_or("an entry is cut off, or not in order")?;
                at = entry.end;
                page.entries.push(entry);
            }
            if page.entries.is_empty() {
                return Err("a page without entries");
            }
        }
        Ok(page)
    }

    /// The entry at a place behind the last one.
    fn next(&self, at: usize) -> Option<PlacedEntry> {
        let mut left = &self.payload[at..];
        let mut take = |count: usize| {
            let (taken, rest) = left.split_at_checked(count)?;
            left = rest;
            Some(taken)
        };
        let last = self.entries.last();
        let before = last.map_or(EntryKey([0; KEY]), |last| last.key);
        let shared = usize::from(take(1)?[0]);
        let mut key = [0; KEY];
        key.get_mut(..shared)?.copy_from_slice(before.0.get(..shared)?);
        if shared < KEY {
            let rest = usize::from(take(1)?[0]);
            key.get_mut(shared..shared + rest)?.copy_from_slice(take(rest)?);
        }
        let [low, middle, high] = *take(3)?.first_chunk()?;
        let (key, commit) = (EntryKey(key), u64::from(u32::from_le_bytes([low, middle, high, 0])));
        let form = u16::from_le_bytes(*take(2)?.first_chunk()?);
        let bytes = take((form & LENGTH).into())?;
        let fits = match (form >> 14, self.kind) {
            (0, PageKind::Entries) => bytes.is_empty(),
            (1, PageKind::Entries) => bytes.len() <= MOST_INLINE,
            (2, PageKind::Entries) => bytes.len() <= cell_len(MAX_EXTENTS),
            (3, PageKind::Entries) => bytes.len() == 8,
            (form, _) => form == 1 && bytes.len() == 4,
        };
        let follows = last.is_none_or(|last| (last.key, last.commit) < (key, commit));
        let end = self.payload.len() - left.len();
        (fits && follows).then_some(PlacedEntry { key, commit, form, end })
    }

    /// The bytes after the kind, of a page without entries.
    pub(super) fn contents(&self) -> &[u8] {
        &self.payload[1..]
    }

    pub(super) fn entry(&self, at: usize) -> Option<RunEntry<'_>> {
        let &PlacedEntry { key, commit, form, end } = self.entries.get(at)?;
        let bytes = &self.payload[end - usize::from(form & LENGTH)..end];
        let half =
            |at: usize| bytes[at..].first_chunk().map_or(0, |half| u32::from_le_bytes(*half));
        let contents = match form >> 14 {
            0 => Contents::Absent,
            1 => Contents::Inline(bytes),
            2 => Contents::Overflow(bytes),
            _ => Contents::InPieces { page: half(0), bytes: half(4) },
        };
        Some(RunEntry { key, commit, contents })
    }

    /// The place of the first entry that is not less.
    pub(super) fn lower_bound(&self, key: &EntryKey, commit: u64) -> usize {
        self.entries.partition_point(|entry| (&entry.key, entry.commit) < (key, commit))
    }
}
