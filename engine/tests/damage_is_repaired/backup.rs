//! A backup and the log of the damaged folder give each commit again, whatever else of the folder is left; without a backup
//! what is whole is written out, and what is lost is named.

use pleach::internals::error::Contradiction;
use pleach::{Access, Error, Geometry, SessionOptions, Value};
use pleach_io::sim::{Content, Image, SimDisk};
use pleach_io::{Device as _, OpenMode, PageBuf};
use pleach_ops::BackupOptions;
use pleach_ops::export::{ImportOptions, StreamReader, import};
use pleach_ops::repair::{
    RepairOptions, RollForwardReport, repair_on, roll_forward_on, salvage_on,
};

use crate::common::{
    Chain, MERKLE, PLAIN, Pairs, SimDb, States, damage, disk_of, is_named, key, new_disk, open,
    options, pairs, runtime,
};

const HISTORY: u64 = 100;

/// A database with backups of some of its commits, killed.
fn subject() -> (SimDisk, States, Vec<(u64, SimDisk)>) {
    let disk = new_disk();
    let mut chain = Chain::new(&disk, HISTORY);
    let mut backups = Vec::new();
    for round in 0..24 {
        let keys = if round % 3 == 0 { 40 } else { 7 };
        chain.commit(keys);
        if round % 8 == 1 {
            let backup = new_disk();
            let report = pleach_ops::backup_on(&chain.db, &backup, &BackupOptions::new())
                .expect("backed up");
            backups.push((report.commit, backup));
        }
        match round {
            5 => chain.namespace(MERKLE, false),
            6 => chain.namespace(9, true),
            11 => chain.roll_back(2),
            14 => chain.namespace(PLAIN, false),
            // Brings it back.
            16 => chain.roll_back(3),
            _ => {}
        }
    }
    let states = std::mem::take(&mut chain.states);
    drop(chain.db);
    (disk, states, backups)
}

fn rolled(
    backup: &SimDisk,
    damaged: &SimDisk,
    at: Option<u64>,
) -> Result<(RollForwardReport, Pairs, Vec<u8>), Error> {
    let db = open(&disk_of(&backup.image()), HISTORY).expect("a backup opens");
    let report = roll_forward_on(&db, damaged, at)?;
    Ok((report, pairs(&db), db.blob()))
}

#[test]
fn a_backup_is_rolled_forward_whatever_else_is_lost() {
    let (disk, states, backups) = subject();
    let newest = *states.keys().last().expect("commits");
    let image = disk.image();
    for (commit, backup) in &backups {
        for lost in [&[][..], &["leaf"], &["super", "image-a", "image-b"], &["incarnation", "leaf"]]
        {
            let damaged = disk_of(&image);
            for file in lost {
                damaged.remove(file).expect("removed");
            }
            let what = format!("backup of {commit}, without {lost:?}");
            let rolled = rolled(backup, &damaged, None);
            let (report, found, blob) = rolled.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(
                (report.from, report.through, report.commit),
                (*commit, newest, newest),
                "{what}"
            );
            assert!(report.lost.is_none() && report.error.is_none(), "{what}: {report:?}");
            let (roots, model, told) = &states[&newest];
            assert!(report.roots.iter().eq(roots.iter()), "{what}: {report:?}");
            assert!(found == *model && blob == *told, "{what}");
        }
    }
}

/// Retired segments wait as spares under their old names: the gaps between those were called lost commits.
#[test]
fn a_database_that_comes_back_whole_is_said_to_be_whole() {
    let disk = new_disk();
    let mut chain = Chain::new(&disk, 4);
    while chain.commit(40) < 60 {}
    let backup = new_disk();
    pleach_ops::backup_on(&chain.db, &backup, &BackupOptions::new()).expect("backed up");
    let newest = chain.commit(40);
    chain.db.close().expect("closed");
    let image = disk.image();
    let log: Vec<&str> = image.names().filter(|name| name.starts_with("log-")).collect();
    let index = |name: &str| u64::from_str_radix(&name[4..], 16).expect("a number");
    assert!(log.windows(2).any(|pair| index(pair[0]) + 1 < index(pair[1])), "no gap: {log:?}");
    for lost in [&[][..], &["image-a", "image-b"], &["leaf"], &["super"]] {
        let damaged = disk_of(&image);
        for file in lost {
            damaged.remove(file).expect("removed");
        }
        let (report, found, _) = rolled(&backup, &damaged, None).expect("rolled forward");
        assert!(report.through == newest && found == chain.pairs, "without {lost:?}");
        assert!(report.lost.is_none() && report.error.is_none(), "without {lost:?}: {report:?}");
    }
}

