//! The files of the commit log: segments, appending, syncing, and reading the log back.
//!
//! * [`segment`]: the files that hold the log, prepared early and recycled;
//! * [`copies`]: copies of segments, for a backup and for a repair;
//! * `writer`: appending, syncing, poison;
//! * `chain`: reading back a part with known ends, and its whole records;
//! * `scan`: reading the log back at an open, and telling a torn end from damage.
//!
//! [`crate::format`] has the formats: [`record`](crate::format::record) the frame,
//! [`commit_body`](crate::format::commit_body) and [`location_body`](crate::format::location_body) the bodies.
//! `docs/format-log.md` has the pictures and the decision table of recovery.
//!
//! Callers: the sequencer reserves positions from [`LogTail`]; one thread at a time owns the [`LogWriter`]; any thread
//! may prepare and retire [`Segments`]; an open calls [`scan::scan`], then, to write, [`WriterStart::confirm`] and
//! [`LogWriter::open`].

mod chain;
pub mod copies;
pub mod error;
mod reader;
mod scan;
pub mod segment;
mod writer;

pub use chain::{
    BrokenChain, log_identity, next_record, read_chain, scan_headers, walk_records,
    walk_whole_records,
};
pub use error::{LogError, ScanError};
pub use reader::segments;
pub use scan::{CutReport, ScanEnd, ScanInput, scan, scan_lenient};
pub use segment::{SegmentOptions, Segments};
pub use writer::{LogTail, LogWriter, WriterStart};
