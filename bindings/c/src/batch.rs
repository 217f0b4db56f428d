//! Batches: the operations of a block on its keys, step by step.

use std::collections::BTreeMap;

use pleach::{Access, Key, Value};

use crate::error::{Failed, Fallible, PleachError, guard};
use crate::handle::{self, Handle, Out, bytes, given, keys, values};

/// Step of `pleach_batch_add`: the block has read the key.
pub const PLEACH_READ: u8 = 1;
/// Step of `pleach_batch_add`: the block gives the key a value. May come with `PLEACH_READ`.
pub const PLEACH_PUT: u8 = 2;
/// Step of `pleach_batch_add`: the block deletes the key. May come with `PLEACH_READ`.
pub const PLEACH_DELETE: u8 = 4;

/// A batch: what a block reads and writes.
pub type PleachBatch = Handle<Batch>;

/// One access for each key, as the engine wants it.
#[derive(Default)]
pub struct Batch {
    keys: BTreeMap<(u8, Key), Steps>,
    prefixes: Vec<Access>,
}

/// The operations on a key.
#[derive(Default)]
struct Steps {
    read: bool,
    write: Write,
}

/// The last write of a key.
#[derive(Default)]
enum Write {
    #[default]
    Nothing,
    Delete,
    Put(Value),
}

impl Batch {
    /// The accesses; long values are shared, so that the batch can stay as it is cheaply.
    pub(crate) fn accesses(&self) -> Vec<Access> {
        let of_keys = self.keys.iter().map(|(&(namespace, key), Steps { read, write })| {
            let access = match (read, write) {
                (_, Write::Nothing) => Access::read(key),
                (false, Write::Delete) => Access::write(key, None),
                (true, Write::Delete) => Access::read_write(key, None),
                (false, Write::Put(value)) => Access::write(key, Some(value.clone())),
                (true, Write::Put(value)) => Access::read_write(key, Some(value.clone())),
            };
            access.in_namespace(namespace)
        });
        of_keys.chain(self.prefixes.iter().cloned()).collect()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// A batch without accesses.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_batch_new(batch: Out<Box<PleachBatch>>) -> Failed {
    guard(|| {
        given(batch, "batch")?.write(Box::new(Handle::new(Batch::default())));
        Ok(())
    })
}

/// Frees a batch.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_batch_free(batch: Option<Box<PleachBatch>>) {
    Handle::free(batch);
}

/// The block has read this key: the witness proves its value before the block. A key may be read and written.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_batch_read(
    batch: Option<&PleachBatch>,
    namespace: u8,
    key: Option<&Key>,
) -> Failed {
    guard(|| step(batch, namespace, key, |steps| steps.read = true))
}

/// The block gives this key a value, of at most 64 MiB. The last put or delete of a key counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pleach_batch_put(
    batch: Option<&PleachBatch>,
    namespace: u8,
    key: Option<&Key>,
    value: *const u8,
    value_len: usize,
) -> Failed {
    guard(|| {
        // SAFETY: the caller's duty: NULL, or so many bytes.
        let value = Value::from(unsafe { bytes(value, value_len, "value") }?);
        step(batch, namespace, key, |steps| steps.write = Write::Put(value))
    })
}

/// The block deletes this key.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_batch_delete(
    batch: Option<&PleachBatch>,
    namespace: u8,
    key: Option<&Key>,
) -> Failed {
    guard(|| step(batch, namespace, key, |steps| steps.write = Write::Delete))
}

/// The steps of `count` keys in one call, for languages in which a call costs more: keys one after the other, a step of
/// each (`PLEACH_READ`, `PLEACH_PUT`, `PLEACH_DELETE`, or one of the latter and `PLEACH_READ`), values one after the other,
/// and the length of each, which is 0 where the step is no put. After an error the batch is as it was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pleach_batch_add(
    batch: Option<&PleachBatch>,
    namespace: u8,
    keys_of_steps: *const u8,
    steps: *const u8,
    values_of_steps: *const u8,
    lengths: *const usize,
    count: usize,
) -> Failed {
    guard(|| {
        // SAFETY: the caller's duty: NULL, or `count` keys.
        let keys = unsafe { keys(keys_of_steps, count, "keys_of_steps") }?;
        // SAFETY: the caller's duty: NULL, or `count` bytes.
        let steps = unsafe { bytes(steps, count, "steps") }?;
        // SAFETY: the caller's duty: NULL, or `count` lengths and as many bytes as they say.
        let values = unsafe { values(values_of_steps, lengths, count) }?;
        let write = |(step, value): (&u8, &[u8])| match step & !PLEACH_READ {
            0 if *step == PLEACH_READ && value.is_empty() => Ok(Write::Nothing),
            PLEACH_PUT => Ok(Write::Put(Value::from(value))),
            PLEACH_DELETE if value.is_empty() => Ok(Write::Delete),
            _ => Err(PleachError::argument("a step is none, or has a value and is no put")),
        };
        let writes: Vec<Write> = steps.iter().zip(values).map(write).collect::<Fallible<_>>()?;
        given(batch, "batch")?.change(|batch| {
            for ((key, step), write) in keys.iter().zip(steps).zip(writes) {
                let of_key = batch.keys.entry((namespace, *key)).or_default();
                of_key.read |= step & PLEACH_READ > 0;
                if step & !PLEACH_READ > 0 {
                    of_key.write = write;
                }
            }
            Ok(())
        })
    })
}

fn step(
    batch: Option<&PleachBatch>,
    namespace: u8,
    key: Option<&Key>,
    what: impl FnOnce(&mut Steps),
) -> Fallible<()> {
    let key = *given(key, "key")?;
    given(batch, "batch")?.change(|batch| {
        what(batch.keys.entry((namespace, key)).or_default());
        Ok(())
    })
}

/// The block deletes all keys that begin with these bytes, at most 32, except those that it puts, in whatever order the
/// calls come. A key that it reads was read before the delete, and is deleted, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pleach_batch_delete_prefix(
    batch: Option<&PleachBatch>,
    namespace: u8,
    prefix: *const u8,
    prefix_len: usize,
) -> Failed {
    guard(|| {
        // SAFETY: the caller's duty: NULL, or so many bytes.
        let prefix = unsafe { handle::prefix(prefix, prefix_len) }?;
        given(batch, "batch")?.change(|batch| {
            batch.prefixes.push(Access::delete_prefix(prefix).in_namespace(namespace));
            Ok(())
        })
    })
}
