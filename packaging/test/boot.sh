#!/bin/sh
# boot.sh ROOT: becomes the first process, systemd, of the system in ROOT. For unshare, with namespaces of its own:
# nothing of it is mounted, or reachable by network, outside.
set -eu

root=$1
mount --make-rprivate /
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mountpoint -q sys/fs/cgroup || mount -t tmpfs tmpfs sys/fs/cgroup
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/shm dev/pts outside
mount -t tmpfs tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ip link set lo up
pivot_root . outside
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    sh -c 'umount -l /outside && rmdir /outside && exec /lib/systemd/systemd --unit=multi-user.target </dev/null'
