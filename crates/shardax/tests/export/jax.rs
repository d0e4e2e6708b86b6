//! To and from JAX: what its `export` and `tools/export` wrote, and what is written here for it.

use std::collections::BTreeMap;

use shardax::export::{ExportOptions, Exported, export};
use shardax::prelude::*;
use shardax::{config, control_flow, nn};

use crate::common::quick::{one_of, setup};
use crate::same;

/// The folders of files of JAX 0.12, 0.11 and 0.10.2.
const VERSIONS: [&str; 3] = ["jax_0_12/", "jax_0_11/", ""];

/// The versions whose files are read: only the newest, unless all are requested.
fn versions() -> impl Iterator<Item = &'static str> {
    VERSIONS.into_iter().step_by(one_of(VERSIONS.len()))
}

/// Arrays that JAX 0.10.2 computed, by name.
fn values() -> BTreeMap<String, Array> {
    values_of("")
}

/// Arrays that JAX computed, by name.
fn values_of(version: &str) -> BTreeMap<String, Array> {
    use safetensors::tensor::Dtype;
    let bytes = std::fs::read(exported(&format!("{version}values.safetensors"))).expect("the values");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    fn array((name, t): (String, safetensors::tensor::TensorView)) -> (String, Array) {
        let dtype = match t.dtype() {
            Dtype::F32 => DType::F32,
            Dtype::BF16 => DType::Bf16,
            Dtype::I32 => DType::I32,
            _ => DType::Bool,
        };
        (name, Array::from_bytes(t.data(), dtype, t.shape()).expect("an array"))
    }
    file.tensors().into_iter().map(array).collect()
}

fn exported(file: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exported").join(file)
}

type Dict = BTreeMap<String, Array>;

/// Files of JAX's `export` (`tools/export`): called, compiled into others, mapped over rows, and differentiated.
#[test]
fn functions_that_jax_exported() -> Result<()> {
    versions()
        .try_for_each(|version| functions_that_jax_exported_of(version).map_err(|e| e.context(version.to_owned())))
}

