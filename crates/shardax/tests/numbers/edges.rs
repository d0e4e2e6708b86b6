//! Ties, infinities and NaN. The golden family `edges` compares every function at such values.

use shardax::lax::{self, Padding, Triangular, Window};
use shardax::nn::{self, Pool};
use shardax::prelude::*;
use shardax::stages::CompilerOption;
use shardax::{linalg, numpy as np};

use super::common::quick::{one_of, setup};
use super::floats;

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

/// Compares numbers. NaN equals NaN.
pub fn same(got: &Array, want: &[f64]) {
    let got = floats(got);
    fn equal((g, w): (&f64, &f64)) -> bool {
        (g.is_nan() && w.is_nan()) || g == w || (g - w).abs() <= 1e-5 * w.abs()
    }
    assert!(got.len() == want.len() && got.iter().zip(want).all(equal), "{got:?}, want {want:?}");
}

/// Returns the slopes of an elementwise function in reverse mode, after comparing them with the slopes in forward mode.
pub fn slopes(f: fn(Array) -> Array, x: &Array) -> Array {
    let reverse = grad(move |x: Array| f(x).sum(..)).call(x).expect("a gradient");
    let (_, forward) = jvp(f, x.clone(), np::ones_like(x)).expect("a tangent");
    same(&forward, &floats(&reverse));
    reverse
}

#[test]
fn ties_share_the_gradient_of_cumlogsumexp() -> Result<()> {
    setup();
    let slope = grad(|x: Array| lax::cumlogsumexp(&x, 0).sum(..)).call(ones([4]))?;
    same(&slope, &[25.0 / 12.0, 13.0 / 12.0, 7.0 / 12.0, 0.25]);
    Ok(())
}

#[test]
fn gelu_exact_keeps_the_digits_of_its_tail() {
    setup();
    // By 1 + erf, both would be 0 or of the wrong sign.
    let x = array([-6.0f32, 6.0]);
    same(&nn::gelu_exact(&x), &[-5.919_538e-9, 6.0]);
    same(&slopes(|x| nn::gelu_exact(x), &x), &[-3.546_878e-8, 1.0]);
}

#[test]
fn integers_have_no_remainder_by_zero() -> Result<()> {
    setup();
    assert_eq!(np::fmod(array([5, -5, 0]), 0).to_vec::<i32>()?, [0, 0, 0]);
    assert_eq!(np::fmod(array([5u8, 7]), array([0u8, 4])).to_vec::<u8>()?, [0, 3]);
    Ok(())
}

#[test]
fn forward_and_reverse_mode_agree_at_nan_and_infinity() {
    setup();
    let x = array([NAN, INF, -INF, 0.0]);
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    same(&slopes(|x| nn::softplus(x), &x), &[nan, 1.0, 0.0, 0.5]);
    same(&slopes(|x| nn::log_sigmoid(x), &x), &[nan, 0.0, 1.0, 0.5]);
    same(&slopes(|x| nn::relu(x), &x), &[0.0, 1.0, 0.0, 0.0]);
    same(&nn::relu(&x), &[nan, inf, 0.0, 0.0]);
    // Of two equal infinities each has its whole share, as in JAX.
    same(&slopes(|x| np::logaddexp(&x, &x), &x), &[nan, 2.0, nan, 1.0]);
}

#[test]
fn more_degrees_of_freedom_than_elements_give_no_variance() {
    setup();
    let x = array([1.0f32, 2.0, 4.0]);
    for ddof in [3, 4, 100] {
        same(&x.var_ddof(.., ddof), &[f64::NAN]);
        same(&x.std_ddof(.., ddof), &[f64::NAN]);
    }
    same(&x.var_ddof(.., 1), &[7.0 / 3.0]);
}

#[test]
fn eigenvalues_of_non_finite_matrices_are_nan() {
    setup();
    for bad in [NAN, INF, -INF] {
        let (w, v) = linalg::eigh(array([[bad, 0.0], [0.0, 1.0]]));
        same(&w, &[f64::NAN; 2]);
        same(&v, &[f64::NAN; 4]);
    }
    // A non-finite matrix does not change the other matrices of a batch.
    let two = np::stack(&[np::eye(2) * 3, np::full_like(&np::eye(2), NAN)], 0);
    same(&linalg::eigvalsh(two), &[3.0, 3.0, f64::NAN, f64::NAN]);
}

