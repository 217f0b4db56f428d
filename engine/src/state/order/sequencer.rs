//! The one sequencer: it orders publications, and the log's order is that order.
//!
//! A commit takes a *ticket* under the sequencer's lock: its parent's state is that of the newest ticketed
//! commit, its record gets the next position, and both happen in microseconds. Writing and
//! syncing happen outside, by whichever holder of the writer comes first, for everything that is
//! queued then: commits that wait together share one sync. A child may take its ticket while its parent
//! is written and synced. Publication follows in ticket order.
//!
//! A flush has no ticket: it takes the lock when no commit is between ticket and publication,
//! queues its record and publishes in the same moment. So neither sees half of the other. A flush or a
//! checkpoint that finds commits in flight is *awaited*: no child takes its ticket ahead of its parent's
//! publication until it had its moment, so that commits one upon the other do not keep it away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use pleach_beatree::lock_order::RankedGuard;
use pleach_journal::format::position::{LogPoint, LogPos};
use pleach_journal::format::record::RecordBuf;
use pleach_journal::log::{LogTail, LogWriter, Segments};

use crate::error::{Error, PoisonCause, Result};
use crate::handles::Holder;
use crate::roots::Roots;
use crate::state::lock_ranks::{SEQUENCER, SYNC, WRITER};

/// A commit as the newest one: of those that are published, or of those with a ticket.
#[derive(Clone, Debug)]
pub struct Tip {
    pub number: u64,
    pub roots: Roots,
    pub blob: Arc<[u8]>,
}

impl Tip {
    /// Is its state that of the other one, whatever their numbers? The blob is part of a state.
    pub(crate) fn is_state_of(&self, other: &Self) -> bool {
        self.roots == other.roots && self.blob == other.blob
    }
}

/// What the sequencer's lock guards.
pub(crate) struct SequencerState {
    tail: LogTail,
    queue: Vec<RecordBuf>,
    /// Segments reach this far: records below it have room.
    room_through: LogPos,
    /// Newest commit with a ticket.
    pub(crate) newest: Tip,
    /// A load is about to make the next commit.
    pub(crate) loading: bool,
    /// Commits between ticket and publication.
    pub(crate) in_flight: u32,
    /// Grows when the layout of a region changes: by a flush, or by a load.
    pub(crate) layouts: u64,
    awaited: bool,
    /// Why no write is accepted any more: [`Error::Poisoned`], or [`Error::ReadOnly`].
    refusal: Option<Error>,
    closed: bool,
}

/// Orders commits and flushes; owns the log.
pub(crate) struct Sequencer {
    state: Mutex<SequencerState>,
    /// Held by whoever syncs the log.
    syncing: Mutex<()>,
    writer: Mutex<LogWriter>,
    /// The files of the log.
    pub(crate) segments: Segments,
    durable: AtomicU64,
    written: AtomicU64,
    log_bytes: AtomicU64,
}

impl SequencerState {
    /// Queues a record and gives its position. The caller has made room.
    pub(crate) fn queue(&mut self, mut record: RecordBuf) -> LogPos {
        let position = self.tail.reserve(record.len());
        record.set_position(position);
        self.queue.push(record);
        position
    }

    /// Is there room in the segments for a record of `len` bytes?
    pub(crate) fn has_room(&self, len: u64) -> bool {
        self.tail.needed_through(len) <= self.room_through
    }

    /// Is a record that ends here still to be written? After a failure it never is.
    pub(crate) fn is_queued(&self, end: LogPos) -> bool {
        self.queue.first().and_then(RecordBuf::position).is_some_and(|first| first < end)
    }

    /// End of what is queued or written.
    pub(crate) fn log_end(&self) -> LogPos {
        self.tail.position()
    }

    /// Is no commit between ticket and publication? If one is, the caller is awaited: it asks again, soon.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.awaited = self.in_flight > 0;
        !self.awaited
    }

    /// Does a flush or a checkpoint wait for commits in flight?
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited
    }

    /// Has a write failed?
    pub(crate) fn is_poisoned(&self) -> bool {
        matches!(self.refusal, Some(Error::Poisoned(_)))
    }

    /// Refuses when a write has failed, or none may be.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.refusal.clone().map_or(Ok(()), Err)
    }

    /// Refuses what begins, also when the database was closed. What has its ticket comes to its end
    /// and asks [`SequencerState::check_writable`].
    pub(crate) fn check_open(&self) -> Result<()> {
        self.check_writable()?;
        if self.closed { Err(Error::Closed) } else { Ok(()) }
    }

    /// Refuses while a load has the database to itself.
    pub(crate) fn check_not_loading(&self) -> Result<()> {
        if self.loading { Err(Error::InUse(Holder::Load)) } else { Ok(()) }
    }
}

impl Sequencer {
    pub(crate) fn new(writer: LogWriter, tip: Tip) -> Self {
        let state = SequencerState {
            tail: writer.tail(),
            queue: Vec::new(),
            room_through: LogPos::START,
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
            state: Mutex::new(state),
            syncing: Mutex::default(),
            writer: Mutex::new(writer),
        }
    }

