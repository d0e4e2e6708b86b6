//! Exported functions: a function that is saved and loaded computes the same as before, in every transformation.

#[path = "../common/mod.rs"]
mod common;

mod jax;
mod jax_damage;
mod jax_devices;
mod mutants;
#[path = "../common/mutants.rs"]
mod mutating;
mod sizes;
mod to_jax;

use std::collections::BTreeMap;

use common::quick::setup;
use shardax::export::{ExportOptions, Exported, export};
use shardax::nn;
use shardax::prelude::*;
use shardax_alloc as _;

#[derive(Clone, Tree)]
struct Layer {
    kernel: Array,
    bias: Option<Array>,
    #[tree(static)]
    name: String,
}

#[derive(Clone, Tree)]
struct Model {
    layers: Vec<Layer>,
    scale: f32,
}

/// A layer with random weights from `n` to `m` features.
fn layer(seed: u64, n: usize, m: usize, bias: Option<Array>) -> Layer {
    Layer { kernel: random::normal(random::key(seed), [n, m]), bias, name: format!("layer {seed}") }
}

fn model() -> Model {
    Model { layers: vec![layer(0, 4, 3, Some(ones([3]))), layer(1, 3, 2, None)], scale: 0.5 }
}

fn forward(model: Model, x: Array) -> (Array, BTreeMap<String, Array>) {
    let mut x = x * model.scale;
    let mut activations = BTreeMap::new();
    for layer in model.layers {
        x = x.matmul(layer.kernel);
        if let Some(bias) = layer.bias {
            x = x + bias;
        }
        activations.insert(layer.name, x.clone());
        x = nn::gelu(x);
    }
    (x, activations)
}

fn same(a: &Array, b: &Array) {
    assert_eq!(a.to_bytes().unwrap(), b.to_bytes().unwrap());
}

type Forward = Exported<(Model, Array), (Array, BTreeMap<String, Array>)>;

/// Structures with maps, options, numbers and configuration are restored, and results have the same bits.
#[test]
fn trees_come_back() -> Result<()> {
    setup();
    let x = random::normal(random::key(2), [5, 4]);
    let bytes = export(forward, (model(), x.clone()))?.serialize()?;
    let read = Forward::deserialize(&bytes)?;
    let (want, all) = jit(forward).call((model(), x.clone()))?;
    let (got, seen) = read.call((model(), x.clone()))?;
    same(&got, &want);
    assert_eq!(seen.keys().collect::<Vec<_>>(), ["layer 0", "layer 1"]);
    all.iter().for_each(|(name, x)| same(x, &seen[name]));
    assert_eq!(read.in_avals().map(|(path, _)| path).last(), Some("[1]"));
    // A function that was read is written as the same file.
    assert_eq!(read.serialize()?, bytes);
    // The function inside of another function.
    let doubled = jit(|m: Model, x: Array| Ok(read.call((m, x * 2))?.0 * 3)).call((model(), x.clone()))?;
    let want = jit(|m: Model, x: Array| forward(m, x * 2).0 * 3).call((model(), x))?;
    assert!(allclose(doubled, want, 1e-6, 1e-6)?);
    Ok(())
}

/// A step returns the state that it took, configuration and all.
#[test]
fn states_come_back() -> Result<()> {
    setup();
    fn step(m: Model, x: Array) -> Result<(Model, Array)> {
        fn loss(m: Model, x: &Array) -> Array {
            forward(m, x.clone()).0.square().sum(..)
        }
        let (value, slope) = value_and_grad(|m: Model| loss(m, &x)).call(m.clone())?;
        Ok((tree::map2(|p, g| p - g * 0.1, m, slope)?, value))
    }
    let x = random::normal(random::key(2), [5, 4]);
    let (want, loss) = jit(step).call((model(), x.clone()))?;
    let bytes = export(step, (model(), x.clone()))?.serialize()?;
    let (got, value) = Exported::<(Model, Array), (Model, Array)>::deserialize(&bytes)?.call((model(), x))?;
    same(&value, &loss);
    assert_eq!((got.layers[1].name.as_str(), got.scale), ("layer 1", 0.5));
    tree::leaves(&got).iter().zip(tree::leaves(&want)).for_each(|(a, b)| same(a, &b));
    Ok(())
}

