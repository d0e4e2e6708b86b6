#!/bin/sh
# Rows of several processes, shardax's and JAX's in turn, and a table: bench/processes.sh [PYTHON]. PYTHON has JAX, Flax
# and Optax; without it ours alone.
#
# ROUNDS   how often each job runs on each side (default 3)
# JOBS     processes, devices of each, rows (default: all of them, line by line)
set -eu
cd "$(dirname "$0")/.."
python=${1:-}
cargo build --release -q -p shardax-bench
program=${CARGO_TARGET_DIR:-target}/release/shardax-bench
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exchange=mp_psum_4,mp_psum_16mib,mp_all_gather_1mib,mp_all_to_all_1mib,mp_pmap_rewrap,mp_shard_map_local
jobs=${JOBS:-"2 1 $exchange
2 2 $exchange
4 2 $exchange
2 4 mp_cnn_step,mp_mlp_step
4 1 mp_compile_cnn
1 1 mp_scale
2 1 mp_scale
4 1 mp_scale
8 1 mp_scale"}
said=$(mktemp)
trap 'rm -f "$said"' EXIT

# Runs one side's job, whose rows say how long they took.
job() {
    who=$1 processes=$2 devices=$3
    shift 3
    mpirun -n "$processes" --oversubscribe --bind-to none -x SHARDAX_NUM_CPU_DEVICES="$devices" \
        -x SHARDAX_TEST_BENCH_BEGAN="$(date +%s.%N)" "$@" 2>&1 | grep --line-buffered '^mp_' | sed -u "s/^/$who /" | tee -a "$said"
}

port=12400
for round in $(seq "${ROUNDS:-3}"); do
    echo "round $round"
    while read -r processes devices rows; do
        job shardax "$processes" "$devices" "$program" --processes --json /dev/null --filter "$rows" </dev/null
        if [ -n "$python" ]; then
            port=$((port + 1))
            job JAX "$processes" "$devices" "$python" bench/jax_processes.py "$port" "$rows" </dev/null
        fi
    done <<END
$jobs
END
done

# Medians over rounds, and over jobs of one shape.
awk '
function median(list,    n, i, j, t, a) {
    n = split(list, a, " ")
    for (i = 2; i <= n; i++) for (j = i; j > 1 && a[j - 1] + 0 > a[j] + 0; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
    return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
}
{
    key = $2 " " $3 " × " $5
    if (!(key in seen)) { seen[key] = 1; order[++count] = key }
    times[key, $1] = times[key, $1] " " $6
}
END {
    print "\n| row | processes × devices | shardax µs | JAX µs | shardax / JAX |\n|:--|:--|--:|--:|--:|"
    for (i = 1; i <= count; i++) {
        key = order[i]; split(key, part, " ")
        ours = median(times[key, "shardax"]); jax = times[key, "JAX"] == "" ? "" : median(times[key, "JAX"])
        printf "| `%s` | %s × %s | %.1f | %s | %s |\n", part[1], part[2], part[4], ours, \
            (jax == "" ? "–" : sprintf("%.1f", jax)), (jax == "" ? "–" : sprintf("%.2f", ours / jax))
    }
}' "$said"