#[test]
fn a_roll_forward_ends_at_the_damage_and_names_what_is_behind_it() {
    let (disk, states, backups) = subject();
    let (commit, backup) = &backups[1];
    let (newest, image) = (*states.keys().last().expect("commits"), disk.image());
    let (mut ended, mut at_once) = (0, 0);
    for name in image.names().filter(|name| name.starts_with("log-")) {
        for page in 0..image.file(name).expect("a file").len() / 4096 {
            let damaged = disk_of(&image);
            damage(&damaged, name, page, page % 2 == 0);
            let what = format!("page {page} of {name}");
            let rolled = rolled(backup, &damaged, None);
            let (report, found, blob) = rolled.unwrap_or_else(|error| panic!("{what}: {error}"));
            let (roots, model, told) = &states[&report.through];
            assert!(report.roots.iter().eq(roots.iter()) && found == *model, "{what}");
            assert!(blob == *told, "{what}");
            is_named(&report.lost, report.through, newest, &what);
            ended += u64::from(report.through < newest);
            at_once += u64::from(report.through == *commit);
        }
    }
    assert!(ended > 3 && at_once > 0, "{ended} {at_once}");
}

/// A repair in place cut the log, and a roll forward after it ended there and said that nothing was lost. The log before
/// the cut may be used up by then: a backup of the database that was cut has what was in it. A value over 64 KiB may be
/// written over: that is said.
#[test]
fn a_roll_forward_after_a_cut_has_the_commits_of_one_before_it() {
    let disk = new_disk();
    let (mut chain, mut backups) = (Chain::new(&disk, HISTORY), Vec::new());
    let back_up = |db: &SimDb| {
        let backup = new_disk();
        pleach_ops::backup_on(db, &backup, &BackupOptions::new()).expect("backed up");
        (db.commit_number(), backup)
    };
    for _ in 0..7 {
        chain.commit(60);
    }
    backups.push(back_up(&chain.db));
    chain.db.close().expect("closed");
    chain.db = open(&disk, HISTORY).expect("opens");
    for round in 0..10 {
        chain.commit(9);
        if round % 3 == 1 {
            backups.push(back_up(&chain.db));
        }
    }
    let states = std::mem::take(&mut chain.states);
    drop(chain.db);
    let image = disk.image();
    let (mut cut, mut went_on) = (0, 0);
    for name in image.names().filter(|name| name.starts_with("log-")) {
        for page in 0..image.file(name).expect("a file").len() / 4096 {
            let damaged = disk_of(&image);
            damage(&damaged, name, page, false);
            let then = damaged.image();
            let repaired = repair_on(&damaged, &RepairOptions::new().cut(true), runtime(&damaged));
            let Some(log) = repaired.expect("repaired").cut else { continue };
            cut += 1;
            let what = format!("page {page} of {name}");
            let after = |backup: &SimDisk, what: &str| {
                let (report, found, blob) = rolled(backup, &damaged, None).expect("rolled forward");
                let (roots, model, told) = &states[&report.through];
                assert!(report.roots.iter().eq(roots.iter()), "{what}: {report:?}");
                assert!(found == *model && blob == *told, "{what}");
                report
            };
            let db = open(&disk_of(&damaged.image()), HISTORY).expect("opens");
            let own = after(&back_up(&db).1, &what);
            for (commit, backup) in &backups {
                let what = format!("{what}, backup of {commit}");
                let (first, ..) = rolled(backup, &disk_of(&then), None).expect("rolled forward");
                let report = after(backup, &what);
                // A long value may be written over by the image and the history of what is left.
                let overwritten = report.error.is_some() || own.error.is_some();
                let most = report.through.max(own.through);
                assert!(most >= first.through || overwritten, "{what}: {report:?}");
                if report.through >= first.through {
                    assert_eq!(report.lost, first.lost, "{what}");
                } else {
                    assert!(!report.lost.is_none(), "{what}: {report:?}");
                }
                went_on += u64::from(report.through >= log.lost.numbers.start);
            }
        }
    }
    assert!(cut > 3 && went_on > 3, "{cut} {went_on}");
}

