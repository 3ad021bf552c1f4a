# make help lists what there is. PG=15, 16, 17 or 18 chooses the version of PostgreSQL, PG_CONFIG=/path/to/pg_config a server.

# Without either: an installed server, else the one that the distribution has, else one that setup can fetch.
ifeq ($(or $(PG),$(PG_CONFIG)),)
CHOSEN := $(shell pgrx-tests/servers/choose.sh)
PG := $(word 1,$(CHOSEN))
override PG_CONFIG := $(word 2,$(CHOSEN))
endif
ifeq ($(PG),)
PG := $(shell $(PG_CONFIG) --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
endif
OLD ?= 15
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
# The server of a version: that of Debian or Ubuntu if it is installed or the release has it, else one that setup fetches.
SERVER = $(if $(or $(filter $(DISTRIBUTION),$(1)),$(wildcard $(DEBIAN_SERVER))),$(DEBIAN_SERVER),$(TARGET)/postgresql-$(1)/bin/pg_config)
DEBIAN_SERVER = /usr/lib/postgresql/$(1)/bin/pg_config
DISTRIBUTION := $(shell pgrx-tests/servers/choose.sh distribution)
ifeq ($(PG_CONFIG),)
override PG_CONFIG := $(call SERVER,$(PG))
ifeq ($(PG_CONFIG),$(call DEBIAN_SERVER,$(PG)))
SERVER_PACKAGES := postgresql-$(PG) postgresql-server-dev-$(PG)
else
FETCH_SERVER := pgrx-tests/servers/fetch.sh $(PG) $(TARGET)/postgresql-$(PG)
SERVER_PACKAGES := postgresql-common tzdata python3-venv
endif
endif
VENV := $(TARGET)/venv
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
FEATURES := --no-default-features --features pg$(PG)
CARGO := PGRX_PG_CONFIG_PATH=$(PG_CONFIG) cargo
PACKAGES := $(SERVER_PACKAGES) gcc libc6-dev libclang-dev clang pkg-config ca-certificates

export PG_CONFIG
export WEBHOOK_TEST_VENV ?= $(VENV)

.PHONY: help setup build relay script install run demo test lint unit e2e smoke hosts versions older15 newer files upgradetest strict reference api freeze chaos fuzz soak bench peers
.PHONY: all uninstall package packagetest freshtest pgxn pgxntest release version clean venv

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Those of a list that are missing.
define install_packages
	missing=$$(for p in $(1); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	if [ -n "$$missing" ]; then \
		echo "Installing packages:" $$missing; \
		$(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$missing >/dev/null; \
	fi
endef

# A system without apt has its own names for the packages.
WITHOUT_APT = for program in cc clang pkg-config $(PG_CONFIG); do command -v $$program >/dev/null || { \
	echo "This system has no apt: install a C compiler, clang with libclang, pkg-config and PostgreSQL 15 to 18 with its" \
		"server headers, and run make $(MAKECMDGOALS) PG_CONFIG=/path/to/pg_config" >&2; exit 1; }; done

setup: ## install what is missing: packages of Debian or Ubuntu, the server that PG= names
	@command -v cargo >/dev/null || { echo "Install Rust 1.88 or newer first, with rustup for example" >&2; exit 1; }
	@if command -v apt-get >/dev/null; then $(call install_packages,$(PACKAGES)); else $(WITHOUT_APT); fi
	@$(FETCH_SERVER)

# What pgxn(1) calls.
all: build

build: setup script ## compile the extension
	@echo "Compiling the extension: 2 to 5 minutes the first time"
	$(CARGO) build --release --package webhook $(FEATURES)

relay: ## compile webhook-relay, which delivers from another machine
	$(CARGO) build --release --package webhook-relay

# The extension as the server wants it: the files of sql/ in the order of their names, and the control file.
EXTENSION := $(TARGET)/extension
SCRIPT := $(sort $(wildcard sql/*.sql))
# What webhook-relay install executes: files of sql/portable/ in the place of those of the same name.
PORTABLE := $(foreach file,$(SCRIPT),$(or $(wildcard sql/portable/$(notdir $(file))),$(file)))
REPLACEABLE := $(filter-out sql/00_tables.sql,$(SCRIPT))
MIGRATIONS := $(shell ls sql/migrations/*.sql 2>/dev/null | sort -V)
RELEASED := $(wildcard sql/releases/webhook--*.sql)
OLDER := $(filter-out $(VERSION),$(patsubst sql/releases/webhook--%.sql,%,$(RELEASED)))

# An upgrade from release A is sql/upgrade/, the changes of the tables since A, sql/migrations/A--B.sql and those after it,
# and then all of the install script that can be run again. The scripts of releases go with them, so that an upgrade can be tried.
script: ## put the install script and the upgrade scripts together, under target/
	@mkdir -p $(EXTENSION)
	@rm -f $(EXTENSION)/*
	@[ -z "$(RELEASED)" ] || cp $(RELEASED) $(EXTENSION)
	@cat $(SCRIPT) >$(EXTENSION)/webhook--$(VERSION).sql
	@for release in $(OLDER); do \
		{ cat sql/upgrade/*.sql; for migration in $(MIGRATIONS); do \
			since=$$(basename "$$migration" | sed 's/--.*//'); \
			[ "$$(printf '%s\n' "$$release" "$$since" | sort -V | head -1)" != "$$release" ] || cat "$$migration"; \
		done; cat $(REPLACEABLE); } >"$(EXTENSION)/webhook--$$release--$(VERSION).sql"; \
	done
	@sed 's/@VERSION@/$(VERSION)/' webhook.control >$(EXTENSION)/webhook.control

INSTALLER = $(shell [ -w "$$($(PG_CONFIG) --pkglibdir)" ] || echo $(SUDO))
LIBRARY = $(DESTDIR)$$($(PG_CONFIG) --pkglibdir)
SHARE = $(DESTDIR)$$($(PG_CONFIG) --sharedir)/extension

# A running server has the library mapped: install(1) makes a new file, and does not write over the old one.
files:
	@$(INSTALLER) install -D -m 755 $(TARGET)/release/libwebhook.so "$(LIBRARY)/webhook.so"
	@$(INSTALLER) install -D -m 644 -t "$(SHARE)" $(EXTENSION)/*

install: build ## compile, and install into the server that PG_CONFIG names
	@$(MAKE) --no-print-directory files

uninstall: ## remove it from the server that PG_CONFIG names
	@$(INSTALLER) rm -f "$(LIBRARY)/webhook.so" "$(SHARE)"/webhook.control "$(SHARE)"/webhook--*.sql

run: KEEP := 1
run: demo ## a throwaway server with the extension, until Ctrl-C

demo: install ## the main job, shown in the terminal; KEEP=1 leaves it running
	@echo "Compiling the demo: a minute the first time"
	@cargo build --quiet --package webhook-e2e --bin demo --bin relay
	@KEEP=$(KEEP) $(TARGET)/debug/demo

test: lint unit e2e smoke ## lint, unit, e2e, and smoke tests of the other two hosts: 15 minutes on two cores

# CREATE OR REPLACE (PS002) cannot take what somebody has put there: the server refuses to replace what is no member
# of the extension, and a test holds it to that. tools/spot.py says how a function may do without a search_path.
lint: setup venv ## formatting, clippy with warnings as errors, and pgspot on the scripts
	cargo fmt --all --check
	$(CARGO) clippy --workspace --all-targets $(FEATURES) -- -D warnings
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	RUSTFLAGS="--cfg fuzzing" cargo clippy --manifest-path fuzz/Cargo.toml --target-dir $(FUZZ) -- -D warnings
	@$(VENV)/bin/python3 -B tools/test_spot.py --quiet
	@echo "pgspot on the scripts that install, with the library and without, and on the beginning of those that upgrade"
	@for script in "$(SCRIPT)" "$(PORTABLE)" "$(sort $(wildcard sql/upgrade/*.sql)) $(MIGRATIONS)"; do \
		$(VENV)/bin/python3 tools/spot.py --append --ignore PS002 $$script >$(TARGET)/pgspot.txt 2>&1 || \
			{ grep -Ev '^$$|Errors: 0 Warnings: 0 Unknown: 0' $(TARGET)/pgspot.txt; exit 1; }; \
	done

unit: ## tests of the crates delivery, engine and relay, and of tools/run_tests.py, without PostgreSQL
	python3 -B tools/test_run_tests.py --quiet
	cargo test --package webhook-delivery --package webhook-engine --package webhook-relay

# The databases of the shared cluster are served by the server's worker, by a relay next to it, or by a relay of a server
# without the library. pgrx-tests/hosts/ lists what the relays cannot do, and the smoke tests.
HOST := server
HOST_MODULES := delivery:: retries:: breaker:: ordering:: idempotency:: recovery:: watch_
TESTS = $(if $(filter-out server,$(HOST)),$(HOST_MODULES) $(call listed,$(HOST),--skip ))
# The line of pgrx-tests/floor.txt: none if the caller chooses the tests.
FLOOR = $(if $(findstring command line,$(origin TESTS)),,$(HOST))
listed = $(shell sed -n 's/^\([a-z][a-z0-9_:]*\) .*/$(2)\1/p' pgrx-tests/hosts/$(1).txt)
# Most tests wait for something most of the time.
THREADS := $(shell echo $$((3 * $$(nproc))))

e2e: install venv ## end-to-end tests: real servers, real HTTP; HOST=relay or HOST=portable for another host
	@echo "End-to-end tests with PostgreSQL $(PG), host $(HOST)"
	@WEBHOOK_TEST_HOST=$(HOST) tools/run_tests.py $(addprefix --floor ,$(FLOOR)) --package webhook-e2e -- --test-threads $(THREADS) $(TESTS)

smoke: install venv
	@for host in relay portable; do \
		$(MAKE) --no-print-directory e2e HOST=$$host FLOOR=smoke TESTS="--exact $(call listed,smoke)" || exit 1; \
	done

hosts: install venv ## all tests of delivery with a relay, and without the library
	@$(MAKE) --no-print-directory e2e HOST=relay
	@$(MAKE) --no-print-directory e2e HOST=portable

# The library's allocator refuses a session what is large and may not be refused (src/memory.rs): where the library asks for such
# memory, the server restarts and a test fails. The server gets the library as it is at the end.
STRICT_MODULES := emitting idempotency:: keys:: large_payloads:: watch_ capture_ session_memory:: filters:: library::

strict: ## the tests of emitting and watching, with an allocator that refuses large memory
	@$(MAKE) --no-print-directory e2e FEATURES="$(FEATURES),strict-allocator" TESTS="$(STRICT_MODULES)"; status=$$?; \
		$(MAKE) --no-print-directory install && exit $$status

# What the server itself may do differently in another version, and all attacks.
VERSION_MODULES := delivery:: recovery:: restore watch_ privileges:: copies:: \
	address_guard:: capture_attacks:: capture_casts:: dns_rebinding:: egress:: hostile:: memory:: ownership:: planted_objects:: \
	portable:: redaction:: relay_level:: schema:: secrets:: senders:: session_memory:: statement_statistics:: tenant_networks:: \
	upgrading::

versions: ## the tests of delivery, recovery, restores, watching, privileges and attacks with PostgreSQL 16, 17 and 18; pg_upgrade; an older 15
	@for version in 16 17 18; do \
		env -u PG_CONFIG $(MAKE) --no-print-directory e2e PG=$$version TESTS="$(VERSION_MODULES)" FLOOR=versions || exit 1; \
	done
	@$(MAKE) --no-print-directory older15
	@WEBHOOK_TEST_REQUIRE_ALL=1 env -u PG_CONFIG $(MAKE) --no-print-directory e2e PG=15 TESTS="chaos::upgrade_to library::"

# pg_upgrade begins there where the newest 15 is too new for the newer version's programs. A build for the newest 15 runs there too.
older15:
	@env -u PG_CONFIG $(MAKE) --no-print-directory install PG=15
	@pgrx-tests/servers/fetch.sh 15 $(TARGET)/postgresql-15
	@$(MAKE) --no-print-directory files PG=15 PG_CONFIG=$(TARGET)/postgresql-15/bin/pg_config

# The servers that pg_upgrade leads to.
newer:
	@for version in 17 18; do env -u PG_CONFIG $(MAKE) --no-print-directory install PG=$$version || exit 1; done

upgradetest: install ## pg_upgrade from the version that OLD= names, 15 by default, to that of PG=
	env -u PG_CONFIG $(MAKE) --no-print-directory install PG=$(OLD) PG_CONFIG=$(OLD_PG_CONFIG)
	OLD_PG_CONFIG=$(or $(OLD_PG_CONFIG),$(call SERVER,$(OLD))) \
		cargo test --package webhook-e2e upgrade:: -- --include-ignored

reference: install ## write docs/reference.md from the catalogs
	cargo run --quiet --package webhook-e2e --bin reference >docs/reference.md

# Public names and signatures, which only grow from a release on.
api: install
	cargo run --quiet --package webhook-e2e --bin reference api >pgrx-tests/api-$(basename $(VERSION)).txt

# Tests hold to what is frozen. Until the version has its tag, it can be frozen again.
freeze: reference api ## make the release of this version: its scripts, its API and its date, to be committed and tagged
	@! git rev-parse --quiet --verify "refs/tags/v$(VERSION)" >/dev/null || \
		{ echo "Version $(VERSION) has its tag: raise the version in Cargo.toml"; exit 1; }
	@mkdir -p sql/releases
	@cat $(SCRIPT) >sql/releases/webhook--$(VERSION).sql
	@cargo run --quiet --package webhook-e2e --bin reference portable >sql/releases/portable--$(VERSION).sql
	@sed -i 's/^## $(VERSION) (.*)$$/## $(VERSION) ($(shell date -u +%F))/' CHANGELOG.md
	@echo "Version $(VERSION) is frozen: commit sql/releases, pgrx-tests/api-$(basename $(VERSION)).txt and CHANGELOG.md, and tag v$(VERSION)"

# It prints each seed; SEEDS=1 FIRST=7 ONLY='wall clock' runs one of them again, and prints its part of the page.
SEEDS := 3
FIRST := 1
# Tables of odd types that are captured, beside what fuzz parses: 30 of them take a second.
CAPTURED := 2000
chaos: ## what survives whatever breaks: SEEDS=3 runs of each case, and fuzz; writes docs/reliability.md
	@[ -n '$(ONLY)' ] || $(MAKE) --no-print-directory newer older15
	@$(MAKE) --no-print-directory install
	cargo build --quiet --package webhook-e2e --bins
	@$(TARGET)/debug/chaos $(SEEDS) $(FIRST) '$(ONLY)' >$(TARGET)/reliability.md; status=$$?; \
		if [ -z '$(ONLY)' ]; then cp $(TARGET)/reliability.md docs/; else cat $(TARGET)/reliability.md; fi; exit $$status
	@[ -n '$(ONLY)' ] || WEBHOOK_FUZZ_SEEDS=$(CAPTURED) WEBHOOK_FUZZ_FIRST=$(FIRST) \
		cargo test --quiet --package webhook-e2e capture_fuzz::
	@[ -n '$(ONLY)' ] || $(MAKE) --no-print-directory fuzz

# Coverage-guided as by cargo-fuzz, but for its sanitizers: they need a nightly compiler.
SECONDS := 600
FUZZED := request response
FUZZ := $(TARGET)/fuzz
FUZZ_TARGET = $(shell rustc -vV | sed -n 's/^host: //p')
INSTRUMENTED := --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
	-Cllvm-args=-sanitizer-coverage-trace-compares
fuzz: ## coverage-guided fuzzing of what we parse, for SECONDS=600 in all
	RUSTFLAGS="$(INSTRUMENTED)" cargo build --quiet --release --manifest-path fuzz/Cargo.toml \
		--target $(FUZZ_TARGET) --target-dir $(FUZZ)
	@for target in $(FUZZED); do \
		mkdir -p $(FUZZ)/corpus/$$target && \
		$(FUZZ)/$(FUZZ_TARGET)/release/$$target -max_total_time=$$(($(SECONDS) / $(words $(FUZZED)))) -seed=$(FIRST) \
			-max_len=2048 -timeout=10 -rss_limit_mb=1024 -verbosity=0 -print_final_stats=1 \
			-artifact_prefix=$(FUZZ)/$$target- $(FUZZ)/corpus/$$target fuzz/seeds/$$target || exit 1; \
	done

MINUTES := 10
soak: install ## a mix of loads for MINUTES=10: memory, files, threads, tables, transaction ids; writes docs/images/soak.svg
	cargo build --quiet --package webhook-e2e --bins
	$(TARGET)/debug/soak $(MINUTES) $(FIRST) docs/images/soak.svg

# ONLY=fairness runs one section; bench/src/main.rs lists them and what OPTIONS= may say, such as --quick.
bench: install venv peers ## beside other systems, and under load; ONLY=fairness OPTIONS=--quick; 30 minutes
	cargo build --release --quiet --package webhook-bench --package webhook-relay
	$(TARGET)/release/webhook-bench $(ONLY) $(OPTIONS)

# A peer that cannot be installed is reported as missing by the run.
PEERS := $(TARGET)/peers
peers:
	@command -v redis-server >/dev/null || $(SUDO) env DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -qq --no-install-recommends redis-server >/dev/null || echo "Without redis-server"
	@cmp -s bench/peers/package-lock.json $(PEERS)/node_modules/installed.json || { \
		mkdir -p $(PEERS) && cp bench/peers/package*.json $(PEERS)/ && \
		PATH=$(VENV)/bin:$$PATH $(VENV)/bin/npm ci --silent --no-audit --no-fund --prefix $(PEERS) && \
		cp bench/peers/package-lock.json $(PEERS)/node_modules/installed.json; } || echo "Without the peers of npm"

# A browser, a pooler, systemd-analyze; and Prometheus with its exporter, unpacked and not installed, so that no service starts.
TEST_PACKAGES := chromium pgbouncer python3-venv systemd
UNPACKED := prometheus prometheus-postgres-exporter
DOWNLOAD := apt-get -qq -o APT::Sandbox::User=root download $(UNPACKED)

venv: setup ## what the checks take from Debian, PyPI and npm
	@command -v apt-get >/dev/null || { echo "The tests need Debian or Ubuntu: they install what they compare with by apt" >&2; exit 1; }
	@$(call install_packages,$(TEST_PACKAGES))
	@[ -x $(VENV)/prometheus/usr/bin/promtool ] || { \
		mkdir -p $(VENV)/prometheus && cd $(VENV)/prometheus && \
		{ $(DOWNLOAD) 2>/dev/null || { $(SUDO) apt-get update -qq && $(DOWNLOAD); }; } && \
		for package in *.deb; do dpkg-deb -x "$$package" . || exit 1; done && rm -f *.deb; }
	@[ -x $(VENV)/bin/python3 ] || /usr/bin/python3 -m venv $(VENV)
	@cmp -s pgrx-tests/requirements.txt $(VENV)/requirements.txt || { \
		$(VENV)/bin/pip install --quiet --disable-pip-version-check --requirement pgrx-tests/requirements.txt && \
		$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python \
			$$(sed -n 's/^# on any Python: //p' pgrx-tests/requirements.txt) && \
		cp pgrx-tests/requirements.txt $(VENV)/; }
	@cmp -s pgrx-tests/verifiers/package-lock.json $(VENV)/node_modules/installed.json || { \
		cp pgrx-tests/verifiers/package*.json $(VENV)/ && \
		$(VENV)/bin/npm ci --silent --no-audit --no-fund --prefix $(VENV) && \
		cp pgrx-tests/verifiers/package-lock.json $(VENV)/node_modules/installed.json; }

# Who answers for the packages.
MAINTAINER ?= The webhook authors <webhook@example.org>
export MAINTAINER

RELEASE := $(TARGET)/packages

# Target-specific, so setup installs them only where they are needed.
package: PACKAGES += debhelper
package: build relay ## Debian packages of the extension and of webhook-relay, under target/packages
	@packaging/deb.sh $(PG) $(VERSION) $(TARGET)

packagetest: PACKAGES += debootstrap lintian python3-yaml
packagetest: package ## the packages in a bare system: install, deliver, upgrade, remove, purge
	@$(SUDO) packaging/test.sh $(PG) $(VERSION) $(TARGET)
	@[ $(PG) != 15 ] || $(SUDO) /usr/bin/python3 packaging/test/containers.py $(TARGET)

# Releases of Debian that a newcomer may have.
SUITES := bookworm trixie
freshtest: ## make demo from a clean clone in bare systems of Debian 12 and 13 that have only Rust, make and git
	@command -v debootstrap >/dev/null || $(SUDO) apt-get install -y -qq debootstrap >/dev/null
	@for suite in $(SUITES); do $(SUDO) packaging/test/fresh.sh $$suite $(TARGET) || exit 1; done

# The commit that is checked out, with a META.json.
pgxn: ## the archive for the PostgreSQL Extension Network, under target/packages
	@mkdir -p $(RELEASE)
	@sed 's/@VERSION@/$(VERSION)/; s/@MAINTAINER@/$(MAINTAINER)/' packaging/META.json >$(TARGET)/META.json
	@git archive --format zip --prefix webhook-$(VERSION)/ --add-file $(TARGET)/META.json \
		--output $(RELEASE)/webhook-$(VERSION).zip HEAD

pgxntest: pgxn ## the archive as it would be sent: its META.json judged by PGXN's own validator, and the files that it names
	@[ -x $(TARGET)/pgxn/bin/pgxn_meta ] || cargo install --quiet --root $(TARGET)/pgxn --version 0.7.0 pgxn_meta
	@rm -rf $(TARGET)/pgxn/archive && python3 -m zipfile -e $(RELEASE)/webhook-$(VERSION).zip $(TARGET)/pgxn/archive
	@cd $(TARGET)/pgxn/archive/webhook-$(VERSION) && $(TARGET)/pgxn/bin/pgxn_meta META.json && \
		ls webhook.control docs/reference.md Makefile sql/releases/webhook--$(VERSION).sql >/dev/null

release: script ## all packages for PostgreSQL 15 to 18, the archive for PGXN, and SHA256SUMS, under target/packages
	@cmp -s $(EXTENSION)/webhook--$(VERSION).sql sql/releases/webhook--$(VERSION).sql || \
		{ echo "The files of sql/ are not the release $(VERSION): make freeze"; exit 1; }
	@rm -rf $(RELEASE)
	@for pg in 15 16 17 18; do env -u PG_CONFIG $(MAKE) --no-print-directory package PG=$$pg PG_CONFIG= || exit; done
	@$(MAKE) --no-print-directory pgxn
	@cd $(RELEASE) && sha256sum *.deb *.zip >SHA256SUMS && cat SHA256SUMS

version:
	@echo $(VERSION)

clean: ## remove what was built
	cargo clean
