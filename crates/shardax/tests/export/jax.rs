//! To and from JAX: what its `export` and `tools/export` wrote, and what is written here for it.

use std::collections::BTreeMap;

use shardax::export::{ExportOptions, Exported};
use shardax::prelude::*;

use crate::common::setup;
use crate::same;

/// Arrays that JAX computed, by name.
fn values() -> BTreeMap<String, Array> {
    use safetensors::tensor::Dtype;
    let bytes = std::fs::read(exported("values.safetensors")).expect("the values");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let array = |(name, t): (String, safetensors::tensor::TensorView)| {
        let dtype = match t.dtype() {
            Dtype::F32 => DType::F32,
            Dtype::BF16 => DType::Bf16,
            Dtype::I32 => DType::I32,
            _ => DType::Bool,
        };
        (name, Array::from_bytes(t.data(), dtype, t.shape()).expect("an array"))
    };
    file.tensors().into_iter().map(array).collect()
}

fn exported(file: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exported").join(file)
}

type Dict = BTreeMap<String, Array>;

/// What JAX's `export` wrote (`tools/export`): called, compiled into others, over rows, and its gradient.
#[test]
fn functions_that_jax_exported() -> Result<()> {
    setup();
    let v = values();
    let p = Dict::from(["w", "b"].map(|name| (name.to_owned(), v[name].clone())));
    let mlp = Exported::<(Dict, Array), Dict>::load(exported("mlp.safetensors"))?;
    let out = mlp.call((p.clone(), &v["x"]))?;
    assert!(allclose(&out["y"], &v["y"], 1e-6, 1e-6)?);
    assert!(allclose(&out["sum"], &v["sum"], 1e-5, 1e-6)?);
    same(&out["sorted"], &v["sorted"]);
    let leaves = mlp.call_leaves(&[v["b"].clone(), v["w"].clone(), v["x"].clone()])?;
    let paths: Vec<_> = mlp.out_avals().map(|(path, _)| path).collect();
    assert_eq!(paths, [r#"["sorted"]"#, r#"["sum"]"#, r#"["y"]"#]);
    same(&leaves[2], &out["y"]);
    let loss = |p: Dict| Ok(mlp.call((p, &v["x"]))?["y"].get((.., 0)).sum(..));
    let slope = jit(grad(loss)).call(p.clone())?;
    assert!(allclose(&slope["w"], &v["slope.w"], 1e-5, 1e-6)?);
    assert!(allclose(&slope["b"], &v["slope.b"], 1e-5, 1e-6)?);
    let steps = Exported::<(Array, Array), (Array, Array)>::load(exported("steps.safetensors"))?;
    let twice = stack(&[v["x"].clone(), v["x"].clone()], 0);
    let (last, sums) = jit(vmap(steps).in_axes((0, None))).call((twice, arange(0..5)))?;
    for row in 0..2 {
        assert!(allclose(last.get(row), &v["last"], 1e-5, 1e-6)?);
        assert!(allclose(sums.get(row), &v["sums"], 1e-5, 1e-5)?);
    }
    Ok(())
}

/// What `jax.export` itself wrote gives JAX's numbers, leaf by leaf: called, within another program, and its gradient.
#[test]
fn artifacts_of_jax() -> Result<()> {
    setup();
    let v = values();
    for name in ["mlp", "trees", "net", "operations", "steps", "where", "sharded", "mapped"] {
        let read = Exported::<(Array,), Array>::load(exported(&format!("{name}.jax")))?;
        let of = |kind: &str| -> Vec<(usize, Array)> {
            let prefix = format!("{name}.{kind}");
            let found = v.iter().filter_map(|(key, x)| Some((key.strip_prefix(&prefix)?.parse().ok()?, x.clone())));
            found.collect()
        };
        let close = |got: &Array, want: &Array, what: &str| -> Result<()> {
            assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()), "{name}: {what}");
            let wide = |x: &Array| if x.dtype() == DType::Bool { x.astype(DType::I32) } else { x.clone() };
            assert!(allclose(wide(got), wide(want), 1e-5, 1e-5)?, "{name}: {what}\n{got}\n{want}");
            Ok(())
        };
        let ins: Vec<Array> = of("in").into_iter().map(|(_, x)| x).collect();
        let outs = of("out");
        for (got, (i, want)) in read.call_leaves(&ins)?.iter().zip(&outs) {
            close(got, want, &format!("result {i}"))?;
        }
        let within = jit(|ins: Vec<Array>| Ok(read.call_leaves(&ins)?.into_iter().chain(ins).collect::<Vec<_>>()));
        for (got, (i, want)) in within.call(ins.clone())?.iter().zip(&outs) {
            close(got, want, &format!("result {i} within another program"))?;
        }
        let slopes = of("slope");
        assert_eq!((read.has_vjp(), outs.is_empty()), (!slopes.is_empty(), false), "{name}");
        if slopes.is_empty() {
            continue;
        }
        let moving: Vec<Array> = slopes.iter().map(|(i, _)| ins[*i].clone()).collect();
        let loss = |moving: Vec<Array>| -> Result<Array> {
            let mut all = ins.clone();
            slopes.iter().zip(moving).for_each(|((i, _), x)| all[*i] = x);
            let outs = read.call_leaves(&all)?;
            let sums = outs.into_iter().filter(|x| x.dtype().is_inexact()).map(|x| x.astype(DType::F32).sum(..));
            Ok(sums.fold(array(0.0f32), |all, one| all + one))
        };
        for (got, (i, want)) in jit(grad(loss)).call(moving)?.iter().zip(&slopes) {
            close(got, want, &format!("slope of argument {i}"))?;
        }
    }
    Ok(())
}

