//! A fetch that is killed, torn, damaged or without room goes on, and asks for nothing that it has.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pleach::{Db, Hasher};
use pleach_sync::{Ask, Error, Fetch, Refusal, Target};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::common::{LIMITS, Peer, Seen, load_and_compare, no_root, run, server, state, target};

/// No question is for anything that was kept before.
fn asks_for_new(seen: &Seen, kept: &[(u8, [u8; 32], [u8; 32])]) {
    for asked in &seen.asked {
        for (namespace, first, end) in kept {
            let apart = asked.last < *first || asked.first > *end;
            assert!(asked.namespace != *namespace || apart, "{asked:?} is there");
        }
    }
}

#[test]
fn a_fetch_that_is_killed_again_and_again_asks_for_each_part_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = state(&folder.path().join("state"), 9_000);
    let server = server(&db);
    for each in [1, 3, 20] {
        let at = |name: &str| folder.path().join(format!("{name}-{each}"));
        let (mut kept, mut kills) = (Vec::new(), 0);
        loop {
            let mut fetch = Fetch::open(&at("new.sync"), target(&db), LIMITS).expect("opened");
            let mut peers = [Peer::honest(&server), Peer::honest(&server)];
            let seen = run(&mut fetch, &mut peers, kills, each);
            assert!(seen.lies.is_empty());
            asks_for_new(&seen, &kept);
            kept.extend(seen.kept);
            if fetch.progress().done {
                load_and_compare(fetch, &at("new"), &db);
                break;
            }
            kills += 1;
            assert!(kills < 1_000, "it ends");
        }
        assert!(kills > 2, "{kills} kills");
    }
}

/// Networks and kills that a seed draws. `PLEACH_CASES` says how many.
#[test]
fn a_fetch_ends_at_the_root_whatever_the_network_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = state(&folder.path().join("state"), 400);
    let server = server(&db);
    let cases = std::env::var("PLEACH_CASES").ok().and_then(|cases| cases.parse().ok());
    for seed in 0..cases.unwrap_or(20) {
        let at = |name: &str| folder.path().join(format!("{name}-{seed}"));
        let (mut rng, mut kept, mut runs) = (ChaCha8Rng::seed_from_u64(seed), Vec::new(), 0);
        loop {
            let mut fetch = Fetch::open(&at("new.sync"), target(&db), LIMITS).expect("opened");
            let mut peers = vec![Peer::honest(&server)];
            for _ in 0..rng.next_u32() % 4 {
                let (mut own, lies) =
                    (ChaCha8Rng::seed_from_u64(rng.next_u64()), rng.next_u32() % 2 == 0);
                peers.push(Peer::with(&server, move |_, honest| match own.next_u32() % 16 {
                    0 => None,
                    1 => Some(Err(Refusal::Busy(Duration::from_secs(own.next_u64() % 100)))),
                    2 => Some(Err(Refusal::Failed("closed".to_owned()))),
                    3 => Some(Err(Refusal::Unknown)),
                    4 if lies => Some(honest.map(|mut answer| {
                        let at = own.next_u32() as usize % answer.len();
                        answer[at] ^= 1 << (own.next_u32() % 8);
                        answer
                    })),
                    5 if lies => Some(honest.map(|mut answer| {
                        answer.truncate(own.next_u32() as usize % answer.len());
                        answer
                    })),
                    _ => Some(honest),
                }));
            }
            let most = 1 + rng.next_u32() as usize % 60;
            let seen = run(&mut fetch, &mut peers, rng.next_u64(), most);
            assert!(seen.failed.is_none() && seen.lies.iter().all(|(server, _)| *server > 0));
            asks_for_new(&seen, &kept);
            kept.extend(seen.kept);
            if fetch.progress().done {
                load_and_compare(fetch, &at("new"), &db);
                break;
            }
            runs += 1;
            assert!(runs < 1_000, "it ends");
        }
    }
}

/// Whatever is behind a kill or a power failure at the end of the file: parts before it are used, and it is cut.
#[test]
fn a_torn_end_is_cut_and_asked_for_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = state(&folder.path().join("state"), 3_000);
    let server = server(&db);
    let begun = folder.path().join("begun");
    let mut fetch = Fetch::open(&begun, target(&db), LIMITS).expect("opened");
    let kept = run(&mut fetch, &mut [Peer::honest(&server)], 1, 6).kept;
    drop(fetch);
    let whole = std::fs::read(begun.join("parts")).expect("parts");
    let head = 128;
    for (number, cut) in
        (0..whole.len()).step_by(whole.len() / 12).chain([1, head - 1, head, head + 1]).enumerate()
    {
        for (kind, tail) in [(0, Vec::new()), (1, vec![0; whole.len() - cut]), (2, vec![0xa5; 300])]
        {
            let at = |name: &str| folder.path().join(format!("{name}-{number}-{kind}"));
            std::fs::create_dir(at("torn")).expect("made");
            std::fs::copy(begun.join("target"), at("torn").join("target")).expect("copied");
            std::fs::write(at("torn").join("parts"), [&whole[..cut], &tail].concat())
                .expect("written");
            let mut fetch = Fetch::open(&at("torn"), target(&db), LIMITS).expect("opened");
            let bytes = usize::try_from(fetch.progress().bytes).expect("few");
            assert!(
                bytes <= cut
                    && std::fs::metadata(at("torn").join("parts")).expect("there").len()
                        == bytes as u64
            );
            let seen = run(&mut fetch, &mut [Peer::honest(&server)], 1, usize::MAX);
            assert!(seen.lies.is_empty() && fetch.progress().done);
            if number % 10 == 0 {
                load_and_compare(fetch, &at("new"), &db);
            }
        }
    }
    assert_eq!(kept.len(), 6);
}

