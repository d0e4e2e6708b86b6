#!/bin/sh
# Rows of several processes, shardax's and JAX's in turn: bench/processes.sh [PYTHON]. PYTHON has JAX; without it ours alone.
set -eu
cd "$(dirname "$0")/.."
python=${1:-}
cargo build --release -q -p shardax-bench
program=${CARGO_TARGET_DIR:-target}/release/shardax-bench
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
port=12400
for shape in "2 1" "2 2" "4 2"; do
    # shellcheck disable=SC2086
    set -- $shape
    start="mpirun -n $1 --oversubscribe --bind-to none -x SHARDAX_NUM_CPU_DEVICES=$2"
    echo "shardax, $1 processes of $2 devices"
    $start "$program" --processes >/dev/null
    if [ -n "$python" ]; then
        port=$((port + 1))
        echo "JAX with gloo"
        $start "$python" bench/jax_processes.py $port
    fi
done
