//! Errors as C sees them, and the one place where panics end.

use std::any::Any;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use pleach::proof::VerifyError;
use pleach::{Advice, Error, Outcome};

/// Code of an error: the library panicked, which is a bug of it, and wrote why to standard error, too. What the call was to
/// spend may be lost. Free what is open, and open the database again.
pub const PLEACH_PANIC: u32 = 901;
/// Code of an error: a NULL pointer, a length that cannot be, text that is not UTF-8, or a handle of another kind.
pub const PLEACH_ARGUMENT: u32 = 902;
/// Code of an error: a proof or witness was refused. Nothing of what it claims is proven.
pub const PLEACH_REFUSED: u32 = 903;
/// Code of an error: the handle is spent.
pub const PLEACH_SPENT: u32 = 904;

/// Outcome of an error: the operation did not take place.
pub const PLEACH_DID_NOT_HAPPEN: u32 = 0;
/// Outcome of an error: it took place as a whole or not at all. Opening the database again tells.
pub const PLEACH_UNKNOWN: u32 = 1;

/// Advice that has no number: `advice_text` says it.
pub const PLEACH_ADVICE_OTHER: u32 = 0;
/// The call can be repeated as it is.
pub const PLEACH_RETRY: u32 = 1;
/// Free space on the device and do it again.
pub const PLEACH_FREE_SPACE: u32 = 2;
/// Raise the process's limit of threads or descriptors and do it again.
pub const PLEACH_RAISE_LIMIT: u32 = 3;
/// Begin again on a newer state: a block on the newest one, a read on one that the history has.
pub const PLEACH_MAKE_AGAIN: u32 = 4;
/// Let go of whoever holds the database.
pub const PLEACH_CLOSE_OTHERS: u32 = 5;
/// Change the call.
pub const PLEACH_FIX_CALL: u32 = 6;
/// Close the database and open it again.
pub const PLEACH_REOPEN: u32 = 7;
/// Open the database in this process, after the fork.
pub const PLEACH_OPEN_HERE: u32 = 8;
/// Open it with the version of this software that it belongs to.
pub const PLEACH_OTHER_VERSION: u32 = 9;
/// Something is damaged or missing: see `pleach check` and `pleach repair`.
pub const PLEACH_RESTORE: u32 = 10;

/// An error. Only the library makes one; later versions may add fields at the end.
#[repr(C)]
pub struct PleachError {
    /// Number of this kind of error: docs/errors.md lists those below 900, the others are `PLEACH_PANIC` and so on.
    pub code: u32,
    /// What became of the operation: `PLEACH_DID_NOT_HAPPEN` or `PLEACH_UNKNOWN`.
    pub outcome: u32,
    /// What to do: `PLEACH_RETRY` or one of the others.
    pub advice: u32,
    /// What happened, in UTF-8, as long as the error lives.
    pub text: *const c_char,
    /// What to do, in UTF-8, as long as the error lives.
    pub advice_text: *const c_char,
    /// What `text` and `advice_text` point into.
    owned: [CString; 2],
}

/// That of docs/errors.md for what the system refuses.
const PLEACH_IO: u32 = 101;

/// NULL, or the error that the caller owns.
pub type Failed = Option<Box<PleachError>>;
pub(crate) type Fallible<T> = Result<T, PleachError>;

impl PleachError {
    fn new(code: u32, outcome: Outcome, advice: u32, texts: [&str; 2]) -> Self {
        // A NUL would end the text for C.
        let owned = texts.map(|text| CString::new(text.replace('\0', " ")).unwrap_or_default());
        let outcome = match outcome {
            Outcome::DidNotHappen => PLEACH_DID_NOT_HAPPEN,
            Outcome::Unknown => PLEACH_UNKNOWN,
        };
        let (text, advice_text) = (ptr::null(), ptr::null());
        Self { code, outcome, advice, text, advice_text, owned }
    }

    pub(crate) fn argument(text: &str) -> Self {
        Self::call(PLEACH_ARGUMENT, text)
    }

    pub(crate) fn spent() -> Self {
        let text = "the handle is spent: its session or load was finished, or its block committed or made an overlay";
        Self::call(PLEACH_SPENT, text)
    }

