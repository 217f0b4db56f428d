//! One superblock always survives: torn writes, failed syncs and damage of one slot; and files that are not ours, or
//! not any more, are named in the error.

use pleach_io::sim::{Aftermath, Fault, FaultRepeats, FaultRule, Rng, SimDisk, SimOptions};
use pleach_io::{Device, OpenMode, Operation, PAGE, PageBuf};
use pleach_journal::format::position::LogPoint;
use pleach_journal::format::superblock::{
    DurabilityMode, FILE, FORMAT_VERSION, Geometry, ImageFile, ImageRef, SLOT_DISTANCE, SlotError,
    Superblock, SuperblockError,
};
use pleach_journal::format::superblock_store::SuperblockStore;
use twox_hash::XxHash3_64;

fn sample() -> Superblock {
    Superblock {
        database: 0x1234,
        created_by: 1,
        hasher: pleach_core::Hasher::BLAKE3.into(),
        compatible: 0,
        read_only_compatible: 0,
        incompatible: 0,
        geometry: Geometry {
            page_size: 4096,
            size_factor_percent: 150,
            log_segment: 64 << 10,
            log_limit: 256 << 10,
            leaf_segment: 1 << 20,
            overflow_segment: 1 << 20,
            stored_levels: 3,
        },
        generation: 1,
        image: ImageRef {
            file: ImageFile::B,
            pages: 17,
            table_page: 3,
            number: 4,
            table_hash: [5; 32],
        },
        commit: 8,
        root: [9; 32].into(),
        next_flush: 10,
        incarnation: 6,
        replay: LogPoint { position: 4096.into(), checksum: 11 },
        durable_through: 8192.into(),
        clean_end: Some(8192.into()),
        prepared_through: (64 << 10).into(),
        history: 12,
        log_from: 16.into(),
        durability: DurabilityMode::Periodic(13),
    }
}

fn created() -> (SimDisk, SuperblockStore) {
    let disk = SimDisk::new(1, SimOptions::default());
    let store = SuperblockStore::create(disk.clone().into(), &sample()).expect("no faults");
    disk.sync_folder().expect("no faults");
    (disk, store)
}

fn change_slot(disk: &SimDisk, slot: u64, change: impl FnOnce(&mut [u8; PAGE])) {
    let file = disk.open(FILE, OpenMode::Write).expect("no faults");
    let mut page = PageBuf::zeroed(1);
    disk.read_at(&file, &mut page, slot * SLOT_DISTANCE).expect("no faults");
    change(page.page_mut(0));
    disk.write_at(&file, &page, 1, slot * SLOT_DISTANCE).expect("no faults");
}

/// Changes a field with a right checksum.
fn forge(page: &mut [u8; PAGE], at: usize, bytes: &[u8]) {
    page[at..at + bytes.len()].copy_from_slice(bytes);
    let checksum = XxHash3_64::oneshot(&page[8..]);
    page[..8].copy_from_slice(&checksum.to_le_bytes());
}

fn open(disk: &SimDisk) -> Result<SuperblockStore, SuperblockError> {
    SuperblockStore::open(disk.clone().into(), OpenMode::Write)
}

#[test]
fn a_superblock_comes_back_and_no_byte_of_it_can_change() {
    let page = sample().encode(1);
    assert_eq!(Superblock::decode(page.page(0), 1), Ok(sample()));
    assert_eq!(Superblock::decode(page.page(0), 0), Err(SlotError::Misplaced(1)));
    let digest = XxHash3_64::oneshot(&page);
    assert_eq!(digest, GOLDEN, "the format has changed: is that meant?");
    for at in 0..PAGE {
        let mut bad = *page.page(0);
        bad[at] ^= 0x10;
        assert!(Superblock::decode(&bad, 1).is_err(), "byte {at}");
        // Reserved bytes and ranges are checked even under a good checksum.
        if at >= 296 {
            forge(&mut bad, at, &[1]);
            // The name of an application's hasher, which this is not, and the rest.
            let field = if at < 328 { 296 } else { 328 };
            assert_eq!(Superblock::decode(&bad, 1), Err(SlotError::Field(field)));
        }
    }
}

const GOLDEN: u64 = 16_710_832_249_337_680_288;

