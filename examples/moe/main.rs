//! Trains a mixture of experts, split over devices: tokens are sent to their experts and back by `all_to_all`.
//!
//!     cargo run --release --example moe
//!     cargo run --release --example moe -- --experts 16 --mesh data=2,expert=4 --run runs/moe
//!
//! The data are points of several kinds with a different rule for each, so that experts can specialize.

#[path = "../mixed.rs"]
mod mixed;
#[path = "../run.rs"]
mod run;

use clap::Parser;
use mixed::mixed;
use run::Run;
use shardax::sharding::DimSpec;
use shardax::{Error, ErrorKind};
use shardax_alloc as _;
use shardax_nn::prelude::*;
use shardax_train::data::{Example, HostArray, Source, Stream};
use shardax_train::{Average, MultiMetric};

/// Trains a mixture of experts, split over devices
#[derive(Parser)]
struct Cli {
    /// Devices along `expert` (experts and batches) and `data` (batches)
    #[arg(long, value_name = "AXIS=N,..", default_value = "data=2,expert=4")]
    mesh: String,
    #[arg(long, default_value_t = 8)]
    experts: usize,
    /// Experts per token
    #[arg(long, default_value_t = 2)]
    k: usize,
    /// Capacity of an expert, as a multiple of the number of tokens in a balanced batch
    #[arg(long, default_value_t = 1.25)]
    capacity_factor: f64,
    /// Sequences per step; must be a multiple of the number of devices
    #[arg(long, default_value_t = 16)]
    batch_size: usize,
    /// Tokens per sequence
    #[arg(long, default_value_t = 64)]
    length: usize,
    /// Hidden features of an expert
    #[arg(long, default_value_t = 32)]
    hidden: usize,
    /// Weight of the load-balancing loss
    #[arg(long, default_value_t = 0.01)]
    balance: f64,
    #[arg(long, default_value_t = 1e-2)]
    learning_rate: f64,
    #[command(flatten)]
    run: Run,
}

const FEATURES: usize = 8;
const KINDS: usize = 8;

type Expert = Sequential<(Linear, Apply, Linear)>;
type State = Optimizer<MixtureOfExperts<Expert>>;
/// Points and what becomes of them, `[batch, length, features]`.
type Batch = (Array, Array);

fn train_step(mut state: State, (x, y): Batch, balance: Array) -> Result<(State, MultiMetric)> {
    let loss = |model: MixtureOfExperts<Expert>| -> Result<_> {
        let routed = model.forward(&x)?;
        let error = (routed.y - &y).square().mean(..);
        Ok((&error + routed.balance_loss * &balance, (error, routed.dropped)))
    };
    let ((_, (error, dropped)), grads) = value_and_grad(loss).has_aux().call(&state.model)?;
    state.update(grads)?;
    Ok((state, MultiMetric::new().with("loss", Average::of(error)).with("dropped", Average::of(dropped))))
}

/// A number between -1 and 1.
fn number(a: u64, b: u64) -> f32 {
    (mixed(a, b) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// A sequence of points, each near the centre of its kind; the image of a point is a linear map of its kind.
fn sequence(seed: u64, i: usize, length: usize) -> Result<Example> {
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for at in 0..length as u64 {
        let place = (seed << 40) ^ ((i as u64) << 16) ^ at;
        let kind = mixed(place, 0) % KINDS as u64;
        let point: Vec<f32> =
            (0..FEATURES as u64).map(|f| 2.0 * number(kind, 100 + f) + 0.3 * number(place, 1 + f)).collect();
        y.extend(
            (0..FEATURES as u64)
                .map(|f| point.iter().zip(0..).map(|(p, g)| p * number(kind, 1000 + 100 * f + g)).sum::<f32>()),
        );
        x.extend(point);
    }
    let shape = [length, FEATURES];
    Ok(Example::from([
        ("x".into(), HostArray::from_slice(&x, &shape)?),
        ("y".into(), HostArray::from_slice(&y, &shape)?),
    ]))
}

/// Parses an axis such as `data=2`.
fn axis(text: &str) -> Option<(&'static str, usize)> {
    let (name, count) = text.split_once('=')?;
    let name = ["data", "expert"].into_iter().find(|known| *known == name)?;
    Some((name, count.parse().ok().filter(|n| *n > 0)?))
}

/// Parses axes such as `data=2,expert=4`.
fn axes(text: &str) -> Result<Vec<(&'static str, usize)>> {
    text.split(',').map(axis).collect::<Option<Vec<_>>>().ok_or_else(|| {
        Error::new(ErrorKind::Value, format!("{text:?} is no mesh"))
            .help("write axes of data and expert: data=2,expert=4")
    })
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let axes = axes(&cli.mesh)?;
    config::set_num_cpu_devices(axes.iter().map(|(_, n)| n).product())?;
    let mesh = make_mesh(axes.iter().copied())?;
    let has = |name: &&'static str| axes.iter().any(|(axis, _)| axis == name);
    // Rows of a batch are split over `expert` first, as the `shard_map` of the experts expects.
    let batch: DimSpec = ["expert", "data"].into_iter().filter(has).collect();
    let expert: Option<&str> = Some("expert").filter(has);
    let rules = Rules::new(&mesh, [("batch", batch)]).and("expert", expert);

    let (model_rules, seed) = (rules.clone(), cli.run.seed);
    let Cli { experts, k, capacity_factor, hidden, learning_rate, .. } = cli;
    let state = rules.init(move || {
        let model = MixtureOfExperts::new(
            experts,
            k,
            FEATURES,
            &mut Rngs::new(seed).with_rules(&model_rules),
            |rngs: &mut Rngs| {
                Sequential((Linear::new(FEATURES, hidden, rngs), Apply(relu), Linear::new(hidden, FEATURES, rngs)))
            },
        )?;
        State::new(model.capacity_factor(capacity_factor), adam(learning_rate))
    })?;
    let kernel = &state.model.experts.layers.0.0.kernel;
    println!("{experts} experts, {} on each device", kernel.addressable_data(0)?.shape()[0]);

    let split = NamedSharding::new(&mesh, rules.spec(["batch"]));
    let examples = (10_000, move |i| sequence(seed.into(), i, cli.length));
    let place = split.clone();
    let mut data = examples
        .stream()
        .batch(cli.batch_size)
        .map(move |batch| Ok((batch["x"].to_array_on(&place)?, batch["y"].to_array_on(&place)?)));

    let balance = cli.balance;
    let shardings = rules.shardings(&state)?;
    let x = device_put(&zeros([cli.batch_size, cli.length, FEATURES]), &split)?;
    let step = jit(move |state: State, batch: Batch| train_step(state, batch, array(balance as f32)))
        .out_shardings((&shardings, UNSPECIFIED));
    let step = step.lower((&state, (x.clone(), x)))?.compile()?;
    cli.run.train("moe", state, &mut data, &step)?;
    Ok(())
}
