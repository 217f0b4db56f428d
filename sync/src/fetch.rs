//! A fetch: what to ask which server, and what to believe. The ranges of keys that nobody has been asked for, those that
//! are asked for, and those that are kept tile the keys of each namespace.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use pleach::load::LoadOptions;
use pleach::proof::roots::NamespaceRoots;
use pleach::{Db, Hasher, Key, Node, Options, Value};
use pleach_core::TERMINATOR;
use pleach_ops::{finish, open_unfinished};

use crate::error::{Error, Refusal, Result};
use crate::frames::{Frame, Frames, Target};
use crate::limits::{LEAST_ANSWER, Limits};
use crate::ranges::KeyRange;
use crate::wire::{Ask, Part, PartAsk, VerifiedPart, decode_roots, verify_part};

/// How long a server rests after its first failure in a row; twice as long after each further one.
const REST: Duration = Duration::from_secs(1);
/// How long it rests at most.
const LONG_REST: Duration = Duration::from_secs(60);
/// Share of the patience after which a server without a question is asked what another one has not answered.
const SHORT_PATIENCE: u32 = 8;

/// The fetch of one state into a folder. It goes on where an earlier one of the same target has ended, however that was.
#[derive(Debug)]
pub struct Fetch {
    target: Target,
    limits: Limits,
    frames: Frames,
    /// Empty until the roots are known.
    namespaces: Vec<Namespace>,
    flights: Vec<Flight>,
    servers: BTreeMap<u32, ServerRecord>,
    tickets: u64,
    progress: Progress,
}

/// A namespace of the target.
#[derive(Debug)]
struct Namespace {
    number: u8,
    root: Node,
    /// Ranges that nobody is asked for, the first ones last.
    free: Vec<KeyRange>,
}

/// A question that was given to a server.
#[derive(Debug)]
struct Flight {
    ticket: u64,
    server: u32,
    since: Duration,
    /// None: the roots.
    part: Option<PartFlight>,
}

#[derive(Debug)]
struct PartFlight {
    namespace: usize,
    /// What comes back when there is no answer. Its end may lie before the end that was asked for, where others were
    /// asked for the rest since. None: another server was asked for it as well, or has answered.
    range: Option<KeyRange>,
    asked: PartAsk,
}

impl Flight {
    fn range(&self) -> Option<KeyRange> {
        self.part.as_ref()?.range
    }
}

/// What is known of a server.
#[derive(Debug, Default)]
struct ServerRecord {
    has_lied: bool,
    /// Its last refusal said that it does not have the state.
    lacks_state: bool,
    failures: u32,
    rests_until: Duration,
}

/// Stands for a question. It judges the answer, on any thread.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Ticket {
    number: u64,
    hasher: Hasher,
    limits: Limits,
    of: Asked,
}

#[derive(Clone, Copy, Debug)]
enum Asked {
    /// The namespaces of a root over all.
    Roots(Node),
    /// A part of the namespace with this root.
    Part(Node, PartAsk),
}

/// An answer that was judged.
#[derive(Debug)]
#[must_use]
pub struct Judged<'a> {
    ticket: u64,
    answer: &'a [u8],
    found: Result<Found, &'static str>,
}

#[derive(Debug)]
enum Found {
    Roots(NamespaceRoots),
    Part(VerifiedPart),
}

impl Ticket {
    /// Verifies the answer. Most of a fetch's time goes here: several threads may judge at a time.
    pub fn judge<'a>(&self, answer: &'a [u8]) -> Judged<'a> {
        let found = match self.of {
            _ if answer.len() > self.limits.most_bytes() => Err("an answer that is too long"),
            Asked::Roots(root) => decode_roots(answer, self.hasher, &root).map(Found::Roots),
            Asked::Part(root, ask) => self.judge_part(answer, &root, &ask).map(Found::Part),
        };
        Judged { ticket: self.number, answer, found }
    }

    fn judge_part(
        &self,
        answer: &[u8],
        root: &Node,
        ask: &PartAsk,
    ) -> Result<VerifiedPart, &'static str> {
        let verified = verify_part(answer, self.hasher, root, &ask.first, &ask.last)?;
        if verified.before_last > ask.bytes as usize {
            return Err("more than was asked for");
        }
        if verified.end < ask.last && verified.bytes < LEAST_ANSWER as usize / 2 {
            return Err("less than an answer has to have");
        }
        Ok(verified)
    }
}

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It is right, and was kept.
    Kept,
    /// The question was given up before, or another server has answered it: the answer was not kept.
    Late,
    /// There is no answer, which is no guilt. The server rests for a while.
    Refused,
    /// It is false, or useless. The server is asked no more.
    Lie(&'static str),
}

