//! Costs that grow with the work and no faster: rules applied, equations visited, bytes written and programs compiled,
//! counted at n and at 2n.

#[path = "../../shardax/tests/common/mod.rs"]
mod common;

use std::cell::Cell;

use common::{quick, setup};
use shardax::prelude::*;
use shardax::primitive::{
    Aval, Avals, BatchAxis, Dims, Lowering, Operand, Outputs, Primitive, Tangents, Value, bind, bind1,
};

thread_local! {
    /// Rules of [`Counted`] that this thread applied.
    static RULES: Cell<usize> = const { Cell::new(0) };
}

/// Twice its operand. Counts its rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Counted;

impl Primitive for Counted {
    fn name(&self) -> &'static str {
        "counted"
    }

    fn infer(&self, args: &[Aval]) -> Result<Avals> {
        Ok([args[0].clone()].into_iter().collect())
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        RULES.set(RULES.get() + 1);
        Ok(vec![cx.op("stablehlo.add", &[args[0], args[0]], "", &outs[0])])
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        RULES.set(RULES.get() + 1);
        let tangent = tangents[0].as_ref().map(|t| bind1(Counted, std::slice::from_ref(t)));
        Ok((bind(Counted, args), vec![tangent]))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        RULES.set(RULES.get() + 1);
        Ok(vec![cts[0].as_ref().map(|ct| bind1(Counted, std::slice::from_ref(ct)))])
    }

    fn batch(&self, _axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        RULES.set(RULES.get() + 1);
        Ok((bind(Counted, args), dims.to_vec()))
    }

    fn in_sharding(&self, _operand: usize, _aval: &Aval) -> Option<Sharding> {
        RULES.set(RULES.get() + 1);
        None
    }
}

fn counted(x: &Array) -> Array {
    bind1(Counted, std::slice::from_ref(x))
}

/// The rules that `f` applies.
fn rules<R>(f: impl FnOnce() -> Result<R>) -> Result<usize> {
    let before = RULES.get();
    f()?;
    Ok(RULES.get() - before)
}

/// Fails where `cost` more than doubles from `n` to `2 * n`, up to a constant and the digits of numbers.
fn assert_linear(what: &str, n: usize, cost: impl Fn(usize) -> Result<usize>) -> Result<()> {
    let (once, twice) = (cost(n)?, cost(2 * n)?);
    assert!(once > 0, "{what}: nothing was counted at {n}");
    assert!(twice <= 2 * once + once / 10 + 8, "{what}: {once} at {n}, {twice} at {}", 2 * n);
    Ok(())
}

/// A conditional in a branch of a conditional, `depth` times. The other branches have another set of tangents, cotangents
/// and batched results.
fn nested_cond(depth: usize, x: Array, y: Array) -> Result<(Array, Array)> {
    if depth == 0 {
        return Ok((counted(&x), y));
    }
    let deeper = move |(x, y): (Array, Array)| nested_cond(depth - 1, counted(&x), y);
    cond(x.greater(0.0), deeper, |(_, y): (Array, Array)| (ones(()), y.sin()), (x, y))
}

#[test]
fn nested_conditionals_apply_each_rule_once() -> Result<()> {
    setup();
    fn args() -> (Array, Array) {
        (shape_dtype_struct((), DType::F32), shape_dtype_struct((), DType::F32))
    }
    let f = |depth| move |x: Array, y: Array| nested_cond(depth, x, y);
    let first = |depth| move |x: Array, y: Array| -> Result<Array> { Ok(nested_cond(depth, x, y)?.0) };
    assert_linear("gradient", 6, |depth| rules(|| make_program(grad(first(depth)), args())))?;
    assert_linear("forward mode", 6, |depth| {
        rules(|| make_program(move |x: Array, y: Array| jvp(f(depth), (&x, &y), (ones(()), ones(()))), args()))
    })?;
    fn rows() -> (Array, Array) {
        (shape_dtype_struct((), DType::Bool), shape_dtype_struct(4, DType::F32))
    }
    assert_linear("batches", 6, |depth| {
        rules(|| {
            make_program(vmap(move |flag: Array, x: Array| nested_of_flag(depth, flag, x)).in_axes((None, 0)), rows())
        })
    })
}

