//! Sums and products of half precision, at sizes where adding in half precision loses most of them.

use shardax::lax::{self, Padding};
use shardax::linalg::{NormOrder, norm};
use shardax::nn::{avg_pool, log_softmax, softmax, standardize};
use shardax::numpy::{
    CovOptions, LogsumexpOptions, average, corrcoef, cov, median, nanmedian, nanstd, quantile, segment_max,
};
use shardax::prelude::*;
use shardax::scipy::cluster::vq;
use shardax::scipy::special;
use shardax::scipy::stats::norm as norm_distribution;

use super::common::quick::setup;
use super::floats;

/// The dtypes, each with the relative distance of its numbers.
const HALVES: [(DType, f64); 2] = [(DType::Bf16, 1.0 / 128.0), (DType::F16, 1.0 / 1024.0)];

const N: usize = 200_000;

/// Numbers of about a hundredth each.
fn hundredths(dtype: DType) -> Array {
    (random::uniform(&random::key(1), &[N]) * 0.02).astype(dtype)
}

type Fun = fn(&Array) -> Array;

/// Compares functions of `x` with the same functions of its numbers in float32, within the rounding of a result and so
/// many roundings more.
fn same_as_wide(x: &Array, eps: f64, functions: &[(&str, f64, Fun)]) {
    let apply_all = |x: Array| functions.iter().map(|(_, _, f)| f(&x)).collect::<Vec<_>>();
    let (got, want) = (jit(apply_all).call(x), jit(apply_all).call(x.astype(DType::F32)));
    let (got, want) = (got.expect("results"), want.expect("results"));
    for ((got, want), (name, more, _)) in got.iter().zip(&want).zip(functions) {
        assert_eq!(got.dtype(), x.dtype(), "{name}");
        for (g, w) in floats(got).into_iter().zip(floats(want)) {
            let allowed = eps * (0.5 + more) * w.abs().max(1e-3);
            assert!((g - w).abs() <= allowed, "{name} of {}: {g}, want {w}", x.type_name());
        }
    }
}

#[test]
fn half_precision_is_accumulated_in_float32_and_rounded_once() {
    setup();
    let of_vectors: &[(&str, f64, Fun)] = &[
        ("sum", 0.0, |x| x.sum(..)),
        ("sum of an odd count", 0.0, |x| x.get(1..).sum(..)),
        ("mean", 0.0, |x| x.mean(..)),
        ("var", 0.0, |x| x.var(..)),
        ("std", 1.0, |x| x.std(..)),
        ("norm", 1.0, |x| norm(x * 16, NormOrder::Default, ..)),
        ("norm of order 1", 0.0, |x| norm(x, 1, ..)),
        ("cumsum", 0.0, |x| x.cumsum(0).get(-1)),
        ("vdot", 0.0, |x| vdot(x, ones_like(x))),
        ("einsum", 0.0, |x| einsum("i->", &[x])),
        ("convolution", 1.0, |x| lax::conv(x.reshape([1, N, 1]), ones_like(x).reshape([1, N, 1]), [1], Padding::Valid)),
        ("windows", 0.0, |x| lax::reduce_window_sum(x, [N])),
        ("small windows", 0.0, |x| lax::reduce_window_sum(x, [60])),
        ("average pooling", 1.0, |x| avg_pool(x.reshape([1, N, 1]), [60], [60])),
    ];
    let of_rows: &[(&str, f64, Fun)] = &[
        ("sums of rows", 0.0, |x| x.sum(1)),
        ("sums of columns", 0.0, |x| x.transpose(&[1, 0]).sum(0)),
        ("matrix product", 0.0, |x| x.matmul(ones_like(x).transpose(&[1, 0]))),
        // Their terms are rounded too.
        ("logsumexp", 2.0, |x| x.logsumexp(1)),
        ("softmax", 2.0, |x| softmax(x, -1) * 64),
        ("log_softmax", 2.0, |x| log_softmax(x, -1)),
    ];
    for (dtype, eps) in HALVES {
        let x = hundredths(dtype);
        same_as_wide(&x, eps, of_vectors);
        same_as_wide(&x.reshape([4, N / 4]), eps, of_rows);
    }
}

#[test]
fn products_of_half_precision_and_their_gradients_are_rounded_once() {
    setup();
    for (dtype, eps) in HALVES {
        // Rounded after each factor, the product would be off by several per cent.
        let x = (random::uniform(&random::key(2), &[1000]) * 0.008 + 1).astype(dtype);
        same_as_wide(
            &x,
            eps,
            &[
                ("prod", 0.0, |x| x.prod(..)),
                ("cumprod", 0.0, |x| x.cumprod(0)),
                ("gradient of prod", 0.0, |x| grad(|x: Array| x.prod(..)).call(x).expect("a gradient")),
            ],
        );
    }
}

