//! A node that serves old blocks says of each what a model says of it: revm's own state in memory, written down after
//! each block. What it proves leads to the root that the block had when it was committed.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pleach::{Db, Durability, Node, Options, SessionOptions};
use pleach_examples::evm::chain::{TOKEN, VAULTS, WORDS, blocks, genesis, token_slot, user};
use pleach_examples::evm::{
    ACCOUNTS, Block, CHAIN, HASHER, STORAGE, account_key, account_value, create, execute, proves,
    run, storage_key, word_value,
};
use pleach_examples::rpc::http::{Limits, serve};
use pleach_examples::rpc::{BATCH, OldBlocks, PROOFS, SLOTS, bytes, quantity, verify};
use revm::database::{CacheDB, EmptyDB};
use revm::primitives::{Address, B256, U256, hex};
use revm::state::AccountInfo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::in_memory::in_memory;

const BLOCKS: u64 = 300;
const USERS: u64 = 100;
/// Blocks before the newest one that are kept.
const HISTORY: u64 = 250;

/// The values by block: only the changes of each block.
#[derive(Default)]
struct Model {
    roots: Vec<Node>,
    accounts: HashMap<Address, BTreeMap<u64, Option<AccountInfo>>>,
    words: HashMap<(Address, U256), BTreeMap<u64, U256>>,
}

impl Model {
    fn write_down(&mut self, number: u64, root: Node, state: &CacheDB<EmptyDB>) {
        self.roots.push(root);
        for (address, account) in &state.cache.accounts {
            let versions = self.accounts.entry(*address).or_default();
            note(versions, number, account.info());
            for (slot, word) in &account.storage {
                note(self.words.entry((*address, *slot)).or_default(), number, *word);
            }
            // A destroyed contract has lost its slots.
            for ((of, slot), versions) in &mut self.words {
                if of == address && !account.storage.contains_key(slot) {
                    note(versions, number, U256::ZERO);
                }
            }
        }
    }

    fn account(&self, address: &Address, block: u64) -> Option<AccountInfo> {
        self.accounts.get(address).and_then(|versions| at(versions, block)).flatten()
    }

    fn word(&self, address: Address, slot: U256, block: u64) -> U256 {
        self.words
            .get(&(address, slot))
            .and_then(|versions| at(versions, block))
            .unwrap_or_default()
    }
}

fn note<T: PartialEq>(versions: &mut BTreeMap<u64, T>, number: u64, now: T) {
    if versions.values().next_back() != Some(&now) {
        versions.insert(number, now);
    }
}

fn at<T: Clone>(versions: &BTreeMap<u64, T>, block: u64) -> Option<T> {
    versions.range(..=block).next_back().map(|(_, version)| version.clone())
}

/// A node whose history is on the device, as it serves.
struct Served {
    db: Db,
    address: SocketAddr,
    runtime: Option<Runtime>,
    model: Model,
    state: CacheDB<EmptyDB>,
    count: u64,
    /// The last blocks, the first of them at the end.
    rest: Vec<Block>,
    _folder: tempfile::TempDir,
}

impl Served {
    fn new(count: u64, limits: Limits) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let options = || {
            let options = Options::new(folder.path()).create(true).small().cache_mib(64);
            options.history(HISTORY).durability(Durability::None)
        };
        let db = create(options(), genesis(USERS)).expect("created");
        let (mut model, mut state) = (Model::default(), in_memory(USERS));
        model.write_down(0, db.roots().over_all(HASHER), &state);
        let mut blocks = blocks(count, USERS);
        let mut rest: Vec<Block> = Vec::new();
        for block in blocks.by_ref() {
            if block.number > count - 2 {
                rest.push(block);
            } else {
                commit(&db, &block, &mut model, &mut state);
            }
        }
        db.close().expect("closed");
        let db = Db::open(options()).expect("opened");
        let runtime = Runtime::new().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("bound");
        let address = listener.local_addr().expect("bound");
        let blocks = OldBlocks::new(db.clone()).expect("a chain");
        runtime.spawn(serve(listener, Arc::new(blocks), limits));
        rest.reverse();
        Self { db, address, count, runtime: Some(runtime), model, state, rest, _folder: folder }
    }

    /// Commits one block more, while it serves.
    fn extend(&mut self) {
        let block = self.rest.pop().expect("a block is left");
        commit(&self.db, &block, &mut self.model, &mut self.state);
    }

    fn newest(&self) -> u64 {
        self.count - u64::try_from(self.rest.len()).expect("small")
    }

    fn end(mut self) {
        drop(self.runtime.take());
        self.db.close().expect("closed");
    }
}