/// A conditional in a branch of a conditional, whose other branches have another set of batched results.
fn nested_of_flag(depth: usize, flag: Array, x: Array) -> Result<(Array, Array)> {
    if depth == 0 {
        return Ok((counted(&x), ones(())));
    }
    let deeper = move |(flag, x): (Array, Array)| nested_of_flag(depth - 1, flag, counted(&x));
    cond(&flag, deeper, |(_, x): (Array, Array)| (ones(()), x.sin()), (flag.clone(), x))
}

/// A loop in a loop, `depth` times. Each carry starts from a constant: that it has a tangent, or is batched, is found in
/// its first step.
fn nested_scan(depth: usize, x: Array) -> Result<Array> {
    if depth == 0 {
        return Ok(counted(&x));
    }
    let step = |carry: Array, y: Array| -> Result<(Array, ())> { Ok((nested_scan(depth - 1, &x * carry + y)?, ())) };
    Ok(scan(step, ones(()), ones([2]))?.0)
}

fn nested_while(depth: usize, x: Array) -> Result<Array> {
    if depth == 0 {
        return Ok(counted(&x));
    }
    let step =
        |(i, carry): (Array, Array)| -> Result<(Array, Array)> { Ok((i + 1, nested_while(depth - 1, &x * carry)?)) };
    Ok(while_loop(|(i, _): (Array, Array)| i.less(2), step, (Array::from(0), ones(())))?.1)
}

#[test]
fn nested_loops_apply_each_rule_once_a_pass() -> Result<()> {
    setup();
    fn scalar() -> Array {
        shape_dtype_struct((), DType::F32)
    }
    fn rows() -> Array {
        shape_dtype_struct(4, DType::F32)
    }
    let tangent = |f: fn(usize, Array) -> Result<Array>, depth: usize| {
        make_program(move |x: Array| jvp(move |x: Array| f(depth, x), x, ones(())), scalar())
    };
    let scans = |depth| move |x: Array| nested_scan(depth, x);
    let loops = |depth| move |x: Array| nested_while(depth, x);
    assert_linear("gradient of scan", 4, |depth| rules(|| make_program(grad(scans(depth)), scalar())))?;
    assert_linear("forward mode of scan", 4, |depth| rules(|| tangent(nested_scan, depth)))?;
    assert_linear("batches of scan", 4, |depth| rules(|| make_program(vmap(scans(depth)), rows())))?;
    assert_linear("forward mode of while", 4, |depth| rules(|| tangent(nested_while, depth)))?;
    assert_linear("batches of while", 4, |depth| rules(|| make_program(vmap(loops(depth)), rows())))?;
    let slope = jit(grad(scans(3))).call(Array::from(0.5f32))?.item::<f32>()?;
    fn value_at(x: f32) -> Result<f32> {
        nested_scan(3, Array::from(x))?.item::<f32>()
    }
    let difference = (value_at(0.5 + 1e-3)? - value_at(0.5 - 1e-3)?) / 2e-3;
    assert!((slope / difference - 1.0).abs() < 1e-2, "{slope} {difference}");
    Ok(())
}

/// A function that calls another one twice, which calls a third one twice, and so on.
fn nested_jit(depth: usize) -> impl Function<(Array,), Output = Array> + Clone {
    nested_jit_of(counted, depth)
}

fn nested_jit_of(leaf: fn(&Array) -> Array, depth: usize) -> impl Function<(Array,), Output = Array> + Clone {
    let mut f = jit_of(move |x: Array| leaf(&x));
    for _ in 1..depth {
        let inner = f.clone();
        f = jit_of(move |x: Array| inner(x.clone()) + inner(x + 1.0));
    }
    move |x: Array| f(x)
}

type Shared = std::sync::Arc<dyn Fn(Array) -> Array + Send + Sync>;

fn jit_of(f: impl Fn(Array) -> Array + Send + Sync + 'static) -> Shared {
    let f = jit(f);
    std::sync::Arc::new(move |x: Array| f.call(x).unwrap_or_else(|e| panic!("{e}")))
}

#[test]
fn nested_calls_are_written_once_a_function() -> Result<()> {
    setup();
    fn x() -> Array {
        shape_dtype_struct(4, DType::F32)
    }
    fn bytes(depth: usize) -> Result<usize> {
        Ok(jit(nested_jit(depth)).lower(x())?.as_text().len())
    }
    assert_linear("bytes of text", 12, bytes)?;
    assert_linear("rules", 12, |depth| rules(|| jit(nested_jit(depth)).lower(x())))?;
    let value = jit(nested_jit(4)).call(ones(4))?;
    let expected = nested_jit(4);
    let _eager = disable_jit();
    assert_eq!(value.to_vec::<f32>()?, expected.apply((ones(4),))?.to_vec::<f32>()?);
    Ok(())
}