#[test]
fn einsum_takes_the_diagonal_of_a_column() -> Result<()> {
    setup();
    // JAX: of sizes 1 and n the diagonal has one element; where the last is n, zeros follow.
    let column = array([[3.0f32], [5.0]]);
    let row = array([[3.0f32, 5.0]]);
    same(&einsum("ii->i", &[&column]), &[3.0]);
    same(&einsum("ii", &[&column]), &[3.0]);
    same(&einsum("ii->i", &[&row]), &[3.0, 0.0]);
    same(&einsum("ii,i->i", &[&column, &array([1.0f32, 10.0])]), &[3.0, 30.0]);
    same(&grad(|x: Array| einsum("ii->i", &[&x]).sum(..)).call(&column)?, &[1.0, 0.0]);
    let error = einsum("ii->i", &[&zeros([2, 3])]).check().unwrap_err().to_string();
    assert!(error.contains("dimension 'i' has sizes 3 and 2"), "{error}");
    Ok(())
}

/// JAX's values, which are LAPACK's: what is not a number or not finite stays in its column, and reaches only the rows
/// that depend on it.
#[test]
fn triangular_solves_keep_nan_in_its_place() {
    setup();
    let a = array([[2.0f32, 0.0, 0.0], [1.0, 4.0, 0.0], [-1.0, 2.0, 5.0]]);
    let b = array([[1.0, NAN, 2.0], [3.0, 1.0, INF], [4.0, NAN, 1.0]]);
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let back = [0.725, nan, -inf, 0.35, nan, inf, 0.8, nan, 0.2];
    let forward = [0.5, nan, 1.0, 0.625, nan, inf, 0.65, nan, -inf];
    let right = [nan, nan, 0.4, inf, -inf, inf, nan, nan, 0.2];
    let right_back = [0.5, nan, nan, 1.5, -0.125, inf, 2.0, nan, nan];
    let right_unit = [nan, nan, 2.0, inf, -inf, inf, nan, nan, 1.0];
    let cases = [
        (true, true, false, false, &forward),
        (true, true, true, false, &back),
        (true, false, false, false, &back),
        (true, false, true, false, &forward),
        (false, true, false, false, &right),
        (false, true, true, false, &right_back),
        (false, false, true, false, &right),
        (false, true, false, true, &right_unit),
    ];
    for (left_side, lower, transpose_a, unit_diagonal, want) in cases {
        let a = if lower { a.clone() } else { a.mt() };
        let options = Triangular { left_side, lower, transpose_a, unit_diagonal, ..Default::default() };
        fn solve(b: Array, a: &Array, options: &Triangular) -> Array {
            lax::triangular_solve(a, &b, *options)
        }
        same(&solve(b.clone(), &a, &options), want);
        // What is not in the triangle is not read.
        let other_triangle = if lower { (ones([3, 3]) * NAN).triu(1) } else { (ones([3, 3]) * NAN).tril(-1) };
        same(&lax::triangular_solve(&where_(other_triangle.isnan(), &other_triangle, &a), &b, options), want);
        let batched =
            vmap(|b: Array| solve(b, &a, &options)).call(np::stack(&[ones([3, 3]), b.clone()], 0)).expect("solutions");
        same(&batched.get(1), want);
        assert!(np::isfinite(&batched.get(0)).all(..).item::<bool>().expect("a value"));
    }
}

#[test]
fn singular_systems_solve_to_infinity() {
    setup();
    let inf = f64::INFINITY;
    fn solve_left(lower: bool, transpose_a: bool) -> Triangular {
        Triangular { left_side: true, lower, transpose_a, ..Default::default() }
    }
    let b = array([[1.0f32, 0.0], [3.0, 4.0]]);
    let x = lax::triangular_solve(&array([[1.0f32, 0.0], [2.0, 0.0]]), &b, solve_left(true, false));
    same(&x, &[1.0, 0.0, inf, inf]);
    let x = lax::triangular_solve(&array([[0.0f32, 0.0], [2.0, 3.0]]), &b, solve_left(true, true));
    same(&x, &[-inf, -inf, 1.0, 4.0 / 3.0]);
    let singular = array([[1.0f32, 2.0], [2.0, 4.0]]);
    same(&linalg::solve(&singular, array([1.0f32, 3.0])), &[inf, -inf]);
    same(&linalg::inv(&singular), &[-inf, inf, inf, -inf]);
}

#[test]
fn second_derivatives_of_var_do_not_depend_on_its_values() -> Result<()> {
    setup();
    let t = array([1.0f32, 2.0, -1.0, 0.5]);
    let slope = |ddof: usize| move |x: Array| grad(move |x: Array| x.var_ddof(.., ddof)).call(x);
    for x in [[1.0, 2.0, 4.0, 7.0], [1.0, INF, 4.0, 7.0], [1.0, NAN, 4.0, 7.0], [3e38, -3e38, 4.0, 7.0]] {
        let x = array(x);
        same(&jvp(slope(0), x.clone(), t.clone())?.1, &[0.1875, 0.6875, -0.8125, -0.0625]);
        same(&jvp(slope(1), x.clone(), t.clone())?.1, &[0.25, 0.916_666_7, -1.083_333_4, -0.083_333_34]);
        same(&jvp(slope(4), x, t.clone())?.1, &[f64::NAN; 4]);
    }
    Ok(())
}