fn commit(db: &Db, block: &Block, model: &mut Model, state: &mut CacheDB<EmptyDB>) {
    run(&mut *state, block).expect("executed");
    let session = db.session(SessionOptions::new().witness(false)).expect("a session");
    let executed = execute(session, block, None).expect("executed").block;
    model.write_down(block.number, executed.roots().over_all(HASHER), state);
    executed.commit().expect("committed");
}

/// A client by hand, over a connection that it keeps.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        Self(BufReader::new(stream))
    }

    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).expect("sent");
    }

    /// Status and body of a response.
    fn response(&mut self) -> (u16, String) {
        let (mut status, mut length) = (None, 0);
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("a line");
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(rest) = line.strip_prefix("http/1.1 ") {
                status = Some(rest[..3].parse().expect("a status"));
            }
            if let Some(rest) = line.strip_prefix("content-length: ") {
                length = rest.parse().expect("a length");
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).expect("a body");
        (status.expect("a status"), String::from_utf8(body).expect("text"))
    }

    fn post(&mut self, body: &str) -> (u16, String) {
        // In one piece: a second one would wait until the first is acknowledged.
        let length = body.len();
        self.send(&format!(
            "POST / HTTP/1.1\r\nHost: node\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        self.response()
    }

    fn answer(&mut self, body: &str) -> Value {
        let (status, answer) = self.post(body);
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(&answer).expect("JSON")
    }

    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        let call = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": parameters });
        let answer = self.answer(&call.to_string());
        assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(7)), "{answer}");
        answer
    }

    fn result(&mut self, method: &str, parameters: &Value) -> Value {
        let answer = self.call(method, parameters);
        assert!(answer.get("error").is_none(), "{method} {parameters}: {answer}");
        answer["result"].clone()
    }

    /// Code and message of a call that fails.
    fn failure(&mut self, method: &str, parameters: &Value) -> (i64, String) {
        let answer = self.call(method, parameters);
        assert!(answer.get("result").is_none(), "{method} {parameters}: {answer}");
        failed(&answer)
    }
}

fn failed(answer: &Value) -> (i64, String) {
    let code = answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {answer}"));
    (code, answer["error"]["message"].as_str().expect("a message").to_owned())
}

