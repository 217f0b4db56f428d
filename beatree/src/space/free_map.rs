//! The free map of the overflow file as bytes, for an image.
//!
//! ```text
//! 0           8            16
//! | pages 8   | count 8    | count extents: start 8 | length 8 |
//! ```
//!
//! Little-endian. Extents are in address order, not empty, inside the file and never adjacent, so a
//! state has one encoding. The checksum is that of the pages which carry these bytes.

use super::SpaceError;

const PAGES: usize = 0;
const COUNT: usize = PAGES + 8;
const EXTENTS: usize = COUNT + 8;
const EXTENT_SIZE: usize = 16;

pub(super) fn encode(
    pages: u64,
    count: usize,
    extents: impl Iterator<Item = (u64, u64)>,
    out: &mut Vec<u8>,
) {
    out.reserve(EXTENTS + count * EXTENT_SIZE);
    out.extend(pages.to_le_bytes());
    out.extend((count as u64).to_le_bytes());
    for (start, len) in extents {
        out.extend(start.to_le_bytes());
        out.extend(len.to_le_bytes());
    }
}

/// Validates a free map: the pages of the file, and the start and the length of each free extent.
pub(super) fn parse(bytes: &[u8]) -> Result<(u64, impl Iterator<Item = (u64, u64)>), SpaceError> {
    let fail = |what, offset| Err(SpaceError::FreeMap { what, offset });
    let (Some(pages), Some(count)) = (u64_at(bytes, PAGES), u64_at(bytes, COUNT)) else {
        return fail("too short", bytes.len());
    };
    let (extents, rest) = bytes[EXTENTS..].as_chunks::<EXTENT_SIZE>();
    if !rest.is_empty() || extents.len() as u64 != count {
        return fail("length and count disagree", COUNT);
    }
    // The next extent may start only after this page: adjacent ones would be one extent.
    let mut least = 0;
    for (index, (start, len)) in extents.iter().map(extent).enumerate() {
        let offset = EXTENTS + index * EXTENT_SIZE;
        let end = start.checked_add(len);
        if start < least {
            return fail("extents overlap, touch or are out of order", offset);
        }
        match end {
            Some(end) if len > 0 && end <= pages => least = end + 1,
            _ => return fail("an extent is empty or leaves the file", offset),
        }
    }
    Ok((pages, extents.iter().map(extent)))
}

fn extent(bytes: &[u8; EXTENT_SIZE]) -> (u64, u64) {
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
        let (pages, extents) = parse(&bytes).unwrap();
        assert_eq!((pages, extents.collect::<Vec<_>>()), (0x20, vec![(1, 3), (8, 2)]));
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
        for (pages, extents) in maps {
            let mut bytes = Vec::new();
            encode(pages, extents.len(), extents.iter().copied(), &mut bytes);
            assert!(parse(&bytes).is_err(), "{pages} {extents:?}");
        }
    }
}
