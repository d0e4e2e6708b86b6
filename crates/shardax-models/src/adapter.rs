//! Low-rank adapters (LoRA and DoRA).

use std::collections::BTreeMap;

use shardax::error::Result;
use shardax_nn::prelude::*;

use crate::error::value_error;
use crate::huggingface::input_dims;

/// Low-rank updates for some kernels of a model (LoRA, [Hu et al. 2021](https://arxiv.org/abs/2106.09685)).
///
/// The adapted kernel is `kernel + alpha / rank * a · b`. The adapter is a separate tree, so that you can train, save
/// and exchange it without the model.
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
/// An adapter can also contain the lengths of the columns of each adapted kernel (DoRA,
/// [Liu et al. 2024](https://arxiv.org/abs/2402.09353)), and arrays that replace arrays of the model.
#[derive(Module, Clone, Debug)]
pub struct Adapter {
    /// The pair of matrices for each adapted layer, by key path, such as `blocks[0].attention.query`. For a layer of
    /// experts, the first dimension of both matrices is the expert.
    pub layers: BTreeMap<String, LoRA>,
    /// The lengths of the columns of each adapted kernel, `[outputs]`, by the key path of the layer; see
    /// [`with_magnitudes`](Adapter::with_magnitudes).
    pub magnitudes: BTreeMap<String, LoRAParam>,
    /// Arrays that replace arrays of the model, by key path; see [`with_copies`](Adapter::with_copies).
    pub replaced: BTreeMap<String, LoRAParam>,
    scale: f64,
}

impl Adapter {
    /// Creates an adapter for every layer whose key path ends with one of `targets`. The second matrix of each pair
    /// is zero, so that the adapter does not change the model before it is trained.
    ///
    /// Every target must match a layer of the model, and the rank must be positive.
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
            let message = format!("an adapter needs a positive rank and a finite alpha, got {rank} and {alpha}");
            return Err(value_error(message, "pass a rank of at least 1 and a finite alpha").at(location));
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
                let help = format!("pass the last part of a key path of the model, which has {names:?} and others");
                return Err(value_error(message, help).at(location));
            }
            for (path, kernel) in matches {
                let (experts, [inputs, outputs]) = sizes(path, kernel.shape());
                let matrices = (0..experts.unwrap_or(1)).map(|_| LoRA::new(inputs, rank, outputs, rngs));
                layers.insert(path.clone(), stacked(experts.is_some(), matrices.collect()));
            }
        }
        Ok(Adapter::of(layers, alpha / rank as f64))
    }

    /// Creates an adapter from existing matrices, by the key paths of their layers.
    pub(crate) fn of(layers: BTreeMap<String, LoRA>, scale: f64) -> Adapter {
        Adapter { layers, magnitudes: BTreeMap::new(), replaced: BTreeMap::new(), scale }
    }

    /// Adds the lengths of the columns of all adapted kernels (DoRA), so that training can change the direction and
    /// the length of a column separately. This does not change the model before the adapter is trained.
    ///
    /// The model must have every layer of the adapter. A layer of experts is an error, because DoRA defines no
    /// lengths for it.
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
                let message = format!("magnitudes are not supported for the layer {path:?}, which has several experts");
                return Err(value_error(message, "adapt only other layers, such as `attention.query`").at(location));
            };
            let lengths = column_lengths(&kernel.reshape([inputs, outputs]));
            self.magnitudes.insert(path.clone(), lengths.into());
        }
        Ok(self)
    }

    /// Adds copies of all arrays of some layers, which are then trained in full (`modules_to_save` in peft).
    ///
    /// The key path of at least one layer must end with each target.
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

    /// Returns the factor of the low-rank product, `alpha / rank`.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Returns the model with the adapted kernels. The result is differentiable in both the adapter and the model.
    ///
    /// The model must have every layer of the adapter, with the same sizes.
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
            // `a` is `[experts, inputs, rank]` and `b` is `[experts, rank, outputs]`, without `experts` for other layers.
            let (batch_dims, b_shape) = (experts.as_slice(), b.shape());
            let fits = a.shape().split_last().is_some_and(|(_, dims)| *dims == [batch_dims, &[inputs]].concat())
                && b_shape.last() == Some(&outputs)
                && b_shape.len() == batch_dims.len() + 2;
            if !fits {
                let adapted = [a.shape().first(), b.shape().last()].map(|size| size.copied().unwrap_or(0));
                let message = format!(
                    "the adapter of {path:?} is for a kernel of {adapted:?}, but the kernel has the shape {:?}",
                    kernel.shape()
                );
                return Err(value_error(message, OTHER_MODEL));
            }
            let change = (a.matmul(b) * self.scale).reshape(kernel.shape()).astype(kernel.dtype());
            let mut kernel = kernel + change;
            if let Some(magnitude) = self.magnitudes.get(path) {
                let columns = kernel.reshape([inputs, outputs]);
                // Like peft, do not differentiate the length of the adapted column.
                let scale = &**magnitude / lax::stop_gradient(column_lengths(&columns));
                kernel = (&columns * scale.astype(columns.dtype())).reshape(kernel.shape());
            }
            changed.insert(format!("{path}.kernel"), kernel);
        }
        let state = model.state();
        for (path, array) in &self.replaced {
            let Some(old) = state.get(path) else { return Err(no_layer(path)) };
            if old.size() != array.size() {
                let message = format!(
                    "the adapter has {path:?} with the shape {:?}, but the model's has the shape {:?}",
                    array.shape(),
                    old.shape()
                );
                return Err(value_error(message, OTHER_MODEL));
            }
            changed.insert(path.clone(), array.reshape(old.shape()).astype(old.dtype()));
        }
        model.with_state(&changed)
    }
}

