//! Products of blocks of narrow numbers with a scale for each block.

use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::lax::{self, DotOptions};
use crate::ops::operators::ArrayLike;

/// Options of [`scaled_dot`](scaled_dot()), which is also a method.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::lax::ScaledDotOptions;
/// let x = ones([2, 64]).astype(DType::F8E4M3Fn);
/// let scales = full([2, 2], 0.5f32).astype(DType::F8E8M0Fnu);
/// let options = ScaledDotOptions::new().lhs_scale(scales).dimension_numbers((&[1], &[1]), (&[], &[]));
/// let y = options.preferred_element_type(DType::F32).scaled_dot(&x, &x);
/// assert_eq!(y.to_vec::<f32>()?, [32.0; 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ScaledDotOptions {
    lhs_scale: Option<Array>,
    rhs_scale: Option<Array>,
    dimension_numbers: Option<Dimensions>,
    preferred_element_type: Option<DType>,
}

/// The contracting and the batch dimensions of both operands.
#[derive(Clone, Debug)]
struct Dimensions {
    contracting: [Vec<usize>; 2],
    batch: [Vec<usize>; 2],
}

impl ScaledDotOptions {
    /// Returns options without scales, for products of matrices or of batches of matrices, with results in bfloat16.
    pub fn new() -> Self {
        ScaledDotOptions::default()
    }

    /// Sets the scales of the left operand. They have its dimensions, but one element for each block of contracting elements.
    pub fn lhs_scale(mut self, scale: impl ArrayLike) -> Self {
        self.lhs_scale = Some(scale.into_array());
        self
    }

    /// Sets the scales of the right operand; see [`lhs_scale`](Self::lhs_scale).
    pub fn rhs_scale(mut self, scale: impl ArrayLike) -> Self {
        self.rhs_scale = Some(scale.into_array());
        self
    }

    /// Sets the contracting and the batch dimensions, as in [`dot_general`](super::dot_general). By default, `[m, k]` is multiplied
    /// by `[k, n]`, and `[b, m, k]` by `[b, k, n]`.
    pub fn dimension_numbers(
        mut self,
        (lhs_contract, rhs_contract): (&[usize], &[usize]),
        (lhs_batch, rhs_batch): (&[usize], &[usize]),
    ) -> Self {
        self.dimension_numbers = Some(Dimensions {
            contracting: [lhs_contract.to_vec(), rhs_contract.to_vec()],
            batch: [lhs_batch.to_vec(), rhs_batch.to_vec()],
        });
        self
    }

    /// Sets the dtype of the result. Default: bfloat16. Products are summed in float32.
    pub fn preferred_element_type(mut self, dtype: DType) -> Self {
        self.preferred_element_type = Some(dtype);
        self
    }

    /// See [`scaled_dot`](scaled_dot()).
    #[track_caller]
    pub fn scaled_dot(&self, lhs: impl ArrayLike, rhs: impl ArrayLike) -> Array {
        let (lhs, rhs) = (&lhs.into_array(), &rhs.into_array());
        or_failed(lhs, || {
            [Some(lhs), Some(rhs), self.lhs_scale.as_ref(), self.rhs_scale.as_ref()]
                .into_iter()
                .flatten()
                .try_for_each(Array::check)?;
            let Dimensions { contracting: [lhs_contract, rhs_contract], batch: [lhs_batch, rhs_batch] } =
                &self.dimensions(lhs)?;
            let lhs = apply_scale("lhs", lhs, self.lhs_scale.as_ref(), lhs_contract)?;
            let rhs = apply_scale("rhs", rhs, self.rhs_scale.as_ref(), rhs_contract)?;
            let dtype = self.preferred_element_type.unwrap_or(DType::Bf16);
            let product =
                DotOptions::new().dot_general(&lhs, &rhs, (lhs_contract, rhs_contract), (lhs_batch, rhs_batch));
            Ok(product.astype(dtype))
        })
    }

