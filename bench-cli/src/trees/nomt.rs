//! The crate nomt, with its own defaults but for the caches, half of the budget each, and the workers: all
//! threads, as there is no witness.

use std::borrow::Cow;
use std::collections::VecDeque;

use nomt::hasher::Blake3Hasher;
use nomt::{
    FinishedSession, KeyReadWrite, Nomt, Options, Overlay, Session, SessionParams, WitnessMode,
};
use pleach_core::Key;

use super::tree::{Change, Finished, Pair, See, Tree, in_blocks};
use super::witness::Root;
use crate::error::{BenchError, Result};
use crate::stores::StoreOptions;

fn wrap<E: std::fmt::Display>(error: E) -> BenchError {
    BenchError::backend("nomt")(error)
}

pub(super) struct NomtTree {
    db: Nomt<Blake3Hasher>,
    begun: Option<Session<Blake3Hasher>>,
    /// The newest block.
    made: Option<FinishedSession>,
    /// Those before it, the newest first, as sessions want them.
    overlays: VecDeque<Overlay>,
    settings: Vec<(String, String)>,
}

impl NomtTree {
    pub(super) fn open(options: &StoreOptions) -> Result<Self> {
        options.peer_args_of("nomt", &[])?;
        let half = usize::try_from((options.cache_mib / 2).max(1)).map_err(wrap)?;
        let workers = options.threads.min(64);
        let mut to = Options::new();
        to.path(&options.folder);
        to.commit_concurrency(workers);
        to.page_cache_size(half);
        to.leaf_cache_size(half);
        to.bitbox_seed(*b"pleach-bench v1.");
        let db = Nomt::open(to).map_err(wrap)?;
        let settings = [
            ("page cache", format!("{half} MiB")),
            ("leaf cache", format!("{half} MiB")),
            ("commit workers", workers.to_string()),
            ("durability", "each commit; it knows no other".to_owned()),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value)).to_vec();
        Ok(Self { db, begun: None, made: None, overlays: VecDeque::new(), settings })
    }

    fn session(&mut self) -> Result<Session<Blake3Hasher>> {
        if let Some(block) = self.made.take() {
            self.overlays.push_front(block.into_overlay());
        }
        let params = SessionParams::default().witness_mode(WitnessMode::disabled());
        let params = params.overlay(self.overlays.iter());
        let params = params.map_err(|_| wrap("the overlays are no chain"))?;
        Ok(self.db.begin_session(params))
    }
}

fn visit(session: &Session<Blake3Hasher>, keys: &[Key], see: &mut See<'_>) -> Result<()> {
    for key in keys {
        see(session.read(*key).map_err(wrap)?.map(Cow::Owned));
    }
    Ok(())
}

impl Tree for NomtTree {
    fn settings(&self) -> Vec<(String, String)> {
        self.settings.clone()
    }

    fn root(&self) -> Option<Root> {
        let newest = self.made.as_ref().map(FinishedSession::root);
        let newest = newest.or_else(|| self.overlays.front().map(Overlay::root));
        Some(newest.unwrap_or_else(|| self.db.root()).into_inner())
    }

    fn begin(&mut self) -> Result<()> {
        self.begun = Some(self.session()?);
        Ok(())
    }

    fn visit(&mut self, keys: &[Key], see: &mut See<'_>) -> Result<()> {
        match &self.begun {
            Some(session) => visit(session, keys, see),
            None => visit(&self.session()?, keys, see),
        }
    }

    fn finish(&mut self, changes: Vec<Change>) -> Result<Finished> {
        let session = match self.begun.take() {
            Some(session) => session,
            None => self.session()?,
        };
        let mut actuals: Vec<_> =
            changes.into_iter().map(|(key, value)| (key, KeyReadWrite::Write(value))).collect();
        actuals.sort_unstable_by_key(|access| access.0);
        let block = session.finish(actuals).map_err(wrap)?;
        let root = Some(block.root().into_inner());
        self.made = Some(block);
        Ok(Finished { root, witness: None })
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
