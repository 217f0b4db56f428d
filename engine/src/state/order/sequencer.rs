//! The one sequencer: it orders publications, and the log's order is that order.
//!
//! A commit takes a *ticket* under the sequencer's lock: its parent's state is that of the newest ticketed commit, its
//! record gets the next position, and both happen in microseconds. Records are written and synced outside the lock; the
//! first holder of the writer does it for all that are queued then, so commits that wait together share one sync. A
//! child may take its ticket while its parent is written and synced. Publication follows in ticket order.
//!
//! A flush has no ticket: it takes the lock when no commit is between ticket and publication, and queues its record and
//! publishes under it, so that commit and flush see each other whole. A flush or a checkpoint that finds commits in
//! flight is *awaited*: until it had its turn, no child takes its ticket before its parent is published, so that
//! commits one upon the other do not keep it waiting for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pleach_beatree::lock_order::{RankedMutex, RankedMutexGuard};
use pleach_journal::format::position::{LogPoint, LogPos};
use pleach_journal::format::record::RecordBuf;
use pleach_journal::log::{LogTail, LogWriter, Segments};

use crate::error::{Error, PoisonCause, Result};
use crate::handles::Holder;
use crate::roots::Roots;
use crate::state::lock_ranks::{SEQUENCER, SYNC, WRITER};

/// Most bytes of the log that are prepared before a commit needs them, or a segment.
const MAX_AHEAD: u64 = 32 << 20;

/// The newest commit of those that are published, or of those with a ticket.
#[derive(Clone, Debug)]
pub struct CommitState {
    pub number: u64,
    pub roots: Roots,
    pub blob: Arc<[u8]>,
}

impl CommitState {
    /// True when both have the same roots and blob, whatever their numbers. The blob is part of a state.
    pub(crate) fn is_state_of(&self, other: &Self) -> bool {
        self.roots == other.roots && self.blob == other.blob
    }
}

/// What the sequencer's lock guards.
pub(crate) struct SequencerState {
    tail: LogTail,
    queue: Vec<RecordBuf>,
    /// The segments are prepared up to this position: records below it have room.
    room_through: LogPos,
    /// Bytes of the last record that room was made for.
    last_len: u64,
    /// Newest commit with a ticket.
    pub(crate) newest: CommitState,
    /// True while a load is about to make the next commit.
    pub(crate) loading: bool,
    /// Commits between ticket and publication.
    pub(crate) in_flight: u32,
    /// Grows when a flush or a load changes the layout of a region.
    pub(crate) layouts: u64,
    awaited: bool,
    /// Why no write is accepted any more: [`Error::Poisoned`], or [`Error::ReadOnly`].
    refusal: Option<Error>,
    closed: bool,
}

/// Orders commits and flushes; owns the log.
pub(crate) struct Sequencer {
    state: RankedMutex<SequencerState>,
    /// Held by whoever syncs the log.
    syncing: RankedMutex<()>,
    writer: RankedMutex<LogWriter>,
    /// The files of the log.
    pub(crate) segments: Segments,
    durable: AtomicU64,
    written: AtomicU64,
    log_bytes: AtomicU64,
}

impl SequencerState {
    /// Queues a record and returns its position. The caller has made room.
    pub(crate) fn queue(&mut self, mut record: RecordBuf) -> LogPos {
        assert!(self.has_room(record.len()), "the caller has made room");
        let position = self.tail.reserve(record.len());
        record.set_position(position);
        self.queue.push(record);
        position
    }

    /// True when the segments have room for a record of `len` bytes.
    pub(crate) fn has_room(&self, len: u64) -> bool {
        self.tail.needed_through(len) <= self.room_through
    }

    /// True while a record that ends at `end` is queued. After a failure, such a record is never written.
    pub(crate) fn is_queued(&self, end: LogPos) -> bool {
        self.queue.first().and_then(RecordBuf::position).is_some_and(|first| first < end)
    }

    /// End of the queued and written log.
    pub(crate) fn log_end(&self) -> LogPos {
        self.tail.position()
    }

    /// True when no commit is between ticket and publication. Otherwise the caller is awaited, and asks again soon.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.awaited = self.in_flight > 0;
        !self.awaited
    }

    /// True while a flush or a checkpoint waits for commits in flight.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited
    }

    /// True after a failed write or sync.
    pub(crate) fn is_poisoned(&self) -> bool {
        matches!(self.refusal, Some(Error::Poisoned(_)))
    }

    /// Refuses a write after a failed one, or in a database that is read only.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.refusal.clone().map_or(Ok(()), Err)
    }

    /// Refuses a new operation, also when the database was closed. A commit with a ticket is finished all the same, and
    /// asks [`SequencerState::check_writable`].
    pub(crate) fn check_open(&self) -> Result<()> {
        self.check_writable()?;
        if self.closed { Err(Error::Closed) } else { Ok(()) }
    }

    /// Refuses while a load is under way.
    pub(crate) fn check_not_loading(&self) -> Result<()> {
        if self.loading { Err(Error::InUse(Holder::Load)) } else { Ok(()) }
    }
}

impl Sequencer {
    pub(crate) fn new(writer: LogWriter, tip: CommitState) -> Self {
        let state = SequencerState {
            tail: writer.tail(),
            queue: Vec::new(),
            room_through: LogPos::START,
            last_len: 0,
            newest: tip,
            loading: false,
            in_flight: 0,
            layouts: 0,
            awaited: false,
            refusal: None,
            closed: false,
        };
        Self {
            durable: AtomicU64::new(writer.durable().get()),
            written: AtomicU64::new(writer.durable().get()),
            segments: writer.segments().clone(),
            log_bytes: AtomicU64::new(writer.bytes()),
            state: SEQUENCER.mutex(state),
            syncing: SYNC.mutex(()),
            writer: WRITER.mutex(writer),
        }
    }