    /// A call that would fail again.
    fn call(code: u32, text: &str) -> Self {
        let advice = Advice::FixCall;
        Self::new(code, Outcome::DidNotHappen, number(advice), [text, &advice.to_string()])
    }

    pub(crate) fn no_thread(error: &std::io::Error) -> Self {
        let advice = Advice::RaiseLimit;
        Self::new(
            PLEACH_IO,
            Outcome::DidNotHappen,
            number(advice),
            [&format!("no thread can be made: {error}"), &advice.to_string()],
        )
    }

    fn panic(panic: Box<dyn Any + Send>) -> Self {
        let said = match panic.downcast::<String>() {
            Ok(said) => *said,
            Err(panic) => {
                let said =
                    panic.downcast_ref::<&str>().map_or("without a text", |said| *said).to_owned();
                // Its drop could panic again.
                std::mem::forget(panic);
                said
            }
        };
        let advice = Advice::Reopen;
        Self::new(
            PLEACH_PANIC,
            Outcome::Unknown,
            number(advice),
            [&format!("the library panicked: {said}"), &advice.to_string()],
        )
    }
}

impl From<Error> for PleachError {
    fn from(error: Error) -> Self {
        let advice = error.advice();
        Self::new(
            error.code().into(),
            error.outcome(),
            number(advice),
            [&error.to_string(), &advice.to_string()],
        )
    }
}

impl From<VerifyError> for PleachError {
    fn from(error: VerifyError) -> Self {
        let advice = "believe nothing of it; ask another source, and check root, range and hasher";
        Self::new(
            PLEACH_REFUSED,
            Outcome::DidNotHappen,
            PLEACH_ADVICE_OTHER,
            [&error.to_string(), advice],
        )
    }
}

fn number(advice: Advice) -> u32 {
    match advice {
        Advice::Retry => PLEACH_RETRY,
        Advice::FreeSpace => PLEACH_FREE_SPACE,
        Advice::RaiseLimit => PLEACH_RAISE_LIMIT,
        Advice::MakeAgain => PLEACH_MAKE_AGAIN,
        Advice::CloseOthers => PLEACH_CLOSE_OTHERS,
        Advice::FixCall => PLEACH_FIX_CALL,
        Advice::Reopen => PLEACH_REOPEN,
        Advice::OpenHere => PLEACH_OPEN_HERE,
        Advice::OtherVersion => PLEACH_OTHER_VERSION,
        Advice::Restore => PLEACH_RESTORE,
        _ => PLEACH_ADVICE_OTHER,
    }
}

/// Runs the body of an exported function. No panic leaves the library.
pub(crate) fn guard(body: impl FnOnce() -> Fallible<()>) -> Failed {
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return None,
        Ok(Err(error)) => error,
        Err(panic) => PleachError::panic(panic),
    };
    // Pointers to its texts, now that it is where it stays.
    let mut error = Box::new(error);
    error.text = error.owned[0].as_ptr();
    error.advice_text = error.owned[1].as_ptr();
    Some(error)
}

/// Drops what C has given back. A panic in there can be told to nobody but standard error, where Rust prints it.
pub(crate) fn free<T>(freed: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(freed))) {
        std::mem::forget(panic);
    }
}

/// Frees an error.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_error_free(error: Option<Box<PleachError>>) {
    free(error);
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    /// What a text of an error says.
    fn text(error: &Failed) -> String {
        let error = error.as_deref().expect("an error");
        // SAFETY: the pointer is to a text in the error, which lives.
        unsafe { CStr::from_ptr(error.text) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_is_an_error_of_its_own() {
        let failed = guard(|| panic!("number {}", 7));
        assert_eq!(text(&failed), "the library panicked: number 7");
        let error = failed.expect("an error");
        assert_eq!((error.code, error.outcome), (PLEACH_PANIC, PLEACH_UNKNOWN));
        assert_eq!(text(&guard(|| panic!("plain"))), "the library panicked: plain");
        let failed = guard(|| std::panic::panic_any(7));
        assert_eq!(text(&failed), "the library panicked: without a text");
    }

    #[test]
    fn an_error_keeps_code_outcome_and_advice() {
        let error: PleachError = Error::RepeatedKey([0; 32]).into();
        let facts = (error.code, error.outcome, error.advice);
        assert_eq!(facts, (406, PLEACH_DID_NOT_HAPPEN, PLEACH_FIX_CALL));
    }
}
