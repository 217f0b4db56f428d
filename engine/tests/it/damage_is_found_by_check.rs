//! The checker says nothing about a sound database and names whatever was damaged, all of it;
//! stat, explain and a reader agree with the model.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::common::{Keys, Rng, bytes, commit, key};
use pleach::load::LoadOptions;
use pleach::{Access, Db, Error, Hasher, Options, Progress, Value};
use pleach_core::Key;
use pleach_io::{OsDevice, OsOptions};
use pleach_ops::{
    CheckOptions, CheckReport, Verdict, check, check_on, explain, explain_past, stat,
};

const PAGE: u64 = 4096;

fn options(path: &Path) -> Options {
    Options::new(path).create(true).cache_mib(16).threads(2).small()
}

/// A loaded database with a few commits on it, some of them buffered, closed.
fn database(path: &Path, rng: &mut Rng) -> BTreeMap<Key, Value> {
    let mut model: BTreeMap<Key, Value> = (0..3000)
        .map(|id| (key(Keys::Uniform, id), bytes(rng, if id % 300 == 7 { 9000 } else { 8 })))
        .collect();
    let db = Db::open(options(path)).expect("created");
    db.bulk_load(model.clone(), &LoadOptions::new()).expect("loaded");
    for round in 0..3 {
        let writes: BTreeMap<Key, Option<Value>> = (0..40)
            .map(|_| {
                let value = (rng.below(4) > 0).then(|| {
                    let len = if rng.below(10) == 0 { 70_000 } else { 9 + round };
                    bytes(rng, len)
                });
                (key(Keys::Uniform, rng.below(3100)), value)
            })
            .collect();
        let accesses =
            writes.iter().map(|(key, value)| Access::read_write(*key, value.clone())).collect();
        commit(&db, accesses);
        for (key, value) in writes {
            match value {
                Some(value) => model.insert(key, value),
                None => model.remove(&key),
            };
        }
    }
    db.close().expect("closed");
    model
}

fn checked(path: &Path) -> CheckReport {
    check(path, CheckOptions::default()).expect("checked")
}

/// True when one finding says all of these words.
fn says(report: &CheckReport, words: &[&str]) -> bool {
    report.findings.iter().any(|finding| words.iter().all(|word| finding.what.contains(word)))
}

/// Page number and tag line of the page that holds a key.
fn page_of(path: &Path, key: &Key) -> u64 {
    let explanation = explain(path, 0, key).expect("explained");
    let line =
        explanation.lines.iter().find(|line| line.contains("page     number")).expect("a page");
    let place = line.split("page     number ").nth(1).and_then(|rest| rest.split(',').next());
    place.expect("a number").parse().expect("a number")
}

fn read_page(path: &Path, file: &str, page: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    fs::File::open(path.join(file))
        .expect("opened")
        .read_exact_at(&mut bytes, page * PAGE)
        .expect("read");
    bytes
}

fn write_page(path: &Path, file: &str, page: u64, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(path.join(file)).expect("opened");
    file.write_all_at(bytes, page * PAGE).expect("written");
}

#[test]
fn a_sound_database_has_no_findings_and_all_tools_agree() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path();
    let model = database(path, &mut Rng::new(1));
    let report = checked(path);
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    assert_eq!((report.keys, report.commit), (model.len() as u64, 4));
    let stat = stat(path).expect("stat");
    assert_eq!((stat.root, stat.commit, stat.pages), (report.root, 4, report.pages));
    assert!(stat.to_string().contains("commit          4"));
    let reader = Db::open(Options::new(path).cache_mib(64).read_only(true)).expect("opens");
    let session = reader.snapshot().expect("a session");
    let pairs = session.iter(..).collect::<Result<Vec<_>, _>>().expect("read");
    assert!(pairs.iter().map(|pair| (&pair.0, &pair.1)).eq(&model), "the pairs are the model");
}

