//! Answers from an open database. States are named by their roots, which a server knows of the newest commits.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use pleach::proof::roots::NamespaceRoots;
use pleach::range::key_before;
use pleach::{Db, Error, Key, Node, Options, Roots, Session};
use pleach_ops::export::{StreamError, export_proven_changes};

use crate::error::{Refusal, Result};
use crate::limits::{LEAST_ANSWER, Limits};
use crate::wire::{
    Ask, FeedHead, Head, MOST_KEYS, PartAsk, Place, encode_pair, encode_part, encode_roots,
    encode_value,
};

/// Commits whose roots are known, at most: those before the newest one.
const KNOWN: u64 = 100_000;
/// Sessions that are kept, each on one state: a session has nodes of old states that are dear to find.
const SESSIONS: usize = 4;
/// Refreshes after which a session that nobody asked is dropped: it holds undo in memory.
const REFRESHES: u64 = 300;

/// A server of the states of a database. All calls may come from any number of threads; they block while they read.
pub struct Server {
    db: Db,
    limits: Limits,
    state: Mutex<Known>,
}

/// What is known of the database.
#[derive(Default)]
struct Known {
    /// The newest commit of each root, over all and of each namespace.
    commits: HashMap<Node, u64>,
    /// The roots of each commit.
    roots: BTreeMap<u64, Vec<Node>>,
    /// The last one used is the last.
    sessions: Vec<KeptSession>,
    refreshes: u64,
}

struct KeptSession {
    root: Node,
    session: Arc<Session>,
    /// The refresh before it was last used.
    used: u64,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("db", &self.db).finish_non_exhaustive()
    }
}

impl Server {
    /// Opens the database of a folder for reading, beside the process that writes it or alone ([`Options::read_only`]).
    ///
    /// # Errors
    /// Those of [`Db::open`], and of [`Self::refresh`].
    pub fn open(options: Options, limits: Limits) -> Result<Self> {
        let server = Self::new(Db::open(options.read_only(true))?, limits);
        server.refresh()?;
        Ok(server)
    }

    /// A server of a database that is open, which has to be refreshed before its first answer.
    pub fn new(db: Db, limits: Limits) -> Self {
        Self { db, limits, state: Mutex::default() }
    }

