//! Arguments at the ends of their ranges: minimizers, Taylor series, interpolation, scaled products, an entropy.

use shardax::experimental::jet::jet;
use shardax::nn::{BlockScaleConfig, scaled_dot_general, scaled_matmul};
use shardax::prelude::*;
use shardax::scipy::ndimage::{Boundary, map_coordinates};
use shardax::scipy::optimize::{MinimizeOptions, minimize};
use shardax::scipy::stats::poisson;

use super::common::quick::one_of;
use super::common::setup;

#[track_caller]
fn says(error: shardax::Error, words: &[&str]) {
    let text = error.to_string();
    assert!(text.contains("numbers/science.rs") && text.contains("help:"), "{text}");
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in: {text}"));
}

#[test]
fn minimizers_take_every_number_of_steps() -> Result<()> {
    setup();
    fn bowl(x: Array) -> Array {
        (x - 3.0).square().sum(..)
    }
    let most = MinimizeOptions::new().maxiter(usize::MAX).line_search_maxiter(usize::MAX);
    let result = most.minimize(bowl, zeros([2]))?;
    assert!(result.success.item::<bool>()? && allclose(result.x, array([3.0f32, 3.0]), 1e-4, 1e-4)?);
    let result = MinimizeOptions::new().maxiter(1 << 40).minimize(bowl, zeros([2]))?;
    assert!(result.success.item::<bool>()?);
    // Nothing to vary, as in JAX.
    let result = minimize(|x: Array| x.square().sum(..), zeros([0]))?;
    assert_eq!((result.x.shape(), result.success.item::<bool>()?, result.nit.item::<i32>()?), (&[0][..], true, 0));
    // NaN is never the end of a search.
    assert!(!minimize(|x: Array| (x * f32::NAN).sum(..), zeros([2]))?.success.item::<bool>()?);
    let complex = minimize(|x: Array| x.abs().sum(..), ones([2]).astype(DType::Complex64));
    says(complex.err().expect("complex"), &["a real vector to start from, got complex64[2]"]);
    Ok(())
}

#[test]
fn terms_of_taylor_series_have_the_shapes_of_arguments() {
    setup();
    for (x, term) in [([1], [3]), ([3], [1])] {
        let jets = jet(|x: Array| x.sin(), ones(x), [zeros(x), ones(term)]);
        says(jets.err().expect("another shape"), &["series[1] has", "for an argument of type"]);
    }
}

#[test]
fn values_outside_of_an_image_are_of_its_dtype() -> Result<()> {
    setup();
    let outside = [array([-5.0f32, 0.0])];
    for order in [0, 1] {
        let y = map_coordinates(array([1, 2]), &outside, order, Boundary::Constant(0.5));
        assert_eq!(y.to_vec::<i32>()?, [0, 1], "order {order}");
    }
    Ok(())
}

/// A block of zeros has the smallest scale, 2⁻¹²⁷.
#[test]
fn scaled_products_of_zeros_are_zero() -> Result<()> {
    setup();
    for (c, config) in [BlockScaleConfig::mxfp8(), BlockScaleConfig::nvfp4()].into_iter().enumerate() {
        for dtype in [DType::F32, DType::Bf16, DType::F16].into_iter().skip(c % one_of(3)).step_by(one_of(3)) {
            fn configs(config: &BlockScaleConfig) -> Option<[BlockScaleConfig; 3]> {
                Some([config.clone(), config.clone(), config.clone()])
            }
            fn product(x: &Array, y: &Array, config: &BlockScaleConfig) -> Result<Vec<f32>> {
                scaled_dot_general(x, y, (&[1], &[0]), (&[], &[]), None, configs(config)).to_vec::<f32>()
            }
            let (x, y) = (zeros([1, 64]).astype(dtype), ones([64, 1]).astype(dtype));
            assert_eq!(product(&x, &y, &config)?, [0.0], "{config:?} of {dtype}");
            let half = x.at((.., ..32)).set(1);
            // To the next number of four bits.
            assert!((product(&half, &y, &config)?[0] - 32.0).abs() < 2.5, "{config:?} of {dtype}");
        }
    }
    let unit = ones([1, 1, 1]);
    let complex = scaled_matmul(ones([1, 1, 2]).astype(DType::Complex64), ones([1, 1, 2]), &unit, &unit, None);
    says(complex.check().expect_err("complex"), &["takes real operands and scales, got complex64[1,1,2]"]);
    Ok(())
}

