//! Any page of any file rots under an open database: reads give the right value or an error, commits go on or are
//! refused, a scrub names the page where one of the state, the log or the history is bad, and the next open refuses, or finds what
//! was acknowledged.

use std::collections::BTreeMap;

use pleach::scrub::{ScrubOptions, ScrubReport, scrub};
use pleach::{Access, Error, SessionOptions};
use pleach_io::sim::{Damage, DamagedPage, Image, SimDisk, SimRuntime};

use crate::common::{Keys, Rng, bytes, cases};
use crate::crash::workload::commit_one;
use crate::crash::{History, Setup, SimDb, unrecorded};

const HISTORY: u64 = 8;
const IDS: u64 = 40;

/// A database whose history is on the device and whose caches are small, and what led to it.
fn subject(seed: u64) -> (Setup, Image, History) {
    let mut setup = Setup::draw(seed);
    (setup.history, setup.history_bytes, setup.ids, setup.cache_kib) = (HISTORY, 1, IDS, 256);
    setup.keys = Keys::Uniform;
    let disk = SimDisk::new(seed, unrecorded());
    let (db, runtime) = setup.open(&disk, seed).expect("created");
    let (mut rng, mut history) = (Rng::new(seed), History::default());
    for _ in 0..24 {
        commit_one(&setup, &disk, &db, &runtime, &mut rng, &mut history).expect("committed");
        runtime.step_some(12);
    }
    // Long values in the newest state and in what the last commits have replaced.
    let mut model = history.model(history.newest()).clone();
    for round in 0..3 {
        let ids = (0..IDS).filter(|id| id % 4 == round || id % 9 == 0);
        let len = |id: u64| if id.is_multiple_of(9) { 70_000 } else { 2000 };
        let put = |id| {
            Access::write(setup.key(id), Some(bytes(&mut rng, usize::try_from(len(id)).unwrap())))
        };
        let accesses: Vec<Access> = ids.map(put).collect();
        model.apply(&accesses);
        crate::common::commit(&db, accesses);
        history.push(model.clone());
        runtime.step_some(12);
    }
    db.drain(0).expect("flushed");
    db.close().expect("closed");
    let (db, _) = setup.open(&disk, seed).expect("opens");
    // The log behind the image has records, too.
    for _ in 0..4 {
        let ids = (0..IDS).step_by(3);
        let put = ids.map(|id| Access::write(setup.key(id), Some(bytes(&mut rng, 900))));
        let accesses: Vec<Access> = put.collect();
        model.apply(&accesses);
        crate::common::commit(&db, accesses);
        history.push(model.clone());
    }
    drop(db);
    (setup, disk.image(), history)
}

/// What a bad page gives.
fn is_told(error: &Error) -> bool {
    let bad = |error: &Error| {
        matches!(
            error,
            Error::Page { .. } | Error::StalePage { .. } | Error::Io(_) | Error::Corrupt(_)
        )
    };
    match error {
        Error::Quarantined { first, .. } => bad(first),
        error => bad(error),
    }
}

/// Errors, by the kind of the file that is damaged and what gave them.
type Seen = BTreeMap<(&'static str, &'static str), u64>;

struct Damaged<'a> {
    setup: &'a Setup,
    what: String,
    /// The kind of the file.
    kind: &'static str,
    seen: Seen,
}

impl Damaged<'_> {
    fn told(&mut self, error: &Error, doing: &'static str) {
        assert!(is_told(error), "{}: {doing}: {error}", self.what);
        *self.seen.entry((self.kind, doing)).or_default() += 1;
    }

    /// Each commit of the history has the model's values, or says what is bad.
    fn reads(&mut self, db: &SimDb, history: &History) {
        for commit in db.history() {
            let session = match db.at(commit) {
                Ok(session) => session,
                Err(error) => {
                    self.told(&error, "opening an old state");
                    continue;
                }
            };
            assert_eq!(session.root(), history.root(commit), "{}: commit {commit}", self.what);
            let values = &history.model(commit).values;
            for id in 0..self.setup.ids {
                let key = self.setup.key(id);
                match session.read(&key) {
                    Ok(value) => {
                        let what = &self.what;
                        assert!(value.as_ref() == values.get(&key), "{what}: {id} of {commit}");
                    }
                    Err(error) => self.told(&error, "reading"),
                }
            }
            for pair in session.iter(..) {
                match pair {
                    Ok((key, value)) => {
                        assert!(values.get(&key) == Some(&value), "{}: {commit}", self.what);
                    }
                    Err(error) => {
                        self.told(&error, "iterating");
                        break;
                    }
                }
            }
            match session.prove(&self.setup.key(commit % IDS)) {
                Ok(proof) => {
                    let verified = pleach::proof::path::verify(
                        pleach::Hasher::BLAKE3,
                        &proof,
                        &history.root(commit),
                    );
                    assert!(verified.is_ok(), "{}: proof of {commit}", self.what);
                }
                Err(error) => self.told(&error, "proving"),
            }
        }
    }

    /// Commits go on, or say what is bad; rollbacks, too.
    fn commits(&mut self, open: (&SimDb, &SimRuntime), history: &mut History, count: u64) {
        let (db, runtime) = open;
        let mut rng = Rng::new(history.newest());
        for round in 0..count {
            let mut model = history.model(history.newest()).clone();
            let ids = (0..IDS).filter(|id| id % 6 == round % 6);
            let len = if round == 3 { 70_000 } else { 300 };
            let put = |id| Access::read_write(self.setup.key(id), Some(bytes(&mut rng, len)));
            let accesses: Vec<Access> = ids.map(put).collect();
            model.apply(&accesses);
            let session = db.session(SessionOptions::new()).expect("a session");
            let committed = session
                .finish(accesses)
                .map_err(pleach::FinishError::into_error)
                .and_then(|block| block.commit().map_err(pleach::CommitError::into_error));
            match committed {
                Ok(number) => {
                    assert_eq!(number, history.newest() + 1, "{}", self.what);
                    history.push(model);
                }
                Err(error) => self.told(&error, "committing"),
            }
            assert_eq!(db.root(), history.root(history.newest()), "{}", self.what);
            runtime.step_some(12);
        }
        let back = history.newest() - 2;
        match db.rollback_to(back) {
            Ok(number) => {
                assert_eq!(number, history.newest() + 1, "{}", self.what);
                history.push(history.model(back).clone());
            }
            Err(error) => self.told(&error, "rolling back"),
        }
        assert_eq!(db.root(), history.root(history.newest()), "{}", self.what);
    }
}