fn functions_that_jax_exported_of(version: &str) -> Result<()> {
    setup();
    let v = values_of(version);
    let p = Dict::from(["w", "b"].map(|name| (name.to_owned(), v[name].clone())));
    let mlp = Exported::<(Dict, Array), Dict>::load(exported(&format!("{version}mlp.safetensors")))?;
    let out = mlp.call((p.clone(), &v["x"]))?;
    assert!(allclose(&out["y"], &v["y"], 1e-6, 1e-6)?);
    assert!(allclose(&out["sum"], &v["sum"], 1e-5, 1e-6)?);
    same(&out["sorted"], &v["sorted"]);
    // Arguments as leaves are in JAX's order, which sorts the keys of a dictionary.
    let leaves = mlp.call_leaves(&[v["b"].clone(), v["w"].clone(), v["x"].clone()])?;
    let paths: Vec<_> = mlp.out_avals().map(|(path, _)| path).collect();
    assert_eq!(paths, [r#"["sorted"]"#, r#"["sum"]"#, r#"["y"]"#]);
    same(&leaves[2], &out["y"]);
    let loss = |p: Dict| Ok(mlp.call((p, &v["x"]))?["y"].get((.., 0)).sum(..));
    let slope = jit(grad(loss)).call(p.clone())?;
    assert!(allclose(&slope["w"], &v["slope.w"], 1e-5, 1e-6)?);
    assert!(allclose(&slope["b"], &v["slope.b"], 1e-5, 1e-6)?);
    // A program with a loop, batched here, although JAX exported it without a batch.
    let steps = Exported::<(Array, Array), (Array, Array)>::load(exported(&format!("{version}steps.safetensors")))?;
    let twice = stack(&[v["x"].clone(), v["x"].clone()], 0);
    let (last, sums) = jit(vmap(steps).in_axes((0, None))).call((twice, arange(0..5)))?;
    for row in 0..2 {
        assert!(allclose(last.get(row), &v["last"], 1e-5, 1e-6)?);
        assert!(allclose(sums.get(row), &v["sums"], 1e-5, 1e-5)?);
    }
    Ok(())
}

/// Files of `jax.export` give JAX's numbers, leaf by leaf: called, within another program, and differentiated. The part
/// that follows an `@` numbers the arguments.
fn artifact(name: &str) -> Result<()> {
    versions().try_for_each(|version| artifact_of(version, name).map_err(|e| e.context(version.to_owned())))
}

fn artifact_of(version: &str, name: &str) -> Result<()> {
    setup();
    let v = values_of(version);
    let file = name.split('@').next().unwrap_or(name);
    let read = Exported::<(Array,), Array>::load(exported(&format!("{version}{file}.jax")))?;
    let tensors_of = |kind: &str| -> Vec<(usize, Array)> {
        let prefix = format!("{name}.{kind}");
        let tensors = v.iter().filter_map(|(key, x)| Some((key.strip_prefix(&prefix)?.parse().ok()?, x.clone())));
        tensors.collect()
    };
    // Types must be equal; values may differ as much as those of another compiler version.
    let close = |got: &Array, want: &Array, what: &str| -> Result<()> {
        assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()), "{name}: {what}");
        fn wide(x: &Array) -> Array {
            if x.dtype() == DType::Bool { x.astype(DType::I32) } else { x.clone() }
        }
        assert!(allclose(wide(got), wide(want), 1e-5, 1e-5)?, "{name}: {what}\n{got}\n{want}");
        Ok(())
    };
    let ins: Vec<Array> = tensors_of("in").into_iter().map(|(_, x)| x).collect();
    let outs = tensors_of("out");
    for (got, (i, want)) in read.call_leaves(&ins)?.iter().zip(&outs) {
        close(got, want, &format!("result {i}"))?;
    }
    // The function called inside of another program.
    let within = jit(|ins: Vec<Array>| Ok(read.call_leaves(&ins)?.into_iter().chain(ins).collect::<Vec<_>>()));
    for (got, (i, want)) in within.call(ins.clone())?.iter().zip(&outs) {
        close(got, want, &format!("result {i} within another program"))?;
    }
    let slopes = tensors_of("slope");
    assert_eq!((read.has_vjp(), outs.is_empty()), (!slopes.is_empty(), false), "{name}");
    if slopes.is_empty() {
        return Ok(());
    }
    let moving: Vec<Array> = slopes.iter().map(|(i, _)| ins[*i].clone()).collect();
    // Gradients with respect to the arguments for which JAX wrote them: the sum of all floating-point results.
    let loss = |moving: Vec<Array>| -> Result<Array> {
        let mut arguments = ins.clone();
        slopes.iter().zip(moving).for_each(|((i, _), x)| arguments[*i] = x);
        let outs = read.call_leaves(&arguments)?;
        let sums = outs.into_iter().filter(|x| x.dtype().is_inexact()).map(|x| x.astype(DType::F32).sum(..));
        Ok(sums.fold(array(0.0f32), |arguments, one| arguments + one))
    };
    for (got, (i, want)) in jit(grad(loss)).call(moving)?.iter().zip(&slopes) {
        close(got, want, &format!("slope of argument {i}"))?;
    }
    Ok(())
}

#[test]
fn artifacts_of_jax() -> Result<()> {
    ["mlp", "trees", "net", "steps", "where", "sharded", "mapped", "meshes", "turned"]
        .into_iter()
        .try_for_each(artifact)
}

#[test]
fn artifacts_of_jax_with_all_kinds_of_operations() -> Result<()> {
    ["operations", "placed", "alone", "seldom"].into_iter().try_for_each(artifact)
}

/// Of StableHLO 0.9 and 0.14, in the first and the fourth version of MLIR's bytecode.
#[test]
fn artifacts_of_earlier_versions() -> Result<()> {
    ["older", "middle"].into_iter().try_for_each(artifact)
}

/// Symbolic sizes get their values from each call.
#[test]
fn artifacts_of_jax_with_symbolic_sizes() -> Result<()> {
    ["rows@0", "rows@1", "rows@2", "sizes@0", "sizes@1", "sized"].into_iter().try_for_each(artifact)
}

