//! The files of a database, by name. Nobody else spells one; which files must be there, and which may be
//! removed as ours, is decided here.

/// Superblocks.
pub const SUPERBLOCK: &str = "super";
/// What a copy of the superblocks goes into.
pub(crate) const SUPERBLOCK_SPARE: &str = "super.spare";
/// Count of the writable opens.
pub(crate) const INCARNATION: &str = "incarnation";
/// What a copy of the incarnation goes into.
pub(crate) const INCARNATION_SPARE: &str = "incarnation.spare";
/// Leaf pages.
pub const LEAF_FILE: &str = "leaf";
/// Values too long for a leaf page.
pub const OVERFLOW_FILE: &str = "overflow";
/// Branch pages that had to leave memory between two checkpoints.
pub const SPILL_FILE: &str = "spill";
/// Pairs of a bulk load that did not fit its memory.
pub const LOAD_SPILL_FILE: &str = "load-spill";
/// Marker of a creation that has not come to its end.
pub const MARKER: &str = "CREATING";
/// The marker in the making.
pub(crate) const MARKER_TEMPORARY: &str = "CREATING.new";
/// The lock, which the device makes before anybody looks at the folder.
pub const LOCK: &str = "LOCK";
/// A log segment in the making.
pub const SEGMENT_TEMPORARY: &str = "log.new";
/// What copies of log segments go into.
pub const SEGMENT_SPARE: &str = "log.spare";
/// A log segment's name begins with this.
const SEGMENT_PREFIX: &str = "log-";

/// Without these there is no database. Beside them: the log's segments, and one image.
pub const REQUIRED: [&str; 4] = [SUPERBLOCK, INCARNATION, LEAF_FILE, OVERFLOW_FILE];

/// The two images, of which the one in use must be there.
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
    /// The one that the next checkpoint writes.
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

/// Databases of earlier builds have this file; nobody reads it.
const OLD_NOTICE: &str = "notice";

/// The index in a log segment's name; `None` when it is not one.
pub fn parse_segment_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(SEGMENT_PREFIX)?;
    let plain =
        digits.len() == 16 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if plain { u64::from_str_radix(digits, 16).ok() } else { None }
}

/// The names of a database's files beside its log segments.
pub fn fixed() -> impl Iterator<Item = &'static str> {
    let others = [SPILL_FILE, OLD_NOTICE, SEGMENT_TEMPORARY];
    REQUIRED.into_iter().chain(IMAGES).chain(SPARES).chain(others)
}

/// True when a database can have a file of this name in its folder.
pub fn is_ours(name: &str) -> bool {
    fixed().any(|fixed| fixed == name) || parse_segment_name(name).is_some()
}
