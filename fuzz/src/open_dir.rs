//! A folder of a small database in which one file was changed, cut, made longer or taken away: it
//! is refused with an error, or every value, root and witness is right or an error, in each of its
//! namespaces and in each commit that its history still has.
//!
//! A commit at the log's end may be taken for torn and cut off: then the state is an earlier one, whole. Where the
//! change has a good checksum, which no accident has, values may be wrong; nothing may panic or hang all the same.
//!
//! Input: a byte without meaning, one for the folder, one for the file, then changes; what is left
//! says what is done to the database if it opens.

use std::sync::OnceLock;

use pleach::load::LoadOptions;
use pleach::{Access, Db, Durability, Error, Roots, Session, Value};
use pleach_core::Key;
use pleach_io::PAGE;
use pleach_io::sim::{Content, Damage, DamagedPage, Image, SimDisk};
use pleach_journal::format::record::{HEADER_LEN, MAGIC, body_checksum};
use pleach_ops::{CheckOptions, CheckReport, check_on};
use twox_hash::XxHash3_64;

use crate::Input;
use crate::model::{Draw, NAMESPACES, NEVER, State, add, session, shallow_keys};
use crate::sim::{Setup, reader, unrecorded};

/// Changes of one input.
const CHANGES: usize = 4;
/// Kinds of folders: see [`build`].
const KINDS: u8 = 8;
/// Namespaces that are asked for: those that may be there, and one that never is.
const ASKED: [u8; 5] = [0, NAMESPACES[0], NAMESPACES[1], NAMESPACES[2], NEVER];

/// A sound folder and its states by commit number.
struct Folder {
    image: Image,
    setup: Setup,
    states: Vec<State>,
}

/// One input.
pub fn run(data: &[u8]) {
    static FOLDERS: OnceLock<Vec<Folder>> = OnceLock::new();
    let folders = FOLDERS.get_or_init(|| (0..KINDS).map(build).collect());
    let mut draw = Draw::new(data);
    let folder = &folders[draw.below(folders.len())];
    let changed = Changed::draw(&folder.image, &mut draw.input);
    let disk = SimDisk::from_image_with(&changed.image(&folder.image), 1, unrecorded());
    if let Some(page) = changed.unreadable {
        let at = DamagedPage { file: changed.name.clone(), page };
        disk.damage(&Damage::Unreadable(at));
    }
    let claims = Claims::new(folder, &changed);
    let setup = Setup { create: false, ..folder.setup.clone() };
    let is_clean = look(&disk, &claims);
    work(&disk, &setup, &claims, is_clean, &mut draw);
}

fn setup(history: u64) -> Setup {
    Setup {
        create: true,
        flush_at: 2,
        cache_kib: 256,
        trie_cache_kib: Some(0),
        in_flight: 4,
        threads: 1,
        durability: Durability::Commit,
        history,
    }
}

