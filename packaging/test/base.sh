#!/bin/sh
# base.sh PG DIRECTORY: a bare system whose distribution has a package of that server, as DIRECTORY/PG.tar. It has
# the packages that ours depend on in the cache of apt, so tests need no network. No release of Debian has PostgreSQL 16:
# the package /packages/postgresql-16.deb is made of the server that the tests fetch.
set -eu

pg=$1
directory=$2
tar=$directory/$pg.tar
[ -f "$tar" ] && exit

server=postgresql-$pg
case $pg in
15) suite=bookworm ;;
16) suite=bookworm server=/packages/postgresql-16.deb ;;
17) suite=trixie ;;
18) suite=forky ;;
*) echo "There is no package of PostgreSQL $pg." >&2; exit 1 ;;
esac
script=/usr/share/debootstrap/scripts/$suite
[ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid

root=$directory/$pg.base
trap 'rm -rf "$root"' EXIT
rm -rf "$root"
mkdir -p "$root"
echo "Making a bare Debian $suite: a minute or two, once"
debootstrap --variant=minbase "$suite" "$root" http://deb.debian.org/debian "$script" \
    >"$directory/$pg.log" 2>&1 || { tail -5 "$directory/$pg.log" >&2; exit 1; }
cat >"$root/etc/apt/apt.conf.d/test" <<END
APT::Install-Recommends "false";
APT::Get::Assume-Yes "true";
APT::Sandbox::User "root";
Binary::apt-get::APT::Keep-Downloaded-Packages "true";
// A mirror may lag behind.
Acquire::Check-Valid-Until "false";
END
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/test"
chroot "$root" apt-get update -qq
if [ "$server" != "postgresql-$pg" ]; then
    mkdir "$root/packages"
    "$(dirname "$0")/server.sh" "$pg" "$directory/../postgresql-$pg" "$root$server"
fi
chroot "$root" apt-get install -qq --download-only "$server" ca-certificates systemd >/dev/null
tar --create --file "$tar.new" --directory "$root" .
mv "$tar.new" "$tar"
