//! Dropout.

use shardax::prelude::*;

use super::Layer;
use crate::check::{rejected, require, within};
use crate::{RngStream, Rngs};

/// Zeroes each element with probability `rate`, and scales the others so that the mean is unchanged.
///
/// The layer holds its own stream of random keys, forked from the stream `dropout` of the [`Rngs`] that it is built
/// with. Each call takes the next key, so that every step drops other elements. [`Module::eval`](crate::Module::eval)
/// turns dropout off.
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut dropout = Dropout::new(0.5, &mut Rngs::new(0));
/// let first = dropout.forward(ones([64]));
/// assert!(first.to_vec::<f32>()?.iter().all(|v| *v == 0.0 || *v == 2.0));
/// assert_ne!(dropout.forward(ones([64])).to_vec::<f32>()?, first.to_vec::<f32>()?);
/// dropout.eval();
/// assert_eq!(dropout.forward(ones([4])).to_vec::<f32>()?, [1.0; 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct Dropout {
    /// The probability of being zeroed.
    pub rate: f64,
    /// The training flag: elements are dropped if it is true. See [`Module::train`](crate::Module::train).
    pub training: bool,
    /// The keys, one a call; `None` where each call is given its key.
    pub rngs: Option<RngStream>,
    #[tree(static)]
    broadcast_dims: Vec<i32>,
}

impl Dropout {
    /// Creates a layer with this rate, between 0 and 1, like `nnx.Dropout(rate, rngs=rngs)`. It draws one key of the
    /// stream `dropout`.
    #[track_caller]
    pub fn new(rate: f64, rngs: &mut Rngs) -> Self {
        Dropout { rngs: Some(rngs.fork("dropout")), ..Dropout::without_rngs(rate) }
    }

    /// Creates a layer that takes a key at each call, like `nnx.Dropout(rate)`. It draws no key. See
    /// [`forward_with`](Dropout::forward_with).
    pub fn without_rngs(rate: f64) -> Self {
        Dropout { rate, training: true, rngs: None, broadcast_dims: Vec::new() }
    }

    /// Zeroes the elements along these dimensions together. Default none.
    pub fn broadcast_dims(mut self, dims: impl AsRef<[i32]>) -> Self {
        self.broadcast_dims = dims.as_ref().into();
        self
    }

    /// Drops elements of `x` by the next key of the layer; returns `x` in evaluation.
    ///
    /// The result is an error where the rate is not between 0 and 1, and where the layer has no keys.
    #[track_caller]
    pub fn forward(&mut self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        require!(&x, within("Dropout", "rate", self.rate, 0.0..=1.0));
        if !self.training || self.rate == 0.0 {
            return x;
        }
        let Some(rngs) = &mut self.rngs else {
            let what = "Dropout: the layer has no keys; make it by `Dropout::new(rate, rngs)`, or give a key by `forward_with`";
            return rejected(what, &x);
        };
        let key = rngs.next();
        self.forward_with(x, &key)
    }

    /// Drops elements of `x` by this key; returns `x` in evaluation. The layer's own keys stay.
    #[track_caller]
    pub fn forward_with(&self, x: impl ArrayLike, key: &Array) -> Array {
        let x = x.into_array();
        require!(&x, within("Dropout", "rate", self.rate, 0.0..=1.0));
        if !self.training || self.rate == 0.0 {
            return x;
        }
        let keep = 1.0 - self.rate;
        if keep <= 0.0 {
            return zeros_like(&x);
        }
        let mut shape = x.shape().to_vec();
        for &dim in &self.broadcast_dims {
            let at = if dim < 0 { dim + x.ndim() as i32 } else { dim };
            let Some(size) = usize::try_from(at).ok().and_then(|at| shape.get_mut(at)) else {
                let what = format!("Dropout: broadcast_dims {:?} of {}", self.broadcast_dims, x.type_name());
                return rejected(what, &x);
            };
            *size = 1;
        }
        where_(random::bernoulli(key, keep, shape), &x / keep, 0)
    }
}

impl Layer for Dropout {
    #[track_caller]
    fn forward(&mut self, x: Array) -> Array {
        Dropout::forward(self, x)
    }
}
