//! The rows in candle.

use std::path::Path;

use candle_core::backprop::GradStore;
use candle_core::{D, Device, Result as CandleResult, Tensor, Var};
use candle_nn::loss::cross_entropy;
use candle_nn::ops::{layer_norm_slow, softmax};
use candle_nn::{AdamW, Conv2d, Conv2dConfig, Embedding, Linear, Module, Optimizer, ParamsAdamW, SGD};

use crate::inputs::{Inputs, random_matrix};
use crate::settings::{ADAM_EPSILON, ADAM_RATE, CLIP, DECAY, FEATURES, HEADS, LAYERS, LENGTH, NORM_EPSILON, SGD_RATE};
use crate::{Call, Result, Row};

/// Builds the model and batch of `row`.
pub fn prepare(row: Row, folder: &Path) -> Result<Call> {
    let inputs = || Inputs::read(folder, row.name());
    match row {
        Row::Matmul => matmul(),
        Row::Mlp => mlp(&inputs()?),
        Row::Cnn => cnn(&inputs()?),
        Row::Gpt => gpt(&inputs()?),
    }
}

fn matmul() -> Result<Call> {
    let matrix = |seed| -> CandleResult<Tensor> {
        let array = random_matrix(seed);
        Tensor::from_vec(array.values, array.shape, &Device::Cpu)
    };
    let (a, b) = (matrix(0)?, matrix(1)?);
    Ok(Box::new(move || {
        a.matmul(&b)?;
        Ok(None)
    }))
}

/// A training step: `loss`, its gradients, and `update`.
fn training(
    loss: impl Fn() -> CandleResult<Tensor> + 'static,
    mut update: impl FnMut(GradStore) -> CandleResult<()> + 'static,
) -> Call {
    Box::new(move || {
        let loss = loss()?;
        update(loss.backward()?)?;
        Ok(Some(loss.to_scalar()?))
    })
}

/// The parameters of a model in a file.
struct Parameters<'a> {
    inputs: &'a Inputs,
    /// Parameters of two or more axes in the file.
    matrices: Vec<Var>,
    vectors: Vec<Var>,
}

impl Parameters<'_> {
    fn new(inputs: &Inputs) -> Parameters<'_> {
        Parameters { inputs, matrices: Vec::new(), vectors: Vec::new() }
    }

    /// Reads a parameter and converts it to candle's layout. The result follows the variable's updates.
    fn tensor(&mut self, name: &str, convert: impl FnOnce(Tensor) -> CandleResult<Tensor>) -> Result<Tensor> {
        let array = self.inputs.floats(name)?;
        let group = if array.shape.len() > 1 { &mut self.matrices } else { &mut self.vectors };
        let value = convert(Tensor::from_vec(array.values, array.shape, &Device::Cpu)?)?;
        let variable = Var::from_tensor(&value.contiguous()?)?;
        let tensor = variable.as_tensor().clone();
        group.push(variable);
        Ok(tensor)
    }

    /// A layer whose kernel has `inputs` numbers per output. Kernels of attention have heads as a further axis.
    fn linear(&mut self, path: &str, inputs: usize) -> Result<Linear> {
        let weight = self.tensor(&format!("{path}.kernel"), |kernel| kernel.reshape((inputs, ()))?.t())?;
        let bias = self.tensor(&format!("{path}.bias"), |bias| bias.flatten_all())?;
        Ok(Linear::new(weight, Some(bias)))
    }

    fn conv(&mut self, path: &str) -> Result<Conv2d> {
        let weight = self.tensor(&format!("{path}.kernel"), |kernel| kernel.permute((3, 2, 0, 1)))?;
        let bias = self.tensor(&format!("{path}.bias"), Ok)?;
        Ok(Conv2d::new(weight, Some(bias), Conv2dConfig { padding: 1, ..Conv2dConfig::default() }))
    }

    fn norm(&mut self, path: &str) -> Result<LayerNorm> {
        let scale = self.tensor(&format!("{path}.scale"), Ok)?;
        Ok(LayerNorm { scale, bias: self.tensor(&format!("{path}.bias"), Ok)? })
    }

    fn all(self) -> Vec<Var> {
        [self.matrices, self.vectors].concat()
    }
}