#[test]
fn explain_gives_the_depth_that_the_trie_has() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for count in [1, 2, 3, 500] {
        let path = folder.path().join(count.to_string());
        let db = Db::open(options(&path)).expect("created");
        let keys: Vec<Key> = (0..count).map(|id| key(Keys::Uniform, id)).collect();
        let items = keys.iter().map(|key| (*key, Value::from(b"value")));
        db.bulk_load(items, &LoadOptions::new()).expect("loaded");
        db.close().expect("closed");
        for asked in (0..count + 20).map(|id| key(Keys::Uniform, id)) {
            let explanation = explain(&path, 0, &asked).expect("explained");
            let alone = |depth: u16| {
                let near = |key: &&Key| pleach_core::prefix::common_len(key, &asked) >= depth;
                keys.iter().filter(near).count() <= 1
            };
            let depth = (0..=256).find(|depth| alone(*depth)).expect("keys differ");
            assert_eq!(explanation.depth, depth, "{explanation}");
            assert_eq!(explanation.present, keys.contains(&asked));
        }
    }
}

#[test]
fn explain_says_of_a_plain_key_what_that_has() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = Db::open(options(folder.path()).history(10)).expect("created");
    db.add_plain_namespace(3).expect("added");
    let asked = key(Keys::Uniform, 1);
    for (plain, merkle) in [("one", "111"), ("two", "222"), ("three", "333")] {
        let put = |text: &str| Access::write(asked, Some(Value::from(text.as_bytes())));
        commit(&db, vec![put(merkle), put(plain).in_namespace(3)]);
    }
    db.close().expect("closed");
    let of = |namespace| explain_past(folder.path(), namespace, &asked).expect("explained");
    let history = |namespace| -> Vec<String> {
        let lines = of(namespace).lines.into_iter();
        lines.filter(|line| line.starts_with("history")).collect()
    };
    // In hexadecimal.
    let bytes = |text: &str| match text {
        "one" => "6f6e65",
        "two" => "74776f",
        "111" => "313131",
        "222" => "323232",
        other => panic!("{other}"),
    };
    let (plain, merkle) = (history(3), history(0));
    assert_eq!((plain.len(), merkle.len()), (3, 3), "{plain:?} {merkle:?}");
    assert!(plain[0].contains(bytes("two")) && plain[1].contains(bytes("one")), "{plain:?}");
    assert!(merkle[0].contains(bytes("222")) && merkle[1].contains(bytes("111")), "{merkle:?}");
    let proof = |namespace| of(namespace).lines.into_iter().find(|line| line.starts_with("proof"));
    assert_eq!(proof(3).as_deref(), Some("proof    none: the namespace is plain"));
    assert!(proof(0).expect("a proof").contains("depth 0"));
}

#[test]
fn flipped_bytes_are_found_wherever_they_are() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path();
    let mut rng = Rng::new(2);
    let model = database(path, &mut rng);
    let pages: Vec<u64> = model.keys().step_by(700).map(|key| page_of(path, key)).collect();
    let originals: Vec<Vec<u8>> = pages.iter().map(|page| read_page(path, "leaf", *page)).collect();
    for (page, original) in pages.iter().zip(&originals) {
        let mut damaged = original.clone();
        damaged[usize::try_from(rng.below(PAGE)).expect("small")] ^= 1 << rng.below(8);
        write_page(path, "leaf", *page, &damaged);
    }
    let report = checked(path);
    for page in &pages {
        assert!(
            says(&report, &[&format!("page {page} of leaf"), "checksum"]),
            "{:#?}",
            report.findings
        );
    }
    for (page, original) in pages.iter().zip(&originals) {
        write_page(path, "leaf", *page, original);
    }
    assert!(checked(path).findings.is_empty());
}

