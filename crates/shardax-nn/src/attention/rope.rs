//! Rotary position embedding.

use std::f64::consts::PI;

use shardax::prelude::*;

use crate::check::{require, value_error, within};

/// Rotary position embedding: pairs of features are rotated by an angle that grows with the position, so that the dot
/// product of a query and a key depends on their distance.
///
/// A pair is a feature and the one half of the depth after it. Angles are computed in float32.
///
/// Source: [Su et al. 2021](https://arxiv.org/abs/2104.09864).
///
/// ```
/// use shardax_nn::prelude::*;
/// let rope = Rope::new(10_000.0);
/// let x = ones([1, 4, 2, 8]);
/// let y = rope.apply(&x, arange(0..4).expand_dims(0));
/// // Position 0 is not rotated.
/// assert_eq!(y.get((0, 0)).to_vec::<f32>()?, [1.0; 16]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Tree, Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// The base of the frequencies: the last pair rotates about `base` times slower than the first. Default 10000.
    pub base: f64,
    /// The scaling of angles for texts longer than those that a model was trained with.
    pub scaling: RopeScaling,
    /// The number of features of each head that are rotated, the first ones. Default all.
    pub rotary_dim: Option<usize>,
}

/// The scaling of the angles of a [`Rope`] for longer texts.
#[derive(Tree, Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// Divides positions by this factor.
    Linear(f64),
    /// Slows low frequencies down by `factor` and leaves high ones unchanged, as in Llama 3.1.
    Llama3 {
        /// The ratio of the new length to the original one.
        factor: f64,
        /// Pairs that make fewer rotations than this over the original length have low frequency. Llama: 1.
        low_freq_factor: f64,
        /// Pairs that make more rotations than this have high frequency. Llama: 4.
        high_freq_factor: f64,
        /// The length that the model was trained with.
        original_max_position: f64,
    },
}

impl Default for Rope {
    fn default() -> Self {
        Rope::new(10_000.0)
    }
}

impl Rope {
    /// Creates an embedding whose frequencies go from 1 to nearly `1 / base` per position.
    pub fn new(base: f64) -> Self {
        Rope { base, scaling: RopeScaling::None, rotary_dim: None }
    }

    /// Sets the scaling for longer texts.
    pub fn scaling(mut self, scaling: RopeScaling) -> Self {
        self.scaling = scaling;
        self
    }

    /// Rotates only the first `features` of each head, an even number; the others pass through.
    pub fn rotary_dim(mut self, features: usize) -> Self {
        self.rotary_dim = Some(features);
        self
    }

    /// Rotates `x`, `[..., length, heads, depth]` with an even depth, by `positions`, `[..., length]` or broadcastable
    /// to it.
    #[track_caller]
    pub fn apply(&self, x: impl ArrayLike, positions: impl ArrayLike) -> Array {
        let (x, positions) = (x.into_array(), positions.into_array());
        require!(&x, self.check(&x));
        let depth = x.shape()[x.ndim() - 1];
        let rotated = self.rotary_dim.unwrap_or(depth);
        let half = rotated / 2;
        let speeds: Vec<f32> = (0..half).map(|i| self.speed(i as f64 / half as f64) as f32).collect();
        let angles = positions.astype(DType::F32).expand_dims(-1) * array(speeds);
        let angles = angles.expand_dims(-2);
        let (cos, sin) = (angles.cos(), angles.sin());
        let dtype = x.dtype();
        let wide = if dtype.byte_size() < 4 { x.astype(DType::F32) } else { x };
        let (first, second) = (wide.get((Ellipsis, ..half)), wide.get((Ellipsis, half..rotated)));
        let mut turned = vec![&first * &cos - &second * &sin, second * cos + first * sin];
        if rotated < depth {
            turned.push(wide.get((Ellipsis, rotated..)));
        }
        concatenate(&turned, -1).astype(dtype)
    }

    /// Returns the angle of a pair at position 1. `pair` lies between 0 and 1.
    fn speed(&self, pair: f64) -> f64 {
        let speed = self.base.powf(-pair);
        match self.scaling {
            RopeScaling::None => speed,
            RopeScaling::Linear(factor) => speed / factor,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
                let turns = original_max_position * speed / (2.0 * PI);
                let between = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                let kept = between.clamp(0.0, 1.0);
                kept * speed + (1.0 - kept) * speed / factor
            }
        }
    }

    #[track_caller]
    fn check(&self, x: &Array) -> Result<()> {
        x.check()?;
        let finite = f64::MIN_POSITIVE..f64::INFINITY;
        within("Rope", "base", self.base, finite.clone())?;
        match self.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear(factor) => within("Rope", "factor", factor, finite)?,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
                within("Rope", "factor", factor, finite.clone())?;
                within("Rope", "low_freq_factor", low_freq_factor, finite.clone())?;
                within("Rope", "high_freq_factor", high_freq_factor, low_freq_factor + f64::EPSILON..f64::INFINITY)?;
                within("Rope", "original_max_position", original_max_position, finite)?;
            }
        }
        if x.ndim() < 3 || !x.shape()[x.ndim() - 1].is_multiple_of(2) {
            let what = format!("Rope: x must be [..., length, heads, depth] with an even depth, got {}", x.type_name());
            return value_error(what);
        }
        let depth = x.shape()[x.ndim() - 1];
        match self.rotary_dim {
            Some(features) if features > depth || !features.is_multiple_of(2) => {
                value_error(format!("Rope: rotary_dim must be even and at most the depth of {depth}, got {features}"))
            }
            _ => Ok(()),
        }
    }
}
