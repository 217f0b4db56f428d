//! The EVM over Pleach comes to the state that revm's own store in memory has, and does not go on where the state cannot be read.

use pleach::range::with_prefix;
use pleach::{Db, Options, SessionOptions};
use pleach_examples::evm::chain::{TOKEN, VAULTS, WORDS, blocks, genesis, user};
use pleach_examples::evm::{
    ACCOUNTS, CODE, Reader, STORAGE, StateError, accesses, create, execute, run, storage_prefix,
};
use revm::Database as _;
use revm::context::result::{EVMError, InvalidTransaction};
use revm::database::states::{PlainStorageChangeset, StateChangeset};
use revm::database_interface::bal::EvmDatabaseError;
use revm::primitives::{B256, U256};

use crate::in_memory::in_memory;

const USERS: u64 = 300;

type Failed = EVMError<EvmDatabaseError<StateError>, InvalidTransaction>;

fn pleach(folder: &tempfile::TempDir) -> Db {
    let options = Options::new(folder.path()).create(true).small();
    create(options, genesis(USERS)).expect("created")
}

#[test]
fn all_balances_nonces_and_words_are_those_of_revm_in_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = pleach(&folder);
    let mut oracle = in_memory(USERS);
    let (mut reverted, mut done) = (0, 0);
    for block in blocks(8, USERS) {
        let succeeded = run(&mut oracle, &block).expect("executed");
        let session = db.session(SessionOptions::new()).expect("a session");
        let executed = execute(session, &block, None).expect("executed");
        assert_eq!(executed.succeeded, succeeded, "block {}", block.number);
        assert!(executed.reads > 200, "{} reads", executed.reads);
        executed.block.commit().expect("committed");
        done += succeeded;
        reverted += block.transactions.len() - succeeded;
    }
    assert_eq!((done, reverted), (8 * 199 + 3, 8), "one transfer of each block is refused");

    let session = db.snapshot().expect("a session");
    let mut state = Reader::new(&session);
    let (mut accounts, mut words) = (0, 0);
    for (address, account) in &oracle.cache.accounts {
        let found = state.basic(*address).expect("read");
        assert_eq!(found, account.info(), "{address}");
        accounts += usize::from(found.is_some());
        for (slot, word) in &account.storage {
            assert_eq!(state.storage(*address, *slot).expect("read"), *word, "{address} {slot}");
            words += usize::from(!word.is_zero());
        }
    }
    // There is nothing else in Pleach.
    let pairs = |namespace| session.namespace(namespace).expect("it exists").iter(..).count();
    assert_eq!((pairs(ACCOUNTS), pairs(STORAGE)), (accounts, words));

    // The users, the token, the vault that stays, and who gets the fees.
    assert_eq!(u64::try_from(accounts).expect("small"), USERS + 3);
    assert_eq!(state.basic(VAULTS[0]).expect("read"), None);
    assert!(u64::try_from(words).expect("small") > WORDS, "the second vault and balances");
    assert!(oracle.cache.accounts[&TOKEN].storage.len() > 100, "balances have changed");
    // Transfers make no tokens and no ether, and lose none: fees are paid to somebody.
    let tokens: U256 = oracle.cache.accounts[&TOKEN].storage.values().sum();
    assert_eq!(tokens, U256::from(1_000 * USERS));
    let ether: U256 = oracle.cache.accounts.values().map(|account| account.info.balance).sum();
    assert_eq!(ether, U256::from(USERS) * U256::from(10).pow(U256::from(18)));
    let info = state.basic(user(0)).expect("read").expect("it exists");
    assert!(info.nonce >= 3, "it called both vaults and made a contract");
}

#[test]
fn a_block_ends_with_the_error_of_the_state() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut broken = genesis(USERS);
    let lost: Vec<B256> = broken.contracts.drain(..).map(|(hash, _)| hash).collect();
    let options = Options::new(folder.path()).create(true).small();
    let db = create(options, broken).expect("created");
    let roots = db.roots();
    let session = db.session(SessionOptions::new()).expect("a session");
    let block = blocks(2, USERS).next().expect("a block");
    let error = execute(session, &block, None).err().expect("the token has no code");
    let error = error.downcast::<Failed>().expect("an error of revm");
    let EVMError::Database(EvmDatabaseError::Database(StateError::Code(hash))) = *error else {
        panic!("{error}");
    };
    assert!(lost.contains(&hash), "{hash}");
    assert_eq!(db.roots(), roots, "nothing was committed");
}

#[test]
fn a_contract_that_comes_back_in_the_block_that_destroys_it_has_its_new_words_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = pleach(&folder);
    let [back, other] = VAULTS;
    let storage = [(1, 70), (2, 0), (1_000, 80)];
    let storage = storage.map(|(slot, word)| (U256::from(slot), U256::from(word))).to_vec();
    let mut changes = StateChangeset::default();
    changes.storage.push(PlainStorageChangeset { address: back, wipe_storage: true, storage });
    let session = db.session(SessionOptions::new()).expect("a session");
    let mut state = Reader::new(&session);
    // Words that are read before: one goes, one is written again.
    for slot in [U256::ZERO, U256::ONE] {
        assert!(!state.storage(back, slot).expect("read").is_zero());
    }
    let accesses = accesses(state.into_reads(), changes);
    session.finish(accesses).expect("finished").commit().expect("committed");

    let session = db.snapshot().expect("a session");
    let mut state = Reader::new(&session);
    for (slot, word) in [(0, 0), (1, 70), (2, 0), (1_000, 80)] {
        let found = state.storage(back, U256::from(slot)).expect("read");
        assert_eq!(found, U256::from(word), "slot {slot}");
    }
    let words = |of| {
        let prefix = storage_prefix(of);
        session.namespace(STORAGE).expect("it exists").iter(with_prefix(&prefix)).count()
    };
    assert_eq!((words(&back), words(&other)), (2, usize::try_from(WORDS).expect("small")));
}

#[test]
fn a_start_that_a_crash_cut_short_is_completed() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = pleach(&folder).roots();
    for done in 0..=2 {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(Options::new(folder.path()).create(true).small()).expect("opened");
        if done >= 1 {
            db.add_namespace(STORAGE).expect("added");
        }
        if done >= 2 {
            db.add_plain_namespace(CODE).expect("added");
        }
        db.close().expect("closed");
        let completed = pleach(&folder);
        assert_eq!(completed.roots(), whole, "after {done} namespaces");
        completed.close().expect("closed");
        // And nothing is done twice.
        assert_eq!(pleach(&folder).commit_number(), 3);
    }
}
