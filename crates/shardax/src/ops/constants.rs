//! Arrays that depend on their parameters alone: copied from the host, or computed on the devices.

use super::primitive::shape_ops::BroadcastInDim;
use crate::core::array::Array;
use crate::core::array::host::place;
use crate::core::program::Aval;
use crate::core::program::trace::{bind1, is_tracing};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, err};
use crate::sharding::Typed;
use crate::sharding::context::explicit_mesh;
use crate::source;

/// A constant array of `value`, of `dtype`.
#[track_caller]
pub(crate) fn filled(shape: &[usize], value: Scalar, dtype: DType) -> Array {
    full_of(&Aval::new(dtype, shape), value)
}

/// A constant array of `value`, of this type.
#[track_caller]
pub(crate) fn full_of(aval: &Aval, value: Scalar) -> Array {
    if aval.dtype.is_key() && !value.is_zero() {
        let e = err!(Type, "an array of {aval} cannot be filled with the number {value:?}")
            .help("repeat a key with `full` or `full_like`");
        return Array::from_result(Err(e), &Array::literal(Scalar::Int(0), aval.dtype, false));
    }
    let element = scalar_bytes(value, aval.dtype);
    let number = Array::literal(Scalar::read(aval.dtype, &element), aval.dtype, aval.weak);
    if aval.shape.is_empty() {
        return number;
    }
    made(
        aval,
        |bytes, count| (0..count).for_each(|_| bytes.extend_from_slice(&element)),
        || {
            let (shape, out) = (aval.shape.clone(), aval.sharding.clone());
            Ok(bind1(BroadcastInDim { shape, dims: Default::default(), out }, std::slice::from_ref(&number)))
        },
    )
}

/// `made` with the sharding of this type, or else on all devices of the context mesh where types have shardings.
#[track_caller]
pub(crate) fn typed_as(made: Array, aval: &Aval) -> Array {
    match aval.sharding().cloned().or_else(|| Some(Typed::replicated(&explicit_mesh()?, aval.rank()))) {
        Some(typed) => made.sharded(&typed),
        None => made,
    }
}

/// Up to this size, copying from the host is faster than compiling. Larger arrays would be in memory twice.
const FROM_HOST: usize = 64 << 20;

/// An array that only depends on its parameters: the bytes that `fill` appends, for that many elements, or, in a
/// trace or if it is large, the result of `program`. An array that does not fit into memory is an error.
#[track_caller]
pub(crate) fn made(
    aval: &Aval,
    fill: impl FnOnce(&mut Vec<u8>, usize),
    program: impl FnOnce() -> Result<Array, Error>,
) -> Array {
    let _line = source::enter();
    let make = |size: usize| {
        if is_tracing() {
            return program();
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size).map_err(|e| {
            err!(Runtime, "no memory for an array {aval} of {size} bytes: {e}")
                .help("check the shape, or make the array in parts with a sharding")
        })?;
        if size > FROM_HOST {
            drop(bytes);
            return program();
        }
        fill(&mut bytes, aval.size());
        Ok(typed_as(place(&bytes, aval.clone())?, aval))
    };
    Array::from_result(aval.byte_size().and_then(make), &Array::literal(Scalar::Int(0), aval.dtype, aval.weak))
}

pub(crate) fn scalar_bytes(value: Scalar, dtype: DType) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    value.write(dtype, &mut bytes);
    bytes
}
