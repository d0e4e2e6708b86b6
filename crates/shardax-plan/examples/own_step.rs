//! A planner for a step of your own:
//! `cargo run --release -p shardax-plan --example own_step -- --target v5e:4x4 --mesh data=4,model=4`.

use shardax::prelude::*;
use shardax_plan::{Holder, Plan, Setup};

/// A gradient step of a layer whose columns are split over `model`, with rows of data split over `data`.
fn step(setup: &Setup) -> Result<Plan> {
    let mesh = setup.mesh()?;
    let on = |shape: &[usize], spec| shape_dtype_struct_on(shape, DType::Bf16, NamedSharding::new(&mesh, spec));
    let (rows, columns) = (setup.axis("data"), setup.axis("model"));
    let split = |name: &'static str, size: usize| (size > 1).then_some(name);
    let w = on(&[4096, 4096], P![None, split("model", columns)]);
    let x = on(&[setup.micro_batch.unwrap_or(1024 * rows), 4096], P![split("data", rows), None]);
    let update = |w: Array, x: Array| -> Result<Array> {
        let loss = |w: Array| x.dot(w).tanh().square().mean(..);
        Ok(&w - grad(loss).call(&w)? * 0.1)
    };
    let plan = Plan::from_lowered(jit(update).donate_argnums([0]).lower((w, x))?)?;
    Ok(plan.named("own_step").holds(Holder::Parameters, "[0]"))
}

shardax_plan::main!(step);
