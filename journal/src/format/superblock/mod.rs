//! The superblock: what a database is and where its last checkpoint lies.
//!
//! File `super` has two slots, each a page, [`SLOT_DISTANCE`] apart so that one bad stretch of the
//! medium does not take both; [`super::superblock_store`] reads and writes them.
//!
//! ```text
//! frame       checksum u64 | magic 8 | format version u32 | slot u32
//! identity    database u64 | created by version u32 | hasher u8 | 0 u24
//!             | compatible bits u64 | read-only compatible bits u64 | incompatible bits u64
//! geometry    page size u32 | size factor, percent u32 | log segment u64 | log limit u64
//!             | leaf segment u64 | overflow segment u64 | stored node levels u8 | 0 u56
//! generation  u64
//! image       file u8 (0 = A, 1 = B) | 0 u24 | pages u32 | table page u64 | number u64
//!             | table hash 32
//! state       commit u64 | root 32 | next flush u64 | incarnation u32 | 0 u32
//! log         replay position u64 | replay checksum u64 | durable_through u64 | clean end u64
//!             | prepared through u64
//! options     history u64 | durability u8 | 0 u24 | period, ms u32
//! history     log_from u64
//! hasher      name of an application's hasher 32, else zeros
//! rest        zeros to the end of the page
//! ```
//!
//! `checksum` is the XXH3-64 of the bytes after it; with magic, version and slot it keeps its place in every future
//! version, so that a newer database is told from a damaged one.
//!
//! A slot that an open has abandoned has only the frame, with a magic of its own. So a blank slot was never written, or
//! was lost: from generation 2 on both were written.

mod at;

use pleach_beatree::space;
use pleach_io::{IoError, PAGE, PageBuf};
use twox_hash::XxHash3_64;

use super::bytes::{get, get_u32, get_u64, put};
use super::names;
pub use super::names::ImageFile;
use super::position::{LogPoint, LogPos, valid_segment_size};
use super::recorded_hasher::RecordedHasher;
use super::spare::SpareFile;

/// Name of the file.
pub const FILE: &str = names::SUPERBLOCK;
/// The spare for its copy, at a writable open.
pub const SPARE: SpareFile = SpareFile { name: names::SUPERBLOCK_SPARE, len: FILE_LEN };
/// First bytes of a slot after its checksum.
pub const MAGIC: [u8; 8] = *b"PLEACHSB";
/// Magic of an abandoned slot.
const GIVEN_UP: [u8; 8] = *b"PLEACHGU";
/// The version that this code reads and writes.
pub const FORMAT_VERSION: u32 = 8;
/// Bytes from one slot to the next.
pub const SLOT_DISTANCE: u64 = 64 << 10;
const _: () = assert!(SLOT_DISTANCE.is_multiple_of(PAGE as u64));
/// Bytes of the file.
pub const FILE_LEN: u64 = 2 * SLOT_DISTANCE;

/// Most pages of a segment of leaf or overflow pages.
const MAX_SEGMENT_PAGES: u64 = 1 << 16;

/// Incompatible features that this code knows.
pub const KNOWN_INCOMPATIBLE: u64 = 0;
/// Read-only compatible features that this code knows.
pub const KNOWN_READ_ONLY: u64 = 0;

/// Sizes that a database is created with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a page.
    pub page_size: u32,
    /// File size relative to live pages, in percent, up to which the leaf file grows.
    pub size_factor_percent: u32,
    /// Bytes of a log segment.
    pub log_segment: u64,
    /// Bytes of log that make a checkpoint due.
    pub log_limit: u64,
    /// Bytes of a segment of leaf pages.
    pub leaf_segment: u64,
    /// Bytes of a segment of overflow pages.
    pub overflow_segment: u64,
    /// Levels of nodes stored in a leaf page.
    pub stored_levels: u8,
}

/// The place of the image and its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageRef {
    /// The image file.
    pub file: ImageFile,
    /// Number of pages of the image.
    pub pages: u32,
    /// Page of the namespace table.
    pub table_page: u64,
    /// Number of the image, which each of its pages carries as its flush number.
    pub number: u64,
    /// BLAKE3 of the namespace table.
    pub table_hash: [u8; 32],
}

