"""Pleach, an embedded state database for blockchain nodes: a key-value store and a binary Merkle trie.

>>> with pleach.open("state", create=True) as db:
...     session = db.session()
...     batch = pleach.Batch()
...     batch[pleach.hash_bytes(b"alice")] = b"90"
...     block = session.finish(batch)
...     number = block.commit()

Keys, roots and hashes are ``bytes`` of length 32. Ranges have their first and their last key, and both belong to them.
All objects may be used from any number of threads; calls release the GIL. Errors are ``pleach.Error``; a wrong
length, a closed or a spent object is a ``ValueError``, another type a ``TypeError``. Messages of the library go to a logger of ``logging`` by ``log_to``.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import operator
import os
import threading
from datetime import datetime, timezone
from itertools import accumulate
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, TypeVar, Union

from . import _library as _c
from ._library import (
    Advice,
    CannotCreate,
    Error,
    Full,
    InUse,
    InvalidArgument,
    InvalidOption,
    Locked,
    Missing,
    MissingNamespace,
    NoSuchCommit,
    NotADatabase,
    NotEmpty,
    Outcome,
    PlainNamespace,
    Poisoned,
    ReadOnly,
    Refused,
    RepeatedKey,
    SnapshotTooOld,
    Spent,
    StaleParent,
    TooFarBack,
    ValueTooLarge,
    lib,
)

__all__ = [
    "Advice",
    "Batch",
    "Block",
    "CannotCreate",
    "Cursor",
    "Db",
    "Error",
    "Full",
    "InUse",
    "InvalidArgument",
    "InvalidOption",
    "Locked",
    "Missing",
    "MissingNamespace",
    "Namespace",
    "NoSuchCommit",
    "NotADatabase",
    "NotEmpty",
    "Outcome",
    "Overlay",
    "PlainNamespace",
    "Poisoned",
    "ReadOnly",
    "Refused",
    "RepeatedKey",
    "Session",
    "SnapshotTooOld",
    "Spent",
    "StaleParent",
    "TooFarBack",
    "ValueTooLarge",
    "hash_bytes",
    "log_to",
    "open",
    "verify_key",
    "verify_keys",
    "verify_range",
    "verify_witness",
    "version",
]

_Self = TypeVar("_Self", bound="_Handle")
Pair = Tuple[bytes, bytes]
_Pairs = Union[Mapping[bytes, bytes], Iterable[Pair]]

#: Pairs, and bytes of values, that a load gives to the library at once.
_PART = 4096, 1 << 20
#: The largest number of the library.
_LAST = (1 << 64) - 1


class _Handle:
    """Something of the library that is freed by ``close``, at the end of a ``with``, or with its last reference."""

    def __init__(self, pointer: _c.Pointer) -> None:
        self._pointer: Optional[_c.Pointer] = pointer

    @property
    def _handle(self) -> _c.Pointer:
        pointer = self._pointer
        if pointer is None:
            raise ValueError(f"this {type(self).__name__} was closed")
        return pointer

    @classmethod
    def _of(cls, given: Any) -> _c.Pointer:
        """The handle of an argument, which has to be of this class: the library gets nothing but pointers."""
        if not isinstance(given, cls):
            raise TypeError(f"wanted: {cls.__name__}, not {type(given).__name__}")
        return given._handle

    def close(self) -> Any:
        """Frees it. Calls of other threads that use it come to their end first."""
        self._pointer = None

    def _facts(self) -> str:
        """What its ``repr`` says of it."""
        return ""

    def __repr__(self) -> str:
        try:
            said = ", closed" if self._pointer is None else self._facts()
        except Spent:
            said = ", spent"
        except Error as error:
            said = f": {error}"
        return f"<pleach.{type(self).__name__}{said}>"

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


def version() -> str:
    """The version of the library."""
    return str(lib.pleach_version().decode())


def open(path: Union[str, bytes, "os.PathLike[str]"], **options: Union[str, int, bool]) -> Db:
    """Opens the database in a folder, with options such as ``create=True, cache_mib=64, history=128``; ``pleach_open``
    in pleach.h lists them."""
    pairs = []
    for name, value in options.items():
        said = str(value).lower() if isinstance(value, bool) else str(value)
        if any(letter.isspace() or letter == "," for letter in said):
            raise ValueError(f"option {name}: {said!r} has a comma or white space")
        pairs.append(f"{name}={said}")
    folder, text = _c.text(os.fsencode(path)), _c.text(" ".join(pairs).encode())
    db = Db(_c.handle(lib.pleach_db_free, lambda db: lib.pleach_open(folder, text, db)))
    db._folder = os.fsdecode(path)
    return db


_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO}
#: What the library calls, and the process in which it does.
_logger: Tuple[Any, int] = _c.Logger(), 0


def log_to(logger: Optional[logging.Logger]) -> None:
    """Gives messages of the library to a logger, of all databases of the process: what an open warns of, failures of
    background tasks, damaged pages. With none, as it was before, they go nowhere. The logger's own level counts."""
    global _logger

    if not isinstance(logger, (type(None), logging.Logger, logging.LoggerAdapter)):
        raise TypeError(f"wanted: a logger of logging, not {type(logger).__name__}")

    def log(_context: Any, level: int, text: bytes) -> None:
        assert logger is not None
        logger.log(_LEVELS.get(level, logging.DEBUG), "%s", text.decode("utf-8", "replace"))

    call = _c.Logger() if logger is None else _c.Logger(log)
    lib.pleach_log(3, call, None)
    _logger = call, os.getpid()  # The one before is called by nobody any more.


