#!/usr/bin/env bash
# btrfs shares no blocks between a file that it overwrites in place (chattr +C) and one that it copies on write.
#
# Guess: `cp --reflink=always` works between any two files of one btrfs file system, and `cp -a` of a large file that is
# marked +C costs nothing, as that of any other file.
# Seen with Linux 6.18, coreutils 9.1, btrfs-progs 6.2-1+deb12u2:
#   a plain file into a new file: shared
#   a +C file into a new file: refused (EINVAL)
#   a +C file into a new file that is +C itself: shared
#   `cp -a --reflink=auto` of a +C file: a whole copy, not +C any more, without a word
# So a database whose files are +C is copied byte by byte by `cp -a`, and the copy is copied on write from then on.
#
# Needs root and loop devices. Fails if the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'cd /; umount "$folder/mount" 2> /dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq btrfs-progs=6.2-1+deb12u2
dpkg -x btrfs-progs_*.deb programs
truncate -s 400M image
programs/sbin/mkfs.btrfs -q image > /dev/null
mkdir mount
mount -o loop image mount
cd mount

touch plain in-place target-in-place
chattr +C in-place target-in-place
dd if=/dev/urandom of=plain bs=1M count=8 status=none
cat plain > in-place
sync
cloned() { if cp --reflink=always "$1" "$2" 2> /dev/null; then echo shared; else echo refused; fi; }
flagged() { if lsattr "$1" | grep -q '^[^ ]*C'; then echo in-place; else echo copied-on-write; fi; }
seen="plain: $(cloned plain a), in place: $(cloned in-place b), into one in place: $(cloned in-place target-in-place)"
cp -a --reflink=auto in-place c
seen="$seen, cp -a: $(flagged c)"
echo "Linux $(uname -r), $(cp --version | head -n 1): $seen"
[[ $seen == "plain: shared, in place: refused, into one in place: shared, cp -a: copied-on-write" ]]
