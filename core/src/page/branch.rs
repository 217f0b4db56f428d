//! Branch page: consecutive children, with the page that holds each of them and the node that
//! stands for it in the trie.
//!
//! ```text
//! 0        36    82        + 43 count     4096
//! | common | cut | entries | zeros           |
//!
//! entry   0       1             6     10     42      43
//!         | depth | page number | tag | node | flags |
//! ```
//!
//! * *cut* (`prefix_header.rs`): its level byte is 1 when the children are leaf pages, 2 when they are branch pages of
//!   level 1, and so on; the page contains everything up to its log position.
//! * *depth* is the length of the child's prefix. The prefix's bits are not stored: children tile the page's prefix
//!   without gap or overlap, in order, so each starts where the one before it ends.
//! * *page number* and *tag* say which page the child is; flag bit 0 says that it has none (an
//!   empty prefix), and both are zero. *node* is the child's node with all committed changes,
//!   whatever its page contains, so a child without a page may have one.
//!
//! ```
//! use pleach_core::page::{BranchBuilder, BranchHeader, BranchView, BranchEntry, FileKind, Identity};
//! use pleach_core::page::{PAGE_SIZE, PageError};
//! use pleach_core::{Prefix, TERMINATOR};
//!
//! let identity = Identity { kind: FileKind::Image, page_no: 0, db_id: 0xdb };
//! let (prefix, level) = (Prefix::ROOT, 1);
//! let header = BranchHeader { identity, flush: 1, namespace: 0, prefix, level, log_pos: 64 };
//! let mut page = [0; PAGE_SIZE];
//! let mut builder = BranchBuilder::new(&mut page, &header);
//! for page_no in [Some(9), None] {
//!     builder.push(&BranchEntry { depth: 1, page_no, tag: 0, node: TERMINATOR });
//! }
//! builder.seal();
//!
//! let view = BranchView::parse(&page, &identity)?;
//! let prefixes: Vec<Prefix> = view.iter().map(|(prefix, _)| prefix).collect();
//! assert_eq!(prefixes, [Prefix::ROOT.child(false), Prefix::ROOT.child(true)]);
//! # Ok::<(), PageError>(())
//! ```

use crate::node::{Key, Node};
use crate::page::error::PageError;
use crate::page::header::{self, Identity, array_at, put, u32_at, u40_at};
use crate::page::kinds::PageType;
use crate::page::prefix_header::{self, PrefixHeader};
use crate::page::{MAX_PAGE_NO, MAX_PREFIX_LEN, PAGE_SIZE, Page};
use crate::prefix::Prefix;

const ENTRIES: usize = prefix_header::END;

const DEPTH: usize = 0;
const PAGE_NO: usize = DEPTH + 1;
const TAG: usize = PAGE_NO + 5;
const NODE: usize = TAG + 4;
const FLAGS: usize = NODE + 32;
const ENTRY_SIZE: usize = FLAGS + 1;

/// In the flags of an entry: the child has no page.
const NO_PAGE: u8 = 1;

/// Maximum number of children of a branch page.
pub const MAX_ENTRIES: usize = (PAGE_SIZE - ENTRIES) / ENTRY_SIZE;

const _: () = assert!(ENTRY_SIZE == 43, "an entry is 43 bytes");
const _: () = assert!(MAX_ENTRIES == 93, "a branch page has room for 93 children");
const _: () = assert!(MAX_PREFIX_LEN as u64 == u8::MAX as u64, "a depth is one byte");

/// A child in a branch page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchEntry {
    /// Length of the child's prefix, 0 to 255.
    pub depth: u16,
    /// Number of the child's page in its file; `None` for a child without a page.
    pub page_no: Option<u64>,
    /// Tag of that page; 0 without one.
    pub tag: u32,
    /// The child's node with all committed changes.
    pub node: Node,
}

