//! The rows in burn, for any of its devices.

use std::path::Path;

use burn::module::{Module, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, LayerNorm, LayerNormConfig, Linear, PaddingConfig2d};
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::activation::{gelu_approximate, relu};
use burn::tensor::module::{attention, max_pool2d};
use burn::tensor::ops::{AttentionModuleOptions, MaxPoolOptions};
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::inputs::{Array, Inputs, random_matrix};
use crate::settings::{
    ADAM_EPSILON, ADAM_RATE, CLIP, DECAY, FEATURES, HEADS, LAYERS, LENGTH, NORM_EPSILON, SGD_RATE, VOCABULARY,
};
use crate::{Call, Result, Row};

pub fn flex() -> Device {
    Device::flex()
}

#[expect(deprecated, reason = "it is still published, and compared with its successor")]
pub fn ndarray() -> Device {
    Device::ndarray()
}

/// Builds the model and batch of `row` on `device`.
pub fn prepare(row: Row, folder: &Path, device: Device) -> Result<Call> {
    let inputs = || Inputs::read(folder, row.name());
    match row {
        Row::Matmul => Ok(matmul(&device)),
        Row::Mlp => mlp(&inputs()?, device.autodiff()),
        Row::Cnn => cnn(&inputs()?, device.autodiff()),
        Row::Gpt => gpt(&inputs()?, device.autodiff()),
    }
}

fn matmul(device: &Device) -> Call {
    let (a, b) = (tensor::<2>(random_matrix(0), device), tensor::<2>(random_matrix(1), device));
    let device = device.clone();
    Box::new(move || {
        let _product = a.clone().matmul(b.clone());
        device.sync()?;
        Ok(None)
    })
}

/// A training step: `loss`, its gradients, their change by `adjust`, and the optimizer's update.
fn training<M: Module + 'static>(
    model: M,
    loss: impl Fn(&M) -> Tensor<1> + 'static,
    adjust: impl Fn(&M, &mut GradientsParams) -> Result<()> + 'static,
    (mut optimizer, rate): (ModuleOptimizer, f64),
) -> Call {
    let mut state = Some(model);
    Box::new(move || {
        // The optimizer takes the model: a clone would share its tensors, which then could not be updated in place.
        let model = state.take().ok_or("an earlier step failed")?;
        let loss = loss(&model);
        let mut gradients = GradientsParams::from_grads(loss.backward(), &model);
        adjust(&model, &mut gradients)?;
        state = Some(optimizer.step(rate, model, gradients));
        Ok(Some(loss.try_into_scalar()?))
    })
}

fn unchanged<M>(_: &M, _: &mut GradientsParams) -> Result<()> {
    Ok(())
}

fn tensor<const D: usize>(array: Array<f32>, device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(array.values, array.shape), device)
}

/// A copy in row-major order, which has no history of operations.
fn contiguous<const D: usize>(tensor: Tensor<D>) -> Result<Tensor<D>> {
    let device = tensor.device();
    Ok(Tensor::from_data(tensor.try_into_data()?, &device))
}

/// Mean softmax cross entropy with integer labels.
fn cross_entropy(logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, labels)
}

/// The parameters of a model in a file.
struct Parameters<'a> {
    inputs: &'a Inputs,
    device: Device,
    /// Parameters of two or more axes in the file.
    matrices: Vec<ParamId>,
}

