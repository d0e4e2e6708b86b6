//! Attention in blocks of queries. The scores of a block stay in the processor's caches, and keys that no query of the
//! block can attend to are skipped.

pub(crate) mod exp;
mod head;
mod mask;

use ndarray::{Array2, ArrayView2, ArrayView3, ArrayView4, ArrayViewMut, ArrayViewMut4, Axis, RemoveAxis};

pub use self::head::FEW_QUERIES;
use self::head::{Head, Softmax, block_len};
use self::mask::Mask;
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{Result, ShapeError, View};

/// The score of a masked key. It must be finite, because the softmax of a query that attends to no key should be
/// uniform instead of NaN.
pub const MASKED_SCORE: f32 = (-0.7 * f32::MAX as f64) as f32;

/// The keys around its own position that a query attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The number of keys before it.
    pub before: usize,
    /// The number of keys after it.
    pub after: usize,
}

/// Softmax attention of scaled queries. You must multiply the queries with the scale yourself.
///
/// Several query heads can share a key head (grouped-query attention): query head `h` uses key head
/// `h / (heads / key_heads)`. A query that attends to no key attends to all keys equally; without keys results are 0.
///
/// ```
/// use shardax_cpu_kernels::{Attention, View, Window};
///
/// // Two positions of one head with one feature, each attending to itself and what is before.
/// let (q, v) = ([0.0; 2], [2.0, 4.0]);
/// let x = |data| View::new(&[2, 1, 1], data);
/// let window = Window { before: usize::MAX, after: 0 };
/// let attention = Attention { q: x(&q)?, k: x(&q)?, v: x(&v)?, mask: None, window };
/// let (mut y, mut max, mut sum) = ([0.0; 2], [0.0; 2], [0.0; 2]);
/// attention.forward(&mut y, &mut max, &mut sum, 1)?;
/// assert_eq!((y, max, sum), ([2.0, 3.0], [0.0, 0.0], [1.0, 2.0]));
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// The queries, `[batch.., queries, heads, depth]`, multiplied with the scale.
    pub q: View<'a, f32>,
    /// The keys, `[batch.., keys, key_heads, depth]`.
    pub k: View<'a, f32>,
    /// The values, `[batch.., keys, key_heads, features]`.
    pub v: View<'a, f32>,
    /// A mask that broadcasts to `[batch.., heads, queries, keys]`: 0 where a query does not attend to a key.
    pub mask: Option<View<'a, u8>>,
    /// The keys that a query attends to by position.
    pub window: Window,
}

/// Inputs of the gradient, in addition to the operands of [`Attention`]. You should pass the `max` and `sum` that
/// [`Attention::forward`] computed for the same operands. Slices without stated dimensions are
/// `[batch.., heads, queries]`.
#[derive(Clone, Copy, Debug)]
pub struct Backward<'a> {
    /// The largest score of each query, from the forward pass.
    pub max: &'a [f32],
    /// The sum of each query's exponentials, from the forward pass.
    pub sum: &'a [f32],
    /// The cotangent of the output, `[batch.., queries, heads, features]`.
    pub ct: &'a [f32],
    /// The dot product of each query's output and its cotangent.
    pub mean: &'a [f32],
}