/// Labels or tokens of any shape, as a vector.
fn labels(inputs: &Inputs, name: &str) -> Result<Tensor> {
    let values =
        inputs.ints(name)?.values.into_iter().map(u32::try_from).collect::<std::result::Result<Vec<_>, _>>()?;
    let count = values.len();
    Ok(Tensor::from_vec(values, count, &Device::Cpu)?)
}

fn adam(parameters: Vec<Var>, weight_decay: f64) -> CandleResult<AdamW> {
    AdamW::new(parameters, ParamsAdamW { lr: ADAM_RATE, eps: ADAM_EPSILON, weight_decay, ..ParamsAdamW::default() })
}

fn mlp(inputs: &Inputs) -> Result<Call> {
    let mut parameters = Parameters::new(inputs);
    let layer1 = parameters.linear("[0].layer1", 784)?;
    let layer2 = parameters.linear("[0].layer2", 1024)?;
    let layer3 = parameters.linear("[0].layer3", 1024)?;
    let mut optimizer = SGD::new(parameters.all(), SGD_RATE)?;
    let (x, labels) = (inputs.floats("[1]")?, labels(inputs, "[2]")?);
    let x = Tensor::from_vec(x.values, x.shape, &Device::Cpu)?;
    let loss = move || {
        let x = layer1.forward(&x)?.relu()?;
        let x = layer2.forward(&x)?.relu()?;
        cross_entropy(&layer3.forward(&x)?, &labels)
    };
    Ok(training(loss, move |gradients| optimizer.step(&gradients)))
}

/// candle 0.11.1 multiplies the gradient of `max_pool2d` by the share of its windows that is the maximum: by a quarter.
/// Adam divides by the gradients' size, so the losses of later steps still agree with the other libraries' to about 1e-4.
fn cnn(inputs: &Inputs) -> Result<Call> {
    let mut parameters = Parameters::new(inputs);
    let (conv1, conv2) = (parameters.conv("[0].conv1")?, parameters.conv("[0].conv2")?);
    // The file's kernel expects rows, columns, features; candle's activations are features, rows, columns.
    let weight = parameters
        .tensor("[0].dense.kernel", |kernel| kernel.reshape((8, 8, 64, 10))?.permute((3, 2, 0, 1))?.flatten_from(1))?;
    let dense = Linear::new(weight, Some(parameters.tensor("[0].dense.bias", Ok)?));
    let mut optimizer = adam(parameters.all(), 0.0)?;
    let (x, labels) = (inputs.floats("[1]")?, labels(inputs, "[2]")?);
    let x = Tensor::from_vec(x.values, x.shape, &Device::Cpu)?.permute((0, 3, 1, 2))?.contiguous()?;
    let loss = move || {
        let x = conv1.forward(&x)?.relu()?.max_pool2d(2)?;
        let x = conv2.forward(&x)?.relu()?.max_pool2d(2)?;
        cross_entropy(&dense.forward(&x.flatten_from(1)?)?, &labels)
    };
    Ok(training(loss, move |gradients| optimizer.step(&gradients)))
}

/// Layer normalization. `candle_nn::LayerNorm` has no gradient.
struct LayerNorm {
    scale: Tensor,
    bias: Tensor,
}

impl Module for LayerNorm {
    fn forward(&self, x: &Tensor) -> CandleResult<Tensor> {
        layer_norm_slow(x, &self.scale, &self.bias, NORM_EPSILON as f32)
    }
}

struct Block {
    attention_norm: LayerNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    mlp_norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(parameters: &mut Parameters, index: usize) -> Result<Block> {
        let path = |name: &str| format!("[0].blocks[{index}].{name}");
        Ok(Block {
            attention_norm: parameters.norm(&path("norm.0"))?,
            query: parameters.linear(&path("attention.query"), FEATURES)?,
            key: parameters.linear(&path("attention.key"), FEATURES)?,
            value: parameters.linear(&path("attention.value"), FEATURES)?,
            out: parameters.linear(&path("attention.out"), FEATURES)?,
            mlp_norm: parameters.norm(&path("mlp_norm.0"))?,
            up: parameters.linear(&path("mlp.up"), FEATURES)?,
            down: parameters.linear(&path("mlp.down"), 4 * FEATURES)?,
        })
    }