#[test]
fn an_imported_state_and_an_empty_database_are_rolled_forward_too() {
    let (disk, states, _) = subject();
    let newest = *states.keys().last().expect("commits");
    // From the creation on: the log has all of it.
    let empty = new_disk();
    drop(open(&empty, HISTORY).expect("created"));
    let (report, found, _) = rolled(&empty, &disk, None).expect("rolled forward");
    assert_eq!((report.from, report.through), (0, newest), "{report:?}");
    assert!(found == states[&newest].1);
    // An import has numbers of its own.
    let (then, mut stream) = (newest - 3, Vec::new());
    let db = open(&disk_of(&disk.image()), HISTORY).expect("opens");
    pleach_ops::export::export(&db.at(then).expect("in the history"), &mut stream)
        .expect("exported");
    let copy = new_disk();
    let sizes = Geometry { segment_pages: 16, log_segment: 64 << 10, size_factor: 150 };
    let options = options(HISTORY).log_limit_bytes(1 << 20).geometry(sizes);
    let to = SimDb::open_on(copy.clone(), runtime(&copy), options).expect("created");
    let reader = StreamReader::new(&*stream).expect("a stream");
    import(&to, reader, &ImportOptions::new().memory_mib(1)).expect("imported");
    to.close().expect("closed");
    // Its id and sizes are others: without superblocks the log alone tells those of the damaged database.
    for lost in ["nothing", "super", "both slots"] {
        let damaged = disk_of(&disk.image());
        match lost {
            "super" => damaged.remove("super").expect("removed"),
            "both slots" => {
                damage(&damaged, "super", 0, false);
                damage(&damaged, "super", 16, false);
            }
            _ => {}
        }
        let (report, found, _) = rolled(&copy, &damaged, Some(then)).expect("rolled forward");
        assert_eq!((report.from, report.through), (then, newest), "{lost}");
        assert!(report.roots.iter().eq(states[&newest].0.iter()) && found == states[&newest].1);
        assert!(report.lost.is_none(), "{lost}: {report:?}");
        assert_eq!(report.superblocks.is_some(), lost != "nothing");
    }
    let other = rolled(&copy, &disk, Some(then - 5)).expect_err("the state of another commit");
    assert!(matches!(other, Error::Corrupt(Contradiction::OtherState { .. })), "{other}");
}

/// A file that is gone is no file without commits.
#[test]
fn commits_of_a_log_that_is_gone_are_not_passed_over() {
    let (disk, states, backups) = subject();
    let (commit, backup) = &backups[1];
    let (newest, image) = (*states.keys().last().expect("commits"), disk.image());
    let segments: Vec<&str> = image.names().filter(|name| name.starts_with("log-")).collect();
    for superblocks in [true, false] {
        for (kept, cut) in (0..segments.len()).flat_map(|kept| [(kept, false), (kept, true)]) {
            let damaged = disk_of(&image);
            for name in &segments[kept..] {
                if cut {
                    let file = damaged.open(name, OpenMode::Write).expect("there");
                    damaged.set_len(&file, 4096).expect("cut");
                } else {
                    damaged.remove(name).expect("removed");
                }
            }
            if !superblocks {
                damaged.remove("super").expect("removed");
            }
            let what = format!("{kept} segments are left, cut {cut}, superblocks {superblocks}");
            let (report, found, _) = rolled(backup, &damaged, None).expect("rolled forward");
            assert!(report.through >= *commit && found == states[&report.through].1, "{what}");
            assert!(report.lost.numbers.end <= newest + 1, "{what}: {report:?}");
            let named = report.lost.numbers.end > newest && report.through < newest;
            assert!(named || report.lost.maybe_more, "{what}: {report:?}");
        }
    }
}

