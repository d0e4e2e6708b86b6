//! Layers, with Flax NNX's names, defaults and first weights.

mod conv;
mod dropout;
mod linear;
mod norm;
mod sequential;

pub use conv::{Conv, ConvBuilder};
pub use dropout::Dropout;
pub use linear::{Embed, EmbedBuilder, Linear, LinearBuilder};
pub use norm::{BatchNorm, BatchStats, GroupNorm, InstanceNorm, LayerNorm, NormBuilder, RmsNorm, StatefulBatchNorm};
pub use sequential::{Apply, Layer, Sequential};

use shardax::dtype::promote;
use shardax::prelude::*;
use shardax::tree::AxisNames;

/// The names of a bias, which has the last dimension of a kernel.
fn last_axis(kernel: &Option<AxisNames>) -> Option<AxisNames> {
    kernel.as_ref()?.last().map(|name| AxisNames::from([*name]))
}

/// The dtype that a layer computes in: the one it was given, or what its operands promote to.
fn compute_dtype(dtype: Option<DType>, operands: &[&Array]) -> DType {
    dtype.unwrap_or_else(|| {
        let types = operands.iter().map(|x| (x.dtype(), x.weak_type()));
        types.reduce(promote).map_or(DType::F32, |(dtype, _)| dtype)
    })
}
