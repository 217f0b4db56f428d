// Package pleach is Pleach, an embedded state database for blockchain nodes: a key-value store and a binary Merkle
// trie. It calls the C interface of the engine, linked statically: build.sh puts the library beside these files.
//
// A [DB] gives a [Session], which reads one state, whatever is committed meanwhile. A [Batch] says what a block reads
// and writes; [Session.Finish] makes a [Block] of it, with a root and a witness, which is committed or kept in memory as
// an [Overlay].
//
// Keys, roots and hashes are [Hash]; keys are hashes of the application's keys. Namespaces are numbers: 0 is always
// there.
//
// All methods may be called from any number of goroutines. Close frees what an object holds, and waits for calls of
// other goroutines; an object that nobody uses any more is freed by the garbage collector. Afterwards its methods give
// [ErrClosed]. Calls block a thread of the system while they wait for the device.
//
// Errors of the library are [*Error], with a [Code] that errors.Is compares:
//
//	if errors.Is(err, pleach.StaleParent) { // make the block again on the newest state
package pleach
