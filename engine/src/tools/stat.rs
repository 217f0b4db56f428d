//! What is in a folder, without reading a leaf page.

use std::path::Path;

use pleach_core::{Hasher, Node};
use pleach_io::{Device, OpenMode};

use super::{Opened, UnderHasher, device, with_hasher};
use crate::checkpoint::image::image_name;
use crate::error::{Result, hex};
use crate::shared::{LEAF_FILE, OVERFLOW_FILE};
use crate::superblock::{DurabilityMode, SlotError, Superblock};

/// Figures of a database, as recovery sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stat {
    /// Root of the newest commit.
    pub root: Node,
    /// Its number.
    pub commit: u64,
    /// Bytes of its blob.
    pub blob_bytes: usize,
    /// Name of the hasher.
    pub hasher: &'static str,
    /// Leaf pages.
    pub pages: u64,
    /// Prefixes without a page.
    pub empty_prefixes: u64,
    /// Regions of the index.
    pub regions: u64,
    /// Committed changes that are not in a page yet.
    pub pending_entries: u64,
    /// Bytes of memory that those take.
    pub pending_bytes: u64,
    /// Pages of the overflow file in use, and all of them.
    pub overflow_pages: (u64, u64),
    /// Files and their bytes, by name.
    pub files: Vec<(String, u64)>,
    /// Bytes of log that an open replays.
    pub log_replay_bytes: u64,
    /// The newest superblock.
    pub superblock: Superblock,
    /// The other slot.
    pub other_slot: core::result::Result<Superblock, SlotError>,
    /// Writable opens so far.
    pub incarnation: u32,
    /// Files that are missing or too short for what the index names, one line each.
    pub damage: Vec<String>,
}

/// Figures of the folder's database.
///
/// # Errors
/// A folder without a database, one that is open for writing, damage.
pub fn stat(path: &Path) -> Result<Stat> {
    stat_on(&device(path)?)
}

/// The same on any device.
pub fn stat_on<D: Device>(device: &D) -> Result<Stat> {
    with_hasher(device, Figures)
}

struct Figures;

impl<D: Device> UnderHasher<D> for Figures {
    type Output = Stat;

    fn run<H: Hasher>(self, opened: &Opened<D>) -> Result<Stat> {
        let recovered = opened.recover::<H>()?;
        let children: usize =
            recovered.top.regions().iter().map(|region| region.read().cuts.len()).sum();
        let pages = recovered.places.len();
        let mut files = Vec::new();
        for name in opened.device.list()? {
            let file = opened.device.open(&name, OpenMode::Read)?;
            let bytes = opened.device.len(&file)?;
            files.push((name, bytes));
        }
        files.sort();
        let extents = recovered.extents.stats();
        let needed = [
            (LEAF_FILE, recovered.places.iter().max().map_or(0, |place| u64::from(*place) + 1)),
            (OVERFLOW_FILE, extents.pages),
        ];
        let damage = needed.into_iter().filter_map(|(name, pages)| short(&files, name, pages));
        let damage = damage.collect();
        Ok(Stat {
            root: recovered.tip.root,
            commit: recovered.tip.number,
            blob_bytes: recovered.tip.blob.len(),
            hasher: if H::ID == pleach_core::Blake3::ID { "BLAKE3" } else { "SHA-256" },
            pages: pages as u64,
            empty_prefixes: (children - pages) as u64,
            regions: recovered.top.regions().len() as u64,
            pending_entries: recovered.pending_entries as u64,
            pending_bytes: recovered.pending_bytes as u64,
            overflow_pages: (extents.live + extents.pending, extents.pages),
            files,
            log_replay_bytes: recovered
                .scan
                .end
                .position
                .saturating_sub(opened.newest.replay.position),
            superblock: opened.newest,
            other_slot: opened.older,
            incarnation: opened.incarnation,
            damage,
        })
    }
}

/// What is wrong with a file that must have so many pages.
fn short(files: &[(String, u64)], name: &str, pages: u64) -> Option<String> {
    match files.iter().find(|file| file.0 == name) {
        None => Some(format!("the file `{name}` is missing, {pages} pages of it are in use")),
        Some((_, bytes)) if bytes / 4096 < pages => {
            let found = bytes / 4096;
            Some(format!("the file `{name}` has {found} pages, {pages} are in use"))
        }
        Some(_) => None,
    }
}

impl Stat {
    fn file(&self, name: &str) -> u64 {
        self.files.iter().find(|file| file.0 == name).map_or(0, |file| file.1)
    }
}

impl std::fmt::Display for Stat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let block = &self.superblock;
        let geometry = &block.geometry;
        writeln!(f, "root            {}", hex(&self.root))?;
        writeln!(f, "commit          {} (blob of {} bytes)", self.commit, self.blob_bytes)?;
        writeln!(f, "hasher          {}", self.hasher)?;
        writeln!(
            f,
            "leaf pages      {} of {} in the file, {} prefixes without one, {} regions",
            self.pages,
            self.file(LEAF_FILE) / 4096,
            self.empty_prefixes,
            self.regions
        )?;
        writeln!(
            f,
            "overflow pages  {} of {} in use",
            self.overflow_pages.0, self.overflow_pages.1
        )?;
        writeln!(
            f,
            "pending         {} changes, {} bytes",
            self.pending_entries, self.pending_bytes
        )?;
        writeln!(f, "log to replay   {} bytes", self.log_replay_bytes)?;
        write!(
            f,
            "superblock      generation {}, commit {}, {}",
            block.generation,
            block.commit,
            image_name(block.image.file)
        )?;
        match &self.other_slot {
            Ok(other) => writeln!(
                f,
                "; other slot generation {}, commit {}",
                other.generation, other.commit
            )?,
            Err(error) => writeln!(f, "; other slot {error}")?,
        }
        let durability = match block.durability {
            DurabilityMode::Commit => "commit".to_owned(),
            DurabilityMode::Periodic(ms) => format!("every {ms} ms"),
            DurabilityMode::None => "none".to_owned(),
        };
        let closed = if block.clean_end.is_some() { "closed" } else { "not closed" };
        writeln!(
            f,
            "last use        incarnation {}, durability {durability}, {closed}",
            self.incarnation
        )?;
        writeln!(
            f,
            "geometry        segments: leaf {} KiB, overflow {} KiB, log {} KiB; size factor {} %",
            geometry.leaf_segment >> 10,
            geometry.overflow_segment >> 10,
            geometry.log_segment >> 10,
            geometry.size_factor_percent
        )?;
        let total: u64 = self.files.iter().map(|file| file.1).sum();
        for line in &self.damage {
            writeln!(f, "damage          {line}")?;
        }
        write!(f, "files           {total} bytes")?;
        for (name, bytes) in &self.files {
            write!(f, "\n  {name:<22} {bytes:>14}")?;
        }
        Ok(())
    }
}
