//! Copies of rows, and transposes of matrices by squares of elements that fill a vector in each direction.

#[cfg(target_arch = "x86_64")]
use pulp::x86::V3;
use pulp::{Arch, Simd, WithSimd};

/// The number of rows and columns that are transposed before the next ones: their lines stay in the first cache.
const BLOCK: usize = 64;

/// The distance of rows in bytes from which on, at its multiples, lines of different rows evict each other from the first cache.
const EVICTING_STRIDE: usize = 1 << 11;

/// The columns of a block of such rows: a line of f32.
const EVICTING_COLUMNS: usize = 16;

/// The maximum number of bytes that are copied by one call. For more of them, the C library uses an instruction that takes several times as
/// long if operand and result begin at different places of a line (measured on an EPYC of Zen 3).
const BYTES_PER_COPY: usize = 1 << 10;

/// A matrix, and its transpose: element (row, column) is `x[row * x_stride + column]` and `y[column * y_stride + row]`.
pub(super) struct Matrix<'a, T> {
    pub x: &'a [T],
    pub x_stride: usize,
    pub rows: usize,
    pub columns: usize,
    pub y: &'a mut [T],
    pub y_stride: usize,
}

/// An element of a transpose.
pub trait Tile: Copy + Default + Send + Sync {
    /// The rows and columns of a square.
    #[doc(hidden)]
    const SIDE: usize;

    /// Transposes a square: the first elements of `SIDE` rows at a distance of `x_stride`.
    #[cfg(target_arch = "x86_64")]
    #[doc(hidden)]
    fn tile(simd: V3, x: &[Self], x_stride: usize, y: &mut [Self], y_stride: usize);
}

/// Transposes a matrix.
pub(super) fn transpose_matrix<T: Tile>(matrix: Matrix<'_, T>) {
    let Matrix { rows, columns, x_stride, y_stride, .. } = matrix;
    if rows.min(columns) < T::SIDE {
        return match (columns == x_stride, columns, rows == y_stride, rows) {
            (true, 2, ..) => Arch::new().dispatch(FewColumns::<T, 2>(matrix)),
            (true, 3, ..) => Arch::new().dispatch(FewColumns::<T, 3>(matrix)),
            (true, 4, ..) => Arch::new().dispatch(FewColumns::<T, 4>(matrix)),
            (_, _, true, 2) => Arch::new().dispatch(FewRows::<T, 2>(matrix)),
            (_, _, true, 3) => Arch::new().dispatch(FewRows::<T, 3>(matrix)),
            (_, _, true, 4) => Arch::new().dispatch(FewRows::<T, 4>(matrix)),
            _ => transpose_elements(matrix),
        };
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = V3::try_new() {
        return simd.vectorize(Tiles { simd, matrix });
    }
    transpose_elements(matrix);
}

/// Transposes a matrix element by element, in blocks.
fn transpose_elements<T: Copy>(matrix: Matrix<'_, T>) {
    let Matrix { x, x_stride, rows, columns, y, y_stride } = matrix;
    for first in (0..rows).step_by(BLOCK) {
        let end = rows.min(first + BLOCK);
        for column in 0..columns {
            let y = &mut y[column * y_stride..][first..end];
            y.iter_mut().zip(first..end).for_each(|(y, row)| *y = x[row * x_stride + column]);
        }
    }
}

/// A matrix of `N` columns whose rows follow each other.
struct FewColumns<'a, T, const N: usize>(Matrix<'a, T>);

impl<T: Copy, const N: usize> WithSimd for FewColumns<'_, T, N> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Matrix { x, rows, y, y_stride, .. } = self.0;
        // The rows of a block stay in the first cache until the last column was read.
        for (i, block) in x.as_chunks::<N>().0[..rows].chunks(BLOCK * BLOCK / N).enumerate() {
            for column in 0..N {
                let y = &mut y[column * y_stride + i * (BLOCK * BLOCK / N)..];
                y.iter_mut().zip(block).for_each(|(y, row)| *y = row[column]);
            }
        }
    }
}

/// A matrix of `N` rows whose columns follow each other in the result.
struct FewRows<'a, T, const N: usize>(Matrix<'a, T>);

