//! Rows of the convolutional network of 60,362 parameters: its training step, and what comes before the first one.

use std::time::Instant;

use shardax::{clear_caches, config};
use shardax_nn::prelude::*;

use crate::clock::{MIN_RUNS, Timing, measure, measure_parts};
use crate::data::{line, replicated, split, uniform};
use crate::startup::with_cache;

/// Images of 32×32 pixels in three colours, in all.
const BATCH: usize = 128;

#[derive(Module, Clone)]
struct Cnn {
    conv1: Conv,
    conv2: Conv,
    dense: Linear,
}

impl Cnn {
    fn new(rngs: &mut Rngs) -> Self {
        Cnn {
            conv1: Conv::new(3, 32, [3, 3], rngs),
            conv2: Conv::new(32, 64, [3, 3], rngs),
            dense: Linear::new(64 * 8 * 8, 10, rngs),
        }
    }

    fn forward(&self, x: &Array) -> Array {
        let x = max_pool(relu(self.conv1.forward(x)), [2, 2], [2, 2]);
        let x = max_pool(relu(self.conv2.forward(x)), [2, 2], [2, 2]);
        self.dense.forward(x.flatten_from(1))
    }
}

type State = Optimizer<Cnn, Adam>;

fn loss_and_accuracy(model: Cnn, x: Array, labels: Array) -> (Array, Array) {
    let logits = model.forward(&x);
    (softmax_cross_entropy_with_integer_labels(&logits, &labels).mean(..), accuracy(&logits, &labels))
}

fn train_step(mut state: State, x: Array, labels: Array) -> Result<(State, Array, Array)> {
    let ((loss, accuracy), grads) = value_and_grad(loss_and_accuracy).has_aux().call((&state.model, x, labels))?;
    state.update(pmean(grads, "batch"))?;
    let (loss, accuracy) = pmean((loss, accuracy), "batch");
    Ok((state, loss, accuracy))
}

/// The state on every device, and each device's part of a batch.
fn arguments(n: usize) -> Result<(State, Array, Array)> {
    let mesh = line(n, "batch")?;
    let state = replicated(State::new(Cnn::new(&mut Rngs::new(0)), adam(1e-3))?, &mesh)?;
    let mut random = fastrand::Rng::with_seed(0);
    let labels: Vec<i32> = (0..BATCH).map(|_| random.i32(0..10)).collect();
    let x = uniform(&[n, BATCH / n, 32, 32, 3], 1)?;
    let labels = Array::from_vec(labels, &[n, BATCH / n])?;
    let (x, labels) = split((x, labels), &mesh, "batch")?;
    Ok((state, x, labels))
}

macro_rules! step {
    () => {
        pmap(train_step).axis_name("batch").in_axes((None, 0, 0)).out_axes(None).donate_argnums([0])
    };
}

pub fn cnn_step(n: usize) -> Result<Timing> {
    let (mut state, x, labels) = arguments(n)?;
    let step = step!();
    measure(|| {
        state = block_until_ready(step.call((&state, &x, &labels))?)?.0;
        Ok(())
    })
}

pub fn cnn_trace_lower() -> Result<Timing> {
    let (state, x, labels) = arguments(8)?;
    measure(|| step!().lower((&state, &x, &labels)))
}

pub fn cnn_compile() -> Result<Timing> {
    compile()
}

/// The same, found on disk.
pub fn cnn_compile_warm() -> Result<Timing> {
    with_cache(|cache| {
        config::set_compilation_cache_dir(cache)?;
        let time = compile();
        config::set_compilation_cache_dir("")?;
        time
    })
}

fn compile() -> Result<Timing> {
    let (state, x, labels) = arguments(8)?;
    let lowered = step!().lower((&state, &x, &labels))?;
    measure_parts(MIN_RUNS, || {
        clear_caches();
        let start = Instant::now();
        let _compiled = lowered.compile()?;
        Ok(start.elapsed())
    })
}