#[test]
fn nested_calls_on_several_devices_are_written_once_a_function() -> Result<()> {
    setup();
    for mesh in [make_mesh([("x", 8)])?, make_mesh([("x", 8)])?.auto()] {
        let x = device_put(&arange(0.0f32..16.0), NamedSharding::new(&mesh, P!["x"]))?;
        let _context = set_mesh(&mesh)?;
        fn lowered(depth: usize, x: &Array) -> Result<Lowered<(Array,), Array>> {
            jit(nested_jit_of(Array::sin, depth + 8)).lower(x)
        }
        assert_linear("bytes of text", 10, |n| Ok(lowered(n, &x)?.as_text().len() - lowered(0, &x)?.as_text().len()))?;
        let compiled = lowered(0, &x)?.compile()?;
        assert_eq!(compiled.collectives()?.iter().count(), 0, "{mesh}");
        let expected = jit(nested_jit_of(Array::sin, 8)).call(arange(0.0f32..16.0))?.to_vec::<f32>()?;
        assert_eq!(compiled.call(&x)?.to_vec::<f32>()?, expected);
        let by_axis = shard_map(nested_jit_of(Array::sin, 16), &mesh).in_specs(P!["x"]).out_specs(P!["x"]);
        assert!(jit(by_axis).lower(&x)?.as_text().len() < 40_000);
    }
    Ok(())
}

#[test]
fn nested_calls_are_transformed_once_a_function() -> Result<()> {
    setup();
    fn x() -> Array {
        shape_dtype_struct(4, DType::F32)
    }
    fn rows() -> Array {
        shape_dtype_struct([3, 4], DType::F32)
    }
    let sum = |depth| {
        let f = nested_jit(depth);
        move |x: Array| -> Result<Array> { Ok(f.apply((x,))?.square().sum(..)) }
    };
    let tangent = |depth| {
        let f = nested_jit(depth);
        move |x: Array| jvp(f.clone(), &x, ones(4))
    };
    let slope_of_slope = |depth| {
        let slope = grad(sum(depth));
        grad(move |x: Array| -> Result<Array> { Ok(slope.call(x)?.square().sum(..)) })
    };
    assert_linear("gradient", 10, |depth| rules(|| jit(grad(sum(depth))).lower(x())))?;
    assert_linear("forward mode", 10, |depth| rules(|| jit(tangent(depth)).lower(x())))?;
    assert_linear("second derivative", 10, |depth| rules(|| jit(slope_of_slope(depth)).lower(x())))?;
    assert_linear("batches", 10, |depth| rules(|| jit(vmap(nested_jit(depth)).axis_name("i")).lower(rows())))?;
    assert_linear("batches of gradients", 10, |depth| rules(|| jit(vmap(grad(sum(depth)))).lower(rows())))?;
    assert_linear("gradients of batches", 10, |depth| {
        let f = vmap(nested_jit(depth));
        rules(|| jit(grad(move |x: Array| -> Result<Array> { Ok(f.call(x)?.sum(..)) })).lower(rows()))
    })?;
    assert_linear("gradient of checkpoint", 10, |depth| rules(|| jit(grad(checkpoint(sum(depth)))).lower(x())))?;
    // The first levels are written in place.
    let bytes = |depth: usize| -> Result<usize> { Ok(jit(grad(sum(depth + 8))).lower(x())?.as_text().len()) };
    assert_linear("bytes of a gradient", 20, |n| Ok(bytes(n)? - bytes(0)?))?;
    // Names of functions are as long as their depth.
    fn printed(depth: usize) -> Result<usize> {
        Ok(make_program(nested_jit(depth), x())?.to_string().lines().count())
    }
    assert_linear("printed lines", 10, printed)?;
    Ok(())
}

