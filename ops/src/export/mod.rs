//! Export streams: all pairs of a state, independent of the format of the database's files; and change streams: what differs
//! between two commits ([`export_changes`]). docs/export.md has the blocks.
//!
//! ```
//! use pleach::{Access, Db, Options, SessionOptions, Value};
//! use pleach_ops::export;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let db = Db::open(Options::new(folder.path().join("old")).create(true))?;
//! let put = Access::write([7; 32], Some(Value::from(b"seven".as_slice())));
//! db.session(SessionOptions::new())?.finish(vec![put])?.commit()?;
//! // Beside commits, of any state that a session can read.
//! let mut stream = Vec::new();
//! export::export(&db.snapshot()?, &mut stream)?;
//!
//! let other = Db::open(Options::new(folder.path().join("new")).create(true))?;
//! let report = export::import(&other, export::StreamReader::new(&*stream)?, &export::ImportOptions::new())?;
//! assert_eq!((report.pairs, other.root()), (1, db.root()));
//! # Ok(())
//! # }
//! ```

mod apply;
mod blocks;
mod change_head;
mod changes;
mod format;
mod import;
mod reader;
mod records;
mod writer;

use std::io::Write;

use pleach::Session;
use pleach_core::Key;

use crate::error::Result;

pub use crate::error::StreamError;
pub use crate::export::format::{CHANGES_VERSION, VERSION};
pub use apply::{ApplyReport, Trust, apply_changes};
pub use change_head::{ChangeHead, ChangeNamespace};
pub use changes::{ChangeReader, ChangeReport, export_changes, export_proven_changes};
pub use import::{ImportOptions, ImportReport, import};
pub use reader::{StreamHead, StreamNamespace, StreamReader};
pub use writer::ExportReport;

pub(crate) use writer::StreamWriter;

/// Writes all pairs of a session's state to an export stream: of all namespaces, in key order, with roots and blob. Commits go on
/// beside it. Give a buffered writer. The root of each Merkle namespace is computed from the pairs while they are written.
///
/// # Errors
/// [`Stream`](crate::Error::Stream) when it cannot be written;
/// [`Contradiction::Pairs`](pleach::internals::error::Contradiction::Pairs) when the pairs do not lead to the state's root; and those of
/// reading ([`Namespace::iter`](pleach::Namespace::iter)). The stream is not finished then, and no import takes it.
pub fn export(session: &Session, to: impl Write) -> Result<ExportReport> {
    export_with(session, to, |_, _| ())
}

/// The same, and `each` is told the namespace and the key of each pair.
///
/// # Errors
/// As [`export`].
pub fn export_with(
    session: &Session,
    to: impl Write,
    mut each: impl FnMut(u8, &Key),
) -> Result<ExportReport> {
    let (roots, blob) = (session.roots(), session.blob());
    let of = (Some(session.database()), session.commit_number());
    let mut writer = StreamWriter::new(session.hasher(), to, of, blob, roots)?;
    for (namespace, _) in roots.all() {
        writer.begin(namespace);
        for pair in session.namespace(namespace)?.iter(..) {
            let (key, value) = pair?;
            writer.pair(&key, &value)?;
            each(namespace, &key);
        }
        writer.end()?;
    }
    Ok(writer.finish()?)
}
