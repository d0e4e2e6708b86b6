//! Data-parallel training as programs ported from JAX write it: replicated state, one step over all devices, metrics.

#[path = "../../shardax/tests/common/quick.rs"]
#[allow(dead_code)]
mod quick;

use quick::setup;
use shardax_nn::prelude::*;
use shardax_train::*;

const DEVICES: usize = 8;
const FEATURES: usize = 5;

#[derive(Module, Clone, Debug)]
struct Line {
    out: Linear,
}

#[derive(Module, Clone, Debug)]
struct Mlp {
    hidden: Linear,
    out: Linear,
}

/// The methods that the loop below needs.
trait Model: Module {
    fn new(rngs: &mut Rngs) -> Self;
    fn forward(&self, x: &Array) -> Array;
}

impl Model for Line {
    fn new(rngs: &mut Rngs) -> Self {
        Line { out: Linear::new(FEATURES, 3, rngs) }
    }
    fn forward(&self, x: &Array) -> Array {
        self.out.forward(x)
    }
}

impl Model for Mlp {
    fn new(rngs: &mut Rngs) -> Self {
        Mlp { hidden: Linear::new(FEATURES, 32, rngs), out: Linear::new(32, 3, rngs) }
    }
    fn forward(&self, x: &Array) -> Array {
        self.out.forward(relu(self.hidden.forward(x)))
    }
}

type State<M> = Optimizer<M>;

/// Labels are the place of the largest of three of the features.
fn data(n: usize) -> (Array, Array) {
    let x = random::normal(&random::key(5), [n, FEATURES]);
    let labels = x.get((.., 0..3)).argmax(-1);
    (x, labels)
}

fn loss_and_accuracy<M: Model>(model: M, x: Array, labels: Array) -> (Array, Array) {
    let logits = model.forward(&x);
    let loss = softmax_cross_entropy(&logits, one_hot(&labels, 3)).mean(..);
    (loss, accuracy(logits, labels))
}

/// A device's gradient, the mean of all gradients, and the same update everywhere.
fn train_step<M: Model>(mut state: State<M>, x: Array, labels: Array) -> Result<(State<M>, Array, Array)> {
    let ((loss, accuracy), grads) = value_and_grad(loss_and_accuracy::<M>).has_aux().call((&state.model, x, labels))?;
    state.update(pmean(grads, "batch"))?;
    let (loss, accuracy) = pmean((loss, accuracy), "batch");
    Ok((state, loss, accuracy))
}

/// The loop for any model: state replicated with a leading axis, as `pmap` programs have it, and all that comes back.
/// Returns the state, and the loss and accuracy of each epoch.
fn train<M: Model>(epochs: usize) -> Result<(State<M>, Vec<(f32, f32)>)> {
    // A number of samples that the devices divide, reshaped by hand
    let (x, labels) = data(100 * DEVICES);
    let (x, labels) = (x.reshape([DEVICES, 100, FEATURES]), labels.reshape([DEVICES, 100]));
    let mut state = replicate(&State::new(M::new(&mut Rngs::new(0)), adam(2e-2))?)?;
    let step = pmap(train_step::<M>).axis_name("batch").donate_argnums([0]);
    let mut history = Vec::new();
    for _ in 0..epochs {
        let (next, loss, accuracy) = step.call((state, &x, &labels))?;
        state = next;
        assert_eq!((loss.shape(), accuracy.shape()), ([DEVICES].as_slice(), [DEVICES].as_slice()));
        // What is equal on all devices is read from one of them
        history.push((loss.get(0).item::<f32>()?, accuracy.addressable_shards()?[0].data.squeeze(0).item::<f32>()?));
    }
    Ok((state, history))
}

/// Parameters, moments and the step are replicated. State, loss and metrics come back, all with the
/// device axis. Another model is another type.
#[test]
fn any_model_trains_in_the_same_loop() -> Result<()> {
    setup();
    fn learns<M: Model>(at_least: f32) -> Result<()> {
        let (state, history) = train::<M>(60)?;
        for (path, leaf) in tree::leaves_with_path(&state) {
            assert_eq!(leaf.shape().first(), Some(&DEVICES), "{path}");
            let first_replica = leaf.get(0);
            for device in 1..DEVICES {
                assert_eq!(leaf.get(device).to_bytes()?, first_replica.to_bytes()?, "{path} on device {device}");
            }
        }
        assert!(tree::leaves(&state).len() > 2 * tree::leaves(&state.model).len(), "moments and the step are there");
        let (first, last) = (history[0], history[59]);
        assert!(last.0 < 0.5 * first.0 && last.1 > at_least, "{first:?} to {last:?}");
        // Training continues with one copy.
        let single_copy = unreplicate(&state)?;
        let (x, labels) = data(100 * DEVICES);
        assert!(loss_and_accuracy(single_copy.model, x, labels).1.item::<f32>()? > at_least);
        Ok(())
    }
    learns::<Line>(0.85)?;
    learns::<Mlp>(0.9)
}

