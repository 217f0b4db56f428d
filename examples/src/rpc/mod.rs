//! Old blocks of the [EVM's state](crate::evm) by Ethereum JSON-RPC: [`OldBlocks::answer`] answers a request, [`http`]
//! serves it.
//!
//! | method | parameters | result |
//! |---|---|---|
//! | `eth_chainId` | | number of the chain |
//! | `eth_blockNumber` | | number of the newest block |
//! | `eth_getBalance` | address, block | balance in wei |
//! | `eth_getStorageAt` | address, slot, block | word of 32 bytes |
//! | `eth_getProof` | address, slots, block | account and words, with proofs |
//!
//! A block is a number (`"0x2a"`, or `{"blockNumber": "0x2a"}` as EIP-1898 has it), or `"earliest"`: the oldest block
//! that is kept. `"latest"`, `"finalized"`, `"safe"`, `"pending"` and none are the newest block, since only final blocks
//! are here. Hashes of blocks are not: a node that has headers looks the number up in them. An array of calls is a
//! batch; each call beyond its limits has an error. An `id` comes back as it was sent, digit for digit.
//!
//! The proofs are those of Pleach's binary trie, not Merkle-Patricia proofs: `accountProof` and each `proof` of
//! `storageProof` have one element, the encoded proof. It leads to `stateRoot`, the root over all namespaces
//! ([`pleach::Roots::over_all`]), which a client does not take from the answer but from the block's header. [`verify`]
//! is what a client does; what it needs is in `pleach-core`. `storageHash` is the root of the storage of all contracts,
//! which are one trie.
//!
//! Each block is one commit, so that commit numbers go on with the numbers of blocks. Only final blocks are committed;
//! those that may be left are overlays (example `rollup`). A node that rolls commits back keeps a table of its blocks'
//! commits in their place.

use std::collections::HashMap;

use pleach::{Db, Error, Key, Node, Session};
use revm::Database as _;
use revm::primitives::{Address, B256, U256, hex};
use revm::state::AccountInfo;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::Result;
use crate::evm::{
    ACCOUNTS, CHAIN, Reader, STORAGE, StateError, account_key, account_value, number_of, prove,
    proves, storage_key, word_value,
};

pub mod http;

