#!/bin/sh
# Tests the wheel of target/wheel: a fresh virtual environment gets it, then mypy and python/tests run with real torch.
# What the tests need besides is installed once, into .deps/python (5.6 GB: the torch of PyPI brings CUDA). The core of the
# embedding layer is then tested with the torch of python/requirements-torch.txt, which shares its CUDA libraries (1.4 GB
# more). TORCH=2.6.0 tests it with that release alone, with all that the release brings.
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
python=../../$fresh/bin/python
if [ -z "${TORCH:-}" ]; then
    "$python" -m mypy --config-file ../pyproject.toml --cache-dir ../../target/python/mypy ../zagros
    OMP_NUM_THREADS=1 "$python" -m pytest "$@"
    # Whoever asks for some tests gets those alone.
    if [ $# -gt 0 ]; then exit 0; fi
fi

wanted=${TORCH:+torch==$TORCH}
wanted=${wanted:-$(grep -v '^#' ../requirements-torch.txt)}
other=$(cd ../.. && pwd)/.deps/torch${TORCH:+-$TORCH}
if [ "$wanted" != "$(cat "$other/installed.txt" 2>/dev/null)" ]; then
    echo "python: installing another torch, once, into .deps/${other##*/}"
    rm -rf "$other"
    # shellcheck disable=SC2086 # one word for each package
    "../../$deps/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: --target "$other" \
        $(if [ -z "${TORCH:-}" ]; then echo --no-deps; fi) $wanted || missing "error: pip could not install $wanted; next: check the network and pip's index settings"
    if [ -z "${TORCH:-}" ]; then
        shared=../../python/$("../../$deps/bin/python" -c 'import os, sys, sysconfig; print(os.path.relpath(sysconfig.get_path("purelib"), sys.prefix))')/nvidia
        for library in "../../$deps"/lib/python*/site-packages/nvidia/*; do
            [ -e "$other/nvidia/${library##*/}" ] || ln -s "$shared/${library##*/}" "$other/nvidia/${library##*/}"
        done
    fi
    echo "$wanted" > "$other/installed.txt"
fi
export PYTHONPATH="$other"
echo "python: the core of the layer with torch $("$python" -c 'import torch; print(torch.__version__, "of", torch.__file__)')"
OMP_NUM_THREADS=1 "$python" -m pytest test_embedding.py test_equal_to_torch.py