/// Durability mode last used, recorded for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DurabilityMode {
    /// A commit is synced before it returns.
    #[default]
    Commit,
    /// Synced at intervals of this number of milliseconds.
    Periodic(u32),
    /// Synced by checkpoints and flushes only.
    None,
}

/// The contents of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Superblock {
    /// Random id of the database.
    pub database: u64,
    /// Version number of the software that created it, for reports.
    pub created_by: u32,
    /// The hasher that it was created with.
    pub hasher: RecordedHasher,
    /// Features that an older version may ignore.
    pub compatible: u64,
    /// Features that an older version may ignore while it only reads.
    pub read_only_compatible: u64,
    /// Features that an older version must not ignore.
    pub incompatible: u64,
    /// Sizes that it was created with.
    pub geometry: Geometry,
    /// The newer superblock has the higher one;
    /// [`SuperblockStore::write`](super::superblock_store::SuperblockStore::write) raises it.
    pub generation: u64,
    /// The image.
    pub image: ImageRef,
    /// Last commit that the image contains in full.
    pub commit: u64,
    /// The root over all namespaces after that commit.
    pub root: pleach_core::Node,
    /// Counter of the next flush number.
    pub next_flush: u64,
    /// The writable open that wrote this superblock.
    pub incarnation: u32,
    /// Replay start.
    pub replay: LogPoint,
    /// The log was synced below this position.
    pub durable_through: LogPos,
    /// End of the log at a clean close; `None` while the database may be open for writing. It counts until a later
    /// incarnation is given out.
    pub clean_end: Option<LogPos>,
    /// Below this position the log's segments had been prepared: their files are there.
    pub prepared_through: LogPos,
    /// Number of past commits that can be read.
    pub history: u64,
    /// The log is kept from this record on, which is not above the replay start.
    pub log_from: LogPos,
    /// Durability mode last used.
    pub durability: DurabilityMode,
}

/// The reason why a slot is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// All zeros: not written yet while the other slot has generation 1, lost later on.
    #[error("blank")]
    Blank,
    /// Abandoned by an open: the superblock was damaged, or led to damage, or to less than the other one.
    #[error("abandoned")]
    GivenUp,
    /// The device cannot read it.
    #[error("unreadable")]
    Unreadable,
    /// No magic: not a superblock at all.
    #[error("not a superblock")]
    Foreign,
    /// The checksum does not fit: torn or rotten.
    #[error("torn or damaged")]
    Checksum,
    /// A superblock of a later version of the format.
    #[error("format version {0}, this software knows {FORMAT_VERSION}")]
    Newer(u32),
    /// A superblock of an earlier version of the format.
    #[error("format version {0}, this software reads {FORMAT_VERSION}")]
    Older(u32),
    /// The contents of the other slot.
    #[error("the contents of slot {0}")]
    Misplaced(u32),
    /// A good checksum over fields that no writer of this version makes.
    #[error("field at byte {0} is out of range")]
    Field(usize),
}

/// The reason why there is no usable superblock.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuperblockError {
    /// The device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The file has the wrong length.
    #[error("{FILE} has {found} bytes, {FILE_LEN} expected")]
    Length {
        /// Its length.
        found: u64,
    },
    /// A later version has written here.
    #[error(
        "a newer version has made this database: its format is {found}, this one reads {FORMAT_VERSION}; open it with that version"
    )]
    NewerVersion {
        /// Its version.
        found: u32,
    },
    /// A version of this software whose format is no longer read has written here.
    #[error(
        "the database has format version {found}, this software reads {FORMAT_VERSION}: open it with the version that it belongs to, or make a new database"
    )]
    OlderVersion {
        /// Its version.
        found: u32,
    },
    /// Neither slot can be used.
    #[error("no usable superblock: slot 0 {first}, slot 1 {second}")]
    Damaged {
        /// Slot 0.
        first: SlotError,
        /// Slot 1.
        second: SlotError,
    },
    /// Both slots are good and contradict each other.
    #[error("two superblocks that do not belong together")]
    Contradiction,
    /// The database uses features that this software does not know.
    #[error(
        "a newer version has made this database, with features that this one does not know (incompatible {incompatible:#x}, \
         read-only compatible {read_only:#x}): open it with that version{}",
        if *incompatible == 0 { ", or for reading alone" } else { "" }
    )]
    Features {
        /// Unknown bits that forbid any use.
        incompatible: u64,
        /// Unknown bits that forbid writing.
        read_only: u64,
    },
    /// An earlier write failed; the slots are not touched again before the next open.
    #[error("an earlier write of the superblock failed")]
    Poisoned,
}