impl<T: Copy, const N: usize> WithSimd for FewRows<'_, T, N> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Matrix { x, x_stride, columns, y, .. } = self.0;
        let mut rows = [x; N];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = &x[i * x_stride..][..columns];
        }
        for (column, y) in y.as_chunks_mut::<N>().0[..columns].iter_mut().enumerate() {
            for (y, row) in y.iter_mut().zip(&rows) {
                *y = row[column];
            }
        }
    }
}

/// Copies rows of `size` elements at a distance of `stride` to a result in which they follow each other.
pub(super) fn copy_rows<T: Copy>(x: &[T], stride: usize, size: usize, y: &mut [T]) {
    // Rows of a known size are copied without a call for each of them.
    match size {
        2 => copy_rows_of::<T, 2>(x, stride, y),
        3 => copy_rows_of::<T, 3>(x, stride, y),
        4 => copy_rows_of::<T, 4>(x, stride, y),
        8 => copy_rows_of::<T, 8>(x, stride, y),
        16 => copy_rows_of::<T, 16>(x, stride, y),
        32 => copy_rows_of::<T, 32>(x, stride, y),
        64 => copy_rows_of::<T, 64>(x, stride, y),
        _ => {
            let piece = BYTES_PER_COPY / size_of::<T>();
            for (i, row) in y.chunks_exact_mut(size).enumerate() {
                let source = &x[i * stride..][..size];
                row.chunks_mut(piece).zip(source.chunks(piece)).for_each(|(y, x)| y.copy_from_slice(x));
            }
        }
    }
}