/// Moves over children from left to right.
#[derive(Clone, Copy, Debug)]
struct PrefixWalk {
    prefix: Prefix,
    /// The first key of the next child; `None` at the end.
    next: Option<Key>,
}

impl PrefixWalk {
    fn new(prefix: &Prefix) -> Self {
        Self { prefix: *prefix, next: Some(*prefix.first_key()) }
    }

    /// Moves past a child of this depth, if one fits here. A child that starts inside the prefix and is at least as
    /// deep cannot end beyond it.
    #[inline]
    fn advance(&mut self, depth: u16) -> Option<Prefix> {
        let fits = (self.prefix.len()..=MAX_PREFIX_LEN).contains(&depth);
        let child = Prefix::from_raw(self.next?, depth).filter(|_| fits)?;
        let next = child.next().map(|next| *next.first_key());
        self.next = next.filter(|key| self.prefix.covers(key));
        Some(child)
    }
}

/// A branch page, parsed.
#[derive(Clone, Copy, Debug)]
pub struct BranchView<'a> {
    page: &'a Page,
    entries: &'a [[u8; ENTRY_SIZE]],
}

impl<'a> BranchView<'a> {
    /// Validates a page in full.
    pub fn parse(page: &'a Page, identity: &Identity) -> Result<Self, PageError> {
        header::check_typed(page, identity, PageType::Branch)?;
        let cut = PrefixHeader::parse(page)?;
        if cut.level == 0 {
            return Err(PageError::Level { level: cut.level });
        }
        let count = usize::from(cut.count);
        if count == 0 || count > MAX_ENTRIES {
            return Err(PageError::Count { count: cut.count });
        }
        let view = Self::from_trusted(page);
        let mut walk = PrefixWalk::new(&cut.prefix);
        for (entry, bytes) in view.entries.iter().enumerate() {
            let flags = bytes[FLAGS];
            if flags & !NO_PAGE != 0 || (flags != 0 && bytes[PAGE_NO..NODE] != [0; NODE - PAGE_NO])
            {
                return Err(PageError::Entry { entry });
            }
            let Some(_) = walk.advance(bytes[DEPTH].into()) else {
                return Err(PageError::Tiling { entry });
            };
        }
        if walk.next.is_some() {
            return Err(PageError::Tiling { entry: count });
        }
        header::check_unused(page, ENTRIES + count * ENTRY_SIZE)?;
        Ok(view)
    }

    /// A view of a page that [`Self::parse`] accepted before, or that a [`BranchBuilder`] sealed.
    ///
    /// On other bytes this may panic, and the view may give nonsense; nothing reads outside the page.
    #[inline]
    pub fn from_trusted(page: &'a Page) -> Self {
        let end = ENTRIES + usize::from(prefix_header::count(page)) * ENTRY_SIZE;
        Self { page, entries: page[ENTRIES..end].as_chunks().0 }
    }

    /// The prefix that the children tile.
    #[inline]
    pub fn prefix(&self) -> Prefix {
        prefix_header::prefix(self.page)
    }

    /// 1 when the children are leaf pages, 2 when they are branch pages of level 1, and so on.
    #[inline]
    pub fn level(&self) -> u8 {
        self.page[prefix_header::LEVEL]
    }

    /// The log position up to which the page contains everything.
    #[inline]
    pub fn log_pos(&self) -> u64 {
        prefix_header::as_of(self.page)
    }

    /// The checkpoint that wrote this page.
    #[inline]
    pub fn flush(&self) -> u64 {
        header::flush(self.page)
    }

    /// The namespace that this page belongs to.
    #[inline]
    pub fn namespace(&self) -> u8 {
        header::namespace(self.page)
    }

    /// Number of children, at least one.
    #[inline]
    pub fn child_count(&self) -> usize {
        self.entries.len()
    }

