//! A convolutional network on small images.

use shardax_nn::prelude::*;

use crate::{Plan, Setup};

#[derive(Module, Clone)]
struct Cnn {
    conv1: Conv,
    conv2: Conv,
    dense: Linear,
}

impl Cnn {
    fn forward(&self, x: Array) -> Array {
        let x = max_pool(relu(self.conv1.forward(x)), [2, 2], [2, 2]);
        let x = max_pool(relu(self.conv2.forward(x)), [2, 2], [2, 2]);
        self.dense.forward(x.flatten_from(1))
    }
}

const RULES: [(&str, &[&str]); 1] = [("batch", &["data", "fsdp"])];

type State = Optimizer<Cnn>;

/// Plans a step of Adam on images of 32×32 pixels. The mesh axis `data` splits the images.
///
/// # Errors
/// Returns an error if the number of devices does not divide the number of images, or if the step cannot be lowered.
#[track_caller]
pub fn cnn(setup: &Setup) -> Result<Plan> {
    let batch = setup.micro_batch.unwrap_or(32 * setup.target.num_devices());
    let mesh = setup.mesh()?;
    let rules = setup.rules(&mesh, &RULES);
    let types = eval_shape(create_state, ())?;
    let replicated = NamedSharding::new(&mesh, P![]);
    let rows = NamedSharding::new(&mesh, rules.spec(["batch"]));
    // A closure of this function, because reports have the name `cnn`.
    let step = jit(|mut state: State, x: Array, labels: Array| -> Result<(State, Array)> {
        let (loss, grads) = value_and_grad(|model: Cnn| {
            softmax_cross_entropy_with_integer_labels(model.forward(x.clone()), &labels).mean(..)
        })
        .call(&state.model)?;
        state.update(grads)?;
        Ok((state, loss))
    });
    let step =
        step.in_shardings((&replicated, &rows, &rows)).out_shardings((&replicated, UNSPECIFIED)).donate_argnums([0]);
    let images = shape_dtype_struct([batch, 32, 32, 3], DType::F32);
    Ok(Plan::from_lowered(step.lower((types, images, shape_dtype_struct([batch], DType::I32)))?)?.rules(&RULES))
}

fn create_state() -> Result<State> {
    let mut rngs = Rngs::new(0);
    let (conv1, conv2) = (Conv::new(3, 32, [3, 3], &mut rngs), Conv::new(32, 64, [3, 3], &mut rngs));
    State::new(Cnn { conv1, conv2, dense: Linear::new(64 * 8 * 8, 10, &mut rngs) }, adam(1e-3))
}