/// How far a fetch is.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// Share of the keys of all namespaces that is kept, 0 to 1; of pairs, too, where keys are hashes.
    pub share: f64,
    /// Bytes in the folder.
    pub bytes: u64,
    /// Pairs that were kept since the open.
    pub pairs: u64,
    /// Questions without an answer yet.
    pub in_flight: usize,
    /// Refusals and failures.
    pub refused: u64,
    /// Servers that have lied, each with its lie, in this order.
    pub lies: Vec<(u32, &'static str)>,
    /// True when all servers that may be asked have said that they do not have the state: ask others, or fetch a newer
    /// root.
    pub gone: bool,
    /// True when all is there, and can be loaded.
    pub done: bool,
}

impl Fetch {
    /// Opens the folder of a fetch, such as `NEW.sync`; makes it, where it is missing.
    ///
    /// Blocks while it reads the heads of the parts that are there.
    ///
    /// # Errors
    /// [`Error::Folder`]; [`Error::InUse`]; [`Error::OtherTarget`].
    pub fn open(folder: &Path, target: Target, limits: Limits) -> Result<Self> {
        let frames = Frames::open(folder, &target)?;
        let mut fetch = Self {
            target,
            limits,
            frames,
            namespaces: Vec::new(),
            flights: Vec::new(),
            servers: BTreeMap::new(),
            tickets: 0,
            progress: Progress::default(),
        };
        if let Some(namespace) = target.namespace {
            fetch.begin([(namespace, target.root)])?;
        } else if let Some(answer) = fetch.frames.roots()?
            && let Ok(roots) = decode_roots(&answer, target.hasher, &target.root)
        {
            // A damaged list is asked for again.
            fetch.begin(roots.iter().map(|(number, root)| (number, *root)))?;
        }
        Ok(fetch)
    }

    /// Begins with the namespaces, whose roots are verified.
    fn begin(&mut self, roots: impl IntoIterator<Item = (u8, Node)>) -> Result<()> {
        let namespaces: Vec<(u8, Node)> = roots.into_iter().collect();
        self.frames
            .set_aside(|_, frame| Ok(!namespaces.contains(&(frame.namespace, frame.root))))?;
        for (number, root) in namespaces {
            let missing = if root == TERMINATOR { Vec::new() } else { self.frames.missing(number) };
            let free = missing.into_iter().flat_map(KeyRange::divided).rev().collect();
            self.namespaces.push(Namespace { number, root, free });
        }
        Ok(())
    }

    /// The next question for a server, which the caller numbers; `None` while there is none for it: it has enough
    /// questions, rests, has lied, or nothing is left. `now` is the time since any fixed moment.
    pub fn ask(&mut self, server: u32, now: Duration) -> Option<(Ticket, Ask)> {
        self.give_up_late(now);
        let record = self.servers.entry(server).or_default();
        let of_server = self.flights.iter().filter(|flight| flight.server == server);
        let (has, asks_roots) =
            (of_server.clone().count(), of_server.clone().any(|one| one.part.is_none()));
        if record.has_lied || now < record.rests_until || has >= self.limits.in_flight {
            return None;
        }
        let (part, ask) = if self.namespaces.is_empty() {
            if asks_roots {
                return None;
            }
            (None, Ask::Roots(self.target.root))
        } else {
            let (namespace, range) = self.next_range(server, now)?;
            let KeyRange { first, last } = range;
            let (root, bytes) = (self.target.root, self.limits.answer_bytes());
            let number = self.namespaces[namespace].number;
            let asked = PartAsk { root, namespace: number, first, last, bytes };
            (Some(PartFlight { namespace, range: Some(range), asked }), Ask::Part(asked))
        };
        self.tickets += 1;
        let of = match &part {
            None => Asked::Roots(self.target.root),
            Some(part) => Asked::Part(self.namespaces[part.namespace].root, part.asked),
        };
        let (number, hasher, limits) = (self.tickets, self.target.hasher, self.limits);
        self.flights.push(Flight { ticket: number, server, since: now, part });
        Some((Ticket { number, hasher, limits, of }, ask))
    }

