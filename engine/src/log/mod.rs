//! The commit log: records of commits and flushes, in the order of their publication.
//!
//! * [`record`]: the frame of a record; [`commit`] and [`location`]: the bodies;
//! * [`segment`]: the files that hold the log, prepared ahead and recycled;
//! * [`writer`]: appending, syncing, poison;
//! * [`mod@scan`]: reading the log back at an open, and telling a torn end from damage.
//!
//! A *position* is a byte's place in the log since the database was created; it is never used
//! twice for another durable byte. `docs/format-log.md` has the pictures and the decision table
//! of recovery.
//!
//! Who calls what: the sequencer reserves positions from [`Tail`]; one thread at a time owns the
//! [`LogWriter`]; any thread may prepare and retire [`Segments`]; an open calls [`scan::scan`],
//! then, to write, [`LogWriter::open`].

pub mod commit;
pub mod error;
pub(crate) mod layout;
pub mod location;
mod reader;
pub mod record;
pub mod scan;
pub mod segment;
pub mod writer;

pub use commit::{
    ChangeSection, CommitView, MAX_BLOB, NamespacePart, NodeSection, Value as LogValue,
    commit_record,
};
pub use error::{BodyError, LogError, ScanError};
pub use location::{Cut as LocationCut, LocationEncoder, LocationView, NewPage, Run as LogRun};
pub use record::{Header, Kind, MAX_RECORD, RecordBuf, RecordView};
pub use scan::{CutReport, ScanEnd, ScanInput, scan};
pub use segment::{SegmentOptions, SegmentStats, Segments};
pub use writer::{LogWriter, Tail, WriterStart};

/// Every batch of records starts at a multiple of this, so that a write never touches a block
/// that holds durable bytes.
pub const BLOCK: u64 = pleach_io::PAGE as u64;

/// A place in the log: where a record ended, and its checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// The end of a record, rounded up to 8 bytes; 0 before the first.
    pub position: u64,
    /// That record's checksum; 0 before the first.
    pub checksum: u64,
}
