//! The convolutions of Speech2Text, which compute fewer frames from features of sound.

use shardax_nn::prelude::*;

use super::FramesEncoderConfig;
use crate::error::value_error;
use crate::shardings::{gather_last, gather_positions};

/// Convolutions with gates. Each halves the number of frames.
#[derive(Module, Clone, Debug)]
pub(super) struct Frames {
    layers: Vec<Conv>,
}

impl Frames {
    pub fn new(config: &FramesEncoderConfig, features: usize, rngs: &mut Rngs) -> Frames {
        let last = config.kernels.len().saturating_sub(1);
        let layers = config.kernels.iter().enumerate().map(|(index, kernel)| {
            let before = if index == 0 { config.bins } else { config.channels / 2 };
            let outputs = if index == last { features.saturating_mul(2) } else { config.channels };
            let around = (kernel / 2) as i64;
            Conv::builder(before, outputs, [*kernel]).strides([2]).padding([(around, around)]).build(rngs)
        });
        Frames { layers: layers.collect() }
    }

    /// Computes features, `[batch, length, features]`, from features of sound, `[batch, frames, bins]`.
    ///
    /// # Errors
    /// Returns an error if the shape differs.
    pub fn forward(&self, sound: Array) -> Result<Array> {
        sound.check()?;
        let bins = self.layers.first().and_then(|layer| layer.kernel.shape().get(1).copied());
        if sound.ndim() != 3 || sound.shape().last().copied() != bins || sound.size() == 0 {
            let message = format!(
                "EncoderDecoder: expected features of sound as [batch, frames, {}], got {:?}",
                bins.unwrap_or(0),
                sound.shape()
            );
            return Err(value_error(message, "transpose features whose bins come first with `transpose([0, 2, 1])`"));
        }
        // Convolutions over split frames would need the neighbors of each device.
        Ok(self.layers.iter().fold(gather_positions(sound), |x, layer| glu(layer.forward(x), -1)))
    }

    /// Returns the mask of results for a mask of frames, `[batch, frames]`, whose visible frames come first.
    pub fn mask_of(&self, mask: &Array, length: usize) -> Array {
        let frames = gather_last(mask.astype(DType::I32)).sum_keepdims(-1);
        // No frames have no results.
        let results = self.layers.iter().fold(frames, |count, _| (count + 1) / 2);
        arange(0..length as i32).less(results)
    }
}
