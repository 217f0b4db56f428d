//! Damage at rest, one file at a time, over whole databases that were closed or killed: an open refuses
//! and changes nothing, or it opens at the right state; what it survives is said; `check` and the open
//! never differ about whether the database opens.
//!
//! The stories: a page of an image that an earlier checkpoint had left gave old values and then a wrong
//! root; the newest log file could be cut off or removed and took acknowledged commits with it; one bit in
//! the newest image, one old superblock slot or one sector that could not be read closed the database for
//! ever; an open that failed had raised the incarnation and rewritten the log.

use pleach::{Error, Geometry, SessionOptions};
use pleach_io::sim::{Content, Damage, DamagedPage, Image, Quota, SimDisk, SimRuntime, code};
use pleach_io::{Device, OpenMode};
use pleach_journal::format::names::segment_name;
use pleach_journal::format::record::HEADER_LEN;
use pleach_ops::{CheckOptions, Verdict, check_on, stat_on};

use crate::common::{Keys, Rng, cases};
use crate::crash::check::check;
use crate::crash::workload::{commit_one, run};
use crate::crash::{History, Promise, Setup, SimDb, unrecorded};

const PAGE: usize = 4096;

/// A database on a disk, and the commits that led to it.
struct Subject {
    setup: Setup,
    disk: SimDisk,
    history: History,
    closed: bool,
    /// The disk as it was one checkpoint earlier, or at another time before.
    older: Image,
    /// The header of the newest record: its file, where it begins there, and its bytes.
    newest: (String, usize, Vec<u8>),
}

impl Subject {
    fn new(seed: u64, closed: bool) -> Self {
        let mut setup = Setup::draw(seed);
        setup.ids = 60;
        let disk = SimDisk::new(seed, unrecorded());
        let mut run = run(&setup, &disk, 14);
        assert!(run.failed.is_none(), "{:?}", run.failed);
        let older = disk.image();
        let mut before = disk.image();
        let mut rng = Rng::new(seed ^ 5);
        for round in 0..3 {
            let (db, runtime) = setup.open(&disk, seed).expect("opens");
            for _ in 0..3 {
                before = disk.image();
                commit_one(&setup, &disk, &db, &runtime, &mut rng, &mut run.history)
                    .expect("commits");
                runtime.step_some(6);
            }
            if closed || round < 2 {
                db.close().expect("closes");
            }
        }
        let now = disk.image();
        let newest = now.names().filter(|name| is_log(name)).find_map(|name| {
            let (then, now) =
                (before.file(name).map_or_else(Vec::new, Content::to_vec), bytes(&now, name));
            let at = (0..now.len()).find(|at| then.get(*at) != Some(&now[*at]))?;
            Some((name.to_owned(), at, now[at..][..HEADER_LEN].to_vec()))
        });
        let newest = newest.expect("a commit was written");
        Self { setup, disk, history: run.history, closed, older, newest }
    }

    fn image(&self) -> Image {
        self.disk.image()
    }

    /// Who opens finds the newest commit; without it only after a kill, with a cut that is reported, or where the header
    /// of its record is lost: noise there is not told from a record that was not written.
    fn promise(&self, db: &SimDb, image: &Image) -> Promise {
        let newest = self.history.newest();
        let (name, at, header) = &self.newest;
        let file = image.file(name).map_or_else(Vec::new, Content::to_vec);
        let is_lost = file.get(*at..).is_some_and(|bytes| !bytes.starts_with(header));
        let torn = !self.closed && (db.opened().cut.is_some() || is_lost);
        Promise { least: newest - u64::from(torn), most: newest }
    }

