//! JAX's promotion between dtypes.

use super::{Category, DType};
use crate::default_dtype;
use crate::error::{Result, err};

/// Returns the dtype of the result of an operation on `a` and `b`, and `true` if it is weak. It follows JAX's promotion
/// lattice ([type promotion semantics](https://docs.jax.dev/en/latest/type_promotion.html)).
///
/// Plain Rust numbers are weak: they adopt the other operand's dtype, unless their category is higher. Host data of 64
/// bits are weak too if their dtype was not stated ([`array`](crate::array())).
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::dtype::promote;
///
/// assert_eq!(promote((DType::U8, false), (DType::I8, false))?, (DType::I16, false));
/// assert_eq!(promote((DType::F8E5M2, false), (DType::F32, true))?, (DType::F8E5M2, false));
/// assert!(promote((DType::F8E5M2, false), (DType::F32, false)).is_err());
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if one of them is narrow (`int4`, `float8_e4m3fn`, …) and the other is neither a boolean nor a
/// plain number. Narrow floating point types also take integers.
pub fn promote(a: (DType, bool), b: (DType, bool)) -> Result<(DType, bool)> {
    if a.0 != b.0 && (a.0.is_key() || b.0.is_key()) {
        return Err(err!(
            Type,
            "dtypes {} and {} have no implicit promotion: random keys take part in none (TypePromotionError)",
            a.0,
            b.0
        )
        .help("read the words of keys with `random::key_data`, and make keys of words with `random::wrap_key_data`"));
    }
    if a.0 != b.0 && (a.0.is_narrow() || b.0.is_narrow()) {
        return promote_narrow(a, b);
    }
    Ok(match (a, b) {
        _ if a == b => a,
        ((a, true), (b, true)) => {
            // Between weak types the higher category wins with its default width, except that 64-bit host data keep
            // their width.
            let (low, high) = if weak_rank(a) >= weak_rank(b) { (b, a) } else { (a, b) };
            (if low == DType::F64 && high == DType::Complex64 { DType::Complex128 } else { high }, true)
        }
        ((w, true), (s, false)) | ((s, false), (w, true)) => promote_weak(w, s),
        ((a, false), (b, false)) => promote_strong(a, b),
    })
}

/// Promotes a narrow type and another one.
fn promote_narrow(a: (DType, bool), b: (DType, bool)) -> Result<(DType, bool)> {
    let (narrow, (other, weak)) = if a.0.is_narrow() { (a.0, b) } else { (b.0, a) };
    // A narrow type is kept only if the other type's values are converted to it without a rule of their own.
    let fits = !other.is_narrow()
        && match other.category() {
            Category::Bool => true,
            Category::Unsigned | Category::Signed => weak || narrow.is_float(),
            Category::Float => weak && narrow.is_float(),
            Category::Complex | Category::Key => false,
        };
    if fits {
        return Ok((narrow, false));
    }
    let kinds = if narrow.is_float() || other.is_narrow() && other.is_float() {
        "floats of 8 bits and fewer"
    } else {
        "integers of 4 bits and fewer"
    };
    Err(err!(
        Type,
        "dtypes {} and {} have no implicit promotion: {kinds} take part in none (TypePromotionError)",
        a.0,
        b.0
    )
    .help(format!(
        "convert one of them first, as by `x.astype(DType::{:?})`",
        if other.is_narrow() { DType::F32 } else { other }
    )))
}

fn weak_rank(dtype: DType) -> (Category, usize) {
    // Numbers are never weak booleans or unsigned; ranking by width makes the order total.
    (dtype.category(), dtype.byte_size())
}

/// Promotes a weak type with a strong one. The result is the strong type, or the smallest type of the weak type's
/// category that holds it.
fn promote_weak(weak: DType, strong: DType) -> (DType, bool) {
    let (w, s) = (weak.category(), strong.category());
    if w <= s || [w, s].iter().all(|c| matches!(c, Category::Signed | Category::Unsigned)) {
        return (strong, false);
    }
    match (w, strong) {
        (Category::Complex, DType::F64) => (DType::Complex128, false),
        // A float16 with a weak complex becomes complex64, strongly typed.
        (Category::Complex, d) if d.is_float() => (DType::Complex64, false),
        // A weak number of a higher category stays weak: int32 + 1.5 is a weak float32.
        _ => (weak, true),
    }
}

/// Promotes two strong types.
fn promote_strong(a: DType, b: DType) -> (DType, bool) {
    use DType::*;
    let (a, b) = if (a.category(), a.byte_size()) <= (b.category(), b.byte_size()) { (a, b) } else { (b, a) };
    let dtype = match (a, b) {
        _ if a == b => a,
        (Bool | Float0, other) => other,
        // No integer type holds both uint64 and a signed type, so the result is a weak float, as for an integer with a
        // plain float.
        (U64, I8 | I16 | I32 | I64) => return (default_dtype::for_number(F32), true),
        // An unsigned type with a signed type: the smallest signed type that holds both.
        (U8 | U16 | U32, I8 | I16 | I32 | I64) => {
            let wide = match a {
                U8 => I16,
                U16 => I32,
                _ => I64,
            };
            if wide.byte_size() > b.byte_size() { wide } else { b }
        }
        (F16, Bf16) | (Bf16, F16) => F32,
        (F64, Complex64) => Complex128,
        // Within a category the wider type wins; across categories the higher one.
        (_, high) => high,
    };
    (dtype, false)
}
