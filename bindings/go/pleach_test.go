package pleach

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var ctx = context.Background()

func must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func fails(t *testing.T, err error, code Code) {
	t.Helper()
	var of *Error
	if !errors.Is(err, code) || !errors.As(err, &of) || of.Outcome != DidNotHappen || of.AdviceText == "" {
		t.Fatalf("error %d wanted, not %v", code, err)
	}
}

func open(t testing.TB, options Options) *DB {
	t.Helper()
	options.Create, options.CacheMiB = true, 64
	return must(Open(filepath.Join(t.TempDir(), "state"), options))(t)
}

func hash(number int) Hash { return must(Blake3.Hash(fmt.Append(nil, number)))(&testing.T{}) }

func commit(t testing.TB, db *DB, fill func(*Batch), options ...SessionOption) uint64 {
	t.Helper()
	var batch Batch
	fill(&batch)
	block := must(must(db.Session(options...))(t).Finish(&batch))(t)
	return must(block.Commit())(t)
}

func TestReadsAndWrites(t *testing.T) {
	db := open(t, Options{History: 8})
	first := commit(t, db, func(b *Batch) {
		for id := range 100 {
			b.Put(0, hash(id), fmt.Append(nil, "value ", id))
		}
		b.Put(0, hash(100), nil)
	})
	second := commit(t, db, func(b *Batch) { b.Read(0, hash(1)); b.Delete(0, hash(1)); b.Delete(0, hash(7777)) })
	session := must(db.Session())(t)
	if got := must(session.Get(0, hash(2)))(t); string(got) != "value 2" {
		t.Fatalf("%q", got)
	}
	if got := must(session.Get(0, hash(100)))(t); got == nil || len(got) > 0 {
		t.Fatalf("an empty value is %v", got)
	}
	many := must(session.GetMany(0, []Hash{hash(3), hash(1), hash(100)}))(t)
	if string(many[0]) != "value 3" || many[1] != nil || many[2] == nil {
		t.Fatalf("%q", many)
	}
	if err := session.Prefetch(0, []Hash{hash(5)}); err != nil {
		t.Fatal(err)
	}
	if got := must(must(db.At(first))(t).Get(0, hash(1)))(t); string(got) != "value 1" {
		t.Fatalf("the past has %q", got)
	}
	if n := must(session.CommitNumber())(t); n != second {
		t.Fatal(n)
	}
	must(db.Rollback(1))(t)
	if must(must(db.Session())(t).Get(0, hash(1)))(t) == nil {
		t.Fatal("a rollback takes a delete back")
	}
	_, err := db.Rollback(100)
	fails(t, err, TooFarBack)
	_, err = db.At(1000)
	fails(t, err, NoSuchCommit)
	_, err = session.Get(9, hash(1))
	fails(t, err, MissingNamespace)
}

