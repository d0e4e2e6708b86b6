//! The convolutions of Moonshine, which compute frames from samples of sound.

use shardax_nn::prelude::*;

use crate::error::value_error;
use crate::shardings::gather_last;

/// Added to the variance in the norm after the first convolution.
const EPSILON: f64 = 1e-5;

/// The sizes of the kernels and the strides.
const KERNELS: [(usize, usize); 3] = [(127, 64), (7, 3), (3, 2)];

/// The number of samples from the start of a frame to the start of the next one.
const HOP: usize = 64 * 3 * 2;

#[derive(Module, Clone, Debug)]
pub(super) struct Samples {
    first: Conv,
    /// The norm of all features and frames of a sound.
    norm: GroupNorm,
    second: Conv,
    third: Conv,
}

impl Samples {
    pub fn new(features: usize, rngs: &mut Rngs) -> Samples {
        let doubled = features.saturating_mul(2);
        let conv = |layer: usize, [before, features]: [usize; 2], rngs: &mut Rngs| {
            let (kernel, stride) = KERNELS[layer];
            let conv = Conv::builder(before, features, [kernel]).strides([stride]).padding(Padding::Valid);
            conv.use_bias(layer > 0).build(rngs)
        };
        Samples {
            first: conv(0, [1, features], rngs),
            norm: GroupNorm::builder(features, 1).epsilon(EPSILON).build(rngs),
            second: conv(1, [features, doubled], rngs),
            third: conv(2, [doubled, features], rngs),
        }
    }

    /// Computes frames, `[batch, frames, features]`, from samples, `[batch, samples]`.
    ///
    /// # Errors
    /// Returns an error if the shape differs, or if the samples are less than a frame.
    pub fn forward(&self, samples: Array) -> Result<Array> {
        samples.check()?;
        let least = KERNELS.iter().rev().fold(1, |frame, (kernel, stride)| (frame - 1) * stride + kernel);
        if samples.ndim() != 2 || samples.shape()[1] < least {
            let message = format!(
                "EncoderDecoder: expected samples as [batch, samples] with at least {least} samples, got {:?}",
                samples.shape()
            );
            return Err(value_error(message, "pass sound at 16 kHz, for example a second as [1, 16000]"));
        }
        // Convolutions over split samples would need the neighbors of each device.
        let x = self.norm.forward(self.first.forward(gather_last(samples).expand_dims(-1)).tanh());
        Ok(gelu_exact(self.third.forward(gelu_exact(self.second.forward(x)))))
    }

    /// Returns the mask of frames for a mask of samples, `[batch, samples]`: a frame is padding if its first sample is.
    pub fn frame_mask(mask: &Array, frames: usize) -> Array {
        gather_last(mask.clone()).take(arange(0..frames as i32) * HOP as i32, -1)
    }
}
