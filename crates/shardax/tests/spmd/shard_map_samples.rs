//! Functions of blocks compared with the same functions of the entire array.

use shardax::prelude::*;

use crate::close;
use crate::common::quick::one_of;
use crate::shard_map::{mesh42, ramp};

/// A function applied block by block on the host: what `shard_map` means.
fn by_blocks(f: fn(Array) -> Array, x: &Array, rows: usize, columns: usize) -> Result<Array> {
    let rows: Vec<Array> = x
        .split(rows, 0)?
        .iter()
        .map(|row| -> Result<Array> {
            let blocks: Vec<Array> = row.split(columns, 1)?.into_iter().map(f).collect();
            Ok(concatenate(&blocks, 1))
        })
        .collect::<Result<_>>()?;
    Ok(concatenate(&rows, 0))
}

const SAMPLES: [fn(Array) -> Array; 5] =
    [|x| x.sin(), |x| &x * &x + 1.0, |x| x.max_keepdims(0) + &x, |x| x.cumulative_like(), |x| x.dot(x.t()).dot(&x)];

trait Cumulative {
    fn cumulative_like(&self) -> Array;
}

impl Cumulative for Array {
    fn cumulative_like(&self) -> Array {
        self / self.sum_keepdims(1)
    }
}

/// JAX: `test_eager_against_ref`.
#[test]
fn eager_shard_map_equals_slices_and_concatenation() -> Result<()> {
    let mesh = mesh42()?;
    for (i, f) in SAMPLES.into_iter().enumerate() {
        let specs = [
            (P!["i", "j"], 4, 2),
            (P!["j", "i"], 2, 4),
            (P![("i", "j")], 8, 1),
            (P![None, ("j", "i")], 1, 8),
            (P!["i"], 4, 1),
        ];
        // A slice has each function with one of the specs.
        for (spec, rows, columns) in specs.into_iter().skip(i % one_of(5)).step_by(one_of(5)) {
            let x = ramp([8, 8]);
            let y = shard_map(f, &mesh).in_specs(spec.clone()).out_specs(spec).call(&x)?;
            close(&y, &by_blocks(f, &x, rows, columns)?);
        }
    }
    Ok(())
}

/// JAX: `test_grads`.
#[test]
fn second_derivatives_of_sampled_functions_with_and_without_checks() -> Result<()> {
    let mesh = mesh42()?;
    for check in [true, false] {
        for f in [SAMPLES[0], SAMPLES[1], SAMPLES[3], SAMPLES[4]] {
            let x = ramp([8, 8]) / 10.0;
            let mapped = |x: Array| -> Result<Array> {
                let y = shard_map(f, &mesh).in_specs(P!["i", "j"]).out_specs(P!["i", "j"]).check_vma(check).call(x)?;
                Ok(y.square().sum(..))
            };
            let plain = |x: Array| -> Result<Array> { Ok(by_blocks(f, &x, 4, 2)?.square().sum(..)) };
            close(&grad(mapped).call(&x)?, &grad(plain).call(&x)?);
            fn second(g: &dyn Fn(Array) -> Result<Array>, x: &Array) -> Result<Array> {
                grad(|x: Array| -> Result<Array> { Ok(grad(|x: Array| g(x)).call(x)?.square().sum(..)) }).call(x)
            }
            close(&second(&mapped, &x)?, &second(&plain, &x)?);
        }
    }
    Ok(())
}

/// JAX: `test_against_ref`.
#[test]
fn smap_equals_splits_and_concatenation() -> Result<()> {
    let mesh = mesh42()?;
    let _context = set_mesh(&mesh)?;
    for f in SAMPLES {
        let x = ramp([8, 8]);
        close(&smap(f, "i").in_axes(0).out_axes(0).call(&x)?, &by_blocks(f, &x, 4, 1)?);
        close(&smap(f, "j").in_axes(1).out_axes(1).call(&x)?, &by_blocks(f, &x, 1, 2)?);
        // Negative axes count from the end.
        close(&smap(f, "j").in_axes(-1).out_axes(-1).call(&x)?, &by_blocks(f, &x, 1, 2)?);
    }
    Ok(())
}
