#!/bin/sh
# Tests the wheel of target/wheel: a fresh virtual environment gets it, then mypy and python/tests run with real torch.
# What the tests need besides is installed once, into .deps/python (4.4 GB: the torch of PyPI links CUDA's libraries).
# With --install, that is all. TORCH=2.13.0 tests the core of the embedding layer with that release instead, with all that the release brings.
set -eu
cd "$(dirname "$0")/.."
deps=.deps/python
fresh=target/python/venv
needed="python/requirements-test.txt python/requirements-torch.txt"
# Most modules of the packages are never imported: Python compiles those that are, once, when it imports them.
unset PYTHONDONTWRITEBYTECODE
pip="-m pip --quiet --disable-pip-version-check install --no-compile --only-binary=:all:"

# Without CI a user need not have them.
missing() {
    echo "$1" >&2
    if [ "${CI:-}" = true ]; then exit 1; fi
    echo "python: skipped" >&2
    exit 0
}

python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || missing "error: the package needs CPython 3.10 or later"
# shellcheck disable=SC2086 # two files
if ! cat $needed | cmp -s - "$deps/installed.txt"; then
    echo "python: installing torch and what else the tests need, once, into $deps"
    rm -rf "$deps"
    python3 -m venv "$deps" || missing "error: python3 cannot make virtual environments; next: apt-get install python3-venv"
    # shellcheck disable=SC2086 # one word for each argument
    { "$deps/bin/python" $pip -r python/requirements-test.txt && "$deps/bin/python" $pip --no-deps -r python/requirements-torch.txt; } ||
        missing "error: pip could not install $needed; next: check the network and pip's index settings"
    # shellcheck disable=SC2086
    cat $needed > "$deps/installed.txt"
fi

if [ "${1:-}" = --install ]; then exit 0; fi
rm -rf "$fresh"
python3 -m venv --without-pip "$fresh"
# shellcheck disable=SC2086
"$deps/bin/python" -m pip --quiet --disable-pip-version-check --python "$fresh/bin/python" install --no-deps --no-index target/wheel/*.whl
# The packages of .deps/python are found after those of the fresh environment.
site=$("$fresh/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$deps/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/deps.pth"

# Not from python/, whose folder zagros has no native half.
cd python/tests
python=../../$fresh/bin/python
if [ -z "${TORCH:-}" ]; then
    "$python" -m mypy --config-file ../pyproject.toml --cache-dir ../../target/python/mypy ../zagros
    OMP_NUM_THREADS=1 exec "$python" -m pytest "$@"
fi

other=$(cd ../.. && pwd)/.deps/torch-$TORCH
if [ ! -f "$other/installed.txt" ]; then
    echo "python: installing torch $TORCH, once, into .deps/${other##*/}"
    rm -rf "$other"
    # shellcheck disable=SC2086
    "../../$deps/bin/python" $pip --target "$other" "torch==$TORCH" || missing "error: pip could not install torch $TORCH; next: check the network and pip's index settings"
    echo "$TORCH" > "$other/installed.txt"
fi
export PYTHONPATH="$other"
echo "python: the core of the layer with torch $("$python" -c 'import torch; print(torch.__version__, "of", torch.__file__)')"
OMP_NUM_THREADS=1 "$python" -m pytest test_embedding.py test_equal_to_torch.py