/// So many pages that threads fold them.
#[test]
fn many_findings_are_complete_and_in_key_order() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path();
    let value =
        |id: u64| Value::from(&vec![id.to_be_bytes()[7]; if id == 7 { 9000 } else { 30 }][..]);
    let pairs: BTreeMap<Key, Value> =
        (0..40_000).map(|id| (key(Keys::Uniform, id), value(id))).collect();
    let db = Db::open(options(path)).expect("created");
    db.bulk_load(pairs.clone(), &LoadOptions::new()).expect("loaded");
    db.close().expect("closed");
    let sound = checked(path);
    assert!(sound.findings.is_empty(), "{:#?}", sound.findings);
    assert!(sound.pages > 600, "only {} pages", sound.pages);
    assert_eq!((sound.keys, sound.long_values), (40_000, 1));
    let mut pages: Vec<u64> = pairs.keys().step_by(1301).map(|key| page_of(path, key)).collect();
    pages.dedup();
    for place in &pages {
        let mut damaged = read_page(path, "leaf", *place);
        damaged[1000] ^= 1;
        write_page(path, "leaf", *place, &damaged);
    }
    let report = checked(path);
    let found: Vec<bool> = pages
        .iter()
        .zip(&report.findings)
        .map(|(place, finding)| finding.what.contains(&format!("page {place} of leaf")))
        .collect();
    assert!(found.iter().all(|found| *found), "{:#?}", report.findings);
    // The pages of the long value are neither named nor free when its leaf page is lost.
    let lost = pages.contains(&page_of(path, &key(Keys::Uniform, 7)));
    assert_eq!(report.findings.len(), pages.len() + usize::from(lost));
    assert_eq!(report.pages, sound.pages);
}

#[test]
fn swapped_and_stale_pages_are_found() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path();
    let model = database(path, &mut Rng::new(3));
    let keys: Vec<&Key> = model.keys().collect();
    let (a, b) = (page_of(path, keys[0]), page_of(path, keys[keys.len() - 1]));
    let (page_a, page_b) = (read_page(path, "leaf", a), read_page(path, "leaf", b));
    write_page(path, "leaf", a, &page_b);
    write_page(path, "leaf", b, &page_a);
    let report = checked(path);
    assert_eq!(report.findings.len(), 2, "{:#?}", report.findings);
    write_page(path, "leaf", a, &page_a);
    // Intact, in its place, of this database, but not the version that the index knows: as if
    // a write had been lost.
    let mut stale = page_b.clone();
    let flush = 24;
    stale[flush] ^= 1;
    pleach_core::page::header::seal(stale.as_mut_slice().try_into().expect("a page"));
    write_page(path, "leaf", b, &stale);
    let report = checked(path);
    assert!(says(&report, &[&format!("page {b} of leaf"), "stale"]), "{:#?}", report.findings);
    assert_eq!(report.findings.len(), 1, "{:#?}", report.findings);
    write_page(path, "leaf", b, &page_b);
    assert!(checked(path).findings.is_empty());
}

#[test]
fn a_damaged_long_value_and_a_short_file_are_found() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path();
    let model = database(path, &mut Rng::new(4));
    let (long, _) = model.iter().find(|(_, value)| value.len() > 5000).expect("a long value");
    let explanation = explain(path, 0, long).expect("explained").to_string();
    let page = explanation.split("pages ").nth(1).and_then(|rest| rest.split('+').next());
    let page: u64 = page.expect("a run").parse().expect("a number");
    let original = read_page(path, "overflow", page);
    let mut damaged = original.clone();
    damaged[2000] ^= 4;
    write_page(path, "overflow", page, &damaged);
    let report = checked(path);
    assert!(
        says(&report, &["a long value", &format!("page {page} of overflow")]),
        "{:#?}",
        report.findings
    );
    let without = check(path, CheckOptions::default().values(false)).expect("checked");
    assert!(without.findings.is_empty(), "values are read on request only");
    // An intact page in its place with other bytes, as if a write had been lost: the cell has the hash of the whole value.
    pleach_core::page::header::seal(damaged.as_mut_slice().try_into().expect("a page"));
    write_page(path, "overflow", page, &damaged);
    let report = checked(path);
    assert!(says(&report, &["a long value", "hash"]), "{:#?}", report.findings);
    write_page(path, "overflow", page, &original);
    let file = fs::OpenOptions::new().write(true).open(path.join("leaf")).expect("opened");
    file.set_len(3 * PAGE).expect("cut");
    let report = checked(path);
    assert_eq!(report.verdict(), Verdict::DoesNotOpen);
    assert!(says(&report, &["leaf", "12288 bytes", "cut"]), "{:#?}", report.findings);
    assert!(matches!(Db::open(options(path)), Err(Error::ShortFile { file: "leaf", .. })));
}