/// Pages by file and number, in order.
type LogPages = Vec<(String, u64)>;

/// Pages of the log that a commit has written.
fn written(before: &Image, after: &Image) -> LogPages {
    let mut pages = Vec::new();
    for name in after.names().filter(|name| name.starts_with("log-")) {
        let now = after.file(name).expect("a file").to_vec();
        let then = before.file(name).map_or_else(|| vec![0; now.len()], Content::to_vec);
        let both = (0..).zip(now.chunks(4096).zip(then.chunks(4096)));
        let other = both.filter(|(_, (now, then))| now != then);
        pages.extend(other.map(|(page, _)| (name.to_owned(), page)));
    }
    pages
}

/// A backup, the log after it of the disk, and the pages that each of three commits behind the backup has written, three or
/// more.
fn three_commits() -> (SimDisk, SimDisk, u64, [LogPages; 3]) {
    let disk = new_disk();
    let mut chain = Chain::new(&disk, HISTORY);
    chain.commit(200);
    let backup = new_disk();
    pleach_ops::backup_on(&chain.db, &backup, &BackupOptions::new()).expect("backed up");
    let pages = [(); 3].map(|()| {
        let before = disk.image();
        chain.commit(200);
        written(&before, &disk.image())
    });
    assert!(pages.iter().all(|pages| pages.len() >= 3), "{pages:?}");
    (backup, disk, chain.db.commit_number(), pages)
}

/// Damages a page in the middle of a record, whose header stays whole.
fn damage_body(disk: &SimDisk, pages: &[(String, u64)]) {
    let (name, page) = &pages[pages.len() / 2];
    damage(disk, name, *page, false);
}

/// No whole record names the last two commits. The header of the last record says that the log was durable behind the one
/// before it.
#[test]
fn a_log_that_was_durable_behind_its_last_whole_record_had_more() {
    let (backup, disk, newest, pages) = three_commits();
    damage_body(&disk, &pages[1]);
    damage_body(&disk, &pages[2]);
    let (report, ..) = rolled(&backup, &disk, None).expect("rolled forward");
    assert_eq!(report.through, newest - 2);
    assert!(report.lost.numbers.is_empty() && report.lost.maybe_more, "{report:?}");
}

/// Nothing says that there is a record behind the last whole one, but that the pages there cannot be read.
#[test]
fn a_log_that_cannot_be_read_to_its_end_may_have_had_more() {
    let (backup, disk, newest, pages) = three_commits();
    for (name, page) in pages[2].iter().filter(|page| !pages[1].contains(page)) {
        damage(&disk, name, *page, true);
    }
    let (report, ..) = rolled(&backup, &disk, None).expect("rolled forward");
    assert_eq!(report.through, newest - 1);
    assert!(report.lost.numbers.is_empty() && report.lost.maybe_more, "{report:?}");
}

/// All records are there, and a segment is gone that had been made for more: they say that it was there.
#[test]
fn a_log_without_a_segment_that_was_prepared_may_have_had_more() {
    let disk = new_disk();
    let mut chain = Chain::new(&disk, HISTORY);
    let is_behind = |name: &&str, end: &str| name.starts_with("log-") && *name > end;
    let ahead = (0..50).find_map(|_| {
        // The background makes a segment when the last one is half full.
        chain.db.drain(0).expect("flushed");
        let before = disk.image();
        chain.commit(9);
        let after = disk.image();
        let end = written(&before, &after).pop().expect("a record").0;
        after.names().find(|name| is_behind(name, &end)).map(str::to_owned)
    });
    let backup = new_disk();
    pleach_ops::backup_on(&chain.db, &backup, &BackupOptions::new()).expect("backed up");
    let newest = chain.db.commit_number();
    drop(chain.db);
    for (lost, is_whole) in [(None, true), (ahead, false)] {
        if let Some(lost) = &lost {
            disk.remove(lost).expect("removed");
        }
        let (report, ..) = rolled(&backup, &disk, None).expect("rolled forward");
        assert_eq!((report.through, report.lost.is_none()), (newest, is_whole), "without {lost:?}");
        assert!(report.lost.numbers.is_empty(), "{report:?}");
    }
}

