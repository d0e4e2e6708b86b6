//! Damaged files of `jax.export`.

use shardax::export::Exported;
use shardax::prelude::*;

use super::jax::exported;
use crate::common::quick::{one_of, setup};

/// JAX's files have no checksum, so loading a damaged file is an error or returns another function, but it never panics.
#[test]
fn damaged_artifacts_of_jax() -> Result<()> {
    setup();
    type F = Exported<(Array,), Array>;
    for (name, step) in [("where", 5), ("trees", 31), ("sharded", 31)] {
        let bytes = std::fs::read(exported(&format!("{name}.jax"))).expect("the artifact");
        assert!(F::deserialize(&bytes).is_ok());
        let (mut rejected, mut tried) = (0, 0);
        for at in (0..bytes.len()).step_by(step * one_of(4)) {
            // The last bytes are padding after the last text.
            assert!(F::deserialize(&bytes[..at]).is_err() || at + 4 > bytes.len(), "{name}: cut at {at}");
            let mut changed = bytes.clone();
            changed[at] ^= [0xff, 1 << (at / 2 % 8)][at % 2];
            tried += 1;
            rejected += usize::from(F::deserialize(&changed).is_err());
        }
        assert!(4 * rejected > tried, "{name}: {rejected} of {tried}");
    }
    // Programs with symbolic sizes or calls of LAPACK are read when they are called.
    fn sizes() -> Vec<Array> {
        vec![ones([3, 4]), ones([12]), arange(0..3)]
    }
    fn matrices() -> Vec<Array> {
        vec![ones([2, 4, 4]), ones([2, 4, 3])]
    }
    for (name, step, args) in [("sizes", 1009, sizes()), ("decompositions", 2003, matrices())] {
        let bytes = std::fs::read(exported(&format!("{name}.jax"))).expect("the artifact");
        for at in (0..bytes.len()).step_by(step) {
            let mut changed = bytes.clone();
            changed[at] ^= [0xff, 1 << (at / 2 % 8)][at % 2];
            if let Ok(read) = F::deserialize(&changed) {
                drop(jit(|args: Vec<Array>| read.call_leaves(&args)).lower(args.clone()));
            }
        }
    }
    // A tree whose tables are shared must not grow beyond the file: here 30 nested pairs, where both entries of a pair are the next
    // pair.
    let bytes = std::fs::read(exported("where.jax")).expect("the artifact");
    fn word(at: usize, bytes: &[u8]) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
    }
    let fields = (word(0, &bytes) - word(word(0, &bytes) as usize, &bytes)) as usize;
    let place = word(0, &bytes) as usize + usize::from(u16::from_le_bytes([bytes[fields + 12], bytes[fields + 13]]));
    let mut shared = bytes.clone();
    shared.resize(bytes.len().next_multiple_of(4), 0);
    let tables = shared.len();
    shared[place..place + 4].copy_from_slice(&((tables + 8 - place) as u32).to_le_bytes());
    for level in 0..30u32 {
        // The fields of the table: its kind, and the distances of its children.
        [8u16, 12, 4, 8].iter().for_each(|n| shared.extend(n.to_le_bytes()));
        let (count, next) = if level < 29 { (2u32, [20, 16]) } else { (0, [0, 0]) };
        [8, 2, 4, count, next[0], next[1], 0].iter().for_each(|n| shared.extend(n.to_le_bytes()));
    }
    assert!(F::deserialize(&shared).is_err());
    let error = F::deserialize(&[7; 100]).err().expect("no function").to_string();
    assert!(error.contains("not an exported function, of this library or of `jax.export`"), "{error}");
    Ok(())
}
