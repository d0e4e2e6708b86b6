#!/usr/bin/env bash
# Runs every benchmark row with shardax and with JAX, interleaved, and prints the comparison.
#
#   bench/compare.sh [--torch] [--crates] [--markdown] [--filter NAME] [--json FILE]
#
# --torch: also measures PyTorch, in the rows that it has (its package takes 5 GB)
# --crates: also measures candle and burn, in the rows that they have (building them takes minutes)
#
# ROUNDS          how often each row runs on each side (default 3)
# PYTHON          the interpreter that makes the virtual environment (default python3; 3.11 or newer)
# SHARDAX_TEST_BENCH   a ready command to run instead of building shardax-bench
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
if [ -z "${SHARDAX_TEST_BENCH:-}" ]; then
    cargo build --release -p shardax-bench >&2
    SHARDAX_TEST_BENCH="cargo run --quiet --release -p shardax-bench --"
fi

inputs=.venv/inputs
arguments=()
for argument; do
    case $argument in
    --torch)
        environment .venv/torch bench/requirements-torch.txt
        $SHARDAX_TEST_BENCH --inputs "$inputs"
        arguments+=(--side "PyTorch=.venv/torch/bin/python bench/torch_bench.py --inputs $inputs")
        ;;
    --crates)
        # Both compile their loops for the processor that they are built for.
        (cd bench/peers && RUSTFLAGS="-C target-cpu=native" cargo build --release --locked --target-dir ../../target/peers >&2)
        $SHARDAX_TEST_BENCH --inputs "$inputs"
        for backend in candle burn-flex burn-ndarray; do
            arguments+=(--side "$backend=target/peers/release/shardax-bench-peers $backend --inputs $inputs")
        done
        ;;
    *) arguments+=("$argument") ;;
    esac
done

exec "$venv/bin/python" bench/compare.py --rust "$SHARDAX_TEST_BENCH" ${arguments[@]+"${arguments[@]}"}