/// Functions that XLA computes via an integer exponent.
const BY_EXPONENT: [fn(&Array) -> Array; 7] = [
    |x| np::exp(x),
    |x| np::exp2(x),
    |x| np::expm1(x),
    |x| np::logistic(x),
    |x| np::sinh(x),
    |x| np::cosh(x),
    |x| lax::erfc(x),
];

/// Compiles as users' programs are compiled, in a process with quick options.
const DEFAULT_OPTIONS: [(&str, CompilerOption); 3] = [
    ("xla_cpu_use_fusion_emitters", CompilerOption::Bool(true)),
    ("xla_backend_optimization_level", CompilerOption::Int(3)),
    ("xla_llvm_disable_expensive_passes", CompilerOption::Bool(false)),
];

/// The compiler divides the loop over a choice of entire rows into two loops, and one loop computes `exp` of the constant NaN:
/// it
/// returned memory that nothing had been written to (in JAX too).
#[test]
fn exp_of_rows_of_nan_is_nan() -> Result<()> {
    setup();
    let x = array([[1.5f32, 2.25, 2.5], [-INF, 1.375, 0.0]]);
    let places = array([1, 0, 3, 1, 4, 1, 3, 0, 1]);
    for dtype in [DType::F16, DType::Bf16, DType::F32, DType::F64] {
        fn functions_of_rows((x, places): (Array, Array)) -> Vec<Array> {
            BY_EXPONENT.iter().step_by(one_of(3)).map(|f| f(&x.take(&places, 0))).collect()
        }
        let rows = jit(functions_of_rows).compiler_options(DEFAULT_OPTIONS).call((x.astype(dtype), places.clone()))?;
        for (function, rows) in rows.iter().enumerate() {
            let nan_rows = np::isnan(rows).all(1).to_vec::<bool>()?;
            let is_out_of_bounds = [false, false, true, false, true, false, true, false, false];
            assert_eq!(nan_rows, is_out_of_bounds, "function {function} of {dtype}: {rows:?}");
        }
    }
    Ok(())
}

/// In one kernel with the choice, `exp` of a NaN that is a constant was memory that nothing had been written to (in JAX
/// too).
#[test]
fn exp_of_a_chosen_nan_is_nan() -> Result<()> {
    setup();
    let x = array([[1.5f32, -INF], [2.25, 1.375], [2.5, 0.0]]);
    let places = array([[1, 0, 3], [1, 4, 1], [3, 2, 0]]);
    let out_of_bounds = [2, 4, 6, 7];
    for dtype in [DType::F32, DType::Bf16] {
        let x = x.astype(dtype);
        fn gathers((x, places): (Array, Array)) -> Result<Vec<Array>> {
            let mut results = Vec::new();
            for f in BY_EXPONENT.iter().step_by(one_of(3)) {
                let take = |x: Array| f(&x.take(&places, 1));
                let (y, t) = jvp(take, x.clone(), ones_like(&x))?;
                results.extend([y.reshape([3, 9]), t.reshape([3, 9])]);
            }
            Ok(results)
        }
        let f = jit(gathers).compiler_options(DEFAULT_OPTIONS);
        for pair in f.call((x, places.clone()))?.chunks(2) {
            let (y, t) = (pair[0].take(out_of_bounds, 1), pair[1].take([1, 8], 1));
            assert!(np::isnan(&y).all(..).item::<bool>()?, "{y:?}");
            assert!(!np::isnan(&t).any(..).item::<bool>()?, "{t:?}");
        }
    }
    Ok(())
}