    /// Looks at a damaged copy. Gives whether it opened.
    fn look(&self, disk: &SimDisk, what: &str) -> bool {
        let before = digest(disk);
        let image = disk.image();
        let verdict = check_on(disk, CheckOptions::default());
        assert_eq!(digest(disk), before, "{what}: a check writes nothing");
        let opened = self.setup.open(disk, 1);
        let db = match opened {
            Err(error) => {
                assert_eq!(
                    digest(disk),
                    before,
                    "{what}: {error}: an open that fails changes nothing"
                );
                let verdict = verdict.map(|report| report.verdict());
                assert!(
                    !matches!(verdict, Ok(Verdict::Clean | Verdict::Findings)),
                    "{what}: {error}: the check says {verdict:?}"
                );
                return false;
            }
            Ok((db, _)) => db,
        };
        let report =
            verdict.unwrap_or_else(|error| panic!("{what}: it opens, the check says {error}"));
        assert_ne!(report.verdict(), Verdict::DoesNotOpen, "{what}: {:?}", report.findings);
        let promise = self.promise(&db, &image);
        let found = crate::crash::check::state_of(&db, &self.history, promise, &what);
        let model = self.history.model(found);
        let session = db.session(SessionOptions::new()).expect("a session");
        for id in 0..self.setup.ids {
            let key = self.setup.key(id);
            match session.read(&key) {
                Ok(value) => assert!(value.as_ref() == model.values.get(&key), "{what}: key {id}"),
                Err(
                    Error::Page { .. } | Error::StalePage { .. } | Error::Io(_) | Error::Corrupt(_),
                ) => {
                    assert_ne!(report.verdict(), Verdict::Clean, "{what}: key {id} cannot be read");
                }
                Err(error) => panic!("{what}: key {id}: {error}"),
            }
        }
        true
    }

    /// The same, and work goes on: for damage that takes nothing from the database.
    fn survives(&self, disk: &SimDisk, what: &str) {
        let least = self.history.newest() - u64::from(!self.closed);
        let promise = Promise { least, most: self.history.newest() };
        check(&self.setup, disk, &self.history, promise, &what);
    }
}

fn digest(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let image = disk.image();
    image
        .names()
        .map(|name| (name.to_owned(), image.file(name).expect("listed").to_vec()))
        .collect()
}

fn disk_of(image: &Image) -> SimDisk {
    SimDisk::from_image_with(image, 3, unrecorded())
}

/// The image with another content for one file, or without it.
fn with(image: &Image, name: &str, content: Option<Vec<u8>>) -> SimDisk {
    let mut files: Vec<(&str, Content)> = image
        .names()
        .filter(|found| *found != name)
        .map(|name| (name, image.file(name).expect("listed").clone()))
        .collect();
    files.extend(content.map(|bytes| (name, Content::from_bytes(&bytes))));
    disk_of(&Image::from_files(files))
}

fn bytes(image: &Image, name: &str) -> Vec<u8> {
    image.file(name).expect("listed").to_vec()
}

fn pages(image: &Image, name: &str) -> Vec<Vec<u8>> {
    let bytes = image.file(name).map_or_else(Vec::new, Content::to_vec);
    bytes.chunks(PAGE).map(<[u8]>::to_vec).collect()
}

fn is_blank(page: &[u8]) -> bool {
    page.iter().all(|byte| *byte == 0)
}

fn is_log(name: &str) -> bool {
    name.starts_with("log-")
}

#[test]
fn every_file_missing_cut_lengthened_or_older_is_refused_or_survived() {
    let mut opened = 0;
    let mut refused = 0;
    for seed in 0..cases(2) {
        for closed in [true, false] {
            let subject = Subject::new(seed, closed);
            let image = subject.image();
            for name in image.names() {
                let whole = bytes(&image, name);
                let mut versions = vec![None];
                for len in [0, 1, 4095, 4096, whole.len() / 2, whole.len().saturating_sub(1)] {
                    versions.push(Some(whole[..len.min(whole.len())].to_vec()));
                }
                for more in [1, PAGE] {
                    versions.push(Some([whole.as_slice(), &vec![0; more]].concat()));
                }
                versions.push(subject.older.file(name).map(Content::to_vec));
                for (index, version) in versions.into_iter().enumerate() {
                    let what = format!("seed {seed}, closed {closed}, {name}, version {index}");
                    // The older generation's log may be gone; the newest one's is all that counts.
                    let same = version.as_ref() == Some(&whole);
                    let disk = with(&image, name, version);
                    if subject.look(&disk, &what) {
                        opened += 1;
                    } else {
                        assert!(!same, "{what}: nothing was changed");
                        refused += 1;
                    }
                }
            }
        }
    }
    println!("{opened} opened, {refused} refused");
    assert!(opened > 50 && refused > 100, "{opened} opened, {refused} refused");
}

