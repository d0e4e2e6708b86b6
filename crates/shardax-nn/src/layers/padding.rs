//! Padding of convolution layers.

use shardax::lax::Padding;
use shardax::prelude::*;

use crate::check::value_error;

/// The padding of a convolution layer's input: zeros, as [`Padding`] describes, or elements of the input.
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut rngs = Rngs::new(0);
/// let causal = Conv::builder(3, 8, [4]).padding(ConvPadding::Causal).build(&mut rngs);
/// assert_eq!(causal.forward(ones([2, 10, 3])).shape(), [2, 10, 8]);
/// let explicit = Conv::builder(3, 8, [4]).padding([(1, 1)]).build(&mut rngs);
/// assert_eq!(explicit.forward(ones([2, 10, 3])).shape(), [2, 9, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConvPadding {
    /// Zeros.
    Zeros(Padding),
    /// Pads to the input's size with the elements from the other end.
    Circular,
    /// Pads to the input's size with the elements mirrored at the edge.
    Reflect,
    /// Zeros before the only spatial dimension, so that no result depends on later elements.
    Causal,
}

impl From<Padding> for ConvPadding {
    fn from(padding: Padding) -> Self {
        ConvPadding::Zeros(padding)
    }
}

/// Flax's names: `"CIRCULAR"`, `"REFLECT"`, `"CAUSAL"`, and the names of [`Padding`].
impl From<&'static str> for ConvPadding {
    fn from(name: &'static str) -> Self {
        match name.to_ascii_uppercase().as_str() {
            "CIRCULAR" => ConvPadding::Circular,
            "REFLECT" => ConvPadding::Reflect,
            "CAUSAL" => ConvPadding::Causal,
            _ => ConvPadding::Zeros(name.into()),
        }
    }
}

/// A number is [`Padding::Around`].
impl From<i32> for ConvPadding {
    fn from(count: i32) -> Self {
        Padding::from(count).into()
    }
}

impl From<Vec<(i64, i64)>> for ConvPadding {
    fn from(pairs: Vec<(i64, i64)>) -> Self {
        Padding::from(pairs).into()
    }
}

impl<const N: usize> From<[(i64, i64); N]> for ConvPadding {
    fn from(pairs: [(i64, i64); N]) -> Self {
        Padding::from(pairs).into()
    }
}

impl ConvPadding {
    /// Pads `x`, which has one batch dimension, for a window of these extents, and returns the padding that the convolution
    /// must add.
    #[track_caller]
    pub(super) fn apply(&self, x: &Array, extents: &[usize]) -> Result<(Array, Padding)> {
        let centred = extents.iter().map(|&k| (k.saturating_sub(1) / 2, k / 2));
        let padded = match self {
            ConvPadding::Zeros(padding) => return Ok((x.clone(), padding.clone())),
            ConvPadding::Circular => pad(x, &spatial_widths(centred), PadMode::Wrap),
            ConvPadding::Reflect => pad(x, &spatial_widths(centred), PadMode::Reflect),
            ConvPadding::Causal => match extents {
                [k] => pad(x, &spatial_widths([(k.saturating_sub(1), 0)]), PadMode::Constant(0.0)),
                _ => {
                    let dims = extents.len();
                    return value_error(format!("Conv: causal padding needs one spatial dimension, got {dims}"));
                }
            },
        };
        Ok((padded, Padding::Valid))
    }
}

/// Adds the widths of the batch and feature dimensions, which are not padded, to the widths of the spatial dimensions.
fn spatial_widths(spatial: impl IntoIterator<Item = (usize, usize)>) -> Vec<(usize, usize)> {
    [(0, 0)].into_iter().chain(spatial).chain([(0, 0)]).collect()
}
