//! A crash or an error during creation leaves a folder in which creation works; a folder that
//! belongs to somebody else is named and not touched; an incarnation is given out once.

use pleach::creation::{self, CreationError, Folder, MARKER, create, inspect};
use pleach::incarnation::{self, IncarnationError, raise};
use pleach::superblock::{self, Geometry, Superblock, SuperblockError, SuperblockStore};
use pleach_io::sim::{Aftermath, Fault, Rule, SimDisk, SimOptions, Times, code};
use pleach_io::{Device, IoError, OpenMode, Operation, PageBuf};

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

fn ours(name: &str) -> bool {
    name == "leaves"
        || [superblock::FILE, superblock::TEMPORARY].contains(&name)
        || [incarnation::FILE, incarnation::TEMPORARY].contains(&name)
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
    Superblock { database: DATABASE, hasher: 1, geometry, ..Superblock::default() }
}

/// Opens for writing as the engine does: creates if need be, raises the incarnation.
fn open(disk: &SimDisk) -> Result<u32, Failure> {
    match inspect(disk)? {
        Folder::Database => {}
        Folder::Foreign(found) => return Err(CreationError::NotADatabase { found }.into()),
        Folder::Empty | Folder::HalfCreated => create(disk, DATABASE, ours, |disk| {
            let file = disk.open("leaves", OpenMode::CreateNew)?;
            disk.write_at(&file, &PageBuf::zeroed(3), 3, 0)?;
            disk.sync(&file)?;
            incarnation::create(disk, DATABASE)?;
            SuperblockStore::create(disk.clone(), &first())?;
            Ok::<_, Failure>(())
        })?,
    }
    SuperblockStore::open(disk.clone(), OpenMode::Write)?.confirm()?;
    Ok(raise(disk, DATABASE)?)
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
            disk.inject(Rule::at(number, Times::Once, fault));
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
            disk.inject(Rule::nth(operation, file, 1, Times::Once, Fault::Sync(aftermath)));
            assert!(raise(&disk, DATABASE).is_err());
            for _ in 0..2 {
                disk.mark(u64::from(raise(&disk, DATABASE).expect("once")));
            }
            for point in disk.trace().crash_points() {
                let Some(given) = point.marks().last() else { continue };
                for outcome in point.outcomes(4, 20) {
                    let number = raise(&outcome.disk(), DATABASE)
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

#[test]
fn a_marker_that_is_not_ours_does_not_cost_a_database() {
    let disk = SimDisk::new(4, SimOptions::default());
    open(&disk).expect("no faults");
    // A torn one, and ours come back from the dead after the database was used.
    disk.open(MARKER, OpenMode::CreateNew).expect("no faults");
    assert_eq!(inspect(&disk).expect("no faults"), Folder::Database);
    disk.remove(MARKER).expect("no faults");
    let other = SimDisk::new(5, SimOptions::default());
    let stop = create(&other, DATABASE, ours, |_| Err::<(), _>(CreationError::Exists));
    assert!(stop.is_err());
    assert_eq!(inspect(&other).expect("no faults"), Folder::HalfCreated);
    let marker = other.image().file(MARKER).expect("the marker").clone();
    let mut image: Vec<_> = vec![(creation::MARKER, marker)];
    let visible = disk.image();
    image.extend(visible.names().map(|name| (name, visible.file(name).expect("listed").clone())));
    let disk = SimDisk::from_image(&pleach_io::sim::Image::from_files(image), 6);
    assert_eq!(inspect(&disk).expect("no faults"), Folder::Database);
}

#[test]
fn damaged_and_foreign_incarnation_files_are_errors() {
    let disk = SimDisk::new(7, SimOptions::default());
    open(&disk).expect("no faults");
    assert!(matches!(raise(&disk, 1), Err(IncarnationError::Foreign { found: DATABASE, .. })));
    let file = disk.open(incarnation::FILE, OpenMode::Write).expect("no faults");
    disk.write_at(&file, &PageBuf::zeroed(1), 1, 0).expect("no faults");
    assert_eq!(incarnation::read(&disk, DATABASE).expect("the second copy"), 1);
    disk.write_at(&file, &PageBuf::zeroed(1), 1, 4096).expect("no faults");
    assert!(matches!(raise(&disk, DATABASE), Err(IncarnationError::Damaged)));
    disk.set_len(&file, 4096).expect("no faults");
    assert!(matches!(raise(&disk, DATABASE), Err(IncarnationError::Length { found: 4096 })));
}
