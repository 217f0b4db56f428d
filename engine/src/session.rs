//! Sessions: reading a state, warming it, and finishing a batch over it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pleach_beatree::cache::CachedPage;
use pleach_beatree::{Stored, Value};
use pleach_core::{Blake3, Hasher, Key, Node};
use pleach_io::os::OsDevice;
use pleach_io::threads::Threads;
use pleach_io::{Device, Queue, Request, Runtime, Transfer};

use crate::announced::Announcements;
use crate::answers::Answer;
use crate::block::Block;
use crate::error::{Hex, Result};
use crate::finish::finish;
use crate::given_back::FinishError;
use crate::handles::{Counted, Kind};
use crate::metrics::Counters;
use crate::overlay::Overlay;
use crate::shared::{Located, Shared};
use crate::view::View;
use crate::warm::{GROUP, Reach};

/// Largest value.
pub const MAX_VALUE: usize = 64 << 20;

/// What a batch does with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Its value was read: the witness proves it.
    Read,
    /// It gets this value, or none, without having been read.
    Write(Option<Value>),
    /// It was read and gets this value, or none.
    ReadWrite(Option<Value>),
}

/// One key of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Namespace; 0 in this version.
    pub namespace: u8,
    /// The key, all 32 bytes of it a hash of the application's key.
    pub key: Key,
    /// What is done with it.
    pub kind: AccessKind,
}

impl Access {
    /// A read in namespace 0.
    pub fn read(key: Key) -> Self {
        Self { namespace: 0, key, kind: AccessKind::Read }
    }

    /// A blind write in namespace 0; `None` deletes.
    pub fn write(key: Key, value: Option<Value>) -> Self {
        Self { namespace: 0, key, kind: AccessKind::Write(value) }
    }

    /// A read and a write in namespace 0; `None` deletes.
    pub fn read_write(key: Key, value: Option<Value>) -> Self {
        Self { namespace: 0, key, kind: AccessKind::ReadWrite(value) }
    }
}

/// How a session is opened.
pub struct SessionOptions<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads> {
    pub(crate) witness: bool,
    pub(crate) over: Option<Overlay<H, D, R>>,
}

impl<H: Hasher, D: Device, R: Runtime> Default for SessionOptions<H, D, R> {
    fn default() -> Self {
        Self { witness: true, over: None }
    }
}

impl<H: Hasher, D: Device, R: Runtime> SessionOptions<H, D, R> {
    /// A session on the newest commit, with a witness.
    pub fn new() -> Self {
        Self::default()
    }

    /// Does the finish build a witness?
    #[must_use]
    pub fn witness(mut self, witness: bool) -> Self {
        self.witness = witness;
        self
    }

    /// Stands on an overlay rather than on the newest commit.
    #[must_use]
    pub fn over(mut self, overlay: &Overlay<H, D, R>) -> Self {
        self.over = Some(overlay.clone());
        self
    }
}

impl<H: Hasher, D: Device, R: Runtime> Clone for SessionOptions<H, D, R> {
    fn clone(&self) -> Self {
        Self { witness: self.witness, over: self.over.clone() }
    }
}

impl<H: Hasher, D: Device, R: Runtime> fmt::Debug for SessionOptions<H, D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionOptions")
            .field("witness", &self.witness)
            .field("over", &self.over)
            .finish()
    }
}

/// A session on one fixed state. Reads take `&self` and may come from any number of threads.
///
/// A session that outlives its database's close reads on, and keeps the folder locked for that; what
/// it finishes cannot be committed ([`Error::Closed`](crate::Error::Closed)).
pub struct Session<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads> {
    pub(crate) shared: Arc<Shared<H, D, R>>,
    pub(crate) view: View,
    pub(crate) root: Node,
    pub(crate) parent: Option<Overlay<H, D, R>>,
    pub(crate) witness: bool,
    /// Have keys been announced, and those that readers can still look up.
    pub(crate) announces: AtomicBool,
    pub(crate) announced: Mutex<Announcements>,
    /// Ring for `read_many`, made on first use; a second caller at the same time reads plainly.
    pub(crate) queue: Mutex<Option<(std::thread::ThreadId, D::Queue)>>,
    /// The last field, so that it goes last.
    pub(crate) counted: Counted,
}

impl<H: Hasher, D: Device, R: Runtime> fmt::Debug for Session<H, D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("base", &self.view.base)
            .field("root", &Hex(&self.root))
            .finish_non_exhaustive()
    }
}

/// Where a key's value was found.
enum Found {
    Stored(Stored),
    Page(Located),
    Nothing,
}

impl<H: Hasher, D: Device, R: Runtime> Session<H, D, R> {
    /// Root of the state that this session reads.
    pub fn root(&self) -> Node {
        self.root
    }

    /// The value of a key in namespace 0. A miss is one read of the device, on the calling
    /// thread.
    pub fn read(&self, key: &Key) -> Result<Option<Value>> {
        if self.announces.load(Ordering::Relaxed)
            && let Some(answer) = self.answer(key)
        {
            return Ok(answer.value().map(Value::from));
        }
        let stored = self.stored(key)?;
        crate::overflow::value(&self.shared, stored)
    }

    /// What was looked up ahead. Where that is behind, a group is looked up here, which costs less
    /// than its keys one by one.
    fn answer(&self, key: &Key) -> Option<Answer> {
        if self.view.overlaid(key).is_some() {
            return None;
        }
        let get = || self.shared.answers.get(self.view.base, key);
        let found = get().or_else(|| {
            let announced = self.announced.lock().first()?;
            let _guard = self.shared.grace.enter();
            if self.shared.help(&announced) { get() } else { None }
        })?;
        Counters::add(&self.shared.counters.cache_hits, 1);
        Some(found)
    }

