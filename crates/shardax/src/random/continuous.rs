//! Samples of continuous distributions.

use super::bits::random_bits;
use super::keys::RandomKey;
use super::{sample, split_two};
use crate::core::array::Array;
use crate::default_dtype;
use crate::dtype::{DType, Format};
use crate::error::{Result, bail, err};
use crate::ops::constants::{float, integer};
use crate::ops::lax;
use crate::ops::numpy::{IntoShape, convert};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::binary::{ADD, DIV, MAX, MIN, MUL, NEXTAFTER, OR, SHIFT_RIGHT_LOGICAL, SUB};
use crate::ops::primitive::bitcast::BitcastConvert;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::reduce::accumulator;
use crate::ops::primitive::stop_gradient::stop_gradient;
use crate::ops::primitive::unary::{ABS, ERF, ERF_INV_OF_XLA, LOG, LOG1P, NEG, SIGN, TAN};
use crate::shape::{Shape, broadcast_shapes};

/// Properties of a floating point dtype.
pub(super) struct Float {
    /// Explicit bits of the mantissa.
    mantissa: usize,
    /// The bits of 1.
    one: i128,
    /// The smallest normal number.
    pub(super) tiny: f64,
}

impl Float {
    pub(super) fn of(name: &str, dtype: DType) -> Result<Float> {
        let (mantissa, one, exponent) = match dtype {
            DType::F16 => (10, 0x3C00, -14),
            DType::Bf16 => (7, 0x3F80, -126),
            DType::F32 => (23, 0x3F80_0000, -126),
            DType::F64 => (52, 0x3FF0_0000_0000_0000, -1022),
            _ if let Some(format) =
                Format::of(dtype).filter(|_| !matches!(dtype, DType::F4E2M1Fn | DType::F8E8M0Fnu)) =>
            {
                let exponent = format.smallest_normal().log2() as i32;
                (format.mantissa as usize, format.encode(1.0).into(), exponent)
            }
            _ => {
                return Err(err!(Type, "dtype argument to `{name}` must be a float dtype, got {dtype}")
                    .help("use DType::F32, F64, F16 or Bf16, and convert the result with `astype`"));
            }
        };
        Ok(Float { mantissa, one, tiny: 2f64.powi(exponent) })
    }

    /// The distance from 1 to the next larger number, which is twice the distance to the next smaller number.
    fn eps(&self) -> f64 {
        2f64.powi(-(self.mantissa as i32))
    }
}

/// The unsigned integer dtype of this many bits.
pub(super) fn unsigned(bits: usize) -> DType {
    match bits {
        8 => DType::U8,
        16 => DType::U16,
        32 => DType::U32,
        _ => DType::U64,
    }
}

/// Uniform samples from `min` to `max`, which are scalars or arrays that broadcast to the shape.
pub(crate) fn uniform_traced(key: &Array, shape: &[usize], dtype: DType, min: &Array, max: &Array) -> Result<Array> {
    let form = Float::of("uniform", dtype)?;
    // A random mantissa with the exponent of 1 is uniform from 1 to 2.
    let width = if form.mantissa < 8 { 8 } else { dtype.bits() };
    let uint = unsigned(dtype.bits());
    let bits = random_bits(key, shape, width).astype(uint);
    let mantissa = SHIFT_RIGHT_LOGICAL.apply(&bits, &integer((width - form.mantissa) as i128, uint));
    let from_one = BitcastConvert { dtype }.apply(&OR.apply(&mantissa, &integer(form.one, uint)));
    let unit = SUB.apply(&from_one, &float(1.0, dtype));
    let (min, max) = (broadcast_array(min, shape), broadcast_array(max, shape));
    let scaled = ADD.apply(&MUL.apply(&unit, &SUB.apply(&max, &min)), &min);
    Ok(MAX.apply(&min, &scaled))
}

/// Broadcasts an array to the shape. Scalars stay scalars, because the binary operations broadcast them.
pub(super) fn broadcast_array(x: &Array, shape: &[usize]) -> Array {
    if x.ndim() == 0 { x.clone() } else { x.broadcast_to(shape) }
}

/// Converts a parameter to the dtype in which its samples are drawn. Plain numbers and arrays of literals, which are float64 with a weak
/// type, have the default dtype, because samples of another dtype are other numbers.
pub(super) fn parameter(x: &Array) -> Array {
    let adopts_default = x.weak_type() && x.dtype().is_float();
    convert(x, if adopts_default { default_dtype::float() } else { x.dtype() }, false)
}