impl Attention<'_> {
    /// Computes the output `y`, `[batch.., queries, heads, features]`, and the largest score and the sum of exponentials of
    /// each query, `[batch.., heads, queries]`. Each thread allocates the scores of up to 64 queries with all keys, or at most
    /// 2¹⁷ scores if these are more.
    ///
    /// # Errors
    /// Returns an error if the shapes of the operands do not agree, or if a result has another number of elements.
    pub fn forward(&self, y: &mut [f32], max: &mut [f32], sum: &mut [f32], threads: usize) -> Result<()> {
        let Operands { q, k, v, mask } = Operands::new(self)?;
        let (batch, queries, heads, _) = q.dim();
        let (_, keys, key_heads, features) = v.dim();
        let rows = size([batch, heads, queries]);
        check("the elements of the output", y.len(), rows.saturating_mul(features))?;
        check("the elements of the largest scores", max.len(), rows)?;
        check("the elements of the sums", sum.len(), rows)?;
        if rows == 0 {
            return Ok(());
        }
        // A task is one head of one example.
        let groups = heads / key_heads;
        let [max, sum] = [max, sum].map(|rows| rows.chunks_mut(queries));
        let y = ArrayViewMut4::from_shape((batch, queries, heads, features), y)?;
        let y = parts(y, 0).into_iter().flat_map(|example| parts(example, 1));
        let tasks: Vec<_> = y.zip(max.zip(sum)).enumerate().collect();
        run_tasks(
            tasks,
            threads,
            || Array2::zeros((block_len(queries, keys, self.window), keys)),
            |scores, (index, (y, (max, sum)))| {
                let (i, h) = (index / heads, index % heads);
                let [k, v] = [k, v].map(|x| head(x, i, h / groups));
                Head { of: self.window, q: head(q, i, h), k, v, mask: mask.of(i, h) }.forward(scores, y, max, sum);
            },
        );
        Ok(())
    }

    /// Computes the gradients of the queries, keys and values. Each gradient must have as many elements as its operand.
    /// Each thread allocates the scores of up to 64 queries with all keys, or at most 2¹⁷ scores if these are more, twice.
    ///
    /// # Errors
    /// Returns an error if the shapes of the operands do not agree, or if a slice of `of` or a result has another
    /// number of elements.
    pub fn gradient(&self, of: &Backward<'_>, [dq, dk, dv]: [&mut [f32]; 3], threads: usize) -> Result<()> {
        let Operands { q, k, v, mask } = Operands::new(self)?;
        let (batch, queries, heads, _) = q.dim();
        let (_, keys, key_heads, features) = v.dim();
        check("the elements of the queries' gradient", dq.len(), q.len())?;
        check("the elements of the keys' gradient", dk.len(), k.len())?;
        check("the elements of the values' gradient", dv.len(), v.len())?;
        let rows = size([batch, heads, queries]);
        for (what, found) in [("largest scores", of.max), ("sums", of.sum), ("products", of.mean)] {
            check(&format!("the elements of the {what}"), found.len(), rows)?;
        }
        check("the elements of the cotangent", of.ct.len(), rows.saturating_mul(features))?;
        let ct = ArrayView4::from_shape((batch, queries, heads, features), of.ct)?;
        let per_query = (batch, heads, queries);
        let max = ArrayView3::from_shape(per_query, of.max)?;
        let sum = ArrayView3::from_shape(per_query, of.sum)?;
        let mean = ArrayView3::from_shape(per_query, of.mean)?;
        if rows == 0 || keys == 0 {
            [dq, dk, dv].into_iter().for_each(|x| x.fill(0.0));
            return Ok(());
        }
        let groups = heads / key_heads;
        let dq = each(ArrayViewMut4::from_shape(q.dim(), dq)?);
        let dk = each(ArrayViewMut4::from_shape(k.dim(), dk)?);
        let dv = each(ArrayViewMut4::from_shape(v.dim(), dv)?);
        // A task is a head of keys and all heads of queries that share it, so that only one thread adds to its gradients.
        let mut tasks = Vec::new();
        for (i, ((mut dq, dk), dv)) in dq.zip(dk).zip(dv).enumerate() {
            for (h, (dk, dv)) in dk.zip(dv).enumerate() {
                tasks.push(((i, h), dq.by_ref().take(groups).collect::<Vec<_>>(), dk, dv));
            }
        }
        let block_shape = (block_len(queries, keys, self.window), keys);
        run_tasks(
            tasks,
            threads,
            || [(); 2].map(|()| Array2::zeros(block_shape)),
            |room, task| {
                let ((i, key_head), dq, mut dk, mut dv) = task;
                dk.fill(0.0);
                dv.fill(0.0);
                for (group, dq) in dq.into_iter().enumerate() {
                    let h = key_head * groups + group;
                    let [q, ct] = [q, ct].map(|x| head(x, i, h));
                    let [max, sum, mean] =
                        [max, sum, mean].map(|x| x.index_axis_move(Axis(0), i).index_axis_move(Axis(0), h));
                    let (k, v) = (head(k, i, key_head), head(v, i, key_head));
                    let head = Head { of: self.window, q, k, v, mask: mask.of(i, h) };
                    head.backward(room, &Softmax { max, sum, ct, mean }, [dq, dk.view_mut(), dv.view_mut()]);
                }
            },
        );
        Ok(())
    }
}

