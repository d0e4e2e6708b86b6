//! Benchmarks of data-parallel training steps: the state is replicated and donated, the batch is split along axis 0.

use shardax::prelude::*;
use shardax_nn::Rngs;

use crate::clock::{STEPS, Timing, measure_steps, measure_times};
use crate::data::{images, labels, line, replicated, split};

/// The global batch size.
const ROWS: usize = 512;

/// A model to train.
trait Model: Tree {
    fn logits(&self, x: Array) -> Array;
}

/// An optimizer.
trait Optimizer<M: Model>: Copy {
    type State: Tree;
    fn init(self, model: &M) -> Result<Self::State>;
    fn update(self, model: M, state: Self::State, grads: M) -> Result<(M, Self::State)>;
}

#[derive(Clone, Tree)]
struct Linear {
    kernel: Array,
    bias: Array,
}

impl Linear {
    /// Initialized as in Flax.
    fn new(inputs: usize, outputs: usize, rngs: &mut Rngs) -> Linear {
        let layer = shardax_nn::Linear::new(inputs, outputs, rngs);
        Linear { kernel: layer.kernel, bias: zeros([outputs]) }
    }

    fn apply(&self, x: Array) -> Array {
        x.dot(&self.kernel) + &self.bias
    }
}

#[derive(Clone, Tree)]
struct Mlp {
    layer1: Linear,
    layer2: Linear,
    layer3: Linear,
}

impl Model for Mlp {
    fn logits(&self, x: Array) -> Array {
        let x = self.layer1.apply(x).maximum(0);
        let x = self.layer2.apply(x).maximum(0);
        self.layer3.apply(x)
    }
}

/// Gradient descent with this learning rate.
#[derive(Clone, Copy)]
struct Sgd(f64);

impl<M: Model> Optimizer<M> for Sgd {
    type State = ();

    fn init(self, _: &M) -> Result<()> {
        Ok(())
    }

    fn update(self, model: M, _: (), grads: M) -> Result<(M, ())> {
        Ok((tree::map2(|p, g| p - g * self.0, model, grads)?, ()))
    }
}

/// Mean softmax cross entropy with integer labels, and the accuracy.
fn loss_and_accuracy<M: Model>(model: M, x: Array, labels: Array) -> (Array, Array) {
    let logits = model.logits(x);
    let classes = arange(0..10);
    let chosen = where_(labels.expand_dims(1).equal(&classes), &logits, 0).sum(1);
    let loss = (logits.logsumexp(1) - chosen).mean(..);
    (loss, logits.argmax(1).equal(labels).mean(..))
}

struct Training<M: Model, O: Optimizer<M>> {
    optimizer: O,
    state: (M, O::State),
    batch: (Array, Array),
}

impl<M: Model, O: Optimizer<M>> Training<M, O> {
    fn new((n, each): (usize, usize), model: M, optimizer: O, features: &[usize]) -> Result<Self> {
        let mesh = line(n, "batch")?;
        let state = (model.clone(), optimizer.init(&model)?);
        let (x, y) = (images([&[n, each], features].concat()), labels(&[n, each])?);
        Ok(Training { optimizer, state: replicated(state, &mesh)?, batch: split((x, y), &mesh, "batch")? })
    }

    /// The step, which passes its state on.
    fn stepping(self) -> impl FnMut() -> Result<Array> {
        let Training { optimizer, mut state, batch: (x, y) } = self;
        // Each device computes the gradients of its rows. Their mean is equal on all devices, so the state stays equal
        // too, and one copy of it can be the result.
        let step = pmap(move |(model, state): (M, O::State), x: Array, y: Array| {
            let ((loss, accuracy), grads) = value_and_grad(loss_and_accuracy::<M>).has_aux().call((&model, x, y))?;
            let grads = pmean(grads, "batch");
            let (loss, accuracy) = pmean((loss, accuracy), "batch");
            Ok((optimizer.update(model, state, grads)?, loss, accuracy))
        })
        .axis_name("batch")
        .in_axes((None, 0, 0))
        .out_axes(None)
        .donate_argnums([0]);
        move || {
            let (next, loss, _) = block_until_ready(step.call((&state, &x, &y))?)?;
            state = next;
            Ok(loss)
        }
    }
}

impl Mlp {
    fn new(rngs: &mut Rngs) -> Mlp {
        Mlp {
            layer1: Linear::new(784, 1024, rngs),
            layer2: Linear::new(1024, 1024, rngs),
            layer3: Linear::new(1024, 10, rngs),
        }
    }
}

/// The step on `n` devices of this process with `each` rows per device.
pub fn mlp(n: usize, each: usize) -> Result<impl FnMut() -> Result<Array>> {
    Ok(Training::new((n, each), Mlp::new(&mut Rngs::new(0)), Sgd(0.1), &[784])?.stepping())
}

/// The model and batch of `mlp_step_1`.
pub fn mlp_inputs() -> Result<impl Tree> {
    Ok((Mlp::new(&mut Rngs::new(0)), images([ROWS, 784]), labels(&[ROWS])?))
}

pub fn mlp_step(n: usize) -> Result<Timing> {
    measure_steps(mlp(n, ROWS / n)?)
}

/// The step on the devices of all processes.
pub fn mp_mlp_step() -> Result<Timing> {
    measure_times(STEPS, mlp(local_device_count(), ROWS / device_count())?)
}