    /// Takes the sequencer's lock.
    pub(crate) fn lock(&self) -> RankedGuard<MutexGuard<'_, SequencerState>> {
        RankedGuard::acquire(SEQUENCER, || self.state.try_lock(), || self.state.lock())
    }

    fn lock_writer(&self) -> RankedGuard<MutexGuard<'_, LogWriter>> {
        RankedGuard::acquire(WRITER, || self.writer.try_lock(), || self.writer.lock())
    }

    /// Bytes of the buffer that runs of the log are written from.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.segments.max_write_bytes()
    }

    /// The log below this position is durable.
    pub(crate) fn durable(&self) -> LogPos {
        self.durable.load(Ordering::Acquire).into()
    }

    /// Reserves room for a record of `len` bytes; a full disk shows here, and nothing happened.
    pub(crate) fn make_room(&self, len: u64) -> Result<()> {
        // A little more, so that neighbours rarely have to come back, and less than what is prepared
        // early.
        let room = self.lock().tail.needed_through(len) + (self.segments.size() / 4).min(1 << 16);
        self.prepare(room)?;
        let mut state = self.lock();
        state.room_through = state.room_through.max(room);
        Ok(())
    }

    /// Prepares the log up to a position. What fails has changed nothing, except for a sync of the folder,
    /// which poisons as every failed sync does.
    pub(crate) fn prepare(&self, upto: LogPos) -> Result<()> {
        let Err(error) = self.segments.prepare_through(upto) else { return Ok(()) };
        if self.segments.is_poisoned() {
            let error = Error::Log(error);
            self.poison(&error);
            return Err(error.to_poisoned());
        }
        Err(error.into())
    }

    /// Has the log come to the second half of its last prepared segment? Then this is how far it
    /// should be prepared.
    pub(crate) fn prepare_target(&self) -> Option<LogPos> {
        let upto = self.lock().log_end() + self.segments.size() / 2;
        (self.segments.prepared_through() < upto).then_some(upto)
    }

    /// Writes everything that is queued, at least through `end`, and syncs it when asked.
    pub(crate) fn write_through(&self, end: LogPos, sync: bool) -> Result<()> {
        let done = || {
            let upto = if sync { &self.durable } else { &self.written };
            upto.load(Ordering::Acquire) >= end.get()
        };
        if done() {
            return Ok(());
        }
        // Whoever needs no sync waits for none.
        let lock =
            || RankedGuard::acquire(SYNC, || self.syncing.try_lock(), || self.syncing.lock());
        let _alone = sync.then(lock);
        let mut writer = self.lock_writer();
        if done() {
            return Ok(());
        }
        let written = self.write_queued(&mut writer, sync);
        let synced = written.and_then(|()| if sync { self.sync(writer) } else { Ok(()) });
        synced.inspect_err(|error| self.poison(error))
    }

    fn sync(&self, mut writer: RankedGuard<MutexGuard<'_, LogWriter>>) -> Result<()> {
        let unsynced = writer.take_unsynced().map_err(Error::Log)?;
        drop(writer);
        let synced = unsynced.sync();
        let mut writer = self.lock_writer();
        // Before others come to the writer, which refuses them from here on: theirs is not the cause.
        let durable = writer.finish_sync(&unsynced, synced).map_err(Error::Log);
        let durable = durable.inspect_err(|error| self.poison(error))?;
        self.durable.store(durable.get(), Ordering::Release);
        Ok(())
    }

    fn write_queued(&self, writer: &mut LogWriter, sync: bool) -> Result<()> {
        let mut records = {
            let mut state = self.lock();
            state.check_writable()?;
            // Under this lock: a later ticket gets a position beyond the blocks that the sync covers.
            if writer.needs_seal(sync) {
                state.tail.seal();
            }
            std::mem::take(&mut state.queue)
        };
        // Room was made before: to have none now is a failure, and not said as if nothing had happened.
        writer.write(&mut records).map_err(Error::Log)?;
        self.log_bytes.store(writer.bytes(), Ordering::Relaxed);
        // Ends of records, never of the block behind them: a superblock must not claim more than
        // the log has.
        self.written.store(writer.end().position.get(), Ordering::Release);
        Ok(())
    }

    /// Bytes written to the log. Waits for nobody.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.log_bytes.load(Ordering::Relaxed)
    }

    /// Where a checkpoint's replay starts: everything queued is written, no commit is in flight,
    /// and `state_as_of` sees the state as of that very point. `None` when a commit is in flight.
    pub(crate) fn cut<T>(
        &self,
        while_loading: bool,
        state_as_of: impl FnOnce(LogPoint) -> T,
    ) -> Result<Option<(LogPoint, T)>> {
        let mut writer = self.lock_writer();
        // Seals, so that it is known where the next record begins.
        self.write_queued(&mut writer, true).inspect_err(|error| self.poison(error))?;
        let mut state = self.lock();
        let busy = !state.is_quiet() || !state.queue.is_empty();
        if busy || (state.loading && !while_loading) {
            return Ok(None);
        }
        let point = writer.end();
        Ok(Some((point, state_as_of(point))))
    }

    /// Refuses all writes: another process has the log.
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
