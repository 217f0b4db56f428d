//! Writes a few inputs for each target, so that the fuzzer need not find the format by itself.

use std::{fs, io, path::Path, time::Duration};

use pleach::{Access, Db, Geometry, Options, SessionOptions, Value};
use pleach_core::Hasher;
use pleach_core::proof::{block, namespace, roots::NamespaceRoots};
use pleach_fuzz::Input;
use pleach_fuzz::sim::unrecorded;
use pleach_io::PAGE;
use pleach_io::sim::{Image, SimDisk, SimRuntime};
use pleach_journal::format::names;
use pleach_sync::{Ask, Fetch, Judgement, Limits, PartAsk, Server, Target};

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let save = |target: &str, name: u8, bytes: &[u8]| {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("seed-{name}")), bytes)
    };
    for seed in 0..6u8 {
        let stream = stream(seed, 40 * usize::from(seed) + 8);
        for target in ["multi_verify", "update_verify", "proof_soundness", "witness_roundtrip"] {
            save(target, seed, &stream)?;
        }
        // Odd: a proof of the input's own shape.
        let shaped = [&[1], &stream[..]].concat();
        save("range_verify", seed, &shaped)?;
        save("change_verify", seed, &shaped)?;
        save("range_soundness", seed, &self::stream(seed, 60 * usize::from(seed) + 40))?;
        save("nomt_import", seed, &self::stream(seed, 12 * usize::from(seed)))?;
        for target in ["api_model", "crash_schedule", "open_dir", "treelet_fold"] {
            save(target, seed, &self::stream(seed, 80 * usize::from(seed) + 40))?;
        }
        let mut input = Input(&stream);
        let (set, ops) = (input.set(), input.ops());
        let keys: Vec<_> = ops.iter().map(|op| op.key).chain([[seed; 32]]).collect();
        let root = set.root(Hasher::BLAKE3);
        let with_root = |bytes: Vec<u8>| [root.to_bytes().to_vec(), bytes].concat();
        let encoded = "small enough for the format";
        let witness = set.witness(Hasher::BLAKE3, &ops).encode(Hasher::BLAKE3).expect(encoded);
        save("witness_decode", seed, &with_root(witness))?;
        let multi = set.multi(Hasher::BLAKE3, &keys).encode(Hasher::BLAKE3).expect(encoded);
        save("proof_decode", seed, &with_root(multi))?;
        let path = set.path(Hasher::BLAKE3, &keys[0]).encode(Hasher::BLAKE3).expect(encoded);
        save("proof_decode", 100 + seed, &with_root(path.clone()))?;
        // Even: the bytes of a proof, behind choice and keys of the range and the roots.
        let (first, last) = ([0; 32], [0xff; 32]);
        let head = [0, 0, 0, 0, 0, 0];
        let range = set.range(Hasher::BLAKE3, &first, &last);
        save("range_verify", 100 + seed, &[&head[..], root.as_bytes(), &range].concat())?;
        let mut to = set.clone();
        to.apply(&ops);
        let change = set.change(Hasher::BLAKE3, &to, &first, &last);
        let roots = [root.to_bytes(), to.root(Hasher::BLAKE3).to_bytes()].concat();
        let bytes = [&head[..], &roots, &change].concat();
        save("change_verify", 100 + seed, &bytes)?;
        // Even: a root over all, and the bytes of a block or of a proof through it.
        save("block_verify", seed, &shaped)?;
        save("block_soundness", seed, &self::stream(seed, 90 * usize::from(seed) + 40))?;
        let roots =
            NamespaceRoots::from_iter([(seed, root), (0x80, root), (0x81, Default::default())]);
        let witness = set.witness(Hasher::BLAKE3, &ops).encode(Hasher::BLAKE3).expect(encoded);
        let parts = [
            block::NamespaceClaim {
                ns: seed,
                after: Some(to.root(Hasher::BLAKE3)),
                witness: Some(&witness),
            },
            block::NamespaceClaim { ns: 0x81, after: None, witness: None },
        ];
        let behind_root =
            |bytes: &[u8]| [&[0], &roots.over_all(Hasher::BLAKE3).to_bytes()[..], bytes].concat();
        if let Ok(block) = block::build(Hasher::BLAKE3, &roots, &parts) {
            save("block_verify", 100 + seed, &behind_root(&block))?;
        }
        let through = namespace::build(Hasher::BLAKE3, &roots, 0x80, &path).expect(encoded);
        save("block_verify", 200 + seed, &behind_root(&through))?;
        let image = database(seed);
        let file = |name: &str| image.file(name).expect("a file of every database").to_vec();
        // To be signed for the database that the target scans; open, and closed.
        let log = file(&names::segment_name(0));
        for (name, flags) in (2 * seed..).zip([1, 0x81]) {
            save("log_scan", name, &[&[flags], filled(&log)].concat())?;
        }
        let mut stream = Vec::new();
        let disk = SimDisk::from_image(&image, 1);
        let reader = pleach_fuzz::sim::reader(&disk).expect("opens");
        pleach_ops::export::export(&reader.snapshot().expect("a session"), &mut stream)
            .expect("exported");
        // As it is, and as the blocks that the target makes of its input.
        save("export_stream", seed, &stream)?;
        save("export_stream", 100 + seed, &blocks(&stream))?;
        let stream = changes(seed);
        save("export_stream", 50 + seed, &stream)?;
        save("export_stream", 150 + seed, &blocks(&stream))?;
        for (name, text) in (4 * seed..).zip(asks(seed)) {
            save("sync_ask", name, text.as_bytes())?;
        }
        save("sync_part", seed, &self::stream(seed, 120 * usize::from(seed) + 60))?;
        save("sync_frames", seed, &frames(seed)?)?;
        let superblocks = file("super");
        let slots = superblocks.chunks(PAGE).map(filled).filter(|slot| !slot.is_empty());
        for (name, slot) in (2 * seed..).zip(slots) {
            save("superblock_parse", name, slot)?;
        }
    }
    Ok(())
}

