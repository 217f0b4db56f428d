//! The files of the commit log: segments, appending, syncing, and reading the log back.
//!
//! * [`segment`]: the files that hold the log, prepared early and recycled;
//! * [`copies`]: segments that are made from others, for a backup and for a repair;
//! * [`writer`]: appending, syncing, poison;
//! * [`mod@chain`]: reading a part back that is known from end to end, and what is whole of it;
//! * [`mod@scan`]: reading the log back at an open, and telling a torn end from damage.
//!
//! What a record looks like is in [`crate::format`]: [`record`](crate::format::record) has the frame,
//! [`commit_body`](crate::format::commit_body) and [`location_body`](crate::format::location_body) the
//! bodies. `docs/format-log.md` has the pictures and the decision table of recovery.
//!
//! Who calls what: the sequencer reserves positions from [`Tail`]; one thread at a time owns the
//! [`LogWriter`]; any thread may prepare and retire [`Segments`]; an open calls [`scan::scan`],
//! then, to write, [`LogWriter::open`].

mod chain;
pub mod copies;
pub(crate) mod error;
mod reader;
pub(crate) mod scan;
pub(crate) mod segment;
pub(crate) mod writer;

pub(crate) use chain::chain;
pub(crate) use chain::{Broken, next_record, walk};
pub use chain::{headers, identity, whole_records};
pub(crate) use error::{LogError, ScanError};
pub use reader::segments;
pub(crate) use scan::scan_whole;
pub(crate) use scan::{CutReport, ScanEnd, ScanInput, scan};
pub(crate) use segment::{SegmentOptions, Segments};
pub(crate) use writer::{LogWriter, Tail, WriterStart};
