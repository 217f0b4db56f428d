//! A crash or an error during creation leaves a folder in which creation works; a folder that
//! belongs to somebody else is named and not touched; an incarnation is given out once.

use pleach_io::sim::{
    Aftermath, Content, Fault, FaultRepeats, FaultRule, Image, SimDisk, SimOptions, code,
};
use pleach_io::{Device, Disk, IoError, OpenMode, Operation, PageBuf};
use pleach_journal::format::creation::{CreationError, DirectoryState, MARKER, create, inspect};
use pleach_journal::format::incarnation::{self, IncarnationError, raise};
use pleach_journal::format::superblock::{self, Geometry, Superblock, SuperblockError};
use pleach_journal::format::superblock_store::SuperblockStore;

const DATABASE: u64 = 0x77;
const DONE: u64 = 1000;

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Creation(#[from] CreationError),
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    #[error(transparent)]
    Incarnation(#[from] IncarnationError),
    #[error(transparent)]
    Io(#[from] IoError),
}

fn first() -> Superblock {
    let geometry = Geometry {
        page_size: 4096,
        size_factor_percent: 150,
        log_segment: 64 << 10,
        log_limit: 256 << 10,
        leaf_segment: 1 << 20,
        overflow_segment: 1 << 20,
        stored_levels: 3,
    };
    let prepared_through = geometry.log_segment;
    Superblock {
        database: DATABASE,
        hasher: pleach_core::Hasher::BLAKE3.into(),
        geometry,
        prepared_through: prepared_through.into(),
        ..Superblock::default()
    }
}

/// Opens for writing as the engine does: creates if need be, raises the incarnation.
fn open(disk: &SimDisk) -> Result<u32, Failure> {
    match inspect(&Disk::from(disk))? {
        DirectoryState::Database => {}
        DirectoryState::NoSuperblock => panic!("a creation never looks like a lost superblock"),
        DirectoryState::Foreign(found) => return Err(CreationError::NotADatabase { found }.into()),
        DirectoryState::Empty | DirectoryState::HalfCreated => {
            create(&Disk::from(disk), DATABASE, |disk, database| {
                for name in ["leaf", "image-a"] {
                    let file = disk.open(name, OpenMode::CreateNew)?;
                    disk.sync(&file)?;
                }
                incarnation::create(disk, database, incarnation::FIRST)?;
                disk.sync_folder()?;
                SuperblockStore::create(disk.clone(), &first())?;
                Ok::<_, Failure>(())
            })?;
        }
    }
    SuperblockStore::open(disk.clone().into(), OpenMode::Write)?.confirm(0.into(), 0.into())?;
    Ok(raise(&Disk::from(disk), DATABASE)?)
}

#[test]
fn every_crash_of_a_creation_leaves_a_folder_that_opens() {
    let disk = SimDisk::new(1, SimOptions::default());
    for _ in 0..3 {
        let number = open(&disk).expect("no faults");
        disk.mark(u64::from(number));
    }
    let mut outcomes = 0;
    for point in disk.trace().crash_points() {
        let given = point.marks().last().copied().unwrap_or(0);
        for outcome in point.outcomes(3, 24) {
            let disk = outcome.disk();
            for again in 1..=2 {
                let number = open(&disk).unwrap_or_else(|error| panic!("{outcome}: {error}"));
                assert!(u64::from(number) >= given + again, "{outcome}: incarnation given twice");
            }
            let marker = disk.list().expect("no faults").contains(&MARKER.to_owned());
            assert!(!marker || given > 0, "{outcome}");
            outcomes += 1;
        }
        for outcome in point.subsets(pleach_io::sim::Grain::Sector).into_iter().flatten().take(256)
        {
            open(&outcome.disk()).unwrap_or_else(|error| panic!("{outcome}: {error}"));
        }
    }
    assert!(outcomes > 200, "{outcomes}");
}

#[test]
fn a_crash_of_a_creation_after_a_crash_of_a_creation() {
    let disk = SimDisk::new(2, SimOptions::default());
    open(&disk).expect("no faults");
    for point in disk.trace().crash_points() {
        for outcome in point.outcomes(5, 6) {
            let disk = outcome.disk();
            let number = open(&disk).expect("recreated");
            disk.mark(DONE + u64::from(number));
            for point in disk.trace().crash_points() {
                let given = point.marks().last().map_or(0, |mark| mark - DONE);
                for inner in point.outcomes(6, 4) {
                    let number = open(&inner.disk())
                        .unwrap_or_else(|error| panic!("{outcome} {inner}: {error}"));
                    assert!(u64::from(number) > given, "{outcome} {inner}");
                }
            }
        }
    }
}

#[test]
fn a_failing_operation_is_an_error_and_the_next_attempt_succeeds() {
    for number in 1..80 {
        for fault in [Fault::Errno(code::EIO), Fault::Errno(code::ENOSPC)] {
            let disk = SimDisk::new(number, SimOptions::default());
            disk.inject(FaultRule::at(number, FaultRepeats::Once, fault));
            let first = open(&disk);
            disk.heal();
            let second = open(&disk).unwrap_or_else(|error| panic!("{fault:?} {number}: {error}"));
            assert!(first.is_err() || second > first.unwrap_or(0));
        }
    }
}

#[test]
fn an_incarnation_is_given_once_though_syncs_fail_and_the_power_too() {
    for aftermath in [Aftermath::NewVisible, Aftermath::OldBack, Aftermath::Mixed] {
        for (operation, file) in [(Operation::Sync, "incarnation"), (Operation::SyncFolder, "")] {
            let disk = SimDisk::new(9, SimOptions::default());
            let given = open(&disk).expect("no faults");
            disk.mark(u64::from(given));
            disk.inject(FaultRule::nth(
                operation,
                file,
                1,
                FaultRepeats::Once,
                Fault::Sync(aftermath),
            ));
            assert!(raise(&Disk::from(&disk), DATABASE).is_err());
            for _ in 0..2 {
                disk.mark(u64::from(raise(&Disk::from(&disk), DATABASE).expect("once")));
            }
            for point in disk.trace().crash_points() {
                let Some(given) = point.marks().last() else { continue };
                for outcome in point.outcomes(4, 20) {
                    let number = raise(&Disk::from(&outcome.disk()), DATABASE)
                        .unwrap_or_else(|error| panic!("{aftermath:?} {outcome}: {error}"));
                    assert!(u64::from(number) > *given, "{aftermath:?} {outcome}");
                }
            }
        }
    }
}

#[test]
fn a_strangers_folder_is_named_and_not_touched() {
    let disk = SimDisk::new(3, SimOptions::default());
    disk.open("notes.txt", OpenMode::CreateNew).expect("no faults");
    let before = disk.operations();
    assert!(matches!(
        open(&disk),
        Err(Failure::Creation(CreationError::NotADatabase { found })) if found == "notes.txt"
    ));
    assert!(disk.operations() <= before + 1, "one look");
    assert_eq!(disk.list().expect("no faults"), ["notes.txt"]);
}

/// The disk's files with this content in place of one, or in addition.
fn with(disk: &SimDisk, name: &str, content: Content) -> SimDisk {
    let image = disk.image();
    let mut files: Vec<(&str, Content)> = image
        .names()
        .filter(|found| *found != name)
        .map(|name| (name, image.file(name).expect("listed").clone()))
        .collect();
    files.push((name, content));
    SimDisk::from_image(&Image::from_files(files), 6)
}

fn names_and_bytes(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let image = disk.image();
    image
        .names()
        .map(|name| (name.to_owned(), image.file(name).expect("listed").to_vec()))
        .collect()
}

/// The marker of a creation of this database.
fn marker(database: u64) -> Content {
    let disk = SimDisk::new(5, SimOptions::default());
    let stopped = create(&Disk::from(&disk), database, |_, _| Err::<(), _>(CreationError::Exists));
    assert!(stopped.is_err());
    assert_eq!(inspect(&Disk::from(&disk)).expect("no faults"), DirectoryState::HalfCreated);
    disk.image().file(MARKER).expect("the marker").clone()
}

#[test]
fn a_marker_that_came_back_does_not_cost_a_database() {
    let disk = SimDisk::new(4, SimOptions::default());
    open(&disk).expect("no faults");
    let disk = with(&disk, MARKER, marker(DATABASE));
    assert_eq!(inspect(&Disk::from(&disk)).expect("no faults"), DirectoryState::Database);
}

/// A page with some contents.
fn page() -> Content {
    Content::from_bytes(&[7; 4096])
}

#[test]
fn nothing_is_removed_for_a_marker_that_proves_nothing() {
    // A foreign marker in an intact database made an open remove all of it, and so did one of our own with two rotten
    // copies of the incarnation.
    let disk = SimDisk::new(4, SimOptions::default());
    open(&disk).expect("no faults");
    let torn = Content::from_bytes(&[7; 4096]);
    let rotten = Content::from_bytes(&[0; 8192]);
    let blank = Content::from_bytes(&vec![0; usize::try_from(superblock::FILE_LEN).unwrap()]);
    let ours = with(&disk, MARKER, marker(DATABASE));
    let no_superblock = with(&ours, superblock::FILE, Content::from_bytes(&[]));
    // The files of two databases that were not opened yet.
    let new = SimDisk::new(5, SimOptions::default());
    let stranger = Superblock { database: 1, ..first() };
    SuperblockStore::create((&new).into(), &stranger).expect("no faults");
    incarnation::create(&Disk::from(&new), DATABASE, incarnation::FIRST).expect("no faults");
    let of_new = |disk: &SimDisk, name: &str| {
        with(disk, name, Content::from_bytes(&new.image().file(name).expect("made").to_vec()))
    };
    let not_opened = of_new(&ours, incarnation::FILE);
    let cases = [
        ("foreign", with(&disk, MARKER, marker(1))),
        ("torn", with(&disk, MARKER, torn)),
        (
            "rotten incarnation",
            with(&with(&ours, "log-0000000000000000", page()), incarnation::FILE, rotten.clone()),
        ),
        ("rotten superblocks", with(&ours, superblock::FILE, blank)),
        ("no superblock", no_superblock.clone()),
        ("another database's superblock", of_new(&not_opened, superblock::FILE)),
        (
            "a page",
            with(
                &with(&no_superblock, incarnation::FILE, rotten.clone()),
                "leaf",
                Content::from_bytes(&[0; 4096]),
            ),
        ),
        (
            "a log",
            with(
                &with(&no_superblock, incarnation::FILE, rotten),
                "log-0000000000000001",
                Content::from_bytes(&[0; 4096]),
            ),
        ),
    ];
    for (what, disk) in cases {
        let before = names_and_bytes(&disk);
        let found = inspect(&Disk::from(&disk));
        assert!(matches!(found, Err(CreationError::Marker { .. })), "{what}: {found:?}");
        assert!(open(&disk).is_err(), "{what}");
        assert!(create(&Disk::from(&disk), 9, |_, _| Err::<(), _>(CreationError::Exists)).is_err());
        assert_eq!(names_and_bytes(&disk), before, "{what}");
    }
}

#[test]
fn a_lost_superblock_is_not_taken_for_a_strangers_folder() {
    let disk = SimDisk::new(4, SimOptions::default());
    open(&disk).expect("no faults");
    disk.remove(superblock::FILE).expect("no faults");
    assert_eq!(inspect(&Disk::from(&disk)).expect("no faults"), DirectoryState::NoSuperblock);
}

#[test]
fn damaged_and_foreign_incarnation_files_are_errors() {
    let disk = SimDisk::new(7, SimOptions::default());
    open(&disk).expect("no faults");
    assert!(matches!(
        raise(&Disk::from(&disk), 1),
        Err(IncarnationError::Foreign { found: DATABASE, .. })
    ));
    let file = disk.open(incarnation::FILE, OpenMode::Write).expect("no faults");
    disk.write_at(&file, &PageBuf::zeroed(1), 1, 0).expect("no faults");
    let read = incarnation::read(&Disk::from(&disk), DATABASE).expect("the second copy");
    assert_eq!((read.number, read.copies), (1, [false, true]));
    disk.write_at(&file, &PageBuf::zeroed(1), 1, 4096).expect("no faults");
    assert!(matches!(raise(&Disk::from(&disk), DATABASE), Err(IncarnationError::Damaged)));
    for found in [0, 4095, 8193] {
        disk.set_len(&file, found).expect("no faults");
        let refused = raise(&Disk::from(&disk), DATABASE);
        assert!(matches!(refused, Err(IncarnationError::Length { found: len }) if len == found));
    }
}

/// One copy is enough, also where the other one was cut off. Opens and repairs refused such a database.
#[test]
fn an_incarnation_that_was_cut_to_one_copy_is_raised() {
    let disk = SimDisk::new(7, SimOptions::default());
    open(&disk).expect("no faults");
    let file = disk.open(incarnation::FILE, OpenMode::Write).expect("no faults");
    disk.set_len(&file, 4096).expect("no faults");
    let read = incarnation::read(&Disk::from(&disk), DATABASE).expect("the first copy");
    assert_eq!((read.number, read.copies), (1, [true, false]));
    assert_eq!(raise(&Disk::from(&disk), DATABASE).expect("one copy is enough"), 2);
    assert_eq!(incarnation::read(&Disk::from(&disk), DATABASE).expect("both").copies, [true; 2]);
}
