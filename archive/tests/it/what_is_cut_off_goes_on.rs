//! A store that fails at its n-th call, a restore that is cut off at each step, and one whose process is killed: the archive is as before or
//! complete, and what was cut off goes on.

use std::fmt;
use std::ops::Range;
use std::path::Path as FilePath;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt as _};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

use pleach::{Db, Error, Options};
use pleach_archive::{
    Archive, ArchiveError, BackupOptions, Follower, Piece, Progress, backup, prune, restore,
};

use crate::common::{World, commit, objects, options, put, state_of, store};

/// Fails when so many calls were made; the call is made, and only its answer lost, or is not made. Or it changes what is written.
#[derive(Debug, Clone)]
struct Fails {
    left: Arc<AtomicI64>,
    after: bool,
    changes: bool,
    /// Runs before that call, which does not fail then.
    beside: Option<Beside>,
}

/// What another process does meanwhile.
#[derive(Clone)]
struct Beside(Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Beside").finish_non_exhaustive()
    }
}

impl Fails {
    fn new(left: i64, after: bool) -> Self {
        Self { left: Arc::new(AtomicI64::new(left)), after, changes: false, beside: None }
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let fails = self.left.fetch_sub(1, Ordering::Relaxed) == 0;
        if let Some(Beside(other)) = self.beside.as_ref().filter(|_| fails) {
            other();
            return call.await;
        }
        let error = || object_store::Error::Generic { store: "test", source: "cut off".into() };
        if fails && !self.after {
            return Err(error());
        }
        let done = call.await?;
        if fails { Err(error()) } else { Ok(done) }
    }

    fn has_failed(&self) -> bool {
        self.left.load(Ordering::Relaxed) < 0
    }
}

/// A folder behind that.
#[derive(Debug)]
struct Failing {
    store: Arc<LocalFileSystem>,
    fails: Fails,
}

impl fmt::Display for Failing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failing({})", self.store)
    }
}

#[async_trait]
impl ObjectStore for Failing {
    async fn put_opts(&self, at: &Path, bytes: PutPayload, how: PutOptions) -> Result<PutResult> {
        self.fails.call(self.store.put_opts(at, bytes, how)).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        how: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.fails.call(self.store.put_multipart_opts(at, how)).await?;
        Ok(Box::new(FailingUpload { upload, fails: self.fails.clone() }))
    }

    async fn get_opts(&self, at: &Path, how: GetOptions) -> Result<GetResult> {
        self.fails.call(self.store.get_opts(at, how)).await
    }

