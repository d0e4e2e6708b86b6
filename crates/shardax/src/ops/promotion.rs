//! Promotion of operands to a common dtype, and broadcasting to a common shape: below `lax` and `numpy`, for both and for
//! the rules of primitives.

use super::primitive::binary::Convert;
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

/// Promotes the operands to their common dtype, without broadcasting.
#[track_caller]
pub(crate) fn promote_args_of(_name: &str, args: &[&Array]) -> Result<Vec<Array>> {
    promote_dtypes(args, |d| d)
}

/// Promotes the operands of a product; any two kinds of float8 stay what they are.
#[track_caller]
pub(crate) fn promote_factors(name: &str, x: &Array, y: &Array) -> Result<Vec<Array>> {
    x.check()?;
    y.check()?;
    match x.dtype().is_float8() && y.dtype().is_float8() {
        true => Ok(vec![x.clone(), y.clone()]),
        false => promote_args_of(name, &[x, y]),
    }
}

#[track_caller]
pub(crate) fn promote_dtypes(args: &[&Array], adjust: impl Fn(DType) -> DType) -> Result<Vec<Array>> {
    for a in args {
        a.check()?;
    }
    let mut types = args.iter().map(|a| (a.dtype(), a.weak_type()));
    let first = types.next().unwrap_or((DType::F32, true));
    let (dtype, weak) = types.try_fold(first, promote)?;
    let dtype = adjust(dtype);
    for a in args {
        if let Repr::Literal(l) = &a.0 {
            l.check_fits(dtype)?;
        }
    }
    Ok(args.iter().map(|a| convert(a, dtype, weak)).collect())
}

#[track_caller]
pub(crate) fn broadcast_args(name: &str, args: &[Array]) -> Result<Vec<Array>> {
    let first = args.iter().find(|a| a.ndim() > 0);
    let Some(first) = first else { return Ok(args.to_vec()) };
    if args.iter().all(|a| a.ndim() == 0 || a.shape() == first.shape()) {
        return Ok(args.to_vec());
    }
    let shapes: Vec<&[usize]> = args.iter().map(|a| a.shape()).collect();
    rank_promotion::check(name, &shapes)?;
    let Some(shape) = broadcast_shapes(&shapes) else {
        check_context(name, &args.iter().map(Array::aval).collect::<Vec<_>>())?;
        let types: Vec<String> = args.iter().map(|a| a.type_name()).collect();
        return Err(err!(Value, "{name} got incompatible shapes for broadcasting: {}", types.join(" and "))
            .help("from the last dimension backwards, sizes must be equal or 1; use `reshape` or `expand_dims` to line them up"));
    };
    // The cast precedes the broadcast: then its gradient is summed over devices after it has been reduced to its size.
    let vma = args.iter().fold(AxisSet::default(), |all, a| all.union(&a.vma()));
    let split = split_dims(args, &shape);
    let grown = |a: &Array| match a.shape() == shape.as_slice() {
        true => a.clone(),
        false => grown(&a.varying_over(&vma), &shape, split.as_ref()),
    };
    Ok(args.iter().map(|a| if a.ndim() == 0 { a.clone() } else { grown(a) }).collect())
}

/// The sharding that the operands of a broadcast have between them, in the dimensions of its `shape`.
fn split_dims(args: &[Array], shape: &[usize]) -> Option<Typed> {
    let types = || args.iter().filter_map(|a| Some((a, a.aval_ref()?.sharding()?)));
    let mesh = any_explicit().then(types)?.next()?.1.mesh().clone();
    let entry = |d: usize| {
        let own = |(a, typed): (&Array, &Typed)| {
            let own = (d + a.ndim()).checked_sub(shape.len())?;
            Some(typed.dims()[own].clone()).filter(|entry| a.shape()[own] == shape[d] && *entry != DimSpec::None)
        };
        types().find_map(own).unwrap_or_default()
    };
    Some(Typed::of_dims(&mesh, (0..shape.len()).map(entry).collect())).filter(|typed| !typed.is_replicated())
}

/// Broadcasts `a` to the sharding of the other operands: each device makes its part, and sums its part of the cotangent.
#[track_caller]
fn grown(a: &Array, shape: &[usize], split: Option<&Typed>) -> Array {
    let of = a.aval_ref().and_then(Aval::sharding);
    let Some(split) = split.filter(|split| of.is_none_or(|of| of.mesh() == split.mesh() && !of.is_partial())) else {
        return a.broadcast_to(shape);
    };
    let first = shape.len() - a.ndim();
    let repeats = |d: usize| d < first || a.shape()[d - first] != shape[d];
    let own = |d: usize| of.filter(|_| !repeats(d)).map_or(DimSpec::None, |of| of.dims()[d - first].clone());
    let taken: Vec<AxisName> = (0..shape.len()).flat_map(|d| own(d).axes().to_vec()).collect();
    let entry = |d: usize| match (own(d), &split.dims()[d]) {
        (DimSpec::None, other) if !other.axes().iter().any(|axis| taken.contains(axis)) => other.clone(),
        (own, _) => own,
    };
    let kept = |d: usize| if repeats(d) { DimSpec::None } else { entry(d) };
    let part = Typed::of_dims(split.mesh(), (first..shape.len()).map(kept).collect());
    let a = match of {
        Some(of) if *of != part => a.sharded(&part),
        _ => a.clone(),
    };
    let out = Typed::of_dims(split.mesh(), (0..shape.len()).map(entry).collect());
    a.broadcast_in_dim_as(shape, (first..shape.len()).collect(), out)
}

/// The floating point dtype for arithmetic that needs it: float64 for 64-bit integers, float32 for others and booleans.
/// With `enable_x64` integers of 32 bits become float64 too: Rust's integer literals stand for Python's, which have 64.
pub(crate) fn to_inexact(dtype: DType) -> DType {
    match dtype {
        DType::I64 | DType::U64 => DType::F64,
        DType::I32 | DType::U32 if crate::default_dtype::is_x64() => DType::F64,
        // Operations reject keys themselves, with an error that names them.
        d if d.category() >= Category::Float => d,
        _ => DType::F32,
    }
}
