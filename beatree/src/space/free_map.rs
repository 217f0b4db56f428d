//! The free map of the overflow file as bytes, for an image.
//!
//! ```text
//! 0           8            16
//! | pages 8   | count 8    | count runs: start 8 | length 8 |
//! ```
//!
//! Little-endian. Runs are in address order, not empty, inside the file and never adjacent, so a
//! state has one encoding. The checksum is that of the pages which carry these bytes.

use super::SpaceError;

const PAGES: usize = 0;
const COUNT: usize = PAGES + 8;
const RUNS: usize = COUNT + 8;
const RUN_SIZE: usize = 16;

pub(super) fn encode(
    pages: u64,
    count: usize,
    runs: impl Iterator<Item = (u64, u64)>,
    out: &mut Vec<u8>,
) {
    out.reserve(RUNS + count * RUN_SIZE);
    out.extend(pages.to_le_bytes());
    out.extend((count as u64).to_le_bytes());
    for (start, len) in runs {
        out.extend(start.to_le_bytes());
        out.extend(len.to_le_bytes());
    }
}

/// Validates a free map: the pages of the file, and the start and the length of each free run.
pub(super) fn parse(bytes: &[u8]) -> Result<(u64, impl Iterator<Item = (u64, u64)>), SpaceError> {
    let fail = |what, offset| Err(SpaceError::FreeMap { what, offset });
    let (Some(pages), Some(count)) = (u64_at(bytes, PAGES), u64_at(bytes, COUNT)) else {
        return fail("too short", bytes.len());
    };
    let (runs, rest) = bytes[RUNS..].as_chunks::<RUN_SIZE>();
    if !rest.is_empty() || runs.len() as u64 != count {
        return fail("length and count disagree", COUNT);
    }
    // The next run may start only after this page: adjacent ones would be one run.
    let mut least = 0;
    for (index, (start, len)) in runs.iter().map(run).enumerate() {
        let offset = RUNS + index * RUN_SIZE;
        let end = start.checked_add(len);
        if start < least {
            return fail("runs overlap, touch or are out of order", offset);
        }
        match end {
            Some(end) if len > 0 && end <= pages => least = end + 1,
            _ => return fail("a run is empty or leaves the file", offset),
        }
    }
    Ok((pages, runs.iter().map(run)))
}

fn run(bytes: &[u8; RUN_SIZE]) -> (u64, u64) {
    let (halves, _) = bytes.as_chunks::<8>();
    (u64::from_le_bytes(halves[0]), u64::from_le_bytes(halves[1]))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk::<8>().map(|word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_these() {
        let mut bytes = Vec::new();
        encode(0x20, 2, [(1, 3), (8, 2)].into_iter(), &mut bytes);
        let mut golden = vec![0x20, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        golden.extend([1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend([8, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes, golden);
        let (pages, runs) = parse(&bytes).unwrap();
        assert_eq!((pages, runs.collect::<Vec<_>>()), (0x20, vec![(1, 3), (8, 2)]));
    }

    #[test]
    fn what_no_allocator_writes_is_refused() {
        let maps: [(u64, &[(u64, u64)]); 7] = [
            (32, &[(0, 0)]),
            (32, &[(30, 3)]),
            (32, &[(u64::MAX, 2)]),
            (32, &[(4, 2), (6, 1)]),
            (32, &[(4, 2), (5, 1)]),
            (32, &[(9, 2), (4, 1)]),
            (0, &[(0, 1)]),
        ];
        for (pages, runs) in maps {
            let mut bytes = Vec::new();
            encode(pages, runs.len(), runs.iter().copied(), &mut bytes);
            assert!(parse(&bytes).is_err(), "{pages} {runs:?}");
        }
    }
}
