//! Gradient accumulation.

use std::panic::Location;

use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;

/// Gradient accumulation: the mean of `f` over `parts` equal parts of a batch, computed one part after the other. It
/// returns the gradient of the whole batch in the memory of one part. Devices average only that mean, once.
///
/// `f` takes a part of the batch, a tree whose arrays have `1 / parts` of the rows. It returns floating-point arrays,
/// such as a gradient, or a loss with its gradient. Sums over ragged, masked parts are also divided by `parts`: let `f`
/// return the sums and the counts.
///
/// ```
/// use shardax_nn::prelude::*;
/// use shardax_train::accumulate;
///
/// let (w, x) = (array([1.0f32, 2.0]), random::normal(random::key(0), [8, 2]));
/// let loss = |w: Array, x: Array| x.dot(w).square().mean(..);
/// let step = jit(|w: Array, x: Array| accumulate(4, |x: Array| value_and_grad(loss).call((&w, x)), x));
/// let (mean, gradient) = step.call((&w, &x))?;
/// let (whole, want) = value_and_grad(loss).call((&w, &x))?;
/// assert!(allclose(mean, whole, 1e-6, 0.0)? && allclose(gradient, want, 1e-6, 1e-7)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails when `parts` does not divide the first dimension of every array.
#[track_caller]
pub fn accumulate<B: Tree, G: Tree>(parts: usize, f: impl Fn(B) -> Result<G>, batch: B) -> Result<G> {
    let location = Location::caller();
    for (path, leaf) in tree::leaves_with_path(&batch) {
        leaf.check()?;
        let divides = leaf.shape().first().is_some_and(|rows| parts > 0 && rows.is_multiple_of(parts));
        if !divides {
            let what = format!("accumulate: `{path}` of type {} cannot be split into {parts} parts", leaf.type_name());
            return Err(Error::new(ErrorKind::Indivisible, what)
                .help("give a number of parts that divides the rows of every array of the batch")
                .at(location));
        }
    }
    if parts == 1 {
        return f(batch);
    }
    let split = |x: Array| x.reshape([&[parts, x.shape()[0] / parts], &x.shape()[1..]].concat());
    let split = tree::map(split, batch)?;
    let first = tree::map(|x| x.get(0), split.clone())?;
    let types = eval_shape(|part: B| f(part), first)?;
    let zero = |like: Array| {
        let zero = zeros_dtype(like.shape(), like.dtype());
        let axes: Vec<_> = like.vma().iter().collect();
        if axes.is_empty() { zero } else { pcast(zero, axes.as_slice()) }
    };
    let add = |sum: G, part: B| -> Result<(G, ())> { Ok((tree::map2(|a, b| a + b, sum, f(part)?)?, ())) };
    let (sum, ()) = scan(add, tree::map(zero, types)?, split)?;
    tree::map(|x| x / parts as f64, sum)
}
