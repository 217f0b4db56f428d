// A block through the C interface: open, commit, read, prove, verify. run.sh builds and runs it.
package main

/*
#cgo CFLAGS: -I${SRCDIR}/../../include
#cgo LDFLAGS: -lpleach_c
#include <stdlib.h>
#include "pleach.h"
*/
import "C"

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"unsafe"
)

// A key, root or hash.
type hash [32]byte

// An error of the library, copied, so that nobody has to free it.
type failure struct {
	code, outcome, advice uint32
	text, adviceText      string
}

func (f *failure) Error() string { return fmt.Sprintf("%d: %s; %s", f.code, f.text, f.adviceText) }

// Takes over what a call gave: nil, or an error.
func result(e *C.pleach_error) error {
	if e == nil {
		return nil
	}
	defer C.pleach_error_free(e)
	return &failure{
		uint32(e.code), uint32(e.outcome), uint32(e.advice),
		C.GoString(e.text), C.GoString(e.advice_text),
	}
}

func must(e *C.pleach_error) {
	if err := result(e); err != nil {
		log.Fatal(err)
	}
}

// Takes over bytes of the library, as a copy; nil where there are none.
func take(b *C.pleach_bytes) []byte {
	defer C.pleach_bytes_free(b)
	if b.data == nil {
		return nil
	}
	return bytes.Clone(unsafe.Slice((*byte)(b.data), b.len))
}

func at(h *hash) *C.uint8_t { return (*C.uint8_t)(&h[0]) }

// A pointer to bytes, which may be none.
func data(b []byte) *C.uint8_t { return (*C.uint8_t)(unsafe.SliceData(b)) }

var blake3 = C.CString("blake3")

func hashOf(text []byte) (h hash) {
	must(C.pleach_hash(blake3, data(text), C.size_t(len(text)), at(&h)))
	return h
}

func main() {
	folder, err := os.MkdirTemp("", "pleach-go")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	path, options := C.CString(filepath.Join(folder, "state")), C.CString("create=true cache_mib=64")
	defer C.free(unsafe.Pointer(path))
	defer C.free(unsafe.Pointer(options))

	var db *C.pleach_db
	must(C.pleach_open(path, options, &db))
	defer C.pleach_db_free(db)

	// What the open warns of, a line each.
	var bytesOf C.pleach_bytes
	must(C.pleach_notes(db, &bytesOf))
	if notes := take(&bytesOf); len(notes) > 0 {
		log.Printf("%s", notes)
	}

	// A second open is refused, with a number, an advice and a text.
	var second *C.pleach_db
	err = result(C.pleach_open(path, options, &second))
	if refused, ok := err.(*failure); !ok || refused.advice != C.PLEACH_CLOSE_OTHERS {
		log.Fatalf("a second open gave %v", err)
	}
	fmt.Println(err)

	// A block.
	alice, value := hashOf([]byte("alice")), []byte("90")
	var session *C.pleach_session
	var batch *C.pleach_batch
	var block *C.pleach_block
	var number C.uint64_t
	var before, root, after hash
	must(C.pleach_session_open(db, nil, 0, &session))
	must(C.pleach_batch_new(&batch))
	must(C.pleach_batch_read(batch, 0, at(&alice)))
	must(C.pleach_batch_put(batch, 0, at(&alice), data(value), C.size_t(len(value))))
	must(C.pleach_session_finish(session, batch, &block))
	C.pleach_session_free(session)
	C.pleach_batch_free(batch)
	must(C.pleach_block_previous_root(block, 0, at(&before)))
	must(C.pleach_block_root(block, 0, at(&root)))
	must(C.pleach_block_witness(block, 0, &bytesOf))
	witness := take(&bytesOf)
	must(C.pleach_block_commit(block, &number))
	C.pleach_block_free(block)

	// The witness leads from the old root to the new one.
	must(C.pleach_verify_witness(blake3, at(&before), data(witness), C.size_t(len(witness)),
		nil, 0, nil, nil, at(&after)))
	if after != root {
		log.Fatal("the witness leads to another root")
	}

	// Read and prove.
	must(C.pleach_session_open(db, nil, 0, &session))
	defer C.pleach_session_free(session)
	must(C.pleach_session_read(session, 0, at(&alice), &bytesOf))
	if read := take(&bytesOf); !bytes.Equal(read, value) {
		log.Fatalf("read %q", read)
	}
	must(C.pleach_session_prove(session, 0, at(&alice), &bytesOf))
	proof := take(&bytesOf)
	var lookup C.uint8_t
	var proven hash
	verify := func(root *hash) error {
		return result(C.pleach_verify_key(blake3, at(root), data(proof), C.size_t(len(proof)),
			at(&alice), &lookup, at(&proven)))
	}
	if err := verify(&root); err != nil {
		log.Fatal(err)
	}
	if lookup != C.PLEACH_PRESENT || proven != hashOf(value) {
		log.Fatal("the proof says something else")
	}
	if verify(&before) == nil {
		log.Fatal("the proof is believed against another root")
	}
	fmt.Printf("commit %d, root %x, proof of %d bytes verified\n", number, root, len(proof))

	// A prefix, here that of all keys, with all that has it, but for what the same block puts.
	bob := hashOf([]byte("bob"))
	var next *C.pleach_session
	must(C.pleach_session_open(db, nil, 0, &next))
	must(C.pleach_batch_new(&batch))
	must(C.pleach_batch_read(batch, 0, at(&alice)))
	must(C.pleach_batch_put(batch, 0, at(&bob), data(value), C.size_t(len(value))))
	must(C.pleach_batch_delete_prefix(batch, 0, nil, 0))
	must(C.pleach_session_finish(next, batch, &block))
	C.pleach_session_free(next)
	C.pleach_batch_free(batch)
	must(C.pleach_block_commit(block, &number))
	C.pleach_block_free(block)
	must(C.pleach_session_open(db, nil, 0, &next))
	defer C.pleach_session_free(next)
	for _, one := range []struct {
		key  *hash
		left []byte
	}{{&alice, nil}, {&bob, value}} {
		must(C.pleach_session_read(next, 0, at(one.key), &bytesOf))
		if read := take(&bytesOf); !bytes.Equal(read, one.left) {
			log.Fatalf("the block has left %q, not %q", read, one.left)
		}
	}
}
