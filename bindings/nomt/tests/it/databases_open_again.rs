use std::os::unix::fs::FileExt as _;

use nomt::hasher::{BinaryHash, BinaryHasher, NodeHasher, Sha2Hasher, ValueHasher};
use nomt::trie::{InternalData, LeafData, Node, NodeKind};
use nomt::{KeyReadWrite, Nomt, Options, SessionParams, hasher};

use crate::common::{Database, folder, get, key, open, options, put, refused};

#[test]
fn a_missing_folder_becomes_a_database() {
    let folder = folder();
    let db = open(&folder.path().join("state"));
    assert!(db.is_empty() && db.root().is_empty() && !db.is_poisoned());
    assert_eq!(format!("{}", db.root()), "00000000...00000000");
    assert_eq!(format!("{:?}", db.root()), format!("Root({})", "00".repeat(32)));
}

/// Nothing is done at the end: that is what a kill leaves, too.
#[test]
fn what_was_committed_is_there_after_a_drop() {
    let folder = folder();
    let mut roots = Vec::new();
    for round in 0..4 {
        let db = open(folder.path());
        assert_eq!(roots.last().copied().unwrap_or(db.root()), db.root());
        for id in 0..9 {
            put(&db, &[], id, &[round; 3000]).commit(&db).expect("committed");
        }
        roots.push(db.root());
        drop(put(&db, &[], 1, b"never committed"));
    }
    let db = open(folder.path());
    assert_eq!(get(&db, 1), Some(vec![3; 3000]));
    assert_eq!(get(&db, 8), Some(vec![3; 3000]));
}

#[test]
fn a_folder_has_one_database_at_a_time() {
    let folder = folder();
    let db = open(folder.path());
    refused(Nomt::<hasher::Blake3Hasher>::open(options(folder.path())), "cannot lock");
    let overlay = put(&db, &[], 1, b"one").into_overlay();
    drop(db);
    // An overlay holds the folder.
    refused(Nomt::<hasher::Blake3Hasher>::open(options(folder.path())), "cannot lock");
    drop(overlay);
    open(folder.path());
}

/// `{e}` said "cannot open" alone, and programs that wait for the crate's lock know it by the system's words.
#[test]
fn the_text_alone_says_why_a_folder_is_not_opened() {
    let folder = folder();
    let open = || Nomt::<hasher::Blake3Hasher>::open(options(folder.path())).map(drop);
    let db = Nomt::<hasher::Blake3Hasher>::open(options(folder.path())).expect("opened");
    let error = open().expect_err("locked");
    let text = error.to_string();
    assert!(text.contains("Resource temporarily unavailable"), "{text}");
    assert!(text.contains("this process") && text.contains(&*folder.path().to_string_lossy()));
    let inner = error.downcast_ref::<nomt::pleach::Error>().expect("the engine's");
    assert_eq!(inner.code(), 102);
    // The chain of causes said it a second time.
    assert_eq!(format!("{error:#}").matches("in use by").count(), 1, "{error:#}");
    drop(db);
    let theirs = tempfile::tempdir().expect("a folder");
    let mut their = nomt_original::Options::new();
    their.path(theirs.path());
    their.hashtable_buckets(2000);
    their.preallocate_ht(false);
    drop(nomt_original::Nomt::<hasher::Blake3Hasher>::open(their).expect("opened"));
    let error =
        Nomt::<hasher::Blake3Hasher>::open(options(theirs.path())).err().expect("another format");
    assert!(error.to_string().contains("`Nomt::import`"), "{error}");
}

#[test]
fn what_cannot_be_opened_says_why() {
    let folder = folder();
    let open = |change: &dyn Fn(&mut Options)| {
        let mut options = options(folder.path());
        change(&mut options);
        Nomt::<hasher::Blake3Hasher>::open(options)
    };
    refused(open(&|options| options.commit_concurrency(0)), "thread");
    std::fs::write(folder.path().join("bbn"), b"").expect("written");
    refused(open(&|options| options.path("/proc/nothing/at/all")), "/proc/nothing: ");
    std::fs::rename(folder.path().join("bbn"), folder.path().join("notes")).expect("renamed");
    refused(open(&|_| ()), "not a database: it holds notes");
}

/// Programs ask the chain of causes for the number of the system, which the engine's own errors do not have in it.
#[test]
fn the_error_of_the_system_is_in_the_chain() {
    let error = Nomt::<hasher::Blake3Hasher>::open(options("/proc/nothing/at/all".as_ref()));
    let error = error.err().expect("refused");
    let system = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    assert_eq!(system.and_then(std::io::Error::raw_os_error), Some(2));
    assert_eq!(error.downcast_ref().and_then(std::io::Error::raw_os_error), Some(2));
    let engine = error.downcast_ref::<nomt::pleach::Error>().expect("the engine's");
    assert_eq!(engine.outcome(), nomt::pleach::Outcome::DidNotHappen);
}

