//! Vector quantization, as in
//! [`jax.scipy.cluster.vq`](https://docs.jax.dev/en/latest/jax.scipy.html#module-jax.scipy.cluster.vq).

use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::error::{Result, err};
use crate::linalg::pair;
use crate::ops::numpy::{promote_dtypes, to_inexact};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::reduce::in_accumulator;

/// Assigns each observation of `[n, d]` to the nearest code of `[k, d]`. Returns the index of the code (int32) and the
/// distance, both `[n]`. One-dimensional observations and codes can be `[n]` and `[k]`.
///
/// ```
/// # use shardax::prelude::*;
/// let (codes, distances) = shardax::scipy::cluster::vq(array([0.0f32, 5.0]), array([1.0f32, 4.5]));
/// assert_eq!((codes.to_vec::<i32>()?, distances.to_vec::<f32>()?), (vec![0, 1], vec![1.0, 0.5]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for shapes that do not fit, and without codes.
#[track_caller]
pub fn vq(obs: impl ArrayLike, code_book: impl ArrayLike) -> (Array, Array) {
    let (obs, codes) = (obs.into_array(), code_book.into_array());
    let nearest = at_caller(|| -> Result<Vec<Array>> {
        let args = promote_dtypes(&[&obs, &codes], to_inexact)?;
        let fits = match (obs.shape(), codes.shape()) {
            ([_], [k]) => *k > 0,
            ([_, d], [k, e]) => *k > 0 && d == e,
            _ => false,
        };
        if !fits {
            return Err(err!(
                Value,
                "vq got incompatible observations {} and codes {}",
                obs.type_name(),
                codes.type_name()
            )
            .help("pass observations [n, d] and codes [k, d] with at least one code, or [n] and [k]"));
        }
        let (points, codes) = (as_rows(&args[0]), as_rows(&args[1]));
        let difference = points.expand_dims(1) - codes.expand_dims(0);
        // The largest distances of float16 have squares beyond its range.
        let distance = in_accumulator(&difference, |x| x.square().sum(-1).sqrt());
        Ok(vec![distance.argmin(-1), distance.min(-1)])
    });
    pair(nearest, &obs)
}

/// Points as the rows of a matrix. A vector has points of one dimension.
fn as_rows(x: &Array) -> Array {
    if x.ndim() == 1 { x.expand_dims(1) } else { x.clone() }
}
