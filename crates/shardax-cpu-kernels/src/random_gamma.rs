//! The accepted candidates of random gamma numbers.
//!
//! G. Marsaglia and W. Tsang, "A simple method for generating gamma variables" (2000): a candidate is the cube of a normal number, shifted
//! and scaled. It is accepted with a probability of at least 0.95. The random bits are JAX's, from the cipher Threefry-2x32. XLA
//! (xla-cpu-pjrt 0.0.1) runs a loop over all elements until each of them has accepted a candidate. Here an element whose candidate was
//! rejected leaves, and another one takes its place.

use pulp::{Arch, Simd, WithSimd};

use crate::Result;
use crate::erf_inv::{erf_inv_of, log};
use crate::tasks::run_tasks;
use crate::view::check;

/// The elements of a task.
const TASK: usize = 1 << 11;

/// The elements whose candidates are drawn together.
const LANES: usize = 32;

/// The lower end of the interval whose numbers become normal ones.
const ABOVE_MINUS_ONE: f32 = -1.0 + f32::EPSILON / 2.0;

/// Draws candidates with the keys `first_words` and `second_words` until one is accepted. The candidate `v = (1 + x / (3 √d))³` of a normal
/// number `x` is accepted such that `d v` has the gamma distribution with parameter `d + 1/3`. If `d` is NaN or infinite, the first one is
/// accepted. All slices must have the same length.
///
/// ```
/// let mut v = [0.0; 3];
/// shardax_cpu_kernels::random_gamma_factors([&[0, 1, 2], &[7; 3]], &[1.0, 10.0, f32::INFINITY], &mut v, 1)?;
/// assert!(v[0] > 0.0 && v[1] > 0.0);
/// assert_eq!(v[2], 1.0);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the lengths differ.
pub fn random_gamma_factors(keys: [&[u32]; 2], d: &[f32], out: &mut [f32], threads: usize) -> Result<()> {
    for words in keys {
        check("the words of keys", words.len(), d.len())?;
    }
    check("the elements of the result", out.len(), d.len())?;
    let keys = keys[0].chunks(TASK).zip(keys[1].chunks(TASK));
    let tasks = keys.zip(d.chunks(TASK)).zip(out.chunks_mut(TASK));
    let tasks = tasks.map(|(((first, second), d), out)| Part { keys: [first, second], d, out }).collect();
    run_tasks(tasks, threads.max(1), || (), |(), part| Arch::new().dispatch(part));
    Ok(())
}

struct Part<'a> {
    keys: [&'a [u32]; 2],
    d: &'a [f32],
    out: &'a mut [f32],
}

/// A key of the cipher.
type Key = [u32; 2];

/// Elements without an accepted candidate. The lanes from `count` on are unused.
struct Lanes {
    count: usize,
    index: [usize; LANES],
    key: [[u32; LANES]; 2],
    d: [f32; LANES],
}

impl Lanes {
    fn push(&mut self, index: usize, [first, second]: Key, d: f32) {
        let lane = self.count;
        self.index[lane] = index;
        self.key[0][lane] = first;
        self.key[1][lane] = second;
        self.d[lane] = d;
        self.count += 1;
    }
}

impl WithSimd for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let mut waiting = 0..self.d.len();
        let mut lanes = Lanes { count: 0, index: [0; LANES], key: [[0; LANES]; 2], d: [1.0; LANES] };
        loop {
            while lanes.count < LANES
                && let Some(index) = waiting.next()
            {
                lanes.push(index, [self.keys[0][index], self.keys[1][index]], self.d[index]);
            }
            if lanes.count == 0 {
                return;
            }
            let count = std::mem::take(&mut lanes.count);
            let (factors, are_accepted) = draw_lanes(simd, &lanes);
            for lane in 0..count {
                let (index, key, d) = (lanes.index[lane], [lanes.key[0][lane], lanes.key[1][lane]], lanes.d[lane]);
                // NaN stays NaN.
                let (factor, is_accepted) = if factors[lane] <= 0.0 {
                    draw_positive(simd, key, d)
                } else {
                    (factors[lane], are_accepted[lane])
                };
                if is_accepted {
                    self.out[index] = factor;
                } else {
                    // Only lanes that were looked at are overwritten.
                    lanes.push(index, encrypt(key, 0), d);
                }
            }
        }
    }
}

