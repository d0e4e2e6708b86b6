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
///
/// An adapter can also have the lengths of the columns of the changed kernels (DoRA,
/// [Liu et al. 2024](https://arxiv.org/abs/2402.09353)), and arrays that replace the model's.
#[derive(Module, Clone, Debug)]
pub struct Adapter {
    /// The matrices by the key paths of the layers that they change, such as `blocks[0].attention.query`. The matrices of
    /// a layer of experts have a first dimension for the experts.
    pub layers: BTreeMap<String, LoRA>,
    /// The lengths of the columns of kernels, `[outputs]`, by the key paths of their layers; see
    /// [`with_magnitudes`](Adapter::with_magnitudes).
    pub magnitudes: BTreeMap<String, LoRAParam>,
    /// Arrays in the place of the model's, by their key paths; see [`with_copies`](Adapter::with_copies).
    pub replaced: BTreeMap<String, LoRAParam>,
    scale: f64,
}

impl Adapter {
    /// Creates matrices of this rank for every layer whose key path ends with one of `targets`. The second ones are
    /// zeros, so that the model is unchanged at first.
    ///
    /// Every target must be a layer of the model, and the rank must be positive.
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
            let message = format!("an adapter of rank {rank} and alpha {alpha} changes nothing");
            return Err(value_error(message, "give a rank of at least 1 and a finite alpha").at(location));
        }
        // A misspelled target must be an error, because the layer would silently keep its weights.
        let kernels = kernels(model);
        let mut layers = BTreeMap::new();
        for target in targets {
            let end = format!(".{target}");
            let matches: Vec<_> = kernels.iter().filter(|(path, _)| *path == target || path.ends_with(&end)).collect();
            if matches.is_empty() {
                let message = format!("the model has no layer {target:?} with a kernel");
                let names: Vec<&str> = kernels.keys().map(String::as_str).take(8).collect();
                return Err(
                    value_error(message, format!("give the end of a key path, such as of {names:?}")).at(location)
                );
            }
            for (path, kernel) in matches {
                let (experts, [inputs, outputs]) = sizes(path, kernel.shape());
                let matrices = (0..experts.unwrap_or(1)).map(|_| LoRA::new(inputs, rank, outputs, rngs));
                layers.insert(path.clone(), stacked(experts.is_some(), matrices.collect()));
            }
        }
        Ok(Adapter::of(layers, alpha / rank as f64))
    }

    /// Matrices that exist, by the key paths of their layers.
    pub(crate) fn of(layers: BTreeMap<String, LoRA>, scale: f64) -> Adapter {
        Adapter { layers, magnitudes: BTreeMap::new(), replaced: BTreeMap::new(), scale }
    }

    /// Adds the lengths of the columns of all changed kernels, so that training changes directions and lengths apart. The
    /// model is unchanged at first.
    ///
    /// The model must have every layer of the adapter; layers of experts cannot be adapted.
    ///
    /// ```
    /// use shardax_models::{Adapter, Decoder, DecoderConfig};
    /// use shardax_nn::prelude::*;
    /// let mut rngs = Rngs::new(0);
    /// let model = Decoder::new(&DecoderConfig::new(64, 1, 16, 4), &mut rngs)?;
    /// let adapter = Adapter::new(&model, ["attention.query"], 4, 8.0, &mut rngs)?.with_magnitudes(&model)?;
    /// assert_eq!(adapter.magnitudes["blocks[0].attention.query"].shape(), [16]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn with_magnitudes<M: Module>(mut self, model: &M) -> Result<Adapter> {
        let location = std::panic::Location::caller();
        let kernels = kernels(model);
        for path in self.layers.keys() {
            let Some(kernel) = kernels.get(path) else { return Err(no_layer(path).at(location)) };
            let (None, [inputs, outputs]) = sizes(path, kernel.shape()) else {
                let message =
                    format!("the layer {path:?} is of several experts, whose columns have no lengths in adapters");
                return Err(value_error(message, "adapt other layers, such as those of attention").at(location));
            };
            let lengths = column_lengths(&kernel.reshape([inputs, outputs]));
            self.magnitudes.insert(path.clone(), lengths.into());
        }
        Ok(self)
    }

    /// Adds copies of the arrays of some layers, which are trained in full: peft's `modules_to_save`.
    ///
    /// Every target must be the end of the key path of a layer.
    ///
    /// ```
    /// use shardax_models::{Adapter, Decoder, DecoderConfig};
    /// use shardax_nn::prelude::*;
    /// let mut rngs = Rngs::new(0);
    /// let model = Decoder::new(&DecoderConfig::new(64, 1, 16, 4), &mut rngs)?;
    /// let adapter = Adapter::new(&model, ["attention.query"], 4, 8.0, &mut rngs)?.with_copies(&model, ["head"])?;
    /// assert_eq!(adapter.replaced["head.kernel"].shape(), [16, 64]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn with_copies<'a, M: Module>(
        mut self,
        model: &M,
        targets: impl IntoIterator<Item = &'a str>,
    ) -> Result<Adapter> {
        let location = std::panic::Location::caller();
        let state = model.state();
        for target in targets {
            let before = self.replaced.len();
            for (path, array) in state.iter() {
                let layer = path.rsplit_once('.').map_or("", |(layer, _)| layer);
                if layer == target || layer.ends_with(&format!(".{target}")) {
                    self.replaced.insert(path.to_owned(), array.clone().into());
                }
            }
            if self.replaced.len() == before {
                return Err(no_layer(target).at(location));
            }
        }
        Ok(self)
    }

    /// The factor of the product of two matrices: `alpha / rank`.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// The model with the changed kernels. Gradients reach both.
    ///
    /// The model must have every layer of the adapter, of the same size.
    #[track_caller]
    pub fn apply<M: Module>(&self, model: &M) -> Result<M> {
        let location = std::panic::Location::caller();
        self.applied(model).map_err(|error| error.at(location))
    }

    fn applied<M: Module>(&self, model: &M) -> Result<M> {
        let kernels = kernels(model);
        let mut changed = ModuleState::new();
        for (path, lora) in &self.layers {
            let Some(kernel) = kernels.get(path) else { return Err(no_layer(path)) };
            let (a, b) = (&*lora.lora_a, &*lora.lora_b);
            let (experts, [inputs, outputs]) = sizes(path, kernel.shape());
            let (before, b_shape) = (experts.as_slice(), b.shape());
            let fits = a.shape().split_last().is_some_and(|(_, dims)| *dims == [before, &[inputs]].concat())
                && b_shape.last() == Some(&outputs)
                && b_shape.len() == before.len() + 2;
            if !fits {
                let ends = [a.shape().first(), b.shape().last()].map(|size| size.copied().unwrap_or(0));
                let message = format!("the adapter of {path:?} is of {ends:?}, and the layer of {:?}", kernel.shape());
                return Err(value_error(message, "apply the adapter to its own model"));
            }
            let change = (a.matmul(b) * self.scale).reshape(kernel.shape()).astype(kernel.dtype());
            let mut kernel = kernel + change;
            if let Some(magnitude) = self.magnitudes.get(path) {
                let columns = kernel.reshape([inputs, outputs]);
                // As in peft, gradients do not reach the lengths.
                let scale = &**magnitude / lax::stop_gradient(column_lengths(&columns));
                kernel = (&columns * scale.astype(columns.dtype())).reshape(kernel.shape());
            }
            changed.insert(format!("{path}.kernel"), kernel);
        }
        let state = model.state();
        for (path, array) in &self.replaced {
            let Some(old) = state.get(path) else { return Err(no_layer(path)) };
            if old.size() != array.size() {
                let what =
                    format!("the adapter has {path:?} of {:?}, and the model of {:?}", array.shape(), old.shape());
                return Err(value_error(what, "apply the adapter to its own model"));
            }
            changed.insert(path.clone(), array.reshape(old.shape()).astype(old.dtype()));
        }
        model.with_state(&changed)
    }
}

