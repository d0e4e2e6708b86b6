//! Block specs, which select the part of an array that a position of the grid works on.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::core::array::Array;
use crate::error::{Result, err};
use crate::ops::operators::ArrayLike;
use crate::ops::state::Ref;
use crate::shape::Shape;

/// The size of a block in one dimension of the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockDim {
    /// The array is divided into blocks of this size, and the index map returns the number of a block. The last block may
    /// reach beyond the array.
    Blocked(usize),
    /// One entry, whose index the index map returns. The ref does not have this dimension.
    Squeezed,
    /// `size` entries of the padded array. The index map returns the index of the first entry.
    Element {
        /// The number of entries.
        size: usize,
        /// The number of entries of padding before and after the array.
        padding: (usize, usize),
    },
}

/// A dimension of a block with one entry, which the ref lacks: `(SQUEEZED, 128)`.
pub const SQUEEZED: BlockDim = BlockDim::Squeezed;

impl BlockDim {
    /// The number of entries.
    pub(crate) fn size(self) -> usize {
        match self {
            BlockDim::Blocked(size) | BlockDim::Element { size, .. } => size,
            BlockDim::Squeezed => 1,
        }
    }

    /// The entries of padding before and after the array.
    pub(super) fn padding(self) -> (usize, usize) {
        match self {
            BlockDim::Element { padding, .. } => padding,
            _ => (0, 0),
        }
    }
}

impl From<usize> for BlockDim {
    fn from(size: usize) -> Self {
        BlockDim::Blocked(size)
    }
}

/// Types accepted as the shape of a block: arrays, vectors and tuples of sizes and [`BlockDim`]s.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the shape of a block",
    label = "not the shape of a block",
    note = "a size for each dimension, as an array, a `Vec` or a tuple: `[8, 128]`, `(SQUEEZED, 128)`"
)]
pub trait IntoBlockShape {
    /// Returns the dimensions.
    fn into_block_shape(self) -> Vec<BlockDim>;
}

impl<T: Into<BlockDim>, const N: usize> IntoBlockShape for [T; N] {
    fn into_block_shape(self) -> Vec<BlockDim> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<T: Into<BlockDim>> IntoBlockShape for Vec<T> {
    fn into_block_shape(self) -> Vec<BlockDim> {
        self.into_iter().map(Into::into).collect()
    }
}

/// A result of an index map: an array, vector or tuple of integer scalars, one for each dimension of the block.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the result of an index map",
    label = "not the index of a block",
    note = "an index map returns an integer for each dimension of the block: `|i, j| [i, j]`, or a tuple `(i, 0)`"
)]
pub trait IntoBlockIndex {
    /// Returns the indices.
    fn into_block_index(self) -> Vec<Array>;
}

impl<T: ArrayLike, const N: usize> IntoBlockIndex for [T; N] {
    fn into_block_index(self) -> Vec<Array> {
        self.into_iter().map(ArrayLike::into_array).collect()
    }
}

impl<T: ArrayLike> IntoBlockIndex for Vec<T> {
    fn into_block_index(self) -> Vec<Array> {
        self.into_iter().map(ArrayLike::into_array).collect()
    }
}

macro_rules! tuples {
    ($(($($t:ident $i:tt),*))*) => {$(
        impl<$($t: Into<BlockDim>),*> IntoBlockShape for ($($t,)*) {
            fn into_block_shape(self) -> Vec<BlockDim> {
                vec![$(self.$i.into()),*]
            }
        }
        impl<$($t: ArrayLike),*> IntoBlockIndex for ($($t,)*) {
            fn into_block_index(self) -> Vec<Array> {
                vec![$(self.$i.into_array()),*]
            }
        }
    )*};
}

tuples!(());
crate::tuples::each!(tuples);

type IndexMap = dyn Fn(&[Array], &[Ref]) -> Result<Vec<Array>> + Send + Sync;

/// Divides an operand or a result into blocks, and assigns a block to each position of the grid.
///
/// The index map takes the position and returns the number of the block in each dimension.
///
/// ```
/// # use shardax::experimental::pallas::{BlockSpec, SQUEEZED};
/// // Row `i` of a matrix, in blocks of 128.
/// let row = BlockSpec::new((SQUEEZED, 128), |[i, j]| [i, j]);
/// // The same block for all `j`.
/// let left = BlockSpec::new([64, 128], |[i, _j]| (i, 0));
/// ```
#[derive(Clone)]
pub struct BlockSpec {
    pub(super) block: Option<Vec<BlockDim>>,
    map: Option<Arc<IndexMap>>,
    /// The user's line, for errors about the spec.
    pub(super) location: &'static Location<'static>,
}

