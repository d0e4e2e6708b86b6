//! `new_ref`: arrays that a function reads and writes in place.

use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::FIRST;
use super::cell::Cell;
use super::refs::{Home, Ref};
use super::threaded::discharge;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{Avals, Primitive, ShardingRule, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::{bind, finish_with, is_linear, record_error, runs_now};
use crate::error::{Result, err};
use crate::ops::operators::ArrayLike;
use crate::ops::promotion::convert;
use crate::source;

static NEXT: AtomicUsize = AtomicUsize::new(FIRST);

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
        Err(err!(Runtime, "a ref was not discharged when the trace of its function ended"))
    }

    fn sharding_rule(&self, _rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        Ok(TypedOuts::new())
    }

    fn has_effects(&self) -> bool {
        true
    }
}

/// Makes a ref: an array that is read and written in place, which starts with the value of `x` (JAX's `new_ref`).
///
/// Inside of a function that is traced the ref belongs to that function. Loops, branches and functions that are called in
/// it can use the ref without passing it on, and when the function ends, reads and writes become operations on values:
/// the function can be differentiated, mapped, compiled and exported like any other. Its type is that of `x`, strong; a
/// write converts plain numbers alone.
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
/// Outside of every traced function the ref has its value in memory of its own, and functions that use it read and write it at
/// each call. Several threads may use it: each update, and each call of a function that writes it, begins with the value that
/// the one before it left. Only functions with host callbacks do not wait for each other.
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
/// A ref that a `vmap`, a `shard_map` or a function with a derivative rule of its own takes from outside can be read there
/// but not written, and values written to a ref from outside of a differentiated function must not depend on what it is
/// differentiated with respect to.
///
/// Fails if `x` failed, or is a tangent.
#[track_caller]
pub fn new_ref(x: impl ArrayLike) -> Result<Ref> {
    let at = Location::caller();
    let _line = source::enter_at(at);
    make(x.into_array()).map_err(|e| {
        let error = e.at(at);
        record_error(&error);
        error
    })
}

fn make(x: Array) -> Result<Ref> {
    x.check()?;
    if is_linear(&x) {
        return Err(err!(Value, "a ref cannot start with the value of a tangent of type {}", x.type_name())
            .help("make refs inside of the function that is differentiated, not in the rule of its derivative"));
    }
    let x = convert(&x, x.dtype(), false);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let aval = Aval { weak: false, ..x.aval() };
    if runs_now(std::slice::from_ref(&x)) {
        return Ok(Ref::new(number, aval, Home::Cell(Cell::new(&x)?, Default::default())));
    }
    let trace = finish_with(discharge).ok_or_else(|| err!(Runtime, "no function is being traced"))?;
    bind(std::sync::Arc::new(NewRef { number }), &[x]);
    Ok(Ref::new(number, aval, Home::Trace(trace, Default::default())))
}
