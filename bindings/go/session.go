package pleach

/*
#include "pleach.h"
*/
import "C"

import (
	"context"
	"iter"
	"unsafe"
)

// Session reads one fixed state, whatever is committed meanwhile.
type Session struct{ handle }

func newSession(made *C.pleach_session, err error) (*Session, error) {
	if err != nil {
		return nil, err
	}
	s := &Session{}
	s.own(unsafe.Pointer(made), func(p unsafe.Pointer) { C.pleach_session_free((*C.pleach_session)(p)) })
	return s, nil
}

func (s *Session) call(f func(*C.pleach_session) *C.pleach_error) error {
	return s.handle.call(func(p unsafe.Pointer) *C.pleach_error { return f((*C.pleach_session)(p)) })
}

// What a call writes as bytes.
func (s *Session) bytes(f func(*C.pleach_session, *C.pleach_bytes) *C.pleach_error) ([]byte, error) {
	var found C.pleach_bytes
	err := s.call(func(p *C.pleach_session) *C.pleach_error { return f(p, &found) })
	return take(&found), err
}

// CommitNumber is the number of the commit that the session reads, below overlays where it reads one.
func (s *Session) CommitNumber() (uint64, error) {
	var number C.uint64_t
	err := s.call(func(p *C.pleach_session) *C.pleach_error { return C.pleach_session_commit_number(p, &number) })
	return uint64(number), err
}

// Root is the root of a Merkle namespace in the session's state.
func (s *Session) Root(namespace uint8) (root Hash, err error) {
	err = s.call(func(p *C.pleach_session) *C.pleach_error {
		return C.pleach_session_root(p, C.uint8_t(namespace), key(&root))
	})
	return root, err
}

// Get reads the value of a key: nil where it has none, and not nil where it is empty.
func (s *Session) Get(namespace uint8, of Hash) ([]byte, error) {
	return s.bytes(func(p *C.pleach_session, b *C.pleach_bytes) *C.pleach_error {
		return C.pleach_session_read(p, C.uint8_t(namespace), key(&of), b)
	})
}

// GetMany reads the values of many keys, in their order. Pages that are not cached are read together; of cached values Get
// in a loop is faster. Values are as of Get.
func (s *Session) GetMany(namespace uint8, of []Hash) ([][]byte, error) {
	if len(of) == 0 {
		return nil, nil
	}
	found := make([]C.pleach_bytes, len(of))
	err := s.call(func(p *C.pleach_session) *C.pleach_error {
		return C.pleach_session_read_many(p, C.uint8_t(namespace), keys(of), C.size_t(len(of)), &found[0])
	})
	if err != nil {
		return nil, err
	}
	values := make([][]byte, len(of))
	for at := range found {
		values[at] = take(&found[at])
	}
	return values, nil
}

// Prefetch announces keys: their pages begin to arrive, and the call returns at once.
func (s *Session) Prefetch(namespace uint8, of []Hash) error {
	return s.call(func(p *C.pleach_session) *C.pleach_error {
		return C.pleach_session_prefetch(p, C.uint8_t(namespace), keys(of), C.size_t(len(of)))
	})
}

// Range is a range of keys, of which both ends are a part; without an end it goes to the first or the last key. With a
// prefix it has the keys that begin with it, and no ends.
type Range struct {
	First, Last *Hash
	Prefix      []byte
	Reverse     bool // from the last key to the first
}

// Pair is a key and its value.
type Pair struct {
	Key   Hash
	Value []byte
}

