"""Tests of the installed package, for unittest and pytest."""

import copy
import gc
import importlib.metadata
import logging
import multiprocessing
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import weakref
from pathlib import Path
from unittest import mock

import pleach
from pleach._library import lib


def key(byte):
    return bytes([byte]) * 32


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "state"
        self.db = pleach.open(self.folder, create=True, cache_mib=64, history=100)
        self.addCleanup(self.db.close)

    def block(self, pairs, over=None):
        batch = pleach.Batch()
        for of, value in pairs.items():
            batch[of] = value
        return self.db.session(over).finish(batch)

    def refused(self, code, call, *arguments, **named):
        with self.assertRaises(pleach.Error) as raised:
            call(*arguments, **named)
        self.assertEqual(raised.exception.code, code)
        self.assertEqual(raised.exception.outcome, pleach.Outcome.DID_NOT_HAPPEN)
        self.assertTrue(str(raised.exception) and raised.exception.advice_text)
        return raised.exception


class Reading(Case):
    def setUp(self):
        super().setUp()
        self.block({key(n): b"v%d" % n for n in range(1, 10)}).commit()

    def test_a_session_is_like_a_dict(self):
        session = self.db.session()
        self.assertEqual(session[key(3)], b"v3")
        self.assertEqual(session.get(key(3)), b"v3")
        self.assertIsNone(session.get(key(33)))
        self.assertEqual(session.get(key(33), b"none"), b"none")
        self.assertIn(key(3), session)
        self.assertNotIn(key(33), session)
        with self.assertRaises(KeyError):
            session[key(33)]
        self.assertEqual(list(session), [key(n) for n in range(1, 10)])
        self.assertEqual(dict(session), {key(n): b"v%d" % n for n in range(1, 10)})
        session.prefetch([key(1), key(2)])
        self.assertEqual(session.read_many([key(1), key(33), key(2)]), [b"v1", None, b"v2"])
        self.assertEqual(session.read_many([]), [])

    def test_items_are_those_of_a_range_or_prefix(self):
        session = self.db.session()
        self.assertEqual(list(session.items(key(3), key(4))), [(key(3), b"v3"), (key(4), b"v4")])
        self.assertEqual([pair[1] for pair in session.items(last=key(2))], [b"v1", b"v2"])
        self.assertEqual(list(session.keys(key(8))), [key(8), key(9)])
        self.assertEqual(list(session.values(key(8))), [b"v8", b"v9"])
        self.assertEqual(list(session.keys(prefix=b"\5")), [key(5)])
        self.assertEqual(list(session.items(prefix=b"\5\5")), [(key(5), b"v5")])
        self.assertEqual(len(list(session.items())), 9)
        self.assertEqual(list(session.items(key(4), key(3))), [])
        with self.assertRaises(ValueError):
            session.items(key(1), prefix=b"\1")
        self.refused(902, session.cursor, prefix=bytes(33))

    def test_iteration_goes_both_ways(self):
        session = self.db.session()
        for of in ({}, {"first": key(2), "last": key(3)}, {"prefix": key(2)}, {"first": key(200)}):
            forward = list(session.items(**of))
            self.assertEqual(list(session.items(**of, reverse=True)), forward[::-1])
            self.assertEqual(list(session.keys(**of, reverse=True)), [pair[0] for pair in forward[::-1]])
            self.assertEqual(list(session.values(**of, reverse=True)), [pair[1] for pair in forward[::-1]])
        self.assertEqual(list(reversed(session)), list(session)[::-1])
        self.assertEqual(list(reversed(session.cursor())), list(session.items())[::-1])

    def test_iteration_in_blocks_gives_the_pairs_of_single_steps(self):
        # More than a block has, by number and by bytes; empty and long values between.
        sizes = {0: 0, 700: 0, 701: 40_000, 702: 70_000, 703: 300_000, 1900: 200_000}
        wanted = [
            (n.to_bytes(4, "big") * 8, bytes([n % 251]) * sizes.get(n, n % 90)) for n in range(4000)
        ]
        self.block(dict(wanted) | {key(n): b"" for n in range(1, 10)}).commit()
        session = self.db.session()
        of = {"last": wanted[-1][0]}
        self.assertEqual(list(session.items(**of)), wanted)
        self.assertEqual(list(session.items(**of, reverse=True)), wanted[::-1])
        # A loop that stops early, and others beside it.
        first, second = session.items(**of), session.items(**of, reverse=True)
        for at in range(100):
            self.assertEqual((next(first), next(second)), (wanted[at], wanted[-1 - at]))
        first.close()
        cursor = session.cursor(**of)
        self.assertEqual(cursor.next_many(3), wanted[:3])
        self.assertEqual(cursor.previous(), wanted[1])
        self.assertEqual(cursor.previous_many(100), [wanted[0]])
        self.assertEqual(cursor.previous_many(1), [])
        cursor.seek(wanted[701][0])
        self.assertEqual(cursor.next_many(1 << 60), wanted[701:703])
        self.assertEqual(cursor.next_many(1 << 60), wanted[703:704])
        self.refused(902, cursor.next_many, 0)
        with self.assertRaises((TypeError, ValueError, OverflowError)):
            cursor.next_many(-1)
        self.assertEqual(cursor.next(), wanted[704])

    def test_pairs_before_a_damaged_one_are_given(self):
        self.block({key(100): bytes(100_000)}).commit()
        self.db.close()
        with open(self.folder / "overflow", "r+b") as file:
            size = file.seek(0, 2)
            file.seek(0)
            file.write(b"damage! " * (size // 8))
        self.db = pleach.open(self.folder, create=False, cache_mib=64, history=100)
        self.addCleanup(self.db.close)
        session = self.db.session()
        found, items = [], session.items()
        with self.assertRaises(pleach.Error) as raised:
            found.extend(iter(lambda: next(items)[0], None))
        self.assertIn(raised.exception.code, (302, 308))
        self.assertEqual(found, [key(n) for n in range(1, 10)])
        cursor = session.cursor()
        self.assertEqual(len(cursor.next_many(20)), 9)
        for _ in range(3):
            with self.assertRaises(pleach.Error):
                cursor.next_many(20)
        self.assertEqual(cursor.previous(), (key(8), b"v8"))

    def test_a_cursor_goes_both_ways_and_outlives_its_session(self):
        with self.db.session() as session:
            cursor = session.cursor(key(2), key(5))
        self.assertIsNone(cursor.previous())
        self.assertEqual(cursor.next(), (key(2), b"v2"))
        cursor.seek(key(9))
        self.assertIsNone(cursor.next())
        self.assertEqual(cursor.previous(), (key(5), b"v5"))
        cursor.seek(key(4))
        self.assertEqual(cursor.previous(), (key(3), b"v3"))
        self.assertEqual(cursor.next(), (key(4), b"v4"))
        cursor.close()
        with self.assertRaises(ValueError):
            cursor.next()

    def test_empty_values_and_zero_bytes_are_kept(self):
        self.block({key(1): b"", key(2): b"a\0b", key(3): bytes(100_000)}).commit()
        session = self.db.session()
        self.assertEqual(session[key(1)], b"")
        self.assertEqual(session[key(2)], b"a\0b")
        self.assertEqual(session[key(3)], bytes(100_000))

    def test_only_what_has_bytes_is_taken_for_bytes(self):
        batch = pleach.Batch()
        batch[bytearray(key(1))] = bytearray(b"array")
        batch[memoryview(key(2))] = memoryview(b"view")
        for wrong in (5, "text", None):
            with self.assertRaises(TypeError):
                batch[key(3)] = wrong
            with self.assertRaises(TypeError):
                batch.read(wrong)
            with self.assertRaises(TypeError):
                batch.delete_prefix(wrong)
        self.db.session().finish(batch).commit()
        values = self.db.session().read_many([key(1), key(2), key(3)])
        self.assertEqual(values, [b"array", b"view", b"v3"])

    def test_wrong_lengths_and_numbers_do_not_reach_the_library(self):
        session, batch = self.db.session(), pleach.Batch()
        for call in [
            lambda: session.get(b"short"),
            lambda: session.read_many([key(1), bytes(33)]),
            lambda: batch.put(bytes(31), b""),
            lambda: batch.put(key(1), b"", namespace=256),
            lambda: session.namespace(-1),
            lambda: pleach.verify_key(b"", b"", key(1)),
            lambda: pleach.open("a\0b"),
            lambda: pleach.open("a", durability="none,create=true"),
            lambda: self.db.at(-1),
            lambda: self.db.rollback(1 << 64),
        ]:
            with self.assertRaises(ValueError):
                call()


class Blocks(Case):
    def test_a_block_has_a_root_and_a_witness_and_commits(self):
        before = self.db.root()
        batch = pleach.Batch()
        batch[key(1)] = b"one"
        batch.read(key(2))
        block = self.db.session().finish(batch)
        self.assertEqual(block.previous_root(), before)
        witness = block.witness()
        self.assertIsNone(block.witness())
        after, seen = pleach.verify_witness(before, witness, [key(1), key(2)])
        self.assertEqual(after, block.root())
        self.assertEqual(seen, {key(1): None, key(2): None})
        self.assertEqual(block.commit(), 1)
        self.assertEqual(self.db.root(), after)
        self.assertEqual(self.db.commit_number(), 1)
        self.assertIsNone(self.db.session(witness=False).finish(batch).witness())

    def test_a_failed_commit_keeps_the_block(self):
        late, early = self.block({key(1): b"late"}), self.block({key(2): b"early"})
        early.commit()
        error = self.refused(501, late.commit)
        self.assertEqual(error.advice, pleach.Advice.MAKE_AGAIN)
        self.db.rollback(1)
        late.commit()
        self.assertEqual(self.db.session()[key(1)], b"late")
        self.assertIsInstance(self.refused(904, late.commit), pleach.Spent)

    def test_a_failed_finish_keeps_session_and_batch(self):
        session, batch = self.db.session(), pleach.Batch()
        batch.put(key(1), b"one", namespace=9)
        self.refused(410, session.finish, batch)
        self.assertIsNone(session.get(key(1)))
        self.db.add_namespace(9)
        session = self.db.session()
        session.finish(batch).commit()
        self.assertIsInstance(self.refused(904, session.get, key(1)), ValueError)
        self.assertEqual(self.db.session().namespace(9)[key(1)], b"one")

    def test_prefixes_and_keys_are_deleted(self):
        self.block({key(n): b"v" for n in range(1, 6)}).commit()
        batch = pleach.Batch()
        batch.delete_prefix(b"\1")
        del batch[key(2)]
        batch.put(key(3), b"new")
        batch.delete_prefix(b"\3")
        self.db.session().finish(batch).commit()
        self.assertEqual(list(self.db.session()), [key(3), key(4), key(5)])
        self.refused(902, batch.delete_prefix, bytes(33))

    def test_a_prefix_is_deleted_but_for_what_is_put(self):
        # The header said that a key which is read stays; the rule is that of the engine.
        keys = [bytes([7, n]) + bytes(30) for n in range(6)]
        self.block({one: b"old" for one in keys[:5]}).commit()
        batch = pleach.Batch()
        batch.read(keys[0])
        batch[keys[1]] = b"new"
        batch.delete_prefix(b"\7")
        batch.read(keys[2])
        batch[keys[2]] = b"new"
        del batch[keys[3]]
        batch.read(keys[5])
        block = self.db.session().finish(batch)
        _, seen = pleach.verify_witness(block.previous_root(), block.witness(), keys)
        old = pleach.hash_bytes(b"old")
        self.assertEqual(seen, {**dict.fromkeys(keys, old), keys[5]: None})
        block.commit()
        self.assertEqual(dict(self.db.session().items()), {keys[1]: b"new", keys[2]: b"new"})

    def test_many_pairs_come_in_one_call(self):
        batch = pleach.Batch()
        batch.update({key(1): b"one", key(2): b""}, read=True)
        batch.update([(key(3), b"three"), (key(1), b"last")])
        block = self.db.session().finish(batch)
        _, before = pleach.verify_witness(block.previous_root(), block.witness(), [key(1), key(2)])
        self.assertEqual(before, {key(1): None, key(2): None})
        block.commit()
        self.assertEqual(dict(self.db.session().items()), {key(1): b"last", key(2): b"", key(3): b"three"})
        with self.assertRaises(ValueError):
            batch.update({b"short": b""})

    def test_overlays_are_states(self):
        one = self.block({key(1): b"one"}).into_overlay()
        two = self.block({key(2): b"two"}, one).into_overlay()
        fork = self.block({key(2): b"fork"}, one).into_overlay()
        self.assertEqual(self.db.session(two).read_many([key(1), key(2)]), [b"one", b"two"])
        self.assertEqual(two.commit(), 1)
        self.assertEqual(self.db.root(), two.root())
        self.refused(501, fork.commit)

    def test_history_is_read_and_rolled_back(self):
        for n in range(3):
            self.block({key(1): b"%d" % n}).commit()
        self.assertEqual(self.db.history(), range(0, 4))
        self.assertEqual(self.db.at(2)[key(1)], b"1")
        self.assertEqual(self.db.at(2).commit_number(), 2)
        self.refused(401, self.db.at, 9)
        self.assertEqual(self.db.rollback(2), 4)
        self.assertEqual(self.db.session()[key(1)], b"0")

    def test_namespaces_come_and_go(self):
        self.db.add_namespace(5)
        self.db.add_namespace(6, plain=True)
        self.assertEqual(self.db.namespaces(), {0: False, 5: False, 6: True})
        self.assertEqual(self.db.root(5), bytes(32))
        self.refused(411, self.db.root, 6)
        self.refused(412, self.db.add_namespace, 5)
        self.db.drop_namespace(5)
        self.refused(410, self.db.session().namespace(5).get, key(1))


class Proofs(Case):
    def setUp(self):
        super().setUp()
        self.block({key(n): b"v%d" % n for n in range(1, 10)}).commit()
        self.session, self.root = self.db.session(), self.db.root()

    def test_keys_are_proven(self):
        proof = self.session.prove(key(1))
        self.assertEqual(self.session.root(), self.root)
        self.assertEqual(pleach.verify_key(self.root, proof, key(1)), pleach.hash_bytes(b"v1"))
        absent = self.session.prove(key(77))
        self.assertIsNone(pleach.verify_key(self.root, absent, key(77)))
        proof = self.session.prove_many([key(2), key(77)])
        self.assertEqual(
            pleach.verify_keys(self.root, proof, [key(2), key(77)]),
            {key(2): pleach.hash_bytes(b"v2"), key(77): None},
        )
        with self.assertRaises(KeyError):
            pleach.verify_keys(self.root, proof, [key(9)])

    def test_what_is_wrong_is_refused(self):
        proof = self.session.prove(key(1))
        for call in [
            lambda: pleach.verify_key(key(1), proof, key(1)),
            lambda: pleach.verify_key(self.root, proof[:-1], key(1)),
            lambda: pleach.verify_key(self.root, b"", key(1)),
            lambda: pleach.verify_key(self.root, proof, key(1), hasher="sha2-256"),
            lambda: pleach.verify_keys(self.root, proof, [key(1)]),
            lambda: pleach.verify_range(self.root, proof, key(1), key(2)),
            lambda: pleach.verify_witness(self.root, proof),
        ]:
            with self.assertRaises(pleach.Refused):
                call()
        self.refused(902, pleach.hash_bytes, b"", "md5")

    def test_ranges_are_proven_in_parts(self):
        proof, last = self.session.prove_range(bytes(32), key(255))
        self.assertEqual(last, key(255))
        whole = pleach.verify_range(self.root, proof, bytes(32), key(255))
        self.assertEqual(list(whole), [key(n) for n in range(1, 10)])
        self.assertEqual(whole[key(4)], pleach.hash_bytes(b"v4"))
        proof, last = self.session.prove_range(bytes(32), key(255), limit=2)
        self.assertEqual(len(pleach.verify_range(self.root, proof, bytes(32), last)), 2)
        self.refused(405, self.session.prove_range, key(2), key(1))


class Databases(Case):
    def test_open_says_what_is_wrong(self):
        self.refused(201, pleach.open, self.folder / "missing")
        self.refused(206, pleach.open, self.folder, cash_mib=1)
        self.assertEqual(self.refused(102, pleach.open, self.folder).advice, pleach.Advice.CLOSE_OTHERS)

    def test_options_and_versions(self):
        self.assertEqual(self.db.options()["cache_mib"], "64")
        self.assertEqual(self.db.hasher(), "blake3")
        try:
            installed = importlib.metadata.version("pleach")
        except importlib.metadata.PackageNotFoundError:
            self.skipTest("it is not installed")
        self.assertEqual(pleach.version(), installed)

    def test_notes_are_what_the_open_warns_of(self):
        # The library wrote them to a log that nobody in Python sees.
        of_the_system = self.db.notes()
        self.db.close()
        (self.folder / "log.spare").unlink()
        with pleach.open(self.folder, cache_mib=1 << 24) as db:
            missing, budget = [note for note in db.notes() if note not in of_the_system]
        self.assertEqual(missing, "log.spare: missing")
        self.assertTrue(budget.startswith("cache_mib: 16777216 MiB take up to "), budget)
        self.assertTrue(budget.endswith("it may be killed when they fill up; give less"), budget)

    def test_a_close_leaves_sessions_reading(self):
        self.block({key(1): b"one"}).commit()
        session = self.db.session()
        self.assertEqual(self.db.close(), 1)
        self.assertEqual(self.db.close(), 0)
        self.assertEqual(session[key(1)], b"one")
        with self.assertRaises(ValueError):
            self.db.root()
        session.close()
        with pleach.open(self.folder) as db:
            self.assertEqual(db.session()[key(1)], b"one")

    def test_readers_follow(self):
        with pleach.open(self.folder, read_only=True) as reader:
            self.block({key(1): b"one"}).commit()
            self.db.sync()
            self.assertEqual(reader.refresh(), 1)
            self.assertEqual(reader.session()[key(1)], b"one")

    def test_objects_go_in_any_order(self):
        session = self.db.session()
        self.db.close()
        del self.db
        gc.collect()
        self.assertIsNone(session.get(key(1)))
        self.db = pleach.open(self.folder, read_only=True)

    def test_threads_share_a_session_that_is_closed_meanwhile(self):
        self.block({key(n): b"v%d" % n for n in range(1, 10)}).commit()
        session, wrong = self.db.session(), []
        started = threading.Barrier(5)

        def read():
            started.wait()
            try:
                while True:
                    if session[key(3)] != b"v3" or len(list(session.items())) != 9:
                        wrong.append("another value")
            except ValueError:
                pass  # It was closed.
            except BaseException as error:
                wrong.append(error)

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        started.wait()
        for n in range(20):
            self.block({key(3): b"%d" % n}).commit()
        session.close()
        for reader in readers:
            reader.join()
        self.assertEqual(wrong, [])


class Operating(Case):
    def test_a_load_is_one_commit_or_none(self):
        number = lambda at: at.to_bytes(32, "big")
        self.assertEqual(self.db.load((number(at), b"%d" % at) for at in range(10_000)), 10_000)
        session = self.db.session()
        self.assertEqual((session[number(9_999)], self.db.commit_number()), (b"9999", 1))
        session.close()
        self.refused(413, self.db.load, {key(1): b"one"})
        self.db.add_namespace(5)

        def broken():
            yield key(1), b"one"
            raise RuntimeError("the source")

        with self.assertRaises(RuntimeError):
            self.db.load(broken(), namespace=5)
        with self.assertRaises(ValueError):
            self.db.load([(b"short", b"")], namespace=5)
        self.refused(406, self.db.load, [(key(1), b"one"), (key(1), b"two")], namespace=5)
        self.assertEqual(self.db.load({key(1): b"one"}, namespace=5), 1)

    def test_a_backup_has_the_state(self):
        self.block({key(1): b"one"}).commit()
        copy = self.folder.parent / "copy"
        self.assertEqual(self.db.backup(copy), 1)
        with pleach.open(copy, read_only=True) as copied:
            self.assertEqual(copied.session()[key(1)], b"one")
        self.refused(203, self.db.backup, copy)

    def test_metrics_are_text(self):
        self.block({key(1): b"one"}).commit()
        text = self.db.metrics()
        counter = f'pleach_commits_total{{database="{self.folder}"}} 1\n'
        self.assertIn("# TYPE pleach_commits_total counter\n" + counter, text)
        self.assertIn("# TYPE pleach_pending_bytes gauge\n", text)
        for name in ["pleach_finish_seconds", "pleach_commit_seconds"]:
            self.assertIn(f"# TYPE {name} histogram\n", text)
            for part in ['_bucket{%s,le="+Inf"}', "_count{%s}"]:
                said = part % f'database="{self.folder}"'
                self.assertIn(f"\n{name}{said} 1\n", text)

    def test_messages_come_to_a_logger(self):
        logger = logging.getLogger("pleach-test")
        folder = self.folder.parent / "other"
        with self.assertLogs(logger, "INFO") as said:
            pleach.log_to(logger)
            pleach.open(folder, create=True).close()
            pleach.log_to(None)
            pleach.open(folder).close()
        self.assertEqual(["opened" in line for line in said.output], [True, False])
        self.assertTrue(all(line.startswith("INFO:pleach-test:") for line in said.output))

    def test_a_program_that_logs_ends(self):
        program = """if True:
            import logging, os, sys, pleach
            logging.basicConfig(level=logging.INFO)
            pleach.log_to(logging.getLogger())
            db = pleach.open(sys.argv[1], create=True)
            if os.fork() == 0:
                sys.exit(0)
            assert os.wait()[1] == 0
            db.session().finish(pleach.Batch()).commit()
            """
        ended = subprocess.run(
            [sys.executable, "-c", program, self.folder.parent / "other"], capture_output=True, timeout=60
        )
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn(b"INFO:root:opened", ended.stderr)

    def test_a_child_of_a_fork_does_not_wait_for_threads_of_its_parent(self):
        # One of them held the lock of the histograms: an eighth of the children hung.
        program = """if True:
            import os, signal, sys, threading, pleach
            def commit(db):
                batch = pleach.Batch()
                batch[bytes(32)] = b"1"
                db.session(witness=False).finish(batch).commit()
            db, ended = pleach.open(sys.argv[1], create=True, cache_mib=64, durability="none"), threading.Event()
            def work():
                while not ended.is_set():
                    commit(db)
            thread = threading.Thread(target=work)
            thread.start()
            failed = 0
            for child in range(40):
                if os.fork() == 0:
                    signal.alarm(20)
                    own = pleach.open(f"{sys.argv[1]}-{child}", create=True, cache_mib=64)
                    commit(own)
                    os._exit("pleach_commit_seconds_count" not in own.metrics())
                failed += os.wait()[1] != 0
            ended.set()
            thread.join()
            sys.exit(failed)
            """
        ended = subprocess.run([sys.executable, "-c", program, self.folder.parent / "other"], timeout=1000)
        self.assertEqual(ended.returncode, 0)

    def test_the_history_says_what_changed_when(self):
        begin = time.time()
        folder = self.folder.parent / "short"
        with pleach.open(folder, create=True, history=200) as db:
            for number in range(150):
                batch = pleach.Batch()
                batch[key(number % 2)] = b"%d" % number
                db.session().finish(batch).commit()
            back = db.rollback(3)
            self.assertEqual(db.rolled_back_to(back), 148 - 1)
            self.assertIsNone(db.rolled_back_to(back - 1))
            made = db.committed_at(back)
            self.assertTrue(int(begin) <= made.timestamp() <= time.time())
            odd = [*range(2, 151, 2), back]
            self.assertEqual(list(db.changes_of(key(1))), odd)
            self.assertEqual(list(db.changes_of(key(1), reverse=True)), odd[::-1])
            self.assertEqual(list(db.changes_of(key(1), 3, 8)), [4, 6, 8])
            self.assertEqual(list(db.changes_of(key(1), 3, 8, reverse=True)), [8, 6, 4])
            self.assertEqual(list(db.changes_of(key(1), 9, 8)), [])
            self.assertEqual(list(db.changes_of(key(1), namespace=7)), [])
            self.assertEqual(next(db.changes_of(key(7), reverse=True), None), None)
        with pleach.open(folder, history=10) as db:
            oldest = db.history()[0]
            with self.assertRaises(pleach.SnapshotTooOld):
                list(db.changes_of(key(1), oldest - 1))
            with self.assertRaises(pleach.SnapshotTooOld):
                db.committed_at(oldest)
            found = list(db.changes_of(key(1), oldest))
            self.assertTrue(found and found == list(db.changes_of(key(1))))
            self.assertRaises(pleach.NoSuchCommit, db.rolled_back_to, 1000)

    def test_errors_say_in_words_what_to_do(self):
        error = self.refused(401, self.db.at, 99)
        self.assertEqual(f"{error.advice}, {error.outcome!s}", "fix call, did not happen")
        self.assertEqual((error.advice, repr(error.advice)), (6, "<Advice.FIX_CALL: 6>"))
        self.assertIs(pickle.loads(pickle.dumps(error.advice)), pleach.Advice.FIX_CALL)
        for kind in (type(error), pleach.Error, pleach.Advice):
            self.assertEqual(kind.__module__, "pleach")

    def test_kinds_of_errors_have_classes(self):
        with self.assertRaises(pleach.InvalidArgument):
            pleach.hash_bytes(b"", "md5")
        self.db.backup(self.folder.parent / "copy")
        with self.assertRaises(pleach.CannotCreate):
            self.db.backup(self.folder.parent / "copy")
        with self.assertRaises(pleach.Missing):
            pleach.open(self.folder / "nothing")
        with self.assertRaises(pleach.Locked):
            pleach.open(self.folder)
        stale = self.block({key(1): b"late"})
        self.block({key(1): b"new"}).commit()
        with self.assertRaises(pleach.StaleParent) as raised:
            stale.commit()
        self.assertEqual(raised.exception.code, pleach.StaleParent.CODE)
        with self.assertRaises(pleach.Refused):
            pleach.verify_key(key(1), b"", key(1))


class Objects(Case):
    """What Python makes of handles, errors and signals."""

    def each(self):
        """An object of each class that has a handle."""
        session = self.db.session()
        return {
            "Db": pleach.open(self.folder, read_only=True),
            "Session": session,
            "Cursor": session.cursor(),
            "Batch": pleach.Batch(),
            "Block": self.block({key(1): b"block"}),
            "Overlay": self.block({key(2): b"overlay"}).into_overlay(),
        }

    def test_an_object_of_another_class_is_a_type_error(self):
        # Memory was read as something else: the interpreter crashed, or the engine found an error by chance.
        objects = {**self.each(), "text": "text", "number": 5, "bytes": key(1)}
        for name, other in objects.items():
            if name != "Overlay":
                with self.assertRaises(TypeError, msg=name):
                    self.db.session(other)
            if name != "Batch":
                with self.assertRaises(TypeError, msg=name):
                    self.db.session().finish(other)
        with self.assertRaises(TypeError):
            self.db.session().finish(None)
        for call in [
            lambda: self.db.at(1.5),
            lambda: self.db.at("1"),
            lambda: self.db.rollback(None),
            lambda: self.db.root("0"),
            lambda: self.db.changes_of(key(1), "1"),
            lambda: self.db.session().prove_range(key(1), key(2), 1.5),
            lambda: self.db.session()["key"],
            lambda: pleach.Batch().put(key(1), "value"),
            lambda: pleach.Batch().put(key(1), b"value", 1.0),
            lambda: pleach.hash_bytes(b"", 5),
            lambda: pleach.open(5),
            lambda: pleach.log_to(print),
        ]:
            self.assertRaises(TypeError, call)
        # A method that is called with another object.
        self.refused(902, pleach.Db.root, objects["Session"])
        self.refused(902, pleach.Block.root, objects["Session"])
        self.refused(902, pleach.Batch.read, objects["Overlay"], key(1))

    def test_a_repr_says_what_an_object_is(self):
        session, block = self.db.session(), self.block({key(1): b"one"})
        root = block.root().hex()
        self.assertEqual(repr(self.db), f"<pleach.Db {str(self.folder)!r} at commit 0>")
        self.assertEqual(repr(session), "<pleach.Session of commit 0>")
        self.assertEqual(repr(session.namespace(7)), "<pleach.Namespace 7 of <pleach.Session of commit 0>>")
        self.assertEqual(repr(session.cursor()), "<pleach.Cursor>")
        self.assertEqual(repr(block), f"<pleach.Block with root {root}>")
        overlay = block.into_overlay()
        self.assertEqual(repr(block), "<pleach.Block, spent>")
        self.assertEqual(repr(overlay), f"<pleach.Overlay with root {root}>")
        session.finish(pleach.Batch())
        self.assertEqual(repr(session), "<pleach.Session, spent>")
        self.db.close()
        self.assertEqual(repr(self.db), "<pleach.Db, closed>")

    def test_each_object_is_freed_with_its_last_reference(self):
        # A session referred to itself: without the cyclic collector it was never freed, and kept the folder locked.
        gc.disable()
        self.addCleanup(gc.enable)
        objects = self.each()
        session = objects["Session"]
        objects["Namespace"] = session.namespace(0)
        objects.update(items=session.items(), keys=session.keys(), values=session.values())
        self.assertIsNone(session.get(key(9)))
        self.assertEqual(session.read_many([key(9)]), [None])
        self.assertEqual(list(objects["items"]) + list(objects["keys"]), [])
        try:
            self.db.at(99)
        except pleach.Error as error:
            objects["Error"] = error
        del session
        while objects:
            name, last = objects.popitem()
            freed = weakref.ref(last)
            del last
            self.assertIsNone(freed(), name)
        self.assertEqual(self.db.close(), 0)

    def test_errors_are_pickled_and_copied(self):
        missing = self.refused(201, pleach.open, self.folder / "missing")
        missing.place = "here"
        with self.assertRaises(pleach.Refused) as refused:
            pleach.verify_key(key(1), b"", key(1))
        for error in (missing, refused.exception):
            for made in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
                self.assertIs(type(made), type(error))
                self.assertEqual((str(made), vars(made)), (str(error), vars(error)))

    def test_the_error_of_a_worker_arrives(self):
        # It could not be unpickled: the pool gave no answer, ever.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            with self.assertRaises(pleach.Error) as raised:
                pool.apply_async(pleach.open, (self.folder / "missing",)).get(60)
            self.assertEqual(raised.exception.code, 201)
            self.assertEqual(pool.apply_async(abs, (-1,)).get(60), 1)

    def interrupt(self, call, times):
        """Makes the call so many times, and raises from a signal's handler at moments that spread over it."""

        class Interrupted(BaseException):
            pass

        def handler(*_):
            raise Interrupted

        kept, took = None, 1.0
        for _ in range(5):
            del kept
            began = time.perf_counter()
            kept = call()
            took = min(took, time.perf_counter() - began)
        before, interrupted = signal.signal(signal.SIGALRM, handler), 0
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        # It hears of what is raised while something is freed.
        quiet = mock.patch.object(sys, "unraisablehook", lambda _: None)
        self.addCleanup(quiet.stop)
        quiet.start()
        for n in range(1, times + 1):
            del kept
            kept = None
            try:
                signal.setitimer(signal.ITIMER_REAL, 1.2 * took * n / times)
                kept = call()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                interrupted += 1
        self.assertGreater(interrupted, 0)

    def test_an_open_that_a_signal_interrupts_leaves_the_folder_free(self):
        # The database was open, and nobody had it: each further open said that it is in use.
        self.block({key(1): b"one"}).commit()
        self.db.close()
        self.interrupt(lambda: pleach.open(self.folder), 40)
        pleach.open(self.folder).close()

    def test_a_traceback_does_not_keep_what_a_signal_has_interrupted(self):
        self.db.close()
        real = lib.pleach_open

        def then_raises(*arguments):
            real(*arguments)
            raise KeyboardInterrupt

        with mock.patch.object(lib, "pleach_open", then_raises):
            try:
                pleach.open(self.folder)
            except KeyboardInterrupt as error:
                kept = error
        self.assertIsNotNone(kept.__traceback__)
        pleach.open(self.folder).close()

    @unittest.skipIf(sys.version_info < (3, 11), "there a handler may raise before any instruction, also of what frees")
    def test_sessions_and_blocks_that_a_signal_interrupts_are_freed(self):
        def finish():
            batch = pleach.Batch()
            for n in range(20):
                batch[key(n)] = b"value"
            return self.db.session().finish(batch)

        self.interrupt(self.db.session, 300)
        self.interrupt(lambda: self.db.session().cursor(), 300)
        self.interrupt(finish, 100)
        self.interrupt(lambda: finish().into_overlay(), 100)
        self.assertEqual(self.db.close(), 0)

    def test_bytes_are_freed_whatever_a_handler_raises(self):
        self.block({key(n): b"v%d" % n for n in range(1, 10)}).commit()
        session = self.db.session()
        calls = {
            "pleach_session_read": lambda: session.get(key(1)),
            "pleach_session_read_many": lambda: session.read_many([key(1), key(2)]),
            "pleach_session_prove": lambda: session.prove(key(1)),
            "pleach_options": self.db.options,
        }
        for name, call in calls.items():
            real, filled = getattr(lib, name), []

            def then_raises(*arguments):
                real(*arguments)
                filled.append(arguments[-1])
                self.assertTrue(all(place.owner for place in filled[0]))
                raise KeyboardInterrupt  # As the handler of a signal may do.

            with mock.patch.object(lib, name, then_raises), self.assertRaises(KeyboardInterrupt):
                call()
            self.assertEqual([place.owner for place in filled[0]], [None] * len(filled[0]))


class Readme(unittest.TestCase):
    def test_its_program_runs(self):
        readme = Path(__file__).parent.parent / "README.md"
        program = readme.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
        with tempfile.TemporaryDirectory() as folder:
            # It names its folder as one in the current folder. It runs twice, and opens the folder again: a session
            # that only the cyclic collector frees would keep it locked.
            twice = "import gc\ngc.disable()\n" + program + program
            subprocess.run([sys.executable, "-c", twice], cwd=folder, check=True)
            self.assertTrue((Path(folder) / "state" / "super").is_file())


if __name__ == "__main__":
    unittest.main()
