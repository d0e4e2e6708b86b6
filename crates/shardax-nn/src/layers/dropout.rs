//! Dropout.

use shardax::prelude::*;

use crate::check::{require, within};

/// Zeroes each element with probability `rate`, and scales the others so that the mean stays.
///
/// It holds no stream of keys. Where a model in Flax has `nnx.Dropout(rate, rngs=rngs)`, which keeps one, draw it at the
/// same place by [`Rngs::fork`](crate::Rngs::fork), and give a key of it here; `nnx.Dropout(rate)` draws nothing.
///
/// ```
/// use shardax_nn::prelude::*;
/// let dropout = Dropout::new(0.5);
/// let (x, mut rngs) = (ones([4]), Rngs::new(0));
/// let training = dropout.forward(&x, Some(&rngs.dropout()));
/// assert!(training.to_vec::<f32>()?.iter().all(|v| *v == 0.0 || *v == 2.0));
/// assert_eq!(dropout.forward(&x, None).to_vec::<f32>()?, [1.0; 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct Dropout {
    /// The probability of being zeroed.
    pub rate: f64,
}

impl Dropout {
    /// A layer that zeroes at this rate, between 0 and 1.
    pub fn new(rate: f64) -> Self {
        Dropout { rate }
    }

    /// In training `key` is a fresh random key; in evaluation it is `None`, and `x` is returned. A rate that is not
    /// between 0 and 1 is an error.
    #[track_caller]
    pub fn forward(&self, x: impl Operand, key: Option<&Array>) -> Array {
        let x = x.into_array();
        require!(&x, within("Dropout", "rate", self.rate, 0.0..=1.0));
        let Some(key) = key.filter(|_| self.rate > 0.0) else { return x };
        let keep = 1.0 - self.rate;
        if keep <= 0.0 {
            return zeros_like(&x);
        }
        where_(random::bernoulli(key, keep, x.shape()), &x / keep, 0)
    }
}
