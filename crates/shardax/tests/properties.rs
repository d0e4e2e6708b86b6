//! Properties of random programs: derivatives against finite differences, `vmap` against a loop, compiled against not,
//! and contractions, reductions and broadcasting against plain loops on the host. Seeded: every run sees the same
//! programs.

mod common;

use common::quick::{one_of, setup};
use proptest::prelude::*;
// Not `shardax::prelude::any`, the reduction.
use proptest::prelude::any;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use shardax::prelude::*;
use shardax::{nn, numpy as np};

/// Runs `test` on so many values; a slice on a third of them.
fn check<S: Strategy>(cases: u32, values: S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    setup();
    let cases = cases / one_of(3) as u32;
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 64, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    if let Err(failure) = TestRunner::new_with_rng(config, rng).run(&values, test) {
        panic!("{failure}");
    }
}

fn fail(error: shardax::Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

fn close(what: &str, got: &[f64], want: &[f64], tol: f64) -> Result<(), TestCaseError> {
    let far = |(g, w): (&f64, &f64)| !((g - w).abs() <= tol * (1.0 + w.abs()));
    if got.len() != want.len() || got.iter().zip(want).any(far) {
        return Err(TestCaseError::fail(format!("{what}: {got:?} and {want:?}")));
    }
    Ok(())
}

/// One step of a random program on a matrix. Its result is a matrix of the same size, possibly transposed.
#[derive(Clone, Copy, Debug)]
enum Step {
    Sin,
    Tanh,
    Softplus,
    Rational,
    Where,
    Abs,
    WithEarlier,
    Transpose,
    Flip(i32),
    Roll(i32),
    CumSum(i32),
    CumProd(i32),
    Centre(i32),
    Softmax(i32),
    LogSumExp(i32),
    Max(i32),
    Norm(i32),
    Matmul,
    Einsum,
    ConcatenateAndCut(i32),
    PadAndCut,
    Sort(i32),
    TakeRows,
    ScanRows,
    MapRows,
}

fn step() -> impl Strategy<Value = Step> {
    // A failing program is shrunk towards the first of these.
    use Step::*;
    let axis = 0..2i32;
    prop_oneof![
        Just(Sin),
        Just(Tanh),
        Just(Softplus),
        Just(Rational),
        Just(Where),
        Just(Abs),
        Just(WithEarlier),
        Just(Transpose),
        axis.clone().prop_map(Flip),
        axis.clone().prop_map(Roll),
        axis.clone().prop_map(CumSum),
        axis.clone().prop_map(CumProd),
        axis.clone().prop_map(Centre),
        axis.clone().prop_map(Softmax),
        axis.clone().prop_map(LogSumExp),
        axis.clone().prop_map(Max),
        axis.clone().prop_map(Norm),
        Just(Matmul),
        Just(Einsum),
        axis.clone().prop_map(ConcatenateAndCut),
        Just(PadAndCut),
        axis.prop_map(Sort),
        Just(TakeRows),
        Just(ScanRows),
        Just(MapRows),
    ]
}

/// A matrix of fixed numbers between -1 and 1, float64.
fn fixed(m: usize, n: usize) -> Array {
    let values: Vec<f64> = (0..m * n).map(|i| (i as f64 * 1.7 + 0.3).sin()).collect();
    Array::from_slice(&values, &[m, n]).expect("a matrix")
}

fn apply(step: Step, x: &Array, earlier: &Array) -> Result<Array> {
    let [m, n] = [x.shape()[0], x.shape()[1]];
    // Each step keeps the magnitude of the values near 1, so that the numerical gradient is accurate.
    Ok(match step {
        Step::Sin => x.sin(),
        Step::Tanh => (x * 1.5).tanh(),
        Step::Softplus => nn::softplus(x),
        Step::Rational => x / (x.square() + 1),
        Step::Where => where_(x.greater(0.1), x * 2, x.square()),
        Step::Abs => x.abs(),
        Step::WithEarlier if earlier.shape() == x.shape() => x * earlier.cos(),
        Step::WithEarlier => x * earlier.sum(..).tanh(),
        Step::Transpose => x.t(),
        Step::Flip(axis) => x.flip(axis) * 0.5 + x,
        Step::Roll(axis) => x.roll(1, axis) - x,
        Step::CumSum(axis) => x.cumsum(axis),
        Step::CumProd(axis) => x.tanh().cumprod(axis),
        Step::Centre(axis) => x - x.mean_keepdims(axis),
        Step::Softmax(axis) => nn::softmax(x, axis),
        Step::LogSumExp(axis) => x - x.logsumexp_keepdims(axis),
        Step::Max(axis) => x + x.max_keepdims(axis),
        Step::Norm(axis) => x / (x.square().sum_keepdims(axis) + 1).sqrt(),
        Step::Matmul => x.matmul(fixed(n, n)).tanh(),
        Step::Einsum => np::einsum("ij,ik,kj->ij", &[x, &fixed(m, m), x]).tanh(),
        Step::ConcatenateAndCut(axis) => {
            let extended = np::concatenate(&[x.sin(), x.clone()], axis);
            if axis == 0 { extended.get(1..1 + m as i64) } else { extended.get((.., 1..1 + n as i64)) }
        }
        Step::PadAndCut => np::pad(x, &[(1, 1), (0, 2)], np::PadMode::Reflect).get((2.., 2..)),
        Step::Sort(axis) => x.sort(axis),
        Step::TakeRows => {
            let places: Vec<i32> = (0..m as i32).map(|i| (i * i + 1) % m as i32).collect();
            x.take(array(places), 0)
        }
        Step::ScanRows => {
            let step = |carry: Array, row: Array| {
                let next = (carry * 0.5 + row).sin();
                (next.clone(), next)
            };
            scan(step, x.get(0), x.clone())?.1
        }
        Step::MapRows => vmap(|row: Array| &row * row.sum(..).tanh()).call(x)?,
    })
}

fn run(steps: &[Step], x: Array) -> Result<Array> {
    let (mut now, mut before) = (x.clone(), x);
    for &step in steps {
        let next = apply(step, &now, &before)?;
        before = std::mem::replace(&mut now, next);
    }
    Ok(now)
}

/// Converts a program to a scalar function.
fn scalar(steps: &[Step], x: Array) -> Result<Array> {
    let y = run(steps, x)?;
    Ok((&y * fixed(y.shape()[0], y.shape()[1])).sum(..))
}

fn program() -> impl Strategy<Value = (Vec<Step>, usize, usize)> {
    (prop::collection::vec(step(), 1..5), 1..4usize, 1..4usize)
}

#[test]
fn derivatives_equal_finite_differences() {
    check(24, program(), |(steps, m, n)| {
        let f = |x: Array| scalar(&steps, x);
        let slope = |x: Array| -> Result<Array> { grad(f).call(x) };
        let v = fixed(n, m).t() + 0.1;
        // Everything in one program: differences, gradient, tangent, and the same of the gradient.
        let forms = jit(|x: Array, v: Array| -> Result<Vec<Array>> {
            let eps = 1e-6;
            let central = |g: &dyn Fn(Array) -> Result<Array>| -> Result<Array> {
                Ok((g(&x + &v * eps)? - g(&x - &v * eps)?) / (2.0 * eps))
            };
            fn along(g: Array, v: &Array) -> Array {
                (g * v).sum(..)
            }
            let (_, tangent) = jvp::<(Array,), _>(f, &x, &v)?;
            let (_, forward_of_reverse) = jvp::<(Array,), _>(slope, &x, &v)?;
            let reverse_of_reverse = grad(|x: Array| -> Result<Array> { Ok(along(slope(x)?, &v)) }).call(&x)?;
            Ok(vec![
                central(&f)?,
                along(slope(x.clone())?, &v),
                tangent,
                central(&slope)?,
                forward_of_reverse,
                reverse_of_reverse,
            ])
        });
        let result = forms.call((fixed(m, n) * 1.3, v)).map_err(fail)?;
        let result: Vec<Vec<f64>> = result.iter().map(Array::to_f64_vec).collect::<Result<_>>().map_err(fail)?;
        close("gradient and differences", &result[1], &result[0], 1e-6)?;
        close("tangent and gradient", &result[2], &result[1], 1e-9)?;
        close("second derivative and differences", &result[4], &result[3], 1e-6)?;
        close("forward over reverse and reverse over reverse", &result[4], &result[5], 1e-9)
    });
}

#[test]
fn vmap_is_a_loop() {
    check(24, (program(), 0..3i32, -3..3i32), |((steps, m, n), in_axis, out_axis)| {
        let (f, slope) = (|x: Array| run(&steps, x), |x: Array| grad(|x: Array| scalar(&steps, x)).call(x));
        let xs = fixed(3 * m, n).reshape([3, m as i32, n as i32]);
        let loops = jit(|xs: Array| -> Result<Vec<Array>> {
            let moved = xs.moveaxis(0, in_axis);
            let mapped = vmap(f).in_axes(in_axis).out_axes(out_axis).call(&moved)?.moveaxis(out_axis, 0);
            let slopes = vmap(slope).in_axes(in_axis).call(&moved)?;
            let rows: Vec<Array> = (0..3).map(|i| xs.get(i)).collect();
            let looped = rows.iter().map(|x| f(x.clone())).collect::<Result<Vec<_>>>()?;
            let slopes_looped = rows.iter().map(|x| slope(x.clone())).collect::<Result<Vec<_>>>()?;
            Ok(vec![mapped, np::stack(&looped, 0), slopes, np::stack(&slopes_looped, 0)])
        });
        let result = loops.call(xs).map_err(fail)?;
        prop_assert_eq!(result[0].shape(), result[1].shape());
        let result: Vec<Vec<f64>> = result.iter().map(Array::to_f64_vec).collect::<Result<_>>().map_err(fail)?;
        close("vmap and loop", &result[0], &result[1], 1e-12)?;
        close("vmap and loop of the gradient", &result[2], &result[3], 1e-12)
    });
}

#[test]
fn compiled_values_equal_single_operations() {
    check(8, program(), |(steps, m, n)| {
        fn f(x: Array, steps: &[Step]) -> Result<Array> {
            run(steps, x)
        }
        let x = fixed(m, n);
        let compiled = jit(|x: Array| f(x, &steps)).call(&x).and_then(|y| y.to_f64_vec()).map_err(fail)?;
        let eager = f(x, &steps).and_then(|y| y.to_f64_vec()).map_err(fail)?;
        close("jit and single operations", &compiled, &eager, 1e-12)
    });
}

// Integers, which are exact, against loops on the host.

/// All indices into an array of this shape, in row-major order.
fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![vec![]], |all, &n| {
        all.iter().flat_map(|index| (0..n).map(|i| [index.as_slice(), &[i]].concat()).collect::<Vec<_>>()).collect()
    })
}

