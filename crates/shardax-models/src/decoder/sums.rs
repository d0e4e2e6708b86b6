//! The sums of a block: attention, and an MLP or experts, added to the block's input.

use shardax_nn::prelude::*;

use super::Block;
use super::block::scaled;
use super::experts::{Routed, dropless};
use super::norm::normed;

impl Block {
    /// Adds the outputs of the block's layers to `x`, which can have several streams of features, and the embeddings of all
    /// layers after them.
    #[track_caller]
    pub(super) fn add_layers(&self, x: Array, attend: impl FnOnce(Array) -> Option<Array>) -> Array {
        let Some(input) = &self.layer_input else {
            let (x, late) = self.residuals.split_late(x);
            let y = self.scale_output(self.add_to(x, attend));
            return late.into_iter().fold(y, |y, late| self.place(y + late));
        };
        let (x, embeddings) = input.split(&x);
        let y = match &self.streams {
            Some(streams) => streams.update(&x, input, &embeddings, |x| self.add_to(x, attend)),
            None => {
                let y = self.add_to(x, attend);
                &y + input.forward(&y, &embeddings)
            }
        };
        concatenate(&[self.scale_output(y), embeddings], -1)
    }

    /// Multiplies the output by the learned factor, if the block has one.
    fn scale_output(&self, x: Array) -> Array {
        self.layer_scale.iter().fold(x, |x, scale| &x * scale.astype(x.dtype()))
    }

    /// Adds the outputs of the block's layers to `x`. `attend` computes attention, or the layers in its place; it returns `None`
    /// if the block has no such layer.
    #[track_caller]
    fn add_to(&self, x: Array, attend: impl FnOnce(Array) -> Option<Array>) -> Array {
        // Only attention.
        if self.mlp.is_none() && self.experts.is_none() {
            let attended = attend(normed(&self.norm, &x));
            let attended = attended.map(|y| self.scale(normed(&self.post_attention_norm, &y)));
            return attended.map_or_else(|| x.clone(), |y| self.place(self.residuals.add_attention(&x, y)));
        }
        // Norms of the sums instead of the inputs.
        if self.sum_norms {
            let attended = attend(x.clone()).map_or_else(|| x.clone(), |y| &x + self.scale(y));
            let x = self.place(normed(&self.norm, &attended));
            return self.place(normed(&self.mlp_norm, &(&x + self.scale(self.feed_forward(&x, x.clone())))));
        }
        let input = normed(&self.norm, &x);
        if let Some(factors) = &self.residual_factors {
            let attended = attend(input.clone()).map(|y| y * factors.attention_output);
            let x = attended.into_iter().fold(input * factors.attention_input, |x, y| x + y);
            let input = normed(&self.mlp_norm, &self.place(x));
            let y = self.feed_forward(&input, input.clone()) * factors.mlp_output;
            return self.place(input * factors.mlp_input + y);
        }
        // Only the MLP.
        let Some(attended) = attend(input.clone()) else {
            return self.add_mlp(x);
        };
        let low_rank = self.low_rank.as_ref().map(|layer| layer.forward(&input));
        let attended = self.scale(normed(&self.post_attention_norm, &attended));
        // Attention and MLP have the same input, instead of one after the other.
        if self.parallel {
            let input = self.mlp_norm.as_ref().map_or(input, |norm| norm.forward(&x));
            let y = normed(&self.post_mlp_norm, &self.feed_forward(&x, input));
            return self.place(&x + attended + self.scale(y));
        }
        let x = self.place(self.residuals.add_attention(&x, attended));
        let x = low_rank.into_iter().fold(x, |x, y| (x + y) * std::f64::consts::FRAC_1_SQRT_2);
        self.add_mlp(x)
    }

    /// Adds the output of the MLP or of the experts to `x`. If the output of the experts is for the next layer, it follows the
    /// features.
    #[track_caller]
    fn add_mlp(&self, x: Array) -> Array {
        let input = normed(&self.mlp_norm, &x);
        let late = self.residuals.delays_experts.then(|| self.routed(&input));
        let y = normed(&self.post_mlp_norm, &self.feed_forward(&x, input));
        let sum = self.place(self.residuals.add_mlp(&x, self.scale(y)));
        late.flatten().into_iter().fold(sum, |sum, late| concatenate(&[sum, self.place(late)], -1))
    }

    /// Applies the experts to `x`. Returns `None` if the block has none.
    #[track_caller]
    fn routed(&self, x: &Array) -> Option<Array> {
        self.experts.as_ref().map(|experts| {
            let routed = match experts.capacity() {
                Some(_) => experts.forward(x).map(|routed| routed.y),
                None => dropless(experts, &Routed::of(x), &self.rules, self.weighs_inputs),
            };
            routed.unwrap_or_else(|error| Array::from_error(error, x))
        })
    }

    /// Multiplies the output of a layer by the residual factor, if the model has one.
    fn scale(&self, x: Array) -> Array {
        scaled(x, self.residual_scale)
    }

    /// Computes the MLP or the experts of `x`, the normalized sum `residual`.
    #[track_caller]
    fn feed_forward(&self, residual: &Array, x: Array) -> Array {
        let y = match (&self.mlp, &self.experts, &self.beside) {
            (Some(mlp), Some(experts), Some(beside)) => {
                let routed = dropless(experts, &beside.routed(residual), &self.rules, self.weighs_inputs);
                let routed = routed.unwrap_or_else(|error| Array::from_error(error, &x));
                return beside.mlp_output_norm.forward(mlp.forward(x)) + beside.experts_output_norm.forward(routed);
            }
            (Some(mlp), ..) => return mlp.forward(x),
            (None, ..) => match self.routed(&x) {
                Some(routed) => routed,
                None => return x,
            },
        };
        let Some(shared) = &self.shared_expert else { return y };
        match &self.shared_gate {
            Some(gate) => y + sigmoid(gate.forward(&x)) * shared.forward(x),
            None if self.averages_shared => (y + shared.forward(x)) * 0.5,
            None => y + shared.forward(x),
        }
    }
}
