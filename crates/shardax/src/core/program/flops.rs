//! How many floating-point operations a program does, counted from its equations.

use std::fmt;
use std::ops::{Add, Mul};

use super::{Aval, Eqn, Program};
use crate::scope::{Part, RECOMPUTED};
use crate::stack::grow;

/// The floating-point operations of one call of a program, on all devices together; see [`Program::flops`].
///
/// A product and the addition that follows it are two. They are counted as numbers of 64 bits with a fraction, which are
/// exact up to 2⁵³.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Flops {
    /// Those of matrix products, convolutions, decompositions and Fourier transforms: what matrix units do.
    pub products: f64,
    /// Of `products`, those that [`checkpoint`](crate::checkpoint) does a second time.
    pub recomputed: f64,
    /// All others: elementwise, of reductions and windows; one for each element, whatever the function.
    pub elementwise: f64,
    /// How many `while` loops there are whose steps are counted once, because their number is known only when they run.
    pub unbounded_loops: usize,
}

impl Flops {
    /// Products alone.
    pub fn of_products(products: f64) -> Flops {
        Flops { products, ..Flops::default() }
    }

    /// One for each element of these types that is a floating-point or complex number.
    pub fn of_elements<'a>(types: impl IntoIterator<Item = &'a Aval>) -> Flops {
        let one = |aval: &Aval| if aval.dtype.is_inexact() { aval.size() as f64 } else { 0.0 };
        Flops { elementwise: types.into_iter().map(one).sum(), ..Flops::default() }
    }

    /// Products, and all others.
    pub fn total(&self) -> f64 {
        self.products + self.elementwise
    }

    /// The products without those that are done a second time: what the model asks for.
    pub fn model(&self) -> f64 {
        self.products - self.recomputed
    }

    /// Of two branches, the one that does more.
    pub fn max(self, other: Flops) -> Flops {
        if other.total() > self.total() { other } else { self }
    }
}

impl Add for Flops {
    type Output = Flops;

    fn add(self, other: Flops) -> Flops {
        Flops {
            products: self.products + other.products,
            recomputed: self.recomputed + other.recomputed,
            elementwise: self.elementwise + other.elementwise,
            unbounded_loops: self.unbounded_loops + other.unbounded_loops,
        }
    }
}

/// So many times. Loops in it stay as many.
impl Mul<f64> for Flops {
    type Output = Flops;

    fn mul(self, times: f64) -> Flops {
        Flops {
            products: self.products * times,
            recomputed: self.recomputed * times,
            elementwise: self.elementwise * times,
            unbounded_loops: self.unbounded_loops,
        }
    }
}

/// `3.2e14 of products (8.0e13 of them a second time), 1.0e9 elementwise`
impl fmt::Display for Flops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3e} of products", self.products)?;
        if self.recomputed > 0.0 {
            write!(f, " ({:.3e} of them a second time)", self.recomputed)?;
        }
        write!(f, ", {:.3e} elementwise", self.elementwise)?;
        match self.unbounded_loops {
            0 => Ok(()),
            n => write!(f, ", the steps of {n} loops counted once"),
        }
    }
}

impl Program {
    /// The floating-point operations of one call, on all devices together: what is in a `scan` as often as it runs, of
    /// the branches of a `cond` the one that does most, what is in a `shard_map` on each of its devices.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let (x, w) = (shape_dtype_struct([32, 64], DType::F32), shape_dtype_struct([64, 16], DType::F32));
    /// let lowered = jit(|x: Array, w: Array| x.dot(w).tanh()).lower((x, w))?;
    /// let flops = lowered.program().flops();
    /// assert_eq!((flops.products, flops.elementwise), (2.0 * 32.0 * 64.0 * 16.0, 32.0 * 16.0));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn flops(&self) -> Flops {
        self.eqns.iter().map(|eqn| self.flops_of(eqn)).fold(Flops::default(), Add::add)
    }

    fn flops_of(&self, eqn: &Eqn) -> Flops {
        let args: Vec<Aval> = eqn.inputs.iter().map(|atom| self.atom_aval(atom)).collect();
        let outs: Vec<Aval> = eqn.outputs.iter().map(|var| self.aval_of(*var).clone()).collect();
        let flops = grow(|| eqn.primitive.flops(&args, &outs));
        let again = |part: &Part| matches!(part, Part::Name(name) if **name == *RECOMPUTED);
        match eqn.scope.parts().iter().any(again) {
            true => Flops { recomputed: flops.products, ..flops },
            false => flops,
        }
    }
}
