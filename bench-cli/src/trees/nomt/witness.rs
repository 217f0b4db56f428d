//! What `nomt` proves of a block.

use core::fmt;

use nomt::hasher::Blake3Hasher;
use nomt::proof::{PathUpdate, verify_update};
use nomt::trie::LeafData;

use super::super::witness::{Proven, Root, Witness};

/// A witness: path proofs and the operations under each.
pub(super) struct NomtWitness(pub(super) nomt::Witness);

impl fmt::Debug for NomtWitness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NomtWitness").field(&self.bytes()).finish()
    }
}

impl Witness for NomtWitness {
    /// The size if its path proofs were written out: siblings, terminal (key and value hash), position.
    fn bytes(&self) -> u64 {
        let proofs = self.0.path_proofs.iter();
        let proofs: usize = proofs.map(|proof| proof.inner.siblings.len() * 32 + 66 + 34).sum();
        let operations = self.0.operations.reads.len() + self.0.operations.writes.len();
        (proofs + operations * 68) as u64
    }

    fn verify(&self, prev_root: &Root) -> core::result::Result<Proven, String> {
        let mut reads: Vec<Vec<&nomt::WitnessedRead>> = Vec::new();
        reads.resize_with(self.0.path_proofs.len(), Vec::new);
        for read in &self.0.operations.reads {
            reads.get_mut(read.path_index).ok_or("a read names no path")?.push(read);
        }
        let mut writes = Vec::new();
        writes.resize_with(self.0.path_proofs.len(), Vec::new);
        for write in &self.0.operations.writes {
            let path = writes.get_mut(write.path_index).ok_or("a write names no path")?;
            path.push((write.key, write.value));
        }
        let mut updates = Vec::new();
        for ((witnessed, reads), ops) in self.0.path_proofs.iter().zip(reads).zip(writes) {
            let verified =
                witnessed.inner.verify::<Blake3Hasher>(witnessed.path.path(), *prev_root);
            let verified =
                verified.map_err(|error| format!("a path does not verify: {error:?}"))?;
            for read in reads {
                confirm(&verified, read)?;
            }
            if !ops.is_empty() {
                updates.push(PathUpdate { inner: verified, ops });
            }
        }
        // Workers hand in their paths in any order; the verifier needs them in trie order.
        updates.sort_by(|a, b| a.inner.path().cmp(b.inner.path()));
        let new_root = verify_update::<Blake3Hasher>(*prev_root, &updates)
            .map_err(|error| format!("the update does not verify: {error:?}"))?;
        let operations = &self.0.operations;
        Ok(Proven {
            new_root,
            reads: operations
                .reads
                .iter()
                .map(|read| (read.key, read.value.map(Into::into)))
                .collect(),
            writes: operations
                .writes
                .iter()
                .map(|write| (write.key, write.value.map(Into::into)))
                .collect(),
        })
    }
}

fn confirm(
    path: &nomt::proof::VerifiedPathProof,
    read: &nomt::WitnessedRead,
) -> core::result::Result<(), String> {
    let holds = match read.value {
        None => path.confirm_nonexistence(&read.key),
        Some(value_hash) => path.confirm_value(&LeafData { key_path: read.key, value_hash }),
    };
    match holds {
        Ok(true) => Ok(()),
        Ok(false) => Err("a read is not what the path proves".to_owned()),
        Err(_) => Err("a read lies outside its path".to_owned()),
    }
}
