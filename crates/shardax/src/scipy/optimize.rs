//! Minimization, as in [`jax.scipy.optimize`](https://docs.jax.dev/en/latest/jax.scipy.html#module-jax.scipy.optimize).

use crate::core::array::Array;
use crate::core::function::{Function, IntoOutput};
use crate::core::program::trace::at_caller;
use crate::dtype::DType;
use crate::error::{AtCaller, Result, err};
use crate::ops::constants::eye_offset_dtype;
use crate::ops::control_flow::while_loop;
use crate::ops::numpy::options::options;
use crate::ops::numpy::{promote_dtypes, to_inexact, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::matrix::product;
use crate::transform::value_and_grad;

/// The result of [`minimize`]. It is a tree.
#[derive(Clone, Debug, shardax_macros::Tree)]
pub struct OptimizeResults {
    /// The minimizing point, `[n]`.
    pub x: Array,
    /// True if every element of the gradient at `x` is smaller than the tolerance.
    pub success: Array,
    /// 0 for success, 1 for too many steps, 3 for a line search that found no lower value.
    pub status: Array,
    /// The value of the function at `x`.
    pub fun: Array,
    /// The gradient at `x`, `[n]`.
    pub jac: Array,
    /// The estimate of the inverse of the Hessian, `[n, n]`.
    pub hess_inv: Array,
    /// The number of evaluations of the function.
    pub nfev: Array,
    /// The number of evaluations of the gradient.
    pub njev: Array,
    /// The number of steps.
    pub nit: Array,
}

options! {
    /// Options of [`minimize`].
    MinimizeOptions {
        /// The search ends when every element of the gradient is smaller than this. Default 1e-5.
        gtol: f64 = 1e-5, |gtol: f64| gtol;
        /// The maximum number of steps. Default 200 times the number of variables.
        maxiter: Option<usize> = None, |maxiter: usize| Some(maxiter);
        /// The maximum number of evaluations in a line search. Default 20.
        line_search_maxiter: usize = 20, |steps: usize| steps;
    }
}

/// Minimizes a function of a vector with the method of Broyden, Fletcher, Goldfarb and Shanno ([Nocedal and Wright,
/// Numerical Optimization, 6.1](https://doi.org/10.1007/978-0-387-40065-5)), like JAX's `minimize(fun, x0,
/// method="BFGS")`. You can use it inside `jit` and `vmap`, but not differentiate it in reverse mode.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::optimize::minimize;
/// let rosenbrock = |x: Array| (1 - x.get(0)).square() + (x.get(1) - x.get(0).square()).square() * 100;
/// let found = minimize(rosenbrock, zeros(2))?;
/// assert!(allclose(found.x, ones(2), 1e-2, 1e-2)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// [`MinimizeOptions`] has options.
///
/// # Errors
/// Returns an error if the starting point is not a vector, or if the value of the function is not a scalar.
#[track_caller]
pub fn minimize<R: IntoOutput<Output = Array>>(
    fun: impl Fn(Array) -> R,
    x0: impl ArrayLike,
) -> Result<OptimizeResults> {
    MinimizeOptions::new().minimize(fun, x0)
}

/// The product of a column `a` and a row `b`.
fn outer(a: &Array, b: &Array) -> Array {
    a.expand_dims(1) * b.expand_dims(0)
}

/// Converts a number of steps to int32, the dtype in which loops count.
fn counted(steps: usize) -> i32 {
    steps.try_into().unwrap_or(i32::MAX)
}

/// The point, the value, the gradient, the inverse Hessian, and the counts of steps, evaluations and failures.
type State = (Array, Array, Array, Array, [Array; 3]);

impl MinimizeOptions {
    /// Calls [`minimize`] with these options.
    ///
    /// # Errors
    /// Returns an error if `fun` fails or does not return a real scalar, or if `x0` is not a vector of floats.
    #[track_caller]
    pub fn minimize<R: IntoOutput<Output = Array>>(
        &self,
        fun: impl Fn(Array) -> R,
        x0: impl ArrayLike,
    ) -> Result<OptimizeResults> {
        let x0 = x0.into_array();
        at_caller(|| self.search(&|x| fun(x).into_output(), &x0)).at_caller()
    }

    /// Runs BFGS. A step searches along `-h g` for a lower point, then updates the inverse Hessian `h` with the change of the
    /// gradient. A step whose change has no positive curvature leaves `h` as it is, so that `h` stays positive definite.
    fn search(&self, fun: &dyn Fn(Array) -> Result<Array>, x0: &Array) -> Result<OptimizeResults> {
        let x0 = promote_dtypes(&[x0], to_inexact)?.swap_remove(0);
        let n = match *x0.shape() {
            [n] if x0.dtype().is_float() => n,
            _ => {
                return Err(err!(Value, "minimize needs a real vector to start from, got {}", x0.type_name())
                    .help("use `ravel_pytree` for other trees, and real and imaginary parts for complex numbers"));
            }
        };
        let slopes = |x: &Array| value_and_grad(|x: Array| fun(x)).call(x);
        let (f, g) = slopes(&x0)?;
        let limit = counted(self.maxiter.unwrap_or(200 * n));
        let step = |(x, f, g, h, [steps, calls, _]): State| -> Result<State> {
            // Searches along the quasi-Newton direction, and updates the inverse Hessian by the BFGS formula.
            let p = -product(&h, &g.expand_dims(1)).squeeze(1);
            let slope = (&g * &p).sum(..);
            let (alpha, next_f, next_g, tries, is_lower) = self.line_search(&slopes, &x, &f, &g, &p, &slope)?;
            let s = &p * alpha;
            let y = &next_g - &g;
            let curvature = (&s * &y).sum(..);
            let is_convex = curvature.greater(0);
            let rho = where_(&is_convex, 1 / where_(&is_convex, &curvature, 1), 0);
            let hy = product(&h, &y.expand_dims(1)).squeeze(1);
            let scale = (&y * &hy).sum(..) * &rho + 1;
            let h = &h + (outer(&s, &s) * scale - outer(&hy, &s) - outer(&s, &hy)) * rho;
            let failed = where_(&is_lower, 0, 1);
            let (x, f, g) =
                (choose(&is_lower, &x + s, &x), choose(&is_lower, next_f, &f), choose(&is_lower, next_g, &g));
            Ok((x, f, g, h, [steps + 1, calls + tries, failed]))
        };
        let h = eye_offset_dtype(n, n, 0, DType::F32).astype(x0.dtype());
        let counts = [Array::from(0i32), Array::from(1i32), Array::from(0i32)];
        let (x, f, g, h, [steps, calls, failed]) = while_loop(
            |(_, _, g, _, [steps, _, failed]): State| {
                self.is_done(&g).logical_not() & steps.less(limit) & failed.equal(0)
            },
            step,
            (x0, f, g, h, counts),
        )?;
        let success = self.is_done(&g);
        let status = where_(&success, 0, where_(failed.greater(0), 3, 1));
        Ok(OptimizeResults {
            x,
            success,
            status,
            fun: f,
            jac: g,
            hess_inv: h,
            nfev: calls.clone(),
            njev: calls,
            nit: steps,
        })
    }

    /// Searches for a step length that lowers the value and the slope enough (Wolfe's weak conditions), by doubling and bisection.
    /// Returns the length, the value and the gradient there, the number of evaluations, and whether the search succeeded.
    #[allow(clippy::type_complexity)]
    /// Returns `true` if all elements of the gradient are small.
    fn is_done(&self, g: &Array) -> Array {
        g.abs().less(self.gtol).all(..)
    }

    fn line_search(
        &self,
        slopes: &dyn Fn(&Array) -> Result<(Array, Array)>,
        x: &Array,
        f: &Array,
        g: &Array,
        p: &Array,
        slope: &Array,
    ) -> Result<(Array, Array, Array, Array, Array)> {
        type Search = (Array, Array, Array, Array, Array, Array, Array);
        let step = |(alpha, low, high, _, _, tries, _): Search| -> Result<Search> {
            let (value, gradient) = slopes(&(x + &alpha * p))?;
            let falls = value.less_equal(f + &alpha * slope * 1e-4);
            let bends = (&gradient * p).sum(..).greater_equal(slope * 0.9);
            let done = &falls & &bends;
            let high = where_(&falls, &high, &alpha);
            let low = where_(&falls & bends.logical_not(), &alpha, &low);
            let next_alpha = where_(high.isfinite(), (&low + &high) / 2, &low * 2);
            let alpha = where_(&done, &alpha, next_alpha);
            Ok((alpha, low, high, value, gradient, tries + 1, done))
        };
        // The constants are computed from the slope, so that they have its type, which may vary over manual mesh axes.
        // Computed from the slope, so that they have its dtype and sharding.
        let [zero, one, infinity] = [0.0, 1.0, f64::INFINITY].map(|x| (slope * 0 + x).astype(slope.dtype()));
        let is_done = zero.equal(1);
        let start = (one, zero, infinity, f.clone(), g.clone(), Array::from(0i32), is_done);
        let (alpha, low, _, value, gradient, tries, done) = while_loop(
            |(.., tries, done): Search| tries.less(counted(self.line_search_maxiter)) & done.logical_not(),
            step,
            start,
        )?;
        // Near the minimum, rounding hides the slope, so a step that lowers the value is enough.
        let lower = value.less(f) | (value.equal(f) & low.greater(0));
        Ok((alpha, value, gradient, tries, done | lower))
    }
}

fn choose(is_new: &Array, new: Array, old: &Array) -> Array {
    where_(is_new, new, old).astype(old.dtype())
}