    /// Takes the sequencer's lock.
    pub(crate) fn lock(&self) -> RankedMutexGuard<'_, SequencerState> {
        self.state.lock()
    }

    /// Bytes of the buffer from which the log is written.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.segments.max_write_bytes()
    }

    /// The log below this position is durable.
    pub(crate) fn durable(&self) -> LogPos {
        self.durable.load(Ordering::Acquire).into()
    }

    /// Reserves room for a record of `len` bytes. On a full disk it fails, and nothing has changed.
    pub(crate) fn make_room(&self, len: u64) -> Result<()> {
        // A little more, so that the next records rarely need a call, and less than what is prepared early.
        let room = self.lock().tail.needed_through(len) + (self.segments.size() / 4).min(1 << 16);
        self.prepare(room)?;
        let mut state = self.lock();
        state.room_through = state.room_through.max(room);
        state.last_len = len;
        Ok(())
    }

    /// Prepares the log up to a position. A failure has changed nothing, except a failed sync of the folder, which
    /// poisons as every failed sync does.
    pub(crate) fn prepare(&self, upto: LogPos) -> Result<()> {
        let Err(error) = self.segments.prepare_through(upto) else { return Ok(()) };
        if self.segments.is_poisoned() {
            let error = Error::Log(error);
            self.poison(&error);
            return Err(error.to_poisoned());
        }
        Err(error.into())
    }

    /// Up to where the log should be prepared: another half segment, or another record of the last one's length. `None`
    /// where it is.
    pub(crate) fn prepare_target(&self) -> Option<LogPos> {
        let (state, size) = (self.lock(), self.segments.size());
        let upto = state.log_end() + state.last_len.clamp(size / 2, MAX_AHEAD.max(size));
        drop(state);
        (self.segments.prepared_through() < upto).then_some(upto)
    }

    /// Writes everything that is queued, at least through `end`, and syncs it if `sync`.
    pub(crate) fn write_through(&self, end: LogPos, sync: bool) -> Result<()> {
        let done = || {
            let upto = if sync { &self.durable } else { &self.written };
            upto.load(Ordering::Acquire) >= end.get()
        };
        if done() {
            return Ok(());
        }
        // A write without sync waits for no sync.
        let _alone = sync.then(|| self.syncing.lock());
        let mut writer = self.writer.lock();
        if done() {
            return Ok(());
        }
        let written = self.write_queued(&mut writer, sync);
        let synced = written.and_then(|()| if sync { self.sync(writer) } else { Ok(()) });
        synced.inspect_err(|error| self.poison(error))
    }

    fn sync(&self, mut writer: RankedMutexGuard<'_, LogWriter>) -> Result<()> {
        let unsynced = writer.take_unsynced().map_err(Error::Log)?;
        drop(writer);
        let synced = unsynced.sync();
        let mut writer = self.writer.lock();
        // Before other threads take the writer, which refuses them from here on: their errors are not the cause.
        let durable = writer.finish_sync(&unsynced, synced).map_err(Error::Log);
        let durable = durable.inspect_err(|error| self.poison(error))?;
        self.durable.store(durable.get(), Ordering::Release);
        Ok(())
    }

    fn write_queued(&self, writer: &mut LogWriter, sync: bool) -> Result<()> {
        let mut records = {
            let mut state = self.lock();
            state.check_writable()?;
            // Under this lock, so that a later ticket gets a position beyond the blocks that the sync covers.
            if writer.needs_seal(sync) {
                state.tail.seal();
            }
            std::mem::take(&mut state.queue)
        };
        // Room was made before: to have none now is a failure, and no full disk that has changed nothing.
        writer.write(&mut records).map_err(Error::Log)?;
        self.log_bytes.store(writer.bytes(), Ordering::Relaxed);
        // The end of a record, never of the block behind it: a superblock must not claim more than the log has.
        self.written.store(writer.end().position.get(), Ordering::Release);
        Ok(())
    }

    /// Bytes written to the log. Takes no lock.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.log_bytes.load(Ordering::Relaxed)
    }

    /// Where a checkpoint's replay starts: everything queued is written, no commit is in flight, and `state_as_of` sees
    /// the state as of that very point. `None` when a commit is in flight.
    pub(crate) fn cut<T>(
        &self,
        while_loading: bool,
        state_as_of: impl FnOnce(LogPoint) -> T,
    ) -> Result<Option<(LogPoint, T)>> {
        let mut writer = self.writer.lock();
        // Seals, so that the position of the next record is known.
        self.write_queued(&mut writer, true).inspect_err(|error| self.poison(error))?;
        let mut state = self.lock();
        let busy = !state.is_quiet() || !state.queue.is_empty();
        if busy || (state.loading && !while_loading) {
            return Ok(None);
        }
        let point = writer.end();
        Ok(Some((point, state_as_of(point))))
    }

    /// Refuses all writes: the log belongs to another process.
    pub(crate) fn refuse_writes(&self) {
        self.lock().refusal = Some(Error::ReadOnly);
    }

    /// Gives no more tickets.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
    }

    /// Refuses all further writes.
    pub(crate) fn poison(&self, error: &Error) {
        let poisoned = || Error::Poisoned(PoisonCause::of(error));
        self.lock().refusal.get_or_insert_with(poisoned);
    }
}
