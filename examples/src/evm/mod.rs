//! Pleach as the state of an EVM: revm executes blocks, [`execute`] makes each of them a block of Pleach.
//!
//! | namespace | key | value |
//! |---|---|---|
//! | [`ACCOUNTS`] | hash of the address | nonce, balance and, of a contract, the hash of its code |
//! | [`STORAGE`] | [`storage_key`] | the word, without its leading zeros |
//! | [`CODE`], plain | hash of the code | the code |
//!
//! Code needs no trie of its own, as accounts say its hash. [`Roots::over_all`](pleach::Roots::over_all) is the root of
//! a state.

use std::collections::BTreeSet;

use pleach::proof::{BuildError, namespace, path, roots::NamespaceRoots};
use pleach::{Access, Db, Hasher, Key, Node, Options, Session, SessionOptions, Value};
use revm::bytecode::Bytecode;
use revm::context::TxEnv;
use revm::database::states::{StateChangeset, bundle_state::BundleRetention};
use revm::database::{OriginalValuesKnown, State};
use revm::database_interface::DBErrorMarker;
use revm::primitives::hardfork::SpecId;
use revm::primitives::{Address, B256, Bytes, U256};
use revm::state::AccountInfo;
use revm::{
    Context, Database, DatabaseCommit, ExecuteCommitEvm as _, MainBuilder as _, MainContext as _,
};

use crate::Result;

pub mod chain;

/// The hash function of roots and keys.
pub const HASHER: Hasher = Hasher::BLAKE3;

/// The number of the chain, which `eth_chainId` asks for: one that is no public chain's.
pub const CHAIN: u64 = 1337;

/// Namespace of the accounts: the one that each database has.
pub const ACCOUNTS: u8 = 0;
/// Namespace of the storage of all contracts.
pub const STORAGE: u8 = 1;
/// Namespace of the code.
pub const CODE: u8 = 2;

/// The bytes that all storage keys of an account begin with.
const PREFIX: usize = 12;

/// The key of an account.
pub fn account_key(address: &Address) -> Key {
    HASHER.hash(address.as_slice())
}

/// The prefix of the storage keys of an account.
pub fn storage_prefix(address: &Address) -> [u8; PREFIX] {
    let mut prefix = [0; PREFIX];
    prefix.copy_from_slice(&account_key(address)[..PREFIX]);
    prefix
}

/// The key of a slot: the prefix of its account, then 20 bytes of the hash of address and slot. So the storage of an
/// account lies together, and one delete, one iteration or one proof of a range covers all of it.
///
/// Two slots of one contract get the same key after 2^80 hashes, as many as two equal addresses take. A finish refuses
/// a batch that writes one key twice. Slots of different accounts differ in what is hashed, so all 32 bytes would have
/// to collide. The price is in the delete: it costs 2^96 hashes to get the prefix of a *given* account, but 2^48, which
/// is cheap, to make two accounts with the same one, of which the delete takes the storage of both. That matters only
/// where an account that has storage can be destroyed, before EIP-6780.
///
/// The other price is a chain of 96 levels above the slots of each contract: a hash for each level in a block that
/// changes one of them, and 3 KB in a proof or witness. A chain to which either matters takes for a prefix a number of
/// 4 bytes that each account gets when it is made, and that its value keeps.
pub fn storage_key(address: &Address, slot: U256) -> Key {
    let mut key = HASHER.hash(&[address.as_slice(), &slot.to_be_bytes::<32>()].concat());
    key[..PREFIX].copy_from_slice(&storage_prefix(address));
    key
}

/// An account as a value.
pub fn account_value(info: &AccountInfo) -> Value {
    let mut bytes = [&info.nonce.to_be_bytes()[..], &info.balance.to_be_bytes::<32>()].concat();
    if !info.is_empty_code_hash() {
        bytes.extend(info.code_hash);
    }
    Value::from(bytes)
}

/// The account of a value; its code is read when it is called.
fn account_of(value: &[u8]) -> Option<AccountInfo> {
    let (nonce, value) = value.split_first_chunk::<8>()?;
    let (balance, hash) = value.split_first_chunk::<32>()?;
    let mut info = AccountInfo::default()
        .with_nonce(u64::from_be_bytes(*nonce))
        .with_balance(U256::from_be_bytes(*balance));
    if !hash.is_empty() {
        info = info.with_code_hash(B256::try_from(hash).ok()?);
    }
    Some(info)
}

/// A word of storage as a value; zero is none.
pub fn word_value(word: U256) -> Option<Value> {
    (!word.is_zero()).then(|| Value::from(word.to_be_bytes_trimmed_vec()))
}

