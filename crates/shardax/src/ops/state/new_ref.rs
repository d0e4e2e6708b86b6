//! `new_ref`: arrays that a function reads and writes in place.

use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::FIRST_REF_NUMBER;
use super::cell::Cell;
use super::refs::{Ref, Storage};
use super::threaded::discharge;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{Avals, Primitive, ShardingRule, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::{bind, finish_with, is_linear, record_error, runs_now};
use crate::error::{Result, err};
use crate::ops::operators::ArrayLike;
use crate::ops::promotion::convert;
use crate::sharding::Typed;
use crate::sharding::context::explicit_mesh;
use crate::source;

static NEXT: AtomicUsize = AtomicUsize::new(FIRST_REF_NUMBER);

/// Starts a ref with the value of its operand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct NewRef {
    pub number: usize,
}

impl Primitive for NewRef {
    fn name(&self) -> &'static str {
        "new_ref"
    }

    fn output_count(&self) -> usize {
        0
    }

    fn infer(&self, _args: &[Aval]) -> Result<Avals> {
        Ok(Avals::new())
    }

    fn lower(&self, _cx: &mut Lowering, _args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        Err(err!(
            Runtime,
            "internal error: a ref was not discharged when the trace of its function ended; please report this"
        ))
    }

    fn sharding_rule(&self, _rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        Ok(TypedOuts::new())
    }

    fn has_effects(&self) -> bool {
        true
    }
}

/// Creates a ref: an array that is read and written in place and starts with the value of `x` (JAX's `new_ref`).
///
/// Inside of a traced function, the ref belongs to that function. Loops, branches and functions called in it can use
/// the ref without an argument for it. When the function ends, reads and writes become operations on values, so you can
/// differentiate, map, compile and export the function like any other. The ref has the type of `x` without weak typing.
/// If you write a plain Rust number, it is converted to this type; an array must already have it.
///
/// ```
/// # use shardax::prelude::*;
/// // The running product, and how many of its values are above 10.
/// let f = jit(|x: Array| -> Result<(Array, Array)> {
///     let product = new_ref(1.0f32)?;
///     let above = new_ref(0)?;
///     let all = new_ref(zeros([4]))?;
///     let step = |i: Array, ()| -> Result<()> {
///         product.set(product.get() * x.get(&i))?;
///         all.at(&i).set(product.get())?;
///         above.add(product.get().greater(10.0).astype(DType::I32))
///     };
///     fori_loop(0, 4, step, ())?;
///     Ok((all.freeze(), above.freeze()))
/// });
/// let (all, above) = f.call(array([2.0f32, 3.0, 4.0, 5.0]))?;
/// assert_eq!(all.to_vec::<f32>()?, [2.0, 6.0, 24.0, 120.0]);
/// assert_eq!(above.item::<i32>()?, 2);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Outside of every traced function, the ref stores its value in separate memory, and functions that use it read and
/// write it at each call. Several threads can use it: each update, and each call of a function that writes it, begins
/// with the value that the previous one stored. Only functions with host callbacks do not wait for each other.
///
/// ```
/// # use shardax::prelude::*;
/// let count = new_ref(0)?;
/// let f = jit(|x: Array| -> Result<Array> {
///     count.add(1)?;
///     Ok(x * 2)
/// });
/// let _ = f.call(array(1.0f32))?;
/// let _ = f.call(array(2.0f32))?;
/// assert_eq!(count.get().item::<i32>()?, 2);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// A `vmap`, a `shard_map` or a function with a custom derivative rule can read an outer ref but cannot write it.
/// Values that a differentiated function writes to an outer ref must not depend on the differentiated arguments.
///
/// # Errors
/// Returns an error if `x` failed, or is a tangent.
#[track_caller]
pub fn new_ref(x: impl ArrayLike) -> Result<Ref> {
    let location = Location::caller();
    let _line = source::enter_at(location);
    create_ref(x.into_array()).map_err(|e| {
        // The caller may ignore the result, so the trace fails too.
        let error = e.at(location);
        record_error(&error);
        error
    })
}

fn create_ref(x: Array) -> Result<Ref> {
    x.check()?;
    if is_linear(&x) {
        return Err(err!(Value, "a ref cannot start with the value of a tangent of type {}", x.type_name())
            .help("make refs inside of the function that is differentiated, not in the rule of its derivative"));
    }
    let mut x = convert(&x, x.dtype(), false);
    // Results of operations have shardings in the types if the context mesh has `Explicit` axes, and they will be written to the ref.
    if let Some(mesh) = explicit_mesh().filter(|_| x.aval().sharding().is_none()) {
        x = x.sharded(&Typed::replicated(&mesh, x.ndim()));
        x.check()?;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let aval = Aval { weak: false, ..x.aval() };
    if runs_now(std::slice::from_ref(&x)) {
        return Ok(Ref::new(number, aval, Storage::Cell(Cell::new(&x)?, Default::default())));
    }
    // When the trace ends, its reads and writes become values of the program.
    let trace = finish_with(discharge)
        .ok_or_else(|| err!(Runtime, "internal error: no function is being traced; please report this"))?;
    bind(std::sync::Arc::new(NewRef { number }), &[x]);
    Ok(Ref::new(number, aval, Storage::Trace(trace, Default::default())))
}
