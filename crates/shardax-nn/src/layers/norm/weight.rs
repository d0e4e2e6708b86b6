//! Weights as a length and a direction.

use shardax::prelude::*;

use super::{forward_as, l2_normalize};
use crate::check::{NOT_NEGATIVE, within};
use crate::layers::Layer;
use crate::{Filter, Module, State};

/// A layer whose kernels consist of a direction for each feature, times a length that is a separate parameter.
///
/// The kernels of the inner layer do not change; only their directions matter. As in Flax, the layer draws no keys.
///
/// Source: [Salimans and Kingma 2016](https://arxiv.org/abs/1602.07868).
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut layer = WeightNorm::new(Linear::new(3, 4, &mut Rngs::new(0)))?;
/// assert_eq!(layer.forward(ones([2, 3])).shape(), [2, 4]);
/// assert_eq!(layer.scales["kernel"].shape(), [4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct WeightNorm<L> {
    /// The layer.
    pub layer: L,
    /// The lengths, with the key paths of their kernels; ones at first.
    pub scales: State,
    #[tree(static)]
    feature_axes: Vec<i32>,
    epsilon: f64,
    #[tree(static)]
    filter: Filter,
}

impl<L: Layer> WeightNorm<L> {
    /// Creates lengths for all parameters that have `kernel` in their key path, one for each index of the last dimension.
    ///
    /// # Errors
    /// Returns an error if a selected parameter is a scalar, because it has no last dimension.
    #[track_caller]
    pub fn new(layer: L) -> Result<Self> {
        WeightNorm::with(layer, [-1], Filter::path("**.kernel.**"))
    }

    /// Creates lengths for the parameters that `filter` selects, one for each index of `feature_axes`; without axes, one for
    /// each array.
    ///
    /// # Errors
    /// Returns an error if a selected parameter has no such dimension.
    #[track_caller]
    pub fn with(layer: L, feature_axes: impl AsRef<[i32]>, filter: impl Into<Filter>) -> Result<Self> {
        let (feature_axes, filter) = (feature_axes.as_ref().to_vec(), filter.into());
        let chosen = layer.state_of(filter.clone());
        let mut scales = State::new();
        for (key, p) in chosen.iter() {
            let sizes: Vec<usize> = feature_dims(p, &feature_axes)?.into_iter().map(|d| p.shape()[d]).collect();
            scales.insert(key, ones_dtype(sizes.as_slice(), DType::F32));
        }
        Ok(WeightNorm { layer, scales, feature_axes, epsilon: 1e-12, filter })
    }

    /// Removes the lengths, so that all lengths are 1.
    pub fn without_scale(mut self) -> Self {
        self.scales = State::new();
        self
    }

    /// Sets the number that is added to the squares of lengths. Default 1e-12.
    pub fn epsilon(mut self, epsilon: f64) -> Self {
        self.epsilon = epsilon;
        self
    }

    /// Returns the layer with normalized and scaled kernels.
    ///
    /// # Errors
    /// Returns an error if `epsilon` is negative, or if a kernel has no dimension of `feature_axes`.
    #[track_caller]
    pub fn normalized(&self) -> Result<L> {
        within("WeightNorm", "epsilon", self.epsilon, NOT_NEGATIVE)?;
        let chosen = self.layer.state_of(self.filter.clone());
        let mut kernels = State::new();
        for (key, p) in chosen.iter() {
            let dims = feature_dims(p, &self.feature_axes)?;
            let summed: Vec<i32> = (0..p.ndim()).filter(|d| !dims.contains(d)).map(|d| d as i32).collect();
            // Only the direction of a kernel counts; the scales are separate parameters.
            let direction = l2_normalize(p, &summed, self.epsilon);
            let kernel = match self.scales.get(key) {
                Some(scale) => {
                    let sizes = (0..p.ndim()).map(|d| if dims.contains(&d) { p.shape()[d] } else { 1 });
                    direction * scale.reshape(sizes.collect::<Vec<_>>())
                }
                None => direction,
            };
            kernels.insert(key, kernel);
        }
        self.layer.with_state(&kernels)
    }

    /// Applies the layer with normalized and scaled kernels to `x`.
    #[track_caller]
    pub fn forward(&mut self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        self.normalized()
            .and_then(|layer| forward_as(&mut self.layer, layer, &x))
            .unwrap_or_else(|e| Array::from_error(e, &x))
    }
}

impl<L: Layer> Layer for WeightNorm<L> {
    #[track_caller]
    fn forward(&mut self, x: Array) -> Array {
        WeightNorm::forward(self, x)
    }
}

/// Returns the dimensions of a parameter that are features, in order.
#[track_caller]
fn feature_dims(p: &Array, axes: &[i32]) -> Result<Vec<usize>> {
    let rank = p.ndim() as i32;
    let mut dims = Vec::with_capacity(axes.len());
    for &axis in axes {
        if !(-rank..rank).contains(&axis) {
            return crate::check::value_error(format!(
                "WeightNorm: feature_axes {axes:?} are out of bounds for the parameter {}",
                p.type_name()
            ));
        }
        dims.push(axis.rem_euclid(rank) as usize);
    }
    dims.sort_unstable();
    dims.dedup();
    Ok(dims)
}