#[test]
fn a_damaged_image_is_a_finding_and_other_folders_are_errors() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("db");
    database(&path, &mut Rng::new(5));
    for file in ["image-a", "image-b"] {
        let mut page = read_page(&path, file, 0);
        page[100] ^= 1;
        write_page(&path, file, 0, &page);
    }
    let report = checked(&path);
    assert!(says(&report, &["does not open", "checksum"]), "{:#?}", report.findings);
    assert_eq!(report.verdict(), Verdict::DoesNotOpen);
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).expect("made");
    assert!(matches!(stat(&empty), Err(Error::Missing { .. })));
    fs::write(empty.join("notes"), "not ours").expect("written");
    assert!(matches!(stat(&empty), Err(Error::NotADatabase { .. })));
    assert!(matches!(stat(&folder.path().join("nowhere")), Err(Error::Missing { .. })));
    let nowhere = Options::new(folder.path().join("nowhere"));
    assert!(matches!(Db::open(nowhere).map(|_| ()), Err(Error::Missing { .. })));
    let open = folder.path().join("open");
    let db = Db::open(options(&open)).expect("created");
    assert!(check(&open, CheckOptions::default()).is_err(), "a writer keeps readers out");
    drop(db);
    assert!(checked(&open).findings.is_empty());
}

#[test]
fn a_lost_superblock_is_called_that_and_nothing_is_created_over_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("db");
    database(&path, &mut Rng::new(6));
    let root = stat(&path).expect("a database").root;
    fs::rename(path.join("super"), folder.path().join("super")).expect("moved away");
    for error in [stat(&path).map(|_| ()), Db::open(options(&path)).map(|_| ())] {
        let error = error.expect_err("no superblock");
        assert!(matches!(&error, Error::MissingFile { file } if file == "super"), "{error:?}");
    }
    fs::rename(folder.path().join("super"), path.join("super")).expect("put back");
    assert_eq!(stat(&path).expect("a database").root, root);
}

#[test]
fn figures_of_a_database_that_has_lost_its_leaf_file_are_an_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("db");
    database(&path, &mut Rng::new(7));
    let leaf = fs::read(path.join("leaf")).expect("the file");
    fs::write(path.join("leaf"), &leaf[..4096]).expect("cut");
    assert!(matches!(stat(&path), Err(Error::ShortFile { file: "leaf", found: 4096, .. })));
    fs::remove_file(path.join("leaf")).expect("removed");
    let error = stat(&path).expect_err("no leaf file");
    assert!(matches!(&error, Error::MissingFile { file } if file == "leaf"), "{error:?}");
    assert_eq!(checked(&path).verdict(), Verdict::DoesNotOpen);
}

/// As a copy that was made while the database was open.
#[test]
fn figures_of_a_folder_whose_leaf_file_is_of_another_time_say_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("db");
    let model = database(&path, &mut Rng::new(11));
    assert!(stat(&path).expect("a database").opening.notes.is_empty());
    let copy = folder.path().join("copy");
    fs::create_dir(&copy).expect("made");
    for name in contents(&path).keys() {
        fs::copy(path.join(name), copy.join(name)).expect("copied");
    }
    let db = Db::open(options(&path)).expect("opens");
    for byte in 0..4 {
        let write = |key: &Key| Access::write(*key, Some(Value::from(&[byte; 9][..])));
        commit(&db, model.keys().map(write).collect());
        db.drain(0).expect("flushed");
    }
    fs::copy(path.join("leaf"), copy.join("leaf")).expect("copied");
    drop(db);
    let found = stat(&copy).expect("the index is whole");
    assert!(found.to_string().contains("do not fit the index"), "{found}");
    assert_eq!(checked(&copy).verdict(), Verdict::Findings);
    assert!(stat(&path).expect("a database").opening.notes.is_empty());
}

