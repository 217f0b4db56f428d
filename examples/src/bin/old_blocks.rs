//! A node that answers Ethereum JSON-RPC for old blocks: balances, storage and proofs of each block of the last month,
//! from the history of Pleach. The chain is that of the example `evm`. The methods, and how a client verifies a proof,
//! are in `pleach_examples::rpc`; HTTP is in `pleach_examples::rpc::http`.
//!
//! `cargo run --release -p pleach-examples --bin old_blocks -- [BLOCKS] [USERS] [--folder FOLDER] [--serve ADDRESS]`
//!
//! BLOCKS (2,000, two at least) of 200 transactions and three more; USERS (10,000). The database is in FOLDER, where it
//! is used again, or in a temporary folder. Without `--serve` the node asks itself for old blocks, verifies what it
//! gets, and ends. With `--serve 127.0.0.1:8545` it answers until it is killed, which loses nothing:
//!
//! ```sh
//! curl -d '{"jsonrpc":"2.0","id":1,"method":"eth_getProof","params":["0xeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee",[],"0x2a"]}' http://127.0.0.1:8545
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use pleach::{Db, Node, Options, SessionOptions};
use pleach_examples::evm::chain::{TOKEN, blocks, genesis, token_slot, user};
use pleach_examples::evm::{HASHER, create, execute, number_of};
use pleach_examples::rpc::http::{Limits, serve};
use pleach_examples::rpc::{OldBlocks, bytes, quantity, verify};
use pleach_examples::{Result, begin};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

/// A month of blocks, one every two seconds.
const HISTORY: u64 = 1_296_000;
/// Blocks that the node asks itself for.
const ASKED: u64 = 50;

fn main() -> Result<()> {
    begin()?;
    let arguments = Arguments::read()?;
    let temporary = tempfile::tempdir()?;
    let folder = arguments.folder.as_deref().unwrap_or(temporary.path());
    let headers = extend(folder, arguments.blocks, arguments.users)?;

    // The history in memory is gone: from here on it is read from the device.
    let db = Db::open(options(folder))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let address = arguments.serve.as_deref().unwrap_or("127.0.0.1:0");
    let listener = runtime.block_on(TcpListener::bind(address))?;
    let address = listener.local_addr()?;
    println!("http://{address} answers for the blocks of the last month");
    let blocks = Arc::new(OldBlocks::new(db.clone())?);
    let serving = runtime.spawn(serve(listener, blocks, Limits::default()));
    if arguments.serve.is_some() {
        runtime.block_on(serving)?;
        return Ok(());
    }
    runtime.block_on(ask(address, &headers, arguments.users))?;
    serving.abort();
    drop(runtime);
    db.close()?;
    Ok(())
}

struct Arguments {
    blocks: u64,
    users: u64,
    folder: Option<PathBuf>,
    serve: Option<String>,
}

impl Arguments {
    fn read() -> Result<Self> {
        let (mut numbers, mut folder, mut serve) = (Vec::new(), None, None);
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--folder" => folder = Some(arguments.next().ok_or("--folder FOLDER")?.into()),
                "--serve" => serve = Some(arguments.next().ok_or("--serve ADDRESS")?),
                number => numbers.push(number.parse()?),
            }
        }
        let number = |at: usize, default| numbers.get(at).copied().unwrap_or(default);
        Ok(Self { blocks: number(0, 2_000).max(2), users: number(1, 10_000), folder, serve })
    }
}

fn options(folder: &Path) -> Options {
    Options::new(folder).create(true).cache_mib(64).history(HISTORY)
}