/// The next commit writes over all that is other, so that the roots after it are right: those before it tell. The record of
/// the state's own commit, which would tell, too, is damaged.
#[test]
fn a_state_that_the_next_commit_makes_right_is_another_all_the_same() {
    let [disk, same, other] = [(); 3].map(|()| new_disk());
    let put = |db: &SimDb, others: u64, byte: u8| {
        let own = Access::write(key(1), Some(Value::from(vec![byte; 40])));
        let others =
            (2..2 + others).map(|id| Access::write(key(id), Some(Value::from(vec![7; 900]))));
        let session = db.session(SessionOptions::new()).expect("a session");
        let block = session.finish(others.chain([own]).collect::<Vec<_>>()).expect("finished");
        block.commit().expect("committed")
    };
    let copies = [(&same, 1), (&other, 2)].map(|(disk, byte)| {
        let db = open(disk, HISTORY).expect("created");
        put(&db, 20, byte);
        db
    });
    let db = open(&disk, HISTORY).expect("created");
    let before = disk.image();
    put(&db, 20, 1);
    damage_body(&disk, &written(&before, &disk.image()));
    put(&db, 0, 3);
    let roots = db.roots();
    drop(db);
    let [same, other] = copies.map(|copy| roll_forward_on(&copy, &disk, None));
    let report = same.expect("rolled forward");
    assert_eq!((report.through, report.roots), (2, roots));
    let refused = other.expect_err("the state of another commit");
    assert!(
        matches!(refused, Error::Corrupt(Contradiction::OtherState { commit: 2, namespace: 0 })),
        "{refused}"
    );
}

#[test]
fn what_is_whole_is_salvaged_and_what_is_lost_is_named() {
    let disk = new_disk();
    let mut chain = Chain::new(&disk, 0);
    for _ in 0..5 {
        chain.commit(90);
    }
    chain.db.drain(0).expect("flushed");
    let number = chain.commit(6);
    let (roots, model, blob) = chain.states[&number].clone();
    chain.db.close().expect("closed");
    let image = disk.image();
    let mut losses = [0, 0];
    for (file, losses) in ["leaf", "overflow"].into_iter().zip(&mut losses) {
        for page in 0..image.file(file).expect("a file").len() / 4096 {
            let disk = disk_of(&image);
            damage(&disk, file, page, page % 2 == 0);
            let (mut stream, what) = (Vec::new(), format!("page {page} of {file}"));
            let report =
                salvage_on(&disk, None, &mut stream).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(report.expected == roots, "{what}");
            let to = open(&new_disk(), 0).expect("created");
            let reader = StreamReader::new(&*stream).expect("a stream");
            import(&to, reader, &ImportOptions::new().memory_mib(1)).expect("imported");
            let found = pairs(&to);
            assert!(to.blob() == blob && to.roots().iter().eq(report.roots.iter()), "{what}");
            // What is there is right, and what is not is below a prefix that was named.
            assert!(found.iter().all(|(at, value)| model.get(at) == Some(value)), "{what}");
            let named = |(namespace, key): &(u8, pleach::Key)| {
                let bad = report.lost.iter().filter_map(|bad| bad.keys);
                bad.into_iter().any(|(of, prefix)| of == *namespace && prefix.covers(key))
            };
            assert!(model.keys().all(|at| found.contains_key(at) || named(at)), "{what}");
            assert_eq!(report.lost.is_empty(), found == model, "{what}: {:?}", report.lost);
            *losses += u64::from(found != model);
        }
    }
    assert!(losses[0] > 5 && losses[1] > 2, "{losses:?}");
}

