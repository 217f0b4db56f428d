//! Texts of errors name what was found and what was wanted; the text of a hash is read again.

use pleach_core::naive::NaiveTrie;
use pleach_core::node::value_hash;
use pleach_core::proof::{multi, path};
use pleach_core::{Hasher, Node};

/// They were "not an encoding: kind 1, not 2" and "not an encoding: hasher 1, not 2".
#[test]
fn a_proof_of_another_kind_or_hasher_is_named() {
    let hasher = Hasher::BLAKE3;
    let trie: NaiveTrie = [([1; 32], value_hash(hasher, b"one"))].into_iter().collect();
    let (root, proof) =
        (trie.root(hasher), trie.path(hasher, &[1; 32]).encode(hasher).expect("it"));
    let kind = multi::verify(hasher, &proof, &root).expect_err("a proof of one key");
    let text =
        "not an encoding: this is a proof of one key, and a proof of several keys was asked for";
    assert_eq!(kind.to_string(), text);
    let other = path::verify(Hasher::SHA2_256, &proof, &root).expect_err("of BLAKE3");
    let text = "not an encoding: made with blake3, and verified with sha2-256";
    assert_eq!(other.to_string(), text);
    // A program whose `main` returns the error prints this.
    assert_eq!(format!("{other:?}"), text);
}

#[test]
fn the_digits_of_a_node_are_read_again() {
    let node =
        Node::new(std::array::from_fn(|at| 7_u8.wrapping_mul(u8::try_from(at).expect("32"))));
    let digits = node.to_string();
    for text in
        [digits.clone(), digits.to_uppercase(), format!("0x{digits}"), format!(" {digits}\n")]
    {
        assert_eq!(text.parse(), Ok(node), "{text}");
    }
    let wrong = [
        String::new(),
        "0x".to_owned(),
        digits[1..].to_owned(),
        digits.replace('0', "g"),
        "é".repeat(32),
    ];
    for text in wrong {
        let error = text.parse::<Node>().expect_err("no hash").to_string();
        assert!(error.starts_with("64 hexadecimal digits are wanted"), "{error}");
    }
}