/// Builds a folder with values of all kinds, pages and buffered changes. By bits of `kind`: loaded or not, closed or
/// not, with namespaces added and dropped and a history, or with neither.
fn build(kind: u8) -> Folder {
    let has_namespaces = kind & 4 != 0;
    let setup = setup(if has_namespaces { 3 } else { 0 });
    let disk = SimDisk::new(kind.into(), unrecorded());
    let (mut db, mut runtime) = setup.open(&disk, 1).expect("created");
    let bytes: Vec<u8> =
        (0..4000_u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 21) as u8).collect();
    let mut draw = Draw::new(&bytes);
    let keys: Vec<Key> = shallow_keys().collect();
    let mut states = vec![State::default()];
    if kind & 1 != 0 {
        let pairs: Vec<_> = keys[..24].iter().map(|key| (*key, draw.value())).collect();
        db.bulk_load(pairs.iter().cloned(), &LoadOptions::new().memory_mib(1)).expect("loaded");
        states.push(pairs.into_iter().collect());
    }
    for round in 0..6 {
        let state = &states[states.len() - 1];
        let mut accesses = Vec::new();
        for namespace in state.namespaces() {
            let first = 5 * round + usize::from(namespace);
            accesses.extend((0..6).map(|nth| {
                let value = (nth != 5).then(|| draw.value());
                let access = Access::read_write(keys[(first + nth) % keys.len()], value);
                access.in_namespace(namespace)
            }));
        }
        let (block, after) = state.finish(session(&db, true), &accesses, true);
        block.commit().expect("committed");
        states.push(after);
        if has_namespaces {
            come_and_go(&db, round, &mut states);
        }
        if round == 2 {
            db.drain(0).expect("drained");
        }
        runtime.step_some(3);
        if has_namespaces && round == 3 {
            // A dropped namespace is reclaimed further after a restart.
            (db, runtime) = {
                drop((db, runtime));
                setup.open(&disk, 2).expect("opens again")
            };
        }
    }
    if kind & 2 != 0 {
        db.close().expect("closed");
    } else {
        drop(db);
    }
    let folder = Folder { image: disk.image(), setup, states };
    let newest = folder.states.len() - 1;
    folder.states[newest].assert_on_disk(&disk, newest as u64);
    folder
}

/// Namespaces behind a round: three are there soon; one of them is dropped with what it has on pages, another one at
/// the end, and a rollback restores that.
fn come_and_go(db: &Db, round: usize, states: &mut Vec<State>) {
    let state = &states[states.len() - 1];
    let [one, two, three] = NAMESPACES;
    let (number, after) = match round {
        0 => (add(db, one), state.with(one, [])),
        1 => (add(db, three), state.with(three, [])),
        2 => (add(db, two), state.with(two, [])),
        3 => (db.drop_namespace(one), state.without(one)),
        4 => (db.drop_namespace(three), state.without(three)),
        _ => (db.rollback(2), states[states.len() - 3].clone()),
    };
    assert_eq!(number.expect("a commit"), states.len() as u64);
    states.push(after);
}

/// One file, changed.
struct Changed {
    name: String,
    /// The file's new name; `None`: it is removed.
    renamed: Option<String>,
    bytes: Vec<u8>,
    unreadable: Option<u64>,
    /// True when a change gets a valid checksum.
    forged: bool,
}

impl Changed {
    fn draw(image: &Image, input: &mut Input<'_>) -> Self {
        let names: Vec<&str> = image.names().collect();
        let name = names[usize::from(input.u8()) % names.len()].to_owned();
        let bytes = image.file(&name).expect("it has a name").to_vec();
        let renamed = Some(name.clone());
        let mut changed = Self { name, renamed, bytes, unreadable: None, forged: false };
        for _ in 0..CHANGES {
            if input.0.is_empty() {
                break;
            }
            changed.change(image, &names, input);
        }
        changed
    }

    fn change(&mut self, image: &Image, names: &[&str], input: &mut Input<'_>) {
        let what = input.u8() % 16;
        let page = usize::from(input.u8()) % self.bytes.len().div_ceil(PAGE).max(1);
        let at = (page * PAGE + usize::from(input.u16()) % PAGE).min(self.bytes.len());
        let other = names[usize::from(input.u8()) % names.len()];
        let len = usize::from(input.u8()).min(self.bytes.len() - at);
        match what {
            0..=2 if len > 0 => self.bytes[at] ^= input.u8().max(1),
            3 => self.bytes[at..at + len].fill(input.u8()),
            4 => self.bytes[at..at + len].fill_with(|| input.u8()),
            5 => self.bytes.truncate(at),
            6 => self.bytes.truncate(page * PAGE),
            7 => {
                let fill = input.u8();
                let more = usize::from(input.u8() % 3) * PAGE + len;
                self.bytes.resize(self.bytes.len() + more, fill);
            }
            8 => self.bytes[page * PAGE..].iter_mut().take(PAGE).for_each(|byte| *byte = 0),
            9 => {
                // Another page's bytes, of this file or another.
                let from = image.file(other).expect("it has a name").page(input.u8().into());
                let to = self.bytes[page * PAGE..].iter_mut();
                to.zip(from).for_each(|(to, from)| *to = *from);
            }
            10 => self.renamed = None,
            11 => self.bytes = image.file(other).expect("it has a name").to_vec(),
            12 => {
                let strange = ["super.new", "incarnation.new", "log.new", "CREATING", "LOCK"];
                let all = names.iter().chain(&strange).chain(&["node-spill", "log-9", "x"]);
                let all: Vec<_> = all.collect();
                self.renamed = Some((*all[usize::from(input.u8()) % all.len()]).to_owned());
            }
            13 => self.unreadable = Some(page as u64),
            _ => self.forge(page * PAGE, at, input),
        }
    }

