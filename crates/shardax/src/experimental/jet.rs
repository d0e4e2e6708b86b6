//! Taylor series of functions, as in `jax.experimental.jet`.

use crate::core::array::Array;
use crate::core::function::{Function, IntoArgs};
use crate::core::program::trace::at_caller;
use crate::core::tree::{Flat, Tree, same_structure};
use crate::error::{AtCaller, Result, err};
use crate::interpret::flat::flat_fn;
use crate::ops::numpy::zeros_like;
use crate::transform::jvp;

/// Computes the value of `f` and its derivatives along a curve through `primals`. `series[k]` is the derivative of order
/// `k + 1` of the arguments along the curve; the returned series holds the derivatives of the results.
///
/// It applies forward mode to forward mode, so that a program with `k` derivatives grows with `2^k` before the compiler
/// merges equal operations.
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
/// # Errors
/// Returns an error if a term of the series does not have the structure and the shapes of the arguments, if `f` fails,
/// or if it cannot be differentiated in forward mode as often as the series has terms.
#[track_caller]
pub fn jet<Args: Tree, F: Function<Args, Output: Tree>, A: IntoArgs<Args>>(
    f: F,
    primals: impl IntoArgs<Args>,
    series: impl IntoIterator<Item = A>,
) -> Result<(F::Output, Vec<F::Output>)> {
    let primals = Flat::from_arguments(&primals.into_args());
    let series: Vec<Flat> = series.into_iter().map(|term| Flat::from_arguments(&term.into_args())).collect();
    at_caller(|| {
        series.iter().try_for_each(|term| same_structure(&primals.def, &term.def))?;
        for (k, term) in series.iter().enumerate() {
            if let Some((x, t)) = primals.leaves.iter().zip(&*term.leaves).find(|(x, t)| x.shape() != t.shape()) {
                return Err(err!(Value, "series[{k}] has {} for an argument of type {}", t.type_name(), x.type_name())
                    .help("pass derivatives that have the shapes of the arguments, for example `zeros_like(x)`"));
            }
        }
        let flat = flat_fn(&f);
        let out_def = std::cell::RefCell::new(None);
        // The curve is the Taylor polynomial of `primals` and `series`. `f` on it is a function of one number, `t`.
        let f_on_curve = |t: Array| -> Result<Vec<Array>> {
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
            *out_def.borrow_mut() = Some(out.def);
            Ok(out.leaves.into_vec())
        };
        let zero = primals
            .leaves
            .iter()
            .find(|x| x.dtype().is_float())
            .map_or(Array::from(0.0f32), |x| zeros_like(x.sum(..)).real());
        let derivatives = derivatives_up_to(series.len(), &f_on_curve, zero)?;
        let def = out_def.into_inner().unwrap_or_default();
        let results = derivatives.into_iter().map(|leaves| Flat { leaves: leaves.into(), def: def.clone() }.build());
        let mut results = results.collect::<Result<Vec<_>>>()?.into_iter();
        let value =
            results.next().ok_or_else(|| err!(Runtime, "internal error: jet has no result; please report this"))?;
        Ok((value, results.collect()))
    })
    .at_caller()
}

/// Returns the value of a function of a number, then its derivatives up to this order.
fn derivatives_up_to(order: usize, f: &dyn Fn(Array) -> Result<Vec<Array>>, t: Array) -> Result<Vec<Vec<Array>>> {
    if order == 0 {
        return Ok(vec![f(t)?]);
    }
    let unit = crate::ops::numpy::ones_like(&t);
    let (mut values, tangents) = jvp(|t: Array| derivatives_up_to(order - 1, f, t), t, unit)?;
    values.extend(tangents.into_iter().last());
    Ok(values)
}