/// The leading dimensions of `x`, before positions, heads and features.
fn batch_dims<'a>(x: View<'a, f32>) -> &'a [usize] {
    &x.shape()[..x.shape().len().saturating_sub(3)]
}

/// Checked operands, `[batch, positions, heads, depth]`.
struct Operands<'a> {
    q: ArrayView4<'a, f32>,
    k: ArrayView4<'a, f32>,
    v: ArrayView4<'a, f32>,
    mask: Mask<'a>,
}

impl<'a> Operands<'a> {
    fn new(of: &Attention<'a>) -> Result<Self> {
        let (q, k, v) = (heads(of.q, "the queries")?, heads(of.k, "the keys")?, heads(of.v, "the values")?);
        if [of.k, of.v].into_iter().any(|x| batch_dims(x) != batch_dims(of.q)) {
            let [q, k, v] = [of.q, of.k, of.v].map(|x| x.shape());
            return Err(ShapeError(format!("queries {q:?}, keys {k:?} and values {v:?} have different batches")));
        }
        let (_, _, heads, depth) = q.dim();
        let (_, keys, key_heads, key_depth) = k.dim();
        let (_, value_keys, value_heads, _) = v.dim();
        check("the depth of the keys", key_depth, depth)?;
        check("the positions of the values", value_keys, keys)?;
        check("the heads of the values", value_heads, key_heads)?;
        if heads.checked_rem(key_heads).unwrap_or(heads) > 0 {
            return Err(ShapeError(format!("{heads} heads of queries cannot share {key_heads} heads of keys")));
        }
        Ok(Operands { q, k, v, mask: Mask::new(of.mask, of.q.shape(), keys)? })
    }
}

/// Merges the batch dimensions.
fn heads<'a>(x: View<'a, f32>, name: &str) -> Result<ArrayView4<'a, f32>> {
    let [batch @ .., positions, heads, depth] = x.shape() else {
        return Err(ShapeError(format!("{name} have too few dimensions: {:?}", x.shape())));
    };
    // An array without elements may have dimensions whose product overflows.
    let batch = batch.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let batch = batch.ok_or_else(|| ShapeError(format!("{name} have too many examples: {:?}", x.shape())))?;
    Ok(ArrayView4::from_shape((batch, *positions, *heads, *depth), x.data())?)
}

fn size(dims: [usize; 3]) -> usize {
    dims.into_iter().fold(1, usize::saturating_mul)
}

/// Splits a view along a dimension, which is removed.
fn parts<D: RemoveAxis>(mut view: ArrayViewMut<'_, f32, D>, axis: usize) -> Vec<ArrayViewMut<'_, f32, D::Smaller>> {
    let mut parts = Vec::with_capacity(view.len_of(Axis(axis)));
    while view.len_of(Axis(axis)) > 0 {
        let (first, rest) = view.split_at(Axis(axis), 1);
        parts.push(first.index_axis_move(Axis(axis), 0));
        view = rest;
    }
    parts
}

/// The heads of each example, `[positions, depth]`.
fn each<'a>(
    x: ArrayViewMut4<'a, f32>,
) -> impl Iterator<Item = impl Iterator<Item = ArrayViewMut<'a, f32, ndarray::Ix2>> + use<'a>> + use<'a> {
    parts(x, 0).into_iter().map(|example| parts(example, 1).into_iter())
}

/// One head of an example, `[positions, depth]`.
fn head(x: ArrayView4<'_, f32>, example: usize, head: usize) -> ArrayView2<'_, f32> {
    x.index_axis_move(Axis(0), example).index_axis_move(Axis(1), head)
}
