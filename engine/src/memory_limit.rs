//! The memory that this process may have: the machine's, or less where a control group or an address space limit says
//! so.
//!
//! Read from files of the system alone, once for each call; a file that cannot be read sets no limit. Called by a load
//! and by an open.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::opening::Note;
use crate::options::InvalidOption;

/// A cautious guess where the system does not say.
const UNKNOWN: u64 = 2 << 30;
/// Bytes that a process takes beside its budget and a tenth of it.
const FIXED: u64 = 48 << 20;
/// Address space in bytes that the allocator reserves for a thread at most, used or not.
const THREAD: u64 = 64 << 20;
/// Threads beside the workers: the background tasks, and a caller.
const OTHERS: u64 = 4;

/// The memory limit of a process, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    pub(crate) bytes: u64,
    /// The file with the limit, of a control group or of the process's limits; `None` for the machine's memory.
    pub(crate) group: Option<PathBuf>,
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.bytes >> 20;
        match &self.group {
            Some(file) => write!(f, "{mib} MiB, by {}", file.display()),
            None => write!(f, "{mib} MiB, all that the machine has"),
        }
    }
}

/// The least of all limits.
pub(crate) fn memory_limit() -> MemoryLimit {
    limit_below(Path::new("/"))
}

/// Refuses a budget that the address space of the process has no room for (`RLIMIT_AS`): an allocation that fails in
/// the middle of a commit ends the process.
pub(crate) fn check_address_space(budget: u64, threads: usize) -> Result<(), InvalidOption> {
    let needed = budget + budget / 10 + THREAD * (threads as u64 + OTHERS);
    match address_space(Path::new("/")) {
        Some(left) if left < needed => Err(InvalidOption::AddressSpace { needed, left }),
        _ => Ok(()),
    }
}

/// A warning about a budget with which a process may take more than it may have (`docs/memory.md`).
pub(crate) fn budget_warning(budget: u64, limit: &MemoryLimit) -> Option<Note> {
    let most = budget + budget / 10 + FIXED;
    let what = format!(
        "{} MiB take up to {} MiB, and this process may have {limit}: it may be killed when they fill up; give less",
        budget >> 20,
        most.div_ceil(1 << 20)
    );
    (most > limit.bytes).then(|| Note { file: "cache_mib".to_owned(), what })
}

/// The memory limit, with the system's files below `root`.
fn limit_below(root: &Path) -> MemoryLimit {
    let machine = MemoryLimit { bytes: machine_memory(root).unwrap_or(UNKNOWN), group: None };
    let groups = group_files(root);
    let limits = groups.into_iter().filter_map(|file| {
        let text = std::fs::read_to_string(path_below(root, &file)).ok()?;
        // "max" is no number, and the first version's number for no limit is more than any machine has.
        let bytes = text.trim().parse().ok()?;
        Some(MemoryLimit { bytes, group: Some(file) })
    });
    let bytes = |left: u64| left.saturating_sub(THREAD * OTHERS);
    let space = address_space(root)
        .map(|left| MemoryLimit { bytes: bytes(left), group: Some("/proc/self/limits".into()) });
    limits
        .chain(space)
        .chain([machine])
        .min_by_key(|limit| limit.bytes)
        .expect("the machine's is one")
}

/// The address space that the process has left, in bytes, where it is limited.
fn address_space(root: &Path) -> Option<u64> {
    let limits = std::fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let limit: u64 = line.split_whitespace().next()?.parse().ok()?;
    let status = std::fs::read_to_string(root.join("proc/self/status")).ok()?;
    let used = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let kib: u64 = used.split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(kib << 10))
}

fn machine_memory(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

/// The files that may have a limit: of the process's groups and of the groups above them, in both versions.
fn group_files(root: &Path) -> Vec<PathBuf> {
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
    let (groups, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let mut files = Vec::new();
    for line in groups.lines() {
        // hierarchy:controllers:path
        let mut parts = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let second = id == "0" && controllers.is_empty();
        let names: &[&str] =
            if second { &["memory.max", "memory.high"] } else { &["memory.limit_in_bytes"] };
        if !second && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let Some(mount) = mounts.lines().filter_map(Mount::parse).find(|mount| mount.has(second))
        else {
            continue;
        };
        // In a container the mount may show only a part of the hierarchy, or the group's own path.
        let own = Path::new(path);
        let inside = own.strip_prefix(mount.root).or_else(|_| own.strip_prefix("/"));
        let top = Path::new(mount.at);
        let mut group = top.join(inside.unwrap_or(own));
        if !path_below(root, &group).is_dir() {
            top.clone_into(&mut group);
        }
        for group in group.ancestors().take_while(|group| group.starts_with(top)) {
            files.extend(names.iter().map(|name| group.join(name)));
        }
    }
    files
}

/// A line of `mountinfo`.
struct Mount<'a> {
    /// The part of the file system that is mounted.
    root: &'a str,
    at: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let (mut mount, mut system) = (mount.split(' '), system.split(' '));
        let (root, at) = (mount.nth(3)?, mount.next()?);
        Some(Self { root, at, kind: system.next()?, options: system.nth(1)? })
    }

    /// True when the mount has the hierarchy of the memory groups.
    fn has(&self, second: bool) -> bool {
        let memory = || self.options.split(',').any(|option| option == "memory");
        if second { self.kind == "cgroup2" } else { self.kind == "cgroup" && memory() }
    }
}

