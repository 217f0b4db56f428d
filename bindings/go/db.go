package pleach

/*
#include <stdlib.h>
#include "pleach.h"
*/
import "C"

import (
	"context"
	"fmt"
	"iter"
	"math"
	"strings"
	"time"
	"unsafe"
)

// Options of [Open]. Zero values are the engine's defaults.
type Options struct {
	Create     bool   // make the database where there is none
	ReadOnly   bool   // open beside the process that writes; see DB.Refresh
	CacheMiB   uint64 // all memory of the database, not a cache alone; 1024 by default
	History    uint64 // past commits that can be read and rolled back to
	Durability string // when a commit returns: "commit" (synced, the default), "periodic:MILLISECONDS" or "none"
	// Further options as text, such as "threads=4 in_flight=64": pleach_open in pleach.h lists them.
	Further string
}

func (o Options) text() string {
	var text strings.Builder
	add := func(name string, value any, is bool) {
		if is {
			fmt.Fprintf(&text, "%s=%v ", name, value)
		}
	}
	add("create", true, o.Create)
	add("read_only", true, o.ReadOnly)
	add("cache_mib", o.CacheMiB, o.CacheMiB > 0)
	add("history", o.History, o.History > 0)
	add("durability", o.Durability, o.Durability != "")
	return text.String() + o.Further
}

// DB is an open database.
type DB struct{ handle }

func (d *DB) call(f func(*C.pleach_db) *C.pleach_error) error {
	return d.handle.call(func(p unsafe.Pointer) *C.pleach_error { return f((*C.pleach_db)(p)) })
}

// Refuses a text that C would cut off.
func noNUL(text string) error {
	if strings.ContainsRune(text, 0) {
		return &Error{Code: Argument, Advice: FixCall, Text: "a NUL in a text", AdviceText: "remove it"}
	}
	return nil
}

// Open opens the database in a folder. One process opens it for writing.
func Open(folder string, options Options) (*DB, error) {
	if err := noNUL(folder + options.text()); err != nil {
		return nil, err
	}
	var p *C.pleach_db
	var err error
	withText(folder, func(folder *C.char) {
		withText(options.text(), func(options *C.char) { err = result(C.pleach_open(folder, options, &p)) })
	})
	if err != nil {
		return nil, err
	}
	db := &DB{}
	db.own(unsafe.Pointer(p), func(p unsafe.Pointer) { C.pleach_db_free((*C.pleach_db)(p)) })
	return db, nil
}

// Close writes a checkpoint, so that the next open reads no log, and frees the database. Sessions, blocks and overlays
// that are open go on reading, and keep the folder locked until they are closed. After an error it can be called again.
func (d *DB) Close() error {
	err := d.call(func(p *C.pleach_db) *C.pleach_error { return C.pleach_close(p, nil) })
	if err == ErrClosed {
		return nil
	}
	if err == nil {
		d.handle.Close()
	}
	return err
}

// What a call writes as a number.
func (d *DB) number(f func(*C.pleach_db, *C.uint64_t) *C.pleach_error) (uint64, error) {
	var number C.uint64_t
	err := d.call(func(p *C.pleach_db) *C.pleach_error { return f(p, &number) })
	return uint64(number), err
}

// What a call writes as bytes.
func (d *DB) text(f func(*C.pleach_db, *C.pleach_bytes) *C.pleach_error) (string, error) {
	var text C.pleach_bytes
	err := d.call(func(p *C.pleach_db) *C.pleach_error { return f(p, &text) })
	return string(take(&text)), err
}

// CommitNumber is the number of the newest commit; 0 in a new database.
func (d *DB) CommitNumber() (uint64, error) {
	return d.number(func(p *C.pleach_db, n *C.uint64_t) *C.pleach_error { return C.pleach_commit_number(p, n) })
}

// Root is the root of a Merkle namespace in the newest commit; zeros where it is empty.
func (d *DB) Root(namespace uint8) (root Hash, err error) {
	err = d.call(func(p *C.pleach_db) *C.pleach_error { return C.pleach_root(p, C.uint8_t(namespace), key(&root)) })
	return root, err
}

// History gives the oldest and the newest commit that At and Rollback reach.
func (d *DB) History() (oldest, newest uint64, err error) {
	var from, to C.uint64_t
	err = d.call(func(p *C.pleach_db) *C.pleach_error { return C.pleach_history(p, &from, &to) })
	return uint64(from), uint64(to), err
}

