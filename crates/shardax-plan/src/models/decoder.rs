//! A language model: RMS norm, rotary embeddings, grouped-query attention, gated linear units, AdamW. It computes in
//! bfloat16 with float32 parameters, and its layers are one loop.

use shardax_models::{Decoder, DecoderConfig, ExpertsConfig};
use shardax_nn::Implementation;
use shardax_nn::prelude::*;

use crate::error::value;
use crate::{Plan, Setup};

/// The sizes of a [`decoder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// The number of tokens in the vocabulary.
    pub vocabulary: usize,
    /// The number of layers.
    pub layers: usize,
    /// The number of features of a position.
    pub features: usize,
    /// The number of query heads.
    pub heads: usize,
    /// The number of key and value heads.
    pub kv_heads: usize,
    /// The number of hidden features of the gated units.
    pub hidden: usize,
    /// The length of a sequence.
    pub length: usize,
    /// The number of experts, with top-2 routing; 0 for dense layers.
    pub experts: usize,
}

impl Sizes {
    /// A small model for tests.
    pub const SMALL: Sizes =
        Sizes { vocabulary: 512, layers: 2, features: 128, heads: 8, kv_heads: 4, hidden: 384, length: 64, experts: 0 };
    /// 7.2 billion parameters.
    pub const BILLIONS_7: Sizes = Sizes {
        vocabulary: 32_000,
        layers: 32,
        features: 4096,
        heads: 32,
        kv_heads: 8,
        hidden: 14_336,
        length: 4096,
        experts: 0,
    };
    /// 69 billion parameters.
    pub const BILLIONS_70: Sizes = Sizes { layers: 80, features: 8192, heads: 64, hidden: 28_672, ..Sizes::BILLIONS_7 };

    /// Returns the number of parameters, with dense layers.
    pub fn parameters(&self) -> usize {
        let Sizes { vocabulary, layers, features, heads, kv_heads, hidden, .. } = *self;
        let keys = features / heads * kv_heads;
        let layer = 2 * features * features + 2 * features * keys + 3 * features * hidden + 2 * features;
        2 * vocabulary * features + layers * layer + features
    }

    /// Matmul FLOPs of a training step without recomputation: two for each token and weight, plus attention, times
    /// three for the gradients.
    pub fn flops(&self, sequences: usize) -> f64 {
        let Sizes { vocabulary, layers, features, heads, kv_heads, hidden, length, .. } = *self;
        let keys = features / heads * kv_heads;
        let weights = 2 * features * features + 2 * features * keys + 3 * features * hidden;
        let tokens = (sequences * length) as f64;
        // Scores, and weighted sums of values.
        let attention = 2.0 * 2.0 * tokens * (length * features) as f64;
        let layer = 2.0 * tokens * weights as f64 + attention;
        3.0 * (layers as f64 * layer + 2.0 * tokens * (vocabulary * features) as f64)
    }
}

/// The implementation of attention that the option `attention` names.
pub(super) fn attention(setup: &Setup) -> Result<Option<Implementation>> {
    Ok(match setup.options.get("attention").map(String::as_str) {
        None => None,
        Some("xla") => Some(Implementation::Xla),
        Some("blockwise") => Some(Implementation::Blockwise),
        Some("cudnn") => Some(Implementation::Cudnn),
        Some("flash") => Some(Implementation::Flash),
        Some(other) => {
            return Err(value(
                format!("option attention must be xla, blockwise, cudnn or flash, got {other:?}"),
                "leave it out: the implementation is chosen by platform and size",
            ));
        }
    })
}

/// The configuration of the model.
#[track_caller]
fn config(sizes: Sizes, setup: &Setup) -> Result<DecoderConfig> {
    let Sizes { vocabulary, layers, features, heads, kv_heads, hidden, experts, .. } = sizes;
    Ok(DecoderConfig {
        attention_implementation: attention(setup)?,
        kv_heads,
        hidden,
        experts: (experts > 0).then(|| ExpertsConfig::new(experts, hidden)),
        scan_layers: true,
        checkpoint: setup.remat.policy(),
        ..DecoderConfig::new(vocabulary, layers, features, heads)
    })
}

/// Rules for rows. With experts, the axis `expert` splits experts and sequences.
const ROWS: (&str, &[&str]) = ("batch", &["data", "fsdp"]);
pub(super) const ROWS_AND_EXPERTS: [(&str, &[&str]); 2] =
    [("batch", &["expert", "data", "fsdp"]), ("expert", &["expert"])];

/// FSDP along `fsdp`; tensor parallelism of heads and gated units along `model`.
pub(super) const LAYERS: [(&str, &[&str]); 4] =
    [("embed", &["fsdp"]), ("heads", &["model"]), ("mlp", &["model"]), ("vocab", &["model"])];

type State = Optimizer<Decoder>;

/// A step of AdamW for a language model. `data` and `fsdp` split the sequences; `fsdp` the parameters and optimizer
/// state; `model` the heads, gated units and the vocabulary; `expert` the experts and the sequences. The micro-batch is
/// in sequences, by default one for each group of devices that shares rows. The options `length` and `layers` are
/// numbers; `attention` is `xla`, `blockwise`, `cudnn` or `flash`.
///
/// # Errors
/// Returns an error if the axes do not divide the sizes, or if the option `attention` has another value.
#[track_caller]
pub fn decoder(setup: &Setup, sizes: Sizes) -> Result<Plan> {
    let sizes =
        Sizes { length: setup.number("length", sizes.length)?, layers: setup.number("layers", sizes.layers)?, ..sizes };
    let rules: Vec<_> = match sizes.experts {
        0 => [ROWS].into_iter().chain(LAYERS).collect(),
        _ => ROWS_AND_EXPERTS.into_iter().chain(LAYERS).collect(),
    };
    let groups = rules[0].1.iter().map(|axis| setup.axis(axis)).product();
    let batch = setup.micro_batch.unwrap_or(groups);
    let mesh = setup.mesh()?;
    let axis_rules = setup.rules(&mesh, &rules);
    let (model_rules, config) = (axis_rules.clone(), config(sizes, setup)?);
    // Only types are needed, so that a model of any size is planned without memory for its parameters.
    let types = eval_shape(
        move || {
            let mut rngs = Rngs::new(0).with_policy(Policy::bf16_compute()).with_rules(&model_rules);
            State::new(Decoder::new(&config, &mut rngs)?, adamw(1e-3, 0.1))
        },
        (),
    )?;
    let shardings = axis_rules.shardings(&types)?;
    let rows = NamedSharding::new(&mesh, axis_rules.spec(["batch", "length"]));
    let step = jit(move |mut state: State, tokens: Array, targets: Array| -> Result<(State, Array)> {
        let (loss, grads) = value_and_grad(|model: Decoder| {
            let x = axis_rules.constrain(model.embed(&tokens), [Some("batch"), None, None]);
            let logits = model.logits(model.hidden(x)).astype(DType::F32);
            softmax_cross_entropy_with_integer_labels(logits, &targets).mean(..)
        })
        .call(&state.model)?;
        state.update(grads)?;
        Ok((state, loss))
    });
    let step = step.in_shardings((&shardings, &rows, &rows)).out_shardings((&shardings, UNSPECIFIED));
    let tokens = shape_dtype_struct([batch, sizes.length], DType::I32);
    Ok(Plan::from_lowered(step.donate_argnums([0]).lower((types, tokens.clone(), tokens))?)?.rules(&rules))
}