    /// A range that nobody is asked for; or else the one that another server has not answered for longest, if that is a
    /// share of the patience; or else the second half of the longest one that another server is asked for.
    fn next_range(&mut self, server: u32, now: Duration) -> Option<(usize, KeyRange)> {
        for (at, namespace) in self.namespaces.iter_mut().enumerate() {
            if let Some(range) = namespace.free.pop() {
                return Some((at, range));
            }
        }
        let is_others = |flight: &&mut Flight| flight.server != server && flight.range().is_some();
        let mut others: Vec<&mut Flight> = self.flights.iter_mut().filter(is_others).collect();
        let oldest = others.iter_mut().min_by_key(|flight| flight.since)?;
        if oldest.since + self.limits.patience / SHORT_PATIENCE <= now {
            let part = oldest.part.as_mut()?;
            return Some((part.namespace, part.range.take()?));
        }
        let share = |flight: &Flight| flight.range().map_or(0.0, |range| range.share());
        let longest = others.into_iter().max_by(|a, b| share(a).total_cmp(&share(b)))?;
        let part = longest.part.as_mut()?;
        let [kept, given] = part.range?.halves()?;
        part.range = Some(kept);
        Some((part.namespace, given))
    }

    /// Takes back what was asked for too long ago.
    fn give_up_late(&mut self, now: Duration) {
        let is_late = |flight: &mut Flight| flight.since + self.limits.patience <= now;
        let late: Vec<Flight> = self.flights.extract_if(.., is_late).collect();
        for flight in late {
            self.record_failure(flight.server, now, None);
            self.give_back(flight.part.as_ref());
        }
    }

    fn give_back(&mut self, part: Option<&PartFlight>) {
        if let Some(PartFlight { namespace, range: Some(range), .. }) = part {
            self.namespaces[*namespace].free.push(*range);
        }
    }

    fn record_failure(&mut self, server: u32, now: Duration, refusal: Option<&Refusal>) {
        self.progress.refused += 1;
        let record = self.servers.entry(server).or_default();
        let rest = match refusal {
            Some(Refusal::Busy(rest)) => (*rest).clamp(REST, LONG_REST),
            _ => LONG_REST.min(REST * 2_u32.saturating_pow(record.failures)),
        };
        record.lacks_state = matches!(refusal, Some(Refusal::Gone { .. } | Refusal::Unknown));
        record.failures += 1;
        record.rests_until = now + rest;
    }

    /// Judges the answer to a question ([`Ticket::judge`]) and takes it; or takes the reason why there is none.
    ///
    /// # Errors
    /// As [`Self::take_judged`].
    pub fn take(
        &mut self,
        of: Ticket,
        answer: Result<&[u8], Refusal>,
        now: Duration,
    ) -> Result<Judgement> {
        match answer {
            Ok(_) if self.flight(of.number).is_none() => Ok(Judgement::Late),
            Ok(answer) => self.take_judged(of.judge(answer), now),
            Err(refusal) => {
                let Some(Flight { server, part, .. }) = self.end_flight(of.number) else {
                    return Ok(Judgement::Late);
                };
                self.record_failure(server, now, Some(&refusal));
                self.give_back(part.as_ref());
                Ok(Judgement::Refused)
            }
        }
    }

