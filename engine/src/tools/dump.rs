//! All pairs of a namespace in key order: pages and what pends on them, merged.

use std::path::Path;

use pleach_beatree::Stored;
use pleach_core::{Hasher, Key};
use pleach_io::{Device, OpenMode};

use super::{Opened, UnderHasher, device, with_hasher};
use crate::error::Result;
use crate::format::names::{LEAF_FILE, OVERFLOW_FILE};
use crate::open::pages::{parse, visit};
use crate::open::recovery::RecoveredTrie;
use crate::state::overflow::read_from;

/// Gives all pairs of a namespace of the folder's database to `each`, in key order, until it says false.
///
/// # Errors
/// A folder without a database, one that is open for writing, damage; [`Error::Namespace`](crate::Error::Namespace)
/// when there is none of this number.
pub fn dump(path: &Path, namespace: u8, each: &mut dyn FnMut(&Key, &[u8]) -> bool) -> Result<()> {
    dump_on(&device(path)?, namespace, each)
}

/// The same on any device.
pub fn dump_on<D: Device>(
    device: &D,
    namespace: u8,
    each: &mut dyn FnMut(&Key, &[u8]) -> bool,
) -> Result<()> {
    with_hasher(device, Dump { namespace, each })
}

struct Dump<'a> {
    namespace: u8,
    each: &'a mut dyn FnMut(&Key, &[u8]) -> bool,
}

impl<D: Device> UnderHasher<D> for Dump<'_> {
    type Output = ();

    fn run<H: Hasher>(self, opened: &Opened<D>) -> Result<()> {
        let recovered = opened.examine_present::<H>()?.recovered;
        let each = self.each;
        let trie = recovered.trie(self.namespace)?;
        pairs::<H, D>(opened, trie, |key, value| Ok(each(key, value)))
    }
}

/// Gives all pairs of a trie to `each`, in key order, until it says false.
pub(crate) fn pairs<H: Hasher, D: Device>(
    opened: &Opened<D>,
    trie: &RecoveredTrie,
    mut each: impl FnMut(&Key, &[u8]) -> Result<bool>,
) -> Result<()> {
    let (device, database, namespace) = (&opened.device, opened.newest.database, trie.namespace);
    let leaf = device.open(LEAF_FILE, OpenMode::Read)?;
    let overflow = device.open(OVERFLOW_FILE, OpenMode::Read)?;
    visit(device, &leaf, &trie.regions, |visited| {
        let state = visited.region.read();
        let child = visited.child;
        let pending = state.pending_below(&state.children().prefix(child));
        let mut pairs: Vec<(Key, Stored)> = Vec::new();
        if let (Some(page), Some(number)) = (visited.page, state.children().page(child)) {
            let buf = page?;
            let view = parse(&buf, database, namespace, number, state.children().tag(child))?;
            let cells = view.iter().map(|(key, cell)| (key, Stored::from_cell(cell)));
            pairs.extend(cells);
        }
        let changes = pending.iter().map(|pending| (pending.key, pending.stored.clone()));
        crate::state::view::put_over(&mut pairs, 0, changes);
        for (key, stored) in pairs {
            let value = match stored {
                Stored::Absent => continue,
                Stored::Inline(value) => value,
                Stored::Large(large) => large.bytes.clone(),
                Stored::Overflow(raw) => read_from::<H, D>(device, &overflow, database, &raw)?,
            };
            if !each(&key, &value)? {
                return Ok(false);
            }
        }
        Ok(true)
    })
}