// Pairs iterates over the pairs of a range in the order of their keys. An error is the last that it gives: one of a
// read, or that of the context.
func (s *Session) Pairs(ctx context.Context, namespace uint8, of Range) iter.Seq2[Pair, error] {
	return func(yield func(Pair, error) bool) {
		var cursor *C.pleach_cursor
		if err := s.call(func(p *C.pleach_session) *C.pleach_error {
			if of.Prefix != nil {
				return C.pleach_cursor_prefix(p, C.uint8_t(namespace), data(of.Prefix), C.size_t(len(of.Prefix)), &cursor)
			}
			return C.pleach_cursor_range(p, C.uint8_t(namespace), end(of.First), end(of.Last), &cursor)
		}); err != nil {
			yield(Pair{}, err)
			return
		}
		defer C.pleach_cursor_free(cursor)
		if of.Reverse {
			if err := result(C.pleach_cursor_seek(cursor, nil)); err != nil { // behind the last pair
				yield(Pair{}, err)
				return
			}
		}
		// Who wants a few pairs does not wait for many.
		for most := C.size_t(8); ; most = min(2*most, 1024) {
			var found C.pleach_pairs
			err := ctx.Err()
			switch {
			case err != nil:
			case of.Reverse:
				err = result(C.pleach_cursor_previous_many(cursor, most, &found))
			default:
				err = result(C.pleach_cursor_next_many(cursor, most, &found))
			}
			if err != nil {
				yield(Pair{}, err)
				return
			}
			if found.count == 0 {
				return
			}
			values := unsafe.Pointer(found.values)
			lengths := unsafe.Slice(found.lengths, found.count)
			for at, key := range unsafe.Slice((*Hash)(unsafe.Pointer(found.keys)), found.count) {
				if err := ctx.Err(); err != nil {
					yield(Pair{}, err)
					return
				}
				value := make([]byte, lengths[at])
				copy(value, unsafe.Slice((*byte)(values), lengths[at]))
				values = unsafe.Add(values, lengths[at])
				if !yield(Pair{key, value}, nil) {
					return
				}
			}
		}
	}
}

func end(of *Hash) *C.uint8_t {
	if of == nil {
		return nil
	}
	return key(of)
}

// Prove proves what the state says of a key, present or absent, for VerifyKey.
func (s *Session) Prove(namespace uint8, of Hash) ([]byte, error) {
	return s.bytes(func(p *C.pleach_session, b *C.pleach_bytes) *C.pleach_error {
		return C.pleach_session_prove(p, C.uint8_t(namespace), key(&of), b)
	})
}

// ProveMany proves what the state says of many keys in one proof, for VerifyKeys.
func (s *Session) ProveMany(namespace uint8, of []Hash) ([]byte, error) {
	return s.bytes(func(p *C.pleach_session, b *C.pleach_bytes) *C.pleach_error {
		return C.pleach_session_prove_many(p, C.uint8_t(namespace), keys(of), C.size_t(len(of)), b)
	})
}

// ProveRange proves at most limit pairs from a key on, and that there is no other up to the end that it gives: the last
// key, or the one up to which the proof goes because of the limit. For VerifyRange.
func (s *Session) ProveRange(namespace uint8, first, last Hash, limit int) (proof []byte, to Hash, err error) {
	proof, err = s.bytes(func(p *C.pleach_session, b *C.pleach_bytes) *C.pleach_error {
		return C.pleach_session_prove_range(p, C.uint8_t(namespace), key(&first), key(&last), C.size_t(limit), key(&to), b)
	})
	return proof, to, err
}

// Finish makes a block of what the batch did. Nothing is written to the device. The session is spent and the batch empty
// afterwards; after an error both are as they were.
func (s *Session) Finish(batch *Batch) (*Block, error) {
	var steps *C.pleach_batch
	if err := result(C.pleach_batch_new(&steps)); err != nil {
		return nil, err
	}
	defer C.pleach_batch_free(steps)
	for namespace, of := range batch.namespaces {
		if err := of.give(steps, namespace); err != nil {
			return nil, err
		}
	}
	var made *C.pleach_block
	err := s.spend(func(p unsafe.Pointer) *C.pleach_error {
		return C.pleach_session_finish((*C.pleach_session)(p), steps, &made)
	})
	if err != nil {
		return nil, err
	}
	batch.namespaces = nil
	b := &Block{}
	b.own(unsafe.Pointer(made), func(p unsafe.Pointer) { C.pleach_block_free((*C.pleach_block)(p)) })
	return b, nil
}
