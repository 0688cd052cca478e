# Two commands: `make train` trains, `make test` checks everything. See README.md.
ZAGROS := target/release/zagros
QUICKSTART := data/quickstart

.PHONY: help train test build setup lint unit manifests monitoring images test-compose bench bench-smoke clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | awk -F':.*## ' '{ printf "  make %-12s %s\n", $$1, $$2 }'

setup: ## install what is missing (system packages, libtorch into .deps/)
	@sh scripts/setup.sh

build: setup ## build the programs: zagros, and zagros-server without libtorch
	@test -x $(ZAGROS) || echo "building zagros in release; the first time takes a few minutes"
	@cargo build --release -p zagros -p zagros-server

train: build ## train on generated data, or DATA=/path/to/criteo/train.txt
ifdef DATA
	@$(ZAGROS) train examples/criteo.toml --set data.train='"$(abspath $(DATA))"'
else
	@test -f $(QUICKSTART)/planted.json || $(ZAGROS) data generate $(QUICKSTART)
	@$(ZAGROS) train examples/quickstart.toml
endif

lint: setup ## fmt and clippy, warnings denied
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets --quiet -- --deny warnings

unit: setup ## all tests
	cargo test --release --workspace --quiet --lib --bins --tests

test: lint bench-smoke manifests unit ## fmt, clippy, the quick benchmarks' smoke run, all tests

manifests: setup ## check every Kubernetes object against Kubernetes' schemas, without a cluster
	@cargo build --release --quiet -p zagros-operator
	@python3 scripts/check_manifests.py target/release/zagros-operator

images: build ## container images; needs Docker
	@cargo build --release --quiet -p zagros-operator
	@sh scripts/images.sh

test-compose: build ## train a cluster of containers, then again while they are killed, paused and cut off; needs Docker
	@cargo build --release --quiet -p zagros-operator
	@python3 scripts/test_compose.py

monitoring: setup ## every dashboard and rule against a live cluster and Prometheus; prints what each query gave
	@sh scripts/fetch_prometheus.sh
	@python3 scripts/dashboards.py --check
	cargo test --release --quiet -p zagros-tests --test tidy -- monitoring
	cargo test --release --quiet -p zagros-tests --test integration -- monitoring --nocapture

bench: build ## benchmarks; they print ratios
	cargo bench --quiet -p zagros-table --bench table
	cargo bench --quiet -p zagros-dense-worker --bench pooling
	cargo bench --quiet -p zagros-table --bench tier
	cargo bench --quiet -p zagros-cold --bench cold
	cargo bench --quiet -p zagros-cold --bench rows
	cargo bench --quiet -p zagros-embedding-server --bench save
	cargo bench --quiet -p zagros-dense-worker --bench overlap
	$(ZAGROS) bench train --workload crit-zipf
	$(ZAGROS) bench scaling
	$(ZAGROS) bench embedding
	$(ZAGROS) bench embedding --dim 64
	$(ZAGROS) bench modes --page target/bench-modes.html

bench-smoke: build
	cargo bench --quiet -p zagros-table --bench table -- --quick
	cargo bench --quiet -p zagros-dense-worker --bench pooling -- --quick
	cargo bench --quiet -p zagros-table --bench tier -- --quick
	cargo bench --quiet -p zagros-cold --bench cold -- --quick
	cargo bench --quiet -p zagros-cold --bench rows -- --quick
	cargo bench --quiet -p zagros-embedding-server --bench save -- --quick
	cargo bench --quiet -p zagros-dense-worker --bench overlap -- --quick
	$(ZAGROS) bench train --workload crit-zipf --quick
	$(ZAGROS) bench scaling --quick --workers 1,2
	$(ZAGROS) bench embedding --quick
	$(ZAGROS) bench embedding --quick --servers 2 --clients 1
	$(ZAGROS) bench modes --quick

clean: ## remove what was built; keeps libtorch and data
	cargo clean
