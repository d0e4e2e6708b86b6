//! Triangular systems of a few equations, for many right-hand sides. The sums of several right-hand sides stay in
//! registers, while the solutions of earlier equations are read from the first-level cache.

use pulp::{Arch, Simd, WithSimd};

use crate::real::Real;

/// The numbers of right-hand sides that are solved together.
const RIGHT_SIDES_PER_BLOCK: usize = 32;
const NARROW: usize = 8;

/// The maximum number of equations.
pub(crate) const MAX_EQUATIONS: usize = 64;

/// A triangular system, whose equations are in the order in which they are solved.
pub(crate) struct Equations<'a, T> {
    /// A square matrix in row order: for each equation the factors of the earlier unknowns, and on the diagonal the
    /// divisor of its own unknown.
    pub factors: &'a [T],
    /// The number of equations, at most [`MAX_EQUATIONS`].
    pub count: usize,
    pub has_unit_diagonal: bool,
    /// The first equation is the first row of the right-hand sides, otherwise the last one.
    pub is_forward: bool,
    /// The right-hand sides, which the solutions replace: rows `stride` apart, of this many columns.
    pub x: &'a mut [T],
    pub stride: usize,
    pub columns: usize,
}

impl<T: Real> Equations<'_, T> {
    pub fn solve(self) {
        if self.count > 0 && self.columns > 0 {
            Arch::new().dispatch(self);
        }
    }

    /// Solves for `N` right-hand sides.
    #[inline(always)]
    fn columns<const N: usize>(&mut self, first: usize) {
        // Rows that are a power of two apart would share a few sets of the cache.
        let mut solved = [[T::ZERO; N]; MAX_EQUATIONS];
        for (equation, factors) in self.factors.chunks_exact(self.count).enumerate() {
            let place = self.place(equation) + first;
            let Some(mut sums) = self.x.get(place..).and_then(|x| x.first_chunk::<N>()).copied() else { return };
            for (known, factor) in solved.iter().zip(&factors[..equation]) {
                for i in 0..N {
                    sums[i] = sums[i] - *factor * known[i];
                }
            }
            if !self.has_unit_diagonal {
                let divisor = factors[equation];
                sums.iter_mut().for_each(|sum| *sum = *sum / divisor);
            }
            solved[equation] = sums;
            self.x[place..place + N].copy_from_slice(&sums);
        }
    }

    /// Returns the index of the first element of an equation's row.
    #[inline(always)]
    fn place(&self, equation: usize) -> usize {
        self.stride * if self.is_forward { equation } else { self.count - 1 - equation }
    }
}

impl<T: Real> WithSimd for Equations<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) {
        let mut column = 0;
        while column + RIGHT_SIDES_PER_BLOCK <= self.columns {
            self.columns::<RIGHT_SIDES_PER_BLOCK>(column);
            column += RIGHT_SIDES_PER_BLOCK;
        }
        while column + NARROW <= self.columns {
            self.columns::<NARROW>(column);
            column += NARROW;
        }
        while column < self.columns {
            self.columns::<1>(column);
            column += 1;
        }
    }
}
