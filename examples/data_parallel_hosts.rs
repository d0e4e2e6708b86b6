//! Trains a small convolutional network on handwritten digits in several processes, each with its share of the data.
//!
//!     cargo build --release --example data_parallel_hosts
//!     mpirun -n 4 --bind-to none target/release/examples/data_parallel_hosts --devices 2
//!
//! A single process trains on all the data and prints the same numbers:
//!
//!     target/release/examples/data_parallel_hosts --devices 8

use clap::Parser;
use shardax::{distributed, multihost};
use shardax_alloc as _;
use shardax_nn::prelude::*;
use shardax_train::{Average, Batch, digits, shard_batch};

/// Trains a small convolutional network on handwritten digits in several processes.
#[derive(Parser)]
struct Cli {
    /// CPU devices per process
    #[arg(long, default_value_t = 2)]
    devices: usize,
    /// Passes over the training set
    #[arg(long, default_value_t = 3)]
    epochs: u64,
    /// Examples per step, over all processes
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
}

#[derive(Module, Clone)]
struct Cnn {
    conv: Conv,
    dense: Linear,
}

impl Cnn {
    fn new(rngs: &mut Rngs) -> Self {
        Cnn { conv: Conv::new(1, 16, [3, 3], rngs), dense: Linear::new(16 * 4 * 4, 10, rngs) }
    }

    fn forward(&self, x: &Array) -> Array {
        let x = max_pool(relu(self.conv.forward(x)), [2, 2], [2, 2]);
        self.dense.forward(x.flatten_from(1))
    }
}

fn loss_fn(model: Cnn, batch: Batch) -> Array {
    softmax_cross_entropy_with_integer_labels(model.forward(&batch.images), &batch.labels).mean(..)
}

type State = Optimizer<Cnn>;

/// The step of each device on its share of a batch; `pmean` averages over the devices of all processes.
fn train_step(mut state: State, batch: Batch) -> Result<(State, Array)> {
    let (loss, grads) = value_and_grad(loss_fn).call((&state.model, batch))?;
    state.update(pmean(grads, "batch"))?;
    Ok((state, pmean(loss, "batch")))
}

/// Selects this process's rows of a batch, and splits them over its devices.
fn local_rows(batch: Batch, batch_size: usize) -> Result<Batch> {
    let count = batch_size / process_count();
    let start = process_index() * count;
    let rows = tree::map(|x| x.get(start as i32..(start + count) as i32), batch)?;
    shard_batch(&rows, local_device_count())
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    config::set_num_cpu_devices(cli.devices)?;
    distributed::initialize()?;
    let is_first_process = process_index() == 0;
    let (train, _) = digits()?.shuffle(0).split(1500);

    // Every device has the entire state, which each step donates.
    let mesh = Mesh::new(local_devices()?, [("batch", local_device_count())])?;
    let mut state = State::new(Cnn::new(&mut Rngs::new(0)), adam(1e-3))?;
    state = device_put(&state, &NamedSharding::new(&mesh, P![]))?;
    let train_step = pmap(train_step).axis_name("batch").in_axes((None, 0)).out_axes(None).donate_argnums([0]);
    for epoch in 1..=cli.epochs {
        let mut loss = Average::new();
        for batch in train.batches(cli.batch_size).shuffle(epoch).drop_last() {
            let (next, step_loss) = train_step.call((state, local_rows(batch?, cli.batch_size)?))?;
            state = next;
            loss.add(step_loss);
        }
        let loss = loss.value()?;
        if is_first_process {
            println!("epoch {epoch}: train loss {loss}");
        }
    }

    multihost::assert_equal(&state, "the processes have different states")?;
    if is_first_process {
        let bytes = tree::leaves(&state).iter().map(Array::to_bytes).collect::<Result<Vec<_>>>()?.concat();
        let sum =
            bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, b| (hash ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
        println!("devices: {} in {} processes", device_count(), process_count());
        println!("weights: {sum:016x}");
    }
    Ok(())
}