@atexit.register
def _log_no_more() -> None:
    """Threads of the library cannot call Python when it has ended. A forked child has none of them."""
    if _logger[1] == os.getpid():
        lib.pleach_log(3, _c.Logger(), None)


class Db(_Handle):
    """An open database, from ``open``."""

    _folder = ""

    def _facts(self) -> str:
        return f" {self._folder!r} at commit {self.commit_number()}"

    def close(self) -> int:
        """Writes a checkpoint and closes. Gives the number of sessions, blocks, overlays and cursors that live, which
        go on reading and keep the folder locked. Without it nothing is lost, and the next open reads the log."""
        if self._pointer is None:
            return 0
        live = ctypes.c_size_t()
        lib.pleach_close(self._handle, ctypes.byref(live))
        super().close()
        return live.value

    def commit_number(self) -> int:
        """Number of the newest commit."""
        return _c.number(lambda number: lib.pleach_commit_number(self._handle, number))

    def root(self, namespace: int = 0) -> bytes:
        """Root of a Merkle namespace in the newest commit."""
        return _c.root(lambda root: lib.pleach_root(self._handle, _number(namespace), root))

    def history(self) -> range:
        """The commits that ``at`` and ``rollback`` reach."""
        oldest, newest = ctypes.c_uint64(), ctypes.c_uint64()
        lib.pleach_history(self._handle, ctypes.byref(oldest), ctypes.byref(newest))
        return range(oldest.value, newest.value + 1)

    def committed_at(self, commit: int) -> Optional[datetime]:
        """When a commit was made; none where that is not known.
        ``SnapshotTooOld`` of the oldest commit of ``history``, of which there is no record unless it is commit 0, and of
        older ones."""
        commit = _long(commit)
        seconds = _c.number(lambda seconds: lib.pleach_committed_at(self._handle, commit, seconds))
        return datetime.fromtimestamp(seconds, timezone.utc) if seconds else None

    def rolled_back_to(self, commit: int) -> Optional[int]:
        """The commit that a rollback went back to; none for a commit that is no rollback. Errors as ``committed_at``."""
        commit = _long(commit)
        to = _c.number(lambda number: lib.pleach_rolled_back_to(self._handle, commit, number))
        return None if to == commit else to

    def changes_of(
        self,
        key: bytes,
        first: Optional[int] = None,
        last: Optional[int] = None,
        *,
        namespace: int = 0,
        reverse: bool = False,
    ) -> Iterator[int]:
        """The commits from the first to the last that changed a key, in their order, or from the newest on. Without a
        first, or with the oldest commit of the history, they begin behind that, of which nobody knows what it changed:
        ``SnapshotTooOld`` where the first is an older one."""
        of = _number(namespace), _c.key(key)
        ends = _long(first or 0), _long(_LAST if last is None else last)
        return self._changes_of(of, *ends, reverse)

    def _changes_of(self, of: Any, first: int, last: int, reverse: bool) -> Iterator[int]:
        places, count = (ctypes.c_uint64 * 64)(), ctypes.c_size_t()
        found: List[int] = [first]
        while found and first <= last:
            ends = first, last, reverse, places, len(places), ctypes.byref(count)
            lib.pleach_changes_of(self._handle, *of, *ends)
            found = places[: count.value]
            yield from found
            if found and reverse:
                last = found[-1] - 1
            elif found:
                first = found[-1] + 1

    def notes(self) -> List[str]:
        """What the open warns of, such as a budget that is larger than the memory of the process; none where all is well."""
        text = _c.some(_c.data(lambda text: lib.pleach_notes(self._handle, text)))
        return text.decode("utf-8", "replace").splitlines()

    def options(self) -> Dict[str, str]:
        """The options that it was opened with."""
        text = _c.some(_c.data(lambda text: lib.pleach_options(self._handle, text)))
        return dict(pair.split("=", 1) for pair in text.decode().split())

    def metrics(self) -> str:
        """All counters and levels in the text format of Prometheus, with the folder as the label `database`;
        docs/metrics.md of the engine describes them."""
        return _c.some(_c.data(lambda text: lib.pleach_metrics(self._handle, text))).decode()

    def backup(self, folder: Union[str, bytes, "os.PathLike[str]"], verify: bool = True) -> int:
        """Copies the database to a folder, which is missing or empty, while sessions and commits go on, and gives the
        number of the newest commit in the copy. With ``verify`` each page of the copy is read again and hashed."""
        to = _c.text(os.fsencode(folder))
        return _c.number(lambda number: lib.pleach_backup(self._handle, to, verify, number))

    def load(self, pairs: _Pairs, namespace: int = 0) -> int:
        """Fills an empty namespace with pairs in any order, each key once, as one durable commit, and gives their
        number. It is far faster than batches. No session or overlay may be open; nothing can be committed meanwhile,
        and no earlier commit can be read afterwards. When the pairs raise, nothing is loaded."""
        of = _number(namespace)
        load = _c.handle(
            lib.pleach_load_free, lambda load: lib.pleach_load_begin(self._handle, of, load)
        )
        try:
            part, size = [], 0  # type: Tuple[List[Pair], int]
            for key, value in pairs.items() if isinstance(pairs, Mapping) else pairs:
                part.append((_c.key(key), _c.raw(value)))
                size += len(part[-1][1])
                if len(part) == _PART[0] or size >= _PART[1]:
                    lib.pleach_load_put(load, *_c.pairs(part))
                    part, size = [], 0
            lib.pleach_load_put(load, *_c.pairs(part))
            return _c.number(lambda number: lib.pleach_load_finish(load, number))
        finally:
            load.freeing.close()  # What was not finished is given up now, whoever keeps a traceback.

    def hasher(self) -> str:
        """Name of its hash function."""
        return _c.some(_c.data(lambda name: lib.pleach_hasher(self._handle, name))).decode()

    def session(self, over: Optional[Overlay] = None, witness: bool = True) -> Session:
        """A session on the newest commit, or on an overlay."""
        base, flags = None if over is None else Overlay._of(over), 0 if witness else 1
        make = lambda session: lib.pleach_session_open(self._handle, base, flags, session)
        return Session(_c.handle(lib.pleach_session_free, make))

    def at(self, commit: int) -> Session:
        """A session on a commit of the history."""
        make = lambda session: lib.pleach_session_at(self._handle, _long(commit), session)
        return Session(_c.handle(lib.pleach_session_free, make))

    def rollback(self, commits: int) -> int:
        """Undoes the newest commits by a new one, and gives its number."""
        commits = _long(commits)
        return _c.number(lambda number: lib.pleach_rollback(self._handle, commits, number))

    def sync(self) -> None:
        """Makes all acknowledged commits durable, for ``durability="none"`` and ``"periodic:..."``."""
        lib.pleach_sync(self._handle)

    def refresh(self) -> int:
        """Goes on to the newest commit of a database that was opened with ``read_only=True``."""
        return _c.number(lambda number: lib.pleach_refresh(self._handle, number))

    def add_namespace(self, namespace: int, plain: bool = False) -> int:
        """Adds an empty namespace, and gives the number of the commit that does so. A plain one has no root."""
        of = _number(namespace)
        return _c.number(lambda made: lib.pleach_namespace_add(self._handle, of, plain, made))

    def drop_namespace(self, namespace: int) -> int:
        """Drops a namespace with all that is in it, and gives the number of the commit that does so."""
        of = _number(namespace)
        return _c.number(lambda made: lib.pleach_namespace_drop(self._handle, of, made))

    def namespaces(self) -> Dict[int, bool]:
        """The namespaces of the newest commit; is it a plain one?"""
        kinds = ctypes.create_string_buffer(256)
        lib.pleach_namespaces(self._handle, kinds)
        return {number: kind == 2 for number, kind in enumerate(kinds.raw) if kind}


