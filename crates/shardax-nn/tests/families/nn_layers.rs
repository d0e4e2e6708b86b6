//! Layers as they are made with `Rngs::new(0)`: outputs, gradients, first weights; attention and its parts.

use shardax::lax::Padding;
use shardax::nn::initializers;
use shardax_nn::prelude::*;

use super::nn_half::numbers;
use super::optimizers::some;
use crate::golden_support::{Case, Fun, many, two};

type State = ModuleState;

pub fn function(case: &Case) -> Option<Fun> {
    attention(case)
        .or_else(|| linear(case))
        .or_else(|| convolution(case))
        .or_else(|| norm(case))
        .or_else(|| heads(case))
        .or_else(|| other(case))
}

/// The layer of a case, made and called, with the gradients of the sum of squares.
struct Run {
    policy: Policy,
    dtype: DType,
    gradients: bool,
    /// Computes parameters like the inputs, instead of drawing them.
    given: bool,
}

impl Run {
    fn of(case: &Case) -> Option<Self> {
        let dtype = case.dtype("dtype")?;
        let policy = Policy { param_dtype: case.dtype("params")?, dtype: Some(dtype) };
        Some(Run { policy, dtype, gradients: case.flag("gradients"), given: case.flag("given") })
    }

    /// One input, one output.
    fn layer<M: Layer + 'static>(self, shape: &'static [usize], make: fn(&mut Rngs) -> M) -> Option<Fun> {
        self.calls(&[shape], make, |mut layer, x| Ok(vec![layer.forward(x[0].clone())]))
    }

    fn calls<M: Module + 'static>(
        self,
        shapes: &[&'static [usize]],
        make: fn(&mut Rngs) -> M,
        call: fn(M, &[Array]) -> Result<Vec<Array>>,
    ) -> Option<Fun> {
        self.calls_of(shapes, make, call, Filter::of::<Param>() | Filter::of::<LoRAParam>())
    }

    /// `call` takes inputs of these shapes; gradients are computed for the parameters that `wrt` selects.
    fn calls_of<M: Module + 'static>(
        self,
        shapes: &[&'static [usize]],
        make: fn(&mut Rngs) -> M,
        call: fn(M, &[Array]) -> Result<Vec<Array>>,
        wrt: Filter,
    ) -> Option<Fun> {
        let shapes = shapes.to_vec();
        many(move |inputs| {
            let arguments: Vec<(&[usize], i32)> = shapes.iter().map(|shape| (*shape, 0)).collect();
            let x = numbers(&inputs[0], &arguments, self.dtype);
            let mut layer = make(&mut Rngs::new(0).with_policy(self.policy));
            if self.given {
                let params = layer.state_of(wrt.clone());
                let shapes: Vec<(&[usize], i32)> = params.values().map(|p| (p.shape(), 0)).collect();
                let parameters = numbers(&(&inputs[0] + x.len() as i32), &shapes, DType::F32);
                // A parameter keeps its dtype: the lengths of WeightNorm are float32 whatever the policy says.
                let named =
                    params.iter().zip(parameters).map(|((key, old), p)| (key.to_owned(), p.astype(old.dtype()) / 8));
                layer.update(&named.collect())?;
            }
            let mut result = call(layer.clone(), &x)?;
            if self.gradients {
                let objective = |params: State, x: Vec<Array>| -> Result<Array> {
                    let y = call(layer.with_state(&params)?, &x)?.swap_remove(0);
                    Ok(y.astype(DType::F32).square().sum(..))
                };
                let params = layer.state_of(wrt.clone());
                let (params, x) = grad(objective).argnums((Arg::<0>, Arg::<1>)).call((params, x))?;
                // A bias of the keys moves all scores of a query alike: its gradient is rounding.
                let params = params.into_iter().filter(|(path, _)| !path.ends_with("key.bias"));
                result.extend(x.into_iter().chain(params.map(|(_, g)| g)));
            }
            Ok(result.iter().map(some).collect())
        })
    }
}

