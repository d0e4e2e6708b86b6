//! Promotion of operands to a common dtype, and broadcasting to a common shape. `lax`, `numpy` and the rules of
//! primitives use these functions.

use super::constants::integer;
use super::primitive::binary::{Convert, MAX, MIN};
use super::primitive::reduce::{highest, lowest};
use crate::core::array::{Array, Repr};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::core::sharding_rule::check_context;
use crate::dtype::{Category, DType, promote};
use crate::error::{Result, err};
use crate::rank_promotion;
use crate::shape::{AxisName, AxisSet, broadcast_shapes};
use crate::sharding::abstract_mesh::any_explicit;
use crate::sharding::{DimSpec, Typed};

/// Converts `x` to `dtype`; `weak` makes the result weakly typed.
#[track_caller]
pub(crate) fn convert(x: &Array, dtype: DType, weak: bool) -> Array {
    if x.dtype() == dtype && x.weak_type() == weak {
        return x.clone();
    }
    if let Repr::Literal(l) = &x.0
        && !dtype.is_key()
        && !l.dtype.is_key()
    {
        return Array::literal(l.value.converted(dtype), dtype, weak);
    }
    bind1(Convert { dtype, weak }, std::slice::from_ref(x))
}

/// Converts `x` to `dtype`, strongly typed (see
/// [`Aval::strip_weak_type`](crate::core::program::Aval::strip_weak_type)).
#[track_caller]
pub(crate) fn to_strong_type(x: &Array, dtype: DType) -> Array {
    convert(x, dtype, x.weak_type() && x.dtype().is_wide() && dtype.is_wide())
}

/// Promotes the operands to their common dtype and, if their shapes differ, broadcasts them.
/// Scalars stay scalars: elementwise primitives broadcast them.
#[track_caller]
pub(crate) fn promote_args(name: &str, args: &[&Array]) -> Result<Vec<Array>> {
    promote_args_to(name, args, |d| d)
}

/// Like [`promote_args`], with the common dtype changed by `adjust`.
#[track_caller]
pub(crate) fn promote_args_to(name: &str, args: &[&Array], adjust: impl Fn(DType) -> DType) -> Result<Vec<Array>> {
    broadcast_args(name, &promote_dtypes(args, adjust)?)
}

/// Like [`promote_args_to`], for two operands, without allocating memory in the usual case, which runs before every
/// eager operation: their shapes are equal, or one is a scalar.
#[track_caller]
pub(crate) fn promote_two_to(name: &str, args: [&Array; 2], adjust: impl Fn(DType) -> DType) -> Result<[Array; 2]> {
    let (dtype, weak) = common_type(&args, adjust)?;
    let args = args.map(|a| convert(a, dtype, weak));
    let [x, y] = &args;
    if x.ndim() == 0 || y.ndim() == 0 || x.shape() == y.shape() {
        return Ok(args);
    }
    let args = broadcast_args(name, &args)?;
    Ok([args[0].clone(), args[1].clone()])
}

/// Promotes the operands to their common dtype, without broadcasting.
#[track_caller]
pub(crate) fn promote_args_of(_name: &str, args: &[&Array]) -> Result<Vec<Array>> {
    promote_dtypes(args, |d| d)
}

/// Promotes the operands of a product. Two float8 dtypes stay, because products accept any two of them.
#[track_caller]
pub(crate) fn promote_factors(name: &str, x: &Array, y: &Array) -> Result<Vec<Array>> {
    x.check()?;
    y.check()?;
    if x.dtype().is_float8() && y.dtype().is_float8() {
        Ok(vec![x.clone(), y.clone()])
    } else {
        promote_args_of(name, &[x, y])
    }
}

#[track_caller]
pub(crate) fn promote_dtypes(args: &[&Array], adjust: impl Fn(DType) -> DType) -> Result<Vec<Array>> {
    let (dtype, weak) = common_type(args, adjust)?;
    Ok(args.iter().map(|a| convert(a, dtype, weak)).collect())
}

/// Returns the common dtype of valid operands, and whether it is weak. Fails for a number that does not fit it.
#[track_caller]
fn common_type(args: &[&Array], adjust: impl Fn(DType) -> DType) -> Result<(DType, bool)> {
    for a in args {
        a.check()?;
    }
    let mut types = args.iter().map(|a| (a.dtype(), a.weak_type()));
    let initial = types.next().unwrap_or((DType::F32, true));
    let (dtype, weak) = types.try_fold(initial, promote)?;
    let dtype = adjust(dtype);
    for a in args {
        if let Repr::Literal(l) = &a.0 {
            l.check_fits(dtype)?;
        }
    }
    Ok((dtype, weak))
}

/// Broadcasts operands to their common shape, if the rule of [`rank_promotion`] allows it.
#[track_caller]
pub(crate) fn broadcast_args(name: &str, args: &[Array]) -> Result<Vec<Array>> {
    rank_promotion::check(name, args.iter().map(Array::shape))?;
    broadcast_any_ranks(name, args)
}

