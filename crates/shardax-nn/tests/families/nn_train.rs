//! First weights in each dtype, and whole models trained for ten steps; see the family's Python file.

use shardax::nn::initializers;
use shardax_nn::optim::*;
use shardax_nn::prelude::*;

use super::nn_half::numbers;
use super::optimizers::some;
use crate::golden_support::{Case, Fun, many};

pub fn function(case: &Case) -> Option<Fun> {
    let run = Run::of(case)?;
    match case.op.as_str() {
        "first_weights" => many(move |_| Ok(first_weights(run.dtype))),
        "char_lm" => {
            let schedule = warmup_cosine_decay_schedule(0.0, 1e-2, 3, 10, 0.0);
            run.train(CharLm::new, CharLm::loss, (clip_by_global_norm(0.5), adamw(schedule, 1e-4)))
        }
        "cnn" => {
            let decay = masked(add_decayed_weights(1e-2), "**.kernel");
            run.train(Cnn::new, Cnn::loss, (decay, sgd_momentum(cosine_decay_schedule(0.1, 10, 0.0), 0.9, true)))
        }
        "gpt" => {
            let inner = inject_hyperparams([("learning_rate", 3e-3)], |h| adamw(&h["learning_rate"], 0.1));
            run.train(Gpt::new, Gpt::loss, multi_steps(inner, 2))
        }
        _ => None,
    }
}

/// Initial weights in a dtype, which are compared with Flax.
fn first_weights(dtype: DType) -> Vec<Array> {
    let r = &mut Rngs::new(0).with_policy(Policy { param_dtype: dtype, dtype: Some(dtype) });
    // In the order in which they are made.
    let parameters = [
        Linear::new(3, 4, r).state(),
        LinearGeneral::new([4], [2, 3], r).state(),
        Einsum::builder("nta,hab->nthb", [8, 2, 4]).use_bias(true).build(r).state(),
        Conv::new(2, 3, [3, 3], r).state(),
        ConvTranspose::new(2, 3, [3, 3], r).state(),
        Embed::new(5, 3, r).state(),
        MultiHeadAttention::builder(2, 8).normalize_qk(true).build(r).state(),
        no_qr(LstmCell::builder(3, 4), r).state(),
        no_qr(OptimizedLstmCell::builder(3, 4), r).state(),
        no_qr(GruCell::builder(3, 4), r).state(),
        no_qr(SimpleCell::builder(3, 4), r).state(),
        LoRALinear::new(6, 4, 2, r).state(),
        SpectralNorm::new(Linear::new(6, 4, r), r).state(),
        {
            let builder = Linear::builder(4, 2).kernel_init(initializers::xavier_uniform());
            builder.bias_init(initializers::normal(0.5)).build(r).state()
        },
    ];
    parameters.iter().flat_map(|state| state.values().map(some)).collect()
}

/// JAX has no orthogonal matrices of half precision.
fn no_qr<C: shardax_nn::BuiltCell>(builder: CellBuilder<C>, rngs: &mut Rngs) -> C {
    builder.recurrent_kernel_init(initializers::lecun_normal()).build(rngs)
}

/// The settings of a case.
#[derive(Clone, Copy)]
struct Run {
    dtype: DType,
    policy: Policy,
}

impl Run {
    fn of(case: &Case) -> Option<Self> {
        let dtype = case.dtype("dtype")?;
        let param_dtype = case.dtype("params").unwrap_or(dtype);
        Some(Run { dtype, policy: Policy { param_dtype, dtype: Some(dtype) } })
    }

    /// The losses of ten steps, the first parameters, the last ones, and the statistics.
    fn train<M: Module + Clone + 'static, T: GradientTransformation<ModuleState> + Clone + 'static>(
        self,
        make: fn(&mut Rngs) -> M,
        loss: fn(&mut M, &Step) -> Array,
        tx: T,
    ) -> Option<Fun> {
        many(move |inputs| {
            let model = make(&mut Rngs::new(0).with("dropout", 1).with_policy(self.policy));
            let optimizer = Optimizer::new(model, tx.clone())?;
            let first = optimizer.params();
            let step = |mut optimizer: Optimizer<M>, i: Array| -> Result<(Optimizer<M>, Array)> {
                let step = Step { i: i + &inputs[0], dtype: self.dtype };
                let loss = optimizer.minimize(|model| loss(model, &step).astype(DType::F32))?;
                Ok((optimizer, loss))
            };
            let (optimizer, losses) = scan(step, optimizer, arange(0..10))?;
            let stats = optimizer.model.state_of(Filter::of::<BatchStat>());
            let values = [first, optimizer.params(), stats];
            Ok([losses].into_iter().chain(values.iter().flat_map(|state| state.values().map(some))).collect())
        })
    }
}

