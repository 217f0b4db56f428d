package pleach

/*
#include "pleach.h"
*/
import "C"

import (
	"bytes"
	"unsafe"
)

// Batch is what a block reads and writes. It is kept in Go's memory and given to the library by Finish, a namespace in
// one call. A batch belongs to one goroutine. The zero value is an empty batch.
type Batch struct{ namespaces map[uint8]*steps }

// The steps on keys of a namespace.
type steps struct {
	keys     []Hash
	kinds    []byte
	values   []byte
	lengths  []C.size_t
	prefixes [][]byte
}

func (b *Batch) of(namespace uint8) *steps {
	if b.namespaces == nil {
		b.namespaces = map[uint8]*steps{}
	}
	if b.namespaces[namespace] == nil {
		b.namespaces[namespace] = &steps{}
	}
	return b.namespaces[namespace]
}

func (s *steps) add(of Hash, kind byte, value []byte) {
	s.keys, s.kinds = append(s.keys, of), append(s.kinds, kind)
	s.values, s.lengths = append(s.values, value...), append(s.lengths, C.size_t(len(value)))
}

func (s *steps) give(to *C.pleach_batch, namespace uint8) error {
	err := result(C.pleach_batch_add(to, C.uint8_t(namespace), keys(s.keys), data(s.kinds), data(s.values),
		unsafe.SliceData(s.lengths), C.size_t(len(s.keys))))
	for _, prefix := range s.prefixes {
		if err == nil {
			err = result(C.pleach_batch_delete_prefix(to, C.uint8_t(namespace), data(prefix), C.size_t(len(prefix))))
		}
	}
	return err
}

// Read says that the block has read a key: the witness proves its value before the block.
func (b *Batch) Read(namespace uint8, of Hash) { b.of(namespace).add(of, C.PLEACH_READ, nil) }

// Put gives a key a value, of at most 64 MiB. The last Put or Delete of a key counts.
func (b *Batch) Put(namespace uint8, of Hash, value []byte) {
	b.of(namespace).add(of, C.PLEACH_PUT, value)
}

// Delete deletes a key.
func (b *Batch) Delete(namespace uint8, of Hash) { b.of(namespace).add(of, C.PLEACH_DELETE, nil) }

// DeletePrefix deletes all keys that begin with these bytes, at most 32, except those that the batch puts, in whatever
// order the calls come.
func (b *Batch) DeletePrefix(namespace uint8, prefix []byte) {
	of := b.of(namespace)
	of.prefixes = append(of.prefixes, bytes.Clone(prefix))
}

// Block is a new root and the changes that lead to it, in memory. One that is not committed leaves no trace.
type Block struct{ handle }

func (b *Block) call(f func(*C.pleach_block) *C.pleach_error) error {
	return b.handle.call(func(p unsafe.Pointer) *C.pleach_error { return f((*C.pleach_block)(p)) })
}

// Root is the root of a Merkle namespace in the block's state.
func (b *Block) Root(namespace uint8) (root Hash, err error) {
	err = b.call(func(p *C.pleach_block) *C.pleach_error {
		return C.pleach_block_root(p, C.uint8_t(namespace), key(&root))
	})
	return root, err
}

// PreviousRoot is the root before the block: what its witness is verified against.
func (b *Block) PreviousRoot(namespace uint8) (root Hash, err error) {
	err = b.call(func(p *C.pleach_block) *C.pleach_error {
		return C.pleach_block_previous_root(p, C.uint8_t(namespace), key(&root))
	})
	return root, err
}

// Witness takes the block's witness of a namespace, once, for VerifyWitness. It is nil where there is none.
func (b *Block) Witness(namespace uint8) ([]byte, error) {
	var witness C.pleach_bytes
	err := b.call(func(p *C.pleach_block) *C.pleach_error {
		return C.pleach_block_witness(p, C.uint8_t(namespace), &witness)
	})
	return take(&witness), err
}

// Commit commits the block, with the overlays below it, and gives the number of the commit. The block is spent; after an
// error it is as it was, and the commit can be tried again.
func (b *Block) Commit() (uint64, error) {
	var number C.uint64_t
	err := b.spend(func(p unsafe.Pointer) *C.pleach_error { return C.pleach_block_commit((*C.pleach_block)(p), &number) })
	return uint64(number), err
}

// Overlay keeps the block in memory as a state for further sessions. The block is spent.
func (b *Block) Overlay() (*Overlay, error) {
	var made *C.pleach_overlay
	err := b.spend(func(p unsafe.Pointer) *C.pleach_error {
		return C.pleach_block_into_overlay((*C.pleach_block)(p), &made)
	})
	if err != nil {
		return nil, err
	}
	o := &Overlay{}
	o.own(unsafe.Pointer(made), func(p unsafe.Pointer) { C.pleach_overlay_free((*C.pleach_overlay)(p)) })
	return o, nil
}

// Overlay is a block that is kept in memory. DB.Session reads it with Over.
type Overlay struct{ handle }

func (o *Overlay) call(f func(*C.pleach_overlay) *C.pleach_error) error {
	return o.handle.call(func(p unsafe.Pointer) *C.pleach_error { return f((*C.pleach_overlay)(p)) })
}

// Root is the root of a Merkle namespace in the overlay's state.
func (o *Overlay) Root(namespace uint8) (root Hash, err error) {
	err = o.call(func(p *C.pleach_overlay) *C.pleach_error {
		return C.pleach_overlay_root(p, C.uint8_t(namespace), key(&root))
	})
	return root, err
}

// Commit commits the overlay and those below it as one commit, and gives its number.
func (o *Overlay) Commit() (uint64, error) {
	var number C.uint64_t
	err := o.call(func(p *C.pleach_overlay) *C.pleach_error { return C.pleach_overlay_commit(p, &number) })
	return uint64(number), err
}