impl Superblock {
    /// The page of a slot.
    pub fn encode(&self, slot: u32) -> PageBuf {
        let mut buf = PageBuf::zeroed(1);
        let page = buf.page_mut(0);
        put(page, at::MAGIC, MAGIC);
        put(page, at::VERSION, FORMAT_VERSION.to_le_bytes());
        put(page, at::SLOT, slot.to_le_bytes());
        put(page, at::DATABASE, self.database.to_le_bytes());
        put(page, at::CREATED_BY, self.created_by.to_le_bytes());
        put(page, at::HASHER, [self.hasher.id]);
        put(page, at::HASHER_NAME, self.hasher.name);
        put(page, at::COMPATIBLE, self.compatible.to_le_bytes());
        put(page, at::READ_ONLY, self.read_only_compatible.to_le_bytes());
        put(page, at::INCOMPATIBLE, self.incompatible.to_le_bytes());
        self.geometry.encode(page);
        put(page, at::GENERATION, self.generation.to_le_bytes());
        self.image.encode(page);
        put(page, at::COMMIT, self.commit.to_le_bytes());
        put(page, at::ROOT, self.root.to_bytes());
        put(page, at::NEXT_FLUSH, self.next_flush.to_le_bytes());
        put(page, at::INCARNATION, self.incarnation.to_le_bytes());
        put(page, at::REPLAY, self.replay.position.get().to_le_bytes());
        put(page, at::REPLAY_SUM, self.replay.checksum.to_le_bytes());
        put(page, at::DURABLE, self.durable_through.get().to_le_bytes());
        put(page, at::CLEAN_END, self.clean_end.map_or(NOT_CLEAN, LogPos::get).to_le_bytes());
        put(page, at::PREPARED, self.prepared_through.get().to_le_bytes());
        put(page, at::HISTORY, self.history.to_le_bytes());
        put(page, at::LOG_FROM, self.log_from.get().to_le_bytes());
        let (mode, period) = match self.durability {
            DurabilityMode::Commit => (0, 0),
            DurabilityMode::Periodic(ms) => (1, ms),
            DurabilityMode::None => (2, 0),
        };
        put(page, at::DURABILITY, [mode]);
        put(page, at::PERIOD, u32::to_le_bytes(period));
        let checksum = XxHash3_64::oneshot(&page[at::MAGIC..]);
        put(page, at::CHECKSUM, checksum.to_le_bytes());
        buf
    }

    /// The page of an abandoned slot.
    pub(super) fn given_up(slot: u32) -> PageBuf {
        let mut buf = PageBuf::zeroed(1);
        let page = buf.page_mut(0);
        put(page, at::MAGIC, GIVEN_UP);
        put(page, at::VERSION, FORMAT_VERSION.to_le_bytes());
        put(page, at::SLOT, slot.to_le_bytes());
        let checksum = XxHash3_64::oneshot(&page[at::MAGIC..]);
        put(page, at::CHECKSUM, checksum.to_le_bytes());
        buf
    }