    /// Goes on to the newest commit, and gives its number. To be called several times a second; the first call reads the
    /// roots of up to 100,000 commits, which takes 0.2 s.
    ///
    /// # Errors
    /// Those of [`Db::refresh`] and [`Db::commit_at`].
    pub fn refresh(&self) -> Result<u64> {
        let (newest, hasher) = (self.db.refresh()?, self.db.hasher()?);
        let mut state = self.state.lock();
        let known = state.roots.last_key_value().map_or(0, |(last, _)| last + 1);
        let first = known.max(newest.saturating_sub(KNOWN)).max(*self.db.history().start());
        for commit in first..=newest {
            match self.db.commit_at(commit) {
                Ok(found) => {
                    let over_all = found.roots.over_all(hasher);
                    state.learn(commit, &found.roots, over_all);
                }
                // The history has moved on.
                Err(Error::SnapshotTooOld { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        state.forget_before(newest.saturating_sub(KNOWN));
        state.refreshes += 1;
        let now = state.refreshes;
        state.sessions.retain(|kept| kept.used + REFRESHES > now);
        Ok(newest)
    }

    /// The newest root over all.
    ///
    /// # Errors
    /// [`Closed`](pleach::Error::Closed).
    pub fn newest_root(&self) -> Result<Node> {
        Ok(self.db.roots().over_all(self.db.hasher()?))
    }

    /// Answers a question, of [`Ask::Changes`] all in memory: [`Self::changes`] writes it.
    ///
    /// # Errors
    /// [`Refusal`]; `out` is empty then.
    pub fn answer(&self, ask: &Ask, out: &mut Vec<u8>) -> Result<(), Refusal> {
        out.clear();
        let answered = match ask {
            Ask::Head => self.head(out).map_err(|error| Refusal::Failed(error.to_string())),
            Ask::Roots(root) => self.with_session(root, |session| {
                encode_roots(&NamespaceRoots::from(session.roots()), out);
                Ok(())
            }),
            Ask::Place(root) => self.place(root, out),
            Ask::Keys { keys, .. } if !(1..=MOST_KEYS).contains(&keys.len()) => {
                Err(Refusal::Malformed)
            }
            Ask::Keys { root, namespace, keys } => {
                self.with_session(root, |session| self.keys(session, *namespace, keys, out))
            }
            Ask::Part(ask) if ask.first > ask.last => Err(Refusal::Malformed),
            Ask::Part(ask) => self.with_session(&ask.root, |session| self.part(session, ask, out)),
            Ask::Changes { from, to } => self.changes(from, to, &mut *out),
        };
        if answered.is_err() {
            out.clear();
        }
        answered
    }

    /// Writes the changes from one root over all to another, of a newer commit: what
    /// [`catch_up`](crate::catch_up()) takes. The changes of several commits are one stream only if one commit takes them:
    /// 490,000 of short values.
    ///
    /// # Errors
    /// [`Refusal`]: the stream may have been begun then; [`Refusal::Unknown`] for more changes, before it is.
    pub fn changes(&self, from: &Node, to: &Node, out: impl Write) -> Result<(), Refusal> {
        let (older, newer) = (self.session(from)?, self.session(to)?);
        if older.commit_number() >= newer.commit_number() {
            return Err(Refusal::Unknown);
        }
        write_changes(&older, &newer, out)
    }

    /// The changes of each commit after this one, for an indexer. The root over all of the commit says that it is the
    /// indexer's: numbers are those of this server's database.
    ///
    /// # Errors
    /// [`Refusal::Gone`]; [`Refusal::Unknown`] for a commit that is not there yet, or has another root.
    pub fn feed(&self, commit: u64, root: &Node) -> Result<Feed, Refusal> {
        if commit > self.db.commit_number() {
            return Err(Refusal::Unknown);
        }
        let at = self.db.at(commit).map_err(refusal)?;
        if at.roots().over_all(at.hasher()) != *root {
            return Err(Refusal::Unknown);
        }
        Ok(Feed { db: self.db.clone(), at })
    }

    #[cfg(feature = "http")]
    pub(crate) fn db(&self) -> &Db {
        &self.db
    }

    fn head(&self, out: &mut Vec<u8>) -> Result<()> {
        let session = self.db.snapshot()?;
        let newest = session.roots().over_all(session.hasher());
        let (commit, oldest) = (session.commit_number(), *self.db.history().start());
        Head { newest, commit, oldest, answer: self.limits.answer_bytes().into() }.encode(out);
        Ok(())
    }

    fn place(&self, root: &Node, out: &mut Vec<u8>) -> Result<(), Refusal> {
        let commit = *self.state.lock().commits.get(root).ok_or(Refusal::Unknown)?;
        let (oldest, newest) = self.db.history().into_inner();
        if commit < oldest {
            return Err(Refusal::Gone { oldest });
        }
        Place { commit, oldest, newest }.encode(out);
        Ok(())
    }

    fn keys(
        &self,
        session: &Session,
        namespace: u8,
        keys: &[Key],
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        out.clear();
        let of = session.namespace(namespace)?;
        let mut values = Vec::new();
        let mut count = 0;
        for key in keys {
            let value = of.read(key)?;
            let bytes = value.as_ref().map_or(0, |value| value.len());
            if count > 0 && values.len() + 4 + bytes > self.limits.answer_bytes() as usize {
                break;
            }
            encode_value(value.as_deref(), &mut values);
            count += 1;
        }
        let proof = of.prove_many(&keys[..count])?;
        out.extend(u32::try_from(proof.len()).expect("of 64 keys").to_le_bytes());
        out.extend(&proof[..]);
        out.extend(values);
        Ok(())
    }

    fn part(&self, session: &Session, ask: &PartAsk, out: &mut Vec<u8>) -> Result<(), Error> {
        let of = session.namespace(ask.namespace)?;
        let most = ask.bytes.clamp(LEAST_ANSWER, self.limits.answer_bytes()) as usize;
        let (mut pairs, mut end) = (Vec::new(), ask.last);
        for pair in of.iter(ask.first..=ask.last) {
            let (key, value) = pair?;
            if pairs.len() >= most / 2 && pairs.len() + 36 + value.len() > most {
                end = key_before(&key).expect("a pair comes before it");
                break;
            }
            encode_pair(&key, &value, &mut pairs);
        }
        let proof = of.prove_many(&[ask.first, end])?;
        encode_part(&proof, &end, &pairs, out);
        Ok(())
    }

    /// Asks the session on the state of a root; a second one, if the first is too old by now.
    fn with_session(
        &self,
        root: &Node,
        mut ask: impl FnMut(&Session) -> Result<(), Error>,
    ) -> Result<(), Refusal> {
        let session = self.session(root)?;
        match ask(&session) {
            Err(Error::SnapshotTooOld { .. }) => {
                self.state.lock().sessions.retain(|kept| !Arc::ptr_eq(&kept.session, &session));
                ask(&*self.session(root)?).map_err(refusal)
            }
            done => done.map_err(refusal),
        }
    }

    fn session(&self, root: &Node) -> Result<Arc<Session>, Refusal> {
        let mut state = self.state.lock();
        let used = state.refreshes;
        if let Some(at) = state.sessions.iter().position(|kept| kept.root == *root) {
            let kept = state.sessions.remove(at);
            let session = Arc::clone(&kept.session);
            state.sessions.push(KeptSession { used, ..kept });
            return Ok(session);
        }
        let commit = *state.commits.get(root).ok_or(Refusal::Unknown)?;
        let session = Arc::new(self.db.at(commit).map_err(refusal)?);
        if state.sessions.len() >= SESSIONS {
            state.sessions.remove(0);
        }
        state.sessions.push(KeptSession { root: *root, session: Arc::clone(&session), used });
        Ok(session)
    }
}

/// The changes of commit after commit.
#[derive(Debug)]
pub struct Feed {
    db: Db,
    at: Session,
}

impl Feed {
    /// Gives the next commit, a [`FeedHead`] with its blob and change stream, or leaves `out` empty when there is none yet.
    ///
    /// # Errors
    /// [`Refusal`]: [`Refusal::Gone`] when commits come faster than they are asked for. The feed is over.
    pub fn next(&mut self, out: &mut Vec<u8>) -> Result<(), Refusal> {
        out.clear();
        let commit = self.at.commit_number() + 1;
        if commit > self.db.commit_number() {
            return Ok(());
        }
        let next = self.db.at(commit).map_err(refusal)?;
        let mut stream = Vec::new();
        write_changes(&self.at, &next, &mut stream)?;
        let root = next.roots().over_all(next.hasher());
        let (blob, stream_bytes) = (next.blob(), stream.len() as u64);
        FeedHead { commit, root, blob: blob.len() as u64, stream: stream_bytes }.encode(out);
        out.extend(blob);
        out.extend(stream);
        self.at = next;
        Ok(())
    }
}

fn write_changes(older: &Session, newer: &Session, out: impl Write) -> Result<(), Refusal> {
    let written = export_proven_changes(older, newer, out);
    written.map(drop).map_err(|error| match error {
        pleach_ops::Error::Db(error) => refusal(error),
        pleach_ops::Error::Stream(StreamError::TooLarge { .. }) => Refusal::Unknown,
        error => Refusal::Failed(error.to_string()),
    })
}

impl Known {
    fn learn(&mut self, commit: u64, roots: &Roots, over_all: Node) {
        let mut all: Vec<Node> = roots.iter().map(|(_, root)| root).collect();
        all.push(over_all);
        for root in &all {
            self.commits.insert(*root, commit);
        }
        self.roots.insert(commit, all);
    }

    fn forget_before(&mut self, commit: u64) {
        let later = self.roots.split_off(&commit);
        for (commit, roots) in std::mem::replace(&mut self.roots, later) {
            for root in roots {
                if self.commits.get(&root) == Some(&commit) {
                    self.commits.remove(&root);
                }
            }
        }
    }
}

fn refusal(error: Error) -> Refusal {
    match error {
        Error::SnapshotTooOld { oldest, .. } | Error::HistoryLost { oldest, .. } => {
            Refusal::Gone { oldest }
        }
        Error::Namespace(_) | Error::Plain(_) => Refusal::Unknown,
        error => Refusal::Failed(error.to_string()),
    }
}
