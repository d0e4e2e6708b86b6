//! Cumulative operations that the CPU kernels compute for XLA.

use super::common::child;
use super::common::quick::one_of;
use super::*;

const VARIABLE: &str = "SHARDAX_CPU_KERNELS";

/// Run in a process of its own, where the CPU kernels compute them whatever the build.
#[test]
#[ignore = "the test below runs it"]
fn in_a_process_with_cpu_kernels() -> Result<()> {
    common::quick::setup();
    let x = array([[1.0f32, 2.0, 3.0], [4.0, 5.0, -6.0]]);
    let text = jit(|x: Array| x.cumsum(0)).lower(&x)?.as_text().to_string();
    assert!(text.contains("shardax_cumulative"), "{text}");
    // The kernels' own tests compare every dtype.
    let dtypes = [DType::F32, DType::F64, DType::Bf16, DType::F16, DType::I32, DType::I64];
    for dtype in dtypes.into_iter().step_by(one_of(4)) {
        let x = x.astype(dtype);
        assert_eq!(floats(&x.cumsum(0)), [1.0, 2.0, 3.0, 5.0, 7.0, -3.0], "{dtype}");
        assert_eq!(floats(&x.cumsum(1)), [1.0, 3.0, 6.0, 4.0, 9.0, 3.0], "{dtype}");
        assert_eq!(floats(&x.cumprod(1)), [1.0, 2.0, 6.0, 4.0, 20.0, -120.0], "{dtype}");
        assert_eq!(floats(&x.cummax(1)), [1.0, 2.0, 3.0, 4.0, 5.0, 5.0], "{dtype}");
        assert_eq!(floats(&x.cummin(0)), [1.0, 2.0, 3.0, 1.0, 2.0, -6.0], "{dtype}");
        assert_eq!(
            floats(&lax::CumulativeOptions::new().reverse(true).cumsum(&x, 0)),
            [5.0, 7.0, -3.0, 4.0, 5.0, -6.0],
            "{dtype}"
        );
    }
    for dtype in [DType::F32, DType::F64].into_iter().step_by(one_of(2)) {
        let x = x.astype(dtype);
        let logs = floats(&jit(|x: Array| lax::cumlogsumexp(&x, 1).exp()).call(&x)?);
        let sums = floats(&x.exp().cumsum(1));
        assert!(logs.iter().zip(&sums).all(|(log, sum)| (log - sum).abs() < 1e-5 * sum), "{dtype}: {logs:?} {sums:?}");
        let y = &x * 0.75 + 1;
        let remainders = floats(&jit(|x: Array, y: Array| lax::rem(&x, &y)).call((&x, &y))?);
        let expected: Vec<f64> = floats(&x).iter().zip(floats(&y)).map(|(x, y)| x % y).collect();
        assert_eq!(remainders, expected, "{dtype}");
    }
    powers_and_cube_roots()?;
    sums_at_positions()?;
    // Its transpose is the sum of all after it.
    let weights = array([1.0f32, 2.0, 4.0]);
    let slope = grad(|x: Array| (x.cumsum(0) * &weights).sum(..)).call(array([1.0f32, 1.0, 1.0]))?;
    assert_eq!(floats(&slope), [7.0, 6.0, 4.0]);
    let slope = grad(|x: Array| (x.cumprod(0) * &weights).sum(..)).call(array([2.0f32, 3.0, 5.0]))?;
    assert_eq!(floats(&slope), [1.0 + 6.0 + 60.0, 4.0 + 40.0, 24.0]);
    // The same for each example, and along an axis in the middle.
    let mapped = vmap(|x: Array| x.cumsum(0)).call(&x)?;
    assert_eq!(floats(&mapped), [1.0, 3.0, 6.0, 4.0, 9.0, 3.0]);
    let cube = arange(0.0f32..24.0).reshape([2, 4, 3]);
    let sums = cube.cumsum(1);
    assert_eq!(floats(&sums.at(s![1, 3]).get()), [66.0, 70.0, 74.0]);
    // JAX 0.10.2: NaN stays, 0 is larger than -0, and what overflows is infinite.
    let zeros = array([-0.0f32, 0.0, -0.0, f32::NAN, 1.0]);
    let largest = zeros.cummax(0).to_vec::<f32>()?;
    assert_eq!(largest[..3].iter().map(|x| x.is_sign_negative()).collect::<Vec<_>>(), [true, false, false]);
    assert!(largest[3].is_nan() && largest[4].is_nan());
    let products = floats(&array([1e30f32, 1e30, 0.0, 2.0]).cumprod(0));
    assert!(products[1] == f64::INFINITY && products[2].is_nan() && products[3].is_nan());
    let sums = floats(&array([3e38f32, 3e38, -3e38]).cumsum(0));
    assert!(sums[1] == f64::INFINITY && sums[2] == f64::INFINITY);
    // Sums of f32 are exact up to the last rounding: the last of 2²⁴ ones would be lost.
    let ones = ones([1 << 14, 1]) * 1025.5;
    let last = ones.cumsum(0).at(s![-1, 0]).get();
    assert_eq!(floats(&last), [f64::from(1025.5f32 * 16384.0)]);
    Ok(())
}

