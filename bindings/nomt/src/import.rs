//! The pairs of a folder that the crate `nomt` 1.0 has written.
//!
//! Three of its files are read. `meta` says how far the other two go and which of their pages are free; `bbn` has the
//! lowest nodes of its B-tree, of which only the numbers of leaves matter here; `ln` has the leaves, with whole keys,
//! and the pages of long values. A commit of the crate has written them when it returns, so that a folder can be read
//! that was not closed.
//!
//! The files have no checksums. Checked are lengths and numbers, the hash beside each long value, and that no leaf is
//! empty which a node names. Other damage only shows in the root.
//!
//! ```text
//! meta      magic 4 | version u32 | free leaves u32 | leaves end u32 | free nodes u32 | nodes end u32
//! free page next free page u32, 0 at the end | count u16 | pages u32
//! node      own number u32 | count u16 | ... | leaves u32, at the end of the page
//! leaf      count u16 | of each: key 32, offset of its value u16, with 0x8000 where it is long | values, the last at the end
//! long      bytes u64 | hash 32 | up to 15 pages u32; each has: count u16 | bytes u16 | further pages u32 | bytes
//! ```

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use pleach::Hasher;

use crate::{Value, trie::KeyPath};

const PAGE: usize = 4096;
const DAMAGED: &str = "lengths or numbers of pages do not fit";

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().context(DAMAGED)
}

fn short(bytes: &[u8], at: usize) -> Result<usize> {
    Ok(u16::from_le_bytes(array(bytes, at)?).into())
}

fn number(bytes: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from_le_bytes(array(bytes, at)?))
}

fn numbers(bytes: &[u8], at: usize, count: usize) -> Result<Vec<u32>> {
    (0..count).map(|index| number(bytes, at + 4 * index)).collect()
}

fn page(file: &File, number: u32) -> Result<[u8; PAGE]> {
    let mut page = [0; PAGE];
    file.read_exact_at(&mut page, u64::from(number) * PAGE as u64).context(DAMAGED)?;
    Ok(page)
}

/// All pairs, in no order; long values have hashes of this kind. The folder is locked against writers while the
/// iterator lives.
pub fn pairs(
    folder: &Path,
    hasher: Hasher,
) -> Result<impl Iterator<Item = Result<(KeyPath, Value)>>> {
    let name = folder.display().to_string();
    let foreign = || format!("{name} is no folder of NOMT 1.0");
    let open = |name| File::open(folder.join(name)).with_context(|| format!("no file `{name}`"));
    let open = |name| open(name).with_context(foreign);
    let (lock, meta, nodes, leaves) = (open(".lock")?, open("meta")?, open("bbn")?, open("ln")?);
    lock.try_lock().with_context(|| format!("the crate `nomt` has the folder open: {name}"))?;
    let meta = page(&meta, 0).with_context(foreign)?;
    let version = number(&meta, 4)?;
    ensure!(
        meta.starts_with(b"NOMT") && version == 1,
        "{}: version {version} of `meta` is not known",
        foreign()
    );
    let damaged = move || format!("the folder of the crate `nomt` is damaged: {name}");
    let all = leaves_of(&meta, &nodes).with_context(&damaged)?;
    Ok(all.into_iter().flat_map(move |leaf| {
        let _locked = &lock;
        let pairs = pairs_of(&leaves, leaf, hasher).with_context(&damaged);
        pairs.unwrap_or_else(|error| vec![Err(error)])
    }))
}

/// The leaves that nodes name.
fn leaves_of(meta: &[u8; PAGE], nodes: &File) -> Result<Vec<u32>> {
    let free = free_pages(nodes, number(meta, 16)?)?;
    let mut all = Vec::new();
    for own in (1..number(meta, 20)?).filter(|own| !free.contains(own)) {
        let node = page(nodes, own)?;
        // Pages that were never written are zero.
        if node != [0; PAGE] {
            let count = short(&node, 4)?;
            ensure!(number(&node, 0)? == own && 4 * count < PAGE, DAMAGED);
            all.extend(numbers(&node, PAGE - 4 * count, count)?);
        }
    }
    Ok(all)
}

/// The free pages of a file, and those of the list itself.
fn free_pages(file: &File, mut next: u32) -> Result<BTreeSet<u32>> {
    let (mut free, mut list) = (BTreeSet::new(), BTreeSet::new());
    while next != 0 {
        ensure!(list.insert(next), DAMAGED);
        let page = page(file, next)?;
        free.extend(numbers(&page, 6, short(&page, 4)?)?);
        next = number(&page, 0)?;
    }
    free.append(&mut list);
    Ok(free)
}

fn pairs_of(leaves: &File, number: u32, hasher: Hasher) -> Result<Vec<Result<(KeyPath, Value)>>> {
    let leaf = page(leaves, number)?;
    let (mut pairs, mut end) = (Vec::new(), PAGE);
    ensure!(short(&leaf, 0)? > 0, "a node names leaf {number}, which has no pairs");
    for at in (0..short(&leaf, 0)?).rev().map(|index| 2 + 34 * index) {
        let offset = short(&leaf, at + 32)?;
        let (start, is_long) = (offset & 0x7fff, offset & 0x8000 != 0);
        let bytes = leaf.get(start..end).context(DAMAGED)?;
        let value = if is_long { long_value(leaves, bytes, hasher)? } else { bytes.to_vec() };
        pairs.push(Ok((array(&leaf, at)?, value)));
        end = start;
    }
    Ok(pairs)
}

fn long_value(leaves: &File, cell: &[u8], hasher: Hasher) -> Result<Value> {
    let len = u64::from_le_bytes(array(cell, 0)?);
    // A file limits its pages, however often a damaged page names them.
    let most = usize::try_from(leaves.metadata()?.len()).context(DAMAGED)?;
    ensure!(len <= most as u64, DAMAGED);
    let mut pages = numbers(cell, 40, cell.len().saturating_sub(40) / 4)?;
    let (mut value, mut read) = (Vec::new(), 0);
    while let Some(next) = pages.get(read) {
        let page = page(leaves, *next)?;
        let (further, bytes) = (short(&page, 0)?, short(&page, 2)?);
        pages.extend(numbers(&page, 4, further)?);
        ensure!(pages.len() <= most / PAGE, DAMAGED);
        let from = 4 + 4 * further;
        value.extend_from_slice(page.get(from..from + bytes).context(DAMAGED)?);
        read += 1;
        ensure!(value.len() as u64 <= len && read <= value.len(), DAMAGED);
    }
    ensure!(value.len() as u64 == len, DAMAGED);
    ensure!(
        hasher.hash(&value) == array(cell, 8)?,
        "a long value does not have the hash beside it, or the folder has another hasher"
    );
    Ok(value)
}
