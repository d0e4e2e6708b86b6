//! A fast hash for keys that are compared after they are found.
//!
//! Eager operations hash their operands' types on every call. The standard library's hasher resists keys that an
//! attacker chose, which costs about 100 ns for two operands. Here a collision only costs a comparison, so each word is
//! mixed with one multiplication.

use std::hash::Hasher;

/// The fractional digits of the square root of 3, an odd number without a pattern in its bits.
const MULTIPLIER: u64 = 0xbb67_ae85_84ca_a73b;

/// A hasher that mixes each word by a multiplication to 128 bits, whose halves it combines.
#[derive(Default)]
pub(crate) struct FastHasher(u64);

impl FastHasher {
    #[inline]
    fn mix(&mut self, word: u64) {
        // The addition keeps a state and a word that are equal from cancelling out.
        let product = u128::from((self.0 ^ word).wrapping_add(MULTIPLIER)) * u128::from(MULTIPLIER);
        self.0 = (product as u64).rotate_left(23) ^ (product >> 64) as u64;
    }
}

/// Integers are one word each, and a 128-bit integer is two.
macro_rules! write_words {
    ($($name:ident: $t:ty),*) => {$(
        #[inline]
        fn $name(&mut self, word: $t) {
            self.mix(word as u64);
        }
    )*};
}

impl Hasher for FastHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.mix(u64::from_ne_bytes(*word)));
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.mix(u64::from_ne_bytes(word));
        }
        self.mix(bytes.len() as u64);
    }

    write_words!(write_u8: u8, write_u16: u16, write_u32: u32, write_u64: u64, write_usize: usize);

    #[inline]
    fn write_u128(&mut self, word: u128) {
        self.mix(word as u64);
        self.mix((word >> 64) as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::Hash;

    use super::*;

    fn hash_of(value: impl Hash) -> u64 {
        let mut hasher = FastHasher::default();
        value.hash(&mut hasher);
        hasher.finish()
    }

    /// Keys that differ in one number, in the order of their numbers, or in where a text ends have different hashes, and all
    /// parts of the hashes are spread: tables choose a lock by the upper bits and a bucket by the lower ones.
    #[test]
    fn similar_keys_have_spread_hashes() {
        let mut hashes: Vec<u64> = (0..64_usize).flat_map(|a| (0..64_usize).map(move |b| hash_of([a, b]))).collect();
        hashes.extend((0..64).map(|i| hash_of((0_u8, i, true))));
        hashes.extend([
            hash_of(("ab", "c")),
            hash_of(("a", "bc")),
            hash_of("abc"),
            hash_of("abc\0"),
            hash_of(1_u128 << 64),
        ]);
        assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), hashes.len());
        for shift in (0..64).step_by(8) {
            let mut counts = [0; 256];
            hashes.iter().for_each(|hash| counts[(hash >> shift) as usize & 255] += 1);
            // 16 are expected. Of 4,165 random hashes more than 50 share no byte.
            assert!(counts.iter().all(|count| *count <= 50), "{shift}: {counts:?}");
        }
    }
}