#[test]
fn gradients_of_any_order_that_was_asked_for() -> Result<()> {
    setup();
    let (w, n) = (array([0.5f32, -1.0, 2.0]), array([1, 2, 3]));
    let f = move |x: Array, n: Array| (x.pow(3) * &w).sin() * n;
    fn args(n: &Array) -> (Array, Array) {
        (array([0.1f32, 0.2, 0.3]), n.clone())
    }
    let loss = |x: Array| -> Result<Array> { Ok(f(x, n.clone()).sum(..)) };
    for order in 0..3 {
        let bytes = ExportOptions::new().vjp_order(order).export(&f, args(&n))?.serialize()?;
        let g = Exported::<(Array, Array), Array>::deserialize(&bytes)?;
        assert_eq!(g.has_vjp(), order > 0);
        fn total(x: Array, g: &Exported<(Array, Array), Array>, n: &Array) -> Result<Array> {
            Ok(g.call((x, n.clone()))?.sum(..))
        }
        // A derivative exists up to the order that was exported, and not beyond it.
        let first = grad(|x: Array| total(x, &g, &n)).call(args(&n).0);
        let second = jacrev(grad(|x: Array| total(x, &g, &n))).call(args(&n).0);
        assert_eq!((first.is_ok(), second.is_ok()), (order > 0, order > 1), "{order}: {first:?} {second:?}");
        if let Ok(first) = first {
            assert!(allclose(first, grad(loss).call(args(&n).0)?, 1e-5, 1e-6)?);
        }
        if let Ok(second) = second {
            assert!(allclose(second, jacrev(grad(loss)).call(args(&n).0)?, 1e-5, 1e-6)?);
        }
    }
    let forward = ExportOptions::new().vjp_order(1).export(&f, args(&n))?;
    let error = jvp(|x: Array| forward.call((x, n.clone())), args(&n).0, ones([3])).err().expect("no forward mode");
    assert!(error.to_string().contains("forward"), "{error}");
    Ok(())
}

#[test]
fn rows_one_after_the_other() -> Result<()> {
    setup();
    let w = array([0.5f32, -1.0, 2.0]);
    let f = move |x: Array, y: Array| (x * &w + y).sin().sum(..);
    let g = ExportOptions::new().vjp_order(1).export(&f, (ones([3]), array(1.0f32)))?;
    let xs = random::normal(random::key(0), [4, 3]);
    let (got, want) =
        (vmap(g.clone()).in_axes((0, None)).call((&xs, 1.0))?, vmap(&f).in_axes((0, None)).call((&xs, 1.0))?);
    assert!(allclose(got, want, 1e-6, 1e-6)?);
    fn slope(f: &dyn Fn(Array) -> Result<Array>, xs: &Array) -> Result<Array> {
        vmap(grad(f)).call(xs)
    }
    let got = slope(&|x: Array| g.call((x, array(1.0f32))), &xs)?;
    assert!(allclose(got, slope(&|x: Array| Ok(f(x, array(1.0f32))), &xs)?, 1e-6, 1e-6)?);
    Ok(())
}

/// Functions over eight devices, partitioned by the compiler or a `shard_map`, run by themselves and in a larger
/// program.
#[test]
fn programs_over_many_devices() -> Result<()> {
    setup();
    let mesh = make_mesh([("data", 4), ("model", 2)])?.auto();
    fn over(spec: PartitionSpec, mesh: &Mesh) -> NamedSharding {
        NamedSharding::new(mesh, spec)
    }
    let (x, w) = (random::normal(random::key(0), [8, 4]), random::normal(random::key(1), [4, 6]));
    fn f(x: Array, w: Array, mesh: &Mesh) -> Array {
        with_sharding_constraint(x.matmul(w), &over(P!["data", "model"], mesh)).tanh()
    }
    let jitted = jit(|x: Array, w: Array| f(x, w, &mesh))
        .in_shardings((over(P!["data"], &mesh), over(P![None, "model"], &mesh)));
    fn body(x: Array, w: Array) -> Array {
        psum(x.matmul(w).sum(0), "data")
    }
    let mapped = shard_map(body, &mesh).in_specs((P!["data"], P![None, "model"])).out_specs(P!["model"]);
    let (want, total) = (jitted.call((&x, &w))?, mapped.call((&x, &w))?);

    let bytes = (export(jitted, (&x, &w))?.serialize()?, export(mapped, (&x, &w))?.serialize()?);
    let single = Exported::<(Array, Array), Array>::deserialize(&bytes.0)?;
    let two = Exported::<(Array, Array), Array>::deserialize(&bytes.1)?;
    assert_eq!((single.device_count(), two.device_count()), (8, 8));
    assert!(allclose(single.call((&x, &w))?, &want, 1e-6, 1e-6)?);
    assert_eq!(single.call((&x, &w))?.sharding()?, want.sharding()?);
    assert!(allclose(two.call((&x, &w))?, &total, 1e-6, 1e-6)?);
    // Both exported functions inside one program, one of them twice.
    let combined =
        jit(|x: Array, w: Array| Ok((single.call((&x, &w))?.sum(0) + two.call((&x, &w))?) + two.call((x * 2, w))?));
    let got = combined.call((&x, &w))?;
    assert!(allclose(got, want.sum(0) + &total * 3, 1e-5, 1e-5)?);
    Ok(())
}