/// Files that are cut or gone: what they do not have any more is lost, and it alone.
#[test]
fn files_that_are_cut_or_missing_are_salvaged_as_bad_pages_are() {
    let disk = new_disk();
    let mut chain = Chain::new(&disk, 0);
    for _ in 0..5 {
        chain.commit(90);
    }
    chain.db.drain(0).expect("flushed");
    let number = chain.commit(6);
    let model = chain.states[&number].1.clone();
    drop(chain.db);
    let image = disk.image();
    let salvaged = |disk: &SimDisk, what: &str| {
        let mut stream = Vec::new();
        let report = salvage_on(disk, None, &mut stream).unwrap_or_else(|e| panic!("{what}: {e}"));
        let to = open(&new_disk(), 0).expect("created");
        let reader = StreamReader::new(&*stream).expect("a stream");
        import(&to, reader, &ImportOptions::new().memory_mib(1)).expect("imported");
        assert!(to.roots().iter().eq(report.roots.iter()), "{what}");
        (report, pairs(&to))
    };
    for file in ["leaf", "overflow", "incarnation"] {
        let len = image.file(file).expect("a file").len();
        for left in [None, Some(0), Some(4096), Some(len / 8192 * 4096), Some(len - 4096)] {
            let (cut, zeros) = (disk_of(&image), disk_of(&image));
            match left {
                None => cut.remove(file).expect("removed"),
                Some(left) => {
                    let opened = cut.open(file, OpenMode::Write).expect("opened");
                    cut.set_len(&opened, left).expect("cut");
                }
            }
            let opened = zeros.open(file, OpenMode::Write).expect("opened");
            for page in left.unwrap_or(0) / 4096..len / 4096 {
                zeros.write_at(&opened, &PageBuf::zeroed(1), 1, page * 4096).expect("zeros");
            }
            let what = format!("{left:?} bytes of {file}");
            let (report, found) = salvaged(&cut, &what);
            let wanted = if file == "incarnation" { &image } else { &zeros.image() };
            assert!(found == salvaged(&disk_of(wanted), &what).1, "{what}");
            assert_eq!(report.lost.is_empty(), found == model, "{what}: {:?}", report.lost);
            // Either copy of the incarnation is enough.
            let opens = file == "incarnation" && left.is_some_and(|left| left >= 4096);
            assert_eq!(report.error.is_none(), opens, "{what}");
            assert!(report.lost_commits.is_none(), "{what}");
        }
    }
}

/// With one image bad, and the log that leads from the other one to it, an older state is salvaged, and the commits after it are named. It
/// was refused.
#[test]
fn a_salvage_goes_back_to_the_older_image() {
    let (disk, states, _) = subject();
    let newest = *states.keys().last().expect("commits");
    let image = disk.image();
    let (mut older, none) = (0, Pairs::new());
    for name in image.names().filter(|name| name.starts_with("log-")) {
        for page in 0..image.file(name).expect("a file").len() / 4096 {
            for bad in ["image-a", "image-b"] {
                let disk = disk_of(&image);
                damage(&disk, name, page, false);
                for page in 0..image.file(bad).expect("a file").len() / 4096 {
                    damage(&disk, bad, page, false);
                }
                let what = format!("{bad}, and page {page} of {name}");
                let mut stream = Vec::new();
                let report = salvage_on(&disk, None, &mut stream);
                let report = report.unwrap_or_else(|error| panic!("{what}: {error}"));
                let reader = StreamReader::new(&*stream).expect("a stream");
                let to = open(&new_disk(), 0).expect("created");
                import(&to, reader, &ImportOptions::new().memory_mib(1)).expect("imported");
                let commit = report.export.commit;
                let found = pairs(&to);
                // The first commits add namespaces, and have no pairs.
                let model = states.get(&commit).map_or(&none, |(_, pairs, _)| pairs);
                assert!(found.iter().all(|(at, value)| model.get(at) == Some(value)), "{what}");
                // Pages of the older image may have been written over since.
                assert!(!report.lost.is_empty() || found == *model, "{what}");
                if report.error.is_some() {
                    is_named(&report.lost_commits, commit, newest, &what);
                }
                older += u64::from(commit < newest);
            }
        }
    }
    assert!(older > 3, "{older}");
}