fn linear(case: &Case) -> Option<Fun> {
    let run = Run::of(case)?;
    // `layer` compares the result of `forward` for an input of this shape; `calls` compares several results.
    match case.op.as_str() {
        "linear_general" => run.layer(&[4, 8], |r| LinearGeneral::new([8], [2, 3], r)),
        "linear_general_axes" => {
            run.layer(&[4, 2, 7, 3], |r| LinearGeneral::builder([2, 3], [5]).axis([1, -1]).build(r))
        }
        "linear_general_batch" => run.layer(&[2, 5, 3], |r| LinearGeneral::builder([3], [4]).batch_sizes([2]).build(r)),
        "einsum" => run.layer(&[3, 5, 2], |r| Einsum::builder("nta,hab->nthb", [8, 2, 4]).use_bias(true).build(r)),
        "einsum_ellipsis" => {
            run.layer(&[2, 3, 6], |r| Einsum::builder("...d, df->...f", [6, 4]).use_bias(true).build(r))
        }
        "linear" => run.layer(&[4, 8], |r| Linear::new(8, 5, r)),
        "embed" => run.calls(
            &[&[3, 4]],
            |r| Embed::new(7, 4, r),
            |layer, x| Ok(vec![layer.attend(&x[0]), layer.forward(remainder(arange(0..12), 7))]),
        ),
        "lora" => run.layer(&[5, 6], |r| {
            let base = Linear::new(6, 4, r);
            LoRA::builder(6, 2, 4).b_initializer(initializers::he_uniform()).build(r).around(base)
        }),
        "lora_linear" => run.layer(&[5, 6], |r| LoRALinear::new(6, 4, 2, r)),
        "dropout_broadcast" => run.calls(
            &[&[4, 6, 5]],
            |_| Dropout::without_rngs(0.5).broadcast_dims([0, -1]),
            |layer, x| Ok(vec![layer.forward_with(&x[0], &random::key(3))]),
        ),
        "stack" => run.calls(
            &[&[2, 4]],
            |r| Stack::new(3, r, |r| Linear::new(4, 4, r)).expect("three layers"),
            |layers, x| {
                let (y, ()) = layers.scan(|layer, x: Array| (layer.forward(x).tanh(), ()), x[0].clone())?;
                Ok(vec![y])
            },
        ),
        _ => None,
    }
}

fn convolution(case: &Case) -> Option<Fun> {
    let run = Run::of(case)?;
    match case.op.as_str() {
        "conv" => run.layer(&[2, 5, 6, 3], |r| Conv::builder(3, 4, [3, 3]).strides([2, 2]).build(r)),
        "conv_circular" => run.layer(&[2, 9, 3], |r| {
            Conv::builder(3, 4, [4]).padding(ConvPadding::Circular).kernel_dilation([2]).build(r)
        }),
        "conv_reflect" => {
            run.layer(&[2, 5, 6, 3], |r| Conv::builder(3, 4, [3, 2]).padding(ConvPadding::Reflect).build(r))
        }
        "conv_causal" => {
            run.layer(&[2, 9, 3], |r| Conv::builder(3, 4, [3]).strides([2]).padding(ConvPadding::Causal).build(r))
        }
        "conv_groups" => run.layer(&[2, 3, 5, 5, 4], |r| {
            let builder = Conv::builder(4, 6, [3, 3]).feature_group_count(2).padding([(1, 0), (2, 1)]);
            builder.use_bias(false).build(r)
        }),
        "conv_transpose" => run.layer(&[2, 5, 5, 3], |r| ConvTranspose::builder(3, 4, [3, 3]).strides([2, 2]).build(r)),
        "conv_transpose_valid" => run.layer(&[2, 4, 5, 3], |r| {
            ConvTranspose::builder(3, 4, [3, 2]).strides([2, 3]).padding(Padding::Valid).build(r)
        }),
        "conv_transpose_explicit" => run.layer(&[2, 6, 3], |r| {
            ConvTranspose::builder(3, 4, [3]).strides([2]).padding([(2, 1)]).kernel_dilation([2]).build(r)
        }),
        // Windows of even and odd sizes, because a circular window of even size has no centre.
        "conv_transpose_circular" => run.layer(&[2, 4, 3, 3], |r| {
            ConvTranspose::builder(3, 4, [5, 4]).strides([2, 1]).padding(ConvPadding::Circular).build(r)
        }),
        "conv_transpose_circular_turned" => run.layer(&[2, 4, 3, 3], |r| {
            let builder = ConvTranspose::builder(3, 4, [4, 5]).strides([1, 2]).padding(ConvPadding::Circular);
            builder.transpose_kernel(true).build(r)
        }),
        "conv_transpose_turned" => run.layer(&[2, 4, 4, 3], |r| {
            ConvTranspose::builder(3, 4, [3, 3]).strides([2, 2]).transpose_kernel(true).build(r)
        }),
        _ => None,
    }
}