#[test]
fn rounding_has_no_slope_and_bounds_that_cross_have_none() -> Result<()> {
    setup();
    let x = array([1.234f32, 3e38, -3e38, INF]);
    for decimals in [2, 39] {
        same(&grad(move |x: Array| np::around(&x, decimals).sum(..)).call(&x)?, &[0.0; 4]);
    }
    // As in JAX: on a bound, and where the upper one is below the lower, nothing but the upper bound has a slope.
    fn clamp(lo: f32, x: f32, hi: f32) -> Result<Vec<f32>> {
        fn f((lo, x, hi): (Array, Array, Array)) -> Array {
            lax::clamp(&lo, &x, &hi)
        }
        let (a, b, c) = grad(f).call((array(lo), array(x), array(hi)))?;
        [a, b, c].iter().map(|g| g.item::<f32>()).collect()
    }
    assert_eq!(clamp(0.0, 1.0, 2.0)?, [0.0, 1.0, 0.0]);
    assert_eq!(clamp(1.0, 1.0, 2.0)?, [0.0, 0.0, 0.0]);
    assert_eq!(clamp(3.0, 1.0, 1.0)?, [0.0, 0.0, 0.0]);
    assert_eq!(clamp(3.0, 2.0, 1.0)?, [0.0, 0.0, 1.0]);
    assert_eq!(clamp(3.0, 0.5, 1.0)?, [0.0, 0.0, 0.0]);
    Ok(())
}

#[test]
fn remainders_of_booleans_and_parts_of_half_precision() -> Result<()> {
    setup();
    assert!(lax::rem(&array([true]), &array([true])).error().is_some());
    let z = np::complex(ones([2]).astype(DType::F16), 1);
    assert_eq!((z.dtype(), np::real(&z).to_vec::<f32>()?), (DType::Complex64, vec![1.0, 1.0]));
    Ok(())
}

#[test]
fn bessel_functions_of_the_largest_numbers() {
    setup();
    use shardax::scipy::special;
    same(&special::i0e(array([1e38f32, 3e38])), &[3.989_422_8e-20, 2.303_294_3e-20]);
    same(&special::i0(array([1e38f32, 3e38])), &[f64::INFINITY, f64::INFINITY]);
    same(&special::i1e(array([1e38f32])), &[3.989_422_8e-20]);
}

/// If both arguments are large and close to each other, neither the series nor the fraction converges quickly.
#[test]
fn incomplete_gamma_functions_of_large_numbers_that_are_close() -> Result<()> {
    setup();
    use shardax::scipy::special;
    let (a, x) = ([1e10, 1e6, 1e6, 1e4, 1e4, 300.0], [1e10, 1e6, 1.001e6, 1e4, 1.01e4, 310.0]);
    // Computed with mpmath.
    let upper = [
        0.4999986701923987,
        0.4998670192391274,
        0.15865521363165971,
        0.4986701916600448,
        0.15865124955282037,
        0.2775112458281389,
    ];
    fn close(got: Array, want: &[f64], to: f64) {
        let off = floats(&got).iter().zip(want).fold(0.0, |m: f64, (g, w)| m.max((g - w).abs() / w.abs()));
        assert!(off < to, "{got} is not {want:?}: off by {off}");
    }
    let lower = upper.map(|q| 1.0 - q);
    for (dtype, to) in [(DType::F64, 1e-11), (DType::F32, 2e-5)] {
        fn with_dtype(v: &[f64], dtype: DType) -> Array {
            array_of(v, dtype)
        }
        close(special::gammaincc(with_dtype(&a, dtype), with_dtype(&x, dtype)), &upper, to);
        close(special::gammainc(with_dtype(&a, dtype), with_dtype(&x, dtype)), &lower, to);
    }
    let density = grad(|x: Array| special::gammainc(array_of(&a[..], DType::F64), x).sum(..))
        .call(array_of(&x[..], DType::F64))?;
    let want = [3.98942280e-6, 3.98942247e-4, 2.418095049e-4, 3.98938956e-3, 2.403669258e-3, 0.018931075058];
    close(density, &want, 1e-5);
    Ok(())
}

/// The plugin would fail when these run.
#[test]
fn booleans_are_clamped_and_bits_of_few_counted() -> Result<()> {
    setup();
    let x = array([true, false]);
    for (low, high, want) in [(false, true, [1.0, 0.0]), (true, true, [1.0; 2]), (true, false, [0.0; 2])] {
        assert_eq!(lax::clamp(low, &x, high).to_f64_vec()?, want);
    }
    let counts = [(DType::I4, [1.0, 0.0, 4.0], [3.0, 4.0, 0.0]), (DType::U2, [1.0, 0.0, 2.0], [1.0, 2.0, 0.0])];
    for (dtype, ones, zeros) in counts {
        let x = array([1, 0, -1]).astype(dtype);
        let bits = shardax::numpy::population_count(&x);
        assert_eq!((bits.dtype(), bits.to_f64_vec()?), (dtype, ones.to_vec()));
        assert_eq!(lax::clz(&x).to_f64_vec()?, zeros);
    }
    let error = lax::reduce_min(&ones([1, 1]), &[0, 0]).check().expect_err("an axis named twice").to_string();
    assert!(error.contains("duplicate axis 0 in the axes [0, 0] of reduce_min, for float32[1,1]"), "{error}");
    Ok(())
}

