//! The page tree of Pleach: leaf pages and lowest branch pages, in memory and on the device, with the index over them,
//! their cache, and who owns which page of a file. It orders nothing: durability is the engine's.
//!
//! # What there is
//!
//! ```text
//!   Tree               what a caller holds: the regions, pages due for a flush, and the store of all pages
//!   RegionIndex        all regions in key order; replaced as a whole
//!     Region           one lowest branch page in memory, behind a lock:
//!       ChildTable       prefix, page number and tag of each leaf page
//!       nodes            the Merkle node of each child, and the lines above them while there is room
//!       buffered changes: committed and in the log, not in a page yet
//!         CachedPage   a leaf page in memory, with its own treelet
//! ```
//!
//! * A **leaf page** ([`page_plan`]) holds the pairs of all keys below one prefix. The prefixes of all
//!   leaf pages tile the key space; a prefix without pairs needs no page. Pages are never changed in
//!   place: a flush writes new ones, under other page numbers ([`PageNo`]).
//! * A **region** ([`region`]) is a lowest branch page in memory: fewer than a hundred neighbouring leaf pages. Its
//!   **child table** ([`children`]) has the prefix, the page number and the tag of each, so that an older page of the
//!   same number is never taken for it.
//! * **Buffered changes** stay in the region until a flush writes them into pages. A read looks there first, and a node
//!   of the region is that of its page with all of them.
//! * A **treelet** ([`treelet`]) has the known nodes inside a page as of one commit. It saves a fold
//!   ([`leaf_fold`]) most of its hashing.
//! * The **index** ([`index`]) finds the region of a key. Regions that grow too large are split
//!   ([`split_regions`]), which makes a new list of them.
//! * The **space** ([`space`]) allocates pages of the leaf file and extents of the overflow file, and knows when retired
//!   ones are free.
//! * A **grace period** ([`grace`]) is over when no reader is left who could have looked a page up before it was
//!   replaced.
//! * The **pages** of the files ([`pages`]) are read, checked, kept and quarantined by a store.
//! * The **cache** ([`cache`]) keeps leaf pages within a budget of bytes; memory that is needed again and again comes
//!   from a pool ([`recycle`]).
//! * A whole tree is built from unsorted pairs by [`load`].
//!
//! # How a key is found
//!
//! 1. [`RegionIndex::region`] gives the region that covers the key.
//! 2. Under its lock, [`RegionState::buffered_change`] gives the newest committed change, if a page does not
//!    have it yet: that is the answer.
//! 3. Else [`ChildTable::find`] gives the leaf page's number and tag.
//! 4. [`cache::Cache::get`] gives the page. On a miss [`pages::Store::page`] reads it, inside of a
//!    [`grace::GraceGuard`] that was taken before step 1, so that nobody writes over it meanwhile.
//! 5. [`cache::CachedPage::get`] gives the value.
//!
//! ```
//! use std::sync::Arc;
//!
//! use pleach_beatree::page_plan::{CellRef, PageCells, PageStamp, fold_pages, write_page};
//! use pleach_beatree::cache::{Cache, NO_BATCH};
//! use pleach_beatree::grace::Grace;
//! use pleach_beatree::load::{BuiltLeaf, regions};
//! use pleach_beatree::{ChildRef, PageNo, RegionIndex};
//! use pleach_core::Hasher;
//! use pleach_core::fold::Folder;
//! use pleach_core::page::leaf::Cell;
//! use pleach_core::page::{FileKind, Identity, PAGE_SIZE};
//! use pleach_core::prefix::Prefix;
//!
//! // A tree of one leaf page with one pair.
//! let key = [7; 32];
//! let cells = [CellRef { key, bytes: b"seven", overflow: false }];
//! let whole = PageCells { prefix: Prefix::ROOT, cells: &cells, known: None };
//! let nodes = fold_pages(&mut Folder::new(Hasher::BLAKE3), &[whole]).remove(0);
//! let number = PageNo::new(0);
//! let identity = Identity { kind: FileKind::Leaf, page_no: number.into(), db_id: 1 };
//! let stamp = PageStamp { identity, flush: 1, namespace: 0, last_commit: 1 };
//! let mut page = [0; PAGE_SIZE];
//! let tag = write_page(&mut page, &stamp, &Prefix::ROOT, &cells, &nodes.stored);
//!
//! let child = ChildRef { prefix: Prefix::ROOT, page: Some(number), tag };
//! let (regions, root) = regions(Hasher::BLAKE3, 0, false, &[BuiltLeaf { child, node: nodes.own }], 1);
//! assert_eq!(root, nodes.own);
//! let index = RegionIndex::new(regions);
//! let cache = Cache::new(1 << 20);
//! cache.insert(number, tag, &page, NO_BATCH);
//!
//! // The five steps.
//! let grace = Grace::new();
//! let _guard = grace.enter();
//! let region = Arc::clone(index.region(&key));
//! let (number, tag) = {
//!     let state = region.read();
//!     assert!(state.buffered_change(&key).is_none(), "it is in the page");
//!     let child = state.children().find(&key);
//!     (state.children().page(child).expect("it has a page"), state.children().tag(child))
//! };
//! let page = cache.get(number, tag).expect("inserted before");
//! assert!(matches!(page.get(&key), Some(Cell::Inline(b"seven"))));
//! ```

#![warn(missing_debug_implementations)]

pub mod cache;
pub mod children;
pub mod error;
pub mod files;
pub mod grace;
pub mod index;
pub mod leaf_fold;
pub mod load;
pub mod lock_order;
pub mod page_no;
pub mod page_plan;
pub mod pages;
pub mod recycle;
pub mod region;
pub mod space;
pub mod split_regions;
pub mod stored;
pub mod tree;
pub mod treelet;
pub mod value;

pub use children::{ChildRef, ChildTable};
pub use error::{Error, Result};
pub use index::RegionIndex;
pub use page_no::{PageNo, PageRef};
pub use region::{Region, RegionState};
pub use stored::Stored;
pub use tree::Tree;
pub use value::Value;