/// Calls of a batch, at most: as many as ethers sends.
pub const BATCH: usize = 100;
/// Slots of one `eth_getProof`, at most.
pub const SLOTS: usize = 32;
/// Proofs of all calls of a batch, at most, of accounts and of slots. A proof has some 8 KB of text, so that no answer
/// has more than about 4 MB.
pub const PROOFS: usize = 528;

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("this is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("this is no request: {0}")]
    Request(&'static str),
    #[error("there is no method {0}")]
    Method(String),
    #[error("{0}")]
    Parameters(String),
    #[error("the calls before have the {0} that a batch may have")]
    BatchLimit(&'static str),
    #[error("block {block} is not kept any more, the oldest one is {oldest}")]
    TooOld { block: u64, oldest: u64 },
    #[error("there is no block {block} yet, the newest one is {newest}")]
    NotYet { block: u64, newest: u64 },
    #[error("commit {commit} is of block {found} where block {block} was expected")]
    OtherBlock { commit: u64, block: u64, found: u64 },
    #[error(transparent)]
    State(#[from] StateError),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::State(error.into())
    }
}

impl Failure {
    /// The codes of JSON-RPC; those of what is not there and of a limit are of EIP-1474.
    fn code(&self) -> i32 {
        match self {
            Self::Json(_) => -32700,
            Self::Request(_) => -32600,
            Self::Method(_) => -32601,
            Self::Parameters(_) => -32602,
            Self::TooOld { .. } | Self::NotYet { .. } => -32001,
            Self::BatchLimit(_) => -32005,
            Self::OtherBlock { .. } | Self::State(_) => -32603,
        }
    }

    fn answer(&self, id: &str) -> String {
        let mut error = json!({ "code": self.code(), "message": self.to_string() });
        match self {
            Self::TooOld { oldest, .. } => {
                error["data"] = json!({ "oldestBlock": quantity(oldest) });
            }
            Self::NotYet { newest, .. } => {
                error["data"] = json!({ "newestBlock": quantity(newest) });
            }
            // The operator has to know.
            Self::OtherBlock { .. } | Self::State(_) => eprintln!("a call failed: {self}"),
            _ => {}
        }
        answer(id, "error", &error)
    }
}

/// A chain whose old blocks can be asked for.
pub struct OldBlocks {
    db: Db,
    /// The commit of block 0.
    first: u64,
}

impl OldBlocks {
    /// The blocks of a database whose commits are blocks, from one commit on.
    ///
    /// # Errors
    /// Those of reading; the newest commit is no block.
    pub fn new(db: Db) -> Result<Self> {
        let newest = db.snapshot()?;
        let before = number_of(newest.blob())?;
        let first = newest.commit_number().checked_sub(before).ok_or("more blocks than commits")?;
        drop(newest);
        Ok(Self { db, first })
    }

    /// The JSON that answers a request, one call or a batch; `None` where it wants no answer. It reads pages, and so may
    /// wait for the device.
    pub fn answer(&self, request: &[u8]) -> Option<String> {
        let mut left = Limit { calls: BATCH, proofs: PROOFS };
        let read = || -> serde_json::Result<_> {
            let request: &RawValue = serde_json::from_slice(request)?;
            let is_batch = request.get().starts_with('[');
            let calls = is_batch.then(|| serde_json::from_str::<Vec<&RawValue>>(request.get()));
            Ok((request, calls.transpose()?))
        };
        match read() {
            Ok((_, Some(calls))) if calls.is_empty() => {
                Some(Failure::Request("a batch has no calls").answer(NO_ID))
            }
            Ok((_, Some(calls))) => {
                let answers: Vec<_> =
                    calls.iter().filter_map(|call| self.call(call, &mut left)).collect();
                (!answers.is_empty()).then(|| format!("[{}]", answers.join(",")))
            }
            Ok((call, None)) => self.call(call, &mut left),
            Err(error) => Some(Failure::from(error).answer(NO_ID)),
        }
    }

    fn call(&self, call: &RawValue, left: &mut Limit) -> Option<String> {
        let call = match Call::read(call) {
            Ok(call) => call,
            Err(failure) => return Some(failure.answer(NO_ID)),
        };
        // Without an `id` it is a notification, and all calls here only ask.
        let id = call.id?;
        Some(match self.result(&call, left) {
            Ok(result) => answer(id, "result", &result),
            Err(failure) => self.in_blocks(failure).answer(id),
        })
    }

    fn result(&self, call: &Call, left: &mut Limit) -> Result<Value, Failure> {
        left.calls = left.calls.checked_sub(1).ok_or(Failure::BatchLimit("calls"))?;
        let method = &call.method[..];
        let mut given = match &call.parameters {
            Some(Value::Array(given)) => given.as_slice(),
            Some(Value::Null) => &[],
            None => {
                return Err(Failure::Parameters("a number is too large, or lists too deep".into()));
            }
            _ => return Err(Failure::Parameters("parameters are a list".into())),
        };
        // JavaScript writes what is left out as null.
        while let [before @ .., Value::Null] = given {
            given = before;
        }
        match (method, given) {
            ("eth_chainId", []) => Ok(quantity(CHAIN)),
            ("eth_blockNumber", []) => Ok(quantity(number_of(&self.db.blob())?)),
            ("eth_getBalance", [address, block @ ..]) if block.len() < 2 => {
                let (address, session) = (address_of(address)?, self.state(block)?);
                let account = Reader::new(&session).basic(address)?;
                Ok(quantity(account.unwrap_or_default().balance))
            }
            ("eth_getStorageAt", [address, slot, block @ ..]) if block.len() < 2 => {
                let (address, slot) = (address_of(address)?, slot_of(slot)?);
                let word = Reader::new(&self.state(block)?).storage(address, slot)?;
                Ok(bytes(word.to_be_bytes::<32>()))
            }
            ("eth_getProof", [address, slots, block @ ..]) if block.len() < 2 => {
                let (address, slots) = (address_of(address)?, slots_of(slots)?);
                let proofs = left.proofs.checked_sub(1 + slots.len());
                left.proofs = proofs.ok_or(Failure::BatchLimit("proofs"))?;
                proof(&self.state(block)?, address, &slots)
            }
            ("eth_chainId" | "eth_blockNumber", _) => Err(takes(method, "nothing")),
            ("eth_getBalance", _) => Err(takes(method, "address and block")),
            ("eth_getStorageAt", _) => Err(takes(method, "address, slot and block")),
            ("eth_getProof", _) => Err(takes(method, "address, slots and block")),
            _ => Err(Failure::Method(method.into())),
        }
    }

    /// The state after a block, the newest one where none is given.
    fn state(&self, block: &[Value]) -> Result<Session, Failure> {
        let latest = Value::from("latest");
        let mut block = block.first().unwrap_or(&latest);
        if block.get("blockHash").is_some() {
            let wanted = "block: its number, as no hashes of blocks are known here";
            return Err(Failure::Parameters(wanted.into()));
        }
        block = block.get("blockNumber").unwrap_or(block);
        let session = match block.as_str() {
            Some("latest" | "finalized" | "safe" | "pending") => self.db.snapshot()?,
            Some("earliest") => self.oldest()?,
            _ => {
                let number = number(block, 16).and_then(|number| u64::try_from(number).ok());
                let number = number.ok_or_else(|| {
                    let wanted = "block: its number as \"0x2a\", \"latest\" or \"earliest\"";
                    Failure::Parameters(wanted.into())
                })?;
                let Some(commit) = self.first.checked_add(number) else {
                    let newest = number_of(&self.db.blob())?;
                    return Err(Failure::NotYet { block: number, newest });
                };
                self.db.at(commit)?
            }
        };
        // Commits that are no blocks, or a rollback, would have moved the numbers.
        let (commit, found) = (session.commit_number(), number_of(session.blob())?);
        let block = commit.saturating_sub(self.first);
        if found != block {
            return Err(Failure::OtherBlock { commit, block, found });
        }
        Ok(session)
    }

    /// The oldest block that is kept. The history goes on while this looks.
    fn oldest(&self) -> Result<Session, Error> {
        let mut commit = self.first.max(*self.db.history().start());
        loop {
            match self.db.at(commit) {
                Err(Error::SnapshotTooOld { oldest, .. } | Error::HistoryLost { oldest, .. })
                    if oldest > commit =>
                {
                    commit = oldest;
                }
                found => return found,
            }
        }
    }

    /// Turns errors about commits into errors about blocks.
    fn in_blocks(&self, failure: Failure) -> Failure {
        let block = |commit: u64| commit.saturating_sub(self.first);
        match failure {
            Failure::State(StateError::Pleach(
                Error::SnapshotTooOld { commit, oldest }
                | Error::HistoryLost { commit, oldest, .. },
            )) => Failure::TooOld { block: block(commit), oldest: block(oldest) },
            Failure::State(StateError::Pleach(Error::NoSuchCommit { commit, tip })) => {
                Failure::NotYet { block: block(commit), newest: block(tip) }
            }
            other => other,
        }
    }
}

/// An account and words of its storage, with proofs.
fn proof(session: &Session, address: Address, slots: &[U256]) -> Result<Value, Failure> {
    let keys: Vec<Key> = slots.iter().map(|slot| storage_key(&address, *slot)).collect();
    session.namespace(STORAGE)?.prefetch(&keys);
    let mut state = Reader::new(session);
    let account = state.basic(address)?;
    let mut storage = Vec::new();
    for (slot, key) in slots.iter().zip(&keys) {
        storage.push(json!({
            "key": bytes(slot.to_be_bytes::<32>()),
            "value": quantity(state.storage(address, *slot)?),
            "proof": [bytes(prove(session, STORAGE, key)?)],
        }));
    }
    // The code hash of an account that does not exist is zero (EIP-1052), which tells it from an empty one.
    let code = account.as_ref().map_or(B256::ZERO, |account| account.code_hash);
    let AccountInfo { balance, nonce, .. } = account.unwrap_or_default();
    Ok(json!({
        "blockNumber": quantity(number_of(session.blob())?),
        "stateRoot": bytes(session.roots().over_all(session.hasher()).to_bytes()),
        "address": bytes(address),
        "balance": quantity(balance),
        "nonce": quantity(nonce),
        "codeHash": bytes(code),
        "storageHash": bytes(session.roots().get(STORAGE).unwrap_or_default().to_bytes()),
        "accountProof": [bytes(prove(session, ACCOUNTS, &account_key(&address))?)],
        "storageProof": storage,
    }))
}

/// The client's check of the result of an `eth_getProof`: it knows the root of the block and its own request, and
/// returns the account and the words once the proofs agree.
///
/// # Errors
/// The result is not one, or is not proven.
pub fn verify(
    result: &Value,
    root: &Node,
    address: &Address,
    slots: &[U256],
) -> Result<(Option<AccountInfo>, Vec<U256>)> {
    let quantity = |of: &Value| number(of, 64).ok_or("a quantity");
    let proof = |of: &Value| -> Result<Vec<u8>> {
        let text = of[0].as_str().ok_or("a proof")?;
        Ok(hex::decode(text)?)
    };
    let code: B256 = quantity(&result["codeHash"])?.into();
    let account = (code != B256::ZERO).then_some(AccountInfo {
        balance: quantity(&result["balance"])?,
        nonce: quantity(&result["nonce"])?.try_into().map_err(|_| "a nonce of 8 bytes")?,
        code_hash: code,
        ..AccountInfo::default()
    });
    let value = account.as_ref().map(account_value);
    let (sent, key) = (proof(&result["accountProof"])?, account_key(address));
    if !proves(&sent, root, ACCOUNTS, &key, value.as_deref())? {
        return Err("the account has other contents".into());
    }
    let mut words = Vec::new();
    for (at, slot) in slots.iter().enumerate() {
        let answer = &result["storageProof"][at];
        let word = quantity(&answer["value"])?;
        let (sent, key) = (proof(&answer["proof"])?, storage_key(address, *slot));
        if !proves(&sent, root, STORAGE, &key, word_value(word).as_deref())? {
            return Err(format!("slot {slot} has another word").into());
        }
        words.push(word);
    }
    Ok((account, words))
}

/// A number as Ethereum writes it.
pub fn quantity(number: impl std::fmt::LowerHex) -> Value {
    format!("{number:#x}").into()
}

/// Bytes as Ethereum writes them.
pub fn bytes(bytes: impl AsRef<[u8]>) -> Value {
    hex::encode_prefixed(bytes).into()
}

/// A number of at most so many hexadecimal digits.
fn number(value: &Value, most: usize) -> Option<U256> {
    let digits = value.as_str()?.strip_prefix("0x")?;
    let right =
        (1..=most).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    right.then(|| U256::from_str_radix(digits, 16).ok()).flatten()
}

/// What the calls of a request may still take.
struct Limit {
    calls: usize,
    proofs: usize,
}

/// A call that has the form of one.
struct Call<'a> {
    /// As it was sent: numbers of JSON have any number of digits.
    id: Option<&'a str>,
    method: String,
    /// `None` where the parser takes less than JSON allows.
    parameters: Option<Value>,
}

impl<'a> Call<'a> {
    fn read(call: &'a RawValue) -> Result<Self, Failure> {
        let fields: HashMap<String, &RawValue> = serde_json::from_str(call.get())
            .map_err(|_| Failure::Request("a call is an object"))?;
        let value = |name| -> serde_json::Result<Value> {
            fields.get(name).map_or(Ok(Value::Null), |raw| serde_json::from_str(raw.get()))
        };
        if value("jsonrpc")? != "2.0" {
            return Err(Failure::Request("\"jsonrpc\" is not \"2.0\""));
        }
        let id = fields.get("id").map(|id| id.get());
        if id.is_some_and(|id| id.starts_with(['[', '{', 't', 'f'])) {
            return Err(Failure::Request("\"id\" is neither a text nor a number"));
        }
        let Value::String(method) = value("method")? else {
            return Err(Failure::Request("\"method\" is no text"));
        };
        Ok(Self { id, method, parameters: value("params").ok() })
    }
}

/// The `id` of an answer to what has none.
const NO_ID: &str = "null";

/// An answer: the `id` as it was sent, and a result or an error.
fn answer(id: &str, kind: &str, content: &Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"{kind}":{content}}}"#)
}

fn address_of(value: &Value) -> Result<Address, Failure> {
    let digits = value.as_str().and_then(|text| text.strip_prefix("0x"));
    let address = digits.and_then(|digits| hex::decode_to_array(digits).ok());
    address.map(Address::new).ok_or_else(|| Failure::Parameters("address: 0x and 40 digits".into()))
}

fn slot_of(value: &Value) -> Result<U256, Failure> {
    number(value, 64).ok_or_else(|| Failure::Parameters("slot: 0x and 1 to 64 digits".into()))
}

fn slots_of(value: &Value) -> Result<Vec<U256>, Failure> {
    let slots = value.as_array().filter(|slots| slots.len() <= SLOTS);
    let wrong = || Failure::Parameters(format!("slots: a list of {SLOTS} at most"));
    slots.ok_or_else(wrong)?.iter().map(slot_of).collect()
}

fn takes(method: &str, what: &str) -> Failure {
    Failure::Parameters(format!("{method} takes {what}"))
}