    fn dimensions(&self, lhs: &Array) -> Result<Dimensions> {
        match (&self.dimension_numbers, lhs.ndim()) {
            (Some(dims), _) => Ok(dims.clone()),
            (None, 2) => Ok(Dimensions { contracting: [vec![1], vec![0]], batch: [vec![], vec![]] }),
            (None, 3) => Ok(Dimensions { contracting: [vec![2], vec![1]], batch: [vec![0], vec![0]] }),
            (None, rank) => Err(err!(
                Value,
                "scaled_dot multiplies matrices or batches of matrices, got {rank} dimensions: {}",
                lhs.type_name()
            )
            .help("set the dimensions with `dimension_numbers`")),
        }
    }
}

/// Returns `x`, rounded to bfloat16, with each block of elements multiplied by its scale. In float32 this product is exact.
fn apply_scale(side: &str, x: &Array, scale: Option<&Array>, contracting: &[usize]) -> Result<Array> {
    if let Some(y) = [Some(x), scale].into_iter().flatten().find(|y| y.dtype().is_complex()) {
        return Err(err!(Type, "scaled_dot takes real operands and scales, got {}", y.type_name())
            .help("multiply the real and imaginary parts separately"));
    }
    let rounded = |x: &Array| x.astype(DType::Bf16).astype(DType::F32);
    let Some(scale) = scale else { return Ok(rounded(x)) };
    let fits = |dim: usize, size: usize, blocks: usize| {
        if contracting.contains(&dim) {
            blocks > 0 && size.is_multiple_of(blocks) && size / blocks > 1
        } else {
            size == blocks
        }
    };
    let sizes = x.shape().iter().zip(scale.shape()).enumerate();
    if x.ndim() != scale.ndim() || !sizes.clone().all(|(dim, (&size, &blocks))| fits(dim, size, blocks)) {
        return Err(err!(
            Type,
            "the scales of {side}, {}, do not divide {} into blocks along dimensions {contracting:?}",
            scale.type_name(),
            x.type_name()
        )
        .help(
            "scales have the dimensions of their operand; each contracting dimension has one scale for two or more elements, so that \
             its size is a multiple of the number of scales",
        ));
    }
    // Each dimension becomes one of blocks and one of elements, so that one product applies a scale to its block.
    let blocks: Vec<usize> = sizes.clone().flat_map(|(_, (&size, &blocks))| [blocks, size / blocks.max(1)]).collect();
    let single: Vec<usize> = scale.shape().iter().flat_map(|&blocks| [blocks, 1]).collect();
    let scaled = lax::reshape(rounded(x), &blocks) * lax::reshape(rounded(scale), &single);
    Ok(lax::reshape(scaled, x.shape()))
}

/// Multiplies arrays of narrow numbers with a scale for each block of contracting elements: `(lhs · lhs_scale) (rhs · rhs_scale)`, for
/// `[m, k]` and `[k, n]`, or `[b, m, k]` and `[b, k, n]`. The result is bfloat16.
///
/// The scales are `[m, k / size]` and `[k / size, n]` for blocks of `size` elements, at least two. Elements and scales are rounded
/// to bfloat16, which changes no number of 8 bits, and products are summed in float32. [`ScaledDotOptions`] has other dimensions and dtypes, and products with one scale.
///
/// ```
/// # use shardax::prelude::*;
/// let (x, y) = (ones([1, 4]), ones([4, 1]));
/// let z = lax::scaled_dot(&x, &y, array([[1.0f32, 10.0]]), array([[1.0f32], [0.5]]));
/// assert_eq!((z.dtype(), z.to_f64_vec()?), (DType::Bf16, vec![12.0]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for complex numbers, and for shapes that do not fit.
#[track_caller]
pub fn scaled_dot(
    lhs: impl ArrayLike,
    rhs: impl ArrayLike,
    lhs_scale: impl ArrayLike,
    rhs_scale: impl ArrayLike,
) -> Array {
    let (lhs, rhs) = (&lhs.into_array(), &rhs.into_array());
    ScaledDotOptions::new().lhs_scale(lhs_scale).rhs_scale(rhs_scale).scaled_dot(lhs, rhs)
}
