//! Facts of the operating system: counters of this process, a description of the machine, free space, the page cache.

use core::fmt;
use core::time::Duration;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What an acknowledged commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Nothing: the process has it, or a file in memory.
    Nothing,
    /// The end of the process, however it comes: the kernel has it.
    Kill,
    /// A power cut: it is synced.
    PowerCut,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nothing => "nothing",
            Self::Kill => "a kill",
            Self::PowerCut => "a power cut",
        })
    }
}

/// The resources that this process has used, as the kernel counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceUsage {
    /// Bytes read from block devices (`read_bytes` of /proc/self/io).
    pub read: u64,
    /// Bytes written to block devices.
    pub written: u64,
    /// Processor time of all threads.
    pub processor: Duration,
}

impl ResourceUsage {
    /// The present counters; zeros for those that the kernel does not report.
    pub fn now() -> Self {
        let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
        let clock = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Self {
            read: field(&io, "read_bytes:"),
            written: field(&io, "write_bytes:"),
            processor: Duration::new(
                u64::try_from(clock.tv_sec).unwrap_or(0),
                u32::try_from(clock.tv_nsec).unwrap_or(0),
            ),
        }
    }

    /// What was added since `start`.
    pub fn since(&self, start: &Self) -> Self {
        Self {
            read: self.read.saturating_sub(start.read),
            written: self.written.saturating_sub(start.written),
            processor: self.processor.saturating_sub(start.processor),
        }
    }

    /// The sum of two spans.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            read: self.read + other.read,
            written: self.written + other.written,
            processor: self.processor + other.processor,
        }
    }
}

/// Highest resident memory of this process since the last [`reset_peak_rss`], in bytes.
pub fn peak_rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&status, "VmHWM:") * 1024
}

/// Resident memory of this process now, in bytes.
pub fn rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&status, "VmRSS:") * 1024
}

/// Resets the peak, so that memory of the harness itself (for verification) does not count.
pub fn reset_peak_rss() {
    // If that is not permitted, the peak is merely too high.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|line| line.starts_with(name));
    let number = line.and_then(|line| line[name.len()..].split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The machine that a result is from.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    pub kernel: String,
    pub cpu: String,
    pub cores: usize,
    pub memory_bytes: u64,
    pub file_system: String,
}

impl Machine {
    /// Describes the machine and the file system of `folder`.
    pub fn describe(folder: &Path) -> Self {
        let uname = rustix::system::uname();
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name"));
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            kernel: uname.release().to_string_lossy().into_owned(),
            cpu: model
                .map(|text| text.trim_start_matches([':', ' ', '\t']).to_owned())
                .unwrap_or_default(),
            cores: cores(),
            memory_bytes: field(&memory, "MemTotal:") * 1024,
            file_system: file_system(folder),
        }
    }
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Name of the file system that holds `folder`.
fn file_system(folder: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    file_system_of(folder, &mounts)
}

/// The same from the text of a mount table. An overlayfs writes to another folder, whose file system is named as well
/// where this process sees that folder.
fn file_system_of(folder: &Path, mounts: &str) -> String {
    let absolute = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let mut best = (0, "unknown", "");
    for line in mounts.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if let [_, point, kind, options, ..] = words[..]
            && absolute.starts_with(point)
            && point.len() >= best.0
        {
            best = (point.len(), kind, options);
        }
    }
    let (_, kind, options) = best;
    let upper = options.split(',').find_map(|option| option.strip_prefix("upperdir="));
    match upper.map(Path::new).filter(|upper| kind == "overlay" && upper.is_dir()) {
        Some(upper) => {
            let others = mounts.lines().filter(|line| !line.contains(options));
            let others = others.collect::<Vec<_>>().join("\n");
            format!("overlay over {}", file_system_of(upper, &others))
        }
        None => kind.to_owned(),
    }
}

/// The file system that holds a folder, where that is memory.
pub fn in_memory(folder: &Path) -> Option<String> {
    Some(file_system(folder)).filter(|name| is_memory(name))
}

fn is_memory(file_system: &str) -> bool {
    file_system.ends_with("tmpfs") || file_system.ends_with("ramfs")
}

/// The most that commits in a folder survive.
pub fn most(folder: &Path) -> Level {
    most_on(&file_system(folder))
}

/// What a server of FUSE makes of a sync is its own affair.
fn most_on(file_system: &str) -> Level {
    match file_system {
        name if is_memory(name) => Level::Nothing,
        name if name.contains("fuse") => Level::Kill,
        _ => Level::PowerCut,
    }
}

/// A note on results from a folder where commits survive less than a power cut.
pub fn note(folder: &Path) -> Option<String> {
    note_on(&file_system(folder))
}

