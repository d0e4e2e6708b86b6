//! Density estimates by Gaussian kernels.

use std::f64::consts::PI;

use crate::core::array::Array;
use crate::core::program::trace::{at_caller, or_failed};
use crate::error::{AtCaller, Result, err};
use crate::linalg::{cholesky, inv};
use crate::ops::lax::{self, Triangular};
use crate::ops::numpy::{IntoShape, atleast_2d, diag, matmul, promote_dtypes, to_inexact};
use crate::ops::operators::ArrayLike;
use crate::random::{self, ChoiceOptions};
use crate::rank_promotion;
use crate::scipy::special::{check_real, ndtr};

/// The width of the kernels of [`gaussian_kde`], in standard deviations of the data.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Bandwidth {
    /// Scott's rule: `n^(-1 / (d + 4))` for `n` effective points in `d` dimensions.
    #[default]
    Scott,
    /// Silverman's rule: `(n (d + 2) / 4)^(-1 / (d + 4))`.
    Silverman,
    /// This number.
    Factor(Array),
}

impl From<f64> for Bandwidth {
    fn from(factor: f64) -> Bandwidth {
        Bandwidth::Factor(factor.into())
    }
}

/// A density estimated from points by a Gaussian kernel at each; see [`gaussian_kde`]. It is a tree.
#[derive(Clone, Debug, shardax_macros::Tree)]
pub struct GaussianKde {
    /// The effective number of points, `1 / Σ weights²`.
    pub neff: Array,
    /// The points, `[d, n]`.
    pub dataset: Array,
    /// The weights of the points, `[n]`, which sum to 1.
    pub weights: Array,
    /// The covariance of a kernel, `[d, d]`.
    pub covariance: Array,
    /// The inverse of the covariance, `[d, d]`.
    pub inv_cov: Array,
}

/// Estimates the density of points `[d, n]`, or numbers `[n]`, with weights `[n]` or equal ones.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::stats::{Bandwidth, gaussian_kde};
/// let kde = gaussian_kde(array([0.0f32, 1.0]), Bandwidth::Scott, None)?;
/// let p = kde.evaluate(array([0.0f32, 0.5, 1.0]));
/// assert!(allclose(p.get(0), p.get(2), 1e-5, 1e-6)? && p.get(1).item::<f32>()? > p.get(0).item::<f32>()?);
/// assert!((kde.integrate_box_1d(-100.0, 100.0).item::<f32>()? - 1.0).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for less than two elements, complex numbers, and weights of another size.
#[track_caller]
pub fn gaussian_kde<'a>(
    dataset: impl ArrayLike,
    bandwidth: impl Into<Bandwidth>,
    weights: impl Into<Option<&'a Array>>,
) -> Result<GaussianKde> {
    at_caller(|| estimate(&dataset.into_array(), bandwidth.into(), weights.into())).at_caller()
}

fn estimate(dataset: &Array, bandwidth: Bandwidth, weights: Option<&Array>) -> Result<GaussianKde> {
    check_real("gaussian_kde", std::slice::from_ref(dataset))?;
    let dataset = atleast_2d(dataset);
    let [d, n] = *dataset.shape() else {
        return Err(err!(Value, "gaussian_kde needs a dataset of shape [d, n], got {}", dataset.type_name())
            .help("pass points as the columns of a matrix, with one row for each dimension"));
    };
    if dataset.size() < 2 {
        return Err(err!(Value, "`dataset` input should have multiple elements; got {}", dataset.type_name())
            .help("pass at least two points, because the bandwidth is computed from their covariance"));
    }
    let (dataset, weights) = match weights {
        None => {
            let dataset = promote_dtypes(&[&dataset], to_inexact)?.swap_remove(0);
            let weights = crate::ops::numpy::full_dtype([n], 1.0 / n as f64, dataset.dtype());
            (dataset, weights)
        }
        Some(weights) => {
            check_real("gaussian_kde", std::slice::from_ref(weights))?;
            if weights.shape() != [n] {
                return Err(err!(Value, "`weights` input should be of shape [{n}], got {}", weights.type_name())
                    .help("pass one weight for each point"));
            }
            let args = promote_dtypes(&[&dataset, weights], to_inexact)?;
            (args[0].clone(), &args[1] / args[1].sum(..))
        }
    };
    let _ranks = rank_promotion::allow();
    // The effective number of points, which is smaller for unequal weights.
    let squares = weights.square().sum(..);
    let neff = 1 / &squares;
    let power = -1.0 / (d as f64 + 4.0);
    let factor = match bandwidth {
        Bandwidth::Scott => neff.pow(power),
        Bandwidth::Silverman => (&neff * (d as f64 + 2.0) / 4.0).pow(power),
        Bandwidth::Factor(factor) => factor,
    };
    let centered = &dataset - matmul(&dataset, &weights).expand_dims(-1);
    let data_covariance = matmul(&centered * &weights, centered.t()) / (1 - squares);
    let square = &factor * &factor;
    let kde = GaussianKde {
        neff,
        inv_cov: inv(&data_covariance) / &square,
        covariance: data_covariance * square,
        dataset,
        weights,
    };
    kde.inv_cov.check()?;
    Ok(kde)
}

