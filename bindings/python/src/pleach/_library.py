"""The C library. Its prototypes are read from the header that lies beside it, so that they cannot differ from it."""

from __future__ import annotations

import ctypes
import re
from enum import IntEnum
from pathlib import Path
from typing import Any, Callable, Generator, Iterable, List, Optional, Tuple


class _Words(IntEnum):
    """Its text is words, in all versions of Python."""

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")

    def __format__(self, how: str) -> str:
        return int.__format__(self, how) if how.endswith("d") else format(str(self), how)


class Outcome(_Words):
    """What became of an operation that failed."""

    DID_NOT_HAPPEN = 0
    #: It took place as a whole or not at all: opening the database again tells.
    UNKNOWN = 1


class Advice(_Words):
    """What to do about an error; ``Error.advice_text`` says it in a line."""

    OTHER = 0
    RETRY = 1
    FREE_SPACE = 2
    RAISE_LIMIT = 3
    MAKE_AGAIN = 4
    CLOSE_OTHERS = 5
    FIX_CALL = 6
    REOPEN = 7
    OPEN_HERE = 8
    OTHER_VERSION = 9
    RESTORE = 10


class Error(Exception):
    """An error of the library. ``code`` is its number in docs/errors.md and pleach.h. Those that programs tell apart have
    classes of their own."""

    CODE = 0

    def __init__(self, text: str, code: int, outcome: int, advice: int, advice_text: str) -> None:
        super().__init__(text)
        self.code = code
        self.outcome = Outcome(outcome)
        self.advice = Advice(advice)
        self.advice_text = advice_text

    def __reduce__(self) -> Tuple[Any, ...]:
        """With all that it was made of: an exception keeps no more than its text, and processes send errors to others."""
        made_of = str(self), self.code, self.outcome, self.advice, self.advice_text
        return type(self), made_of, self.__dict__


class Locked(Error):
    """Another process has the database open for writing."""

    CODE = 102


class Full(Error):
    """There is no space on the device."""

    CODE = 105


class Missing(Error):
    """There is no database in the folder."""

    CODE = 201


class CannotCreate(Error):
    """No database can be made in the folder: it has one, or other files."""

    CODE = 203


class NotADatabase(Error):
    """The folder has other files."""

    CODE = 202


class InvalidOption(Error):
    """An option that there is not, or outside of its range."""

    CODE = 206


class NoSuchCommit(Error):
    """A commit that there is not yet."""

    CODE = 401


class TooFarBack(Error):
    """A rollback of more commits than the history has."""

    CODE = 402


class RepeatedKey(Error):
    """A key twice."""

    CODE = 406


class ValueTooLarge(Error):
    """A value of more than 64 MiB."""

    CODE = 408


class MissingNamespace(Error):
    """A namespace that there is not."""

    CODE = 410


class PlainNamespace(Error):
    """A root or proof of a namespace that has none."""

    CODE = 411


class NotEmpty(Error):
    """A load into a namespace with pairs."""

    CODE = 413


class ReadOnly(Error):
    """A write through a database that was opened with ``read_only=True``."""

    CODE = 416


class StaleParent(Error):
    """A block on a state that is no longer the newest: make it again."""

    CODE = 501


class SnapshotTooOld(Error):
    """A state that is older than the history."""

    CODE = 502


class InUse(Error):
    """A load beside sessions, or a write beside a load."""

    CODE = 504


class Poisoned(Error):
    """A write after a failed write or sync: close the database and open it again."""

    CODE = 601


class InvalidArgument(Error, ValueError):
    """An argument that cannot be, such as the name of a hash function that there is not."""

    CODE = 902


class Refused(Error):
    """A proof or witness that proves nothing."""

    CODE = 903


class Spent(Error, ValueError):
    """A session after its finish, or a block after its commit or when it has become an overlay."""

    CODE = 904


_CLASSES = {kind.CODE: kind for kind in Error.__subclasses__()}
for _kind in (Advice, Error, Outcome, *_CLASSES.values()):
    _kind.__module__ = "pleach"  # Where programs find them, and what tracebacks say.


class CError(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint32),
        ("outcome", ctypes.c_uint32),
        ("advice", ctypes.c_uint32),
        ("text", ctypes.c_char_p),
        ("advice_text", ctypes.c_char_p),
    ]


class CBytes(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("len", ctypes.c_size_t), ("owner", ctypes.c_void_p)]


class CPair(ctypes.Structure):
    _fields_ = [
        ("key", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
        ("value_len", ctypes.c_size_t),
    ]


class CPairs(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_size_t),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("lengths", ctypes.POINTER(ctypes.c_size_t)),
    ]


Logger = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p)

_TYPES = {
    "bool": ctypes.c_bool,
    "pleach_logger": Logger,
    "size_t": ctypes.c_size_t,
    "uint8_t": ctypes.c_uint8,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "pleach_error": CError,
    "pleach_bytes": CBytes,
    "pleach_pair": CPair,
    "pleach_pairs": CPairs,
}


