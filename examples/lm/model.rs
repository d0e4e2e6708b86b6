//! A transformer that predicts the next token: rotary positions, RMS norms, gated linear units, fewer heads of keys
//! than of queries.

use shardax_nn::prelude::*;

/// The sizes of a model. They are part of its structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// How many tokens there are.
    pub vocabulary: usize,
    pub layers: usize,
    pub features: usize,
    pub heads: usize,
    pub kv_heads: usize,
}

#[derive(Module, Clone)]
pub struct Gpt {
    embed: Embed,
    blocks: Vec<Block>,
    norm: RmsNorm,
    #[tree(static)]
    pub sizes: Sizes,
}

#[derive(Module, Clone)]
struct Block {
    norm: RmsNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    mlp_norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// The keys and values of the tokens so far, `[batch, length, kv_heads, depth]` each, for each block.
pub type Cache = Vec<(Array, Array)>;

impl Gpt {
    pub fn new(sizes: Sizes, rngs: &mut Rngs) -> Gpt {
        let depth = sizes.features / sizes.heads;
        let linear = |from: usize, to: usize, names: [&'static str; 2], rngs: &mut Rngs| {
            Linear::builder(from, to).use_bias(false).kernel_axes(names).build(rngs)
        };
        let f = sizes.features;
        let embed = Embed::builder(sizes.vocabulary, f).axes(["vocabulary", "embed"]).build(rngs);
        let blocks = (0..sizes.layers).map(|_| Block {
            norm: RmsNorm::new(f, rngs),
            query: linear(f, sizes.heads * depth, ["embed", "heads"], rngs),
            key: linear(f, sizes.kv_heads * depth, ["embed", "heads"], rngs),
            value: linear(f, sizes.kv_heads * depth, ["embed", "heads"], rngs),
            out: linear(sizes.heads * depth, f, ["heads", "embed"], rngs),
            mlp_norm: RmsNorm::new(f, rngs),
            gate: linear(f, 4 * f, ["embed", "mlp"], rngs),
            up: linear(f, 4 * f, ["embed", "mlp"], rngs),
            down: linear(4 * f, f, ["mlp", "embed"], rngs),
        });
        let blocks = blocks.collect();
        Gpt { embed, blocks, norm: RmsNorm::new(f, rngs), sizes }
    }

    /// Logits `[batch, length, vocabulary]` of the tokens that follow each of `[batch, length]`.
    pub fn forward(&self, tokens: &Array) -> Array {
        let positions = arange(0..tokens.shape()[1] as i32);
        let mut x = self.embed.forward(tokens);
        for block in &self.blocks {
            x = block.forward(x, &positions, self.sizes, |key, value| (key, value));
        }
        self.embed.attend(self.norm.forward(x))
    }

    /// Keys and values of no tokens, with room for so many.
    pub fn empty_cache(&self, length: usize) -> Cache {
        let Sizes { layers, features, heads, kv_heads, .. } = self.sizes;
        let empty = || zeros([1, length, kv_heads, features / heads]);
        (0..layers).map(|_| (empty(), empty())).collect()
    }

    /// Logits `[vocabulary]` of the token that follows `token`, the one at `position`; the cache gets its keys and
    /// values.
    pub fn next(&self, token: &Array, position: &Array, cache: Cache) -> (Array, Cache) {
        let mut x = self.embed.forward(token.reshape([1, 1]));
        let mut filled = Cache::new();
        for (block, (keys, values)) in self.blocks.iter().zip(cache) {
            x = block.forward(x, &position.reshape([1]), self.sizes, |key, value| {
                let put = |all: &Array, new: &Array| lax::dynamic_update_slice_in_dim(all, new, position, 1);
                filled.push((put(&keys, &key), put(&values, &value)));
                filled[filled.len() - 1].clone()
            });
        }
        (self.embed.attend(self.norm.forward(x)).reshape([self.sizes.vocabulary]), filled)
    }
}

impl Block {
    /// `extend` gives all keys and values there are, from those of these tokens.
    fn forward(
        &self,
        x: Array,
        positions: &Array,
        sizes: Sizes,
        extend: impl FnOnce(Array, Array) -> (Array, Array),
    ) -> Array {
        let normed = self.norm.forward(&x);
        let (batch, length, depth) = (x.shape()[0], x.shape()[1], sizes.features / sizes.heads);
        let split = |x: Array, heads: usize| x.reshape([batch, length, heads, depth]);
        let query = rotate(split(self.query.forward(&normed), sizes.heads), positions);
        let key = rotate(split(self.key.forward(&normed), sizes.kv_heads), positions);
        let (keys, values) = extend(key, split(self.value.forward(&normed), sizes.kv_heads));
        let x = x + self.out.forward(attend(query, keys, values, positions).reshape([batch, length, sizes.features]));
        let normed = self.mlp_norm.forward(&x);
        x + self.down.forward(silu(self.gate.forward(&normed)) * self.up.forward(&normed))
    }
}

/// Rotates the pairs of features of each head by angles that grow with the position
/// ([Su et al. 2021](https://arxiv.org/abs/2104.09864)).
fn rotate(x: Array, positions: &Array) -> Array {
    let (rank, depth) = (x.ndim() as i32, x.shape()[x.ndim() - 1]);
    let half = depth / 2;
    let rates = (arange(0..half as i32).astype(DType::F32) * (-(10_000.0f64).ln() / half as f64)).exp();
    let angles = positions.astype(DType::F32).reshape([-1, 1]) * rates;
    let angles = angles.reshape([-1, 1, half as i32]);
    let (a, b) = (lax::slice_in_dim(&x, 0, half, rank - 1), lax::slice_in_dim(&x, half, depth, rank - 1));
    lax::concatenate(&[&a * angles.cos() - &b * angles.sin(), &b * angles.cos() + &a * angles.sin()], rank - 1)
}

/// Attention of queries `[batch, length, heads, depth]` at `positions` to the keys that are not after them.
fn attend(query: Array, keys: Array, values: Array, positions: &Array) -> Array {
    let (batch, length, heads, depth) = (query.shape()[0], query.shape()[1], query.shape()[2], query.shape()[3]);
    let kv_heads = keys.shape()[2];
    // Each head of keys has several of queries.
    let query = query.reshape([batch, length, kv_heads, heads / kv_heads, depth]);
    let scores = einsum("bthgd,bshd->bhgts", &[&query, &keys]) / (depth as f64).sqrt();
    let seen = arange(0..keys.shape()[1] as i32).reshape([1, -1]).less_equal(positions.reshape([-1, 1]));
    let weights = softmax(where_(seen, scores, -1e30), -1);
    einsum("bhgts,bshd->bthgd", &[&weights, &values]).reshape([batch, length, heads, depth])
}
