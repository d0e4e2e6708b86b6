//! A physics-informed network in float64: solves a differential equation by minimizing its residual with L-BFGS.
//!
//!     cargo run -p shardax-examples --example physics
//!
//! The equation is u''(x) + u(x) = f(x) on [0, 1] with u(0) = u(1) = 0, where f is chosen so that u(x) = sin(πx).

use std::f64::consts::PI;

use clap::Parser;
use shardax_alloc as _;
use shardax_nn::optim::{LbfgsLinesearchState, lbfgs_linesearch, value_and_grad_from_state};
use shardax_nn::prelude::*;

/// Solves a differential equation with a network.
#[derive(Parser)]
struct Cli {
    #[arg(long, default_value_t = 500)]
    steps: u32,
    /// Points at which the residual is computed
    #[arg(long, default_value_t = 64)]
    points: usize,
}

#[derive(Module, Clone)]
struct Network {
    hidden: [Linear; 2],
    out: Linear,
}

impl Network {
    fn new(rngs: &mut Rngs) -> Self {
        Network { hidden: [Linear::new(1, 16, rngs), Linear::new(16, 16, rngs)], out: Linear::new(16, 1, rngs) }
    }

    /// u at the scalar `x`. The factor is zero at both ends.
    fn solution(&self, x: Array) -> Array {
        let y = self.hidden.iter().fold(x.reshape(1), |y, layer| layer.forward(y).tanh());
        &x * (1 - &x) * self.out.forward(y).get(0)
    }
}

/// The mean squared residual of the equation at the points.
fn loss(network: Network, points: Array) -> Result<Array> {
    let residual = vmap(|x: Array| -> Result<Array> {
        let u = |x: Array| network.solution(x);
        let curvature = grad(grad(u)).call(&x)?;
        let source = (1.0 - PI * PI) * (&x * PI).sin();
        Ok(curvature + u(x) - source)
    });
    Ok(residual.call(points)?.square().mean(..))
}

#[jit]
fn train_step(
    network: Network,
    state: LbfgsLinesearchState<Network>,
    points: Array,
) -> Result<(Network, LbfgsLinesearchState<Network>, Array)> {
    let loss = |network: Network| loss(network, points.clone());
    let (value, grads) = value_and_grad_from_state(loss, network.clone(), &state)?;
    let (updates, state) = lbfgs_linesearch().update_with(grads, state, &network, value.clone(), loss)?;
    Ok((apply_updates(network, updates)?, state, value))
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    config::enable_x64(true);
    let points = linspace(0.0, 1.0, cli.points);
    let mut network = Network::new(&mut Rngs::new(0).with_policy(Policy::f64()));
    let mut state = lbfgs_linesearch().init(&network)?;
    for step in 1..=cli.steps {
        let (next, next_state, residual) = train_step(network, state, &points)?;
        (network, state) = (next, next_state);
        if step % 100 == 0 {
            println!("step {step}: residual {residual:.2e}");
        }
    }
    let x = linspace(0.0, 1.0, 201);
    let u = vmap(|x: Array| network.solution(x)).call(&x)?;
    println!("largest error: {:.2e} ({})", (u - (x * PI).sin()).abs().max(..), points.dtype());
    Ok(())
}
