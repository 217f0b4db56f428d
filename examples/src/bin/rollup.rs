//! A rollup node in small: it imports a genesis, executes blocks in parallel, keeps blocks that are not final as overlays,
//! reorganises three blocks, restarts, and proves an old balance to a light client.
//!
//! `cargo run --release -p pleach-examples --bin rollup`

use std::collections::BTreeMap;
use std::path::Path;

use pleach::load::LoadOptions;
use pleach::proof::KeyProof;
use pleach::{Access, Db, Hasher, Node, Options, Overlay, Session, SessionOptions};
use pleach_examples::{Result, Transfer, account, balance, balance_of, begin, transfers, value};
use rayon::prelude::*;

const ACCOUNTS: u64 = 10_000;
/// A block is final when so many stand on it.
const FINAL: usize = 4;

fn main() -> Result<()> {
    begin()?;
    let folder = tempfile::tempdir()?;
    let genesis = genesis(folder.path())?;
    let mut node = Rollup::open(folder.path())?;
    assert_eq!(node.db.root(), genesis);

    for number in 1..=10 {
        node.extend(&transfers(number, ACCOUNTS))?;
    }
    let before = node.tip_root();
    println!("10 blocks, {} of them final, root {before}", node.db.commit_number() - 1);

    // Another branch wins: the last three blocks go, others come in their place.
    let others: Vec<_> = (11..=13).map(|number| transfers(100 + number, ACCOUNTS)).collect();
    node.reorganise(3, &others)?;
    println!("after a reorganisation of three blocks the root is {}", node.tip_root());
    assert_ne!(node.tip_root(), before);

    // A restart loses blocks that are not final; the sequencer gives them again.
    let (final_root, final_number) = (node.db.root(), node.db.commit_number());
    node.close()?;
    let mut node = Rollup::open(folder.path())?;
    assert_eq!((node.db.root(), node.db.commit_number()), (final_root, final_number));
    node.extend(&transfers(99, ACCOUNTS))?;

    // A light client knows the root of an old block and asks for a balance.
    let old = node.db.at(3)?;
    let (root, key) = (old.root(), account(7));
    let sent: Vec<u8> = old.prove(&key)?.into();
    let claimed = balance_of(&old, 7)?;
    let verified = KeyProof::from(sent).verify(Hasher::BLAKE3, &root)?;
    assert_eq!(verified.proves(&key, Some(&claimed.to_be_bytes())), Some(true));
    println!("account 7 had {claimed} at commit 3: proven to who knows root {root}");
    node.close()
}

/// Gives each account 1,000 tokens, in one load.
fn genesis(folder: &Path) -> Result<Node> {
    let db = Db::open(Options::new(folder).create(true).history(64).cache_mib(64))?;
    let report =
        db.bulk_load((0..ACCOUNTS).map(|id| (account(id), value(1_000))), &LoadOptions::new())?;
    db.close()?;
    Ok(report.root)
}

/// The node: a database with the final blocks, and a chain of overlays above it.
struct Rollup {
    db: Db,
    chain: Vec<Overlay>,
}

impl Rollup {
    fn open(folder: &Path) -> Result<Self> {
        let db = Db::open(Options::new(folder).history(64).cache_mib(64))?;
        Ok(Self { db, chain: Vec::new() })
    }

    fn tip_root(&self) -> Node {
        self.chain.last().map_or_else(|| self.db.root(), Overlay::root)
    }

    /// Executes a block on the tip, and commits the block that is final by it.
    fn extend(&mut self, transfers: &[Transfer]) -> Result<()> {
        let options = self
            .chain
            .last()
            .map_or_else(SessionOptions::new, |tip| SessionOptions::new().over(tip));
        let session = self.db.session(options.witness(false))?;
        let accesses = execute(&session, transfers)?;
        self.chain.push(session.finish(accesses)?.into_overlay());
        if self.chain.len() > FINAL {
            self.chain.remove(0).commit()?;
        }
        Ok(())
    }

    /// Leaves the last blocks, and extends what is below them.
    fn reorganise(&mut self, depth: usize, blocks: &[Vec<Transfer>]) -> Result<()> {
        self.chain.truncate(self.chain.len() - depth);
        blocks.iter().try_for_each(|block| self.extend(block))
    }

    fn close(self) -> Result<()> {
        drop(self.chain);
        self.db.close()?;
        Ok(())
    }
}

/// Executes transfers in order on balances that all threads have read together.
fn execute(session: &Session, transfers: &[Transfer]) -> Result<Vec<Access>> {
    let mut ids: Vec<u64> = transfers.iter().flat_map(|one| [one.from, one.to]).collect();
    ids.sort_unstable();
    ids.dedup();
    let keys: Vec<_> = ids.par_iter().map(|id| account(*id)).collect();
    session.prefetch(&keys);
    // Threads share the session.
    let read =
        ids.par_iter().zip(&keys).map(|(id, key)| Ok((*id, balance(session.read(key)?.as_ref())?)));
    let before: BTreeMap<u64, u64> = read.collect::<Result<_>>()?;
    let mut after = before.clone();
    for Transfer { from, to, amount } in transfers {
        let paid = after[from].min(*amount);
        *after.get_mut(from).expect("read") -= paid;
        *after.get_mut(to).expect("read") += paid;
    }
    assert_eq!(before.values().sum::<u64>(), after.values().sum::<u64>(), "tokens are kept");
    let access = |(id, balance): (&u64, &u64)| {
        if before[id] == *balance {
            Access::read(account(*id))
        } else {
            Access::read_write(account(*id), Some(value(*balance)))
        }
    };
    Ok(after.iter().map(access).collect())
}