fn note_on(name: &str) -> Option<String> {
    let why = match most_on(name) {
        Level::Nothing => "which is memory: syncs cost nothing, and a commit survives nothing",
        Level::Kill => {
            "and its server decides what a sync does: a commit may not survive a power cut, and locks of files may not be \
             shared with other paths to them"
        }
        Level::PowerCut => return None,
    };
    Some(format!("WARNING: the folder is on {name}, {why}; name a folder on a device with --dir"))
}

/// Where temporary folders are made: where the system has them, unless that is memory, or here.
pub fn temporary() -> PathBuf {
    let usual = std::env::temp_dir();
    if in_memory(&usual).is_none() { usual } else { PathBuf::from(".") }
}

/// Free bytes for an ordinary user on the file system of `folder` (or of its nearest parent that exists).
pub fn free_disk(folder: &Path) -> Option<u64> {
    let absolute = std::path::absolute(folder).ok()?;
    let existing = absolute.ancestors().find(|ancestor| ancestor.exists())?;
    // A file system without a size (ramfs) does not tell what is free.
    let stat = rustix::fs::statvfs(existing).ok().filter(|stat| stat.f_blocks > 0)?;
    Some(stat.f_bavail * stat.f_frsize)
}

/// Memory that is available without swapping.
pub fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    Some(field(&text, "MemAvailable:") * 1024).filter(|&bytes| bytes > 0)
}

/// Empties the system's page cache, or returns why it could not.
pub fn drop_caches() -> core::result::Result<(), String> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3")
        .map_err(|error| format!("the page cache could not be dropped: {error}"))
}

/// Bytes of all files below a folder, as allocated on disk.
pub fn folder_bytes(folder: &Path) -> u64 {
    file_bytes(folder, "")
}

/// Bytes of all log files of Pleach below a folder, as allocated on disk.
pub fn log_file_bytes(folder: &Path) -> u64 {
    file_bytes(folder, "log")
}

fn file_bytes(folder: &Path, start: &str) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => file_bytes(&entry.path(), start),
        Ok(meta) if entry.file_name().as_encoded_bytes().starts_with(start.as_bytes()) => {
            meta.blocks() * 512
        }
        _ => 0,
    });
    sizes.sum()
}

/// Bytes as GiB.
pub fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", crate::measure::float(bytes) / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run on tmpfs said that commits survive a power cut, and then that they survive a kill.
    #[test]
    fn commits_in_memory_survive_nothing() {
        assert_eq!(most(Path::new("/proc")), Level::PowerCut);
        assert!(in_memory(&temporary()).is_none() || in_memory(Path::new(".")).is_some());
        let shared = Path::new("/dev/shm");
        if file_system(shared) == "tmpfs" {
            assert_eq!(most(shared), Level::Nothing);
            assert!(note(shared).is_some_and(|note| note.contains("tmpfs, which is memory")));
        } else {
            eprintln!("SKIPPED: no tmpfs is at /dev/shm here");
        }
    }

    /// A run on FUSE said that commits survive a power cut.
    #[test]
    fn a_server_of_fuse_is_not_taken_for_a_device() {
        for name in ["fuse", "fuse.bindfs", "fuseblk", "overlay over fuse"] {
            assert_eq!(most_on(name), Level::Kill, "{name}");
            let note = note_on(name).expect("a note");
            assert!(note.contains(&format!("is on {name}, and its server decides")), "{note}");
        }
        for name in ["ext4", "overlay over xfs", "btrfs", "unknown"] {
            assert_eq!((most_on(name), note_on(name)), (Level::PowerCut, None), "{name}");
        }
    }

    /// An overlayfs whose files are in memory counted as a device.
    #[test]
    fn an_overlayfs_is_what_its_upper_folder_is() {
        let at = tempfile::tempdir().expect("a temporary folder");
        let at = at.path().canonicalize().expect("a path");
        let [merged, upper] = ["merged", "upper"].map(|name| at.join(name));
        std::fs::create_dir(&upper).expect("a folder");
        let named = |kind: &str, upper: &Path| {
            let (merged, at, upper) = (merged.display(), at.display(), upper.display());
            let mounts = format!(
                "/dev/a / ext4 rw 0 0\n{kind} {at} {kind} rw 0 0\n\
                 overlay {merged} overlay rw,lowerdir=/,upperdir={upper},workdir=/w 0 0\n"
            );
            file_system_of(Path::new(&format!("{merged}/databases")), &mounts)
        };
        for (kind, memory) in [("tmpfs", true), ("ramfs", true), ("ext4", false)] {
            let name = named(kind, &upper);
            assert_eq!((&*name, is_memory(&name)), (&*format!("overlay over {kind}"), memory));
        }
        // Where the folder is not seen, as in a container, nothing is known of it.
        assert_eq!(named("tmpfs", &at.join("elsewhere")), "overlay");
    }
}