/// JAX's calls of LAPACK are read as operations.
#[test]
fn artifacts_of_jax_with_decompositions() -> Result<()> {
    artifact("decompositions")
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

    // Lists, tuples, dictionaries and `None` become Rust's structures with the same children.
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

/// Elements of 8 bits and fewer, each as JAX numbers it.
#[test]
fn artifacts_of_jax_with_small_elements() -> Result<()> {
    versions().try_for_each(|version| {
        artifacts_of_jax_with_small_elements_of(version).map_err(|e| e.context(version.to_owned()))
    })
}

fn artifacts_of_jax_with_small_elements_of(version: &str) -> Result<()> {
    setup();
    let read = Exported::<(Array,), Array>::load(exported(&format!("{version}small.jax")))?;
    let types: Vec<DType> = read.in_avals().map(|(_, aval)| aval.dtype).collect();
    let names: Vec<String> = types.iter().map(DType::to_string).collect();
    assert_eq!(
        (names.len(), names[0].as_str(), names[3].as_str(), names[10].as_str()),
        (11, "int4", "float8_e4m3fn", "float4_e2m1fn")
    );
    let ones: Vec<Array> = types.iter().map(|dtype| ones_dtype([2], *dtype)).collect();
    for (out, dtype) in read.call_leaves(&ones)?.iter().zip(types) {
        assert_eq!((out.dtype(), out.to_f64_vec()?), (dtype, vec![2.0, 2.0]));
    }
    Ok(())
}

/// A file for several platforms runs on each of them; a file that cannot run here says why, and what to do.
#[test]
fn artifacts_of_jax_that_are_rejected() -> Result<()> {
    setup();
    for version in versions() {
        let place = Exported::<(Array,), Array>::load(exported(&format!("{version}where.jax")))?;
        assert_eq!(place.platforms().collect::<Vec<_>>(), ["cpu", "tpu"]);
        assert_ne!(place.mlir_module("cpu"), place.mlir_module("tpu"));
        for (name, parts) in [
            ("custom", ["the type \"Box\" has no counterpart in Rust", "dictionaries, named tuples, tuples and lists"]),
            ("lapack", ["lapack_sgeev_ffi", "`triangular_solve`"]),
            ("keys_rbg", ["element type key<rbg>", "key_data"]),
        ] {
            let file = exported(&format!("{version}{name}.jax"));
            let error = Exported::<(Array,), Array>::load(file).err().expect(name).to_string();
            parts.iter().for_each(|part| assert!(error.contains(part), "{version}{name}: {error}"));
        }
    }
    Ok(())
}

/// JAX's programs take and give keys as their words: the functions, keys.
#[test]
fn functions_of_keys() -> Result<()> {
    versions().try_for_each(|version| functions_of_keys_of(version).map_err(|e| e.context(version.to_owned())))
}

fn functions_of_keys_of(version: &str) -> Result<()> {
    setup();
    let read = Exported::<(Array,), (Array, Array)>::load(exported(&format!("{version}keys.jax")))?;
    assert_eq!(read.in_avals().next().map(|(_, aval)| aval.to_string()).as_deref(), Some("key<fry>[]"));
    let (drawn, keys) = read.call(random::key(7))?;
    same(&drawn, &random::normal(random::key(7), [2]));
    same(&random::key_data(keys), &random::key_data(random::split(random::key(7), 3)));
    let rows = vmap(|k: Array| read.call(k)).call(random::split(random::key(7), 2))?;
    same(&rows.1, &vmap(|k: Array| random::split(k, 3)).call(random::split(random::key(7), 2))?);
    // And back from a file of this library.
    fn f(k: Array) -> (Array, Array) {
        (random::fold_in(&k, 1), random::uniform(k, ()))
    }
    let read = Exported::<(Array,), (Array, Array)>::deserialize(&export(f, random::key(0))?.serialize()?)?;
    let (next, drawn) = read.call(random::key(3))?;
    same(&next, &f(random::key(3)).0);
    same(&drawn, &f(random::key(3)).1);
    Ok(())
}

/// A function of sizes that are symbols travels for one size.
#[test]
fn symbols_become_numbers() -> Result<()> {
    versions().try_for_each(|version| symbols_become_numbers_of(version).map_err(|e| e.context(version.to_owned())))
}

fn symbols_become_numbers_of(version: &str) -> Result<()> {
    setup();
    let v = values_of(version);
    let read = Exported::<(Array,), Array>::load(exported(&format!("{version}sized.safetensors")))?;
    let x = &v["sized.in00"];
    assert!(allclose(read.call(x)?, &v["sized.out00"], 1e-6, 1e-6)?);
    let slope = grad(|x: Array| Ok(read.call(x)?.sum(..))).call(x)?;
    assert!(allclose(slope, 1.0 - x.tanh().square(), 1e-5, 1e-6)?);
    Ok(())
}

/// The number of lines of the user's program that an error names.
fn lines(error: &str) -> usize {
    error.lines().filter(|line| line.starts_with("  at ") && line.contains("tests/export/jax.rs")).count()
}

/// Constraints of symbolic sizes are checked for the sizes of a call; one file serves all sizes that fit.
#[test]
fn symbolic_sizes_are_checked() -> Result<()> {
    versions().try_for_each(|version| symbolic_sizes_are_checked_of(version).map_err(|e| e.context(version.to_owned())))
}

fn symbolic_sizes_are_checked_of(version: &str) -> Result<()> {
    setup();
    type Sizes = Exported<(Array, Array, Array), Array>;
    let read = Sizes::load(exported(&format!("{version}sizes.jax")))?;
    let text = format!("{read:?}");
    assert!(text.contains("argument[0]: float32[b,c]") && text.contains("argument[1]: float32[b*c]"), "{text}");
    fn call(b: usize, c: usize, bc: usize, read: &Exported<(Array, Array, Array), Array>) -> String {
        let args = [ones([b, c]), ones([bc]), arange(0..b as i32)];
        read.call_leaves(&args).err().map_or_else(String::new, |e| e.to_string())
    }
    // Sizes that violate each of the constraints of the file: a quotient with a remainder, and two lower bounds. The
    // versions of JAX word them differently.
    for ([b, c, bc], parts) in [
        ([3, 3, 8], ["division had remainder", "args[1]"]),
        ([7, 3, 21], ["2*c - b", "but found -1"]),
        ([1, 3, 3], ["b - 2", "found -1"]),
    ] {
        let error = call(b, c, bc, &read);
        let is_expected = parts.iter().any(|part| error.to_lowercase().contains(&part.to_lowercase()));
        assert!(is_expected && lines(&error) == 1 && !error.contains("src/"), "{error}");
    }
    let error = read.call((ones([3]), ones([9]), arange(0..3))).err().expect("other rank").to_string();
    assert!(error.contains("argument[0] must have type float32[b,c], got float32[3]") && lines(&error) == 1, "{error}");
    let again = Sizes::deserialize(&read.serialize()?)?;
    let args = [ones([2, 2]), ones([4]), arange(0..2)];
    same(&again.call_leaves(&args)?[0], &read.call_leaves(&args)?[0]);
    Ok(())
}

/// Named tuples, ordered dictionaries and arguments by name are structs or maps of those names.
#[test]
fn parts_by_name() -> Result<()> {
    setup();
    #[derive(Clone, Tree)]
    struct Bounds {
        high: Array,
        low: Array,
    }
    #[derive(Clone, Tree)]
    struct Pair {
        low: Array,
        high: Array,
    }
    #[derive(Clone, Tree)]
    struct Options {
        scale: f32,
    }
    let parts =
        || Dict::from([("first".to_owned(), ones([3])), ("second".to_owned(), arange(0..2).astype(DType::F32))]);
    let bounds = Bounds { high: ones([2]), low: arange(0..3).astype(DType::F32) };
    let scale = || Dict::from([("scale".to_owned(), array(2.0f32))]);
    // Children are found by their names, so their order in the struct does not matter.
    let read = Exported::<(Bounds, Dict, Dict), (Pair, Dict)>::load(exported("named.jax"))?;
    let (pair, rest) = read.call((bounds.clone(), parts(), scale()))?;
    for version in versions().filter(|version| !version.is_empty()) {
        let newer = Exported::<(Bounds, Dict, Dict), (Pair, Dict)>::load(exported(&format!("{version}named.jax")))?;
        same(&newer.call((bounds.clone(), parts(), scale()))?.0.low, &pair.low);
    }
    assert_eq!((pair.low.to_vec::<f32>()?, pair.high.to_vec::<f32>()?), (vec![0.0, 2.0, 4.0], vec![-1.0, -1.0]));
    assert_eq!((rest["z"].item::<f32>()?, rest["a"].to_vec::<f32>()?), (3.0, vec![0.0, 2.0]));
    let paths: Vec<_> = read.in_avals().map(|(path, _)| path).collect();
    let leaf_paths = [r#"[0]["low"]"#, r#"[0]["high"]"#, r#"[1]["second"]"#, r#"[1]["first"]"#, r#"[2]["scale"]"#];
    assert_eq!(paths, leaf_paths);
    // A struct with the same number of children but other names is rejected.
    let wrong = Exported::<(Dict, Dict, Options), (Pair, Dict)>::load(exported("named.jax"))?;
    let error = wrong.call((parts(), parts(), Options { scale: 2.0 })).err().expect("other names").to_string();
    assert!(error.contains("different structure"), "{error}");
    Ok(())
}

/// A little-endian number in a file.
fn word_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

/// Files of JAX before 0.10.1 say shardings in their programs alone: here the tables of a later one are taken out.
#[test]
fn shardings_of_older_files() -> Result<()> {
    setup();
    let mut bytes = std::fs::read(exported("sharded.jax")).expect("the artifact");
    let root = word_at(&bytes, 0);
    let fields = root - word_at(&bytes, root);
    for field in [20, 21, 24, 25] {
        let slot = fields + 4 + 2 * field;
        bytes[slot..slot + 2].fill(0);
    }
    let [old, new] = [&bytes, &std::fs::read(exported("sharded.jax")).expect("the artifact")]
        .map(|bytes| Exported::<(Array, Array), Array>::deserialize(bytes));
    let args = (ones([8, 4]), ones([4, 6]));
    let (old, new) = (old?.call(args.clone())?, new?.call(args)?);
    assert_eq!(
        old.sharding()?.as_named().map(|s| s.spec().clone()),
        new.sharding()?.as_named().map(|s| s.spec().clone())
    );
    assert_eq!(old.global_shards()?.len(), 8);
    same(&old, &new);
    Ok(())
}

/// A program with a mesh runs on any devices of its number, in any order: the devices of the context mesh, or of its arguments.
#[test]
fn programs_run_on_the_devices_that_are_asked_for() -> Result<()> {
    setup();
    let read = Exported::<(Array, Array), Array>::load(exported("sharded.jax"))?;
    let (x, w) = (random::normal(random::key(0), [8, 4]), random::normal(random::key(1), [4, 6]));
    let want = read.call((&x, &w))?;
    let devices: Vec<_> = devices()?.into_iter().rev().collect();
    let mesh = Mesh::new(devices.clone(), [("data", 4), ("model", 2)])?;
    let other_mesh = Mesh::new(devices, [("rows", 8)])?;
    // The context mesh decides, if there is one, and otherwise the devices of the first argument.
    {
        let _mesh = set_mesh(&mesh)?;
        let got = read.call((&x, &w))?;
        assert_eq!(got.sharding()?.as_named().map(|s| s.mesh().clone()), Some(mesh.clone()));
        same(&got, &want);
    }
    for placed in [NamedSharding::new(&mesh, P!["data"]), NamedSharding::new(&other_mesh, P!["rows"])] {
        let got = read.call((device_put(&x, &placed)?, &w))?;
        assert_eq!(got.sharding()?.devices().first(), mesh.devices().first());
        same(&got, &want);
    }
    let single = Exported::<(Array,), Array>::load(exported("alone.jax"))?;
    let x = device_put(&arange(0..4).astype(DType::F32), &mesh.devices()[1].clone())?;
    let got = single.call(&x)?;
    assert_eq!(got.to_vec::<f32>()?, [0.0, 2.0, 4.0, 6.0]);
    assert_eq!(got.sharding()?.devices(), x.sharding()?.devices());
    Ok(())
}

/// Where JAX computes with 64 bits the platform's number has them too.
#[test]
fn programs_for_several_platforms_with_64_bits() -> Result<()> {
    versions().try_for_each(|version| {
        programs_for_several_platforms_with_64_bits_of(version).map_err(|e| e.context(version.to_owned()))
    })
}

fn programs_for_several_platforms_with_64_bits_of(version: &str) -> Result<()> {
    setup();
    let read = Exported::<(Array,), Array>::load(exported(&format!("{version}wide.jax")))?;
    assert_eq!(read.call(arange(0..3))?.to_vec::<i32>()?, [1, 2, 3]);
    Ok(())
}

/// Damage anywhere is an error, or another function: never a panic. A file of JAX has no checksum.
#[test]
fn damaged_artifacts_of_jax() -> Result<()> {
    setup();
    type F = Exported<(Array,), Array>;
    for (name, step) in [("where", 5), ("trees", 31), ("sharded", 31)] {
        let bytes = std::fs::read(exported(&format!("{name}.jax"))).expect("the artifact");
        assert!(F::deserialize(&bytes).is_ok());
        let (mut rejected, mut tried) = (0, 0);
        for at in (0..bytes.len()).step_by(step * one_of(4)) {
            // The last bytes are zeros behind the last text.
            assert!(F::deserialize(&bytes[..at]).is_err() || at + 4 > bytes.len(), "{name}: cut at {at}");
            let mut changed = bytes.clone();
            changed[at] ^= [0xff, 1 << (at / 2 % 8)][at % 2];
            tried += 1;
            rejected += usize::from(F::deserialize(&changed).is_err());
        }
        assert!(4 * rejected > tried, "{name}: {rejected} of {tried}");
    }
    // Those of symbolic sizes, and calls of LAPACK, are read when they are called.
    fn sizes() -> Vec<Array> {
        vec![ones([3, 4]), ones([12]), arange(0..3)]
    }
    fn matrices() -> Vec<Array> {
        vec![ones([2, 4, 4]), ones([2, 4, 3])]
    }
    for (name, step, args) in [("sizes", 1009, sizes()), ("decompositions", 2003, matrices())] {
        let bytes = std::fs::read(exported(&format!("{name}.jax"))).expect("the artifact");
        for at in (0..bytes.len()).step_by(step) {
            let mut changed = bytes.clone();
            changed[at] ^= [0xff, 1 << (at / 2 % 8)][at % 2];
            if let Ok(read) = F::deserialize(&changed) {
                drop(jit(|args: Vec<Array>| read.call_leaves(&args)).lower(args.clone()));
            }
        }
    }
    // A tree whose tables are shared is no larger than the file: here 30 tuples of two, each of which is the next one twice.
    let bytes = std::fs::read(exported("where.jax")).expect("the artifact");
    fn word(at: usize, bytes: &[u8]) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
    }
    let fields = (word(0, &bytes) - word(word(0, &bytes) as usize, &bytes)) as usize;
    let place = word(0, &bytes) as usize + usize::from(u16::from_le_bytes([bytes[fields + 12], bytes[fields + 13]]));
    let mut shared = bytes.clone();
    shared.resize(bytes.len().next_multiple_of(4), 0);
    let tables = shared.len();
    shared[place..place + 4].copy_from_slice(&((tables + 8 - place) as u32).to_le_bytes());
    for level in 0..30u32 {
        // The fields of the table: its kind, and its children, which are this far behind.
        [8u16, 12, 4, 8].iter().for_each(|n| shared.extend(n.to_le_bytes()));
        let (count, next) = if level < 29 { (2u32, [20, 16]) } else { (0, [0, 0]) };
        [8, 2, 4, count, next[0], next[1], 0].iter().for_each(|n| shared.extend(n.to_le_bytes()));
    }
    assert!(F::deserialize(&shared).is_err());
    let error = F::deserialize(&[7; 100]).err().expect("no function").to_string();
    assert!(error.contains("not an exported function, of this library or of `jax.export`"), "{error}");
    Ok(())
}

/// Functions that JAX exported for eight devices, as files of `tools/export`: by shardings and by `shard_map`.
#[test]
fn functions_that_jax_exported_for_many_devices() -> Result<()> {
    versions().try_for_each(functions_for_many_devices_of)
}

fn functions_for_many_devices_of(version: &str) -> Result<()> {
    setup();
    let v = values_of(version);
    for name in ["sharded", "mapped"] {
        let read = Exported::<(Array, Array), Array>::load(exported(&format!("{version}{name}.safetensors")))?;
        let raw = Exported::<(Array, Array), Array>::load(exported(&format!("{version}{name}.jax")))?;
        let [x, w, want, slope] = ["in00", "in01", "out00", "slope01"].map(|kind| v[&format!("{name}.{kind}")].clone());
        for f in [&read, &raw] {
            assert_eq!(f.device_count(), 8);
            let got = f.call((&x, &w))?;
            assert!(allclose(&got, &want, 1e-5, 1e-6)?);
            assert_eq!(got.sharding()?.devices().len(), 8);
            fn loss(w: Array, x: &Array, f: &Exported<(Array, Array), Array>) -> Result<Array> {
                Ok(f.call((x, w))?.sum(..))
            }
            assert!(allclose(jit(grad(|w: Array| loss(w, &x, f))).call(&w)?, &slope, 1e-5, 1e-5)?);
        }
    }
    Ok(())
}

/// Functions exported here run in JAX, with their gradients.
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
    let mesh = make_mesh([("data", 4), ("model", 2)])?.auto();
    fn over(spec: PartitionSpec, mesh: &Mesh) -> NamedSharding {
        NamedSharding::new(mesh, spec)
    }
    let (y, w) = (random::normal(random::key(2), [8, 4]), random::normal(random::key(3), [4, 6]));
    let sharded =
        jit(|y: Array, w: Array| with_sharding_constraint(y.matmul(w), &over(P!["data", "model"], &mesh)).tanh())
            .in_shardings((over(P!["data"], &mesh), over(P![None, "model"], &mesh)));
    fn body(y: Array, w: Array) -> Array {
        psum(y.matmul(w).sin().sum(0), "data")
    }
    let mapped = shard_map(body, &mesh).in_specs((P!["data"], P![None, "model"])).out_specs(P!["model"]);
    let (of_sharded, of_mapped) = (sharded.call((&y, &w))?, mapped.call((&y, &w))?);
    let loss = |w: Array| Ok(mapped.call((&y, w))?.square().sum(..));
    let of_w = grad(loss).call(&w)?;
    ExportOptions::new().vjp_order(1).export(sharded, (&y, &w))?.save(folder.join("sharded"))?;
    ExportOptions::new().vjp_order(1).export(mapped, (&y, &w))?.save(folder.join("mapped"))?;
    // Any number of rows.
    fn open(x: Array, n: Array) -> (Array, Array) {
        (x.mean(0) * n, concatenate([&x, &x], 0).reshape([-1]))
    }
    let types = (shape_dtype_struct([2, 3], DType::F32), shape_dtype_struct([3], DType::I32));
    let options = ExportOptions::new().vjp_order(1).symbolic_args_specs(["b, _", "..."]);
    options.export(open, types)?.save(folder.join("open"))?;
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
g = exchange.load(sys.argv[2] + "/open")
for rows in [1, 4, 700]:
    x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    mean, twice = jax.jit(g)(x, n)
    np.testing.assert_allclose(mean, x.mean(0) * n, rtol=1e-5)
    np.testing.assert_array_equal(twice, np.concatenate([x, x]).reshape(-1))
    slope = jax.grad(lambda x: g(x, n)[0].sum())(x)
    np.testing.assert_allclose(slope, np.broadcast_to(n / np.float32(rows), x.shape), rtol=1e-5)
for wrong in [(0, 3), (65537, 3), (4, 4), (4,)]:
    try:
        g(np.zeros(wrong, np.float32), n)
    except ValueError as error:
        assert "takes" in str(error)
    else:
        raise AssertionError(wrong)
mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
|spec| over(spec, &mesh) = lambda *axes: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
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
    let python =
        std::env::var("SHARDAX_TEST_GOLDEN_PYTHON").expect("SHARDAX_TEST_GOLDEN_PYTHON names a Python that has JAX");
    let tools = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/export");
    let status = std::process::Command::new(python).args(["-c", program]).arg(tools).arg(&folder).status().unwrap();
    assert!(status.success());
    std::fs::remove_dir_all(&folder).unwrap();
    Ok(())
}

