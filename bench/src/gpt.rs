//! Benchmarks of a GPT: 6 layers with 256 features and 8 heads, a vocabulary of 256, 8 × 256 tokens per batch; AdamW
//! with weight decay on matrices, and clipping by the global norm.

use shardax::clear_caches;
use shardax_models::{Activation, Biases, Block, Decoder, DecoderConfig, NormKind, Positions};
use shardax_nn::optim::{scale_by_adam, scale_by_learning_rate};
use shardax_nn::prelude::*;

use crate::clock::{MIN_RUNS, Timing, measure, measure_parts, measure_steps, now};
use crate::data::{line, replicated, split};

const FEATURES: usize = 256;
const VOCABULARY: usize = 256;
const HEADS: usize = 8;
const LAYERS: usize = 6;
const DEEP: usize = 48;
const ROWS: usize = 8;
const LENGTH: usize = 256;

/// GPT-2's architecture with an untied output layer.
fn config(layers: usize) -> DecoderConfig {
    DecoderConfig {
        norm: NormKind::Layer,
        positions: Positions::Learned(LENGTH),
        activation: Activation::GeluTanh,
        gated: false,
        biases: Biases::ALL,
        ..DecoderConfig::new(VOCABULARY, layers, FEATURES, HEADS)
    }
}

fn model(layers: usize, rules: &Rules) -> Result<Decoder> {
    Decoder::new(&config(layers), &mut Rngs::new(0).with_rules(rules))
}

fn block(rngs: &mut Rngs) -> Block {
    Block::new(&config(DEEP), 0, rngs)
}

fn loss(model: Decoder, tokens: Array, targets: Array) -> Array {
    softmax_cross_entropy_with_integer_labels(model.forward(tokens), targets).mean(..)
}

type State = Optimizer<Decoder>;

fn start(layers: usize, rules: &Rules) -> Result<State> {
    let matrices = Filter::predicate(|_, array| array.ndim() > 1);
    let decay = masked(add_decayed_weights(0.1), matrices);
    Optimizer::new(
        model(layers, rules)?,
        (clip_by_global_norm(1.0), scale_by_adam(), decay, scale_by_learning_rate(1e-3)),
    )
}

/// Tokens and their successors: 0 to 255 in steps of 7, with another start in each row.
fn batch() -> Result<(Array, Array)> {
    batch_of(ROWS)
}

fn batch_of(rows: usize) -> Result<(Array, Array)> {
    let shape = [rows, LENGTH];
    Ok((Array::from_vec(token_rows(rows, 0), &shape)?, Array::from_vec(token_rows(rows, 1), &shape)?))
}

fn token_rows(rows: usize, shift: usize) -> Vec<i32> {
    let positions = (0..rows).flat_map(|row| (0..LENGTH).map(move |i| (row, i + shift)));
    positions.map(|(row, i)| ((row * 31 + i * 7) % VOCABULARY) as i32).collect()
}

/// The model and batch of `gpt_step_1`.
pub fn inputs() -> Result<impl Tree> {
    Ok((model(LAYERS, &Rules::default())?, batch()?))
}

fn step(mut state: State, tokens: Array, targets: Array) -> Result<(State, Array)> {
    let (loss, grads) = value_and_grad(loss).call((&state.model, tokens, targets))?;
    state.update(grads)?;
    Ok((state, loss))
}

fn mapped_step(mut state: State, tokens: Array, targets: Array) -> Result<(State, Array)> {
    let (loss, grads) = value_and_grad(loss).call((&state.model, tokens, targets))?;
    state.update(pmean(grads, "batch"))?;
    Ok((state, pmean(loss, "batch")))
}

/// Steps that pass the state on.
fn stepping(
    mut state: State,
    (tokens, targets): (Array, Array),
    step: impl Function<(State, Array, Array), Output = (State, Array)>,
) -> impl FnMut() -> Result<Array> {
    move || {
        let (next, loss) = block_until_ready(step.call((&state, &tokens, &targets))?)?;
        state = next;
        Ok(loss)
    }
}

pub fn gpt_step_1() -> Result<Timing> {
    measure_steps(stepping(start(LAYERS, &Rules::default())?, batch()?, jit(step).donate_argnums([0])))
}

macro_rules! mapped {
    () => {
        pmap(mapped_step).axis_name("batch").in_axes((None, 0, 0)).out_axes(None).donate_argnums([0])
    };
}

/// The state on each of `n` devices, and the rows of tokens split over them.
fn mapped_arguments(n: usize, layers: usize, rows: usize) -> Result<(State, (Array, Array))> {
    let mesh = line(n, "batch")?;
    let (tokens, targets) = batch_of(rows)?;
    let [tokens, targets] = [tokens, targets].map(|x| x.reshape([n, rows / n, LENGTH]));
    let state = replicated(start(layers, &Rules::default())?, &mesh)?;
    Ok((state, split((tokens, targets), &mesh, "batch")?))
}

/// The step on `n` devices with this many rows in all.
pub fn mapped_stepping(n: usize, rows: usize) -> Result<impl FnMut() -> Result<Array>> {
    let (state, batch) = mapped_arguments(n, LAYERS, rows)?;
    Ok(stepping(state, batch, mapped!()))
}

