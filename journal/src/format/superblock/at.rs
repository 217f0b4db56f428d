//! Offsets in bytes of the fields of a slot, in the order of the picture in [`super`].

use pleach_io::PAGE;

pub(super) const CHECKSUM: usize = 0;
pub(super) const MAGIC: usize = CHECKSUM + 8;
pub(super) const VERSION: usize = MAGIC + 8;
pub(super) const SLOT: usize = VERSION + 4;
pub(super) const DATABASE: usize = SLOT + 4;
pub(super) const CREATED_BY: usize = DATABASE + 8;
pub(super) const HASHER: usize = CREATED_BY + 4;
pub(super) const PAD_HASHER: usize = HASHER + 1;
pub(super) const COMPATIBLE: usize = PAD_HASHER + 3;
pub(super) const READ_ONLY: usize = COMPATIBLE + 8;
pub(super) const INCOMPATIBLE: usize = READ_ONLY + 8;
pub(super) const PAGE_SIZE: usize = INCOMPATIBLE + 8;
pub(super) const SIZE_FACTOR: usize = PAGE_SIZE + 4;
pub(super) const LOG_SEGMENT: usize = SIZE_FACTOR + 4;
pub(super) const LOG_LIMIT: usize = LOG_SEGMENT + 8;
pub(super) const LEAF_SEGMENT: usize = LOG_LIMIT + 8;
pub(super) const OVERFLOW_SEGMENT: usize = LEAF_SEGMENT + 8;
pub(super) const LEVELS: usize = OVERFLOW_SEGMENT + 8;
pub(super) const PAD_LEVELS: usize = LEVELS + 1;
pub(super) const GENERATION: usize = PAD_LEVELS + 7;
pub(super) const IMAGE_FILE: usize = GENERATION + 8;
pub(super) const PAD_IMAGE: usize = IMAGE_FILE + 1;
pub(super) const IMAGE_PAGES: usize = PAD_IMAGE + 3;
pub(super) const TABLE_PAGE: usize = IMAGE_PAGES + 4;
pub(super) const IMAGE_NUMBER: usize = TABLE_PAGE + 8;
pub(super) const TABLE_HASH: usize = IMAGE_NUMBER + 8;
pub(super) const COMMIT: usize = TABLE_HASH + 32;
pub(super) const ROOT: usize = COMMIT + 8;
pub(super) const NEXT_FLUSH: usize = ROOT + 32;
pub(super) const INCARNATION: usize = NEXT_FLUSH + 8;
pub(super) const PAD_INCARNATION: usize = INCARNATION + 4;
pub(super) const REPLAY: usize = PAD_INCARNATION + 4;
pub(super) const REPLAY_SUM: usize = REPLAY + 8;
pub(super) const DURABLE: usize = REPLAY_SUM + 8;
pub(super) const CLEAN_END: usize = DURABLE + 8;
pub(super) const PREPARED: usize = CLEAN_END + 8;
pub(super) const HISTORY: usize = PREPARED + 8;
pub(super) const DURABILITY: usize = HISTORY + 8;
pub(super) const PAD_DURABILITY: usize = DURABILITY + 1;
pub(super) const PERIOD: usize = PAD_DURABILITY + 3;
pub(super) const LOG_FROM: usize = PERIOD + 4;
pub(super) const HASHER_NAME: usize = LOG_FROM + 8;
pub(super) const REST: usize = HASHER_NAME + 32;

const _: () = assert!(DATABASE.is_multiple_of(8) && COMPATIBLE.is_multiple_of(8));
const _: () = assert!(LOG_SEGMENT.is_multiple_of(8) && GENERATION.is_multiple_of(8));
const _: () = assert!(TABLE_PAGE.is_multiple_of(8) && REPLAY.is_multiple_of(8));
const _: () = assert!(REST == 328 && REST <= PAGE);

/// Ranges of bytes that are zero.
pub(super) const RESERVED: [(usize, usize); 6] = [
    (PAD_HASHER, COMPATIBLE),
    (PAD_LEVELS, GENERATION),
    (PAD_IMAGE, IMAGE_PAGES),
    (PAD_INCARNATION, REPLAY),
    (PAD_DURABILITY, PERIOD),
    (REST, PAGE),
];