/// The place of an index, dimensions of size 1 being repeated.
fn place(shape: &[usize], index: &[usize]) -> usize {
    let index = &index[index.len() - shape.len()..];
    shape.iter().zip(index).fold(0, |at, (&n, &i)| at * n + if n == 1 { 0 } else { i })
}

fn numbers(shape: &[usize], seed: i32) -> Vec<i32> {
    (0..shape.iter().product::<usize>() as i32).map(|i| (i * 7 + seed * 3) % 11 - 5).collect()
}

fn on_device(values: &[i32], shape: &[usize]) -> Result<Array, TestCaseError> {
    Array::from_slice(values, shape).map_err(fail)
}

#[test]
fn broadcasting_equals_numpy() {
    fn sizes() -> prop::collection::VecStrategy<std::ops::Range<usize>> {
        prop::collection::vec(0..4usize, 0..4)
    }
    check(32, (sizes(), sizes()), |(a, b)| {
        let rank = a.len().max(b.len());
        fn size(shape: &[usize], d: usize, rank: usize) -> usize {
            if d + shape.len() < rank { 1 } else { shape[d + shape.len() - rank] }
        }
        let pairs: Vec<(usize, usize)> = (0..rank).map(|d| (size(&a, d, rank), size(&b, d, rank))).collect();
        let (xs, ys) = (numbers(&a, 1), numbers(&b, 2));
        let sum = on_device(&xs, &a)? * 3 + on_device(&ys, &b)?;
        if pairs.iter().any(|(m, n)| m != n && *m != 1 && *n != 1) {
            let message = sum.check().err().map(|e| e.to_string()).unwrap_or_default();
            prop_assert!(message.contains("incompatible shapes for broadcasting"), "{a:?} {b:?}: {message:?}");
            return Ok(());
        }
        let shape: Vec<usize> = pairs.iter().map(|(m, n)| if *m == 1 { *n } else { *m }).collect();
        let want: Vec<i32> = indices(&shape).iter().map(|i| xs[place(&a, i)] * 3 + ys[place(&b, i)]).collect();
        prop_assert_eq!(sum.shape(), shape.as_slice());
        prop_assert_eq!(sum.to_vec::<i32>().map_err(fail)?, want);
        Ok(())
    });
}

