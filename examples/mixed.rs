//! Pseudo-random numbers for synthetic data: each example is a function of its index.

/// A pseudo-random number computed from two others.
pub fn mixed(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    for shift in [30, 27, 31] {
        x = (x ^ (x >> shift)).wrapping_mul(0x94d0_49bb_1331_11eb);
    }
    x ^ (x >> 32)
}
