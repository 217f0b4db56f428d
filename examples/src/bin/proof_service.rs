//! A proof service on tokio: it answers requests of light clients over TCP beside a node that commits blocks. A request is a key of 32
//! bytes; the answer is the length of a proof and the proof, of the newest state, whose root the client has by other means.
//!
//! `cargo run --release -p pleach-examples --bin proof_service`

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use pleach::proof::KeyProof;
use pleach::{Access, Db, Hasher, Key, Node, Options, SessionOptions};
use pleach_examples::{Result, account, begin, transfers, value};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

const ACCOUNTS: u64 = 1_000;
/// Proofs that are made at the same time.
const AT_ONCE: usize = 8;

fn main() -> Result<()> {
    begin()?;
    let folder = tempfile::tempdir()?;
    let db = Db::open(Options::new(folder.path()).create(true).cache_mib(64))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build()?;
    let roots: Roots = Arc::default();
    commit(&db, 1, &roots)?;

    let (address, serving) = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        Ok::<_, std::io::Error>((address, tokio::spawn(serve(listener, db.clone()))))
    })?;
    // Clients ask while the node commits.
    let clients: Vec<_> =
        (0..20).map(|id| runtime.spawn(client(address, id, Arc::clone(&roots)))).collect();
    for number in 2..=20 {
        commit(&db, number, &roots)?;
    }
    for client in clients {
        runtime.block_on(client)??;
    }
    println!("20 clients have verified 200 proofs beside 20 commits");
    serving.abort();
    drop(runtime);
    db.close()?;
    Ok(())
}

/// What clients know of the chain: the root of each state, and the balances that it has, to check the answers here.
type Roots = Arc<Mutex<HashMap<Node, Arc<Vec<u64>>>>>;

/// Commits a block of the node.
fn commit(db: &Db, number: u64, roots: &Roots) -> Result<()> {
    let session = db.session(SessionOptions::new().witness(false))?;
    let balances: Vec<u64> =
        (0..ACCOUNTS).map(|id| number + transfers(number, ACCOUNTS)[0].amount + id).collect();
    let accesses =
        (0..).zip(&balances).map(|(id, balance)| Access::write(account(id), Some(value(*balance))));
    let block = session.finish(accesses)?;
    // Light clients hear of the root before the state can be asked for.
    roots.lock().expect("sound").insert(block.root(), Arc::new(balances));
    block.commit()?;
    Ok(())
}

async fn serve(listener: TcpListener, db: Db) -> Result<()> {
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let (stream, _) = listener.accept().await?;
        let (db, slots) = (db.clone(), Arc::clone(&slots));
        tokio::spawn(async move {
            if let Err(error) = answer(stream, db, &slots).await {
                eprintln!("a connection ended: {error}");
            }
        });
    }
}

/// Answers the requests of one connection.
async fn answer(mut stream: TcpStream, db: Db, slots: &Semaphore) -> Result<()> {
    let mut key: Key = [0; 32];
    while stream.read_exact(&mut key).await.is_ok() {
        let slot = slots.acquire().await?;
        // A proof may read pages: on a thread that may wait.
        let db = db.clone();
        let proof = tokio::task::spawn_blocking(move || db.snapshot()?.prove(&key)).await??;
        drop(slot);
        stream.write_all(&u32::try_from(proof.len())?.to_be_bytes()).await?;
        stream.write_all(&proof).await?;
    }
    Ok(())
}

/// A light client: it takes no answer that does not lead to a root of the chain.
async fn client(address: SocketAddr, id: u64, roots: Roots) -> Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    for round in 0..10 {
        let asked = (37 * id + round) % ACCOUNTS;
        let key = account(asked);
        stream.write_all(&key).await?;
        let mut bytes = vec![0; usize::try_from(stream.read_u32().await?)?];
        stream.read_exact(&mut bytes).await?;
        let proof = KeyProof::from(bytes);
        let known = roots.lock().expect("sound").clone();
        let right = known.iter().find_map(|(root, balances)| {
            let verified = proof.verify(Hasher::BLAKE3, root).ok()?;
            let balance = balances[usize::try_from(asked).expect("small")];
            verified.proves(&key, Some(&balance.to_be_bytes()))
        });
        assert_eq!(right, Some(true), "account {asked} of a known state");
    }
    Ok(())
}
