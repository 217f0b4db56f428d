package pleach

/*
#cgo linux,amd64 LDFLAGS: ${SRCDIR}/libpleach_c_amd64.a
#cgo linux,arm64 LDFLAGS: ${SRCDIR}/libpleach_c_arm64.a
#cgo LDFLAGS: -lgcc_s -lutil -lrt -lpthread -lm -ldl
#include <stdlib.h>
#include "pleach.h"
*/
import "C"

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

// Hash is a key, a root or a hash. It prints as digits.
type Hash [32]byte

func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Format prints digits for %v, %s and %x alike.
func (h Hash) Format(to fmt.State, verb rune) {
	if verb == 'v' || verb == 's' {
		verb = 'x'
	}
	fmt.Fprintf(to, fmt.FormatString(to, verb), h[:])
}

// What a pointer of the library belongs to.
type handle struct {
	mu      sync.RWMutex // calls read, and the end writes: it comes after the last call
	pointer unsafe.Pointer
	free    func(unsafe.Pointer)
	cleanup runtime.Cleanup
}

// Takes over a pointer. Once nobody has the handle any more, the garbage collector frees it.
func (h *handle) own(pointer unsafe.Pointer, free func(unsafe.Pointer)) {
	h.pointer, h.free = pointer, free
	h.cleanup = runtime.AddCleanup(h, free, pointer)
}

// Calls the library with the pointer, which lives until the call has ended.
func (h *handle) call(f func(unsafe.Pointer) *C.pleach_error) error {
	h.mu.RLock()
	defer h.mu.RUnlock() // also keeps the handle alive
	if h.pointer == nil {
		return ErrClosed
	}
	return result(f(h.pointer))
}

// Close waits for calls of other goroutines, and frees. Once more does nothing.
func (h *handle) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end()
}

func (h *handle) end() {
	if h.pointer != nil {
		h.cleanup.Stop()
		h.free(h.pointer)
		h.pointer = nil
	}
}

// Waits for calls of other goroutines, and calls the library with the pointer. Where that succeeds, the handle is spent.
func (h *handle) spend(f func(unsafe.Pointer) *C.pleach_error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pointer == nil {
		return ErrClosed
	}
	err := result(f(h.pointer))
	if err == nil {
		h.end()
	}
	return err
}

// Takes over bytes of the library, as a copy; nil where there are none.
func take(b *C.pleach_bytes) []byte {
	defer C.pleach_bytes_free(b)
	if b.data == nil {
		return nil
	}
	if b.len == 0 {
		return []byte{}
	}
	return bytes.Clone(unsafe.Slice((*byte)(b.data), b.len))
}

func key(h *Hash) *C.uint8_t { return (*C.uint8_t)(&h[0]) }

// A pointer to the first key, which may be none.
func keys(all []Hash) *C.uint8_t { return (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(all))) }

// A pointer to bytes, which may be none.
func data(b []byte) *C.uint8_t { return (*C.uint8_t)(unsafe.SliceData(b)) }

// Gives a text to a call.
func withText(text string, f func(*C.char)) {
	c := C.CString(text)
	defer C.free(unsafe.Pointer(c))
	f(c)
}
