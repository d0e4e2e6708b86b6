//! Matmuls, convolutions and gradients of their filters, and attention on CPU, as functions on slices.
//!
//! | function | computes | of |
//! |---|---|---|
//! | [`matmul`] | batches of matrices, either operand transposed | f32, f64 |
//! | [`matmul_bf16`], [`matmul_i8`] | batches of matrices, with sums of more bits | bf16, i8 |
//! | [`matmul_i32`] | batches of matrices, with sums that wrap around | i32 |
//! | [`few_rows`] | products of few rows and a matrix of fewer bits | f32 with bf16, f16, i8 and u8 |
//! | [`grouped_rows`] | products of rows and a matrix of integers in groups with scales | f32 with integers of 4 and 8 bits |
//! | [`convolution`] | convolutions with strides, dilations and padding | f32 |
//! | [`filter_gradient`] | the gradient of a convolution with respect to its filter | f32 |
//! | [`depthwise_filter_gradient`] | the gradient of a convolution with one filter for each feature | f32 |
//! | [`FeatureGroups::convolution`], [`FeatureGroups::filter_gradient`] | both of features in groups | f32 |
//! | [`winograd_convolution`], [`winograd_filter_gradient`] | both with fewer multiplications for windows of 3 × 3 | f32 |
//! | [`cumulative`] | cumulative sums, products, maxima and minima | f32, f64, integers of 32 and 64 bits |
//! | [`cumulative_logsumexp`] | logarithms of cumulative sums of exponentials | f32, f64 |
//! | [`sin`], [`cos`], [`tan`], [`log`] | sines, cosines, tangents and logarithms | f32, f64 |
//! | [`pow`], [`pow_f64`], [`cbrt`] | powers and cube roots | f32, f64 |
//! | [`expm1`], [`sinh`], [`cosh`], [`erf`] | exponentials minus 1, hyperbolic sines and cosines, the error function | f64 |
//! | [`erf_inv`] | the inverse error function | f32 |
//! | [`random_gamma_factors`] | random numbers from which gamma numbers are computed | f32 |
//! | [`remainder`] | remainders of divisions | f32, f64 |
//! | [`scatter_add`] | sums of numbers at positions of a vector | f32, f64, integers of 32 and 64 bits |
//! | [`search_sorted`] | the positions of values in an ascending array | f32, f64, integers of 32 and 64 bits |
//! | [`select_and_scatter_add`] | gradients of maxima and minima of windows | f32, f64 |
//! | [`sort`], [`sort_keys`] | rows of several arrays, ordered by the first ones | numbers of 1 to 16 bytes |
//! | [`softmax`], [`softmax_columns`] | exponentials of rows or columns, divided by their sum | f32, f64 |
//! | [`softmax_half`] | the same of rows, computed in f32 | bf16, f16 |
//! | [`top_k`] | the largest elements of rows, and their indices | f32 |
//! | [`transpose`] | arrays whose dimensions are reordered | elements of 1 to 16 bytes |
//! | [`vector_by_tall_matrix`] | products of a vector and a matrix of many rows | f32, f64 |
//! | [`weighted_sums`] | sums along an axis with weights of which most are zero | f32, f64 |
//! | [`Attention::forward`], [`Attention::gradient`] | softmax attention with a window and a mask | f32 |
//! | `cholesky`, `lu`, `qr`, `eigh`, `svd` | decompositions of batches of matrices, with the feature `decompositions` | f32, f64 |
//! | `eigvalsh`, `svdvals` | eigenvalues and singular values without vectors, with the same feature | f32, f64 |
//! | `triangular_solve` | triangular systems, with the same feature | f32, f64 |
//!
//! Operands are row-major arrays ([`View`]). You allocate the results, and a function overwrites them. The last argument is the
//! number of threads that a function can use: your thread, and threads of a pool that has one thread for each remaining core.
//! The result has the same bits for any number of threads, because only the shapes determine how a sum is divided.
//!
//! No call panics. If shapes do not fit, you get a [`ShapeError`], and nothing is written. The pages of the functions say how
//! much memory they need in addition to operands and results; a thread keeps up to 12 MiB of it for its next call.
//!
//! You should build this crate with optimization, because its functions are many times slower otherwise. In debug builds
//! `shardax` leaves all work to XLA instead.
//!
//! ```
//! use shardax_cpu_kernels::{View, matmul};
//!
//! let a = View::new(&[1, 2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let mut product = [0.0; 4];
//! // `a aᵀ`: both operands are summed over their last dimension.
//! matmul(a, a, [2, 2], &mut product, 1)?;
//! assert_eq!(product, [14.0, 32.0, 32.0, 77.0]);
//! # Ok::<(), shardax_cpu_kernels::ShapeError>(())
//! ```
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod attention;
#[cfg(feature = "decompositions")]
mod cholesky;
mod convolution;
mod cumulative;
#[cfg(feature = "decompositions")]
mod decompositions;
mod depthwise;
mod elementwise;
mod erf_inv;
mod exponential;
mod feature_groups;
mod few_rows;
mod filter_gradient;
mod filter_window;
mod gaps;
#[cfg(feature = "decompositions")]
mod gram;
mod grouped;
#[cfg(feature = "decompositions")]
mod lanes;
mod low_precision;
#[cfg(feature = "decompositions")]
mod lu;
mod matmul;
mod patches;
mod per_type;
mod phases;
mod power;
mod power_f64;
mod prefetch;
mod product;
mod radix;
mod random_gamma;
#[cfg(feature = "decompositions")]
mod real;
mod remainder;
mod rounded;
mod row_sums;
mod scatter_add;
mod scratch;
mod search_sorted;
mod select_and_scatter;
mod small_products;
mod softmax;
mod sort;
#[cfg(feature = "decompositions")]
mod substitution;
mod tall_matrix;
mod tasks;
mod top_k;
mod transpose;
#[cfg(feature = "decompositions")]
mod triangular_solve;
#[cfg(feature = "decompositions")]
mod tridiagonal;
#[cfg(feature = "decompositions")]
mod values;
#[cfg(feature = "decompositions")]
mod vectors;
mod view;
mod weighted_sums;
mod winograd;

