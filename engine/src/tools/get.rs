//! Single facts of a closed database: the value of a key, and the commits of the history.

use std::path::Path;

use pleach_beatree::{Stored, Value};
use pleach_core::{Hasher, Key};
use pleach_io::{Device, OpenMode, PageBuf};

use super::{Opened, UnderHasher, device, with_hasher};
use crate::error::Result;
use crate::format::names::{LEAF_FILE, OVERFLOW_FILE};
use crate::open::pages::parse;
use crate::roots::Commit;
use crate::state::overflow::read_from;

/// The value of a key in a namespace of the folder's database; `None` when it has none. It reads one page.
///
/// # Errors
/// A folder without a database, one that is open for writing, damage on the way to the key;
/// [`Error::Namespace`](crate::Error::Namespace) when there is none of this number.
pub fn get(path: &Path, namespace: u8, key: &Key) -> Result<Option<Value>> {
    get_on(&device(path)?, namespace, key)
}

/// The same on any device.
pub fn get_on<D: Device>(device: &D, namespace: u8, key: &Key) -> Result<Option<Value>> {
    with_hasher(device, Get { namespace, key })
}

struct Get<'a> {
    namespace: u8,
    key: &'a Key,
}

impl<D: Device> UnderHasher<D> for Get<'_> {
    type Output = Option<Value>;

    fn run<H: Hasher>(self, opened: &Opened<D>) -> Result<Option<Value>> {
        let Self { namespace, key } = self;
        let recovered = opened.examine_present::<H>()?.recovered;
        let regions = &recovered.trie(namespace)?.regions;
        let state = regions.regions()[regions.find(key)].read();
        let (device, database) = (&opened.device, opened.newest.database);
        let child = state.children().find(key);
        let stored = match (state.pending_of(key), state.children().page(child)) {
            (Some(pending), _) => pending.stored.clone(),
            (None, None) => Stored::Absent,
            (None, Some(number)) => {
                let file = device.open(LEAF_FILE, OpenMode::Read)?;
                let mut buf = PageBuf::zeroed(1);
                device.read_at(&file, &mut buf, number.offset())?;
                let view = parse(&buf, database, namespace, number, state.children().tag(child))?;
                view.find(key).map_or(Stored::Absent, |cell| Stored::from_cell(view.cell(cell)))
            }
        };
        Ok(match stored {
            Stored::Absent => None,
            Stored::Inline(value) => Some(value),
            Stored::Large(large) => Some(large.bytes.clone()),
            Stored::Overflow(raw) => {
                let overflow = device.open(OVERFLOW_FILE, OpenMode::Read)?;
                Some(read_from::<H, D>(device, &overflow, database, &raw)?)
            }
        })
    }
}

/// The commits of the history of the folder's database, and the newest one, ascending.
///
/// # Errors
/// A folder without a database, one that is open for writing, damage.
pub fn history(path: &Path) -> Result<Vec<Commit>> {
    history_on(&device(path)?)
}

/// The same on any device.
pub fn history_on<D: Device>(device: &D) -> Result<Vec<Commit>> {
    with_hasher(device, History)
}

struct History;

impl<D: Device> UnderHasher<D> for History {
    type Output = Vec<Commit>;

    fn run<H: Hasher>(self, opened: &Opened<D>) -> Result<Vec<Commit>> {
        let recovered = opened.examine_without_undo::<H>()?.recovered;
        let newest = recovered.tip.number;
        let past = (recovered.undo.from()..newest).map(|number| {
            let (roots, blob) = recovered.undo.past(number)?;
            Ok(Commit { number, root: roots.first(), roots, blob: blob.to_vec() })
        });
        let mut commits = past.collect::<Result<Vec<Commit>>>()?;
        let (roots, blob) = (recovered.tip.roots, recovered.tip.blob.to_vec());
        commits.push(Commit { number: newest, root: roots.first(), roots, blob });
        Ok(commits)
    }
}