    async fn get_ranges(&self, at: &Path, ranges: &[Range<u64>]) -> Result<Vec<bytes::Bytes>> {
        self.fails.call(self.store.get_ranges(at, ranges)).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let fails = self.fails.clone();
        let counted = locations.then(move |at| {
            let fails = fails.clone();
            async move { fails.call(async { at }).await }
        });
        self.store.delete_stream(counted.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.fails.call(self.store.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, how: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, how).await
    }
}

#[derive(Debug)]
struct FailingUpload {
    upload: Box<dyn MultipartUpload>,
    fails: Fails,
}

#[async_trait]
impl MultipartUpload for FailingUpload {
    fn put_part(&mut self, bytes: PutPayload) -> UploadPart {
        let mut bytes: Vec<u8> = bytes.iter().flat_map(|bytes| bytes.to_vec()).collect();
        if self.fails.changes {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
        }
        let (part, fails) = (self.upload.put_part(bytes.into()), self.fails.clone());
        let part: BoxFuture<'static, Result<()>> = async move { fails.call(part).await }.boxed();
        part
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.fails.call(self.upload.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

fn failing(folder: &FilePath, left: i64, after: bool) -> (Archive, Fails) {
    let fails = Fails::new(left, after);
    let store = Arc::new(Failing { store: store(folder), fails: fails.clone() });
    (Archive::with_store(store, "").expect("an archive"), fails)
}

/// The objects of an archive, and no files of uploads that were given up.
fn names(folder: &FilePath) -> Vec<String> {
    objects(folder).into_keys().collect()
}

/// A full of three parts, and changes; each call fails in turn, before or after it is made.
#[test]
fn an_upload_that_is_cut_off_leaves_the_archive_as_before_or_complete() {
    for after in [false, true] {
        let mut world = World::new(3, 50);
        let long = |id| put(0, id, Some(vec![u8::try_from(id % 200).expect("a byte"); 90_000]));
        commit(&world.db, (0..130).map(long).collect(), None);
        let folder = world.folder.path().join("archive");
        let how = BackupOptions::new().part_mib(5);
        let mut cut_off = [0, 0];
        for (part, cuts) in cut_off.iter_mut().enumerate() {
            if part == 1 {
                commit(&world.db, (90..200).map(long).collect(), None);
            }
            let newest = world.db.commit_number();
            let mut before = if folder.exists() { names(&folder) } else { Vec::new() };
            for left in 0.. {
                assert!(left < 100, "a backup has few calls");
                let (archive, fails) = failing(&folder, left, after);
                let done = backup(&archive, &world.db, &how);
                let listing = store_listing(&folder);
                if !fails.has_failed() {
                    assert_eq!(done.expect("nothing failed").commit, newest);
                    break;
                }
                *cuts += 1;
                if let Err(error) = done {
                    assert!(matches!(error, ArchiveError::Store { .. }), "{error}");
                }
                let found = names(&folder);
                if found != before {
                    // The number of the database, or the whole object.
                    assert_eq!(found.len(), before.len() + 1, "{found:?}");
                    if let Some(commit) = listing.newest() {
                        let good = Archive::open(folder.to_str().expect("a name")).expect("opened");
                        assert_eq!(commit, newest);
                        let copy = world.path("copy");
                        let report = restore(&good, &copy, &options()).expect("restored");
                        assert_eq!(report.roots.get(0), Some(world.db.root()));
                        // It is written again in the next round.
                        let piece = listing
                            .pieces()
                            .map(|(piece, _)| piece)
                            .find(|piece| piece.to() == newest);
                        let piece = piece.expect("it leads there");
                        std::fs::remove_file(folder.join(piece.name())).expect("removed");
                    }
                    before = names(&folder);
                }
            }
        }
        assert!(cut_off.iter().all(|cuts| *cuts > 6), "{cut_off:?}");
    }
}

/// Prune removes the newest first: whatever call fails, changes that are left lead on from a commit that can be restored.
#[test]
fn a_prune_that_is_cut_off_leaves_no_gap() {
    let mut world = World::new(16, 50);
    let archive = world.archive();
    for round in 0..8 {
        world.commit_pairs();
        let how = BackupOptions::new().full(round % 4 == 0);
        backup(&archive, &world.db, &how).expect("backed up");
    }
    let folder = world.folder.path().join("archive");
    let (mut cut_off, mut before) = (0, names(&folder));
    for left in 0.. {
        assert!(left < 100, "a prune has few calls");
        let (failing, fails) = failing(&folder, left, false);
        let pruned = prune(&failing, 1);
        let listing = archive.list().expect("listed");
        assert_eq!((listing.gaps(), listing.useless()), (Vec::new(), Vec::new()), "{left}");
        if !fails.has_failed() {
            pruned.expect("nothing failed");
            assert!(listing.restorable().eq(5..=8), "{listing:?}");
            break;
        }
        let error = pruned.expect_err("a call has failed");
        assert!(matches!(error, ArchiveError::Store { .. }), "{error}");
        cut_off += usize::from(names(&folder) != before);
        before = names(&folder);
    }
    assert!(cut_off > 1, "in the middle of what it removes: {cut_off}");
}

/// An archive of a folder before whose call number `left` another process does something.
fn meanwhile(
    folder: &FilePath,
    left: i64,
    other: impl Fn() + Send + Sync + 'static,
) -> (Archive, Fails) {
    let fails = Fails { beside: Some(Beside(Arc::new(other))), ..Fails::new(left, false) };
    let store = Arc::new(Failing { store: store(folder), fails: fails.clone() });
    (Archive::with_store(store, "").expect("an archive"), fails)
}

/// Of three `pleach backup --full --keep 1` at once two ended with "not found": a folder says it of what another has
/// removed, and a store of objects does not.
#[test]
fn what_another_prune_has_removed_counts_as_removed() {
    let mut world = World::new(18, 50);
    let folder = world.folder.path().join("archive");
    let mut rounds = 0;
    for left in 0.. {
        assert!(left < 100, "a prune has few calls");
        if folder.exists() {
            std::fs::remove_dir_all(&folder).expect("removed");
        }
        let archive = world.archive();
        for full in [true, false, true, true] {
            world.commit_pairs();
            backup(&archive, &world.db, &BackupOptions::new().full(full)).expect("backed up");
        }
        let newest = world.db.commit_number();
        let (pruned, fails) = meanwhile(&folder, left, {
            let archive = archive.clone();
            move || drop(prune(&archive, 1).expect("pruned"))
        });
        let removed = prune(&pruned, 1).expect("what is gone is removed");
        let listing = archive.list().expect("listed");
        assert!(listing.restorable().eq([newest]), "{left}: {listing:?}");
        rounds += usize::from(!removed.is_empty());
        if !fails.has_failed() {
            break;
        }
    }
    assert!(rounds > 6, "{rounds}");
}

/// The sibling: a backup that has listed the archive, and whose object to build on another one replaces and removes.
#[test]
fn a_backup_whose_objects_another_one_removes_lists_again() {
    let mut world = World::new(19, 50);
    let folder = world.folder.path().join("archive");
    let archive = world.archive();
    let mut written = [0, 0];
    for left in 0.. {
        assert!(left < 100, "a backup has few calls");
        world.commit_pairs();
        backup(&archive, &world.db, &BackupOptions::new().full(left == 0)).expect("backed up");
        world.commit_pairs();
        let newest = world.db.commit_number();
        let (backed_up, fails) = meanwhile(&folder, left, {
            let (archive, db) = (archive.clone(), world.db.clone());
            move || {
                backup(&archive, &db, &BackupOptions::new().full(true)).expect("backed up");
                prune(&archive, 1).expect("pruned");
            }
        });
        let report = backup(&backed_up, &world.db, &BackupOptions::new()).expect("backed up");
        assert_eq!(
            (report.commit, archive.list().expect("listed").newest()),
            (newest, Some(newest))
        );
        written[usize::from(report.written.is_empty())] += 1;
        world.restore_and_compare(&archive, newest);
        if !fails.has_failed() {
            break;
        }
    }
    assert!(written.iter().all(|count| *count > 0), "{written:?}");
}

/// A store that takes something else than it was given: the object does not stay.
#[test]
fn an_object_that_does_not_read_back_is_removed() {
    let mut world = World::new(4, 50);
    let folder = world.folder.path().join("archive");
    let fails = Fails { changes: true, ..Fails::new(i64::MAX, false) };
    let store = Arc::new(Failing { store: store(&folder), fails });
    let changing = Archive::with_store(store, "").expect("an archive");
    let good = world.archive();
    for full in [true, false] {
        world.commit_pairs();
        let before = good.list().expect("listed").pieces().count();
        let refused = backup(&changing, &world.db, &BackupOptions::new()).expect_err("changed");
        assert!(matches!(refused, ArchiveError::NotVerified { .. }), "{refused}");
        assert_eq!(good.list().expect("listed").pieces().count(), before);
        let report = backup(&good, &world.db, &BackupOptions::new()).expect("backed up");
        assert_eq!(report.full.is_some(), full);
    }
}

/// A folder whose next object was removed says so, and is not taken elsewhere.
#[test]
fn an_object_that_is_removed_while_it_is_applied_is_named() {
    let (mut world, archive) = archived(15);
    let folder = world.path("follower");
    let listing = archive.list().expect("listed");
    let first = listing.restorable().next();
    restore(&archive, &folder, &options().commit(first)).expect("restored");
    let (from, to) = listing.changes().next().expect("changes");
    let cursor = folder.join("archive-cursor");
    let text = std::fs::read_to_string(&cursor).expect("a cursor");
    std::fs::write(&cursor, text.replace("next none", &format!("next {to}"))).expect("written");
    let name = Piece::Changes { from, to }.name();
    std::fs::remove_file(world.folder.path().join("archive").join(&name)).expect("removed");
    for _ in 0..2 {
        let gone = restore(&archive, &folder, &options().commit(Some(to)));
        assert!(matches!(&gone, Err(ArchiveError::Gone(found)) if *found == name), "{gone:?}");
    }
    let follower = Follower::open(&archive, &folder, &options()).expect("opened");
    assert_eq!(follower.at(), from);
    assert!(state_of(follower.db()) == world.states[&from]);
}

/// Before an object changes the database, the folder says which one that is: whoever finds it at another commit than it was
/// left at knows why.
#[test]
fn what_is_applied_is_noted_before() {
    let (mut world, archive) = archived(17);
    let folder = world.path("follower");
    let first = archive.list().expect("listed").restorable().next();
    restore(&archive, &folder, &options().commit(first)).expect("restored");
    let cursor = folder.join("archive-cursor");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let progress: Progress = {
        let (cursor, seen) = (cursor.clone(), Arc::clone(&seen));
        Arc::new(move |_| {
            let text = std::fs::read_to_string(&cursor).expect("a cursor");
            seen.lock().expect("no panic").push(text);
        })
    };
    let how = options().progress(Some(progress));
    let mut follower = Follower::open(&archive, &folder, &how).expect("opened");
    seen.lock().expect("no panic").clear();
    let piece = follower.step().expect("applied").expect("changes");
    let seen = seen.lock().expect("no panic");
    let next = format!("next {}\n", piece.to());
    assert!(!seen.is_empty() && seen.iter().all(|text| text.contains(&next)), "{seen:?}");
    let after = std::fs::read_to_string(cursor).expect("a cursor");
    assert!(after.contains(&format!("at {}\nnext none\n", piece.to())), "{after}");
}

fn store_listing(folder: &FilePath) -> pleach_archive::Listing {
    Archive::with_store(store(folder), "").expect("an archive").list().expect("listed")
}

/// A world with namespaces that come and go, and an archive of many objects.
fn archived(seed: u64) -> (World, Archive) {
    let mut world = World::new(seed, 60);
    world.loads = false;
    let archive = world.archive();
    for _ in 0..10 {
        for _ in 0..4 {
            world.commit_anything();
        }
        backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    }
    (world, archive)
}

#[test]
fn a_restore_whose_store_fails_goes_on_with_the_next_call() {
    for seed in [11, 12] {
        let (mut world, _) = archived(seed);
        let (archive, folder) = (world.folder.path().join("archive"), world.path("restored"));
        let goal = store_listing(&archive).newest().expect("archived");
        let (mut cuts, mut applied, mut refused) = (0, 0, 0);
        loop {
            let (failing, fails) = failing(&archive, 2 + cuts % 5, cuts % 2 == 0);
            cuts += 1;
            assert!(cuts < 200, "each call comes further, or a later one does");
            match restore(&failing, &folder, &options().commit(Some(goal))) {
                Ok(report) => {
                    applied += report.applied.len();
                    break;
                }
                Err(error) => {
                    assert!(matches!(error, ArchiveError::Store { .. }), "{error}");
                    assert!(fails.has_failed());
                    refused += usize::from(is_unfinished(&folder));
                }
            }
        }
        assert!(cuts > 5 && applied < store_listing(&archive).pieces().count(), "{cuts} {applied}");
        assert!(refused > 2 && !is_unfinished(&folder), "{refused}");
        world.compare(&folder, goal);
    }
}

/// Whether a folder has what was cut off; until it is whole nothing opens it: a node would go on from an empty state, or
/// from an older commit than was wanted. No folder at all is none.
fn is_unfinished(folder: &FilePath) -> bool {
    let open = |create| Db::open(Options::new(folder).create(create).small().cache_mib(8));
    if !folder.exists() || folder.read_dir().expect("a folder").next().is_none() {
        return false;
    }
    let refused = open(false).err();
    let is_refused = matches!(&refused, Some(Error::Creation(_)));
    assert_eq!(is_refused, folder.join("UNFINISHED").exists(), "{refused:?}");
    assert_eq!(open(true).is_err(), is_refused);
    is_refused
}

/// A follower's first fill, and what goes on behind the archive's newest commit.
#[test]
fn what_a_follower_fills_is_no_database_before_it_is_whole() {
    let (mut world, archive) = archived(20);
    let (place, copy) = (world.folder.path().join("archive"), world.path("follower"));
    let (mut cuts, mut refused) = (0, 0);
    let follower = loop {
        let (failing, fails) = failing(&place, 2 + cuts % 5, false);
        cuts += 1;
        assert!(cuts < 200, "a later call comes further");
        match Follower::open(&failing, &copy, &options()) {
            Ok(follower) => break follower,
            Err(_) => refused += usize::from(fails.has_failed() && is_unfinished(&copy)),
        }
    };
    follower.db().close().expect("closed");
    assert!(refused > 0 && !is_unfinished(&copy), "{refused}");
    let folder = world.path("more");
    let how = options().unfinished(true);
    let mut follower = Follower::open(&archive, &folder, &how).expect("opened");
    while follower.step().expect("stepped").is_some() {}
    follower.db().close().expect("closed");
    drop(follower);
    assert!(is_unfinished(&folder), "the caller goes on");
    let follower = Follower::open(&archive, &folder, &how).expect("goes on");
    follower.db().close().expect("closed");
    pleach_ops::finish(&folder).expect("whole");
    pleach_ops::finish(&folder).expect("it is whole already");
    assert!(!is_unfinished(&folder));
}

/// What a crash leaves: the database is behind the piece, and the cursor is as before it.
#[test]
fn a_piece_that_was_applied_is_applied_again_without_harm() {
    let (mut world, archive) = archived(13);
    let folder = world.path("follower");
    let cursor = folder.join("archive-cursor");
    let first = archive.list().expect("listed").fulls().next();
    let restored = restore(&archive, &folder, &options().commit(first));
    assert_eq!(Some(restored.expect("restored").archived_commit), first);
    loop {
        let mut follower = Follower::open(&archive, &folder, &options()).expect("opened");
        let before = std::fs::read_to_string(&cursor).expect("a cursor");
        let Some(Piece::Changes { from, to }) = follower.step().expect("a step") else { break };
        let commit = follower.db().commit_number();
        follower.db().close().expect("closed");
        drop(follower);
        let cut = before.replace("next none", &format!("next {to}"));
        assert!(cut.contains(&format!("at {from}\n")) && cut != before);
        std::fs::write(&cursor, cut).expect("written");
        let mut follower = Follower::open(&archive, &folder, &options()).expect("opened");
        assert_eq!(follower.at(), from);
        assert_eq!(follower.step().expect("again"), Some(Piece::Changes { from, to }));
        assert_eq!(follower.db().commit_number(), commit, "nothing was to be done");
        assert!(state_of(follower.db()) == world.states[&to], "at {to}");
        follower.db().close().expect("closed");
    }
}

const CHILD: &str = "PLEACH_ARCHIVE_CHILD";

/// The process that is killed: it restores again and again, what the parent says.
#[test]
#[ignore = "the child of the test after it"]
fn restores_what_the_environment_says() {
    let Some(work) = std::env::var_os(CHILD) else { return };
    let work = work.into_string().expect("text");
    let (archive, folder) = work.split_once('|').expect("two");
    let archive = Archive::open(archive).expect("opened");
    restore(&archive, folder.as_ref(), &options()).expect("restored");
}

#[test]
fn a_killed_restore_goes_on() {
    let (mut world, archive) = archived(14);
    let goal = archive.list().expect("listed").newest().expect("archived");
    let place = archive.place().to_owned();
    for round in 0..4 {
        let folder = world.path("killed");
        let mut killed = 0;
        loop {
            let work = format!("{place}|{}", folder.display());
            let mut child = Command::new(std::env::current_exe().expect("this"))
                .args(["--exact", "--ignored"])
                .arg("what_is_cut_off_goes_on::restores_what_the_environment_says")
                .env(CHILD, work)
                .stdout(Stdio::null())
                .spawn()
                .expect("started");
            // Later each time, so that it comes to its end.
            std::thread::sleep(Duration::from_millis(5 + 7 * killed + round));
            if let Some(status) = child.try_wait().expect("asked") {
                assert!(status.success(), "{status}");
                break;
            }
            child.kill().expect("killed");
            child.wait().expect("ended");
            killed += 1;
            assert!(killed < 300, "it comes to its end");
        }
        assert!(killed > 2, "killed {killed} times");
        world.compare(&folder, goal);
    }
}
