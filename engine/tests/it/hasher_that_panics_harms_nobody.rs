//! A panic in a user's hasher ends the call that met it and nothing else. Chunks of the batch that
//! panicked were once left with the workers and folded into the next batch, and so was what a folder
//! had put down to be hashed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::{Keys, Model, commit, key};
use pleach::{Access, Db, Error, Options, SessionOptions, Value};
use pleach_core::Hasher;

static ARMED: AtomicBool = AtomicBool::new(false);
/// Nodes to be hashed until one panics; 0 for never.
static FUSE: AtomicU64 = AtomicU64::new(0);

fn touchy(message: &[u8]) -> [u8; 32] {
    assert!(!ARMED.load(Ordering::SeqCst), "armed");
    if message.len() == 64 && FUSE.load(Ordering::SeqCst) > 0 {
        assert_ne!(FUSE.fetch_sub(1, Ordering::SeqCst), 1, "burnt down");
    }
    Hasher::BLAKE3.hash(message)
}

const TOUCHY: Hasher = Hasher::new("touchy", touchy);

fn batch(from: u64) -> Vec<Access> {
    (from..from + 3000)
        .map(|id| Access::write(key(Keys::Uniform, id), Some(Value::from(&id.to_be_bytes()[..]))))
        .collect()
}

#[test]
fn the_next_batch_is_right_and_other_sessions_go_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options =
        Options::new(folder.path()).create(true).cache_mib(16).threads(2).in_flight(16).small();
    // The session that stays open needs the undo of all batches.
    let options = options.undo_memory_bytes(8 << 20);
    let db = Db::open(options.hasher(TOUCHY)).expect("created");
    db.pause_background();
    let mut model = Model::default();
    let first = batch(0);
    model.apply(&first);
    commit(&db, first);
    let open = db.session(SessionOptions::new()).unwrap();

    for (round, fuse) in (0..).zip([0, 1, 40, 700, 2100, 2900, 4000, 5200]) {
        let session = db.session(SessionOptions::new()).unwrap();
        ARMED.store(fuse == 0, Ordering::SeqCst);
        FUSE.store(fuse, Ordering::SeqCst);
        let panicked =
            catch_unwind(AssertUnwindSafe(|| session.finish(batch(1000 * round)).map(|_| ())));
        ARMED.store(false, Ordering::SeqCst);
        FUSE.store(0, Ordering::SeqCst);
        assert!(panicked.is_err(), "the panic reaches the caller: {fuse}");

        let next = batch(500 + 1000 * round);
        model.apply(&next);
        let block = db.session(SessionOptions::new()).unwrap().finish(next).unwrap();
        assert_eq!(block.root(), model.naive(TOUCHY).root(TOUCHY), "round {round}");
        block.commit().unwrap();
        let seven = key(Keys::Uniform, 7);
        assert_eq!(open.read(&seven).unwrap().as_deref(), Some(&7u64.to_be_bytes()[..]));
    }

    // In the background a panic poisons: reads go on, nothing is acknowledged, nobody hangs.
    ARMED.store(true, Ordering::SeqCst);
    db.resume_background();
    let drained = db.drain(0);
    ARMED.store(false, Ordering::SeqCst);
    assert!(matches!(drained, Err(Error::Poisoned(_))), "{drained:?}");
    assert!(open.read(&key(Keys::Uniform, 8)).unwrap().is_some());
}
