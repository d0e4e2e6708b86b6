//! Integers of 32 bits, one in each word, multiplied by ordinary instructions.

use pulp::Scalar;

use super::tile::by_words;
use super::{Tile, Unit};

/// Integers for a processor without AVX2.
#[derive(Clone, Copy)]
pub(super) struct Int32;

impl Unit for Int32 {
    type Element = i32;
    type Sum = i32;
    type Vectors = Scalar;
    const GROUP: usize = 1;

    #[inline(always)]
    fn vectors(self) -> Scalar {
        Scalar::new()
    }

    #[inline(always)]
    fn bits(element: i32, _position: usize) -> u32 {
        element as u32
    }

    #[inline(always)]
    fn tile<const H: usize>(self, left: &[u32], right: &[u32], sums: &mut Tile<i32, H>) {
        by_words(left, right, sums, |sum: i32, x, y| sum.wrapping_add((x as i32).wrapping_mul(y as i32)));
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Int32Vectors;

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::__m256i;

    use pulp::x86::V3;

    use super::super::{COLUMNS, Tile, Unit};
    use super::Int32;

    /// The columns whose sums are computed together, in two vectors of each row.
    const PART: usize = COLUMNS / 2;

    /// Integers for a processor with AVX2.
    #[derive(Clone, Copy)]
    pub(in crate::low_precision) struct Int32Vectors(V3);

    impl Int32Vectors {
        /// Returns `None` if the processor has no AVX2.
        pub(in crate::low_precision) fn detect() -> Option<Self> {
            V3::try_new().map(Int32Vectors)
        }

        /// Writes the sums of `R` rows and of one part of the columns. The sums of four rows take eight of 16 registers.
        #[inline(always)]
        fn rows<const R: usize, const H: usize>(
            self,
            left: &[[u32; H]],
            right: &[[u32; COLUMNS]],
            [row, part]: [usize; 2],
            sums: &mut Tile<i32, H>,
        ) {
            let V3 { avx, avx2, .. } = self.0;
            let mut vectors = [[avx._mm256_setzero_si256(); 2]; R];
            for (left, right) in left.iter().zip(right) {
                let columns: [__m256i; 2] = pulp::cast(right.as_chunks::<PART>().0[part]);
                for (sums, x) in vectors.iter_mut().zip(&left[row..row + R]) {
                    let x = avx._mm256_set1_epi32(*x as i32);
                    for (sum, y) in sums.iter_mut().zip(columns) {
                        *sum = avx2._mm256_add_epi32(*sum, avx2._mm256_mullo_epi32(x, y));
                    }
                }
            }
            for (sums, vectors) in sums[row..row + R].iter_mut().zip(vectors) {
                sums.as_chunks_mut::<PART>().0[part] = pulp::cast(vectors);
            }
        }
    }

    impl Unit for Int32Vectors {
        type Element = i32;
        type Sum = i32;
        type Vectors = V3;
        const GROUP: usize = 1;

        #[inline(always)]
        fn vectors(self) -> V3 {
            self.0
        }

        #[inline(always)]
        fn bits(element: i32, position: usize) -> u32 {
            Int32::bits(element, position)
        }

        #[inline(always)]
        fn tile<const H: usize>(self, left: &[u32], right: &[u32], sums: &mut Tile<i32, H>) {
            let ((left, _), (right, _)) = (left.as_chunks::<H>(), right.as_chunks::<COLUMNS>());
            for part in 0..COLUMNS / PART {
                for row in (0..H).step_by(4) {
                    match H - row {
                        1 => self.rows::<1, H>(left, right, [row, part], sums),
                        2 => self.rows::<2, H>(left, right, [row, part], sums),
                        3 => self.rows::<3, H>(left, right, [row, part], sums),
                        _ => self.rows::<4, H>(left, right, [row, part], sums),
                    }
                }
            }
        }
    }
}