    /// Applies the block to `x`, `[rows, LENGTH, FEATURES]`. `mask` is added to the scores.
    fn forward(&self, x: &Tensor, mask: &Tensor) -> CandleResult<Tensor> {
        let (rows, ..) = x.dims3()?;
        let y = self.attention_norm.forward(x)?;
        let heads = |layer: &Linear| {
            let y = layer.forward(&y)?.reshape((rows, LENGTH, HEADS, FEATURES / HEADS))?;
            y.transpose(1, 2)?.contiguous()
        };
        let query = (heads(&self.query)? / ((FEATURES / HEADS) as f64).sqrt())?;
        let scores = query.matmul(&heads(&self.key)?.t()?)?.broadcast_add(mask)?;
        // `softmax_last_dim` is faster but has no gradient.
        let y = softmax(&scores, D::Minus1)?.matmul(&heads(&self.value)?)?;
        let x = (x + self.out.forward(&y.transpose(1, 2)?.flatten_from(2)?)?)?;
        let y = self.up.forward(&self.mlp_norm.forward(&x)?)?.gelu()?;
        x + self.down.forward(&y)?
    }
}

fn gpt(inputs: &Inputs) -> Result<Call> {
    let mut parameters = Parameters::new(inputs);
    let embed = Embedding::new(parameters.tensor("[0].embed.embedding", Ok)?, FEATURES);
    let positions = parameters.tensor("[0].positions.embedding", Ok)?;
    let blocks: Vec<Block> = (0..LAYERS).map(|index| Block::new(&mut parameters, index)).collect::<Result<_>>()?;
    let (norm, head) = (parameters.norm("[0].norm.0")?, parameters.linear("[0].head", FEATURES)?);
    let tokens = labels(inputs, "[1][0]")?.reshape(((), LENGTH))?;
    let targets = labels(inputs, "[1][1]")?;
    // The mask is added to the scores, because future positions must not be seen.
    let mask = (0..LENGTH).flat_map(|i| (0..LENGTH).map(move |j| if j > i { f32::NEG_INFINITY } else { 0.0 }));
    let mask = Tensor::from_vec(mask.collect(), (LENGTH, LENGTH), &Device::Cpu)?;

    let Parameters { matrices, vectors, .. } = parameters;
    let tensors = [matrices.clone(), vectors.clone()].concat();
    let mut optimizers = [adam(matrices, DECAY)?, adam(vectors, 0.0)?];
    let loss = move || {
        let mut x = embed.forward(&tokens)?.broadcast_add(&positions)?;
        for block in &blocks {
            x = block.forward(&x, &mask)?;
        }
        cross_entropy(&head.forward(&norm.forward(&x)?)?.flatten_to(1)?, &targets)
    };
    let update = move |mut gradients| {
        clip_by_global_norm(&mut gradients, &tensors, CLIP)?;
        optimizers.iter_mut().try_for_each(|optimizer| optimizer.step(&gradients))
    };
    Ok(training(loss, update))
}

/// Scales the gradients so that their norm is at most `limit`. candle has no such function.
fn clip_by_global_norm(gradients: &mut GradStore, parameters: &[Var], limit: f64) -> CandleResult<()> {
    let mut squares = 0.0;
    for gradient in parameters.iter().filter_map(|parameter| gradients.get(parameter)) {
        squares += f64::from(gradient.sqr()?.sum_all()?.to_scalar::<f32>()?);
    }
    let norm = squares.sqrt();
    if norm > limit {
        for parameter in parameters {
            if let Some(gradient) = gradients.remove(parameter) {
                gradients.insert(parameter, (gradient * (limit / norm))?);
            }
        }
    }
    Ok(())
}