impl Parameters<'_> {
    fn new(inputs: &Inputs, device: Device) -> Parameters<'_> {
        Parameters { inputs, device, matrices: Vec::new() }
    }

    /// Reads a parameter as an array of this shape and converts it to burn's layout.
    fn param<const N: usize, const D: usize>(
        &mut self,
        name: &str,
        shape: [usize; N],
        convert: impl FnOnce(Tensor<N>) -> Tensor<D>,
    ) -> Result<Param<Tensor<D>>> {
        let array = self.inputs.floats(name)?;
        if array.values.len() != shape.iter().product::<usize>() {
            return Err(format!("{name} has the shape {:?}, which does not fit {shape:?}", array.shape).into());
        }
        let value = convert(Tensor::from_data(TensorData::new(array.values, shape), &self.device));
        let param = Param::from_tensor(contiguous(value)?);
        if array.shape.len() > 1 {
            self.matrices.push(param.id);
        }
        Ok(param)
    }

    fn vector(&mut self, name: &str, length: usize) -> Result<Param<Tensor<1>>> {
        self.param(name, [length], |vector| vector)
    }

    fn matrix(&mut self, name: &str, shape: [usize; 2]) -> Result<Param<Tensor<2>>> {
        self.param(name, shape, |matrix| matrix)
    }

    /// A layer with this number of inputs and outputs. In the file, layers of attention have an additional axis of heads.
    fn linear(&mut self, path: &str, shape: [usize; 2]) -> Result<Linear> {
        let weight = self.matrix(&format!("{path}.kernel"), shape)?;
        Ok(Linear { weight, bias: Some(self.vector(&format!("{path}.bias"), shape[1])?) })
    }

    fn conv(&mut self, path: &str, [inputs, outputs]: [usize; 2]) -> Result<Conv2d> {
        let name = format!("{path}.kernel");
        let weight = self.param(&name, [3, 3, inputs, outputs], |kernel| kernel.permute([3, 2, 0, 1]))?;
        let bias = self.vector(&format!("{path}.bias"), outputs)?;
        let config = Conv2dConfig::new([inputs, outputs], [3, 3]).with_padding(PaddingConfig2d::Same);
        Ok(Conv2d { weight, bias: Some(bias), ..config.init(&self.device) })
    }

    fn norm(&mut self, path: &str) -> Result<LayerNorm> {
        let mut norm = LayerNormConfig::new(FEATURES).with_epsilon(NORM_EPSILON).init(&self.device);
        norm.gamma = self.vector(&format!("{path}.scale"), FEATURES)?;
        norm.beta = Some(self.vector(&format!("{path}.bias"), FEATURES)?);
        Ok(norm)
    }

    fn floats<const D: usize>(&self, name: &str) -> Result<Tensor<D>> {
        Ok(tensor(self.inputs.floats(name)?, &self.device))
    }

    fn ints<const D: usize>(&self, name: &str) -> Result<Tensor<D, Int>> {
        let array = self.inputs.ints(name)?;
        Ok(Tensor::from_data(TensorData::new(array.values, array.shape), &self.device))
    }
}

#[derive(Module, Debug)]
struct Mlp {
    layer1: Linear,
    layer2: Linear,
    layer3: Linear,
}

fn mlp(inputs: &Inputs, device: Device) -> Result<Call> {
    let mut parameters = Parameters::new(inputs, device);
    let model = Mlp {
        layer1: parameters.linear("[0].layer1", [784, 1024])?,
        layer2: parameters.linear("[0].layer2", [1024, 1024])?,
        layer3: parameters.linear("[0].layer3", [1024, 10])?,
    };
    let (x, labels) = (parameters.floats::<2>("[1]")?, parameters.ints::<1>("[2]")?);
    let loss = move |model: &Mlp| {
        let x = relu(model.layer1.forward(x.clone()));
        let x = relu(model.layer2.forward(x));
        cross_entropy(model.layer3.forward(x), labels.clone())
    };
    Ok(training(model, loss, unchanged, (SgdConfig::new().init(), SGD_RATE)))
}

#[derive(Module, Debug)]
struct Cnn {
    conv1: Conv2d,
    conv2: Conv2d,
    dense: Linear,
}

fn cnn(inputs: &Inputs, device: Device) -> Result<Call> {
    let mut parameters = Parameters::new(inputs, device);
    let (conv1, conv2) = (parameters.conv("[0].conv1", [3, 32])?, parameters.conv("[0].conv2", [32, 64])?);
    // The file's kernel expects rows, columns, features; burn's activations are features, rows, columns.
    let weight =
        parameters.param("[0].dense.kernel", [8, 8, 64, 10], |kernel| kernel.permute([2, 0, 1, 3]).flatten(0, 2))?;
    let bias = parameters.vector("[0].dense.bias", 10)?;
    let model = Cnn { conv1, conv2, dense: Linear { weight, bias: Some(bias) } };
    let x = contiguous(parameters.floats::<4>("[1]")?.permute([0, 3, 1, 2]))?;
    let labels = parameters.ints::<1>("[2]")?;
    let loss = move |model: &Cnn| {
        let pool = |x| max_pool2d(x, MaxPoolOptions::new([2, 2]));
        let x = pool(relu(model.conv1.forward(x.clone())));
        let x = pool(relu(model.conv2.forward(x)));
        cross_entropy(model.dense.forward(x.flatten::<2>(1, 3)), labels.clone())
    };
    let adam = AdamConfig::new().with_epsilon(ADAM_EPSILON as f32).init();
    Ok(training(model, loss, unchanged, (adam, ADAM_RATE)))
}