/// Asks for an account and a slot of it at a block, in all ways, and compares each answer with the model.
fn check(
    client: &mut Client,
    model: &Model,
    (address, slot): (Address, U256),
    block: u64,
    name: &Value,
) {
    let what = format!("{address} {slot} at block {block}");
    let (account, word) = (model.account(&address, block), model.word(address, slot, block));
    let root = &model.roots[usize::try_from(block).expect("small")];
    let info = account.clone().unwrap_or_default();

    let found = client.result("eth_getBalance", &json!([bytes(address), name]));
    assert_eq!(found, quantity(info.balance), "{what}");
    let found = client.result("eth_getStorageAt", &json!([bytes(address), quantity(slot), name]));
    assert_eq!(found, bytes(word.to_be_bytes::<32>()), "{what}");

    let proof = client.result("eth_getProof", &json!([bytes(address), [quantity(slot)], name]));
    assert_eq!(proof["blockNumber"], quantity(block), "{what}");
    assert_eq!(proof["stateRoot"], bytes(root.to_bytes()), "{what}");
    assert_eq!(proof["address"], bytes(address), "{what}");
    assert_eq!(proof["balance"], quantity(info.balance), "{what}");
    assert_eq!(proof["nonce"], quantity(info.nonce), "{what}");
    let code = account.as_ref().map_or(B256::ZERO, |account| account.code_hash);
    assert_eq!(proof["codeHash"], bytes(code), "{what}");
    assert_eq!(proof["storageProof"][0]["key"], bytes(slot.to_be_bytes::<32>()), "{what}");
    assert_eq!(proof["storageProof"][0]["value"], quantity(word), "{what}");

    // Each proof, against the root that the model has, by the verifier alone.
    let decoded = |proof: &Value| {
        assert_eq!(proof.as_array().map(Vec::len), Some(1), "{what}");
        hex::decode(proof[0].as_str().expect("text")).expect("hex")
    };
    let (sent, key) = (decoded(&proof["accountProof"]), account_key(&address));
    let value = account.as_ref().map(account_value);
    assert!(proves(&sent, root, ACCOUNTS, &key, value.as_deref()).expect("a proof"), "{what}");
    assert!(!proves(&sent, root, ACCOUNTS, &key, Some(b"other")).expect("a proof"), "{what}");
    let (sent, key) = (decoded(&proof["storageProof"][0]["proof"]), storage_key(&address, slot));
    let value = word_value(word);
    assert!(proves(&sent, root, STORAGE, &key, value.as_deref()).expect("a proof"), "{what}");
    assert!(!proves(&sent, root, ACCOUNTS, &key, value.as_deref()).expect("a proof"), "{what}");
    // And as a client does it, which takes nothing from another block.
    let (proven, words) = verify(&proof, root, &address, &[slot]).expect("proven");
    let contents = |info: AccountInfo| (info.balance, info.nonce, info.code_hash);
    assert_eq!((proven.map(contents), words), (account.map(contents), vec![word]), "{what}");
    if block > 0 {
        let other = &model.roots[usize::try_from(block - 1).expect("small")];
        assert!(verify(&proof, other, &address, &[slot]).is_err(), "{what}");
    }
}