/// The first candidate of each lane, and whether it is accepted if it is positive.
#[inline(always)]
fn draw_lanes<S: Simd>(simd: S, lanes: &Lanes) -> ([f32; LANES], [bool; LANES]) {
    let (mut normal_bits, mut uniform_bits) = ([0; LANES], [0; LANES]);
    for lane in 0..LANES {
        let key = [lanes.key[0][lane], lanes.key[1][lane]];
        normal_bits[lane] = bits(encrypt(encrypt(key, 1), 1));
        uniform_bits[lane] = bits(encrypt(key, 2));
    }
    let (mut factors, mut are_accepted) = ([0.0; LANES], [false; LANES]);
    for lane in 0..LANES {
        let candidate = candidate_of(simd, normal_bits[lane], lanes.d[lane]);
        factors[lane] = cube(candidate.root);
        are_accepted[lane] = is_accepted(simd, candidate, uniform_bits[lane], lanes.d[lane]);
    }
    (factors, are_accepted)
}

/// As [`draw_lanes`], for an element whose first normal number is too small: it draws others until the candidate is positive.
#[cold]
fn draw_positive<S: Simd>(simd: S, key: Key, d: f32) -> (f32, bool) {
    let mut loop_key = encrypt(key, 1);
    loop {
        let candidate = candidate_of(simd, bits(encrypt(loop_key, 1)), d);
        if candidate.root <= 0.0 {
            loop_key = encrypt(loop_key, 0);
            continue;
        }
        return (cube(candidate.root), is_accepted(simd, candidate, bits(encrypt(key, 2)), d));
    }
}

/// A normal number, and the root of the candidate.
#[derive(Clone, Copy)]
struct Candidate {
    normal: f32,
    root: f32,
}

#[inline(always)]
fn candidate_of<S: Simd>(simd: S, bits: u32, d: f32) -> Candidate {
    let uniform = (2.0 * unit(bits) + ABOVE_MINUS_ONE).max(ABOVE_MINUS_ONE);
    let normal = std::f32::consts::SQRT_2 * erf_inv_of(simd, uniform);
    Candidate { normal, root: 1.0 + normal * ((1.0 / 3.0) / d.sqrt()) }
}

#[inline(always)]
fn cube(x: f32) -> f32 {
    x * x * x
}

/// Compares a uniform number with the ratio of the densities, or with a bound of it.
#[inline(always)]
fn is_accepted<S: Simd>(simd: S, Candidate { normal, root }: Candidate, uniform_bits: u32, d: f32) -> bool {
    let (u, v, square) = (unit(uniform_bits), cube(root), normal * normal);
    let is_below_bound = u < 1.0 - 0.0331 * (square * square);
    let log_ratio = 0.5 * square + d * (1.0 - v + log(simd, f64::from(v)) as f32);
    // The logarithm of 0 is less than all bounds, and a bound that is NaN accepts. Here the logarithm is not accurate for 0 and infinity.
    let is_irregular = log_ratio.is_nan() | !v.is_finite() | (u == 0.0);
    is_below_bound | is_irregular | ((log(simd, f64::from(u)) as f32) < log_ratio)
}

/// A number from 0 to 1.
#[inline(always)]
fn unit(bits: u32) -> f32 {
    f32::from_bits((bits >> 9) | 1f32.to_bits()) - 1.0
}

/// Random bits of a key.
#[inline(always)]
fn bits(key: Key) -> u32 {
    let [first, second] = encrypt(key, 0);
    first ^ second
}

/// Encrypts the number of a block by Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
#[inline(always)]
fn encrypt(key: Key, block: u32) -> Key {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    const PARITY: u32 = 0x1BD1_1BDA;
    let keys = [key[0], key[1], key[0] ^ key[1] ^ PARITY];
    let mut x = [keys[0], block.wrapping_add(keys[1])];
    for group in 0..5 {
        for by in ROTATIONS[group % 2] {
            x[0] = x[0].wrapping_add(x[1]);
            x[1] = x[1].rotate_left(by) ^ x[0];
        }
        x[0] = x[0].wrapping_add(keys[(group + 1) % 3]);
        x[1] = x[1].wrapping_add(keys[(group + 2) % 3]).wrapping_add(group as u32 + 1);
    }
    x
}