/// Names and contents of a folder's files; of folders in it the names.
fn contents(path: &Path) -> BTreeMap<String, Option<Vec<u8>>> {
    let entry = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.expect("listed");
        (entry.file_name().into_string().expect("plain"), fs::read(entry.path()).ok())
    };
    fs::read_dir(path).expect("listed").map(entry).collect()
}

/// A failed open had raised the incarnation and exchanged spares before it found the folder.
#[test]
fn a_folder_in_the_place_of_a_file_fails_the_open_and_nothing_changes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("db");
    database(&path, &mut Rng::new(8));
    for name in ["image-a", "image-b", "super.spare", "log.spare", "log.new"] {
        let aside = folder.path().join(name);
        let moved = fs::rename(path.join(name), &aside).is_ok();
        fs::create_dir(path.join(name)).expect("made");
        let before = contents(&path);
        let opened = Db::open(options(&path)).map(drop);
        assert!(opened.as_ref().is_err_and(|error| error.to_string().contains(name)), "{opened:?}");
        assert!(contents(&path) == before, "{name}: the failed open has changed something");
        assert_eq!(checked(&path).verdict(), Verdict::DoesNotOpen, "{name}");
        fs::remove_dir(path.join(name)).expect("removed");
        if moved {
            fs::rename(aside, path.join(name)).expect("put back");
        }
    }
    assert!(checked(&path).findings.is_empty());
}

#[test]
fn a_folder_and_a_lock_that_cannot_be_written_fail_the_check() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path();
    database(path, &mut Rng::new(9));
    for (what, name, mode) in [("the folder", ".", 0o555), ("LOCK", "LOCK", 0o444)] {
        let rights = |mode| {
            fs::set_permissions(path.join(name), fs::Permissions::from_mode(mode)).expect("set");
        };
        let before = fs::metadata(path.join(name)).expect("there").permissions().mode();
        rights(mode);
        let report = checked(path);
        rights(before);
        assert_eq!(report.verdict(), Verdict::DoesNotOpen, "{what}");
        assert!(says(&report, &[what, "chmod u+rw"]), "{:#?}", report.findings);
    }
    assert!(checked(path).findings.is_empty());
}

/// A blank slot was taken for one that was never written, though the generation says otherwise.
/// A power cut during an open once failed the check, though the next open makes the spare.
#[test]
fn a_spare_that_the_next_open_makes_is_a_note() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    database(folder.path(), &mut Rng::new(9));
    for name in ["super.spare", "incarnation.spare", "log.spare"] {
        for missing in [true, false] {
            let path = folder.path().join(name);
            if missing {
                fs::remove_file(&path).expect("removed");
            } else {
                fs::OpenOptions::new()
                    .write(true)
                    .open(&path)
                    .and_then(|file| file.write_all_at(&[0; 4096], 0))
                    .expect("written");
            }
            let report = checked(folder.path());
            assert_eq!(report.verdict(), Verdict::Clean, "{name}: {:?}", report.findings);
            let [note] = &report.notes[..] else { panic!("{name}: {:?}", report.notes) };
            assert!(note.starts_with(name), "{note}");
            Db::open(options(folder.path())).expect("opened").close().expect("closed");
            assert!(checked(folder.path()).notes.is_empty(), "{name}");
        }
    }
}

