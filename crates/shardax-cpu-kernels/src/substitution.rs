//! Triangular systems of a few equations, for many right-hand sides. The sums of several equations and right-hand sides stay in
//! registers, while the solutions of earlier equations are read from the first-level cache.

use pulp::{Arch, Simd, WithSimd};

use crate::real::Real;

/// A triangular matrix in memory.
#[derive(Clone, Copy)]
pub(crate) struct Triangular<'a, T> {
    /// The elements from the first one on.
    pub data: &'a [T],
    /// The distance between rows.
    pub stride: usize,
    /// The number of rows and of columns.
    pub count: usize,
    /// The equations are the columns of the matrix.
    pub is_transposed: bool,
    /// The first equation has one unknown, and not the last one.
    pub is_forward: bool,
    /// The diagonal is 1, and not read.
    pub has_unit_diagonal: bool,
}

impl<T: Real> Triangular<'_, T> {
    /// Copies the negated factors of groups of `R` equations: for each group the factors of the unknowns of earlier groups, `R` for each
    /// unknown, and then a matrix of `R` rows and columns, whose diagonal is not negated. Equations that are missing in the last group are
    /// `x = 0`.
    fn pack<const R: usize>(self) -> Vec<T> {
        let groups = self.count.div_ceil(R);
        let mut packed = vec![T::ZERO; groups * (groups + 1) / 2 * R * R];
        let mut rest = &mut packed[..];
        for start in (0..self.count).step_by(R) {
            let (known, following) = rest.split_at_mut(start * R);
            let (triangle, following) = following.split_at_mut(R * R);
            rest = following;
            self.copy_known::<R>(start, known);
            known.iter_mut().for_each(|factor| *factor = -*factor);
            for (i, row) in triangle.chunks_exact_mut(R).enumerate() {
                for (j, factor) in row[..=i].iter_mut().enumerate() {
                    let (equation, unknown) = (start + i, start + j);
                    let is_read = equation < self.count && !(i == j && self.has_unit_diagonal);
                    *factor = match is_read {
                        true if i == j => self.data[self.place(equation, unknown)],
                        true => -self.data[self.place(equation, unknown)],
                        false if i == j => T::ONE,
                        false => T::ZERO,
                    };
                }
            }
        }
        packed
    }

    /// Copies the factors of the first `start` unknowns in the next `R` equations.
    fn copy_known<const R: usize>(self, start: usize, known: &mut [T]) {
        let equations = R.min(self.count - start);
        let (chunks, _) = known.as_chunks_mut::<R>();
        if self.is_transposed && equations == R {
            for (unknown, factors) in chunks.iter_mut().enumerate() {
                let last = if self.is_forward { start } else { start + R - 1 };
                let place = self.place(last, unknown);
                if let Some(from) = self.data[place..].first_chunk::<R>() {
                    *factors = *from;
                }
                if !self.is_forward {
                    factors.reverse();
                }
            }
            return;
        }
        if self.is_transposed {
            for (unknown, factors) in chunks.iter_mut().enumerate() {
                (0..equations).for_each(|i| factors[i] = self.data[self.place(start + i, unknown)]);
            }
            return;
        }
        for i in 0..equations {
            let last = if self.is_forward { 0 } else { start.saturating_sub(1) };
            let row = &self.data[self.place(start + i, last)..][..start];
            match self.is_forward {
                true => chunks.iter_mut().zip(row).for_each(|(factors, x)| factors[i] = *x),
                false => chunks.iter_mut().zip(row.iter().rev()).for_each(|(factors, x)| factors[i] = *x),
            }
        }
    }

    /// Returns the index of the factor of an unknown in an equation; both are in the order in which they are solved.
    fn place(self, equation: usize, unknown: usize) -> usize {
        let [row, column] = if self.is_transposed { [unknown, equation] } else { [equation, unknown] };
        let [row, column] = if self.is_forward { [row, column] } else { [row, column].map(|i| self.count - 1 - i) };
        row * self.stride + column
    }
}

/// A triangular system.
pub(crate) struct Equations<'a, T> {
    pub matrix: Triangular<'a, T>,
    /// The right-hand sides, which the solutions replace: rows `stride` apart, of this many columns.
    pub x: &'a mut [T],
    pub stride: usize,
    pub columns: usize,
}

impl<T: Real> Equations<'_, T> {
    pub fn solve(self) {
        if self.matrix.count > 0 && self.columns > 0 {
            Arch::new().dispatch(self);
        }
    }

    /// Solves `R` equations for `W` vectors of right-hand sides at a time.
    #[expect(clippy::needless_range_loop, reason = "indices of constant loops keep the sums in registers")]
    #[inline(always)]
    fn solve_by<S: Simd, const R: usize, const W: usize>(&mut self, simd: S) {
        let (count, lanes) = (self.matrix.count, size_of::<T::Vector<S>>() / size_of::<T>());
        let packed = self.matrix.pack::<R>();
        let zero = T::splat(simd, T::ZERO);
        // Rows that are a power of two apart would share a few sets of the cache.
        let mut solved = vec![[zero; W]; count.next_multiple_of(R)];
        for first in (0..self.columns).step_by(W * lanes) {
            let end = self.columns.min(first + W * lanes);
            let mut rest = &packed[..];
            for start in (0..count).step_by(R) {
                let (known, following) = rest.split_at(start * R);
                let (triangle, following) = following.split_at(R * R);
                rest = following;
                let mut sums = [[zero; W]; R];
                for i in 0..R {
                    let row = self.place((start + i).min(count - 1));
                    for w in 0..W {
                        // A vector beyond the last column is empty.
                        let column = end.min(first + w * lanes);
                        sums[i][w] = T::load(simd, &self.x[row + column..row + end]);
                    }
                }
                let (before, following) = solved.split_at_mut(start);
                for (factors, known) in known.as_chunks::<R>().0.iter().zip(&*before) {
                    for i in 0..R {
                        let factor = T::splat(simd, factors[i]);
                        for w in 0..W {
                            sums[i][w] = T::multiply_add_vectors(simd, factor, known[w], sums[i][w]);
                        }
                    }
                }
                for i in 0..R {
                    for j in 0..i {
                        let factor = T::splat(simd, triangle[i * R + j]);
                        for w in 0..W {
                            sums[i][w] = T::multiply_add_vectors(simd, factor, sums[j][w], sums[i][w]);
                        }
                    }
                    if !self.matrix.has_unit_diagonal {
                        let divisor = T::splat(simd, triangle[i * R + i]);
                        for w in 0..W {
                            sums[i][w] = T::divide_vectors(simd, sums[i][w], divisor);
                        }
                    }
                }
                for i in 0..R {
                    following[i] = sums[i];
                    if start + i < count {
                        let row = self.place(start + i);
                        for w in 0..W {
                            let column = end.min(first + w * lanes);
                            T::store(simd, &mut self.x[row + column..row + end], sums[i][w]);
                        }
                    }
                }
            }
        }
    }

    /// Returns the index of the first element of an equation's row.
    #[inline(always)]
    fn place(&self, equation: usize) -> usize {
        self.stride * if self.matrix.is_forward { equation } else { self.matrix.count - 1 - equation }
    }
}

impl<T: Real> WithSimd for Equations<'_, T> {
    type Output = ();

    /// The sums are eight vectors of AVX2, as many as hide the latency of an addition.
    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        match self.columns <= size_of::<T::Vector<S>>() / size_of::<T>() {
            true => self.solve_by::<S, 8, 1>(simd),
            false => self.solve_by::<S, 4, 2>(simd),
        }
    }
}
