//! Tracing and lowering take as long for a thousand devices as for eight.

use std::time::{Duration, Instant};

use shardax::prelude::*;
use shardax_plan::{Setup, Target, models};

#[test]
fn plan_lower_8_and_1024() -> Result<()> {
    let target = |n: usize| Target::new(&format!("cpu:{n}"));
    target(1024)?.prepare()?;
    let lower = |n: usize| -> Result<Duration> {
        let axes = vec![("data".into(), n / 8), ("fsdp".into(), 4), ("model".into(), 2)];
        let setup = Setup { axes, ..Setup::new(target(n)?) };
        let begun = Instant::now();
        let plan = models::named("gpt", &setup)?;
        let taken = begun.elapsed();
        assert!(plan.flops().products > 0.0);
        Ok(taken)
    };
    // In turns, so that what else the machine does falls on both; the least of many times is what it takes by itself.
    let (mut few, mut many) = (Duration::MAX, Duration::MAX);
    let close = |few: Duration, many: Duration| many < few.mul_f64(1.2) + Duration::from_millis(10);
    for round in 0..20 {
        few = few.min(lower(8)?);
        many = many.min(lower(1024)?);
        if round >= 4 && close(few, many) {
            break;
        }
    }
    eprintln!("plan_lower_8 {few:?}, plan_lower_1024 {many:?}");
    assert!(close(few, many), "{many:?} for 1024 devices, {few:?} for 8");
    Ok(())
}
