//! Primitives of another crate under every transformation, compared with the same functions made of operations.

use shardax::prelude::*;
use shardax::primitive::{Aval, Avals, Lowering, Primitive, Value, bind, bind1, smallvec};
use shardax_example_primitive::{split, stencil};

fn setup() {
    config::set_num_cpu_devices(8).expect("eight CPU devices");
}

/// The stencil, made of padding and slicing.
fn reference(x: Array, w: Array) -> Array {
    let n = x.shape()[x.ndim() - 1];
    let mut border = x.shape().to_vec();
    border[x.ndim() - 1] = 1;
    let zero = zeros(&border[..]).astype(x.dtype());
    let padded = concatenate(&[zero.clone(), x.clone(), zero], -1);
    let part = |k: usize| padded.get((Ellipsis, k..k + n)) * w.get(k);
    part(0) + part(1) + part(2)
}

fn ours(x: Array, w: Array) -> Array {
    stencil(x, w)
}

fn values() -> (Array, Array) {
    let x = (arange(0..48).astype(DType::F32) * 0.37).sin().reshape([6, 8]);
    (x, array([0.5f32, -2.0, 3.0]))
}

fn same(a: &Array, b: &Array) {
    assert_eq!(a.shape(), b.shape());
    let (a, b) = (a.to_vec::<f32>().expect("values"), b.to_vec::<f32>().expect("values"));
    for (i, (a, b)) in a.iter().zip(&b).enumerate() {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} is not {b} at {i}");
    }
}

#[test]
fn it_runs_at_once_and_compiled() -> Result<()> {
    setup();
    assert_eq!(stencil(array([1.0f32, 2.0, 3.0]), array([1.0f32, 10.0, 100.0])).to_vec::<f32>()?, [210.0, 321.0, 32.0]);
    let (x, w) = values();
    same(&stencil(&x, &w), &reference(x.clone(), w.clone()));
    same(&jit(ours).call((&x, &w))?, &reference(x.clone(), w.clone()));
    let program = make_program(ours, (&x, &w))?.to_string();
    assert!(program.contains("stencil a b"), "{program}");
    Ok(())
}

#[test]
fn it_is_differentiated_in_both_operands_and_twice() -> Result<()> {
    setup();
    let (x, w) = values();
    let loss = |f: fn(Array, Array) -> Array| move |x: Array, w: Array| (f(x, w).sin() * 3).sum(..);
    let gradients = |f| grad(loss(f)).argnums((Arg::<0>, Arg::<1>)).call((&x, &w));
    let (got, want) = (gradients(ours)?, gradients(reference)?);
    same(&got.0, &want.0);
    same(&got.1, &want.1);
    let compiled_gradients = |f| jit(grad(loss(f)).argnums((Arg::<0>, Arg::<1>))).call((&x, &w));
    same(&compiled_gradients(ours)?.1, &want.1);
    let forward = |f: fn(Array, Array) -> Array| jvp(f, (&x, &w), (&x * 2, &w + 1));
    same(&forward(ours)?.1, &forward(reference)?.1);
    let twice = |f: fn(Array, Array) -> Array| {
        let (x, row) = (x.clone(), x.get(0));
        hessian(move |w: Array| (f(x.clone(), w).sin() * &row).sum(..)).call(&w)
    };
    same(&twice(ours)?, &twice(reference)?);
    Ok(())
}

#[test]
fn it_is_batched_in_either_operand() -> Result<()> {
    setup();
    let (x, w) = values();
    let ws = stack(&[w.clone(), &w * 2, &w - 1], 0);
    let xs = stack(&[x.clone(), &x * 3, x.cos()], 1);
    for axes in [(Some(1), None), (None, Some(0)), (Some(1), Some(0))] {
        let x = if axes.0.is_some() { &xs } else { &x };
        let w = if axes.1.is_some() { &ws } else { &w };
        let mapped = |f: fn(Array, Array) -> Array| vmap(f).in_axes(axes).call((x, w));
        same(&mapped(ours)?, &mapped(reference)?);
        let slopes = |f: fn(Array, Array) -> Array| {
            let slope = grad(move |x: Array, w: Array| f(x, w).square().sum(..)).argnums((Arg::<0>, Arg::<1>));
            jit(vmap(slope).in_axes(axes)).call((x, w))
        };
        let (got, want) = (slopes(ours)?, slopes(reference)?);
        same(&got.0, &want.0);
        same(&got.1, &want.1);
    }
    Ok(())
}