func TestIteratesInBothDirections(t *testing.T) {
	db := open(t, Options{})
	var all []Hash
	commit(t, db, func(b *Batch) {
		for id := range 1000 {
			all = append(all, hash(id))
			b.Put(0, hash(id), fmt.Append(nil, id))
		}
		last := Hash(bytes.Repeat([]byte{0xff}, 32)) // a seek to it stands before it
		all = append(all, Hash{}, last)
		b.Put(0, Hash{}, []byte("first"))
		b.Put(0, last, []byte("last"))
	})
	slices.SortFunc(all, func(a, b Hash) int { return bytes.Compare(a[:], b[:]) })
	session := must(db.Session())(t)
	collect := func(of Range) (found []Hash) {
		for pair, err := range session.Pairs(ctx, 0, of) {
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, pair.Key)
		}
		return found
	}
	back := slices.Clone(all)
	slices.Reverse(back)
	low, high := all[10], all[990]
	inner := slices.Clone(all[10:991])
	innerBack := slices.Clone(inner)
	slices.Reverse(innerBack)
	for _, want := range []struct {
		of   Range
		keys []Hash
	}{
		{Range{}, all},
		{Range{Reverse: true}, back},
		{Range{First: &low, Last: &high}, inner},
		{Range{First: &low, Last: &high, Reverse: true}, innerBack},
		{Range{Prefix: all[5][:]}, all[5:6]},
		{Range{Prefix: all[5][:], Reverse: true}, all[5:6]},
	} {
		if !slices.Equal(collect(want.of), want.keys) {
			t.Fatalf("%+v", want.of)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	defer cancel()
	count := 0
	for _, err := range session.Pairs(ended, 0, Range{}) {
		if count++; count == 3 {
			cancel()
		}
		if err != nil && (count != 4 || !errors.Is(err, context.Canceled)) {
			t.Fatal(count, err)
		}
	}
	if count != 4 {
		t.Fatal(count)
	}
	for range session.Pairs(ctx, 0, Range{}) {
		break
	}
	for _, err := range session.Pairs(ctx, 3, Range{}) {
		fails(t, err, MissingNamespace)
	}
}

// Pairs come from the library in blocks, which end by number or by bytes.
func TestPairsOfManyBlocksAreThoseWritten(t *testing.T) {
	db := open(t, Options{})
	sizes := map[int]int{0: 0, 1: 300_000, 2: 70_000, 1500: 40_000}
	var want []Pair
	commit(t, db, func(b *Batch) {
		for id := range 3000 {
			size, isSet := sizes[id]
			if !isSet {
				size = id % 90
			}
			pair := Pair{hash(id), bytes.Repeat([]byte{byte(id)}, size)}
			want = append(want, pair)
			b.Put(0, pair.Key, pair.Value)
		}
	})
	slices.SortFunc(want, func(a, b Pair) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	session := must(db.Session())(t)
	for _, reverse := range []bool{false, true} {
		at := 0
		for pair, err := range session.Pairs(ctx, 0, Range{Reverse: reverse}) {
			if err != nil || pair.Key != want[at].Key || !bytes.Equal(pair.Value, want[at].Value) || pair.Value == nil {
				t.Fatal(reverse, at, err)
			}
			at++
		}
		if at != len(want) {
			t.Fatal(at)
		}
		slices.Reverse(want)
	}
}

func TestOverlaysForksAndStaleBlocks(t *testing.T) {
	db := open(t, Options{})
	block := func(value string, options ...SessionOption) *Block {
		var batch Batch
		batch.Put(0, hash(1), []byte(value))
		return must(must(db.Session(options...))(t).Finish(&batch))(t)
	}
	one := must(block("one").Overlay())(t)
	two := must(block("two", Over(one)).Overlay())(t)
	fork := must(block("fork", Over(one)).Overlay())(t)
	root := must(two.Root(0))(t)
	must(two.Commit())(t)
	if must(db.Root(0))(t) != root {
		t.Fatal("the root of an overlay is that of its commit")
	}
	_, err := fork.Commit()
	fails(t, err, StaleParent)
	late := block("late")
	must(block("new").Commit())(t)
	_, err = late.Commit()
	fails(t, err, StaleParent)
	if _, err = late.Root(0); err != nil {
		t.Fatal("after an error the block is as it was:", err)
	}
	session := must(db.Session())(t)
	must(session.Finish(&Batch{}))(t)
	if _, err = session.Get(0, hash(1)); err != ErrClosed {
		t.Fatal(err)
	}
}

func TestNamespacesAndPrefixes(t *testing.T) {
	db := open(t, Options{})
	must(db.AddNamespace(2, false))(t)
	must(db.AddNamespace(3, true))(t)
	if found := must(db.Namespaces())(t); len(found) != 3 || found[2] || !found[3] {
		t.Fatal(found)
	}
	commit(t, db, func(b *Batch) {
		b.Put(2, Hash{1, 1}, []byte("a"))
		b.Put(2, Hash{1, 2}, []byte("b"))
		b.Put(3, Hash{1, 1}, []byte("c"))
	})
	commit(t, db, func(b *Batch) { b.DeletePrefix(2, []byte{1}); b.Put(2, Hash{1, 2}, []byte("stays")) })
	session := must(db.Session())(t)
	if must(session.Get(2, Hash{1, 1}))(t) != nil || string(must(session.Get(2, Hash{1, 2}))(t)) != "stays" {
		t.Fatal("a prefix goes with all that the batch does not put")
	}
	_, err := session.Prove(3, Hash{})
	fails(t, err, PlainNamespace)
	session.Close()
	must(db.DropNamespace(2))(t)
}

func TestProofs(t *testing.T) {
	db := open(t, Options{})
	commit(t, db, func(b *Batch) {
		for id := range 50 {
			b.Put(0, hash(id), []byte{1})
		}
	})
	session := must(db.Session())(t)
	root := must(session.Root(0))(t)
	value := must(Blake3.Hash([]byte{1}))(t)
	proof := must(session.ProveMany(0, []Hash{hash(1), hash(99)}))(t)
	found := must(Blake3.VerifyKeys(root, proof, []Hash{hash(1), hash(99)}))(t)
	if found[0] != (Answer{Present, value}) || found[1].Lookup != Absent {
		t.Fatal(found)
	}
	last := Hash(bytes.Repeat([]byte{0xff}, 32))
	proof, end, err := session.ProveRange(0, Hash{}, last, 20)
	pairs := must(Blake3.VerifyRange(root, proof, Hash{}, end))(t)
	if err != nil || len(pairs) != 20 || pairs[19].ValueHash != value {
		t.Fatal(err, len(pairs))
	}
	_, err = Blake3.VerifyRange(Hash{1}, proof, Hash{}, end)
	fails(t, err, Refused)
	_, err = Hasher("md5").Hash(nil)
	fails(t, err, Argument)
}

func TestLoads(t *testing.T) {
	db := open(t, Options{})
	pairs := func(count int) func(func(Hash, []byte) bool) {
		return func(yield func(Hash, []byte) bool) {
			for id := range count {
				if !yield(hash(id), fmt.Append(nil, id)) {
					return
				}
			}
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := db.Load(ended, 0, pairs(10)); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if n := must(db.Load(ctx, 0, pairs(20_000)))(t); n != 20_000 {
		t.Fatal(n)
	}
	if got := must(must(db.Session())(t).Get(0, hash(19_999)))(t); string(got) != "19999" {
		t.Fatalf("%q", got)
	}
	runtime.GC() // the session of the line above, which nobody has closed
	copy := filepath.Join(t.TempDir(), "copy")
	_, err := db.Backup(copy+"\x00behind", true)
	fails(t, err, Argument)
	if n := must(db.Backup(copy, true))(t); n != must(db.CommitNumber())(t) {
		t.Fatal(n)
	}
	reader := must(Open(copy, Options{ReadOnly: true}))(t)
	if n := must(reader.Refresh())(t); n != 1 {
		t.Fatal(n)
	}
	if must(reader.Root(0))(t) != must(db.Root(0))(t) {
		t.Fatal("a copy has another root")
	}
	var batch Batch
	batch.Put(0, hash(0), nil)
	block := must(must(reader.Session())(t).Finish(&batch))(t)
	_, err = block.Commit()
	fails(t, err, ReadOnly)
	commits := regexp.MustCompile(`\npleach_commits_total\{database="/[^"]+"\} 0\n`)
	if !commits.MatchString(must(db.Metrics())(t)) {
		t.Fatal("a load is no commit of the log")
	}
}

func TestTheHistorySaysWhatChangedWhen(t *testing.T) {
	db := open(t, Options{History: 200})
	for number := range 150 {
		commit(t, db, func(b *Batch) { b.Put(0, hash(number%2), fmt.Append(nil, number)) })
	}
	back := must(db.Rollback(3))(t)
	if to, is, err := db.RolledBackTo(back); to != 147 || !is || err != nil {
		t.Fatal(to, is, err)
	}
	if _, is, err := db.RolledBackTo(back - 1); is || err != nil {
		t.Fatal(is, err)
	}
	if at := must(db.CommittedAt(back))(t); time.Since(at).Abs() > time.Hour {
		t.Fatal(at)
	}
	changes := func(key int, of Commits) (found []uint64) {
		for number, err := range db.ChangesOf(ctx, 0, hash(key), of) {
			found = append(found, must(number, err)(t))
		}
		return found
	}
	var even []uint64
	for number := uint64(2); number <= 150; number += 2 {
		even = append(even, number)
	}
	even = append(even, back)
	if found := changes(1, Commits{}); !slices.Equal(found, even) {
		t.Fatal(found)
	}
	slices.Reverse(even)
	if found := changes(1, Commits{Reverse: true}); !slices.Equal(found, even) {
		t.Fatal(found)
	}
	if found := changes(1, Commits{First: 3, Last: 8, Reverse: true}); !slices.Equal(found, []uint64{8, 6, 4}) {
		t.Fatal(found)
	}
	if found := changes(7, Commits{}); found != nil {
		t.Fatal(found)
	}
	for _, err := range db.ChangesOf(ctx, 0, hash(1), Commits{First: back + 1, Last: back + 2}) {
		t.Fatal("a commit that there is not yet", err)
	}
	_, err := db.CommittedAt(back + 1)
	fails(t, err, NoSuchCommit)
	text := must(db.Metrics())(t)
	if !regexp.MustCompile(`\npleach_commit_seconds_bucket\{database="/[^"]+",le="\+Inf"\} 151\n`).MatchString(text) {
		t.Fatal(text)
	}
}

func TestHashesPrintAsDigits(t *testing.T) {
	of := Hash{0xab, 1}
	digits := "ab01" + strings.Repeat("00", 30)
	if all := fmt.Sprintf("%v %s %x %X", of, of, of, Hash{0xab}); all != digits+" "+digits+" "+digits+" AB"+strings.Repeat("00", 31) {
		t.Fatal(all)
	}
	if of.String() != digits || fmt.Sprint([]Hash{of}) != "["+digits+"]" {
		t.Fatal(of)
	}
}

func TestOpensAndErrors(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "state")
	_, err := Open(folder, Options{})
	fails(t, err, Missing)
	_, err = Open(folder, Options{Further: "cash_mib=3"})
	fails(t, err, InvalidOptions)
	_, err = Open("a\x00b", Options{})
	fails(t, err, Argument)
	db := must(Open(folder, Options{Create: true, CacheMiB: 16, Durability: "none"}))(t)
	_, err = Open(folder, Options{})
	fails(t, err, Locked)
	if text := must(db.Options())(t); !strings.Contains(text, "cache_mib=16") {
		t.Fatal(text)
	}
	if hasher := must(db.Hasher())(t); hasher != Blake3 {
		t.Fatal(hasher)
	}
	must(db.Notes())(t)
	if err := db.Sync(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Session(); err != ErrClosed {
		t.Fatal(err)
	}
	must(Open(folder, Options{}))(t).Close()
}

func TestMessagesComeToALogger(t *testing.T) {
	var text bytes.Buffer
	var mu sync.Mutex
	write := writer(func(line []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return text.Write(line) })
	if err := SetLogger(slog.New(slog.NewTextHandler(write, nil))); err != nil {
		t.Fatal(err)
	}
	open(t, Options{}).Close()
	if err := SetLogger(nil); err != nil {
		t.Fatal(err)
	}
	open(t, Options{}).Close()
	mu.Lock()
	defer mu.Unlock()
	if strings.Count(text.String(), "level=INFO msg=\"opened") != 1 {
		t.Fatal(text.String())
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(line []byte) (int, error) { return w(line) }

// Goroutines that read, write and close at the same time, and a collector that runs all the time.
func TestGoroutines(t *testing.T) {
	db := open(t, Options{})
	commit(t, db, func(b *Batch) {
		for id := range 100 {
			b.Put(0, hash(id), []byte("same"))
		}
	})
	var all sync.WaitGroup
	until := time.Now().Add(time.Second)
	for worker := range 4 {
		all.Go(func() {
			for id := 0; time.Now().Before(until); id++ {
				session, err := db.Session()
				if err != nil {
					t.Error(err)
					return
				}
				all.Go(func() {
					if value, err := session.Get(0, hash(id%100)); err != ErrClosed && (err != nil || string(value) != "same") {
						t.Errorf("%q %v", value, err)
					}
				})
				switch {
				case worker == 0:
					var batch Batch
					batch.Put(0, hash(1000+id), []byte("new"))
					if block, err := session.Finish(&batch); err != nil {
						t.Error(err)
					} else if _, err = block.Commit(); err != nil {
						t.Error(err)
					}
				case worker == 1:
					session.Close()
				case id%50 == 0:
					runtime.GC()
				}
			}
		})
	}
	all.Wait()
	if live := must(db.CommitNumber())(t); live < 2 {
		t.Fatal(live)
	}
}

func BenchmarkCallOfTheLibrary(b *testing.B) {
	db := open(b, Options{})
	for b.Loop() {
		must(db.CommitNumber())(b)
	}
}

func BenchmarkGet(b *testing.B)     { benchmarkReads(b, 1) }
func BenchmarkGetMany(b *testing.B) { benchmarkReads(b, 100) }

// Reads of cached values, so many in a call; the time is that of a read.
func benchmarkReads(b *testing.B, count int) {
	db := open(b, Options{})
	var of []Hash
	commit(b, db, func(batch *Batch) {
		for id := range 10_000 {
			of = append(of, hash(id))
			batch.Put(0, of[id], []byte("a value of 32 bytes, as slots are"))
		}
	})
	session := must(db.Session())(b)
	at := 0
	for b.Loop() {
		if count == 1 {
			must(session.Get(0, of[at]))(b)
		} else {
			must(session.GetMany(0, of[at:at+count]))(b)
		}
		at = (at + count) % len(of)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*count), "ns/read")
}

// A pair of an iteration over all, whose pages are cached.
func BenchmarkPairs(b *testing.B) {
	db := open(b, Options{})
	commit(b, db, func(batch *Batch) {
		for id := range 100_000 {
			batch.Put(0, hash(id), []byte("a value of 24 bytes, ..."))
		}
	})
	session := must(db.Session())(b)
	count := 0
	for b.Loop() {
		for _, err := range session.Pairs(ctx, 0, Range{}) {
			if err != nil {
				b.Fatal(err)
			}
			count++
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(count), "ns/pair")
}

// A block of 1,000 writes, from an empty batch to the root.
func BenchmarkFinish(b *testing.B) {
	db := open(b, Options{})
	var of []Hash
	for id := range 1000 {
		of = append(of, hash(id))
	}
	for b.Loop() {
		var batch Batch
		for _, key := range of {
			batch.Read(0, key)
			batch.Put(0, key, []byte("90"))
		}
		block := must(must(db.Session())(b).Finish(&batch))(b)
		block.Close()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*1000), "ns/write")
}
