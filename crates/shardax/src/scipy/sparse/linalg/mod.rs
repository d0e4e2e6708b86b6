//! Solvers for linear equations that only multiply by the matrix. The matrix can be any linear function of trees.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::sparse::linalg::{IterativeSolve, cg, gmres};
//! let a = array([[4.0f32, 1.0], [1.0, 3.0]]);
//! let b = array([1.0f32, 2.0]);
//! let x = cg(|x: Array| a.matmul(x), b.clone())?;
//! assert!(allclose(a.matmul(&x), &b, 1e-4, 1e-4)?);
//! // With a preconditioner: the inverse of the diagonal.
//! let jacobi = |x: Array| x / array([4.0f32, 3.0]);
//! let y = IterativeSolve::new().tol(1e-6).preconditioner(jacobi).gmres(|x: Array| a.matmul(x), b)?;
//! assert!(allclose(x, y, 1e-4, 1e-4)?);
//! # Ok::<(), shardax::Error>(())
//! ```
//!
//! You can differentiate the solutions: gradients follow from the equations, not from the steps of the solver
//! ([`custom_linear_solve`]).

mod gmres;

use crate::core::array::Array;
use crate::core::function::{IntoArg, IntoOutput};
use crate::core::tree::{Flat, Tree, TreeDef};
use crate::error::{Result, err};
use crate::ops::control_flow::{MatVec, TransposeSolve, custom_linear_solve, while_loop};
use crate::ops::numpy::{conj, real, where_};

/// Options of the solvers: tolerances, the number of steps, the starting point and a preconditioner.
pub struct IterativeSolve<'a, T> {
    tol: f64,
    atol: f64,
    maxiter: Option<usize>,
    restart: usize,
    x0: Option<T>,
    preconditioner: Option<Box<dyn Fn(T) -> Result<T> + 'a>>,
}

impl<T: Tree> Default for IterativeSolve<'_, T> {
    fn default() -> Self {
        IterativeSolve { tol: 1e-5, atol: 0.0, maxiter: None, restart: 20, x0: None, preconditioner: None }
    }
}

/// A linear function on the leaves of trees.
type LeafFn<'a> = &'a dyn Fn(&[Array]) -> Result<Vec<Array>>;

impl<'a, T: Tree + Clone> IterativeSolve<'a, T> {
    /// Returns the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the relative tolerance: the solver stops when the norm of the residual, divided by the norm of the right
    /// side, is at most this number. Default 1e-5.
    pub fn tol(mut self, tol: f64) -> Self {
        self.tol = tol;
        self
    }

    /// Sets the absolute tolerance: the solver also stops when the norm of the residual is at most this number. Default
    /// 0.
    pub fn atol(mut self, atol: f64) -> Self {
        self.atol = atol;
        self
    }

    /// Sets the maximum number of steps, or of restarts for `gmres`. Default: ten times the number of elements, or the
    /// number of elements for `gmres`.
    pub fn maxiter(mut self, steps: usize) -> Self {
        self.maxiter = Some(steps);
        self
    }

    /// Sets the number of steps of `gmres` between restarts, which is the number of vectors in memory. Default 20.
    pub fn restart(mut self, steps: usize) -> Self {
        self.restart = steps;
        self
    }

    /// Sets the starting point. Default zeros.
    pub fn x0(mut self, x0: T) -> Self {
        self.x0 = Some(x0);
        self
    }

    /// Sets a preconditioner: a linear function close to the inverse of the matrix.
    pub fn preconditioner<R: IntoOutput<Output = T>>(mut self, m: impl Fn(T) -> R + 'a) -> Self {
        self.preconditioner = Some(Box::new(move |x| m(x).into_output()));
        self
    }

    /// Calls [`cg`] with these options.
    ///
    /// # Errors
    /// Returns an error if `a` fails, or if it does not return a tree like `b`. An iteration that does not converge
    /// is not an error.
    #[track_caller]
    pub fn cg<R: IntoOutput<Output = T>>(&self, a: impl Fn(T) -> R, b: impl IntoArg<T>) -> Result<T> {
        self.solve(a, b.into_arg(), true, conjugate_gradients)
    }