/// Weights that are replicated get the sum of the devices' gradients.
#[test]
fn it_runs_and_is_differentiated_inside_shard_map() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 2)])?;
    let (x, w) = values();
    let expected = grad(|x: Array, w: Array| reference(x, w).square().sum(..)).argnums(Arg::<1>).call((&x, &w))?;
    let inside = shard_map(
        |x: Array, w: Array| {
            assert!(stencil(&x, &w).vma().contains("i".into()));
            grad(|x: Array, w: Array| stencil(x, w).square().sum(..)).argnums(Arg::<1>).call((x, w))
        },
        &mesh,
    )
    .in_specs((P!["i"], P![]))
    .out_specs(P![]);
    same(&inside.call((&x, &w))?, &expected);
    let outside = |x: Array, w: Array| -> Result<Array> {
        let blocks = shard_map(ours, &mesh).in_specs((P!["i"], P![])).out_specs(P!["i"]).call((x, w))?;
        Ok(blocks.square().sum(..))
    };
    same(&jit(grad(outside).argnums(Arg::<1>)).call((&x, &w))?, &expected);
    Ok(())
}

/// The compiler partitions the lowered operations, including along the stencil's dimension.
#[test]
fn it_is_split_over_devices_by_the_compiler() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 2), ("j", 4)])?.auto();
    let (x, w) = values();
    let split = device_put(&x, &NamedSharding::new(&mesh, P!["i", "j"]))?;
    let y = jit(ours).call((&split, &w))?;
    assert_eq!(y.sharding()?.spec()?, &P!["i", "j"]);
    same(&y, &reference(x, w));
    Ok(())
}

#[test]
fn a_primitive_sets_the_sharding_of_its_result() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 2), ("j", 4)])?;
    let x = arange(0..64).astype(DType::F32).reshape([8, 8]);
    let cut = {
        let mesh = mesh.clone();
        move |x: Array| split(x, &mesh, "j")
    };
    for y in [cut(x.clone()), jit(cut.clone()).call(&x)?] {
        assert_eq!(y.sharding()?.spec()?, &P!["j"]);
        assert_eq!(y.to_vec::<f32>()?, x.to_vec::<f32>()?);
    }
    let batched = jit(vmap(cut.clone()).in_axes((0,))).call(&x)?;
    assert_eq!(batched.sharding()?.spec()?, &P![None, "j"]);
    let slope = jit(grad(move |x: Array| (cut(x) * 2).sum(..))).call(&x)?;
    assert_eq!(slope.to_vec::<f32>()?, [2.0; 64]);
    let uneven = split(ones([6]), &mesh, "j").check().err().expect("six over four").to_string();
    assert!(uneven.contains("tests/primitive.rs"), "{uneven}");
    Ok(())
}

#[test]
fn errors_name_the_types_and_the_users_line() {
    setup();
    let line = line!() + 1;
    let wrong = stencil(ones([4]), ones([2]));
    let error = wrong.check().expect_err("two weights").to_string();
    assert!(error.contains("stencil got values float32[4] and weights float32[2]"), "{error}");
    assert!(error.contains(&format!("tests/primitive.rs:{line}:")), "{error}");
}

/// A primitive without optional rules, which are errors when they are needed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Bare {
    results: usize,
}

impl Primitive for Bare {
    fn name(&self) -> &'static str {
        "bare"
    }

    fn output_count(&self) -> usize {
        self.results
    }

    fn infer(&self, args: &[Aval]) -> Result<Avals> {
        Ok(smallvec![args[0].clone()])
    }

    fn lower(&self, _cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(args.to_vec())
    }
}

#[test]
fn missing_rules_are_errors() -> Result<()> {
    setup();
    let bare = |x: Array| bind1(Bare { results: 1 }, &[x]);
    assert_eq!(jit(bare).call(ones([2]))?.to_vec::<f32>()?, [1.0; 2]);
    let text = |r: Result<Array>| r.err().map(|e| e.to_string()).unwrap_or_default();
    let error = text(grad(move |x: Array| bare(x).sum(..)).call(ones([2])));
    assert!(error.contains("Differentiation rule for 'bare' not implemented"), "{error}");
    let error = text(vmap(bare).call(ones([2])));
    assert!(error.contains("Batching rule for 'bare' not implemented"), "{error}");
    let miscounted = bind(Bare { results: 2 }, &[ones([2])]);
    let error = miscounted[0].check().expect_err("two results, one type").to_string();
    assert!(error.contains("'bare' has 2 results, but its `infer` gave 1 types"), "{error}");
    Ok(())
}