/// The text of each kind of question.
fn asks(seed: u8) -> [String; 4] {
    let (root, to) = ([seed; 32].into(), [0xff; 32].into());
    let (first, last, bytes) = ([0; 32], [0xff; 32], u32::from(seed));
    let part = PartAsk { root, namespace: seed, first, last, bytes };
    let asks = [Ask::Head, Ask::Roots(root), Ask::Part(part), Ask::Changes { from: root, to }];
    asks.map(|ask| ask.to_string())
}

/// The parts of a fetch of a few pairs, cut off.
fn frames(seed: u8) -> io::Result<Vec<u8>> {
    let (db, _) = create(seed, 5);
    let put = |id: u8| Access::write([id; 32], Some(Value::from(&[id; 9])));
    let session = db.session(SessionOptions::new()).expect("a session");
    session.finish((0..9).map(put)).expect("finished").commit().expect("committed");
    let target = Target::namespace(0, db.root(), Hasher::BLAKE3);
    let server = Server::new(db, Limits::default());
    server.refresh().expect("refreshed");
    let folder = tempfile::tempdir()?;
    let mut fetch = Fetch::open(folder.path(), target, Limits::default()).expect("opened");
    for _ in 0..=seed {
        let (ticket, ask) = fetch.ask(0, Duration::ZERO).expect("64 ranges");
        let mut answer = Vec::new();
        let answered = server.answer(&ask, &mut answer).map(|()| answer.as_slice());
        assert_eq!(fetch.take(ticket, answered, Duration::ZERO).expect("taken"), Judgement::Kept);
    }
    let mut parts = fs::read(folder.path().join("parts"))?;
    parts.truncate(parts.len() - usize::from(seed) * 9);
    Ok(parts)
}

/// A change stream: a key comes, one changes, one goes, as does a namespace.
fn changes(seed: u8) -> Vec<u8> {
    let (db, _) = create(seed, 5);
    let put = |id: u8, value: Option<u8>| {
        Access::write([id; 32], value.map(|value| Value::from(&[value; 9])))
    };
    let commit = |accesses: Vec<Access>| {
        let session = db.session(SessionOptions::new()).expect("a session");
        session.finish(accesses).expect("finished").commit().expect("committed");
    };
    commit(vec![put(1, Some(1)), put(2, Some(seed))]);
    db.add_namespace(seed + 1).expect("added");
    commit(vec![
        put(1, None),
        put(2, Some(seed + 1)),
        put(seed + 9, Some(3)).in_namespace(seed + 1),
    ]);
    let (mut stream, [older, newer]) = (Vec::new(), [1, 3].map(|at| db.at(at).expect("a commit")));
    pleach_ops::export::export_changes(&older, &newer, &mut stream).expect("written");
    stream
}

/// Kind, length and payload of each block of a stream.
fn blocks(mut stream: &[u8]) -> Vec<u8> {
    let mut blocks = Vec::new();
    while let Some((header, rest)) = stream.split_first_chunk::<24>() {
        let length = u16::from_le_bytes([header[8], header[9]]);
        let (payload, rest) = rest.split_at(length.into());
        blocks.extend([&[header[4]], &length.to_le_bytes()[..], payload].concat());
        stream = rest;
    }
    blocks
}

/// Without the zeros at the end, which the targets put there.
fn filled(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &bytes[..end]
}

/// A new database, and its disk.
fn create(seed: u8, history: u64) -> (Db, SimDisk) {
    let disk = SimDisk::new(seed.into(), unrecorded());
    let runtime = SimRuntime::with_clock(seed.into(), disk.clock(), 1);
    let options = Options::new("sim").create(true).cache_kib(512).threads(1).history(history);
    let options = options.geometry(Geometry::least());
    (Db::open_on(&disk, runtime, options).expect("created"), disk)
}

/// A database with a few commits, location records and checkpoints, all within its first log segment.
fn database(seed: u8) -> Image {
    let (db, disk) = create(seed, 0);
    for commit in 0..=seed.min(2) {
        let session = db.session(SessionOptions::new()).expect("a session");
        let access = |id: u8| Access::write([id * 16 + seed; 32], Some(Value::from(&[commit; 8])));
        let block = session.finish((0..=seed).map(access)).expect("finished");
        block.commit().expect("committed");
        if seed % 2 == 1 {
            db.drain(0).expect("flushed");
        }
    }
    if seed < 3 {
        // A close leaves a checkpoint and a record of its own.
        db.close().expect("closed");
    }
    disk.image()
}

/// A stream of bytes that all structures are cut from.
fn stream(seed: u8, len: usize) -> Vec<u8> {
    let mut state = u32::from(seed).wrapping_mul(0x9e37_79b9) | 1;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(len).collect()
}
