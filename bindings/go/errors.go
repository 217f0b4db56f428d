package pleach

/*
#include "pleach.h"
*/
import "C"

import (
	"errors"
	"fmt"
)

// ErrClosed is the error of an object that was closed, or of a session or block that was spent by Finish, Commit or
// Overlay.
var ErrClosed = errors.New("pleach: closed")

// Code is the number of a kind of error: docs/errors.md of the engine lists all. It is itself an error, for errors.Is.
type Code uint32

// Codes that programs ask for.
const (
	Locked           Code = 102 // another process has the database open for writing
	Full             Code = 105 // no space on the device
	Missing          Code = 201 // no database in the folder
	NotADatabase     Code = 202 // the folder has other files
	InvalidOptions   Code = 206
	NoSuchCommit     Code = 401
	TooFarBack       Code = 402
	RepeatedKey      Code = 406
	ValueTooLarge    Code = 408
	MissingNamespace Code = 410
	PlainNamespace   Code = 411
	NotEmpty         Code = 413 // a load into a namespace with pairs
	ReadOnly         Code = 416
	StaleParent      Code = 501 // a block on a state that is no longer the newest
	SnapshotTooOld   Code = 502
	InUse            Code = 504
	Poisoned         Code = 601 // a write or sync has failed before
	Panic            Code = C.PLEACH_PANIC
	Argument         Code = C.PLEACH_ARGUMENT
	Refused          Code = C.PLEACH_REFUSED // a proof or witness proves nothing
)

func (c Code) Error() string { return fmt.Sprintf("pleach: error %d", uint32(c)) }

// Outcome is what became of an operation that failed.
type Outcome uint32

const (
	// DidNotHappen says that the operation changed nothing.
	DidNotHappen Outcome = C.PLEACH_DID_NOT_HAPPEN
	// Unknown says that it took place as a whole or not at all: opening the database again tells.
	Unknown Outcome = C.PLEACH_UNKNOWN
)

// Advice is what to do about an error.
type Advice uint32

// What helps.
const (
	Other        Advice = C.PLEACH_ADVICE_OTHER
	Retry        Advice = C.PLEACH_RETRY
	FreeSpace    Advice = C.PLEACH_FREE_SPACE
	RaiseLimit   Advice = C.PLEACH_RAISE_LIMIT
	MakeAgain    Advice = C.PLEACH_MAKE_AGAIN
	CloseOthers  Advice = C.PLEACH_CLOSE_OTHERS
	FixCall      Advice = C.PLEACH_FIX_CALL
	Reopen       Advice = C.PLEACH_REOPEN
	OpenHere     Advice = C.PLEACH_OPEN_HERE
	OtherVersion Advice = C.PLEACH_OTHER_VERSION
	Restore      Advice = C.PLEACH_RESTORE
)

// Error is an error of the library.
type Error struct {
	Code       Code
	Outcome    Outcome
	Advice     Advice
	Text       string
	AdviceText string
}

func (e *Error) Error() string {
	return fmt.Sprintf("pleach: %s (error %d: %s)", e.Text, uint32(e.Code), e.AdviceText)
}

// Is compares the error's code.
func (e *Error) Is(target error) bool {
	code, ok := target.(Code)
	return ok && code == e.Code
}

// Takes over what a call gave: nil, or an error.
func result(e *C.pleach_error) error {
	if e == nil {
		return nil
	}
	defer C.pleach_error_free(e)
	return &Error{
		Code(e.code), Outcome(e.outcome), Advice(e.advice),
		C.GoString(e.text), C.GoString(e.advice_text),
	}
}
