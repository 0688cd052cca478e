#!/bin/sh
# Tests the wheel of target/wheel: a fresh virtual environment gets it, then mypy and python/tests run with real torch.
# What the tests need besides is installed once, into .deps/python (4.7 GB: the torch of PyPI brings CUDA).
set -eu
cd "$(dirname "$0")/.."
deps=.deps/python
fresh=target/python/venv

# Without CI nobody is forced to have them.
missing() {
    echo "$1" >&2
    if [ "${CI:-}" = true ]; then exit 1; fi
    echo "python: skipped" >&2
    exit 0
}

python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || missing "error: the package needs CPython 3.10 or later"
if ! cmp -s python/requirements-test.txt "$deps/installed.txt"; then
    echo "python: installing torch and what else the tests need, once, into $deps"
    rm -rf "$deps"
    python3 -m venv "$deps" || missing "error: python3 cannot make virtual environments; next: apt-get install python3-venv"
    "$deps/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: -r python/requirements-test.txt ||
        missing "error: pip could not install python/requirements-test.txt; next: check the network and pip's index settings"
    cp python/requirements-test.txt "$deps/installed.txt"
fi

rm -rf "$fresh"
python3 -m venv --without-pip "$fresh"
"$deps/bin/python" -m pip --python "$fresh/bin/python" install --quiet --disable-pip-version-check --no-deps --no-index target/wheel/*.whl
# The packages of .deps/python are found after those of the fresh environment.
site=$("$fresh/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$deps/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/deps.pth"

# Not from python/, whose folder zagros has no native half.
cd python/tests
"../../$fresh/bin/python" -m mypy --config-file ../pyproject.toml --cache-dir ../../target/python/mypy ../zagros
OMP_NUM_THREADS=1 "../../$fresh/bin/python" -m pytest "$@"
