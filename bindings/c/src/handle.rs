//! Handles, results and arrays: the only code that believes what C says of a pointer. Pointers to one thing are
//! references in the signatures, `None` for NULL.

use std::any::TypeId;
use std::ffi::{CStr, OsStr, c_char};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{PoisonError, RwLock};
use std::{ptr, slice};

use pleach::Key;

use crate::error::{self, Failed, Fallible, PleachError, guard};

/// A place for a result.
pub type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// What a pointer of C's points to. All kinds have the same size and layout, and begin with what tells them apart: other
/// languages know nothing but the pointer, and may give one of another kind.
#[repr(C)]
pub struct Handle<T: 'static> {
    kind: TypeId,
    /// Empty when it is spent. The lock lets a finish or commit take it while other threads may still try to read.
    content: Box<RwLock<Option<T>>>,
}

impl<T> Handle<T> {
    pub(crate) fn new(content: T) -> Self {
        Self { kind: TypeId::of::<T>(), content: Box::new(RwLock::new(Some(content))) }
    }

    /// Drops what C has given back; one of another kind stays as it is.
    pub(crate) fn free(handle: Option<Box<Self>>) {
        match handle.map(|handle| (handle.check().is_ok(), handle)) {
            Some((false, other)) => std::mem::forget(other),
            own => error::free(own),
        }
    }

    /// Looks at nothing but the kind.
    fn check(&self) -> Fallible<&RwLock<Option<T>>> {
        if self.kind == TypeId::of::<T>() {
            return Ok(&self.content);
        }
        Err(PleachError::argument("a handle is of another kind than the call wants, or was freed"))
    }

    /// Uses the content, beside other threads that do.
    pub(crate) fn read<R>(&self, body: impl FnOnce(&T) -> Fallible<R>) -> Fallible<R> {
        // A panic of another thread left the content whole, or took it.
        let content = self.check()?.read().unwrap_or_else(PoisonError::into_inner);
        body(content.as_ref().ok_or_else(PleachError::spent)?)
    }

    /// Changes the content.
    pub(crate) fn change<R>(&self, body: impl FnOnce(&mut T) -> Fallible<R>) -> Fallible<R> {
        let mut content = self.check()?.write().unwrap_or_else(PoisonError::into_inner);
        body(content.as_mut().ok_or_else(PleachError::spent)?)
    }

    /// Takes the content; a body that fails gives it back.
    pub(crate) fn spend<R>(
        &self,
        body: impl FnOnce(T) -> Result<R, Box<(T, PleachError)>>,
    ) -> Fallible<R> {
        let mut content = self.check()?.write().unwrap_or_else(PoisonError::into_inner);
        body(content.take().ok_or_else(PleachError::spent)?).map_err(|failed| {
            let (back, error) = *failed;
            *content = Some(back);
            error
        })
    }
}

impl<T> Drop for Handle<T> {
    /// No kind is left, as far as the allocator lets the memory be: a handle that is used or freed again is mostly noticed.
    fn drop(&mut self) {
        // SAFETY: it is a field of ours. A plain write would be left out, for nobody reads it any more.
        unsafe { ptr::write_volatile(&raw mut self.kind, TypeId::of::<()>()) };
    }
}

/// What a pointer points to that must not be NULL.
pub(crate) fn given<T>(pointer: Option<T>, name: &str) -> Fallible<T> {
    pointer.ok_or_else(|| PleachError::argument(&format!("`{name}` is NULL")))
}

/// Writes what a call on a handle gives. The place for it is looked at first, so that nothing is done in vain.
pub(crate) fn ask<T, R>(
    handle: Fallible<&Handle<T>>,
    out: Fallible<&mut MaybeUninit<R>>,
    body: impl FnOnce(&T) -> Fallible<R>,
) -> Failed {
    guard(|| {
        let out = out?;
        out.write(handle?.read(body)?);
        Ok(())
    })
}

/// Bytes of the caller. No bytes may be at NULL.
///
/// # Safety
/// `data` is NULL, or `len` bytes are there, which nobody writes as long as the slice lives.
pub(crate) unsafe fn bytes<'a>(data: *const u8, len: usize, name: &str) -> Fallible<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    check(data.is_null(), Some(len), name)?;
    // SAFETY: the caller's duty; it is not NULL, and the length was checked.
    Ok(unsafe { slice::from_raw_parts(data, len) })
}