#[test]
fn each_block_that_is_kept_is_as_it_was() {
    let mut node = Served::new(BLOCKS, Limits::default());
    let mut client = Client::new(node.address);
    let metrics = node.db.metrics();
    assert!(metrics.history_bytes > 0, "the history is on the device");
    assert_eq!(client.result("eth_blockNumber", &json!([])), quantity(node.newest()));

    let oldest = node.newest() - HISTORY;
    let nobody = Address::repeat_byte(0x77);
    let mut checked = 0;
    for block in (oldest..=node.newest()).filter(|block| block % 7 == oldest % 7) {
        let owners = [user(block % USERS), user(37 * block % USERS)];
        let mut asked: Vec<_> = owners.iter().map(|owner| (TOKEN, token_slot(owner))).collect();
        asked.extend(owners.map(|owner| (owner, U256::ZERO)));
        // Never there; there throughout; a slot that is never written.
        asked.extend([(nobody, U256::from(3)), (TOKEN, token_slot(&nobody))]);
        asked.extend(VAULTS.map(|vault| (vault, U256::from(block % WORDS))));
        asked.push((VAULTS[1], U256::MAX));
        for what in asked {
            check(&mut client, &node.model, what, block, &quantity(block));
            checked += 1;
        }
    }
    assert!(checked > 300, "{checked}");
    let changed = |block| {
        (0..USERS).any(|id| {
            let slot = token_slot(&user(id));
            node.model.word(TOKEN, slot, block) != node.model.word(TOKEN, slot, block - 1)
        })
    };
    assert!((1..=node.newest()).all(changed), "each block moves tokens");

    // Two more blocks while it serves: the newest one is another, and so is the oldest.
    for _ in 0..2 {
        let what = (TOKEN, token_slot(&user(5)));
        let (newest, oldest) = (node.newest(), node.newest() - HISTORY);
        check(&mut client, &node.model, what, newest, &json!("latest"));
        check(&mut client, &node.model, what, oldest, &json!("earliest"));
        let ahead = client.call("eth_getBalance", &json!([bytes(TOKEN), quantity(newest + 1)]));
        let message = format!("there is no block {} yet, the newest one is {newest}", newest + 1);
        assert_eq!(failed(&ahead), (-32001, message));
        assert_eq!(ahead["error"]["data"]["newestBlock"], quantity(newest));
        node.extend();
        assert_eq!(client.result("eth_blockNumber", &json!([])), quantity(newest + 1));
        for (method, more) in [
            ("eth_getBalance", json!([bytes(TOKEN), quantity(oldest)])),
            ("eth_getStorageAt", json!([bytes(TOKEN), "0x0", quantity(oldest)])),
            ("eth_getProof", json!([bytes(TOKEN), [], quantity(oldest)])),
        ] {
            let gone = client.call(method, &more);
            let left = oldest + 1;
            let message = format!("block {oldest} is not kept any more, the oldest one is {left}");
            assert_eq!(failed(&gone), (-32001, message));
            assert_eq!(gone["error"]["data"]["oldestBlock"], quantity(left));
        }
    }
    // The last block makes no difference to the vault that stays; the first one has destroyed the other.
    let newest = node.newest();
    assert_eq!(newest, BLOCKS);
    for vault in VAULTS {
        check(&mut client, &node.model, (vault, U256::from(1)), newest, &json!("latest"));
    }
    for number in [0, 1, u64::MAX] {
        let (code, _) = client.failure("eth_getBalance", &json!([bytes(TOKEN), quantity(number)]));
        assert_eq!(code, -32001, "block {number}");
    }
    node.end();
}