    /// All children with their prefixes, from left to right.
    pub fn iter(&self) -> impl Iterator<Item = (Prefix, BranchEntry)> + use<'a> {
        let mut walk = PrefixWalk::new(&self.prefix());
        self.entries.iter().map(move |bytes| {
            let entry = decode(bytes);
            (walk.advance(entry.depth).expect("children tile the prefix"), entry)
        })
    }
}

#[inline]
fn decode(bytes: &[u8; ENTRY_SIZE]) -> BranchEntry {
    BranchEntry {
        depth: u16::from(bytes[DEPTH]),
        page_no: (bytes[FLAGS] & NO_PAGE == 0).then(|| u40_at(bytes, PAGE_NO)),
        tag: u32_at(bytes, TAG),
        node: Node::new(array_at(bytes, NODE)),
    }
}

/// The header fields of a branch page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchHeader {
    /// File, page number and database of the page.
    pub identity: Identity,
    /// The checkpoint that writes it.
    pub flush: u64,
    /// The page's namespace.
    pub namespace: u8,
    /// The prefix that the children tile, at most 255 bits long.
    pub prefix: Prefix,
    /// 1 when the children are leaf pages; never 0.
    pub level: u8,
    /// The page contains everything up to this log position.
    pub log_pos: u64,
}

/// Fills a branch page from left to right.
///
/// Misuse panics before it can reach a disk: children are pushed in order and tile the prefix.
#[derive(Debug)]
pub struct BranchBuilder<'p> {
    page: &'p mut Page,
    header: BranchHeader,
    walk: PrefixWalk,
    pushed: u16,
}

impl<'p> BranchBuilder<'p> {
    /// Starts a page, overwriting `page`.
    ///
    /// # Panics
    /// When the prefix is longer than 255 bits, the level is 0, or the page number has more than 40 bits.
    pub fn new(page: &'p mut Page, header: &BranchHeader) -> Self {
        assert!(header.level > 0, "leaf pages are level 0");
        assert!(header.prefix.len() <= MAX_PREFIX_LEN, "pages are cut at 255 bits at most");
        header::write_header(
            page,
            &header.identity,
            PageType::Branch,
            header.flush,
            header.namespace,
        );
        Self { page, header: *header, walk: PrefixWalk::new(&header.prefix), pushed: 0 }
    }

    /// Adds the next child and returns its prefix.
    ///
    /// # Panics
    /// When the page is full, the child does not fit after the one before it, its page number has
    /// more than 40 bits, or it has a tag without a page.
    pub fn push(&mut self, entry: &BranchEntry) -> Prefix {
        let index = usize::from(self.pushed);
        assert!(index < MAX_ENTRIES, "the page is full");
        let prefix = self.walk.advance(entry.depth).expect("children tile the prefix");
        let page_no = entry.page_no.unwrap_or(0);
        assert!(page_no <= MAX_PAGE_NO, "page numbers have 40 bits");
        assert!(entry.page_no.is_some() || entry.tag == 0, "no page, no tag");

        let bytes = &mut self.page[ENTRIES + index * ENTRY_SIZE..][..ENTRY_SIZE];
        #[expect(clippy::cast_possible_truncation, reason = "the walk takes 255 at most")]
        let depth = entry.depth as u8;
        bytes[DEPTH] = depth;
        put(bytes, PAGE_NO, &page_no.to_le_bytes()[..5]);
        put(bytes, TAG, &entry.tag.to_le_bytes());
        put(bytes, NODE, entry.node.as_bytes());
        bytes[FLAGS] = if entry.page_no.is_none() { NO_PAGE } else { 0 };
        self.pushed += 1;
        prefix
    }

    /// Finishes the page and returns its tag.
    ///
    /// # Panics
    /// When children are missing.
    pub fn seal(self) -> u32 {
        assert!(self.walk.next.is_none(), "children tile the prefix to its end");
        PrefixHeader {
            level: self.header.level,
            prefix: self.header.prefix,
            as_of: self.header.log_pos,
            count: self.pushed,
        }
        .write(self.page);
        header::seal(self.page)
    }
}
