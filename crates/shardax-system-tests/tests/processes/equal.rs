//! Results have the same bits for every number of processes that share the devices.

use std::process::Command;
use std::sync::OnceLock;

use crate::*;

fn sharding_on(mesh: &Mesh, spec: PartitionSpec) -> NamedSharding {
    NamedSharding::new(mesh, spec)
}

/// Random numbers with this sharding; each process has the entire array.
fn random_sharded(seed: u32, shape: &[usize], sharding: &NamedSharding) -> Result<Array> {
    let values = random::normal(&random::key(seed), shape.to_vec());
    let bytes = values.to_vec::<f32>()?;
    let shape = shape.to_vec();
    make_array_from_callback(shape.clone(), DType::F32, sharding, |index| {
        let parts: Vec<_> = index.iter().map(|r| r.start as i32..r.end as i32).collect();
        let x = Array::from_slice(&bytes, &shape)?;
        let x = if parts.len() == 1 { x.get(parts[0].clone()) } else { x.get((parts[0].clone(), parts[1].clone())) };
        x.check()?;
        Ok(x)
    })
}

/// The results of programs of many kinds on all devices.
fn results() -> Result<Vec<(String, Array)>> {
    let n = device_count();
    let mesh = make_mesh([("x", n)])?.auto();
    let two = make_mesh([("a", n / 2), ("b", 2)])?.auto();
    let x = random_sharded(1, &[8 * n, 24], &sharding_on(&mesh, P!["x"]))?;
    let w = random_sharded(2, &[24, 16], &sharding_on(&mesh, P![]))?;
    let square = random_sharded(3, &[4 * n, 4 * n], &sharding_on(&two, P!["a", "b"]))?;
    let per_process = random_sharded(4, &[n, 1000], &sharding_on(&mesh, P!["x"]))?;

    let mut out: Vec<(String, Array)> = Vec::new();
    let mut keep = |name: &str, y: Array| out.push((name.to_owned(), y));
    let map = |f: fn(Array) -> Array, x: &Array| {
        shard_map(f, &mesh).in_specs(P!["x"]).out_specs(P!["x"]).check_vma(false).call(x)
    };
    keep("psum", map(|x| psum(x, "x"), &per_process)?);
    keep("pmax, pmin", map(|x| pmax(x.clone(), "x") - pmin(x, "x"), &per_process)?);
    keep("pmean in half precision", map(|x| pmean(x.astype(DType::Bf16), "x"), &per_process)?);
    keep("all_gather", map(|x| all_gather(x, "x", 0).sum(0), &per_process)?);
    keep(
        "psum_scatter",
        map(|x| psum_scatter_tiled(x.reshape([1000]).get(0..992).reshape([992, 1]), "x", 0), &per_process)?,
    );
    keep("a chain", map(|x| (0..5).fold(x, |x, _| psum(x.sin(), "x") * 0.1), &per_process)?);
    keep("axis_index", map(|x| x + axis_index("x").astype(DType::F32), &per_process)?);
    keep(
        "a loop with a sum",
        map(
            |x| {
                fori_loop(0, 4, |_: Array, x: Array| psum(x.cos(), "x") / 3.0, x)
                    .unwrap_or_else(|e| Array::from_error(e, &ones(1)))
            },
            &per_process,
        )?,
    );
    keep(
        "a gather behind a loop of integers",
        map(
            |x| {
                let counted = fori_loop(0, 3, |_: Array, c: Array| psum(c, "x"), axis_index("x"));
                let counted = counted.unwrap_or_else(|e| Array::from_error(e, &ones(1)));
                all_gather(x * counted.astype(DType::F32), "x", 1).sum(1)
            },
            &per_process,
        )?,
    );
    let ring: Vec<(usize, usize)> = (0..n).map(|i| (i, (i + 1) % n)).collect();
    let turned = shard_map(move |x: Array| ppermute(x, "x", ring.clone()), &mesh).in_specs(P!["x"]).out_specs(P!["x"]);
    keep("ppermute", turned.call(&per_process)?);
    // Enough to be exchanged piece by piece.
    let large = random_sharded(5, &[n, 20_000 * n], &sharding_on(&mesh, P!["x"]))?;
    keep("a large sum", map(|x| psum(x, "x"), &large)?);
    keep("a large sum in halves", map(|x| psum(x.astype(DType::Bf16), "x"), &large)?);
    keep("a large all_gather", map(|x| all_gather(x, "x", 0).cumsum(0).get(-1), &large)?);
    keep("a large all_to_all", map(|x| all_to_all_tiled(x.reshape([device_count(), 20_000]), "x", 0, 0), &large)?);
    keep("a large psum_scatter", map(|x| psum_scatter_tiled(x.reshape([device_count(), 20_000]), "x", 0), &large)?);
    let pairs: Vec<(usize, usize)> = (0..n - 1).map(|i| (i, n - 1 - i)).collect();
    let some = shard_map(move |x: Array| ppermute(x, "x", pairs.clone()), &mesh).in_specs(P!["x"]).out_specs(P!["x"]);
    keep("a large ppermute", some.call(&large)?);
    keep("matmul", jit(|x: Array, w: Array| x.matmul(w).tanh()).call((&x, &w))?);
    keep("a square product", jit(|x: Array| x.clone().matmul(x.t())).call(&square)?);
    keep("sorted", jit(|x: Array| x.sort(0)).call(&square)?);
    keep("cumulated", jit(|x: Array| x.cumsum(0)).call(&x)?);
    keep("means", jit(|x: Array| (x.mean(0), x.clone() - x.mean(1).expand_dims(1))).call(&x)?.1);
    keep("random numbers", jit(|x: Array| x + random::normal(&random::key(9), [8 * device_count(), 24])).call(&x)?);
    keep("transposed", jit(|x: Array| x.t() * 2.0).out_shardings(&sharding_on(&two, P!["b", "a"])).call(&square)?);
    keep("an entry", jit(|x: Array| x.get(5)).call(&x)?);
    Ok(out)
}