#[test]
fn every_page_damaged_in_any_way_is_refused_or_survived() {
    let mut rng = Rng::new(8);
    for seed in 0..cases(1) {
        for closed in [true, false] {
            let subject = Subject::new(seed, closed);
            let image = subject.image();
            let names: Vec<&str> = image.names().collect();
            for name in &names {
                let pages = bytes(&image, name).len() / PAGE;
                for page in 0..pages as u64 {
                    let at = || DamagedPage { file: (*name).to_owned(), page };
                    let other = names[rng.index(names.len())];
                    let byte = u16::try_from(rng.below(4096)).expect("in a page");
                    let meant = DamagedPage { file: other.to_owned(), page: rng.below(4) };
                    let kinds = [
                        Damage::Flip { at: at(), byte, bit: 3 },
                        Damage::Flip { at: at(), byte: byte % 100, bit: 6 },
                        Damage::Zero(at()),
                        Damage::Garbage(at(), rng.next()),
                        Damage::Misdirected { meant, hit: at() },
                        Damage::Unreadable(at()),
                    ];
                    // Free pages of the log are many and say little each.
                    if is_log(name) && rng.below(3) > 0 {
                        continue;
                    }
                    for damage in kinds {
                        let disk = disk_of(&image);
                        disk.damage(&damage);
                        let what = format!("seed {seed}, closed {closed}, {damage:?}");
                        subject.look(&disk, &what);
                    }
                }
            }
        }
    }
}

/// After a clean close and a kill without a checkpoint the newest superblock still has the end of the close. A record
/// there that cannot be read is damage, since commits lie behind it.
#[test]
fn a_damaged_record_behind_an_earlier_close_does_not_end_the_log() {
    for seed in 0..cases(4) {
        let mut subject = Subject::new(seed, true);
        let closed = subject.image();
        let (db, runtime) = subject.setup.open(&subject.disk, seed).expect("opens");
        let mut rng = Rng::new(seed);
        let mut commit = |subject: &mut Subject| {
            let Subject { setup, disk, history, .. } = subject;
            commit_one(setup, disk, &db, &runtime, &mut rng, history).expect("commits");
            subject.image()
        };
        let first = commit(&mut subject);
        commit(&mut subject);
        let image = commit(&mut subject);
        drop((db, runtime));
        subject.closed = false;
        let mut refused = 0;
        for name in first.names().filter(|name| is_log(name)) {
            let [before, then, now] = [&closed, &first, &image].map(|image| pages(image, name));
            for (page, bytes) in then.iter().enumerate() {
                let is_same = |image: &[Vec<u8>]| image.get(page) == Some(bytes);
                // Pages of a segment that is new may be blank, or another commit's later.
                if !is_same(&before) && is_same(&now) && !is_blank(bytes) {
                    let disk = disk_of(&image);
                    let at = DamagedPage { file: name.to_owned(), page: page as u64 };
                    disk.damage(&Damage::Zero(at));
                    // What is left of a recycled segment may go.
                    let opens = subject.look(&disk, &format!("seed {seed}, page {page} of {name}"));
                    refused += u32::from(!opens);
                }
            }
        }
        assert!(refused > 0, "seed {seed}: two commits lie behind the first one's record");
    }
}

