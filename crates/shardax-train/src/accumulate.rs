//! Gradient accumulation.

use std::panic::Location;

use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;

/// Gradient accumulation: the mean of `f` over `parts` equal parts of a batch, computed one part after the other. It
/// returns the gradient of the whole batch in the memory of one part. Devices average only that mean, once. Values in
/// half precision are averaged in float32.
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
        let zero = zeros_dtype(like.shape(), accumulator_dtype(like.dtype()));
        let axes: Vec<_> = like.vma().iter().collect();
        if axes.is_empty() { zero } else { pcast(zero, axes.as_slice()) }
    };
    let add = |mean: G, (number, part): (Array, B)| -> Result<(G, ())> {
        Ok((tree::map2(|mean, x| add_to_mean(mean, x, &number), mean, f(part)?)?, ()))
    };
    let numbers = arange(0..u32::try_from(parts).unwrap_or(u32::MAX)) + 1;
    let (mean, ()) = scan(add, tree::map(zero, types.clone())?, (numbers, split))?;
    let finish = |mean: Array, like: Array| match like.dtype().is_inexact() {
        true => mean.astype(like.dtype()),
        false => mean / parts as f64,
    };
    tree::map2(finish, mean, types)
}

/// The dtype of the mean, or of the sum for integers.
fn accumulator_dtype(dtype: DType) -> DType {
    if dtype.is_inexact() && dtype.byte_size() < 4 { DType::F32 } else { dtype }
}

/// Adds the part of this number, which counts from 1. The mean of what was seen overflows later than its sum, and is
/// exact for parts that are equal.
fn add_to_mean(mean: Array, part: Array, number: &Array) -> Array {
    if !mean.dtype().is_inexact() {
        return mean + part;
    }
    let part = part.astype(mean.dtype());
    &mean + (part - &mean) / number.astype(mean.dtype())
}
