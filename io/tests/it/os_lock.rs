//! The folder's lock: one winner, whose id is reported; dead owners block nobody.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use crate::os_support::{SecondPath, bindfs, cases, command, filled, role, start};
use pleach_io::{
    Device, IoError, LockHolder, LockMode, OpenMode, OsDevice, OsOptions, Request, RequestKind,
};

fn device(folder: &Path) -> OsDevice {
    OsDevice::open(folder, OsOptions::default()).expect("open")
}

fn owner(result: Result<Box<dyn Send + Sync>, IoError>) -> Option<LockHolder> {
    match result {
        Ok(_) => None,
        Err(IoError::Locked { holder, .. }) => Some(holder),
        Err(error) => panic!("{error}"),
    }
}

/// What the children do; without a parent it is a test that does nothing.
#[test]
fn child() {
    let Some((role, folder)) = role() else { return };
    let device = device(&folder);
    let mut go = [0];
    std::io::stdin().read_exact(&mut go).expect("the parent's signal");
    match role.as_str() {
        "race" => {
            let lock = device.lock(LockMode::Exclusive);
            match &lock {
                Ok(_) => println!("\nHELD {}", std::process::id()),
                Err(IoError::Locked { holder: LockHolder::Process(owner), .. }) => {
                    println!("\nLOCKED {owner}");
                }
                Err(error) => panic!("{error}"),
            }
            // Until the parent has heard from all.
            let _ = std::io::stdin().read(&mut go);
        }
        "write for ever" => {
            let _lock = device.lock(LockMode::Exclusive).expect("free");
            println!("\nHELD {}", std::process::id());
            write_for_ever(&device);
        }
        other => panic!("no role {other}"),
    }
}

fn write_for_ever(device: &OsDevice) {
    let _ = device.open("data", OpenMode::CreateNew);
    let file = device.open("data", OpenMode::Write).expect("there");
    let mut queue = device.queue(64).expect("queue");
    let request = |token: u64| {
        let (file, buf) = (file.clone(), filled(16, token));
        let offset = token % 64 * buf.len() as u64;
        Request { file, kind: RequestKind::Write, offset, buf, token }
    };
    for token in 0..64 {
        queue.push(request(token));
    }
    loop {
        let completion = queue.wait().expect("wait").expect("in flight");
        completion.result.expect("write");
        queue.push(request(completion.token + 64));
    }
}

struct Racer {
    child: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

impl Racer {
    fn new(role: &str, folder: &Path) -> Self {
        Self::of(start(module_path!(), role, folder))
    }

    /// As the first process of a pid namespace, which ends with the racer; `None` where that is not allowed.
    fn in_a_namespace(role: &str, folder: &Path) -> Option<Self> {
        let inner = command(module_path!(), role, folder);
        ["-pf", "-rpf"].into_iter().find_map(|flags| {
            let mut unshare = Command::new("unshare");
            let probe = unshare.args([flags, "true"]).stderr(Stdio::null()).status();
            if !probe.is_ok_and(|status| status.success()) {
                return None;
            }
            let mut command = Command::new("unshare");
            command.args([flags, "--kill-child"]).arg(inner.get_program()).args(inner.get_args());
            for (key, value) in inner.get_envs() {
                command.env(key, value.expect("set"));
            }
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok().map(Self::of)
        })
    }

    fn of(mut child: Child) -> Self {
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, input, output }
    }

    fn go(&mut self) {
        self.input.write_all(b"g").expect("the child listens");
    }

    /// The child's verdict, among what the test harness prints.
    fn verdict(&mut self) -> (String, u32) {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).expect("read") > 0, "the child ended");
            let mut words = line.split_whitespace();
            if let Some(word @ ("HELD" | "LOCKED")) = words.next() {
                let pid = words.next().and_then(|text| text.parse().ok()).expect("a pid");
                return (word.to_owned(), pid);
            }
        }
    }
}

#[test]
fn of_eight_processes_one_wins_and_the_others_know_who() {
    for _ in 0..cases(3).min(100) {
        let dir = tempfile::tempdir().expect("tempdir");
        let mut racers: Vec<_> = (0..8).map(|_| Racer::new("race", dir.path())).collect();
        racers.iter_mut().for_each(Racer::go);
        let verdicts: Vec<_> = racers.iter_mut().map(Racer::verdict).collect();
        let winners: Vec<_> = verdicts.iter().filter(|verdict| verdict.0 == "HELD").collect();
        assert_eq!(winners.len(), 1, "{verdicts:?}");
        assert!(verdicts.iter().all(|verdict| verdict.1 == winners[0].1), "{verdicts:?}");
        for mut racer in racers {
            drop(racer.input);
            assert!(racer.child.wait().expect("wait").success());
        }
        assert!(device(dir.path()).lock(LockMode::Exclusive).is_ok(), "all have left");
    }
}

