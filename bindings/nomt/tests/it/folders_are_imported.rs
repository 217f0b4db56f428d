//! Folders of the crate `nomt` itself, with the history that their files have.

use std::collections::BTreeMap;
use std::path::Path;

use nomt::hasher::Blake3Hasher;
use nomt::{Nomt, SessionParams};
use nomt_original::{KeyReadWrite as Theirs, Nomt as Original};

use crate::common::{Database, folder, open, put, refused};

type Pairs = BTreeMap<[u8; 32], Vec<u8>>;

fn key(id: u64) -> [u8; 32] {
    pleach::Hasher::BLAKE3.hash(&id.to_be_bytes())
}

fn original(folder: &Path) -> Original<Blake3Hasher> {
    let mut options = nomt_original::Options::new();
    options.path(folder);
    options.hashtable_buckets(2000);
    options.preallocate_ht(false);
    Original::open(options).expect("opened")
}

/// Writes and deletes, so that pages become free and others take their places.
fn write(db: &Original<Blake3Hasher>, pairs: &mut Pairs, round: u64) {
    let mut batch = BTreeMap::new();
    for id in (0..3000).filter(|id| (id + round).is_multiple_of(3)) {
        let len = match id % 100 {
            0 => [1332, 1333, 5000, 61_000, 400_000][usize::try_from(id / 100 % 5).expect("few")],
            few => usize::try_from(few).expect("few"),
        };
        let byte = u8::try_from((id + round) % 251).expect("a byte");
        let gone = round > 0 && id % 7 == round % 7 && pairs.contains_key(&key(id));
        let new = if gone { None } else { Some(vec![byte; len]) };
        match &new {
            None => drop(pairs.remove(&key(id))),
            Some(value) => drop(pairs.insert(key(id), value.clone())),
        }
        batch.insert(key(id), Theirs::Write(new));
    }
    let session = db.begin_session(nomt_original::SessionParams::default());
    session.finish(batch.into_iter().collect()).expect("finished").commit(db).expect("committed");
}

fn check(db: &Database, root: [u8; 32], pairs: &Pairs) {
    assert_eq!(db.root().into_inner(), root);
    let session = db.begin_session(SessionParams::default());
    for (key, value) in pairs {
        assert_eq!(session.read(*key).expect("read").as_ref(), Some(value));
    }
    assert_eq!(db.engine().snapshot().expect("a snapshot").iter(..).count(), pairs.len());
}

#[test]
fn all_pairs_are_there_and_the_root_is_the_same() {
    let (theirs, ours) = (folder(), folder());
    let (mut pairs, db) = (Pairs::new(), original(theirs.path()));
    for round in 0..9 {
        write(&db, &mut pairs, round);
        if round % 4 == 0 {
            let copy = ours.path().join(round.to_string());
            let imported = open(&copy);
            refused(imported.import(theirs.path(), None), "has the folder open");
        }
    }
    let root = db.root().into_inner();
    drop(db);
    let imported = open(&ours.path().join("state"));
    refused(imported.import(theirs.path(), Some([1; 32].into())), "nothing was loaded");
    imported.import(theirs.path(), Some(root.into())).expect("imported");
    check(&imported, root, &pairs);
    put(&imported, &[], 1, b"more").commit(&imported).expect("committed");
    imported.rollback(1).expect("rolled back");
    check(&imported, root, &pairs);
    refused(imported.import(theirs.path(), None), "wants an empty namespace");
}

#[test]
fn an_empty_folder_has_no_pairs() {
    let (theirs, ours) = (folder(), folder());
    drop(original(theirs.path()));
    let imported = open(ours.path());
    imported.import(theirs.path(), None).expect("imported");
    assert!(imported.is_empty());
}

