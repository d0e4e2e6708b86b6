//! Vectors of the processor for kernels that are generic over the element. Sums in arrays of an array would be scalars on the stack if the
//! compiler unrolled all loops over them before it looked for vectors.

use pulp::Simd;

/// Types of elements that the processor has vectors for.
pub trait Vectors: Sized {
    type Vector<S: Simd>: Copy;

    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;

    /// Reads the first elements; those after the last one are 0.
    fn load<S: Simd>(simd: S, from: &[Self]) -> Self::Vector<S>;

    /// Writes at most as many elements as there are.
    fn store<S: Simd>(simd: S, to: &mut [Self], x: Self::Vector<S>);

    /// Returns `a * b + c`, with one rounding if the processor has an instruction for it.
    fn multiply_add_vectors<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;

    fn divide_vectors<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;

    fn add_vectors<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;

    fn sum<S: Simd>(simd: S, x: Self::Vector<S>) -> Self;
}

macro_rules! vectors {
    ($($t:ident $vector:ident $as_simd:ident $as_mut_simd:ident $splat:ident $load:ident $store:ident $mul_add:ident $div:ident $add:ident $sum:ident),*) => { $(
        impl Vectors for $t {
            type Vector<S: Simd> = S::$vector;

            #[inline(always)]
            fn splat<S: Simd>(simd: S, x: $t) -> S::$vector {
                simd.$splat(x)
            }

            #[inline(always)]
            fn load<S: Simd>(simd: S, from: &[$t]) -> S::$vector {
                match S::$as_simd(from).0.first() {
                    Some(vector) => *vector,
                    None => simd.$load(from),
                }
            }

            #[inline(always)]
            fn store<S: Simd>(simd: S, to: &mut [$t], x: S::$vector) {
                match S::$as_mut_simd(to).0.first_mut() {
                    Some(vector) => *vector = x,
                    None => simd.$store(to, x),
                }
            }

            #[inline(always)]
            fn multiply_add_vectors<S: Simd>(simd: S, a: S::$vector, b: S::$vector, c: S::$vector) -> S::$vector {
                simd.$mul_add(a, b, c)
            }

            #[inline(always)]
            fn divide_vectors<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                simd.$div(a, b)
            }

            #[inline(always)]
            fn add_vectors<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                simd.$add(a, b)
            }

            #[inline(always)]
            fn sum<S: Simd>(simd: S, x: S::$vector) -> $t {
                simd.$sum(x)
            }
        }
    )* };
}
vectors!(
    f32 f32s as_simd_f32s as_mut_simd_f32s splat_f32s partial_load_f32s partial_store_f32s mul_add_e_f32s div_f32s add_f32s reduce_sum_f32s,
    f64 f64s as_simd_f64s as_mut_simd_f64s splat_f64s partial_load_f64s partial_store_f64s mul_add_e_f64s div_f64s add_f64s reduce_sum_f64s
);
