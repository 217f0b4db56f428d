//! The completion step of a transfer, as a pure function of the system's result.
//!
//! The ring, the blocking pool and the single calls all drive a [`TransferProgress`], so the rules of [`crate::device`]
//! are only here:
//! * a short transfer goes on from its cursor, rounded down to what the file's I/O path can
//!   address; a transfer that does not get beyond its cursor is [`IoError::Short`];
//! * EINTR and EAGAIN of a read or write are repeated, and a read that ended before the end of its file, at most
//!   [`RETRIES`] times in all;
//! * a sync has one attempt;
//! * everything else is an error.

use crate::device::RequestKind;
use crate::error::{IoError, Operation, Result};

use super::error::os_error;

/// Repetitions of an interrupted read or write.
pub(super) const RETRIES: u8 = 16;

/// Largest single transfer handed to the system. Linux ends longer ones short anyway, just below
/// 2 GiB; a power of two keeps the cursor aligned.
const LARGEST: u64 = 1 << 30;

/// The progress of a transfer.
#[derive(Debug)]
pub(super) struct TransferProgress {
    transfer: RequestKind,
    /// Bytes asked for.
    len: u64,
    /// Bytes known to be transferred.
    done: u64,
    /// Where the next attempt starts: `done`, rounded down to `align`.
    next: u64,
    /// Granularity of file offsets: 1 through the page cache, a sector past it.
    align: u64,
    retries: u8,
}

/// The consequence of one result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TransferOutcome {
    /// Complete.
    Done,
    /// Hand [`TransferProgress::span`] to the system again.
    Resubmit,
    /// Over, with an error.
    Failed(TransferFailure),
}

/// Why a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferFailure {
    /// An errno.
    Code(i32),
    /// Nothing more can be transferred.
    Short,
    /// More bytes were reported than had been asked for.
    Excess,
}

impl TransferProgress {
    /// A transfer of `len` bytes (ignored by a sync) that has not begun.
    pub(super) fn new(transfer: RequestKind, len: usize, align: u32) -> Self {
        let len = if transfer == RequestKind::Sync { 0 } else { len as u64 };
        Self { transfer, len, done: 0, next: 0, align: u64::from(align.max(1)), retries: 0 }
    }

