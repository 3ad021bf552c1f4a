#!/bin/sh
# test.sh PG VERSION TARGET: the packages in TARGET/packages, in a bare Debian that runs systemd and has no network
# but loopback: install, deliver by the server and by the relay, upgrade, remove, purge.
set -eu

pg=$1
version=$2
target=$3
tests=$(cd "$(dirname "$0")" && pwd)/test
packages=$target/packages
# shellcheck source=packaging/test/machine.sh
. "$tests/machine.sh"

sql() {
    inside runuser -u postgres -- psql --no-psqlrc --quiet --tuples-only --no-align --set ON_ERROR_STOP=1 shop "$@"
}

deliver() {
    id=$(sql --command "SELECT webhook_emit('order.created', '{\"item\": \"teapot\"}')")
    wait_for "event $id to be received" grep --quiet "$id" "$received"
}

# The same packages as a later version would be: its control file, and a script that upgrades to it.
later() {
    tree=$root/packages/$1
    dpkg-deb --raw-extract "$packages/$1_$version-1_$architecture.deb" "$tree"
    sed -i "s/^Version: .*/Version: 99.0.0-1/" "$tree/DEBIAN/control"
    scripts=$tree/usr/share/postgresql/$pg/extension
    if [ -d "$scripts" ]; then
        sed -i "s/^default_version = .*/default_version = '99.0.0'/" "$scripts/webhook.control"
        echo "-- nothing" >"$scripts/webhook--$version--99.0.0.sql"
    fi
    dpkg-deb --root-owner-group --build "$tree" "$root/packages/$1_later.deb" >/dev/null
    rm -r "$tree"
}

# Quiet, unless it fails.
apt() {
    inside timeout 120 apt-get -qq "$@" >"$machines/$pg.log" 2>&1 || { cat "$machines/$pg.log"; fail "apt-get $1"; }
}

# What belongs to nobody's data: not the cluster, logs and the memory of apt and of systemd.
files() {
    inside find / -xdev \( -path /var/lib/postgresql -o -path /var/log -o -path /var/cache -o -path /var/lib/apt \
        -o -path /var/lib/systemd -o -path /packages -o -path /tmp -o -path /var/tmp -o -path '/var/lib/dpkg/*-old' \) \
        -prune -o -print | sort
    inside sha256sum /etc/passwd /etc/group
}

main_pid() {
    inside systemctl show --property MainPID --value webhook-relay
}

architecture=$(dpkg --print-architecture)
extension=postgresql-$pg-webhook
echo "Packages for PostgreSQL $pg in a bare system:"
lintian --fail-on error "$packages/${extension}_$version-1_$architecture.deb" \
    "$packages/webhook-relay_$version-1_$architecture.deb" >"$target/lintian.txt" 2>&1 || { cat "$target/lintian.txt"; exit 1; }
make_machine
cp "$packages/${extension}_$version-1_$architecture.deb" "$packages/webhook-relay_$version-1_$architecture.deb" "$root/packages"
later "$extension"
later webhook-relay
boot_machine
start_receiver
if [ -e "$root/packages/postgresql-$pg.deb" ]; then
    apt install "/packages/postgresql-$pg.deb" ca-certificates
else
    apt install "postgresql-$pg" ca-certificates
fi
files >"$machines/$pg.before"

step "install"
apt install "/packages/${extension}_$version-1_$architecture.deb" "/packages/webhook-relay_$version-1_$architecture.deb"
[ "$(inside systemctl is-enabled webhook-relay)" = disabled ] || fail "the relay is enabled without a connection"
[ "$(inside systemctl is-active webhook-relay)" = inactive ] || fail "the relay runs without a connection"
[ "$(inside stat -c '%a %U' /etc/webhook-relay.conf)" = "600 root" ] || fail "others can read /etc/webhook-relay.conf"

step "the scripts of releases, and upgrades from each"
for release in "$tests"/../../sql/releases/webhook--*.sql; do
    [ -e "$release" ] || continue
    script=$root/usr/share/postgresql/$pg/extension/$(basename "$release")
    cmp "$release" "$script" || fail "the package has another $(basename "$release")"
    [ "$(basename "$release")" = "webhook--$version.sql" ] || [ -s "${script%.sql}--$version.sql" ] || \
        fail "there is no upgrade from $(basename "$release")"
done

step "CREATE EXTENSION delivers"
cat >"$root/etc/postgresql/$pg/main/conf.d/webhook.conf" <<END
shared_preload_libraries = 'webhook'
webhook.allow_networks = '127.0.0.0/8'
END
inside systemctl restart "postgresql@$pg-main"
inside runuser -u postgres -- createdb shop
sql --command "CREATE EXTENSION webhook"
sql --command "SELECT webhook_set_endpoint('shipping', 'http://127.0.0.1:9000/', event_types => '{order.*}')" >/dev/null
deliver

step "the service of the relay delivers"
sql --command "CREATE ROLE relay LOGIN PASSWORD 'secret'" --command "SELECT webhook_grant('relay', 'relay')" \
    --command "ALTER SYSTEM SET webhook.max_in_flight = 0" --command "SELECT pg_reload_conf()" >/dev/null
cat >"$root/etc/webhook-relay.conf" <<END
PGHOST=127.0.0.1
PGDATABASE=shop
PGUSER=relay
PGPASSWORD=secret
WEBHOOK_RELAY_OPTIONS=--http 127.0.0.1:8080 --allow-networks 127.0.0.0/8
END
inside timeout 60 systemctl enable --quiet --now webhook-relay
deliver
[ "$(inside stat -c %u "/proc/$(main_pid)")" != 0 ] || fail "the relay runs as root"

step "upgrade, while the server is down"
first=$(main_pid)
inside systemctl stop "postgresql@$pg-main"
apt install "/packages/${extension}_later.deb" /packages/webhook-relay_later.deb
inside grep --quiet PGPASSWORD=secret /etc/webhook-relay.conf || fail "the upgrade replaced /etc/webhook-relay.conf"
inside systemctl start "postgresql@$pg-main"
wait_for "the relay to be active again" inside systemctl is-active webhook-relay
[ "$(main_pid)" != "$first" ] || fail "the upgrade did not restart the relay"
sql --command "ALTER EXTENSION webhook UPDATE"
[ "$(sql --command "SELECT extversion FROM pg_extension WHERE extname = 'webhook'")" = 99.0.0 ] || fail "ALTER EXTENSION UPDATE"
deliver

step "remove"
sql --command "DROP EXTENSION webhook" --command "ALTER SYSTEM RESET ALL" --command "DROP ROLE relay"
rm "$root/etc/postgresql/$pg/main/conf.d/webhook.conf"
inside systemctl restart "postgresql@$pg-main"
apt remove "$extension" webhook-relay
[ "$(inside systemctl is-active webhook-relay)" = inactive ] || fail "the relay runs after its removal"
[ -e "$root/etc/webhook-relay.conf" ] || fail "the removal took /etc/webhook-relay.conf"
[ ! -e "$root/usr/bin/webhook-relay" ] || fail "the removal left the relay"

step "purge"
inside dpkg --purge "$extension" webhook-relay >"$machines/$pg.log" 2>&1 || fail "dpkg --purge"
files >"$machines/$pg.after"
diff "$machines/$pg.before" "$machines/$pg.after" || fail "the purge left files or users"
