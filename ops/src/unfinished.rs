//! Databases that are filled from elsewhere: by an import, a restore, an upgrade. From its creation until it is whole the
//! folder of such a database has the file `UNFINISHED`, and all other opens refuse it: a node that is started on what an
//! interrupted import has left would go on from an empty state.

use std::path::Path;

use pleach::{Db, Options, Result};
use pleach_io::os::{OsDevice, OsOptions};
use pleach_io::{Disk, OpenMode};
use pleach_journal::format::creation::UNFINISHED;

/// Opens a database to fill it. If this creates it, it is unfinished until [`finish`]: only this function opens it, so
/// that what was cut off can go on, and all others give [`Error::Creation`](pleach::Error::Creation). A database that is
/// whole stays so.
///
/// # Errors
/// Those of [`Db::open`].
pub fn open_unfinished(options: Options) -> Result<Db> {
    Db::open(options.tune(|tuning| tuning.fills = true))
}

/// Makes the database of a folder one like any other, after a [`Db::sync`] or [`Db::close`] of what fills it. One that
/// is whole stays as it is.
///
/// # Errors
/// Those of the device. The database may be unfinished still.
pub fn finish(folder: &Path) -> Result<()> {
    let device: Disk = OsDevice::open(folder, OsOptions::default())?.into();
    match device.remove(UNFINISHED) {
        Err(error) if error.is_not_found() => Ok(()),
        removed => Ok(removed.and_then(|()| device.sync_folder())?),
    }
}

/// Marks a copy that is not right, so that nothing opens it.
pub(crate) fn refuse(device: &Disk) -> Result<()> {
    device.open(UNFINISHED, OpenMode::CreateNew)?;
    Ok(device.sync_folder()?)
}