/// The kernels of a model by the key paths of their layers.
fn kernels<M: Module>(model: &M) -> BTreeMap<String, Array> {
    model
        .state()
        .iter()
        .filter_map(|(path, kernel)| Some((path.strip_suffix(".kernel")?.to_owned(), kernel.clone())))
        .collect()
}

/// The number of experts, if the layer is of several, and the inputs and the outputs of a layer whose kernel has this shape.
fn sizes(path: &str, shape: &[usize]) -> (Option<usize>, [usize; 2]) {
    if let ([experts, inputs, outputs], true) = (shape, path.contains(".experts.layers.")) {
        return (Some(*experts), [*inputs, *outputs]);
    }
    let inputs = input_dims(&format!("{path}.kernel"), shape.len());
    (None, [shape[..inputs].iter().product(), shape[inputs..].iter().product()])
}

/// The matrices of experts as one pair of arrays, or the only pair.
pub(crate) fn stacked(is_stacked: bool, matrices: Vec<LoRA>) -> LoRA {
    let (a, b): (Vec<Array>, Vec<Array>) =
        matrices.iter().map(|lora| ((*lora.lora_a).clone(), (*lora.lora_b).clone())).unzip();
    let (a, b) = (stack(a, 0), stack(b, 0));
    let mut lora = LoRA::new(1, 1, 1, &mut Rngs::new(0));
    let [a, b] = if is_stacked { [a, b] } else { [a, b].map(|x| x.squeeze(0)) };
    (lora.lora_a, lora.lora_b) = (a.into(), b.into());
    lora
}

/// The length of each column of a matrix.
fn column_lengths(kernel: &Array) -> Array {
    kernel.astype(DType::F32).square().sum(0).sqrt()
}

/// The error of a layer that the model does not have.
fn no_layer(path: &str) -> Error {
    value_error(format!("the model has no layer {path:?}"), "apply the adapter to its own model")
}