/// The odd last batch is left out, averages are printed with four decimals.
#[test]
fn an_epoch_over_batches() -> Result<()> {
    setup();
    let (train, _) = digits()?.split(250);
    let mean = pmap(|x: Array| pmean(x.mean(..), "batch")).axis_name("batch").out_axes(None);
    let (mut average, mut steps) = (Average::new(), 0);
    for batch in train.batches(64).drop_last() {
        let batch = shard_batch(&batch?, DEVICES)?;
        assert_eq!(batch.images.shape(), [DEVICES, 8, 8, 8, 1]);
        average.add(mean.call(batch.images)?);
        steps += 1;
    }
    assert_eq!(steps, 3);
    let mean_of_all: f32 =
        (0..192).flat_map(|i| train.image(i).unwrap_or_default().to_vec()).sum::<f32>() / (192. * 64.);
    assert_eq!(format!("loss {:.4}", average.value()?), format!("loss {mean_of_all:.4}"));
    Ok(())
}

/// Gradients synchronized in bfloat16 are half the bytes; in float32, with the forward pass in bfloat16, as
/// many as without mixed precision.
#[test]
fn bytes_sent_with_mixed_precision() -> Result<()> {
    setup();
    fn sent(forward: DType, sync: DType) -> Result<(usize, String)> {
        let step = pmap(move |w: Array, x: Array| -> Result<Array> {
            fn loss(w: Array, x: &Array, forward: DType) -> Array {
                x.astype(forward).matmul(w.astype(forward)).astype(DType::F32).square().mean(..)
            }
            let gradient = grad(|w: Array| loss(w, &x, forward)).call(&w)?;
            Ok(w - pmean(gradient.astype(sync), "batch").astype(DType::F32) * 0.1)
        });
        let types = (shape_dtype_struct([64, 32], DType::F32), shape_dtype_struct([DEVICES, 4, 64], DType::F32));
        let lowered = step.axis_name("batch").in_axes((None, 0)).out_axes(None).lower(types)?;
        let bytes = lowered.compile()?.collectives()?.iter().map(|c| c.bytes * c.count).sum();
        let text = lowered.as_text();
        let reduced = text.lines().find(|l| l.contains("use_global_device_ids")).and_then(|l| l.rsplit("-> ").next());
        Ok((bytes, reduced.unwrap_or_default().to_owned()))
    }
    let kernel = (64 * 32 * 4, "tensor<64x32xf32>".to_owned());
    assert_eq!(sent(DType::F32, DType::F32)?, kernel);
    assert_eq!(sent(DType::Bf16, DType::F32)?, kernel);
    // XLA's CPU compiler widens sums. The program itself sends half precision.
    let half = sent(DType::Bf16, DType::Bf16)?;
    assert!(half.0 <= kernel.0 && half.1 == "tensor<64x32xbf16>", "{half:?}");
    Ok(())
}

/// A step returns before it has run, and adding its loss to an average does not wait for it; reading does.
#[test]
fn losses_are_read_only_when_requested() -> Result<()> {
    setup();
    let step = pmap(|x: Array| pmean((0..6).fold(x, |x, _| x.matmul(&x) / 512).mean(..), "batch"))
        .axis_name("batch")
        .out_axes(None);
    let x = ones([DEVICES, 512, 512]);
    // Everything is compiled, and the argument placed, before the steps that count.
    let mut first_average = Average::new();
    first_average.add(step.call(&x)?);
    first_average.add(step.call(&x)?);
    first_average.value()?;
    let mut average = Average::new();
    let losses = (0..3).map(|_| step.call(&x)).collect::<Result<Vec<_>>>()?;
    for loss in &losses {
        average.add(loss.clone());
    }
    assert!(!losses[2].is_ready()?, "the third step ran within the time that calling it took");
    assert_eq!(average.value()?, 1.0);
    Ok(())
}
