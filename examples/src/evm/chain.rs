//! A chain for the EVM: a token and two vaults, and blocks in which users transfer ether and tokens. Half of the blocks
//! follow the rules of Shanghai, under which a contract can be destroyed at any time, the others those of Cancun
//! (EIP-6780).

use std::collections::HashMap;

use revm::bytecode::Bytecode;
use revm::bytecode::opcode::{
    ADD, CALLDATALOAD, CALLER, DUP1, DUP3, EQ, JUMPDEST, JUMPI, KECCAK256, LT, MSTORE, POP, PUSH0,
    PUSH1, PUSH4, REVERT, SELFDESTRUCT, SHR, SLOAD, SSTORE, STOP, SUB, SWAP1, SWAP2,
};
use revm::context::TxEnv;
use revm::context::transaction::{AccessList, AccessListItem};
use revm::database::states::{PlainStorageChangeset, StateChangeset};
use revm::primitives::hardfork::SpecId;
use revm::primitives::{Address, B256, Bytes, TxKind, U256, keccak256};
use revm::state::AccountInfo;

use super::{Block, CHAIN};
use crate::{account, transfers};

/// The token: `transfer(address to, uint256 amount)`, with balances in the mapping of slot 0.
pub const TOKEN: Address = Address::repeat_byte(0xee);
/// Contracts with words in their storage. A call destroys the contract: the first under the rules of Shanghai; under
/// those of Cancun the second stays.
pub const VAULTS: [Address; 2] = [Address::repeat_byte(0xa1), Address::repeat_byte(0xa2)];
/// Words in the storage of each vault.
pub const WORDS: u64 = 50;
/// The receiver of the fees.
pub const BENEFICIARY: Address = Address::repeat_byte(0xfe);

/// First byte of the code that continues a transfer, and of the code that aborts it.
const OK: u8 = 18;
const FAIL: u8 = 14;

#[rustfmt::skip]
const TOKEN_CODE: &[u8] = &[
    // The first four bytes of the input say whether this is a transfer.
    PUSH0, CALLDATALOAD, PUSH1, 0xe0, SHR, PUSH4, 0xa9, 0x05, 0x9c, 0xbb, EQ, PUSH1, OK, JUMPI,
    JUMPDEST, PUSH0, PUSH0, REVERT,
    // The sender's balance is in slot keccak(sender . 0).                            stack, its top at the right
    JUMPDEST, CALLER, PUSH0, MSTORE, PUSH1, 64, PUSH0, KECCAK256, DUP1, SLOAD, //     slot balance
    PUSH1, 36, CALLDATALOAD, DUP1, DUP3, LT, PUSH1, FAIL, JUMPI, //                   slot balance amount
    DUP1, SWAP2, SUB, SWAP1, SWAP2, SSTORE, //                                        amount
    // The receiver's one, which is read after that: somebody may pay himself.
    PUSH1, 4, CALLDATALOAD, PUSH0, MSTORE, PUSH1, 64, PUSH0, KECCAK256, DUP1, SLOAD, // amount slot balance
    DUP3, ADD, SWAP1, SSTORE, STOP,
];

/// Reads a word and is destroyed.
const VAULT_CODE: &[u8] = &[PUSH0, SLOAD, POP, CALLER, SELFDESTRUCT];

/// Code of a contract that writes a word and is destroyed in the transaction that makes it.
const SHORT_LIVED: &[u8] = &[PUSH1, 7, PUSH0, SSTORE, CALLER, SELFDESTRUCT];

/// The address of a user.
pub fn user(id: u64) -> Address {
    Address::from_slice(&account(id)[12..])
}

/// The slot of the token in which the balance of an account is.
pub fn token_slot(owner: &Address) -> U256 {
    keccak256([owner.into_word(), B256::ZERO].concat()).into()
}

