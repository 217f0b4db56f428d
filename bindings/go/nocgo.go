//go:build !cgo

package pleach

// The one error of a build without cgo: the other files are left out then.
var _ int = "pleach needs cgo: set CGO_ENABLED=1 and install a C compiler, which CC names"