pub fn gpt_pmap_8() -> Result<Timing> {
    measure_steps(mapped_stepping(8, ROWS)?)
}

/// Parameters and batch split over four devices; heads and hidden features over two.
pub fn gpt_fsdp_tp_8() -> Result<Timing> {
    let mesh = make_mesh([("fsdp", 4), ("model", 2)])?.auto();
    let rules = Rules::new(&mesh, [("batch", "fsdp"), ("embed", "fsdp")]).and("heads", "model").and("mlp", "model");
    let state = rules.device_put(&start(LAYERS, &rules)?)?;
    let batch = device_put(&batch()?, NamedSharding::new(&mesh, P!["fsdp"]))?;
    measure_steps(stepping(state, batch, jit(step).donate_argnums([0])))
}

type Lowered = shardax::Lowered<(State, Array, Array), (State, Array)>;

/// Traces and lowers the step on `n` devices of a model with this many layers, a fresh function each time.
pub fn lowering(n: usize, layers: usize) -> Result<impl FnMut() -> Result<Lowered>> {
    let (state, (tokens, targets)) = mapped_arguments(n, layers, ROWS)?;
    Ok(move || mapped!().lower((&state, &tokens, &targets)))
}

pub fn gpt_trace_lower() -> Result<Timing> {
    measure(lowering(8, LAYERS)?)
}

/// Times the compilation of `lowered`, at least `least` times.
fn compilations<A: Tree, R: Tree>(least: usize, lowered: shardax::Lowered<A, R>) -> Result<Timing> {
    measure_parts(least, || {
        clear_caches();
        let start = now();
        let _compiled = lowered.compile()?;
        Ok(now() - start)
    })
}

pub fn gpt_compile() -> Result<Timing> {
    compilations(MIN_RUNS, lowering(8, LAYERS)?()?)
}

/// Compiles the gradient of 48 blocks, unrolled or as a loop.
pub fn compile_48_layers(scanned: bool) -> Result<Timing> {
    let rngs = &mut Rngs::new(0);
    let x = ones([1, LENGTH, FEATURES]);
    if scanned {
        let blocks = Stack::new(DEEP, rngs, block)?;
        return compilations(1, jit(grad(loss_of_stack)).lower((&blocks, &x))?);
    }
    let blocks: Vec<Block> = (0..DEEP).map(|_| block(rngs)).collect();
    compilations(
        1,
        jit(grad(|blocks: Vec<Block>, x: Array| blocks.iter().fold(x, |x, block| block.forward(x)).square().mean(..)))
            .lower((&blocks, &x))?,
    )
}

fn loss_of_stack(blocks: Stack<Block>, x: Array) -> Result<Array> {
    let (y, ()) = blocks.scan(|block, x: Array| (block.forward(x), ()), x)?;
    Ok(y.square().mean(..))
}

/// The gradient of a loop over 48 blocks, which stores residuals or, with `remat`, recomputes them.
pub fn memory_blocks(remat: bool) -> Result<Timing> {
    let mut blocks = Stack::new(DEEP, &mut Rngs::new(0), block)?;
    if remat {
        blocks = blocks.checkpoint(CheckpointPolicy::NothingSaveable);
    }
    let (step, x) = (jit(grad(loss_of_stack)), ones([1, LENGTH, FEATURES]));
    measure(|| block_until_ready(step.call((&blocks, &x))?))
}

/// The tokens after `token`, `[batch, 1]`, at `position`.
fn next(model: &mut Decoder, token: &Array, position: Array) -> Array {
    let mut x = model.embed.forward(token);
    x = model.positions.iter().fold(x, |x, positions| x + positions.forward(&position));
    for block in &mut model.blocks {
        x = block.decode(x, None, None);
    }
    model.logits(x).argmax(-1).astype(DType::I32)
}

/// Greedy decoding of all positions after the first in one program, with a cache of keys and values, of this many texts.
pub fn gpt_decode(batch: usize) -> Result<Timing> {
    let mut model = model(LAYERS, &Rules::default())?;
    model.init_cache(batch, LENGTH);
    let first_token = zeros_dtype([batch, 1], DType::I32);
    // The loop over tokens is a part of the program, so that the host starts only one program for the text. The carry
    // has only the cache, because the parameters do not change.
    let generate = jit(|model: Decoder, first: Array| -> Result<Array> {
        let cache = model.state_of(Filter::of::<Cache>());
        Ok(scan(
            |(old, token): (ModuleState, Array), position: Array| -> Result<_> {
                let mut model = model.clone();
                model.update(&old)?;
                let token = next(&mut model, &token, position);
                Ok(((model.state_of(Filter::of::<Cache>()), token.clone()), token))
            },
            (cache, first),
            arange(0..LENGTH as i32 - 1),
        )?
        .1)
    });
    measure(|| block_until_ready(generate.call((&model, &first_token))?))
}

/// The child process of `second_start_gpt`: runs the first step and prints the loss.
pub fn first_step() -> Result<()> {
    let (tokens, targets) = batch()?;
    let (_, loss) = jit(step).donate_argnums([0]).call((start(LAYERS, &Rules::default())?, tokens, targets))?;
    println!("{:?}", loss.to_vec::<f32>()?);
    Ok(())
}
