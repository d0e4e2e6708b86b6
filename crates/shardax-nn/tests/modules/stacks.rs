//! Stacks of equal layers: program size, checkpointing, sharding, layers with state.

use shardax_nn::prelude::*;

use super::setup;

/// A block with a residual connection.
#[derive(Module, Clone)]
struct Block {
    attention: MultiHeadAttention,
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(rngs: &mut Rngs) -> Self {
        Block {
            attention: MultiHeadAttention::builder(2, 8).is_causal(true).build(rngs),
            norm: LayerNorm::new(8, rngs),
            up: Linear::builder(8, 32).kernel_axes(["embed", "mlp"]).build(rngs),
            down: Linear::builder(32, 8).kernel_axes(["mlp", "embed"]).build(rngs),
        }
    }
}

impl Layer for Block {
    fn forward(&mut self, x: Array) -> Array {
        let x = self.attention.forward(&x) + x;
        self.down.forward(relu(self.up.forward(self.norm.forward(&x)))) + x
    }
}

fn loss(mut blocks: Stack<Block>, x: Array) -> Array {
    blocks.forward(x).square().sum(..)
}

/// The program of a stack has the same size for forty layers as for two, including its gradient and checkpointing.
#[test]
fn programs_are_flat_in_depth() -> Result<()> {
    setup();
    fn lines(blocks: &Stack<Block>, policy: &Option<CheckpointPolicy>) -> Result<usize> {
        let blocks = policy.clone().into_iter().fold(blocks.clone(), Stack::checkpoint);
        Ok(jit(grad(loss)).lower((blocks, ones([1, 4, 8])))?.as_text().lines().count())
    }
    let shallow = Stack::new(2, &mut Rngs::new(0), Block::new)?;
    let deep = tree::map(|x| zeros_dtype([&[40], &x.shape()[1..]].concat(), x.dtype()), shallow.clone())?;
    assert_eq!((shallow.depth(), deep.depth()), (2, 40));
    for policy in [None, Some(CheckpointPolicy::NothingSaveable), Some(CheckpointPolicy::DotsSaveable)] {
        assert_eq!(lines(&shallow, &policy)?, lines(&deep, &policy)?, "{policy:?}");
    }
    Ok(())
}

/// A stack equals its layers in sequence, forward and backward, with any checkpointing.
#[test]
fn a_stack_is_its_layers() -> Result<()> {
    setup();
    let blocks = Stack::new(3, &mut Rngs::new(0), Block::new)?;
    let layers: Vec<Block> = (0..3).map(|i| blocks.layer(i)).collect::<Result<_>>()?;
    assert_ne!(layers[0].up.kernel.to_vec::<f32>()?, layers[1].up.kernel.to_vec::<f32>()?);
    let x = random::normal(random::key(1), [2, 4, 8]);
    fn one_by_one(mut layers: Vec<Block>, x: Array) -> Array {
        layers.iter_mut().fold(x, |x, l| l.forward(x)).square().sum(..)
    }
    let (value, grads) = jit(value_and_grad(one_by_one)).call((layers.clone(), &x))?;
    let again = Stack::from_layers(&layers)?;
    for policy in [None, Some(CheckpointPolicy::NothingSaveable)] {
        let blocks = policy.clone().into_iter().fold(again.clone(), Stack::checkpoint).unroll(2);
        let (got, got_grads) = jit(value_and_grad(loss)).call((blocks, &x))?;
        assert!(allclose(got, &value, 1e-5, 0.0)?, "{policy:?}");
        for (i, want) in grads.iter().enumerate() {
            let layer_grads = got_grads.layer(i)?;
            for (layer_grads, want) in tree::leaves(&layer_grads).iter().zip(tree::leaves(want)) {
                assert!(allclose(layer_grads, want, 1e-3, 1e-4)?, "{policy:?}");
            }
        }
    }
    let message = blocks.layer(3).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(message.contains("there is no layer 3 of 3"), "{message}");
    // Layers of different structure have no stack, and neither has an empty list.
    let variants = [
        layers[0].clone(),
        Block { norm: LayerNorm::builder(8).use_bias(false).build(&mut Rngs::new(0)), ..layers[1].clone() },
    ];
    assert!(Stack::from_layers(&variants).is_err() && Stack::<Block>::from_layers(&[]).is_err());
    Ok(())
}

/// Rules apply to the dimensions of the layers after the dimension of the stack.
#[test]
fn rules_place_a_stack() -> Result<()> {
    setup();
    let mesh = make_mesh([("stage", 2), ("model", 4)])?;
    let rules = Rules::new(&mesh, [("layers", "stage"), ("mlp", "model")]);
    let make = || Ok(Stack::new(4, &mut Rngs::new(0), Block::new)?.axis_name("layers"));
    let blocks = rules.init(make)?;
    assert_eq!(blocks.layers.up.kernel.sharding()?.spec()?.trimmed(), P!["stage", None, "model"]);
    assert_eq!(blocks.layers.up.bias.as_ref().expect("a bias").sharding()?.spec()?.trimmed(), P!["stage", "model"]);
    assert_eq!(blocks.layers.norm.scale.as_ref().expect("a scale").sharding()?.spec()?.trimmed(), P!["stage"]);
    assert_eq!(blocks.layers.up.kernel.addressable_data(0)?.shape(), [2, 8, 8]);
    let kernel = &blocks.state()["layers.up.kernel"];
    assert_eq!(kernel.shape(), [4, 8, 32]);
    // Equal to one device.
    let (alone, x) = (make()?, random::normal(random::key(1), [2, 4, 8]));
    assert!(allclose(jit(loss).call((blocks, &x))?, jit(loss).call((alone, &x))?, 1e-5, 0.0)?);
    Ok(())
}

fn causal_attention(rngs: &mut Rngs) -> MultiHeadAttention {
    MultiHeadAttention::builder(2, 8).is_causal(true).build(rngs)
}

/// Decoding updates the caches of a stack of layers.
#[test]
fn layers_with_caches_change_in_a_stack() -> Result<()> {
    setup();
    let mut layers = Stack::new(3, &mut Rngs::new(0), causal_attention)?;
    let x = random::normal(random::key(1), [2, 5, 8]);
    let expected = layers.forward(&x);
    layers = Stack::from_layers(
        &(0..3)
            .map(|i| {
                let mut layer = layers.layer(i)?;
                layer.init_cache([2, 5, 8], DType::F32);
                Ok(layer)
            })
            .collect::<Result<Vec<_>>>()?,
    )?;
    for i in 0..5 {
        let y = layers.update_each(|layer, x: Array| layer.decode(x), x.get((.., i..i + 1)))?;
        assert!(allclose(y.get((.., 0)), expected.get((.., i)), 1e-4, 1e-5)?, "position {i}");
    }
    assert_eq!(layers.layers.cache_index.as_ref().expect("a cache").to_vec::<i32>()?, [5; 3]);
    Ok(())
}
