//! Reading a batch's keys with several threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use pleach_core::Key;

use crate::error::{BenchError, Result};

/// Keys that a thread takes at a time. Few, so that all threads together read the keys in the order
/// in which they were announced.
const BLOCK: usize = 64;

/// Reads all keys and returns the results in their order. `readers` threads share the work; the
/// calling thread is one of them.
pub(crate) fn read_with<T: Send>(
    keys: &[Key],
    readers: usize,
    read: impl Fn(&Key) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let readers = readers.min(keys.len().div_ceil(BLOCK));
    if readers <= 1 {
        return keys.iter().map(read).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, Vec<T>)>> {
        let mut blocks = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(block) = keys.chunks(BLOCK).nth(index) else { return Ok(blocks) };
            blocks.push((index, block.iter().map(&read).collect::<Result<_>>()?));
        }
    };
    let parts = std::thread::scope(|scope| {
        let others: Vec<_> = (1..readers).map(|_| scope.spawn(work)).collect();
        let mut parts = vec![work()];
        parts.extend(others.into_iter().map(|other| {
            other.join().unwrap_or_else(|_| Err(BenchError::Wrong("a reader panicked".to_owned())))
        }));
        parts
    });
    let mut blocks = Vec::new();
    for part in parts {
        blocks.append(&mut part?);
    }
    blocks.sort_unstable_by_key(|(index, _)| *index);
    Ok(blocks.into_iter().flat_map(|(_, block)| block).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_in_the_order_of_their_keys_and_errors_come_through() {
        let keys: Vec<Key> = (0..=255).flat_map(|a| [[a; 32], [255 - a; 32]]).collect();
        for readers in [1, 2, 7] {
            let values = read_with(&keys, readers, |key| Ok(key[0]));
            let expected: Vec<u8> = keys.iter().map(|key| key[0]).collect();
            assert_eq!(values.expect("no error"), expected);
            let failed = read_with(&keys, readers, |key| match key[0] {
                200 => Err(BenchError::Wrong("200".to_owned())),
                _ => Ok(()),
            });
            assert!(failed.is_err());
        }
    }
}