// CommittedAt is when a commit was made; the zero time where that is not known. The history has no record of its oldest commit, unless that is commit 0: SnapshotTooOld.
func (d *DB) CommittedAt(commit uint64) (time.Time, error) {
	seconds, err := d.number(func(p *C.pleach_db, n *C.uint64_t) *C.pleach_error {
		return C.pleach_committed_at(p, C.uint64_t(commit), n)
	})
	if err != nil || seconds == 0 {
		return time.Time{}, err
	}
	return time.Unix(int64(seconds), 0), nil
}

// RolledBackTo is the commit that a rollback went back to, and whether the commit is a rollback at all. Errors are those of
// CommittedAt.
func (d *DB) RolledBackTo(commit uint64) (to uint64, is bool, err error) {
	to, err = d.number(func(p *C.pleach_db, n *C.uint64_t) *C.pleach_error {
		return C.pleach_rolled_back_to(p, C.uint64_t(commit), n)
	})
	return to, err == nil && to != commit, err
}

// Commits is a range of commits, of which both ends are a part; the zero value is all that the history knows of.
type Commits struct {
	First, Last uint64 // 0: the first of which the history knows what it changed; the newest one
	Reverse     bool   // from the newest on
}

// ChangesOf iterates over the commits of a range that changed a key. An error is the last that it gives: SnapshotTooOld
// where the first commit is before the history, one of a read, or that of the context. Of the oldest commit of the history
// nobody knows what it changed: a range that begins with it begins behind it.
func (d *DB) ChangesOf(ctx context.Context, namespace uint8, of Hash, commits Commits) iter.Seq2[uint64, error] {
	return func(yield func(uint64, error) bool) {
		first, last := commits.First, commits.Last
		if last == 0 {
			last = math.MaxUint64
		}
		for first <= last {
			var found [64]C.uint64_t
			var count C.size_t
			err := ctx.Err()
			if err == nil {
				err = d.call(func(p *C.pleach_db) *C.pleach_error {
					return C.pleach_changes_of(p, C.uint8_t(namespace), key(&of), C.uint64_t(first), C.uint64_t(last),
						C.bool(commits.Reverse), &found[0], C.size_t(len(found)), &count)
				})
			}
			if err != nil {
				yield(0, err)
				return
			}
			if count == 0 {
				return
			}
			for _, commit := range found[:count] {
				if !yield(uint64(commit), nil) {
					return
				}
			}
			if end := uint64(found[count-1]); commits.Reverse {
				last = end - 1
			} else {
				first = end + 1
			}
		}
	}
}

// Notes are what the open warns of, such as a budget that is larger than the memory of the process.
func (d *DB) Notes() ([]string, error) {
	text, err := d.text(func(p *C.pleach_db, b *C.pleach_bytes) *C.pleach_error { return C.pleach_notes(p, b) })
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' }), err
}

// Options are those that the database was opened with, as text for Options.Further.
func (d *DB) Options() (string, error) {
	return d.text(func(p *C.pleach_db, b *C.pleach_bytes) *C.pleach_error { return C.pleach_options(p, b) })
}

// Metrics are all counters and levels in the text format of Prometheus, with the folder as the label `database`;
// docs/metrics.md of the engine describes them.
func (d *DB) Metrics() (string, error) {
	return d.text(func(p *C.pleach_db, b *C.pleach_bytes) *C.pleach_error { return C.pleach_metrics(p, b) })
}

// Hasher is the name of the database's hash function.
func (d *DB) Hasher() (Hasher, error) {
	name, err := d.text(func(p *C.pleach_db, b *C.pleach_bytes) *C.pleach_error { return C.pleach_hasher(p, b) })
	return Hasher(name), err
}

// SessionOption is an option of [DB.Session].
type SessionOption func(*sessionOptions)

type sessionOptions struct {
	over  *Overlay
	flags C.uint32_t
}

// Over begins a session on an overlay, not on the newest commit.
func Over(overlay *Overlay) SessionOption { return func(o *sessionOptions) { o.over = overlay } }

// NoWitness says that the finish makes no witness, which is cheaper.
func NoWitness() SessionOption {
	return func(o *sessionOptions) { o.flags = C.PLEACH_WITHOUT_WITNESS }
}

// Session begins a session on the newest commit.
func (d *DB) Session(options ...SessionOption) (*Session, error) {
	var chosen sessionOptions
	for _, option := range options {
		option(&chosen)
	}
	var made *C.pleach_session
	open := func(over *C.pleach_overlay) error {
		return d.call(func(p *C.pleach_db) *C.pleach_error {
			return C.pleach_session_open(p, over, chosen.flags, &made)
		})
	}
	if chosen.over == nil {
		err := open(nil)
		return newSession(made, err)
	}
	var failed error
	err := chosen.over.call(func(p *C.pleach_overlay) *C.pleach_error { failed = open(p); return nil })
	if err == nil {
		err = failed
	}
	return newSession(made, err)
}

