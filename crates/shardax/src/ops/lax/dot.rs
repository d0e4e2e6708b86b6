//! Contractions, and the options of all matrix multiplications.

use std::sync::Arc;

use crate::choice::{Choice, IntoOptionalChoice};
use crate::core::array::Array;
use crate::core::sharding_like::ShardingLike;
use crate::dtype::{Category, DType};
use crate::error::Result;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::dot::DotGeneral;
use crate::ops::promotion::promote_factors;
use crate::precision::{self, Precision};
use crate::sharding::Typed;

/// Options of matrix multiplications. `dot_general`, `dot`, `matmul`, `einsum`, `tensordot`, `vdot` and `inner` are methods. Gradients
/// and batched multiplications use the same options.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::lax::DotOptions;
/// // bfloat16 operands, summed in and returned as float32.
/// let wide = DotOptions::new().preferred_element_type(DType::F32);
/// let x = full([4, 256], 1.0).astype(DType::Bf16);
/// assert_eq!(wide.einsum("ij,kj->ik", &[&x, &x]).dtype(), DType::F32);
/// // All digits of float32, on accelerators too.
/// let y = DotOptions::new().precision("highest").matmul(ones([2, 3]), ones([3, 2]));
/// assert_eq!(y.to_vec::<f32>()?, [3.0; 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DotOptions {
    pub(crate) precision: Option<Choice<Precision>>,
    pub(crate) preferred_element_type: Option<DType>,
    pub(crate) out_sharding: Option<ShardingLike>,
    pub(crate) is_rhs_sparse: bool,
}

impl DotOptions {
    /// Returns the default precision, and the operands' dtype.
    pub fn new() -> Self {
        DotOptions::default()
    }

    /// Sets the precision on accelerators, a [`Precision`] or JAX's text for one. Default:
    /// [`default_matmul_precision`](crate::default_matmul_precision).
    pub fn precision(mut self, precision: impl IntoOptionalChoice<Precision>) -> Self {
        self.precision = precision.into_optional_choice();
        self
    }

    /// Sets the dtype to accumulate in and to return. The default is the dtype of the operands.
    ///
    /// If floating point operands have a wider dtype or the result is of another kind, the product is accumulated in the operands'
    /// dtype and converted at the end. Integers cannot be narrowed.
    pub fn preferred_element_type(mut self, dtype: impl Into<Option<DType>>) -> Self {
        self.preferred_element_type = dtype.into();
        self
    }

    /// Sets the sharding in the type of the result, over mesh axes of type [`Explicit`](crate::AxisType::Explicit). The
    /// default follows from the operands. You must set it if the contracting dimensions of both operands are sharded,
    /// because no sharding follows from them.
    pub fn out_sharding(mut self, sharding: impl Into<ShardingLike>) -> Self {
        self.out_sharding = Some(sharding.into());
        self
    }

    /// States that most elements of the right operand are 0.
    pub(crate) fn sparse_rhs(mut self) -> Self {
        self.is_rhs_sparse = true;
        self
    }

    /// The requested sharding, for a result of this shape.
    pub(crate) fn out_for(&self, shape: &[usize], args: &[&Array]) -> Result<Option<Arc<Typed>>> {
        let Some(like) = &self.out_sharding else { return Ok(None) };
        Ok(like.out_sharding("out_sharding", shape, args)?.map(Arc::new))
    }

    /// Calls [`dot_general`] with these options.
    #[track_caller]
    pub fn dot_general(
        &self,
        lhs: impl ArrayLike,
        rhs: impl ArrayLike,
        (lhs_contract, rhs_contract): (&[usize], &[usize]),
        (lhs_batch, rhs_batch): (&[usize], &[usize]),
    ) -> Array {
        let (lhs, rhs) = (&lhs.into_array(), &rhs.into_array());
        let out = match self.out_sharding {
            None => Ok(None),
            Some(_) => lhs.check().and_then(|()| rhs.check()).and_then(|()| {
                let batch: Vec<usize> = lhs_batch.iter().filter_map(|&d| lhs.shape().get(d).copied()).collect();
                let lhs_free = free_sizes(lhs, lhs_contract, lhs_batch);
                let shape = [batch, lhs_free, free_sizes(rhs, rhs_contract, rhs_batch)].concat();
                self.out_for(&shape, &[lhs, rhs])
            }),
        };
        match out {
            Ok(out) => self.dot_general_as(lhs, rhs, (lhs_contract, rhs_contract), (lhs_batch, rhs_batch), out),
            Err(e) => Array::from_result(Err(e), lhs),
        }
    }