pub use attention::{Attention, Backward, FEW_QUERIES, MASKED_SCORE, Window};
pub use convolution::convolution;
pub use cumulative::{Accumulate, Cumulative, cumulative, cumulative_logsumexp};
#[cfg(feature = "decompositions")]
pub use decompositions::{cholesky, eigh, qr, svd};
pub use depthwise::depthwise_filter_gradient;
pub use elementwise::{Angle, cos, log, sin, tan};
pub use erf_inv::erf_inv;
pub use exponential::{cosh, erf, expm1, sinh};
pub use feature_groups::FeatureGroups;
pub use few_rows::{MAX_ROWS, Weight, few_rows};
pub use filter_gradient::{MIN_PATCHES, filter_gradient};
pub use filter_window::{FilterWindow, SPATIAL};
pub use grouped::{GroupNumbers, GroupedIntegers, GroupedMatrix, grouped_rows};
pub use low_precision::{Bf16Sum, has_bf16_instructions, matmul_bf16, matmul_i8, matmul_i32};
#[cfg(feature = "decompositions")]
pub use lu::lu;
pub use matmul::{Float, matmul};
pub use power::{Radicand, cbrt, pow};
pub use power_f64::pow_f64;
pub use random_gamma::random_gamma_factors;
#[cfg(feature = "decompositions")]
pub use real::Real;
pub use remainder::{Remainder, remainder};
pub use scatter_add::{Addend, scatter_add};
pub use search_sorted::{SearchKey, search_sorted};
pub use select_and_scatter::{Selectable, Selection, select_and_scatter_add};
pub use small_products::MAX_SMALL_SIDE;
pub use softmax::{HalfLogit, Logit, softmax, softmax_columns, softmax_half};
pub use sort::{KeyOrder, MAX_KEY_BITS, SortKey, SortOperand, sort, sort_keys};
pub use tall_matrix::{Multiplicand, vector_by_tall_matrix};
pub use top_k::top_k;
pub use transpose::{Movable, Movement, movement, transpose};
#[cfg(feature = "decompositions")]
pub use triangular_solve::{Triangle, triangular_solve};
#[cfg(feature = "decompositions")]
pub use values::{eigvalsh, svdvals};
pub use view::{ShapeError, View};
pub use weighted_sums::{Weighted, weighted_sums};
pub use winograd::{is_winograd, winograd_convolution, winograd_filter_gradient};

/// A result, or the shapes that do not fit.
pub(crate) type Result<T> = std::result::Result<T, ShapeError>;