/// Uniform samples from one number to another.
fn uniform_numbers(key: &Array, shape: &[usize], dtype: DType, min: f64, max: f64) -> Result<Array> {
    // The bounds are constants of the dtype, so that the width of the interval is rounded like the samples.
    uniform_traced(key, shape, dtype, &float(min, dtype), &float(max, dtype))
}

/// Uniform from 0 to 1.
pub(super) fn unit_uniform(key: &Array, shape: &[usize], dtype: DType) -> Result<Array> {
    uniform_numbers(key, shape, dtype, 0.0, 1.0)
}

/// Exponential with rate 1.
pub(super) fn standard_exponential(key: &Array, shape: &[usize], dtype: DType) -> Result<Array> {
    Ok(NEG.apply(&LOG1P.apply(&NEG.apply(&unit_uniform(key, shape, dtype)?))))
}

pub(crate) fn check_broadcast(name: &str, shape: &[usize], params: &[&Array]) -> Result<()> {
    for p in params {
        p.check()?;
        check_broadcast_shape(name, shape, p.shape())?;
    }
    Ok(())
}

pub(crate) fn check_broadcast_shape(name: &str, shape: &[usize], param: &[usize]) -> Result<()> {
    if broadcast_shapes(&[shape, param]).is_some_and(|s| s.as_slice() == shape) {
        return Ok(());
    }
    Err(err!(
        Value,
        "{name} parameter shapes must be broadcast-compatible with shape argument, and the result of broadcasting the shapes must equal the shape argument, but got a parameter of shape {param:?} for shape {shape:?}"
    ).help("pass the shape that the parameters broadcast to, or reshape the parameters"))
}

/// Draws uniformly from `[0, 1)`, float32.
///
/// ```
/// # use shardax::prelude::*;
/// let x = random::uniform(&random::key(0), [1000]).to_vec::<f32>()?;
/// assert!(x.iter().all(|v| (0.0..1.0).contains(v)));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn uniform(key: impl RandomKey, shape: impl IntoShape) -> Array {
    let key = key.borrow();
    let dtype = default_dtype::float();
    sample("uniform", key, shape, dtype, |shape| {
        composite1("uniform_unit", (shape, dtype), std::slice::from_ref(key), |(shape, dtype), args| {
            Ok(vec![uniform_numbers(&args[0], shape, *dtype, 0.0, 1.0)?])
        })
    })
}

/// Draws uniformly from `[minval, maxval)`, which broadcast to the shape.
///
/// ```
/// # use shardax::prelude::*;
/// let x = random::uniform_dtype(random::key(0), [100], DType::F32, -1, 1);
/// assert!((x.greater_equal(-1) & x.less(1)).all(..).item::<bool>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for a dtype that is not floating point.
#[track_caller]
pub fn uniform_dtype(
    key: impl RandomKey,
    shape: impl IntoShape,
    dtype: DType,
    minval: impl ArrayLike,
    maxval: impl ArrayLike,
) -> Array {
    let key = key.borrow();
    let (min, max) = (minval.into_array(), maxval.into_array());
    sample("uniform", key, shape, dtype, |shape| {
        Float::of("uniform", dtype)?;
        check_broadcast("uniform", &shape, &[&min, &max])?;
        let args = [key.clone(), convert(&min, dtype, false), convert(&max, dtype, false)];
        composite1("uniform", (shape, dtype), &args, |(shape, dtype), args| {
            Ok(vec![uniform_traced(&args[0], shape, *dtype, &args[1], &args[2])?])
        })
    })
}

pub(super) fn normal_traced(key: &Array, shape: &[usize], dtype: DType) -> Result<Array> {
    if dtype.is_complex() {
        let [re, im] = split_two(key);
        let real = dtype.real();
        let sample = lax::complex(&normal_traced(&re, shape, real)?, &normal_traced(&im, shape, real)?);
        return Ok(DIV.apply(&sample, &float(2f64.sqrt(), dtype)));
    }
    // The interval is open at -1, where the inverse error function is infinite.
    let above_minus_one = -1.0 + Float::of("normal", dtype)?.eps() / 2.0;
    let u = uniform_numbers(key, shape, dtype, above_minus_one, 1.0)?;
    Ok(MUL.apply(&float(2f64.sqrt(), dtype), &ERF_INV_OF_XLA.apply(&u)))
}

