//! Embedding in a few lines: open, read, write, prove, commit.
//!
//! `cargo run --release --example embed`

use pleach::{Access, Db, Hasher, Options, SessionOptions, Value};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let db = Db::open(Options::new(folder.path()).create(true))?;
    let alice = Hasher::BLAKE3.hash(b"alice");

    let session = db.session(SessionOptions::new())?;
    assert_eq!(session.read(&alice)?, None);
    let mut block =
        session.finish(vec![Access::read_write(alice, Some(Value::from(&b"1000"[..])))])?;
    let witness = block.take_witness().expect("a session makes a witness unless told otherwise");
    let number = block.commit()?;

    println!("commit {number}, root {}, a witness of {} bytes", db.root(), witness.len());
    assert_eq!(db.session(SessionOptions::new())?.read(&alice)?.as_deref(), Some(&b"1000"[..]));
    db.close()?;
    Ok(())
}