/// Random bits, loops, conditions and an exported function within an exported function.
#[test]
fn programs_within_programs() -> Result<()> {
    setup();
    let inner = export(|x: Array| (x.sin() + 1.0, x.sum(..)), ones([3]))?;
    fn f(key: Array, x: Array, inner: &Exported<(Array,), (Array, Array)>) -> Result<Array> {
        let noise = random::normal(&key, [3]);
        let (x, total) = inner.call(x + noise)?;
        let x = fori_loop(0, 3, |i: Array, x: Array| x * 1.5 + i, x)?;
        let (y, _) = inner.call(cond(total.greater(0.0), |x: Array| x * 2.0, |x: Array| -x, x)?)?;
        Ok(y.sort(0))
    }
    let (key, x) = (random::key(7), array([0.3f32, 0.2, 0.1]));
    let want = jit(|key: Array, x: Array| f(key, x, &inner)).call((&key, &x))?;
    let outer = export(|key: Array, x: Array| f(key, x, &inner), (&key, &x))?;
    let read = Exported::<(Array, Array), Array>::deserialize(&outer.serialize()?)?;
    assert!(allclose(read.call((&key, &x))?, &want, 1e-6, 1e-6)?);
    let again = Exported::<(Array,), Array>::deserialize(&export(|x: Array| read.call((&key, x)), &x)?.serialize()?)?;
    assert!(allclose(again.call(&x)?, &want, 1e-6, 1e-6)?);
    Ok(())
}

/// A program with functions of its own: values that grow from layer to layer, which are kept.
#[test]
fn deep_sums() -> Result<()> {
    setup();
    fn f(w: Array, x: Array) -> Array {
        let layer = |x: Array, _| {
            let scale = (x.square().mean_keepdims(-1) + 1.0).rsqrt();
            &x + (&x - x.mean_keepdims(-1)).matmul(&w).tanh() * scale
        };
        (0..4).fold(x, layer)
    }
    let (w, x) = (random::normal(random::key(0), [64, 64]) * 0.1, random::normal(random::key(1), [1, 64, 64]));
    let exported = export(f, (&w, &x))?;
    assert!(exported.mlir_module("cpu").is_some_and(|text| text.contains("inlineable")));
    let read = Exported::<(Array, Array), Array>::deserialize(&exported.serialize()?)?;
    // Twice in one program, next to values that the program stores.
    let twice = jit(|w: Array, x: Array| -> Result<Array> { read.call((&w, f(w.clone(), read.call((&w, x))?))) });
    let want = jit(|w: Array, x: Array| f(w.clone(), f(w.clone(), f(w, x)))).call((&w, &x))?;
    assert!(want.isfinite().all(..).item::<bool>()? && allclose(twice.call((&w, &x))?, &want, 1e-4, 1e-4)?);
    Ok(())
}

/// Every dtype as an argument, a captured array and a result.
#[test]
fn every_dtype() -> Result<()> {
    setup();
    for dtype in DType::ALL {
        let w = ones_dtype([2], dtype);
        let f = move |x: Array| (x.clone(), w.clone(), x);
        let x = zeros_dtype([2], dtype);
        let read = Exported::<(Array,), (Array, Array, Array)>::deserialize(&export(f, &x)?.serialize()?)?;
        let (a, b, _) = read.call(&x)?;
        same(&a, &x);
        same(&b, &ones_dtype([2], dtype));
        assert_eq!((a.dtype(), b.dtype()), (dtype, dtype));
    }
    Ok(())
}

/// For platforms that are not here; on one that it was not exported for it says so.
#[test]
fn other_platforms() -> Result<()> {
    setup();
    fn f(x: Array) -> Array {
        x.sin() * 2
    }
    let for_three_platforms = ExportOptions::new().platforms(["cpu", "tpu", "cuda"]).export(f, ones([2]))?;
    assert_eq!(for_three_platforms.platforms().collect::<Vec<_>>(), ["cpu", "cuda", "tpu"]);
    assert!(for_three_platforms.mlir_module("tpu").unwrap().contains("stablehlo.sine"));
    same(&for_three_platforms.call(ones([2]))?, &jit(f).call(ones([2]))?);
    let tpu = ExportOptions::new().platforms(["tpu"]).export(f, ones([2]))?;
    let error = tpu.call(ones([2])).err().expect("not for CPU").to_string();
    assert!(error.contains("was exported for tpu, but is called on CPU"), "{error}");
    let error = ExportOptions::new().platforms(["abacus"]).export(f, ones([2])).err().expect("no platform").to_string();
    assert!(error.contains("no platform is named \"abacus\""), "{error}");
    Ok(())
}

