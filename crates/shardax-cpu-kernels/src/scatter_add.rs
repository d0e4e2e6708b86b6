//! Sums of numbers at positions of a vector, as in histograms and segment sums.
//!
//! XLA (xla-cpu-pjrt 0.0.1) loops over the positions, and slices all three arrays for each of them.

use crate::Result;
use crate::per_type::per_type;
use crate::view::check;

/// The average number of updates of a sum from which on sums of f32 are computed in f64, because the rounding errors of long sums add up.
const UPDATES_OF_LONG_SUMS: usize = 1024;

per_type!(ScatterAdd for [f32, f64, i32, i64, u32, u64] {
    fn scatter_add(indices: &[i32], updates: &[Self], sums: &mut [Self]) = scatter_add_of;
});

mod sealed {
    pub trait Sealed: super::ScatterAdd + Copy {
        /// The type in which long sums are computed.
        type Wide: Copy;
        const IS_WIDE: bool;
        fn widen(self) -> Self::Wide;
        fn narrow(sum: Self::Wide) -> Self;
        fn plus(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    }
}

use sealed::Sealed;

/// An element of [`scatter_add`]: f32, f64, i32, i64, u32 or u64.
pub trait Addend: Sealed {}

macro_rules! addends {
    ($($t:ident $wide:ident $plus:expr;)*) => { $(
        impl Addend for $t {}

        impl Sealed for $t {
            type Wide = $wide;
            const IS_WIDE: bool = size_of::<$wide>() > size_of::<$t>();

            #[inline(always)]
            fn widen(self) -> $wide {
                self.into()
            }

            #[inline(always)]
            fn narrow(sum: $wide) -> $t {
                sum as $t
            }

            #[inline(always)]
            fn plus(a: $wide, b: $wide) -> $wide {
                $plus(a, b)
            }
        }
    )* };
}
addends! {
    f32 f64 std::ops::Add::add;
    f64 f64 std::ops::Add::add;
    i32 i32 i32::wrapping_add;
    i64 i64 i64::wrapping_add;
    u32 u32 u32::wrapping_add;
    u64 u64 u64::wrapping_add;
}

/// Adds each update to the sum at its index, in order; a single update is added at all indices. Updates whose index is negative or no index
/// of a sum are dropped, and integers wrap around. Sums of f32 are computed in f64 if there are at least 1,024 updates for each. It runs on
/// the calling thread only, because one sum after the other is read and written.
///
/// ```
/// let mut sums = [0.0f32; 3];
/// shardax_cpu_kernels::scatter_add(&[2, 0, 2, -1, 3], &[1.0, 2.0, 4.0, 8.0, 16.0], &mut sums)?;
/// assert_eq!(sums, [2.0, 0.0, 5.0]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if there is neither one update nor one for each index.
pub fn scatter_add<T: Addend>(indices: &[i32], updates: &[T], sums: &mut [T]) -> Result<()> {
    T::scatter_add(indices, updates, sums)
}

fn scatter_add_of<T: Addend>(indices: &[i32], updates: &[T], sums: &mut [T]) -> Result<()> {
    match updates {
        [update] => add_in_order(indices, std::iter::repeat(*update), sums),
        _ => {
            check("the updates", updates.len(), indices.len())?;
            add_in_order(indices, updates.iter().copied(), sums);
        }
    }
    Ok(())
}

fn add_in_order<T: Addend>(indices: &[i32], updates: impl Iterator<Item = T>, sums: &mut [T]) {
    if T::IS_WIDE && indices.len() / UPDATES_OF_LONG_SUMS >= sums.len() {
        let mut wide: Vec<T::Wide> = sums.iter().map(|sum| sum.widen()).collect();
        add(indices, updates, &mut wide, T::widen, T::plus);
        sums.iter_mut().zip(wide).for_each(|(sum, wide)| *sum = T::narrow(wide));
    } else {
        add(indices, updates, sums, |update| update, |a, b| T::narrow(T::plus(a.widen(), b.widen())));
    }
}

fn add<T: Copy, Sum: Copy>(
    indices: &[i32],
    updates: impl Iterator<Item = T>,
    sums: &mut [Sum],
    widen: impl Fn(T) -> Sum,
    plus: impl Fn(Sum, Sum) -> Sum,
) {
    for (index, update) in indices.iter().zip(updates) {
        // A negative index becomes a large one.
        if let Some(sum) = sums.get_mut(*index as u32 as usize) {
            *sum = plus(*sum, widen(update));
        }
    }
}