    /// A change with a good checksum: of a log record, or of a page.
    fn forge(&mut self, page: usize, at: usize, input: &mut Input<'_>) {
        if at < self.bytes.len() {
            self.bytes[at] ^= input.u8();
        }
        let Some(bytes) = self.bytes.get_mut(page..page + PAGE) else { return };
        self.forged = true;
        if bytes[..4] == MAGIC.to_le_bytes() {
            return sign_record(&mut self.bytes[page..]);
        }
        let checksum = XxHash3_64::oneshot(&bytes[8..]);
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
    }

    fn image(&self, sound: &Image) -> Image {
        let taken = |name: &str| name == self.name || Some(name) == self.renamed.as_deref();
        let others = sound.names().filter(|name| !taken(name));
        let others = others.map(|name| (name, sound.file(name).expect("it has a name").clone()));
        let own = self.renamed.as_deref().map(|name| (name, Content::from_bytes(&self.bytes)));
        Image::from_files(others.chain(own))
    }
}

/// Gives the record at the start of `bytes` a good checksum, and the records behind it the links that they then need.
fn sign_record(bytes: &mut [u8]) {
    let (mut at, mut previous) = (0, None);
    while let Some(header) = bytes.get(at..at + HEADER_LEN)
        && header[..4] == MAGIC.to_le_bytes()
    {
        let word = |n: usize| u64::from_le_bytes(header[8 * n..8 * n + 8].try_into().expect("8"));
        let (len, database) = (word(1), word(2));
        let body = at + HEADER_LEN;
        let end = usize::try_from(len).ok().and_then(|len| body.checked_add(len));
        let Some(end) = end.filter(|end| *end <= bytes.len()) else { return };
        let sum = body_checksum(database, [&bytes[body..end]]);
        bytes[at + 56..at + 64].copy_from_slice(&sum.to_le_bytes());
        if let Some(previous) = previous {
            bytes[at + 48..at + 56].copy_from_slice(&u64::to_le_bytes(previous));
        }
        let checksum = XxHash3_64::oneshot_with_seed(database, &bytes[at..body - 8]);
        bytes[body - 8..body].copy_from_slice(&checksum.to_le_bytes());
        previous = Some(checksum);
        // The next record follows at once, or in the next block.
        at = end.next_multiple_of(8);
        if bytes.get(at..at + 4) != Some(&MAGIC.to_le_bytes()) {
            at = end.next_multiple_of(PAGE);
        }
    }
}

/// The states that the changed folder is compared with.
struct Claims<'a> {
    states: &'a [State],
    /// Only a change of the log or of a superblock may cost commits.
    least: usize,
    forged: bool,
}

impl<'a> Claims<'a> {
    fn new(folder: &'a Folder, changed: &Changed) -> Self {
        let costs = |name: &str| name.starts_with("log") || name.starts_with("super");
        let costs = costs(&changed.name) || changed.renamed.as_deref().is_some_and(costs);
        let least = if costs { 0 } else { folder.states.len() - 1 };
        Self { states: &folder.states, least, forged: changed.forged }
    }