/// Their structures become Rust's, they run over rows, and what is saved of them here is a file like others.
#[test]
fn artifacts_of_jax_as_functions() -> Result<()> {
    setup();
    let v = values();
    let p = Dict::from(["w", "b"].map(|name| (name.to_owned(), v[name].clone())));
    let mlp = Exported::<(Dict, Array), Dict>::load(exported("mlp.jax"))?;
    let out = mlp.call((p.clone(), &v["x"]))?;
    assert!(allclose(&out["y"], &v["y"], 1e-6, 1e-6)?);
    let paths: Vec<_> = mlp.in_avals().map(|(path, _)| path).collect();
    assert_eq!((mlp.name(), paths), ("mlp", vec![r#"[0]["b"]"#, r#"[0]["w"]"#, "[1]"]));
    let twice = stack(&[v["x"].clone(), &v["x"] * 2], 0);
    let rows = jit(vmap(mlp.clone()).in_axes((None, 0))).call((p.clone(), &twice))?;
    assert!(allclose(rows["y"].get(0), &v["y"], 1e-6, 1e-6)?);
    let loss = |p: Dict| Ok(mlp.call((p, &v["x"]))?["y"].get((.., 0)).sum(..));
    let slope = grad(loss).call(p.clone())?;
    assert!(allclose(&slope["w"], &v["slope.w"], 1e-5, 1e-6)?);
    let again = Exported::<(Dict, Array), Dict>::deserialize(&mlp.serialize()?)?;
    same(&again.call((p, &v["x"]))?["y"], &out["y"]);

    type State = BTreeMap<String, Option<(Array, Vec<Array>)>>;
    type Out = (Vec<Leaf>, (Array, Option<Array>, Array));
    #[derive(Clone, Tree)]
    struct Leaf(Array);
    let trees = Exported::<(State, Array, Array), Out>::load(exported("trees.jax"))?;
    let error = trees.call((State::new(), ones([5]), arange(0..3))).err().expect("another structure").to_string();
    assert!(error.contains("different structure"), "{error}");
    let paths: Vec<_> = trees.out_avals().map(|(path, _)| path).collect();
    assert_eq!(paths, ["[0][0]", r#"[0][1]["even"]"#, r#"[0][1]["half"]"#, "[1][0]", "[1][2]"]);
    Ok(())
}

/// Those for several platforms are for each; those that cannot run here say why and what to do.
#[test]
fn artifacts_of_jax_that_are_refused() -> Result<()> {
    setup();
    let place = Exported::<(Array,), Array>::load(exported("where.jax"))?;
    assert_eq!(place.platforms().collect::<Vec<_>>(), ["cpu", "tpu"]);
    assert_ne!(place.mlir_module("cpu"), place.mlir_module("tpu"));
    for (name, parts) in [
        ("symbolic", ["sizes that are symbols: [b, 4]", "symbolic_shape"]),
        ("sized", ["sizes within that are symbols", "exchange.save"]),
        ("keyword", ["takes arguments by name", "by place"]),
        ("custom", ["the type \"Pair\" has no place in Rust", "dictionaries, tuples and lists"]),
        ("keys", ["JAX's element type 27", "key_data"]),
    ] {
        let file = exported(&format!("{name}.jax"));
        let error = Exported::<(Array,), Array>::load(file).err().expect(name).to_string();
        parts.iter().for_each(|part| assert!(error.contains(part), "{name}: {error}"));
    }
    // Functions of jaxlib are not in XLA.
    let lapack = Exported::<(Array,), Array>::load(exported("lapack.jax"))?;
    let error = lapack.call(eye(2)).err().expect("no such function").to_string();
    assert!(error.contains("lapack_spotrf_ffi"), "{error}");
    Ok(())
}

/// A function of sizes that are symbols travels for one size.
#[test]
fn symbols_become_numbers() -> Result<()> {
    setup();
    let v = values();
    let read = Exported::<(Array,), Array>::load(exported("sized.safetensors"))?;
    let x = &v["sized.in00"];
    assert!(allclose(read.call(x)?, &v["sized.out00"], 1e-6, 1e-6)?);
    let slope = grad(|x: Array| Ok(read.call(x)?.sum(..))).call(x)?;
    assert!(allclose(slope, 1.0 - x.tanh().square(), 1e-5, 1e-6)?);
    Ok(())
}

/// Damage anywhere is an error, or another function: never a panic. A file of JAX has no checksum.
#[test]
fn damaged_artifacts_of_jax() -> Result<()> {
    setup();
    type F = Exported<(Array,), Array>;
    for (name, step) in [("where", 1), ("trees", 7), ("sharded", 7)] {
        let bytes = std::fs::read(exported(&format!("{name}.jax"))).expect("the artifact");
        assert!(F::deserialize(&bytes).is_ok());
        let (mut refused, mut tried) = (0, 0);
        for at in (0..bytes.len()).step_by(step) {
            // The last bytes are zeros behind the last text.
            assert!(F::deserialize(&bytes[..at]).is_err() || at + 4 > bytes.len(), "{name}: cut at {at}");
            let mut changed = bytes.clone();
            changed[at] ^= [0xff, 1 << (at / 2 % 8)][at % 2];
            tried += 1;
            refused += usize::from(F::deserialize(&changed).is_err());
        }
        assert!(4 * refused > tried, "{name}: {refused} of {tried}");
    }
    let error = F::deserialize(&[7; 100]).err().expect("no function").to_string();
    assert!(error.contains("no exported function, of this library or of `jax.export`"), "{error}");
    Ok(())
}

/// What JAX exported for eight devices, as files of `tools/export`: by shardings and by `shard_map`.
#[test]
fn functions_that_jax_exported_for_many_devices() -> Result<()> {
    setup();
    let v = values();
    for name in ["sharded", "mapped"] {
        let read = Exported::<(Array, Array), Array>::load(exported(&format!("{name}.safetensors")))?;
        let raw = Exported::<(Array, Array), Array>::load(exported(&format!("{name}.jax")))?;
        let [x, w, want, slope] = ["in00", "in01", "out00", "slope01"].map(|kind| v[&format!("{name}.{kind}")].clone());
        for f in [&read, &raw] {
            assert_eq!(f.device_count(), 8);
            let got = f.call((&x, &w))?;
            assert!(allclose(&got, &want, 1e-5, 1e-6)?);
            assert_eq!(got.sharding()?.devices().len(), 8);
            let loss = |w: Array| Ok(f.call((&x, w))?.sum(..));
            assert!(allclose(jit(grad(loss)).call(&w)?, &slope, 1e-5, 1e-5)?);
        }
    }
    Ok(())
}

/// What is exported here runs in JAX, its gradient too.
#[test]
#[ignore = "needs the Python of tools/golden"]
fn jax_runs_what_is_exported_here() -> Result<()> {
    setup();
    let w = random::normal(random::key(0), [3]);
    let f = move |x: Array, n: Array| ((&x * &w).sin() * n).cumsum(1);
    let (x, n) = (random::normal(random::key(1), [4, 3]), array([2, 3, 4]));
    let want = f(x.clone(), n.clone());
    let slope = grad(|x: Array| f(x, n.clone()).square().sum(..)).call(&x)?;
    let folder = std::env::temp_dir().join(format!("shardax-export-jax-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    ExportOptions::new().vjp_order(1).export(f, (&x, &n))?.save(folder.join("f"))?;
    // For eight devices: by the compiler, and by `shard_map`.
    let mesh = make_mesh([("data", 4), ("model", 2)])?;
    let over = |spec| NamedSharding::new(&mesh, spec);
    let (y, w) = (random::normal(random::key(2), [8, 4]), random::normal(random::key(3), [4, 6]));
    let sharded = jit(|y: Array, w: Array| with_sharding_constraint(y.matmul(w), &over(P!["data", "model"])).tanh())
        .in_shardings((over(P!["data"]), over(P![None, "model"])));
    let body = |y: Array, w: Array| psum(y.matmul(w).sin().sum(0), "data");
    let mapped = shard_map(body, &mesh).in_specs((P!["data"], P![None, "model"])).out_specs(P!["model"]);
    let (of_sharded, of_mapped) = (sharded.call((&y, &w))?, mapped.call((&y, &w))?);
    let loss = |w: Array| Ok(mapped.call((&y, w))?.square().sum(..));
    let of_w = grad(loss).call(&w)?;
    ExportOptions::new().vjp_order(1).export(sharded, (&y, &w))?.save(folder.join("sharded"))?;
    ExportOptions::new().vjp_order(1).export(mapped, (&y, &w))?.save(folder.join("mapped"))?;
    let arrays = [("x", &x), ("want", &want), ("slope", &slope), ("y", &y), ("w", &w), ("of_w", &of_w)];
    for (name, values) in arrays.into_iter().chain([("of_sharded", &of_sharded), ("of_mapped", &of_mapped)]) {
        std::fs::write(folder.join(name), values.to_bytes()?).unwrap();
    }
    let program = r#"
import os, sys; sys.path.insert(0, sys.argv[1])
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import exchange, jax, jax.numpy as jnp, numpy as np
f = jax.jit(exchange.load(sys.argv[2] + "/f"))
x, want, slope = (np.fromfile(f"{sys.argv[2]}/{name}", np.float32).reshape(4, 3) for name in ["x", "want", "slope"])
n = np.array([2, 3, 4], np.int32)
np.testing.assert_allclose(f(x, n)[0], want, rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(jax.grad(lambda x: (f(x, n)[0] ** 2).sum())(x), slope, rtol=1e-5, atol=1e-6)
mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
over = lambda *axes: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
read = lambda name, *shape: np.fromfile(f"{sys.argv[2]}/{name}", np.float32).reshape(shape)
y, w = jax.device_put(read("y", 8, 4), over("data")), jax.device_put(read("w", 4, 6), over(None, "model"))
for name, want in [("sharded", read("of_sharded", 8, 6)), ("mapped", read("of_mapped", 6))]:
    f = jax.jit(exchange.load(f"{sys.argv[2]}/{name}"))
    out = f(y, w)[0]
    assert len(out.sharding.device_set) == 8, out.sharding
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)
slope = jax.jit(jax.grad(lambda w: (f(y, w)[0] ** 2).sum()))(w)
np.testing.assert_allclose(slope, read("of_w", 4, 6), rtol=1e-4, atol=1e-5)
"#;
    let python = std::env::var("SHARDAX_GOLDEN_PYTHON").expect("SHARDAX_GOLDEN_PYTHON names a Python that has JAX");
    let tools = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/export");
    let status = std::process::Command::new(python).args(["-c", program]).arg(tools).arg(&folder).status().unwrap();
    assert!(status.success());
    std::fs::remove_dir_all(&folder).unwrap();
    Ok(())
}
