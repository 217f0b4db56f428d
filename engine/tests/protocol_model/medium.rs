//! The medium: what FAULTS assumes of a disk and its cache, and nothing more.
//!
//! A *unit* is what the formats protect with one checksum: a log record, a leaf page, an image, a superblock slot, a copy of the
//! incarnation. After a power failure a unit with an unfinished write holds the old bytes, the new ones, or bytes that no
//! checksum accepts; zeros and garbage are the same to a reader, so both are `None` here. Units are independent: nothing
//! keeps unsynced writes in order.
//!
//! A failed sync may leave bytes that every read returns and that no later sync will write: visible, and lost.

use std::rc::Rc;

use crate::history::Extent;
use crate::region::Page;
use crate::state::{EXTENTS, Image, PLACES, Record, Superblock};

/// One separately checksummed piece of a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Unit<T> {
    /// What a power failure now would leave, if nothing is on its way.
    durable: Option<T>,
    /// What reads return instead, when the cache holds something newer.
    cached: Option<T>,
    /// Whether the next successful sync writes `cached`.
    dirty: bool,
}

/// What a failed sync leaves of the writes it should have covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Aftermath {
    /// Reads return the new bytes, the medium keeps the old ones, later syncs succeed and do nothing.
    VisibleButLost,
    /// The same, but the medium holds neither.
    VisibleOverGarbage,
    /// Reads return the old bytes again.
    OldBack,
    /// Reads and medium hold neither.
    Garbage,
}

pub(crate) const AFTERMATHS: [Aftermath; 4] = [
    Aftermath::VisibleButLost,
    Aftermath::VisibleOverGarbage,
    Aftermath::OldBack,
    Aftermath::Garbage,
];

impl<T> Unit<T> {
    pub(crate) const EMPTY: Self = Self { durable: None, cached: None, dirty: false };
}

impl<T: Clone> Unit<T> {
    pub(crate) fn new(durable: Option<T>) -> Self {
        Self { durable, cached: None, dirty: false }
    }

    pub(crate) fn visible(&self) -> Option<&T> {
        self.cached.as_ref().or(self.durable.as_ref())
    }

    pub(crate) fn write(&mut self, value: T) {
        self.cached = Some(value);
        self.dirty = true;
    }

    pub(crate) fn sync(&mut self) {
        if self.dirty {
            self.durable = self.cached.take();
            self.dirty = false;
        }
    }

    pub(crate) fn fail_sync(&mut self, aftermath: Aftermath) {
        if !self.dirty {
            return;
        }
        self.dirty = false;
        match aftermath {
            Aftermath::VisibleButLost => {}
            Aftermath::VisibleOverGarbage => self.durable = None,
            Aftermath::OldBack => self.cached = None,
            Aftermath::Garbage => *self = Self::new(None),
        }
    }

    /// Puts a synced copy in place of what is there, as a rename of a synced file does.
    pub(crate) fn replace_by_copy(&mut self) {
        *self = Self::new(self.visible().cloned());
    }

    /// Makes the bytes unreadable for good: rot, or a recycled log segment.
    pub(crate) fn destroy(&mut self) {
        *self = Self::new(None);
    }

    fn after_power_failure(&self) -> Vec<Self> {
        let mut outcomes = vec![Self::new(self.durable.clone())];
        if self.dirty {
            outcomes.push(Self::new(self.cached.clone()));
            if self.durable.is_some() {
                outcomes.push(Self::new(None));
            }
        }
        outcomes
    }
}

/// All files of one database.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Media {
    /// By absolute position. A segment holds one record, so retention is by record.
    pub(crate) log: Vec<Unit<Rc<Record>>>,
    pub(crate) leaf: [Unit<Rc<Page>>; PLACES],
    /// Pages of the leaf file. A length that is cut is cut at once; the longer one would do, too.
    pub(crate) leaf_len: usize,
    /// The extents of the overflow file.
    pub(crate) overflow: [Unit<Extent>; EXTENTS],
    pub(crate) image: [Unit<Rc<Image>>; 2],
    pub(crate) superblock: [Unit<Rc<Superblock>>; 2],
    pub(crate) incarnation: [Unit<u8>; 2],
}

impl Media {
    /// Without a generation, and with a leaf file of this length.
    pub(crate) fn new(leaf_len: usize) -> Self {
        Self {
            log: Vec::new(),
            leaf: [const { Unit::EMPTY }; PLACES],
            leaf_len,
            overflow: [const { Unit::EMPTY }; EXTENTS],
            image: [const { Unit::EMPTY }; 2],
            superblock: [const { Unit::EMPTY }; 2],
            incarnation: [Unit::new(Some(0)), Unit::new(Some(0))],
        }
    }

    pub(crate) fn write_record(&mut self, record: &Rc<Record>) {
        let position = usize::from(record.position);
        while self.log.len() <= position {
            self.log.push(Unit::new(None));
        }
        self.log[position].write(Rc::clone(record));
    }

    /// Every state in which a power failure may leave the medium.
    pub(crate) fn after_power_failure(&self) -> Vec<Self> {
        let mut all = vec![self.clone()];
        for at in 0..self.log.len() {
            all = branch(all, &self.log[at], |media| &mut media.log[at]);
        }
        for at in 0..PLACES {
            all = branch(all, &self.leaf[at], |media| &mut media.leaf[at]);
        }
        for at in 0..EXTENTS {
            all = branch(all, &self.overflow[at], |media| &mut media.overflow[at]);
        }
        for at in 0..2 {
            all = branch(all, &self.image[at], |media| &mut media.image[at]);
            all = branch(all, &self.superblock[at], |media| &mut media.superblock[at]);
            all = branch(all, &self.incarnation[at], |media| &mut media.incarnation[at]);
        }
        all
    }
}

fn branch<T: Clone>(
    all: Vec<Media>,
    unit: &Unit<T>,
    slot: impl Fn(&mut Media) -> &mut Unit<T>,
) -> Vec<Media> {
    let outcomes = unit.after_power_failure();
    let mut next = Vec::with_capacity(all.len() * outcomes.len());
    for media in all {
        for outcome in &outcomes {
            let mut media = media.clone();
            *slot(&mut media) = outcome.clone();
            next.push(media);
        }
    }
    next
}