/// Executes blocks and commits each, unless the folder has some, and closes the database. Gives the roots of the
/// blocks, as headers have them.
fn extend(folder: &Path, count: u64, users: u64) -> Result<BTreeMap<u64, Node>> {
    let since = Instant::now();
    let db = create(options(folder), genesis(users))?;
    if number_of(&db.blob())? == 0 {
        let mut blocks = blocks(count, users).peekable();
        while let Some(block) = blocks.next() {
            let session = db.session(SessionOptions::new().witness(false))?;
            execute(session, &block, blocks.peek())?.block.commit()?;
        }
    }
    let mut headers = BTreeMap::new();
    for commit in db.history() {
        let commit = db.commit_at(commit)?;
        // The first commits have made the namespaces.
        if let Ok(block) = number_of(&commit.blob) {
            headers.insert(block, commit.roots.over_all(HASHER));
        }
    }
    db.close()?;
    let took = since.elapsed();
    let bytes = db.metrics().history_bytes;
    println!("{} blocks, {} MiB of history, in {took:.1?}", headers.len() - 1, bytes >> 20);
    Ok(headers)
}

/// A client that knows the headers of the chain asks for old blocks, and takes nothing that is not proven.
async fn ask(address: SocketAddr, headers: &BTreeMap<u64, Node>, users: u64) -> Result<()> {
    let mut client = Client::connect(address).await?;
    let newest = *headers.keys().next_back().ok_or("there are no blocks")?;
    assert_eq!(client.ask("eth_blockNumber", json!([])).await?, quantity(newest));

    let (mut times, mut sent) = (Vec::new(), 0);
    for at in 0..ASKED {
        let (number, owner) = (newest * at / ASKED, user(37 * at % users));
        let (root, block, address) = (&headers[&number], quantity(number), bytes(owner));
        let since = Instant::now();
        let proof = client.ask("eth_getProof", json!([address, [], block])).await?;
        times.push(since.elapsed());
        sent += proof.to_string().len();
        let (account, _) = verify(&proof, root, &owner, &[])?;
        let balance = client.ask("eth_getBalance", json!([address, block])).await?;
        assert_eq!(balance, quantity(account.unwrap_or_default().balance));

        let slot = token_slot(&owner);
        let (address, asked) = (bytes(TOKEN), quantity(slot));
        let proof = client.ask("eth_getProof", json!([address, [asked], block])).await?;
        let (_, words) = verify(&proof, root, &TOKEN, &[slot])?;
        let word = client.ask("eth_getStorageAt", json!([address, asked, block])).await?;
        assert_eq!(word, bytes(words[0].to_be_bytes::<32>()));
    }
    times.sort_unstable();
    println!(
        "{ASKED} blocks asked for: balances and storage are proven; a proof takes {} (worst {}) and {} bytes of JSON",
        milliseconds(times[times.len() / 2]),
        milliseconds(times[times.len() - 1]),
        sent / times.len()
    );

    let (address, slot) = (bytes(TOKEN), quantity(token_slot(&user(7))));
    let mut tokens = Vec::new();
    for block in [quantity(newest / 2), "latest".into()] {
        let word = client.ask("eth_getStorageAt", json!([address, slot, block])).await?;
        let digits = word.as_str().and_then(|text| text.strip_prefix("0x")).ok_or("a word")?;
        tokens.push(u64::from_str_radix(digits, 16)?);
    }
    println!("user 7 had {} tokens at block {}, and has {}", tokens[0], newest / 2, tokens[1]);
    let ahead = client.ask("eth_getBalance", json!([address, quantity(newest + 1)])).await;
    println!("{}", ahead.err().ok_or("a block that does not exist has an answer")?);
    Ok(())
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

/// One connection.
struct Client(SendRequest<Full<Bytes>>);

impl Client {
    async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self(sender))
    }

    /// The result of a call.
    async fn ask(&mut self, method: &str, parameters: Value) -> Result<Value> {
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": parameters });
        let request = Request::post("/").header(HOST, "node").body(call.to_string().into())?;
        self.0.ready().await?;
        let response = self.0.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        let mut answer: Value = serde_json::from_slice(&body)
            .map_err(|_| format!("{status}: {}", String::from_utf8_lossy(&body)))?;
        match answer.get("error") {
            Some(error) => {
                let message = error["message"].as_str().unwrap_or_default();
                Err(format!("error {}: {message}", error["code"]).into())
            }
            None => Ok(answer["result"].take()),
        }
    }
}
