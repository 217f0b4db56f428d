//! Change streams: each changed byte, cut and wrong state is refused and changes nothing; an interrupted one continues.
//! The stream is encoded here a second time, from docs/export.md alone.

use pleach::{Db, SessionOptions};
use pleach_ops::Error;
use pleach_ops::export::{
    ApplyReport, ChangeReader, StreamError, Trust, apply_changes, export_changes,
    export_proven_changes,
};

use crate::common::{Key, World, commit, key, open, put, state_of};

const PLAIN: u8 = 7;

fn stream(db: &Db, from: u64, to: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let report = export_changes(&db.at(from)?, &db.at(to)?, &mut bytes)?;
    assert_eq!((report.from, report.to, report.bytes), (from, to, bytes.len() as u64));
    Ok(bytes)
}

fn apply(db: &Db, stream: &[u8]) -> Result<ApplyReport, Error> {
    apply_changes(db, ChangeReader::new(stream)?, Trust::Sender)
}

/// Namespace 1 goes, 2 and 7 come, between commits 3 and 7. A second database is at the first of them.
fn two() -> (World, Db, [u64; 2]) {
    let mut world = World::new(1, 50);
    let copy = open(&world.path("copy"), 0);
    for db in [&world.db, &copy] {
        db.add_namespace(1).expect("added");
        commit(db, vec![put(1, 1, Some(vec![1; 9])), put(0, 5, Some(vec![5; 5_000]))], None);
        commit(db, (10..20).map(|id| put(0, id, Some(vec![3; 40]))).collect(), Some(vec![1]));
    }
    let db = &world.db;
    db.add_namespace(2).expect("added");
    db.add_plain_namespace(PLAIN).expect("added");
    let new = [put(2, 1, Some(vec![7; 1_500])), put(PLAIN, 2, Some(vec![8])), put(0, 5, None)];
    commit(db, new.into_iter().chain([put(0, 10, Some(vec![4]))]).collect(), Some(vec![2, 2]));
    db.drop_namespace(1).expect("dropped");
    (world, copy, [3, 7])
}

#[test]
fn a_stream_takes_a_database_from_one_commit_to_the_other() {
    let (world, copy, [from, to]) = two();
    let bytes = stream(&world.db, from, to).expect("written");
    let report = apply(&copy, &bytes).expect("applied");
    assert_eq!((report.from, report.to, report.changes, report.already_there), (3, 7, 4, false));
    // One commit of all changes, and one for each namespace that comes or goes.
    assert_eq!(report.commit, 3 + 4);
    assert!(copy.roots().iter().eq(world.db.roots().iter()));
    assert!(state_of(&copy) == state_of(&world.db));
    let again = apply(&copy, &bytes).expect("nothing to do");
    assert_eq!((again.already_there, again.commit), (true, report.commit));
    // Another commit is another state.
    commit(&copy, vec![put(0, 99, Some(vec![9]))], None);
    let refused = apply(&copy, &bytes).expect_err("another state");
    assert!(
        matches!(refused, Error::Stream(StreamError::OtherState { namespace: 0, from: 3, to: 7 })),
        "{refused}"
    );
}