    fn stored(&self, key: &Key) -> Result<Stored> {
        if let Some(stored) = self.view.overlaid(key) {
            return Ok(stored);
        }
        let stored = {
            let _guard = self.shared.grace.enter();
            match self.locate(key) {
                Found::Stored(stored) => stored,
                Found::Nothing => Stored::Absent,
                Found::Page(at) => {
                    let find =
                        |page: &CachedPage| page.get(key).map_or(Stored::Absent, Stored::from_cell);
                    match self.shared.read_cached(&at, key, find) {
                        Some(stored) => stored,
                        None => find(&*self.shared.leaf(&at)?),
                    }
                }
            }
        };
        // Asked last: a commit that came in between has put its undo before its changes.
        Ok(self.view.undone(key).unwrap_or(stored))
    }

    fn locate(&self, key: &Key) -> Found {
        self.shared.in_region(key, |_, state| {
            if let Some(pending) = state.pending_of(key) {
                return Found::Stored(pending.stored.clone());
            }
            let child = state.children().find(key);
            match state.children().page(child) {
                Some(place) => Found::Page(Located { place, tag: state.children().tag(child) }),
                None => Found::Nothing,
            }
        })
    }

    /// The values of many keys in namespace 0, in their order; misses are read at the device's
    /// full depth.
    pub fn read_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        if !self.shared.all_is_here()
            && let Some(mut queue) = self.queue.try_lock()
        {
            let _guard = self.shared.grace.enter();
            // A ring serves the thread that made it.
            let here = std::thread::current().id();
            let mut ring = match queue.take() {
                Some((thread, ring)) if thread == here => ring,
                _ => self.shared.device.queue(self.shared.options.in_flight)?,
            };
            let result = self.fetch(&mut ring, keys);
            // After an error nothing stays in flight.
            while ring.in_flight() > 0 && ring.wait().is_ok() {}
            if ring.in_flight() == 0 {
                *queue = Some((here, ring));
            }
            result?;
        }
        let mut values = Vec::with_capacity(keys.len());
        for group in keys.chunks(GROUP) {
            {
                let _guard = self.shared.grace.enter();
                self.shared.warm(group.iter(), Reach::Cell);
            }
            for key in group {
                values.push(self.read(key)?);
            }
        }
        Ok(values)
    }

    /// Brings the pages of many keys into the cache.
    fn fetch(&self, queue: &mut D::Queue, keys: &[Key]) -> Result<()> {
        let batch = self.shared.batch.load(Ordering::Relaxed);
        let mut asked: Vec<Located> = Vec::new();
        let mut places = std::collections::HashSet::new();
        for (index, key) in keys.iter().enumerate() {
            if index.is_multiple_of(GROUP) {
                self.shared.warm(keys[index..].iter().take(GROUP), Reach::Place);
            }
            if self.view.overlaid(key).is_some() {
                continue;
            }
            let Found::Page(at) = self.locate(key) else { continue };
            if self.shared.cache.hold(at.place, at.tag, batch) || !places.insert(at.place) {
                continue;
            }
            if queue.in_flight() == queue.depth() {
                self.arrive(queue, &asked)?;
            }
            queue.push(Request {
                file: self.shared.files.leaf.clone(),
                transfer: Transfer::Read,
                offset: at.place.offset(),
                buf: self.shared.buffers.take(),
                token: asked.len() as u64,
            });
            asked.push(at);
            Counters::add(&self.shared.counters.cache_misses, 1);
        }
        while queue.in_flight() > 0 {
            self.arrive(queue, &asked)?;
        }
        Ok(())
    }

    /// Takes in one page, and all others that are at hand.
    fn arrive(&self, queue: &mut D::Queue, asked: &[Located]) -> Result<()> {
        let mut next = queue.wait()?;
        while let Some(completion) = next {
            completion.result?;
            let at = &asked[usize::try_from(completion.token).expect("an index")];
            self.shared.admit(at, completion.buf)?;
            next = queue.poll();
        }
        Ok(())
    }

    /// Starts to bring in the values and pages of these keys, with the trie in them, and returns at
    /// once.
    pub fn prefetch(&self, keys: &[Key]) {
        let folds = self.view.is_committed();
        if let Some(announced) = self.shared.prefetch(self.view.base, folds, keys) {
            self.announced.lock().push(announced);
            self.announces.store(true, Ordering::Relaxed);
        }
    }

    /// Finishes a batch: its accesses in any order, each key once. The engine itself fills in
    /// the values seen. Nothing is written.
    ///
    /// # Errors
    /// [`RepeatedKey`](crate::Error::RepeatedKey), [`ValueTooLarge`](crate::Error::ValueTooLarge),
    /// [`Namespace`](crate::Error::Namespace), and what reading can bring. The session and the
    /// accesses come back with them.
    pub fn finish(self, mut accesses: Vec<Access>) -> Result<Block<H, D, R>, FinishError<H, D, R>> {
        let mut sorter = self.shared.sorter.take();
        let finished = sorter.sort::<H>(&mut accesses).and_then(|touches| {
            finish(&self.shared, &self.view, &self.root, touches, self.witness)
        });
        if finished.is_err() {
            sorter.give_back(&mut accesses);
        }
        self.shared.sorter.give(sorter);
        let finished = match finished {
            Ok(finished) => finished,
            Err(error) => return Err(FinishError::new(self, accesses, error)),
        };
        Ok(Block {
            shared: self.shared,
            view: self.view,
            parent: self.parent,
            prev_root: self.root,
            root: finished.root,
            chunks: finished.chunks,
            witness: finished.witness,
            blob: None,
            counted: self.counted.into_kind(Kind::Block),
        })
    }
}