/// Broadcasts operands to their common shape, whatever their ranks.
#[track_caller]
pub(crate) fn broadcast_any_ranks(name: &str, args: &[Array]) -> Result<Vec<Array>> {
    let Some(first) = args.iter().find(|a| a.ndim() > 0) else { return Ok(args.to_vec()) };
    if args.iter().all(|a| a.ndim() == 0 || a.shape() == first.shape()) {
        return Ok(args.to_vec());
    }
    let shapes: Vec<&[usize]> = args.iter().map(|a| a.shape()).collect();
    let Some(shape) = broadcast_shapes(&shapes) else {
        check_context(name, &args.iter().map(Array::aval).collect::<Vec<_>>())?;
        let types: Vec<String> = args.iter().map(|a| a.type_name()).collect();
        return Err(err!(Value, "{name} got incompatible shapes for broadcasting: {}", types.join(" and "))
            .help("from the last dimension backwards, sizes must be equal or 1; use `reshape` or `expand_dims` to line them up"));
    };
    // The cast precedes the broadcast, so that its gradient is reduced to the operand's size before it is summed over
    // devices.
    let vma = args.iter().fold(AxisSet::default(), |axes, a| axes.union(&a.vma()));
    let split = common_sharding(args, &shape);
    let broadcast = args.iter().map(|a| {
        if a.ndim() == 0 || a.shape() == shape.as_slice() {
            a.clone()
        } else {
            broadcast_sharded(&a.varying_over(&vma), &shape, split.as_ref())
        }
    });
    Ok(broadcast.collect())
}

/// Combines the shardings of the operands of a broadcast, in the dimensions of its result. Returns `None` if no operand
/// is sharded.
fn common_sharding(args: &[Array], shape: &[usize]) -> Option<Typed> {
    if !any_explicit() {
        return None;
    }
    let typed_args: Vec<(&Array, &Typed)> = args.iter().filter_map(|a| Some((a, a.aval_ref()?.sharding()?))).collect();
    let mesh = typed_args.first()?.1.mesh().clone();
    // In each dimension the first operand that is sharded and not broadcast decides.
    let dims = (0..shape.len()).map(|d| {
        let entry = typed_args.iter().find_map(|(a, typed)| {
            let dim = (d + a.ndim()).checked_sub(shape.len())?;
            Some(typed.dims()[dim].clone()).filter(|entry| a.shape()[dim] == shape[d] && *entry != DimSpec::None)
        });
        entry.unwrap_or_default()
    });
    Some(Typed::from_dims(&mesh, dims.collect())).filter(|typed| !typed.is_replicated())
}

/// Broadcasts `a` to the sharding of the other operands, so that each device computes its part, and sums its part of the
/// cotangent.
#[track_caller]
fn broadcast_sharded(a: &Array, shape: &[usize], split: Option<&Typed>) -> Array {
    let typed = a.aval_ref().and_then(Aval::sharding);
    let Some(split) = split.filter(|split| typed.is_none_or(|t| t.mesh() == split.mesh() && !t.is_partial())) else {
        return a.broadcast_to(shape);
    };
    let leading = shape.len() - a.ndim();
    let repeats: Vec<bool> = (0..shape.len()).map(|d| d < leading || a.shape()[d - leading] != shape[d]).collect();
    // The dimensions of the result as `a` is sharded, extended by the other operands' axes that `a` does not use.
    let mut entries: Vec<DimSpec> = (0..shape.len())
        .map(|d| typed.filter(|_| !repeats[d]).map_or(DimSpec::None, |typed| typed.dims()[d - leading].clone()))
        .collect();
    let used: Vec<AxisName> = entries.iter().flat_map(|entry| entry.axes().to_vec()).collect();
    for (entry, other) in entries.iter_mut().zip(split.dims()) {
        if *entry == DimSpec::None && !other.axes().iter().any(|axis| used.contains(axis)) {
            *entry = other.clone();
        }
    }
    let operand_dims = (leading..shape.len()).map(|d| if repeats[d] { DimSpec::None } else { entries[d].clone() });
    let operand = Typed::from_dims(split.mesh(), operand_dims.collect());
    let a = match typed {
        Some(typed) if *typed != operand => a.sharded(&operand),
        _ => a.clone(),
    };
    let out = Typed::from_dims(split.mesh(), entries.into_iter().collect());
    a.broadcast_in_dim_as(shape, (leading..shape.len()).collect(), out)
}

/// The floating point dtype for arithmetic that needs one: float64 for 64-bit integers, float32 for other integers and
/// booleans. With `enable_x64`, 32-bit integers become float64 too, because Rust's integer literals have 32 bits where
/// Python's have 64.
pub(crate) fn to_inexact(dtype: DType) -> DType {
    match dtype {
        DType::I64 | DType::U64 => DType::F64,
        DType::I32 | DType::U32 if crate::default_dtype::is_x64() => DType::F64,
        // Operations reject keys themselves, with an error that names them.
        d if d.category() >= Category::Float => d,
        _ => DType::F32,
    }
}

/// Converts integers to the integer dtype `dtype`. Values out of its range become its smallest or its largest number, while
/// `astype` would keep their low bits.
pub(crate) fn convert_clamped(x: &Array, dtype: DType) -> Array {
    let source = x.dtype();
    if !source.is_integer() {
        return x.astype(dtype);
    }
    let low = lowest(dtype).to_i128().max(lowest(source).to_i128());
    let high = highest(dtype).to_i128().min(highest(source).to_i128());
    MIN.apply(&MAX.apply(x, &integer(low, source)), &integer(high, source)).astype(dtype)
}