#[test]
fn an_older_page_in_the_newest_image_is_never_taken_for_a_new_one() {
    let mut found = 0;
    for seed in 0..cases(3) {
        let subject = Subject::new(seed, true);
        let image = subject.image();
        for name in ["image-a", "image-b"] {
            let (now, before) = (bytes(&image, name), bytes(&subject.older, name));
            let pages = now.len().min(before.len()) / PAGE;
            for page in 0..pages {
                let range = page * PAGE..(page + 1) * PAGE;
                if now[range.clone()] == before[range.clone()] {
                    continue;
                }
                let mut mixed = now.clone();
                mixed[range.clone()].copy_from_slice(&before[range]);
                let disk = with(&image, name, Some(mixed));
                let what = format!("seed {seed}, page {page} of {name}");
                assert!(subject.look(&disk, &what), "{what}: the other image is whole");
                subject.survives(&disk, &what);
                found += 1;
            }
        }
    }
    assert!(found > 20, "{found}");
}

#[test]
fn the_older_generation_serves_when_any_page_of_the_newest_is_bad() {
    let mut fallen = 0;
    for seed in 0..cases(4) {
        for closed in [true, false] {
            let subject = Subject::new(seed, closed);
            let image = subject.image();
            let mut rng = Rng::new(seed);
            for name in ["image-a", "image-b", "super"] {
                let pages = bytes(&image, name).len() / PAGE;
                for page in 0..pages as u64 {
                    for unreadable in [false, true] {
                        let disk = disk_of(&image);
                        let at = DamagedPage { file: name.to_owned(), page };
                        let byte = u16::try_from(rng.below(4096)).expect("in a page");
                        disk.damage(&if unreadable {
                            Damage::Unreadable(at)
                        } else {
                            Damage::Flip { at, byte, bit: 1 }
                        });
                        let what = format!("seed {seed}, closed {closed}, page {page} of {name}");
                        let (db, _) = subject
                            .setup
                            .open(&disk, 1)
                            .unwrap_or_else(|error| panic!("{what}: does not open: {error}"));
                        if db.opened().fell_back.is_some() {
                            fallen += 1;
                        }
                        drop(db);
                        let disk = disk_of(&disk.image());
                        subject.survives(&disk, &what);
                    }
                }
            }
        }
    }
    assert!(fallen > 30, "{fallen}");
}

#[test]
fn one_stale_superblock_slot_does_not_matter() {
    for seed in 0..cases(2) {
        for closed in [true, false] {
            let subject = Subject::new(seed, closed);
            let image = subject.image();
            let (now, before) = (bytes(&image, "super"), bytes(&subject.older, "super"));
            let half = now.len() / 2;
            for range in [0..half, half..now.len()] {
                let mut mixed = now.clone();
                mixed[range.clone()].copy_from_slice(&before[range.clone()]);
                let disk = with(&image, "super", Some(mixed));
                let what = format!("seed {seed}, closed {closed}, slot at {}", range.start);
                if subject.look(&disk, &what) {
                    subject.survives(&disk, &what);
                } else {
                    // Both slots are now too old for the log that is kept: the newest one was lost.
                    let newest = |bytes: &[u8], slot: usize| {
                        let page: &[u8; PAGE] = bytes[slot * half..][..PAGE].try_into().unwrap();
                        let slot = u32::try_from(slot).unwrap();
                        pleach_journal::format::superblock::Superblock::decode(page, slot)
                            .map_or(0, |it| it.generation)
                    };
                    let lost = usize::from(range.start > 0);
                    assert!(
                        newest(&now, lost) > newest(&now, 1 - lost),
                        "{what}: the newest is whole"
                    );
                    panic!("{what}: the older generation has its log, and does not serve");
                }
            }
        }
    }
}

