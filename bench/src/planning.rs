//! Time of tracing and lowering a training step for eight and for 1,024 devices.

use shardax::Result;
use shardax_plan::{Setup, Target, models};

use crate::Measured;
use crate::clock::{Timing, measure};

/// `plan_lower_8` and `plan_lower_1024`: the step of a decoder over `data`, `fsdp` and `model`, with that number of
/// simulated devices.
pub fn run() -> Result<Vec<Measured>> {
    Target::new("cpu:1024")?.prepare()?;
    let (few, many) = (lower(8)?, lower(1024)?);
    eprintln!("1,024 devices take {:.2} times as long as 8", many.median_us / few.median_us);
    Ok(vec![Measured::new("plan_lower_8", few), Measured::new("plan_lower_1024", many)])
}

/// Times tracing and lowering the step for `n` simulated devices.
fn lower(n: usize) -> Result<Timing> {
    let axes = vec![("data".into(), n / 8), ("fsdp".into(), 4), ("model".into(), 2)];
    let setup = Setup { axes, ..Setup::new(Target::new(&format!("cpu:{n}"))?) };
    measure(|| models::named("gpt", &setup))
}