#[test]
fn a_stream_of_a_stranger_has_only_what_the_root_proves() {
    let (world, copy, [from, to]) = two();
    let hasher = copy.hasher().expect("open");
    let by_root =
        |stream: &[u8], root| apply_changes(&copy, ChangeReader::new(stream)?, Trust::Root(root));
    let before = (copy.commit_number(), copy.roots());
    let unproven = |refused: Error, had: &str| {
        assert!(
            matches!(&refused, Error::Stream(StreamError::Unproven { what }) if what.contains(had)),
            "{refused}"
        );
        assert_eq!((copy.commit_number(), copy.roots()), before);
    };
    let over_all = world.db.roots().over_all(hasher);
    unproven(
        by_root(&stream(&world.db, from, to).expect("written"), over_all).expect_err("plain"),
        "plain namespace 7",
    );
    // Without the plain namespace, and with a blob.
    world.db.drop_namespace(PLAIN).expect("dropped");
    let newest = world.db.commit_number();
    assert_eq!(world.db.roots().over_all(hasher), over_all);
    unproven(
        by_root(&stream(&world.db, from, newest).expect("written"), over_all).expect_err("a blob"),
        "a blob",
    );
    // Another state than the one that is wanted.
    let mut proven = Vec::new();
    let sessions = [from, to].map(|commit| world.db.at(commit).expect("in the history"));
    export_proven_changes(&sessions[0], &sessions[1], &mut proven).expect("written");
    let refused = by_root(&proven, before.1.over_all(hasher)).expect_err("another root");
    assert!(
        matches!(refused, Error::Db(pleach::Error::OtherRoot { found, .. }) if found == over_all),
        "{refused}"
    );
    assert_eq!((copy.commit_number(), copy.roots()), before);
    let report = by_root(&proven, over_all).expect("applied");
    assert_eq!((copy.roots().over_all(hasher), copy.blob()), (over_all, vec![1]));
    assert_eq!(report.changes, 3, "those of the plain namespace are left out");
    assert!(by_root(&proven, over_all).expect("nothing to do").already_there);
}

#[test]
fn a_stream_that_was_cut_off_while_it_was_applied_goes_on() {
    let (world, reference, [from, to]) = two();
    let bytes = stream(&world.db, from, to).expect("written");
    reference.close().expect("closed");
    for step in 0..4 {
        let (_, copy, _) = two();
        if step > 0 {
            copy.add_namespace(2).expect("added");
        }
        if step > 1 {
            copy.add_plain_namespace(PLAIN).expect("added");
        }
        if step > 2 {
            let new = [put(2, 1, Some(vec![7; 1_500])), put(PLAIN, 2, Some(vec![8]))];
            let old = [put(0, 5, None), put(0, 10, Some(vec![4]))];
            commit(&copy, new.into_iter().chain(old).collect(), Some(vec![2, 2]));
        }
        let before = copy.commit_number();
        let report = apply(&copy, &bytes).expect("applied");
        assert!(!report.already_there);
        assert_eq!(report.commit, 3 + 4, "{} commits were left at {step}", report.commit - before);
        assert!(state_of(&copy) == state_of(&world.db), "cut off at {step}");
    }
}

/// Roots say nothing of plain namespaces: pairs are compared.
#[test]
fn changes_of_plain_namespaces_alone_are_applied_once() {
    let mut world = World::new(2, 50);
    let copy = open(&world.path("copy"), 0);
    for db in [&world.db, &copy] {
        db.add_plain_namespace(PLAIN).expect("added");
        commit(db, vec![put(PLAIN, 1, Some(vec![1])), put(PLAIN, 2, Some(vec![2]))], None);
    }
    commit(&world.db, vec![put(PLAIN, 1, None), put(PLAIN, 3, Some(vec![0; 70_000]))], None);
    let bytes = stream(&world.db, 2, 3).expect("written");
    for already_there in [false, true] {
        let report = apply(&copy, &bytes).expect("applied");
        assert_eq!((report.already_there, report.commit), (already_there, 3));
        assert!(state_of(&copy) == state_of(&world.db));
    }
}

/// Changes undone between two commits are in no stream.
#[test]
fn a_stream_has_net_changes() {
    let mut world = World::new(3, 50);
    commit(&world.db, vec![put(0, 1, Some(vec![1])), put(0, 2, Some(vec![2]))], None);
    commit(&world.db, vec![put(0, 1, None), put(0, 3, Some(vec![3]))], None);
    commit(&world.db, vec![put(0, 1, Some(vec![1])), put(0, 3, None)], None);
    world.db.add_namespace(4).expect("added");
    world.db.drop_namespace(4).expect("dropped");
    let bytes = stream(&world.db, 1, 5).expect("written");
    let mut reader = ChangeReader::new(&*bytes).expect("a stream");
    assert_eq!(reader.head().namespaces.len(), 1);
    assert_eq!(reader.next().expect("whole"), None);
    reader.finish().expect("whole");
    // A rollback is a commit like others.
    commit(&world.db, vec![put(0, 1, Some(vec![9]))], None);
    world.db.rollback_to(2).expect("rolled back");
    let bytes = stream(&world.db, 5, 7).expect("written");
    let mut reader = ChangeReader::new(&*bytes).expect("a stream");
    let mut found = Vec::new();
    while let Some((key, value)) = reader.next().expect("whole") {
        found.push((key, value.map(<[u8]>::to_vec)));
    }
    let mut expected = vec![(key(1), None), (key(3), Some(vec![3]))];
    expected.sort_unstable();
    assert_eq!(found, expected);
    let _ = world.below(1);
}

