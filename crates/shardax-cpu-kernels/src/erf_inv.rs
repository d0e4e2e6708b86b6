//! The inverse error function of f32.
//!
//! Random normal numbers are computed by it, by the approximation of M. Giles ("Approximating the erfinv function", 2010) as in XLA, so that
//! they are JAX's numbers up to the last places. XLA (xla-cpu-pjrt 0.0.1) calls the C library for the logarithm of each element.

use pulp::{Arch, Simd, WithSimd};

use crate::Result;
use crate::elementwise::{LN_2, LOG, multiply_add, polynomial};
use crate::tasks::run_tasks;
use crate::view::check;

/// The elements of a task.
const TASK: usize = 1 << 15;

/// The quotient erfinv(x) / x as a polynomial of w - 2.5 for w = -log(1 - x²) below `FAR`, and of √w - 3 from it on. The last coefficient is the
/// constant.
const NEAR: [f32; 9] = [
    2.810_226_4e-8,
    3.432_739_4e-7,
    -3.523_387_7e-6,
    -4.391_506_5e-6,
    2.185_808_7e-4,
    -1.253_725e-3,
    -4.177_681_6e-3,
    2.466_407_3e-1,
    1.501_409_4,
];
const TAIL: [f32; 9] = [
    -2.002_142_6e-4,
    1.009_505_6e-4,
    1.349_343_2e-3,
    -3.673_428_4e-3,
    5.739_507_7e-3,
    -7.622_461_3e-3,
    9.438_870_5e-3,
    1.001_674,
    2.832_976_8,
];
const FAR: f32 = 5.0;

/// Computes the inverse error function of the elements, in f32 except for a logarithm. Next to 1 and -1 the rounded square causes an
/// error of up to a hundred units in the last place. `out` must have as many elements as `x`.
///
/// ```
/// let mut out = [0.0; 4];
/// shardax_cpu_kernels::erf_inv(&[0.0, 0.5, -1.0, 2.0], &mut out, 1)?;
/// assert_eq!((out[0], out[2]), (0.0, f32::NEG_INFINITY));
/// assert!((out[1] - 0.476_936_28).abs() < 1e-7);
/// assert!(out[3].is_nan());
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the numbers of elements differ.
pub fn erf_inv(x: &[f32], out: &mut [f32], threads: usize) -> Result<()> {
    check("the elements of the result", out.len(), x.len())?;
    let tasks = x.chunks(TASK).zip(out.chunks_mut(TASK)).collect();
    run_tasks(tasks, threads.max(1), || (), |(), (x, out)| Arch::new().dispatch(Part { x, out }));
    Ok(())
}

struct Part<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.out.iter_mut().zip(self.x).for_each(|(out, x)| *out = erf_inv_of(simd, *x));
    }
}

#[inline(always)]
pub(crate) fn erf_inv_of<S: Simd>(simd: S, x: f32) -> f32 {
    let w = -log(simd, 1.0 - f64::from(x * x)) as f32;
    let is_near = w < FAR;
    let t = if is_near { w - 2.5 } else { w.sqrt() - 3.0 };
    // A loop over both arrays, because the compiler vectorizes no iterator of them.
    let mut quotient = if is_near { NEAR[0] } else { TAIL[0] };
    for index in 1..NEAR.len() {
        let coefficient = if is_near { NEAR[index] } else { TAIL[index] };
        quotient = multiply_add_f32(simd, quotient, t, coefficient);
    }
    let magnitude = x.abs();
    let y = if magnitude == 1.0 { x * f32::INFINITY } else { x * quotient };
    if magnitude <= 1.0 { y } else { f32::NAN }
}

/// The logarithm of a positive normal number, as in [`log`](crate::log) but without its care for the last bits, which f32 does not have.
#[inline(always)]
pub(crate) fn log<S: Simd>(simd: S, x: f64) -> f64 {
    const MANTISSA: u32 = 52;
    const ROOT_OF_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
    let shifted = x.to_bits().wrapping_sub(ROOT_OF_HALF);
    let k = f64::from((shifted.cast_signed() >> MANTISSA) as i32);
    let f = f64::from_bits((shifted & ((1 << MANTISSA) - 1)).wrapping_add(ROOT_OF_HALF)) - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    multiply_add(simd, k, LN_2[0] + LN_2[1], s * multiply_add(simd, z, polynomial(simd, z, LOG), 2.0))
}

/// As [`multiply_add`] of f64.
#[inline(always)]
fn multiply_add_f32<S: Simd>(_simd: S, a: f32, b: f32, c: f32) -> f32 {
    let is_scalar = size_of::<S::f32s>() == size_of::<f32>();
    if is_scalar { a * b + c } else { a.mul_add(b, c) }
}