impl GaussianKde {
    /// Returns the number of dimensions.
    pub fn d(&self) -> usize {
        self.dataset.shape().first().copied().unwrap_or(0)
    }

    /// Returns the number of points.
    pub fn n(&self) -> usize {
        self.dataset.shape().last().copied().unwrap_or(0)
    }

    /// Returns the density at `points`, `[d, m]`, or `[m]` in one dimension: `[m]`.
    #[track_caller]
    pub fn evaluate(&self, points: impl ArrayLike) -> Array {
        let points = points.into_array();
        or_failed(&points, || {
            let [log, weights] = self.kernels(&points)?;
            let _ranks = rank_promotion::allow();
            Ok((log.exp() * weights).sum(-1))
        })
    }

    /// Returns the density at `points`; see [`evaluate`](Self::evaluate).
    #[track_caller]
    pub fn pdf(&self, points: impl ArrayLike) -> Array {
        self.evaluate(points)
    }

    /// Returns the logarithm of the density at `points`.
    #[track_caller]
    pub fn logpdf(&self, points: impl ArrayLike) -> Array {
        let points = points.into_array();
        or_failed(&points, || {
            let [log, weights] = self.kernels(&points)?;
            let _ranks = rank_promotion::allow();
            Ok((log + weights.log()).logsumexp(-1))
        })
    }

    /// The logarithm of each kernel at each point, `[m, n]`, and the kernels' weights.
    fn kernels(&self, points: &Array) -> Result<[Array; 2]> {
        check_real("gaussian_kde", std::slice::from_ref(points))?;
        let points = self.shaped(points)?;
        let args = promote_dtypes(&[&self.dataset, &self.weights, &points, &self.inv_cov], to_inexact)?;
        let whitening = cholesky(&args[3]);
        let normalizer = diag(&whitening, 0).log().sum(..) - 0.5 * self.d() as f64 * (2.0 * PI).ln();
        let (data, points) = (matmul(args[0].t(), &whitening), matmul(args[2].t(), whitening));
        let distance = (data.expand_dims(0) - points.expand_dims(1)).square().sum(-1);
        Ok([normalizer - distance * 0.5, args[1].clone()])
    }

    fn shaped(&self, points: &Array) -> Result<Array> {
        let points = atleast_2d(points);
        match *points.shape() {
            [d, _] if d == self.d() => Ok(points),
            [1, m] if m == self.d() => Ok(lax::reshape(&points, &[m, 1])),
            _ => {
                Err(err!(Value, "points have type {}, but the dataset has dimension {}", points.type_name(), self.d())
                    .help("pass points as the columns of a matrix, with one row for each dimension"))
            }
        }
    }

