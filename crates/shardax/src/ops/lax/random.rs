//! Random bits from the device's generator.

use super::{bitcast_convert_type, reshape};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::error::err;
pub use crate::ops::primitive::rng_bit_generator::RandomAlgorithm;
use crate::ops::primitive::rng_bit_generator::RngBitGenerator;

/// Draws random bits with the device's generator. Returns the next state, and unsigned integers of `shape` and `dtype`.
///
/// `key` is the state, uint32 of `[4]` or uint64 of `[2]`. The bits differ between platforms, and can differ between
/// versions of XLA. The functions of [`random`](crate::random) use them for keys of
/// [`PrngImpl::Rbg`](crate::random::PrngImpl::Rbg).
///
/// ```
/// # use shardax::prelude::*;
/// let state = array([1u32, 2, 3, 4]);
/// let (state, bits) = lax::rng_bit_generator(&state, &[3], DType::U32, lax::RandomAlgorithm::Default);
/// let (_, next) = lax::rng_bit_generator(&state, &[3], DType::U32, lax::RandomAlgorithm::Default);
/// assert!(bits.not_equal(&next).all(..).item::<bool>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for a state of another type, or a dtype that is not an unsigned integer of 8 to 64 bits.
#[track_caller]
pub fn rng_bit_generator(key: &Array, shape: &[usize], dtype: DType, algorithm: RandomAlgorithm) -> (Array, Array) {
    let halves = key.dtype() == DType::U32 && key.shape() == [4];
    if !halves && (key.dtype() != DType::U64 || key.shape() != [2]) {
        let error = key.check().err().unwrap_or_else(|| {
            err!(Type, "rng_bit_generator requires a state of uint32[4] or uint64[2], got {}", key.type_name())
                .help("pass the words of a key of `rbg`, which `random::key_data` returns")
        });
        return (Array::from_result(Err(error.clone()), key), Array::from_result(Err(error), key));
    }
    let state = if halves { bitcast_convert_type(&reshape(key, &[2, 2]), DType::U64) } else { key.clone() };
    let outs = RngBitGenerator { shape: shape.into(), dtype, algorithm }.apply(&state);
    let next_state = if halves { reshape(&bitcast_convert_type(&outs[0], DType::U32), &[4]) } else { outs[0].clone() };
    (next_state, outs[1].clone())
}
