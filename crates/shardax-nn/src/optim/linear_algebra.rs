//! Optax's algorithms of linear algebra.

use shardax::lax::{DotOptions, Precision};
use shardax::prelude::*;

use super::tree_utils::{NormOptions, scale, sub, vdot};
use crate::check::{floating, positive, value_error};

/// The numbers of the power iteration.
///
/// ```
/// use shardax_nn::optim::PowerIteration;
/// use shardax_nn::prelude::*;
/// // The function multiplies the parts of a tree by 1 and by 3.
/// let product = |(a, b): (Array, Array)| Ok((a, 3 * b));
/// let (value, vector) = PowerIteration::new().num_iters(50).of_function(product, (ones([2]), ones([2])))?;
/// assert!(allclose(value, 3.0, 1e-5, 0.0)? && allclose(vector.0, 0.0, 0.0, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PowerIteration {
    num_iters: usize,
    error_tolerance: f64,
}

impl Default for PowerIteration {
    fn default() -> Self {
        PowerIteration { num_iters: 100, error_tolerance: 1e-6 }
    }
}

impl PowerIteration {
    /// Creates an iteration of at most 100 steps, which ends at a relative error of 1e-6.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the largest number of steps.
    pub fn num_iters(mut self, num_iters: usize) -> Self {
        self.num_iters = num_iters;
        self
    }

    /// Sets the relative error at which the iteration ends.
    pub fn error_tolerance(mut self, error_tolerance: f64) -> Self {
        self.error_tolerance = error_tolerance;
        self
    }

    /// Returns the eigenvalue of largest magnitude of a linear function, and its eigenvector of norm 1. `v0` must not be
    /// orthogonal to the eigenvector; it need not have norm 1.
    ///
    /// # Errors
    /// Returns an error if `num_iters` is 0, or if `product` fails or returns another structure than its argument's.
    #[track_caller]
    pub fn of_function<V: Tree>(&self, product: impl Fn(V) -> Result<V>, v0: V) -> Result<(Array, V)> {
        positive("power_iteration", "num_iters", self.num_iters)?;
        let unit = |v: &V| scale(1 / NormOptions::new().norm(v), v);
        type Carry<V> = (V, V, Array, Array);
        let is_open = |(vector, image, value, step): Carry<V>| -> Result<Array> {
            let residual = NormOptions::new().norm(&sub(&image, &scale(&value, &vector)?)?);
            let is_close = (residual / &value).abs().less(self.error_tolerance);
            Ok(!is_close & step.less(self.num_iters))
        };
        let advance = |(_, image, value, step): Carry<V>| -> Result<Carry<V>> {
            let vector = unit(&image)?;
            let image = product(vector.clone())?;
            let next = vdot(&vector, &image)?.astype(value.dtype());
            Ok((vector, image, next, step + 1))
        };
        let vector = unit(&v0)?;
        let image = product(vector.clone())?;
        let value = zeros_like(vdot(&vector, &image)?);
        let (_, image, value, _) = while_loop(is_open, advance, (vector, image, value, zeros_dtype((), DType::I32)))?;
        Ok((value, unit(&image)?))
    }

    /// Returns the eigenvalue of largest magnitude of a square matrix, and its eigenvector of norm 1, `[n]`. The first vector
    /// is drawn from the uniform distribution between -1 and 1 with the key 0, as in Optax.
    ///
    /// # Errors
    /// Returns an error if the matrix is not square and floating-point, or if `num_iters` is 0.
    #[track_caller]
    pub fn of_matrix(&self, matrix: impl ArrayLike) -> Result<(Array, Array)> {
        let matrix = square("power_iteration", matrix)?;
        let v0 = random::uniform_dtype(random::key(0), matrix.shape()[0], matrix.dtype(), -1.0, 1.0);
        self.of_function(|v: Array| Ok(product(&matrix, &v)), v0)
    }
}

/// Returns the eigenvalue of largest magnitude of a square matrix, and its eigenvector of norm 1, `[n]`, by at most 100 power
/// iterations. [`PowerIteration`] has options, and takes a function in place of a matrix.
///
/// ```
/// use shardax_nn::optim::power_iteration;
/// use shardax_nn::prelude::*;
/// let (value, vector) = power_iteration(array([[2.0f32, 1.0], [1.0, 2.0]]))?;
/// assert!(allclose(value, 3.0, 1e-5, 0.0)?);
/// assert!(allclose(vector.abs(), 0.5f32.sqrt(), 1e-3, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the matrix is not square and floating-point.
#[track_caller]
pub fn power_iteration(matrix: impl ArrayLike) -> Result<(Array, Array)> {
    PowerIteration::new().of_matrix(matrix)
}

