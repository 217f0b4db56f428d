use std::error::Error as _;
use std::io::ErrorKind;
use std::path::Path;

use pleach_core::page::PageError;
use pleach_io::Operation;
use pleach_journal::format::superblock::SlotError;
use pleach_journal::log::error::BadSegment;

use super::*;

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

/// A program whose `main` returns an error printed the structure of its variants, and no word of what helps.
#[test]
fn what_main_prints_is_the_text() {
    let (missing, eio) = (Error::Missing { folder: "state".to_owned() }, Error::Io(eio()));
    for error in [missing, eio] {
        assert_eq!(format!("{error:?}"), error.to_string());
        assert_eq!(format!("{:?}", Err::<(), _>(error.clone())), format!("Err({error})"));
    }
    let option = crate::Options::new("a").set("history=x").expect_err("no number");
    assert_eq!(format!("{option:?}"), option.to_string());
}

/// All errors that wrap a device's error.
fn around(error: &IoError) -> Vec<Error> {
    let io = || error.clone();
    let mut all = vec![
        Error::Io(io()),
        Error::Log(LogError::Io(io())),
        Error::Superblock(SuperblockError::Io(io())),
        Error::Creation(CreationError::Io(io())),
        Error::Incarnation(IncarnationError::Io(io())),
        Error::Scan(ScanError::Io(io())),
        TreeError::Io(io()).into(),
        TreeError::Full(io()).into(),
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
            [error.to_poisoned(), error.to_in_doubt(), Error::Quarantined { pages: 1, first }]
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
        assert!(error.to_string().contains("Write of leaf at byte 8192"), "{error}");
        assert_eq!(error.is_full(), matches!(error, Error::Full(_)), "{error:?}");
    }
    for error in around(&enospc()) {
        assert!(error.is_full(), "{error:?}");
        let again = error.advice() == Advice::FreeSpace;
        assert_eq!(again, !error.is_poisoned(), "{error:?}");
    }
    // A write of the background may have found it first, and have poisoned the database.
    for error in around(&IoError::FolderRemoved { folder: "db".into() }) {
        assert_eq!(error.advice(), Advice::Restore, "{error:?}");
    }
    for error in [Error::WouldWait, Error::Closed, Error::Poisoned(PoisonCause::Panic)] {
        assert!(error.device().is_none() && !error.is_full(), "{error:?}");
    }
    let reserve = NoRoom::Reserve { free: 1, reserve: 2, wanted: 3 };
    assert!(Error::Full(reserve).is_full());
}

