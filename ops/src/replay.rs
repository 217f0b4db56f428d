//! Making a commit of another database again, for roll forward and change streams, which know its roots.

use pleach::{Access, Db, Roots, SessionOptions};

/// Commits changes and a blob, when `check` accepts the roots that they lead to.
pub(crate) fn commit<E: From<pleach::Error>>(
    db: &Db,
    changes: impl IntoIterator<Item = Access>,
    blob: Vec<u8>,
    check: impl FnOnce(&Roots) -> Result<(), E>,
) -> Result<(), E> {
    let session = db.session(SessionOptions::new().witness(false))?;
    let mut block = session.finish(changes).map_err(pleach::Error::from)?;
    check(block.roots())?;
    block.set_blob(blob)?;
    block.commit().map_err(pleach::Error::from)?;
    Ok(())
}
