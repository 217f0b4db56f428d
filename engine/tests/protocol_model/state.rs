//! The words of the model: keys, positions, pages, records, the memory of a process, and what the oracle remembers.
//!
//! Four keys in three regions (`region`). The root is all values. The value 0 is an absent key.
//!
//! Regions 1 and 2 are the whole trie of a namespace of its own, which can be dropped, reclaimed and added again.
//! Whether it exists is the last of the values: it is changed, undone and rolled back like one. While it does not
//! exist, the values of keys 2 and 3 are what the dropped trie has, and nobody may see them.
//!
//! A long value is its content and the extent of the overflow file that has it, in one number ([`long`]). Runs of the
//! history (`history`) have extents there, too.

use std::hash::{Hash, Hasher};
use std::rc::Rc;

use crate::history::{Extent, NamedRun, Past};
use crate::medium::{Media, Unit};
use crate::mutants::Scenario;
use crate::region::{Entry, Node, Page, Position, Region, first_positions};
use crate::table::{Fate, Table};

pub(crate) const KEYS: usize = 4;
pub(crate) const PLACES: usize = 6;
pub(crate) const REGIONS: usize = 3;
/// Extents of the overflow file.
pub(crate) const EXTENTS: usize = 4;

/// Among the values: 1 when the namespace of regions 1 and 2 exists.
pub(crate) const THERE: usize = 4;
pub(crate) const SLOTS: usize = 5;

pub(crate) type Values = [u8; SLOTS];
pub(crate) type Changes = [Option<u8>; SLOTS];

/// True of the keys of the namespace that comes and goes.
pub(crate) fn comes_and_goes(key: usize) -> bool {
    (2..KEYS).contains(&key)
}

/// A long value: what it is, and the extent that has it. Other values are below 16.
pub(crate) fn long(content: u8, extent: usize) -> u8 {
    content | (u8::try_from(extent).expect("few extents") + 1) << 4
}

/// The extent that a value names.
pub(crate) fn extent_of(value: u8) -> Option<usize> {
    usize::from(value >> 4).checked_sub(1)
}

