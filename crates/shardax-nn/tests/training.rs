//! Models, their trees and their training, on one device and on eight.

use shardax_nn::optim::ClipByGlobalNorm;
use shardax_nn::prelude::*;

fn setup() {
    shardax::config::set_num_cpu_devices(8).expect("eight CPU devices");
}

#[derive(Module, Clone, Debug)]
struct Cnn {
    conv1: Conv,
    conv2: Conv,
    dense: Linear,
}

impl Cnn {
    fn new(classes: usize, rngs: &mut Rngs) -> Self {
        Cnn {
            conv1: Conv::new(3, 32, [3, 3], rngs),
            conv2: Conv::new(32, 64, [3, 3], rngs),
            dense: Linear::new(64 * 8 * 8, classes, rngs),
        }
    }
    fn forward(&self, x: Array) -> Array {
        let x = max_pool(relu(self.conv1.forward(x)), [2, 2], [2, 2]);
        let x = max_pool(relu(self.conv2.forward(x)), [2, 2], [2, 2]);
        self.dense.forward(x.flatten_from(1))
    }
}

// SPEC 142 143 144 146 147 148
#[test]
fn cnn_of_the_reference() -> Result<()> {
    setup();
    let model = Cnn::new(10, &mut Rngs::new(0));
    assert_eq!(model.parameter_count(), 60_362);
    assert_eq!(model.forward(zeros([2, 32, 32, 3])).shape(), [2, 10]);
    let paths: Vec<String> = tree::leaves_with_path(&model).into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, [".conv1.kernel", ".conv1.bias", ".conv2.kernel", ".conv2.bias", ".dense.kernel", ".dense.bias"]);
    Ok(())
}

// SPEC 149 152
#[test]
fn split_and_merge() -> Result<()> {
    setup();
    let model = Cnn::new(3, &mut Rngs::new(1));
    let (structure, mut state) = model.split();
    assert_eq!(state["conv2.bias"].shape(), [64]);
    let same: Cnn = merge(&structure, &state)?;
    let x = ones([1, 32, 32, 3]);
    assert_eq!(same.forward(x.clone()).to_vec::<f32>()?, model.forward(x.clone()).to_vec::<f32>()?);

    state.insert("dense.kernel".into(), zeros([4096, 3]));
    assert_eq!(model.with_state(&state)?.forward(x).to_vec::<f32>()?, [0.0; 3]);

    let removed = state.remove("dense.kernel");
    let message = model.with_state(&state).unwrap_err().to_string();
    assert!(message.contains("no array \"dense.kernel\""), "{message}");
    state.insert("dense.weight".into(), removed.expect("an array"));
    let message = model.with_state(&state).unwrap_err().to_string();
    assert!(message.contains("no array \"dense.weight\""), "{message}");
    Ok(())
}

#[derive(Module, Clone, Debug)]
struct Mlp {
    hidden: Linear,
    dropout: Dropout,
    out: Linear,
}

impl Mlp {
    fn new(rngs: &mut Rngs) -> Self {
        Mlp { hidden: Linear::new(4, 32, rngs), dropout: Dropout::new(0.1), out: Linear::new(32, 3, rngs) }
    }
    // SPEC 151
    fn forward(&self, x: Array, train: bool, rngs: &mut Rngs) -> Array {
        let key = train.then(|| rngs.dropout());
        self.out.forward(self.dropout.forward(relu(self.hidden.forward(x)), key.as_ref()))
    }
}

/// Three classes that a line cannot part.
fn data(n: usize) -> (Array, Array) {
    let x = random::normal(&random::key(5), [n, 4]);
    let labels =
        (x.get((.., 0)) * x.get((.., 1))).greater(0).astype(DType::I32) + x.get((.., 2)).greater(1).astype(DType::I32);
    (x, labels)
}

type State = TrainState<Mlp, Adam>;

