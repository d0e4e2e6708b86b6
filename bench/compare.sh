#!/usr/bin/env bash
# Runs every benchmark row with shardax and with JAX, interleaved, and prints the comparison.
#
#   bench/compare.sh [--markdown] [--filter NAME] [--json FILE]
#
# ROUNDS          how often each row runs on each side (default 3)
# PYTHON          the interpreter that makes the virtual environment (default python3; 3.11 or newer)
# SHARDAX_BENCH   a ready command to run instead of building shardax-bench
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv/bench
stamp="$venv/requirements.txt"
if ! cmp -s bench/requirements.txt "$stamp"; then
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r bench/requirements.txt
    cp bench/requirements.txt "$stamp"
fi

if [ -z "${SHARDAX_BENCH:-}" ]; then
    cargo build --release -p shardax-bench >&2
    SHARDAX_BENCH="cargo run --quiet --release -p shardax-bench --"
fi

exec "$venv/bin/python" bench/compare.py --rust "$SHARDAX_BENCH" "$@"
