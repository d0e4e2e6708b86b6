//! Taylor series of functions, as `jax.experimental.jet`.

use crate::core::array::Array;
use crate::core::function::{Function, IntoArgs};
use crate::core::program::trace::at_caller;
use crate::core::tree::{Flat, Tree, same_structure};
use crate::error::{AtCaller, Result, err};
use crate::interpret::flat::flat_fn;
use crate::ops::numpy::zeros_like;
use crate::transform::jvp;

/// The value of `f` and its derivatives along a curve through `primals` with these derivatives: `series[k]` is the
/// derivative of order `k + 1` of the arguments; the returned series has those of the results.
///
/// It is forward mode of forward mode: a program grows with `2^k` for `k` derivatives, before the compiler merges equal
/// operations.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::experimental::jet::jet;
/// // The curve t: sin, cos, -sin and -cos.
/// let x = array([0.5f32]);
/// let (y, derivatives) = jet(|x: Array| x.sin(), &x, [ones([1]), zeros([1]), zeros([1])])?;
/// assert!(allclose(y, x.sin(), 1e-6, 1e-6)? && allclose(&derivatives[2], -x.cos(), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails unless every term of the series is like the arguments.
#[track_caller]
pub fn jet<Args: Tree, F: Function<Args, Output: Tree>, A: IntoArgs<Args>>(
    f: F,
    primals: impl IntoArgs<Args>,
    series: impl IntoIterator<Item = A>,
) -> Result<(F::Output, Vec<F::Output>)> {
    let primals = Flat::of_arguments(&primals.into_args());
    let series: Vec<Flat> = series.into_iter().map(|term| Flat::of_arguments(&term.into_args())).collect();
    at_caller(|| {
        series.iter().try_for_each(|term| same_structure(&primals.def, &term.def))?;
        for (k, term) in series.iter().enumerate() {
            if let Some((x, t)) = primals.leaves.iter().zip(&*term.leaves).find(|(x, t)| x.shape() != t.shape()) {
                return Err(err!(Value, "series[{k}] has {} for an argument of type {}", t.type_name(), x.type_name())
                    .help("give derivatives of the shapes of the arguments, such as `zeros_like(x)`"));
            }
        }
        let flat = flat_fn(&f);
        let def = std::cell::RefCell::new(None);
        let at = |t: Array| -> Result<Vec<Array>> {
            let mut point = primals.clone();
            for (i, x) in point.leaves.iter_mut().enumerate() {
                let mut factor = 1.0;
                let terms = series.iter().enumerate().map(|(k, term)| {
                    factor /= k as f64 + 1.0;
                    let power = (0..k).fold(t.clone(), |power, _| power * &t);
                    (&term.leaves[i] * (power * factor)).astype(x.dtype())
                });
                *x = terms.fold(x.clone(), |sum, term| sum + term);
            }
            let out = flat(&point)?;
            *def.borrow_mut() = Some(out.def);
            Ok(out.leaves.into_vec())
        };
        let zero = primals
            .leaves
            .iter()
            .find(|x| x.dtype().is_float())
            .map_or(Array::from(0.0f32), |x| zeros_like(x.sum(..)).real());
        let derivatives = up_to(series.len(), &at, zero)?;
        let def = def.into_inner().unwrap_or_default();
        let build = |leaves: Vec<Array>| Flat { leaves: leaves.into(), def: def.clone() }.build();
        let mut all = derivatives.into_iter().map(build).collect::<Result<Vec<_>>>()?.into_iter();
        let y = all.next().ok_or_else(|| err!(Runtime, "jet gave no result"))?;
        Ok((y, all.collect()))
    })
    .at_caller()
}

/// The value of a function of a number, and its derivatives up to this order.
fn up_to(order: usize, f: &dyn Fn(Array) -> Result<Vec<Array>>, t: Array) -> Result<Vec<Vec<Array>>> {
    if order == 0 {
        return Ok(vec![f(t)?]);
    }
    let one = crate::ops::numpy::ones_like(&t);
    let (mut values, tangents) = jvp(|t: Array| up_to(order - 1, f, t), t, one)?;
    values.extend(tangents.into_iter().last());
    Ok(values)
}