    /// Calls [`bicgstab`] with these options.
    ///
    /// # Errors
    /// Returns an error if `a` fails, or if it does not return a tree like `b`. An iteration that does not converge
    /// is not an error.
    #[track_caller]
    pub fn bicgstab<R: IntoOutput<Output = T>>(&self, a: impl Fn(T) -> R, b: impl IntoArg<T>) -> Result<T> {
        self.solve(a, b.into_arg(), false, biconjugate_gradients)
    }

    /// Calls [`gmres`] with these options.
    ///
    /// # Errors
    /// Returns an error if `a` fails, or if it does not return a tree like `b`. An iteration that does not converge
    /// is not an error.
    #[track_caller]
    pub fn gmres<R: IntoOutput<Output = T>>(&self, a: impl Fn(T) -> R, b: impl IntoArg<T>) -> Result<T> {
        self.solve(a, b.into_arg(), false, gmres::minimal_residuals)
    }

    #[track_caller]
    fn solve<R: IntoOutput<Output = T>>(
        &self,
        a: impl Fn(T) -> R,
        b: T,
        symmetric: bool,
        method: fn(&Problem<'_>) -> Result<Vec<Array>>,
    ) -> Result<T> {
        // The transpose of a Hermitian matrix is its conjugate, so that only a real matrix is its own transpose.
        let symmetric = symmetric && !Flat::of(&b).leaves.iter().any(|b| b.dtype().is_complex());
        let solver = |a: MatVec<'_, T>, b: T| self.run(a, &b, method);
        let transpose = if symmetric { TransposeSolve::Symmetric } else { TransposeSolve::With(&solver) };
        custom_linear_solve(a, b, &solver, transpose)
    }

    fn run(&self, a: MatVec<'_, T>, b: &T, method: fn(&Problem<'_>) -> Result<Vec<Array>>) -> Result<T> {
        let b = Flat::of(b);
        let x0 = match &self.x0 {
            Some(x0) => {
                let x0 = Flat::of(x0);
                crate::core::tree::same_structure(&b.def, &x0.def).map_err(|e| e.context("x0 and b must be alike"))?;
                x0.leaves.to_vec()
            }
            None => b.leaves.iter().map(crate::ops::numpy::zeros_like).collect(),
        };
        if let Some((x, b)) = x0.iter().zip(&b.leaves).find(|(x, b)| x.shape() != b.shape()) {
            return Err(err!(
                Value,
                "arrays in x0 and b must have matching shapes: {} and {}",
                x.type_name(),
                b.type_name()
            )
            .help("pass an `x0` with the shapes of the right side"));
        }
        let x0 = x0.iter().zip(&b.leaves).map(|(x, b)| x.astype(b.dtype())).collect();
        // The methods see lists of arrays, so that they do not depend on the tree.
        let on_leaves = |f: MatVec<'_, T>, x: &[Array]| -> Result<Vec<Array>> {
            Ok(Flat::of(&f(build(&b.def, x)?)?).leaves.into_vec())
        };
        let size: usize = b.leaves.iter().map(Array::size).sum();
        let problem = Problem {
            a: &|x| on_leaves(a, x),
            m: &|x| match &self.preconditioner {
                Some(m) => on_leaves(m, x),
                None => Ok(x.to_vec()),
            },
            is_preconditioned: self.preconditioner.is_some(),
            b: &b.leaves,
            x0,
            tol: self.tol,
            atol: self.atol,
            maxiter: self.maxiter.map_or(10 * size as i64, |n| n as i64),
            restarts: self.maxiter.unwrap_or(size) as i64,
            restart: self.restart.clamp(1, size.max(1)),
        };
        build(&b.def, &method(&problem)?)
    }
}

fn build<T: Tree>(def: &TreeDef, leaves: &[Array]) -> Result<T> {
    Flat { leaves: leaves.into(), def: def.clone() }.build()
}

