//! Blocks that are not final yet: a chain of overlays, a fork beside it, and a commit of the part
//! that has become final.
//!
//! `cargo run --release --example overlay_chain`

use pleach::{Access, Db, Error, Hasher, Options, SessionOptions, Value};

fn set(name: &str, value: &str) -> Access {
    Access::write(Hasher::BLAKE3.hash(name.as_bytes()), Some(Value::from(value.as_bytes())))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let db = Db::open(Options::new(folder.path()).create(true))?;

    let one = db.session(SessionOptions::new())?.finish(vec![set("a", "1")])?.into_overlay();
    let two =
        db.session(SessionOptions::new().over(&one))?.finish(vec![set("a", "2")])?.into_overlay();
    let three =
        db.session(SessionOptions::new().over(&two))?.finish(vec![set("b", "3")])?.into_overlay();
    let fork = db
        .session(SessionOptions::new().over(&one))?
        .finish(vec![set("a", "fork")])?
        .into_overlay();

    let read = |overlay| -> Result<_, Error> {
        db.session(SessionOptions::new().over(overlay))?.read(&Hasher::BLAKE3.hash(b"a"))
    };
    assert_eq!(read(&one)?.as_deref(), Some(&b"1"[..]));
    assert_eq!(read(&two)?.as_deref(), Some(&b"2"[..]));
    assert_eq!(read(&fork)?.as_deref(), Some(&b"fork"[..]));

    // One and two become final, as one commit. Three stands on it; the fork is stale.
    let number = two.commit()?;
    assert_eq!(db.root(), two.root());
    assert!(matches!(fork.commit(), Err(Error::StaleParent { .. })));
    println!("commit {number}, then {}", three.commit()?);
    assert_eq!(db.root(), three.root());
    Ok(())
}
