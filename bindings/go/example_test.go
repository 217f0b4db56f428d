package pleach_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"pleach"
)

func Example() {
	folder, err := os.MkdirTemp("", "pleach")
	check(err)
	defer os.RemoveAll(folder)
	db, err := pleach.Open(filepath.Join(folder, "state"), pleach.Options{Create: true, CacheMiB: 64, History: 16})
	check(err)
	defer db.Close()
	alice, err := pleach.Blake3.Hash([]byte("alice"))
	check(err)

	// A block, with a root and a witness.
	session, err := db.Session()
	check(err)
	var batch pleach.Batch
	batch.Read(0, alice)
	batch.Put(0, alice, []byte("90"))
	block, err := session.Finish(&batch)
	check(err)
	before, err := block.PreviousRoot(0)
	check(err)
	witness, err := block.Witness(0)
	check(err)
	number, err := block.Commit() // durable now
	check(err)

	// The witness leads from the old root to the new one, without the database.
	after, read, err := pleach.Blake3.VerifyWitness(before, witness, []pleach.Hash{alice})
	check(err)
	root, err := db.Root(0)
	check(err)
	fmt.Println("commit", number, "proven:", after == root, "alice was absent:", read[0].Lookup == pleach.Absent)

	// Read, iterate, prove.
	session, err = db.Session()
	check(err)
	defer session.Close()
	for pair, err := range session.Pairs(context.Background(), 0, pleach.Range{}) {
		check(err)
		fmt.Printf("commit %d has %s\n", number, pair.Value)
	}
	proof, err := session.Prove(0, alice)
	check(err)
	_, err = pleach.Blake3.VerifyKey(before, proof, alice)
	fmt.Println("commit before is refused:", errors.Is(err, pleach.Refused))

	// Output:
	// commit 1 proven: true alice was absent: true
	// commit 1 has 90
	// commit before is refused: true
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
