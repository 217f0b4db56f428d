//! A block is valid when its parent's roots and blob are the newest commit's, whatever the numbers: after an empty commit,
//! or a commit and its reversal, a sibling is committed. It was `StaleParent` once, by its number.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;

use pleach::{Access, Db, Error, Geometry, Options, SessionOptions, Value};
use pleach_core::naive::NaiveTrie;
use pleach_core::{Hasher, Key, Node, Prefix};
use pleach_io::sim::SimDisk;

use crate::common::held_device::{Held, Patient};
use crate::common::{commit, uniform};
use crate::crash::unrecorded;

fn open(folder: &std::path::Path) -> Db {
    let options = Options::new(folder)
        .create(true)
        .cache_mib(16)
        .threads(2)
        .tune(|tuning| tuning.flush_at = 1)
        .geometry(Geometry::small());
    Db::open(options).expect("opened")
}

fn put(id: u64, value: &[u8]) -> Access {
    Access::write(uniform(id), Some(Value::from(value)))
}

fn finish(db: &Db, accesses: Vec<Access>) -> pleach::Block {
    let session = db.session(SessionOptions::new()).expect("a session");
    session.finish(accesses).expect("finished")
}

#[test]
fn after_an_empty_commit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    commit(&db, vec![put(1, b"a")]);
    let (one, two) = (finish(&db, vec![put(1, b"b")]), finish(&db, vec![put(2, b"c")]));
    let overlay = finish(&db, vec![put(1, b"d")]).into_overlay();
    assert_eq!(finish(&db, Vec::new()).commit().expect("committed"), 2);
    assert_eq!(one.commit().expect("its parent's state is the newest"), 3);
    let stale = two.commit().expect_err("the state is another").into_error();
    assert!(matches!(stale, Error::StaleParent { base: 1, tip: 3 }), "{stale}");
    assert!(matches!(overlay.commit(), Err(Error::StaleParent { base: 1, tip: 3 })));
    commit(&db, vec![put(1, b"a")]);
    assert_eq!(overlay.commit().expect("the state is back"), 5);
    assert_eq!(overlay.commit_number(), Some(5));
    let root = db.root();
    drop((overlay, db));
    let db = open(folder.path());
    assert_eq!((db.root(), db.commit_number()), (root, 5));
}

/// The blob is part of a state. A block brought the blob of the commit that it was made on back, over that of an empty commit in
/// between.
#[test]
fn after_a_commit_of_a_blob_alone_the_state_is_another() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    commit(&db, vec![put(1, b"a")]);
    let block = finish(&db, vec![put(1, b"b")]);
    let overlay = finish(&db, vec![put(2, b"c")]).into_overlay();
    let over = |overlay| db.session(SessionOptions::new().over(overlay)).expect("a session");
    let above = over(&overlay).finish(vec![put(3, b"d")]).expect("finished");
    let set = |height: &[u8]| {
        let mut empty = finish(&db, Vec::new());
        empty.set_blob(height.to_vec()).expect("a blob");
        empty.commit().expect("committed")
    };
    assert_eq!(set(b"height 2"), 2);
    let stale = block.commit().expect_err("its parent has no blob");
    assert!(matches!(stale.error(), Error::StaleParent { base: 1, tip: 2 }), "{stale}");
    assert!(matches!(overlay.commit(), Err(Error::StaleParent { base: 1, tip: 2 })));
    let above = above.commit().expect_err("nor has that of the overlay below").into_block();
    assert_eq!((db.commit_number(), db.blob()), (2, b"height 2".to_vec()));
    assert_eq!(set(b""), 3);
    assert_eq!(above.commit().expect("the state is back"), 4);
    let stale = stale.into_block().commit().expect_err("now it is another again");
    assert!(matches!(stale.error(), Error::StaleParent { base: 1, tip: 4 }), "{stale}");
}