#[test]
#[ignore = "needs a Python that has JAX"]
fn attributes_of_vhlo_are_those_of_mlir() {
    let python =
        std::env::var("SHARDAX_TEST_GOLDEN_PYTHON").expect("SHARDAX_TEST_GOLDEN_PYTHON names a Python that has JAX");
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/export/vhlo.py");
    let status = std::process::Command::new(python).arg(script).status().expect("Python starts");
    assert!(status.success(), "the table in src/export/jax/operation.rs differs");
}

/// Kernels of Pallas are calls with strings of bytes, for one platform each; another platform has its own branch.
#[test]
fn kernels_of_pallas_and_their_stand_ins() -> Result<()> {
    versions().try_for_each(kernels_of)
}

fn kernels_of(version: &str) -> Result<()> {
    setup();
    let load = |platform: &str| Exported::<(Array,), Array>::load(exported(&format!("{version}kernel_{platform}.jax")));
    let (tpu, cuda) = (load("tpu")?, load("cuda")?);
    let texts = [tpu.mlir_module("tpu"), cuda.mlir_module("cuda")].map(Option::unwrap_or_default);
    assert!(texts[0].contains("@tpu_custom_call") || texts[0].contains("\"tpu_custom_call\""), "{}", texts[0]);
    assert!(texts[1].contains("__gpu$xla.gpu.triton") && texts[1].contains("= \"ML\\EF"), "{}", texts[1]);

    // On CPU the plain form, for TPUs and GPUs the kernel, in one program and in its gradient.
    let silu = move |x: Array| -> Result<Array> {
        let branches = (|x: Array| tpu.call(x), |x: Array| cuda.call(x), |x: Array| &x * nn::sigmoid(&x));
        control_flow::platform_dependent(["tpu", "cuda", "default"], branches, x)
    };
    let x = random::normal(random::key(0), [128, 256]);
    assert!(allclose(silu(x.clone())?, &x * nn::sigmoid(&x), 1e-6, 1e-6)?);
    let gradient = {
        let silu = silu.clone();
        jit(grad(move |x: Array| -> Result<Array> { Ok(silu(x)?.square().sum(..)) }))
    };
    let want = grad(|x: Array| (&x * nn::sigmoid(&x)).square().sum(..)).call(&x)?;
    assert!(allclose(gradient.call(&x)?, want, 1e-5, 1e-5)?);
    let for_three_platforms = ExportOptions::new().platforms(["cpu", "tpu", "cuda"]).export(silu, &x)?;
    for (platform, target) in [("cpu", None), ("tpu", Some("tpu_custom_call")), ("cuda", Some("__gpu$xla.gpu.triton"))]
    {
        let text = for_three_platforms.mlir_module(platform).unwrap_or_default();
        for known in ["tpu_custom_call", "__gpu$xla.gpu.triton"] {
            assert_eq!(text.contains(known), target == Some(known), "{platform}: {text}");
        }
    }
    Ok(())
}

