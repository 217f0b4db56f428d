//! A light client: it keeps a root, gets a witness, and knows the new root and what was read,
//! without a database. The part below `verify` needs the crate `pleach-core` alone (`no_std`).
//!
//! `cargo run --release --example light_client`

use pleach::{Access, Db, Options, SessionOptions, Value};
use pleach_core::proof::Lookup;
use pleach_core::{Hasher, Node, proof::witness};

/// What the client does with a block: believes nothing but the root it knows.
fn verify(
    known: &Node,
    bytes: &[u8],
    key: &[u8; 32],
) -> Result<(Node, bool), Box<dyn std::error::Error>> {
    let verified = witness::verify(Hasher::BLAKE3, bytes, known)?;
    let present = matches!(verified.get(key), Lookup::Present(_));
    Ok((*verified.new_root(), present))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let db = Db::open(Options::new(folder.path()).create(true))?;
    let key = Hasher::BLAKE3.hash(b"account 7");
    let mut known = db.root();
    for round in 0..3u64 {
        let others = (0..100u64).map(|id| {
            let value = Value::from(&round.to_be_bytes()[..]);
            Access::write(Hasher::BLAKE3.hash(&(1000 * round + id).to_be_bytes()), Some(value))
        });
        let mut accesses: Vec<Access> = others.collect();
        accesses.push(Access::read_write(key, Some(Value::from(&b"seen"[..]))));
        let mut block = db.session(SessionOptions::new())?.finish(accesses)?;
        let witness = block.take_witness().expect("asked for");
        block.commit()?;

        let (next, present) = verify(&known, &witness, &key)?;
        println!("round {round}: {} bytes, account 7 was there before: {present}", witness.len());
        known = next;
        assert_eq!(known, db.root());

        // A forged witness is refused.
        let mut forged = witness.to_vec();
        let last = forged.len() - 1;
        forged[last] ^= 1;
        assert!(verify(&db.root(), &forged, &key).is_err());
    }
    Ok(())
}