#[test]
fn fields_out_of_range_are_refused_under_a_good_checksum() {
    let page = sample().encode(0);
    let mut refused = 0;
    let mut rng = Rng::new(1);
    for at in 8..296 {
        for _ in 0..20 {
            let mut bad = *page.page(0);
            forge(&mut bad, at, &[[0, 0xff, 0x80, rng.byte()][rng.index(4)]]);
            if let Ok(superblock) = Superblock::decode(&bad, 0) {
                // Accepted bytes are canonical.
                assert_eq!(superblock.encode(0).page(0), &bad, "byte {at}");
            } else {
                refused += 1;
            }
        }
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn every_crash_leaves_a_superblock_that_was_current() {
    let (disk, mut store) = created();
    disk.mark(1);
    for commit in 2..6 {
        store.write(&Superblock { commit, ..*store.newest() }).expect("no faults");
        disk.mark(commit);
    }
    for point in disk.trace().crash_points() {
        let Some(acknowledged) = point.marks().last().copied() else { continue };
        for outcome in point.outcomes(7, 40) {
            let mut store = open(&outcome.disk()).expect("one slot is left");
            let found = store.newest().generation;
            assert!(found == acknowledged || found == acknowledged + 1, "{outcome}");
            let next = *store.newest();
            store.write(&next).expect("no faults");
            assert_eq!(store.newest().generation, found + 1);
        }
    }
}

#[test]
fn a_superblock_whose_sync_failed_is_confirmed_before_the_older_is_overwritten() {
    // Generation 3 is read from a cache and lost after a crash, or was never there; 1 is no use any more, since the
    // checkpoint of 3 has overwritten its image. So 2 must survive, whatever is torn, until something newer is durable.
    for aftermath in [Aftermath::NewVisible, Aftermath::OldBack, Aftermath::Mixed] {
        for seed in 0..20 {
            let (disk, mut store) = created();
            store.write(&sample()).expect("no faults");
            disk.mark(2);
            let fault = Fault::Sync(aftermath);
            disk.inject(FaultRule::nth(Operation::Sync, FILE, 1, FaultRepeats::Once, fault));
            assert!(store.write(&sample()).is_err());
            assert!(matches!(store.write(&sample()), Err(SuperblockError::Poisoned)));
            let mut store = open(&disk).expect("visible");
            store.confirm(0.into(), 0.into()).expect("once");
            store.write(&sample()).expect("once");
            let points = disk.trace().crash_points();
            for point in points.filter(|point| point.marks().contains(&2)) {
                for outcome in point.outcomes(seed, 20) {
                    let store = open(&outcome.disk());
                    let found = store.map(|store| store.newest().generation);
                    assert!(
                        found.as_ref().is_ok_and(|generation| *generation >= 2),
                        "{aftermath:?} {outcome}: {found:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn damage_of_one_slot_is_reported_and_of_both_is_an_error() {
    let (disk, mut store) = created();
    let next = *store.newest();
    store.write(&next).expect("no faults");
    change_slot(&disk, 1, |page| page[100] ^= 1);
    let store = open(&disk).expect("slot 0 is left");
    assert_eq!(store.newest().generation, 1);
    assert_eq!(store.other(), &Err(SlotError::Checksum));
    let mut store = store;
    assert!(!store.fall_back());
    change_slot(&disk, 0, |page| page.fill(0xaa));
    let error = open(&disk).err();
    assert!(matches!(
        error,
        Some(SuperblockError::Damaged { first: SlotError::Foreign, second: SlotError::Checksum })
    ));
}

#[test]
fn falling_back_gives_the_older_superblock() {
    let (_, mut store) = created();
    store.write(&Superblock { commit: 99, ..sample() }).expect("no faults");
    assert!(store.fall_back(), "there is an older one");
    assert_eq!(store.other(), &Err(SlotError::GivenUp));
    assert_eq!(store.newest().commit, 8);
    store.write(&Superblock { commit: 100, ..sample() }).expect("no faults");
    assert_eq!(store.newest().commit, 100);
}

#[test]
fn a_newer_version_unknown_features_and_other_lengths_are_told_apart() {
    let (disk, _) = created();
    change_slot(&disk, 1, |page| {
        *page = *sample().encode(1).page(0);
        forge(page, 16, &(FORMAT_VERSION + 1).to_le_bytes());
    });
    assert!(
        matches!(open(&disk).err(), Some(SuperblockError::NewerVersion { found }) if found == FORMAT_VERSION + 1)
    );

    let features = Superblock { read_only_compatible: 4, ..sample() };
    assert!(features.check_features(false).is_ok() && features.check_features(true).is_err());
    let features = Superblock { incompatible: 4, compatible: 1, ..sample() };
    assert!(matches!(
        features.check_features(false),
        Err(SuperblockError::Features { incompatible: 4, read_only: 0 })
    ));

    // A feature may give reserved bytes a meaning: it is named, and not taken for damage.
    for bit in [
        Superblock { incompatible: 4, ..sample() },
        Superblock { read_only_compatible: 4, ..sample() },
    ] {
        let mut page = *bit.encode(0).page(0);
        forge(&mut page, 1000, &[1]);
        let slot = Superblock::decode(&page, 0);
        assert!(slot.is_ok_and(|slot| slot == bit && slot.check_features(true).is_err()));
    }
    let mut page = *Superblock { compatible: 4, ..sample() }.encode(0).page(0);
    assert!(Superblock::decode(&page, 0).is_ok_and(|slot| slot.check_features(true).is_ok()));
    forge(&mut page, 1000, &[1]);
    assert!(matches!(Superblock::decode(&page, 0), Err(SlotError::Field(_))));

    let (disk, _) = created();
    let file = disk.open(FILE, OpenMode::Write).expect("no faults");
    disk.set_len(&file, 4096).expect("no faults");
    assert!(matches!(open(&disk).err(), Some(SuperblockError::Length { found: 4096 })));

    let (disk, _) = created();
    change_slot(&disk, 1, |page| *page = *sample().encode(1).page(0));
    assert!(matches!(open(&disk).err(), Some(SuperblockError::Contradiction)));
}

/// A repair that cuts the log: no superblock says that lost positions were durable, or the next open would call that
/// damage.
#[test]
fn a_log_that_is_cut_is_durable_up_to_its_end_in_both_superblocks() {
    let (disk, mut store) = created();
    for durable in [12_288, 16_384] {
        let open = Superblock { durable_through: durable.into(), clean_end: None, ..sample() };
        store.write(&open).expect("no faults");
    }
    let whole = store.cut_log(6144.into(), (64 << 10).into());
    let file = disk.open(FILE, OpenMode::Write).expect("there");
    disk.write_at(&file, &whole, whole.pages(), 0).expect("no faults");
    let store = SuperblockStore::open(disk.into(), OpenMode::Read).expect("opened");
    for superblock in [store.newest(), store.other().as_ref().expect("both are there")] {
        assert_eq!(superblock.durable_through, 6144.into());
        assert_eq!(superblock.prepared_through, (64 << 10).into());
    }
}
