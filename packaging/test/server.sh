#!/bin/sh
# server.sh PG SERVER DEB: a package postgresql-PG of a fetched server, in the places where Debian has its servers, since no
# release of Debian has that version. It makes the cluster "main", as the packages of Debian do.
set -eu

pg=$1
server=$2
deb=$3
programs=$("$server/bin/pg_config" --bindir)
share=$("$server/bin/pg_config" --sharedir)
modules=$("$server/bin/pg_config" --pkglibdir)

umask 022
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"
place=$tree/usr/lib/postgresql/$pg
mkdir -p "$place/lib" "$place/share" "$tree/usr/share/postgresql" "$tree/DEBIAN"
cp -r "$programs" "$place/bin"
cp -r "$modules"/. "$place/lib"
cp -r "$share" "$tree/usr/share/postgresql/$pg"
rm -f "$place/lib/webhook.so" "$tree/usr/share/postgresql/$pg/extension"/webhook*
# The server looks for these by its own layout, and for its libraries beside the Python package that it came in.
ln -s . "$place/lib/postgresql"
ln -s "../../../../share/postgresql/$pg" "$place/share/postgresql"
cp -r "$server"/*.libs "$tree/usr/lib"

cat >"$tree/DEBIAN/control" <<END
Package: postgresql-$pg
Version: $("$server/bin/pg_config" --version | sed 's/.* //')-0
Architecture: $(dpkg --print-architecture)
Maintainer: nobody <nobody@example.org>
Depends: postgresql-common, postgresql-client-common, tzdata
Description: a server for the test of packages
END
cat >"$tree/DEBIAN/postinst" <<END
#!/bin/sh
set -e
# It was built without TLS.
mkdir -p /etc/postgresql-common/createcluster.d
echo "ssl = off" >/etc/postgresql-common/createcluster.d/test.conf
[ -e /etc/postgresql/$pg/main ] || pg_createcluster --user postgres $pg main
END
chmod 755 "$tree/DEBIAN/postinst"
dpkg-deb --root-owner-group --build "$tree" "$deb" >/dev/null
