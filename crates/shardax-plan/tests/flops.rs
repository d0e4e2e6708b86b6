//! The FLOPs of the built-in steps, compared with formulas.

use shardax::prelude::*;
use shardax_plan::models::{self, Sizes};
use shardax_plan::{Remat, Setup, Target};

fn setup(remat: Remat) -> Result<Setup> {
    let target = Target::new("cpu:8")?;
    target.prepare()?;
    Ok(Setup { remat, micro_batch: Some(16), ..Setup::new(target) })
}

#[test]
fn an_mlp() -> Result<()> {
    let plan = models::mlp(&setup(Remat::None)?)?;
    let [first, middle, last] = [1024.0 * 4096.0, 4096.0 * 4096.0, 4096.0 * 1024.0];
    // The first layer's input has no gradient.
    let products = 2.0 * 16.0 * (2.0 * first + 3.0 * middle + 3.0 * last);
    assert_eq!(plan.flops().matmuls, products);
    Ok(())
}

#[test]
fn a_cnn() -> Result<()> {
    let plan = models::cnn(&setup(Remat::None)?)?;
    let first_layer = 32.0 * 32.0 * 32.0 * (3.0 * 9.0);
    let second = 16.0 * 16.0 * 64.0 * (32.0 * 9.0);
    let dense = 64.0 * 8.0 * 8.0 * 10.0;
    assert_eq!(plan.flops().matmuls, 2.0 * 16.0 * (2.0 * first_layer + 3.0 * second + 3.0 * dense));
    Ok(())
}

#[test]
fn a_dense_decoder() -> Result<()> {
    let formula = Sizes::SMALL.flops(16);
    for remat in Remat::ALL {
        let plan = models::named("gpt", &setup(remat)?)?;
        assert_eq!(plan.flops().model(), formula, "{remat:?}");
        // The gradient of fused attention computes its scores again, whatever is stored.
        assert!(plan.flops().recomputed > 0.0, "{remat:?}");
    }
    Ok(())
}

#[test]
fn a_mixture_of_experts() -> Result<()> {
    let plan = models::named("moe", &setup(Remat::None)?)?;
    let Sizes { layers, features, hidden, length, .. } = Sizes::SMALL;
    let (experts, k, rows) = (8.0, 2.0, 16.0);
    let [layers, features, hidden, length] = [layers, features, hidden, length].map(|n| n as f64);
    let tokens = rows * length;
    let places = (1.25 * k * length / experts).ceil();
    let dense = 3.0 * 2.0 * tokens * 3.0 * features * hidden;
    let routed = [
        // The slots of the experts, times three for the gradients.
        3.0 * 2.0 * rows * experts * places * 3.0 * features * hidden,
        3.0 * 2.0 * tokens * features * experts,
        // Dispatch, whose indices have no gradient, and combine.
        2.0 * 2.0 * tokens * experts * places * features,
        3.0 * 2.0 * tokens * experts * places * features,
        // The dispatch and combine weights.
        3.0 * 2.0 * k * tokens * experts * places,
    ];
    let formula = Sizes::SMALL.flops(16) + layers * (routed.iter().sum::<f64>() - dense);
    assert_eq!(plan.flops().model(), formula);
    Ok(())
}

// The work of each device, which is more than its share if devices repeat work.
#[test]
fn a_device_s_share() -> Result<()> {
    for (name, axes, parts) in [
        // `model` splits nothing in a convolutional network.
        ("cnn", [("data", 4), ("model", 2)], 4.0),
        ("cnn", [("data", 4), ("fsdp", 2)], 8.0),
        ("gpt", [("fsdp", 4), ("model", 2)], 8.0),
    ] {
        let of_mesh = axes.iter().map(|(name, size)| ((*name).into(), *size)).collect();
        let setup = Setup { axes: of_mesh, ..setup(Remat::Full)? };
        let report = models::named(name, &setup)?.report(&setup.target)?;
        // The compiled attention need not compute its scores again.
        let share = report.matmul_flops_per_device * parts / report.flops.matmuls;
        assert!((0.98..=1.0).contains(&share), "{name} on {axes:?}: {share}");
        let warned = report.to_string().contains("the axis \"model\" splits nothing: its 2 devices repeat the work");
        assert_eq!(warned, parts == 4.0, "{name} on {axes:?}: {report}");
    }
    Ok(())
}
