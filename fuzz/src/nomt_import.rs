//! The files of a small folder of the crate `nomt`, changed as the input says. The importer reads them to an end, whatever they say, and
//! without a change it finds the pairs.
//!
//! Input: changes, each a byte for the file, one for the page, two for the place in it, one for how many bytes follow, and these.

use std::fs;
use std::path::Path;

use pleach_core::Hasher;

use crate::Input;

const PAGE: usize = 4096;
/// Changes of one input.
const CHANGES: usize = 64;

/// One input.
pub fn run(data: &[u8]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut files = [meta(), nodes(), leaves()];
    let mut input = Input(data);
    for _ in 0..CHANGES {
        if input.0.is_empty() {
            break;
        }
        let (file, page) = (usize::from(input.u8()) % files.len(), usize::from(input.u8()));
        let (at, count) = (usize::from(input.u16()) % PAGE, input.u8());
        let file = &mut files[file];
        let start = page * PAGE % file.len() + at;
        let end = file.len().min(start + usize::from(count));
        file[start..end].fill_with(|| input.u8());
    }
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes);
    write(".lock", &[]).expect("written");
    for (name, bytes) in ["meta", "bbn", "ln"].into_iter().zip(&files) {
        write(name, bytes).expect("written");
    }
    let found = pairs(folder.path(), files[2].len());
    if data.is_empty() {
        let found: Vec<_> = found.iter().map(|(key, value)| (key[0], value.len())).collect();
        assert_eq!(found, [(2, 5), (1, 3), (3, 6000)]);
    }
}

/// The pairs before the first error. No value is longer than the file.
fn pairs(folder: &Path, most: usize) -> Vec<([u8; 32], Vec<u8>)> {
    let Ok(pairs) = nomt::import::pairs(folder, Hasher::BLAKE3) else { return Vec::new() };
    pairs.map_while(Result::ok).inspect(|(_, value)| assert!(value.len() <= most)).collect()
}

fn meta() -> Vec<u8> {
    let mut page = vec![0; PAGE];
    page[..4].copy_from_slice(b"NOMT");
    // Version, free leaves, their end, free nodes, their end.
    numbers(&mut page[4..], &[1, 0, 5, 2, 4]);
    page
}

fn nodes() -> Vec<u8> {
    let mut pages = vec![0; 4 * PAGE];
    // The node in page 1 names two leaves; page 2 is the list of free pages, which has page 3.
    numbers(&mut pages[PAGE..], &[1, 2]);
    numbers(&mut pages[2 * PAGE - 8..], &[1, 2]);
    pages[2 * PAGE + 4] = 1;
    numbers(&mut pages[2 * PAGE + 6..], &[3]);
    pages
}

fn leaves() -> Vec<u8> {
    let mut pages = vec![0; 5 * PAGE];
    let hash = Hasher::BLAKE3.hash(&[0; 6000]);
    let long = [&6000_u64.to_le_bytes()[..], &hash, &3_u32.to_le_bytes(), &4_u32.to_le_bytes()];
    leaf(&mut pages[PAGE..2 * PAGE], &[(1, false, &[7; 3]), (2, false, &[8; 5])]);
    leaf(&mut pages[2 * PAGE..3 * PAGE], &[(3, true, &long.concat())]);
    for (page, bytes) in [(3, 4000_u16), (4, 2000)] {
        pages[page * PAGE + 2..][..2].copy_from_slice(&bytes.to_le_bytes());
    }
    pages
}

fn leaf(page: &mut [u8], pairs: &[(u8, bool, &[u8])]) {
    let mut start = PAGE - pairs.iter().map(|(_, _, value)| value.len()).sum::<usize>();
    page[..2].copy_from_slice(&u16::try_from(pairs.len()).expect("few").to_le_bytes());
    for (cell, (key, is_long, value)) in (2..).step_by(34).zip(pairs) {
        let offset = u16::try_from(start).expect("in a page") | if *is_long { 0x8000 } else { 0 };
        page[cell] = *key;
        page[cell + 32..][..2].copy_from_slice(&offset.to_le_bytes());
        page[start..][..value.len()].copy_from_slice(value);
        start += value.len();
    }
}

fn numbers(page: &mut [u8], numbers: &[u32]) {
    for (place, number) in page.chunks_exact_mut(4).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
}
