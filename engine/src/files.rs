//! The files of a database, by name.

use pleach_io::{Device, OpenMode};

use crate::checkpoint::image::image_name;
use crate::error::{Error, Result};
use crate::log::segment;
use crate::node_cache::SPILL_FILE;
use crate::shared::{LEAF_FILE, OVERFLOW_FILE};
use crate::superblock::ImageFile;
use crate::{incarnation, notice, superblock};

/// Without these there is no database. Beside them: the log's segments, and one image.
pub(crate) const REQUIRED: [&str; 4] =
    [superblock::FILE, incarnation::FILE, LEAF_FILE, OVERFLOW_FILE];

/// The two images, of which the one in use must be there.
pub(crate) const IMAGES: [&str; 2] = [image_name(ImageFile::A), image_name(ImageFile::B)];

/// The spares that copies go into. A missing one is made anew when there is room.
pub(crate) const SPARES: [&str; 3] =
    [superblock::SPARE.name, incarnation::SPARE.name, segment::SPARE_NAME];

/// May a database of ours have a file of this name in its folder?
pub(crate) fn is_ours(name: &str) -> bool {
    REQUIRED.contains(&name)
        || IMAGES.contains(&name)
        || SPARES.contains(&name)
        || [SPILL_FILE, notice::FILE].contains(&name)
        || name == segment::TEMPORARY
        || segment::parse_name(name).is_some()
}

/// Opens every file of the database that is there, as `mode` says, and finds those that must be there.
/// So wrong rights show before anything is written. Writes nothing.
pub(crate) fn open_all<D: Device>(device: &D, mode: OpenMode) -> Result<()> {
    let names = device.list()?;
    if let Some(file) = REQUIRED.into_iter().find(|file| !names.iter().any(|name| name == file)) {
        return Err(Error::MissingFile { file: file.to_owned() });
    }
    for name in names.iter().filter(|name| is_ours(name)) {
        device.open(name, mode)?;
    }
    Ok(())
}

/// Makes the files that are missing and hold nothing: the image that is not in use, the spill file, the
/// notice.
pub(crate) fn make_missing<D: Device>(device: &D) -> Result<()> {
    let names = device.list()?;
    for file in IMAGES.into_iter().chain([SPILL_FILE]) {
        if !names.iter().any(|name| name == file) {
            device.open(file, OpenMode::CreateNew)?;
        }
    }
    if !names.iter().any(|name| name == notice::FILE)
        && let Err(error) = notice::create(device)
    {
        tracing::warn!(%error, "the database cannot tell what is the matter through its folder");
    }
    Ok(())
}