/// Kernels of a program that is called with split arrays gather them, which a warning says.
#[test]
fn kernels_of_programs_on_split_arrays_warn() -> Result<()> {
    use std::sync::{Arc, Mutex};
    setup();
    let output = Arc::new(Mutex::new(String::new()));
    let log = output.clone();
    config::set_warning_hook(move |text| log.lock().expect("the log").push_str(text));
    let x = random::normal(random::key(0), [8, 4, 4]);
    let mesh = make_mesh([("data", 8)])?;
    let f = export(|x: Array| linalg::qr(x).1.abs(), &x)?;
    let want = f.call(&x)?;
    assert!(!output.lock().expect("the log").contains("kernels"));
    let got = f.call(device_put(&x, &NamedSharding::new(&mesh, P!["data"]))?)?;
    assert!(allclose(got, want, 1e-5, 1e-5)?);
    let text = output.lock().expect("the log").clone();
    assert!(text.contains("kernels Qr") && text.contains("shard_map") && text.contains("jax.rs"), "{text}");
    Ok(())
}

/// Errors of calls name the line of the user's program alone.
#[test]
fn errors_of_calls_name_the_users_line() -> Result<()> {
    setup();
    let sharded = Exported::<(Array, Array), Array>::load(exported("sharded.jax"))?;
    let open = Exported::<(Array, Array, Array), Array>::load(exported("sizes.jax"))?;
    let mesh = make_mesh([("a", 2)])?;
    let placed = device_put(&ones([8, 4]), &NamedSharding::new(&mesh, P!["a"]))?;
    let tpu = ExportOptions::new().platforms(["tpu"]).export(|x: Array| x.sin(), ones([2]))?;
    let errors = [
        sharded.call((ones([8, 5]), ones([4, 6]))).err(),
        sharded.call((&placed, ones([4, 6]))).err(),
        open.call((ones([3, 3]), ones([8]), arange(0..3))).err(),
        tpu.call(ones([2])).err(),
        jit(|x: Array| tpu.call(x)).call(ones([2])).err(),
    ];
    for error in errors {
        let error = error.expect("an error").to_string();
        let locations: Vec<_> = error.lines().filter(|line| line.trim_start().starts_with("at ")).collect();
        assert!(locations.len() == 1 && locations[0].contains("tests/export/jax.rs"), "{error}");
    }
    Ok(())
}