/// XLA rewrites the logarithm of a power as a product with the logarithm of the absolute value.
#[test]
fn logarithms_of_powers_keep_nan() -> Result<()> {
    setup();
    let x = array([-2.0f32, -0.5, 2.0]);
    for (y, want) in [(0.5, [f64::NAN, f64::NAN, 0.34657359]), (3.0, [f64::NAN, f64::NAN, 2.07944154])] {
        let f = jit(|x: Array, y: Array| x.pow(y).log());
        for got in [f.call((&x, array(y as f32)))?, jit(move |x: Array| x.pow(y).log()).call(&x)?] {
            fn same((g, w): (f64, f64)) -> bool {
                if w.is_nan() { g.is_nan() } else { (g - w).abs() < 1e-6 }
            }
            assert!(got.to_f64_vec()?.into_iter().zip(want).all(same), "{got:?} for {y}");
        }
    }
    // The imaginary part of a complex logarithm is between -π and π.
    let z = shardax::numpy::complex(array([-1.0f32]), array([1.0f32]));
    let f = jit(|z: Array, y: Array| shardax::numpy::imag(z.pow(y).log()));
    let got = f.call((&z, shardax::numpy::complex(array([3.0f32]), array([0.0f32]))))?.item::<f32>()?;
    assert!((got - std::f32::consts::FRAC_PI_4).abs() < 1e-5, "{got}");
    Ok(())
}

/// Squares neither cancel next to 1 nor overflow. Values of mpmath.
#[test]
fn slopes_of_inverse_functions_keep_their_digits() {
    setup();
    let near = 1.0 - f32::EPSILON;
    let far = 1e25f32;
    same(&slopes(|x| np::arcsin(x), &array([near, -near])), &[2_048.000_06, 2_048.000_06]);
    same(&slopes(|x| np::arccos(x), &array([near])), &[-2_048.000_06]);
    same(&slopes(|x| np::arccosh(x), &array([1.0 + f32::EPSILON, far])), &[2_047.999_94, 1e-25]);
    same(
        &slopes(|x| np::arcsinh(x), &array([far, -far, 0.0, 1.0])),
        &[1e-25, 1e-25, 1.0, std::f64::consts::FRAC_1_SQRT_2],
    );
    let second = grad(|x: Array| grad(|x: Array| Ok(np::arcsinh(x))).call(x)).call(1.0f32).expect("a second slope");
    same(&second, &[-0.353_553_4]);
}

#[test]
fn windows_of_dimensions_that_padding_removes_are_none() -> Result<()> {
    setup();
    for (size, padding) in [(0, (-1, -2)), (0, (-1, 0)), (2, (-1, -2)), (2, (-3, 0))] {
        for reduce in [lax::reduce_window_sum, lax::reduce_window_max, lax::reduce_window_min] {
            let f = move |x: Array| reduce(x, Window::new([1, 1]).padding(vec![(0, 0), padding]));
            let x = ones([3, size]);
            assert_eq!(f(x.clone()).to_vec::<f32>()?.len(), 0);
            assert_eq!(jit(f).call(&x)?.shape(), [3, 0]);
            assert_eq!(vmap(f).call(ones([2, 3, size]))?.shape(), [2, 3, 0]);
            let (_, transpose) = vjp(f, &x)?;
            assert_eq!(transpose.call(ones([3, 0]))?.0.to_vec::<f32>()?, vec![0.0; 3 * size]);
        }
    }
    Ok(())
}

/// JAX 0.12 has these sums: its `SAME` counts the elements of the array, but not the gaps of `base_dilation`.
#[test]
fn same_padding_of_windows_counts_no_gaps_of_the_array() -> Result<()> {
    setup();
    let window = Window::new([3]).strides([2]).padding(lax::Padding::Same).base_dilation([3]);
    let sums = lax::reduce_window_sum(array([1.0f32, 2.0, 3.0, 4.0]), window);
    assert_eq!(sums.to_vec::<f32>()?, [1.0, 2.0, 3.0, 3.0, 4.0]);
    Ok(())
}

#[test]
fn polysub_of_unsigned_integers() -> Result<()> {
    setup();
    // The negative of an unsigned integer wraps, but the difference is in the common dtype.
    let q = array_of([2, 7], DType::U8);
    assert_eq!(np::polysub(array([1.5f32, 1.0]), &q).to_vec::<f32>()?, [-0.5, -6.0]);
    assert_eq!(np::polysub(array([1, 1, 1]), &q).to_vec::<i32>()?, [1, -1, -6]);
    Ok(())
}