fn copy_rows_of<T: Copy, const N: usize>(x: &[T], stride: usize, y: &mut [T]) {
    for (i, row) in y.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        if let Some(source) = x[i * stride..].first_chunk() {
            *row = *source;
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::Tiles;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use pulp::x86::V3;
    use pulp::{NullaryFnOnce, cast};

    use super::{BLOCK, EVICTING_COLUMNS, EVICTING_STRIDE, Matrix, Tile};

    /// A matrix with at least as many rows and columns as a square.
    pub(in super::super) struct Tiles<'a, T> {
        pub simd: V3,
        pub matrix: Matrix<'a, T>,
    }

    impl<T: Tile> NullaryFnOnce for Tiles<'_, T> {
        type Output = ();

        #[inline(always)]
        fn call(mut self) {
            let Matrix { rows, columns, x_stride, .. } = self.matrix;
            if (x_stride * size_of::<T>()).is_multiple_of(EVICTING_STRIDE) {
                for row in (0..rows).step_by(BLOCK) {
                    for column in (0..columns).step_by(EVICTING_COLUMNS.max(T::SIDE)) {
                        self.block([row, column], [BLOCK, EVICTING_COLUMNS.max(T::SIDE)]);
                    }
                }
            } else {
                for column in (0..columns).step_by(BLOCK) {
                    for row in (0..rows).step_by(BLOCK) {
                        self.block([row, column], [BLOCK, BLOCK]);
                    }
                }
            }
        }
    }

    impl<T: Tile> Tiles<'_, T> {
        /// Transposes a block. The last squares of the matrix overlap the squares before them.
        #[inline(always)]
        fn block(&mut self, [first_row, first_column]: [usize; 2], [height, width]: [usize; 2]) {
            let Matrix { x, x_stride, rows, columns, ref mut y, y_stride } = self.matrix;
            for column in (first_column..columns.min(first_column + width)).step_by(T::SIDE) {
                let column = column.min(columns - T::SIDE);
                for row in (first_row..rows.min(first_row + height)).step_by(T::SIDE) {
                    let row = row.min(rows - T::SIDE);
                    T::tile(
                        self.simd,
                        &x[row * x_stride + column..],
                        x_stride,
                        &mut y[column * y_stride + row..],
                        y_stride,
                    );
                }
            }
        }
    }

    /// The first `SIDE` elements of as many rows.
    #[inline(always)]
    fn load<T: Tile, const SIDE: usize>(x: &[T], stride: usize) -> [[T; SIDE]; SIDE] {
        let mut square = [[T::default(); SIDE]; SIDE];
        for (i, row) in square.iter_mut().enumerate() {
            row.copy_from_slice(&x[i * stride..][..SIDE]);
        }
        square
    }

    #[inline(always)]
    fn store<T: Tile, const SIDE: usize>(square: [[T; SIDE]; SIDE], y: &mut [T], stride: usize) {
        for (i, row) in square.iter().enumerate() {
            y[i * stride..][..SIDE].copy_from_slice(row);
        }
    }

    /// Transposes a square of `SIDE` vectors: each step interleaves the elements of the first half of the vectors with the second half.
    macro_rules! interleaved_tile {
        ($($t:ident $side:literal $steps:literal $low:ident $high:ident;)*) => { $(
            impl Tile for $t {
                const SIDE: usize = $side;

                #[inline(always)]
                fn tile(simd: V3, x: &[$t], x_stride: usize, y: &mut [$t], y_stride: usize) {
                    let mut vectors: [__m128i; $side] = cast(load::<$t, $side>(x, x_stride));
                    for _ in 0..$steps {
                        let previous = vectors;
                        for i in 0..$side / 2 {
                            let (a, b) = (previous[i], previous[i + $side / 2]);
                            vectors[2 * i] = simd.sse2.$low(a, b);
                            vectors[2 * i + 1] = simd.sse2.$high(a, b);
                        }
                    }
                    store::<$t, $side>(cast(vectors), y, y_stride);
                }
            }
        )* };
    }
    interleaved_tile! {
        u8 16 4 _mm_unpacklo_epi8 _mm_unpackhi_epi8;
        u16 8 3 _mm_unpacklo_epi16 _mm_unpackhi_epi16;
    }

    impl Tile for u32 {
        const SIDE: usize = 8;

        #[inline(always)]
        fn tile(simd: V3, x: &[u32], x_stride: usize, y: &mut [u32], y_stride: usize) {
            let rows: [__m256i; 8] = cast(load::<u32, 8>(x, x_stride));
            // Squares of 2 × 2 elements, then of 4 × 4: both halves of a vector are from the same rows.
            let (mut pairs, mut fours, mut columns) = (rows, rows, rows);
            for i in 0..4 {
                pairs[2 * i] = simd.avx2._mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
                pairs[2 * i + 1] = simd.avx2._mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
            }
            for i in 0..4 {
                let (half, pair) = (i / 2 * 4, i % 2);
                fours[half + 2 * pair] = simd.avx2._mm256_unpacklo_epi64(pairs[half + pair], pairs[half + pair + 2]);
                fours[half + 2 * pair + 1] =
                    simd.avx2._mm256_unpackhi_epi64(pairs[half + pair], pairs[half + pair + 2]);
            }
            for i in 0..4 {
                columns[i] = simd.avx2._mm256_permute2x128_si256::<0x20>(fours[i], fours[i + 4]);
                columns[i + 4] = simd.avx2._mm256_permute2x128_si256::<0x31>(fours[i], fours[i + 4]);
            }
            store::<u32, 8>(cast(columns), y, y_stride);
        }
    }

    impl Tile for u64 {
        const SIDE: usize = 4;

        #[inline(always)]
        fn tile(simd: V3, x: &[u64], x_stride: usize, y: &mut [u64], y_stride: usize) {
            let rows: [__m256i; 4] = cast(load::<u64, 4>(x, x_stride));
            let (mut pairs, mut columns) = (rows, rows);
            for i in 0..2 {
                pairs[2 * i] = simd.avx2._mm256_unpacklo_epi64(rows[2 * i], rows[2 * i + 1]);
                pairs[2 * i + 1] = simd.avx2._mm256_unpackhi_epi64(rows[2 * i], rows[2 * i + 1]);
            }
            for i in 0..2 {
                columns[i] = simd.avx2._mm256_permute2x128_si256::<0x20>(pairs[i], pairs[i + 2]);
                columns[i + 2] = simd.avx2._mm256_permute2x128_si256::<0x31>(pairs[i], pairs[i + 2]);
            }
            store::<u64, 4>(cast(columns), y, y_stride);
        }
    }

    impl Tile for u128 {
        const SIDE: usize = 1;

        #[inline(always)]
        fn tile(_: V3, x: &[u128], _: usize, y: &mut [u128], _: usize) {
            y[0] = x[0];
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
macro_rules! elements {
    ($($t:ident)*) => { $(
        impl Tile for $t {
            const SIDE: usize = 5;
        }
    )* };
}
#[cfg(not(target_arch = "x86_64"))]
elements!(u8 u16 u32 u64 u128);
