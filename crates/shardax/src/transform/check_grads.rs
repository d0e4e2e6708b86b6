//! `check_grads`: derivatives compared with finite differences.

use crate::core::array::Array;
use crate::core::function::{Function, IntoArgs};
use crate::core::tree::{Flat, Tree};
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::numpy::conj;
use crate::transform::{jvp, vjp};

/// The step of the differences, as in JAX.
const STEP: f64 = 1.0 / 2048.0;

/// Options of [`check_grads`].
#[derive(Clone, Debug)]
pub struct CheckGrads {
    order: usize,
    forward: bool,
    reverse: bool,
    tolerance: Option<f64>,
    eps: f64,
}

impl Default for CheckGrads {
    fn default() -> Self {
        CheckGrads { order: 1, forward: true, reverse: true, tolerance: None, eps: STEP }
    }
}

/// Checks the first derivatives of `f` at `args` against finite differences, in forward and in reverse mode. Use it in
/// the tests of functions with custom derivatives. Integer arguments are constants. [`CheckGrads`] has options such as
/// higher derivatives.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::test_util::{CheckGrads, check_grads};
/// check_grads(|x: Array| x.sin() * &x, array([0.5f32, 1.0]))?;
/// CheckGrads::default().order(2).check_grads(|x: Array, y: Array| x * y.exp(), (array(2.0f32), array(0.5f32)))?;
/// let wrong = custom_jvp(|x: Array| x.square()).defjvp(|(x,): (Array,), (dx,): (Array,)| (x.square(), dx * x));
/// assert!(check_grads(wrong, array(3.0f32)).is_err());
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if a derivative differs by more than the [tolerance](CheckGrads::tolerance), or if `f` fails.
#[track_caller]
pub fn check_grads<Args: Tree, F: Function<Args>>(f: F, args: impl IntoArgs<Args>) -> Result<()> {
    CheckGrads::default().check_grads(f, args)
}

type Leaves<'a> = &'a dyn Fn(Vec<Array>) -> Result<Vec<Array>>;

impl CheckGrads {
    /// Sets the number of derivatives to check: with 2, second derivatives are checked too. Default 1.
    pub fn order(mut self, order: usize) -> Self {
        self.order = order;
        self
    }

    /// Sets whether forward and reverse mode are checked. Default both.
    pub fn modes(mut self, forward: bool, reverse: bool) -> Self {
        (self.forward, self.reverse) = (forward, reverse);
        self
    }

    /// Sets the largest difference, relative to the size of the values. Default by dtype: 1e-5 for float64, 2e-3 for
    /// float32, 1e-1 for half precision.
    pub fn tolerance(mut self, tolerance: f64) -> Self {
        self.tolerance = Some(tolerance);
        self
    }

    /// Sets the step of the differences. Default 1/2048.
    pub fn eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }

    /// Calls [`check_grads`] with these options.
    ///
    /// # Errors
    /// Returns an error that shows both numbers if a derivative differs from finite differences by more than the
    /// tolerances.
    #[track_caller]
    pub fn check_grads<Args: Tree, F: Function<Args>>(&self, f: F, args: impl IntoArgs<Args>) -> Result<()> {
        let flat = Flat::from_arguments(&args.into_args());
        let floats: Vec<usize> = (0..flat.leaves.len()).filter(|&i| flat.leaves[i].dtype().is_inexact()).collect();
        let xs: Vec<Array> = floats.iter().map(|&i| flat.leaves[i].clone()).collect();
        self.check(
            &|xs: Vec<Array>| -> Result<Vec<Array>> {
                let mut leaves = flat.leaves.clone();
                floats.iter().zip(xs).for_each(|(&i, x)| leaves[i] = x);
                let out = Flat::of(&f.apply(Flat { leaves, def: flat.def.clone() }.build::<Args>()?)?);
                Ok(out.leaves.into_vec().into_iter().filter(|x| x.dtype().is_inexact()).collect())
            },
            &xs,
            self.order,
            0,
        )
    }

    fn check(&self, f: Leaves<'_>, xs: &[Array], order: usize, seed: u32) -> Result<()> {
        if order == 0 || xs.is_empty() {
            return Ok(());
        }
        let tangents = directions(xs, seed);

        if self.forward {
            let (_, slopes) = jvp(f, xs.to_vec(), tangents.clone())?;
            self.same("jvp", &slopes, &self.difference(f, xs, &tangents)?)?;
            self.check(&|xs| Ok(jvp(f, xs, tangents.clone())?.1), xs, order - 1, seed + 2)?;
        }
        if self.reverse {
            let (outs, pull_back) = vjp(f, xs.to_vec())?;
            let cotangents = directions(&outs, seed + 1);
            let (slopes,) = pull_back.call(cotangents.clone())?;
            let slope = inner(&slopes, &tangents);
            let expected = inner(&cotangents, &self.difference(f, xs, &tangents)?);
            self.same("vjp", &[slope], &[expected])?;
            self.check(&|xs| Ok(vjp(f, xs)?.1.call(cotangents.clone())?.0), xs, order - 1, seed + 3)?;
        }
        Ok(())
    }

    /// Approximates the derivative of `f` in a direction by central differences.
    fn difference(&self, f: Leaves<'_>, xs: &[Array], tangents: &[Array]) -> Result<Vec<Array>> {
        let [above, below] = [self.eps / 2.0, -self.eps / 2.0]
            .map(|step| f(xs.iter().zip(tangents).map(|(x, t)| x + t * step).collect()));
        Ok(above?.iter().zip(&below?).map(|(a, b)| (a - b) / self.eps).collect())
    }

    fn same(&self, what: &str, found: &[Array], expected: &[Array]) -> Result<()> {
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            let tolerance = self.tolerance.unwrap_or_else(|| match found.dtype().real() {
                DType::F64 => 1e-5,
                DType::F32 => 2e-3,
                _ => 1e-1,
            });
            let distance = (found - expected).abs();
            let far = !distance.less_equal((expected.abs() + 1) * tolerance);
            if far.any(..).item::<bool>()? {
                return Err(err!(
                    Value,
                    "the {what} of output {i} differs from the difference quotient by up to {} with tolerance {tolerance}: \
                     {found} and {expected}",
                    distance.max(..).astype(DType::F32).item::<f32>()?
                )
                .help("correct the derivative, or raise the tolerance if the values lose digits"));
            }
        }
        Ok(())
    }
}

/// Returns random directions of length 1, which are equal in every run.
fn directions(like: &[Array], seed: u32) -> Vec<Array> {
    let key = crate::random::key(seed);
    let samples: Vec<Array> = like
        .iter()
        .enumerate()
        .map(|(i, x)| {
            let key = crate::random::fold_in(&key, i as u32);
            let real = crate::random::normal_dtype(&key, x.shape(), DType::F32);
            real.astype(x.dtype())
        })
        .collect();
    let squares = inner(&samples, &samples).sqrt();
    samples.iter().map(|x| (x / &squares).astype(x.dtype())).collect()
}

/// The real inner product, in float32 or wider.
fn inner(x: &[Array], y: &[Array]) -> Array {
    x.iter()
        .zip(y)
        .map(|(x, y)| {
            let product = if x.dtype().is_complex() { crate::ops::numpy::real(&(conj(x) * y)) } else { x * y };
            product.sum(..)
        })
        .reduce(|a, b| a + b)
        .unwrap_or_else(|| 0.0f32.into())
}