fn norm(case: &Case) -> Option<Fun> {
    const SHAPE: &[usize] = &[2, 4, 5, 6];
    let run = Run::of(case)?;
    match case.op.as_str() {
        "layer_norm" => run.layer(SHAPE, |r| LayerNorm::new(6, r)),
        "rms_norm" => run.layer(SHAPE, |r| RmsNorm::new(6, r)),
        "group_norm" => run.layer(SHAPE, |r| GroupNorm::new(6, 3, r)),
        "instance_norm" => run.layer(SHAPE, |r| InstanceNorm::new(6, r)),
        // A training step, the running statistics after it, and the evaluation with them.
        "batch_norm" => run.calls(
            &[&[7, 4, 6]],
            |r| BatchNorm::builder(6).momentum(0.9).build(r),
            |mut layer, x| {
                let y = layer.forward(&x[0]);
                layer.eval();
                let (mean, var) = (layer.mean.clone().into_inner(), layer.var.clone().into_inner());
                Ok(vec![y, mean, var, layer.forward(&x[0])])
            },
        ),
        "weight_norm" => run.calls(
            &[&[2, 5, 5, 3]],
            |r| WeightNorm::new(Conv::new(3, 4, [3, 3], r)).expect("a kernel"),
            |mut layer, x| Ok(vec![layer.forward(&x[0])]),
        ),
        "spectral_norm" => run.calls(
            &[&[5, 6]],
            |r| SpectralNorm::new(Linear::new(6, 4, r), r).n_steps(2),
            |mut layer, x| Ok(vec![layer.forward(&x[0])]),
        ),
        "spectral_norm_stats" => run.calls(
            &[&[2, 5, 5, 3]],
            |r| SpectralNorm::new(Conv::new(3, 4, [3, 3], r), r),
            |mut layer, x| {
                let _ = layer.forward(&x[0]);
                layer.eval();
                let y = layer.forward(&x[0]);
                let stats = &layer.batch_stats;
                Ok(vec![stats["kernel.u"].clone(), stats["kernel.sigma"].clone(), y])
            },
        ),
        _ => None,
    }
}