#[test]
fn a_folder_is_read_beside_its_writer() {
    let folder = folder();
    let mut readers = options(folder.path());
    readers.read_only(true);
    let writer = open(folder.path());
    put(&writer, &[], 1, b"one").commit(&writer).expect("committed");
    let reader = Database::open(readers).expect("opened");
    assert_eq!((get(&reader, 1), reader.root()), (Some(b"one".to_vec()), writer.root()));
    put(&writer, &[], 1, b"two").commit(&writer).expect("committed");
    reader.engine().refresh().expect("refreshed");
    assert_eq!((get(&reader, 1), reader.root()), (Some(b"two".to_vec()), writer.root()));
    refused(put(&reader, &[], 1, b"three").commit(&reader), "for reading alone");
}

#[test]
fn a_folder_is_checked_page_by_page() {
    let folder = folder();
    let db = open(folder.path());
    for id in 0..9 {
        put(&db, &[], id, &[id; 900]).commit(&db).expect("committed");
    }
    db.engine().drain(0).expect("written");
    db.engine().close().expect("closed");
    drop(db);
    let validate = || nomt::validate_hashtable(&options(folder.path()));
    let pages = validate().expect("nothing found").occupied;
    assert!(pages > 0);
    let leaf = std::fs::OpenOptions::new().write(true).open(folder.path().join("leaf"));
    let zeros = vec![0; 4096 * (pages + 1)];
    leaf.expect("there").write_all_at(&zeros, 0).expect("written");
    refused(validate(), "bad pages, the first: page");
    refused(nomt::validate_hashtable(&Options::new()), "there is no database in nomt_db");
}

/// Those that have no meaning here.
#[test]
fn every_option_can_be_given() {
    let folder = folder();
    let mut options = options(folder.path());
    options.commit_concurrency(1000);
    options.io_workers(2);
    options.hashtable_buckets(1);
    options.bitbox_seed([1; 16]);
    options.warm_up(true);
    options.preallocate_ht(false);
    options.prepopulate_page_cache(true);
    options.page_cache_upper_levels(0);
    options.page_cache_size(0);
    options.leaf_cache_size(0);
    nomt::grow_hashtable(&options).expect("nothing to do");
    let db = Nomt::<hasher::Blake3Hasher>::open(options).expect("opened");
    put(&db, &[], 1, b"one").commit(&db).expect("committed");
    let session = db.begin_session(SessionParams::default());
    session.warm_up(key(1));
    session.preserve_prior_value(key(1));
    drop(session);
    assert_eq!(db.engine().get(&key(1)).expect("read").as_deref(), Some(&b"one"[..]));
}

struct Flipped;

impl BinaryHash for Flipped {
    fn hash(input: &[u8]) -> [u8; 32] {
        hasher::blake3::Blake3BinaryHasher::hash(input).map(|byte| !byte)
    }
}

/// Its labels are in the lowest bit.
struct Lowest;

impl ValueHasher for Lowest {
    fn hash_value(value: &[u8]) -> [u8; 32] {
        Flipped::hash(value)
    }
}

impl NodeHasher for Lowest {
    fn hash_leaf(data: &LeafData) -> [u8; 32] {
        let mut hash = Flipped::hash2_32_concat(&data.key_path, &data.value_hash);
        hash[31] |= 1;
        hash
    }

    fn hash_internal(data: &InternalData) -> [u8; 32] {
        let mut hash = Flipped::hash2_32_concat(&data.left, &data.right);
        hash[31] &= !1;
        hash
    }

    fn node_kind(node: &Node) -> NodeKind {
        if node[31] & 1 == 1 { NodeKind::Leaf } else { NodeKind::Internal }
    }
}

#[test]
fn a_database_keeps_its_hasher() {
    fn root_with<T: nomt::HashAlgorithm>(folder: &std::path::Path) -> [u8; 32] {
        let db = Nomt::<T>::open(options(folder)).expect("opened");
        let session = db.begin_session(SessionParams::default());
        let write = KeyReadWrite::Write(Some(b"one".to_vec()));
        session.finish(vec![(key(1), write)]).expect("finished").commit(&db).expect("committed");
        let leaf = LeafData { key_path: key(1), value_hash: T::hash_value(b"one") };
        assert_eq!(db.root().into_inner(), T::hash_leaf(&leaf));
        db.root().into_inner()
    }
    let (sha2, own) = (folder(), folder());
    let sha2_root = root_with::<Sha2Hasher>(sha2.path());
    let own_root = root_with::<BinaryHasher<Flipped>>(own.path());
    assert_ne!(sha2_root, own_root);
    assert_eq!(root_with::<BinaryHasher<Flipped>>(own.path()), own_root);
    for folder in [&sha2, &own] {
        refused(Nomt::<hasher::Blake3Hasher>::open(options(folder.path())), "with the hasher");
    }
    refused(Nomt::<Lowest>::open(options(own.path())), "does not label nodes");
}
