//! Models, their trees and their training, on one device and on eight.

#[path = "../../shardax/tests/common/quick.rs"]
#[allow(dead_code)]
mod quick;

use quick::setup;
use shardax_alloc as _;
use shardax_nn::optim::*;
use shardax_nn::prelude::*;

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

#[test]
fn split_and_merge() -> Result<()> {
    setup();
    let model = Cnn::new(3, &mut Rngs::new(1));
    let (structure, mut state) = model.split();
    assert_eq!(state["conv2.bias"].shape(), [64]);
    let same: Cnn = merge(&structure, &state)?;
    let x = ones([1, 32, 32, 3]);
    assert_eq!(same.forward(x.clone()).to_vec::<f32>()?, model.forward(x.clone()).to_vec::<f32>()?);

    state.insert("dense.kernel", zeros([4096, 3]));
    assert_eq!(model.with_state(&state)?.forward(x).to_vec::<f32>()?, [0.0; 3]);

    let removed = state.remove("dense.kernel");
    let restored = model.with_state(&state)?.forward(ones([1, 32, 32, 3]));
    assert_eq!(restored.to_vec::<f32>()?, same.forward(ones([1, 32, 32, 3])).to_vec::<f32>()?);
    let message = merge::<Cnn>(&structure, &state).unwrap_err().to_string();
    assert!(message.contains("no array \"dense.kernel\""), "{message}");
    state.insert("dense.weight", removed.expect("an array"));
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
        Mlp { hidden: Linear::new(4, 32, rngs), dropout: Dropout::new(0.1, rngs), out: Linear::new(32, 3, rngs) }
    }

    fn forward(&mut self, x: &Array) -> Array {
        self.out.forward(self.dropout.forward(relu(self.hidden.forward(x))))
    }
}

/// Three classes that are not linearly separable.
fn data(n: usize) -> (Array, Array) {
    let x = random::normal(&random::key(5), [n, 4]);
    let labels =
        (x.get((.., 0)) * x.get((.., 1))).greater(0).astype(DType::I32) + x.get((.., 2)).greater(1).astype(DType::I32);
    (x, labels)
}

type State = Optimizer<Mlp>;

/// Loss and accuracy of a step.
fn train_step(mut state: State, x: Array, labels: Array) -> Result<(State, Array, Array)> {
    let (loss, logits) = state.minimize(|model| {
        let logits = model.forward(&x);
        (softmax_cross_entropy_with_integer_labels(&logits, &labels).mean(..), logits)
    })?;
    Ok((state, loss, accuracy(logits, &labels)))
}

#[test]
fn training_learns() -> Result<()> {
    setup();
    let mut state = Optimizer::new(Mlp::new(&mut Rngs::new(0).with("dropout", 1)), adam(2e-2))?;
    let (x, labels) = data(256);
    let step = jit(train_step).donate_argnums([0]);
    let mut losses = Vec::new();
    for _ in 0..150 {
        let loss;
        (state, loss, _) = step.call((state, &x, &labels))?;
        losses.push(loss.item::<f32>()?);
    }
    assert_eq!(state.step.item::<i32>()?, 150);
    state.model.eval();
    let logits = state.model.forward(&x);
    let accuracy = accuracy(logits, labels).item::<f32>()?;
    assert!(accuracy > 0.9, "accuracy {accuracy}, losses {} … {}", losses[0], losses[149]);
    Ok(())
}

