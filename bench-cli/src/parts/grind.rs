//! `nomt-bench grind`: keys that a trie may suffer from, beside keys that are hashes.

use std::collections::BTreeSet;
use std::path::Path;

use pleach::{Blake3, Key, Node, SessionOptions};
use pleach_core::proof;

use super::engine::{check, commit, open, root_of_load, wrap};
use super::{Sheet, draws, sheet};
use crate::args::parts::GrindArgs;
use crate::backend::{Kind, check as offline_check};
use crate::draws::Draws;
use crate::error::{BenchError, Result};
use crate::interrupt;
use crate::measure::{Phase, Quantiles, float, ratio};
use crate::progress::Progress;
use crate::text::counted;

/// Commits that the keys come in.
const COMMITS: usize = 20;
/// Keys whose paths are looked at.
const PATHS: usize = 1000;

/// A shape of keys.
#[derive(Clone, Copy)]
enum Shape {
    Uniform,
    /// This many equal bits in front.
    Shared(u32),
    Sequential,
    LastByte,
}

const SHAPES: [(&str, Shape); 7] = [
    ("uniform", Shape::Uniform),
    ("shared 40", Shape::Shared(40)),
    ("shared 48", Shape::Shared(48)),
    ("shared 56", Shape::Shared(56)),
    ("shared 64", Shape::Shared(64)),
    ("sequential", Shape::Sequential),
    ("last byte", Shape::LastByte),
];

impl Shape {
    fn key(self, random: &mut Draws, number: u64) -> Key {
        let mut key = [0; 32];
        for part in key.chunks_exact_mut(8) {
            part.copy_from_slice(&random.bits().to_be_bytes());
        }
        match self {
            Self::Uniform => {}
            Self::Shared(bits) => {
                let bytes = bits as usize / 8;
                key[..bytes].fill(0xa5);
            }
            Self::Sequential => {
                key = [0; 32];
                key[24..].copy_from_slice(&number.to_be_bytes());
            }
            Self::LastByte => {
                key = [0x5a; 32];
                key[29..].copy_from_slice(&number.to_be_bytes()[5..]);
            }
        }
        key
    }

    fn keys(self, random: &mut Draws, count: u64) -> Vec<(Key, u64)> {
        let mut seen = BTreeSet::new();
        let mut pairs: Vec<(Key, u64)> = Vec::new();
        while (pairs.len() as u64) < count {
            let key = self.key(random, pairs.len() as u64);
            if seen.insert(key) {
                pairs.push((key, random.bits()));
            }
        }
        for at in (1..pairs.len()).rev() {
            pairs.swap(at, usize::try_from(random.below(at as u64 + 1)).expect("an index"));
        }
        pairs
    }
}

/// What became of a shape.
struct Figures {
    batch_ms: Quantiles,
    pages: u64,
    longest: u64,
    bytes_a_key: f64,
}

/// Measures all shapes; databases are made in a folder.
pub(crate) fn run(args: &GrindArgs, at: &Path, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
    let mut first: Option<Figures> = None;
    for (shape, (name, kind)) in (0..).zip(SHAPES) {
        interrupt::check()?;
        let mut random = draws(args.results.seed, shape);
        let pairs = kind.keys(&mut random, args.keys);
        let figures = grind(args, at, name, &pairs)?;
        let base = first.get_or_insert(Figures { ..figures });
        sheet.rows.push(sheet::Row {
            case: "finish and commit of a batch".to_owned(),
            subject: name.to_owned(),
            operations: args.keys.div_ceil(COMMITS as u64),
            round_ms: figures.batch_ms,
            bytes: None,
            count: None,
            ratio: figures.batch_ms.p50 / base.batch_ms.p50,
        });
        let counts = [
            ("leaf pages", float(figures.pages), float(base.pages)),
            ("longest path, siblings", float(figures.longest), float(base.longest)),
            ("bytes of files a key", figures.bytes_a_key, base.bytes_a_key),
        ];
        for (what, count, of) in counts {
            sheet.count(what, name, (what, count), of);
        }
        bar.at(shape + 1, SHAPES.len() as u64);
    }
    // By case, so that shapes stand below each other.
    let order = |row: &sheet::Row| {
        let cases = ["finish and commit of a batch", "leaf pages", "longest path, siblings"];
        cases.iter().position(|case| *case == row.case).unwrap_or(cases.len())
    };
    sheet.rows.sort_by_key(order);
    Ok(())
}

fn grind(args: &GrindArgs, at: &Path, name: &str, pairs: &[(Key, u64)]) -> Result<Figures> {
    let folder = tempfile::tempdir_in(at).map_err(BenchError::file(at))?;
    let db = open(folder.path(), args.storage.cache_mib())?;
    let mut batches = Phase::new();
    let mut root = Node::default();
    for pairs in pairs.chunks(pairs.len().div_ceil(COMMITS)) {
        let (turn, committed) = sheet::Turn::of(|| commit(&db, pairs));
        root = committed?;
        batches.record(turn.took);
    }
    let wrong = |what: &str| BenchError::Wrong(format!("{name}: {what}"));
    if root != root_of_load(at, pairs)? {
        return Err(wrong("the root is not that of a load"));
    }
    db.drain(0).map_err(wrap)?;
    check(&db, pairs)?;
    let session = db.session(SessionOptions::new()).map_err(wrap)?;
    let mut longest = 0;
    for (key, value) in pairs.iter().step_by(pairs.len().div_ceil(PATHS)) {
        let proof = session.prove(key).map_err(wrap)?;
        let verified = proof::path::verify::<Blake3>(&proof, &root)
            .map_err(|error| wrong(&format!("a path proof: {error}")))?;
        if verified.proves(key, Some(&value.to_le_bytes())) != Some(true) {
            return Err(wrong("a path proof has another value"));
        }
        let path = proof::PathProof::decode::<Blake3>(&proof)
            .map_err(|error| wrong(&format!("a path proof: {error}")))?;
        longest = longest.max(path.siblings.len() as u64);
    }
    drop(session);
    let pages = db.metrics().leaf_pages;
    db.close().map_err(wrap)?;
    let findings = offline_check(Kind::Pleach, folder.path())?;
    if let Some(finding) = findings.first() {
        return Err(wrong(&format!("{}: {finding}", counted(findings.len(), "finding"))));
    }
    let bytes = used(folder.path())?;
    let bytes_a_key = ratio(bytes, pairs.len() as u64);
    Ok(Figures { batch_ms: batches.quantiles(), pages, longest, bytes_a_key })
}

/// Bytes that the leaf and overflow files take on the device.
fn used(folder: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let mut bytes = 0;
    for name in ["leaf", "overflow"] {
        let file = folder.join(name);
        bytes += std::fs::metadata(&file).map_err(BenchError::file(&file))?.blocks() * 512;
    }
    Ok(bytes)
}
