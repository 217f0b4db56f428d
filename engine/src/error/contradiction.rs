//! Contradictions between parts of a database that are intact each for itself.

use pleach_beatree::Error as TreeError;
use pleach_beatree::space::SpaceError;
use pleach_core::hexadecimal::hex;
use pleach_core::page::OverflowError;
use pleach_core::proof::BuildError;
use pleach_core::{Key, Node, Prefix};
use pleach_journal::format::bytes::BodyError;
use pleach_journal::format::position::LogPos;

/// Intact parts of a database that contradict each other.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Contradiction {
    /// A tree contradicts itself: its pages, its image, the space of its files, or a long value.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The map of the overflow file does not fit the file, or the runs that records name.
    #[error("the overflow map: {0}")]
    OverflowMap(SpaceError),
    /// An upper branch page names a child without a page.
    #[error("the branch below {prefix:?} has no page")]
    BranchWithoutPage {
        /// The child's prefix.
        prefix: Prefix,
    },
    /// The body of a log record has the right checksum, and fields that no writer makes.
    #[error("the log record at {position:#x}: {error}")]
    Record {
        /// Where the record begins.
        position: LogPos,
        /// What is wrong with the record.
        error: BodyError,
    },
    /// An overflow cell in a commit record is invalid.
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
        /// The number of the commit before.
        before: u64,
        /// The number of the next record's commit.
        found: u64,
    },
    /// The commits since a past commit do not lead back to its root.
    #[error(
        "commit {commit} had root {}, what was kept of it leads to {}",
        hex(expected),
        hex(found)
    )]
    RollbackRoot {
        /// The commit.
        commit: u64,
        /// The commit's root.
        expected: Node,
        /// The root that undo leads to.
        found: Node,
    },
    /// A verified backup does not have the state that was backed up.
    #[error(
        "the backup is wrong: {what}; remove it, and run `pleach check` on the database when it is closed"
    )]
    Backup {
        /// What is wrong with the backup.
        what: String,
    },
    /// A salvage has read everything twice, and found other pages readable the second time.
    #[error(
        "{first} pages could not be used when they were read first, and {second} the second time: the device errs now and then; \
         try it again"
    )]
    ReadsDiffer {
        /// Pages that could not be used the first time.
        first: usize,
        /// Pages that could not be used the second time.
        second: usize,
    },
    /// A roll forward started from another state, or leads to another one.
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
    /// A commit that is to be made again restores a dropped namespace, which the database does not have.
    #[error(
        "commit {commit} of the damaged database is a rollback to a state with a dropped namespace, which is not in the \
         history here: begin with a later backup, or open this one with a longer history (option `history`)"
    )]
    Restored {
        /// The commit.
        commit: u64,
    },
    /// A commit record does not fit the state before it, or itself.
    #[error("the record of commit {commit}, namespace {namespace}: {what}")]
    Commit {
        /// The commit.
        commit: u64,
        /// The namespace.
        namespace: u8,
        /// What is wrong with the record.
        what: &'static str,
    },
    /// A commit record was made on another root than that of the state before it.
    #[error("commit {commit} was made on another root")]
    CommitRoot {
        /// The commit.
        commit: u64,
    },
    /// A log record is about a namespace that has no trie.
    #[error("the log record at {position:#x} is about namespace {namespace}, which has no trie")]
    NoTrie {
        /// Where the record begins.
        position: LogPos,
        /// The namespace.
        namespace: u8,
    },
    /// A location record does not fit the pages and regions that it is about.
    #[error("the location record at {position:#x} {what}: {prefix:?}")]
    Location {
        /// Where the record begins.
        position: LogPos,
        /// The prefix of a range that the record is about.
        prefix: Prefix,
        /// What is wrong with the record.
        what: &'static str,
    },
    /// The pairs or changes of a range do not fit the proofs of its keys.
    #[error("a proof of a range does not fit together: {0}")]
    Proof(BuildError),
    /// The nodes in memory lead to another root than a state's: a block or a proof on it would be wrong. The stored
    /// nodes may be right: opening the database again reads all nodes anew.
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
    /// A commit record has a node for a prefix that no page has.
    #[error("commit {commit} has a node of {prefix:?}, which is the prefix of no page")]
    NodeWithoutPage {
        /// The commit.
        commit: u64,
        /// The prefix.
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
    /// The pairs of a namespace, as they were read, do not have the root of their state.
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
    /// The merged changes of a chain of overlays do not lead to its root.
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
}