    /// True when there is nothing to do. A read or write of no pages never reaches the system.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0 && self.transfer != RequestKind::Sync
    }

    /// The operation.
    pub(super) fn transfer(&self) -> RequestKind {
        self.transfer
    }

    /// The next attempt: first byte, relative to the request, and count.
    pub(super) fn span(&self) -> (usize, u32) {
        let count = (self.len - self.next).min(LARGEST);
        // `next` is below the length of a buffer in memory, `count` at most `LARGEST`.
        (usize::try_from(self.next).unwrap_or(usize::MAX), u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Takes the result of the attempt that [`TransferProgress::span`] described: a count, or a negated errno.
    pub(super) fn advance(&mut self, result: i32) -> TransferOutcome {
        if result < 0 {
            return self.refused(result.saturating_neg());
        }
        if self.transfer == RequestKind::Sync {
            return TransferOutcome::Done;
        }
        let count = u64::from(result.unsigned_abs());
        if count > u64::from(self.span().1) {
            return TransferOutcome::Failed(TransferFailure::Excess);
        }
        let reached = self.next + count;
        if reached <= self.done {
            return TransferOutcome::Failed(TransferFailure::Short);
        }
        self.done = reached;
        if self.done == self.len {
            return TransferOutcome::Done;
        }
        self.next = self.done - self.done % self.align;
        TransferOutcome::Resubmit
    }

    /// The outcome of an attempt that transferred nothing, of a file of `len` bytes from the request's offset on: a read
    /// goes on below that.
    pub(super) fn ended_short(&mut self, len: u64) -> TransferOutcome {
        let is_below = self.transfer == RequestKind::Read && self.done < len;
        if is_below && self.retries < RETRIES {
            self.retries += 1;
            return TransferOutcome::Resubmit;
        }
        TransferOutcome::Failed(TransferFailure::Short)
    }

    fn refused(&mut self, code: i32) -> TransferOutcome {
        let passing = code == libc::EINTR || code == libc::EAGAIN;
        if passing && self.transfer != RequestKind::Sync && self.retries < RETRIES {
            self.retries += 1;
            return TransferOutcome::Resubmit;
        }
        TransferOutcome::Failed(TransferFailure::Code(code))
    }

    /// The caller's error for a failure; `offset` is the request's.
    pub(super) fn error(&self, failure: TransferFailure, file: &str, offset: u64) -> IoError {
        let operation = operation(self.transfer);
        match failure {
            TransferFailure::Code(code) => os_error(file, offset + self.done, operation, code),
            TransferFailure::Short => IoError::Short {
                file: file.to_owned(),
                offset,
                operation,
                done: self.done,
                expected: self.len,
            },
            TransferFailure::Excess => IoError::Os {
                file: file.to_owned(),
                offset: offset + self.done,
                operation,
                code: 0,
                kind: std::io::ErrorKind::InvalidData,
                message: "the system reported more bytes than it was asked for".to_owned(),
            },
        }
    }
}

/// The name of a transfer in errors.
pub(super) fn operation(transfer: RequestKind) -> Operation {
    match transfer {
        RequestKind::Read => Operation::Read,
        RequestKind::Write => Operation::Write,
        RequestKind::Sync => Operation::Sync,
    }
}

/// Refuses a range that no device can transfer: an offset inside a page, an end beyond the largest file. O_DIRECT would
/// refuse the first with EINVAL; the page cache would not.
pub(super) fn check_range(
    file: &str,
    transfer: RequestKind,
    offset: u64,
    len: usize,
    unit: usize,
) -> Result<()> {
    if transfer == RequestKind::Sync {
        return Ok(());
    }
    let end = offset.checked_add(len as u64);
    let fits = end.is_some_and(|end| i64::try_from(end).is_ok());
    if offset.is_multiple_of(unit as u64) && len.is_multiple_of(unit) && fits {
        return Ok(());
    }
    Err(os_error(file, offset, operation(transfer), libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PAGE;

    fn read(len: usize, align: u32) -> TransferProgress {
        TransferProgress::new(RequestKind::Read, len, align)
    }

    #[test]
    fn whole_transfer_is_done_at_once() {
        for transfer in [RequestKind::Read, RequestKind::Write] {
            let mut progress = TransferProgress::new(transfer, 8192, 512);
            assert_eq!(progress.span(), (0, 8192));
            assert_eq!(progress.advance(8192), TransferOutcome::Done);
        }
    }

    #[test]
    fn short_transfer_goes_on_from_its_cursor() {
        let mut progress = read(8192, 512);
        assert_eq!(progress.advance(512), TransferOutcome::Resubmit);
        assert_eq!(progress.span(), (512, 7680));
        assert_eq!(progress.advance(2048), TransferOutcome::Resubmit);
        assert_eq!(progress.span(), (2560, 5632));
        assert_eq!(progress.advance(5632), TransferOutcome::Done);
    }

    #[test]
    fn count_zero_is_short() {
        let mut progress = read(4096, 512);
        assert_eq!(progress.advance(0), TransferOutcome::Failed(TransferFailure::Short));
        let mut progress = read(8192, 512);
        assert_eq!(progress.advance(4096), TransferOutcome::Resubmit);
        assert_eq!(progress.advance(0), TransferOutcome::Failed(TransferFailure::Short));
        let error = progress.error(TransferFailure::Short, "f", 4096);
        assert!(matches!(error, IoError::Short { done: 4096, expected: 8192, .. }));
    }

    /// Through FUSE a file kept its old length for a while, beside the process that wrote it.
    #[test]
    fn a_read_goes_on_below_the_end_of_its_file() {
        let mut progress = read(8192, 512);
        assert_eq!(progress.advance(4096), TransferOutcome::Resubmit);
        let short = TransferOutcome::Failed(TransferFailure::Short);
        assert_eq!(progress.advance(0), short);
        assert_eq!(progress.ended_short(4096), short, "the end");
        for _ in 0..RETRIES {
            assert_eq!(progress.ended_short(4097), TransferOutcome::Resubmit);
            assert_eq!(progress.span(), (4096, 4096));
        }
        assert_eq!(progress.ended_short(4097), short, "not for ever");
        let mut write = TransferProgress::new(RequestKind::Write, 8192, 512);
        assert_eq!(write.ended_short(8192), short);
    }

    #[test]
    fn direct_read_that_ends_inside_a_sector_is_tried_from_the_sector_and_then_short() {
        // A file of 5000 bytes: the second attempt starts at 4608, an offset that O_DIRECT
        // accepts, and finds the same end.
        let mut progress = read(8192, 512);
        assert_eq!(progress.advance(5000), TransferOutcome::Resubmit);
        assert_eq!(progress.span(), (4608, 3584));
        assert_eq!(progress.advance(392), TransferOutcome::Failed(TransferFailure::Short));
        let error = progress.error(TransferFailure::Short, "f", 0);
        assert!(matches!(error, IoError::Short { done: 5000, expected: 8192, .. }));
    }

    #[test]
    fn interruptions_are_repeated_sixteen_times_in_all() {
        for transfer in [RequestKind::Read, RequestKind::Write] {
            let mut progress = TransferProgress::new(transfer, 8192, 512);
            for attempt in 0..RETRIES {
                let code = if attempt % 2 == 0 { libc::EINTR } else { libc::EAGAIN };
                assert_eq!(progress.advance(-code), TransferOutcome::Resubmit);
            }
            assert_eq!(progress.advance(512), TransferOutcome::Resubmit, "progress needs no retry");
            let last = progress.advance(-libc::EINTR);
            assert_eq!(last, TransferOutcome::Failed(TransferFailure::Code(libc::EINTR)));
        }
    }

    #[test]
    fn sync_is_never_repeated() {
        for code in [libc::EINTR, libc::EAGAIN, libc::EIO, libc::ENOSPC] {
            let mut progress = TransferProgress::new(RequestKind::Sync, 0, 512);
            assert_eq!(
                progress.advance(-code),
                TransferOutcome::Failed(TransferFailure::Code(code))
            );
        }
        assert_eq!(
            TransferProgress::new(RequestKind::Sync, 0, 512).advance(0),
            TransferOutcome::Done
        );
    }

    #[test]
    fn other_errors_are_final_and_keep_their_kind() {
        use std::io::ErrorKind;
        for (code, kind) in [
            (libc::ENOSPC, ErrorKind::StorageFull),
            (libc::EDQUOT, ErrorKind::QuotaExceeded),
            (libc::EFBIG, ErrorKind::FileTooLarge),
        ] {
            let mut progress = TransferProgress::new(RequestKind::Write, 8192, 512);
            assert_eq!(progress.advance(4096), TransferOutcome::Resubmit);
            assert_eq!(
                progress.advance(-code),
                TransferOutcome::Failed(TransferFailure::Code(code))
            );
            let error = progress.error(TransferFailure::Code(code), "f", 8192);
            let IoError::Os { offset, kind: found, .. } = error else { panic!("{error}") };
            assert_eq!((offset, found), (12288, kind));
        }
    }

    #[test]
    fn hostile_results_never_panic() {
        for result in [i32::MIN, i32::MAX, 8193, -1] {
            let mut progress = read(8192, 1);
            assert!(matches!(progress.advance(result), TransferOutcome::Failed(_)));
        }
    }

    #[test]
    fn transfers_beyond_a_gibibyte_are_cut() {
        let mut progress = read((1 << 30) + 4096, 512);
        assert_eq!(progress.span(), (0, 1 << 30));
        assert_eq!(progress.advance(1 << 30), TransferOutcome::Resubmit);
        assert_eq!(progress.span(), (1 << 30, 4096));
    }

    #[test]
    fn ranges_outside_the_address_space_of_files_are_refused() {
        let pages = |transfer, offset, len| check_range("f", transfer, offset, len, PAGE);
        assert!(pages(RequestKind::Read, 4096, 4096).is_ok());
        assert!(pages(RequestKind::Read, 512, 4096).is_err());
        assert!(pages(RequestKind::Write, 4096, 512).is_err());
        assert!(pages(RequestKind::Write, u64::MAX - 4095, 4096).is_err());
        assert!(pages(RequestKind::Write, 1 << 63, 4096).is_err());
        assert!(pages(RequestKind::Sync, 1, 0).is_ok());
        assert!(check_range("f", RequestKind::Write, 513, 7, 1).is_ok());
        assert!(check_range("f", RequestKind::Write, u64::MAX - 3, 7, 1).is_err());
    }
}
