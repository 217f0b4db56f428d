#!/usr/bin/env bash
# On btrfs the room of a removed or shortened file is free when the transaction ends, not when the call returns.
#
# Guess: after unlink(2) of the last name of a closed file, or ftruncate(2), statvfs(2) shows its room as free, as on ext4
# and XFS; fsync(2) of the shortened file at the latest makes it so.
# Seen with Linux 6.18, btrfs-progs 6.2-1+deb12u2: the figure stays the same, also after fsync and three seconds; syncfs(2)
# (`sync -f`), or the commit interval of 30 seconds, frees it. A program that removes files because a device is full, and
# looks again, finds it full.
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

free_mib() { stat -f -c '%a %S' . | awk '{ printf "%d", $1 * $2 / 1048576 }'; }
# Gives the free MiB before a command, after it, three seconds later, and after syncfs.
watched() {
    local before after later
    fallocate -l 100M file
    sync -f .
    before=$(free_mib)
    "$@"
    after=$(free_mib)
    sleep 3
    later=$(free_mib)
    sync -f .
    echo "$before $after $later $(free_mib)"
}
shorten() { truncate -s 1M file && sync file; }
removed=$(watched rm file)
shortened=$(watched shorten)
echo "Linux $(uname -r), free MiB before, after, 3 s later, after syncfs: removed $removed, shortened $shortened"
for figures in "$removed" "$shortened"; do
    read -r before after later synced <<< "$figures"
    ((after < before + 10 && later < before + 10 && synced > before + 40))
done
