//! Layers with a state that some models have instead of attention, or next to it.

use shardax_nn::prelude::*;

use super::{Block, GatedDelta, LightningAttention, RgLru, SelectiveState, ShortConv, StateSpace};

/// A layer that computes positions in order, and that stores what later positions need.
pub(super) trait StateLayer {
    /// Computes the results for all positions of `x`, `[..., length, features]`.
    fn forward(&self, x: Array) -> Array;
    /// Creates an empty cache of this shape, `[..., length]`.
    fn init_cache(&mut self, shape: &[usize]);
    /// Computes the next positions `x`. For texts that do not start at the first position of the cache, `positions` are
    /// `[batch, length]`, and the mask is `[batch, heads, length, length of the cache]`.
    fn decode(&mut self, x: Array, positions: Option<&Array>, mask: Option<&Array>) -> Array;
    /// The number of positions in the cache.
    fn cache_index(&self) -> Option<&Cache>;
    /// The place of this number.
    fn cache_index_mut(&mut self) -> &mut Option<Cache>;
}

/// Implements [`StateLayer`] by the functions of a type. The last arguments are the arguments of its `decode`.
macro_rules! state_layer {
    ($kind:ident, $positions:ident, $mask:ident => $($argument:ident),+) => {
        impl StateLayer for $kind {
            fn forward(&self, x: Array) -> Array {
                $kind::forward(self, x)
            }

            fn init_cache(&mut self, shape: &[usize]) {
                $kind::init_cache(self, shape);
            }

            fn decode(&mut self, x: Array, $positions: Option<&Array>, $mask: Option<&Array>) -> Array {
                $kind::decode(self, x, $($argument),+)
            }

            fn cache_index(&self) -> Option<&Cache> {
                self.cache_index.as_ref()
            }

            fn cache_index_mut(&mut self) -> &mut Option<Cache> {
                &mut self.cache_index
            }
        }
    };
}

state_layer!(ShortConv, positions, _mask => positions);
state_layer!(GatedDelta, _positions, mask => mask);
state_layer!(StateSpace, _positions, mask => mask);
state_layer!(SelectiveState, _positions, mask => mask);
state_layer!(LightningAttention, _positions, mask => mask);
state_layer!(RgLru, positions, mask => positions, mask);

impl Block {
    /// Returns the layers with a state.
    pub(super) fn state_layers(&self) -> impl Iterator<Item = &dyn StateLayer> {
        [
            as_layer(&self.conv),
            as_layer(&self.delta),
            as_layer(&self.state_space),
            as_layer(&self.selective),
            as_layer(&self.lightning),
            as_layer(&self.rg_lru),
        ]
        .into_iter()
        .flatten()
    }

    /// Returns the layers with a state, which can be changed.
    pub(super) fn state_layers_mut(&mut self) -> impl Iterator<Item = &mut dyn StateLayer> {
        [
            as_layer_mut(&mut self.conv),
            as_layer_mut(&mut self.delta),
            as_layer_mut(&mut self.state_space),
            as_layer_mut(&mut self.selective),
            as_layer_mut(&mut self.lightning),
            as_layer_mut(&mut self.rg_lru),
        ]
        .into_iter()
        .flatten()
    }
}

fn as_layer<T: StateLayer>(layer: &Option<T>) -> Option<&dyn StateLayer> {
    layer.as_ref().map(|layer| layer as &dyn StateLayer)
}

fn as_layer_mut<T: StateLayer>(layer: &mut Option<T>) -> Option<&mut dyn StateLayer> {
    layer.as_mut().map(|layer| layer as &mut dyn StateLayer)
}