/// A namespace that was dropped and added again is another one. It cannot be added while the older state can be read,
/// so that changes between the two are never asked for in vain.
#[test]
fn a_namespace_that_is_added_again_is_not_taken_for_unchanged() {
    let mut world = World::new(4, 2);
    world.db.add_namespace(3).expect("added");
    commit(&world.db, vec![put(3, 1, Some(vec![1]))], None);
    let older = world.db.at(2).expect("in the history");
    world.db.drop_namespace(3).expect("dropped");
    for id in 0..6 {
        commit(&world.db, vec![put(0, id, Some(vec![1]))], None);
    }
    let refused = world.db.add_namespace(3).expect_err("it can be read");
    assert!(matches!(refused, pleach::Error::NamespaceInUse { namespace: 3, .. }), "{refused}");
    drop(older);
    world.db.add_namespace(3).expect("added again");
    commit(&world.db, vec![put(3, 1, Some(vec![1]))], None);
    let refused = stream(&world.db, 2, world.db.commit_number()).expect_err("too old");
    assert!(
        matches!(refused, Error::Db(pleach::Error::SnapshotTooOld { commit: 2, .. })),
        "{refused}"
    );
    let _ = world.below(1);
}

#[test]
fn sessions_that_make_no_stream_are_refused() {
    let (world, copy, [from, to]) = two();
    let session = |db: &Db, at| db.at(at).expect("in the history");
    let sink = std::io::sink;
    let order = export_changes(&session(&world.db, to), &session(&world.db, from), sink());
    assert!(
        matches!(order, Err(Error::Stream(StreamError::Order { from: 7, to: 3 }))),
        "{order:?}"
    );
    let same = export_changes(&session(&world.db, to), &session(&world.db, to), sink());
    assert!(matches!(same, Err(Error::Stream(StreamError::Order { .. }))), "{same:?}");
    let foreign = export_changes(&session(&copy, 3), &session(&world.db, to), sink());
    assert!(matches!(foreign, Err(Error::Db(pleach::Error::ForeignSession))), "{foreign:?}");
}

fn read(bytes: &[u8]) -> Result<u64, StreamError> {
    let (mut reader, mut count) = (ChangeReader::new(bytes)?, 0);
    for _ in 0..reader.head().namespaces.len() {
        while reader.next()?.is_some() {
            count += 1;
        }
    }
    reader.finish().map(|()| count)
}

/// Every byte is checked.
#[test]
fn a_stream_with_a_changed_byte_is_refused() {
    let (world, copy, [from, to]) = two();
    let bytes = stream(&world.db, from, to).expect("written");
    let before = (copy.commit_number(), state_of(&copy));
    assert_eq!(read(&bytes), Ok(4));
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        assert!(read(&changed).is_err(), "byte {at}");
        assert!(read(&bytes[..at]).is_err(), "cut at {at}");
        if at % 97 == 0 {
            assert!(apply(&copy, &changed).is_err() && apply(&copy, &bytes[..at]).is_err());
        }
    }
    let trailing = apply(&copy, &[&*bytes, &[0]].concat()).expect_err("a byte too many");
    assert!(matches!(trailing, Error::Stream(StreamError::Trailing)), "{trailing}");
    assert_eq!((copy.commit_number(), state_of(&copy)), before);
    // The two kinds are distinguished.
    let mut full = Vec::new();
    pleach_ops::export::export(&world.db.snapshot().expect("a snapshot"), &mut full)
        .expect("exported");
    assert!(matches!(apply(&copy, &full), Err(Error::Stream(StreamError::NoChanges))));
    let other = pleach_ops::export::StreamReader::new(&*bytes).expect_err("changes");
    assert_eq!(other, StreamError::NoStream);
}

