//! Floating-point operation counts of programs.

use std::fmt;
use std::ops::{Add, Mul};

use super::{Aval, Eqn, Program};
use crate::scope::{Part, RECOMPUTED};
use crate::stack::grow;

/// The floating-point operations of one call of a program, summed over all devices; see [`Program::flops`].
///
/// A multiplication and an addition count as two. Counts are `f64`, which is exact up to 2⁵³.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Flops {
    /// Operations of matmuls, convolutions, decompositions and Fourier transforms, which run on matrix units.
    pub matmuls: f64,
    /// The part of `matmuls` that [`checkpoint`](crate::checkpoint()) recomputes.
    pub recomputed: f64,
    /// All other operations: elementwise operations, reductions and windows. Each counts one per element, whatever the
    /// function.
    pub elementwise: f64,
    /// The number of `while` loops whose body is counted once, because the number of steps is only known at run time.
    pub unbounded_loops: usize,
}

impl Flops {
    /// Counts only matmuls.
    pub fn from_matmuls(matmuls: f64) -> Flops {
        Flops { matmuls, ..Flops::default() }
    }

    /// Counts one operation for each element of these types that is a floating-point or complex number.
    pub fn from_elements<'a>(types: impl IntoIterator<Item = &'a Aval>) -> Flops {
        let inexact = types.into_iter().filter(|aval| aval.dtype.is_inexact());
        Flops { elementwise: inexact.map(|aval| aval.size() as f64).sum(), ..Flops::default() }
    }

    /// Returns the sum of matmuls and elementwise operations.
    pub fn total(&self) -> f64 {
        self.matmuls + self.elementwise
    }

    /// Returns the matmuls without recomputed ones, which are the operations that the model requires.
    pub fn model(&self) -> f64 {
        self.matmuls - self.recomputed
    }

    /// Returns the larger of two counts, for the branches of a conditional.
    pub fn max(self, other: Flops) -> Flops {
        if other.total() > self.total() { other } else { self }
    }
}

impl Add for Flops {
    type Output = Flops;

    fn add(self, other: Flops) -> Flops {
        Flops {
            matmuls: self.matmuls + other.matmuls,
            recomputed: self.recomputed + other.recomputed,
            elementwise: self.elementwise + other.elementwise,
            unbounded_loops: self.unbounded_loops + other.unbounded_loops,
        }
    }
}

/// Multiplies the counts, except the number of loops.
impl Mul<f64> for Flops {
    type Output = Flops;

    fn mul(self, times: f64) -> Flops {
        Flops {
            matmuls: self.matmuls * times,
            recomputed: self.recomputed * times,
            elementwise: self.elementwise * times,
            unbounded_loops: self.unbounded_loops,
        }
    }
}

/// `3.2e14 of matmuls (8.0e13 recomputed), 1.0e9 elementwise`
impl fmt::Display for Flops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3e} of matmuls", self.matmuls)?;
        if self.recomputed > 0.0 {
            write!(f, " ({:.3e} recomputed)", self.recomputed)?;
        }
        write!(f, ", {:.3e} elementwise", self.elementwise)?;
        match self.unbounded_loops {
            0 => Ok(()),
            n => write!(f, ", the steps of {n} loops counted once"),
        }
    }
}

impl Program {
    /// Returns the number of floating-point operations of one call, summed over all devices. The body of a `scan`
    /// counts once per step, the body of a `shard_map` once per device, and a `cond` counts as its largest branch.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let (x, w) = (shape_dtype_struct([32, 64], DType::F32), shape_dtype_struct([64, 16], DType::F32));
    /// let lowered = jit(|x: Array, w: Array| x.dot(w).tanh()).lower((x, w))?;
    /// let flops = lowered.program().flops();
    /// assert_eq!((flops.matmuls, flops.elementwise), (2.0 * 32.0 * 64.0 * 16.0, 32.0 * 16.0));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn flops(&self) -> Flops {
        self.eqns.iter().map(|eqn| self.flops_of(eqn)).fold(Flops::default(), Add::add)
    }

    fn flops_of(&self, eqn: &Eqn) -> Flops {
        let args: Vec<Aval> = eqn.inputs.iter().map(|atom| self.atom_aval(atom)).collect();
        let outs: Vec<Aval> = eqn.outputs.iter().map(|var| self.aval_of(*var).clone()).collect();
        let flops = grow(|| eqn.primitive.flops(&args, &outs));
        let mut parts = eqn.scope.parts().iter();
        if parts.any(|part| matches!(part, Part::Name(name) if **name == *RECOMPUTED)) {
            Flops { recomputed: flops.matmuls, ..flops }
        } else {
            flops
        }
    }
}
