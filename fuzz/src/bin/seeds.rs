//! Writes a few inputs for each target, so that the fuzzer need not find the format by itself.

use std::{fs, io, path::Path};

use pleach_core::Blake3;
use pleach_fuzz::Input;

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
        for target in ["api_model", "crash_schedule", "open_dir"] {
            save(target, seed, &self::stream(seed, 80 * usize::from(seed) + 40))?;
        }
        let mut input = Input(&stream);
        let (set, ops) = (input.set(), input.ops());
        let keys: Vec<_> = ops.iter().map(|op| op.key).chain([[seed; 32]]).collect();
        let root = set.root::<Blake3>();
        let with_root = |bytes: Vec<u8>| [root.to_bytes().to_vec(), bytes].concat();
        let encoded = "small enough for the format";
        let witness = set.witness::<Blake3>(&ops).encode::<Blake3>().expect(encoded);
        save("witness_decode", seed, &with_root(witness))?;
        let multi = set.multi::<Blake3>(&keys).encode::<Blake3>().expect(encoded);
        save("proof_decode", seed, &with_root(multi))?;
        let path = set.path::<Blake3>(&keys[0]).encode::<Blake3>().expect(encoded);
        save("proof_decode", 100 + seed, &with_root(path))?;
    }
    Ok(())
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