/// Draws from a normal distribution with mean 0 and variance 1, float32.
///
/// ```
/// # use shardax::prelude::*;
/// let x = random::normal(&random::key(42), ());
/// assert!((x.item::<f32>()? - -0.028304616).abs() < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn normal(key: impl RandomKey, shape: impl IntoShape) -> Array {
    let key = key.borrow();
    normal_dtype(key, shape, default_dtype::float())
}

/// Draws from a normal distribution with mean 0 and variance 1. The variance of a complex sample is the sum of the
/// variances of both parts.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(random::normal_dtype(random::key(0), [2], DType::Bf16).type_name(), "bfloat16[2]");
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for a dtype that is neither floating point nor complex.
#[track_caller]
pub fn normal_dtype(key: impl RandomKey, shape: impl IntoShape, dtype: DType) -> Array {
    let key = key.borrow();
    sample("normal", key, shape, dtype, |shape| {
        if !dtype.is_inexact() {
            bail!(Type, "dtype argument to `normal` must be a float or complex dtype, got {dtype}");
        }
        composite1("normal", (shape, dtype), std::slice::from_ref(key), |(shape, dtype), args| {
            Ok(vec![normal_traced(&args[0], shape, *dtype)?])
        })
    })
}

/// Draws uniformly distributed orthogonal matrices, float32 of `[n, n]`.
///
/// ```
/// # use shardax::prelude::*;
/// let q = random::orthogonal(&random::key(0), 3);
/// assert!(allclose(q.matmul(q.mt()), eye(3), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn orthogonal(key: impl RandomKey, n: usize) -> Array {
    let key = key.borrow();
    orthogonal_dtype(key, [n, n], (), default_dtype::float())
}

/// Draws uniformly distributed orthogonal matrices of `n` rows and `m` columns: an array of `[..shape, n, m]`. The rows
/// are orthonormal if `n < m`, otherwise the columns are. Complex matrices are unitary.
///
/// # Errors
/// The result carries an error for a dtype that is neither floating point nor complex, and for half precision.
#[track_caller]
pub fn orthogonal_dtype(key: impl RandomKey, sides: [usize; 2], shape: impl IntoShape, dtype: DType) -> Array {
    let key = key.borrow();
    sample("orthogonal", key, shape, dtype, |shape| {
        if !dtype.is_inexact() || dtype.byte_size() < 4 {
            return Err(err!(
                Type,
                "dtype argument to `orthogonal` must be float32, float64 or a complex dtype, got {dtype}"
            )
            .help("use DType::F32, and convert the result with `astype`"));
        }
        orthogonal_matrices(key, sides, &shape, dtype)
    })
}

/// Like [`orthogonal_dtype`], but also accepts half precision, which is decomposed in float32.
pub(crate) fn orthogonal_matrices(key: &Array, [n, m]: [usize; 2], shape: &[usize], dtype: DType) -> Result<Array> {
    let (rows, columns) = (n.max(m), n.min(m));
    let params = (Shape::from_slice(shape), dtype, rows, columns);
    let q = composite1("orthogonal", params, std::slice::from_ref(key), |params, args| {
        let (shape, dtype, rows, columns) = params;
        let shape = [shape, &[*rows, *columns][..]].concat();
        let normal = normal_traced(&args[0], &shape, *dtype)?.astype(accumulator(*dtype));
        let (q, r) = lax::linalg::qr(&normal, lax::linalg::QrMode::Reduced);
        // All matrices are equally likely only if the diagonal of `r` is positive
        // (Mezzadri, https://arxiv.org/abs/math-ph/0609050).
        Ok(vec![(q * SIGN.apply(&r.last_diagonal(0)).expand_dims(-2)).astype(*dtype)])
    })?;
    Ok(if n < m { q.mt() } else { q })
}

/// Draws from a normal distribution with mean 0 and variance 1, truncated to the open interval from `lower` to `upper`;
/// float32.
///
/// ```
/// # use shardax::prelude::*;
/// let x = random::truncated_normal(random::key(0), -1.0, 1.0, [100]);
/// assert!(x.abs().less(1).all(..).item::<bool>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn truncated_normal(
    key: impl RandomKey,
    lower: impl ArrayLike,
    upper: impl ArrayLike,
    shape: impl IntoShape,
) -> Array {
    let key = key.borrow();
    truncated_normal_dtype(key, lower, upper, shape, default_dtype::float())
}

