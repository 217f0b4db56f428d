//! The crate nomt, used the way its documentation says: a session on the newest state, `warm_up` and reads by several
//! threads, `finish` with the actual reads and writes in key order, `commit`. Each commit is synced: it knows no other.

mod settings;
mod witness;

use std::borrow::Cow;
use std::collections::VecDeque;

use nomt::hasher::Blake3Hasher;
use nomt::{FinishedSession, KeyReadWrite, Nomt, Overlay, Session, SessionParams, WitnessMode};
use pleach_core::Key;

use super::readers::read_with;
use super::tree::{Change, Finished, Pair, See, Tree, in_blocks};
use super::witness::{Root, Witness};
use crate::error::{BenchError, Result};
use crate::stores::StoreOptions;
pub(super) use settings::Settings;
use witness::NomtWitness;

/// What a key had when it was read.
type Read = (Key, Option<Vec<u8>>);

fn wrap<E: std::fmt::Display>(error: E) -> BenchError {
    BenchError::backend("nomt")(error)
}

/// A block that was begun.
struct Begun {
    session: Session<Blake3Hasher>,
    /// Were its keys announced?
    warm: bool,
    /// What it has read, where that is to be proven.
    reads: Option<Vec<Read>>,
}

pub(super) struct NomtTree {
    db: Nomt<Blake3Hasher>,
    settings: Settings,
    prefetch: bool,
    begun: Option<Begun>,
    /// The newest block.
    made: Option<FinishedSession>,
    /// Those before it, the newest first, as sessions want them.
    overlays: VecDeque<Overlay>,
}

impl NomtTree {
    pub(super) fn open(options: &StoreOptions) -> Result<Self> {
        let settings = Settings::new(options)?;
        let db = Nomt::open(settings.options(options)).map_err(wrap)?;
        let (begun, made, overlays) = (None, None, VecDeque::new());
        Ok(Self { db, settings, prefetch: options.prefetch, begun, made, overlays })
    }

    fn session(&mut self, witness: bool) -> Result<Begun> {
        if let Some(block) = self.made.take() {
            self.overlays.push_front(block.into_overlay());
        }
        let mode = if witness { WitnessMode::read_write() } else { WitnessMode::disabled() };
        let params = SessionParams::default().witness_mode(mode);
        let params = params.overlay(self.overlays.iter());
        let params = params.map_err(|_| wrap("the overlays are no chain"))?;
        let session = self.db.begin_session(params);
        Ok(Begun { session, warm: false, reads: witness.then(Vec::new) })
    }

    /// Begins what is to be read with if no block was begun. None where the committed state is the newest: a session
    /// that is dropped unfinished while warm-up is on makes its worker panic.
    fn reader(&mut self) -> Result<Option<Begun>> {
        let committed = self.made.is_none() && self.overlays.is_empty();
        if self.begun.is_some() || committed { Ok(None) } else { self.session(false).map(Some) }
    }
}

impl Tree for NomtTree {
    fn settings(&self) -> Vec<(String, String)> {
        let table = self.db.hash_table_utilization();
        [
            ("settings", self.settings.note()),
            ("buckets in use", format!("{} of {}", table.occupied, table.capacity)),
            ("durability", "each commit synced; it knows no other".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    fn root(&self) -> Option<Root> {
        let newest = self.made.as_ref().map(FinishedSession::root);
        let newest = newest.or_else(|| self.overlays.front().map(Overlay::root));
        Some(newest.unwrap_or_else(|| self.db.root()).into_inner())
    }

    fn begin(&mut self) -> Result<()> {
        self.begun = Some(self.session(false)?);
        Ok(())
    }

    fn begin_witnessed(&mut self) -> Result<()> {
        self.begun = Some(self.session(true)?);
        Ok(())
    }

    fn visit(&mut self, keys: &[Key], see: &mut See<'_>) -> Result<()> {
        let own = self.reader()?;
        for key in keys {
            let value = match self.begun.as_ref().or(own.as_ref()) {
                Some(begun) => begun.session.read(*key),
                None => self.db.read(*key),
            };
            let value = value.map_err(wrap)?;
            if let Some(reads) = self.begun.as_mut().and_then(|begun| begun.reads.as_mut()) {
                reads.push((*key, value.clone()));
            }
            see(value.map(Cow::Owned));
        }
        Ok(())
    }

    fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
        let own = self.reader()?;
        let (db, readers) = (&self.db, self.settings.readers);
        let Some(begun) = &mut self.begun else {
            return read_with(keys, readers, |key| {
                let value =
                    own.as_ref().map_or_else(|| db.read(*key), |own| own.session.read(*key));
                value.map_err(wrap)
            });
        };
        let Begun { session, warm, reads } = begun;
        if self.prefetch {
            for key in keys {
                session.warm_up(*key);
            }
            *warm = true;
        }
        let session = &*session;
        let read = |key: &Key| session.read(*key).map_err(wrap);
        let Some(reads) = reads else { return read_with(keys, readers, read) };
        // Copied by the threads that read.
        let both =
            read_with(keys, readers, |key| read(key).map(|value| ((*key, value.clone()), value)))?;
        let (kept, values): (Vec<Read>, _) = both.into_iter().unzip();
        reads.extend(kept);
        Ok(values)
    }

    fn finish(&mut self, changes: Vec<Change>) -> Result<Finished> {
        let Begun { session, warm, reads } = match self.begun.take() {
            Some(begun) => begun,
            None => self.session(false)?,
        };
        if !warm && self.prefetch {
            for (key, _) in &changes {
                session.warm_up(*key);
            }
        }
        let block = session.finish(actuals(reads.unwrap_or_default(), changes));
        let mut block = block.map_err(wrap)?;
        let root = Some(block.root().into_inner());
        let witness = block.take_witness();
        let witness = witness.map(|witness| Box::new(NomtWitness(witness)) as Box<dyn Witness>);
        self.made = Some(block);
        Ok(Finished { root, witness })
    }

    fn commit(&mut self) -> Result<()> {
        if let Some(oldest) = self.overlays.pop_back() {
            return oldest.commit(&self.db).map_err(wrap);
        }
        self.made.take().map_or(Ok(()), |block| block.commit(&self.db).map_err(wrap))
    }

    fn discard(&mut self) -> Result<()> {
        self.begun = None;
        self.made = None;
        self.overlays.clear();
        Ok(())
    }

    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        in_blocks(pairs, |block| {
            self.finish(block)?;
            self.commit()
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// A session's accesses, in key order: what is to be proven of reads with the values that were read.
fn actuals(mut reads: Vec<Read>, mut changes: Vec<Change>) -> Vec<(Key, KeyReadWrite)> {
    reads.sort_unstable_by_key(|read| read.0);
    changes.sort_unstable_by_key(|change| change.0);
    let (mut reads, mut actuals) = (reads.into_iter().peekable(), Vec::new());
    let read = |(key, value)| (key, KeyReadWrite::Read(value));
    for (key, new) in changes {
        while let Some(before) = reads.next_if(|read| read.0 < key) {
            actuals.push(read(before));
        }
        actuals.push((
            key,
            match reads.next_if(|read| read.0 == key) {
                Some((_, old)) => KeyReadWrite::ReadThenWrite(old, new),
                None => KeyReadWrite::Write(new),
            },
        ));
    }
    actuals.extend(reads.map(read));
    actuals
}