// At begins a session on a commit of the history.
func (d *DB) At(commit uint64) (*Session, error) {
	var made *C.pleach_session
	err := d.call(func(p *C.pleach_db) *C.pleach_error { return C.pleach_session_at(p, C.uint64_t(commit), &made) })
	return newSession(made, err)
}

// Rollback undoes the newest commits by a new one, and gives its number.
func (d *DB) Rollback(commits uint64) (uint64, error) {
	return d.number(func(p *C.pleach_db, n *C.uint64_t) *C.pleach_error {
		return C.pleach_rollback(p, C.uint64_t(commits), n)
	})
}

// Sync makes all acknowledged commits durable, for the durabilities "none" and "periodic".
func (d *DB) Sync() error {
	return d.call(func(p *C.pleach_db) *C.pleach_error { return C.pleach_sync(p) })
}

// Refresh goes on to the newest commit of a database that was opened with ReadOnly, and gives its number. Sessions stay
// where they are.
func (d *DB) Refresh() (uint64, error) {
	return d.number(func(p *C.pleach_db, n *C.uint64_t) *C.pleach_error { return C.pleach_refresh(p, n) })
}

// AddNamespace adds an empty namespace, and gives the number of the commit that does so. A plain one has no root.
func (d *DB) AddNamespace(namespace uint8, plain bool) (uint64, error) {
	return d.number(func(p *C.pleach_db, n *C.uint64_t) *C.pleach_error {
		return C.pleach_namespace_add(p, C.uint8_t(namespace), C.bool(plain), n)
	})
}

// DropNamespace drops a namespace with all that is in it, and gives the number of the commit that does so.
func (d *DB) DropNamespace(namespace uint8) (uint64, error) {
	return d.number(func(p *C.pleach_db, n *C.uint64_t) *C.pleach_error {
		return C.pleach_namespace_drop(p, C.uint8_t(namespace), n)
	})
}

// Namespaces are those of the newest commit; true for a plain one.
func (d *DB) Namespaces() (map[uint8]bool, error) {
	var kinds [256]C.uint8_t
	err := d.call(func(p *C.pleach_db) *C.pleach_error { return C.pleach_namespaces(p, &kinds[0]) })
	found := map[uint8]bool{}
	for namespace, kind := range kinds {
		if kind != C.PLEACH_NO_NAMESPACE {
			found[uint8(namespace)] = kind == C.PLEACH_PLAIN
		}
	}
	return found, err
}

// Backup copies the database to a folder, which is missing or empty, while sessions and commits go on, and gives the
// number of the newest commit in the copy. With verify each page of the copy is read again and hashed up to the roots.
func (d *DB) Backup(folder string, verify bool) (number uint64, err error) {
	if err := noNUL(folder); err != nil {
		return 0, err
	}
	withText(folder, func(folder *C.char) {
		number, err = d.number(func(p *C.pleach_db, n *C.uint64_t) *C.pleach_error {
			return C.pleach_backup(p, folder, C.bool(verify), n)
		})
	})
	return number, err
}

// Most pairs, and bytes of values, that Load gives to the library at once.
const partPairs, partBytes = 4096, 1 << 20

// Load fills an empty namespace with pairs in any order, each key once, as one durable commit, and gives their number.
// It is far faster than batches. No session or overlay may be open; nothing can be committed meanwhile, and no earlier
// commit can be read afterwards. When the context ends, nothing is loaded.
func (d *DB) Load(ctx context.Context, namespace uint8, pairs iter.Seq2[Hash, []byte]) (uint64, error) {
	var p *C.pleach_load
	if err := d.call(func(db *C.pleach_db) *C.pleach_error {
		return C.pleach_load_begin(db, C.uint8_t(namespace), &p)
	}); err != nil {
		return 0, err
	}
	defer C.pleach_load_free(p) // without a finish it is given up
	var all []Hash
	var values []byte
	var lengths []C.size_t
	put := func() error {
		err := result(C.pleach_load_put(p, keys(all), data(values), unsafe.SliceData(lengths), C.size_t(len(all))))
		all, values, lengths = all[:0], values[:0], lengths[:0]
		return err
	}
	for key, value := range pairs {
		all, values, lengths = append(all, key), append(values, value...), append(lengths, C.size_t(len(value)))
		if len(all) < partPairs && len(values) < partBytes {
			continue
		}
		if err := put(); err != nil {
			return 0, err
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
	}
	if err := put(); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	var number C.uint64_t
	err := result(C.pleach_load_finish(p, &number))
	return uint64(number), err
}
