//! The files of a database, by name. No other module has a name; this one decides which files must exist, and which may
//! be removed as ours.

pub use pleach_beatree::files::{LEAF_FILE, OVERFLOW_FILE};

/// Superblocks.
pub const SUPERBLOCK: &str = "super";
/// Spare for a copy of the superblocks.
pub(crate) const SUPERBLOCK_SPARE: &str = "super.spare";
/// Count of the writable opens.
pub(crate) const INCARNATION: &str = "incarnation";
/// Spare for a copy of the incarnation.
pub(crate) const INCARNATION_SPARE: &str = "incarnation.spare";
/// Pairs of a bulk load that did not fit into its memory.
pub const LOAD_SPILL_FILE: &str = "load-spill";
/// Marker of an unfinished creation.
pub const MARKER: &str = "CREATING";
/// Temporary name of the marker while it is written.
pub(crate) const MARKER_TEMPORARY: &str = "CREATING.new";
/// Marks a database that is being filled: no open takes it, before it is whole, but those of what fills it.
pub const UNFINISHED: &str = "UNFINISHED";
/// The lock, which the device makes before the folder is read.
pub const LOCK: &str = "LOCK";
/// Temporary name of a log segment that is being prepared.
pub const SEGMENT_TEMPORARY: &str = "log.new";
/// Spare for copies of log segments.
pub const SEGMENT_SPARE: &str = "log.spare";
/// A log segment's name begins with this.
const SEGMENT_PREFIX: &str = "log-";

/// Without these there is no database. The log's segments and one image must exist, too.
pub const REQUIRED: [&str; 4] = [SUPERBLOCK, INCARNATION, LEAF_FILE, OVERFLOW_FILE];

/// The two images, of which the one in use must exist.
pub const IMAGES: [&str; 2] = [image_name(ImageFile::A), image_name(ImageFile::B)];

/// The spares that copies go into. A missing one is made again when there is room.
const SPARES: [&str; 3] = [SUPERBLOCK_SPARE, INCARNATION_SPARE, SEGMENT_SPARE];

/// One of the two image files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ImageFile {
    /// The first.
    #[default]
    A = 0,
    /// The second.
    B = 1,
}

impl ImageFile {
    /// The other image file, which the next checkpoint writes.
    #[must_use]
    pub fn other(self) -> Self {
        if self == Self::A { Self::B } else { Self::A }
    }
}

/// Name of an image file.
pub const fn image_name(file: ImageFile) -> &'static str {
    match file {
        ImageFile::A => "image-a",
        ImageFile::B => "image-b",
    }
}

/// Name of log segment `index`.
pub fn segment_name(index: u64) -> String {
    format!("{SEGMENT_PREFIX}{index:016x}")
}

/// A file of databases of earlier builds; nothing reads it.
const OLD_NOTICE: &str = "notice";

/// The index in a log segment's name; `None` when it is not one.
pub fn parse_segment_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(SEGMENT_PREFIX)?;
    let plain =
        digits.len() == 16 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if plain { u64::from_str_radix(digits, 16).ok() } else { None }
}

/// The names of a database's files except its log segments.
pub fn fixed() -> impl Iterator<Item = &'static str> {
    let others = [OLD_NOTICE, SEGMENT_TEMPORARY, UNFINISHED];
    REQUIRED.into_iter().chain(IMAGES).chain(SPARES).chain(others)
}

/// True when a database of ours may have a file of this name in its folder.
pub fn is_ours(name: &str) -> bool {
    fixed().any(|fixed| fixed == name) || parse_segment_name(name).is_some()
}