/// Why the state could not be read. revm hands it on as
/// [`EVMError::Database`](revm::context::result::EVMError::Database).
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Pleach could not read.
    #[error(transparent)]
    Pleach(#[from] pleach::Error),
    /// A value is none that this module writes.
    #[error("namespace {0}: a value of key {1:?} that is none of ours")]
    Value(u8, Key),
    /// An account has this code, and it is not there.
    #[error("there is no code {0}")]
    Code(B256),
    /// The blob of a commit says no number of a block.
    #[error("a commit that is of no block")]
    NoBlock,
    /// A proof could not be put together.
    #[error(transparent)]
    Proof(#[from] BuildError),
    /// Hashes of old blocks are in a node's headers, which this example does not keep.
    #[error("the hash of block {0} was asked for, and no headers are kept")]
    Headers(u64),
}

impl DBErrorMarker for StateError {}

/// A state that revm reads, and the keys read: the witness of the block proves them.
pub struct Reader<'a> {
    session: &'a Session,
    reads: BTreeSet<(u8, Key)>,
}

impl<'a> Reader<'a> {
    /// Reads the state of a session.
    pub fn new(session: &'a Session) -> Self {
        Self { session, reads: BTreeSet::new() }
    }

    /// The keys read, by namespace.
    pub fn into_reads(self) -> BTreeSet<(u8, Key)> {
        self.reads
    }

    fn read<T>(
        &mut self,
        namespace: u8,
        key: Key,
        decode: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, StateError> {
        self.reads.insert((namespace, key));
        let Some(value) = self.session.namespace(namespace)?.read(&key)? else { return Ok(None) };
        decode(&value).ok_or(StateError::Value(namespace, key)).map(Some)
    }
}

impl Database for Reader<'_> {
    type Error = StateError;

    fn basic(&mut self, address: Address) -> Result<Option<AccountInfo>, StateError> {
        self.read(ACCOUNTS, account_key(&address), account_of)
    }

    fn storage(&mut self, address: Address, slot: U256) -> Result<U256, StateError> {
        let word = self.read(STORAGE, storage_key(&address, slot), U256::try_from_be_slice)?;
        Ok(word.unwrap_or_default())
    }

