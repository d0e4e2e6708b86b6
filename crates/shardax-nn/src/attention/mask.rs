//! Attention masks.

use shardax::prelude::*;

use crate::check::value_error;

/// Returns the mask of every pair of a query and a key. `query_input` is `[..., queries]`, `key_input` is `[...,
/// keys]`. The result is `[..., 1, queries, keys]` of booleans; the dimension of size 1 broadcasts over the heads.
///
/// `pairwise` combines the two elements of a pair. With `multiply`, as in Flax, the key is visible if both are nonzero.
/// If the result is not boolean, nonzero elements count as true.
///
/// ```
/// use shardax_nn::prelude::*;
/// // Two examples, of three words and of one.
/// let words = array([[true, true, true], [true, false, false]]);
/// let mask = make_attention_mask(&words, &words, |q, k| q & k);
/// assert_eq!(mask.shape(), [2, 1, 3, 3]);
/// assert_eq!(mask.get((1, 0, 0)).to_vec::<bool>()?, [true, false, false]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn make_attention_mask(
    query_input: impl ArrayLike,
    key_input: impl ArrayLike,
    pairwise: impl FnOnce(Array, Array) -> Array,
) -> Array {
    let (query, key) = (query_input.into_array(), key_input.into_array());
    pairwise(query.expand_dims(-1), key.expand_dims(-2)).expand_dims(-3).astype(DType::Bool)
}

/// Returns the causal mask, `[..., 1, length, length]` of booleans for `x` of shape `[..., length]`: no query attends to
/// a later key.
///
/// ```
/// use shardax_nn::prelude::*;
/// let mask = make_causal_mask(ones([1, 3]));
/// assert_eq!(mask.get((0, 0, 1)).to_vec::<bool>()?, [true, true, false]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn make_causal_mask(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    let positions = arange(0..x.shape().last().copied().unwrap_or(0) as i32).broadcast_to(x.shape());
    make_attention_mask(&positions, &positions, |q, k| q.greater_equal(k))
}

/// Combines masks with a logical and, or returns `None` if there are no masks. The masks must have the same rank, and are
/// broadcast against each other.
///
/// ```
/// use shardax_nn::prelude::*;
/// let padding = make_attention_mask(array([[1, 1, 0]]), array([[1, 1, 0]]), multiply);
/// let mask = combine_masks([Some(padding), Some(make_causal_mask(ones([1, 3]))), None])?.expect("two masks");
/// assert_eq!(mask.get((0, 0, 1)).to_vec::<bool>()?, [true, true, false]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if a mask failed, or if the masks have different ranks.
#[track_caller]
pub fn combine_masks(masks: impl IntoIterator<Item = Option<Array>>) -> Result<Option<Array>> {
    let masks: Vec<Array> = masks.into_iter().flatten().collect();
    masks.iter().try_for_each(Array::check)?;
    let ranks: Vec<usize> = masks.iter().map(Array::ndim).collect();
    if ranks.windows(2).any(|pair| pair[0] != pair[1]) {
        return value_error(format!("combine_masks: masks must have the same rank, got {ranks:?}"));
    }
    Ok(masks.into_iter().map(|mask| mask.astype(DType::Bool)).reduce(|a, b| a & b))
}