/// Asserts that the result is an error with these phrases.
fn assert_error_contains(result: Result<Array>, parts: &[&str]) {
    let error = result.err().expect("an error").to_string();
    parts.iter().for_each(|part| assert!(error.contains(part), "{error}\nlacks {part}"));
}

#[test]
fn mistakes_are_reported() -> Result<()> {
    setup();
    let exported = export(|m: Model, x: Array| forward(m, x).0, (model(), ones([5, 4])))?;
    assert_error_contains(
        exported.call((model(), ones([6, 4]))),
        &["argument[1] must have type float32[5,4], got float32[6,4]"],
    );
    let mut other_model = model();
    other_model.layers[0].bias = None;
    assert_error_contains(exported.call((other_model, ones([5, 4]))), &["different structure", "[0].layers[0].bias"]);
    let mut other_model = model();
    other_model.scale = 2.0;
    assert_error_contains(exported.call((other_model, ones([5, 4]))), &["different structure", "scale"]);
    fn printed(x: Array) -> Array {
        shardax::debug_print!("{x}");
        x
    }
    let error = export(printed, ones([2])).err().expect("a host function").to_string();
    assert!(error.contains("calls a host function") && error.contains("tests/export/main.rs"), "{error}");
    let no_vjp = grad(|x: Array| Ok(exported.call((model(), x))?.sum(..))).call(ones([5, 4]));
    assert_error_contains(no_vjp, &["exported without its derivative", "vjp_order(1)"]);
    Ok(())
}

/// The function after it was written and read again.
fn reloaded(exported: &Exported<(Array,), Array>) -> Result<Exported<(Array,), Array>> {
    Exported::deserialize(&exported.serialize()?)
}

/// Derivatives of several functions in one program, of the first and the second order, before and after they were read.
#[test]
fn derivatives_of_several_functions_are_their_own() -> Result<()> {
    setup();
    let x = random::normal(random::key(0), [3]);
    for open in [false, true] {
        let options = ExportOptions::new().vjp_order(2).symbolic_args_specs(open.then_some("b"));
        let f = options.clone().export(|x: Array| x.sin(), &x)?;
        let g = options.export(|x: Array| x.exp(), &x)?;
        for (f, g) in [(reloaded(&f)?, reloaded(&g)?), (f, g)] {
            fn sum(x: Array, f: &Exported<(Array,), Array>, g: &Exported<(Array,), Array>) -> Result<Array> {
                Ok((f.call(&x)? * g.call(&x)?).sum(..))
            }
            fn slope(x: Array, f: &Exported<(Array,), Array>, g: &Exported<(Array,), Array>) -> Result<Array> {
                Ok(grad(|x: Array| sum(x, f, g)).call(x)?.sum(..))
            }
            assert!(
                allclose(grad(|x: Array| sum(x, &f, &g)).call(&x)?, (x.sin() + x.cos()) * x.exp(), 1e-5, 1e-6)?,
                "{open}"
            );
            assert!(
                allclose(grad(|x: Array| slope(x, &f, &g)).call(&x)?, x.cos() * x.exp() * 2, 1e-4, 1e-5)?,
                "{open}"
            );
        }
    }
    Ok(())
}

/// A file that was changed anywhere, or cut off, is rejected; nothing panics.
#[test]
fn damaged_files_are_rejected() -> Result<()> {
    setup();
    let w = random::normal(random::key(0), [3]);
    let exported = ExportOptions::new().vjp_order(1).export(move |x: Array| x * &w, ones([3]))?;
    let bytes = exported.serialize()?;
    type F = Exported<(Array,), Array>;
    assert!(F::deserialize(&bytes).is_ok());
    for cut in (0..bytes.len()).step_by(37) {
        assert!(F::deserialize(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    for at in (0..bytes.len()).step_by(11) {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        if let Ok(read) = F::deserialize(&changed) {
            // A space for a space in the header, at most.
            assert_eq!(read.serialize()?, bytes, "a change at {at} is not seen");
        }
    }
    let folder = std::env::temp_dir().join(format!("shardax-export-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("f.safetensors");
    exported.save(&path)?;
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert_eq!(F::load(&path)?.call(zeros([3]))?.to_vec::<f32>()?, [0.0; 3]);
    let error = F::load(folder.join("none")).err().expect("no file").to_string();
    assert!(error.contains("none"), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
    Ok(())
}