#[test]
fn either_copy_of_the_incarnation_is_enough() {
    let subject = Subject::new(1, true);
    let image = subject.image();
    for page in 0..2 {
        let disk = disk_of(&image);
        disk.damage(&Damage::Unreadable(DamagedPage { file: "incarnation".to_owned(), page }));
        let report = check_on(&disk, CheckOptions::default()).expect("checked");
        assert_eq!(report.verdict(), Verdict::Findings);
        assert!(report.findings[0].what.contains("copy"), "{:?}", report.findings);
        subject.survives(&disk, &format!("copy {page} is unreadable"));
    }
}

#[test]
fn what_was_cut_and_whether_it_was_closed_can_be_asked() {
    let subject = Subject::new(2, false);
    let image = subject.image();
    let (db, _) = subject.setup.open(&disk_of(&image), 1).expect("opens");
    assert!(db.opened().cut.is_none() && !db.opened().closed && !db.opened().created);
    assert_eq!(db.opened().commit, subject.history.newest());
    drop(db);
    // The last record, torn in its body.
    let stat = stat_on(disk_of(&image), None).expect("looked at");
    let end = stat.superblock.replay.position.get() + stat.log_replay_bytes;
    let size = stat.superblock.geometry.log_segment;
    let disk = disk_of(&image);
    let at = DamagedPage { file: segment_name((end - 9) / size), page: (end - 9) % size / 4096 };
    let byte = u16::try_from((end - 9) % 4096).expect("in a page");
    disk.damage(&Damage::Flip { at, byte, bit: 0 });
    let report = check_on(&disk, CheckOptions::default()).expect("checked");
    assert_eq!(report.verdict(), Verdict::Findings);
    assert!(report.findings[0].what.contains("torn"), "{:?}", report.findings);
    let cut = stat_on(&disk, None).expect("looked at").opening.cut;
    let (db, _) = subject.setup.open(&disk, 1).expect("opens");
    assert_eq!(db.opened().cut, cut);
    assert!(cut.is_some_and(|cut| cut.records > 0), "{cut:?}");
    drop(db);
    // It is cut: the next open finds nothing more to cut.
    let (db, _) = subject.setup.open(&disk, 2).expect("opens again");
    assert!(db.opened().cut.is_none(), "{:?}", db.opened().cut);
    db.close().expect("closed");
    let (db, _) = subject.setup.open(&disk, 3).expect("opens again");
    assert!(db.opened().closed);
    drop(db);
    assert!(!stat_on(&disk, None).expect("looked at").opening.closed, "dropped, not closed");
}

#[test]
fn a_database_opens_reads_and_deletes_on_a_disk_without_a_free_byte() {
    let (cases, mut refused) = (cases(4), 0);
    for seed in 0..cases {
        for closed in [true, false] {
            let subject = Subject::new(seed, closed);
            let disk = disk_of(&subject.image());
            let quota = |bytes| Some(Quota { bytes, code: code::ENOSPC });
            disk.set_quota(quota(disk.used()));
            let what = format!("seed {seed}, closed {closed}");
            let names = disk.list().expect("listed");
            for round in 0..3 {
                let (db, _) = subject
                    .setup
                    .open(&disk, round)
                    .unwrap_or_else(|error| panic!("{what}, open {round}: {error}"));
                let found = disk.list().expect("listed");
                assert!(found.iter().all(|name| names.contains(name)), "{what}: {found:?}");
                crate::crash::check::reads(
                    &subject.setup,
                    &db,
                    subject.history.model(subject.history.newest()),
                    &what,
                );
                // As after a kill.
                drop(db);
            }
            let mut history = subject.history.clone();
            let (db, _) = subject.setup.open(&disk, 9).expect("opens");
            let mut model = history.model(history.newest()).clone();
            let deletes: Vec<_> =
                model.values.keys().map(|key| pleach::Access::write(*key, None)).collect();
            model.apply(&deletes);
            let session = db.session(SessionOptions::new()).expect("a session");
            let block = session.finish(deletes).expect("finished");
            block.commit().unwrap_or_else(|error| panic!("{what}: deletes: {error}"));
            history.push(model);
            // Where the last log segment has no room for what a flush says, pages wait for a free byte.
            if let Err(error) = db.drain(0) {
                assert!(matches!(error, Error::Full(_)), "{what}: draining: {error}");
                refused += 1;
            }
            db.close().unwrap_or_else(|error| panic!("{what}: closing: {error}"));
            let promise = Promise { least: history.newest(), most: history.newest() };
            disk.set_quota(None);
            check(&subject.setup, &disk, &history, promise, &what);
        }
    }
    assert!(refused <= cases / 4, "{refused} of {} could not be drained", 2 * cases);
}