/// The parent is compared twice, since a commit that comes in between takes the place. The device commits the other block
/// while the first one's long value is synced: behind its first look at the parent, before its ticket. Without the second
/// look both would be commit 2.
#[test]
fn of_two_blocks_on_one_parent_the_ticket_takes_one() {
    for merged in [false, true] {
        let disk = SimDisk::new(1, unrecorded());
        let open = || {
            let (device, gate) = Held::new(disk.clone());
            let options = Options::new("sim").create(true).cache_mib(8).geometry(Geometry::small());
            (Db::open_on(device, Patient::new(2, &gate), options).expect("opened"), gate)
        };
        let (db, gate) = open();
        db.pause_background();
        commit(&db, vec![put(1, b"a")]);
        let long = put(1, &vec![9; 150_000]);
        let block = if merged {
            let below = finish(&db, vec![put(3, b"x")]).into_overlay();
            let session = db.session(SessionOptions::new().over(&below)).expect("a session");
            session.finish(vec![long]).expect("finished")
        } else {
            finish(&db, vec![long])
        };
        let other = finish(&db, vec![put(1, b"b"), put(2, b"c")]);
        let root = other.root();
        let (sender, committed) = mpsc::channel();
        gate.behind_sync("overflow", move || {
            let other = thread::spawn(move || other.commit()).join().expect("no panic");
            sender.send(other.expect("nobody has a ticket")).expect("awaited");
        });
        let stale = block.commit().expect_err("another block has the ticket");
        assert!(matches!(stale.error(), Error::StaleParent { base: 1, tip: 2 }), "{stale}");
        assert_eq!(committed.recv().expect("committed"), 2);
        assert_eq!((db.commit_number(), db.root()), (2, root));
        // Another value takes the room that the refused block's had: when the state is back, the block writes its own anew.
        commit(&db, vec![put(4, &[7; 150_000])]);
        let delete = |id| Access::write(uniform(id), None);
        commit(&db, vec![put(1, b"a"), delete(2), delete(4)]);
        assert_eq!(stale.into_block().commit().expect("the state is back"), 5);
        let found = |db: &Db| {
            let session = db.session(SessionOptions::new()).expect("a session");
            session.read(&uniform(1)).expect("reads").map(|value| value.to_vec())
        };
        assert_eq!(found(&db), Some(vec![9; 150_000]));
        let root = db.root();
        drop(db);
        let (db, _gate) = open();
        assert_eq!((db.commit_number(), db.root()), (5, root));
        assert_eq!(found(&db), Some(vec![9; 150_000]));
    }
}

/// A block's prior values are as of its own commit. Once that state came back under another number, the runs
/// of its long values are others; those that the block knew are free when nobody reads the old commit any
/// more, and a reader of the commit in between would have found another value there.
#[test]
fn after_a_reversal_old_readers_find_their_long_values() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    let long = |byte: u8| vec![byte; 150_000];
    commit(&db, vec![put(1, &long(1)), put(2, b"x")]);
    db.drain(0).expect("drained");
    let block = finish(&db, vec![put(1, &long(9)), put(3, b"y")]);
    let child = {
        let parent = finish(&db, vec![put(1, &long(8))]).into_overlay();
        let session = db.session(SessionOptions::new().over(&parent)).expect("a session");
        session.finish(vec![put(3, b"z")]).expect("finished")
    };
    commit(&db, vec![put(1, &long(2))]);
    commit(&db, vec![put(1, &long(1))]);
    db.drain(0).expect("drained");
    let between = db.session(SessionOptions::new()).expect("a session");
    assert_eq!(block.commit().expect("the state is back"), 4);
    let refused = child.commit().expect_err("merged with its parent it stands on commit 1");
    assert!(matches!(refused.error(), Error::StaleParent { .. }));
    drop(refused);
    // Nobody reads commit 1 now. Runs that are free are written again.
    for byte in 20..30 {
        commit(&db, vec![put(u64::from(byte), &long(byte))]);
        db.drain(0).expect("drained");
    }
    assert_eq!(between.read(&uniform(1)).expect("reads").as_deref(), Some(&long(1)[..]));
    let now = db.session(SessionOptions::new()).expect("a session");
    assert_eq!(now.read(&uniform(1)).expect("reads").as_deref(), Some(&long(9)[..]));
}

/// A chain whose lowest overlay stands on a state that came back is committed merged, and one by one.
#[test]
fn chains_stand_on_a_state_that_came_back() {
    for merged in [false, true] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let db = open(folder.path());
        commit(&db, (0..500).map(|id| put(id, b"a")).collect());
        let one = finish(&db, (100..300).map(|id| put(id, b"b")).collect()).into_overlay();
        let session = db.session(SessionOptions::new().over(&one)).expect("a session");
        let two = session
            .finish((200..400).map(|id| put(id, b"c")).collect::<Vec<_>>())
            .expect("finished");
        let two = two.into_overlay();
        commit(&db, (0..500).map(|id| put(id, b"q")).collect());
        db.drain(0).expect("drained");
        assert!(matches!(two.commit(), Err(Error::StaleParent { base: 1, tip: 2 })));
        commit(&db, (0..500).map(|id| put(id, b"a")).collect());
        if merged {
            assert_eq!(two.commit().expect("committed"), 4);
        } else {
            assert_eq!(one.commit().expect("committed"), 4);
            assert_eq!(two.commit().expect("committed"), 5);
        }
        assert_eq!(db.root(), two.root());
        drop((one, two, db));
        let db = open(folder.path());
        let session = db.session(SessionOptions::new()).expect("a session");
        for (id, value) in [(0, b"a"), (150, b"b"), (250, b"c"), (350, b"c"), (450, b"a")] {
            assert_eq!(session.read(&uniform(id)).expect("reads").as_deref(), Some(&value[..]));
        }
    }
}

/// A key that is no hash.
fn name(text: [u8; 3]) -> Key {
    let mut key = [0; 32];
    key[..3].copy_from_slice(&text);
    key
}

/// Names, and what they should have.
struct Names {
    db: Db,
    state: BTreeMap<Key, Vec<u8>>,
}

