use std::collections::BTreeMap;

use pleach_core::{Hasher, Key};

use super::*;

/// Runs the last task first: no order of tasks may change the result.
fn backwards(count: usize, task: &(dyn Fn(usize) + Sync)) {
    (0..count).rev().for_each(task);
}

fn at_once(count: usize, task: &(dyn Fn(usize) + Sync)) {
    std::thread::scope(|scope| (0..count).for_each(|at| drop(scope.spawn(move || task(at)))));
}

/// Runs tasks.
type Run = fn(usize, &(dyn Fn(usize) + Sync));

/// Keys of one form.
type Form = fn(usize) -> Key;

/// Spread; of one lead; of one first byte; ascending.
const FORMS: [Form; 4] = [
    |id| Hasher::BLAKE3.hash(&id.to_le_bytes()),
    |id| {
        let mut key = [7; 32];
        key[24..].copy_from_slice(&id.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        key
    },
    |id| {
        let mut key = Hasher::BLAKE3.hash(&id.to_le_bytes());
        key[0] = 9;
        key
    },
    |id| {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&(id as u64).to_be_bytes());
        key
    },
];

fn access(key: Key, id: usize) -> Access {
    let value = |len| Some(Value::from(vec![id.to_le_bytes()[0]; len]));
    match id % 5 {
        0 => Access::read(key),
        1 => Access::write(key, None),
        2 => Access::read_write(key, value(8)),
        3 => Access::write(key, value(100)),
        _ => Access::read_write(key, value(2000)),
    }
}

#[test]
fn accesses_come_in_order_whatever_their_keys_and_whoever_sorts_them() {
    let mut sorter = Sorter::default();
    for (form, key) in FORMS.into_iter().enumerate() {
        let runs: [(usize, Run); 4] =
            [(0, backwards), (1, backwards), (300, backwards), (9000, at_once)];
        for (count, run) in runs {
            let one = |id| {
                access(key(id), id)
                    .in_namespace([0, 3, 3, 200][id % 4 * usize::from(form % 2 == 0)])
            };
            let accesses: Vec<Access> = (0..count).map(one).collect();
            let expected: BTreeMap<(u8, Key), usize> =
                (0..count).map(|id| ((accesses[id].namespace, accesses[id].key), id)).collect();
            let before = accesses.clone();
            let sorted = sorter.sort(Hasher::BLAKE3, &accesses, &run).expect("each key once");
            let found = sorted
                .namespaces()
                .flat_map(|(namespace, part)| part.iter().map(move |access| (namespace, access)));
            let mut expected = expected.into_iter();
            for (namespace, found) in found {
                let ((own, key), id) = expected.next().expect("no more than there are");
                let same = key_access(Hasher::BLAKE3, &accesses[id]).expect("short");
                assert_eq!((namespace, found), (own, &KeyAccess { key, ..same }));
            }
            assert!(expected.next().is_none(), "all are there");
            assert_eq!(accesses, before);
        }
    }
}

#[test]
fn a_key_that_comes_twice_is_named_and_long_values_do_not_stay() {
    let mut accesses: Vec<Access> = (0..9000).map(|id| access(FORMS[0](id), id)).collect();
    let mut sorter = Sorter::default();
    let long = Value::from(vec![201; 3000]);
    accesses[4] = Access::write(accesses[4].key, Some(long.clone()));
    assert!(sorter.sort(Hasher::BLAKE3, &accesses, &backwards).is_ok());
    let holds = |sorter: &Sorter| {
        let values = sorter.sorted.iter().filter_map(|access| access.writes.as_ref());
        values.filter(|stored| matches!(stored, Stored::Long(large) if large.bytes == long)).count()
    };
    assert_eq!(holds(&sorter), 1);
    sorter.clear();
    assert_eq!(holds(&sorter), 0);
    let bytes = sorter.bytes();
    accesses.push(Access::read(accesses[17].key));
    let twice = sorter.sort(Hasher::BLAKE3, &accesses, &at_once).err();
    assert!(matches!(twice, Some(Error::RepeatedKey(key)) if key == accesses[17].key));
    sorter.clear();
    assert_eq!(holds(&sorter), 0, "after a failure, too");
    assert!(sorter.bytes() >= bytes, "the memory stays");
    // Clearing after a small batch does not visit the accesses that the large one has left.
    accesses.truncate(10);
    assert!(sorter.sort(Hasher::BLAKE3, &accesses, &at_once).is_ok());
    assert_eq!((holds(&sorter), sorter.set), (1, 10));
    sorter.clear();
    assert_eq!((holds(&sorter), sorter.set), (0, 0));
    // In two namespaces it counts as two keys.
    accesses.push(Access { namespace: 1, ..Access::read(accesses[7].key) });
    assert!(sorter.sort(Hasher::BLAKE3, &accesses, &backwards).is_ok());
}