    /// Takes an answer that was judged: keeps it, or excludes the server that has lied.
    ///
    /// # Errors
    /// [`Error::Folder`] when a right answer cannot be written: its range is asked for again.
    pub fn take_judged(&mut self, judged: Judged<'_>, now: Duration) -> Result<Judgement> {
        let Judged { ticket, answer, found } = judged;
        let Some(Flight { server, mut part, .. }) = self.end_flight(ticket) else {
            return Ok(Judgement::Late);
        };
        let mut judgement = Judgement::Kept;
        match (found, &mut part) {
            (Err(what), part) => {
                self.give_back(part.as_ref());
                self.exclude(server, what);
                return Ok(Judgement::Lie(what));
            }
            (Ok(Found::Part(verified)), Some(part)) => {
                part.range = part.range.or_else(|| self.take_range(part));
                match part.range {
                    Some(range) => self.keep(part, range, &verified, answer)?,
                    None => judgement = Judgement::Late,
                }
            }
            // Two servers may have been asked.
            (Ok(Found::Roots(roots)), _) if self.namespaces.is_empty() => {
                self.frames.keep_roots(answer)?;
                self.begin(roots.iter().map(|(number, root)| (number, *root)))?;
            }
            (Ok(_), _) => {}
        }
        let record = self.servers.entry(server).or_default();
        (record.failures, record.lacks_state, record.rests_until) = (0, false, now);
        Ok(judgement)
    }

    /// Takes a range from the server that was asked for it as well, or from those that nobody is asked for; `None` when it
    /// is kept.
    fn take_range(&mut self, of: &PartFlight) -> Option<KeyRange> {
        let begins = |range: &KeyRange| range.first == of.asked.first;
        let parts = self.flights.iter_mut().filter_map(|flight| flight.part.as_mut());
        for part in parts.filter(|part| part.namespace == of.namespace) {
            if part.range.as_ref().is_some_and(begins) {
                return part.range.take();
            }
        }
        let free = &mut self.namespaces[of.namespace].free;
        free.iter().position(begins).map(|at| free.remove(at))
    }

    fn flight(&self, ticket: u64) -> Option<usize> {
        self.flights.iter().position(|flight| flight.ticket == ticket)
    }

    fn end_flight(&mut self, ticket: u64) -> Option<Flight> {
        self.flight(ticket).map(|at| self.flights.remove(at))
    }

    /// A server that has lied is asked no more, and what it was asked for is for others.
    fn exclude(&mut self, server: u32, what: &'static str) {
        self.servers.entry(server).or_default().has_lied = true;
        self.progress.lies.push((server, what));
        let others: Vec<Flight> =
            self.flights.extract_if(.., |flight| flight.server == server).collect();
        for flight in others {
            self.give_back(flight.part.as_ref());
        }
    }

    fn keep(
        &mut self,
        part: &PartFlight,
        range: KeyRange,
        verified: &VerifiedPart,
        answer: &[u8],
    ) -> Result<()> {
        let Namespace { number, root, .. } = self.namespaces[part.namespace];
        let held = KeyRange { first: part.asked.first, last: verified.end };
        if let Err(error) = self.frames.keep(number, root, held, answer) {
            self.give_back(Some(part));
            return Err(error);
        }
        self.progress.pairs += verified.count;
        if let Some(rest) = range.behind(&verified.end) {
            self.namespaces[part.namespace].free.push(rest);
        }
        Ok(())
    }

    /// How far the fetch is.
    pub fn progress(&self) -> Progress {
        let flown = self.flights.iter().filter_map(Flight::range);
        let free = self.namespaces.iter().flat_map(|namespace| namespace.free.iter().copied());
        let left: f64 = free.chain(flown.clone()).map(|range| range.share()).sum();
        let begun = !self.namespaces.is_empty();
        let filled = self.namespaces.iter().filter(|one| one.root != TERMINATOR).count();
        #[expect(clippy::cast_precision_loss, reason = "at most 256")]
        let share = if begun { 1.0 - left / filled.max(1) as f64 } else { 0.0 };
        let mut asked = self.servers.values().filter(|server| !server.has_lied).peekable();
        Progress {
            share,
            bytes: self.frames.bytes(),
            in_flight: self.flights.len(),
            gone: asked.peek().is_some() && asked.all(|server| server.lacks_state),
            done: begun
                && flown.count() == 0
                && self.namespaces.iter().all(|namespace| namespace.free.is_empty()),
            ..self.progress.clone()
        }
    }