#[test]
fn reductions_are_loops() {
    check(16, (prop::collection::vec(1..4usize, 1..4), any::<[bool; 3]>()), |(shape, reduced)| {
        let axes: Vec<i32> = (0..shape.len()).filter(|&d| reduced[d]).map(|d| d as i32).collect();
        let kept_dims: Vec<usize> = (0..shape.len()).filter(|&d| !reduced[d]).collect();
        let xs = numbers(&shape, 4);
        let out: Vec<usize> = kept_dims.iter().map(|&d| shape[d]).collect();
        // The elements that each result reduces, collected one by one.
        let groups: Vec<Vec<i32>> = indices(&out)
            .iter()
            .map(|o| {
                let fits = |i: &&Vec<usize>| kept_dims.iter().zip(o).all(|(&d, &j)| i[d] == j);
                indices(&shape).iter().filter(fits).map(|i| xs[place(&shape, i)]).collect()
            })
            .collect();
        let result = jit(|x: Array| (x.sum(axes.as_slice()), x.max(axes.as_slice()), x.prod(axes.as_slice())))
            .call(on_device(&xs, &shape)?)
            .map_err(fail)?;
        let by_group = |f: fn(&Vec<i32>) -> i32| groups.iter().map(f).collect::<Vec<i32>>();
        prop_assert_eq!(result.0.shape(), out.as_slice());
        prop_assert_eq!(result.0.to_vec::<i32>().map_err(fail)?, by_group(|g| g.iter().sum()));
        prop_assert_eq!(result.1.to_vec::<i32>().map_err(fail)?, by_group(|g| *g.iter().max().expect("an element")));
        prop_assert_eq!(
            result.2.to_vec::<i32>().map_err(fail)?,
            by_group(|g| g.iter().fold(1, |p, x| p.wrapping_mul(*x)))
        );
        Ok(())
    });
}

