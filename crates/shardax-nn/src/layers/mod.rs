//! Layers, with Flax NNX's names, defaults and initial weights.

mod attention;
mod builder_hints;
mod conv;
mod conv_local;
mod conv_transpose;
mod dropout;
mod einsum;
mod embed;
mod experts;
mod fp8;
mod kernel;
mod linear;
mod linear_general;
mod lora;
mod norm;
mod padding;
mod prelu;
mod quantized;
mod recurrent;
mod sequential;
mod stack;

pub use attention::{HeadDifference, MultiHeadAttention, MultiHeadAttentionBuilder, QueryGrowth, ValueScores};
pub use conv::{Conv, ConvBuilder};
pub use conv_local::{ConvLocal, ConvLocalBuilder};
pub use conv_transpose::{ConvTranspose, ConvTransposeBuilder};
pub use dropout::Dropout;
pub use einsum::{Einsum, EinsumBuilder};
pub use embed::{Embed, EmbedBuilder};
pub use experts::{ChosenExperts, ExpertGroups, MixtureOfExperts, Routed, RouterScores};
pub use fp8::{Fp8DotGeneral, Fp8Linear};
pub use kernel::KernelBuilder;
pub use linear::{Linear, LinearBuilder};
pub use linear_general::{LinearGeneral, LinearGeneralBuilder};
pub use lora::{LoRA, LoRABuilder, LoRALinear};
pub use norm::{BatchNorm, GroupNorm, InstanceNorm, LayerNorm, NormBuilder, RmsNorm, SpectralNorm, WeightNorm};
pub use padding::ConvPadding;
pub use prelu::PReLU;
pub use quantized::QuantizedLinear;
pub use recurrent::{
    Bidirectional, BuiltCell, CellBuilder, ConvLstmCell, ConvLstmCellBuilder, GruCell, LstmCell, MguCell,
    OptimizedLstmCell, Rnn, RnnCell, SimpleCell,
};
pub use sequential::{Apply, Layer, Sequential};
pub use stack::Stack;

use shardax::dtype::promote;
use shardax::prelude::*;

/// Returns the dtype in which a layer computes: `dtype`, or the promoted dtype of its operands.
fn compute_dtype(dtype: Option<DType>, operands: &[&Array]) -> DType {
    dtype.unwrap_or_else(|| common_dtype(operands.iter().copied()))
}

/// Returns the promoted dtype of arrays, or float32 without arrays. Arrays of 8 bits and fewer, which promotion rejects, are
/// widened to the dtype of the others.
pub(crate) fn common_dtype<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> DType {
    let types = arrays.into_iter().map(|x| (x.dtype(), x.weak_type()));
    let promoted = types.reduce(|a, b| promote(a, b).unwrap_or(if a.0.bits() >= b.0.bits() { a } else { b }));
    promoted.map_or(DType::F32, |(dtype, _)| dtype)
}

/// Casts the arrays to their promoted dtype.
pub(crate) fn promoted<const N: usize>(arrays: [Array; N]) -> [Array; N] {
    let dtype = compute_dtype(None, &arrays.each_ref());
    arrays.map(|x| x.astype(dtype))
}