#[test]
fn cotangents_of_repeated_elements_are_summed_in_float32() {
    setup();
    let of_scalar: Fun = |x| {
        fn loss(s: Array, x: Array) -> Array {
            (s * x).astype(DType::F32).sum(..)
        }
        grad(loss).call((array(1.0f32).astype(x.dtype()), x.clone())).expect("a gradient")
    };
    let of_bias: Fun = |x| {
        let x = x.reshape([N / 4, 4]);
        fn loss(b: Array, x: Array) -> Array {
            ((b + ones_like(&x)) * x).astype(DType::F32).sum(..)
        }
        grad(loss).call((ones([4]).astype(x.dtype()), x)).expect("a gradient")
    };
    for (dtype, eps) in HALVES {
        let x = hundredths(dtype);
        same_as_wide(&x, eps, &[("gradient of a scalar", 0.0, of_scalar), ("gradient of a bias", 0.0, of_bias)]);
    }
}

/// The global norm of a large layer, which clipping uses.
#[test]
fn the_sum_of_squares_of_a_large_bfloat16_normal_is_its_size() -> Result<()> {
    setup();
    let x = random::normal(&random::key(0), &[4096, 1024]).astype(DType::Bf16);
    let squares = x.square().sum(..).astype(DType::F32).item::<f32>()?;
    assert!((squares / 4.19e6 - 1.0).abs() < 0.01, "{squares}");
    Ok(())
}

/// On many devices parts are added in float32 too, and joined in it.
#[test]
fn a_split_half_precision_sum_is_rounded_once() -> Result<()> {
    setup();
    let mesh = make_mesh([("a", 2), ("b", 4)])?;
    for (dtype, eps) in HALVES {
        let x = hundredths(dtype);
        let want = floats(&x.astype(DType::F32).sum(..))[0];
        let split = device_put(&x, NamedSharding::new(&mesh, P![("a", "b")]))?;
        let got = floats(&jit(|x: Array| x.sum(..)).call(split)?)[0];
        assert!((got - want).abs() <= eps * 0.5 * want, "{got}, want {want}");
    }
    Ok(())
}

/// Moves and comparisons of bfloat16, which the CPU moves as integers and compares in float32, have the results of float32.
#[test]
fn bfloat16_moves_like_float32() -> Result<()> {
    setup();
    let numbers = [1.0, -0.0, f32::NAN, f32::INFINITY, 0.0, -3.5, f32::NEG_INFINITY, 2.0, 1e-30, -1e30, 2.0, 7.0];
    let x = array(numbers).reshape([3, 4]).astype(DType::Bf16);
    let functions: [(&str, fn(&Array) -> Array); 8] = [
        ("flip", |x| shardax::numpy::flip(x, -1)),
        ("roll", |x| shardax::numpy::roll(x, 1, -1)),
        ("slice", |x| x.at(s![..; 2, 1..]).get()),
        ("pad", |x| lax::pad(x, &full((), 2.5).astype(x.dtype()), &[(1, -1, 1), (0, 2, 0)])),
        ("concatenate", |x| concatenate([x, &(x * 2)], 0)),
        ("top_k", |x| lax::top_k(x, 2).0),
        ("top_k indices", |x| lax::top_k(x, 2).1),
        ("argmax", |x| x.argmax(1) + x.argmin(0).sum(..)),
    ];
    for (name, function) in functions {
        let half = jit(move |x: Array| function(&x)).call(&x)?;
        let full = jit(move |x: Array| function(&x)).call(x.astype(DType::F32))?;
        assert!(half.dtype() == DType::Bf16 || half.dtype() == full.dtype(), "{name}");
        let [half, full] = [half, full].map(|result| result.to_f64_vec());
        let (half, full) = (half?, full?);
        // Signs of zeros count, because a move must not change any bit.
        let is_same =
            |(x, y): (&f64, &f64)| x.is_nan() && y.is_nan() || x == y && x.is_sign_negative() == y.is_sign_negative();
        assert!(half.len() == full.len() && half.iter().zip(&full).all(is_same), "{name}: {half:?}, {full:?}");
    }
    let slope =
        grad(|x: Array| (concatenate([&x, &x], 1) * shardax::numpy::flip(&x, 0).sum(..)).astype(DType::F32).sum(..));
    assert_eq!(slope.call(ones([2, 2]).astype(DType::Bf16))?.type_name(), "bfloat16[2,2]");
    Ok(())
}