/// Attention layers.
fn heads(case: &Case) -> Option<Fun> {
    const SHAPE: &[usize] = &[2, 5, 16];
    if case.op == "mha_then_linear" {
        return many(|_| {
            let mut rngs = Rngs::new(0);
            MultiHeadAttention::builder(4, 16).dropout_rate(0.5).normalize_qk(true).build(&mut rngs);
            rngs.fork("dropout");
            Ok(vec![Linear::new(2, 3, &mut rngs).kernel])
        });
    }
    let run = Run::of(case)?;
    /// With dropout by the layer's own stream.
    fn dropped(layer: (MultiHeadAttention, RngStream), x: &[Array]) -> Result<Vec<Array>> {
        let (layer, mut stream) = layer;
        let options = AttentionOptions::new().dropout_key(&stream.next());
        Ok(vec![layer.attend(&x[0], &x[0], &x[0], options)])
    }
    match case.op.as_str() {
        "mha" => run.layer(SHAPE, |r| MultiHeadAttention::new(4, 16, r)),
        "mha_grouped" => run.layer(SHAPE, |r| {
            let builder = MultiHeadAttention::builder(4, 16).num_kv_heads(2).qkv_features(32).out_features(12);
            builder.normalize_qk(true).use_bias(false).is_causal(true).build(r)
        }),
        "mha_cross" => run.calls(
            &[SHAPE, SHAPE, SHAPE],
            |r| {
                let builder = MultiHeadAttention::builder(4, 16).bias_init(initializers::normal(0.5));
                builder.out_kernel_init(initializers::he_uniform()).build(r)
            },
            |layer, x| {
                let mask = arange(0..5).less(array([2, 4]).reshape([2, 1, 1, 1]));
                Ok(vec![layer.attend(&x[0], &x[1], &x[2], AttentionOptions::new().mask(mask))])
            },
        ),
        "mha_dropout" => run.calls(
            &[SHAPE],
            |r| with_stream(MultiHeadAttention::builder(4, 16).dropout_rate(0.4).build(r), r),
            |layer, x| dropped((layer.layer, layer.stream.0), x),
        ),
        "mha_dropout_each" => run.calls(
            &[SHAPE],
            |r| {
                let builder = MultiHeadAttention::builder(4, 16).dropout_rate(0.4).broadcast_dropout(false);
                with_stream(builder.build(r), r)
            },
            |layer, x| dropped((layer.layer, layer.stream.0), x),
        ),
        "mha_decode" => run.calls(
            &[&[2, 3, 16]],
            |r| MultiHeadAttention::new(4, 16, r),
            |mut layer, x| {
                layer.init_cache(x[0].shape(), x[0].dtype());
                Ok((0..3).map(|i| layer.decode(x[0].get((.., i..i + 1)))).collect())
            },
        ),
        _ => None,
    }
}

/// A layer and the stream of its dropout.
#[derive(Module, Clone)]
struct WithStream {
    layer: MultiHeadAttention,
    #[tree(static)]
    stream: Hidden,
}

/// A stream that is not a parameter.
#[derive(Clone, Debug)]
struct Hidden(RngStream);