/// The help for an adapter that does not fit the model.
const OTHER_MODEL: &str = "apply the adapter to the model that it was created for";

/// Returns the kernels of a model, by the key paths of their layers.
fn kernels<M: Module>(model: &M) -> BTreeMap<String, Array> {
    model
        .state()
        .iter()
        .filter_map(|(path, kernel)| Some((path.strip_suffix(".kernel")?.to_owned(), kernel.clone())))
        .collect()
}

/// Returns the sizes of a layer from the shape of its kernel: the number of experts, if the layer has several, and
/// the numbers of inputs and outputs.
fn sizes(path: &str, shape: &[usize]) -> (Option<usize>, [usize; 2]) {
    if let ([experts, inputs, outputs], true) = (shape, path.contains(".experts.layers.")) {
        return (Some(*experts), [*inputs, *outputs]);
    }
    let inputs = input_dims(&format!("{path}.kernel"), shape.len());
    (None, [shape[..inputs].iter().product(), shape[inputs..].iter().product()])
}

/// Stacks the matrices of experts as one pair of arrays. If `is_stacked` is false, returns the only pair.
pub(crate) fn stacked(is_stacked: bool, matrices: Vec<LoRA>) -> LoRA {
    let (a, b): (Vec<Array>, Vec<Array>) =
        matrices.iter().map(|lora| ((*lora.lora_a).clone(), (*lora.lora_b).clone())).unzip();
    let (a, b) = (stack(a, 0), stack(b, 0));
    let mut lora = LoRA::new(1, 1, 1, &mut Rngs::new(0));
    let [a, b] = if is_stacked { [a, b] } else { [a, b].map(|x| x.squeeze(0)) };
    (lora.lora_a, lora.lora_b) = (a.into(), b.into());
    lora
}

/// Returns the length of each column of a matrix.
fn column_lengths(kernel: &Array) -> Array {
    kernel.astype(DType::F32).square().sum(0).sqrt()
}

/// Returns the error for a layer that the model does not have.
fn no_layer(path: &str) -> Error {
    value_error(format!("the model has no layer {path:?}"), OTHER_MODEL)
}
