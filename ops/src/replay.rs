//! Making a commit of another database again: roll forward and change streams know the roots that it has to lead to.

use pleach::{Access, CommitError, Db, FinishError, Roots, SessionOptions};

/// Commits changes and a blob, when `check` finds the roots right that they lead to.
pub(crate) fn commit<E: From<pleach::Error>>(
    db: &Db,
    changes: impl IntoIterator<Item = Access>,
    blob: Vec<u8>,
    check: impl FnOnce(&Roots) -> Result<(), E>,
) -> Result<(), E> {
    let session = db.session(SessionOptions::new().witness(false))?;
    let mut block = session.finish(changes).map_err(FinishError::into_error)?;
    check(block.roots())?;
    block.set_blob(blob)?;
    block.commit().map_err(CommitError::into_error)?;
    Ok(())
}
