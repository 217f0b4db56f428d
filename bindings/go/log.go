package pleach

/*
#include "pleach.h"

extern void pleachLog(void *context, uint32_t level, char *text);
*/
import "C"

import (
	"context"
	"log/slog"
	"sync/atomic"
	"unsafe"
)

// Where messages go.
var logger atomic.Pointer[slog.Logger]

// SetLogger gives messages of the library to a logger, of all databases of the process: what an open warns of, failures
// of background tasks, damaged pages. With nil, what it was before, they go nowhere. The logger's own level counts.
func SetLogger(to *slog.Logger) error {
	logger.Store(to)
	var call C.pleach_logger
	if to != nil {
		call = C.pleach_logger(C.pleachLog)
	}
	return result(C.pleach_log(C.PLEACH_LOG_INFO, call, nil))
}

//export pleachLog
func pleachLog(_ unsafe.Pointer, level C.uint32_t, text *C.char) {
	if to := logger.Load(); to != nil {
		levels := map[C.uint32_t]slog.Level{C.PLEACH_LOG_ERROR: slog.LevelError, C.PLEACH_LOG_WARNING: slog.LevelWarn}
		to.Log(context.Background(), levels[level], C.GoString(text)) // 0 is that of information
	}
}
