#!/bin/sh
# Builds the container images from the programs in target/release (`make images` builds both). BASE is another base image.
# `BASE=debootstrap` makes one from Debian's packages, for machines that reach no registry. TAG is the tag of the images.
set -eu
cd "$(dirname "$0")/.."
TAG=${TAG:-latest}
BASE=${BASE:-debian:bookworm-slim}
context=target/images
programs="zagros zagros-server zagros-operator"

command -v docker >/dev/null || { echo "docker is not installed: see docs/compose.md" >&2; exit 1; }
docker info >/dev/null 2>&1 || { echo "no Docker engine answers: start it, or set DOCKER_HOST" >&2; exit 1; }
for program in $programs; do
    test -x "target/release/$program" || { echo "target/release/$program is missing: run make images" >&2; exit 1; }
done

if [ "$BASE" = debootstrap ]; then
    BASE=zagros-base:$TAG
    if ! docker image inspect "$BASE" >/dev/null 2>&1; then
        root=$(mktemp -d)
        trap 'rm -rf "$root"' EXIT
        debootstrap --variant=minbase --include=ca-certificates,librocksdb7.8,libstdc++6,tini bookworm "$root" >/dev/null
        tar -C "$root" --exclude=./dev --exclude=./var/cache --exclude=./var/lib/apt --exclude=./usr/share/doc -c . |
            docker import - "$BASE" >/dev/null
    fi
fi

rm -rf "$context"
mkdir -p "$context/bin" "$context/lib"
cp docker/Dockerfile "$context/"
for program in $programs; do
    # Debug lines are three quarters of the file.
    strip -o "$context/bin/$program" "target/release/$program"
done
# The libraries that the program needs from the folder of libtorch.
ldd target/release/zagros | sed -n 's#.* => \(.*/\.deps/libtorch/lib/.*\) (.*#\1#p' | xargs -I{} cp -L {} "$context/lib/"

targets=$programs
if [ -x .deps/prometheus/prometheus ]; then
    cp -L .deps/prometheus/prometheus "$context/bin/"
    targets="$targets zagros-prometheus"
fi

for target in $targets; do
    docker build --quiet --build-arg BASE="$BASE" --target "$target" --tag "$target:$TAG" "$context" >/dev/null
    docker image inspect --format '{{index .RepoTags 0}}  {{.Size}} bytes' "$target:$TAG"
done
