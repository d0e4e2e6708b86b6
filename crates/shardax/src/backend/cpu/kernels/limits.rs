//! The sizes from which the kernels are used, in multiply-adds unless stated otherwise. `shardax-bench --cpu-kernels`
//! prints the times of XLA and of the kernels for shapes around these.

/// Matmuls of f32 and f64, and with a transposed operand of bf16 and f16. Below, the call costs more than it saves.
pub(super) const MATMUL: usize = 1 << 20;

/// Matmuls of bf16 on processors with instructions for them, and of int8.
pub(super) const MATMUL_BF16: usize = 1 << 14;
pub(super) const MATMUL_INT8: usize = 1 << 6;

/// Batches of products of small matrices: the minimum number of matrices, and of multiply-adds.
pub(super) const SMALL_PRODUCTS_BATCH: usize = 8;
pub(super) const SMALL_PRODUCTS: usize = 1 << 14;

/// The minimum number of rows, of columns and of contracted elements: below, reading the other operand dominates.
pub(super) const MATMUL_SIDE: usize = 8;

/// The number of rows up to which, and of elements from which on, a matrix in row order is left to XLA.
pub(super) const FEW_ROWS: usize = 8;
pub(super) const LARGE_MATRIX: usize = 1 << 22;

/// Products of few rows and a matrix of fewer bits, in elements of the matrix.
pub(super) const NARROW: usize = 1 << 14;

/// Cumulative operations, in elements.
pub(super) const CUMULATIVE: usize = 1 << 11;

/// Sorts, in elements.
pub(super) const SORT: usize = 1 << 5;

pub(super) const ATTENTION: usize = 1 << 20;

/// Attention of at most `shardax_cpu_kernels::FEW_QUERIES` queries.
pub(super) const ATTENTION_OF_FEW: usize = 1 << 14;

/// Filter gradients as products of patches, of which there must be `shardax_cpu_kernels::MIN_PATCHES`.
pub(super) const FILTER_GRADIENT: usize = 1 << 20;

/// Convolutions, and gradients with respect to the image; of bf16 and f16 those of strided convolutions.
pub(super) const CONVOLUTION: usize = 1 << 20;

/// The minimum number of input and of output features of convolutions: with fewer, building patches dominates.
pub(super) const CONVOLUTION_FEATURES: usize = 8;

/// The minimum numbers of features of convolutions by Winograd's algorithm, the smaller and the larger of inputs and outputs:
/// with fewer, transforming images and products dominates.
pub(super) const WINOGRAD_FEATURES: [usize; 2] = [32, 64];

/// The minimum number of tiles of 2 × 2 outputs: with fewer, transforming filters dominates.
pub(super) const WINOGRAD_TILES: usize = 32;

/// Filter gradients of depthwise convolutions.
pub(super) const DEPTHWISE: usize = 1 << 16;

/// QR decompositions: the minimum number of rows and of columns.
#[cfg(feature = "decompositions")]
pub(super) const QR_SIDE: usize = 8;
