//! Tiles: sums of products of packed words, by instructions of the processor.
#![expect(unsafe_code, reason = "instructions that a processor may lack are called")]

use half::bf16;
use pulp::Scalar;

use super::{COLUMNS, LINE, Tile, Unit};

/// Pairs of bf16, in ordinary instructions.
#[derive(Clone, Copy)]
pub(super) struct Bf16Pairs;

impl Unit for Bf16Pairs {
    type Element = bf16;
    type Sum = f32;
    type Vectors = Scalar;
    const GROUP: usize = 2;

    #[inline(always)]
    fn vectors(self) -> Scalar {
        Scalar::new()
    }

    #[inline(always)]
    fn bits(element: bf16, position: usize) -> u32 {
        u32::from(element.to_bits()) << (16 * position)
    }

    #[inline(always)]
    fn tile<const H: usize>(self, left: &[u32], right: &[u32], sums: &mut Tile<f32, H>) {
        by_words(left, right, sums, |sum, x, y| {
            let [x_low, y_low] = [x, y].map(|word| f32::from_bits(word << 16));
            let [x_high, y_high] = [x, y].map(|word| f32::from_bits(word & 0xffff_0000));
            sum + x_low * y_low + x_high * y_high
        });
    }
}

/// Pairs of int8 in 16 bits each, in ordinary instructions.
#[derive(Clone, Copy)]
pub(super) struct Int8Pairs;

impl Unit for Int8Pairs {
    type Element = i8;
    type Sum = i32;
    type Vectors = Scalar;
    const GROUP: usize = 2;

    #[inline(always)]
    fn vectors(self) -> Scalar {
        Scalar::new()
    }

    #[inline(always)]
    fn bits(element: i8, position: usize) -> u32 {
        u32::from(i16::from(element) as u16) << (16 * position)
    }

    #[inline(always)]
    fn tile<const H: usize>(self, left: &[u32], right: &[u32], sums: &mut Tile<i32, H>) {
        by_words(left, right, sums, |sum, x, y| {
            let [x_low, y_low] = [x, y].map(|word| i32::from(word as i16));
            let [x_high, y_high] = [x, y].map(|word| i32::from((word >> 16) as i16));
            sum.wrapping_add(x_low * y_low + x_high * y_high)
        });
    }
}

