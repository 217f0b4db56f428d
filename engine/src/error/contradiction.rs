//! What contradicts what in a database whose parts are intact, each for itself.

use pleach_beatree::space::SpaceError;
use pleach_core::page::OverflowError;
use pleach_core::proof::BuildError;
use pleach_core::{Key, Node, Prefix};
use pleach_journal::format::bytes::BodyError;
use pleach_journal::format::image_error::ImageError;
use pleach_journal::format::position::LogPos;

use super::hexadecimal::hex;

/// Intact parts of a database that contradict each other.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Contradiction {
    /// An image contradicts the superblock, or itself.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A page is taken twice, or free twice, or outside its file.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The map of the overflow file does not fit the file, or what records name.
    #[error("the overflow map: {0}")]
    OverflowMap(SpaceError),
    /// A page file is longer than page numbers reach.
    #[error("{file} has {bytes} bytes: more than page numbers reach")]
    FileTooLong {
        /// File name.
        file: &'static str,
        /// Its length.
        bytes: u64,
    },
    /// A leaf page is named by a number that no leaf page has.
    #[error("leaf page {page} is beyond the largest page number")]
    LeafNumber {
        /// The number.
        page: u64,
    },
    /// An upper branch page names a child and no page of it.
    #[error("the branch below {prefix:?} has no page")]
    BranchWithoutPage {
        /// The child.
        prefix: Prefix,
    },
    /// Changes pend in the image on a prefix that no region has.
    #[error("the buffered changes of {prefix:?} belong to no region")]
    BufferedOutsideRegions {
        /// The prefix.
        prefix: Prefix,
    },
    /// The body of a log record has the right checksum, and fields that no writer makes.
    #[error("the log record at {position:#x}: {error}")]
    Record {
        /// Where the record begins.
        position: LogPos,
        /// What is wrong with it.
        error: BodyError,
    },
    /// A commit record has an overflow cell that is none.
    #[error("an overflow cell of commit {commit} in the log: {error}")]
    OverflowCell {
        /// The commit.
        commit: u64,
        /// What is wrong with the cell.
        error: OverflowError,
    },
    /// The log skips or repeats a commit.
    #[error("commit {found} follows commit {before}")]
    CommitOrder {
        /// The commit before.
        before: u64,
        /// The commit of the next record.
        found: u64,
    },
    /// The commits since a past one do not lead back to its root.
    #[error(
        "commit {commit} had root {}, what was kept of it leads to {}",
        hex(expected),
        hex(found)
    )]
    RollbackRoot {
        /// The commit.
        commit: u64,
        /// Its root.
        expected: Node,
        /// The root of what was kept.
        found: Node,
    },
    /// A backup was verified, and is not the state that was backed up.
    #[error(
        "the backup is wrong: {what}; remove it, and run `pleach check` on the database when it is closed"
    )]
    Backup {
        /// What is wrong with it.
        what: String,
    },
    /// A salvage has read everything twice, and other pages could be read the second time.
    #[error(
        "{first} pages could not be used when they were read first, and {second} the second time: the device errs now and then; \
         try it again"
    )]
    ReadsDiffer {
        /// Pages that could not be used the first time.
        first: usize,
        /// And the second time.
        second: usize,
    },
    /// A roll forward was begun on another state, or leads to another one.
    #[error(
        "commit {commit} of the damaged database has another root of namespace {namespace}: give the number of the commit \
         whose state the database has"
    )]
    OtherState {
        /// The commit.
        commit: u64,
        /// The namespace.
        namespace: u8,
    },
    /// A commit that is to be made again has brought back a dropped namespace, and the database does not have it.
    #[error(
        "commit {commit} of the damaged database is a rollback to a state with a dropped namespace, which is not in the \
         history here: begin with a later backup, or open this one with a longer history (option `history`)"
    )]
    Restored {
        /// The commit.
        commit: u64,
    },
    /// A commit record makes something of a namespace that is not there as it says.
    #[error("the record of commit {commit} does not fit namespace {namespace} before it")]
    NamespaceEntry {
        /// The commit.
        commit: u64,
        /// The namespace.
        namespace: u8,
    },
    /// A log record is about a namespace that has no trie.
    #[error("the log record at {position:#x} is about namespace {namespace}, which has no trie")]
    NoTrie {
        /// Where the record begins.
        position: LogPos,
        /// The namespace.
        namespace: u8,
    },
    /// A commit record's digest of a plain namespace is not that of its changes.
    #[error("commit {commit} has another digest of namespace {namespace} than its changes make")]
    Digest {
        /// The commit.
        commit: u64,
        /// The namespace.
        namespace: u8,
    },
    /// A commit record was made on another root than the state before it has.
    #[error("commit {commit} was made on another root")]
    CommitRoot {
        /// The commit.
        commit: u64,
    },
    /// The pairs of a range, or what changed in it, are not what the proofs of its keys say.
    #[error("a proof of a range does not fit together: {0}")]
    Proof(BuildError),
    /// The nodes in memory lead to another root than a state's: a block or a proof on it would be wrong. What is stored
    /// may be right: opening the database again reads all nodes anew.
    #[error(
        "the nodes in memory lead to {}, not to the root {} of the state: close the database and open it again",
        found.map_or("no root".into(), |found| hex(found.to_bytes())), hex(expected.to_bytes())
    )]
    NodesInMemory {
        /// The root of the state.
        expected: Node,
        /// The root that was found; `None` when the nodes fit no trie.
        found: Option<Node>,
    },
    /// A commit record has a node of a prefix that no page has.
    #[error("commit {commit} has a node of {prefix:?}, which is the prefix of no page")]
    NodeWithoutPage {
        /// The commit.
        commit: u64,
        /// The prefix.
        prefix: Prefix,
    },
    /// A location record moves pages of two regions as if they were one's.
    #[error("the location record at {position:#x} reaches over a region")]
    RelocationOverRegion {
        /// Where the record begins.
        position: LogPos,
    },
    /// A location record replaces a part of a page, or gives a region more pages than it can have.
    #[error("the location record at {position:#x} does not fit the pages below {prefix:?}")]
    RelocationOfOtherPages {
        /// Where the record begins.
        position: LogPos,
        /// The range that it replaces.
        prefix: Prefix,
    },
    /// A location record joins regions that are not there, or one of which has it applied and the other not.
    #[error(
        "the location record at {position:#x} joins regions below {prefix:?} that are not two halves"
    )]
    JoinedRegions {
        /// Where the record begins.
        position: LogPos,
        /// The prefix of both.
        prefix: Prefix,
    },
    /// Neither the nodes of a namespace nor its pairs lead to the root that the newest commit has recorded.
    #[error(
        "commit {commit} has recorded the root {} of namespace {namespace}, but its pairs give {}: if that is the root that \
         the chain has at this block, it can be accepted (`accept_root` in `docs/operating.md`)",
        hex(expected.to_bytes()), hex(found.to_bytes())
    )]
    Root {
        /// The commit.
        commit: u64,
        /// The namespace.
        namespace: u8,
        /// The root that was recorded.
        expected: Node,
        /// The root of the pairs.
        found: Node,
    },
    /// The pairs of a namespace, as they were read, do not lead to the root of their state.
    #[error(
        "the pairs of namespace {namespace} at commit {commit} give the root {}, not {}: run `pleach check` on the closed \
         database",
        hex(found.to_bytes()), hex(expected.to_bytes())
    )]
    Pairs {
        /// The commit.
        commit: u64,
        /// The namespace.
        namespace: u8,
        /// The root of the state.
        expected: Node,
        /// The root of the pairs.
        found: Node,
    },
    /// A key is not behind the one before it, as it should be.
    #[error(
        "the key {} is not behind the one before it: run `pleach check` on the closed database",
        hex(key)
    )]
    KeyOrder {
        /// The key.
        key: Key,
    },
    /// Pages, and what pends on them, do not fold to the node that the index has.
    #[error("the pairs below {prefix:?} do not fold to the node in the index")]
    Fold {
        /// The prefix of the node.
        prefix: Prefix,
    },
    /// A page of nodes belongs to another region than the one that names it.
    #[error("page {page} of {file} belongs to another region")]
    OtherRegion {
        /// File name.
        file: &'static str,
        /// Page number.
        page: u64,
    },
    /// The nodes of a region left memory each time they were brought back.
    #[error("the nodes over {} were evicted each time before they could be used", hex(key))]
    NodesEvicted {
        /// A key of the region.
        key: Key,
    },
    /// A region changed each time its nodes were folded.
    #[error("{prefix:?} kept changing while it was hashed")]
    RegionKeepsChanging {
        /// The region.
        prefix: Prefix,
    },
    /// Regions were merged, which nobody does.
    #[error("regions were merged while a batch was folded over them")]
    RegionsMerged,
    /// The changes of a chain of overlays, merged, do not lead to its root.
    #[error(
        "an overlay's root is not the root of its merged changes: {}, not {}",
        hex(found.to_bytes()), hex(expected.to_bytes())
    )]
    OverlayRoot {
        /// Root of the overlay.
        expected: Node,
        /// Root of the merged changes.
        found: Node,
    },
    /// A page of the overflow file belongs to another value.
    #[error("page {page} of {file} belongs to another value")]
    OtherValue {
        /// File name.
        file: &'static str,
        /// Page number.
        page: u64,
    },
    /// A page of a run of the history is another run's, or has what no writer makes.
    #[error("page {page} of {file}, of a run of the history: {what}")]
    HistoryRun {
        /// File name.
        file: &'static str,
        /// Page number.
        page: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A long value does not have the hash that its cell names.
    #[error("a long value does not have the hash that its cell names: page {page} of {file}")]
    ValueHash {
        /// File name.
        file: &'static str,
        /// The value's first page.
        page: u64,
    },
    /// A long value is longer than this machine can hold.
    #[error("a value of {bytes} bytes")]
    ValueLength {
        /// Its length, as its cell says.
        bytes: u64,
    },
    /// The runs of a long value do not fit a cell.
    #[error("a long value's extents cannot be named: {0}")]
    ValueRuns(OverflowError),
}
