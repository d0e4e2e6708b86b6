//! The operations of the steps that are known by name, against formulas.

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
    assert_eq!(plan.flops().products, products);
    Ok(())
}

#[test]
fn a_cnn() -> Result<()> {
    let plan = models::cnn(&setup(Remat::None)?)?;
    let first = 32.0 * 32.0 * 32.0 * (3.0 * 9.0);
    let second = 16.0 * 16.0 * 64.0 * (32.0 * 9.0);
    let dense = 64.0 * 8.0 * 8.0 * 10.0;
    assert_eq!(plan.flops().products, 2.0 * 16.0 * (2.0 * first + 3.0 * second + 3.0 * dense));
    Ok(())
}

#[test]
fn a_dense_decoder() -> Result<()> {
    let formula = Sizes::SMALL.flops(16);
    for remat in Remat::ALL {
        let plan = models::named("gpt", &setup(remat)?)?;
        assert_eq!(plan.flops().model(), formula, "{remat:?}");
        assert_eq!(plan.flops().recomputed > 0.0, remat != Remat::None, "{remat:?}");
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
        // Each expert's places, three times for the gradients.
        3.0 * 2.0 * rows * experts * places * 3.0 * features * hidden,
        3.0 * 2.0 * tokens * features * experts,
        // To the experts: which go where has no gradient. And back.
        2.0 * 2.0 * tokens * experts * places * features,
        3.0 * 2.0 * tokens * experts * places * features,
        // Who goes where, and with which weight.
        3.0 * 2.0 * k * tokens * experts * places,
    ];
    let formula = Sizes::SMALL.flops(16) + layers * (routed.iter().sum::<f64>() - dense);
    assert_eq!(plan.flops().products, formula);
    Ok(())
}

// What each device does, which is more than its share of the whole where devices repeat work.
#[test]
fn a_device_s_share() -> Result<()> {
    for (name, axes, parts) in [
        // Nothing of a convolutional network is split along `model`.
        ("cnn", [("data", 4), ("model", 2)], 4.0),
        ("cnn", [("data", 4), ("fsdp", 2)], 8.0),
        ("gpt", [("fsdp", 4), ("model", 2)], 8.0),
    ] {
        let of_mesh = axes.iter().map(|(name, size)| ((*name).into(), *size)).collect();
        let setup = Setup { axes: of_mesh, ..setup(Remat::Full)? };
        let report = models::named(name, &setup)?.report(&setup.target)?;
        assert_eq!(report.products_per_device, report.flops.products / parts, "{name} on {axes:?}");
        let warned = report.to_string().contains("the axis \"model\" splits nothing: its 2 devices repeat the work");
        assert_eq!(warned, parts == 4.0, "{name} on {axes:?}: {report}");
    }
    Ok(())
}