/// The state that the chain begins with: users with ether and 1,000 tokens each, the token, and the vaults. A node with
/// millions of accounts gives them to `Db::bulk_load`, a namespace at a time.
pub fn genesis(users: u64) -> StateChangeset {
    let ether = AccountInfo::from_balance(U256::from(10).pow(U256::from(18)));
    let contract = |address, code, storage: Vec<_>| {
        let code = Bytecode::new_legacy(Bytes::from_static(code));
        let info = AccountInfo::default().with_nonce(1).with_code(code);
        (address, info, PlainStorageChangeset { address, wipe_storage: false, storage })
    };
    let balances = (0..users).map(|id| (token_slot(&user(id)), U256::from(1_000))).collect();
    let words = || (0..WORDS).map(|at| (U256::from(at), U256::from(at + 1))).collect();
    let contracts = [
        contract(TOKEN, TOKEN_CODE, balances),
        contract(VAULTS[0], VAULT_CODE, words()),
        contract(VAULTS[1], VAULT_CODE, words()),
    ];
    let mut state = StateChangeset::default();
    state.accounts.extend((0..users).map(|id| (user(id), Some(ether.clone()))));
    let mut codes = HashMap::new();
    for (address, info, storage) in contracts {
        codes.extend(info.code.clone().map(|code| (info.code_hash, code)));
        state.accounts.push((address, Some(info)));
        state.storage.push(storage);
    }
    state.contracts.extend(codes);
    state
}

/// The blocks of the chain: the same ones each time. In each, users pay each other, every other one with tokens; one
/// wants to pay more than there is. The first and the last block call a vault, and the last one makes a contract that
/// is destroyed at once.
pub fn blocks(count: u64, users: u64) -> impl Iterator<Item = Block> {
    let mut nonces: HashMap<Address, u64> = HashMap::new();
    // The access list names the slots of the token that a transaction touches.
    let mut signed = move |from: Address, kind: TxKind, value: u64, data: Bytes, slots: &[U256]| {
        let nonce = nonces.entry(from).or_default();
        *nonce += 1;
        let storage_keys = slots.iter().map(|slot| B256::from(*slot)).collect();
        let list = vec![AccessListItem { address: TOKEN, storage_keys }];
        TxEnv::builder()
            .chain_id(Some(CHAIN))
            .caller(from)
            .kind(kind)
            .value(U256::from(value))
            .data(data)
            .access_list(AccessList(if slots.is_empty() { vec![] } else { list }))
            .nonce(*nonce - 1)
            .gas_price(1)
            .gas_limit(200_000)
            .build_fill()
    };
    let block = move |number: u64| -> Block {
        let mut transactions = Vec::new();
        for (at, paid) in transfers(number, users).into_iter().enumerate() {
            let (from, to) = (user(paid.from), user(paid.to));
            transactions.push(if at % 2 == 0 {
                signed(from, to.into(), paid.amount, Bytes::new(), &[])
            } else {
                let amount = if at == 1 { U256::MAX } else { U256::from(paid.amount) };
                let amount = B256::from(amount);
                let data = [&[0xa9, 0x05, 0x9c, 0xbb][..], &to.into_word()[..], &amount[..]];
                let slots = [token_slot(&from), token_slot(&to)];
                signed(from, TOKEN.into(), 0, data.concat().into(), &slots)
            });
        }
        if number == 1 {
            transactions.push(signed(user(0), VAULTS[0].into(), 0, Bytes::new(), &[]));
        }
        if number == count {
            transactions.push(signed(user(0), VAULTS[1].into(), 0, Bytes::new(), &[]));
            let code = Bytes::from_static(SHORT_LIVED);
            transactions.push(signed(user(0), TxKind::Create, 0, code, &[]));
        }
        let rules = if number <= count / 2 { SpecId::SHANGHAI } else { SpecId::CANCUN };
        Block { number, rules, beneficiary: BENEFICIARY, transactions }
    };
    (1..=count).map(block)
}
