//! Dropout.

use shardax::prelude::*;

use crate::check::{refused, require, within};

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
    #[tree(static)]
    broadcast_dims: Vec<i32>,
}

impl Dropout {
    /// A layer that zeroes at this rate, between 0 and 1.
    pub fn new(rate: f64) -> Self {
        Dropout { rate, broadcast_dims: Vec::new() }
    }

    /// The same, for which the elements along these dimensions are zeroed together. Default none.
    pub fn broadcast_dims(mut self, dims: impl AsRef<[i32]>) -> Self {
        self.broadcast_dims = dims.as_ref().into();
        self
    }

    /// In training `key` is a fresh random key; in evaluation it is `None`, and `x` is returned. A rate that is not
    /// between 0 and 1 is an error.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike, key: Option<&Array>) -> Array {
        let x = x.into_array();
        require!(&x, within("Dropout", "rate", self.rate, 0.0..=1.0));
        let Some(key) = key.filter(|_| self.rate > 0.0) else { return x };
        let keep = 1.0 - self.rate;
        if keep <= 0.0 {
            return zeros_like(&x);
        }
        let mut shape = x.shape().to_vec();
        for &dim in &self.broadcast_dims {
            let at = if dim < 0 { dim + x.ndim() as i32 } else { dim };
            let Some(size) = usize::try_from(at).ok().and_then(|at| shape.get_mut(at)) else {
                let what = format!("Dropout: broadcast_dims {:?} of {}", self.broadcast_dims, x.type_name());
                return refused(what, &x);
            };
            *size = 1;
        }
        where_(random::bernoulli(key, keep, shape), &x / keep, 0)
    }
}