    /// Decodes and verifies the page of a slot.
    pub fn decode(page: &[u8; PAGE], slot: u32) -> Result<Self, SlotError> {
        check_frame(page, slot)?;
        // A feature that this software does not know may use a reserved byte.
        let unknown = (get_u64(page, at::READ_ONLY) & !KNOWN_READ_ONLY)
            | (get_u64(page, at::INCOMPATIBLE) & !KNOWN_INCOMPATIBLE);
        for (from, to) in at::RESERVED {
            if unknown == 0 && page[from..to].iter().any(|byte| *byte != 0) {
                return Err(SlotError::Field(from));
            }
        }
        let hasher = RecordedHasher { id: page[at::HASHER], name: get(page, at::HASHER_NAME) };
        if !hasher.is_named() && hasher.name != [0; 32] {
            return Err(SlotError::Field(at::HASHER_NAME));
        }
        let clean_end = get_u64(page, at::CLEAN_END);
        let geometry = Geometry::decode(page)?;
        Ok(Self {
            database: get_u64(page, at::DATABASE),
            created_by: get_u32(page, at::CREATED_BY),
            hasher,
            compatible: get_u64(page, at::COMPATIBLE),
            read_only_compatible: get_u64(page, at::READ_ONLY),
            incompatible: get_u64(page, at::INCOMPATIBLE),
            prepared_through: decode_prepared(page, geometry.log_segment)?,
            geometry,
            generation: get_u64(page, at::GENERATION),
            image: ImageRef::decode(page)?,
            commit: get_u64(page, at::COMMIT),
            root: get::<32>(page, at::ROOT).into(),
            next_flush: get_u64(page, at::NEXT_FLUSH),
            incarnation: get_u32(page, at::INCARNATION),
            replay: decode_replay(page)?,
            durable_through: get_u64(page, at::DURABLE).into(),
            clean_end: (clean_end != NOT_CLEAN).then_some(clean_end.into()),
            history: get_u64(page, at::HISTORY),
            log_from: decode_log_from(page)?,
            durability: decode_durability(page)?,
        })
    }

    /// The growth of the database's leaf and overflow files.
    pub fn page_space(&self) -> space::FileGeometry {
        let segment_pages = u32::try_from(self.geometry.leaf_segment / PAGE as u64);
        space::FileGeometry {
            segment_pages: segment_pages.unwrap_or(u32::MAX),
            size_percent: self.geometry.size_factor_percent,
        }
    }

    /// Checks that this software may open the database, for writing if it is `writable`.
    pub fn check_features(&self, writable: bool) -> Result<(), SuperblockError> {
        let incompatible = self.incompatible & !KNOWN_INCOMPATIBLE;
        let read_only = self.read_only_compatible & !KNOWN_READ_ONLY;
        if incompatible != 0 || (writable && read_only != 0) {
            return Err(SuperblockError::Features { incompatible, read_only });
        }
        Ok(())
    }
}

const NOT_CLEAN: u64 = u64::MAX;

fn check_frame(page: &[u8; PAGE], slot: u32) -> Result<(), SlotError> {
    if *page == [0; PAGE] {
        return Err(SlotError::Blank);
    }
    if page == Superblock::given_up(slot).page(0) {
        return Err(SlotError::GivenUp);
    }
    if get::<8>(page, at::MAGIC) != MAGIC {
        return Err(SlotError::Foreign);
    }
    if XxHash3_64::oneshot(&page[at::MAGIC..]) != get_u64(page, at::CHECKSUM) {
        return Err(SlotError::Checksum);
    }
    match get_u32(page, at::VERSION) {
        FORMAT_VERSION => {}
        0 => return Err(SlotError::Field(at::VERSION)),
        older if older < FORMAT_VERSION => return Err(SlotError::Older(older)),
        newer => return Err(SlotError::Newer(newer)),
    }
    match get_u32(page, at::SLOT) {
        found if found == slot => Ok(()),
        other => Err(SlotError::Misplaced(other)),
    }
}

fn decode_replay(page: &[u8; PAGE]) -> Result<LogPoint, SlotError> {
    let replay = LogPoint {
        position: get_u64(page, at::REPLAY).into(),
        checksum: get_u64(page, at::REPLAY_SUM),
    };
    let fits = replay.position.is_aligned(8)
        && replay.position <= LogPos::MAX
        && replay.position.get() <= get_u64(page, at::DURABLE);
    if fits { Ok(replay) } else { Err(SlotError::Field(at::REPLAY)) }
}

fn decode_log_from(page: &[u8; PAGE]) -> Result<LogPos, SlotError> {
    let from = LogPos::new(get_u64(page, at::LOG_FROM));
    let fits = from.is_aligned(8) && from.get() <= get_u64(page, at::REPLAY);
    if fits { Ok(from) } else { Err(SlotError::Field(at::LOG_FROM)) }
}

