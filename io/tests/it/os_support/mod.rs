//! What the tests on real files share.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pleach_io::{IoMode, OsDevice, OsOptions, PAGE, PageBuf};

/// Every way to open a folder, named.
pub(crate) fn all_modes() -> Vec<(String, OsOptions)> {
    let mut modes = Vec::new();
    for (name, io) in [("uring", IoMode::Uring), ("blocking", IoMode::Blocking)] {
        for direct in [true, false] {
            let options = OsOptions { io, direct, threads: 4, ..OsOptions::default() };
            modes.push((format!("{name}, direct {direct}"), options));
        }
    }
    modes
}

/// Opens a folder; `None`, said aloud, where the kernel has no io_uring for us.
pub(crate) fn open(folder: &Path, name: &str, options: OsOptions) -> Option<OsDevice> {
    let uring = options.io == IoMode::Uring;
    match OsDevice::open(folder, options) {
        Ok(device) => Some(device),
        Err(error) if uring => {
            println!("SKIPPED: {name}: {error}");
            None
        }
        Err(error) => panic!("{name}: {error}"),
    }
}

/// A deterministic generator (splitmix64).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("below a usize")
    }
}

/// Buffer whose words are drawn from `seed`.
pub(crate) fn filled(pages: usize, seed: u64) -> PageBuf {
    let mut rng = Rng(seed);
    let mut buf = PageBuf::zeroed(pages);
    for word in buf.chunks_exact_mut(8) {
        word.copy_from_slice(&rng.next().to_le_bytes());
    }
    buf
}

/// Iterations: `PLEACH_CASES` or `default`.
pub(crate) fn cases(default: usize) -> usize {
    std::env::var("PLEACH_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Bytes of `pages` pages.
pub(crate) fn bytes(pages: usize) -> u64 {
    (pages * PAGE) as u64
}

const ROLE: &str = "PLEACH_IO_TEST_ROLE";
const ARGUMENT: &str = "PLEACH_IO_TEST_ARGUMENT";

/// Starts this test binary again; the test `child` of a module finds `role` and plays it.
pub(crate) fn start(module: &str, role: &str, argument: &Path) -> Child {
    command(module, role, argument)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("spawn")
}

/// The command that [`start`] starts.
pub(crate) fn command(module: &str, role: &str, argument: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    // The path of a test begins after the binary's name.
    let (_, module) = module.split_once("::").expect("a module of the binary");
    let test = format!("{module}::child");
    command.args(["--exact", &test, "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(ARGUMENT, argument);
    command
}

/// The role this process was started for, and its argument.
pub(crate) fn role() -> Option<(String, PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(ARGUMENT)?.into()))
}

/// A second path to a folder, gone with this.
pub(crate) struct SecondPath(pub(crate) PathBuf);

impl SecondPath {
    /// `None` where the command is missing, or may not mount.
    pub(crate) fn mounted(command: &str, arguments: &[&str], at: &Path) -> Option<Self> {
        let device = |path: &Path| std::fs::metadata(path).ok().map(|there| there.dev());
        std::fs::create_dir(at).expect("made");
        let before = device(at);
        let mounted = Self(at.to_owned());
        let output = Command::new(command).args(arguments).arg(at).output();
        // A daemon may fail after its parent has ended well.
        let is_mounted = output.is_ok_and(|output| output.status.success()) && device(at) != before;
        is_mounted.then_some(mounted)
    }
}

impl Drop for SecondPath {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status();
    }
}

/// A new folder below `dir`, and a FUSE view of it; `None`, said aloud, where that is not possible.
pub(crate) fn bindfs(dir: &Path) -> Option<(PathBuf, SecondPath)> {
    let folder = dir.join("folder");
    std::fs::create_dir(&folder).expect("made");
    let view = SecondPath::mounted("bindfs", &[folder.to_str().expect("text")], &dir.join("view"));
    if view.is_none() {
        println!("SKIPPED: no bindfs here, or it may not mount");
    }
    Some((folder, view?))
}