impl BlockSpec {
    /// Makes a spec with blocks of this shape. The index map takes one index for each dimension of the grid.
    #[track_caller]
    pub fn new<const N: usize, R: IntoBlockIndex>(
        block: impl IntoBlockShape,
        index_map: impl Fn([Array; N]) -> R + Send + Sync + 'static,
    ) -> Self {
        BlockSpec::prefetched(block, move |indices, _| index_map(indices))
    }

    /// Makes a spec whose index map also takes the refs of the prefetched operands
    /// ([`PallasCall::num_scalar_prefetch`](super::PallasCall::num_scalar_prefetch)), and can read them.
    #[track_caller]
    pub fn prefetched<const N: usize, R: IntoBlockIndex>(
        block: impl IntoBlockShape,
        index_map: impl Fn([Array; N], &[Ref]) -> R + Send + Sync + 'static,
    ) -> Self {
        BlockSpec {
            block: Some(block.into_block_shape()),
            map: Some(Arc::new(move |indices: &[Array], refs: &[Ref]| {
                match <[Array; N]>::try_from(indices.to_vec()) {
                    Ok(indices) => Ok(index_map(indices, refs).into_block_index()),
                    Err(indices) => Err(err!(
                        Value,
                        "the index map takes {N} indices, but the grid has {} dimensions",
                        indices.len()
                    )
                    .help("write an index map with one index for each dimension of the grid")),
                }
            })),
            location: Location::caller(),
        }
    }

    /// Makes a spec whose block is the entire array at every position of the grid, as `pl.BlockSpec()` does in JAX.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::experimental::pallas::{self as pl, BlockSpec, Ref};
    ///
    /// // Adds one row to all rows of a matrix, 8 rows at a time.
    /// let out = shape_dtype_struct([16, 128], DType::F32);
    /// let add = pl::pallas_call(|[x, row, out]: [Ref; 3]| out.set(x.get() + row.get()), out)
    ///     .grid([2])
    ///     .in_specs([BlockSpec::new([8, 128], |[i]| (i, 0)), BlockSpec::full()])
    ///     .out_specs([BlockSpec::new([8, 128], |[i]| (i, 0))]);
    /// let sum = add.call([ones([16, 128]), ones([1, 128])])?;
    /// assert_eq!(sum.get((15, 127)).item::<f32>()?, 2.0);
    /// # Ok::<(), shardax::error::Error>(())
    /// ```
    #[track_caller]
    pub fn full() -> Self {
        BlockSpec { block: None, map: None, location: Location::caller() }
    }

    /// Returns the dimensions of a block of an array of this shape, after checking that they fit.
    pub(super) fn dims(&self, shape: &Shape) -> Result<Vec<BlockDim>> {
        let Some(dims) = &self.block else { return Ok(shape.iter().map(|&n| BlockDim::Blocked(n)).collect()) };
        if dims.len() != shape.len() {
            return Err(err!(
                Value,
                "a block shape must have the same number of dimensions as the array: {dims:?} for the shape {:?}",
                shape.as_slice()
            )
            .help("write SQUEEZED for a dimension of size 1 that the kernel should not see"));
        }
        if let Some(dim) = dims.iter().position(|dim| dim.size() == 0) {
            return Err(err!(Value, "dimension {dim} of the block {dims:?} is empty")
                .help("a block must have at least one entry in each dimension"));
        }
        // Positions in a block are int32.
        let size = dims.iter().try_fold(1usize, |size, dim| size.checked_mul(dim.size()));
        if size.is_none_or(|size| size > i32::MAX as usize) {
            let count: f64 = dims.iter().map(|dim| dim.size() as f64).product();
            return Err(err!(
                Value,
                "a block of {dims:?} has {count:.3e} elements, but at most {} are possible",
                i32::MAX
            )
            .help("a block must fit in the memory of one core: use a smaller block and a larger grid"));
        }
        Ok(dims.clone())
    }

    /// Calls the index map at a position of the grid and checks the index that it returns.
    pub(super) fn index(&self, indices: &[Array], refs: &[Ref], rank: usize) -> Result<Vec<Array>> {
        let Some(map) = &self.map else { return Ok(vec![0.into_array(); rank]) };
        let index = map(indices, refs)?;
        index.iter().try_for_each(Array::check)?;
        if index.len() != rank {
            return Err(err!(
                Value,
                "the index map must return {rank} values, one for each dimension of the block, but returned {}",
                index.len()
            )
            .help("return the index of the block in each dimension, and 0 for a dimension that is not split"));
        }
        match index.iter().find(|i| i.ndim() != 0 || !i.dtype().is_integer()) {
            Some(other) => Err(err!(
                Type,
                "the index map must return integer scalars, but returned a value of type {}",
                other.type_name()
            )),
            None => Ok(index),
        }
    }
}

impl fmt::Debug for BlockSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockSpec").field("block", &self.block).finish_non_exhaustive()
    }
}