def _type(declared: str) -> Any:
    """The type of a parameter, such as ``const uint8_t key[32]`` or ``pleach_db **db``."""
    found = re.fullmatch(r"(?:const )?(\w+) (\**)\w+(\[\d+\])?", declared)
    if not found:
        raise ImportError(f"pleach.h: {declared!r} is not understood")
    name, stars, array = found.groups()
    # Texts, keys and places for keys: bytes, or a buffer.
    if name == "char" or name == "uint8_t" and (stars or array):
        return ctypes.c_char_p
    of: Any = _TYPES.get(name)
    if of is None:  # A handle.
        return ctypes.c_void_p if stars == "*" else ctypes.POINTER(ctypes.c_void_p)
    return ctypes.POINTER(of) if stars else of


def _load() -> ctypes.CDLL:
    folder = Path(__file__).parent
    library = ctypes.CDLL(str(folder / "libpleach_c.so"))
    header = re.sub(r"/\*.*?\*/", "", (folder / "pleach.h").read_text("utf-8"), flags=re.DOTALL)
    declared = re.findall(r"^(?:PLEACH_CHECK )?([\w ]+[ *])(pleach_\w+)\(([^)]*)\);", header, flags=re.MULTILINE)
    for result, name, parameters in declared:
        function = getattr(library, name)
        split = [" ".join(one.split()) for one in parameters.split(",")]
        function.argtypes = [] if split == ["void"] else [_type(one) for one in split]
        if result.startswith("pleach_error"):
            function.restype = ctypes.POINTER(CError)
            function.errcheck = _raise
        else:
            function.restype = None if result.startswith("void") else ctypes.c_char_p
    return library


def _raise(error: Any, _function: Any, _arguments: Any) -> None:
    """Raises the error of a call, if there is one."""
    if not error:
        return
    try:
        found = error.contents
        texts = [text.decode("utf-8", "replace") for text in (found.text, found.advice_text)]
        raised = _CLASSES.get(found.code, Error)
        raise raised(texts[0], found.code, found.outcome, found.advice, texts[1])
    finally:
        lib.pleach_error_free(error)


lib = _load()


# The handler of a signal may raise after any call, before its result has a name. So whoever frees what a call gives is
# there before the call.


def _freeing(free: Callable[[Any], None], place: Any) -> Generator[None, None, None]:
    """Frees what is in the place when it is closed, or goes itself. No `__del__`, which frees nothing when a handler raises
    before its first line."""
    try:
        yield
    finally:
        free(place)


class Pointer:
    """A pointer to a handle, which is freed with this: a call that has it keeps it, whoever closes the handle."""

    def __init__(self, free: Callable[[Any], None]) -> None:
        self._as_parameter_ = ctypes.c_void_p()
        self.freeing = _freeing(free, self._as_parameter_)
        next(self.freeing)


def handle(free: Callable[[Any], None], make: Callable[[Any], None]) -> Pointer:
    """The handle that a call gives."""
    made = Pointer(free)
    try:
        make(ctypes.byref(made._as_parameter_))
    except BaseException:
        made.freeing.close()  # A traceback would keep it, and the folder of a database locked.
        raise
    return made


def number(make: Callable[[Any], None]) -> int:
    """The number that a call gives."""
    place = ctypes.c_uint64()
    make(ctypes.byref(place))
    return place.value


def data(make: Callable[[Any], None]) -> Optional[bytes]:
    """The bytes that a call gives, copied; none where there are none."""
    return several(1, make)[0]


def several(count: int, make: Callable[[Any], None]) -> List[Optional[bytes]]:
    """The bytes that a call gives in several places."""
    places = (CBytes * count)()
    freeing = map(lib.pleach_bytes_free, places)
    try:
        make(places)
        return [ctypes.string_at(one.data, one.len) if one.data else None for one in places]
    finally:
        list(freeing)  # In one call, in which no handler runs.


def some(found: Optional[bytes]) -> bytes:
    """The bytes of a call that always gives some."""
    assert found is not None
    return found


def root(make: Callable[[Any], None]) -> bytes:
    """The 32 bytes that a call gives."""
    place = ctypes.create_string_buffer(32)
    make(place)
    return place.raw


def key(given: bytes) -> bytes:
    """A key, root or hash: the library reads 32 bytes, so there have to be as many."""
    given = raw(given)
    if len(given) != 32:
        raise ValueError(f"a key or root of {len(given)} bytes: it has 32")
    return given


def raw(given: bytes) -> bytes:
    """Bytes of something that has some: no number, of which `bytes` makes as many zeros."""
    return given if isinstance(given, bytes) else bytes(memoryview(given))


def keys(given: Iterable[bytes]) -> List[bytes]:
    return [key(one) for one in given]


def pairs(given: List[Tuple[bytes, bytes]]) -> Tuple[bytes, bytes, Any, int]:
    """Keys one after the other, values one after the other, the length of each value, and how many they are."""
    lengths = (ctypes.c_size_t * len(given))(*(len(value) for _, value in given))
    return b"".join(key for key, _ in given), b"".join(value for _, value in given), lengths, len(given)


def text(given: bytes) -> bytes:
    """Text for C, which ends at the first NUL."""
    if b"\0" in given:
        raise ValueError("a NUL in a text")
    return given
