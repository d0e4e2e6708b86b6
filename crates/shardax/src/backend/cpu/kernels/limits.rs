//! The minimum sizes for which the kernels are used, in multiply-adds unless stated otherwise. `shardax-bench
//! --cpu-kernels` prints the times of XLA and of the kernels for similar shapes.

/// Matmuls of f32 and f64, and matmuls of bf16 and f16 with a transposed operand. For smaller ones the call costs more
/// than it saves.
pub(super) const MATMUL: usize = 1 << 20;

/// Matmuls of bf16 on processors with instructions for them, of int8, and of int32.
pub(super) const MATMUL_BF16: usize = 1 << 14;
pub(super) const MATMUL_INT8: usize = 1 << 6;
pub(super) const MATMUL_INT32: usize = 1 << 12;

/// Batches of products of small matrices: the minimum number of matrices, and of multiply-adds.
pub(super) const SMALL_PRODUCTS_BATCH: usize = 8;
pub(super) const SMALL_PRODUCTS: usize = 1 << 14;

/// The minimum number of rows, of columns and of contracted elements: with fewer, reading the other operand dominates.
pub(super) const MATMUL_SIDE: usize = 8;

/// A matrix in row order with at least `LARGE_MATRIX` elements is left to XLA if there are at most `FEW_ROWS` rows.
pub(super) const FEW_ROWS: usize = 8;
pub(super) const LARGE_MATRIX: usize = 1 << 22;

/// The maximum number of rows that are multiplied in each iteration of a loop with a matrix that is transposed before the
/// loop. Otherwise the kernel packs the transposed matrix in every iteration, which takes longer than the products of few
/// rows.
pub(super) const ROWS_OF_STEP: usize = 64;

/// Products of few rows and a matrix of fewer bits, in elements of the matrix.
pub(super) const NARROW_FEW_ROWS: usize = 1 << 14;

/// Cumulative operations, in elements.
pub(super) const CUMULATIVE: usize = 1 << 11;

/// Random gamma numbers, in elements.
pub(super) const RANDOM_GAMMA: usize = 1 << 6;

/// Remainders, in elements.
pub(super) const REMAINDER: usize = 1 << 8;

/// Sines, cosines, tangents, logarithms, powers and cube roots, in elements.
pub(super) const ELEMENTWISE: usize = 1 << 10;

/// Sums at positions of a vector, in updates, and the maximum number of sums for each update.
pub(super) const SCATTER_ADD: usize = 1 << 8;
pub(super) const SUMS_PER_UPDATE: usize = 2;

/// Searches in ascending arrays, in values.
pub(super) const SEARCH: usize = 1 << 8;

/// Sums at the places of maxima of windows, in elements of all windows, and the maximum number of padded elements for each element of the
/// operand.
pub(super) const SELECT_AND_SCATTER: usize = 1 << 13;
pub(super) const PADDED_WINDOWS: u64 = 16;

/// The minimum number of elements of such a window. XLA reads the operand once for each of them, which is fast enough for fewer.
pub(super) const SELECTION_WINDOW: usize = 6;

/// Sorts, in elements.
pub(super) const SORT: usize = 1 << 5;

/// Softmax of rows, in elements, and the minimum number of elements of a row. XLA's loops over smaller arrays read them from the
/// processor's caches, and its loops over shorter rows compute several rows in a vector.
pub(super) const SOFTMAX: usize = 1 << 20;
pub(super) const SOFTMAX_F64: usize = 1 << 14;
pub(super) const SOFTMAX_HALF: usize = 1 << 14;
pub(super) const SOFTMAX_ROW: usize = 32;

/// Softmax of columns of f32, in elements, and the minimum number of columns of all types. With fewer, the loops over a row are short.
pub(super) const SOFTMAX_OF_COLUMNS: usize = 1 << 14;
pub(super) const SOFTMAX_COLUMNS: usize = 64;

/// Sums along an axis with sparse weights, in elements of the result.
pub(super) const WEIGHTED_SUMS: usize = 1 << 12;

/// The largest elements of rows, in elements.
pub(super) const TOP_K: usize = 1 << 9;

/// Products of a vector and a matrix of many rows, in elements of the matrix, and the numbers of rows and columns. XLA multiplies fewer rows
/// as fast, and computes a column alone in the loops of its operands.
pub(super) const TALL_MATRIX: usize = 1 << 14;
pub(super) const TALL_MATRIX_ROWS: usize = 1 << 10;
pub(super) const TALL_MATRIX_COLUMNS: std::ops::RangeInclusive<usize> = 4..=1 << 9;

/// Transposes, in bytes.
pub(super) const TRANSPOSE: usize = 1 << 15;

/// The minimum number of bytes that are neighbours in the operand and in the result, and of rows at a distance of at most a page. If no
/// elements are neighbours in both, the minimum number of rows and of columns of the matrices that are transposed.
pub(super) const TRANSPOSE_ROW: usize = 32;
pub(super) const TRANSPOSE_NEAR_ROWS: usize = 1 << 6;
pub(super) const TRANSPOSE_SQUARE: usize = 16;

pub(super) const ATTENTION: usize = 1 << 20;

/// Attention of at most `shardax_cpu_kernels::FEW_QUERIES` queries.
pub(super) const ATTENTION_OF_FEW: usize = 1 << 14;

/// Filter gradients as products of patches. There must be at least `shardax_cpu_kernels::MIN_PATCHES` patches.
pub(super) const FILTER_GRADIENT: usize = 1 << 20;

/// Convolutions, and gradients with respect to the image.
pub(super) const CONVOLUTION: usize = 1 << 20;

/// The minimum number of input and of output features of convolutions: with fewer, building patches dominates.
pub(super) const CONVOLUTION_FEATURES: usize = 8;

/// The minimum numbers of features of convolutions by Winograd's algorithm: the smaller and the larger of input and
/// output features. With fewer, the transformations of images and products dominate.
pub(super) const WINOGRAD_FEATURES: [usize; 2] = [32, 64];

/// The minimum number of tiles of 2 × 2 outputs: with fewer, the transformation of filters dominates.
pub(super) const WINOGRAD_TILES: usize = 32;

/// Convolutions of features in groups, and gradients of their filters.
pub(super) const GROUPS: usize = 1 << 14;

/// The maximum number of elements that the filter of such a convolution reaches, beyond the number of outputs.
pub(super) const GROUPS_REACH: usize = 64;

/// Filter gradients of depthwise convolutions.
pub(super) const DEPTHWISE: usize = 1 << 16;

/// QR decompositions: the minimum number of rows and of columns.
#[cfg(feature = "decompositions")]
pub(super) const QR_SIDE: usize = 8;

/// Batches of QR decompositions of any size up to this side: the minimum number of matrices.
#[cfg(feature = "decompositions")]
pub(super) const QR_BATCH: usize = 8;
#[cfg(feature = "decompositions")]
pub(super) const QR_LANES_SIDE: usize = 24;
