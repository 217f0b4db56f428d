package pleach

/*
#include <stdlib.h>
#include "pleach.h"
*/
import "C"

// Hasher is a hash function. Verifiers need no database.
type Hasher string

// The hash functions of databases.
const (
	Blake3 Hasher = "blake3"
	SHA256 Hasher = "sha2-256"
)

// Hash is the hash of bytes.
func (h Hasher) Hash(of []byte) (hash Hash, err error) {
	withText(string(h), func(name *C.char) {
		err = result(C.pleach_hash(name, data(of), C.size_t(len(of)), key(&hash)))
	})
	return hash, err
}

// Lookup is what a proof says of a key.
type Lookup uint8

const (
	// Absent says that the key has no value.
	Absent Lookup = C.PLEACH_ABSENT
	// Present says that it has one.
	Present Lookup = C.PLEACH_PRESENT
	// OutOfScope says that the proof is not about the key.
	OutOfScope Lookup = C.PLEACH_OUT_OF_SCOPE
)

// Answer is what a proof says of a key, and the hash of its value where it is present.
type Answer struct {
	Lookup    Lookup
	ValueHash Hash
}

// Places for answers about keys, filled by a call.
func answers(count int, f func(lookups, hashes *C.uint8_t) error) ([]Answer, error) {
	lookups, hashes := make([]byte, count), make([]Hash, count)
	if err := f(data(lookups), keys(hashes)); err != nil {
		return nil, err
	}
	found := make([]Answer, count)
	for at := range found {
		found[at] = Answer{Lookup(lookups[at]), hashes[at]}
	}
	return found, nil
}

// VerifyKey verifies a proof of a key against a root. The error is Refused where it proves nothing.
func (h Hasher) VerifyKey(root Hash, proof []byte, of Hash) (found Answer, err error) {
	withText(string(h), func(name *C.char) {
		var lookup C.uint8_t
		err = result(C.pleach_verify_key(name, key(&root), data(proof), C.size_t(len(proof)),
			key(&of), &lookup, key(&found.ValueHash)))
		found.Lookup = Lookup(lookup)
	})
	return found, err
}

// VerifyKeys verifies a proof of many keys, and says what it proves of these, in their order.
func (h Hasher) VerifyKeys(root Hash, proof []byte, of []Hash) (found []Answer, err error) {
	withText(string(h), func(name *C.char) {
		found, err = answers(len(of), func(lookups, hashes *C.uint8_t) error {
			return result(C.pleach_verify_keys(name, key(&root), data(proof), C.size_t(len(proof)),
				keys(of), C.size_t(len(of)), lookups, hashes))
		})
	})
	return found, err
}

// KeyHash is a key and the hash of its value.
type KeyHash struct{ Key, ValueHash Hash }

// VerifyRange verifies a proof of a range, and gives all keys in it, in order.
func (h Hasher) VerifyRange(root Hash, proof []byte, first, last Hash) (pairs []KeyHash, err error) {
	withText(string(h), func(name *C.char) {
		var found C.pleach_bytes
		err = result(C.pleach_verify_range(name, key(&root), data(proof), C.size_t(len(proof)),
			key(&first), key(&last), &found))
		for all := take(&found); len(all) > 0; all = all[64:] {
			pairs = append(pairs, KeyHash{Hash(all[:32]), Hash(all[32:64])})
		}
	})
	return pairs, err
}

// VerifyWitness verifies a block's witness against the root before the block. It gives the root after it, and what the
// state before it said of these keys.
func (h Hasher) VerifyWitness(before Hash, witness []byte, of []Hash) (after Hash, found []Answer, err error) {
	withText(string(h), func(name *C.char) {
		found, err = answers(len(of), func(lookups, hashes *C.uint8_t) error {
			return result(C.pleach_verify_witness(name, key(&before), data(witness), C.size_t(len(witness)),
				keys(of), C.size_t(len(of)), lookups, hashes, key(&after)))
		})
	})
	return after, found, err
}
