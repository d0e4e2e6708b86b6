//! Vector quantization, as in
//! [`jax.scipy.cluster.vq`](https://docs.jax.dev/en/latest/jax.scipy.html#module-jax.scipy.cluster.vq).

use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::error::{Result, err};
use crate::linalg::pair;
use crate::ops::numpy::{promote_dtypes, to_inexact};
use crate::ops::operators::ArrayLike;

/// For each observation `[n, d]` the nearest code of `[k, d]`, int32, and its distance: both `[n]`. Numbers and codes of one
/// dimension are `[n]` and `[k]`.
///
/// ```
/// # use shardax::prelude::*;
/// let (codes, distances) = shardax::scipy::cluster::vq(array([0.0f32, 5.0]), array([1.0f32, 4.5]));
/// assert_eq!((codes.to_vec::<i32>()?, distances.to_vec::<f32>()?), (vec![0, 1], vec![1.0, 0.5]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails for shapes that do not fit, and without codes.
#[track_caller]
pub fn vq(obs: impl ArrayLike, code_book: impl ArrayLike) -> (Array, Array) {
    let (obs, codes) = (obs.into_array(), code_book.into_array());
    let made = at_caller(|| -> Result<Vec<Array>> {
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
            .help("give [n, d] and [k, d] with at least one code, or [n] and [k]"));
        }
        let column = |x: &Array| if x.ndim() == 1 { x.expand_dims(1) } else { x.clone() };
        let gap = column(&args[0]).expand_dims(1) - column(&args[1]).expand_dims(0);
        let distance = gap.square().sum(-1).sqrt();
        Ok(vec![distance.argmin(-1), distance.min(-1)])
    });
    pair(made, &obs)
}