/// The arguments of a loss besides the model.
struct Step {
    i: Array,
    dtype: DType,
}

fn ids(shape: &[usize], salt: &Array, n: i32) -> Array {
    let i = arange(0..shape.iter().product::<usize>() as i32);
    let mixed: Array = remainder(i * 7919 + salt * 101, 251);
    remainder(mixed, n).reshape(shape)
}

/// The mean loss of each token's successor.
fn next_token(step: &Step, forward: impl FnOnce(Array) -> Array) -> Array {
    let tokens = ids(&[4, 9], &step.i, 11);
    softmax_cross_entropy_with_integer_labels(forward(tokens.get((.., ..-1))), tokens.get((.., 1..))).mean(..)
}

#[derive(Module, Clone)]
struct CharLm {
    embed: Embed,
    rnn: Rnn<OptimizedLstmCell>,
    dropout: Dropout,
    head: Linear,
}

impl CharLm {
    fn new(rngs: &mut Rngs) -> Self {
        let (embed, rnn) = (Embed::new(11, 8, rngs), Rnn::new(no_qr(OptimizedLstmCell::builder(8, 8), rngs)));
        CharLm { embed, rnn, dropout: Dropout::new(0.2, rngs), head: Linear::new(8, 11, rngs) }
    }

    fn loss(&mut self, step: &Step) -> Array {
        next_token(step, |tokens| {
            let x = self.rnn.forward(self.embed.forward(tokens));
            self.head.forward(self.dropout.forward(x))
        })
    }
}

#[derive(Module, Clone)]
struct Cnn {
    conv: Conv,
    norm: BatchNorm,
    second: Conv,
    second_norm: BatchNorm,
    head: Linear,
}

fn batch_norm(features: usize, rngs: &mut Rngs) -> BatchNorm {
    BatchNorm::builder(features).momentum(0.9).build(rngs)
}

impl Cnn {
    fn new(rngs: &mut Rngs) -> Self {
        Cnn {
            conv: Conv::builder(3, 4, [3, 3]).use_bias(false).build(rngs),
            norm: batch_norm(4, rngs),
            second: Conv::builder(4, 6, [3, 3]).strides([2, 2]).use_bias(false).build(rngs),
            second_norm: batch_norm(6, rngs),
            head: Linear::new(6, 5, rngs),
        }
    }

    fn loss(&mut self, step: &Step) -> Array {
        let x = numbers(&step.i, &[(&[8, 8, 8, 3], 0)], step.dtype).swap_remove(0);
        let x = max_pool(relu(self.norm.forward(self.conv.forward(x))), [2, 2], [2, 2]);
        let x = relu(self.second_norm.forward(self.second.forward(x))).mean([1, 2]);
        let labels = smooth_labels(one_hot(ids(&[8], &step.i, 5), 5), 0.1);
        softmax_cross_entropy(self.head.forward(x).astype(DType::F32), labels).mean(..)
    }
}

#[derive(Module, Clone)]
struct Gpt {
    tokens: Embed,
    positions: Embed,
    norm: LayerNorm,
    attention: MultiHeadAttention,
    second_norm: RmsNorm,
    up: Linear,
    down: Linear,
}

impl Gpt {
    fn new(rngs: &mut Rngs) -> Self {
        Gpt {
            tokens: Embed::new(11, 8, rngs),
            positions: Embed::new(8, 8, rngs),
            norm: LayerNorm::new(8, rngs),
            attention: MultiHeadAttention::builder(2, 8).is_causal(true).use_bias(false).build(rngs),
            second_norm: RmsNorm::new(8, rngs),
            up: Linear::new(8, 16, rngs),
            down: Linear::new(16, 8, rngs),
        }
    }

    fn loss(&mut self, step: &Step) -> Array {
        next_token(step, |tokens| {
            let x = self.tokens.forward(tokens) + self.positions.forward(arange(0..8));
            let x = &x + self.attention.forward(self.norm.forward(&x));
            let y = self.down.forward(gelu(self.up.forward(self.second_norm.forward(&x))));
            self.tokens.attend(x + y)
        })
    }
}