class Namespace:
    """A namespace of the state that a session reads, like a ``dict``; from ``Session.namespace``."""

    def __init__(self, session: Session, number: int) -> None:
        self._session = session
        self.number = number

    def __repr__(self) -> str:
        return f"<pleach.Namespace {self.number} of {self._session!r}>"

    @property
    def _at(self) -> Tuple[_c.Pointer, int]:
        return self._session._handle, self.number

    def root(self) -> bytes:
        """Its root."""
        return _c.root(lambda root: lib.pleach_session_root(*self._at, root))

    def get(self, key: bytes, default: Optional[bytes] = None) -> Optional[bytes]:
        """The value of a key, or the default where it has none."""
        key = _c.key(key)
        found = _c.data(lambda value: lib.pleach_session_read(*self._at, key, value))
        return default if found is None else found

    def __getitem__(self, key: bytes) -> bytes:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __contains__(self, key: bytes) -> bool:
        return self.get(key) is not None

    def read_many(self, keys: Iterable[bytes]) -> List[Optional[bytes]]:
        """The values of many keys, in their order, read together."""
        asked = _c.keys(keys)
        of = (*self._at, b"".join(asked), len(asked))
        return _c.several(len(asked), lambda values: lib.pleach_session_read_many(*of, values))

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Announces keys: their pages begin to arrive, and the call returns at once."""
        asked = _c.keys(keys)
        lib.pleach_session_prefetch(*self._at, b"".join(asked), len(asked))

    def cursor(
        self,
        first: Optional[bytes] = None,
        last: Optional[bytes] = None,
        *,
        prefix: Optional[bytes] = None,
    ) -> Cursor:
        """A cursor over the keys from the first to the last, or over those that begin with a prefix."""
        if prefix is not None:
            if first is not None or last is not None:
                raise ValueError("a prefix together with a first or last key")
            prefix = _c.raw(prefix)
            make = lambda made: lib.pleach_cursor_prefix(*self._at, prefix, len(prefix), made)
        else:
            ends = [None if key is None else _c.key(key) for key in (first, last)]
            make = lambda made: lib.pleach_cursor_range(*self._at, *ends, made)
        return Cursor(_c.handle(lib.pleach_cursor_free, make))

    def items(
        self,
        first: Optional[bytes] = None,
        last: Optional[bytes] = None,
        *,
        prefix: Optional[bytes] = None,
        reverse: bool = False,
    ) -> Iterator[Pair]:
        """The pairs of a range or prefix, in the order of the keys, or from the last to the first."""
        return self.cursor(first, last, prefix=prefix)._rest(reverse)

    def keys(
        self,
        first: Optional[bytes] = None,
        last: Optional[bytes] = None,
        *,
        prefix: Optional[bytes] = None,
        reverse: bool = False,
    ) -> Iterator[bytes]:
        """The keys of a range or prefix, as ``items``."""
        return (key for key, _ in self.items(first, last, prefix=prefix, reverse=reverse))

    def values(
        self,
        first: Optional[bytes] = None,
        last: Optional[bytes] = None,
        *,
        prefix: Optional[bytes] = None,
        reverse: bool = False,
    ) -> Iterator[bytes]:
        """The values of a range or prefix, as ``items``."""
        return (value for _, value in self.items(first, last, prefix=prefix, reverse=reverse))

    def __iter__(self) -> Iterator[bytes]:
        return self.keys()

    def __reversed__(self) -> Iterator[bytes]:
        return self.keys(reverse=True)

    def prove(self, key: bytes) -> bytes:
        """Proves what the state says of a key, for ``verify_key``."""
        key = _c.key(key)
        return _c.some(_c.data(lambda proof: lib.pleach_session_prove(*self._at, key, proof)))

    def prove_many(self, keys: Iterable[bytes]) -> bytes:
        """Proves what the state says of these keys in one proof, for ``verify_keys``."""
        asked = _c.keys(keys)
        joined = b"".join(asked)
        make = lambda proof: lib.pleach_session_prove_many(*self._at, joined, len(asked), proof)
        return _c.some(_c.data(make))

    def prove_range(
        self, first: bytes, last: bytes, limit: Optional[int] = None
    ) -> Tuple[bytes, bytes]:
        """Proves all pairs of a range, at most so many, for ``verify_range``. Gives the proof, and the last key that it
        is about: the next part begins behind it."""
        first, last = _c.key(first), _c.key(last)
        most = ctypes.c_size_t(-1).value if limit is None else _long(limit)
        end = ctypes.create_string_buffer(32)
        make = lambda proof: lib.pleach_session_prove_range(
            *self._at, first, last, most, end, proof
        )
        return _c.some(_c.data(make)), end.raw


class Session(_Handle, Namespace):
    """One fixed state, whatever is committed meanwhile; by itself it reads namespace 0. From ``Db.session``."""

    # It has no `_session`: one that is its own would be freed by the cyclic collector alone.
    number = 0

    def _facts(self) -> str:
        return f" of commit {self.commit_number()}"

    @property
    def _at(self) -> Tuple[_c.Pointer, int]:
        return self._handle, 0

    def namespace(self, namespace: int) -> Namespace:
        """A namespace of this state."""
        return Namespace(self, _number(namespace))

    def commit_number(self) -> int:
        """Number of the commit that it reads, below overlays where it reads one."""
        return _c.number(lambda number: lib.pleach_session_commit_number(self._handle, number))

    def finish(self, batch: Batch) -> Block:
        """Makes a block of a batch. The session cannot be used afterwards, and the batch is empty; after an error both
        are as they were."""
        of = Batch._of(batch)
        make = lambda block: lib.pleach_session_finish(self._handle, of, block)
        return Block(_c.handle(lib.pleach_block_free, make))


class Cursor(_Handle):
    """A place between the pairs of a range, or on one. It outlives its session. From ``Namespace.cursor``."""

    def __init__(self, pointer: _c.Pointer) -> None:
        super().__init__(pointer)
        # The pair is the cursor's until its next move.
        self._copying = threading.Lock()

    def _step(self, function: Any) -> Optional[Pair]:
        pair = _c.CPair()
        with self._copying:
            function(self._handle, ctypes.byref(pair))
            if not pair.key:
                return None
            value = ctypes.string_at(pair.value, pair.value_len)
            return ctypes.string_at(pair.key, 32), value

    def seek(self, key: Optional[bytes]) -> None:
        """Goes before a key: the next pair is the first from it on, the previous one the last before it. ``None`` goes
        behind the last pair."""
        to = None if key is None else _c.key(key)
        with self._copying:
            lib.pleach_cursor_seek(self._handle, to)

    def next(self) -> Optional[Pair]:
        """Goes to the next pair; none at the end."""
        return self._step(lib.pleach_cursor_next)

    def previous(self) -> Optional[Pair]:
        """Goes to the pair before; none at the beginning."""
        return self._step(lib.pleach_cursor_previous)

    def _step_many(self, function: Any, most: int) -> List[Pair]:
        pairs = _c.CPairs()
        with self._copying:
            function(self._handle, most, ctypes.byref(pairs))
            count = pairs.count
            lengths = pairs.lengths[:count]
            keys = ctypes.string_at(pairs.keys, 32 * count)
            values = ctypes.string_at(pairs.values, sum(lengths))
        ends = list(accumulate(lengths, initial=0))
        return [
            (keys[at : at + 32], values[begin:end])
            for at, begin, end in zip(range(0, 32 * count, 32), ends, ends[1:])
        ]

    def next_many(self, most: int) -> List[Pair]:
        """Goes over up to so many next pairs, fewer where their values have 64 KiB, in one call; none at the end."""
        return self._step_many(lib.pleach_cursor_next_many, _long(most))

    def previous_many(self, most: int) -> List[Pair]:
        """Goes over up to so many pairs before, the last one first, as ``next_many``; none at the beginning."""
        return self._step_many(lib.pleach_cursor_previous_many, _long(most))

    def _rest(self, reverse: bool) -> Iterator[Pair]:
        """The pairs of a cursor that nobody else moves. Who wants a few does not wait for many."""
        if reverse:
            self.seek(None)
        step, most = self.previous_many if reverse else self.next_many, 8
        while pairs := step(most):
            yield from pairs
            most = min(2 * most, 1024)

    def close(self) -> None:
        """Frees it."""
        with self._copying:
            super().close()

    def __iter__(self) -> Iterator[Pair]:
        while (pair := self.next()) is not None:
            yield pair

    def __reversed__(self) -> Iterator[Pair]:
        self.seek(None)
        while (pair := self.previous()) is not None:
            yield pair


class Batch(_Handle):
    """What a block reads and writes. ``batch[key] = value`` and ``del batch[key]`` are of namespace 0."""

    def __init__(self) -> None:
        super().__init__(_c.handle(lib.pleach_batch_free, lib.pleach_batch_new))

    def read(self, key: bytes, namespace: int = 0) -> None:
        """The block has read this key: the witness proves its value before the block."""
        lib.pleach_batch_read(self._handle, _number(namespace), _c.key(key))

    def put(self, key: bytes, value: bytes, namespace: int = 0) -> None:
        """The block gives this key a value. The last put or delete of a key counts."""
        value = _c.raw(value)
        lib.pleach_batch_put(self._handle, _number(namespace), _c.key(key), value, len(value))

    def delete(self, key: bytes, namespace: int = 0) -> None:
        """The block deletes this key."""
        lib.pleach_batch_delete(self._handle, _number(namespace), _c.key(key))

    def delete_prefix(self, prefix: bytes, namespace: int = 0) -> None:
        """The block deletes all keys that begin with these bytes, at most 32, except those that it puts, in whatever
        order the calls come. A key that it reads was read before the delete, and is deleted, too."""
        prefix = _c.raw(prefix)
        lib.pleach_batch_delete_prefix(self._handle, _number(namespace), prefix, len(prefix))

    def update(self, pairs: _Pairs, namespace: int = 0, read: bool = False) -> None:
        """Puts many pairs in one call, which takes less time for each. With ``read`` the block has read the keys, too."""
        of = pairs.items() if isinstance(pairs, Mapping) else pairs
        keys, values, lengths, count = _c.pairs([(_c.key(key), _c.raw(one)) for key, one in of])
        steps = bytes([3 if read else 2]) * count
        to = self._handle, _number(namespace)
        lib.pleach_batch_add(*to, keys, steps, values, lengths, count)

    __setitem__ = put
    __delitem__ = delete


class Block(_Handle):
    """A new root and the changes that lead to it, in memory. From ``Session.finish``."""

    def _facts(self) -> str:
        return f" with root {self.root().hex()}"

    def root(self, namespace: int = 0) -> bytes:
        """Root of a Merkle namespace in the block's state."""
        return _c.root(lambda root: lib.pleach_block_root(self._handle, _number(namespace), root))

    def previous_root(self, namespace: int = 0) -> bytes:
        """Root of a Merkle namespace before the block."""
        of = _number(namespace)
        return _c.root(lambda root: lib.pleach_block_previous_root(self._handle, of, root))

    def witness(self, namespace: int = 0) -> Optional[bytes]:
        """Takes the witness of a namespace, once, for ``verify_witness``."""
        of = _number(namespace)
        return _c.data(lambda witness: lib.pleach_block_witness(self._handle, of, witness))

    def commit(self) -> int:
        """Commits the block, with the overlays below it, and gives the number of the commit. After an error the block
        is as it was, and the commit can be tried again."""
        return _c.number(lambda number: lib.pleach_block_commit(self._handle, number))

    def into_overlay(self) -> Overlay:
        """Keeps the block in memory as a state for sessions; the block cannot be used afterwards."""
        make = lambda overlay: lib.pleach_block_into_overlay(self._handle, overlay)
        return Overlay(_c.handle(lib.pleach_overlay_free, make))