    fn code_by_hash(&mut self, hash: B256) -> Result<Bytecode, StateError> {
        let decode = |code: &[u8]| Bytecode::new_raw_checked(Bytes::copy_from_slice(code)).ok();
        self.read(CODE, hash.0, decode)?.ok_or(StateError::Code(hash))
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, StateError> {
        Err(StateError::Headers(number))
    }
}

/// A block of the chain.
pub struct Block {
    /// The block's number.
    pub number: u64,
    /// The block's rules.
    pub rules: SpecId,
    /// The receiver of the fees.
    pub beneficiary: Address,
    /// The block's transactions.
    pub transactions: Vec<TxEnv>,
}

/// Announces the keys of a block that its transactions name: senders, receivers, and their access lists.
///
/// # Errors
/// The state lacks a namespace.
pub fn announce(session: &Session, block: &Block) -> Result<()> {
    let mut accounts = vec![account_key(&block.beneficiary)];
    let mut slots = Vec::new();
    for transaction in &block.transactions {
        accounts.push(account_key(&transaction.caller));
        accounts.extend(transaction.kind.to().map(account_key));
        for item in transaction.access_list.iter() {
            let key = |slot: &B256| storage_key(&item.address, (*slot).into());
            slots.extend(item.storage_keys.iter().map(key));
        }
    }
    session.namespace(ACCOUNTS)?.prefetch(&accounts);
    session.namespace(STORAGE)?.prefetch(&slots);
    Ok(())
}

/// Executes the transactions of a block on any state of revm. Returns the number of those that succeeded.
///
/// # Errors
/// A transaction that is not valid, and those of the state.
pub fn run<D: Database + DatabaseCommit>(state: D, block: &Block) -> Result<usize> {
    let mut evm = Context::mainnet()
        .with_db(state)
        .modify_cfg_chained(|rules| {
            rules.chain_id = CHAIN;
            rules.set_spec_and_mainnet_gas_params(block.rules);
        })
        .modify_block_chained(|env| {
            env.number = U256::from(block.number);
            env.beneficiary = block.beneficiary;
        })
        .build_mainnet();
    let mut succeeded = 0;
    for transaction in &block.transactions {
        succeeded += usize::from(evm.transact_commit(transaction.clone())?.is_success());
    }
    Ok(succeeded)
}

/// Opens a database, with the state that the chain begins with where there is none yet. Each namespace is a commit, the
/// state is another one: what a crash between them left out is done by the next call.
///
/// # Errors
/// Those of the commits.
pub fn create(options: Options, genesis: StateChangeset) -> Result<Db> {
    let db = Db::open(options)?;
    if db.roots().get(STORAGE).is_none() {
        db.add_namespace(STORAGE)?;
    }
    if db.roots().digest(CODE).is_none() {
        db.add_plain_namespace(CODE)?;
    }
    if db.blob().is_empty() {
        let session = db.session(SessionOptions::new().witness(false))?;
        let mut state = session.finish(accesses(BTreeSet::new(), genesis))?;
        state.set_blob(0_u64.to_be_bytes().to_vec())?;
        state.commit()?;
    }
    Ok(db)
}

/// The result of a block.
pub struct Executed {
    /// The block, not yet committed, with the witnesses of accounts and storage.
    pub block: pleach::Block,
    /// Transactions that succeeded.
    pub succeeded: usize,
    /// Number of keys read.
    pub reads: usize,
}

/// Executes a block on the state of a session, and announces the next one where it is known. [`pleach::Block::commit`]
/// makes the block durable, [`into_overlay`](pleach::Block::into_overlay) keeps it in memory; an unwanted one is
/// dropped.
///
/// # Errors
/// Those of [`run`] and of the finish.
pub fn execute(session: Session, block: &Block, next: Option<&Block>) -> Result<Executed> {
    for known in [Some(block), next].into_iter().flatten() {
        announce(&session, known)?;
    }
    // Between transactions the changes are in revm's state, which reads each key of Pleach once.
    let reader = Reader::new(&session);
    let mut state = State::builder().with_database(reader).with_bundle_update().build();
    let succeeded = run(&mut state, block)?;
    state.merge_transitions(BundleRetention::PlainState);
    let changes = state.take_bundle().to_plain_state(OriginalValuesKnown::Yes);
    let reads = state.database.into_reads();
    let count = reads.len();
    let mut changed = session.finish(accesses(reads, changes))?;
    // The block's number, for the next open: commits have numbers of their own.
    changed.set_blob(block.number.to_be_bytes().to_vec())?;
    Ok(Executed { block: changed, succeeded, reads: count })
}

/// The reads and changes of a block, as accesses: each key once.
pub fn accesses(mut reads: BTreeSet<(u8, Key)>, changes: StateChangeset) -> Vec<Access> {
    let mut all = Vec::new();
    let mut write = |namespace, key, value| {
        let was_read = reads.remove(&(namespace, key));
        let access = if was_read { Access::read_write } else { Access::write };
        all.push(access(key, value).in_namespace(namespace));
    };
    for (address, info) in changes.accounts {
        write(ACCOUNTS, account_key(&address), info.as_ref().map(account_value));
    }
    for (hash, code) in changes.contracts {
        write(CODE, hash.0, Some(Value::from(code.original_byte_slice())));
    }
    for account in &changes.storage {
        for (slot, word) in &account.storage {
            write(STORAGE, storage_key(&account.address, *slot), word_value(*word));
        }
    }
    // The storage of a destroyed account is deleted, except words written after it was made again.
    let destroyed = changes.storage.iter().filter(|account| account.wipe_storage);
    all.extend(destroyed.map(|account| {
        Access::delete_prefix(&storage_prefix(&account.address)).in_namespace(STORAGE)
    }));
    all.extend(reads.into_iter().map(|(namespace, key)| Access::read(key).in_namespace(namespace)));
    all
}

/// The number of the block that a state is of, which [`execute`] has put into its blob.
///
/// # Errors
/// Another blob.
pub fn number_of(blob: &[u8]) -> Result<u64, StateError> {
    blob.try_into().map(u64::from_be_bytes).map_err(|_| StateError::NoBlock)
}

/// Proves a key's value or absence to a client that knows the root over all namespaces.
///
/// # Errors
/// Those of reading.
pub fn prove(session: &Session, namespace: u8, key: &Key) -> Result<Vec<u8>, StateError> {
    let inner = session.namespace(namespace)?.prove(key)?;
    Ok(namespace::build(HASHER, &NamespaceRoots::from(session.roots()), namespace, &inner)?)
}

/// Whether the bytes prove that a key of a namespace has the value, or that it has none.
///
/// # Errors
/// It is a proof of nothing in the state of this root.
pub fn proves(
    bytes: &[u8],
    root: &Node,
    namespace: u8,
    key: &Key,
    value: Option<&[u8]>,
) -> Result<bool> {
    let opened = namespace::open(HASHER, bytes, root)?;
    let root = opened.root().ok_or("the namespace exists")?;
    let verified = path::verify(HASHER, opened.inner(), root)?;
    Ok(opened.ns() == namespace && verified.proves(key, value) == Some(true))
}