/// Like [`truncated_normal`], of a floating point dtype.
#[track_caller]
pub fn truncated_normal_dtype(
    key: impl RandomKey,
    lower: impl ArrayLike,
    upper: impl ArrayLike,
    shape: impl IntoShape,
    dtype: DType,
) -> Array {
    let key = key.borrow();
    let (lower, upper) = (lower.into_array(), upper.into_array());
    sample("truncated_normal", key, shape, dtype, |shape| {
        Float::of("truncated_normal", dtype)?;
        check_broadcast("truncated_normal", &shape, &[&lower, &upper])?;
        let args = [key.clone(), convert(&lower, dtype, false), convert(&upper, dtype, false)];
        composite1("truncated_normal", (shape, dtype), &args, |(shape, dtype), args| {
            let dtype = *dtype;
            let (lower, upper) = (broadcast_array(&args[1], shape), broadcast_array(&args[2], shape));
            let root = float(2f64.sqrt(), dtype);
            let [erf_lower, erf_upper] = [&lower, &upper].map(|x| ERF.apply(&DIV.apply(x, &root)));
            let u = uniform_traced(&args[0], shape, dtype, &erf_lower, &erf_upper)?;
            let x = MUL.apply(&root, &ERF_INV_OF_XLA.apply(&u));
            // Rounding must not push a sample out of the open interval.
            let x = MAX.apply(&x, &neighbor_towards(&lower, f64::INFINITY));
            Ok(vec![MIN.apply(&x, &neighbor_towards(&upper, f64::NEG_INFINITY))])
        })
    })
}

/// The number next to `x` in the direction of `limit`, as a constant for gradients.
fn neighbor_towards(x: &Array, limit: f64) -> Array {
    NEXTAFTER.apply(&stop_gradient(x.clone()), &float(limit, x.dtype()))
}

pub(crate) fn gumbel_traced(key: &Array, shape: &[usize], dtype: DType) -> Result<Array> {
    let u = uniform_numbers(key, shape, dtype, Float::of("gumbel", dtype)?.tiny, 1.0)?;
    Ok(NEG.apply(&LOG.apply(&NEG.apply(&LOG.apply(&u)))))
}

macro_rules! standard_samplers {
    ($($(#[$doc:meta])* $name:ident $name_dtype:ident $text:literal => $body:expr;)*) => {$(
        $(#[$doc])*
        /// Float32.
        #[track_caller]
        pub fn $name(key: impl RandomKey, shape: impl IntoShape) -> Array {
    let key = key.borrow();
            $name_dtype(key, shape, $crate::default_dtype::float())
        }

        $(#[$doc])*
        /// Of a floating point dtype; fails for any other.
        #[track_caller]
        pub fn $name_dtype(key: impl RandomKey, shape: impl IntoShape, dtype: DType) -> Array {
    let key = key.borrow();
            sample($text, key, shape, dtype, |shape| {
                Float::of($text, dtype)?;
                composite1($text, (shape, dtype), std::slice::from_ref(key), |(shape, dtype), args| {
                    let body: fn(&Array, &[usize], DType) -> Result<Array> = $body;
                    Ok(vec![body(&args[0], shape, *dtype)?])
                })
            })
        }
    )*};
}

standard_samplers! {
    /// Standard Gumbel: `-log(-log(u))`.
    gumbel gumbel_dtype "gumbel" => gumbel_traced;
    /// Exponential with rate 1.
    exponential exponential_dtype "exponential" => standard_exponential;
    /// Laplace with mean 0 and scale 1.
    laplace laplace_dtype "laplace" => |key, shape, dtype| {
        let above_minus_one = -1.0 + Float::of("laplace", dtype)?.eps() / 2.0;
        let u = uniform_numbers(key, shape, dtype, above_minus_one, 1.0)?;
        Ok(MUL.apply(&SIGN.apply(&u), &LOG1P.apply(&NEG.apply(&ABS.apply(&u)))))
    };
    /// Standard logistic: `log(u / (1 - u))`.
    logistic logistic_dtype "logistic" => |key, shape, dtype| {
        let u = uniform_numbers(key, shape, dtype, Float::of("logistic", dtype)?.tiny, 1.0)?;
        Ok(SUB.apply(&LOG.apply(&u), &LOG1P.apply(&NEG.apply(&u))))
    };
    /// Standard Cauchy.
    cauchy cauchy_dtype "cauchy" => |key, shape, dtype| {
        let u = uniform_numbers(key, shape, dtype, Float::of("cauchy", dtype)?.eps(), 1.0)?;
        let centered = SUB.apply(&u, &float(0.5, dtype));
        Ok(TAN.apply(&MUL.apply(&float(std::f64::consts::PI, dtype), &centered)))
    };
}