/// Training on eight devices with averaged gradients equals training on one device.
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
    type State = Optimizer<Small>;

    let mut rngs = Rngs::new(3);
    let model = Small {
        conv: Conv::builder(1, 4, [3, 3]).use_bias(false).build(&mut rngs),
        norm: LayerNorm::new(4, &mut rngs),
        dense: Linear::new(4 * 4 * 4, 3, &mut rngs),
    };
    let schedule = warmup_cosine_decay_schedule(0.0, 0.05, 2, 10, 0.0);
    let start = Optimizer::new(model, (clip_by_global_norm(1.0), adamw(schedule, 1e-3)))?;
    let x = random::normal(&random::key(1), [32, 8, 8, 1]);
    let labels = random::randint(&random::key(2), [32], 0, 3);

    let single = jit(|mut state: State, x: Array, labels: Array| -> Result<State> {
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
        one = single.call((one, &x, &labels))?;
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
    let expected = grad(|m: Small| m.loss(&x, &labels)).call(one.model.clone())?;
    let parts = sharded.call((one.model.clone(), &x, &labels))?;
    for ((path, a), b) in tree::leaves_with_path(&expected).into_iter().zip(tree::leaves(&parts)) {
        assert!(allclose(&a, &b, 1e-4, 1e-6)?, "gradient {path}: {a} {b}");
    }

    for ((path, a), b) in tree::leaves_with_path(&one.model).into_iter().zip(tree::leaves(&eight.model)) {
        assert!(allclose(&a, &b, 1e-4, 1e-5)?, "{path}: {a} {b}");
    }
    Ok(())
}

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

// The forward pass in bfloat16, parameters and gradients in float32
#[test]
fn mixed_precision() -> Result<()> {
    setup();
    let mut rngs = Rngs::new(0);
    let conv = Conv::builder(3, 8, [3, 3]).dtype(DType::Bf16).build(&mut rngs);
    let dense = Linear::builder(8, 2).dtype(DType::Bf16).build(&mut rngs);
    let x = ones([2, 4, 4, 3]).astype(DType::Bf16);
    let y = conv.forward(&x);
    assert_eq!((y.dtype(), dense.forward(&y).dtype()), (DType::Bf16, DType::Bf16));
    fn loss(model: (Conv, Linear), x: &Array) -> Array {
        model.1.forward(model.0.forward(x)).astype(DType::F32).mean(..)
    }
    let grads = grad(|model: (Conv, Linear)| loss(model, &x)).call((conv.clone(), dense.clone()))?;
    assert!(tree::leaves(&grads).iter().all(|g| g.dtype() == DType::F32));
    // Without `dtype` float32 parameters make a float32 result, as in Flax.
    assert_eq!(Linear::new(3, 2, &mut rngs).forward(&x).dtype(), DType::F32);
    Ok(())
}

#[test]
fn layers_reject_mismatched_shapes() {
    setup();
    fn message(x: Array) -> String {
        x.check().expect_err("an error").to_string()
    }
    let mut rngs = Rngs::new(0);
    let conv = Conv::new(3, 8, [3, 3], &mut rngs);
    assert_eq!(conv.forward(ones([4, 4, 3])).shape(), [4, 4, 8]);
    assert_eq!(conv.forward(ones([2, 5, 4, 4, 3])).shape(), [2, 5, 4, 4, 8]);
    let text = message(conv.forward(ones([2, 4, 4, 5])));
    assert!(text.contains("float32[2,4,4,5]") && text.contains("training.rs"), "{text}");
    let text = message(conv.forward(ones([3])));
    assert!(text.contains("needs an input of at least 3 dimensions, got float32[3]"), "{text}");
    let text = message(Conv::builder(3, 8, [3, 3]).feature_group_count(0).build(&mut rngs).forward(ones([1, 4, 4, 3])));
    assert!(text.contains("feature_group_count must divide the 3 features, got 0"), "{text}");
    let text = message(Linear::new(3, 4, &mut rngs).forward(ones([2, 5])));
    assert!(text.contains("training.rs"), "{text}");
    let text = message(GroupNorm::new(6, 4, &mut rngs).forward(ones([2, 5, 6])));
    assert!(text.contains("num_groups must divide the 6 features, got 4") && text.contains("training.rs"), "{text}");
    let wrong = TrainState::create(vec![ones([2])], sgd(0.1)).expect("a state").apply_gradients(vec![]);
    assert!(wrong.unwrap_err().to_string().contains("structure"));
}

/// The error's text, which must name this file.
fn rejected(x: Array) -> String {
    let text = x.check().expect_err("an error").to_string();
    assert!(text.contains("training.rs"), "{text}");
    text
}

#[test]
fn losses_reject_labels_of_another_kind() {
    setup();
    let logits = array([[0.5f32, -0.5, 0.0], [1.0, 2.0, 3.0]]);
    fn integer(labels: Array, logits: &Array) -> Array {
        softmax_cross_entropy_with_integer_labels(logits, labels)
    }
    assert!(rejected(integer(array([0.0f32, 1.0]), &logits)).contains("subdtype of integer, got float32[2]"));
    assert!(rejected(integer(array([1]), &logits)).contains("[2] and labels [1]"));
    assert!(rejected(integer(array(1), &logits)).contains("shape mismatch"));
    // One-hot labels for indices, and indices for probabilities.
    assert!(
        rejected(integer(one_hot(array([0, 1]), 3), &logits))
            .contains("labels must be class indices, one for each row")
    );
    let indices = rejected(softmax_cross_entropy(zeros([2, 2]), array([0, 1])));
    assert!(indices.contains("convert them with `one_hot(labels, classes)`"), "{indices}");
    assert!(rejected(accuracy(&logits, array([1]))).contains("shape mismatch"));
    assert!(rejected(accuracy(&logits, array([1.0f32, 0.0]))).contains("subdtype of integer"));
}

#[test]
fn conv_rejects_channels_first() {
    setup();
    let layer = Conv::new(3, 4, [3, 3], &mut Rngs::new(0));
    let first = rejected(layer.forward(ones([2, 3, 8, 8])));
    assert!(
        first.contains("Conv: the input float32[2,3,8,8] has 8 features in its last dimension, and the layer takes 3")
    );
    assert!(first.contains("this one is channels first: write `x.moveaxis(1, -1)`"), "{first}");
}

#[test]
fn losses_reject_dtypes_and_shapes() {
    setup();
    let ints = array([[1, 2, 3], [4, 5, 6]]);
    let (floats, row) = (array([[0.5f32, -0.5, 0.0], [1.0, 2.0, 3.0]]), array([1.0f32, 2.0, 3.0]));
    let float = "subdtype of floating, got int32[2,3]";
    for x in [
        softmax_cross_entropy(&ints, &floats),
        safe_softmax_cross_entropy(&ints, &floats),
        sigmoid_binary_cross_entropy(&ints, &floats),
        sigmoid_focal_loss(&ints, &floats, None, 2.0),
        poly_loss_cross_entropy(&floats, &ints, 2.0),
        softmax_cross_entropy_with_integer_labels(&ints, array([0, 1])),
        squared_error(&ints, &floats),
        l2_loss(&ints, &floats),
        mse(&ints, &floats),
        huber_loss(&ints, &floats, 1.0),
        log_cosh(&ints, &floats),
        cosine_similarity(&floats, &ints, 0.0),
        cosine_distance(&ints, &floats, 0.0),
        smooth_labels(&ints, 0.1),
        kl_divergence(&floats, &ints),
        kl_divergence_with_log_targets(&ints, &floats),
        generalized_kl_divergence(&floats, &ints),
        ntxent(&ints, array([0, 1]), 0.5),
    ] {
        assert!(rejected(x.clone()).contains(float), "{x}");
    }
    assert!(
        rejected(ctc_loss(ints.reshape([1, 2, 3]), zeros([1, 2]), array([[1]]), zeros([1, 1]), 0, -1e5))
            .contains("int32")
    );
    for x in
        [squared_error(&floats, &row), mse(&floats, &row), perceptron_loss(&floats, &row), ntxent(&floats, &row, 0.5)]
    {
        assert!(rejected(x).contains("shape mismatch"));
    }
    // An earlier error takes precedence.
    assert!(rejected(squared_error(zeros(3) + zeros(4), zeros(3))).contains("broadcasting"));
}

#[test]
fn losses_reject_options_out_of_range() {
    setup();
    let floats = array([[0.5f32, -0.5, 0.0], [1.0, 2.0, 3.0]]);
    for (x, what) in [
        (huber_loss(&floats, &floats, f64::NAN), "delta must be at least 0 and finite, got NaN"),
        (smooth_labels(&floats, 2.0), "alpha must be at least 0 and at most 1, got 2.0"),
        (cosine_similarity(&floats, &floats, -1.0), "epsilon must be at least 0"),
        (sigmoid_focal_loss(&floats, &floats, Some(f64::NAN), 2.0), "alpha must be finite"),
        (sigmoid_focal_loss(&floats, &floats, None, -1.0), "gamma must be at least 0"),
        (ntxent(&floats, array([0, 1]), 0.0), "temperature must be"),
        (poly_loss_cross_entropy(&floats, &floats, f64::INFINITY), "epsilon must be finite"),
    ] {
        assert!(rejected(x).contains(what), "{what}");
    }
}

#[test]
fn layers_reject_parameters_out_of_their_range() {
    setup();
    let mut rngs = Rngs::new(0);
    let x = ones([2, 6]);
    for groups in [0, 4, 7, usize::MAX] {
        let text = rejected(GroupNorm::new(6, groups, &mut rngs).forward(&x));
        assert!(text.contains(&format!("num_groups must divide the 6 features, got {groups}")), "{text}");
    }
    for rate in [f64::NAN, -1.0, 2.0, f64::INFINITY] {
        for training in [false, true] {
            let mut layer = Dropout::new(rate, &mut rngs);
            layer.training = training;
            assert!(rejected(layer.forward(&x)).contains("rate must be at least 0 and at most 1"));
        }
    }
    assert!(rejected(Dropout::without_rngs(0.5).forward(&x)).contains("the layer has no keys"));
    for epsilon in [f64::NAN, -1.0, f64::INFINITY] {
        let message = "epsilon must be at least 0 and finite";
        assert!(rejected(LayerNorm::builder(6).epsilon(epsilon).build(&mut rngs).forward(&x)).contains(message));
        assert!(rejected(RmsNorm::builder(6).epsilon(epsilon).build(&mut rngs).forward(&x)).contains(message));
        assert!(rejected(GroupNorm::builder(6, 2).epsilon(epsilon).build(&mut rngs).forward(&x)).contains(message));
        let mut norm = BatchNorm::builder(6).epsilon(epsilon).build(&mut rngs);
        assert!(rejected(norm.forward(&x)).contains(message));
        norm.eval();
        assert!(rejected(norm.forward(&x)).contains(message));
    }
    let mut norm = BatchNorm::builder(6).momentum(1.5).build(&mut rngs);
    assert!(rejected(norm.forward(&x)).contains("momentum must be at least 0 and at most 1"));
    // One feature is not repeated.
    assert!(
        rejected(LayerNorm::new(6, &mut rngs).forward(ones([2, 1])))
            .contains("LayerNorm of 6 features got float32[2,1]")
    );
    assert!(rejected(LayerNorm::new(1, &mut rngs).forward(&x)).contains("LayerNorm of 1 features"));
    assert!(rejected(GroupNorm::new(6, 2, &mut rngs).forward(array(1.0f32))).contains("GroupNorm of 6 features"));
}

#[test]
fn optimizers_reject_numbers_out_of_their_range() {
    setup();
    fn message<T: GradientTransformation<Array>>(tx: T) -> String {
        let Err(error) = TrainState::create(ones([2, 2]), tx) else { panic!("no error") };
        let text = error.to_string();
        assert!(text.contains("training.rs"), "{text}");
        text
    }
    assert!(message(sgd(f64::NAN)).contains("learning_rate: the value must be finite, got NaN"));
    assert!(message(adamw(0.1, f64::INFINITY)).contains("weight_decay: the value must be finite"));
    assert!(message(sgd_momentum(0.1, 1.5, false)).contains("trace: decay must be"));
    // A decay of 1 would never forget the first step, and the correction of the bias would divide by 0.
    for b in [f64::NAN, -0.1, 1.0] {
        fn rate() -> ScaleByLearningRate {
            scale_by_learning_rate(0.1)
        }
        assert!(
            message((ScaleByAdam { b1: b, ..scale_by_adam() }, rate())).contains("b1 must be at least 0 and below 1")
        );
        assert!(message((ScaleByAdam { b2: b, ..scale_by_adam() }, rate())).contains("b2 must be"));
        assert!(message(ScaleByAmsgrad { b2: b, ..scale_by_amsgrad() }).contains("b2 must be"));
        assert!(message(ScaleByAdamax { b2: b, ..scale_by_adamax() }).contains("b2 must be"));
        assert!(message(ScaleByBelief { b1: b, ..scale_by_belief() }).contains("b1 must be"));
        assert!(message(ScaleByYogi { b1: b, ..scale_by_yogi() }).contains("b1 must be"));
        assert!(message(ScaleByRadam { b2: b, ..scale_by_radam() }).contains("b2 must be"));
        assert!(message(ScaleByAdan { b3: b, ..scale_by_adan() }).contains("b3 must be"));
        assert!(message(scale_by_lion(b, 0.9)).contains("b1 must be"));
        assert!(message(ScaleByNovograd { b2: b, ..scale_by_novograd() }).contains("b2 must be"));
        assert!(message(scale_by_rms(b, 1e-8)).contains("decay must be"));
        assert!(message(ema(b, true)).contains("decay must be"));
        assert!(message(ScaleByMuon { beta: b, ..scale_by_muon() }).contains("beta must be"));
    }
    assert!(message(ScaleByAdam { eps: -1.0, ..scale_by_adam() }).contains("eps must be at least 0"));
    assert!(message(scale_by_rss(f64::NAN, 1e-7)).contains("initial_accumulator_value"));
    assert!(message(shardax_nn::optim::clip(-1.0)).contains("max_delta must be at least 0, got -1"));
    assert!(message(clip_by_global_norm(f64::NAN)).contains("max_norm must be at least 0"));
    assert!(message(clip_by_block_rms(0.0)).contains("threshold"));
    assert!(message(multi_steps(sgd(0.1), 0)).contains("every must be at least 1, got 0"));
    assert!(message(apply_every(0)).contains("k must be at least 1"));
    assert!(message(ScaleByLbfgs { memory_size: 0, ..scale_by_lbfgs() }).contains("memory_size must be at least 1"));
    assert!(message(Sam { sync_period: 0, ..sam(sgd(0.1), sgd(0.1)) }).contains("sync_period must be at least 1"));
    assert!(message(partition((("a", sgd(0.1)),), |_, _| "b")).contains("the label \"b\", which is none of [\"a\"]"));
    assert!(message(adam(cosine_decay_schedule(0.1, 0, 0.0))).contains("decay_steps"));
    assert!(message(adam(warmup_cosine_decay_schedule(0.0, 0.1, 10, 10, 0.0))).contains("decay_steps"));
    assert!(message(adam(piecewise_constant_schedule(0.1, [(1, -1.0)]))).contains("a scale must be at least 0"));
    assert!(
        message(adam(join_schedules([constant_schedule(0.1)], [3])))
            .contains("1 schedules join at 0 boundaries, got 1")
    );
    assert!(message(adam(&ones([2]))).contains("must be a scalar"));
    assert!(rejected(cosine_decay_schedule(0.1, 0, 0.0).at(0)).contains("decay_steps"));
    assert!(periodic_update(ones([1]), ones([1]), 0, 0).is_err());
}

#[test]
fn updates_are_added_in_the_common_dtype_and_rounded_once() -> Result<()> {
    setup();
    // 1 + 2^-8 is a tie, and 1 + 2^-8 + 2^-17 is above it: rounded first, the update would vanish.
    let (params, update) = (ones_dtype([1], DType::Bf16), array([2f32.powi(-8) + 2f32.powi(-17)]));
    let next = apply_updates(params, update.clone())?;
    assert_eq!((next.dtype(), next.to_f64_vec()?), (DType::Bf16, vec![1.0078125]));
    assert_eq!((ones_dtype([1], DType::Bf16) + update.astype(DType::Bf16)).to_f64_vec()?, [1.0]);
    Ok(())
}

/// Sums of squares in 16 bits would stop growing at a fraction of the value.
#[test]
fn norms_of_half_precision_are_summed_in_float32() -> Result<()> {
    setup();
    let x = random::normal(&random::key(0), [4096, 1024]);
    let exact = x.square().sum(..).to_f64()?.sqrt();
    assert!((exact - 2048.0).abs() < 3.0, "{exact}");
    for dtype in [DType::Bf16, DType::F16] {
        // Of float16 the sum of squares would be beyond the largest number; its length is not.
        let x = if dtype == DType::F16 { &x / 16 } else { x.clone() }.astype(dtype);
        let (wanted, tol) = if dtype == DType::F16 { (exact / 16.0, 1e-3) } else { (exact, 8e-3) };
        let norm = global_norm(&x);
        assert_eq!(norm.dtype(), dtype);
        assert!((norm.to_f64()? / wanted - 1.0).abs() < tol, "{dtype}: {norm}, not {wanted}");
        let clipping = clip_by_global_norm(1.0);
        let (clipped, ()) = clipping.update(x.clone(), clipping.init(&x)?, &x)?;
        let length = clipped.astype(DType::F32).square().sum(..).to_f64()?.sqrt();
        assert!((length - 1.0).abs() < 2.0 * tol, "{dtype}: {length}");
    }
    Ok(())
}

/// A new learning rate is data: the step is not recompiled.
#[test]
fn an_injected_learning_rate_is_read_and_set_without_a_new_program() -> Result<()> {
    setup();
    type Tx = InjectHyperparams<Sgd>;
    let tx = inject_hyperparams([("learning_rate", 0.5)], |h| sgd(&h["learning_rate"]));
    let traces = std::cell::Cell::new(0);
    let step = jit(|state: TrainState<Array, Tx>, grad: Array| {
        traces.set(traces.get() + 1);
        state.apply_gradients(grad)
    });
    let mut state = TrainState::create(array([1.0f32]), tx)?;
    let mut values = Vec::new();
    for (rate, wanted) in [(0.5f32, 0.5f32), (0.25, 0.25), (0.125, 0.125)] {
        assert!(state.opt_state.hyperparams["learning_rate"].item::<f32>()? > 0.0);
        state.opt_state.hyperparams.insert("learning_rate", array(rate));
        state = step.call((state, ones([1])))?;
        assert_eq!(state.params.to_vec::<f32>()?, [wanted]);
        values.push(traces.get());
    }
    // The first result is placed where the first arguments were not yet; from then on nothing changes.
    assert_eq!(values[1], values[2], "{values:?}");
    Ok(())
}

/// The state of a masked transformation holds nothing for the others, and paths are the model's.
#[test]
fn masks_and_groups_see_key_paths() -> Result<()> {
    setup();
    let model = Mlp::new(&mut Rngs::new(0));
    let adam_of_kernels = masked(scale_by_adam(), "**.kernel");
    let state = adam_of_kernels.init(&model)?;
    assert_eq!(state.mu.keys().collect::<Vec<_>>(), ["hidden.kernel", "out.kernel"]);
    let tx = partition((("head", adam(0.1)), ("body", set_to_zero())), |path: &str, _: &Array| {
        if path.starts_with("out") { "head" } else { "body" }
    });
    let mut optimizer = Optimizer::new(model.clone(), tx)?;
    optimizer.update(tree::map(|p| ones_like(&p), optimizer.params())?)?;
    let next = optimizer.model;
    fn same(a: &Array, b: &Array) -> Result<bool> {
        Ok(a.to_vec::<f32>()? == b.to_vec::<f32>()?)
    }
    assert!(same(&next.hidden.kernel, &model.hidden.kernel)?);
    assert!(!same(&next.out.kernel, &model.out.kernel)?);
    Ok(())
}

/// A label that no class has: the loss is NaN, and its gradient is the normalizer's gradient, as in Optax.
#[test]
fn the_gradient_of_an_unknown_label_is_softmax() -> Result<()> {
    setup();
    let logits = array([[1.0f32, 2.0, 0.5]]);
    fn loss(logits: Array) -> Array {
        softmax_cross_entropy_with_integer_labels(logits, array([7])).sum(..)
    }
    assert!(loss(logits.clone()).item::<f32>()?.is_nan());
    let slope = grad(loss).call(&logits)?;
    assert!(allclose(&slope, shardax::nn::softmax(&logits, -1), 1e-6, 0.0)?, "{slope}");
    Ok(())
}

/// Other libraries ignore the label -100. As in Optax, it is not a class, and does not count from the end.
#[test]
fn labels_below_zero_are_no_classes() -> Result<()> {
    setup();
    let logits = random::normal(random::key(0), [2, 200]);
    for label in [-100, -1, 200] {
        let labels = array([label, 3]);
        let loss = softmax_cross_entropy_with_integer_labels(&logits, &labels).to_vec::<f32>()?;
        assert!(loss[0].is_nan() && loss[1].is_finite(), "{label}: {loss:?}");
        // A mask leaves the row out, in the gradient too.
        fn masked(logits: Array, labels: &Array) -> Array {
            let losses = softmax_cross_entropy_with_integer_labels(logits, labels);
            where_(array([false, true]), losses, 0.0).sum(..)
        }
        let slope = grad(|logits: Array| masked(logits, &labels)).call(&logits)?;
        assert!(slope.get(0).equal(0.0).all(..).item::<bool>()? && slope.isfinite().all(..).item::<bool>()?, "{label}");
    }
    Ok(())
}

/// As in Optax, and documented: a label that is no class is emitted with probability 1.
#[test]
fn ctc_labels_out_of_range_have_probability_one() -> Result<()> {
    setup();
    let logits = random::normal(random::key(0), [1, 4, 3]);
    let loss =
        |labels: [i32; 2]| ctc_loss(&logits, zeros([1, 4]), array([labels]), zeros([1, 2]), 0, -1e5).item::<f32>();
    let valid = loss([1, 2])?;
    for label in [-1, 7] {
        assert!(loss([1, label])? < valid, "{label}");
        assert_eq!(loss([1, label])?, loss([1, -100])?);
    }
    Ok(())
}

/// As in Optax, and documented: before the step of the offset, the decay is not a number.
#[test]
fn factored_rms_before_its_offset_is_nan() -> Result<()> {
    setup();
    let optimizer = ScaleByFactoredRms { step_offset: 2, ..scale_by_factored_rms() };
    let params = ones([2]);
    let mut state = optimizer.init(&params)?;
    let updates = optimizer.update(params.clone(), state.clone(), &params)?.0;
    assert!(updates.isnan().all(..).item::<bool>()?, "{updates}");
    state.count = array(2);
    let updates = optimizer.update(params.clone(), state, &params)?.0;
    assert!(updates.isfinite().all(..).item::<bool>()?, "{updates}");
    Ok(())
}

/// As in Optax, and documented: after so many steps in a row, gradients that are not finite are applied.
#[test]
fn apply_if_finite_gives_up() -> Result<()> {
    setup();
    let mut state = TrainState::create(ones([1]), apply_if_finite(sgd(0.1), 2))?;
    for step in 0..4 {
        state = state.apply_gradients(array([f32::NAN]))?;
        assert_eq!(state.params.item::<f32>()?.is_nan(), step >= 2, "step {step}");
    }
    assert_eq!(state.opt_state.total_notfinite.item::<i32>()?, 4);
    Ok(())
}

/// Returns the parameters after three steps.
fn three_steps<T: GradientTransformation<Array>>(optimizer: T) -> Result<Vec<f32>> {
    let mut state = TrainState::create(array([3.0f32, 4.0, 5.0]), optimizer)?;
    for gradient in [[1.0f32, -2.0, 0.5], [0.5, 1.0, -1.0], [2.0, 2.0, 2.0]] {
        state = state.apply_gradients(array(gradient))?;
    }
    state.params.to_vec::<f32>()
}

/// The numbers are from Optax 0.2.8.
#[test]
fn optimizer_options_equal_optax() -> Result<()> {
    setup();
    let moments = rmsprop(0.1).decay(0.8).eps(1e-2).eps_in_sqrt(false).bias_correction(true);
    let centered = rmsprop_centered(0.1, None);
    for (name, params, expected) in [
        (
            "rmsprop",
            three_steps(rmsprop(0.1).decay(0.95).eps(1e-3).initial_scale(0.5))?,
            [2.55091f32, 3.90711, 4.82689],
        ),
        ("rmsprop, corrected", three_steps(moments)?, [2.69537, 3.91997, 4.88365]),
        (
            "rmsprop_centered",
            three_steps(rmsprop_centered(0.1, Some(0.9)).decay(0.95).eps(1e-2))?,
            [1.08695, 4.52706, 4.4061],
        ),
        (
            "rmsprop_centered, eps outside",
            three_steps(centered.clone().decay(0.8).eps(1e-2).eps_in_sqrt(false))?,
            [2.37176, 3.96922, 4.75943],
        ),
        ("rmsprop_centered, initial scale", three_steps(centered.initial_scale(0.3))?, [2.49254, 3.93377, 4.83567]),
        ("adagrad", three_steps(adagrad(0.1).initial_accumulator_value(0.3).eps(1e-2))?, [2.78778, 3.98739, 4.92843]),
        ("lion", three_steps(lion(0.1).b1(0.8).b2(0.7).weight_decay(0.05))?, [2.65672, 4.0388, 4.82587]),
        ("amsgrad", three_steps(amsgrad(0.1).b1(0.8).b2(0.9).eps(1e-2).eps_root(1e-3))?, [2.73885, 4.08508, 4.89807]),
        ("adamax", three_steps(adamax(0.1).b1(0.8).b2(0.9).eps(1e-2))?, [2.75955, 4.08694, 4.90397]),
        (
            "adabelief",
            three_steps(adabelief(0.1).b1(0.8).b2(0.9).eps(1e-2).eps_root(1e-3))?,
            [2.62882, 4.10687, 4.87574],
        ),
        ("yogi", three_steps(yogi(0.1).b1(0.8).b2(0.9).eps(1e-2))?, [2.72416, 4.08593, 4.89812]),
        ("radam", three_steps(radam(0.1).b1(0.8).b2(0.9).eps(1e-2).threshold(4.5))?, [2.70319, 4.17104, 4.92104]),
        ("adan", three_steps(adan(0.1, 0.05).b1(0.8).b2(0.9).b3(0.7).eps(1e-2))?, [2.68105, 4.00881, 4.8316]),
        (
            "novograd",
            three_steps(novograd(0.1).b1(0.8).b2(0.5).eps(1e-2).weight_decay(0.05))?,
            [2.69937, 3.94292, 4.83815],
        ),
        ("adamw", three_steps(adamw(0.1, 0.9).b1(0.8).weight_decay(0.05))?, [2.67116, 4.02431, 4.82124]),
        ("lamb", three_steps(lamb(0.1, 0.0).b1(0.8).weight_decay(0.05))?, [1.40558, 4.02285, 4.31592]),
        ("adamaxw", three_steps(adamaxw(0.1, 0.0).b1(0.8).weight_decay(0.05))?, [2.72199, 4.02475, 4.82839]),
    ] {
        let distance = params.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
        assert!(distance < 2e-5, "{name}: {params:?} is not {expected:?}");
    }
    Ok(())
}

#[test]
fn dpsgd_accepts_a_seed_or_a_key() -> Result<()> {
    let words = |tx: DpSgd| random::key_data(&tx.0.key).to_vec::<u32>();
    let expected = [0, 7];
    assert_eq!(words(dpsgd(0.1, 1.0, 1.0, 7, None))?, expected);
    assert_eq!(words(dpsgd(0.1, 1.0, 1.0, random::key(7), None))?, expected);
    assert_eq!(words(dpsgd(0.1, 1.0, 1.0, random::PRNGKey(7), None))?, expected);
    Ok(())
}

#[test]
fn sgd_options_do_not_depend_on_their_order() -> Result<()> {
    setup();
    let options = |tx: Sgd| tx.0.map(|momentum| (momentum.decay, momentum.nesterov));
    assert_eq!(options(sgd(0.1).nesterov(true).momentum(0.9)), Some((0.9, true)));
    assert_eq!(options(sgd(0.1).momentum(0.9).nesterov(true)), Some((0.9, true)));
    assert_eq!(options(sgd(0.1).nesterov(false).momentum(0.9)), Some((0.9, false)));
    assert_eq!(options(sgd(0.1).momentum(0.9).nesterov(true).nesterov(false)), Some((0.9, false)));
    // Without momentum, Nesterov's changes nothing.
    assert_eq!(three_steps(sgd(0.1).nesterov(true))?, three_steps(sgd(0.1))?);
    Ok(())
}

#[test]
fn sparsemax_losses_of_batches_of_batches() -> Result<()> {
    setup();
    let scores = array([[3.0f32, 0.0, 0.0], [0.0, 1.0, 0.0]]);
    let one = multiclass_sparsemax_loss(scores.get(1), array(0));
    assert_eq!((one.shape(), one.item::<f32>()?), ([].as_slice(), 1.0));
    let batch = multiclass_sparsemax_loss(scores.broadcast_to([2, 2, 3]), zeros_dtype([2, 2], DType::I32));
    assert_eq!((batch.shape(), batch.to_vec::<f32>()?), ([2, 2].as_slice(), vec![0.0, 1.0, 0.0, 1.0]));
    Ok(())
}

/// The parameters after three steps with the same gradients.
fn three_complex_steps<T: GradientTransformation<Array>>(optimizer: T) -> Result<Vec<f64>> {
    let mut params = complex(array([1.0f32, -2.0]), array([0.5f32, 0.0]));
    let gradients = complex(array([0.1f32, 0.3]), array([-0.5f32, 0.0]));
    let mut state = optimizer.init(&params)?;
    for _ in 0..3 {
        let (updates, next) = optimizer.update(gradients.clone(), state, &params)?;
        (params, state) = (apply_updates(params, updates)?, next);
    }
    Ok([params.real().to_f64_vec()?, params.imag().to_f64_vec()?].concat())
}

/// With Optax's numbers: the moments of complex parameters are real numbers of a complex dtype, which are compared.
#[test]
fn optimizers_of_complex_parameters_equal_optax() -> Result<()> {
    setup();
    for (found, want) in [
        (three_complex_steps(adagrad(0.1))?, [0.95997328, -2.17483926, 0.70013356, 0.0]),
        (three_complex_steps(adamax(0.1))?, [0.94116521, -2.29999971, 0.79417413, 0.0]),
        (three_complex_steps(amsgrad(0.1))?, [0.94116569, -2.29999733, 0.79417157, 0.0]),
        (three_complex_steps(distance_over_gradients())?, [0.77242488, -2.68272543, 1.63787568, 0.0]),
        (three_complex_steps(weighted_gradients())?, [0.63894290, -3.08317113, 2.30528545, 0.0]),
    ] {
        assert!(found.iter().zip(want).all(|(x, y)| (x - y).abs() < 1e-5), "{found:?} is not {want:?}");
    }
    Ok(())
}

fn distance_over_gradients() -> (contrib::ScaleByDog, Scale) {
    (contrib::ScaleByDog { init_step: contrib::DogStep::Distance(0.5), ..contrib::scale_by_dog() }, scale(-1.0))
}

fn weighted_gradients() -> (contrib::ScaleByDowg, Scale) {
    (contrib::ScaleByDowg { init_estim_sq_dist: Some(0.5), ..contrib::scale_by_dowg() }, scale(-1.0))
}

/// Optax squares complex gradients without their absolute value, and compares complex estimates.
#[test]
fn parameter_free_optimizers_of_imaginary_parameters_equal_real_ones() -> Result<()> {
    setup();
    fn steps<T: GradientTransformation<Array>>(optimizer: T, unit: &Array) -> Result<Array> {
        let mut params = array([1.0f32, -2.0]) * unit;
        let mut state = optimizer.init(&params)?;
        for step in 1..4 {
            let gradients = array([0.1f32, 0.3]) / step * unit;
            let (updates, next) = optimizer.update(gradients, state, &params)?;
            (params, state) = (apply_updates(params, updates)?, next);
        }
        Ok(params)
    }
    let (one, unit) = (array(1.0f32), complex(array(0.0f32), array(1.0f32)));
    let adapted = contrib::DAdaptAdamW { estim_lr0: 0.01, ..contrib::dadapt_adamw(1.0) };
    let expert = contrib::Prodigy { estim_lr0: 0.01, ..contrib::prodigy(1.0) };
    for (real, imaginary) in [
        (steps(adapted.clone(), &one)?, steps(adapted, &unit)?),
        (steps(expert.clone(), &one)?, steps(expert, &unit)?),
        (steps(distance_over_gradients(), &one)?, steps(distance_over_gradients(), &unit)?),
        (steps(weighted_gradients(), &one)?, steps(weighted_gradients(), &unit)?),
    ] {
        assert_eq!(imaginary.dtype(), DType::Complex64);
        assert!(allclose(imaginary.imag(), &real, 1e-6, 1e-6)?, "{imaginary} is not i times {real}");
        assert!(allclose(imaginary.real(), zeros(2), 0.0, 1e-6)?, "{imaginary} is not i times {real}");
    }
    Ok(())
}

/// Optax returns NaN.
#[test]
fn impossible_classes_without_weight_add_nothing_to_losses() -> Result<()> {
    setup();
    const INF: f32 = f32::INFINITY;
    let (logs, targets) = (array([-INF, 0.0]), array([0.0f32, 1.0]));
    assert_eq!(kl_divergence(&logs, &targets).item::<f32>()?, 0.0);
    assert_eq!(generalized_kl_divergence(&logs, &targets).item::<f32>()?, 0.0);
    assert_eq!(kl_divergence_with_log_targets(&logs, &logs).item::<f32>()?, 0.0);
    assert_eq!(kl_divergence_with_log_targets(array([-1.0f32, 0.0]), &logs).item::<f32>()?, 0.0);
    let slope = grad(|logs: Array| kl_divergence(logs, &targets)).call(&logs)?;
    assert_eq!(slope.to_vec::<f32>()?, [0.0, -1.0]);
    // A class with weight that is predicted to be impossible, and NaN.
    assert_eq!(kl_divergence(&logs, array([0.5f32, 0.5])).item::<f32>()?, INF);
    assert!(kl_divergence(array([f32::NAN, 0.0]), &targets).item::<f32>()?.is_nan());

    let (logits, labels) = (array([INF, -INF, INF, -INF, f32::NAN]), array([1.0f32, 0.0, 0.0, 1.0, 1.0]));
    let loss = sigmoid_binary_cross_entropy(&logits, &labels).to_vec::<f32>()?;
    assert_eq!(loss[..4], [0.0, 0.0, INF, INF]);
    assert!(loss[4].is_nan());
    let slope = grad(|x: Array| sigmoid_binary_cross_entropy(x, &labels).sum(..)).call(&logits)?.to_vec::<f32>()?;
    assert_eq!(slope[..4], [0.0, 0.0, 1.0, -1.0]);
    // The slope by a label is the negative logit, at 0 and 1 too.
    let by_label = grad(|labels: Array| sigmoid_binary_cross_entropy(array([2.0f32, -3.0]), labels).sum(..));
    assert!(allclose(by_label.call(array([0.0f32, 1.0]))?, array([-2.0f32, 3.0]), 1e-6, 1e-6)?);
    Ok(())
}