/// Loss and accuracy of a step. SPEC 150
fn train_step(state: State, mut rngs: Rngs, x: Array, labels: Array) -> Result<(State, Rngs, Array, Array)> {
    let loss = |model: Mlp| {
        let logits = model.forward(x.clone(), true, &mut rngs.clone());
        (softmax_cross_entropy_with_integer_labels(&logits, &labels).mean(..), logits)
    };
    let ((loss, logits), grads) = value_and_grad(loss).has_aux().call(state.params.clone())?;
    rngs.dropout();
    Ok((state.apply_gradients(grads)?, rngs, loss, accuracy(logits, &labels)))
}

// SPEC 157
#[test]
fn training_learns() -> Result<()> {
    setup();
    let mut rngs = Rngs::new(0).with("dropout", 1);
    let mut state = TrainState::create(Mlp::new(&mut rngs), adam(2e-2))?;
    let (x, labels) = data(256);
    let step = jit(train_step).donate_argnums([0]);
    let mut losses = Vec::new();
    for _ in 0..150 {
        let loss;
        (state, rngs, loss, _) = step.call((state, rngs, &x, &labels))?;
        losses.push(loss.item::<f32>()?);
    }
    assert_eq!(state.step.item::<i32>()?, 150);
    let logits = state.params.forward(x, false, &mut rngs);
    let accuracy = accuracy(logits, labels).item::<f32>()?;
    assert!(accuracy > 0.9, "accuracy {accuracy}, losses {} … {}", losses[0], losses[149]);
    Ok(())
}

/// The same model on one device and on eight, whose gradients are averaged, stays the same. SPEC 183
#[test]
fn eight_devices_train_as_one() -> Result<()> {
    setup();
    #[derive(Module, Clone, Debug)]
    struct Small {
        conv: Conv,
        norm: LayerNorm,
        dense: Linear,
    }
    impl Small {
        fn loss(&self, x: &Array, labels: &Array) -> Array {
            let x = max_pool(relu(self.norm.forward(self.conv.forward(x))), [2, 2], [2, 2]);
            softmax_cross_entropy_with_integer_labels(self.dense.forward(x.flatten_from(1)), labels).mean(..)
        }
    }
    type State = Optimizer<Small, (ClipByGlobalNorm, AdamW)>;

    let mut rngs = Rngs::new(3);
    let model = Small {
        conv: Conv::builder(1, 4, [3, 3]).use_bias(false).build(&mut rngs),
        norm: LayerNorm::new(4),
        dense: Linear::new(4 * 4 * 4, 3, &mut rngs),
    };
    let schedule = warmup_cosine_decay_schedule(0.0, 0.05, 2, 10, 0.0);
    let start = Optimizer::new(model, (clip_by_global_norm(1.0), adamw(schedule, 1e-3)))?;
    let x = random::normal(&random::key(1), [32, 8, 8, 1]);
    let labels = random::randint(&random::key(2), [32], 0, 3);

    let alone = jit(|mut state: State, x: Array, labels: Array| -> Result<State> {
        let grads = grad(|m: Small| m.loss(&x, &labels)).call(state.model.clone())?;
        state.update(grads)?;
        Ok(state)
    });
    let together = pmap(|mut state: State, x: Array, labels: Array| -> Result<State> {
        let grads = grad(|m: Small| m.loss(&x, &labels)).call(state.model.clone())?;
        state.update(pmean(grads, "batch"))?;
        Ok(state)
    })
    .axis_name("batch")
    .in_axes((None, 0, 0))
    .out_axes(None);

    let (mut one, mut eight) = (start.clone(), start);
    let shards = (x.reshape([8, 4, 8, 8, 1]), labels.reshape([8, 4]));
    for _ in 0..5 {
        one = alone.call((one, &x, &labels))?;
        eight = together.call((eight, &shards.0, &shards.1))?;
    }
    // In shard_map the mean over the axis is part of the loss.
    let mesh = make_mesh([("batch", 8)])?;
    let sharded = jit(shard_map(
        |m: Small, x: Array, labels: Array| grad(|m: Small| pmean(m.loss(&x, &labels), "batch")).call(m),
        &mesh,
    )
    .in_specs((P![], P!["batch"], P!["batch"]))
    .out_specs(P![]));
    let whole = grad(|m: Small| m.loss(&x, &labels)).call(one.model.clone())?;
    let parts = sharded.call((one.model.clone(), &x, &labels))?;
    for ((path, a), b) in tree::leaves_with_path(&whole).into_iter().zip(tree::leaves(&parts)) {
        assert!(allclose(&a, &b, 1e-4, 1e-6)?, "gradient {path}: {a} {b}");
    }

    for ((path, a), b) in tree::leaves_with_path(&one.model).into_iter().zip(tree::leaves(&eight.model)) {
        assert!(allclose(&a, &b, 1e-4, 1e-5)?, "{path}: {a} {b}");
    }
    Ok(())
}