/// The last record of the log is torn: one commit fewer was salvaged, without a word.
#[test]
fn a_salvage_tells_of_a_torn_end() {
    let (disk, states, _) = subject();
    let newest = *states.keys().last().expect("commits");
    let image = disk.image();
    let (last, at) = image
        .names()
        .filter(|name| name.starts_with("log-"))
        .flat_map(|name| (0..4).map(move |page| (name.to_owned(), page)))
        .filter(|(name, page)| {
            let at = usize::try_from(page * 4096).expect("small");
            image.file(name).expect("a file").to_vec()[at..at + 4096].iter().any(|byte| *byte != 0)
        })
        .max()
        .expect("records");
    damage(&disk, &last, at, false);
    let mut stream = Vec::new();
    let report = salvage_on(&disk, None, &mut stream).expect("salvaged");
    assert!(report.export.commit < newest, "{report:?}");
    assert!(report.torn.is_some() || !report.lost_commits.is_none(), "{report:?}");
}

/// Of a value that later commits have replaced the pages may have been written over: the commits up to the one that has replaced
/// it become one. A value that is in the newest state ends it.
#[test]
fn a_lost_long_value_that_was_replaced_is_gone_over() {
    let disk = new_disk();
    let mut chain = Chain::new(&disk, HISTORY);
    chain.commit(20);
    let backup = new_disk();
    pleach_ops::backup_on(&chain.db, &backup, &BackupOptions::new()).expect("backed up");
    for (id, len) in [(1, 70_000), (2, 9), (1, 80_000), (3, 90_000), (1, 7)] {
        chain.put(id, len);
    }
    let (states, newest) = (std::mem::take(&mut chain.states), chain.db.commit_number());
    drop(chain.db);
    let image = disk.image();
    let (mut merged, mut ended) = (0, 0);
    for page in 0..image.file("overflow").expect("a file").len() / 4096 {
        let damaged = disk_of(&image);
        damage(&damaged, "overflow", page, page % 2 == 0);
        let (report, found, blob) = rolled(&backup, &damaged, None).expect("rolled forward");
        let (roots, model, told) = &states[&report.through];
        assert!(report.roots.iter().eq(roots.iter()) && found == *model && blob == *told);
        assert_eq!(report.error.is_some(), report.through < newest, "page {page}: {report:?}");
        assert!(report.lost.numbers == (report.through + 1..newest + 1), "{report:?}");
        merged += u64::from(report.error.is_none() && report.commit < newest);
        ended += u64::from(report.error.is_some());
    }
    assert!(merged > 10 && ended > 10, "{merged} {ended}");
}

/// Nor does anybody need a value of a namespace that a later commit drops.
#[test]
fn a_lost_long_value_of_a_dropped_namespace_is_gone_over() {
    let disk = new_disk();
    let mut chain = Chain::new(&disk, HISTORY);
    chain.commit(20);
    let backup = new_disk();
    pleach_ops::backup_on(&chain.db, &backup, &BackupOptions::new()).expect("backed up");
    let long = Access::write(key(1), Some(Value::from(vec![7; 70_000]))).in_namespace(MERKLE);
    let session = chain.db.session(SessionOptions::new()).expect("a session");
    session.finish(vec![long]).expect("finished").commit().expect("committed");
    chain.namespace(MERKLE, false);
    let (newest, roots) = (chain.db.commit_number(), chain.db.roots());
    drop(chain.db);
    for page in 0..disk.image().file("overflow").expect("a file").len() / 4096 {
        damage(&disk, "overflow", page, false);
    }
    let (report, found, _) = rolled(&backup, &disk, None).expect("rolled forward");
    assert!(report.error.is_none() && report.lost.is_none(), "{report:?}");
    assert_eq!((report.through, report.roots), (newest, roots));
    assert!(found == chain.pairs);
}