class Overlay(_Handle):
    """A block that is kept in memory. ``Db.session(overlay)`` reads it."""

    def _facts(self) -> str:
        return f" with root {self.root().hex()}"

    def root(self, namespace: int = 0) -> bytes:
        """Root of a Merkle namespace in the overlay's state."""
        of = _number(namespace)
        return _c.root(lambda root: lib.pleach_overlay_root(self._handle, of, root))

    def commit(self) -> int:
        """Commits it and the overlays below it as one commit, and gives its number."""
        return _c.number(lambda number: lib.pleach_overlay_commit(self._handle, number))


def hash_bytes(data: bytes, hasher: str = "blake3") -> bytes:
    """Hash of bytes by ``blake3`` or ``sha2-256``."""
    data = _c.raw(data)
    return _c.root(lambda hash: lib.pleach_hash(_name(hasher), data, len(data), hash))


def verify_key(
    root: bytes, proof: bytes, key: bytes, hasher: str = "blake3"
) -> Optional[bytes]:
    """What a proof says of a key: the hash of its value, or none where the key is absent. ``Refused`` when the proof is
    wrong, ``KeyError`` when it is about other keys."""
    root, key, proof = _c.key(root), _c.key(key), _c.raw(proof)
    lookup, found = ctypes.create_string_buffer(1), ctypes.create_string_buffer(32)
    lib.pleach_verify_key(_name(hasher), root, proof, len(proof), key, lookup, found)
    return _answers([key], lookup, found)[key]