impl PartialEq for Hidden {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Hidden {}

impl std::hash::Hash for Hidden {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

fn with_stream(layer: MultiHeadAttention, rngs: &mut Rngs) -> WithStream {
    WithStream { layer, stream: Hidden(rngs.fork("dropout")) }
}

/// Attention functions.
pub fn attention(case: &Case) -> Option<Fun> {
    match case.op.as_str() {
        "attention" => {
            // A list of sizes among the parameters, or `None`.
            let lengths = |name: &str| -> Option<Vec<i32>> {
                Some(case.param(name).as_array()?.iter().filter_map(|n| n.as_i64()).map(|n| n as i32).collect())
            };
            let (scale, causal) = (case.param("scale").as_f64(), case.flag("is_causal"));
            let window = lengths("local_window_size");
            let [queries, keys] = ["query_seq_lengths", "key_value_seq_lengths"].map(lengths);
            many(move |x| {
                let mut options = AttentionOptions::new().is_causal(causal);
                if let Some(scale) = scale {
                    options = options.scale(scale);
                }
                if let Some(window) = &window {
                    options = options.local_window_size(window[0] as usize, window[1] as usize);
                }
                if let Some(queries) = &queries {
                    options = options.query_seq_lengths(array(queries.clone()));
                }
                if let Some(keys) = &keys {
                    options = options.key_value_seq_lengths(array(keys.clone()));
                }
                let (y, residual) = options.with_residual(&x[0], &x[1], &x[2]);
                Ok(vec![y, residual])
            })
        }
        "attention_masked" => many(|x| {
            let options = AttentionOptions::new().bias(&x[3]).mask(&x[4]);
            Ok(vec![options.dot_product_attention(&x[0], &x[1], &x[2])])
        }),
        "masks" => many(|x| {
            let (q, k) = (&x[0], &x[1]);
            let padding = make_attention_mask(q, q, multiply);
            let combined = combine_masks([Some(make_causal_mask(q)), None, Some(padding)])?.expect("two masks");
            Ok(vec![
                make_attention_mask(q, k, multiply),
                make_attention_mask(q, k, |q, k| q.greater_equal(k)),
                make_causal_mask(q),
                combined,
            ])
        }),
        "rope" => two(|x, p| Rope::default().apply(x, p)),
        "rope_linear" => two(|x, p| Rope::default().scaling(RopeScaling::Linear(4.0)).apply(x, p)),
        "rope_llama3" => two(|x, p| {
            let scaling = RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_position: 64.0,
            };
            Rope::default().scaling(scaling).apply(x, p)
        }),
        _ => None,
    }
}

/// Recurrent layers.
fn other(case: &Case) -> Option<Fun> {
    const SHAPE: &[usize] = &[2, 6, 3];
    /// Returns the outputs, then the carry.
    fn run<C: RnnCell>(rnn: Rnn<C>, x: &[Array]) -> Result<Vec<Array>> {
        let (carry, y) = rnn.run(&x[0], None, None)?;
        Ok([vec![y], tree::leaves(&carry)].concat())
    }
    fn lengths<C: RnnCell>(rnn: Rnn<C>, x: &[Array]) -> Result<Vec<Array>> {
        let (carry, y) = rnn.run(&x[0], None, Some(&array([6, 2])))?;
        Ok([vec![y], tree::leaves(&carry)].concat())
    }
    fn biased<C: shardax_nn::BuiltCell>(builder: CellBuilder<C>, rngs: &mut Rngs) -> C {
        builder.bias_init(initializers::normal(0.5)).build(rngs)
    }
    fn gru(rngs: &mut Rngs) -> Rnn<GruCell> {
        Rnn::new(biased(GruCell::builder(3, 4), rngs))
    }
    fn lstm(rngs: &mut Rngs) -> Rnn<LstmCell> {
        Rnn::new(biased(LstmCell::builder(3, 4), rngs))
    }
    let case_run = Run::of(case)?;
    match case.op.as_str() {
        "lstm" => case_run.calls(&[SHAPE], lstm, run),
        "optimized_lstm" => case_run.calls(&[SHAPE], |r| Rnn::new(biased(OptimizedLstmCell::builder(3, 4), r)), run),
        "gru" => case_run.calls(&[SHAPE], gru, run),
        "simple" => case_run.calls(&[SHAPE], |r| Rnn::new(biased(SimpleCell::builder(3, 4), r)), run),
        "simple_residual" => case_run.layer(SHAPE, |r| Rnn::new(biased(SimpleCell::builder(3, 4).residual(true), r))),
        "rnn_bf16_params" => case_run
            .calls(&[SHAPE], gru, |rnn, x| Ok(vec![rnn.run(&x[0], Some(zeros_dtype([2, 4], DType::Bf16)), None)?.1])),
        "rnn_time_major" => case_run.layer(&[6, 2, 3], |r| gru(r).time_major(true).unroll(2)),
        "rnn_reverse" => case_run.layer(SHAPE, |r| gru(r).reverse(true)),
        "rnn_keep_order" => case_run.layer(SHAPE, |r| gru(r).reverse(true).keep_order(true)),
        "rnn_lengths" => case_run.calls(&[SHAPE], lstm, lengths),
        "rnn_lengths_reverse" => case_run.calls(&[SHAPE], |r| lstm(r).reverse(true).keep_order(true), lengths),
        "bidirectional" => case_run.calls(
            &[SHAPE],
            |r| {
                let (there, back) = (GruCell::new(3, 4, r), GruCell::new(3, 4, r));
                Bidirectional::new(Rnn::new(there), Rnn::new(back))
            },
            |layer, x| {
                let (carry, y) = layer.run(&x[0], None, Some(&array([6, 2])))?;
                Ok([vec![y], tree::leaves(&carry)].concat())
            },
        ),
        _ => None,
    }
}
