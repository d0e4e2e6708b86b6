//! Functions that JAX exported, by `jax.export` or by `tools/export`.

use std::collections::BTreeMap;

use shardax::export::{ExportOptions, Exported, export};
use shardax::prelude::*;
use shardax::{control_flow, nn};

use crate::common::quick::{is_complete, one_of, setup};
use crate::same;

/// The folders of the files that JAX 0.12, 0.11 and 0.10.2 wrote.
const VERSIONS: [&str; 3] = ["jax_0_12/", "jax_0_11/", ""];

/// Returns the versions whose files are read: only the newest, unless all are requested.
pub(super) fn versions() -> impl Iterator<Item = &'static str> {
    VERSIONS.into_iter().step_by(one_of(VERSIONS.len()))
}

/// Runs `test` on the files of each version, and names the version in errors.
pub(super) fn for_each_version(test: impl Fn(&str) -> Result<()>) -> Result<()> {
    versions().try_for_each(|version| test(version).map_err(|error| error.context(version.to_owned())))
}

/// Returns the arrays that JAX 0.10.2 computed, by name.
fn values() -> BTreeMap<String, Array> {
    values_of("")
}

/// Returns the arrays that this version of JAX computed, by name.
pub(super) fn values_of(version: &str) -> BTreeMap<String, Array> {
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

pub(super) fn exported(file: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exported").join(file)
}

type Dict = BTreeMap<String, Array>;

/// Files of `tools/export` can be called, compiled into other functions, mapped over rows, and differentiated.
#[test]
fn functions_that_jax_exported() -> Result<()> {
    for_each_version(functions_that_jax_exported_of)
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
    // JAX exported this program with a loop for a single example; here it is mapped over a batch.
    let steps = Exported::<(Array, Array), (Array, Array)>::load(exported(&format!("{version}steps.safetensors")))?;
    let twice = stack(&[v["x"].clone(), v["x"].clone()], 0);
    let (last, sums) = jit(vmap(steps).in_axes((0, None))).call((twice, arange(0..5)))?;
    for row in 0..2 {
        assert!(allclose(last.get(row), &v["last"], 1e-5, 1e-6)?);
        assert!(allclose(sums.get(row), &v["sums"], 1e-5, 1e-5)?);
    }
    Ok(())
}

/// Compares a function of `jax.export` with JAX's numbers, leaf by leaf: called, inside of another program, and differentiated.
/// The number after an `@` in `name` selects the arguments.
fn artifact(name: &str) -> Result<()> {
    for_each_version(|version| artifact_of(version, name))
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
    // Types must be equal; values may differ as much as between versions of the compiler.
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
    // The function called inside of another program; in a slice, only if its gradient is no such program.
    let slopes = tensors_of("slope");
    let within = jit(|ins: Vec<Array>| Ok(read.call_leaves(&ins)?.into_iter().chain(ins).collect::<Vec<_>>()));
    if slopes.is_empty() || is_complete() {
        for (got, (i, want)) in within.call(ins.clone())?.iter().zip(&outs) {
            close(got, want, &format!("result {i} within another program"))?;
        }
    }
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

/// The files contain StableHLO 0.9 and 0.14, in the first and the fourth version of MLIR's bytecode.
#[test]
fn artifacts_of_earlier_versions() -> Result<()> {
    ["older", "middle"].into_iter().try_for_each(artifact)
}

/// The arguments of each call determine the symbolic sizes.
#[test]
fn artifacts_of_jax_with_symbolic_sizes() -> Result<()> {
    ["rows@0", "rows@1", "rows@2", "sizes@0", "sizes@1", "sized"].into_iter().try_for_each(artifact)
}

/// Calls of LAPACK become operations of shardax.
#[test]
fn artifacts_of_jax_with_decompositions() -> Result<()> {
    artifact("decompositions")
}

/// Functions of `jax.export` have Rust's structures as arguments and results, can be mapped over rows, and can be saved again.
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

/// Elements of 8 and fewer bits have the dtypes that JAX's file names by numbers.
#[test]
fn artifacts_of_jax_with_small_elements() -> Result<()> {
    for_each_version(artifacts_of_jax_with_small_elements_of)
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

/// A file for several platforms has a program for each of them. The error of a file that cannot be loaded says why, and what to do.
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

/// Functions have keys as arguments and results, although JAX's programs have the words of keys.
#[test]
fn functions_of_keys() -> Result<()> {
    for_each_version(functions_of_keys_of)
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
    // Files of this library have keys too.
    fn f(k: Array) -> (Array, Array) {
        (random::fold_in(&k, 1), random::uniform(k, ()))
    }
    let read = Exported::<(Array,), (Array, Array)>::deserialize(&export(f, random::key(0))?.serialize()?)?;
    let (next, drawn) = read.call(random::key(3))?;
    same(&next, &f(random::key(3)).0);
    same(&drawn, &f(random::key(3)).1);
    Ok(())
}

/// `tools/export` can save a function with symbolic sizes for one size.
#[test]
fn symbols_become_numbers() -> Result<()> {
    for_each_version(symbols_become_numbers_of)
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

/// Returns the number of lines of this file that an error names.
fn lines(error: &str) -> usize {
    error.lines().filter(|line| line.starts_with("  at ") && line.contains("tests/export/jax.rs")).count()
}

/// Each call checks the constraints of symbolic sizes, and one file works for all sizes that satisfy them.
#[test]
fn symbolic_sizes_are_checked() -> Result<()> {
    for_each_version(symbolic_sizes_are_checked_of)
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

/// Named tuples, ordered dictionaries and keyword arguments become structs or maps with the same names.
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

/// If JAX computes with 64 bits, the index of the platform has 64 bits too.
#[test]
fn programs_for_several_platforms_with_64_bits() -> Result<()> {
    for_each_version(programs_for_several_platforms_with_64_bits_of)
}

fn programs_for_several_platforms_with_64_bits_of(version: &str) -> Result<()> {
    setup();
    let read = Exported::<(Array,), Array>::load(exported(&format!("{version}wide.jax")))?;
    assert_eq!(read.call(arange(0..3))?.to_vec::<i32>()?, [1, 2, 3]);
    Ok(())
}

/// A Pallas kernel is a call with a string of bytes for one platform. `platform_dependent` chooses between kernels and other code.
#[test]
fn kernels_of_pallas_and_their_stand_ins() -> Result<()> {
    for_each_version(kernels_of)
}

fn kernels_of(version: &str) -> Result<()> {
    setup();
    let load = |platform: &str| Exported::<(Array,), Array>::load(exported(&format!("{version}kernel_{platform}.jax")));
    let (tpu, cuda) = (load("tpu")?, load("cuda")?);
    let texts = [tpu.mlir_module("tpu"), cuda.mlir_module("cuda")].map(Option::unwrap_or_default);
    assert!(texts[0].contains("@tpu_custom_call") || texts[0].contains("\"tpu_custom_call\""), "{}", texts[0]);
    assert!(texts[1].contains("__gpu$xla.gpu.triton") && texts[1].contains("= \"ML\\EF"), "{}", texts[1]);

    // One program has the kernels for TPUs and GPUs and plain operations for CPU, and so does its gradient.
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

/// Errors of calls name the line of the user's program, and no other line.
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
