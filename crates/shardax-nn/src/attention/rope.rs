//! Rotary position embedding.

use std::f64::consts::PI;

use shardax::prelude::*;

use crate::check::{require, value_error, within};
use crate::ranks::allow_any_ranks;

/// Rotary position embedding: pairs of features are rotated by an angle that grows with the position, so that the dot
/// product of a query and a key depends on their distance.
///
/// A pair is a feature and the feature that comes half of the depth later, or two neighboring features
/// ([`interleaved`](Rope::interleaved)). Angles are computed in float32.
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
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the frequencies: the last pair rotates about `base` times slower than the first. Default 10000.
    pub base: f64,
    /// The scaling of angles for texts that are longer than the texts in training.
    pub scaling: RopeScaling,
    /// The number of features of each head that are rotated, starting with the first. Default all.
    pub rotary_dim: Option<usize>,
    /// True if a pair is two neighboring features, as in GPT-J and GLM. Default false.
    pub interleaved: bool,
    /// True if pairs rotate in the opposite direction, as in nanochat. Default false.
    pub reversed: bool,
}

/// The scaling of the angles of a [`Rope`] for longer texts.
#[derive(Tree, Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// Divides positions by this factor.
    Linear(f64),
    /// Slows low frequencies down by `factor` and does not change high frequencies, as in Llama 3.1.
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
    /// Raises the base if a text is longer than the original length. The length of a text is the largest of its positions in the
    /// call, plus 1.
    Dynamic {
        /// The factor of the length: the base grows with `factor * length / original_max_position`.
        factor: f64,
        /// The length that the model was trained with.
        original_max_position: f64,
    },
    /// Divides low frequencies by `factor`, does not change high frequencies, and interpolates linearly between them by the
    /// index of the pair ([Peng et al. 2023](https://arxiv.org/abs/2309.00071)).
    Yarn {
        /// The ratio of the new length to the original one.
        factor: f64,
        /// Pairs that make more rotations than this over the original length do not change. Most models use 32.
        beta_fast: f64,
        /// The frequencies of pairs that make fewer rotations than this are divided. Most models use 1.
        beta_slow: f64,
        /// The length that the model was trained with.
        original_max_position: f64,
        /// True if the indices between which frequencies are interpolated are rounded to integers.
        truncate: bool,
        /// The factor of rotated features.
        attention_factor: f64,
    },
    /// Divides each frequency by its own factor. The factors for texts that are longer than the original length differ
    /// ([Ding et al. 2024](https://arxiv.org/abs/2402.13753)).
    LongRope {
        /// The divisors of texts that are not longer than the original length, one for each pair.
        short_factor: Vec<f64>,
        /// The divisors of longer texts.
        long_factor: Vec<f64>,
        /// The length that the model was trained with.
        original_max_position: f64,
        /// The factor of rotated features.
        attention_factor: f64,
    },
    /// Rotates only the first pairs, and divides their frequencies by `factor`, as in Gemma 4. In contrast to
    /// [`Rope::rotary_dim`], the frequencies depend on all features of a head, and a pair is a feature and the one that comes
    /// half of all features later.
    Proportional {
        /// The number of pairs that are rotated.
        pairs: usize,
        /// The divisor of the frequencies.
        factor: f64,
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
        Rope { base, scaling: RopeScaling::None, rotary_dim: None, interleaved: false, reversed: false }
    }

    /// Sets the scaling for longer texts.
    pub fn scaling(mut self, scaling: RopeScaling) -> Self {
        self.scaling = scaling;
        self
    }

    /// Rotates only the first `features` of each head, which must be an even number; the other features do not change.
    pub fn rotary_dim(mut self, features: usize) -> Self {
        self.rotary_dim = Some(features);
        self
    }

    /// Sets whether a pair is two neighboring features. Default false: a pair is a feature and the feature that comes half of
    /// the depth later.
    pub fn interleaved(mut self, interleaved: bool) -> Self {
        self.interleaved = interleaved;
        self
    }

    /// Sets whether pairs rotate in the opposite direction. Default false.
    pub fn reversed(mut self, reversed: bool) -> Self {
        self.reversed = reversed;
        self
    }

    /// Rotates `x`, `[..., length, heads, depth]` with an even depth. `positions` must broadcast to `[..., length]`.
    #[track_caller]
    pub fn apply(&self, x: impl ArrayLike, positions: impl ArrayLike) -> Array {
        let (x, positions) = (x.into_array(), positions.into_array());
        require!(&x, self.check(&x));
        let _ranks = allow_any_ranks();
        let depth = x.shape()[x.ndim() - 1];
        let rotated = self.rotary_dim.unwrap_or(depth);
        let speeds = self.speeds(rotated, &positions);
        let angles = positions.astype(DType::F32).expand_dims(-1) * speeds;
        let angles = if self.reversed { -angles } else { angles }.expand_dims(-2);
        let (mut cos, mut sin) = (angles.cos(), angles.sin());
        let factor = self.attention_factor();
        if factor != 1.0 {
            (cos, sin) = (cos * factor, sin * factor);
        }
        let dtype = x.dtype();
        // Narrow types would lose digits of both products.
        let wide = if dtype.byte_size() < 4 { x.astype(DType::F32) } else { x };
        let mut turned = self.turn(wide.get((Ellipsis, ..rotated)), &cos, &sin);
        if rotated < depth {
            turned = concatenate(&[turned, wide.get((Ellipsis, rotated..))], -1);
        }
        turned.astype(dtype)
    }

    /// Rotates the pairs of features of `x`.
    fn turn(&self, x: Array, cos: &Array, sin: &Array) -> Array {
        let half = x.shape()[x.ndim() - 1] / 2;
        let (first, second) = if self.interleaved {
            let pairs = x.reshape([&x.shape()[..x.ndim() - 1], &[half, 2]].concat());
            (pairs.get((Ellipsis, 0)), pairs.get((Ellipsis, 1)))
        } else {
            (x.get((Ellipsis, ..half)), x.get((Ellipsis, half..)))
        };
        let turned = [&first * cos - &second * sin, second * cos + first * sin];
        if self.interleaved { stack(&turned, -1).reshape(x.shape()) } else { concatenate(&turned, -1) }
    }

    /// Returns the angles of all pairs at position 1, float32. They can depend on the length of each text: `[..., 1, pairs]`.
    fn speeds(&self, rotated: usize, positions: &Array) -> Array {
        let half = rotated / 2;
        let pairs: Vec<f64> = (0..half).map(|i| i as f64 / half as f64).collect();
        match &self.scaling {
            RopeScaling::Dynamic { factor, original_max_position } => {
                let length = length_of(positions).maximum(*original_max_position);
                let growth = length * (factor / original_max_position) - (factor - 1.0);
                let exponent = rotated as f64 / (rotated as f64 - 2.0).max(1.0);
                let log_base = growth.log() * exponent + self.base.ln();
                (array(pairs.iter().map(|pair| -*pair as f32).collect::<Vec<f32>>()) * log_base).exp()
            }
            RopeScaling::LongRope { short_factor, long_factor, original_max_position, .. } => {
                let is_long = length_of(positions).greater(*original_max_position);
                let [long, short] = [long_factor, short_factor].map(|factors| {
                    let speeds =
                        pairs.iter().zip(factors).map(|(pair, factor)| (self.base.powf(-pair) / factor) as f32);
                    array(speeds.collect::<Vec<f32>>())
                });
                where_(is_long, long, short)
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_position, truncate, .. } => {
                // The indices of the pairs that make these many rotations over the original length.
                let [mut low, mut high] = [beta_fast, beta_slow].map(|rotations| {
                    half as f64 * (original_max_position / (rotations * 2.0 * PI)).ln() / self.base.ln()
                });
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(rotated as f64 - 1.0));
                let width = if high == low { 0.001 } else { high - low };
                let speeds = pairs.iter().enumerate().map(|(i, pair)| {
                    let speed = self.base.powf(-pair);
                    let divided = ((i as f64 - low) / width).clamp(0.0, 1.0);
                    (speed / factor * divided + speed * (1.0 - divided)) as f32
                });
                array(speeds.collect::<Vec<f32>>())
            }
            RopeScaling::Proportional { pairs: count, factor } => {
                let speeds = pairs
                    .iter()
                    .enumerate()
                    .map(|(i, pair)| if i < *count { (self.base.powf(-pair) / factor) as f32 } else { 0.0 });
                array(speeds.collect::<Vec<f32>>())
            }
            _ => array(pairs.iter().map(|pair| self.speed(*pair) as f32).collect::<Vec<f32>>()),
        }
    }

    /// Returns the factor of rotated features.
    fn attention_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } | RopeScaling::LongRope { attention_factor, .. } => {
                attention_factor
            }
            _ => 1.0,
        }
    }

    /// Returns the angle of a pair at position 1. `pair` is between 0 and 1.
    fn speed(&self, pair: f64) -> f64 {
        let speed = self.base.powf(-pair);
        match self.scaling {
            RopeScaling::Linear(factor) => speed / factor,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
                let rotations = original_max_position * speed / (2.0 * PI);
                // 0 for low frequencies, 1 for high ones, linear between them; Llama 4 has nothing between them.
                let unscaled = if high_freq_factor > low_freq_factor {
                    ((rotations - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0)
                } else {
                    f64::from(rotations > high_freq_factor)
                };
                unscaled * speed + (1.0 - unscaled) * speed / factor
            }
            _ => speed,
        }
    }

    #[track_caller]
    fn check(&self, x: &Array) -> Result<()> {
        x.check()?;
        // Frequencies are divided by these numbers, so zero and infinity would result in NaN without an error.
        let finite = f64::MIN_POSITIVE..f64::INFINITY;
        within("Rope", "base", self.base, finite.clone())?;
        match self.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear(factor) | RopeScaling::Proportional { factor, .. } => {
                within("Rope", "factor", factor, finite)?;
            }
            RopeScaling::Dynamic { factor, original_max_position } => {
                within("Rope", "factor", factor, finite.clone())?;
                within("Rope", "original_max_position", original_max_position, finite)?;
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_position, attention_factor, .. } => {
                within("Rope", "factor", factor, finite.clone())?;
                within("Rope", "beta_fast", beta_fast, finite.clone())?;
                within("Rope", "beta_slow", beta_slow, finite.clone())?;
                within("Rope", "original_max_position", original_max_position, finite.clone())?;
                within("Rope", "attention_factor", attention_factor, finite)?;
            }
            RopeScaling::LongRope { ref short_factor, ref long_factor, original_max_position, attention_factor } => {
                within("Rope", "original_max_position", original_max_position, finite.clone())?;
                within("Rope", "attention_factor", attention_factor, finite.clone())?;
                let pairs = self.rotary_dim.or(x.shape().last().copied()).unwrap_or(0) / 2;
                for (name, factors) in [("short_factor", short_factor), ("long_factor", long_factor)] {
                    if factors.len() != pairs {
                        let count = factors.len();
                        return value_error(format!("Rope: {name} must have {pairs} numbers, one a pair, got {count}"));
                    }
                    factors.iter().try_for_each(|factor| within("Rope", name, *factor, finite.clone()))?;
                }
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
                within("Rope", "factor", factor, finite.clone())?;
                within("Rope", "low_freq_factor", low_freq_factor, finite.clone())?;
                within("Rope", "high_freq_factor", high_freq_factor, low_freq_factor..f64::INFINITY)?;
                within("Rope", "original_max_position", original_max_position, finite)?;
            }
        }
        if x.ndim() < 3 || !x.shape()[x.ndim() - 1].is_multiple_of(2) {
            return value_error(format!(
                "Rope: x must be [..., length, heads, depth] with an even depth, got {}",
                x.type_name()
            ));
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

/// Returns the length of each text from its positions, `[..., length]`: the largest one plus 1, `[..., 1, 1]`, float32.
fn length_of(positions: &Array) -> Array {
    let largest = if positions.ndim() == 0 { positions.clone() } else { positions.max_keepdims(-1) };
    (largest.astype(DType::F32) + 1.0).expand_dims(-1)
}
