//! Low-rank adapters beside a model.

use std::collections::BTreeMap;

use shardax::error::Result;
use shardax_nn::prelude::*;

use crate::error::value_error;
use crate::huggingface::input_dims;

/// Low-rank updates of some kernels of a model, stored apart from it ([Hu et al.
/// 2021](https://arxiv.org/abs/2106.09685)): `kernel + alpha / rank * a · b`.
///
/// It is a tree of its own, so that it is trained, saved and exchanged without the model.
///
/// ```
/// use shardax_models::{Adapter, Decoder, DecoderConfig};
/// use shardax_nn::prelude::*;
/// let mut rngs = Rngs::new(0);
/// let model = Decoder::new(&DecoderConfig::new(64, 2, 16, 4), &mut rngs)?;
/// let adapter = Adapter::new(&model, ["attention.query", "attention.value"], 4, 8.0, &mut rngs)?;
/// let mut optimizer = Optimizer::wrt(adapter, adam(1e-3), Filter::of::<LoRAParam>())?;
///
/// let step = jit(|model: Decoder, mut state: Optimizer<Adapter>, tokens: Array| -> Result<_> {
///     let loss = |adapter: Adapter| -> Result<Array> {
///         let logits = adapter.apply(&model)?.forward(tokens.get((.., ..-1)));
///         Ok(softmax_cross_entropy_with_integer_labels(logits, tokens.get((.., 1..))).mean(..))
///     };
///     let (loss, grads) = value_and_grad(loss).call(&state.model)?;
///     state.update(grads)?;
///     Ok((state, loss))
/// });
/// let loss;
/// (optimizer, loss) = step.call((&model, optimizer, array([[1, 2, 3, 4]])))?;
/// # let _ = (optimizer, loss.item::<f32>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct Adapter {
    /// The matrices by the key paths of the layers that they change, such as `blocks[0].attention.query`.
    pub layers: BTreeMap<String, LoRA>,
    scale: f64,
}

impl Adapter {
    /// Creates matrices of this rank for every layer whose key path ends with one of `targets`. The second ones are
    /// zeros, so that the model is unchanged at first.
    ///
    /// Fails when a target is not a layer of the model, when it is a layer of experts, and when the rank is 0.
    #[track_caller]
    pub fn new<'a, M: Module>(
        model: &M,
        targets: impl IntoIterator<Item = &'a str>,
        rank: usize,
        alpha: f64,
        rngs: &mut Rngs,
    ) -> Result<Adapter> {
        let location = std::panic::Location::caller();
        if rank == 0 || !alpha.is_finite() {
            let what = format!("an adapter of rank {rank} and alpha {alpha} changes nothing");
            return Err(value_error(what, "give a rank of at least 1 and a finite alpha").at(location));
        }
        let kernels = kernels(model);
        let mut layers = BTreeMap::new();
        for target in targets {
            let is_target = |path: &str| path == target || path.ends_with(&format!(".{target}"));
            let found: Vec<_> = kernels.iter().filter(|(path, _)| is_target(path)).collect();
            if found.is_empty() {
                let what = format!("the model has no layer {target:?} with a kernel");
                let known: Vec<&str> = kernels.keys().map(String::as_str).take(8).collect();
                return Err(value_error(what, format!("give the end of a key path, such as of {known:?}")).at(location));
            }
            for (path, kernel) in found {
                // Its first dimension counts experts, and a matrix of low rank over all of them is not peft's.
                if path.contains(".experts.layers.") {
                    let what =
                        format!("the layer {path:?} is one kernel for several experts, which adapters do not change");
                    let help = "adapt other layers, such as those of attention";
                    return Err(value_error(what, help).at(location));
                }
                let [inputs, outputs] = sizes(path, kernel.shape());
                layers.insert(path.clone(), LoRA::new(inputs, rank, outputs, rngs));
            }
        }
        Ok(Adapter { layers, scale: alpha / rank as f64 })
    }

    /// Matrices that exist, by the key paths of their layers.
    pub(crate) fn of(layers: BTreeMap<String, LoRA>, scale: f64) -> Adapter {
        Adapter { layers, scale }
    }

    /// The factor of the product of two matrices: `alpha / rank`.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// The model with the changed kernels. Gradients reach both.
    ///
    /// Fails when the model does not have a layer of the adapter, or one of another size.
    #[track_caller]
    pub fn apply<M: Module>(&self, model: &M) -> Result<M> {
        let location = std::panic::Location::caller();
        self.applied(model).map_err(|error| error.at(location))
    }

    fn applied<M: Module>(&self, model: &M) -> Result<M> {
        let kernels = kernels(model);
        let mut changed = ModuleState::new();
        for (path, lora) in &self.layers {
            let Some(kernel) = kernels.get(path) else {
                return Err(value_error(
                    format!("the model has no layer {path:?}"),
                    "apply the adapter to its own model",
                ));
            };
            let (a, b) = (&*lora.lora_a, &*lora.lora_b);
            let ends = [a.shape().first(), b.shape().last()].map(|size| size.copied().unwrap_or(0));
            if ends != sizes(path, kernel.shape()) {
                let what = format!("the adapter of {path:?} is of {ends:?}, and the layer of {:?}", kernel.shape());
                return Err(value_error(what, "apply the adapter to its own model"));
            }
            let change = (a.dot(b) * self.scale).reshape(kernel.shape()).astype(kernel.dtype());
            changed.insert(format!("{path}.kernel"), kernel + change);
        }
        model.with_state(&changed)
    }
}

/// The kernels of a model by the key paths of their layers.
fn kernels<M: Module>(model: &M) -> BTreeMap<String, Array> {
    let layer = |(path, kernel): (&str, &Array)| Some((path.strip_suffix(".kernel")?.to_owned(), kernel.clone()));
    model.state().iter().filter_map(layer).collect()
}

/// The inputs and the outputs of a layer whose kernel has this shape.
fn sizes(path: &str, shape: &[usize]) -> [usize; 2] {
    let inputs = input_dims(&format!("{path}.kernel"), shape.len());
    [shape[..inputs].iter().product(), shape[inputs..].iter().product()]
}
