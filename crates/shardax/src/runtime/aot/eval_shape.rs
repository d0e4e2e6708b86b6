//! Arrays without values, and shape inference.

use std::sync::Arc;

use crate::core::array::{Array, Repr, Tracer};
use crate::core::function::{Function, IntoArgs};
use crate::core::program::{Aval, Var};
use crate::core::sharding_like::ShardingLike;
use crate::core::tree::{Flat, Tree};
use crate::dtype::DType;
use crate::error::{AtCaller, Error, Result, err};
use crate::interpret::flat::{flat_fn, trace_flat, types_of};
use crate::ops::numpy::{IntoShape, shape_of};
use crate::runtime::layouts;
use crate::sharding::context::is_explicit;
use crate::sharding::{Sharding, get_mesh};
use crate::source;

/// A trace number that is never used.
const NO_TRACE: u64 = 0;

/// Creates an array of this shape and dtype without values or memory: an argument for `lower` and [`eval_shape`].
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
        Ok(shape) => abstract_array(Aval::new(dtype, shape)),
        Err(e) => Array::from_result(Err(e), &abstract_array(Aval::scalar(dtype))),
    }
}

/// The name of JAX's class, for [`shape_dtype_struct`].
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(ShapeDtypeStruct::new((2, 3), DType::F32).shape(), [2, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub struct ShapeDtypeStruct;

impl ShapeDtypeStruct {
    /// Calls [`shape_dtype_struct`].
    #[allow(clippy::new_ret_no_self)]
    #[track_caller]
    pub fn new(shape: impl IntoShape, dtype: DType) -> Array {
        shape_dtype_struct(shape, dtype)
    }
}

/// Like [`shape_dtype_struct`] with the sharding of the argument (JAX's `ShapeDtypeStruct(shape, dtype, sharding=…)`).
/// You can use the devices of a [`Topology`](crate::Topology) too.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("i", 8)])?;
/// let x = shape_dtype_struct_on([1024, 64], DType::F32, NamedSharding::new(&mesh, P!["i"]));
/// let compiled = jit(|x: Array| x.sum(0)).lower(&x)?.compile()?;
/// assert_eq!(compiled.collectives()?.count_of(CollectiveKind::AllReduce), 1);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// A [`Format`](crate::Format) also sets the layout in memory.
///
/// Returns an array with an error if the sharding does not divide the shape, or the layout has another rank.
#[track_caller]
pub fn shape_dtype_struct_on(shape: impl IntoShape, dtype: DType, sharding: impl Into<ShardingLike>) -> Array {
    const NAME: &str = "shape_dtype_struct_on";
    let like = sharding.into();
    let array = shape_of(shape).and_then(|shape| {
        let sharding = match &like {
            ShardingLike::Format(format) => match format.placed(NAME)? {
                Some(sharding) => layouts::canonical(&sharding),
                None => return Ok(abstract_array(Aval::new(dtype, shape))),
            },
            // A mesh without devices exists in types only, so the type records the sharding.
            like @ (ShardingLike::Spec(_) | ShardingLike::Typed(_)) if get_mesh().is_none() && is_explicit() => {
                let typed = like.typed(NAME, &shape)?.0;
                return Ok(abstract_array(Aval::new(dtype, shape).with_sharding(Some(typed))));
            }
            like => like.resolve(NAME)?,
        };
        sharding.check_constrained(NAME)?;
        sharding.shard_shape(&shape)?;
        sharding.layout().map_or(Ok(()), |known| known.get().check(&shape))?;
        Ok(abstract_array_on(Aval::new(dtype, shape).placed_as(&sharding), Some(Arc::new(sharding))))
    });
    array.unwrap_or_else(|e| Array::from_result(Err(e), &abstract_array(Aval::scalar(dtype))))
}

/// Computes the types of a function's results without running it, and returns them as a tree of arrays without values.
///
/// ```
/// # use shardax::prelude::*;
/// let x = shape_dtype_struct([8, 1024], DType::Bf16);
/// let y = eval_shape(|x: Array| x.sum(1).astype(DType::F32), &x)?;
/// assert_eq!((y.shape(), y.dtype()), (&[8][..], DType::F32));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `f` fails while it is traced.
#[track_caller]
pub fn eval_shape<Args: Tree, F: Function<Args>, A: IntoArgs<Args>>(f: F, args: A) -> Result<F::Output> {
    let _line = source::enter();
    let flat = Flat::from_arguments(&args.into_args());
    let (traced, def) = trace_flat(&flat.def, &types_of(&flat)?, &flat_fn(&f)).at_caller()?;
    let leaves = traced.program.out_avals().into_iter().map(abstract_array).collect();
    Flat { leaves, def }.build()
}

/// An array of this type without values.
pub(crate) fn abstract_array(aval: Aval) -> Array {
    abstract_array_on(aval, None)
}

fn abstract_array_on(aval: Aval, sharding: Option<Arc<Sharding>>) -> Array {
    Array(Repr::Traced(Arc::new(Tracer { trace: NO_TRACE, var: Var(0), aval, sharding })))
}

impl Array {
    /// Returns `true` if the array has a type but no values.
    pub(crate) fn is_only_type(&self) -> bool {
        matches!(&self.0, Repr::Traced(t) if t.is_only_type())
    }

    /// Returns the sharding if it is fixed: for a committed array, and for an array without values.
    pub(crate) fn committed_sharding(&self) -> Option<&Sharding> {
        match &self.0 {
            Repr::Traced(tracer) => tracer.sharding.as_deref(),
            _ => self.concrete_ref().filter(|c| c.committed).map(|c| &c.sharding),
        }
    }
}

impl Tracer {
    pub(crate) fn is_only_type(&self) -> bool {
        self.trace == NO_TRACE
    }

    /// Returns the error for an array without values that is used as a value.
    pub(crate) fn has_no_values(&self) -> Error {
        err!(Type, "an array of type {} that is only a type (shape_dtype_struct) has no values", self.aval)
            .help("use it as an argument of `lower` or `eval_shape`")
    }
}
