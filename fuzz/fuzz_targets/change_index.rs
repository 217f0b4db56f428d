//! Any bytes as the values of a change index: queries, appends and unwinds end, with an answer or an error.
//!
//! The first byte is the length of shards, the second how often the rest is cut: the first piece is the head, the
//! others are what other keys have, in the order in which they are asked for.
#![no_main]

use std::cell::RefCell;
use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use pleach::{Key, Value};
use pleach_change_index::{ChangeIndex, Source};

struct Pieces<'a> {
    pieces: RefCell<std::vec::IntoIter<&'a [u8]>>,
    given: RefCell<BTreeMap<Key, Option<Value>>>,
}

impl Source for Pieces<'_> {
    fn read_many(&self, keys: &[Key]) -> pleach::Result<Vec<Option<Value>>> {
        let next = || self.pieces.borrow_mut().next().map(Value::from);
        let mut given = self.given.borrow_mut();
        Ok(keys.iter().map(|key| given.entry(*key).or_insert_with(next).clone()).collect())
    }
}

fuzz_target!(|data: &[u8]| {
    let [shard, cuts, block, rest @ ..] = data else { return };
    let Ok(index) = ChangeIndex::new(0, u32::from(*shard)) else { return };
    let length = rest.len().div_ceil(usize::from(*cuts) + 1).max(1);
    let pieces: Vec<&[u8]> = rest.chunks(length).collect();
    let source = Pieces { pieces: RefCell::new(pieces.into_iter()), given: RefCell::default() };
    let (key, block) = ([7; 32], u64::from(*block));
    let last = index.last_at(&source, &key, block);
    let next = index.first_after(&source, &key, block);
    if let (Ok(Some(last)), Ok(Some(next))) = (last, next) {
        assert!(last <= block && block < next);
    }
    if let Ok(changes) = index.changes(&source, &key, block..) {
        let changes: Vec<u64> = changes.map_while(Result::ok).collect();
        assert!(changes.iter().all(|change| *change >= block));
    }
    let mut stage = index.stage(&source);
    let _ = stage.append(u64::MAX, &[key]);
    let _ = stage.unwind(&[key], block);
    let _ = stage.append(u64::MAX, &[key]);
    let _ = stage.into_accesses();
});