#[test]
fn digitize_with_descending_edges() -> Result<()> {
    setup();
    let x = array([3.5f32, 3.0, 2.5, 1.0, 0.5]);
    assert_eq!(np::digitize(&x, array([3.0f32, 2.0, 1.0])).to_vec::<i32>()?, [0, 0, 1, 2, 3]);
    assert_eq!(np::digitize(&x, array([1.0f32, 2.0, 3.0])).to_vec::<i32>()?, [3, 3, 2, 1, 0]);
    assert_eq!(np::digitize(&x, array([1.0f32])).to_vec::<i32>()?, [1, 1, 1, 1, 0]);
    assert_eq!(np::digitize(&x, zeros(0)).to_vec::<i32>()?, [0; 5]);
    let edges = jit(|edges: Array, x: Array| np::digitize(x, edges));
    assert_eq!(edges.call((array([3.0f32, 2.0, 1.0]), &x))?.to_vec::<i32>()?, [0, 0, 1, 2, 3]);
    Ok(())
}

#[test]
fn sums_of_booleans() -> Result<()> {
    setup();
    let (x, ids) = (array([true, false, true, true]), array([0, 0, 2, 2]));
    assert_eq!(np::segment_sum(&x, &ids, 3).to_vec::<i32>()?, [1, 0, 2]);
    assert_eq!(np::segment_prod(&x, &ids, 3).to_vec::<i32>()?, [0, 1, 1]);
    let matrix = x.reshape([2, 2]);
    assert_eq!(np::einsum("ij->j", &[&matrix]).to_vec::<bool>()?, [true, true]);
    assert_eq!(np::einsum("ij,jk->i", &[&matrix, &matrix]).to_vec::<bool>()?, [true, true]);
    Ok(())
}

/// JAX's slopes; at 0 and `n` the logarithm of the choices is 0, but its slope is not.
#[test]
fn slopes_of_binom_at_the_ends() -> Result<()> {
    setup();
    fn logpmf(k: Array, p: Array) -> Array {
        shardax::scipy::stats::binom::logpmf(k, 3, p, 0).sum(..)
    }
    let (k, p) = (array([0.0f32, 1.0, 3.0]), full(3, 0.4f32));
    let (by_k, by_p) = grad(logpmf).argnums((Arg::<0>, Arg::<1>)).call((&k, &p))?;
    same(&by_k, &[1.427868, 0.0945346, -2.238798]);
    same(&by_p, &[-5.0, -0.8333333, 7.5]);
    // The limits, where JAX returns NaN.
    let (_, by_p) = grad(logpmf).argnums((Arg::<0>, Arg::<1>)).call((array([0.0f32, 3.0]), array([0.0f32, 1.0])))?;
    same(&by_p, &[-3.0, 3.0]);
    Ok(())
}

/// `x + 3` and `-x` can exceed the range of their dtype.
#[test]
fn activations_of_small_integers() -> Result<()> {
    setup();
    let (x, y) = (array([127i8, -128, 2]), array([255u8, 3, 0]));
    same(&nn::hard_sigmoid(&x), &[1.0, 0.0, 0.8333333]);
    same(&nn::hard_silu(&x), &[127.0, 0.0, 1.6666667]);
    same(&nn::sparse_sigmoid(&x), &[1.0, 0.0, 1.0]);
    same(&nn::hard_silu(&y), &[255.0, 3.0, 0.0]);
    same(&nn::hard_sigmoid(array([i32::MAX])), &[1.0]);
    same(&nn::log_sigmoid(&x), &[0.0, -128.0, -0.126928]);
    same(&nn::log_sigmoid(&y), &[0.0, -0.04858735, -2f64.ln()]);
    Ok(())
}

#[test]
fn logarithms_of_complex_sums_are_complex() -> Result<()> {
    setup();
    let x = np::complex(array([1.0f32, -0.5]), array([2.0f32, 1.0]));
    let options = np::LogsumexpOptions::new().b(array([2.0f32, -3.0]));
    let log = options.logsumexp(&x, ..);
    same(&np::stack([log.real(), log.imag()], 0), &[1.5495379, 2.3311496]);
    let (log, sign) = options.return_sign(&x, ..);
    same(&np::stack([log, sign.real(), sign.imag()], 0), &[1.5495379, -0.6891773, 0.7245927]);
    Ok(())
}

#[test]
fn one_choice_broadcasts_with_the_indices() -> Result<()> {
    setup();
    let choices = [array([7])];
    assert_eq!(np::choose(array([0, 2, 1]), &choices, IndexMode::Clip).to_vec::<i32>()?, [7, 7, 7]);
    Ok(())
}

