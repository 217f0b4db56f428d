//! A transaction for an engine whose own transactions do not see their writes: writes are kept in a map, and written at
//! once.

use hashbrown::HashMap;
use pleach_core::{Hasher, Key};

use super::{Engine, Op, PlainKey, StateAccess, Tx, TxBody};
use crate::error::{Error, Result};
use pleach::Value;

/// Most bytes of a key that is padded to 32.
const LONGEST: usize = 31;

/// Reads a key as it was before the transaction: into `value`, which is empty; false if there is none.
type PriorRead<'a> = dyn FnMut(&[u8], &mut Vec<u8>) -> Result<bool> + 'a;

/// The transaction.
pub struct BufferedTx<'a> {
    before: &'a mut PriorRead<'a>,
    written: HashMap<PlainKey, Option<Value>>,
}

impl<'a> BufferedTx<'a> {
    /// A transaction over what `before` reads.
    pub fn new(before: &'a mut PriorRead<'a>) -> Self {
        Self { before, written: HashMap::new() }
    }

    /// The writes, in no order.
    pub fn written(self) -> HashMap<PlainKey, Option<Value>> {
        self.written
    }
}

/// A key as a name.
pub fn name(key: &[u8]) -> Result<PlainKey> {
    let name = PlainKey::try_from(key).ok().filter(|name| !name.is_empty());
    name.ok_or_else(|| Error::Failed(format!("a key has 1 to 32 bytes, and this {}", key.len())))
}

impl Tx for BufferedTx<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        match self.written.get(key) {
            Some(Some(written)) => value.extend_from_slice(written),
            Some(None) => return Ok(false),
            None => return (self.before)(key, value),
        }
        Ok(true)
    }

    fn put(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let value = value.map(Value::from);
        match self.written.get_mut(key) {
            Some(written) => *written = value,
            None => {
                self.written.insert(name(key)?, value);
            }
        }
        Ok(())
    }
}

/// Puts the value found into `value`. False if there is none.
pub fn filled(value: &mut Vec<u8>, found: Option<&[u8]>) -> bool {
    value.clear();
    value.extend_from_slice(found.unwrap_or_default());
    found.is_some()
}

/// A key of 32 bytes for a key of fewer: zeros behind it, and its length as the last byte. That keeps the order of
/// bytes and can be undone. A key of 32 bytes stays as it is.
pub fn padded(key: &[u8]) -> Result<Key> {
    let mut padded = [0; 32];
    match key.len() {
        32 => padded.copy_from_slice(key),
        1..=LONGEST => {
            padded[..key.len()].copy_from_slice(key);
            padded[LONGEST] = u8::try_from(key.len()).unwrap_or(0);
        }
        length => return Err(Error::Failed(format!("a key has 1 to 32 bytes, and this {length}"))),
    }
    Ok(padded)
}

/// The key inside a padded one.
pub fn bare(key: &Key) -> &[u8] {
    match usize::from(key[LONGEST]) {
        length @ 1..=LONGEST if key[length..LONGEST].iter().all(|byte| *byte == 0) => {
            &key[..length]
        }
        _ => key,
    }
}

/// The key of a name in a trie that is made for keys which are spread evenly: the hash of the name. A key of 32 bytes
/// is a hash already, and stays as it is.
pub fn hashed(key: &[u8]) -> Result<Key> {
    let name = name(key)?;
    Ok(name.into_inner().unwrap_or_else(|short| Hasher::BLAKE3.hash(&short)))
}

/// A transaction of an engine that has blocks: one block that is begun, finished without a witness and committed. Its
/// keys are what `key_of` makes of names.
pub fn by_block(
    engine: &mut dyn Engine,
    key_of: fn(&[u8]) -> Result<Key>,
    work: &mut TxBody<'_>,
) -> Result<()> {
    engine.begin(false)?;
    let mut before = |key: &[u8], value: &mut Vec<u8>| {
        let mut is_there = false;
        engine.read(0, &[key_of(key)?], &mut |_, found| {
            is_there = found.is_some();
            value.extend_from_slice(found.unwrap_or_default());
        })?;
        Ok(is_there)
    };
    let mut tx = BufferedTx::new(&mut before);
    if let Err(error) = work(&mut tx) {
        engine.discard()?;
        return Err(error);
    }
    let accesses = tx.written().into_iter().map(|(name, value)| {
        Ok(StateAccess { space: 0, key: key_of(&name)?, op: Op::Write(value) })
    });
    let accesses = accesses.collect::<Result<Vec<_>>>()?;
    if accesses.is_empty() {
        return engine.discard();
    }
    engine.finish(accesses)?;
    engine.commit()
}

/// The pairs of a load as blocks, for a trie of hashed keys that has no other load.
#[cfg(any(
    feature = "peer-nomt",
    feature = "peer-sp-trie",
    feature = "peer-jmt",
    feature = "peer-qmdb"
))]
pub fn in_blocks(
    pairs: &mut dyn Iterator<Item = super::Pair>,
    mut each: impl FnMut(Vec<StateAccess>) -> Result<()>,
) -> Result<()> {
    /// Pairs of a block: at 2^27 pairs each block has a run of neighbours for each page.
    const SOME: usize = 1 << 20;
    loop {
        let block =
            pairs.take(SOME).map(|(name, value)| Ok(StateAccess::write(hashed(&name)?, value)));
        let block = block.collect::<Result<Vec<_>>>()?;
        if block.is_empty() {
            return Ok(());
        }
        each(block)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_keeps_the_order_and_can_be_undone() {
        let keys: [&[u8]; 7] = [&[0], &[0, 0], &[0, 1], &[1], &[1; 30], &[1; 31], &[2, 0, 0]];
        let padded: Vec<Key> = keys.iter().map(|key| padded(key).expect("short")).collect();
        assert!(padded.is_sorted_by(|a, b| a < b));
        for (key, padded) in keys.iter().zip(&padded) {
            assert_eq!(bare(padded), *key);
        }
        assert!(super::padded(&[]).is_err() && super::padded(&[0; 33]).is_err());
    }
}
