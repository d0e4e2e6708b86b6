//! Gradient accumulation.

use std::panic::Location;

use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;

/// Gradient accumulation: the mean of `f` over `parts` equal parts of a batch, computed one part after the other.
///
/// Use it if a batch does not fit in memory: it returns the gradient of the entire batch, but needs memory for one part
/// only. Devices communicate once, when the mean is complete, instead of once for each part. Values in half precision
/// are averaged in float32.
///
/// `f` is called with a part of the batch, a tree whose arrays have `1 / parts` of the rows. It must return
/// floating-point arrays, such as a gradient, or a loss with its gradient. If parts are ragged and masked, `f` should
/// return sums and counts, from which you compute the mean, because a mean of each part's mean would weigh short parts
/// too much. Sums and counts are both divided by `parts`, so you can divide one by the other.
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
/// # Errors
/// Returns the errors of `f`, and an error if `parts` does not divide the first dimension of every array.
#[track_caller]
pub fn accumulate<B: Tree, G: Tree>(parts: usize, f: impl Fn(B) -> Result<G>, batch: B) -> Result<G> {
    let location = Location::caller();
    check_rows(parts, &batch).map_err(|error| error.at(location))?;
    if parts == 1 {
        return f(batch);
    }
    // Each part is one iteration of a loop, so that the compiler reuses the memory of one part for the next.
    let batch = tree::map(|x| x.reshape([&[parts, x.shape()[0] / parts], &x.shape()[1..]].concat()), batch)?;
    let example_part = tree::map(|x| x.get(0), batch.clone())?;
    let types = eval_shape(|part: B| f(part), example_part)?;
    let numbers = arange(0..u32::try_from(parts).unwrap_or(u32::MAX)) + 1;
    let (mean, ()) = scan(
        |mean: G, (number, part): (Array, B)| -> Result<(G, ())> {
            Ok((tree::map2(|mean, x| add_to_mean(mean, x, &number), mean, f(part)?)?, ()))
        },
        tree::map(accumulator, types.clone())?,
        (numbers, batch),
    )?;
    tree::map2(
        |mean, like| if like.dtype().is_inexact() { mean.astype(like.dtype()) } else { mean / parts as f64 },
        mean,
        types,
    )
}

/// `parts` must divide the rows of every array.
fn check_rows<B: Tree>(parts: usize, batch: &B) -> Result<()> {
    for (path, leaf) in tree::leaves_with_path(batch) {
        leaf.check()?;
        let divides = leaf.shape().first().is_some_and(|rows| parts > 0 && rows.is_multiple_of(parts));
        if !divides {
            let message =
                format!("accumulate: `{path}` of type {} cannot be split into {parts} parts", leaf.type_name());
            return Err(Error::new(ErrorKind::Indivisible, message)
                .help("use a number of parts that divides the rows of every array of the batch"));
        }
    }
    Ok(())
}

/// Zeros to accumulate values like this one. They vary over the same mesh axes, because the type of a loop's carry must
/// not change.
fn accumulator(like: Array) -> Array {
    let zero = zeros_dtype(like.shape(), accumulator_dtype(like.dtype()));
    let axes: Vec<_> = like.vma().iter().collect();
    if axes.is_empty() { zero } else { pcast(zero, axes.as_slice()) }
}

/// The dtype of the mean, or of the sum for integers.
fn accumulator_dtype(dtype: DType) -> DType {
    if dtype.is_inexact() && dtype.byte_size() < 4 { DType::F32 } else { dtype }
}

/// Adds a part with this number, counted from 1, to the mean of the parts before it. The running mean is updated
/// instead of a sum, because it overflows later and is exact for equal parts.
fn add_to_mean(mean: Array, part: Array, number: &Array) -> Array {
    if !mean.dtype().is_inexact() {
        return mean + part;
    }
    let part = part.astype(mean.dtype());
    &mean + (part - &mean) / number.astype(mean.dtype())
}
