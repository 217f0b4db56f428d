//! Blocks that an overwrite takes anew from the file system, though they were reserved: those that a copy by reflink or
//! a snapshot shares, and all of a file that btrfs copies on write.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::IFlags;

/// Files on ext4 and in memory share no blocks: they are not asked.
const NEVER: [u32; 3] = [0xef53, 0x0102_1994, 0x8584_58f6];
const BTRFS: u32 = 0x9123_683e;

/// The number of the file system's type.
pub(super) fn file_system(fd: impl AsFd) -> Option<u32> {
    // A number of 32 bits, whatever the type that the platform gives it.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the low 32 bits")]
    rustix::fs::fstatfs(fd).ok().map(|stat| stat.f_type as u32)
}

/// The file system, where other paths or machines lead to the same files with locks of their own.
pub(super) fn without_shared_locks(folder: impl AsFd) -> Option<&'static str> {
    match file_system(folder)? {
        0x6573_5546 => Some("FUSE"),
        0x6969 => Some("NFS"),
        0x0102_1997 => Some("9p"),
        0xff53_4d42 | 0xfe53_4d42 => Some("SMB"),
        _ => None,
    }
}

/// Has btrfs overwrite a new file in place, as long as no snapshot shares it. Pages have checksums of their own.
pub(super) fn write_in_place(fd: impl AsFd) {
    if file_system(&fd) == Some(BTRFS)
        && let Ok(flags) = rustix::fs::ioctl_getflags(&fd)
    {
        // Refused, it costs room on a full device: `shared_bytes` counts that.
        let _ = rustix::fs::ioctl_setflags(&fd, flags | IFlags::NOCOW);
    }
}

/// What files have taken and given back is in the figures of btrfs only when a transaction ends, up to half a minute
/// later: ends it. True when the figures may be others now.
pub(super) fn settle_free_space(fd: impl AsFd) -> bool {
    file_system(&fd) == Some(BTRFS) && rustix::fs::syncfs(fd).is_ok()
}

/// Bytes that btrfs may take at once of what it calls free: two copies of a chunk of metadata, of 1 GiB, or 256 MiB on a
/// file system of up to 50 GiB, and a tenth of the file system at most.
pub(super) fn metadata_chunks(fd: impl AsFd, size: u64) -> u64 {
    let chunk = if size > 50 << 30 { 1 << 30 } else { 256 << 20 };
    if file_system(fd) == Some(BTRFS) { 2 * chunk.min(size / 10) } else { 0 }
}

/// True when overwrites of files in this folder may take room.
pub(super) fn can_share(folder: impl AsFd) -> bool {
    file_system(folder).is_some_and(|number| !NEVER.contains(&number))
}

/// Bytes of a file that overwrites would take anew; 0 where the file system does not say.
pub(super) fn shared_bytes(fd: impl AsFd, len: u64) -> u64 {
    let flags = rustix::fs::ioctl_getflags(&fd);
    if file_system(&fd) == Some(BTRFS) && flags.is_ok_and(|flags| !flags.contains(IFlags::NOCOW)) {
        return len;
    }
    let (mut shared, mut start) = (0, 0);
    // Each turn begins behind the last extent of the one before.
    while let Some(extents) = extents_from(&fd, start) {
        shared += extents.iter().filter(|e| e.flags & SHARED != 0).map(|e| e.length).sum::<u64>();
        match extents.last() {
            Some(last) if last.flags & LAST == 0 && last.logical + last.length > start => {
                start = last.logical + last.length;
            }
            _ => break,
        }
    }
    shared
}

/// From `linux/fiemap.h`.
const FIEMAP: libc::Ioctl = 0xc020_660b_u32 as libc::Ioctl;
const LAST: u32 = 1;
const SHARED: u32 = 0x2000;
/// Extents of one call.
const AT_ONCE: u32 = 64;

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_after: [u32; 3],
}

#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; AT_ONCE as usize],
}

const _: () =
    assert!(size_of::<Extent>() == 56 && size_of::<Fiemap>() == 32 + 56 * AT_ONCE as usize);

/// The first extents of a file from a byte on.
#[expect(unsafe_code, reason = "FIEMAP has no safe wrapper")]
fn extents_from(fd: impl AsFd, start: u64) -> Option<Vec<Extent>> {
    let mut map = Fiemap {
        start,
        length: u64::MAX - start,
        flags: 0,
        mapped: 0,
        count: AT_ONCE,
        reserved: 0,
        extents: [Extent::default(); AT_ONCE as usize],
    };
    // SAFETY: the descriptor is open for the call; the kernel writes at most `count` extents behind the head, and the
    // structure has room for them.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), FIEMAP, &raw mut map) };
    (result == 0).then(|| map.extents[..AT_ONCE.min(map.mapped) as usize].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_its_own_shares_nothing() {
        let mut file = tempfile::tempfile().expect("a file");
        std::io::Write::write_all(&mut file, &vec![7; 1 << 20]).expect("written");
        file.sync_all().expect("synced");
        let is_copied = file_system(&file) == Some(BTRFS);
        assert_eq!(shared_bytes(&file, 1 << 20), u64::from(is_copied) << 20);
    }
}