/// Adds products of words to the sums of a tile, for four rows and half of the columns at a time: sums of more do not fit the registers.
#[inline(always)]
pub(super) fn by_words<T: Copy + Default, const H: usize>(
    left: &[u32],
    right: &[u32],
    sums: &mut Tile<T, H>,
    multiply_add: impl Fn(T, u32, u32) -> T,
) {
    const HALF: usize = COLUMNS / 2;
    let ((left, _), (right, _)) = (left.as_chunks::<H>(), right.as_chunks::<COLUMNS>());
    for row in (0..H).step_by(4) {
        let rows = (row + 4).min(H) - row;
        for half in 0..2 {
            let mut part = [[T::default(); HALF]; 4];
            for (left, right) in left.iter().zip(right) {
                let right = right.as_chunks::<HALF>().0[half];
                for (part, x) in part.iter_mut().zip(&left[row..row + rows]) {
                    for (sum, y) in part.iter_mut().zip(right) {
                        *sum = multiply_add(*sum, *x, y);
                    }
                }
            }
            for (sums, part) in sums[row..row + rows].iter_mut().zip(part) {
                sums.as_chunks_mut::<HALF>().0[half] = part;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{bf16_instructions, int8_instructions, int8_pair_instructions};

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn bf16_instructions() -> Option<Bf16Pairs> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn int8_instructions() -> Option<Int8Pairs> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn int8_pair_instructions() -> Option<Int8Pairs> {
    None
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::mem::transmute;

    use half::bf16;
    use pulp::x86::{V3, V4};

    use super::super::amx::{TileProduct, WORDS};
    use super::super::pack::word;
    use super::super::pairs::int8_pair_dots;
    use super::super::tile_registers::{Bf16Tiles, Int8Tiles, tile_registers};
    use super::{Bf16Pairs, COLUMNS, Int8Pairs, LINE, Tile, Unit};
    use crate::prefetch::{AHEAD, prefetch};

    /// Pairs of bf16 by AVX512-BF16, and by AMX if the processor has it. A value exists only where the processor has AVX512-BF16.
    #[derive(Clone, Copy)]
    pub(in crate::low_precision) struct Bf16Dot {
        vectors: V4,
        tiles: Option<Bf16Tiles>,
    }

    #[cfg(test)]
    impl Bf16Dot {
        pub(in crate::low_precision) fn without_tiles(self) -> Self {
            Bf16Dot { tiles: None, ..self }
        }
    }

    /// The unit of bf16, if the processor has its instructions.
    pub(in crate::low_precision) fn bf16_instructions() -> Option<Bf16Dot> {
        let vectors = V4::try_new().filter(|_| is_x86_feature_detected!("avx512bf16"))?;
        Some(Bf16Dot { vectors, tiles: tile_registers().map(Bf16Tiles::new) })
    }

    impl Unit for Bf16Dot {
        type Element = bf16;
        type Sum = f32;
        type Vectors = V4;
        const GROUP: usize = 2;

        #[inline(always)]
        fn vectors(self) -> V4 {
            self.vectors
        }

        #[inline(always)]
        fn bits(element: bf16, position: usize) -> u32 {
            Bf16Pairs::bits(element, position)
        }

        #[inline(always)]
        fn row_words(elements: &[bf16], words: &mut [u32; WORDS]) {
            match elements.try_into() {
                // SAFETY: all bits are words, and the sizes are equal.
                Ok(elements) => *words = unsafe { transmute::<[bf16; 32], [u32; WORDS]>(elements) },
                Err(_) => {
                    words.iter_mut().zip(elements.chunks(Self::GROUP)).for_each(|(to, group)| *to = word::<Self>(group))
                }
            }
        }

        #[inline(always)]
        fn tile<const H: usize>(self, left: &[u32], right: &[u32], sums: &mut Tile<f32, H>) {
            // SAFETY: `self` exists, so that the processor has the instructions.
            unsafe { bf16_tile(left, right, sums) }
        }

        #[inline(always)]
        fn tile_of_rows<const H: usize>(
            self,
            left: &[u32],
            right: &[bf16],
            stride: usize,
            sums: &mut Tile<f32, H>,
            _excess: &mut [f32; COLUMNS],
        ) -> bool {
            // SAFETY: `self` exists, so that the processor has the instructions.
            unsafe { bf16_rows_tile(left, right, stride, sums) };
            true
        }

        const HAS_DOTS: bool = true;

        #[inline(always)]
        fn dots<const H: usize, const C: usize>(
            self,
            rows: &[[[u32; LINE]; H]],
            columns: [&[bf16]; C],
            _excess: &mut [f32; C],
        ) -> [[f32; C]; H] {
            // SAFETY: `self` exists, so that the processor has the instructions.
            unsafe { bf16_dots(rows, columns) }
        }

        #[inline(always)]
        fn tile_registers(self) -> Option<impl TileProduct<f32>> {
            self.tiles
        }
    }

    /// Groups of four int8 by AVX-512 VNNI, whose left operand is unsigned: 128 is added to its elements by inverting a bit. By AMX if the
    /// processor has it. A value exists only where the processor has VNNI.
    #[derive(Clone, Copy)]
    pub(in crate::low_precision) struct Int8Dot {
        vectors: V4,
        tiles: Option<Int8Tiles>,
    }

    #[cfg(test)]
    impl Int8Dot {
        pub(in crate::low_precision) fn without_tiles(self) -> Self {
            Int8Dot { tiles: None, ..self }
        }
    }

    /// The unit of int8, if the processor has its instructions.
    pub(in crate::low_precision) fn int8_instructions() -> Option<Int8Dot> {
        let vectors = V4::try_new().filter(|_| is_x86_feature_detected!("avx512vnni"))?;
        Some(Int8Dot { vectors, tiles: tile_registers().map(Int8Tiles::new) })
    }

    impl Unit for Int8Dot {
        type Element = i8;
        type Sum = i32;
        type Vectors = V4;
        const GROUP: usize = 4;
        const LEFT_MASK: u32 = 0x8080_8080;

        #[inline(always)]
        fn vectors(self) -> V4 {
            self.vectors
        }

        #[inline(always)]
        fn bits(element: i8, position: usize) -> u32 {
            u32::from(element as u8) << (8 * position)
        }

        #[inline(always)]
        fn row_words(elements: &[i8], words: &mut [u32; WORDS]) {
            match elements.try_into() {
                // SAFETY: all bits are words, and the sizes are equal.
                Ok(elements) => *words = unsafe { transmute::<[i8; 64], [u32; WORDS]>(elements) },
                Err(_) => {
                    words.iter_mut().zip(elements.chunks(Self::GROUP)).for_each(|(to, group)| *to = word::<Self>(group))
                }
            }
        }

        #[inline(always)]
        fn tile<const H: usize>(self, left: &[u32], right: &[u32], sums: &mut Tile<i32, H>) {
            // SAFETY: `self` exists, so that the processor has the instructions.
            unsafe { int8_tile(left, right, sums) }
        }

        #[inline(always)]
        fn tile_of_rows<const H: usize>(
            self,
            left: &[u32],
            right: &[i8],
            stride: usize,
            sums: &mut Tile<i32, H>,
            excess: &mut [i32; COLUMNS],
        ) -> bool {
            // SAFETY: `self` exists, so that the processor has the instructions.
            unsafe { int8_rows_tile(left, right, stride, sums, excess) };
            true
        }

        const HAS_DOTS: bool = true;

        #[inline(always)]
        fn dots<const H: usize, const C: usize>(
            self,
            rows: &[[[u32; LINE]; H]],
            columns: [&[i8]; C],
            excess: &mut [i32; C],
        ) -> [[i32; C]; H] {
            // SAFETY: `self` exists, so that the processor has the instructions.
            unsafe { int8_dots(rows, columns, excess) }
        }

        #[inline(always)]
        fn tile_registers(self) -> Option<impl TileProduct<i32>> {
            self.tiles
        }
    }

    /// Pairs of int8 in 16 bits each by AVX2. A value exists only where the processor has it.
    #[derive(Clone, Copy)]
    pub(in crate::low_precision) struct Int8PairDot(V3);

    /// The unit of int8 for processors without VNNI, if the processor has its instructions.
    pub(in crate::low_precision) fn int8_pair_instructions() -> Option<Int8PairDot> {
        V3::try_new().map(Int8PairDot)
    }

    impl Unit for Int8PairDot {
        type Element = i8;
        type Sum = i32;
        type Vectors = V3;
        const GROUP: usize = 2;

        #[inline(always)]
        fn vectors(self) -> V3 {
            self.0
        }

        #[inline(always)]
        fn bits(element: i8, position: usize) -> u32 {
            Int8Pairs::bits(element, position)
        }

        #[inline(always)]
        fn tile<const H: usize>(self, left: &[u32], right: &[u32], sums: &mut Tile<i32, H>) {
            // SAFETY: `self` exists, so that the processor has the instructions.
            unsafe { int8_pair_tile(left, right, sums) }
        }

        const HAS_DOTS: bool = true;
        const HAS_FEW_REGISTERS: bool = true;

        #[inline(always)]
        fn dots<const H: usize, const C: usize>(
            self,
            rows: &[[[u32; LINE]; H]],
            columns: [&[i8]; C],
            _excess: &mut [i32; C],
        ) -> [[i32; C]; H] {
            // SAFETY: `self` exists, so that the processor has the instructions.
            unsafe { int8_pair_dots(rows, columns) }
        }
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    fn bf16_tile<const H: usize>(left: &[u32], right: &[u32], sums: &mut Tile<f32, H>) {
        let mut vectors = [[_mm512_setzero_ps(); 2]; H];
        for (left, right) in left.as_chunks::<H>().0.iter().zip(right.as_chunks::<COLUMNS>().0) {
            // SAFETY: all bits are vectors, and the sizes are equal.
            let [first, second] = unsafe { transmute::<[u32; COLUMNS], [__m512bh; 2]>(*right) };
            for (vectors, word) in vectors.iter_mut().zip(left) {
                // SAFETY: the same.
                let x = unsafe { transmute::<__m512i, __m512bh>(_mm512_set1_epi32(word.cast_signed())) };
                vectors[0] = _mm512_dpbf16_ps(vectors[0], x, first);
                vectors[1] = _mm512_dpbf16_ps(vectors[1], x, second);
            }
        }
        for (sums, vectors) in sums.iter_mut().zip(vectors) {
            // SAFETY: the same.
            *sums = unsafe { transmute::<[__m512; 2], [f32; COLUMNS]>(vectors) };
        }
    }

    /// Like [`bf16_tile`], of rows of a matrix at this distance. Two rows are joined to words in registers. An instruction joins elements
    /// within 128 bits, so that four sums of each vector are next to each other.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn bf16_rows_tile<const H: usize>(left: &[u32], right: &[bf16], stride: usize, sums: &mut Tile<f32, H>) {
        let mut vectors = [[_mm512_setzero_ps(); 2]; H];
        for (pair, left) in left.as_chunks::<H>().0.iter().enumerate() {
            let [even, odd] = [2 * pair, 2 * pair + 1].map(|row| {
                let (elements, _) = right[row * stride..][..COLUMNS].as_chunks::<COLUMNS>();
                // SAFETY: all bits are vectors, and the sizes are equal.
                unsafe { transmute::<[bf16; COLUMNS], __m512i>(elements[0]) }
            });
            let [first, second] = [_mm512_unpacklo_epi16(even, odd), _mm512_unpackhi_epi16(even, odd)];
            // SAFETY: the same.
            let [first, second] = unsafe { transmute::<[__m512i; 2], [__m512bh; 2]>([first, second]) };
            for (vectors, word) in vectors.iter_mut().zip(left) {
                // SAFETY: the same.
                let x = unsafe { transmute::<__m512i, __m512bh>(_mm512_set1_epi32(word.cast_signed())) };
                vectors[0] = _mm512_dpbf16_ps(vectors[0], x, first);
                vectors[1] = _mm512_dpbf16_ps(vectors[1], x, second);
            }
        }
        for (sums, vectors) in sums.iter_mut().zip(vectors) {
            // SAFETY: the same.
            let fours = unsafe { transmute::<[__m512; 2], [[[f32; 4]; 4]; 2]>(vectors) };
            for (index, sums) in sums.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *sums = fours[index % 2][index / 2];
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn int8_tile<const H: usize>(left: &[u32], right: &[u32], sums: &mut Tile<i32, H>) {
        let mut vectors = [[_mm512_setzero_si512(); 2]; H];
        for (left, right) in left.as_chunks::<H>().0.iter().zip(right.as_chunks::<COLUMNS>().0) {
            // SAFETY: all bits are vectors, and the sizes are equal.
            let [first, second] = unsafe { transmute::<[u32; COLUMNS], [__m512i; 2]>(*right) };
            for (vectors, word) in vectors.iter_mut().zip(left) {
                let x = _mm512_set1_epi32(word.cast_signed());
                vectors[0] = _mm512_dpbusd_epi32(vectors[0], x, first);
                vectors[1] = _mm512_dpbusd_epi32(vectors[1], x, second);
            }
        }
        for (sums, vectors) in sums.iter_mut().zip(vectors) {
            // SAFETY: the same.
            *sums = unsafe { transmute::<[__m512i; 2], [i32; COLUMNS]>(vectors) };
        }
    }

    /// Like [`int8_tile`], of rows of a matrix at this distance, and the sums of the columns times 128. Four rows are joined to words in
    /// registers. The instructions join elements within 128 bits, so that four sums of each vector are next to each other.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    fn int8_rows_tile<const H: usize>(
        left: &[u32],
        right: &[i8],
        stride: usize,
        sums: &mut Tile<i32, H>,
        excess: &mut [i32; COLUMNS],
    ) {
        let mut vectors = [[_mm512_setzero_si512(); 2]; H];
        let mut extra = [_mm512_setzero_si512(); 2];
        let mask = _mm512_set1_epi32(Int8Dot::LEFT_MASK.cast_signed());
        for (group, left) in left.as_chunks::<H>().0.iter().enumerate() {
            let [a, b, c, d] = [0, 1, 2, 3].map(|row| {
                let (elements, _) = right[(4 * group + row) * stride..][..COLUMNS].as_chunks::<COLUMNS>();
                // SAFETY: all bits are vectors, and the sizes are equal.
                unsafe { transmute::<[i8; COLUMNS], __m256i>(elements[0]) }
            });
            let (ab_low, ab_high) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
            let (cd_low, cd_high) = (_mm256_unpacklo_epi8(c, d), _mm256_unpackhi_epi8(c, d));
            let first = joined(_mm256_unpacklo_epi16(ab_low, cd_low), _mm256_unpackhi_epi16(ab_low, cd_low));
            let second = joined(_mm256_unpacklo_epi16(ab_high, cd_high), _mm256_unpackhi_epi16(ab_high, cd_high));
            for (vectors, word) in vectors.iter_mut().zip(left) {
                let x = _mm512_set1_epi32(word.cast_signed());
                vectors[0] = _mm512_dpbusd_epi32(vectors[0], x, first);
                vectors[1] = _mm512_dpbusd_epi32(vectors[1], x, second);
            }
            extra = [_mm512_dpbusd_epi32(extra[0], mask, first), _mm512_dpbusd_epi32(extra[1], mask, second)];
        }
        write_joined(&extra, excess);
        for (sums, vectors) in sums.iter_mut().zip(&vectors) {
            write_joined(vectors, sums);
        }
    }

    /// Writes the sums of columns that [`int8_rows_tile`] joined.
    #[inline(always)]
    fn write_joined(vectors: &[__m512i; 2], sums: &mut [i32; COLUMNS]) {
        // SAFETY: all bits are vectors, and the sizes are equal.
        let fours = unsafe { transmute::<[__m512i; 2], [[[i32; 4]; 4]; 2]>(*vectors) };
        for (index, sums) in sums.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *sums = fours[index / 2 % 2][index % 2 * 2 + index / 4];
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn joined(low: __m256i, high: __m256i) -> __m512i {
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    }

    /// The sums of the products of rows of words and columns of elements.
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn bf16_dots<const H: usize, const C: usize>(rows: &[[[u32; LINE]; H]], columns: [&[bf16]; C]) -> [[f32; C]; H] {
        let mut vectors = [[_mm512_setzero_ps(); C]; H];
        for (step, rows) in rows.iter().enumerate() {
            let mut right = [_mm512_setzero_si512(); C];
            for (right, column) in right.iter_mut().zip(&columns) {
                // SAFETY: all bits are vectors, and the sizes are equal.
                *right = unsafe { transmute::<[bf16; 2 * LINE], __m512i>(next_elements(column, step, bf16::ZERO)) };
            }
            for (vectors, row) in vectors.iter_mut().zip(rows) {
                // SAFETY: the same.
                let x = unsafe { transmute::<[u32; LINE], __m512bh>(*row) };
                for (sum, y) in vectors.iter_mut().zip(&right) {
                    // SAFETY: the same.
                    *sum = _mm512_dpbf16_ps(*sum, x, unsafe { transmute::<__m512i, __m512bh>(*y) });
                }
            }
        }
        let mut sums = [[0.0; C]; H];
        for (sum, vector) in sums.as_flattened_mut().iter_mut().zip(vectors.as_flattened()) {
            *sum = _mm512_reduce_add_ps(*vector);
        }
        sums
    }

    /// Like [`bf16_dots`], and the sums of the columns times 128.
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn int8_dots<const H: usize, const C: usize>(
        rows: &[[[u32; LINE]; H]],
        columns: [&[i8]; C],
        excess: &mut [i32; C],
    ) -> [[i32; C]; H] {
        let mut vectors = [[_mm512_setzero_si512(); C]; H];
        let mut extra = [_mm512_setzero_si512(); C];
        let mask = _mm512_set1_epi32(Int8Dot::LEFT_MASK.cast_signed());
        for (step, rows) in rows.iter().enumerate() {
            let mut right = [_mm512_setzero_si512(); C];
            for (right, column) in right.iter_mut().zip(&columns) {
                // SAFETY: all bits are vectors, and the sizes are equal.
                *right = unsafe { transmute::<[i8; 4 * LINE], __m512i>(next_elements(column, step, 0)) };
            }
            for (vectors, row) in vectors.iter_mut().zip(rows) {
                // SAFETY: the same.
                let x = unsafe { transmute::<[u32; LINE], __m512i>(*row) };
                for (sum, y) in vectors.iter_mut().zip(&right) {
                    *sum = _mm512_dpbusd_epi32(*sum, x, *y);
                }
            }
            for (sum, y) in extra.iter_mut().zip(&right) {
                *sum = _mm512_dpbusd_epi32(*sum, mask, *y);
            }
        }
        for (excess, vector) in excess.iter_mut().zip(&extra) {
            *excess = _mm512_reduce_add_epi32(*vector);
        }
        let mut sums = [[0; C]; H];
        for (sum, vector) in sums.as_flattened_mut().iter_mut().zip(vectors.as_flattened()) {
            *sum = _mm512_reduce_add_epi32(*vector);
        }
        sums
    }

    /// The elements of a vector, the last ones of a column followed by zeros. Requests the elements of the next columns.
    #[inline(always)]
    fn next_elements<T: Copy, const N: usize>(column: &[T], step: usize, zero: T) -> [T; N] {
        prefetch(column, step * N + AHEAD / 4 / size_of::<T>());
        let (vectors, rest) = column.as_chunks::<N>();
        vectors.get(step).copied().unwrap_or_else(|| {
            let mut last = [zero; N];
            last[..rest.len()].copy_from_slice(rest);
            last
        })
    }

    /// Adds the products of four rows and half of the columns at a time: sums of more do not fit the 16 registers.
    #[target_feature(enable = "avx2")]
    fn int8_pair_tile<const H: usize>(left: &[u32], right: &[u32], sums: &mut Tile<i32, H>) {
        const ROWS: usize = 4;
        const HALF: usize = COLUMNS / 2;
        let ((left, _), (right, _)) = (left.as_chunks::<H>(), right.as_chunks::<COLUMNS>());
        for row in (0..H).step_by(ROWS) {
            // A tile of one row multiplies it four times, since a number of rows that the compiler does not know would keep
            // the sums out of the registers.
            let rows: [usize; ROWS] = std::array::from_fn(|i| (row + i).min(H - 1));
            for half in 0..2 {
                let mut vectors = [[_mm256_setzero_si256(); 2]; ROWS];
                for (left, right) in left.iter().zip(right) {
                    // SAFETY: all bits are vectors, and the sizes are equal.
                    let right = unsafe { transmute::<[u32; HALF], [__m256i; 2]>(right.as_chunks::<HALF>().0[half]) };
                    for (vectors, row) in vectors.iter_mut().zip(rows) {
                        let x = _mm256_set1_epi32(left[row].cast_signed());
                        vectors[0] = _mm256_add_epi32(vectors[0], _mm256_madd_epi16(x, right[0]));
                        vectors[1] = _mm256_add_epi32(vectors[1], _mm256_madd_epi16(x, right[1]));
                    }
                }
                for (vectors, row) in vectors.into_iter().zip(rows) {
                    // SAFETY: the same.
                    sums[row].as_chunks_mut::<HALF>().0[half] =
                        unsafe { transmute::<[__m256i; 2], [i32; HALF]>(vectors) };
                }
            }
        }
    }
}