/// Each advice, an error that gives it, and the instruction in its text.
#[test]
fn advice_and_text_say_the_same() {
    let full = || Error::Full(NoRoom::PendingChanges);
    let error = PageError::Checksum { stored: 1, computed: 2 };
    let bad = Error::Page { file: "leaf", page: 7, error };
    let set_aside = |first: &Error| Error::Quarantined { pages: 1, first: Box::new(first.clone()) };
    let newer = SuperblockError::NewerVersion { found: 9 };
    let (first, second) = (SlotError::Blank, SlotError::Checksum);
    let segment = BadSegment { index: 0, found: None, expected: 1 };
    let cases = [
        (Error::Io(eio()), Advice::Retry, "Write of leaf"),
        (set_aside(&Error::Io(eio())), Advice::Retry, "`pleach check` lists them"),
        (full(), Advice::FreeSpace, "free some space and try again"),
        (Error::StaleParent { base: 1, tip: 2 }, Advice::MakeAgain, "make it again on the newest"),
        (Error::InUse(Holder::Session), Advice::CloseOthers, "a session is open: close it"),
        (Error::InUse(Holder::Load), Advice::CloseOthers, "try again when it has ended"),
        (Error::InUse(Holder::Backup), Advice::CloseOthers, "a backup is under way"),
        (
            Error::Io(IoError::Locked {
                folder: "a".to_owned(),
                holder: pleach_io::LockHolder::Process(1),
            }),
            Advice::CloseOthers,
            "in use by process 1",
        ),
        (Error::RepeatedKey([0; 32]), Advice::FixCall, "merge its accesses into one"),
        (
            Error::Missing { folder: "a".to_owned() },
            Advice::FixCall,
            "there is no database in a: create one (option `create`)",
        ),
        (Error::BatchTooLarge { bytes: 2, limit: 1 }, Advice::FixCall, "commit it in parts"),
        (Error::ForeignOverlay, Advice::FixCall, "use overlays of this one"),
        (Error::Closed, Advice::Reopen, "open it again"),
        (Error::FlushNumbers, Advice::Reopen, "close it and open it again"),
        (full().to_poisoned(), Advice::Reopen, "close it and open it again"),
        (full().to_in_doubt(), Advice::Reopen, "open it again and look"),
        (newer.into(), Advice::OtherVersion, "its format is 9"),
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
    let later = first.to_poisoned();
    for error in [later.to_poisoned(), later.to_in_doubt(), later.to_in_doubt().to_poisoned()] {
        let text = error.to_string();
        assert_eq!(text.matches("the system's text").count(), 1, "{text}");
        assert_eq!(text.matches("refuses writes").count(), 1, "{text}");
        assert!(error.is_poisoned());
    }
}

/// With `{:#}` of `anyhow`, and every reporter that prints the causes, an I/O error came three times: in the text of
/// the error that it caused, and as its source.
#[test]
fn no_text_of_a_cause_comes_twice() {
    let mut all = around(&eio());
    let cause = || Box::new(Error::Io(eio()));
    all.extend([
        Error::HistoryLost { commit: 1, oldest: 2, newest: 3, cause: cause() },
        Error::HistoryShort { wanted: 1, oldest: 2, newest: 3, cause: Some(cause()) },
        Contradiction::OverflowMap(SpaceError::AlreadyUsed { page: 7 }).into(),
        SpaceError::AlreadyUsed { page: 7 }.into(),
        Contradiction::Proof(pleach_core::proof::BuildError::Decode(
            pleach_core::proof::DecodeError::Truncated,
        ))
        .into(),
        Error::Options(InvalidOption::Period),
    ]);
    for error in all {
        let mut texts = vec![error.to_string()];
        let mut cause = error.source();
        while let Some(error) = cause {
            texts.push(error.to_string());
            cause = error.source();
        }
        for (at, text) in texts.iter().enumerate() {
            assert!(!texts[..at].iter().any(|caused| caused.contains(text)), "{texts:?}");
        }
    }
}

/// Calls `each` with the attribute and the variant or type of each `#[error(...)]` in this package and its neighbours.
fn each_text(each: &mut dyn FnMut(&str, &str)) {
    fn walk(folder: &Path, each: &mut dyn FnMut(&str, &str)) {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, each);
            } else if path.extension().is_some_and(|ext| ext == "rs") && !path.ends_with("tests.rs")
            {
                let text = std::fs::read_to_string(&path).expect("text");
                for part in text.split("#[error(").skip(1) {
                    // An attribute ends a line, and so does what it is of.
                    let (attribute, of) = part.split_once(")]\n").unwrap_or((part, ""));
                    let end = of.find("\n    },\n").or_else(|| of.find(",\n")).unwrap_or(of.len());
                    each(attribute, &of[..end]);
                }
            }
        }
    }
    let engine = Path::new(env!("CARGO_MANIFEST_DIR"));
    for package in [
        "src",
        "../io/src",
        "../core/src",
        "../beatree/src",
        "../ops/src",
        "../archive/src",
        "../history/src",
    ] {
        let folder = engine.join(package);
        if folder.is_dir() {
            walk(&folder, each);
        }
    }
}

/// Texts reach programs in other languages and the command line: C was told to call `Db::add_namespace`, and to give
/// `Options::accept_root`, which it cannot.
#[test]
fn texts_name_no_rust() {
    let mut texts = 0;
    each_text(&mut |attribute, of| {
        let literal = attribute.split('"').skip(1).step_by(2).collect::<String>();
        texts += usize::from(!literal.is_empty());
        for rust in ["::", "Options", "Geometry"] {
            assert!(!literal.contains(rust), "{literal}");
        }
        let has_source =
            of.contains("#[from]") || of.contains("#[source]") || of.contains(" source:");
        assert!(
            !has_source || attribute == "transparent",
            "the cause is in the text and a source: {of}"
        );
    });
    assert!(texts > 150, "{texts}");
    for advice in [
        Advice::Retry,
        Advice::FreeSpace,
        Advice::RaiseLimit,
        Advice::MakeAgain,
        Advice::CloseOthers,
        Advice::FixCall,
        Advice::Reopen,
        Advice::OpenHere,
        Advice::OtherVersion,
        Advice::Restore,
    ] {
        let text = advice.to_string();
        assert!(!text.contains("::") && !text.contains("Options"), "{text}");
    }
    let all = [Holder::Load, Holder::Session, Holder::Block, Holder::Overlay, Holder::Backup];
    let texts = all.map(|holder| Error::InUse(holder).to_string());
    let short = Error::HistoryShort { wanted: 1, oldest: 2, newest: 3, cause: None }.to_string();
    for text in texts.iter().chain([&short]) {
        assert!(!text.contains("::") && !text.contains("Options"), "{text}");
    }
}
