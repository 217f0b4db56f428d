"""Draws how a state grows: bytes of the folder and time of a commit, over commits of new accounts.

    pip install pleach matplotlib
    python growth.py [COMMITS [FILE.png]]
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

import pleach

ACCOUNTS = 1000


def size(folder: Path) -> int:
    """What the files occupy on the device."""
    return sum(os.stat(path).st_blocks * 512 for path in folder.iterdir())


def main() -> None:
    commits = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    picture = sys.argv[2] if len(sys.argv) > 2 else "growth.png"
    accounts, sizes, times = [], [], []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "state")
        with pleach.open(folder, create=True, cache_mib=64) as db:
            for commit in range(commits):
                new = range(commit * ACCOUNTS, (commit + 1) * ACCOUNTS)
                batch = pleach.Batch()
                batch.update((pleach.hash_bytes(b"%d" % account), b"%032d" % account) for account in new)
                start = time.perf_counter()
                db.session().finish(batch).commit()
                times.append(1000 * (time.perf_counter() - start))
                accounts.append(new.stop)
                sizes.append(size(folder) / 1e6)
    figure, (above, below) = pyplot.subplots(2, sharex=True)
    above.plot(accounts, sizes)
    above.set_ylabel("folder, MB")
    below.plot(accounts, times, ".")
    below.set_ylabel("finish and commit, ms")
    below.set_xlabel(f"accounts, {ACCOUNTS} new ones a commit")
    figure.savefig(picture)
    print(f"{picture}: {accounts[-1]} accounts, {sizes[-1]:.0f} MB")


if __name__ == "__main__":
    main()