/// Sums of exponentials and of squares exceed the range of float16 where the results of these functions do not. JAX 0.12
/// returns 0, NaN or infinity for most of them.
#[test]
fn float16_intermediates_may_exceed_its_range() {
    setup();
    let even: &[(&str, f64, Fun)] = &[
        ("softmax", 0.0, |x| softmax(x, 0)),
        ("masked softmax", 0.0, |x| softmax(x, over(0).mask(ones_like(x).greater(0)))),
        ("log_softmax", 0.0, |x| log_softmax(x, 0)),
        ("masked log_softmax", 0.0, |x| log_softmax(x, over(0).mask(ones_like(x).greater(0)))),
        ("logsumexp", 0.0, |x| x.logsumexp(..)),
        ("logsumexp with factors", 0.0, |x| LogsumexpOptions::new().b(ones_like(x) * 2).logsumexp(x, ..)),
        ("average", 0.0, |x| average(x, x, ..)),
    ];
    same_as_wide(&ones_dtype([70_000], DType::F16), HALVES[1].1, even);
    let far: &[(&str, f64, Fun)] = &[
        ("std", 0.0, |x| x.std(..)),
        ("masked std", 0.0, |x| x.std(over(0).mask(ones_like(x).greater(0)))),
        ("nanstd", 0.0, |x| nanstd(x, ..)),
        ("standardize", 0.0, |x| standardize(x, 0)),
        ("masked standardize", 0.0, |x| standardize(x, over(0).mask(ones_like(x).greater(0)))),
        ("corrcoef", 1.0, |x| corrcoef(stack([x.clone(), -x], 0))),
        ("slope of std", 1.0, |x| grad(|x: Array| x.std(..)).call(x).expect("a gradient")),
    ];
    same_as_wide(&array([0.0f32, 600.0, -300.0]).astype(DType::F16), HALVES[1].1, far);
    // The sum of squares of the differences from the mean is 67,200.
    let covariances: &[(&str, f64, Fun)] = &[
        ("cov", 0.0, |x| cov(x)),
        ("cov of rows", 0.0, |x| cov(stack([x.clone(), -x], 0))),
        ("weighted cov", 0.0, |x| CovOptions::new().aweights(ones_like(x)).cov(x)),
    ];
    same_as_wide(&array([0.0f32, 240.0, -120.0]).astype(DType::F16), HALVES[1].1, covariances);
    let [points, codes] = [array([[600.0f32, 0.0], [0.0, -500.0]]), array([[0.0f32, 300.0], [0.0, 0.0]])];
    let (nearest, distances) = vq(points.astype(DType::F16), codes.astype(DType::F16));
    assert_eq!((floats(&nearest), floats(&distances)), (vec![1.0, 1.0], vec![600.0, 500.0]));
}

/// The number of equal maxima may exceed the range of float16, while each of them has a share of the slope.
#[test]
fn slopes_of_many_equal_maxima_of_float16_are_shared() -> Result<()> {
    setup();
    const COUNT: usize = 70_000;
    let x = zeros_dtype([COUNT], DType::F16);
    let functions: [fn(Array) -> Array; 3] = [
        |x| x.max(..),
        |x| segment_max(&x, x.astype(DType::I32), 1).sum(..),
        |x| ones_dtype([1], DType::F16).at(x.astype(DType::I32)).max(x + 1).sum(..),
    ];
    for (i, f) in functions.into_iter().enumerate() {
        let slopes = grad(f).call(&x)?.astype(DType::F32);
        for share in [slopes.min(..), slopes.max(..)] {
            assert!((share.to_f64()? * COUNT as f64 - 1.0).abs() < 0.01, "function {i}: {share:?}");
        }
        let tangent = jvp(f, &x, &ones_like(&x))?.1;
        assert!((tangent.to_f64()? - 1.0).abs() < 0.01, "function {i}: {tangent:?}");
    }
    Ok(())
}

/// Half precision rounds positions beyond 256 or 2,048 elements, and float16 has no position 65,536.
#[test]
fn quantiles_of_many_elements_of_half_precision() -> Result<()> {
    setup();
    let x = (arange(0..70_000).astype(DType::F32) / 70_000.0).astype(DType::F16);
    for (quantile, expected) in [(median(&x, ..), 0.5), (nanmedian(&x, ..), 0.5), (quantile(&x, 0.3, ..), 0.3)] {
        assert_eq!(quantile.dtype(), DType::F16);
        assert!((quantile.astype(DType::F32).item::<f32>()? - expected).abs() < 1e-3, "{quantile}");
    }
    Ok(())
}

fn slope_of(f: Fun, x: &Array) -> Array {
    grad(move |x: Array| f(&x).sum(..)).call(x).expect("a gradient")
}

/// The slope of a special function is a difference or a quotient of large numbers, of which half precision has too few digits.
#[test]
fn slopes_of_special_functions_of_half_precision_are_rounded_once() {
    setup();
    let functions: &[(&str, f64, Fun)] = &[
        ("log_ndtr", 0.1, |x| slope_of(|x| special::log_ndtr(x), x)),
        ("norm.logcdf", 0.1, |x| slope_of(|x| norm_distribution::logcdf(x, 0, 1), x)),
        ("dawsn", 0.1, |x| slope_of(|x| special::dawsn(x), x)),
        ("i0e", 0.1, |x| slope_of(|x| special::i0e(x), x)),
        ("owens_t", 0.1, |x| slope_of(|x| special::owens_t(x, 0.5), x)),
        ("expi", 0.1, |x| slope_of(|x| special::expi(x), x)),
        ("second slope of dawsn", 0.6, |x| slope_of(|x| slope_of(|x| special::dawsn(x), x), x)),
    ];
    for (dtype, eps) in HALVES {
        same_as_wide(&array([-14.0f32, -8.0, -3.5, -0.75, 0.25, 2.0, 6.0]).astype(dtype), eps, functions);
    }
}
