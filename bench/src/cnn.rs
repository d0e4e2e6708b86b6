//! Benchmarks of a convolutional network with 60,362 parameters: the training step, tracing and compilation.

use shardax::{clear_caches, config};
use shardax_nn::prelude::*;

use crate::clock::{MIN_RUNS, STEPS, Timing, measure, measure_parts, measure_steps, measure_times, now};
use crate::data::{images, labels, line, replicated, split};
use crate::startup::with_cache;

/// The global batch size; images have 32×32 pixels in three colours.
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

type State = Optimizer<Cnn>;

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

/// The replicated state, and a batch split over the devices.
fn arguments(mesh: &Mesh, each: usize) -> Result<(State, Array, Array)> {
    let n = mesh.size();
    let state = replicated(State::new(Cnn::new(&mut Rngs::new(0)), adam(1e-3))?, mesh)?;
    let (x, labels) = split((images([n, each, 32, 32, 3]), labels(&[n, each])?), mesh, "batch")?;
    Ok((state, x, labels))
}

/// The model and batch of `cnn_step_1`.
pub fn inputs() -> Result<impl Tree> {
    Ok((Cnn::new(&mut Rngs::new(0)), images([BATCH, 32, 32, 3]), labels(&[BATCH])?))
}

macro_rules! step {
    () => {
        pmap(train_step).axis_name("batch").in_axes((None, 0, 0)).out_axes(None).donate_argnums([0])
    };
}

pub fn cnn_step(n: usize) -> Result<Timing> {
    measure_steps(stepping(n, BATCH / n)?)
}

/// The step on `n` devices of this process with `each` images per device.
pub fn stepping(n: usize, each: usize) -> Result<impl FnMut() -> Result<Array>> {
    let (mut state, x, labels) = arguments(&line(n, "batch")?, each)?;
    let step = step!();
    Ok(move || {
        let (next, loss, _) = block_until_ready(step.call((&state, &x, &labels))?)?;
        state = next;
        Ok(loss)
    })
}

/// The step on the devices of all processes.
pub fn mp_cnn_step() -> Result<Timing> {
    measure_times(STEPS, stepping(local_device_count(), BATCH / device_count())?)
}

/// Compiling that step in all processes at once.
pub fn mp_compile_cnn() -> Result<Timing> {
    let (state, x, labels) = arguments(&make_mesh([("batch", device_count())])?, BATCH / device_count())?;
    let lowered = step!().lower((&state, &x, &labels))?;
    measure_times(MIN_RUNS, || {
        clear_caches();
        lowered.compile()
    })
}

pub fn cnn_trace_lower() -> Result<Timing> {
    let (state, x, labels) = arguments(&line(8, "batch")?, BATCH / 8)?;
    measure(|| step!().lower((&state, &x, &labels)))
}

pub fn cnn_compile() -> Result<Timing> {
    compile()
}

/// Compiling the step with a hit in the disk cache.
pub fn cnn_compile_warm() -> Result<Timing> {
    with_cache(|cache| {
        config::set_compilation_cache_dir(cache)?;
        let time = compile();
        config::set_compilation_cache_dir("")?;
        time
    })
}

/// The StableHLO text of the step on `n` devices.
pub fn text(n: usize) -> Result<String> {
    let state = State::new(Cnn::new(&mut Rngs::new(0)), adam(1e-3))?;
    let (x, labels) = (shape_dtype_struct([n, 1, 32, 32, 3], DType::F32), shape_dtype_struct([n, 1], DType::I32));
    Ok(step!().lower((&state, &x, &labels))?.as_text().to_owned())
}

fn compile() -> Result<Timing> {
    let (state, x, labels) = arguments(&line(8, "batch")?, BATCH / 8)?;
    let lowered = step!().lower((&state, &x, &labels))?;
    measure_parts(MIN_RUNS, || {
        clear_caches();
        let start = now();
        let _compiled = lowered.compile()?;
        Ok(now() - start)
    })
}
