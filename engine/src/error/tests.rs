use std::error::Error as _;
use std::io::ErrorKind;

use pleach_core::page::PageError;
use pleach_io::Operation;

use super::*;
use crate::format::superblock::SlotError;
use crate::log::error::BadSegment;

fn io(kind: ErrorKind, code: i32) -> IoError {
    IoError::Os {
        file: "leaf".to_owned(),
        offset: 8192,
        operation: Operation::Write,
        code,
        kind,
        message: "the system's text".to_owned(),
    }
}

fn eio() -> IoError {
    io(ErrorKind::Other, 5)
}

fn enospc() -> IoError {
    io(ErrorKind::StorageFull, 28)
}

/// Everything that a device's error may come in.
fn around(error: &IoError) -> Vec<Error> {
    let io = || error.clone();
    let mut all = vec![
        Error::Io(io()),
        Error::Log(LogError::Io(io())),
        Error::Log(LogError::Full(io())),
        Error::Superblock(SuperblockError::Io(io())),
        Error::Creation(CreationError::Io(io())),
        Error::Incarnation(IncarnationError::Io(io())),
        Error::Scan(ScanError::Io(io())),
        ImageError::Io(io()).into(),
        ImageError::Full(io()).into(),
        NoRoom::LeafPages(io()).into(),
        NoRoom::OverflowPages(io()).into(),
        NoRoom::LogSegment(io()).into(),
        NoRoom::Image(io()).into(),
        NoRoom::Load(io()).into(),
        NoRoom::Open(io()).into(),
    ];
    let wrapped: Vec<_> = all
        .iter()
        .flat_map(|error| {
            let first = Box::new(error.clone());
            [error.poisoning(), error.in_doubt(), Error::Quarantined { pages: 1, first }]
        })
        .collect();
    all.extend(wrapped);
    all
}

#[test]
fn the_devices_error_is_found_through_whatever_is_around_it() {
    for error in around(&eio()) {
        let found = error.device().unwrap_or_else(|| panic!("{error:?}"));
        assert_eq!((found.file(), found.offset()), (Some("leaf"), Some(8192)), "{error:?}");
        assert_eq!((found.operation(), found.code()), (Operation::Write, Some(5)), "{error:?}");
        assert!(error.source().is_some(), "{error:?}");
        assert!(error.to_string().contains("Write of leaf at byte 8192"), "{error}");
        assert_eq!(error.is_full(), matches!(error, Error::Full(_)), "{error:?}");
    }
    for error in around(&enospc()) {
        assert!(error.is_full(), "{error:?}");
        let again = error.advice() == Advice::FreeSpace;
        assert_eq!(again, !error.is_poisoned(), "{error:?}");
    }
    for error in [Error::Missing, Error::Closed, Error::Poisoned(PoisonCause::Panic)] {
        assert!(error.device().is_none() && !error.is_full(), "{error:?}");
    }
    let reserve = NoRoom::Reserve { free: 1, reserve: 2, wanted: 3 };
    assert!(Error::Full(reserve).is_full());
}

/// Each advice, an error that gives it, and what its text tells the reader to do.
#[test]
fn advice_and_text_say_the_same() {
    let full = || Error::Full(NoRoom::PendingChanges);
    let error = PageError::Checksum { stored: 1, computed: 2 };
    let bad = Error::Page { file: "leaf", page: 7, error };
    let set_aside = |first: &Error| Error::Quarantined { pages: 1, first: Box::new(first.clone()) };
    let newer = SuperblockError::NewerVersion { found: 9 };
    let (first, second) = (SlotError::Blank, SlotError::Checksum);
    let segment = BadSegment { index: 0, found: None, expected: 1 };
    let leave = Contradiction::NodesLeave { key: [0; 32] };
    let cases = [
        (Error::Io(eio()), Advice::Retry, "Write of leaf"),
        (set_aside(&Error::Io(eio())), Advice::Retry, "`Db::quarantined` lists them"),
        (leave.into(), Advice::Retry, "were evicted each time"),
        (full(), Advice::FreeSpace, "free some space and try again"),
        (Error::StaleParent { base: 1, tip: 2 }, Advice::MakeAgain, "make it again on the newest"),
        (Error::InUse(Holder::Session), Advice::CloseOthers, "a session is open: drop it"),
        (Error::InUse(Holder::Load), Advice::CloseOthers, "try again when it has ended"),
        (Error::InUse(Holder::Backup), Advice::CloseOthers, "a backup is under way"),
        (
            Error::Io(IoError::Locked(pleach_io::LockHolder::Process(1))),
            Advice::CloseOthers,
            "in use by process 1",
        ),
        (Error::RepeatedKey([0; 32]), Advice::FixCall, "merge its accesses into one"),
        (Error::Missing, Advice::FixCall, "create one with `Options::create`"),
        (Error::BatchTooLarge { bytes: 2, limit: 1 }, Advice::FixCall, "commit it in parts"),
        (Error::ForeignOverlay, Advice::FixCall, "use overlays of this one"),
        (Error::Closed, Advice::Reopen, "open it again"),
        (Error::FlushNumbers, Advice::Reopen, "close it and open it again"),
        (full().poisoning(), Advice::Reopen, "close it and open it again"),
        (full().in_doubt(), Advice::Reopen, "open it again and look"),
        (newer.into(), Advice::OtherVersion, "format version 9"),
        (
            SuperblockError::Damaged { first, second }.into(),
            Advice::Restore,
            "no usable superblock",
        ),
        (Error::Scan(segment.into()), Advice::Restore, "put the file back"),
        (set_aside(&bad), Advice::Restore, "page 7 of leaf"),
        (bad, Advice::Restore, "page 7 of leaf"),
    ];
    for (error, advice, text) in cases {
        assert_eq!(error.advice(), advice, "{error:?}");
        assert!(error.to_string().contains(text), "{error}");
        assert!(!advice.to_string().contains('\n') && advice.to_string().len() > 20);
        let expected = match &error {
            Error::InDoubt(_) => Outcome::Unknown,
            _ => Outcome::DidNotHappen,
        };
        assert_eq!(error.outcome(), expected, "{error:?}");
    }
}

#[test]
fn what_poisons_is_named_once() {
    let first = Error::Io(eio());
    let later = first.poisoning();
    for error in [later.poisoning(), later.in_doubt(), later.in_doubt().poisoning()] {
        let text = error.to_string();
        assert_eq!(text.matches("the system's text").count(), 1, "{text}");
        assert_eq!(text.matches("refuses writes").count(), 1, "{text}");
        assert!(error.is_poisoned());
    }
}