/// A change stream as docs/export.md has it.
struct Stream {
    bytes: Vec<u8>,
    before: u64,
}

/// Number, kind, presence, roots before and after, and changes of a namespace.
type Namespace<'a> = (u8, u8, u8, [[u8; 32]; 2], &'a [(Key, Option<&'a [u8]>)]);

impl Stream {
    fn block(&mut self, kind: u8, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("short").to_le_bytes();
        let header = [&b"PLXB"[..], &[kind, 0, 0, 0], &length, &[0; 4]].concat();
        let summed = [&*header, payload].concat();
        self.before = twox_hash::XxHash3_64::oneshot_with_seed(self.before, &summed);
        self.bytes.extend([&*header, &self.before.to_le_bytes(), payload].concat());
    }

    fn of(
        (version, database): (u16, u64),
        from: u64,
        to: u64,
        blob: &[u8],
        namespaces: &[Namespace<'_>],
    ) -> Vec<u8> {
        let mut stream = Self { bytes: Vec::new(), before: 0 };
        let mut head = version.to_le_bytes().to_vec();
        head.extend([1, 0]);
        head.extend(u16::try_from(namespaces.len()).expect("few").to_le_bytes());
        head.extend([0, 0]);
        head.extend(database.to_le_bytes());
        head.extend(from.to_le_bytes());
        head.extend(to.to_le_bytes());
        head.extend(u32::try_from(blob.len()).expect("short").to_le_bytes());
        head.extend(blob);
        for (number, kind, presence, roots, _) in namespaces {
            head.extend([*number, *kind, *presence, 0]);
            head.extend(roots.concat());
        }
        stream.block(5, &head);
        let mut all = 0;
        for (number, _, _, _, changes) in namespaces {
            let count = u32::try_from(changes.len()).expect("few");
            let mut payload = [&[*number, 0, 0, 0][..], &count.to_le_bytes()].concat();
            for (key, value) in *changes {
                payload.extend(key);
                let length =
                    value.map_or(u32::MAX, |value| u32::try_from(value.len()).expect("short"));
                payload.extend(length.to_le_bytes());
                payload.extend(value.unwrap_or_default());
            }
            if count > 0 {
                stream.block(6, &payload);
            }
            let end =
                [&[*number, 0, 0, 0, 0, 0, 0, 0][..], &u64::from(count).to_le_bytes()].concat();
            stream.block(3, &end);
            all += u64::from(count);
        }
        stream.block(4, &all.to_le_bytes());
        stream.bytes
    }
}

#[test]
fn a_stream_is_what_the_page_says() {
    let world = World::new(5, 50);
    commit(&world.db, vec![put(0, 1, Some(vec![1]))], None);
    let before = world.db.root().to_bytes();
    world.db.add_plain_namespace(PLAIN).expect("added");
    commit(
        &world.db,
        vec![put(0, 1, None), put(0, 2, Some(vec![2; 2_000]))],
        Some(b"abc".to_vec()),
    );
    let written = stream(&world.db, 1, 3).expect("written");
    let mut changes = vec![(key(1), None), (key(2), Some(&[2; 2_000][..]))];
    changes.sort_unstable();
    let roots = [before, world.db.root().to_bytes()];
    let namespaces = [(0, 0, 3, roots, &*changes), (PLAIN, 1, 2, [[0; 32]; 2], &[])];
    let database = world.db.id().expect("open");
    assert!(Stream::of((2, database), 1, 3, b"abc", &namespaces) == written);
    let head = |bytes: &[u8]| ChangeReader::new(bytes).expect("a stream").head().clone();
    assert_eq!(head(&written).database, Some(database));
    let unnamed = Stream::of((2, 0), 1, 3, b"abc", &namespaces);
    assert_eq!(head(&unnamed).database, None);
}

#[test]
fn hostile_streams_with_right_checksums_are_refused_and_change_nothing() {
    let (_, copy, _) = two();
    let before = (copy.commit_number(), state_of(&copy));
    let roots = |number| copy.roots().get(number).expect("it exists").to_bytes();
    let (zero, one, other, none) = (roots(0), roots(1), [9; 32], [0; 32]);
    let change: &[(Key, Option<&[u8]>)] = &[(key(77), Some(b"v"))];
    let delete: &[(Key, Option<&[u8]>)] = &[(key(77), None)];
    let stay: Namespace<'_> = (1, 0, 3, [one, one], &[]);
    let first: Namespace<'_> = (0, 0, 3, [zero, zero], &[]);
    let contents: &[&[Namespace<'_>]] = &[
        // The root stays, and a pair changes; the root changes, and no pair does.
        &[(0, 0, 3, [zero, zero], change), stay],
        &[(0, 0, 3, [zero, other], &[]), stay],
        // A pair under the root of an empty trie.
        &[(0, 0, 3, [zero, none], change), stay],
        // One that goes has no changes, one that comes no deletions, an empty one that comes no pairs.
        &[first, (1, 0, 1, [one, none], delete)],
        &[first, stay, (2, 0, 2, [none, other], delete)],
        &[first, stay, (2, 0, 2, [none, none], change)],
        &[first, stay, (2, 0, 2, [none, other], &[])],
        // Heads: no namespace 0, a plain one, one that goes, an unknown kind, a root of nothing, no order.
        &[stay],
        &[(0, 1, 3, [zero, zero], &[]), stay],
        &[(0, 0, 1, [zero, none], &[]), stay],
        &[first, (1, 2, 3, [one, one], &[])],
        &[first, (1, 0, 0, [none, none], &[])],
        &[first, (1, 0, 4, [none, none], &[])],
        &[first, (1, 0, 1, [one, one], &[])],
        &[first, stay, stay],
    ];
    for (at, namespaces) in contents.iter().enumerate() {
        let refused =
            apply(&copy, &Stream::of((2, 8), 3, 4, b"", namespaces)).expect_err("hostile");
        assert!(matches!(refused, Error::Stream(StreamError::Contents { .. })), "{at}: {refused}");
    }
    let refused = apply(&copy, &Stream::of((2, 8), 4, 4, b"", &[first, stay])).expect_err("no way");
    assert!(matches!(refused, Error::Stream(StreamError::Contents { .. })), "{refused}");
    let refused = apply(&copy, &Stream::of((3, 8), 3, 4, b"", &[first, stay])).expect_err("later");
    assert!(
        matches!(refused, Error::Stream(StreamError::Version { found: 3, known: 2 })),
        "{refused}"
    );
    // Another root than the changes lead to: nothing stays of a namespace that was added for it, either.
    let wrong = [(0, 0, 3, [zero, other], change), stay, (2, 0, 2, [none, other], change)];
    let refused = apply(&copy, &Stream::of((2, 8), 3, 4, b"", &wrong)).expect_err("another root");
    assert!(matches!(refused, Error::Db(pleach::Error::OtherRoot { .. })), "{refused}");
    assert!(state_of(&copy) == before.1);
    // Two more commits: it came and went.
    assert_eq!(copy.commit_number(), before.0 + 2);
    // Of another state: a namespace more or less, or of another kind, another root.
    let others: &[&[Namespace<'_>]] = &[
        &[first],
        &[first, (1, 1, 3, [one, one], &[])],
        &[first, stay, (2, 0, 3, [one, one], &[])],
        &[first, stay, (2, 0, 1, [one, none], &[]), (3, 0, 3, [one, one], &[])],
        &[(0, 0, 3, [other, other], &[]), stay],
    ];
    for (at, namespaces) in others.iter().enumerate() {
        let refused =
            apply(&copy, &Stream::of((2, 8), 3, 4, b"", namespaces)).expect_err("another");
        assert!(
            matches!(refused, Error::Stream(StreamError::OtherState { .. })),
            "{at}: {refused}"
        );
    }
    let session = copy.session(SessionOptions::new()).expect("a session");
    assert_eq!(session.commit_number(), before.0 + 2);
}
