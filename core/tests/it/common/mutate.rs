//! Changes to a valid encoding: flips, cuts, insertions, swaps.

use rand_chacha::ChaCha8Rng;
use rand_core::RngCore;

use super::below;

/// Changes `bytes` in one of the ways that forgers and bad disks do.
pub(crate) fn mutate(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        bytes.push(rng.next_u32().to_le_bytes()[0]);
        return;
    }
    let at = below(rng, bytes.len());
    match rng.next_u32() % 9 {
        0 => bytes[at] ^= 1 << (rng.next_u32() % 8),
        1 => bytes[at] = rng.next_u32().to_le_bytes()[0],
        2 => bytes.truncate(at),
        3 => {
            let len = [1, 2, 32, 33, 66][below(rng, 5)].min(bytes.len() - at);
            bytes.drain(at..at + len);
        }
        4 => {
            let len = [1, 2, 32, 33, 66][below(rng, 5)];
            let mut more = vec![0; len];
            rng.fill_bytes(&mut more);
            bytes.splice(at..at, more);
        }
        5 => {
            let len = [1, 32, 33, 66][below(rng, 4)].min(bytes.len() - at);
            let copy = bytes[at..at + len].to_vec();
            let to = below(rng, bytes.len());
            bytes.splice(to..to, copy);
        }
        6 => {
            let other = below(rng, bytes.len());
            let len = 32.min(bytes.len() - at.max(other));
            for i in 0..len {
                bytes.swap(at + i, other + i);
            }
        }
        7 => {
            // A count or length of the header, off by one or by a record.
            let field = 8 + 4 * below(rng, 6);
            if let Some(word) = bytes.get_mut(field..field + 4) {
                let by = [1, 2, 32, 66, u32::MAX, 0x8000_0000][below(rng, 6)];
                let value = u32::from_le_bytes(word.try_into().unwrap());
                word.copy_from_slice(&value.wrapping_add(by).to_le_bytes());
            }
        }
        _ => {
            let len = 32.min(bytes.len() - at);
            bytes[at..at + len].fill([0, 0xff][below(rng, 2)]);
        }
    }
}
