//! A folder as it was before a repair in place: the files that the repair put aside stand under their first names.
//!
//! Read alone. A log that was cut has its lost commits only here.

use std::collections::BTreeMap;
use std::sync::Arc;

use pleach::Result;
use pleach_io::{
    Device, DeviceInfo, Disk, File, IoError, LockMode, OpenMode, Operation, PageBuf, Queue,
};
use pleach_journal::format::names::parse_segment_name;

/// The beginning of the name of a file that a repair has put aside; a number and a point follow.
const ASIDE: &str = "damaged-";
/// The end of such a name where names could not be exchanged.
const MOVED: &str = ".original";

/// The name that a repair with this number gives to what it puts aside.
pub(super) fn prefix(number: u64) -> String {
    format!("{ASIDE}{number}.")
}

/// The number of the repair that has put a file aside, and the file's first name.
fn parse(aside: &str) -> Option<(u64, &str)> {
    let (number, name) = aside.strip_prefix(ASIDE)?.split_once('.')?;
    Some((number.parse().ok()?, name.strip_suffix(MOVED).unwrap_or(name)))
}

/// A folder before a repair.
#[derive(Clone, Debug)]
struct Originals {
    device: Disk,
    /// Present names by first names.
    names: BTreeMap<String, String>,
    /// The log ends with this segment: those behind it were empty, or did not exist. `None` where no segment was put
    /// aside.
    last_segment: Option<u64>,
}

/// The folder before each repair, and the segment behind its log; the last repair first.
pub(super) fn before_repairs(device: &Disk) -> Result<Vec<(Disk, Option<u64>)>> {
    let mut asides = device.list()?;
    // A file whose name could not be exchanged comes behind its replacement.
    asides.sort_unstable();
    let mut repairs: BTreeMap<u64, Vec<(&str, &str)>> = BTreeMap::new();
    for aside in &asides {
        if let Some((number, name)) = parse(aside) {
            repairs.entry(number).or_default().push((name, aside));
        }
    }
    let mut names = BTreeMap::new();
    let before = repairs.into_values().rev().map(|replaced| {
        let last_segment = replaced.iter().filter_map(|(name, _)| parse_segment_name(name)).max();
        names.extend(replaced.into_iter().map(|(name, aside)| (name.to_owned(), aside.to_owned())));
        let originals = Originals { device: device.clone(), names: names.clone(), last_segment };
        let before: Disk = Arc::new(originals);
        (before, last_segment.map(|last| last + 1))
    });
    Ok(before.collect())
}

impl Originals {
    fn refuse<T>(&self, operation: Operation) -> core::result::Result<T, IoError> {
        let kind = std::io::ErrorKind::ReadOnlyFilesystem;
        Err(IoError::Os {
            file: self.device.info().folder,
            offset: 0,
            operation,
            code: 0,
            kind,
            message: "what a repair has put aside is not written".to_owned(),
        })
    }
}

type IoResult<T> = core::result::Result<T, IoError>;

impl Device for Originals {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn list(&self) -> IoResult<Vec<String>> {
        let mut names = self.device.list()?;
        let is_behind = |name: &String| {
            parse_segment_name(name)
                .is_some_and(|index| self.last_segment.is_some_and(|last| index > last))
        };
        names.retain(|name| !self.names.contains_key(name) && !is_behind(name));
        names.extend(self.names.keys().cloned());
        Ok(names)
    }

    fn open(&self, name: &str, mode: OpenMode) -> IoResult<File> {
        match mode {
            OpenMode::Read => {
                self.device.open(self.names.get(name).map_or(name, |aside| aside), mode)
            }
            _ => self.refuse(Operation::Open),
        }
    }

    fn len(&self, file: &File) -> IoResult<u64> {
        self.device.len(file)
    }

    fn read_at(&self, file: &File, buf: &mut PageBuf, offset: u64) -> IoResult<()> {
        self.device.read_at(file, buf, offset)
    }

    fn queue(&self, depth: usize) -> IoResult<Box<dyn Queue>> {
        self.device.queue(depth)
    }

    fn lock(&self, mode: LockMode) -> IoResult<Box<dyn Send + Sync>> {
        self.device.lock(mode)
    }

    fn free_space(&self) -> IoResult<(u64, u64)> {
        self.device.free_space()
    }

    fn remove(&self, _: &str) -> IoResult<()> {
        self.refuse(Operation::Remove)
    }

    fn rename(&self, _: &str, _: &str) -> IoResult<()> {
        self.refuse(Operation::Rename)
    }

    fn exchange(&self, _: &str, _: &str) -> IoResult<bool> {
        self.refuse(Operation::Exchange)
    }

    fn sync_folder(&self) -> IoResult<()> {
        self.refuse(Operation::SyncFolder)
    }

    fn set_len(&self, _: &File, _: u64) -> IoResult<()> {
        self.refuse(Operation::Resize)
    }

    fn allocate(&self, _: &File, _: u64, _: u64) -> IoResult<()> {
        self.refuse(Operation::Allocate)
    }

    fn write_bytes(&self, _: &File, _: &PageBuf, _: usize, _: u64) -> IoResult<()> {
        self.refuse(Operation::Write)
    }

    fn sync(&self, _: &File) -> IoResult<()> {
        self.refuse(Operation::Sync)
    }
}