/// The beginning of keys.
///
/// # Safety
/// As of [`bytes`].
pub(crate) unsafe fn prefix<'a>(data: *const u8, len: usize) -> Fallible<&'a [u8]> {
    if len > 32 {
        return Err(PleachError::argument("`prefix` is longer than a key: 32 bytes"));
    }
    // SAFETY: the caller's duty.
    unsafe { bytes(data, len, "prefix") }
}

/// Keys of the caller, one after the other.
///
/// # Safety
/// `data` is NULL, or `count` keys are there, which nobody writes as long as the slice lives.
pub(crate) unsafe fn keys<'a>(data: *const u8, count: usize, name: &str) -> Fallible<&'a [Key]> {
    let len = count.checked_mul(32);
    check(false, len, name)?;
    // SAFETY: the caller's duty.
    Ok(unsafe { bytes(data, len.unwrap_or_default(), name) }?.as_chunks().0)
}

/// Values of the caller, one after the other, by their lengths.
///
/// # Safety
/// As of [`keys`]; at `values` are as many bytes as all lengths together.
pub(crate) unsafe fn values<'a>(
    values: *const u8,
    lengths: *const usize,
    count: usize,
) -> Fallible<impl Iterator<Item = &'a [u8]>> {
    check(lengths.is_null() && count > 0, count.checked_mul(size_of::<usize>()), "lengths")?;
    let lengths = match count {
        0 => &[],
        // SAFETY: the caller's duty; it is not NULL, and the length was checked.
        _ => unsafe { slice::from_raw_parts(lengths, count) },
    };
    let all = lengths.iter().try_fold(0_usize, |sum, length| sum.checked_add(*length));
    check(false, all, "values")?;
    // SAFETY: the caller's duty.
    let mut rest = unsafe { bytes(values, all.unwrap_or_default(), "values") }?;
    Ok(lengths.iter().map(move |length| {
        let (value, behind) = rest.split_at(*length);
        rest = behind;
        value
    }))
}

/// Places for results, one after the other.
///
/// # Safety
/// `data` is NULL, or there is room for `count` of them, which nobody else uses as long as the slice lives.
pub(crate) unsafe fn places<'a, T>(
    data: *mut T,
    count: usize,
    name: &str,
) -> Fallible<&'a mut [MaybeUninit<T>]> {
    if count == 0 {
        return Ok(&mut []);
    }
    check(data.is_null(), count.checked_mul(size_of::<T>()), name)?;
    // SAFETY: the caller's duty; it is not NULL, and the length was checked.
    Ok(unsafe { slice::from_raw_parts_mut(data.cast(), count) })
}

fn check(null: bool, len: Option<usize>, name: &str) -> Fallible<()> {
    if null {
        return given(None, name);
    }
    if len.is_none_or(|len| isize::try_from(len).is_err()) {
        return Err(PleachError::argument(&format!("`{name}` is longer than memory can be")));
    }
    Ok(())
}

/// Text of the caller.
///
/// # Safety
/// `text` is NULL, or ends with a NUL; nobody writes it as long as the text is used.
unsafe fn c_str<'a>(text: *const c_char, name: &str) -> Fallible<&'a CStr> {
    check(text.is_null(), Some(0), name)?;
    // SAFETY: the caller's duty; it is not NULL.
    Ok(unsafe { CStr::from_ptr(text) })
}

/// Text of the caller, in UTF-8.
///
/// # Safety
/// As of [`c_str`].
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Fallible<&'a str> {
    // SAFETY: the caller's duty.
    let text = unsafe { c_str(text, name) }?;
    text.to_str().map_err(|_| PleachError::argument(&format!("`{name}` is not UTF-8")))
}

/// A path of the caller, any bytes.
///
/// # Safety
/// As of [`c_str`].
pub(crate) unsafe fn path<'a>(text: *const c_char, name: &str) -> Fallible<&'a Path> {
    // SAFETY: the caller's duty.
    let text = unsafe { c_str(text, name) }?;
    Ok(Path::new(OsStr::from_bytes(text.to_bytes())))
}
