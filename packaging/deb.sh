#!/bin/sh
# deb.sh PG VERSION TARGET: makes the Debian packages of the extension and of webhook-relay, from the programs in
# TARGET/release, in TARGET/packages. MAINTAINER is who answers for them.
set -eu

pg=$1
version=$2
target=$3
here=$(cd "$(dirname "$0")" && pwd)
root=$here/..
revision=1
work=$target/packages/build
package=postgresql-$pg-webhook

# The same files give the same packages.
: "${SOURCE_DATE_EPOCH:=$(git -C "$root" log -1 --format=%ct 2>/dev/null || stat -c %Y "$root/CHANGELOG.md")}"
export SOURCE_DATE_EPOCH
umask 022

rm -rf "$work" "$target/packages/$package"_*.deb "$target"/packages/webhook-relay_*.deb
mkdir -p "$work/debian"
for file in "$here"/debian/*; do
    sed -e "s/@PG@/$pg/; s/@VERSION@/$version/; s/@DEBIAN_VERSION@/$version-$revision/" \
        -e "s/@MAINTAINER@/$MAINTAINER/; s/@DATE@/$(date -R -u -d "@$SOURCE_DATE_EPOCH")/" \
        "$file" >"$work/debian/$(basename "$file")"
done
sed -n '5,$ { s/^$/./; s/^/ /; p }' "$root/LICENSE" >>"$work/debian/copyright"
chmod +x "$work/debian/rules"

cd "$work"
cp "$target/release/libwebhook.so" webhook.so
cp "$target/release/webhook-relay" "$root/relay/webhook-relay.conf" "$root/CHANGELOG.md" "$root/README.md" .
cp "$root/relay/webhook-relay.service" debian/webhook-relay.service
cp -r "$target/extension" .
cat >"debian/$package.install" <<END
webhook.so usr/lib/postgresql/$pg/lib
extension/* usr/share/postgresql/$pg/extension
END
cat >debian/webhook-relay.install <<END
webhook-relay usr/bin
webhook-relay.conf etc
END
(cd "$root" && packaging/notices.py "$pg") >notices
for name in "$package" webhook-relay; do echo "notices README.md" >"debian/$name.docs"; done

debian/rules binary >build.log 2>&1 || { cat build.log >&2; exit 1; }
ls "$target/packages/$package"_*.deb "$target"/packages/webhook-relay_*.deb
