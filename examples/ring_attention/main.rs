//! Finds a marked token in long sequences that are split over devices, with ring attention.
//!
//!     cargo run --release --example ring_attention
//!     cargo run --release --example ring_attention -- --devices 4 --length 2048 --run runs/ring
//!
//! One token of each sequence is marked, and every position must predict it, so most devices need data of another one.

#[path = "../mixed.rs"]
mod mixed;
#[path = "../run.rs"]
mod run;

use clap::Parser;
use mixed::mixed;
use run::Run;
use shardax::{Error, ErrorKind};
use shardax_alloc as _;
use shardax_nn::prelude::*;
use shardax_train::data::{Example, HostArray, Source, Stream};
use shardax_train::{Average, MultiMetric};

/// Finds a marked token in long sequences that are split over devices
#[derive(Parser)]
struct Cli {
    /// Devices that share a sequence; must divide its length
    #[arg(long, default_value_t = 8)]
    devices: usize,
    /// Tokens per sequence
    #[arg(long, default_value_t = 256)]
    length: usize,
    #[arg(long, default_value_t = 8)]
    batch_size: usize,
    #[arg(long, default_value_t = 32)]
    features: usize,
    /// Query heads; two of them share keys and values
    #[arg(long, default_value_t = 4)]
    heads: usize,
    #[arg(long, default_value_t = 1e-2)]
    learning_rate: f64,
    #[command(flatten)]
    run: Run,
}

const VALUES: usize = 16;

#[derive(Module, Clone)]
struct Finder {
    embed: Embed,
    norm: LayerNorm,
    attention: MultiHeadAttention,
    last: Linear,
    #[tree(static)]
    rules: Rules,
}

impl Finder {
    fn new(features: usize, heads: usize, rngs: &mut Rngs) -> Finder {
        let attention = MultiHeadAttention::builder(heads, features).num_kv_heads(heads / 2).sequence_axis("length");
        Finder {
            embed: Embed::new(2 * VALUES, features, rngs),
            norm: LayerNorm::new(features, rngs),
            attention: attention.build(rngs),
            last: Linear::new(features, VALUES, rngs),
            rules: rngs.rules(),
        }
    }

    /// Logits `[batch, length, 16]` for tokens `[batch, length]`.
    fn forward(&self, tokens: &Array) -> Array {
        let x = self.rules.constrain(self.embed.forward(tokens), [None, Some("length"), None]);
        self.last.forward(self.attention.forward(self.norm.forward(&x)) + x)
    }
}

type State = Optimizer<Finder>;
/// Tokens `[batch, length]`, and the marked ones `[batch]`.
type Batch = (Array, Array);

fn train_step(mut state: State, (tokens, needles): Batch) -> Result<(State, MultiMetric)> {
    let everywhere = needles.expand_dims(1).broadcast_to(tokens.shape());
    let loss = |model: Finder| {
        let logits = model.forward(&tokens);
        (softmax_cross_entropy_with_integer_labels(&logits, &everywhere).mean(..), accuracy(&logits, &everywhere))
    };
    let ((loss, accuracy), grads) = value_and_grad(loss).has_aux().call(&state.model)?;
    state.update(grads)?;
    Ok((state, MultiMetric::new().with("loss", Average::of(loss)).with("accuracy", Average::of(accuracy))))
}

/// Creates a sequence of values below 16. To mark one of them, 16 is added to it.
fn sequence(seed: u64, i: usize, length: usize) -> Result<Example> {
    let seed = seed ^ (i as u64) << 20;
    let marked = mixed(seed, length as u64) as usize % length;
    let mut tokens: Vec<i32> = (0..length as u64).map(|k| (mixed(seed, k) % VALUES as u64) as i32).collect();
    let needle = HostArray::from_slice(&[tokens[marked]], &[])?;
    tokens[marked] += VALUES as i32;
    Ok(Example::from([("tokens".into(), HostArray::from_slice(&tokens, &[length])?), ("needle".into(), needle)]))
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    if cli.length == 0 {
        return Err(Error::new(ErrorKind::Value, "a sequence has at least one token, got length 0"));
    }
    config::set_num_cpu_devices(cli.devices)?;
    let mesh = make_mesh([("sequence", cli.devices)])?;
    let rules = Rules::new(&mesh, [("length", "sequence")]);

    let Cli { length, features, heads, learning_rate, .. } = cli;
    let (model_rules, seed) = (rules.clone(), cli.run.seed);
    let state = rules.init(move || {
        State::new(
            Finder::new(features, heads, &mut Rngs::new(seed).with_rules(&model_rules)),
            adamw(learning_rate, 1e-4),
        )
    })?;
    let split = NamedSharding::new(&mesh, P![None, "sequence"]);
    let examples = (10_000, move |i| sequence(seed.into(), i, length));
    let place = split.clone();
    let mut data = examples
        .stream()
        .batch(cli.batch_size)
        .map(move |batch| Ok((batch["tokens"].to_array_on(&split)?, batch["needle"].to_array()?)));

    let tokens = device_put(&zeros_dtype([cli.batch_size, length], DType::I32), &place)?;
    let needles = zeros_dtype([cli.batch_size], DType::I32);
    let shardings = rules.shardings(&state)?;
    let step = jit(train_step).out_shardings((&shardings, UNSPECIFIED));
    let step = step.lower((&state, (tokens, needles)))?.compile()?;
    println!("{} tokens on each of {} devices", length / cli.devices, cli.devices);
    let state = cli.run.train("ring_attention", state, &mut data, &step)?;

    // Without rules the model runs on one device.
    if let Some(batch) = data.next_item() {
        let (tokens, _) = batch?;
        let forward = jit(|model: Finder, tokens: Array| model.forward(&tokens));
        let split = forward.call((&state.model, &tokens))?;
        let one_device = Finder::new(features, heads, &mut Rngs::new(seed)).with_state(&state.model.state())?;
        let one_device = forward.call(device_put(&(one_device, tokens), &devices()?[0])?)?;
        let far = (device_get(&split)? - device_get(&one_device)?).abs().max(..);
        println!("largest difference from one device: {:.1e}", far.item::<f32>()?);
    }
    Ok(())
}