#[test]
fn complex_numbers_are_elements_of_sets() -> Result<()> {
    setup();
    let x = np::complex(array([[1.0f32, -0.5]]), array([2.0f32, 1.0]));
    let test = np::complex(array([1.0f32, 3.0, -0.5]), array([2.0f32, 0.0, -1.0]));
    assert_eq!(np::isin(&x, &test).shape(), [1, 2]);
    assert_eq!(np::isin(&x, &test).to_vec::<bool>()?, [true, false]);
    assert_eq!(np::isin(x.get((0, 0)), &test).to_vec::<bool>()?, [true]);
    Ok(())
}

#[test]
fn densities_of_complex_signals_are_real() -> Result<()> {
    setup();
    let x = np::complex(array([1.0f32, 2., 3., 4., 5., 0., 2., 3.]), array([0.0f32, 1., 0., -2., 0., 1., 0., 0.]));
    let options = shardax::scipy::signal::SpectralOptions::new().nperseg(4).return_onesided(false);
    same(&options.welch(&x)?.1, &[0.9444445, 5.0972223, 2.2222223, 2.3194442]);
    Ok(())
}

#[test]
fn gradient_between_uneven_coordinates() -> Result<()> {
    setup();
    let (x, at) = (array([[1.0f32, 4., 16., 49.], [2., 3., 5., 9.]]), array([1.0f32, 2., 4., 7.]));
    let want = [3.0, 4.0, 8.0, 11.0, 1.0, 1.0, 1.1333334, 1.3333334];
    same(&np::gradient(&x, &at, 1), &want);
    same(&np::gradient(x.t(), &at, 0).t(), &want);
    same(&np::gradient(x.get((.., ..2)), at.get(..2), -1), &[3.0, 3.0, 1.0, 1.0]);
    assert!(np::gradient(&x, &at, 0).to_vec::<f32>().is_err());
    Ok(())
}

#[test]
fn lines_through_two_points_are_trends() -> Result<()> {
    setup();
    use shardax::scipy::signal::{Trend, detrend};
    let rest = |x: Array, trend: Trend| floats(&detrend(x, 0, trend)).iter().fold(0.0f64, |a, b| a.max(b.abs()));
    assert!(rest(array([2.0f32, 3.0]), Trend::Linear) < 1e-6);
    assert!(rest(array([2.0f32, 3.0, 10.0, 7.0]), Trend::Broken(vec![2])) < 1e-5);
    assert!(rest(array([2.0f32, 3.0, 9.0]), Trend::Broken(vec![2])) < 1e-5);
    Ok(())
}

#[test]
fn multigammaln_of_infinity_is_infinite() -> Result<()> {
    setup();
    use shardax::scipy::special::multigammaln;
    let x = array([INF, 5.0, NAN]);
    same(&multigammaln(&x, 1), &[f64::INFINITY, 3.1780539, f64::NAN]);
    same(&multigammaln(&x, 2), &[f64::INFINITY, 6.204155, f64::NAN]);
    same(&multigammaln(&x, 0), &[0.0, 0.0, f64::NAN]);
    Ok(())
}

#[test]
fn a_scalar_is_packed_into_a_byte() -> Result<()> {
    setup();
    assert_eq!(np::packbits(array(1u8), np::BitOrder::Big).to_vec::<u8>()?, [128]);
    assert_eq!(np::packbits(array(true), np::BitOrder::Little).to_vec::<u8>()?, [1]);
    Ok(())
}

#[test]
fn complex_values_are_interpolated() -> Result<()> {
    setup();
    let points = array([0.0f32, 1.0, 2.0]);
    let values = np::complex(array([1.0f32, 2.0, 4.0]), array([1.0f32, -1.0, 3.0]));
    let y = np::interp(array([-1.0f32, 0.5, 1.25, 3.0]), &points, &values);
    same(&np::stack([y.real(), y.imag()], 0), &[1.0, 1.5, 2.5, 4.0, 1.0, 0.0, 0.0, 3.0]);
    assert!(np::interp(&values, &points, &points).check().is_err());
    Ok(())
}

#[test]
fn weights_of_covariances_are_promoted() -> Result<()> {
    setup();
    let x = array([[1.0f32, 2.0, 4.0], [3.0, 1.0, 0.5]]).astype(DType::Bf16);
    let covariance = np::CovOptions::new().aweights(array([0.5f32, 1.0, 0.3])).cov(&x);
    assert_eq!(covariance.dtype(), DType::F32);
    same(&covariance, &[1.6052634, -1.2763159, -1.2763159, 1.5855265]);
    Ok(())
}

