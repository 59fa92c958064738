#!/bin/sh
# Builds the images of the docker backend: one base image, and swe-rl/<language> on it from sandboxes/<language>/Dockerfile.
#
#   sandboxes/base/build.sh [LANGUAGE...]      default: every folder that has a Dockerfile
#
# The base is $BASE_IMAGE where it is set (e.g. debian:bookworm-slim, pulled if absent); else the local swe-rl/base, which
# mmdebstrap makes without any image registry (package mmdebstrap, as root). Set BUILD_FLAGS for more `docker build` flags.
set -eu

sandboxes=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)

fail() {
    echo "build.sh: $*" >&2
    exit 1
}

docker version >/dev/null 2>&1 || fail "no Docker engine answers; start one, or set DOCKER_HOST"

base=${BASE_IMAGE:-swe-rl/base}
if [ -n "${BASE_IMAGE:-}" ]; then
    docker image inspect "$base" >/dev/null 2>&1 || docker pull "$base" || fail "$base: neither here nor to be pulled"
elif ! docker image inspect "$base" >/dev/null 2>&1; then
    command -v mmdebstrap >/dev/null || fail "no mmdebstrap: install it, or set BASE_IMAGE=debian:bookworm-slim"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    echo "making $base with mmdebstrap" >&2
    mmdebstrap --variant=minbase --include=ca-certificates bookworm "$scratch/base.tar"
    docker import --change 'LABEL swe-rl.image=base' "$scratch/base.tar" "$base" >/dev/null
fi

[ $# -gt 0 ] || set -- $(cd "$sandboxes" && for file in */Dockerfile; do dirname "$file"; done)
for language in "$@"; do
    [ -f "$sandboxes/$language/Dockerfile" ] || fail "$sandboxes/$language/Dockerfile: no such file"
    echo "building swe-rl/$language" >&2
    # shellcheck disable=SC2086
    docker build --quiet --network host --build-arg "BASE_IMAGE=$base" --label "swe-rl.image=$language" \
        ${BUILD_FLAGS:-} --tag "swe-rl/$language" "$sandboxes/$language"
done