impl Names {
    /// A page whose treelet has columns, and that has buffered changes of two names.
    fn new(folder: &std::path::Path) -> Self {
        let mut names = Self { db: open(folder), state: BTreeMap::new() };
        let both = |lead, letter| [name([lead, letter, b'a']), name([lead, letter, b'k'])];
        let all: Vec<Key> = (b'a'..=b'z').flat_map(|letter| both(b'n', letter)).collect();
        let others = (0xe0..0xea).flat_map(|lead| (b'a'..=b'z').flat_map(move |l| both(lead, l)));
        names.commit(&all.into_iter().chain(others).collect::<Vec<_>>(), &[7; 40]);
        names.db.drain(0).expect("drained");
        for round in 1..4 {
            names.commit(&[name(*b"nba"), name(*b"nza")], &[round]);
        }
        names
    }

    fn accesses(keys: &[Key], value: &[u8]) -> Vec<Access> {
        keys.iter().map(|key| Access::read_write(*key, Some(Value::from(value)))).collect()
    }

    fn put(&mut self, keys: &[Key], value: &[u8]) {
        self.state.extend(keys.iter().map(|key| (*key, value.to_vec())));
    }

    fn root(&self) -> Node {
        let hashed =
            self.state.iter().map(|(key, value)| (*key, Hasher::BLAKE3.hash(value).into()));
        hashed.collect::<NaiveTrie>().node(Hasher::BLAKE3, &Prefix::ROOT)
    }

    fn commit(&mut self, keys: &[Key], value: &[u8]) {
        self.put(keys, value);
        commit(&self.db, Self::accesses(keys, value));
        assert_eq!(self.db.root(), self.root());
    }

    /// A name comes that differs from all others between the columns, and goes.
    fn there_and_back(&self) {
        let odd = name(*b"nYo");
        commit(&self.db, Self::accesses(&[odd], b"odd"));
        commit(&self.db, vec![Access::write(odd, None)]);
        assert_eq!(self.db.root(), self.root());
    }
}

/// The deletion of a name that came and went is buffered, and is in no root: a block that was finished before, and is
/// committed after, knew nothing of it. What its fold learned of the page once led the next one astray: a wrong root,
/// or a fold without an end.
#[test]
fn names_that_came_and_went_lead_no_later_fold_astray() {
    for last in [b"nza", b"nck", b"nba"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut names = Names::new(folder.path());
        let key = name(*b"nza");
        let block = finish(&names.db, Names::accesses(&[key], b"block"));
        names.there_and_back();
        names.put(&[key], b"block");
        block.commit().expect("the state is back");
        assert_eq!(names.db.root(), names.root());
        names.commit(&[name(*last)], b"next");
        names.commit(&[name(*b"nra"), key], b"and one more");
        names.db.drain(0).expect("drained");
        names.commit(&[key], b"drained");
    }
}

/// The same for the second of a chain, whose parent is its own when it is committed.
#[test]
fn names_that_came_and_went_lead_no_chain_astray() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut names = Names::new(folder.path());
    let (other, key) = (name([0xe3, b'c', b'a']), name(*b"nza"));
    let one = finish(&names.db, Names::accesses(&[other], b"one")).into_overlay();
    let session = names.db.session(SessionOptions::new().over(&one)).expect("a session");
    let two = session.finish(Names::accesses(&[key], b"two")).expect("finished");
    names.there_and_back();
    names.put(&[other], b"one");
    one.commit().expect("the state is back");
    names.put(&[key], b"two");
    two.commit().expect("its parent is the newest");
    assert_eq!(names.db.root(), names.root());
    for last in [b"nza", b"nck", b"nba"] {
        names.commit(&[name(*last)], b"next");
    }
}

/// A block that is finished behind the newest commit, whose state then comes back: what the history says of the state before
/// it is of its own parent. Once it was of the commit that had come in between.
#[test]
fn what_a_block_says_of_the_past_is_of_its_own_state() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options::new(folder.path()).create(true).threads(2).history(100);
    let db = Db::open(options).expect("opened");
    let puts = |ids: std::ops::Range<u64>, step, value: &[u8]| -> Vec<Access> {
        ids.step_by(step).map(|id| put(id, value)).collect()
    };
    commit(&db, puts(0..6000, 1, b"first"));
    db.drain(0).expect("drained");
    // Twice, so that pages know their nodes.
    commit(&db, puts(0..6000, 2, b"second"));
    commit(&db, puts(0..6000, 2, b"third"));
    let keys: Vec<Key> = (0..6000).step_by(7).map(uniform).collect();
    let prove = |session: &pleach::Session| session.prove_many(&keys).expect("proven");
    let before = prove(&db.session(SessionOptions::new()).expect("a session"));
    let behind = db.session(SessionOptions::new()).expect("a session");
    commit(&db, puts(1..6000, 2, b"between"));
    let block = behind.finish(puts(0..6000, 4, b"last")).expect("finished");
    db.rollback(1).expect("rolled back");
    let came_back = db.commit_number();
    block.commit().expect("its parent's state is the newest");
    for _ in 0..2 {
        let session = db.at(came_back).expect("in the history");
        assert_eq!(prove(&session), before);
    }
}