#[test]
fn a_superblock_slot_that_is_blank_and_was_written_is_a_finding() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("new");
    drop(Db::open(options(&path)).expect("created"));
    assert!(checked(&path).findings.is_empty(), "there was no second generation yet");
    let path = folder.path().join("old");
    database(&path, &mut Rng::new(10));
    let newest = stat(&path).expect("a database").superblock.generation;
    for page in [0, 16] {
        let whole = read_page(&path, "super", page);
        write_page(&path, "super", page, &[0; 4096]);
        let found = stat(&path).expect("one is left");
        let report = checked(&path);
        assert_eq!(report.verdict(), Verdict::Findings, "{page}");
        assert!(says(&report, &["super: slot", "blank"]), "{:#?}", report.findings);
        assert!(found.to_string().contains("both were written"), "{found}");
        if found.superblock.generation == newest {
            // An open says so, and the next check has nothing to say of a slot that is known to be of no use.
            let db = Db::open(options(&path)).expect("opens");
            assert_eq!(db.opened().notes.len(), 1, "{:?}", db.opened().notes);
            drop(db);
            assert!(checked(&path).findings.is_empty());
            assert!(stat(&path).expect("opens").other_slot.is_err());
            Db::open(options(&path)).expect("opens").close().expect("closed");
            assert!(stat(&path).expect("opens").other_slot.is_ok(), "a checkpoint writes both");
        } else {
            write_page(&path, "super", page, &whole);
        }
    }
}

#[test]
fn absurd_budgets_are_refused_by_the_name_of_the_option() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for mib in [0, 7, u64::MAX] {
        let path = folder.path().join("db");
        let refused = Db::open(Options::new(&path).create(true).cache_mib(mib)).map(|_| ());
        let error = refused.expect_err("absurd").to_string();
        assert!(error.contains("the option `cache_mib`"), "{error}");
        assert!(!path.exists());
    }
}

/// Hash calls of [`COUNTED`].
static HASHED: AtomicU64 = AtomicU64::new(0);
const COUNTED: Hasher = Hasher::new("counted", |message| {
    HASHED.fetch_add(1, Ordering::Relaxed);
    Hasher::BLAKE3.hash(message)
});

/// Each change once took the hashes of all keys of its page, and the time of a new folder.
#[test]
fn the_past_is_checked_by_the_hashes_of_its_changes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = Db::open(options(folder.path()).hasher(COUNTED).history(300)).expect("created");
    let mut rng = Rng::new(7);
    let mut put = |count: u64| {
        let mut writes: BTreeMap<Key, Value> = BTreeMap::new();
        while (writes.len() as u64) < count {
            writes.insert(key(Keys::Uniform, rng.below(4000)), bytes(&mut rng, 8));
        }
        let accesses = writes.into_iter().map(|(key, value)| Access::write(key, Some(value)));
        commit(&db, accesses.collect());
    };
    put(3000);
    let (commits, changes) = (200, 10);
    (0..commits).for_each(|_| put(changes));
    db.close().expect("closed");
    let hashed = |past| {
        HASHED.store(0, Ordering::Relaxed);
        let device = OsDevice::open(folder.path(), OsOptions::default()).expect("a folder");
        let options = CheckOptions::default().hasher(COUNTED).past(past);
        assert_eq!(check_on(device, options).expect("checked").findings, []);
        HASHED.load(Ordering::Relaxed)
    };
    let past = hashed(true) - hashed(false);
    // A value, a leaf and the nodes above it for each change; all of the pages, and of the first commit, once.
    let most = 20 * commits * changes + 4 * 4000 + 3 * 3000;
    assert!(past <= most, "{past} hashes, at most {most}");
}

#[test]
fn a_check_says_how_far_it_has_come() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    database(folder.path(), &mut Rng::new(8));
    let told = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&told);
    let progress: Progress = Arc::new(move |done, of| all.lock().push((done, of)));
    check(folder.path(), CheckOptions::default().progress(Some(progress))).expect("checked");
    let told = told.lock();
    let (done, of) = *told.last().expect("told");
    assert_eq!(Some(done), of, "it ends at the end");
    assert!(told.len() >= 3 && told.is_sorted() && told.iter().all(|one| one.1 == of), "{told:?}");
}