pub(crate) fn content(value: u8) -> u8 {
    value & 15
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Commit {
    pub(crate) number: u8,
    pub(crate) changes: Changes,
    pub(crate) fate: Option<Fate>,
    /// Prior values: the undo.
    pub(crate) replaced: Changes,
    /// The oldest commit that can be read when this one is the newest.
    pub(crate) kept_from: u8,
    pub(crate) nodes: Vec<(Position, Node)>,
    /// Its chunks are cut as regions are when 1 and 2 are joined. Not read by recovery.
    pub(crate) joined: bool,
    pub(crate) root: Values,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Location {
    pub(crate) region: usize,
    pub(crate) replaced: Vec<Position>,
    pub(crate) entries: Vec<Entry>,
    /// Numbers of the pages that are replaced.
    pub(crate) freed: Vec<u8>,
}

impl Location {
    /// Numbers of the new pages.
    pub(crate) fn pages(&self) -> impl Iterator<Item = u8> {
        self.entries.iter().filter_map(|entry| entry.page.as_ref().map(|(page_no, _)| *page_no))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Body {
    Commit(Commit),
    Location(Location),
    /// A location record that reclaims a region of the dropped trie.
    GiveUp(usize),
    /// A location record that joins regions 1 and 2.
    Join,
}

/// A log record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Record {
    pub(crate) position: u8,
    pub(crate) incarnation: u8,
    pub(crate) durable_through: u8,
    /// Checksum of the record before.
    pub(crate) previous: u32,
    pub(crate) body: Body,
}

impl Record {
    pub(crate) fn checksum(&self) -> u32 {
        u32::try_from(fingerprint(self) >> 32).expect("32 bits remain")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Image {
    pub(crate) generation: u8,
    pub(crate) table: Table,
    pub(crate) past: Past,
    pub(crate) regions: [Region; REGIONS],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Superblock {
    pub(crate) generation: u8,
    /// Which image file.
    pub(crate) image: usize,
    pub(crate) replay_start: u8,
    /// Where the log begins that is kept for it, at or below the replay start.
    pub(crate) log_from: u8,
    pub(crate) durable_through: u8,
    /// Checksum and incarnation of the record before the replay start.
    pub(crate) previous: u32,
    pub(crate) incarnation: u8,
    /// Commit number and root at the replay start.
    pub(crate) number: u8,
    pub(crate) root: Values,
}

/// What a session's `finish` leaves for the ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Finished {
    /// The layout of region 0 that its nodes are made for.
    pub(crate) fine: bool,
    /// The past commit that it goes back to, when it is a rollback.
    pub(crate) back_to: Option<u8>,
    /// The state that it is made on, and its number.
    pub(crate) on: Values,
    pub(crate) parent: u8,
    /// The first half of it is ticketed (only in mutants that halve).
    pub(crate) rest: bool,
    /// From here on to publication no regions are to be joined: whether 1 and 2 were.
    pub(crate) held: Option<bool>,
}

/// What a commit replaced, in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Undone {
    pub(crate) number: u8,
    pub(crate) replaced: Changes,
    /// Where its record begins.
    pub(crate) start: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FlushStep {
    Folded,
    LogDurable,
    Written,
    Synced,
    /// Only in the mutant that publishes before it appends.
    PublishedEarly,
    Ticketed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flush {
    pub(crate) step: FlushStep,
    pub(crate) region: usize,
    pub(crate) replaced: Vec<Position>,
    pub(crate) pages: Vec<(u8, Rc<Page>)>,
    /// Positions that got no page (only in the mutant that lets deletions uncover).
    pub(crate) bare: Vec<Position>,
    pub(crate) freed: Vec<u8>,
    /// Log position behind the newest commit in the pages.
    pub(crate) contains: u8,
    /// State that the pages were folded from.
    pub(crate) folded: Values,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum CheckpointStep {
    /// Some regions are copied.
    Cut,
    AllRegions,
    ImageWritten,
    ImageSynced,
    LogSynced,
    SuperblockWritten,
    SuperblockSynced,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Checkpoint {
    pub(crate) step: CheckpointStep,
    pub(crate) superblock: Superblock,
    pub(crate) slot: usize,
    /// As of the cut.
    pub(crate) table: Table,
    pub(crate) past: Past,
    pub(crate) regions: Vec<Region>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReaderStep {
    Pinned,
    SawPending,
    SawIndex,
    SawUndo,
}

/// One lookup of one key as of one snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reader {
    pub(crate) step: ReaderStep,
    pub(crate) snapshot: u8,
    pub(crate) key: usize,
    pub(crate) entry: Option<Entry>,
    pub(crate) value: Option<u8>,
    pub(crate) undo: Option<u8>,
    /// Runs that it reads.
    pub(crate) runs: Vec<NamedRun>,
    /// The namespace existed when its table was read.
    pub(crate) there: u8,
    /// An index was published since the pin.
    pub(crate) outdated: bool,
}

impl Engine {
    /// What a key had as of a commit, if a later one changed it.
    pub(crate) fn undone(&self, snapshot: u8, key: usize) -> Option<u8> {
        let on_device = self.runs.iter().flat_map(|named| &named.run.undone);
        let later = on_device.chain(&self.undo).filter(|undone| undone.number > snapshot);
        later
            .filter_map(|undone| undone.replaced[key].map(|value| (undone.number, value)))
            .min()
            .map(|(_, value)| value)
    }

    /// Where undo begins, as a reader is told: a run may reach back further than the window.
    pub(crate) fn begin(&self) -> u8 {
        let first = self.runs.first().map_or(self.kept_from, |first| first.run.after);
        first.min(self.kept_from)
    }

    /// The window moves on to `number`: what lies before it is gone, whoever reads it.
    pub(crate) fn trim(&mut self, history: Option<u8>, number: u8) {
        let Some(history) = history else { return };
        self.forget(number.saturating_sub(history));
    }

    /// Commits before `number` cannot be read any more.
    pub(crate) fn forget(&mut self, number: u8) {
        self.kept_from = self.kept_from.max(number);
        let from = self.kept_from;
        self.undo.retain(|undone| undone.number > from);
        let runs = self.runs.iter().filter(|named| named.run.through > from).cloned();
        self.put_runs(runs.collect());
    }
}

/// A page that waits for flush `free`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Leaving {
    pub(crate) page_no: u8,
    /// Log position behind the location record.
    pub(crate) behind: u8,
}

/// The memory of a running engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Engine {
    pub(crate) incarnation: u8,
    pub(crate) flush_counter: u8,
    pub(crate) table: Table,
    pub(crate) regions: [Region; REGIONS],
    /// Published commit number and log position.
    pub(crate) number: u8,
    pub(crate) published: u8,
    /// Steps of the head of the queue that are already published.
    pub(crate) publishing: usize,
    /// What is not on the device.
    pub(crate) undo: Vec<Undone>,
    /// On the device, oldest first, each with the commits that follow those of the one before.
    pub(crate) runs: Vec<NamedRun>,
    /// In the list, and not written yet (only in the mutant that names such runs).
    pub(crate) unwritten_run: Option<NamedRun>,
    /// Runs that the image in use names.
    pub(crate) named: Vec<NamedRun>,
    /// Runs that left the list, and that somebody has.
    pub(crate) unlisted: Vec<NamedRun>,
    /// The oldest commit that can be read: older undo is gone, whoever reads.
    pub(crate) kept_from: u8,
    /// The same, as the record of the newest published commit has it.
    pub(crate) recorded: u8,
    pub(crate) finished: Option<Finished>,
    /// The newest ticketed commit, and the layout behind the newest ticket.
    pub(crate) ticketed: u8,
    pub(crate) values: Values,
    pub(crate) fine: bool,
    /// Ticketed and not wholly published, in order.
    pub(crate) queue: Vec<Rc<Record>>,
    /// Ticketed and not written, in order.
    pub(crate) unwritten: Vec<Rc<Record>>,
    /// Next log position, and the checksum of the record before it.
    pub(crate) tail: u8,
    pub(crate) previous: u32,
    pub(crate) written: u8,
    pub(crate) durable: u8,
    /// Checksum, number, root, incarnation behind the newest published record: for the checkpoint's cut.
    pub(crate) published_checksum: u32,
    pub(crate) published_incarnation: u8,
    pub(crate) flush: Option<Flush>,
    pub(crate) leaving: Vec<Leaving>,
    pub(crate) free: [bool; PLACES],
    pub(crate) free_extents: [bool; EXTENTS],
    /// Extents whose value a commit has replaced, with its number.
    pub(crate) replaced_extents: Vec<(u8, usize)>,
    pub(crate) checkpoint: Option<Checkpoint>,
    /// Slot and image file of the newest complete generation, and the highest number of one.
    pub(crate) slot: usize,
    pub(crate) image: usize,
    pub(crate) generation: u8,
    pub(crate) reader: Option<Reader>,
    pub(crate) poisoned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RecoveryStep {
    Scanned,
    LogConfirmed,
    /// Only in the mutants that write in place.
    SuperblockWritten,
    SuperblockConfirmed,
    /// Only in the mutants that write in place.
    IncarnationWritten,
    IncarnationRaised,
}

/// What a recovery has found, and how far it has got with securing it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Recovery {
    pub(crate) step: RecoveryStep,
    pub(crate) engine: Engine,
    /// Everything below is known durable: some record or superblock says so.
    pub(crate) proven: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Process {
    Down,
    Recovering(Box<Recovery>),
    Up(Box<Engine>),
    /// Recovery refused: damage. Nothing follows.
    Refused,
}

/// Injected rot, and what recovery owes for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rot {
    /// A log record that something later says was durable: must be reported.
    Sealed,
    /// A log record that nothing later mentions: looks like a tear, may be cut.
    Unsealed,
    /// An unsealed one, and recovery has cut the log there.
    Cut,
    /// The newest superblock or image while the older generation was complete: must cost nothing.
    Generation,
}

/// What the oracle remembers. The engine cannot see it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ghost {
    /// By commit number: the state, and the log position behind its record.
    pub(crate) history: Vec<(Values, u8)>,
    /// The newest commit that must survive.
    pub(crate) floor: u8,
    /// A commit that is half of one: nobody may find it.
    pub(crate) half: Option<u8>,
    /// Undo before this commit was evicted for want of room, perhaps in an earlier process, or lost with the newest
    /// generation.
    pub(crate) squeezed: u8,
    pub(crate) rot: Option<Rot>,
}

/// How often each thing may still happen. Part of the state, so that every exploration ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub(crate) flushes: u8,
    pub(crate) checkpoints: u8,
    pub(crate) write_outs: u8,
    pub(crate) merges: u8,
    pub(crate) reads: u8,
    pub(crate) rollbacks: u8,
    pub(crate) squeezes: u8,
    pub(crate) joins: u8,
    pub(crate) kills: u8,
    pub(crate) power_failures: u8,
    pub(crate) failed_syncs: u8,
    pub(crate) rots: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) media: Media,
    pub(crate) process: Process,
    pub(crate) ghost: Ghost,
    pub(crate) budget: Budget,
}

/// State of a new database: each key has value 1, no log, two equal generations.
///
/// Region 2 has nothing, unless the scenario needs it. A long value is in extent 0.
pub(crate) fn initial(scenario: &Scenario) -> State {
    let mut values: Values = [1; SLOTS];
    let mut media = Media::new(PLACES);
    if scenario.long_values {
        values[2] = long(1, 0);
        media.overflow[0] = Unit::new(Some(Extent::Value(1)));
    }
    let mut places = [Some(scenario.first_page), Some(1), Some(2)];
    if !scenario.apart {
        (values[3], places[2]) = (0, None);
    }
    let regions = [0, 1, 2].map(|at| {
        let position = first_positions(at)[0];
        let through = 0;
        let page = Page { flush: (0, 0), position, through, values: position.node(values) };
        let page = places[at].map(|place| (place, Rc::new(page)));
        if let Some((place, page)) = &page {
            media.leaf[usize::from(*place)] = Unit::new(Some(Rc::clone(page)));
        }
        Region::new(vec![Entry { position, page, node: position.node(values) }], 0, 0)
    });
    for generation in [0, 1] {
        let past = Past { runs: Vec::new(), records: 0, kept_from: 0 };
        let image = Image { generation, table: Table::FIRST, past, regions: regions.clone() };
        let superblock = Superblock {
            generation,
            image: usize::from(generation),
            replay_start: 0,
            log_from: 0,
            durable_through: 0,
            previous: 0,
            incarnation: 0,
            number: 0,
            root: values,
        };
        let at = usize::from(generation);
        media.image[at] = Unit::new(Some(Rc::new(image)));
        media.superblock[at] = Unit::new(Some(Rc::new(superblock)));
    }
    let ghost = Ghost { history: vec![(values, 0)], floor: 0, half: None, squeezed: 0, rot: None };
    State { media, process: Process::Down, ghost, budget: scenario.budget }
}

/// A 64-bit fingerprint of anything hashable: stands for record checksums and for states already seen.
pub(crate) fn fingerprint<T: Hash>(value: &T) -> u64 {
    let mut hasher = Mixer(0x9e37_79b9_7f4a_7c15);
    value.hash(&mut hasher);
    hasher.finish()
}

struct Mixer(u64);

impl Mixer {
    fn mix(&mut self, word: u64) {
        let product =
            u128::from(self.0 ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93_a0c8_63a7_9e3b_4d1d);
        self.0 = self.0.rotate_left(23) ^ u64::try_from(product >> 64).expect("64 bits remain");
    }
}

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word) ^ ((chunk.len() as u64) << 56));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }

    fn finish(&self) -> u64 {
        let mut last = Self(self.0);
        last.mix(0x1234_5678_9abc_def1);
        last.0
    }
}