/// A system of equations on leaves, with the options of its solution.
struct Problem<'a> {
    a: LeafFn<'a>,
    m: LeafFn<'a>,
    is_preconditioned: bool,
    b: &'a [Array],
    x0: Vec<Array>,
    tol: f64,
    atol: f64,
    maxiter: i64,
    restarts: i64,
    restart: usize,
}

impl Problem<'_> {
    fn residual(&self) -> Result<Vec<Array>> {
        Ok(subtract(self.b, &(self.a)(&self.x0)?))
    }

    /// The square of the largest norm that a residual can have.
    fn square_tolerance(&self) -> Array {
        (squares(self.b) * (self.tol * self.tol)).maximum(self.atol * self.atol)
    }
}

/// The real part of the inner product.
fn inner_real(x: &[Array], y: &[Array]) -> Array {
    let products = x
        .iter()
        .zip(y)
        .map(|(x, y)| if x.dtype().is_complex() { real(&(conj(x) * y)).sum(..) } else { (x * y).sum(..) });
    products.reduce(|a, b| a + b).unwrap_or_else(|| 0.0f32.into())
}

/// The inner product.
fn inner(x: &[Array], y: &[Array]) -> Array {
    let products = x.iter().zip(y).map(|(x, y)| (conj(x) * y).sum(..));
    products.reduce(|a, b| a + b).unwrap_or_else(|| 0.0f32.into())
}

fn squares(x: &[Array]) -> Array {
    inner_real(x, x)
}

fn each(x: &[Array], y: &[Array], f: impl Fn(&Array, &Array) -> Array) -> Vec<Array> {
    x.iter().zip(y).map(|(x, y)| f(x, y).astype(x.dtype())).collect()
}

/// `x - y`.
fn subtract(x: &[Array], y: &[Array]) -> Vec<Array> {
    each(x, y, |x, y| x - y)
}

/// `x + s y`.
fn add_scaled(x: &[Array], s: &Array, y: &[Array]) -> Vec<Array> {
    each(x, y, |x, y| x + s * y)
}

/// Solves `a(x) = b` with conjugate gradients, for a function that is symmetric (Hermitian) and positive definite.
///
/// ```
/// # use shardax::prelude::*;
/// let a = array([[4.0f32, 1.0], [1.0, 3.0]]);
/// let x = shardax::scipy::sparse::linalg::cg(|x: Array| a.matmul(x), array([1.0f32, 2.0]))?;
/// assert!(allclose(x, array([1.0f32 / 11.0, 7.0 / 11.0]), 1e-4, 1e-4)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// [`IterativeSolve`] has options.
///
/// # Errors
/// Returns an error unless `a` returns the structure, shapes and dtypes of `b`.
#[track_caller]
pub fn cg<T: Tree + Clone, R: IntoOutput<Output = T>>(a: impl Fn(T) -> R, b: impl IntoArg<T>) -> Result<T> {
    IterativeSolve::new().cg(a, b)
}

/// Solves `a(x) = b` with stabilized biconjugate gradients, for any invertible linear function.
///
/// ```
/// # use shardax::prelude::*;
/// let a = array([[4.0f32, 1.0], [-1.0, 3.0]]);
/// let x = shardax::scipy::sparse::linalg::bicgstab(|x: Array| a.matmul(x), array([5.0f32, 2.0]))?;
/// assert!(allclose(x, ones(2), 1e-4, 1e-4)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// [`IterativeSolve`] has options.
///
/// # Errors
/// Returns an error unless `a` returns the structure, shapes and dtypes of `b`.
#[track_caller]
pub fn bicgstab<T: Tree + Clone, R: IntoOutput<Output = T>>(a: impl Fn(T) -> R, b: impl IntoArg<T>) -> Result<T> {
    IterativeSolve::new().bicgstab(a, b)
}

