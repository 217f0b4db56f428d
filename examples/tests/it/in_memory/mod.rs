//! The state that the chain begins with, in revm's own store in memory.

use pleach_examples::evm::chain::genesis;
use revm::database::{CacheDB, EmptyDB};

pub(crate) fn in_memory(users: u64) -> CacheDB<EmptyDB> {
    let mut state = CacheDB::new(EmptyDB::new());
    let genesis = genesis(users);
    state.cache.contracts.extend(genesis.contracts);
    for (address, info) in genesis.accounts {
        state.insert_account_info(address, info.expect("it exists"));
    }
    for account in genesis.storage {
        for (slot, word) in account.storage {
            state.insert_account_storage(account.address, slot, word).expect("in memory");
        }
    }
    state
}