/// The position below which segments are prepared; the log's next byte always lies in a prepared segment.
fn decode_prepared(page: &[u8; PAGE], segment: u64) -> Result<LogPos, SlotError> {
    let prepared = get_u64(page, at::PREPARED);
    let fits = prepared.is_multiple_of(segment)
        && prepared > get_u64(page, at::REPLAY)
        && prepared <= 2 * LogPos::MAX.get();
    if fits { Ok(prepared.into()) } else { Err(SlotError::Field(at::PREPARED)) }
}

fn decode_durability(page: &[u8; PAGE]) -> Result<DurabilityMode, SlotError> {
    match (page[at::DURABILITY], get_u32(page, at::PERIOD)) {
        (0, 0) => Ok(DurabilityMode::Commit),
        (1, ms) => Ok(DurabilityMode::Periodic(ms)),
        (2, 0) => Ok(DurabilityMode::None),
        _ => Err(SlotError::Field(at::DURABILITY)),
    }
}

impl Geometry {
    fn encode(&self, page: &mut [u8; PAGE]) {
        put(page, at::PAGE_SIZE, self.page_size.to_le_bytes());
        put(page, at::SIZE_FACTOR, self.size_factor_percent.to_le_bytes());
        put(page, at::LOG_SEGMENT, self.log_segment.to_le_bytes());
        put(page, at::LOG_LIMIT, self.log_limit.to_le_bytes());
        put(page, at::LEAF_SEGMENT, self.leaf_segment.to_le_bytes());
        put(page, at::OVERFLOW_SEGMENT, self.overflow_segment.to_le_bytes());
        put(page, at::LEVELS, [self.stored_levels]);
    }

    fn decode(page: &[u8; PAGE]) -> Result<Self, SlotError> {
        let geometry = Self {
            page_size: get_u32(page, at::PAGE_SIZE),
            size_factor_percent: get_u32(page, at::SIZE_FACTOR),
            log_segment: get_u64(page, at::LOG_SEGMENT),
            log_limit: get_u64(page, at::LOG_LIMIT),
            leaf_segment: get_u64(page, at::LEAF_SEGMENT),
            overflow_segment: get_u64(page, at::OVERFLOW_SEGMENT),
            stored_levels: page[at::LEVELS],
        };
        let page_size = u64::from(geometry.page_size);
        if page_size != PAGE as u64 {
            return Err(SlotError::Field(at::PAGE_SIZE));
        }
        if !valid_segment_size(geometry.log_segment) {
            return Err(SlotError::Field(at::LOG_SEGMENT));
        }
        for (size, at) in [
            (geometry.leaf_segment, at::LEAF_SEGMENT),
            (geometry.overflow_segment, at::OVERFLOW_SEGMENT),
        ] {
            let pages = size / page_size;
            if !size.is_multiple_of(page_size) || !(1..=MAX_SEGMENT_PAGES).contains(&pages) {
                return Err(SlotError::Field(at));
            }
        }
        if geometry.leaf_segment != geometry.overflow_segment {
            return Err(SlotError::Field(at::OVERFLOW_SEGMENT));
        }
        if geometry.size_factor_percent < 100 {
            return Err(SlotError::Field(at::SIZE_FACTOR));
        }
        Ok(geometry)
    }
}

impl ImageRef {
    fn encode(&self, page: &mut [u8; PAGE]) {
        put(page, at::IMAGE_FILE, [self.file as u8]);
        put(page, at::IMAGE_PAGES, self.pages.to_le_bytes());
        put(page, at::TABLE_PAGE, self.table_page.to_le_bytes());
        put(page, at::IMAGE_NUMBER, self.number.to_le_bytes());
        put(page, at::TABLE_HASH, self.table_hash);
    }

    fn decode(page: &[u8; PAGE]) -> Result<Self, SlotError> {
        let file = match page[at::IMAGE_FILE] {
            0 => ImageFile::A,
            1 => ImageFile::B,
            _ => return Err(SlotError::Field(at::IMAGE_FILE)),
        };
        Ok(Self {
            file,
            pages: get_u32(page, at::IMAGE_PAGES),
            table_page: get_u64(page, at::TABLE_PAGE),
            number: get_u64(page, at::IMAGE_NUMBER),
            table_hash: get(page, at::TABLE_HASH),
        })
    }
}