/// What a disk makes of a part after it was kept is found by the load, which changes nothing; only that part is asked for.
#[test]
fn a_damaged_part_is_set_aside_and_asked_for_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = state(&folder.path().join("state"), 3_000);
    let server = server(&db);
    let at = |name: &str| folder.path().join(name);
    let mut fetch = Fetch::open(&at("new.sync"), target(&db), LIMITS).expect("opened");
    let all = run(&mut fetch, &mut [Peer::honest(&server)], 1, usize::MAX);
    let parts = OpenOptions::new().write(true).open(at("new.sync").join("parts")).expect("parts");
    parts.write_all_at(&[0xa5; 8], 2_000).expect("damaged");
    let refused = fetch.load(&at("new"), pleach::Options::small).expect_err("damage");
    assert!(matches!(refused, Error::Damaged { parts: 1 }), "{refused}");
    let refused = Db::open(pleach::Options::new(at("new"))).expect_err("not whole");
    assert!(matches!(refused, pleach::Error::Creation { .. }), "{refused}");
    let mut fetch = Fetch::open(&at("new.sync"), target(&db), LIMITS).expect("opened");
    let seen = run(&mut fetch, &mut [Peer::honest(&server)], 1, usize::MAX);
    let range =
        |asked: &pleach_sync::PartAsk| (asked.namespace, asked.first[0] / 4, asked.last[0] / 4);
    let first = range(&seen.asked[0]);
    assert!(all.kept.len() >= 64 && seen.asked.iter().all(|asked| range(asked) == first));
    load_and_compare(fetch, &at("new"), &db);
}

#[test]
fn a_folder_is_of_one_target_and_one_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("sync");
    let target = Target::over_all(no_root(), Hasher::BLAKE3);
    let fetch = Fetch::open(&at, target, LIMITS).expect("opened");
    let refused = Fetch::open(&at, target, LIMITS).expect_err("a second one");
    assert!(matches!(refused, Error::InUse(_)), "{refused}");
    drop(fetch);
    for other in [
        Target::over_all([1; 32].into(), Hasher::BLAKE3),
        Target::over_all(no_root(), Hasher::SHA2_256),
        Target::namespace(0, no_root(), Hasher::BLAKE3),
    ] {
        let refused = Fetch::open(&at, other, LIMITS).expect_err("another target");
        assert!(matches!(refused, Error::OtherTarget(_)), "{refused}");
    }
    Fetch::open(&at, target, LIMITS).expect("opened");
}

/// A small file system, gone with this.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    fn mounted(at: &'a Path, mib: u64) -> Option<Self> {
        std::fs::create_dir(at).expect("made");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "small"]).arg(at);
        mount.output().is_ok_and(|output| output.status.success()).then_some(Self(at))
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_fetch_on_a_full_device_goes_on_when_there_is_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("small");
    let Some(small) = Small::mounted(&at, 6) else {
        println!("nothing can be mounted here");
        return;
    };
    let db = state(&folder.path().join("state"), 9_000);
    let server = server(&db);
    let sync = at.join("new.sync");
    let mut ballast = std::fs::File::create(at.join("ballast")).expect("made");
    ballast.write_all(&vec![0; 5_800 << 10]).expect("room");
    drop(ballast);
    let mut fetch = Fetch::open(&sync, target(&db), LIMITS).expect("opened");
    let first = run(&mut fetch, &mut [Peer::honest(&server)], 1, usize::MAX);
    let Some(Error::Folder { error, .. }) = &first.failed else { panic!("{:?}", first.failed) };
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    assert!(!first.kept.is_empty());
    std::fs::remove_file(at.join("ballast")).expect("removed");
    // The same fetch, and one that is opened again.
    let seen = run(&mut fetch, &mut [Peer::honest(&server)], 1, 5);
    asks_for_new(&seen, &first.kept);
    drop(fetch);
    let mut fetch = Fetch::open(&sync, target(&db), LIMITS).expect("opened");
    let last = run(&mut fetch, &mut [Peer::honest(&server)], 1, usize::MAX);
    asks_for_new(&last, &first.kept);
    asks_for_new(&last, &seen.kept);
    assert!(last.failed.is_none(), "{:?}", last.failed);
    load_and_compare(fetch, &folder.path().join("new"), &db);
    drop(small);
}

/// A server that says nothing has what it was asked for taken away, and is asked again later.
#[test]
fn a_silent_server_rests_longer_each_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = Target::over_all(no_root(), Hasher::BLAKE3);
    let mut fetch = Fetch::open(&folder.path().join("sync"), target, LIMITS).expect("opened");
    let (mut now, mut asked) = (Duration::ZERO, Vec::new());
    for _ in 0..3_000 {
        if let Some((_unanswered, ask)) = fetch.ask(4, now) {
            assert_eq!(ask, Ask::Roots(no_root()));
            asked.push(now);
        }
        now += Duration::from_millis(100);
    }
    let pauses: Vec<u64> =
        asked.windows(2).map(|pair| pair[1].saturating_sub(pair[0]).as_secs()).collect();
    assert_eq!(pauses[..8], [6, 7, 9, 13, 21, 37, 65, 65], "patience, and the rest");
    let progress = fetch.progress();
    assert!(progress.lies.is_empty() && progress.refused >= 8 && !progress.gone, "{progress:?}");
}
