//! Reads values while a function is traced for eager execution. Outside of `jit`, `grad` and `shard_map` trace
//! functions with concrete arguments, so you can evaluate traced values eagerly.

use std::sync::Arc;

use super::trace::traced_so_far;
use crate::core::array::{Array, Concrete, Repr, Tracer};
use crate::error::Result;

/// The value of a traced array; `None` if the arguments of its function are abstract.
///
/// Fails for a value that differs between devices.
pub(crate) fn value(tracer: &Tracer) -> Result<Option<Arc<Concrete>>> {
    let Some((traced, known)) = traced_so_far(tracer) else { return Ok(None) };
    known.value(traced)?.map(|array| array.concrete()).transpose()
}

/// The local shards of a value inside an eager `shard_map`, as pairs of coordinates and array.
pub(crate) fn per_device(tracer: &Tracer) -> Result<Option<Vec<(String, Array)>>> {
    traced_so_far(tracer).map_or(Ok(None), |(traced, known)| known.per_device(traced))
}

/// Replaces traced arrays of enclosing functions by their values.
pub(crate) fn concrete_arrays<'a>(arrays: impl Iterator<Item = &'a Array>) -> Result<Option<Vec<Array>>> {
    let mut out = Vec::new();
    for array in arrays {
        out.push(match &array.0 {
            Repr::Traced(t) => match value(t)? {
                Some(c) => Array(Repr::Concrete(c)),
                None => return Ok(None),
            },
            _ => array.clone(),
        });
    }
    Ok(Some(out))
}