#[test]
fn a_killed_owner_blocks_nobody_and_its_writes_end_before_the_next_owner_enters() {
    for round in 0..cases(5).min(100) {
        let dir = tempfile::tempdir().expect("tempdir");
        let mut racer = Racer::new("write for ever", dir.path());
        racer.go();
        let pid = racer.child.id();
        assert_eq!(racer.verdict(), ("HELD".to_owned(), pid));
        let device = device(dir.path());
        let alive = Some(LockHolder::Process(pid));
        assert_eq!(owner(device.lock(LockMode::Exclusive)), alive);
        assert_eq!(owner(device.lock(LockMode::Shared)), alive);
        std::thread::sleep(Duration::from_millis(20));
        racer.child.kill().expect("kill");
        if round % 2 == 0 {
            racer.child.wait().expect("wait");
        }
        // Killed, and possibly still a zombie.
        let asked = Instant::now();
        let lock = loop {
            match device.lock(LockMode::Exclusive) {
                Ok(lock) => break lock,
                Err(error) => assert!(asked.elapsed() < Duration::from_secs(10), "{error}"),
            }
        };
        let before = std::fs::read(dir.path().join("data")).expect("read");
        std::thread::sleep(Duration::from_millis(50));
        let after = std::fs::read(dir.path().join("data")).expect("read");
        assert!(before == after, "a dead owner's write landed under the next");
        drop(lock);
        let _ = racer.child.wait();
    }
}

#[test]
fn two_openings_in_one_process_conflict_and_leaving_frees() {
    let dir = tempfile::tempdir().expect("tempdir");
    let (one, two) = (device(dir.path()), device(dir.path()));
    let lock = one.lock(LockMode::Exclusive).expect("free");
    let this = Some(LockHolder::ThisProcess);
    assert_eq!(owner(two.lock(LockMode::Exclusive)), this);
    assert_eq!(owner(two.lock(LockMode::Shared)), this);
    assert_eq!(owner(one.lock(LockMode::Exclusive)), this, "same device, too");
    drop(lock);
    let readers = [one.lock(LockMode::Shared), two.lock(LockMode::Shared)];
    assert!(readers.iter().all(Result::is_ok));
    assert_eq!(
        owner(two.lock(LockMode::Exclusive)),
        Some(LockHolder::Unknown),
        "readers have no name"
    );
    drop(readers);
    assert_eq!(owner(two.lock(LockMode::Exclusive)), None);
}

#[test]
fn a_ring_that_outlives_the_lock_does_not_hold_it() {
    let dir = tempfile::tempdir().expect("tempdir");
    let device = device(dir.path());
    let lock = device.lock(LockMode::Exclusive).expect("free");
    let file = device.open("data", OpenMode::CreateNew).expect("create");
    let mut queue = device.queue(1).expect("queue");
    let buf = filled(1, 1);
    queue.push(Request { file, kind: RequestKind::Write, offset: 0, buf, token: 0 });
    queue.wait().expect("wait").expect("one").result.expect("write");
    drop(lock);
    assert_eq!(owner(device.lock(LockMode::Exclusive)), None);
    drop(queue);
}

#[test]
fn a_stale_or_garbled_owner_blocks_nobody() {
    let dir = tempfile::tempdir().expect("tempdir");
    for text in ["", "1\n", "999999999\n", "x", "\0\0\0\0", "123456789012345678901234567890\n"] {
        std::fs::write(dir.path().join("LOCK"), text).expect("write");
        let device = device(dir.path());
        assert_eq!(owner(device.lock(LockMode::Exclusive)), None, "{text:?}");
        std::fs::write(dir.path().join("LOCK"), text).expect("write");
        let reader = device.lock(LockMode::Shared).expect("free");
        assert_eq!(owner(device.lock(LockMode::Exclusive)), Some(LockHolder::Unknown), "{text:?}");
        drop(reader);
    }
}

#[test]
fn the_lock_file_is_nobody_elses() {
    let dir = tempfile::tempdir().expect("tempdir");
    let device = device(dir.path());
    let _lock = device.lock(LockMode::Exclusive).expect("free");
    device.open("data", OpenMode::CreateNew).expect("create");
    assert_eq!(device.list().expect("list"), ["data"]);
    assert!(device.open("LOCK", OpenMode::Write).is_err());
    assert!(device.remove("LOCK").is_err());
    assert!(device.rename("data", "LOCK").is_err());
}

#[test]
fn a_folder_opened_for_reading_takes_shared_locks_only() {
    let dir = tempfile::tempdir().expect("tempdir");
    let options = OsOptions { read_only: true, ..OsOptions::default() };
    let reader = OsDevice::open(dir.path(), options).expect("open");
    assert!(matches!(reader.lock(LockMode::Exclusive), Err(IoError::Os { code: libc::EROFS, .. })));
    let _shared = reader.lock(LockMode::Shared).expect("free");
    assert_eq!(owner(device(dir.path()).lock(LockMode::Exclusive)), Some(LockHolder::Unknown));
}

