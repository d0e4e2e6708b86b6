//! Costs that grow with the work and no faster: rules applied, equations visited, bytes written and programs compiled,
//! counted at n and at 2n.

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{quick, setup};
use shardax::prelude::*;
use shardax::primitive::{
    Aval, Avals, BatchAxis, Dims, Lowering, Operand, Outputs, Primitive, Tangents, Value, bind, bind1,
};

/// Rules of [`Counted`] that were applied.
static RULES: AtomicUsize = AtomicUsize::new(0);
/// Tests that count take turns.
static COUNTING: Mutex<()> = Mutex::new(());

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
        RULES.fetch_add(1, Ordering::Relaxed);
        Ok(vec![cx.op("stablehlo.add", &[args[0], args[0]], "", &outs[0])])
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        RULES.fetch_add(1, Ordering::Relaxed);
        let tangent = tangents[0].as_ref().map(|t| bind1(Counted, std::slice::from_ref(t)));
        Ok((bind(Counted, args), vec![tangent]))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        RULES.fetch_add(1, Ordering::Relaxed);
        Ok(vec![cts[0].as_ref().map(|ct| bind1(Counted, std::slice::from_ref(ct)))])
    }

    fn batch(&self, _axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        RULES.fetch_add(1, Ordering::Relaxed);
        Ok((bind(Counted, args), dims.to_vec()))
    }

    fn in_sharding(&self, _operand: usize, _aval: &Aval) -> Option<Sharding> {
        RULES.fetch_add(1, Ordering::Relaxed);
        None
    }
}

fn counted(x: &Array) -> Array {
    bind1(Counted, std::slice::from_ref(x))
}

/// The rules that `f` applies.
fn rules<R>(f: impl FnOnce() -> Result<R>) -> Result<usize> {
    let _turn = COUNTING.lock().unwrap_or_else(|e| e.into_inner());
    let before = RULES.load(Ordering::Relaxed);
    f()?;
    Ok(RULES.load(Ordering::Relaxed) - before)
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
    let args = || (shape_dtype_struct((), DType::F32), shape_dtype_struct((), DType::F32));
    let f = |depth| move |x: Array, y: Array| nested_cond(depth, x, y);
    let first = |depth| move |x: Array, y: Array| -> Result<Array> { Ok(nested_cond(depth, x, y)?.0) };
    assert_linear("gradient", 6, |depth| rules(|| make_program(grad(first(depth)), args())))?;
    assert_linear("forward mode", 6, |depth| {
        rules(|| make_program(move |x: Array, y: Array| jvp(f(depth), (&x, &y), (ones(()), ones(()))), args()))
    })?;
    let rows = || (shape_dtype_struct((), DType::Bool), shape_dtype_struct(4, DType::F32));
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
    let scalar = || shape_dtype_struct((), DType::F32);
    let rows = || shape_dtype_struct(4, DType::F32);
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
    let at = |x: f32| -> Result<f32> { nested_scan(3, Array::from(x))?.item::<f32>() };
    let difference = (at(0.5 + 1e-3)? - at(0.5 - 1e-3)?) / 2e-3;
    assert!((slope / difference - 1.0).abs() < 1e-2, "{slope} {difference}");
    Ok(())
}

/// A function that calls another one twice, which calls a third one twice, and so on.
fn nested_jit(depth: usize) -> impl Function<(Array,), Output = Array> + Clone {
    let mut f = jit_of(|x: Array| counted(&x));
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
    let x = || shape_dtype_struct(4, DType::F32);
    let bytes = |depth| -> Result<usize> { Ok(jit(nested_jit(depth)).lower(x())?.as_text().len()) };
    assert_linear("bytes of text", 12, bytes)?;
    assert_linear("rules", 12, |depth| rules(|| jit(nested_jit(depth)).lower(x())))?;
    let value = jit(nested_jit(4)).call(ones(4))?;
    let expected = nested_jit(4);
    let _eager = disable_jit();
    assert_eq!(value.to_vec::<f32>()?, expected.apply((ones(4),))?.to_vec::<f32>()?);
    Ok(())
}

#[test]
fn shardings_of_inputs_are_searched_once() -> Result<()> {
    setup();
    let update = |xs: Vec<Array>| xs.iter().map(counted).collect::<Vec<_>>();
    assert_linear("leaves", 50, |n| rules(|| jit(update).lower(vec![shape_dtype_struct(4, DType::F32); n])))
}

#[test]
fn errors_of_many_arguments_are_as_long_as_of_few() -> Result<()> {
    setup();
    let message = |n: usize| {
        let mut xs = vec![ones(4); n];
        xs[n / 2] = ones(3);
        vmap(|xs: Vec<Array>| xs).call(xs).expect_err("the sizes differ").to_string()
    };
    // JAX 0.10.2: "most axes (999 of them) had size 4, e.g. axis 0 of argument a[0] of type float32[4]; one axis had
    // size 3: axis 0 of argument a[500] of type float32[3]".
    assert!(
        message(1000).contains(
            "most axes (999 of them) had size 4, for example axis 0 of argument[0][0] of type float32[4]; \
             one axis had size 3: axis 0 of argument[0][500] of type float32[3]"
        ),
        "{}",
        message(1000)
    );
    assert!(message(10_000).len() < message(100).len() + 10);
    // As many sizes as arguments.
    let sizes = |n: usize| {
        vmap(|xs: Vec<Array>| xs).call((1..=n).map(ones).collect::<Vec<_>>()).expect_err("sizes").to_string()
    };
    assert!(sizes(400).len() < sizes(200).len() + 10, "{}", sizes(400));
    Ok(())
}

#[test]
fn slices_of_a_size_share_a_program() -> Result<()> {
    setup();
    let programs = |n: usize| -> Result<usize> {
        let x = block_until_ready(arange(0..3 * n as i32))?;
        let (parts, counts) = shardax::count(|| x.split(n, 0));
        for (i, part) in parts?.iter().enumerate() {
            let first = 3 * i as i32;
            assert_eq!(part.to_vec::<i32>()?, [first, first + 1, first + 2]);
        }
        Ok(counts.compilations as usize)
    };
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
    let there = device_put(&arange(0..16), &local_devices()?[3])?;
    let part = there.get(3..9);
    assert_eq!((part.to_vec::<i32>()?, part.sharding()?), (vec![3, 4, 5, 6, 7, 8], there.sharding()?));
    Ok(())
}

#[test]
fn powers_share_a_program() -> Result<()> {
    setup();
    let x = array([0.5f32, -1.25, 3.0, f32::INFINITY, f32::NAN]);
    let programs = |exponents: std::ops::Range<i32>| -> Result<usize> {
        let (powers, counts) = shardax::count(|| exponents.clone().map(|n| x.pow(n)).collect::<Vec<_>>());
        for (power, n) in powers.iter().zip(exponents) {
            let traced = jit(move |x: Array| x.pow(n)).call(&x)?;
            let bits = |y: &Array| -> Result<Vec<u32>> { Ok(y.to_vec::<f32>()?.iter().map(|v| v.to_bits()).collect()) };
            assert_eq!(bits(power)?, bits(&traced)?, "{n}");
        }
        Ok(counts.compilations as usize)
    };
    assert_eq!((programs(5..13)?, programs(13..29)?, programs(-20..-4)?), (1, 0, 1));
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
    let values = |outs: (Array, Array, Array, Array, Array, Array)| -> Result<Vec<f32>> {
        let all = [outs.0, outs.1, outs.2.sum(..), outs.3, outs.4, outs.5];
        all.iter().map(|x| x.item::<f32>()).collect()
    };
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