// SPEC 160 161
#[test]
fn plain_sgd_by_tree_map() -> Result<()> {
    setup();
    let x = random::normal(&random::key(0), [64, 3]);
    let y = x.dot(array([1.0f32, -2.0, 0.5])) + 0.25;
    let step = jit(|w: Array, b: Array| -> Result<(Array, Array)> {
        let loss = |(w, b): (Array, Array)| mse(x.dot(w) + b, &y);
        let grads = grad(loss).call((w.clone(), b.clone()))?;
        tree::map2(|p, g| p - g * 0.1, (w, b), grads)
    });
    let (mut w, mut b) = (zeros([3]), zeros(()));
    for _ in 0..100 {
        (w, b) = step.call((w, b))?;
    }
    assert!(allclose(w, array([1.0f32, -2.0, 0.5]), 1e-3, 1e-3)? && allclose(b, 0.25, 1e-3, 1e-3)?);
    Ok(())
}

// SPEC 172: the forward pass in bfloat16, parameters and gradients in float32
#[test]
fn mixed_precision() -> Result<()> {
    setup();
    let mut rngs = Rngs::new(0);
    let conv = Conv::builder(3, 8, [3, 3]).dtype(DType::Bf16).build(&mut rngs);
    let dense = Linear::builder(8, 2).dtype(DType::Bf16).build(&mut rngs);
    let x = ones([2, 4, 4, 3]).astype(DType::Bf16);
    let y = conv.forward(&x);
    assert_eq!((y.dtype(), dense.forward(&y).dtype()), (DType::Bf16, DType::Bf16));
    let loss = |model: (Conv, Linear)| model.1.forward(model.0.forward(&x)).astype(DType::F32).mean(..);
    let grads = grad(loss).call((conv.clone(), dense.clone()))?;
    assert!(tree::leaves(&grads).iter().all(|g| g.dtype() == DType::F32));
    // Without `dtype` float32 parameters make a float32 result, as in Flax.
    assert_eq!(Linear::new(3, 2, &mut rngs).forward(&x).dtype(), DType::F32);
    Ok(())
}

#[test]
fn layers_report_what_does_not_fit() {
    setup();
    let message = |x: Array| x.check().expect_err("an error").to_string();
    let mut rngs = Rngs::new(0);
    let conv = Conv::new(3, 8, [3, 3], &mut rngs);
    assert_eq!(conv.forward(ones([4, 4, 3])).shape(), [4, 4, 8]);
    assert_eq!(conv.forward(ones([2, 5, 4, 4, 3])).shape(), [2, 5, 4, 4, 8]);
    let text = message(conv.forward(ones([2, 4, 4, 5])));
    assert!(text.contains("float32[2,4,4,5]") && text.contains("training.rs"), "{text}");
    let text = message(conv.forward(ones([3])));
    assert!(text.contains("rank"), "{text}");
    let text = message(Conv::builder(3, 8, [3, 3]).feature_group_count(0).build(&mut rngs).forward(ones([1, 4, 4, 3])));
    assert!(text.contains("feature_group_count 0"), "{text}");
    let text = message(Linear::new(3, 4, &mut rngs).forward(ones([2, 5])));
    assert!(text.contains("training.rs"), "{text}");
    let text = message(GroupNorm::new(6, 4).forward(ones([2, 5, 6])));
    assert!(text.contains("reshape"), "{text}");
    let wrong = TrainState::create(vec![ones([2])], sgd(0.1)).expect("a state").apply_gradients(vec![]);
    assert!(wrong.unwrap_err().to_string().contains("structure"));
}
