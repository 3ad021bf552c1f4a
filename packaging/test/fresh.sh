#!/bin/sh
# fresh.sh SUITE TARGET: `make demo` from a clean clone of HEAD, in a bare Debian of this release that has only Rust, make
# and git. The commands below the marker are what a newcomer types.
set -eu

suite=$1
directory=$2/fresh
root=$directory/$suite
source=$(cd "$(dirname "$0")/../.." && pwd)
[ "$(id -u)" = 0 ] || { echo "Only root can make a system to test in." >&2; exit 1; }

# The mounts go with the namespace, and so does a server that was left running.
if [ "${IN_NAMESPACE:-}" != yes ]; then
    IN_NAMESPACE=yes exec unshare --mount --pid --fork --kill-child "$0" "$@"
fi

trap 'umount -R "$root/proc" "$root/dev" 2>/dev/null || true; rm -rf --one-file-system "$root"' EXIT
rm -rf "$root"
mkdir -p "$root"
bare=$directory/$suite.tar
if [ ! -f "$bare" ]; then
    echo "Making a bare Debian $suite: a minute or two, once"
    debootstrap --variant=minbase --include=make,git --make-tarball="$bare.packages" "$suite" "$root" \
        http://deb.debian.org/debian >"$directory/$suite.log" 2>&1 || { tail -5 "$directory/$suite.log" >&2; exit 1; }
    mv "$bare.packages" "$bare"
fi
debootstrap --variant=minbase --include=make,git --unpack-tarball="$bare" "$suite" "$root" \
    http://deb.debian.org/debian >"$directory/$suite.log" 2>&1 || { tail -5 "$directory/$suite.log" >&2; exit 1; }
echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/test"
cp -a "$(rustc --print sysroot)" "$root/opt/rust"
cp /etc/resolv.conf "$root/etc/"
# The proxy of this network may have a certificate authority that a bare system does not know.
cp /etc/ssl/certs/ca-certificates.crt "$root/opt/"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
# Processes of other namespaces would take its files for those of dead processes.
mount -t tmpfs tmpfs "$root/dev/shm"
git clone --quiet "$source" "$root/root/webhook"

inside() {
    chroot "$root" env -i PATH=/opt/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
        SSL_CERT_FILE=/opt/ca-certificates.crt CARGO_HTTP_CAINFO=/opt/ca-certificates.crt CARGO_TERM_QUIET=true sh -ec "$1"
}

# What a newcomer types.
began=$(date +%s)
inside "cd /root/webhook && make demo" >"$directory/$suite.log" 2>&1 || { tail -40 "$directory/$suite.log" >&2; exit 1; }
# README shows some of what it prints.
sed -n '/^The tests also need .* prints$/,/^`make run`/ s/^    //p' "$source/README.md" >"$directory/promised"
[ "$(wc -l <"$directory/promised")" -ge 15 ] || { echo "README.md does not show the demo" >&2; exit 1; }
while IFS= read -r line; do
    grep -qxF -e "$line" "$directory/$suite.log" || { echo "make demo does not print: $line" >&2; exit 1; }
done <"$directory/promised"
echo "make demo in a bare Debian $suite, PostgreSQL $(inside "ls /usr/lib/postgresql"): $(($(date +%s) - began)) s"
