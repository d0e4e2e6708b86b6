//! Shared rules of elementwise primitives: shape inference, lowering and batching.
//!
//! Operands have one shape, or are scalars: a scalar is broadcast implicitly, so `x * 2` needs no broadcast operation.

use smallvec::{SmallVec, smallvec};

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::{Result, err};

/// The dtypes that an operation accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepts {
    Any,
    Number,
    Real,
    /// Integers and floats.
    Ordered,
    Inexact,
    /// Types that matrices can be decomposed in: half precision is too coarse.
    Decomposable,
    Float,
    /// The parts of complex numbers: float32 and float64.
    Part,
    Complex,
    Integer,
    /// Integers and booleans.
    Bits,
    /// Floats, complex numbers, and signed integers.
    Signed,
}

impl Accepts {
    pub fn check(self, name: &str, dtype: DType) -> Result<()> {
        let (ok, what) = match self {
            Accepts::Any => (true, ""),
            Accepts::Number => (dtype != DType::Bool, "numbers"),
            Accepts::Real => (!dtype.is_complex(), "real types"),
            Accepts::Ordered => (dtype.is_integer() || dtype.is_float(), "integers and floating point types"),
            Accepts::Part => (matches!(dtype, DType::F32 | DType::F64), "float32 and float64"),
            Accepts::Inexact => (dtype.is_inexact(), "floating point and complex types"),
            Accepts::Decomposable => {
                (dtype.is_inexact() && dtype.bits() >= 32, "float32, float64, complex64 and complex128")
            }
            Accepts::Float => (dtype.is_float(), "floating point types"),
            Accepts::Complex => (dtype.is_complex(), "complex types"),
            Accepts::Integer => (dtype.is_integer(), "integers"),
            Accepts::Bits => (dtype.is_integer() || dtype == DType::Bool, "integers and booleans"),
            Accepts::Signed => {
                (dtype.is_inexact() || dtype.is_signed(), "signed integers, floating point and complex types")
            }
        };
        if ok {
            return Ok(());
        }
        Err(err!(Type, "{name} does not accept dtype {dtype}. Accepted dtypes are {what}.")
            .help("convert the operand with `astype`"))
    }
}

/// The common shape of the operands.
pub(crate) fn shape_of(name: &str, args: &[Aval]) -> Result<Aval> {
    let mut out = args[0].clone();
    for arg in &args[1..] {
        if out.shape.is_empty() {
            out.shape = arg.shape.clone();
        } else if !arg.shape.is_empty() && arg.shape != out.shape {
            let types: Vec<_> = args.iter().map(|a| a.to_string()).collect();
            return Err(err!(Type, "{name} got arrays of different shapes: {}", types.join(", "))
                .help("operands of an elementwise operation must have the same shape, or be scalars"));
        }
    }
    out.weak = args.iter().all(|a| a.weak);
    Ok(out)
}

/// The operands' common dtype, checked.
pub(crate) fn dtype_of(name: &str, accepts: Accepts, args: &[Aval]) -> Result<DType> {
    let dtype = args[0].dtype;
    accepts.check(name, dtype)?;
    if args.iter().any(|a| a.dtype != dtype) {
        let types: Vec<_> = args.iter().map(|a| a.to_string()).collect();
        return Err(err!(Type, "{name} requires arguments to have the same dtypes, got {}", types.join(", "))
            .help("convert them to one dtype with `astype`"));
    }
    Ok(dtype)
}

/// Writes an operation whose scalar operands are broadcast to the result's shape.
pub(crate) fn lower_op(cx: &mut Lowering, op: &str, args: &[Value], attrs: &str, out: &Aval) -> Vec<Value> {
    let mut spread = spread(cx, args, &out.shape);
    if let Some(typed) = out.sharding() {
        for (value, _) in spread.iter_mut().zip(args).filter(|(value, given)| value != given) {
            *value = cx.constrain(*value, typed);
        }
    }
    vec![cx.op(op, &spread, attrs, out)]
}

/// Broadcasts scalar operands to `shape`.
pub(crate) fn spread(cx: &mut Lowering, args: &[Value], shape: &[usize]) -> SmallVec<[Value; 3]> {
    args.iter()
        .map(|&v| {
            if cx.shape(v).as_slice() == shape {
                return v;
            }
            let out = Aval::new(cx.dtype(v), shape);
            cx.broadcast_in_dim(v, &[], &out)
        })
        .collect()
}

/// Batches an elementwise operation: moves the batch axes to one position, and expands the operands to one rank.
pub(crate) fn batch(
    axis: &BatchAxis,
    args: &[Array],
    dims: &[Option<usize>],
    apply: impl FnOnce(&[Array]) -> Array,
) -> Result<(Outputs, Dims)> {
    // The ranks of the operands for one entry of the batch.
    let ranks: Vec<usize> = args.iter().zip(dims).map(|(x, dim)| x.ndim() - usize::from(dim.is_some())).collect();
    let full = ranks.iter().copied().max().unwrap_or(0);
    // Operands that agree on the axis, or are scalars of the whole batch, need no move.
    let common_dim = (0..args.len()).find_map(|i| if ranks[i] == full { dims[i] } else { None });
    let simple = common_dim.is_some()
        && (0..args.len()).all(|i| if ranks[i] == full { dims[i] == common_dim } else { dims[i].is_none() });
    if let (true, Some(d)) = (simple, common_dim) {
        return Ok((smallvec![apply(args)], vec![Some(d)]));
    }
    let moved: Vec<Array> = (0..args.len())
        .map(|i| {
            if ranks[i] == full {
                return axis.moved(&args[i], dims[i], 0);
            }
            match dims[i] {
                // A scalar per batch entry: it is broadcast over the other operands' dimensions.
                Some(_) => {
                    let like = (0..args.len()).find(|&j| ranks[j] == full).unwrap_or(i);
                    let mut shape = args[like].shape_owned();
                    if let Some(d) = dims[like] {
                        shape.remove(d);
                    }
                    shape.insert(0, axis.size);
                    args[i].broadcast_in_dim(&shape, &[0])
                }
                None => args[i].clone(),
            }
        })
        .collect();
    Ok((smallvec![apply(&moved)], vec![Some(0)]))
}

/// The cotangent of an operand that was a scalar broadcast to the result's shape.
pub(crate) fn unspread(ct: Array, operand: &Aval) -> Array {
    if operand.rank() == 0 && ct.ndim() > 0 { ct.sum(..) } else { ct }
}