#[test]
fn what_is_no_such_folder_or_damaged_is_refused() {
    let (theirs, ours) = (folder(), folder());
    let imported = open(ours.path());
    let none = format!("{} is no folder of NOMT 1.0", theirs.path().display());
    refused(imported.import(theirs.path(), None), &none);
    let (mut pairs, db) = (Pairs::new(), original(theirs.path()));
    write(&db, &mut pairs, 0);
    drop(db);
    let whole: Vec<_> = ["meta", "bbn", "ln"]
        .map(|name| (name, std::fs::read(theirs.path().join(name)).expect("read")))
        .into();
    for (name, bytes) in &whole {
        let path = theirs.path().join(name);
        for cut in [0, 20, 4096.min(bytes.len() - 1)] {
            std::fs::write(&path, &bytes[..cut]).expect("written");
            refused(imported.import(theirs.path(), None), "");
        }
        // Whatever the bytes say, it ends, and without a panic.
        for seed in 0..6 {
            let mut bytes = bytes.clone();
            for at in 0..200_usize {
                let at = (at * 7919 + seed * 104_729) % bytes.len();
                bytes[at] ^= u8::try_from(seed + 1).expect("a byte");
            }
            std::fs::write(&path, &bytes).expect("written");
            let other = folder();
            let _ = Nomt::import(&open(other.path()), theirs.path(), None);
        }
        std::fs::write(&path, bytes).expect("written");
    }
    imported.import(theirs.path(), None).expect("whole again");
}

/// A long value whose page lists itself, again and again, and whose length no file has.
#[test]
fn a_long_value_without_an_end_is_refused() {
    let (theirs, ours) = (folder(), folder());
    let db = original(theirs.path());
    let session = db.begin_session(nomt_original::SessionParams::default());
    let batch = vec![(key(1), Theirs::Write(Some(vec![9; 61_000])))];
    session.finish(batch).expect("finished").commit(&db).expect("committed");
    drop(db);
    let path = theirs.path().join("ln");
    let whole = std::fs::read(&path).expect("read");
    let cell = whole.windows(8).position(|bytes| *bytes == 61_000_u64.to_le_bytes());
    let cell = cell.expect("the length stands before the value's hash");
    let first = u32::from_le_bytes(whole[cell + 40..][..4].try_into().expect("four bytes"));
    for len in [1 << 60, 61_000_u64, u64::from(u32::MAX)] {
        let mut bytes = whole.clone();
        bytes[cell..][..8].copy_from_slice(&len.to_le_bytes());
        let page = &mut bytes[usize::try_from(first).expect("small") * 4096..][..4096];
        page[..2].copy_from_slice(&900_u16.to_le_bytes());
        page[2..4].copy_from_slice(&1_u16.to_le_bytes());
        page[4..4 + 3600].copy_from_slice(&first.to_le_bytes().repeat(900));
        std::fs::write(&path, bytes).expect("written");
        refused(open(&ours.path().join(len.to_string())).import(theirs.path(), None), "is damaged");
    }
}

/// Both were imported without a word, with another root.
#[test]
fn a_damaged_long_value_and_an_empty_leaf_are_refused() {
    let (theirs, ours) = (folder(), folder());
    let (mut pairs, db) = (Pairs::new(), original(theirs.path()));
    write(&db, &mut pairs, 0);
    drop(db);
    let path = theirs.path().join("ln");
    let whole = std::fs::read(&path).expect("read");
    let value = &pairs[&key(300)];
    assert_eq!(value.len(), 61_000);
    let at = whole.windows(1000).position(|bytes| bytes == &value[..1000]).expect("in a page");
    let leaf =
        whole.windows(32).position(|bytes| *bytes == key(3)).expect("in a leaf") / 4096 * 4096;
    let damages = [(at..at + 1, "the hash beside it"), (leaf..leaf + 4096, "has no pairs")];
    for (number, (range, text)) in damages.into_iter().enumerate() {
        let mut bytes = whole.clone();
        bytes[range].fill(0);
        std::fs::write(&path, bytes).expect("written");
        let imported = open(&ours.path().join(number.to_string()));
        refused(imported.import(theirs.path(), None), text);
        assert!(imported.is_empty());
    }
}

#[test]
fn a_folder_whose_keys_were_all_deleted_has_no_pairs() {
    let (theirs, ours) = (folder(), folder());
    let (mut pairs, db) = (Pairs::new(), original(theirs.path()));
    write(&db, &mut pairs, 0);
    let session = db.begin_session(nomt_original::SessionParams::default());
    let deleted = pairs.keys().map(|key| (*key, Theirs::Write(None))).collect();
    session.finish(deleted).expect("finished").commit(&db).expect("committed");
    drop(db);
    let imported = open(ours.path());
    imported.import(theirs.path(), None).expect("imported");
    assert!(imported.is_empty());
}
