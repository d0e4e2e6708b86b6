//! Trees as vectors.

use std::marker::PhantomData;

use crate::core::array::Array;
use crate::core::program::Aval;
use crate::core::tree::{Flat, Tree, TreeDef};
use crate::dtype::DType;
use crate::error::{AtCaller, Result, err};
use crate::ops::lax;
use crate::ops::numpy::promote_dtypes;
use crate::ops::operators::ArrayLike;
use crate::shape::size;
use crate::source;

/// Restores the tree from its vector; see [`ravel_pytree`].
#[derive(Debug)]
pub struct Unravel<T> {
    def: TreeDef,
    avals: Vec<Aval>,
    dtype: DType,
    tree: PhantomData<fn() -> T>,
}

/// Concatenates the elements of a tree's arrays into one vector, and also returns the inverse (JAX's
/// `jax.flatten_util.ravel_pytree`). The vector has the dtype that the arrays promote to.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::ravel_pytree;
/// let (flat, unravel) = ravel_pytree(&(ones([2, 2]), array([3i8])))?;
/// assert_eq!(flat.to_vec::<f32>()?, [1.0, 1.0, 1.0, 1.0, 3.0]);
/// let (matrix, vector) = unravel.call(flat * 2)?;
/// assert_eq!((matrix.shape(), vector.to_vec::<i8>()?), (&[2, 2][..], vec![6]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array failed, or if the dtypes of the arrays do not promote to one dtype.
#[track_caller]
pub fn ravel_pytree<T: Tree>(tree: &T) -> Result<(Array, Unravel<T>)> {
    let _line = source::enter();
    let flat = Flat::of(tree);
    let avals: Vec<Aval> = flat.leaves.iter().map(Array::aval).collect();
    let leaves = promote_dtypes(&flat.leaves.iter().collect::<Vec<_>>(), |d| d).at_caller()?;
    let parts: Vec<Array> = leaves.iter().map(Array::ravel).collect();
    let vector =
        if parts.is_empty() { crate::ops::numpy::zeros_dtype([0], DType::F32) } else { lax::concatenate(&parts, 0) };
    vector.check()?;
    let dtype = vector.dtype();
    Ok((vector, Unravel { def: flat.def, avals, dtype, tree: PhantomData }))
}

impl<T: Tree> Unravel<T> {
    /// Returns the tree of these elements; each array has its original shape and dtype. If the vector has another
    /// floating point dtype than the tree's vector, the arrays have that dtype instead.
    ///
    /// # Errors
    /// Returns an error for a vector of another length.
    #[track_caller]
    pub fn call(&self, vector: impl ArrayLike) -> Result<T> {
        let _line = source::enter();
        let vector = &vector.into_array();
        vector.check()?;
        let count: usize = self.avals.iter().map(|aval| size(&aval.shape)).sum();
        if vector.shape() != [count] {
            return Err(err!(Value, "unravel of a tree of {count} elements got {}", vector.type_name())
                .help("pass a vector like the one that `ravel_pytree` made"))
            .at_caller();
        }
        let mut start = 0;
        let leaves = self.avals.iter().map(|aval| {
            let end = start + size(&aval.shape);
            let part = lax::reshape(&lax::slice_in_dim(vector, start, end, 0), &aval.shape);
            start = end;
            if vector.dtype() == self.dtype { part.astype(aval.dtype) } else { part }
        });
        let leaves = leaves.collect();
        Flat { leaves, def: self.def.clone() }.build()
    }
}
