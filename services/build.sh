#!/bin/sh
# Builds the images of compose.yaml: swe-rl/service and swe-rl/database, on $BASE_IMAGE (default: swe-rl/base, which
# `swe-rl images build` makes, also where no image registry is reached).
#
#   services/build.sh [--wheelhouse]      --wheelhouse: first collect the Python packages with this machine's own pip,
#                                         for where a build can't reach pip's index (same Python version as the base's)
set -eu
cd "$(dirname "$0")/.."
base=${BASE_IMAGE:-swe-rl/base}
if [ "${1:-}" = --wheelhouse ]; then
  mkdir -p build/wheelhouse
  python3 -m pip wheel --quiet --wheel-dir build/wheelhouse setuptools wheel ".[service,postgres]"
  rm -f build/wheelhouse/swe_rl-*.whl  # the image installs the sources
fi
for name in sandbox:service database:database; do
  docker build --quiet --network host --build-arg "BASE_IMAGE=$base" ${TOOLCHAINS+--build-arg "TOOLCHAINS=$TOOLCHAINS"} \
    --label "swe-rl.image=${name#*:}" --file "services/${name%:*}/Dockerfile" --tag "swe-rl/${name#*:}" .
done