fn scrubbed(db: &SimDb) -> ScrubReport {
    scrub(&db.snapshot().expect("a snapshot"), &ScrubOptions::new()).expect("scrubbed")
}

/// The kind of a file, for what the test has come across.
fn kind_of(file: &str) -> &'static str {
    ["leaf", "overflow", "image", "log", "super"]
        .into_iter()
        .find(|kind| file.starts_with(kind))
        .unwrap_or("others")
}

/// Damages one page under an open database. Says whether the scrub has named it.
fn strike(
    damaged: &mut Damaged<'_>,
    (image, damage): (&Image, &Damage),
    mut history: History,
    rng: &mut Rng,
) -> bool {
    let (file, page) = match damage {
        Damage::Flip { at, .. } | Damage::Zero(at) | Damage::Garbage(at, _) => (&at.file, at.page),
        _ => unreachable!("not drawn"),
    };
    let disk = SimDisk::from_image_with(image, page, unrecorded());
    let (db, runtime) = damaged.setup.open(&disk, page).expect("opens");
    if !disk.damage(damage) {
        // The page had these bytes.
        return false;
    }
    let report = scrubbed(&db);
    for bad in &report.bad {
        // A record is named by the page that it begins in.
        let is_log = damaged.kind == "log" && kind_of(&bad.file) == "log";
        let is_page = bad.file == *file && bad.page == page;
        assert!(is_page || is_log, "{}: the scrub says {bad}", damaged.what);
    }
    // Few, so that the next open needs the log from before, or many, and the log goes round.
    let count = [0, 1, 12][rng.index(3)];
    damaged.commits((&db, &runtime), &mut history, count);
    if count > 1 {
        if let Err(error) = db.drain(0) {
            damaged.told(&error, "draining");
        }
        damaged.reads(&db, &history);
    }
    if rng.below(3) == 0 {
        db.close().unwrap_or_else(|error| panic!("{}: closing: {error}", damaged.what));
    }
    drop((db, runtime));
    match damaged.setup.open(&disk, page + 1) {
        Ok((db, runtime)) => {
            // What was acknowledged is there.
            assert_eq!(db.commit_number(), history.newest(), "{}: {:?}", damaged.what, db.opened());
            damaged.reads(&db, &history);
            damaged.commits((&db, &runtime), &mut history, 3);
        }
        Err(error) => {
            assert!(["log", "super"].contains(&damaged.kind), "{}: {error}", damaged.what);
            *damaged.seen.entry((damaged.kind, "opening")).or_default() += 1;
        }
    }
    !report.bad.is_empty()
}

#[test]
fn a_page_that_rots_under_an_open_database_gives_no_wrong_value() {
    let (mut named, mut seen) = (BTreeMap::<&str, u64>::new(), Seen::new());
    for seed in 0..cases(2) {
        let (setup, image, history) = subject(seed + 70);
        let mut rng = Rng::new(seed);
        let mut all: BTreeMap<&str, Vec<DamagedPage>> = BTreeMap::new();
        for file in image.names() {
            let pages = image.file(file).expect("listed").len().div_ceil(4096);
            let of_kind = all.entry(kind_of(file)).or_default();
            of_kind.extend((0..pages).map(|page| DamagedPage { file: file.to_owned(), page }));
        }
        for (kind, mut pages) in all {
            let most = if ["log", "leaf", "overflow"].contains(&kind) { 30 } else { 8 };
            for _ in 0..pages.len().min(most) {
                let at = pages.swap_remove(rng.index(pages.len()));
                let byte = u16::try_from(rng.below(4096)).expect("in a page");
                let damage = match rng.below(4) {
                    0 => Damage::Zero(at),
                    1 => Damage::Garbage(at, seed),
                    _ => Damage::Flip { at, byte, bit: 3 },
                };
                let what = format!("seed {seed}, {damage:?}");
                let mut damaged = Damaged { setup: &setup, what, kind, seen: Seen::new() };
                let is_named = strike(&mut damaged, (&image, &damage), history.clone(), &mut rng);
                *named.entry(kind).or_default() += u64::from(is_named);
                for (what, count) in damaged.seen {
                    *seen.entry(what).or_default() += count;
                }
            }
        }
    }
    println!("scrubs named {named:?}; told {seen:?}");
    for kind in ["leaf", "overflow", "log"] {
        assert!(named.get(kind).is_some_and(|count| *count > 0), "{kind}: {named:?}");
    }
    for told in [("leaf", "reading"), ("overflow", "reading"), ("log", "opening")] {
        assert!(seen.contains_key(&told), "{told:?}: {seen:?}");
    }
}
