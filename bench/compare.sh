#!/usr/bin/env bash
# Runs every benchmark row with shardax and with JAX, interleaved, and prints the comparison.
#
#   bench/compare.sh [--torch] [--markdown] [--filter NAME] [--json FILE]
#
# --torch: with PyTorch beside them, in the rows that it has (its package takes 5 GB)
#
# ROUNDS          how often each row runs on each side (default 3)
# PYTHON          the interpreter that makes the virtual environment (default python3; 3.11 or newer)
# SHARDAX_BENCH   a ready command to run instead of building shardax-bench
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A virtual environment with what a file of requirements lists.
environment() {
    if ! cmp -s "$2" "$1/requirements.txt"; then
        "${PYTHON:-python3}" -m venv "$1"
        "$1/bin/python" -m pip install --quiet --disable-pip-version-check -r "$2"
        cp "$2" "$1/requirements.txt"
    fi
}

venv=.venv/bench
environment "$venv" bench/requirements.txt
arguments=()
for argument; do
    if [ "$argument" = --torch ]; then
        environment .venv/torch bench/requirements-torch.txt
        arguments+=(--torch "$PWD/.venv/torch/bin/python $PWD/bench/torch_bench.py")
    else
        arguments+=("$argument")
    fi
done

if [ -z "${SHARDAX_BENCH:-}" ]; then
    cargo build --release -p shardax-bench >&2
    SHARDAX_BENCH="cargo run --quiet --release -p shardax-bench --"
fi

exec "$venv/bin/python" bench/compare.py --rust "$SHARDAX_BENCH" ${arguments[@]+"${arguments[@]}"}
