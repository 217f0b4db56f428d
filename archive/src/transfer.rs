//! Objects as streams of bytes: written in parts, several at a time; read in ranges, one ahead.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use object_store::MultipartUpload;

use crate::error::{ArchiveError, Result};
use crate::place::{Archive, failed};
use crate::tasks::StartedTask;

/// Parts of an upload in flight.
const IN_FLIGHT: usize = 2;

/// Bytes of the first range that is read.
const FIRST: u64 = 256 << 10;
/// Bytes of the first range where only the head, which is mostly shorter, is read.
const HEAD: u64 = 16 << 10;
/// Bytes of further ranges.
const RANGE: u64 = 4 << 20;

/// The progress of an object's transfer.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Transfer<'a> {
    /// Name of the object.
    pub object: &'a str,
    /// True once the object is written.
    pub written: bool,
    /// Bytes transferred.
    pub bytes: u64,
    /// All bytes of the object, where that is known.
    pub of: Option<u64>,
}

/// Called with the progress of a transfer.
pub type Progress = Arc<dyn Fn(Transfer<'_>) + Send + Sync>;

/// Why a transfer failed: the engine's streams keep only its text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failure(Arc<Mutex<Option<ArchiveError>>>);

impl Failure {
    fn keep(&self, error: ArchiveError) -> io::Error {
        let told = io::Error::other(error.to_string());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        told
    }

    /// The reason of the failure, or else this error.
    pub(crate) fn or(&self, error: impl Into<ArchiveError>) -> ArchiveError {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        kept.unwrap_or_else(|| error.into())
    }
}

/// An object being written. It gets its name by [`Upload::finish`].
pub(crate) struct Upload<'a> {
    archive: &'a Archive,
    name: String,
    parts: Box<dyn MultipartUpload>,
    part: usize,
    buffer: Vec<u8>,
    in_flight: VecDeque<StartedTask<object_store::Result<()>>>,
    bytes: u64,
    progress: Option<Progress>,
    failure: Failure,
}

impl<'a> Upload<'a> {
    /// Begins to write an object, in parts of this many bytes.
    pub(crate) fn new(
        archive: &'a Archive,
        name: String,
        part: usize,
        progress: Option<Progress>,
    ) -> Result<Self> {
        let parts = archive.begin(&name)?;
        let (buffer, in_flight) = (Vec::with_capacity(part), VecDeque::new());
        let failure = Failure::default();
        Ok(Self { archive, name, parts, part, buffer, in_flight, bytes: 0, progress, failure })
    }

    /// The slot for the reason of a failure.
    pub(crate) fn failure(&self) -> Failure {
        self.failure.clone()
    }

    /// Sends the last part; the object exists when this returns.
    pub(crate) fn finish(mut self) -> Result<()> {
        let sent = self.send().and_then(|()| self.wait(0));
        if let Err(error) = sent {
            self.abort();
            return Err(error);
        }
        let Self { archive, name, mut parts, .. } = self;
        let complete = async move {
            let completed = parts.complete().await.map(drop);
            if completed.is_err() {
                // The uploaded parts are useless; the first error is returned.
                let _ = parts.abort().await;
            }
            completed
        };
        archive.start(complete).wait()?.map_err(failed(&name))
    }

    /// Aborts the upload. A store that refuses keeps the parts until its own rules remove them.
    pub(crate) fn abort(mut self) {
        // Parts in flight are waited for, whether they fail or not.
        while self.wait(0).is_err() {}
        let Self { archive, mut parts, .. } = self;
        let _ = archive.start(async move { parts.abort().await }).wait();
    }

    /// Sends the collected bytes.
    fn send(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.wait(IN_FLIGHT - 1)?;
        let part = std::mem::replace(&mut self.buffer, Vec::with_capacity(self.part));
        self.bytes += part.len() as u64;
        self.in_flight.push_back(self.archive.start(self.parts.put_part(part.into())));
        if let Some(progress) = &self.progress {
            progress(Transfer { object: &self.name, written: true, bytes: self.bytes, of: None });
        }
        Ok(())
    }

    /// Waits until at most so many parts are in flight.
    fn wait(&mut self, most: usize) -> Result<()> {
        while self.in_flight.len() > most {
            let Some(oldest) = self.in_flight.pop_front() else { break };
            oldest.wait()?.map_err(failed(&self.name))?;
        }
        Ok(())
    }
}

impl Write for Upload<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.part - self.buffer.len();
        let taken = room.min(bytes.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() == self.part {
            self.send().map_err(|error| self.failure.keep(error))?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An object being read.
pub(crate) struct Download {
    archive: Archive,
    name: String,
    size: u64,
    /// Bytes of ranges requested and taken, and the next range.
    asked: u64,
    taken: u64,
    next: Option<StartedTask<object_store::Result<Vec<u8>>>>,
    /// The present range, and how much of it was read.
    range: Vec<u8>,
    at: usize,
    progress: Option<Progress>,
    failure: Failure,
}

impl Download {
    /// An object of a size, as it was listed.
    pub(crate) fn new(
        archive: &Archive,
        name: String,
        size: u64,
        progress: Option<Progress>,
    ) -> Self {
        let (archive, range, failure) = (archive.clone(), Vec::new(), Failure::default());
        Self {
            archive,
            name,
            size,
            asked: 0,
            taken: 0,
            next: None,
            range,
            at: 0,
            progress,
            failure,
        }
    }

    /// The same for an object of which only the head will be read; its read has begun when this returns.
    pub(crate) fn of_head(archive: &Archive, name: String, size: u64) -> Self {
        let mut download = Self::new(archive, name, size, None);
        download.next = download.ask(HEAD);
        download
    }

    /// The slot for the reason of a failure.
    pub(crate) fn failure(&self) -> Failure {
        self.failure.clone()
    }

    /// Starts to read a range, unless all were requested.
    fn ask(&mut self, bytes: u64) -> Option<StartedTask<object_store::Result<Vec<u8>>>> {
        let from = self.asked;
        self.asked = (from + bytes).min(self.size);
        (from < self.asked).then(|| self.archive.read(&self.name, from..self.asked))
    }

    /// Takes the next range, and requests the one after it.
    fn advance(&mut self) -> Result<bool> {
        let is_first = self.taken == 0;
        let next = self.next.take().or_else(|| self.ask(FIRST));
        let Some(next) = next else { return Ok(false) };
        self.range = next.wait()?.map_err(failed(&self.name))?;
        (self.at, self.taken) = (0, self.taken + self.range.len() as u64);
        if !is_first {
            self.next = self.ask(RANGE);
        }
        if let Some(progress) = &self.progress {
            let (bytes, of) = (self.taken, Some(self.size));
            progress(Transfer { object: &self.name, written: false, bytes, of });
        }
        Ok(true)
    }
}

impl Read for Download {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while self.at == self.range.len() {
            if !self.advance().map_err(|error| self.failure.keep(error))? {
                return Ok(0);
            }
        }
        let given = buffer.len().min(self.range.len() - self.at);
        buffer[..given].copy_from_slice(&self.range[self.at..self.at + given]);
        self.at += given;
        Ok(given)
    }
}
