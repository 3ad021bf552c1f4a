#!/bin/sh
# choose.sh: the major version of PostgreSQL to build for, if the caller names none; and its pg_config, if it is not where
# Debian puts it. That is the server whose pg_config is in PATH, else the newest one that is installed, else the one that
# this release of Debian or Ubuntu has, else 16, which fetch.sh gets on any Linux.
# choose.sh distribution: only the version that this release has, or nothing if it is not supported.
set -eu

servers=${SERVERS:-/usr/lib/postgresql}

in_path() {
    directory=$(pg_config --bindir 2>/dev/null) || return 0
    version=$(pg_config --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
    case $version in 15 | 16 | 17 | 18) ;; *) return 0 ;; esac
    # Without a server, it is that of a client library.
    [ -x "$directory/postgres" ] || return 0
    if [ "$directory" = "$servers/$version/bin" ]; then
        echo "$version"
    elif [ -e "$(pg_config --includedir-server)/postgres.h" ]; then
        echo "$version $directory/pg_config"
    fi
}

installed() {
    for version in 18 17 16 15; do
        if [ -x "$servers/$version/bin/postgres" ]; then
            echo "$version"
            return
        fi
    done
}

distribution() {
    # shellcheck disable=SC1091
    codename=$(. "${OS_RELEASE:-/etc/os-release}" 2>/dev/null && echo "${UBUNTU_CODENAME:-${VERSION_CODENAME:-}}") || return 0
    case $codename in
    bookworm) echo 15 ;;
    noble) echo 16 ;;
    trixie | plucky | questing) echo 17 ;;
    forky | sid | resolute) echo 18 ;;
    esac
}

fetched() {
    echo 16
}

for source in ${1:-in_path installed distribution fetched}; do
    chosen=$($source)
    if [ -n "$chosen" ]; then
        echo "$chosen"
        exit
    fi
done