#[test]
fn transformed_calls_compute_the_derivatives_of_their_functions() -> Result<()> {
    setup();
    // Integers, an argument that no result depends on, and a result without a tangent.
    let mut f = jit_of_three(|x: Array, y: Array, n: Array| (x.sin() * &n, y * 2.0, n));
    for _ in 0..5 {
        let inner = f;
        f = jit_of_three(move |x: Array, y: Array, n: Array| {
            let (a, b, m) = inner(x.clone(), y, n);
            let (c, _, _) = inner(&a * 0.5, b.clone(), m.clone());
            (c + x * 0.25, b, m)
        });
    }
    let sum = move |x: Array, y: Array, n: Array| {
        let (a, b, m) = f(x.clone(), y, n);
        (a * m + b).sum(..) + x.sum(..)
    };
    fn args() -> (Array, Array, Array) {
        (array([0.3f32, -0.7]), array([1.5f32, 0.5]), Array::from(2))
    }
    let slopes = || grad(sum.clone()).argnums((Arg::<0>, Arg::<1>)).call(args());
    let tangents = || {
        let f = sum.clone();
        let twice = move |x: Array, y: Array| f(x, y, Array::from(2));
        jvp(twice, (args().0, args().1), (array([1.0f32, 0.5]), array([0.25f32, 2.0])))
    };
    let second = || {
        let f = sum.clone();
        jacfwd(grad(move |x: Array| f(x, args().1, Array::from(2)))).call(args().0)
    };
    let batched = || vmap(grad(sum.clone())).in_axes((0, None, None)).call((ones([3, 2]) * 0.3, args().1, args().2));
    let (calls, in_place) = ((slopes()?, tangents()?, second()?, batched()?), {
        let _in_place = disable_jit();
        (slopes()?, tangents()?, second()?, batched()?)
    });
    fn values(((a, b), (c, d), e, f): &((Array, Array), (Array, Array), Array, Array)) -> Result<Vec<f32>> {
        let results: Vec<Vec<f32>> = [a, b, c, d, e, f].iter().map(|x| x.to_vec::<f32>()).collect::<Result<_>>()?;
        Ok(results.concat())
    }
    let (calls, in_place) = (values(&calls)?, values(&in_place)?);
    for (a, b) in calls.iter().zip(&in_place) {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{calls:?} {in_place:?}");
    }
    Ok(())
}

/// The compiled text of a program of small arrays.
fn compiled_text<F: Function<(Array,)> + 'static>(f: F) -> Result<String> {
    jit(f).lower(shape_dtype_struct(4, DType::F32))?.compile()?.as_text()
}

fn count_operations(text: &str) -> usize {
    text.matches(" = ").count()
}

fn count_operands(function: &str) -> usize {
    function.matches(" parameter(").count()
}

#[test]
fn compiled_loops_are_bounded() -> Result<()> {
    setup();
    // Without bounds, the loop of each result computes all values before it again.
    let results = |n: usize| {
        move |x: Array| {
            fn step(x: &mut Array, _: usize) -> Option<Array> {
                Some((x.cos(), std::mem::replace(x, x.sin())).0)
            }
            (0..n).scan(x, step).collect::<Vec<_>>()
        }
    };
    assert_linear("operations of results", 100, |n| Ok(count_operations(&compiled_text(results(n))?)))?;
    // Functions of many operations, such as the bias correction of Adam, are computed once for all results.
    let functions: [(&str, fn(Array) -> Array); 4] = [
        ("expm1", |x| x.expm1()),
        ("digamma", |x| shardax::scipy::special::digamma(x)),
        ("erfc", |x| shardax::scipy::special::erfc(x)),
        ("polygamma", |x| shardax::scipy::special::polygamma(1, x)),
    ];
    for (name, function) in functions {
        let scaled = move |x: Array| (1..=40).map(|i| (&x + i) / function(x.get(0))).collect::<Vec<_>>();
        let operations = count_operations(&compiled_text(scaled)?);
        assert!(operations < 40 * 30, "{operations} operations of {name}");
    }
    let captured: Vec<Array> = (0..400).map(|i| ones(4) * i as f32).collect();
    let sum = move |x: Array| captured.iter().fold(x, |x, c| x * 0.5 + c);
    let text = compiled_text(sum.clone())?;
    let functions = text.split("\n}\n").filter(|function| !function.contains("ENTRY"));
    let most = functions.map(count_operands).max().unwrap_or(0);
    assert!((32..=64).contains(&most), "{most} operands");
    let value = jit(sum.clone()).call(ones(4))?.to_vec::<f32>()?;
    assert_eq!(value, sum(ones(4)).to_vec::<f32>()?);
    let values = jit(results(100)).call(ones(4) * 0.5)?;
    let last = (0..99).fold(0.5f64, |x, _| x.sin()).cos();
    assert!((f64::from(values[99].to_vec::<f32>()?[0]) - last).abs() < 1e-6);
    Ok(())
}

