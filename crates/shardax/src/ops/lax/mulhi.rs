//! The high half of integer products.

use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::DType;
use crate::error::err;
use crate::ops::elementwise::{bitwise_and, right_shift};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::promotion::promote_dtypes;
use crate::ops::select::where_;

/// Returns the upper half of the bits of an integer product: of the `2n` bits of the product of two integers of `n` bits, the
/// upper `n`, in the operands' dtype.
///
/// ```
/// # use shardax::prelude::*;
/// let high = lax::mulhi(array([1u32 << 31, 3]), array([6u32, 5]));
/// assert_eq!(high.to_vec::<u32>()?, [3, 0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for operands that are not integers.
#[track_caller]
pub fn mulhi(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let (x, y) = (x.into_array(), y.into_array());
    or_failed(&x, || {
        let args = promote_dtypes(&[&x, &y], |d| d)?;
        let dtype = args[0].dtype();
        if !dtype.is_integer() {
            return Err(err!(Type, "mulhi requires integers, got {} and {}", x.type_name(), y.type_name())
                .help("convert the operands with `astype`, for example to DType::U32"));
        }
        composite1("mulhi", (), &args, |(), args| {
            let high = if args[0].dtype().bits() < 64 { high_half(&args[0], &args[1]) } else { high_half_of_64(args) };
            Ok(vec![high])
        })
    })
}

/// The high half of products that fit 64 bits.
fn high_half(x: &Array, y: &Array) -> Array {
    let (dtype, bits) = (x.dtype(), x.dtype().bits() as i32);
    let wide = if dtype.is_signed() { DType::I64 } else { DType::U64 };
    right_shift(x.astype(wide) * y.astype(wide), bits).astype(dtype)
}

const LOW_HALF: u64 = 0xffff_ffff;

/// The high half of products of 64 bits, from the four products of halves of 32 bits.
fn high_half_of_64(args: &[Array]) -> Array {
    let dtype = args[0].dtype();
    let [x, y] = [&args[0], &args[1]].map(|a| a.astype(DType::U64));
    let [[x_low, x_high], [y_low, y_high]] = [&x, &y].map(|a| [bitwise_and(a, LOW_HALF), right_shift(a, 32u64)]);
    let low = &x_low * &y_low;
    let middle = &x_high * &y_low + right_shift(low, 32u64);
    let other_middle = x_low * &y_high + bitwise_and(&middle, LOW_HALF);
    let high = x_high * y_high + right_shift(middle, 32u64) + right_shift(other_middle, 32u64);
    if !dtype.is_signed() {
        return high;
    }
    // As an unsigned number, a negative number is larger by 2⁶⁴, so its product is larger by the other operand in the high half.
    let excess = where_(args[0].less(0), &y, 0u64) + where_(args[1].less(0), &x, 0u64);
    (high - excess).astype(dtype)
}
