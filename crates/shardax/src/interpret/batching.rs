//! Batching of programs: interprets a program with a batch axis on some of its inputs.

use smallvec::SmallVec;

use super::ad::captures_nothing;
use super::eval::at_eqn;
use super::memo;
use crate::core::array::Array;
use crate::core::primitive::{BatchAxis, Dims, Outputs};
use crate::core::program::trace::{Traced, trace};
use crate::core::program::{Atom, Aval, Env, Program};
use crate::error::Result;
use crate::sharding::axis_env::{AxisKind, BoundAxis};
use crate::sharding::context::explicit_mesh;
use crate::sharding::{AbstractMesh, DimSpec, Typed, get_abstract_mesh};

/// Computes the outputs of `program` on batched inputs, and their batch axes.
pub(crate) fn batch_eval(
    program: &Program,
    axis: &BatchAxis,
    args: &[Array],
    dims: &[Option<usize>],
) -> Result<(Vec<Array>, Dims)> {
    let _transformation = memo::transformation();
    let mut env = Env::new(program);
    let mut dim_env: Env<usize> = Env::new(program);
    for ((var, arg), dim) in program.inputs.iter().zip(args).zip(dims) {
        env.set(*var, arg.clone());
        if let Some(d) = dim {
            dim_env.set(*var, *d);
        }
    }
    for eqn in &program.eqns {
        at_eqn(eqn, || {
            let dims: Dims = eqn.inputs.iter().map(|a| dim_of(&dim_env, a)).collect();
            // A collective over the batched axis changes even values that are not batched, so its batching rule must
            // run.
            let names_axis = axis.name.is_some_and(|name| eqn.primitive.uses_axis(name));
            if dims.iter().all(Option::is_none) && !names_axis {
                return env.apply(eqn);
            }
            let types = eqn.outputs.iter().map(|var| &program.avals[var.index()]);
            let is_empty = axis.size == 0 && !names_axis && !eqn.primitive.has_effects();
            let (outs, out_dims) = match is_empty.then(|| empty_batches(types, axis)).flatten() {
                Some(empty) => empty,
                None => {
                    let args = env.arrays(&eqn.inputs)?;
                    eqn.primitive.batch(axis, &args, &dims).map_err(|e| e.at(eqn.source))?
                }
            };
            for ((var, out), dim) in eqn.outputs.iter().zip(outs).zip(out_dims) {
                crate::core::program::trace::check_usable(&out)?;
                env.set(*var, out);
                if let Some(d) = dim {
                    dim_env.set(*var, d);
                }
            }
            Ok(())
        })?;
    }
    let out_dims = program.outputs.iter().map(|a| dim_of(&dim_env, a)).collect();
    Ok((env.arrays(&program.outputs)?, out_dims))
}

/// Returns batches of no entries of these types. `None` if a type has no zeros.
///
/// Nothing is computed for a batch without entries, so that no batching rule needs to handle one: many of them read entries, or divide
/// by their number.
fn empty_batches<'a>(types: impl Iterator<Item = &'a Aval>, axis: &BatchAxis) -> Option<(Outputs, Dims)> {
    let empty = |aval: &Aval| {
        let has_zeros = !aval.dtype.is_key();
        has_zeros.then(|| (Array::zeros_of(&axis.batch_type(aval, 0)), Some(0)))
    };
    types.map(empty).collect::<Option<Vec<_>>>().map(|batches| batches.into_iter().unzip())
}

/// Traces the batched form of a program. Its batched outputs have the batch axis at 0. Outputs marked in `force` get a
/// batch axis even if they do not depend on the batch.
///
/// Returns the program and marks the batched outputs.
pub(crate) fn batch_program(
    program: &Program,
    axis: &BatchAxis,
    dims: &[Option<usize>],
    force: &[bool],
) -> Result<(Traced, Vec<bool>)> {
    memo::derived("batch", program, &(axis, dims, force), captures_nothing, || derive_batch(program, axis, dims, force))
}

/// Returns the batch axis of an atom, or `None` if it is not batched.
fn dim_of(dim_env: &Env<usize>, atom: &Atom) -> Option<usize> {
    match atom {
        Atom::Var(v) => dim_env.get(*v).copied(),
        Atom::Literal { .. } => None,
    }
}