type SharedOfThree = std::sync::Arc<dyn Fn(Array, Array, Array) -> (Array, Array, Array) + Send + Sync>;

fn jit_of_three(f: impl Fn(Array, Array, Array) -> (Array, Array, Array) + Send + Sync + 'static) -> SharedOfThree {
    let f = jit(f);
    std::sync::Arc::new(move |x: Array, y: Array, n: Array| f.call((x, y, n)).unwrap_or_else(|e| panic!("{e}")))
}

#[test]
fn shardings_of_inputs_are_searched_once() -> Result<()> {
    setup();
    fn update(xs: Vec<Array>) -> Vec<Array> {
        xs.iter().map(counted).collect::<Vec<_>>()
    }
    assert_linear("leaves", 50, |n| rules(|| jit(update).lower(vec![shape_dtype_struct(4, DType::F32); n])))
}

/// The error of `vmap` for arrays of equal sizes except for one.
fn error_of_shapes(n: usize) -> String {
    let mut xs = vec![ones(4); n];
    xs[n / 2] = ones(3);
    vmap(|xs: Vec<Array>| xs).call(xs).expect_err("the sizes differ").to_string()
}

/// The error of `vmap` for arrays of different sizes.
fn error_of_sizes(n: usize) -> String {
    vmap(|xs: Vec<Array>| xs).call((1..=n).map(ones).collect::<Vec<_>>()).expect_err("sizes").to_string()
}

#[test]
fn errors_of_many_arguments_are_as_long_as_of_few() -> Result<()> {
    setup();
    // JAX 0.10.2: "most axes (999 of them) had size 4, e.g. axis 0 of argument a[0] of type float32[4]; one axis had
    // size 3: axis 0 of argument a[500] of type float32[3]".
    assert!(
        error_of_shapes(1000).contains(
            "most axes (999 of them) had size 4, for example axis 0 of argument[0][0] of type float32[4]; \
             one axis had size 3: axis 0 of argument[0][500] of type float32[3]"
        ),
        "{}",
        error_of_shapes(1000)
    );
    assert!(error_of_shapes(10_000).len() < error_of_shapes(100).len() + 10);
    assert!(error_of_sizes(400).len() < error_of_sizes(200).len() + 10, "{}", error_of_sizes(400));
    Ok(())
}

#[test]
fn slices_of_a_size_share_a_program() -> Result<()> {
    setup();
    fn programs(n: usize) -> Result<usize> {
        let x = block_until_ready(arange(0..3 * n as i32))?;
        let (parts, counts) = shardax::count(|| x.split(n, 0));
        for (i, part) in parts?.iter().enumerate() {
            let first = 3 * i as i32;
            assert_eq!(part.to_vec::<i32>()?, [first, first + 1, first + 2]);
        }
        Ok(counts.compilations as usize)
    }
    // One for the slice at the origin, and one for all others.
    assert_eq!((programs(20)?, programs(40)?), (2, 2));
    // Ranges of two dimensions, steps, narrow elements and keys.
    let x = arange(0..60).reshape([6, 10]);
    for first in 1..4 {
        assert_eq!(
            lax::slice(&x, &[first, 2], &[first + 2, 9], Some(&[1, 3])).to_vec::<i32>()?,
            [
                10 * first as i32 + 2,
                10 * first as i32 + 5,
                10 * first as i32 + 8,
                10 * first as i32 + 12,
                10 * first as i32 + 15,
                10 * first as i32 + 18
            ]
        );
    }
    let narrow = arange(0..8).astype(DType::I4);
    assert_eq!(narrow.get(3..6).astype(DType::I32).to_vec::<i32>()?, [3, 4, 5]);
    let keys = random::split(random::key(0), 5);
    let words = random::key_data(&keys).to_vec::<u32>()?;
    assert_eq!(random::key_data(&keys.get(2..4)).to_vec::<u32>()?, words[4..8]);
    // Bounds are checked as in a traced function.
    let outside = lax::slice(&x, &[5, 0], &[7, 10], None);
    assert!(outside.to_vec::<i32>().expect_err("out of bounds").to_string().contains("out of bounds"));
    // Split arrays and committed ones.
    let mesh = make_mesh([("x", 8)])?.auto();
    let rows = device_put(&arange(0..16), NamedSharding::new(&mesh, P!["x"]))?;
    assert_eq!(rows.get(3..9).to_vec::<i32>()?, [3, 4, 5, 6, 7, 8]);
    let moved = device_put(&arange(0..16), &local_devices()?[3])?;
    let part = moved.get(3..9);
    assert_eq!((part.to_vec::<i32>()?, part.sharding()?), (vec![3, 4, 5, 6, 7, 8], moved.sharding()?));
    Ok(())
}

