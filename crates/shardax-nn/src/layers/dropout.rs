//! Dropout.

use shardax::prelude::*;

use super::Layer;
use crate::check::{rejected, require, within};
use crate::{RngStream, Rngs};

/// Zeroes each element with probability `rate`, and scales the other elements so that the mean does not change.
///
/// The layer has a stream of random keys, which is forked from the stream `dropout` of the [`Rngs`] that it is built
/// with. Each call uses the next key, so that every step drops different elements. [`Module::eval`](crate::Module::eval)
/// turns dropout off.
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut dropout = Dropout::new(0.5, &mut Rngs::new(0));
/// let y = dropout.forward(ones([64]));
/// assert!(y.to_vec::<f32>()?.iter().all(|v| *v == 0.0 || *v == 2.0));
/// assert_ne!(dropout.forward(ones([64])).to_vec::<f32>()?, y.to_vec::<f32>()?);
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
    /// The keys, one for each call; `None` if you pass a key to each call.
    pub rngs: Option<RngStream>,
    #[tree(static)]
    broadcast_dims: Vec<i32>,
}

impl Dropout {
    /// Creates a layer with this rate, between 0 and 1, like `nnx.Dropout(rate, rngs=rngs)`. It draws one key from the
    /// stream `dropout`.
    #[track_caller]
    pub fn new(rate: f64, rngs: &mut Rngs) -> Self {
        Dropout { rngs: Some(rngs.fork("dropout")), ..Dropout::without_rngs(rate) }
    }

    /// Creates a layer without keys, like `nnx.Dropout(rate)`. Pass a key to each call of
    /// [`forward_with`](Dropout::forward_with).
    pub fn without_rngs(rate: f64) -> Self {
        Dropout { rate, training: true, rngs: None, broadcast_dims: Vec::new() }
    }

    /// Sets the dimensions along which all elements are zeroed together. Default none.
    pub fn broadcast_dims(mut self, dims: impl AsRef<[i32]>) -> Self {
        self.broadcast_dims = dims.as_ref().into();
        self
    }

    /// Drops elements of `x` with the layer's next key; returns `x` in evaluation mode.
    ///
    /// The result is an error if the rate is not between 0 and 1, or if the layer has no keys.
    #[track_caller]
    pub fn forward(&mut self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        require!(&x, within("Dropout", "rate", self.rate, 0.0..=1.0));
        if !self.training || self.rate == 0.0 {
            return x;
        }
        let Some(rngs) = &mut self.rngs else {
            let message = "Dropout: the layer has no keys; create it with `Dropout::new(rate, rngs)`, or pass a key to `forward_with`";
            return rejected(message, &x);
        };
        let key = rngs.next();
        self.forward_with(x, &key)
    }

    /// Drops elements of `x` with this key; returns `x` in evaluation mode. The layer's keys do not change.
    #[track_caller]
    pub fn forward_with(&self, x: impl ArrayLike, key: &Array) -> Array {
        let x = x.into_array();
        require!(&x, within("Dropout", "rate", self.rate, 0.0..=1.0));
        if !self.training || self.rate == 0.0 {
            return x;
        }
        // Kept values are scaled up, so that the mean does not change.
        let keep = 1.0 - self.rate;
        // A division by 0 would make the gradients NaN.
        if keep <= 0.0 {
            return zeros_like(&x);
        }
        let mut shape = x.shape().to_vec();
        for &dim in &self.broadcast_dims {
            let index = if dim < 0 { dim + x.ndim() as i32 } else { dim };
            let Some(size) = usize::try_from(index).ok().and_then(|index| shape.get_mut(index)) else {
                let (dims, x_type) = (&self.broadcast_dims, x.type_name());
                return rejected(format!("Dropout: broadcast_dims {dims:?} are out of bounds for {x_type}"), &x);
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