fn dim_letter(l: &usize) -> char {
    char::from(b'i' + *l as u8)
}

#[test]
fn einsum_is_a_sum_over_all_indices() {
    let labels = || prop::collection::vec(0..4usize, 0..4);
    let operands = prop::collection::vec(labels(), 1..4);
    check(24, (operands, prop::array::uniform4(1..4usize), any::<[bool; 4]>()), |(operands, sizes, wanted)| {
        let output: Vec<usize> =
            (0..4).rev().filter(|l| wanted[*l] && operands.iter().any(|o| o.contains(l))).collect();
        fn word(ls: &[usize]) -> String {
            ls.iter().map(dim_letter).collect::<String>()
        }
        let spec =
            format!("{}->{}", operands.iter().map(|labels| word(labels)).collect::<Vec<_>>().join(","), word(&output));

        let shapes: Vec<Vec<usize>> = operands.iter().map(|o| o.iter().map(|&l| sizes[l]).collect()).collect();
        let values: Vec<Vec<i32>> = shapes.iter().zip(1..).map(|(s, seed)| numbers(s, seed)).collect();
        let shape: Vec<usize> = output.iter().map(|&l| sizes[l]).collect();
        let mut want = vec![0i32; shape.iter().product()];
        // Labels that nothing has do not count.
        let label_sizes: Vec<usize> =
            (0..4).map(|l| if operands.iter().any(|o| o.contains(&l)) { sizes[l] } else { 1 }).collect();
        for index in indices(&label_sizes) {
            let position = |labels: &[usize], shape: &[usize]| {
                labels.iter().zip(shape).fold(0, |position, (&l, &n)| position * n + index[l])
            };
            let terms = operands.iter().zip(&shapes).zip(&values).map(|((o, s), v)| v[position(o, s)]);
            want[position(&output, &shape)] += terms.product::<i32>();
        }

        let arrays: Vec<Array> =
            values.iter().zip(&shapes).map(|(v, s)| on_device(v, s)).collect::<Result<_, TestCaseError>>()?;
        let result =
            jit(|xs: Vec<Array>| np::einsum(&spec, &xs.iter().collect::<Vec<_>>())).call(arrays).map_err(fail)?;
        prop_assert_eq!(result.shape(), shape.as_slice(), "{}", spec);
        prop_assert_eq!(result.to_vec::<i32>().map_err(fail)?, want, "{} of {:?}", spec, shapes);
        Ok(())
    });
}
