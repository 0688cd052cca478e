# Two commands: `make train` trains, `make test` checks everything. See README.md.
ZAGROS := target/release/zagros
BENCH := target/release/zagros-bench
CHAOS := target/release/zagros-chaos
QUICKSTART := data/quickstart
BENCHES := --bench table --bench tier --bench cold --bench save --bench durability

.PHONY: help train test nightly chaos build programs wheel python setup setup-cuda nccl docs lint unit manifests monitoring images test-compose bench bench-smoke bench-all release clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | awk -F':.*## ' '{ printf "  make %-12s %s\n", $$1, $$2 }'

setup: ## install what is missing (system packages, libtorch into .deps/)
	@sh scripts/setup.sh

setup-cuda: setup ## what the feature nccl is compiled with, 730 MB into .deps/ (docs/nccl.md)
	@python3 scripts/fetch_libtorch.py --cuda

nccl: setup-cuda ## build zagros with the feature nccl, and test what can be tested without a GPU
	cargo clippy --release -p zagros-torch --features nccl --all-targets --quiet -- --deny warnings
	cargo test --release --quiet -p zagros-torch --features nccl
	cargo build --release -p zagros --features nccl

build: setup ## build the programs: zagros, and zagros-server without libtorch
	@test -x $(ZAGROS) || echo "building zagros in release; the first time takes a few minutes"
	@cargo build --release -p zagros -p zagros-shell

train: build ## train on generated data, or DATA=/path/to/criteo/train.txt
ifdef DATA
	@$(ZAGROS) train examples/criteo.toml --set data.train='"$(abspath $(DATA))"'
else
	@test -f $(QUICKSTART)/planted.json || $(ZAGROS) data generate $(QUICKSTART)
	@$(ZAGROS) train examples/quickstart.toml
endif

# Property tests draw the same cases each time, so that the same commit gives the same verdict. Other cases: make unit PROPTEST_RNG_SEED=2.
export PROPTEST_RNG_SEED ?= 1

# Selecting the whole workspace each time, whatever is wanted of it: what several crates share has one set of features then
# and is compiled once.
programs: setup
	@cargo build --release --quiet --workspace --bins --lib

wheel: programs ## the Python package as a wheel, into target/wheel
	@python3 scripts/wheel.py

python: wheel ## test the wheel in a fresh virtual environment with torch
	@sh scripts/python_tests.sh

lint: setup ## fmt and clippy, warnings denied
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets --quiet -- --deny warnings

unit: setup ## all tests
	cargo test --release --workspace --quiet --lib --bins --tests
	cargo test --release --workspace --quiet --doc

test: setup ## fmt, clippy, the docs' links, the quick benchmarks' smoke run, all tests; one check: make test CHECK=lint
	@python3 scripts/gate.py $(CHECK)

nightly: programs ## what takes too long for every change: all benchmarks, many seeds, kills for an hour, damaged files, a second torch
	@python3 scripts/gate.py --nightly $(CHECK)

chaos: programs ## kill, stop and cut off processes for 20 minutes a mode; SEED=1
	@test -f $(QUICKSTART)/planted.json || $(ZAGROS) data generate $(QUICKSTART)
	for mode in hybrid sync async; do \
	  $(CHAOS) examples/quickstart.toml --servers 2 --workers 2 --set train.epochs=20 --set train.mode=$$mode --for 20m --seed $(or $(SEED),1) || exit 1; \
	done

docs: ## build the documentation site into target/docs/site and check its links
	@sh scripts/fetch_mdbook.sh
	@python3 scripts/docs_site.py .deps/mdbook/bin/mdbook

manifests: programs ## check every Kubernetes object against Kubernetes' schemas, without a cluster
	@python3 scripts/check_manifests.py target/release/zagros-operator

images: programs ## container images; needs Docker
	@sh scripts/images.sh

test-compose: programs ## train a cluster of containers, then again while they are killed, paused and cut off; needs Docker
	@python3 scripts/test_compose.py

monitoring: setup ## every dashboard and rule against a live cluster and Prometheus; prints what each query gave
	@sh scripts/fetch_prometheus.sh
	@python3 scripts/dashboards.py --check
	cargo test --release --quiet -p zagros-tests --test suites -- monitoring --nocapture

bench: programs ## benchmarks; they print ratios
	cargo bench --quiet --workspace $(BENCHES)
	$(BENCH) train
	$(BENCH) scaling
	$(BENCH) embedding
	$(BENCH) embedding --dim 64
	$(BENCH) modes --page target/bench-modes.html
	$(BENCH) durability
	$(BENCH) capacity

# The integration tests run train, scaling, embedding and modes.
bench-smoke: programs
	cargo bench --quiet --workspace --bench table -- --quick
	$(BENCH) durability --quick
	$(BENCH) capacity --quick

bench-all: programs ## each benchmark, quick
	cargo bench --quiet --workspace $(BENCHES) -- --quick
	$(BENCH) train --quick
	$(BENCH) scaling --quick --workers 1,2
	$(BENCH) embedding --quick
	$(BENCH) embedding --quick --servers 2 --clients 1
	$(BENCH) modes --quick
	$(BENCH) durability --quick
	$(BENCH) capacity --quick
	$(BENCH) capacity --quick --ids uniform --lookahead 0

release: programs ## pack VERSION=0.2.0 (docs/releasing.md); DRY_RUN=1 only shows what is missing
	@python3 scripts/release.py $(VERSION) $(if $(DRY_RUN),--dry-run)

clean: ## remove what was built; keeps libtorch and data
	cargo clean