/// Before it writes its id: a folder that cannot be written stays as it is. Root may write any folder, so for root
/// this says nothing.
#[test]
fn a_folder_without_the_right_to_write_has_no_owner() {
    let dir = tempfile::tempdir().expect("tempdir");
    let device = device(dir.path());
    drop(device.lock(LockMode::Exclusive).expect("free"));
    let before = std::fs::read(dir.path().join("LOCK")).expect("made");
    let rights = |mode| std::fs::set_permissions(dir.path(), Permissions::from_mode(mode));
    rights(0o555).expect("the owner may");
    let is_root = device.open("probe", OpenMode::CreateNew).is_ok();
    let locked = device.lock(LockMode::Exclusive).map(drop);
    rights(0o755).expect("the owner may");
    if !is_root {
        let error = locked.expect_err("no right to write");
        assert!(matches!(&error, IoError::Os { code: libc::EACCES, .. }), "{error}");
        assert_eq!(std::fs::read(dir.path().join("LOCK")).expect("there"), before);
    }
}

/// The owner is killed, and the next one starts at once, each as the first process of a pid namespace, as in a container.
/// 14 of 15 were refused: process 1, which `LOCK` named, was the one that asked.
#[test]
fn the_first_process_of_a_container_waits_for_the_one_before_it() {
    let dir = tempfile::tempdir().expect("tempdir");
    let mut before: Option<Racer> = None;
    for round in 0..cases(15).max(15) {
        if let Some(mut owner) = before.take() {
            // With it goes the whole namespace.
            owner.child.kill().expect("kill");
            owner.child.wait().expect("wait");
        }
        let Some(mut next) = Racer::in_a_namespace("write for ever", dir.path()) else {
            return println!("SKIPPED: no pid namespaces here");
        };
        next.go();
        assert_eq!(next.verdict(), ("HELD".to_owned(), 1), "round {round}");
        let second = device(dir.path()).lock(LockMode::Shared).map(drop);
        assert!(
            matches!(second, Err(IoError::Locked { holder: LockHolder::Elsewhere(1), .. })),
            "one owner at a time: {second:?}"
        );
        before = Some(next);
    }
    if let Some(mut owner) = before {
        owner.child.kill().expect("kill");
        owner.child.wait().expect("wait");
    }
}

/// Neither path shows the locks of the other; the text in `LOCK` is seen by both.
fn one_owner_by_two_paths(one: &Path, two: &Path) {
    for (first, second) in [(one, two), (two, one)] {
        let mut racer = Racer::new("race", first);
        racer.go();
        let pid = racer.child.id();
        assert_eq!(racer.verdict(), ("HELD".to_owned(), pid));
        for mode in [LockMode::Shared, LockMode::Exclusive, LockMode::Exclusive] {
            let held = owner(device(second).lock(mode));
            assert_eq!(held, Some(LockHolder::Unshared(pid)), "{} {mode:?}", second.display());
            let held = owner(device(first).lock(mode));
            assert_eq!(held, Some(LockHolder::Process(pid)), "{} {mode:?}", first.display());
        }
        if first == one {
            drop(racer.input);
        } else {
            racer.child.kill().expect("kill");
        }
        racer.child.wait().expect("wait");
        let lock = device(second).lock(LockMode::Exclusive);
        assert!(lock.is_ok(), "a closed owner, or a killed one, blocks nobody: {:?}", lock.err());
    }
}

/// Both opened the database, committed, and destroyed it.
#[test]
fn a_folder_and_a_fuse_view_of_it_have_one_owner() {
    let dir = tempfile::tempdir().expect("tempdir");
    let Some((folder, view)) = bindfs(dir.path()) else { return };
    one_owner_by_two_paths(&folder, &view.0);
}

/// As a container's layer that is opened from outside, too.
#[test]
fn an_overlayfs_and_its_upper_folder_have_one_owner() {
    let dir = tempfile::tempdir().expect("tempdir");
    let [lower, upper, work] = ["lower", "upper", "work"].map(|name| dir.path().join(name));
    for folder in [&lower, &upper, &work] {
        std::fs::create_dir(folder).expect("made");
    }
    let [lower, above, work] = [&lower, &upper, &work].map(|path| path.display());
    let options = format!("lowerdir={lower},upperdir={above},workdir={work}");
    let arguments = ["-t", "overlay", "overlay", "-o", &options];
    let Some(mounted) = SecondPath::mounted("mount", &arguments, &dir.path().join("both")) else {
        return println!("SKIPPED: no overlayfs can be mounted here");
    };
    one_owner_by_two_paths(&upper, &mounted.0);
}