    /// Loads all that was fetched into a new database, and removes the folder of the fetch. Until it is complete nothing
    /// else opens the database ([`pleach_ops::open_unfinished`]); a load that was cut off goes on with the first namespace
    /// that is missing. `database` changes the options, which are those of a new database with the target's hasher.
    ///
    /// Blocks until the database is durable.
    ///
    /// # Errors
    /// [`Error::Incomplete`]; [`Error::Damaged`]; [`Error::Folder`]; [`Error::Db`]: those of
    /// [`Db::open`](pleach::Db::open) and [`Db::bulk_load`](pleach::Db::bulk_load). A later load can go on.
    pub fn load(mut self, folder: &Path, database: impl FnOnce(Options) -> Options) -> Result<Db> {
        self.frames.sync()?;
        if self.namespaces.is_empty() {
            return Err(Error::Incomplete { namespace: 0 });
        }
        for namespace in &self.namespaces {
            if namespace.root != TERMINATOR && !self.frames.missing(namespace.number).is_empty() {
                return Err(Error::Incomplete { namespace: namespace.number });
            }
        }
        let options = Options::new(folder).create(true).hasher(self.target.hasher);
        let db = open_unfinished(database(options))?;
        for Namespace { number, root, .. } in &self.namespaces {
            if db.roots().get(*number).is_none() {
                db.add_namespace(*number)?;
            }
            if db.roots().get(*number) == Some(*root) {
                continue;
            }
            let load = LoadOptions::new().namespace(*number).root(*root);
            let loaded = db.try_bulk_load(held_pairs(&self.frames, *number), &load);
            match loaded {
                // The pairs are not those that were verified.
                Err(Error::Damaged { .. } | Error::Db(pleach::Error::OtherRoot { .. })) => {
                    return Err(self.set_damage_aside());
                }
                done => _ = done?,
            }
        }
        db.sync()?;
        finish(folder)?;
        self.frames.remove()?;
        Ok(db)
    }

    /// Removes the folder of the fetch: what was fetched is not wanted, or is loaded.
    ///
    /// # Errors
    /// [`Error::Folder`].
    pub fn discard(self) -> Result<()> {
        self.frames.remove()
    }

    /// Sets aside the frames that are not what they were, and says how many.
    fn set_damage_aside(&mut self) -> Error {
        let hasher = self.target.hasher;
        let is_bad = |frames: &Frames, frame: &Frame| {
            let KeyRange { first, last } = frame.range;
            let body = frames.read(frame)?;
            let verified = body.map(|body| verify_part(&body, hasher, &frame.root, &first, &last));
            Ok(!matches!(verified, Some(Ok(found)) if found.end == last))
        };
        match self.frames.set_aside(is_bad) {
            Ok(parts) => Error::Damaged { parts },
            Err(error) => error,
        }
    }
}

/// The pairs of a namespace in order, from its frames.
fn held_pairs(frames: &Frames, namespace: u8) -> impl Iterator<Item = Result<(Key, Value)>> {
    let damaged = || Error::Damaged { parts: 1 };
    let of = move |frame| {
        let body = frames.read(frame)?.ok_or_else(damaged)?;
        let pairs = Part::parse(&body).map_err(|_| damaged())?.pairs;
        let pairs = pairs.map(|pair| pair.map(|(key, value)| (key, Value::from(value))));
        pairs.collect::<Result<Vec<_>, _>>().map_err(|_| damaged())
    };
    let pairs = frames.of(namespace).flat_map(move |frame| {
        let (pairs, error) =
            of(frame).map_or_else(|error| (Vec::new(), Some(error)), |pairs| (pairs, None));
        pairs.into_iter().map(Ok).chain(error.map(Err))
    });
    // Frames may overlap.
    let mut last = None;
    pairs.filter(move |pair| match pair {
        Ok((key, _)) if last.is_some_and(|last| last >= *key) => false,
        Ok((key, _)) => {
            last = Some(*key);
            true
        }
        Err(_) => true,
    })
}