def verify_keys(
    root: bytes, proof: bytes, keys: Iterable[bytes], hasher: str = "blake3"
) -> Dict[bytes, Optional[bytes]]:
    """What a proof says of several keys, as ``verify_key``."""
    root, proof, asked = _c.key(root), _c.raw(proof), _c.keys(keys)
    lookups, found = _places(asked)
    of_proof = (_name(hasher), root, proof, len(proof))
    lib.pleach_verify_keys(*of_proof, b"".join(asked), len(asked), lookups, found)
    return _answers(asked, lookups, found)


def verify_range(
    root: bytes, proof: bytes, first: bytes, last: bytes, hasher: str = "blake3"
) -> Dict[bytes, bytes]:
    """All keys of a range, in order, with the hashes of their values."""
    root, first, last, proof = _c.key(root), _c.key(first), _c.key(last), _c.raw(proof)
    of_proof = (_name(hasher), root, proof, len(proof), first, last)
    pairs = _c.some(_c.data(lambda pairs: lib.pleach_verify_range(*of_proof, pairs)))
    starts = range(0, len(pairs), 64)
    return {pairs[at : at + 32]: pairs[at + 32 : at + 64] for at in starts}


def verify_witness(
    previous_root: bytes, witness: bytes, keys: Iterable[bytes] = (), hasher: str = "blake3"
) -> Tuple[bytes, Dict[bytes, Optional[bytes]]]:
    """The root after a block, and what the state before it said of these keys, as ``verify_key``."""
    before, witness, asked = _c.key(previous_root), _c.raw(witness), _c.keys(keys)
    lookups, found = _places(asked)
    of_witness = (_name(hasher), before, witness, len(witness))
    of_keys = (b"".join(asked), len(asked), lookups, found)
    after = _c.root(lambda root: lib.pleach_verify_witness(*of_witness, *of_keys, root))
    return after, _answers(asked, lookups, found)


def _places(keys: List[bytes]) -> Tuple[Any, Any]:
    """Room for the answers about these keys."""
    return ctypes.create_string_buffer(len(keys)), ctypes.create_string_buffer(32 * len(keys))


def _answers(keys: List[bytes], lookups: Any, hashes: Any) -> Dict[bytes, Optional[bytes]]:
    found: Dict[bytes, Optional[bytes]] = {}
    for at, (key, lookup) in enumerate(zip(keys, lookups.raw)):
        if lookup == 2:
            raise KeyError(key)
        found[key] = hashes.raw[32 * at : 32 * at + 32] if lookup else None
    return found


def _name(hasher: str) -> bytes:
    if not isinstance(hasher, str):
        raise TypeError(f"wanted: the name of a hash function, not {type(hasher).__name__}")
    return _c.text(hasher.encode())


# ctypes would cut larger numbers off.


def _number(namespace: int) -> int:
    namespace = operator.index(namespace)
    if not 0 <= namespace < 256:
        raise ValueError(f"namespace {namespace}: they are 0 to 255")
    return namespace


def _long(number: int) -> int:
    number = operator.index(number)
    if not 0 <= number <= _LAST:
        raise ValueError(f"{number} is not a number of 64 bits")
    return number
