//! The kind of ring that this kernel provides, probed once when a device is opened, with a submission: a sandbox may
//! let a ring be made and refuse to enter it.

#![expect(unsafe_code, reason = "a submission is asked with an entry")]

use std::os::fd::AsRawFd as _;

use io_uring::{IoUring, Probe, opcode};

use super::descriptor::LEAST;

/// Flags of a ring, from best to least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingSetup {
    /// One issuer, whose completions are processed when it waits (Linux 6.1).
    Deferred,
    /// Completions do not interrupt the issuer (Linux 5.19).
    Cooperative,
    /// Supported by every kernel with the needed operations.
    Plain,
}

/// Entries of the probing ring.
const PROBE_ENTRIES: u32 = 4;

/// Finds the best setup, or returns why there is none.
pub(super) fn probe() -> std::io::Result<RingSetup> {
    let mut last = None;
    for setup in [RingSetup::Deferred, RingSetup::Cooperative, RingSetup::Plain] {
        match build(setup, PROBE_ENTRIES) {
            Ok(ring) => return check(ring).map(|()| setup),
            // EINVAL is an unknown flag; anything else will not go away with fewer flags.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::Error::from_raw_os_error(libc::ENOSYS)))
}

/// A disabled ring: it belongs to the thread that enables it, which it does at its first
/// submission, so that a queue may be made on one thread and used on another.
pub(super) fn build(setup: RingSetup, entries: u32) -> std::io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_r_disabled();
    match setup {
        RingSetup::Deferred => {
            builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
            builder.setup_submit_all();
        }
        RingSetup::Cooperative => {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        }
        RingSetup::Plain => {}
    }
    // Rings with the number of a standard stream are kept until one has another.
    let mut low = Vec::new();
    loop {
        let ring = builder.build(entries)?;
        if ring.as_raw_fd() >= LEAST {
            return Ok(ring);
        }
        low.push(ring);
    }
}

/// Checks that the ring has all operations that a queue needs, and takes a submission.
fn check(mut ring: IoUring) -> std::io::Result<()> {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        opcode::Nop::CODE,
        opcode::Read::CODE,
        opcode::ReadFixed::CODE,
        opcode::Write::CODE,
        opcode::WriteFixed::CODE,
        opcode::Fsync::CODE,
    ];
    let complete = needed.iter().all(|code| probe.is_supported(*code));
    if !complete || !ring.params().is_feature_nodrop() {
        return Err(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    ring.submitter().register_enable_rings()?;
    // SAFETY: the entry names no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }
        .map_err(|_| std::io::Error::from_raw_os_error(libc::EBUSY))?;
    loop {
        match ring.submit_and_wait(1) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            taken => {
                taken?;
                if let Some(done) = ring.completion().next() {
                    let failed = done.result().min(0);
                    return if failed == 0 {
                        Ok(())
                    } else {
                        Err(std::io::Error::from_raw_os_error(-failed))
                    };
                }
            }
        }
    }
}