/// Solves `a(x) = b` with generalized minimal residuals (GMRES) and restarts, for any invertible linear function.
///
/// ```
/// # use shardax::prelude::*;
/// let a = array([[4.0f32, 1.0], [-1.0, 3.0]]);
/// let x = shardax::scipy::sparse::linalg::gmres(|x: Array| a.matmul(x), array([5.0f32, 2.0]))?;
/// assert!(allclose(x, ones(2), 1e-4, 1e-4)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// [`IterativeSolve`] has options.
///
/// # Errors
/// Returns an error unless `a` returns the structure, shapes and dtypes of `b`.
#[track_caller]
pub fn gmres<T: Tree + Clone, R: IntoOutput<Output = T>>(a: impl Fn(T) -> R, b: impl IntoArg<T>) -> Result<T> {
    IterativeSolve::new().gmres(a, b)
}

/// Hestenes' and Stiefel's method ([Saad, Iterative methods, 9.2](https://www-users.cse.umn.edu/~saad/IterMethBook_2ndEd.pdf)).
fn conjugate_gradients(problem: &Problem<'_>) -> Result<Vec<Array>> {
    type State = (Vec<Array>, Vec<Array>, Vec<Array>, Array, Array);
    let tolerance = problem.square_tolerance();
    let r = problem.residual()?;
    let p = (problem.m)(&r)?;
    let gamma = inner_real(&r, &p);
    Ok(while_loop(
        |(_, r, _, gamma, k): State| {
            let square = if problem.is_preconditioned { squares(&r) } else { gamma };
            square.greater(&tolerance) & k.less(problem.maxiter)
        },
        |(x, r, p, gamma, k): State| -> Result<State> {
            let ap = (problem.a)(&p)?;
            let alpha = &gamma / inner_real(&p, &ap);
            let x = add_scaled(&x, &alpha, &p);
            let r = add_scaled(&r, &-alpha, &ap);
            let z = (problem.m)(&r)?;
            let next_gamma = inner_real(&r, &z);
            let p = add_scaled(&z, &(&next_gamma / gamma), &p);
            Ok((x, r, p, next_gamma, k + 1))
        },
        (problem.x0.clone(), r, p, gamma, Array::from(0)),
    )?
    .0)
}

/// Van der Vorst's method ([Saad, 7.4.2](https://www-users.cse.umn.edu/~saad/IterMethBook_2ndEd.pdf)). After a breakdown, a negative
/// step count stops the loop.
fn biconjugate_gradients(problem: &Problem<'_>) -> Result<Vec<Array>> {
    type State = (Vec<Array>, Vec<Array>, Vec<Array>, Vec<Array>, [Array; 3], Array);
    let tolerance = problem.square_tolerance();
    let r0 = problem.residual()?;
    // Computed from the residual, so that it has the dtype and the sharding of inner products, which may vary over manual mesh
    // axes.
    let one = inner(&r0, &r0) * 0 + 1;
    let condition =
        |(_, r, _, _, _, k): State| squares(&r).greater(&tolerance) & k.less(problem.maxiter) & k.greater_equal(0);
    let step = |(x, r, p, q, [alpha, omega, rho], k): State| -> Result<State> {
        let next_rho = inner(&r0, &r);
        let beta = &next_rho / rho * alpha / &omega;
        let p = add_scaled(&r, &beta, &add_scaled(&p, &-omega, &q));
        let p_hat = (problem.m)(&p)?;
        let q = (problem.a)(&p_hat)?;
        let alpha = &next_rho / inner(&r0, &q);
        let s = add_scaled(&r, &-&alpha, &q);
        let early = squares(&s).less(&tolerance);
        let s_hat = (problem.m)(&s)?;
        let t = (problem.a)(&s_hat)?;
        let omega = inner(&t, &s) / inner(&t, &t);
        let half = add_scaled(&x, &alpha, &p_hat);
        let x = each(&half, &add_scaled(&half, &omega, &s_hat), |half, full| where_(&early, half, full));
        let r = each(&s, &add_scaled(&s, &-&omega, &t), |half, full| where_(&early, half, full));
        let broken = omega.equal(0) | alpha.equal(0) | next_rho.equal(0);
        Ok((x, r, p, q, [alpha, omega, next_rho], where_(broken, -1, k + 1)))
    };
    let start =
        (problem.x0.clone(), r0.clone(), r0.clone(), r0.clone(), [one.clone(), one.clone(), one], Array::from(0));
    Ok(while_loop(condition, step, start)?.0)
}