    /// The state of a commit that was found.
    fn state(&self, number: u64) -> Option<&'a State> {
        if self.forged {
            return None;
        }
        let number = number as usize;
        assert!((self.least..self.states.len()).contains(&number), "commit {number} was found");
        Some(&self.states[number])
    }

    /// The state that the checker has found.
    fn reported(&self, report: &CheckReport) -> Option<&'a State> {
        let state = self.state(report.commit)?;
        assert_eq!(state.root(), report.root, "root of commit {}", report.commit);
        assert_eq!(state.namespaces().count() as u64, report.namespaces);
        Some(state)
    }

    /// The states up to the one that an open has found.
    fn opened(&self, number: u64, roots: &Roots) -> Option<Vec<State>> {
        let state = self.state(number)?;
        assert!(roots.iter().eq(state.roots()), "roots of commit {number}");
        Some(self.states[..=number as usize].to_vec())
    }
}

/// The tools that only read; true when they find a whole database.
fn look(disk: &SimDisk, claims: &Claims<'_>) -> bool {
    let Ok(report) = check_on(disk, CheckOptions::default()) else { return false };
    if !report.findings.is_empty() && report.root == pleach::Node::default() && report.pages == 0 {
        // It did not come to a state.
        return false;
    }
    let state = claims.reported(&report);
    for namespace in ASKED {
        let mut pairs: Vec<(Key, Value)> = Vec::new();
        let dumped = reader(disk).and_then(|reader| {
            let session = reader.snapshot()?;
            for pair in session.namespace(namespace)?.iter(..).take(1000) {
                pairs.push(pair?);
            }
            Ok(())
        });
        let Some(state) = state else { continue };
        if !state.has(namespace) {
            let is_told = matches!(dumped, Err(Error::Namespace(none)) if none == namespace);
            assert!(is_told || dumped.is_err() && !report.findings.is_empty(), "{dumped:?}");
            continue;
        }
        for (key, value) in &pairs {
            assert!(state.get_of(namespace, key) == Some(value), "the scan's {key:02x?}");
        }
        if dumped.is_ok() {
            let keys = state.keys_of(namespace);
            assert!(pairs.iter().map(|pair| &pair.0).eq(keys), "the scan's keys of {namespace}");
        } else {
            let is_told = !report.findings.is_empty();
            assert!(is_told, "a scan fails where the checker finds nothing: {dumped:?}");
        }
    }
    state.is_some() && report.findings.is_empty()
}

/// An open database: reads, some commits, a flush, a close, and an open of that.
fn work(disk: &SimDisk, setup: &Setup, claims: &Claims<'_>, is_clean: bool, draw: &mut Draw<'_>) {
    let Ok((db, _runtime)) = setup.open(disk, 2) else { return };
    let mut states = claims.opened(db.commit_number(), &db.roots());
    let failed = reads(&session(&db, false), states.as_ref().and_then(|states| states.last()));
    assert!(!is_clean || failed == 0, "reads fail where the checker finds nothing");
    past(&db, states.as_deref());
    for _ in 0..1 + draw.below(3) {
        if step(&db, &mut states, draw).is_none() {
            // The next open will show the result.
            return;
        }
    }
    let number = db.commit_number();
    let newest = || states.as_ref().and_then(|states| states.last());
    let drained = db.drain(0);
    reads(&session(&db, false), newest());
    let closed = db.close();
    // Quarantined pages do not keep others from being flushed.
    let goes_on = matches!(drained, Ok(()) | Err(Error::Quarantined { .. }));
    assert!(goes_on || closed.is_err(), "{drained:?} refuses what follows");
    let Ok((db, _runtime)) = setup.open(disk, 3) else { return };
    if let Some(after) = newest() {
        after.assert_tip_of(&db, number);
    }
    reads(&session(&db, false), newest());
    past(&db, states.as_deref());
}