/// Returns `matrix^(-1/p)` of a symmetric positive semidefinite matrix `[n, n]`, and the largest error of an element of
/// `matrix * root^p - identity`. At most 100 coupled Newton iterations end at an error of 1e-6. To make the matrix positive
/// definite, 1e-6 of its largest eigenvalue is added to its diagonal.
///
/// Source: Higham, Functions of Matrices (2008), equation 7.18. Optax computes it for p of 1, 2, 4 and 8 only.
///
/// ```
/// use shardax_nn::optim::matrix_inverse_pth_root;
/// use shardax_nn::prelude::*;
/// let (root, error) = matrix_inverse_pth_root(array([[4.0f32, 0.0], [0.0, 9.0]]), 2)?;
/// assert!(allclose(root, array([[0.5f32, 0.0], [0.0, 1.0 / 3.0]]), 1e-4, 1e-5)?);
/// assert!(error.item::<f32>()? < 1e-4);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the matrix is not square and floating-point, or if `p` is 0.
#[track_caller]
pub fn matrix_inverse_pth_root(matrix: impl ArrayLike, p: usize) -> Result<(Array, Array)> {
    let name = "matrix_inverse_pth_root";
    let matrix = square(name, matrix)?;
    positive(name, "p", p)?;
    let (dtype, n) = (matrix.dtype(), matrix.shape()[0]);
    // Half precision cannot represent the error at which the iteration ends.
    let matrix = matrix.astype(super::wide_dtype(dtype));
    let identity = diag(ones_dtype(n, matrix.dtype()), 0);
    let (largest, _) = power_iteration(&matrix)?;
    let damped = &matrix + 1e-6 * largest.maximum(1e-16) * &identity;
    let error_of = |m: &Array| (m - &identity).abs().max(..);
    let z = (1.0 + p as f64) / (2.0 * damped.square().sum(..).sqrt());
    let first = (&damped * &z, &identity * z.pow(1.0 / p as f64));
    let error = error_of(&first.0);
    // The matrix, the root, the root before it, the error, the step, and whether the error became smaller.
    type Carry = (Array, Array, Array, Array, Array, Array);
    let is_open = |(_, _, _, error, step, goes_on): Carry| error.greater(1e-6) & step.less(100) & goes_on;
    let advance = |(m, root, _, error, step, _): Carry| -> Carry {
        let factor = (1.0 + 1.0 / p as f64) * &identity - &m / p as f64;
        let next = product(&power(&factor, p), &m);
        let next_error = error_of(&next);
        // The error may grow a little before the iteration converges.
        let goes_on = next_error.less(error * 1.2);
        (next, product(&root, &factor), root, next_error, step + 1, goes_on)
    };
    let start = (first.0, first.1.clone(), first.1, error, zeros_dtype((), DType::I32), array(true));
    let (m, root, before, _, _, goes_on) = while_loop(is_open, advance, start)?;
    Ok((where_(goes_on, root, before).astype(dtype), error_of(&m)))
}

/// Returns the `x >= 0` for which the norm of `a x - b` is least, `[n]` or `[n, k]` for `a` of shape `[m, n]` and `b` of shape
/// `[m]` or `[m, k]`, after `iters` steps of the fast projected gradient.
///
/// Source: Polyak, Projected gradient method for non-negative least square (2015).
///
/// ```
/// use shardax_nn::optim::nnls;
/// use shardax_nn::prelude::*;
/// let x = nnls(array([[1.0f32, 2.0], [3.0, 4.0]]), array([5.0f32, 6.0]), 1000)?;
/// assert!(allclose(x, array([0.0f32, 1.7]), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the shapes do not fit, or if the arrays are not floating-point.
#[track_caller]
pub fn nnls(a: impl ArrayLike, b: impl ArrayLike, iters: usize) -> Result<Array> {
    let (a, b) = (a.into_array(), b.into_array());
    floating("nnls", "a", &a)?;
    floating("nnls", "b", &b)?;
    if a.ndim() != 2 || !(1..=2).contains(&b.ndim()) || a.shape()[0] != b.shape()[0] {
        return value_error(format!(
            "nnls: a has the shape {:?} and b {:?}, and they must have [m, n], and [m] or [m, k]",
            a.shape(),
            b.shape()
        ));
    }
    let transposed = a.mt();
    let (gram, target) = (product(&transposed, &a), product(&transposed, &b));
    // The smaller of two norms is an upper bound of the largest eigenvalue. A matrix without columns has none.
    let bound = match a.shape()[1] {
        0 => ones_dtype((), gram.dtype()),
        _ => minimum(gram.square().sum(..).sqrt(), gram.abs().sum(0).max(..)),
    };
    let step = 1 / where_(bound.equal(0), 1, &bound);
    let advance = |(x, ahead, momentum): (Array, Array, Array)| {
        let next_momentum = (1 + (1 + 4 * momentum.square()).sqrt()) / 2;
        let next = (&ahead - (product(&gram, &ahead) - &target) * &step).maximum(0);
        let share = (momentum - 1) / &next_momentum;
        let ahead = &next + share * (&next - x);
        (next, ahead, next_momentum)
    };
    let x = zeros_like(&target);
    let start = (x.clone(), x, zeros_dtype((), target.dtype()));
    Ok(fori_loop(0, iters, |_, carry: (Array, Array, Array)| advance(carry), start)?.0)
}

fn product(a: &Array, b: &Array) -> Array {
    DotOptions::new().precision(Precision::Highest).matmul(a, b)
}

/// Returns a power by squaring, for `p` of at least 1.
fn power(matrix: &Array, p: usize) -> Array {
    if p == 1 {
        return matrix.clone();
    }
    let half = power(matrix, p / 2);
    let even = product(&half, &half);
    if p.is_multiple_of(2) { even } else { product(&even, matrix) }
}

#[track_caller]
fn square(name: &str, matrix: impl ArrayLike) -> Result<Array> {
    let matrix = matrix.into_array();
    floating(name, "matrix", &matrix)?;
    match *matrix.shape() {
        [rows, columns] if rows == columns && rows > 0 => Ok(matrix),
        _ => value_error(format!("{name}: the matrix has the shape {:?}, and it must be square", matrix.shape())),
    }
}
