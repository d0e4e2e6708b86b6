//! One small transformer and one step, for every way to split them.

use shardax_nn::prelude::*;

pub const VOCABULARY: usize = 24;
pub const FEATURES: usize = 16;
pub const HIDDEN: usize = 32;
pub const HEADS: usize = 4;
pub const KV_HEADS: usize = 2;
pub const LAYERS: usize = 4;
pub const EXPERTS: usize = 4;
pub const ROWS: usize = 16;
pub const LENGTH: usize = 8;
pub const MICRO_BATCHES: usize = 4;

/// Attention and a layer of features, with residual connections.
#[derive(Module, Clone)]
pub struct Block {
    norm: RmsNorm,
    pub attention: MultiHeadAttention,
    mlp_norm: RmsNorm,
    pub mlp: Mlp,
    #[tree(static)]
    rules: Rules,
}

#[derive(Module, Clone)]
pub struct Mlp {
    pub up: Linear,
    pub down: Linear,
}

impl Mlp {
    fn new(rngs: &mut Rngs) -> Self {
        fn linear(from: usize, to: usize, names: [&'static str; 2], rngs: &mut Rngs) -> Linear {
            Linear::builder(from, to).use_bias(false).kernel_axes(names).build(rngs)
        }
        let up = linear(FEATURES, HIDDEN, ["embed", "mlp"], rngs);
        Mlp { up, down: linear(HIDDEN, FEATURES, ["mlp", "embed"], rngs) }
    }
}

impl Mlp {
    fn forward(&self, x: Array) -> Array {
        self.down.forward(silu(self.up.forward(x)))
    }
}

impl Layer for Mlp {
    fn forward(&mut self, x: Array) -> Array {
        Mlp::forward(self, x)
    }
}

impl Block {
    fn new(rngs: &mut Rngs) -> Self {
        let attention = MultiHeadAttention::builder(HEADS, FEATURES)
            .num_kv_heads(KV_HEADS)
            .is_causal(true)
            .use_bias(false)
            .rope(Rope::default())
            .kernel_axes([Some("embed"), Some("heads"), None])
            .out_kernel_axes([Some("heads"), None, Some("embed")])
            .sequence_axis("length");
        Block {
            norm: RmsNorm::new(FEATURES, rngs),
            attention: attention.build(rngs),
            mlp_norm: RmsNorm::new(FEATURES, rngs),
            mlp: Mlp::new(rngs),
            rules: rngs.rules(),
        }
    }

    fn forward(&self, x: Array) -> Array {
        let placed = |x: Array| self.rules.constrain(x, [Some("batch"), Some("length"), None]);
        let x = placed(self.attention.forward(self.norm.forward(&x)) + x);
        placed(self.mlp.forward(self.mlp_norm.forward(&x)) + x)
    }
}

#[derive(Module, Clone)]
pub struct Lm {
    pub embed: Embed,
    pub blocks: Stack<Block>,
    /// The experts between the blocks and the last layer, in some models.
    pub experts: Option<MixtureOfExperts<Mlp>>,
    pub norm: RmsNorm,
    pub head: Linear,
    #[tree(static)]
    pub rules: Rules,
    #[tree(static)]
    pub schedule: PipelineSchedule,
}

/// The configuration of a model.
#[derive(Clone, Default)]
pub struct Config {
    pub rules: Rules,
    pub schedule: PipelineSchedule,
    pub experts: bool,
}

impl Lm {
    pub fn new(config: &Config) -> Result<Self> {
        let rngs = &mut Rngs::new(0).with_rules(&config.rules);
        let embed = Embed::builder(VOCABULARY, FEATURES).axes([None, Some("embed")]).build(rngs);
        let blocks = Stack::new(LAYERS, rngs, Block::new)?.axis_name("layers");
        let experts =
            config.experts.then(|| MixtureOfExperts::new(EXPERTS, 2, FEATURES, rngs, Mlp::new)).transpose()?;
        let head = Linear::builder(FEATURES, VOCABULARY).use_bias(false).kernel_axes([Some("embed"), None]);
        Ok(Lm {
            embed,
            blocks,
            experts,
            norm: RmsNorm::new(FEATURES, rngs),
            head: head.build(rngs),
            rules: config.rules.clone(),
            schedule: config.schedule,
        })
    }

    /// The mean loss of `[rows, length]` tokens, each with the one after it. How it is computed is the rules' affair.
    pub fn loss(self, tokens: Array, targets: Array) -> Result<Array> {
        let rules = self.rules.clone();
        // The first and the last function run on their own stages only; between them, each stage runs its blocks.
        let captured = rules.clone();
        let first = move |embed: Embed, tokens: Array| {
            captured.constrain(embed.forward(tokens), [Some("batch"), Some("length"), None])
        };
        fn stage(blocks: Stack<Block>, x: Array) -> Result<Array> {
            let (x, ()) = blocks.scan(|block, x: Array| (block.forward(x), ()), x)?;
            Ok(x)
        }
        type Last = (Option<MixtureOfExperts<Mlp>>, RmsNorm, Linear);
        let last = move |(experts, norm, head): Last, x: Array, targets: Array| -> Result<Array> {
            let (x, balance) = match experts {
                Some(experts) => {
                    let routed = experts.forward(&x)?;
                    (x + routed.y, routed.balance_loss)
                }
                None => (x, array(0.0f32)),
            };
            let placed = |x: Array| rules.constrain(x, [Some("batch"), Some("length"), None]);
            let logits = placed(head.forward(placed(norm.forward(x))));
            Ok(softmax_cross_entropy_with_integer_labels(logits, targets).mean(..) + balance * 0.01)
        };
        Pipeline::of(&self.rules, "layers", MICRO_BATCHES).schedule(self.schedule).loss(
            (first, stage, last),
            (self.embed, self.blocks, (self.experts, self.norm, self.head)),
            tokens,
            targets,
        )
    }
}

pub type State = Optimizer<Lm>;

pub fn start(config: &Config) -> Result<State> {
    Optimizer::new(Lm::new(config)?, adamw(3e-3, 1e-2))
}

/// Takes a step of AdamW; returns the next state, the loss and the gradients.
pub fn step(mut state: State, tokens: Array, targets: Array) -> Result<(State, Array, Lm)> {
    let (loss, grads) = value_and_grad(Lm::loss).call((&state.model, tokens, targets))?;
    state.update(grads.clone())?;
    Ok((state, loss, grads))
}

/// Tokens and their successors.
pub fn batch() -> (Array, Array) {
    let tokens = random::randint(&random::key(7), [ROWS, LENGTH + 1], 0, VOCABULARY as i32);
    (tokens.get((.., ..LENGTH as i64)), tokens.get((.., 1..)))
}
