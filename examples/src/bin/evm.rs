//! An EVM node in small: revm executes blocks of ether and token transfers, Pleach keeps accounts, storage and code.
//! The state for revm is in `pleach_examples::evm`, the contracts and blocks are in `pleach_examples::evm::chain`.
//!
//! `cargo run --release -p pleach-examples --bin evm [BLOCKS] [USERS]`
//!
//! BLOCKS (20, two at least) of 200 transactions and three more; USERS (10,000).

use std::path::Path;
use std::time::{Duration, Instant};

use pleach::range::with_prefix;
use pleach::{Db, Node, Options, Session, SessionOptions, proof::witness};
use pleach_examples::evm::chain::{TOKEN, VAULTS, WORDS, blocks, genesis, token_slot, user};
use pleach_examples::evm::{
    ACCOUNTS, Block, HASHER, Reader, STORAGE, account_key, account_value, create, execute, prove,
    proves, storage_key, storage_prefix, word_value,
};
use pleach_examples::{Result, begin};
use revm::Database as _;

fn main() -> Result<()> {
    begin()?;
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let count = arguments.next().transpose()?.unwrap_or(20).max(2);
    let users = arguments.next().transpose()?.unwrap_or(10_000);
    let blocks: Vec<Block> = blocks(count, users).collect();

    let folder = tempfile::tempdir()?;
    let options = |name: &str| options(&folder.path().join(name));
    let db = create(options("first"), genesis(users))?;
    for vault in VAULTS {
        assert_eq!(words(&db.snapshot()?, &vault)?, WORDS);
    }
    let run = extend(&db, &blocks)?;
    println!(
        "{count} blocks, {} transactions of which {} succeeded, {} reads, in {:.0?}",
        blocks.iter().map(|block| block.transactions.len()).sum::<usize>(),
        run.succeeded,
        run.reads,
        run.time
    );
    let root = *run.roots.last().expect("a block");
    println!("root {root}");

    // What a restart finds.
    db.close()?;
    let db = Db::open(options("first"))?;
    assert_eq!((db.roots().over_all(HASHER), &db.blob()[..]), (root, &count.to_be_bytes()[..]));
    println!("after a restart: block {count}, the same root");

    // Another node executes the same blocks.
    let other = create(options("second"), genesis(users))?;
    assert_eq!(extend(&other, &blocks)?.roots, run.roots);
    other.close()?;
    println!("on a second database: the same root after each block");

    let session = db.snapshot()?;
    let left = [words(&session, &VAULTS[0])?, words(&session, &VAULTS[1])?];
    assert_eq!(left, [0, WORDS], "EIP-6780 keeps the second one");
    assert_eq!(session.read(&account_key(&VAULTS[0]))?, None);
    println!(
        "destroyed under Shanghai: {} words of storage left; under Cancun: {}",
        left[0], left[1]
    );

    // A light client knows the root alone.
    let mut state = Reader::new(&session);
    let owner = user(7);
    let account = state.basic(owner)?.ok_or("user 7 has an account")?;
    let tokens = state.storage(TOKEN, token_slot(&owner))?;
    let key = account_key(&owner);
    let sent = prove(&session, ACCOUNTS, &key)?;
    assert!(proves(&sent, &root, ACCOUNTS, &key, Some(&account_value(&account)))?);
    let key = storage_key(&TOKEN, token_slot(&owner));
    let sent = prove(&session, STORAGE, &key)?;
    let word = word_value(tokens).ok_or("user 7 has tokens")?;
    assert!(proves(&sent, &root, STORAGE, &key, Some(&word))?);
    assert!(!proves(&sent, &root, STORAGE, &key, Some(b"another balance"))?);
    println!(
        "user 7 has {} wei and {tokens} tokens: proven, {} bytes",
        account.balance,
        sent.len()
    );
    drop(session);
    db.close()?;
    Ok(())
}

fn options(folder: &Path) -> Options {
    Options::new(folder).create(true).cache_mib(64).history(64)
}

/// The result of some blocks.
struct Run {
    roots: Vec<Node>,
    succeeded: usize,
    reads: usize,
    time: Duration,
}

/// Executes blocks and commits each, with its witness verified.
fn extend(db: &Db, blocks: &[Block]) -> Result<Run> {
    let since = Instant::now();
    let mut run = Run { roots: Vec::new(), succeeded: 0, reads: 0, time: Duration::ZERO };
    for (at, block) in blocks.iter().enumerate() {
        let next = blocks.get(at + 1);
        let mut done = execute(db.session(SessionOptions::new())?, block, next)?;
        // A verifier without a database goes from the old roots to the new ones by the witnesses.
        for (namespace, proven) in done.block.take_witnesses() {
            let before = done.block.prev_roots().get(namespace).ok_or("it has a witness")?;
            let verified = witness::verify(HASHER, &proven, &before)?;
            assert_eq!(Some(*verified.new_root()), done.block.roots().get(namespace));
        }
        run.roots.push(done.block.roots().over_all(HASHER));
        run.succeeded += done.succeeded;
        run.reads += done.reads;
        done.block.commit()?;
    }
    run.time = since.elapsed();
    Ok(run)
}

/// The number of words in the storage of an account.
fn words(session: &Session, of: &revm::primitives::Address) -> Result<u64> {
    let pairs = session.namespace(STORAGE)?.iter(with_prefix(&storage_prefix(of)));
    let mut count = 0;
    for pair in pairs {
        pair?;
        count += 1;
    }
    Ok(count)
}
