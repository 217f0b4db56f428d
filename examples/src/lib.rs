//! Shared by the example nodes: accounts with balances, and transfers between them; the state of an EVM ([`evm`]), and
//! its old blocks by JSON-RPC ([`rpc`]).

use pleach::{Hasher, Key, Namespace, Value};

pub mod evm;
pub mod rpc;
// One file for the command and for these programs.
#[path = "../../cli/src/signals.rs"]
mod signals;

/// The result of an example.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = core::result::Result<T, E>;

/// The first line of each program: in a container it ends when it is asked to.
///
/// # Errors
/// The system refuses a handler.
pub fn begin() -> Result<()> {
    Ok(signals::end_first_process()?)
}

/// A transfer of tokens.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The payer.
    pub from: u64,
    /// The receiver.
    pub to: u64,
    /// The amount.
    pub amount: u64,
}

/// The key of an account: the hash of its name.
pub fn account(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

/// A balance as a value.
pub fn value(balance: u64) -> Value {
    Value::from(&balance.to_be_bytes())
}

/// The balance that a value has; an account without a value has nothing.
///
/// # Errors
/// A value of another length.
pub fn balance(value: Option<&Value>) -> Result<u64> {
    let Some(value) = value else { return Ok(0) };
    Ok(u64::from_be_bytes(value[..].try_into()?))
}

/// The balance of an account in a state.
///
/// # Errors
/// Those of reading.
pub fn balance_of(state: &Namespace, id: u64) -> Result<u64> {
    balance(state.read(&account(id))?.as_ref())
}

/// Transfers of a block, from its number: the same ones each time.
pub fn transfers(block: u64, accounts: u64) -> Vec<Transfer> {
    let draw = |at: u64| {
        let hash = Hasher::BLAKE3.hash(&[block.to_be_bytes(), at.to_be_bytes()].concat());
        hash[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    let transfer = |at: u64| Transfer {
        from: draw(3 * at) % accounts,
        to: draw(3 * at + 1) % accounts,
        amount: draw(3 * at + 2) % 100,
    };
    (0..200).map(transfer).collect()
}