    /// `dot_general` with a sharding in the result's type.
    #[track_caller]
    pub(crate) fn dot_general_as(
        &self,
        lhs: &Array,
        rhs: &Array,
        (lhs_contract, rhs_contract): (&[usize], &[usize]),
        (lhs_batch, rhs_batch): (&[usize], &[usize]),
        out: Option<Arc<Typed>>,
    ) -> Array {
        let args = if lhs.dtype() == rhs.dtype() {
            [lhs.clone(), rhs.clone()].to_vec()
        } else {
            match promote_factors("dot_general", lhs, rhs) {
                Ok(args) => args,
                Err(e) => return Array::from_result(Err(e), lhs),
            }
        };
        let precision = match precision::resolved(self.precision, "dot_general") {
            Ok(precision) => precision,
            Err(e) => return Array::from_result(Err(e), lhs),
        };
        let dot = DotGeneral {
            lhs_contract: lhs_contract.into(),
            rhs_contract: rhs_contract.into(),
            lhs_batch: lhs_batch.into(),
            rhs_batch: rhs_batch.into(),
            preferred: None,
            precision,
            out,
            is_rhs_sparse: self.is_rhs_sparse,
        };
        let dtype = args[0].dtype();
        let Some(preferred) = self.preferred_element_type else { return dot.apply(&args[0], &args[1]) };
        let (kind, is_wide) = (preferred.category(), preferred.byte_size() >= dtype.byte_size());
        match dtype.category() {
            Category::Float if kind != Category::Float || !is_wide => dot.apply(&args[0], &args[1]).astype(preferred),
            // Converting the operands first is exact, because integers of another signedness have the same bits and a wider dtype
            // represents them all.
            category @ (Category::Signed | Category::Unsigned)
                if is_wide && !preferred.is_inexact() && kind != category =>
            {
                dot.apply(&args[0].astype(preferred), &args[1].astype(preferred))
            }
            _ => DotGeneral { preferred: Some(preferred), ..dot }.apply(&args[0], &args[1]),
        }
    }

    /// Converts a result computed in another way to the requested dtype.
    #[track_caller]
    pub(crate) fn returned(&self, product: Array) -> Array {
        let product = match self.preferred_element_type {
            Some(dtype) if dtype != product.dtype() => product.astype(dtype),
            _ => product,
        };
        match self.out_for(product.shape(), &[&product]) {
            Ok(Some(out)) if product.aval().sharding() != Some(&out) => product.sharded(&out),
            Ok(_) => product,
            Err(e) => Array::from_result(Err(e), &product),
        }
    }
}

/// The sizes of the dimensions that are neither contracted nor batched.
fn free_sizes(x: &Array, contract: &[usize], batch: &[usize]) -> Vec<usize> {
    let free = (0..x.ndim()).filter(|d| !contract.contains(d) && !batch.contains(d));
    free.map(|d| x.shape()[d]).collect()
}

/// Contracts the given dimensions of two arrays, batched over others; see `dot_general` in the StableHLO specification.
/// Operands of two dtypes are promoted; [`DotOptions`] has the precision.
///
/// ```
/// # use shardax::prelude::*;
/// // A batch of five matrices times vectors: contracts the dimensions 2 and 1, batches over 0 and 0.
/// let y = lax::dot_general(&ones([5, 2, 3]), &ones([5, 3]), (&[2], &[1]), (&[0], &[0]), None);
/// assert_eq!(y.shape(), [5, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn dot_general(
    lhs: impl ArrayLike,
    rhs: impl ArrayLike,
    contract: (&[usize], &[usize]),
    batch: (&[usize], &[usize]),
    preferred_element_type: Option<DType>,
) -> Array {
    let (lhs, rhs) = (&lhs.into_array(), &rhs.into_array());
    DotOptions::new().preferred_element_type(preferred_element_type).dot_general(lhs, rhs, contract, batch)
}
