//! Arrays that stand for their types alone, and the types of a function's results.

use std::sync::Arc;

use crate::core::array::{Array, Repr, Tracer};
use crate::core::function::{Function, IntoArgs};
use crate::core::program::{Aval, Var};
use crate::core::tree::{Flat, Tree};
use crate::dtype::DType;
use crate::error::{AtCaller, Error, Result, err};
use crate::interpret::flat::{flat_fn, trace_flat, types_of};
use crate::ops::numpy::{IntoShape, shape_of};
use crate::source;

/// No trace has this number.
const NO_TRACE: u64 = 0;

/// An array of this shape and dtype that has no values and no memory: an argument for `lower` and [`eval_shape`].
///
/// ```
/// # use shardax::prelude::*;
/// let x = shape_dtype_struct([1024, 1024], DType::F32);
/// let lowered = jit(|x: Array| x.dot(&x)).lower(&x)?;
/// assert!(lowered.as_text().contains("tensor<1024x1024xf32>"));
/// assert!(x.to_vec::<f32>().is_err());
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn shape_dtype_struct(shape: impl IntoShape, dtype: DType) -> Array {
    match shape_of(shape) {
        Ok(shape) => of_type(Aval::new(dtype, shape)),
        Err(e) => Array::from_result(Err(e), &of_type(Aval::scalar(dtype))),
    }
}

/// The types of a function's results, found without computing anything: a tree of arrays without values.
///
/// ```
/// # use shardax::prelude::*;
/// let x = shape_dtype_struct([8, 1024], DType::Bf16);
/// let y = eval_shape(|x: Array| x.sum(1).astype(DType::F32), &x)?;
/// assert_eq!((y.shape(), y.dtype()), (&[8][..], DType::F32));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn eval_shape<Args: Tree, F: Function<Args>, A: IntoArgs<Args>>(f: F, args: A) -> Result<F::Output> {
    let _line = source::enter();
    let flat = Flat::of_arguments(&args.into_args());
    let (traced, def) = trace_flat(&flat.def, &types_of(&flat)?, &flat_fn(&f)).at_caller()?;
    let leaves = traced.program.out_avals().into_iter().map(of_type).collect();
    Flat { leaves, def }.build()
}

fn of_type(aval: Aval) -> Array {
    Array(Repr::Traced(Arc::new(Tracer { trace: NO_TRACE, var: Var(0), aval })))
}

impl Array {
    /// Whether it stands for its type alone.
    pub(crate) fn is_only_type(&self) -> bool {
        matches!(&self.0, Repr::Traced(t) if t.is_only_type())
    }
}

impl Tracer {
    pub(crate) fn is_only_type(&self) -> bool {
        self.trace == NO_TRACE
    }

    /// The error of using it as a value.
    pub(crate) fn has_no_values(&self) -> Error {
        err!(Type, "an array of type {} that stands for its type alone (shape_dtype_struct) has no values", self.aval)
            .help("use it as an argument of `lower` or `eval_shape`")
    }
}