/// One commit; none if it fails, as it may over damage. `states` are those of all commits, if they are known.
fn step(db: &Db, states: &mut Option<Vec<State>>, draw: &mut Draw<'_>) -> Option<()> {
    let model = states.as_ref().and_then(|states| states.last()).cloned().unwrap_or_default();
    let is_known = states.is_some();
    let before = db.commit_number();
    let (number, after) = match draw.below(8) {
        0 => {
            let namespace = draw.namespace();
            match add(db, namespace) {
                Ok(number) => {
                    assert!(!is_known || !model.has(namespace), "{namespace} was there");
                    (number, model.with(namespace, []))
                }
                Err(Error::NamespaceExists(_)) => {
                    assert!(!is_known || model.has(namespace), "{namespace} was not there");
                    return Some(());
                }
                Err(Error::NamespaceInUse { .. }) => {
                    assert!(!is_known || !model.has(namespace), "{namespace} was there");
                    return Some(());
                }
                Err(_) => return None,
            }
        }
        1 => {
            let namespace = draw.namespace();
            match db.drop_namespace(namespace) {
                Ok(number) => {
                    assert!(!is_known || model.has(namespace), "{namespace} was not there");
                    (number, model.without(namespace))
                }
                Err(Error::Namespace(_)) => {
                    assert!(!is_known || !model.has(namespace), "{namespace} was there");
                    return Some(());
                }
                Err(_) => return None,
            }
        }
        2 => {
            let back = draw.below(4) as u64 % (before - *db.history().start() + 1);
            let number = db.rollback(back).ok()?;
            if back == 0 {
                assert_eq!(number, before, "nothing to do");
                return Some(());
            }
            let then = |states: &Vec<State>| states[states.len() - 1 - back as usize].clone();
            (number, states.as_ref().map(then).unwrap_or_default())
        }
        _ => {
            let accesses = draw.batch(&model);
            let mut block = session(db, true).finish(accesses.clone()).ok()?;
            let after = model.after(&accesses);
            let witnesses = block.take_witnesses();
            if is_known {
                assert!(block.roots().iter().eq(after.roots()));
                model.assert_witnesses(&witnesses, &accesses, &after);
            }
            (block.commit().ok()?, after)
        }
    };
    assert_eq!(number, before + 1);
    if let Some(states) = states {
        states.push(after);
    }
    Some(())
}

/// Every commit that the history has is right, or an error.
fn past(db: &Db, states: Option<&[State]>) {
    for number in db.history() {
        let Ok(then) = db.at(number) else { continue };
        let state = states.map(|states| &states[number as usize]);
        if let Some(state) = state {
            assert!(then.roots().iter().eq(state.roots()), "roots of commit {number}");
        }
        reads(&then, state);
    }
}

/// Every value of all namespaces is right, or an error; so are those of `read_many`. Returns the number of errors.
fn reads(session: &Session, state: Option<&State>) -> usize {
    let all: Vec<Key> = shallow_keys().collect();
    let mut failed = 0;
    for number in ASKED {
        let there = state.map(|state| state.has(number));
        let namespace = match session.namespace(number) {
            Ok(namespace) => {
                assert!(there != Some(false), "namespace {number} is there");
                namespace
            }
            Err(error) => {
                let is_absent = matches!(error, Error::Namespace(none) if none == number);
                assert!(is_absent && there != Some(true), "namespace {number}: {error}");
                continue;
            }
        };
        let many = namespace.read_many(&all);
        failed += usize::from(many.is_err());
        for (at, key) in all.iter().enumerate() {
            let one = namespace.read(key);
            failed += usize::from(one.is_err());
            let Some(state) = state else { continue };
            for value in one.iter().chain(many.iter().map(|many| &many[at])) {
                assert!(value.as_ref() == state.get_of(number, key), "{number}: key {key:02x?}");
            }
        }
    }
    failed
}