#[derive(Module, Debug)]
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
            query: parameters.linear(&path("attention.query"), [FEATURES, FEATURES])?,
            key: parameters.linear(&path("attention.key"), [FEATURES, FEATURES])?,
            value: parameters.linear(&path("attention.value"), [FEATURES, FEATURES])?,
            out: parameters.linear(&path("attention.out"), [FEATURES, FEATURES])?,
            mlp_norm: parameters.norm(&path("mlp_norm.0"))?,
            up: parameters.linear(&path("mlp.up"), [FEATURES, 4 * FEATURES])?,
            down: parameters.linear(&path("mlp.down"), [4 * FEATURES, FEATURES])?,
        })
    }

    /// Applies the block to `x`, `[rows, LENGTH, FEATURES]`.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [rows, ..] = x.dims();
        let y = self.attention_norm.forward(x.clone());
        let heads =
            |layer: &Linear| layer.forward(y.clone()).reshape([rows, LENGTH, HEADS, FEATURES / HEADS]).swap_dims(1, 2);
        let options = AttentionModuleOptions { is_causal: true, ..AttentionModuleOptions::default() };
        let y = attention(heads(&self.query), heads(&self.key), heads(&self.value), None, None, options);
        let x = x + self.out.forward(y.swap_dims(1, 2).reshape([rows, LENGTH, FEATURES]));
        let y = gelu_approximate(self.up.forward(self.mlp_norm.forward(x.clone())));
        x + self.down.forward(y)
    }
}

#[derive(Module, Debug)]
struct Gpt {
    embed: Embedding,
    positions: Param<Tensor<2>>,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

impl Gpt {
    fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let x = self.embed.forward(tokens) + self.positions.val().unsqueeze();
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        self.head.forward(self.norm.forward(x))
    }
}

fn gpt(inputs: &Inputs, device: Device) -> Result<Call> {
    let mut parameters = Parameters::new(inputs, device);
    let model = Gpt {
        embed: Embedding { weight: parameters.matrix("[0].embed.embedding", [VOCABULARY, FEATURES])? },
        positions: parameters.matrix("[0].positions.embedding", [LENGTH, FEATURES])?,
        blocks: (0..LAYERS).map(|index| Block::new(&mut parameters, index)).collect::<Result<_>>()?,
        norm: parameters.norm("[0].norm.0")?,
        head: parameters.linear("[0].head", [FEATURES, VOCABULARY])?,
    };
    let (tokens, targets) = (parameters.ints::<2>("[1][0]")?, parameters.ints::<2>("[1][1]")?.flatten::<1>(0, 1));
    let loss = move |model: &Gpt| cross_entropy(model.forward(tokens.clone()).flatten(0, 1), targets.clone());
    let adam =
        |decay: f64| AdamWConfig::new().with_epsilon(ADAM_EPSILON as f32).with_weight_decay(decay as f32).build();
    let optimizer =
        ModuleOptimizer::from(adam(0.0)).with_group(ParamGroup::from_ids(parameters.matrices), adam(DECAY), None);
    Ok(training(model, loss, clip_by_global_norm, (optimizer, ADAM_RATE)))
}

/// Scales the gradients so that their norm is at most `CLIP`. burn clips only by the norm of each gradient.
fn clip_by_global_norm<M: Module>(model: &M, gradients: &mut GradientsParams) -> Result<()> {
    let mut squares = SumOfSquares { gradients, sum: Ok(0.0) };
    model.visit(&mut squares);
    let norm = squares.sum?.sqrt();
    if norm > CLIP {
        model.visit(&mut Scale { gradients, factor: CLIP / norm });
    }
    Ok(())
}

struct SumOfSquares<'a> {
    gradients: &'a GradientsParams,
    sum: Result<f64>,
}

impl ModuleVisitor for SumOfSquares<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.get::<D>(param.id) else { return };
        if let Ok(sum) = &mut self.sum {
            match gradient.square().sum().try_into_scalar::<f32>() {
                Ok(square) => *sum += f64::from(square),
                Err(error) => self.sum = Err(error.into()),
            }
        }
    }
}

struct Scale<'a> {
    gradients: &'a mut GradientsParams,
    factor: f64,
}

impl ModuleVisitor for Scale<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            self.gradients.register(param.id, gradient * self.factor);
        }
    }
}