fn derive_batch(
    program: &Program,
    axis: &BatchAxis,
    dims: &[Option<usize>],
    force: &[bool],
) -> Result<(Traced, Vec<bool>)> {
    let avals: Vec<Aval> = program
        .in_avals()
        .zip(dims)
        .map(|(aval, dim)| match dim {
            Some(d) => axis.batch_type(aval, *d),
            None => aval.clone(),
        })
        .collect();
    // The trace finds which outputs are batched, and moves their batch axes to 0.
    let mut batched = Vec::new();
    let traced = trace(&avals, |args| {
        let (outs, out_dims) = batch_eval(program, axis, args, dims)?;
        batched = out_dims.iter().zip(force).map(|(d, force)| d.is_some() || *force).collect();
        Ok(outs
            .into_iter()
            .zip(out_dims)
            .zip(&batched)
            .map(|((out, dim), batched)| if *batched { axis.moved(&out, dim, 0) } else { out })
            .collect())
    })?;
    Ok((traced, batched))
}

/// Moves the batch axis of `array` to `to`, or broadcasts it if it has none.
pub fn move_batch(array: &Array, dim: Option<usize>, to: usize, size: usize) -> Array {
    match dim {
        Some(d) if d == to => array.clone(),
        Some(d) => array.moveaxis(d as i32, to as i32),
        None => {
            let mut shape = array.aval().shape;
            shape.insert(to, size);
            let dims: Vec<usize> = (0..shape.len()).filter(|&i| i != to).collect();
            array.broadcast_in_dim(&shape, &dims)
        }
    }
}

impl BatchAxis {
    /// Returns the mesh with `Explicit` axes of the context or, if none is in context, the mesh of the mapped arrays.
    fn mesh(&self) -> Option<AbstractMesh> {
        explicit_mesh().or_else(|| self.mesh.clone().filter(|_| get_abstract_mesh().is_none()))
    }

    /// Returns the type of a batch of entries of the type `entry`, with the batch axis at `to`. An entry without a sharding
    /// is replicated over the mesh that splits the batch axis.
    pub(crate) fn batch_type(&self, entry: &Aval, to: usize) -> Aval {
        let has_no_sharding = self.explicit != DimSpec::None && entry.sharding().is_none();
        let mesh = if has_no_sharding { self.mesh() } else { None };
        let replicated = mesh.map(|mesh| entry.with_sharding(Some(Typed::replicated(&mesh, entry.rank()))));
        replicated.as_ref().unwrap_or(entry).with_dim(to, self.size, self.explicit.clone())
    }

    /// Returns `array` with its batch axis at `to`. If it has none, the array is repeated along a new axis that is
    /// split like the batch axes of other arrays.
    #[track_caller]
    pub fn moved(&self, array: &Array, dim: Option<usize>, to: usize) -> Array {
        let aval = array.aval();
        let split = self.explicit != DimSpec::None && dim.is_none();
        if !split {
            return move_batch(array, dim, to, self.size);
        }
        let typed = aval.sharding().cloned();
        let typed = typed.or_else(|| Some(Typed::replicated(&self.mesh()?, aval.rank())));
        let Some(typed) = typed else { return move_batch(array, dim, to, self.size) };
        let shape = aval.with_dim(to, self.size, DimSpec::None).shape;
        let dims: SmallVec<[usize; 4]> = (0..shape.len()).filter(|&i| i != to).collect();
        match self.inserted(&typed, to) {
            Ok(out) => array.broadcast_in_dim_as(&shape, dims, out),
            Err(e) => Array::from_result(Err(e), array),
        }
    }

    /// Returns the first carry of a loop with its batch axis at 0. `entry` is the body's type for it. A carry without a sharding, such
    /// as the zeros at which a sum of cotangents starts, becomes unreduced or reduced as this type is.
    #[track_caller]
    pub fn first_carry(&self, carry: &Array, dim: Option<usize>, entry: &Aval) -> Array {
        let has_none = dim.is_none() && carry.aval().sharding().is_none();
        match entry.sharding().filter(|typed| has_none && typed.is_partial()) {
            Some(typed) => {
                let carry = carry.broadcast_in_dim_as(carry.shape(), (0..carry.ndim()).collect(), typed.clone());
                self.moved(&carry, dim, 0)
            }
            None => self.moved(carry, dim, 0),
        }
    }
}

/// The axis that `vmap` binds while it traces.
pub(crate) fn bound(axis: &BatchAxis) -> Vec<BoundAxis> {
    axis.name.map(|name| BoundAxis { name, size: axis.size, kind: AxisKind::Mapped }).into_iter().collect()
}