/// Powers and cube roots of special numbers as NumPy 2 computes them.
fn powers_and_cube_roots() -> Result<()> {
    let x = array([-8.0f32, 0.0, -0.0, 2.0, f32::INFINITY, -0.5, 1.0, 8.0]);
    let y = array([3.0f32, -1.0, -3.0, 0.5, 0.0, 0.5, f32::NAN, 1.0]);
    let infinity = f64::INFINITY;
    for dtype in [DType::F32, DType::Bf16, DType::F16].into_iter().step_by(one_of(2)) {
        let (x, y) = (x.astype(dtype), y.astype(dtype));
        let compiled = jit(|x: Array, y: Array| x.pow(y));
        let text = compiled.lower((&x, &y))?.as_text().to_string();
        assert!(text.contains("shardax_pow"), "{dtype}: {text}");
        let powers = floats(&compiled.call((&x, &y))?);
        assert!(powers[5].is_nan(), "{dtype}: {powers:?}");
        let root = floats(&array(2f32.sqrt()).astype(dtype))[0];
        assert_eq!(powers[..5], [-512.0, infinity, -infinity, root, 1.0], "{dtype}");
        assert_eq!(powers[6..], [1.0, 8.0], "{dtype}");
    }
    // XLA replaces powers with constant exponents by products.
    let text = jit(|x: Array| x.pow(2.5)).lower(&x)?.as_text().to_string();
    assert!(!text.contains("shardax_pow"), "{text}");
    let slope = grad(|y: Array| array([2.0f32, 3.0]).pow(y).sum(..)).call(array([2.0f32, 1.0]))?;
    assert!(allclose(slope, array([4.0 * 2f32.ln(), 3.0 * 3f32.ln()]), 1e-6, 0.0)?);
    for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16].into_iter().step_by(one_of(4)) {
        let x = x.astype(dtype);
        let text = jit(|x: Array| shardax::numpy::cbrt(x)).lower(&x)?.as_text().to_string();
        assert!(text.contains("shardax_cbrt"), "{dtype}: {text}");
        let roots = floats(&shardax::numpy::cbrt(&x));
        assert_eq!([0, 1, 2, 4, 6, 7].map(|i| roots[i]), [-2.0, 0.0, -0.0, infinity, 1.0, 2.0], "{dtype}");
    }
    Ok(())
}

/// Sums of numbers at positions, which histograms and counts contain.
fn sums_at_positions() -> Result<()> {
    let positions = array([2i32, 0, 2, 7, -1, 1]);
    let dtypes = [DType::F32, DType::F64, DType::I32, DType::I64, DType::U32, DType::U64];
    for dtype in dtypes.into_iter().step_by(one_of(5)) {
        let operand = array([1, 2, 3]).astype(dtype);
        let updates = array([1, 2, 4, 8, 16, 32]).astype(dtype);
        let add = jit(|x: Array, i: Array, u: Array| x.at(&i).add(&u));
        let text = add.lower((&operand, &positions, &updates))?.as_text().to_string();
        assert!(text.contains("shardax_scatter_add"), "{dtype}: {text}");
        // A position of -1 is the last one, and 7 is dropped.
        assert_eq!(floats(&add.call((&operand, &positions, &updates))?), [3.0, 34.0, 24.0], "{dtype}");
    }
    let slope = grad(|u: Array| (zeros(3).at(&positions).add(&u) * array([1.0f32, 2.0, 4.0])).sum(..)).call(ones(6))?;
    assert_eq!(floats(&slope), [4.0, 1.0, 4.0, 0.0, 4.0, 2.0]);
    let sums = zeros(3).at(&array([[0i32, 1], [2, 0]])).add(array([[1.0f32, 2.0], [3.0, 4.0]]));
    assert_eq!(floats(&sums), [5.0, 2.0, 3.0]);
    assert_eq!(floats(&zeros(2).at(&zeros(0).astype(DType::I32)).add(zeros(0))), [0.0, 0.0]);
    let rows = vmap(|x: Array| x.at(array([0i32, 0])).add(1.0f32)).call(zeros([2, 2]))?;
    assert_eq!(floats(&rows), [2.0, 0.0, 2.0, 0.0]);
    assert_eq!(floats(&shardax::numpy::bincount(&array([1, 3, 1, 0, -1, 9]), 4)), [2.0, 2.0, 0.0, 1.0]);
    let x = array([0.0f32, 0.1, 0.5, 1.0, f32::NAN, 2.0, -1.0, f32::INFINITY]);
    let (counts, _) = shardax::numpy::HistogramOptions::new().range(0.0, 1.0).histogram(&x, 2);
    assert_eq!(floats(&counts), [2.0, 2.0]);
    // The elements of each bin, also at its lower edge, by comparisons with the edges.
    let x = (arange(0.0f32..20_000.0) * 0.37).sin();
    let (counts, edges) = shardax::numpy::histogram(concatenate(&[&x, &(arange(0.0f32..37.0) / 37)], 0), 37);
    let (values, edges) = (floats(&x), floats(&edges));
    let others: Vec<f64> = floats(&(arange(0.0f32..37.0) / 37));
    for (bin, count) in floats(&counts).into_iter().enumerate() {
        let is_in = |x: &&f64| edges[bin] <= **x && (**x < edges[bin + 1] || bin == 36);
        let expected = values.iter().chain(&others).filter(is_in).count();
        assert_eq!(count, expected as f64, "bin {bin}");
    }
    Ok(())
}

#[test]
fn cumulative_operations_by_cpu_kernels() {
    let mut command = child::command("cumulatives::in_a_process_with_cpu_kernels");
    child::run(command.env(VARIABLE, "all"));
}