#[test]
fn a_wrong_request_has_the_error_that_the_standards_say() {
    let limits = Limits { time: Duration::from_millis(500), ..Limits::default() };
    let node = Served::new(30, limits);
    let mut client = Client::new(node.address);
    let token = bytes(TOKEN);

    for (method, parameters) in [
        ("eth_blockNumber", json!(["latest"])),
        ("eth_getBalance", json!([])),
        ("eth_chainId", json!([1])),
        ("eth_getBalance", json!([null, token, "latest"])),
        ("eth_getBalance", json!([token, "latest", 1])),
        ("eth_getBalance", json!({ "address": token })),
        ("eth_getBalance", json!("latest")),
        ("eth_getBalance", json!([7, "latest"])),
        ("eth_getBalance", json!(["0xee", "latest"])),
        ("eth_getBalance", json!([hex::encode(TOKEN), "latest"])),
        ("eth_getBalance", json!([format!("0x{}", "g".repeat(40)), "latest"])),
        ("eth_getBalance", json!([token, 299])),
        ("eth_getBalance", json!([token, "299"])),
        ("eth_getBalance", json!([token, "0x"])),
        ("eth_getBalance", json!([token, "0x+1"])),
        ("eth_getBalance", json!([token, "0x1_0"])),
        ("eth_getBalance", json!([token, "0x10000000000000000"])),
        ("eth_getBalance", json!([token, "newest"])),
        ("eth_getBalance", json!([token, []])),
        ("eth_getBalance", json!([token, {}])),
        ("eth_getBalance", json!([token, { "blockNumber": 1 }])),
        ("eth_getBalance", json!([token, { "blockNumber": { "blockNumber": "0x1" } }])),
        ("eth_getBalance", json!([token, { "blockHash": format!("0x{}", "1".repeat(64)) }])),
        ("eth_getBalance", json!([token, { "blockHash": "0x1", "blockNumber": "0x1" }])),
        ("eth_getStorageAt", json!([token, "latest"])),
        ("eth_getStorageAt", json!([token, format!("0x1{}", "0".repeat(64)), "latest"])),
        ("eth_getStorageAt", json!([token, "slot", "latest"])),
        ("eth_getProof", json!([token, "0x0", "latest"])),
        ("eth_getProof", json!([token, ["0x0", 1], "latest"])),
        ("eth_getProof", json!([token, vec!["0x0"; SLOTS + 1], "latest"])),
    ] {
        assert_eq!(client.failure(method, &parameters).0, -32602, "{method} {parameters}");
    }
    let (code, message) = client.failure("eth_sendRawTransaction", &json!(["0x00"]));
    assert_eq!((code, &message[..]), (-32601, "there is no method eth_sendRawTransaction"));
    let all = client.result("eth_getProof", &json!([token, vec!["0x0"; SLOTS], "latest"]));
    assert_eq!(all["storageProof"].as_array().map(Vec::len), Some(SLOTS));

    for (body, code) in [
        ("", -32700),
        ("{", -32700),
        ("\u{0}", -32700),
        ("{}{}", -32700),
        (&"[".repeat(5_000), -32700),
        ("[]", -32600),
        ("7", -32600),
        ("{}", -32600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"eth_blockNumber"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":[1],"method":"eth_blockNumber"}"#, -32600),
    ] {
        let answer = client.answer(body);
        assert_eq!((failed(&answer).0, &answer["id"]), (code, &Value::Null), "{body}");
    }

    // HTTP has errors of its own.
    client.send("GET / HTTP/1.1\r\nHost: node\r\n\r\n");
    assert_eq!(client.response().0, 405);
    let mut long = Client::new(node.address);
    let length = limits.body + 1;
    long.send(&format!("POST / HTTP/1.1\r\nHost: node\r\nContent-Length: {length}\r\n\r\n"));
    assert_eq!(long.response().0, 413);
    let mut long = Client::new(node.address);
    long.send("POST / HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\n");
    long.send(&format!("{:x}\r\n{}\r\n", length, " ".repeat(length)));
    assert_eq!(long.response().0, 413);
    let told = r#"{"jsonrpc":"2.0","method":"eth_blockNumber"}"#;
    let just = format!("{}{}", told, " ".repeat(limits.body - told.len()));
    assert_eq!(Client::new(node.address).post(&just).0, 204);

    // A body that does not come, and a head that does not.
    let since = Instant::now();
    let mut slow = Client::new(node.address);
    slow.send("POST / HTTP/1.1\r\nHost: node\r\nContent-Length: 10\r\n\r\n{");
    assert_eq!(slow.response().0, 408);
    assert!(since.elapsed() >= limits.time, "{:?}", since.elapsed());
    let mut silent = Client::new(node.address);
    silent.send("POST / HT");
    let mut idle = Client::new(node.address);
    assert_eq!(idle.result("eth_blockNumber", &json!([])), quantity(node.newest()));
    for mut cut_off in [silent, idle] {
        let mut rest = Vec::new();
        cut_off.0.read_to_end(&mut rest).expect("the connection is closed");
        assert_eq!(rest, b"", "nothing more was said");
    }
    // The others are answered as before.
    let mut other = Client::new(node.address);
    assert_eq!(other.result("eth_blockNumber", &json!([])), quantity(node.newest()));
    node.end();
}

/// Libraries of users send up to 100 calls at once. 17 of them had one error, which named no call.
#[test]
fn each_call_of_a_batch_that_wants_an_answer_has_one() {
    let node = Served::new(30, Limits::default());
    let mut client = Client::new(node.address);
    let token = bytes(TOKEN);
    let call = |id: Value, method| json!({ "jsonrpc": "2.0", "id": id, "method": method });
    let told = json!({ "jsonrpc": "2.0", "method": "eth_blockNumber" });
    let batch = json!([call(json!("a"), "eth_blockNumber"), told, 7, call(json!(2), "eth_no")]);
    let answers = client.answer(&batch.to_string());
    let answers = answers.as_array().expect("a batch");
    assert_eq!(answers.len(), 3);
    assert_eq!((&answers[0]["id"], &answers[0]["result"]), (&json!("a"), &quantity(node.newest())));
    assert_eq!((failed(&answers[1]).0, failed(&answers[2]).0), (-32600, -32601));
    assert_eq!(client.post(&told.to_string()), (204, String::new()));

    // A batch does no more than its limits, and says so for each call beyond them.
    let many: Vec<_> = (0..BATCH + 2).map(|id| call(json!(id), "eth_blockNumber")).collect();
    let answers = client.answer(&json!(many).to_string());
    for (id, answer) in answers.as_array().expect("a batch").iter().enumerate() {
        assert_eq!(answer["id"], json!(id));
        match id {
            0..BATCH => assert_eq!(answer["result"], quantity(node.newest())),
            _ => assert_eq!(failed(answer).0, -32005),
        }
    }
    assert_eq!(answers.as_array().map(Vec::len), Some(BATCH + 2));
    let proofs = |id, slots| {
        let parameters = json!([token, vec!["0x0"; slots], "latest"]);
        json!({ "jsonrpc": "2.0", "id": id, "method": "eth_getProof", "params": parameters })
    };
    let mut many: Vec<_> = (0..PROOFS / (1 + SLOTS)).map(|id| proofs(id, SLOTS)).collect();
    many.push(proofs(many.len(), PROOFS % (1 + SLOTS)));
    many.push(call(json!("after"), "eth_blockNumber"));
    let answers = client.answer(&json!(many).to_string());
    let answers = answers.as_array().expect("a batch");
    let (beyond, after) = (&answers[answers.len() - 2], &answers[answers.len() - 1]);
    assert_eq!(failed(beyond).0, -32005);
    assert_eq!(after["result"], quantity(node.newest()), "what is no proof has an answer");
    assert!(answers[..answers.len() - 2].iter().all(|answer| answer.get("result").is_some()));
    node.end();
}

/// Libraries of users name the newest block in each of these ways. It was `"latest"` alone.
#[test]
fn the_newest_block_has_all_names_of_the_standards() {
    let node = Served::new(30, Limits::default());
    let mut client = Client::new(node.address);
    let (newest, what) = (node.newest(), (TOKEN, token_slot(&user(3))));
    assert_eq!(client.result("eth_chainId", &json!([])), quantity(CHAIN));
    for name in ["latest", "finalized", "safe", "pending"] {
        check(&mut client, &node.model, what, newest, &json!(name));
        check(&mut client, &node.model, what, newest, &json!({ "blockNumber": name }));
    }
    check(&mut client, &node.model, what, newest, &Value::Null);
    for block in [newest, newest - 5] {
        let name = json!({ "blockNumber": quantity(block), "requireCanonical": true });
        check(&mut client, &node.model, what, block, &name);
    }
    let (token, slot) = (bytes(TOKEN), quantity(what.1));
    for (method, parameters) in [
        ("eth_getBalance", json!([token])),
        ("eth_getStorageAt", json!([token, slot])),
        ("eth_getProof", json!([token, [slot]])),
    ] {
        let mut named = parameters.clone();
        named.as_array_mut().expect("a list").push(json!(quantity(newest)));
        assert_eq!(client.result(method, &parameters), client.result(method, &named), "{method}");
    }
    let (_, message) = client.failure("eth_getBalance", &json!([token, { "blockHash": "0x1" }]));
    assert_eq!(message, "block: its number, as no hashes of blocks are known here");
    let (_, message) = client.failure("eth_getBalance", &json!([token, quantity(u64::MAX)]));
    let expected = format!("there is no block {} yet, the newest one is {newest}", u64::MAX);
    assert_eq!(message, expected);
    node.end();
}

/// An `id` above 2^64 came back as `1.8446744073709552e+19`.
#[test]
fn an_id_comes_back_as_it_was_sent() {
    let node = Served::new(30, Limits::default());
    let mut client = Client::new(node.address);
    let long = "9".repeat(400);
    for id in [
        "7",
        "-0",
        "1.50",
        "1e400",
        "18446744073709551617",
        &long,
        "0.1000000000000000055511151",
        r#""""#,
        r#""a""#,
        r#""\u0061\n""#,
        r#""\ud83d""#,
        "null",
    ] {
        let call = format!(r#"{{ "id" : {id} , "jsonrpc":"2.0","method":"eth_blockNumber"}}"#);
        let answer =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{}}}"#, quantity(node.newest()));
        assert_eq!(client.post(&call), (200, answer.clone()));
        assert_eq!(client.post(&format!("[{call}]")), (200, format!("[{answer}]")));
    }
    // Also where the parser does not take what stands beside it.
    for parameters in ["[1e999]".to_owned(), "[".repeat(200) + &"]".repeat(200)] {
        let call =
            format!(r#"{{"jsonrpc":"2.0","id":5,"method":"eth_chainId","params":{parameters}}}"#);
        let (status, answer) = client.post(&call);
        let start = r#"{"jsonrpc":"2.0","id":5,"error":{"code":-32602,"#;
        assert!(status == 200 && answer.starts_with(start), "{answer}");
    }
    node.end();
}

/// Clients that took nothing of long answers, or a byte now and then, held all connections for as long as they liked.
#[test]
fn a_client_that_does_not_take_its_answer_loses_its_connection() {
    let limits = Limits { connections: 1, time: Duration::from_millis(500), ..Limits::default() };
    let node = Served::new(30, limits);
    let parameters = json!([bytes(TOKEN), vec!["0x0"; SLOTS], "latest"]);
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_getProof", "params": parameters });
    let batch = json!(vec![call; PROOFS / (1 + SLOTS)]).to_string();
    let (status, answer) = Client::new(node.address).post(&batch);
    assert_eq!(status, 200);
    // More than the system keeps of what is not taken.
    let requests = (16 << 20) / answer.len() + 1;
    let request =
        format!("POST / HTTP/1.1\r\nHost: node\r\nContent-Length: {}\r\n\r\n{batch}", batch.len());
    for takes in [false, true] {
        let mut slow = TcpStream::connect(node.address).expect("connected");
        let mut sender = slow.try_clone().expect("cloned");
        sender.set_write_timeout(Some(Duration::from_secs(40))).expect("set");
        let requests = request.repeat(requests);
        let answered = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Fails when the connection is closed.
            scope.spawn(move || sender.write_all(requests.as_bytes()));
            let mut other = Client::new(node.address);
            let answered = &answered;
            scope.spawn(move || {
                for _ in 0..2_000 {
                    let ended = takes && !slow.read(&mut [0]).is_ok_and(|taken| taken > 0);
                    if ended || answered.load(Ordering::Relaxed) {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let newest = other.result("eth_blockNumber", &json!([]));
            assert_eq!(newest, quantity(node.newest()), "it has the only place now");
            answered.store(true, Ordering::Relaxed);
        });
    }
    node.end();
}

#[test]
fn more_connections_than_there_are_places_are_answered_one_after_the_other() {
    let limits = Limits { connections: 2, at_once: 1, ..Limits::default() };
    let node = Served::new(30, limits);
    let (address, model, newest) = (node.address, &node.model, node.newest());
    std::thread::scope(|scope| {
        for id in 0..10 {
            scope.spawn(move || {
                let mut client = Client::new(address);
                let block = newest - 2 * id;
                let what = (TOKEN, token_slot(&user(id)));
                check(&mut client, model, what, block, &quantity(block));
            });
        }
    });
    node.end();
}
