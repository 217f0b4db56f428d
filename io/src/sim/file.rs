//! [`SimFile`]: what an open simulated file is to its user, and what it refuses.

use std::sync::Arc;

use super::state::FileId;
use crate::device::{OpenFile, OpenMode, RequestKind};
use crate::error::{IoError, Operation, Result};
use crate::page::PAGE;

#[derive(Debug)]
struct Handle {
    name: Arc<str>,
    id: FileId,
    mode: OpenMode,
    token: Arc<()>,
}

/// Handle of an open simulated file.
#[derive(Clone, Debug)]
pub(super) struct SimFile(Arc<Handle>);

impl OpenFile for SimFile {
    fn name(&self) -> &str {
        &self.0.name
    }
}

impl SimFile {
    pub(super) fn new(name: Arc<str>, id: FileId, mode: OpenMode, token: Arc<()>) -> Self {
        Self(Arc::new(Handle { name, id, mode, token }))
    }

    pub(super) fn id(&self) -> FileId {
        self.0.id
    }

    pub(super) fn writable(&self) -> bool {
        self.0.mode != OpenMode::Read
    }

    /// True when this is a handle of the file with this token.
    pub(super) fn is(&self, token: &Arc<()>) -> bool {
        Arc::ptr_eq(&self.0.token, token)
    }

    /// Rejects what the system rejects: unaligned transfers, and writes through a read handle.
    pub(super) fn admit(&self, transfer: RequestKind, offset: u64, len: usize) -> Result<()> {
        let operation = operation_of(transfer);
        if transfer == RequestKind::Write && !self.writable() {
            return Err(refused(self.name(), offset, operation, libc::EBADF));
        }
        let fits = offset.checked_add(len as u64).is_some_and(|end| i64::try_from(end).is_ok());
        let bytes = transfer == RequestKind::Write && self.0.mode == OpenMode::WriteCached;
        let unit = if bytes { 1 } else { PAGE };
        if !offset.is_multiple_of(unit as u64) || !len.is_multiple_of(unit) || !fits {
            return Err(refused(self.name(), offset, operation, libc::EINVAL));
        }
        Ok(())
    }
}

pub(super) fn operation_of(transfer: RequestKind) -> Operation {
    match transfer {
        RequestKind::Read => Operation::Read,
        RequestKind::Write => Operation::Write,
        RequestKind::Sync => Operation::Sync,
    }
}

/// The error of `operation` with number `code`.
pub(super) fn refused(file: &str, offset: u64, operation: Operation, code: i32) -> IoError {
    let error = std::io::Error::from_raw_os_error(code);
    IoError::Os {
        file: file.to_owned(),
        offset,
        operation,
        code,
        kind: error.kind(),
        message: error.to_string(),
    }
}