    /// Returns the integral of the product of this density and a normal density.
    ///
    /// The mean is `[d]` and the covariance `[d, d]`, or both scalars in one dimension.
    #[track_caller]
    pub fn integrate_gaussian(&self, mean: impl ArrayLike, cov: impl ArrayLike) -> Array {
        let (mean, cov) = (mean.into_array(), cov.into_array());
        or_failed(&self.dataset, || {
            let d = self.d();
            let (mean, cov) = (crate::ops::numpy::atleast_1d(&mean), atleast_2d(&cov));
            if mean.shape() != [d] || cov.shape() != [d, d] {
                return Err(err!(
                    Value,
                    "integrate_gaussian needs a mean of [{d}] and a covariance of [{d}, {d}], got {} and {}",
                    mean.type_name(),
                    cov.type_name()
                )
                .help("pass a mean and a covariance with the dimension of the dataset"));
            }
            Ok((self.convolved(&(&self.covariance + cov), &mean.expand_dims(-1))? * &self.weights).sum(..))
        })
    }

    /// Returns the integral of the product of two estimates of the same dimension.
    #[track_caller]
    pub fn integrate_kde(&self, other: &GaussianKde) -> Array {
        or_failed(&self.dataset, || {
            if other.d() != self.d() {
                return Err(err!(Value, "KDEs are not the same dimensionality: {} and {}", self.d(), other.d())
                    .help("estimate both from points with the same number of dimensions"));
            }
            let covariance = &self.covariance + &other.covariance;
            let (small, large) = if self.n() < other.n() { (self, other) } else { (other, self) };
            let kernels = large.convolved(&covariance, &small.dataset.expand_dims(-1))?;
            Ok((matmul(kernels, &large.weights) * &small.weights).sum(..))
        })
    }

    /// Normal densities of this covariance at the differences of `centers`, `[d, 1]` or `[d, m, 1]`, and the points:
    /// `[n]` or `[m, n]`.
    fn convolved(&self, covariance: &Array, centers: &Array) -> Result<Array> {
        let d = self.d();
        let factor = cholesky(covariance);
        let points = if centers.ndim() == 3 { self.dataset.expand_dims(1) } else { self.dataset.clone() };
        let difference = points - centers;
        let columns = lax::reshape(&difference, &[d, difference.size() / d.max(1)]);
        let lower = Triangular { left_side: true, lower: true, ..Triangular::default() };
        let white = lax::triangular_solve(&factor, &columns.astype(factor.dtype()), lower);
        let distance = lax::reshape(&white.square().sum(0), &difference.shape()[1..]);
        let normalizer = diag(&factor, 0).prod(..) * (2.0 * PI).powf(d as f64 / 2.0);
        Ok((distance * -0.5).exp() / normalizer)
    }

    /// Returns the probability between two numbers, of a density of one dimension.
    #[track_caller]
    pub fn integrate_box_1d(&self, low: impl ArrayLike, high: impl ArrayLike) -> Array {
        let (low, high) = (low.into_array(), high.into_array());
        or_failed(&self.dataset, || {
            [&low, &high].into_iter().try_for_each(Array::check)?;
            if self.d() != 1 || low.ndim() != 0 || high.ndim() != 0 {
                return Err(err!(
                    Value,
                    "integrate_box_1d() only handles 1D pdfs between scalars, got {} dimensions, {} and {}",
                    self.d(),
                    low.type_name(),
                    high.type_name()
                )
                .help("map over several limits with `vmap`"));
            }
            let (sigma, points) = (self.covariance.ravel().sqrt(), self.dataset.ravel());
            let [below_high, below_low] = [&high, &low].map(|limit| ndtr((limit - &points) / &sigma));
            Ok((&self.weights * (below_high - below_low)).sum(..))
        })
    }

    /// Draws points from the density: `[d]` and then `shape`.
    #[track_caller]
    pub fn resample(&self, key: &Array, shape: impl IntoShape) -> Array {
        or_failed(&self.dataset, || {
            let shape = crate::ops::numpy::shape_of(shape)?;
            let [for_index, for_noise] = random::split_n::<2>(key);
            let index = ChoiceOptions::new().p(&self.weights).choice(for_index, self.n(), shape.as_slice());
            let zero = crate::ops::numpy::zeros_dtype([self.d()], self.covariance.dtype());
            let noise = random::multivariate_normal(for_noise, zero, &self.covariance, shape.as_slice());
            let reversed: Vec<i32> = (0..noise.ndim() as i32).rev().collect();
            Ok(self.dataset.take(index, 1) + noise.transpose(reversed).astype(self.dataset.dtype()))
        })
    }
}