fn path_below(root: &Path, file: &Path) -> PathBuf {
    root.join(file.strip_prefix("/").unwrap_or(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files of three systems as the kernel gives them, cut to the lines that matter.
    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary folder");
        let all = [("proc/meminfo", "MemTotal:       16332984 kB\nMemFree:  1 kB\n")];
        for (file, text) in all.iter().chain(files) {
            let file = root.path().join(file);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            std::fs::write(file, text).expect("written");
        }
        root
    }

    const MACHINE: u64 = 16_332_984 << 10;
    const SECOND: &str = "24 30 0:22 / /proc rw,nosuid - proc proc rw\n\
        35 24 0:31 / /sys/fs/cgroup rw,nosuid,nodev - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";
    const FIRST: &str = "31 25 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755\n\
        34 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct\n\
        41 31 0:36 /docker/4fe2 /sys/fs/cgroup/memory ro shared:17 - cgroup cgroup rw,memory\n";

    fn found(root: &tempfile::TempDir) -> (u64, Option<String>) {
        let limit = limit_below(root.path());
        (limit.bytes, limit.group.map(|file| file.display().to_string()))
    }

    #[test]
    fn the_least_limit_of_a_group_and_those_above_it_counts_in_the_second_version() {
        let files = [
            ("proc/self/cgroup", "0::/system.slice/node.service\n"),
            ("proc/self/mountinfo", SECOND),
            ("sys/fs/cgroup/system.slice/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/system.slice/node.service/memory.max", "max\n"),
            ("sys/fs/cgroup/system.slice/node.service/memory.high", "4294967296\n"),
        ];
        let above = "/sys/fs/cgroup/system.slice/memory.max".to_owned();
        assert_eq!(found(&system(&files)), (2 << 30, Some(above)));
        // Without limits the machine's memory counts.
        assert_eq!(found(&system(&files[..2])), (MACHINE, None));
        // A namespace of groups: the process is at the root that it sees.
        let own =
            [("proc/self/cgroup", "0::/\n"), files[1], ("sys/fs/cgroup/memory.max", "536870912\n")];
        let file = "/sys/fs/cgroup/memory.max".to_owned();
        assert_eq!(found(&system(&own)), (512 << 20, Some(file)));
    }

    #[test]
    fn the_memory_controller_counts_in_the_first_version() {
        let files = [
            (
                "proc/self/cgroup",
                "12:cpu,cpuacct:/docker/4fe2\n9:memory:/docker/4fe2/sub\n1:name=systemd:/docker/4fe2\n0::/docker/4fe2\n",
            ),
            ("proc/self/mountinfo", FIRST),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"),
            ("sys/fs/cgroup/memory/sub/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        let file = "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned();
        assert_eq!(found(&system(&files)), (1 << 30, Some(file)));
        let none = [files[0], files[1], files[3]];
        assert_eq!(found(&system(&none)), (MACHINE, None));
    }

    #[test]
    fn the_address_space_counts_where_it_is_limited() {
        let limits = |soft| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max file size             unlimited            unlimited            bytes\n\
                 Max address space         {soft:20} unlimited            bytes\n"
            )
        };
        let (some, none) = (limits("1073741824"), limits("unlimited"));
        let used = ("proc/self/status", "Name:\tnode\nVmSize:\t    4096 kB\nVmRSS:\t 100 kB\n");
        let root = system(&[("proc/self/limits", &some), used]);
        assert_eq!(address_space(root.path()), Some((1 << 30) - (4 << 20)));
        let left = (1 << 30) - (4 << 20) - THREAD * OTHERS;
        assert_eq!(found(&root), (left, Some("/proc/self/limits".to_owned())));
        let root = system(&[("proc/self/limits", &none), used]);
        assert_eq!((address_space(root.path()), found(&root)), (None, (MACHINE, None)));
    }

    #[test]
    fn what_cannot_be_read_limits_nothing() {
        let root = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(found(&root), (UNKNOWN, None));
        let files = [("proc/self/cgroup", "nonsense\n0::/x\n"), ("proc/self/mountinfo", "a - b\n")];
        assert_eq!(found(&system(&files)), (MACHINE, None));
    }

    /// A warning came only where the budget alone was more than the limit: a process with 100 MiB of budget in a group
    /// of 120 MiB was killed without one.
    #[test]
    fn a_budget_that_may_take_more_than_the_limit_is_warned_of_by_name() {
        let file = PathBuf::from("/sys/fs/cgroup/memory.max");
        let limit = MemoryLimit { bytes: 120 << 20, group: Some(file) };
        let text = budget_warning(100 << 20, &limit).expect("158 MiB at most").to_string();
        assert!(text.starts_with("cache_mib: 100 MiB take up to 158 MiB"), "{text}");
        assert!(text.contains("120 MiB, by /sys/fs/cgroup/memory.max"), "{text}");
        // 72 MiB are left for the budget and its tenth.
        let most = (72 << 20) * 10 / 11 + 1;
        assert_eq!(budget_warning(most, &limit), None);
        assert!(budget_warning(most + 1, &limit).is_some());
        assert_eq!(budget_warning(65 << 20, &limit), None);
        assert!(budget_warning(66 << 20, &limit).is_some());
    }
}