#[test]
fn means_of_requested_integers_are_integers() -> Result<()> {
    setup();
    let mean = array([[-1.5f32, -2.5, -2.0, -3.5]]).mean(np::over(1).dtype(DType::I32));
    assert_eq!(mean.to_vec::<i32>()?, [-2]);
    assert_eq!(array([1.9f32, 2.9]).mean(np::over(..).dtype(DType::I8)).item::<i8>()?, 1);
    assert_eq!(array([1, 2]).mean(..).dtype(), DType::F32);
    Ok(())
}

#[test]
fn ramps_of_int16_do_not_overflow() -> Result<()> {
    setup();
    let ramp = |x: [i16; 2], end: i32| {
        np::PadOptions::new().end_values(end).pad(array(x), 3, np::PadMode::LinearRamp).to_vec::<i16>()
    };
    assert_eq!(ramp([32767, -32768], -32768)?, [-32768, -10923, 10922, 32767, -32768, -32768, -32768, -32768]);
    assert_eq!(ramp([300, -7], 32767)?, [32767, 21944, 11122, 300, -7, 10917, 21842, 32767]);
    Ok(())
}

#[test]
fn segments_beyond_the_range_of_int32_are_dropped() -> Result<()> {
    setup();
    let ids = array([0u32, (1 << 31) + 1, u32::MAX]);
    same(&np::segment_sum(array([1.0f32, 2.0, 4.0]), &ids, 3), &[1.0, 0.0, 0.0]);
    Ok(())
}

#[test]
fn sinc_of_infinity_is_its_limit() -> Result<()> {
    setup();
    let x = array([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e30]);
    same(&np::sinc(&x), &[0.0, 0.0, f64::NAN, 0.0]);
    same(&grad(|x: Array| np::sinc(x).sum(..)).call(x.get(..2))?, &[0.0, 0.0]);
    Ok(())
}

#[test]
fn squares_of_complex_numbers_with_close_parts() -> Result<()> {
    setup();
    let z = lax::complex(array([1e20f32, 1.0001, -3.0]), array([1e20f32, 1.0, 4.0]));
    let squares = jit(|z: Array| square(z)).call(&z)?;
    same(&lax::real(&squares), &[0.0, f64::from(1.0001f32).powi(2) - 1.0, -7.0]);
    same(&lax::imag(&squares), &[f64::INFINITY, 2.0002, -24.0]);
    let slope = grad(|z: Array| lax::real(square(z)).sum(..)).call(z.get(1..))?;
    same(&lax::real(&slope), &[2.0002, -6.0]);
    same(&lax::imag(&slope), &[2.0, 8.0]);
    Ok(())
}

/// A number of padding is for each spatial dimension, and not for batches and features.
#[test]
fn padding_of_a_number_equals_pairs() -> Result<()> {
    setup();
    let (x, w) = (arange(0..14).astype(DType::F32).reshape([1, 7, 2]), ones([4, 2, 3]));
    let transposed =
        |strides: usize, padding: Padding| lax::conv_transpose(&x, &w, [strides], padding, lax::ConvOptions::new());
    for strides in 1..4 {
        let y = transposed(strides, Padding::from(1));
        assert_eq!(y.shape(), [1, 6 * strides, 3], "strides {strides}");
        same(&y, &floats(&transposed(strides, Padding::from([(1, 1)]))));
        let pool = |padding: Padding| Pool::new([3]).strides([strides]).padding(padding);
        for (by_number, by_pairs) in [
            (pool(Padding::from(1)).max(&x), pool(Padding::from([(1, 1)])).max(&x)),
            (pool(Padding::from(1)).avg(&x), pool(Padding::from([(1, 1)])).avg(&x)),
        ] {
            assert_eq!(by_number.shape(), by_pairs.shape(), "strides {strides}");
            same(&by_number, &floats(&by_pairs));
        }
    }
    for (strides, name) in [(2, "SAME_LOWER"), (1, "CENTRED"), (2, "CENTRED")] {
        let error = transposed(strides, Padding::from(name)).check().unwrap_err().to_string();
        assert!(error.contains("padding"), "{error}");
    }
    assert_eq!(transposed(1, Padding::SameLower).shape(), [1, 7, 3]);
    Ok(())
}

/// The rows of other groups are zeros that are multiplied with the infinite element, as in JAX.
#[test]
fn ragged_dot_of_infinities() -> Result<()> {
    setup();
    let matrices = array([[[1.0f32, 1.0]], [[INF, 2.0]]]);
    let y = lax::ragged_dot(ones([3, 1]), matrices, array([1, 2]));
    same(&y, &[f64::NAN, 1.0, f64::INFINITY, 2.0, f64::INFINITY, 2.0]);
    Ok(())
}