/// A network trained on the devices of all processes: the loss of each step, and the weights at the end.
fn training() -> Result<Vec<(String, Array)>> {
    let n = device_count();
    let mesh = make_mesh([("batch", n)])?.auto();
    let (split, whole) = (NamedSharding::new(&mesh, P!["batch"]), NamedSharding::new(&mesh, P![]));
    let data = random::normal(&random::key(0), [16 * n, 12]).to_vec::<f32>()?;
    let batch = make_array_from_callback([16 * n, 12], DType::F32, &split, |index| {
        Array::from_slice(&data[index[0].start * 12..index[0].end * 12], &[index[0].len(), 12])
    })?;
    fn weights(seed: u32, shape: [usize; 2], whole: &NamedSharding) -> Result<Array> {
        device_put(&(random::normal(&random::key(seed), shape) * 0.3), whole)
    }
    let mut params = (weights(1, [11, 32], &whole)?, weights(2, [32, 1], &whole)?);
    // The gradients are averaged explicitly in `shard_map`, so that the order of the sum is the exchange's.
    fn loss((a, b): (Array, Array), batch: Array) -> Array {
        let (x, y) = (batch.get((.., 0..11)), batch.get((.., 11..12)));
        (x.matmul(a).tanh().matmul(b) - y).square().mean(..)
    }
    let step = shard_map(
        move |params: (Array, Array), batch: Array| -> Result<((Array, Array), Array)> {
            let (value, grads) = value_and_grad(loss).call((&params, batch))?;
            let (a, b) = pmean(grads, "batch");
            Ok(((params.0 - a * 0.1, params.1 - b * 0.1), pmean(value, "batch")))
        },
        &mesh,
    )
    .in_specs((P![], P!["batch"]))
    .out_specs((P![], P![]))
    .check_vma(false);
    let step = jit(step).donate_argnums([0]);
    let mut out = Vec::new();
    for i in 0..20 {
        let (next, value) = step.call((&params, &batch))?;
        params = next;
        out.push((format!("loss {i}"), value));
    }
    out.push(("first weights".to_owned(), params.0));
    out.push(("last weights".to_owned(), params.1));
    Ok(out)
}

/// The file of one process, with which the others are compared.
pub const EXPECTED: &str = "SHARDAX_TEST_EXPECTED";

fn file(what: &str, device: usize) -> PathBuf {
    let folder = PathBuf::from(std::env::var_os(EXPECTED).unwrap());
    folder.join(format!("{}.{device}", what.replace(' ', "_")))
}

type Made = std::result::Result<PathBuf, String>;

/// With 4 devices, and with 8.
static MADE: [OnceLock<Made>; 2] = [const { OnceLock::new() }; 2];

/// The folders of all results that were computed.
pub fn made() -> impl Iterator<Item = &'static PathBuf> {
    MADE.iter().filter_map(|made| made.get()?.as_ref().ok())
}

/// Has one process compute with so many devices what the others are compared with, once; otherwise what went wrong.
pub fn expected(devices: usize) -> &'static Made {
    MADE[usize::from(devices > 4)].get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("shardax-expected-{}-{devices}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
        let outcome = Command::new(std::env::current_exe().map_err(|e| e.to_string())?)
            .args(["equal::alone", "--exact", "--ignored", "--nocapture"])
            .env(EXPECTED, &folder)
            .env("SHARDAX_NUM_CPU_DEVICES", devices.to_string())
            .output()
            .map_err(|e| e.to_string())?;
        if outcome.status.success() {
            Ok(folder)
        } else {
            let message = [outcome.stdout, outcome.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
            Err(format!("{}\n{}", outcome.status, message.concat()))
        }
    })
}

#[test]
#[ignore = "a part of other tests, in a process of its own"]
fn alone() -> Result<()> {
    config::set_compiler_options(QUICK);
    for (name, array) in results()?.into_iter().chain(training()?).chain(crate::generated::results()?) {
        for shard in array.addressable_shards()? {
            std::fs::write(file(&name, shard.device.id()), shard.data.to_bytes()?).unwrap();
        }
    }
    Ok(())
}

pub fn compare(results: Vec<(String, Array)>) -> Result<()> {
    let mut wrong = Vec::new();
    for (name, array) in results {
        for shard in array.addressable_shards()? {
            let expected = std::fs::read(file(&name, shard.device.id())).unwrap();
            let got = shard.data.to_bytes()?;
            if got != expected {
                let words = got.chunks(4).zip(expected.chunks(4)).enumerate();
                let differ: Vec<_> = words.filter(|(_, (a, b))| a != b).take(3).collect();
                let (dtype, shape) = (shard.data.dtype(), shard.data.shape());
                wrong.push(format!("{name} on {}, {dtype}{shape:?}, the first words: {differ:x?}", shard.device));
            }
        }
    }
    assert!(wrong.is_empty(), "differ:\n{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn programs_are_equal_bit_by_bit() {
    everywhere(|| compare(results()?));
}

#[test]
fn training_is_equal_bit_by_bit() {
    everywhere(|| compare(training()?));
}
