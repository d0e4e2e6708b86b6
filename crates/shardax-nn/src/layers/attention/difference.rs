//! The difference of the results of two heads.

use shardax::prelude::*;

use crate::check::{require, value_error};
use crate::layers::RmsNorm;
use crate::shardings::{gather_heads, reshard_like};
use crate::{Module, Rngs};

/// Differential attention ([Ye et al. 2024](https://arxiv.org/abs/2410.05258)): heads are pairs, and the result of the second
/// head of a pair is multiplied by a learned factor and subtracted from the result of the first one.
///
/// The first halves of the heads and of the key heads are the first of each pair. Both heads of a pair have the values of both
/// key heads of a pair.
///
/// ```
/// use shardax_nn::HeadDifference;
/// use shardax_nn::prelude::*;
/// let mut rngs = Rngs::new(0);
/// let mut layer = MultiHeadAttention::builder(4, 32).num_kv_heads(2).is_causal(true).build(&mut rngs);
/// layer.difference = Some(Box::new(HeadDifference::new(8, 0.2, 1e-5, &mut rngs)));
/// assert_eq!(layer.forward(ones([1, 6, 32])).shape(), [1, 6, 32]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct HeadDifference {
    /// `[depth]`: the exponential function of its product with `first_key` is a part of the factor.
    pub first_query: Array,
    /// `[depth]`
    pub first_key: Array,
    /// `[depth]`: the exponential function of its product with `second_key` is subtracted from the factor.
    pub second_query: Array,
    /// `[depth]`
    pub second_key: Array,
    /// Normalizes differences, without a scale.
    pub norm: RmsNorm,
    /// A number that is added to the factor.
    initial: f64,
}

impl HeadDifference {
    /// Creates the difference for heads of `depth` features, whose factor is `initial` at first.
    #[track_caller]
    pub fn new(depth: usize, initial: f64, epsilon: f64, rngs: &mut Rngs) -> HeadDifference {
        let dtype = rngs.policy().param_dtype;
        let [first_query, first_key, second_query, second_key] =
            [(); 4].map(|()| (random::normal_dtype(rngs.params(), [depth], DType::F32) * 0.1).astype(dtype));
        let norm = RmsNorm::builder(2 * depth).use_scale(false).epsilon(epsilon).build(rngs);
        HeadDifference { first_query, first_key, second_query, second_key, norm, initial }
    }

    /// Returns the values of both key heads of each pair, `[..., length, key heads, 2 * depth]`, for values `[..., length, key
    /// heads, depth]`.
    #[track_caller]
    pub(super) fn values_of_pairs(&self, values: &Array) -> Array {
        let (first, second) = halves(&gather_heads(values.clone()));
        let pairs = concatenate(&[first, second], -1);
        reshard_like(concatenate(&[pairs.clone(), pairs], -2), values)
    }

    /// Subtracts the second results of pairs from the first ones: `[..., length, heads, depth]`, for `x`, `[..., length, heads, 2
    /// * depth]`.
    #[track_caller]
    pub(super) fn subtract(&self, x: &Array) -> Array {
        require!(x, self.check_depth(x));
        let (first, second) = halves(&gather_heads(x.clone()));
        let difference = &first - second * self.factor().astype(first.dtype());
        let difference = self.norm.forward(difference) * (1.0 - self.initial);
        let shape = x.shape();
        let (rows, [heads, depth]) = (&shape[..shape.len() - 2], [shape[shape.len() - 2], shape[shape.len() - 1] / 2]);
        reshard_like(difference.reshape([rows, &[heads, depth]].concat()), x)
    }

    /// Checks that the vectors have the number of features of a head, which is half the number of features of `x`.
    #[track_caller]
    fn check_depth(&self, x: &Array) -> Result<()> {
        let features = x.shape().last().copied().unwrap_or(0);
        let vectors = [&self.first_query, &self.first_key, &self.second_query, &self.second_key];
        match vectors.into_iter().find(|vector| 2 * vector.size() != features) {
            Some(vector) => value_error(format!(
                "HeadDifference: a vector has {} features, but the values of heads have {}; create it with this number",
                vector.size(),
                features / 2
            )),
            None => Ok(()),
        }
    }

    /// Returns the factor of the second results, a float32 scalar.
    fn factor(&self) -> Array {
        let [first, second] = [(&self.first_query, &self.first_key), (&self.second_query, &self.second_key)]
            .map(|(query, key)| (query.astype(DType::F32) * key.astype(DType::F32)).sum(..).exp());
        first - second + self.initial
    }
}

/// Returns both halves of the heads of `x`, `[..., heads, depth]`.
fn halves(x: &Array) -> (Array, Array) {
    let half = x.shape().get(x.ndim().saturating_sub(2)).map_or(0, |heads| heads / 2);
    (x.get((Ellipsis, ..half, ..)), x.get((Ellipsis, half.., ..)))
}