/// The probability of no event is 0 in float32 for means near 100, and the logarithm of 0 has no slope.
#[test]
fn the_slope_of_the_entropy_of_poisson_is_finite() -> Result<()> {
    setup();
    let mu = array([0.5f32, 12.0, 50.0, 99.5, 150.0, 1e4]);
    let slopes = grad(|mu: Array| poisson::entropy(mu, 0).sum(..)).call(&mu)?.to_vec::<f32>()?;
    // Above 10, the entropy is nearly log(2πe μ) / 2 - 1 / (12 μ).
    for (mu, slope) in [12.0, 50.0, 99.5, 150.0, 1e4].into_iter().zip(&slopes[1..]) {
        let expected = 0.5 / mu + 1.0 / (12.0 * mu * mu);
        assert!((slope / expected - 1.0).abs() < 0.01, "{mu}: {slope}, expected {expected}");
    }
    assert!(slopes[0].is_finite());
    Ok(())
}

#[test]
fn orthonormal_cosine_transforms_of_float64() -> Result<()> {
    setup();
    let options = shardax::fft::FftOptions::new().norm(shardax::fft::FftNorm::Ortho);
    let x = array_of([1.0; 7], DType::F64);
    let root = 7f64.sqrt();
    let first = options.dct(&x).get(0).item::<f64>()?;
    assert!((first - root).abs() < 1e-14, "{first}");
    let impulse = array_of([root, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], DType::F64);
    let flat = options.idct(&impulse).to_vec::<f64>()?;
    assert!(flat.iter().all(|y| (y - 1.0).abs() < 1e-14), "{flat:?}");
    Ok(())
}

/// Every entry takes many steps, so that a large matrix would not end.
#[test]
fn binomial_matrices_of_the_largest_sizes() {
    use shardax::scipy::linalg::{PascalKind, helmert, invhilbert, invpascal, pascal};
    setup();
    for kind in [PascalKind::Symmetric, PascalKind::Lower, PascalKind::Upper] {
        assert_eq!(invpascal(512, kind).shape(), [512, 512]);
        assert!(pascal(513, kind).check().is_err() && invpascal(usize::MAX, kind).check().is_err());
    }
    assert!(invhilbert(513).check().is_err() && helmert(4097, true).check().is_err());
}

/// As in JAX 0.12, an axis without elements has an empty spectrum, unless it is half a spectrum of at least one element.
#[test]
fn spectra_of_no_elements_are_empty() -> Result<()> {
    setup();
    use shardax::fft::{self, FftOptions};
    let (vector, rows, columns) = (zeros(0), zeros([0, 3]), zeros([3, 0]));
    for (y, shape, dtype) in [
        (fft::fft(&vector), &[0][..], DType::Complex64),
        (fft::ifft(&columns), &[3, 0], DType::Complex64),
        (fft::irfft(&vector), &[0], DType::F32),
        (fft::irfft(ones(1)), &[0], DType::F32),
        (fft::hfft(&columns), &[3, 0], DType::F32),
        (fft::irfft(&rows), &[0, 4], DType::F32),
        (fft::fft2(&rows), &[0, 3], DType::Complex64),
        (fft::rfft2(&rows), &[0, 2], DType::Complex64),
        (fft::irfft2(&rows), &[0, 4], DType::F32),
        (fft::fftn(&columns), &[3, 0], DType::Complex64),
    ] {
        assert_eq!((y.shape(), y.dtype()), (shape, dtype));
        assert!(y.to_bytes()?.is_empty());
    }
    let slope = jit(grad(|x: Array| fft::fft(x).abs().sum(..))).call(&columns)?;
    assert_eq!(slope.shape(), [3, 0]);
    for y in [
        fft::rfft(&vector),
        fft::ihfft(&columns),
        FftOptions::new().n(0).fft(ones(4)),
        FftOptions::new().n(0).irfft(ones(4)),
    ] {
        assert!(y.to_bytes().is_err_and(|e| e.to_string().contains("Shape should be positive")));
    }
    Ok(())
}

/// The transpose of a Hermitian matrix is its conjugate. JAX solves the transposed equations for complex matrices, too.
#[test]
fn gradients_of_complex_conjugate_gradients_are_gradients_of_solutions() -> Result<()> {
    setup();
    let a = lax::complex(array([[3.0f32, 0.5], [0.5, 2.0]]), array([[0.0f32, 1.0], [-1.0, 0.0]]));
    let b = lax::complex(array([1.0f32, -2.0]), array([0.5f32, 1.5]));
    let solved = |b: Array| {
        let solver = shardax::scipy::sparse::linalg::IterativeSolve::new().tol(1e-7);
        solver.cg(|x: Array| a.matmul(x), b).map(|x| (x.real() + 2 * x.imag()).sum(..))
    };
    let expected = grad(|b: Array| {
        let x = linalg::solve(&a, b);
        (x.real() + 2 * x.imag()).sum(..)
    });
    assert!(allclose(grad(solved).call(&b)?, expected.call(&b)?, 1e-5, 1e-5)?);
    Ok(())
}