#[test]
fn powers_share_a_program() -> Result<()> {
    setup();
    let x = array([0.5f32, -1.25, 3.0, f32::INFINITY, f32::NAN]);
    fn programs(exponents: std::ops::Range<i32>, x: &Array) -> Result<usize> {
        let (powers, counts) = shardax::count(|| exponents.clone().map(|n| x.pow(n)).collect::<Vec<_>>());
        for (power, n) in powers.iter().zip(exponents) {
            let traced = jit(move |x: Array| x.pow(n)).call(x)?;
            fn bits(y: &Array) -> Result<Vec<u32>> {
                Ok(y.to_vec::<f32>()?.iter().map(|v| v.to_bits()).collect())
            }
            assert_eq!(bits(power)?, bits(&traced)?, "{n}");
        }
        Ok(counts.compilations as usize)
    }
    assert_eq!((programs(5..13, &x)?, programs(13..29, &x)?, programs(-20..-4, &x)?), (1, 0, 1));
    assert_eq!(array([3]).pow(7).item::<i32>()?, 2187);
    assert!(array([3]).pow(-7).item::<i32>().is_err());
    Ok(())
}

#[test]
fn long_programs_outside_of_jit_are_compiled_in_stages() -> Result<()> {
    quick::setup();
    let chain = |n: usize| move |x: Array| (0..n).fold(x, |x, _| x.sin());
    let programs = |n: usize| -> Result<usize> {
        let (slope, counts) = shardax::count(|| grad(chain(n)).call(Array::from(0.5f32)));
        let (expected, _) = (0..n).fold((1.0, 0.5f64), |(slope, x), _| (slope * x.cos(), x.sin()));
        let slope = slope?.item::<f32>()?;
        assert!((f64::from(slope) / expected - 1.0).abs() < 1e-3, "{slope} {expected}");
        Ok(counts.compilations as usize)
    };
    let (once, twice) = (programs(1000)?, programs(2000)?);
    assert!((2..=4).contains(&once) && twice <= 2 * once, "{once} {twice}");

    // Results that are arguments, constants, and the same value twice; arguments that no stage uses.
    let f = move |x: Array, unused: Array| {
        let y = chain(2500)(x.clone());
        (x, y.clone(), ones(2), y.clone(), unused, y + 1.0)
    };
    let args = (Array::from(0.5f32), Array::from(7.0f32));
    let (outs, _) = jvp(f, args.clone(), (ones(()), zeros(())))?;
    let expected = jit(f).call(args)?;
    fn values(outs: (Array, Array, Array, Array, Array, Array)) -> Result<Vec<f32>> {
        let arrays = [outs.0, outs.1, outs.2.sum(..), outs.3, outs.4, outs.5];
        arrays.iter().map(|x| x.item::<f32>()).collect()
    }
    for (a, b) in values(outs)?.iter().zip(values(expected)?) {
        assert!((a - b).abs() < 1e-6, "{a} {b}");
    }
    Ok(())
}

#[test]
fn pmap_moves_nothing_on_any_mesh() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 8)])?;
    for mesh in [mesh.clone(), mesh.auto()] {
        let xs = device_put(&vec![ones([8, 4]); 3], &NamedSharding::new(&mesh, P!["x"]))?;
        let f = pmap(|xs: Vec<Array>| xs.iter().map(|x| x * 2.0 + 100.0).collect::<Vec<_>>());
        let check = || -> Result<()> {
            let collectives = f.lower(&xs)?.compile()?.collectives()?;
            assert_eq!(collectives.iter().count(), 0, "{mesh}: {collectives}");
            for y in f.call(&xs)? {
                assert_eq!(y.to_vec::<f32>()?, [102.0; 32]);
            }
            Ok(())
        };
        check()?;
        let _context = set_mesh(&mesh)?;
        check()?;
    }
    Ok(())
}
