# The commands of this repository. `make` alone lists them.

.DEFAULT_GOAL := help
.PHONY: help demo test bench soak fuzz api quiet lint fmt docs dist packages stack kubernetes digests addresses cluster sentinel \
    versions
MAKEFLAGS += --no-print-directory

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Watch a simulated fleet; needs nothing else
	cargo run --locked -- demo

cluster: ## Run a Redis Cluster to try Rollcall on, until Ctrl-C [PORT=7000] [REPLICAS=1]
	@.ci/need redis-server:redis-server redis-cli:redis-tools
	@config/redis/cluster

sentinel: ## Run Redis with Sentinel to try Rollcall on, until Ctrl-C [PORT=6380]
	@.ci/need redis-server:redis-server redis-cli:redis-tools
	@config/redis/sentinel

# One build for all, and a quick one: no parts are kept for a next build, and there are no lines for a debugger. Examples in
# doc comments come before the tests, so that the summary of the tests is the end of the output.
# All cases together need an optimized library: instances that are slow on a busy machine are another fault. It takes longer to
# build than the short run takes without it.
test: OPTIMIZED := $(if $(ALL),--config profile.dev.package.rollcall.opt-level=1)
test: export RUSTC_WORKSPACE_WRAPPER := $(if $(ALL),$(CURDIR)/.ci/rustc-for-tests)
test: export CARGO_INCREMENTAL := 0
test: export CARGO_PROFILE_DEV_DEBUG := false
test: ## Run the tests against real servers (installs what is missing) [ALL=1: the longest cases too]
	@.ci/need redis-server:redis-server mosquitto:mosquitto mosquitto_pub:mosquitto-clients promtool:prometheus \
	    prometheus-alertmanager:prometheus-alertmanager systemd-analyze:systemd faketime:faketime ip:iproute2 unshare:util-linux jq:jq \
	    chromium:chromium chromedriver:chromium-driver npm:npm node:nodejs pg_createcluster:postgresql
	cargo test --locked $(OPTIMIZED) --no-run
	cargo test --locked $(OPTIMIZED) --doc
	@# A case that needs more than the kernel allows an ordinary user leaves a file there.
	@not_run=$$(mktemp -d) && export TESTS_NOT_RUN="$$not_run" && status=0; \
	if cargo nextest --version >/dev/null 2>&1; then \
	    profile=$(if $(ALL),default,short) threads=$$((4 * $$(nproc))); \
	    echo "cargo nextest run --locked $(OPTIMIZED) --no-fail-fast --profile $$profile --test-threads $$threads"; \
	    cargo nextest run --locked $(OPTIMIZED) --no-fail-fast --profile "$$profile" --test-threads "$$threads" || \
	        status=$$?; \
	else \
	    threads=$$((2 * $$(nproc))); echo "cargo test --locked --lib --bins --tests -- --test-threads $$threads"; \
	    cargo test --locked $(OPTIMIZED) --lib --bins --tests -- --test-threads "$$threads" || status=$$?; \
	fi; \
	for file in "$$not_run"/*; do \
	    [ -e "$$file" ] || continue; \
	    printf '!! NOT RUN, though it counts as passed above: '; cat "$$file"; \
	    echo '!! run it as root, or allow user namespaces to ordinary users'; \
	done; \
	rm -rf "$$not_run"; exit $$status

# ONLY=redis-8 runs one of them.
versions: ## Run the suites of the engine and of the broker on every promised version of their servers [ONLY=name]
	@.ci/versions

# Uses the world of the fault suite; INSTANCES=n fixes the number of instances, which is 1, 3 or 5 otherwise.
soak: ## Run faults at random for MINUTES=10 [TOPOLOGY=single|sentinel|cluster|embedded] [SEED=n], and check every record and notification
	@.ci/need redis-server:redis-server redis-cli:redis-tools mosquitto:mosquitto faketime:faketime
	MINUTES=$${MINUTES:-10} cargo bench --locked --bench soak

# With the profile of the tests, whose crates are built already.
quiet: ## Check for MINUTES=30 that no alert of Prometheus fires while all is well
	@.ci/need redis-server:redis-server mosquitto:mosquitto prometheus:prometheus
	MINUTES=$${MINUTES:-30} cargo bench --locked --profile dev --bench quiet

# Each parser is tried for its part of the time, one after the other; SEED=n repeats a finding.
fuzz: ## Try the parsers of bytes from outside on arbitrary bytes, for MINUTES=10 [SEED=n]
	@FUZZ_MINUTES=$$(awk "BEGIN { print $${MINUTES:-10} / 8 }") SEED=$${SEED:-$$(date +%s)} \
	    cargo test --locked --test files -- fuzz:: --nocapture --test-threads 1

api: ## Compare the answers of a running demo with openapi.json, by requests at random (REQUESTS=50 for each operation)
	@.ci/api

lint: ## Check format, lints, documentation and crates (licences by cargo-deny, if it is installed)
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' cargo doc --locked --no-deps --document-private-items
	@# Building cargo-deny takes longer than building Rollcall; tests/files/house.rs reads Cargo.lock in any case.
	@if ! cargo deny --version >/dev/null 2>&1; then \
	    echo 'cargo-deny is not installed, so licences are not checked: cargo install --locked cargo-deny'; \
	else \
	    echo 'cargo deny --locked check bans licenses sources'; \
	    cargo deny --locked check bans licenses sources || exit 1; \
	    if timeout 60 cargo deny --locked fetch db >/dev/null 2>&1; then \
	        echo 'cargo deny --locked check advisories'; cargo deny --locked check advisories; \
	    else \
	        echo 'the advisory database cannot be fetched from here; advisories are not checked'; \
	    fi; \
	fi

# No test and no check of a change needs mdBook: tests/files/docs reads the pages as they are. Pages link to files outside
# of docs/, which therefore lie beside the book.
MDBOOK_VERSION := 0.5.2
BOOK := $(CURDIR)/target/book
docs: ## Build the documentation into target/book (builds mdbook first where it is missing, which takes minutes)
	@PATH="$$PATH:$(CURDIR)/target/tools/bin"; set -e; \
	if ! command -v mdbook >/dev/null; then \
	    echo 'building mdbook $(MDBOOK_VERSION) into target/tools'; \
	    nice cargo install --locked --quiet --version $(MDBOOK_VERSION) --no-default-features --features search \
	        --root target/tools mdbook; \
	fi; \
	rm -rf $(BOOK); mdbook build docs --dest-dir $(BOOK)/docs; \
	cp -r config dashboards docker-compose.yml Dockerfile $(BOOK); \
	echo '<meta http-equiv="refresh" content="0; url=docs/index.html">' > $(BOOK)/index.html
	cargo test --locked --test files -- docs::links docs::book --include-ignored
	@echo 'open target/book/index.html'

fmt: ## Format the code
	cargo fmt

# ONLY=lateness,mass picks benchmarks; UNITS=100000 shrinks the large fleet, and such a run is not written down.
# ONLY=ten_million is no part of a whole run: it takes a quarter of an hour and 11 GB of memory.
bench: ## Measure speed and memory beside what they are compared with, three quarters of an hour (ONLY=…, UNITS=…)
	@.ci/need redis-server:redis-server mosquitto:mosquitto npm:npm pg_createcluster:postgresql
	cargo bench --locked --bench figures -- $(if $(ONLY),--only $(ONLY)) $(if $(UNITS),--units $(UNITS))

dist: ## Make the packages of a release in target/package: tar.gz, deb and rpm, about ten minutes [TARGET=triple]
	@.ci/dist

# As root: it makes a root of Debian, boots it, and upgrades, downgrades and purges the .deb in it.
packages: ## Install, upgrade and remove the packages that make dist made, in a clean Debian
	@.ci/packages

# 69: there is no Docker here; .ci/stack says so.
stack: ## Check the files of containers: without Docker what can be checked, with Docker the stack that runs
	cargo test --locked --test files -- stack:: kubernetes::
	@.ci/kubernetes
	@.ci/stack || [ $$? -eq 69 ]

kubernetes: ## Render config/kubernetes with kubectl and helm, and check it against the schemas of Kubernetes
	@.ci/kubernetes

digests: ## Pin the images of the Dockerfile and of docker-compose.yml to their digests; needs Docker
	@.ci/digests

addresses: ## Write the addresses of docs/addresses.toml wherever they stand
	@.ci/addresses