#[test]
fn where_names_cannot_be_exchanged_an_open_makes_do() {
    let subject = Subject::new(3, false);
    let options = pleach_io::sim::SimOptions { exchanges: false, ..unrecorded() };
    let disk = SimDisk::from_image_with(&subject.image(), 1, options);
    subject.survives(&disk, "no exchange");
    // Without room even that is an error that says so, and nothing is lost.
    let disk = SimDisk::from_image_with(
        &subject.image(),
        1,
        pleach_io::sim::SimOptions { exchanges: false, ..unrecorded() },
    );
    for name in ["super.spare", "incarnation.spare", "log.spare"] {
        disk.remove(name).expect("no faults");
    }
    disk.set_quota(Some(Quota { bytes: disk.used(), code: code::ENOSPC }));
    let error = subject.setup.open(&disk, 1).err();
    assert!(matches!(error, Some(Error::Full(_))), "{error:?}");
    disk.set_quota(None);
    let file = disk.open("super", OpenMode::Read).expect("there");
    assert_eq!(disk.len(&file).expect("measured"), pleach_journal::format::superblock::FILE_LEN);
    subject.survives(&disk, "with room");
}

#[test]
fn a_young_database_closes_on_a_disk_without_a_free_byte() {
    // Never checkpointed, killed, and then the disk is full: the close found no room for its first image,
    // and a flush asked for as many page numbers as it had pages, found fewer, and wrote none.
    let setup = Setup {
        keys: Keys::Uniform,
        cache_kib: 16 << 10,
        flush_at: 3,
        ids: 2000,
        ..Setup::draw(3)
    };
    let disk = SimDisk::new(3, unrecorded());
    // As a log of ordinary size has: room for the deletes.
    let geometry = Geometry { segment_pages: 16, log_segment: 1 << 20, size_factor: 150 };
    let open = |seed| {
        let runtime = SimRuntime::with_clock(seed, disk.clock(), 1);
        let options = setup.options().geometry(geometry).log_limit_mib(8);
        SimDb::open_on(disk.clone(), runtime.clone(), options).map(|db| (db, runtime))
    };
    let keys: Vec<_> = (0..setup.ids).map(|id| setup.key(id)).collect();
    let commit = |db: &SimDb, value: Option<&[u8]>| {
        for some in keys.chunks(200) {
            let put = |key: &_| pleach::Access::write(*key, value.map(pleach::Value::from));
            let session = db.session(SessionOptions::new()).expect("a session");
            session
                .finish(some.iter().map(put).collect::<Vec<_>>())
                .expect("finished")
                .commit()
                .expect("committed");
        }
    };
    let (db, runtime) = open(1).expect("created");
    commit(&db, Some(&[7; 100]));
    runtime.step_some(200);
    drop(db);
    disk.set_quota(Some(Quota { bytes: disk.used(), code: code::ENOSPC }));
    let (db, _) = open(2).expect("opens");
    commit(&db, None);
    db.drain(0).expect("drained");
    assert_eq!(db.root(), pleach_core::TERMINATOR);
    db.close().expect("closed");
    let (db, _) = open(3).expect("opens");
    assert!(db.opened().closed);
}
