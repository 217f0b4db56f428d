//! The rolling digest of a plain namespace, which takes the place of a root: keyed BLAKE3 of the digest before and the
//! changes of a commit.
//!
//! ```text
//! digest    BLAKE3 with the key DOMAIN, of: digest before 32 | changes, ascending by key
//! change    key 32 | 0 = deleted; 1, length u32, bytes = up to 1 KiB; 2, hash of the value 32 = longer
//! of a load BLAKE3 with the same key, of: digest before 32 | root of its pairs 32
//! ```
//!
//! No commit's message is as short as a load's: a change has 33 bytes or more.
//!
//! The digest of an empty namespace that was just added is 32 zero bytes. Unlike a root it depends on how a state came
//! about; but no two states have the same one. It is BLAKE3 whatever the database's hasher is; the hashes of long
//! values are the hasher's.

use pleach_beatree::Stored;
use pleach_core::fold::FoldValue;
use pleach_core::{Key, KeyedBlake3, Node, TERMINATOR};

/// The key of the hash.
const DOMAIN: &[u8; 32] = b"pleach plain namespace digest v1";

/// Bytes that are hashed at once: a bound of the copy, however much a commit changes.
const PIECE: usize = 64 * 1024;

/// The digest after changes, which ascend by key; without changes the digest before.
pub(crate) fn after_changes<'a>(
    before: &Node,
    changes: impl Iterator<Item = (&'a Key, &'a Stored)>,
) -> Node {
    let mut changes = changes.peekable();
    if changes.peek().is_none() {
        return *before;
    }
    let mut hasher = KeyedBlake3::new(DOMAIN);
    let mut message = Vec::with_capacity((32 + 64 * changes.size_hint().0).min(PIECE));
    message.extend_from_slice(before.as_ref());
    for (key, stored) in changes {
        if message.len() > PIECE {
            hasher.update(&message);
            message.clear();
        }
        message.extend_from_slice(key);
        match stored.fold_value() {
            None => message.push(0),
            Some(FoldValue::Bytes(value)) => {
                let len = u32::try_from(value.len()).expect("at most 1 KiB");
                message.push(1);
                message.extend_from_slice(&len.to_le_bytes());
                message.extend_from_slice(value);
            }
            Some(FoldValue::Hash(hash)) => {
                message.push(2);
                message.extend_from_slice(hash.as_ref());
            }
        }
    }
    hasher.update(&message);
    hasher.finish().into()
}

/// The digest after a load of pairs whose trie has this root; without pairs the digest before.
pub(crate) fn after_load(before: &Node, root: &Node) -> Node {
    if *root == TERMINATOR {
        return *before;
    }
    let mut hasher = KeyedBlake3::new(DOMAIN);
    hasher.update(before.as_ref());
    hasher.update(root.as_ref());
    hasher.finish().into()
}

#[cfg(test)]
mod tests {
    use pleach_core::Hasher;

    use super::*;

    fn of(before: &Node, changes: &[(Key, Stored)]) -> Node {
        after_changes(before, changes.iter().map(|(key, stored)| (key, stored)))
    }

    fn put(bytes: &[u8]) -> Stored {
        Stored::from_value(Hasher::BLAKE3, bytes.into())
    }

    #[test]
    fn what_is_hashed_in_pieces_is_one_message() {
        let changes: Vec<(Key, Stored)> = (0..2000u16)
            .map(|at| {
                let [high, low] = at.to_be_bytes();
                let mut key = [0; 32];
                (key[0], key[1]) = (high, low);
                (key, put(&vec![low; usize::from(at % 200)]))
            })
            .collect();
        let mut message = TERMINATOR.to_bytes().to_vec();
        for (key, stored) in &changes {
            let Stored::Inline(value) = stored else { panic!("short") };
            message.extend_from_slice(key);
            message.push(1);
            let len = u32::try_from(value.len()).expect("short");
            message.extend_from_slice(&len.to_le_bytes());
            message.extend_from_slice(value);
        }
        assert!(message.len() > 3 * PIECE, "several pieces");
        assert_eq!(
            of(&TERMINATOR, &changes),
            Node::from(pleach_core::hasher::keyed_blake3(DOMAIN, &message))
        );
    }

    #[test]
    fn a_digest_depends_on_all_that_was_changed_and_on_what_was_before() {
        let long = vec![7; 5000];
        let lists = [
            vec![([1; 32], put(b"a"))],
            vec![([1; 32], put(b"b"))],
            vec![([1; 32], put(b""))],
            vec![([1; 32], Stored::Absent)],
            vec![([2; 32], put(b"a"))],
            vec![([1; 32], put(b"a")), ([2; 32], put(b"a"))],
            vec![([1; 32], put(&long))],
        ];
        let mut all = vec![TERMINATOR];
        for before in [TERMINATOR, Node::from([3; 32])] {
            all.extend(lists.iter().map(|list| of(&before, list)));
            assert_eq!(of(&before, &[]), before, "nothing was changed");
        }
        let root = Node::from([9; 32]);
        all.extend([after_load(&TERMINATOR, &root), after_load(&root, &Node::from([3; 32]))]);
        assert_eq!(after_load(&root, &TERMINATOR), root, "nothing was loaded");
        all.sort_unstable();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count, "all differ");
    }
}
