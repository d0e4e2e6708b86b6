//! Trains a deep network on handwritten digits with pipeline parallelism, by GPipe or 1F1B.
//!
//!     cargo run --release --example pipeline
//!     cargo run --release --example pipeline -- --schedule gpipe --stages 4 --micro-batches 16 --run runs/pipeline

#[path = "../run.rs"]
mod run;

use clap::{Parser, ValueEnum};
use run::Run;
use shardax::{Error, ErrorKind};
use shardax_alloc as _;
use shardax_nn::prelude::*;
use shardax_train::data::{HostArray, InMemory, Source, Stream};
use shardax_train::{Average, MultiMetric, digits};

/// Trains a deep network on handwritten digits with pipeline parallelism
#[derive(Parser)]
struct Cli {
    /// Devices along `stage`; must divide the number of layers
    #[arg(long, default_value_t = 4)]
    stages: usize,
    /// Devices along `data`: the number of pipelines, each with its share of a batch
    #[arg(long, default_value_t = 2)]
    data: usize,
    /// Micro-batches per step
    #[arg(long, default_value_t = 8)]
    micro_batches: usize,
    #[arg(long, value_enum, default_value_t = Order::OneFOneB)]
    schedule: Order,
    #[arg(long, default_value_t = 16)]
    layers: usize,
    #[arg(long, default_value_t = 64)]
    features: usize,
    /// Examples per step; must be a multiple of pipelines times micro-batches
    #[arg(long, default_value_t = 128)]
    batch_size: usize,
    #[arg(long, default_value_t = 1e-3)]
    learning_rate: f64,
    #[command(flatten)]
    run: Run,
}

/// The pipeline schedule.
#[derive(Clone, Copy, ValueEnum)]
enum Order {
    /// All forward passes, then all backward passes
    #[value(name = "gpipe")]
    GPipe,
    /// Forward and backward passes alternate, which needs less memory
    #[value(name = "1f1b")]
    OneFOneB,
}

impl From<Order> for PipelineSchedule {
    fn from(order: Order) -> Self {
        match order {
            Order::GPipe => PipelineSchedule::GPipe,
            Order::OneFOneB => PipelineSchedule::OneFOneB,
        }
    }
}

/// A layer with a residual connection.
#[derive(Module, Clone)]
struct Block {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Layer for Block {
    fn forward(&mut self, x: Array) -> Array {
        self.down.forward(relu(self.up.forward(self.norm.forward(&x)))) + x
    }
}

#[derive(Module, Clone)]
struct Deep {
    first: Linear,
    blocks: Stack<Block>,
    norm: LayerNorm,
    last: Linear,
    #[tree(static)]
    pipeline: Pipeline,
}

impl Deep {
    fn new(layers: usize, features: usize, pipeline: Pipeline, rngs: &mut Rngs) -> Result<Deep> {
        let first = Linear::new(64, features, rngs);
        let block = |rngs: &mut Rngs| Block {
            norm: LayerNorm::new(features, rngs),
            up: Linear::new(features, 2 * features, rngs),
            down: Linear::new(2 * features, features, rngs),
        };
        let blocks = Stack::new(layers, rngs, block)?.axis_name("layers");
        Ok(Deep {
            first,
            blocks,
            norm: LayerNorm::new(features, rngs),
            last: Linear::new(features, 10, rngs),
            pipeline,
        })
    }

    /// Logits `[batch, 10]` for images `[batch, 64]`.
    fn forward(&mut self, images: &Array) -> Array {
        self.last.forward(self.norm.forward(self.blocks.forward(self.first.forward(images))))
    }

    fn loss(self, images: Array, labels: Array) -> Result<Array> {
        let first = |layer: Linear, images: Array| layer.forward(images);
        let stage = |mut blocks: Stack<Block>, x: Array| blocks.forward(x);
        let last = |(norm, layer): (LayerNorm, Linear), x: Array, labels: Array| {
            softmax_cross_entropy_with_integer_labels(layer.forward(norm.forward(x)), labels).mean(..)
        };
        let params = (self.first, self.blocks, (self.norm, self.last));
        self.pipeline.loss((first, stage, last), params, images, labels)
    }
}

type State = Optimizer<Deep>;
/// Images `[batch, 64]` and labels `[batch]`.
type Batch = (Array, Array);

fn train_step(mut state: State, (images, labels): Batch) -> Result<(State, MultiMetric)> {
    let (loss, grads) = value_and_grad(Deep::loss).call((&state.model, images, labels))?;
    state.update(grads)?;
    Ok((state, MultiMetric::new().with("loss", Average::of(loss))))
}

/// Returns the pixels of all images of a data set.
fn pixels(images: &shardax_train::Dataset) -> Vec<f32> {
    (0..images.len()).flat_map(|i| images.image(i).unwrap_or_default().to_vec()).collect()
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let Cli { stages, data, layers, features, micro_batches, learning_rate, schedule, .. } = cli;
    if stages == 0 || data == 0 || layers == 0 || layers % stages != 0 {
        return Err(Error::new(ErrorKind::Value, format!("{layers} layers do not divide into {stages} stages"))
            .help("pass a number of --layers that is a multiple of --stages"));
    }
    config::set_num_cpu_devices(data * stages)?;
    let mesh = make_mesh([("data", data), ("stage", stages)])?;
    let rules = Rules::new(&mesh, [("batch", "data"), ("layers", "stage")]);

    // The model is initialized in shards: each stage only stores its own layers.
    let (model_rules, seed) = (rules.clone(), cli.run.seed);
    let state = rules.init(move || {
        let pipeline = Pipeline::of(&model_rules, "layers", micro_batches).schedule(schedule.into());
        State::new(Deep::new(layers, features, pipeline, &mut Rngs::new(seed))?, adamw(learning_rate, 1e-4))
    })?;
    println!("{} parameters, {} layers on each of {stages} stages", state.model.parameter_count(), layers / stages);

    let (train, test) = digits()?.shuffle(seed.into()).split(1500);

    let split = NamedSharding::new(&mesh, rules.spec(["batch"]));
    let examples = InMemory::new([
        ("images", HostArray::from_slice(&pixels(&train), &[train.len(), 64])?),
        ("labels", HostArray::from_slice(train.labels(), &[train.len()])?),
    ])?;
    let place = split.clone();
    let mut batches = examples
        .stream()
        .shuffled(seed.into())
        .batch(cli.batch_size)
        .map(move |batch| Ok((batch["images"].to_array_on(&place)?, batch["labels"].to_array_on(&place)?)));

    let images = device_put(&zeros([cli.batch_size, 64]), &split)?;
    let labels = device_put(&zeros_dtype([cli.batch_size], DType::I32), &split)?;
    let shardings = rules.shardings(&state)?;
    let step = jit(train_step).out_shardings((&shardings, UNSPECIFIED));
    let step = step.lower((&state, (images, labels)))?.compile()?;
    let state = cli.run.train("pipeline", state, &mut batches, &step)?;

    let logits = jit(|mut model: Deep, images: Array| model.forward(&images))
        .call((&state.model, Array::from_slice(&pixels(&test), &[test.len(), 64])?))?;
    let labels = Array::from_slice(test.labels(), &[test.len()])?;
    println!("test accuracy: {:.4}", accuracy(device_get(&logits)?, labels).item::<f32>()?);
    Ok(())
}
