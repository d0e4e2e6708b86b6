//! A multilayer perceptron.

use shardax_nn::prelude::*;

use crate::{Plan, Setup};

#[derive(Module, Clone)]
struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    fn forward(&self, mut x: Array) -> Array {
        for (i, layer) in self.layers.iter().enumerate() {
            x = layer.forward(if i == 0 { x } else { relu(x) });
        }
        x
    }
}

const RULES: [(&str, &[&str]); 3] = [("batch", &["data", "fsdp"]), ("in", &["fsdp"]), ("out", &["model"])];

type State = Optimizer<Mlp>;

/// A step of Adam. Options: `features` (1024), `hidden` (4096), `layers` (3). `data` and `fsdp` split the batch, `fsdp`
/// the rows of the parameters, `model` their columns.
///
/// # Errors
/// Returns an error if the sizes are not divisible.
#[track_caller]
pub fn mlp(setup: &Setup) -> Result<Plan> {
    let (features, hidden) = (setup.number("features", 1024)?, setup.number("hidden", 4096)?);
    let layers = setup.number("layers", 3)?.max(1);
    let batch = setup.micro_batch.unwrap_or(32 * setup.target.num_devices());
    let mesh = setup.mesh()?;
    let rules = setup.rules(&mesh, &RULES);
    let sizes: Vec<usize> = (0..=layers).map(|i| if i == 0 || i == layers { features } else { hidden }).collect();
    let types = eval_shape(move || create_state(&sizes), ())?;
    let shardings = rules.shardings(&types)?;
    let rows = NamedSharding::new(&mesh, rules.spec(["batch", "features"]));
    // A closure of this function, because reports have the name `mlp`.
    let step = jit(|mut state: State, x: Array, y: Array| -> Result<(State, Array)> {
        let (loss, grads) =
            value_and_grad(|model: Mlp| (model.forward(x.clone()) - &y).square().mean(..)).call(&state.model)?;
        state.update(grads)?;
        Ok((state, loss))
    });
    let step =
        step.in_shardings((&shardings, &rows, &rows)).out_shardings((&shardings, UNSPECIFIED)).donate_argnums([0]);
    let x = shape_dtype_struct([batch, features], DType::F32);
    Ok(Plan::from_lowered(step.lower((types, x.clone(), x))?)?.rules(&RULES))
}

fn create_state(sizes: &[usize]) -> Result<State> {
    let mut rngs = Rngs::new(0);
    let layers = sizes
        .windows(2)
        .map(|pair| Linear::builder(pair[0], pair[1]).kernel_axes(["in", "out"]).build(&mut rngs))
        .collect();
    State::new(Mlp { layers }, adam(1e-3))
}
