//! Fused attention, by the kernel in Rust, in blocks and by plain operations, against the formula in float64: results,
//! gradients, tangents, second derivatives, batches, devices.

use shardax::nn::attention::{self, Attention, HIDDEN, Implementation, Operands, Window};

use super::common::child;
use super::common::quick::one_of;
use super::*;

const VARIABLE: &str = "SHARDAX_CPU_KERNELS";

type Near = (usize, usize);
const ALL: Near = (usize::MAX, usize::MAX);
const CAUSAL: Near = (usize::MAX, 0);

fn attention(q: &Array, k: &Array, v: &Array, mask: Option<&Array>, near: Near) -> [Array; 3] {
    with(None, q, k, v, mask, near)
}

fn with(
    implementation: Option<Implementation>,
    q: &Array,
    k: &Array,
    v: &Array,
    mask: Option<&Array>,
    near: Near,
) -> [Array; 3] {
    let window = Window { before: near.0, after: near.1 };
    let operands = Operands { mask: mask.cloned(), ..Operands::new(q, k, v) };
    attention::attention(&Attention::default().window(window).implementation(implementation), &operands)
}

/// The shapes of queries and keys, the features of values, and the shape of a mask; which positions are near; and the
/// implementation.
struct Case(&'static [usize], &'static [usize], usize, Option<&'static [usize]>, Near, Option<Implementation>);

/// Blocks that are not full, queries without keys before and behind them, several heads for one of the keys, masks that
/// repeat in each dimension.
const CASES: [Case; 6] = [
    Case(&[2, 100, 4, 16], &[2, 100, 4, 16], 16, None, CAUSAL, None),
    Case(&[2, 130, 4, 16], &[2, 90, 2, 16], 16, None, (3, 2), None),
    Case(&[1, 2, 66, 6, 8], &[1, 2, 200, 2, 8], 12, Some(&[1, 2, 1, 1, 200]), ALL, None),
    Case(&[3, 90, 2, 24], &[3, 90, 1, 24], 24, Some(&[1, 1, 90, 90]), CAUSAL, None),
    Case(&[2, 64, 3, 20], &[2, 150, 3, 20], 4, Some(&[2, 3, 64, 1]), (70, 5), None),
    Case(&[128, 1, 100], &[128, 1, 100], 100, None, ALL, None),
];

const BLOCKWISE: Option<Implementation> = Some(Implementation::Blockwise);

/// Several blocks of queries and of keys, the last of them not full, blocks outside of the window, queries that see no
/// key.
const IN_BLOCKS: [Case; 4] = [
    Case(&[2, 1100, 2, 8], &[2, 1100, 1, 8], 4, None, CAUSAL, BLOCKWISE),
    Case(&[1, 600, 4, 8], &[1, 1100, 2, 8], 12, Some(&[1, 1, 600, 1100]), ALL, BLOCKWISE),
    Case(&[1300, 2, 8], &[700, 1, 8], 8, None, (300, 40), BLOCKWISE),
    Case(&[2, 7, 2, 8], &[2, 1030, 2, 8], 8, Some(&[2, 1, 7, 1]), ALL, BLOCKWISE),
];

const FLASH: Option<Implementation> = Some(Implementation::Flash);

/// Several blocks, the last of them not full, blocks outside of the window, queries that see no key; heads that are
/// packed
/// and that are not, several for one of the keys.
const BY_FLASH: [Case; 3] = [
    Case(&[1, 300, 2, 8], &[1, 300, 1, 8], 128, None, CAUSAL, FLASH),
    Case(&[300, 2, 128], &[130, 1, 128], 8, None, (90, 40), FLASH),
    Case(&[2, 130, 1, 16], &[2, 260, 1, 16], 16, None, ALL, FLASH),
];

impl Case {
    fn arrays(&self) -> [Array; 3] {
        let v = [&self.1[..self.1.len() - 1], &[self.2]].concat();
        fn random_array(seed: i32, shape: &[usize]) -> Array {
            random::normal(random::key(seed), shape)
        }
        [random_array(1, self.0) / (self.2 as f64).sqrt(), random_array(2, self.1), random_array(3, &v)]
    }

    /// A query of the second example of each head, or of all, sees nothing.
    fn mask(&self) -> Option<Array> {
        let mask = random::bernoulli(random::key(4), 0.7, self.3?);
        let row = arange(0..self.3?[self.3?.len() - 2] as i32).expand_dims(1);
        Some(mask & (row.not_equal(7)))
    }

    fn attend(&self, [q, k, v]: [Array; 3]) -> [Array; 3] {
        with(self.5, &q, &k, &v, self.mask().as_ref(), self.4)
    }

    /// The formula, in float64.
    fn formula(&self, given: [Array; 3]) -> [Array; 3] {
        let [q, k, v] = given.map(|x| x.astype(DType::F64));
        let rank = q.ndim() as i32;
        let times = q.shape()[q.ndim() - 2] / k.shape()[k.ndim() - 2];
        let [k, v] = [k, v].map(|x| repeat(&x, times, rank - 2));
        let scores = einsum("...qhd,...khd->...hqk", &[&q, &k]);
        let (rows, columns) = (q.shape()[q.ndim() - 3] as i32, k.shape()[k.ndim() - 3] as i32);
        let (row, column) = (arange(0..rows).expand_dims(1), arange(0..columns));
        let [before, after] = [self.4.0, self.4.1].map(|n| n.min(1 << 20) as i32);
        let visible = row.less_equal(&column + before) & column.less_equal(row + after);
        let visible = self.mask().map_or(visible.clone(), |mask| mask & visible);
        let scores = where_(visible, scores, HIDDEN);
        let max = stop_gradient(scores.max_keepdims(-1));
        let exponentials = (scores - &max).exp();
        let sum = exponentials.sum_keepdims(-1);
        let y = einsum("...hqk,...khd->...qhd", &[&(exponentials / &sum), &v]);
        [y, max.squeeze(-1), sum.squeeze(-1)]
    }
}

/// A number that every element of the result and of the sums is in.
fn mixed([y, _, sum]: [Array; 3]) -> Array {
    fn wave(x: &Array) -> Array {
        (arange(0..x.size() as i32) * 0.37).sin().reshape(x.shape())
    }
    (&y * wave(&y)).sum(..) + (sum.log() * wave(&sum)).sum(..)
}

#[track_caller]
fn assert_near(found: &Array, want: &Array, tolerance: f64, what: &str) {
    let (found, want) = (floats(found), floats(want));
    let scale = want.iter().fold(0f64, |a, b| a.max(b.abs()));
    for (i, (x, y)) in found.iter().zip(&want).enumerate() {
        assert!((x - y).abs() <= tolerance * scale.max(1e-3), "{what} at {i}: {x}, and by the formula {y}");
    }
}

fn first_derivatives(case: &Case, what: &str) -> Result<()> {
    let arguments = case.arrays();
    let (plain, exact) = (arguments.clone(), arguments.clone().map(|x| x.astype(DType::F64)));
    let with_case = |f: fn(&Case, [Array; 3]) -> [Array; 3]| move |q: Array, k: Array, v: Array| f(case, [q, k, v]);
    fn args([q, k, v]: [Array; 3]) -> (Array, Array, Array) {
        (q, k, v)
    }
    let (ours, formula) = (with_case(Case::attend), with_case(Case::formula));
    let pairs = |a: (Array, Array, Array), b: (Array, Array, Array), tolerance, name: &str| {
        for ((x, y), with_case) in [(a.0, b.0), (a.1, b.1), (a.2, b.2)].into_iter().zip(["q", "k", "v"]) {
            assert_near(&x, &y, tolerance, &format!("{what}: {name} of {with_case}"));
        }
    };

    // To which score the sums are relative is left to the implementation.
    fn logsumexp([y, max, sum]: [Array; 3]) -> (Array, Array) {
        (y, max + sum.log())
    }
    let number = |f: &dyn Fn(Array, Array, Array) -> [Array; 3], q, k, v| mixed(f(q, k, v));
    let argnums = (Arg::<0>, Arg::<1>, Arg::<2>);
    fn along(x: &Array) -> Array {
        x.cos()
    }
    type Gradients = (Array, Array, Array);

    // The formula is one program, because otherwise each of its operations would be compiled separately.
    let reference = jit(move |q: Array, k: Array, v: Array| -> Result<(Array, Array, Gradients, Array)> {
        let (y, sums) = logsumexp(formula(q.clone(), k.clone(), v.clone()));
        let gradient = grad(|q, k, v| number(&formula, q, k, v)).argnums(argnums).call((&q, &k, &v))?;
        let output = |q: Array, k: Array| formula(q, k, v.clone())[0].clone();
        let (_, tangent) = jvp(output, (&q, &k), (along(&q), along(&k)))?;
        Ok((y, sums, gradient, tangent))
    });
    let (y, sums, gradient, tangent) = reference.call(args(exact))?;

    let result = jit(move |q, k, v| -> (Array, Array) { logsumexp(ours(q, k, v)) }).call(args(plain.clone()))?;
    assert_near(&result.0, &y, 2e-6, &format!("{what}: output"));
    assert_near(&result.1, &sums, 2e-6, &format!("{what}: logsumexp"));
    let result = jit(grad(move |q, k, v| number(&ours, q, k, v)).argnums(argnums)).call(args(plain.clone()))?;
    pairs(result, gradient, 5e-6, "gradient");

    // Of the queries alone, and forward; and the gradient as a linear function of its cotangent, turned round: the
    // tangent.
    let tangents = jit(move |q: Array, k: Array, v: Array| -> Result<(Array, Array)> {
        let attend = |q: Array, k: Array| ours(q, k, v.clone())[0].clone();
        let (y, forward) = jvp(attend, (&q, &k), (along(&q), along(&k)))?;
        let (_, pull) = vjp(attend, (&q, &k))?;
        let (transposed,) = linear_transpose(|ct: Array| pull.call(ct), &y)?.call((along(&q), along(&k)))?;
        Ok((forward, transposed))
    });
    let (forward, transposed) = tangents.call(args(plain))?;
    assert_near(&forward, &tangent, 5e-6, &format!("{what}: tangent"));
    assert_near(&transposed, &tangent, 5e-6, &format!("{what}: gradient, transposed"));
    Ok(())
}

fn second_derivatives(case: &Case) -> Result<()> {
    let [q, k, v] = case.arrays();
    let q8 = q.astype(DType::F64);
    fn along(x: &Array) -> Array {
        x.cos()
    }
    let ours = |q: Array, k: Array, v: Array| case.attend([q, k, v]);
    let formula = |q: Array, k: Array, v: Array| case.formula([q, k, v]);
    let number = |f: &dyn Fn(Array, Array, Array) -> [Array; 3], q, k, v| mixed(f(q, k, v));
    // The slope of the gradient along a direction, forward over reverse and reverse over reverse.
    let slope = |f: &dyn Fn(Array, Array, Array) -> [Array; 3], x: &Array| -> Result<Array> {
        let (k, v) = (k.astype(x.dtype()), v.astype(x.dtype()));
        Ok(jvp(|q: Array| grad(|q: Array| number(f, q, k.clone(), v.clone())).call(q), x, along(x))?.1)
    };
    let want = jit(|x: Array| slope(&formula, &x)).call(&q8)?;
    assert_near(&jit(|x: Array| slope(&ours, &x)).call(&q)?, &want, 2e-5, "forward over reverse");
    let back = |x: Array| -> Result<Array> {
        let d = grad(|q: Array| number(&ours, q, k.clone(), v.clone())).call(x.clone())?;
        Ok((d * stop_gradient(along(&x))).sum(..))
    };
    assert_near(&jit(grad(back)).call(&q)?, &want, 2e-5, "reverse over reverse");
    Ok(())
}

fn batches(case: &Case) -> Result<()> {
    let [q, k, v] = case.arrays();
    let stacked = stack(&[q.clone(), &q * 0.5, -&q], 1);
    let attend = |q: Array, k: Array, v: Array| case.attend([q, k, v])[0].clone();
    let result = jit(vmap(attend).in_axes((1, None, None))).call((&stacked, &k, &v))?;
    let attend = jit(attend);
    for i in 0..3 {
        let single = attend.call((stacked.get((.., i)), &k, &v))?;
        assert_near(&result.get(i), &single, 1e-6, "a batch");
    }
    Ok(())
}

/// All rules of these cases. `cargo test` takes one of them.
fn every_rule(cases: &[Case], taken: usize) -> Result<()> {
    for (i, case) in cases.iter().enumerate().skip(one_of(taken + 1) - 1).step_by(one_of(cases.len())) {
        first_derivatives(case, &format!("case {i}"))?;
    }
    second_derivatives(&CASES[3])?;
    CASES[1..3].iter().step_by(one_of(2)).try_for_each(batches)
}

#[test]
fn attention_by_plain_operations_is_the_formula() -> Result<()> {
    common::quick::setup();
    every_rule(&CASES[1..4], 1)
}

#[test]
fn attention_in_blocks_is_the_formula() -> Result<()> {
    common::quick::setup();
    for (i, case) in IN_BLOCKS.iter().enumerate().skip(one_of(3) - 1).step_by(one_of(4)) {
        first_derivatives(case, &format!("case {i}"))?;
    }
    second_derivatives(&IN_BLOCKS[3])?;
    batches(&IN_BLOCKS[3])
}

/// By the kernels of TPUs, as loops.
#[test]
fn flash_attention_is_the_formula() -> Result<()> {
    common::quick::setup();
    for (i, case) in BY_FLASH.iter().enumerate().skip(one_of(2) - 1).step_by(one_of(3)) {
        first_derivatives(case, &format!("case {i}"))?;
    }
    batches(&BY_FLASH[2])
}

/// The temporaries of a gradient in blocks are far below one tensor of the scores.
#[test]
fn attention_in_blocks_stores_no_scores() -> Result<()> {
    common::quick::setup();
    let x = shape_dtype_struct([1, 4096, 4, 16], DType::F32);
    fn loss(q: Array, k: Array, v: Array) -> Array {
        with(BLOCKWISE, &q, &k, &v, None, CAUSAL)[0].square().sum(..)
    }
    let gradient = jit(grad(loss).argnums((Arg::<0>, Arg::<1>, Arg::<2>)));
    let memory = gradient.lower((&x, &x, &x))?.compile()?.memory_analysis()?;
    // The scores of all heads are four times as much.
    assert!(memory.temporaries < 4 * 4096 * 4096, "{memory:?}");
    Ok(())
}

/// Returns true if row `i` of each example is NaN.
fn is_nan(y: &Array, i: usize) -> Result<bool> {
    y.get((.., i)).isnan().all(..).item::<bool>()
}

/// Returns true if row `i` of an example has a NaN.
fn has_nan(y: &Array, i: usize) -> Result<bool> {
    y.get((.., i)).isnan().any(..).item::<bool>()
}

/// Run in a process of its own, where the CPU kernels compute it whatever the build.
#[test]
#[ignore = "the test below runs it"]
fn in_a_process_with_attention_by_cpu_kernels() -> Result<()> {
    common::quick::setup();
    every_rule(&CASES, 3)?;
    large_values_stay_finite()?;
    let [q, k, v] = CASES[0].arrays();
    fn attend(q: Array, k: Array, v: Array) -> Array {
        attention(&q, &k, &v, None, CAUSAL)[0].clone()
    }
    let gradient = jit(grad(move |q, k, v| attend(q, k, v).square().sum(..)).argnums((Arg::<0>, Arg::<1>, Arg::<2>)));
    let lowered = gradient.lower((&q, &k, &v))?;
    let text = lowered.as_text().to_string();
    assert!(text.contains("@shardax_attention(") || text.contains("\"shardax_attention\""), "{text}");
    assert!(text.contains("shardax_attention_gradient") && !text.contains("dot_general"), "{text}");
    // Nothing is kept of the size of all pairs.
    assert!(lowered.compile()?.memory_analysis()?.temporaries < 2 * 4 * 100 * 100 * 4);

    // The same numbers each time, and of a compiled program that is loaded.
    fn bytes_of((dq, dk, dv): (Array, Array, Array)) -> [Vec<f64>; 3] {
        [dq, dk, dv].map(|x| floats(&x))
    }
    let first = bytes_of(gradient.call((&q, &k, &v))?);
    assert_eq!(bytes_of(gradient.call((&q, &k, &v))?), first);
    let loaded = Compiled::load(&lowered, &lowered.compile()?.serialize()?)?;
    assert_eq!(bytes_of(loaded.call((&q, &k, &v))?), first);

    // What is no number stays with the queries that see it.
    fn odd(x: &Array, at: i32) -> Array {
        where_(arange(0..100).reshape([100, 1, 1]).equal(at), f64::NAN, x)
    }
    let y = jit(attend).call((&odd(&q, 70), &k, &v))?;
    assert!(is_nan(&y, 70)? && !has_nan(&y, 69)? && !has_nan(&y, 71)?);
    let y = jit(attend).call((&q, &odd(&k, 50), &v))?;
    assert!(!has_nan(&y, 49)? && is_nan(&y, 50)? && is_nan(&y, 99)?);

    // Devices: each its own part by the CPU kernels; split by the compiler, by plain operations.
    fn eight(x: &Array) -> Array {
        concatenate(&[x.clone(), x * 0.9, x * 0.8, x * 0.7], 0)
    }
    let (q, k, v) = (eight(&q), eight(&k), eight(&v));
    let want = jit(attend).call((&q, &k, &v))?;
    let mesh = make_mesh([("x", 8)])?;
    let spec = P!["x"];
    fn larger(x: &Array) -> Array {
        repeat(x, 4, 1)
    }
    let (ql, kl, vl) = (larger(&q), larger(&k), larger(&v));
    let mapped = jit(shard_map(attend, &mesh).in_specs((&spec, &spec, &spec)).out_specs(&spec));
    assert!(mapped.lower((&ql, &kl, &vl))?.as_text().to_string().contains("shardax_attention"));
    assert_near(&mapped.call((&ql, &kl, &vl))?, &jit(attend).call((&ql, &kl, &vl))?, 1e-6, "shard_map");
    let sharding = NamedSharding::new(&mesh, P!["x"]);
    let split =
        jit(attend).call((device_put(&q, &sharding)?, device_put(&k, &sharding)?, device_put(&v, &sharding)?))?;
    assert_near(&split, &want, 1e-6, "split by the compiler");

    // Up to four queries are computed one by one. A few more, and programs that others are to run, have the plain
    // operations.
    for (queries, by_kernel) in [(1, true), (4, true), (5, false)] {
        let few = q.get((.., ..queries));
        let text = jit(attend).lower((&few, &k, &v))?.as_text().to_string();
        assert_eq!(text.contains("shardax_attention"), by_kernel, "{queries}: {text}");
        assert_near(&jit(attend).call((&few, &k, &v))?, &want.get((.., ..queries)), 1e-6, "few queries");
    }
    let exported = shardax::export::export(attend, (&q, &k, &v))?.mlir_module("cpu").unwrap_or_default().to_string();
    assert!(!exported.contains("shardax_attention"), "{exported}");
    Ok(())
}

#[test]
fn attention_by_cpu_kernels_is_the_formula() {
    let mut command = child::command("attention::in_a_process_with_attention_by_cpu_kernels");
    child::run(command.env(VARIABLE, "auto"));
}

#[test]
fn masks_that_do_not_broadcast_are_an_error() {
    common::quick::setup();
    let [q, k, v] = CASES[0].arrays();
    for shape in [&[2, 3, 100, 100][..], &[1, 1, 100, 99], &[4, 1, 1, 1], &[1, 100, 100]] {
        let [y, ..] = attention(&q, &k, &v, Some(&ones_dtype(shape, DType::Bool)), ALL);
        let text = y.check().expect_err("no mask for these").to_string();
        assert!(text.contains("does not broadcast") && text.contains("numbers/attention.rs"), "{text}");
    }
}

/// Weights times large values are no larger than these.
#[test]
fn large_values_stay_finite() -> Result<()> {
    common::quick::setup();
    let q = zeros([1, 512, 4, 8]);
    let y =
        jit(|q: Array, v: Array| attention(&q, &q, &v, None, ALL)[0].clone()).call((&q, full([1, 512, 4, 8], 1e36)))?;
    assert!(floats(&y).iter().all(|y| (y / 1e36 - 1.0).abs() < 1e-5));
    Ok(())
}

/// The number of matmuls of the formulas; the gradient computes one of them a second time.
#[test]
fn cost_estimates_of_attention() -> Result<()> {
    common::quick::setup();
    let Case(q, k, depth, ..) = CASES[1];
    let [queries, keys] = [q[1] as f64, k[1] as f64];
    let product = 2.0 * 2.0 * 4.0 * queries * keys * depth as f64;
    let [q, k, v] = CASES[1].arrays();
    fn attend(q: Array, k: Array, v: Array) -> Array {
        mixed(CASES[1].attend([q, k, v]))
    }
    assert_eq!(jit(attend).lower((&q, &k, &v))?.program().flops().matmuls, 2.0 * product);
    let gradient = grad(attend).argnums((Arg::<0>, Arg::<1>, Arg::<2>));
    let flops = jit(gradient).lower((&q, &k, &v))?.program().flops();
    assert_eq!((flops.matmuls, flops.model()), (7.0 * product, 6.0 * product));
    Ok(())
}
