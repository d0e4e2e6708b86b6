//! Training resumes from a checkpoint as if it had never stopped, on the same devices or on others.

use shardax_nn::prelude::*;
use shardax_train::checkpoint::{CheckpointManager, CheckpointManagerOptions, RestoreOptions, SaveArgs};
use shardax_train::{Batch, digits};

use super::{Folder, bits, setup};

#[derive(Module, Clone)]
struct Mlp {
    hidden: Linear,
    dropout: Dropout,
    out: Linear,
}

impl Mlp {
    fn new(rules: &Rules, seed: u32) -> Mlp {
        let mut rngs = Rngs::new(seed).with_rules(rules);
        let hidden = Linear::builder(64, 32).kernel_axes(["embed", "mlp"]).build(&mut rngs);
        let out = Linear::builder(32, 10).kernel_axes(["mlp", "classes"]).build(&mut rngs);
        Mlp { hidden, dropout: Dropout::new(0.2, &mut rngs), out }
    }

    fn forward(&mut self, x: &Array) -> Array {
        let x = self.hidden.forward(x.reshape([-1, 64]));
        self.out.forward(self.dropout.forward(relu(x)))
    }
}

type State = Optimizer<Mlp>;

fn start(rules: &Rules, seed: u32) -> Result<State> {
    rules.device_put(&Optimizer::new(Mlp::new(rules, seed), adamw(1e-2, 1e-4))?)
}

fn train_step(mut optimizer: State, batch: Batch) -> Result<(State, Array)> {
    let loss = optimizer.minimize(|model| {
        softmax_cross_entropy_with_integer_labels(model.forward(&batch.images), &batch.labels).mean(..)
    })?;
    Ok((optimizer, loss))
}

const BATCHES: usize = 4;

/// Trains from one step to another; each takes the next batch of digits, in an order that differs from epoch to epoch.
fn train(rules: &Rules, mut state: State, steps: std::ops::Range<usize>) -> Result<(State, Vec<f32>)> {
    let data = digits()?.split(64 * BATCHES).0;
    let to = rules.sharding(["batch"]).map(Sharding::from);
    let shardings = rules.shardings(&state)?;
    let step = match &to {
        Some(_) => jit(train_step).out_shardings((&shardings, UNSPECIFIED)),
        None => jit(train_step),
    }
    .donate_argnums([0]);
    let mut losses = Vec::new();
    for at in steps {
        let epoch = (at / BATCHES) as u64;
        let batch = data.batches(64).shuffle(epoch).nth(at % BATCHES).expect("a batch")?;
        let batch = match &to {
            Some(to) => device_put(&batch, to)?,
            None => batch,
        };
        let (next, loss) = step.call((state, batch))?;
        state = next;
        losses.push(loss.item()?);
    }
    Ok((state, losses))
}

/// One device, copies on eight, and parameters split over as many.
fn placements() -> Result<Vec<(&'static str, Rules)>> {
    fn over(n: usize) -> Result<Mesh> {
        make_mesh([("data", n)])
    }
    fn fsdp(n: usize) -> Result<Rules> {
        Ok(Rules::new(&over(n)?, [("batch", "data")]).and("embed", "data").and("mlp", None::<&str>))
    }
    Ok(vec![
        ("1 device", Rules::default()),
        ("2 devices, copies", Rules::new(&over(2)?, [("batch", "data")])),
        ("8 devices, copies", Rules::new(&over(8)?, [("batch", "data")])),
        ("4 devices, split", fsdp(4)?),
        ("8 devices, split", fsdp(8)?),
    ])
}

/// Ten steps are five, a checkpoint, and five.
#[test]
fn a_training_resumes_bit_for_bit() -> Result<()> {
    setup();
    for (name, rules) in placements()?.into_iter().filter(|(name, _)| ["1 device", "8 devices, split"].contains(name)) {
        let folder = Folder::new();
        let (whole, losses) = train(&rules, start(&rules, 3)?, 0..10)?;
        {
            let (half, first) = train(&rules, start(&rules, 3)?, 0..5)?;
            assert_eq!(first, losses[..5], "{name}");
            let mut checkpoints = CheckpointManager::new(&folder.0, CheckpointManagerOptions::new())?;
            let position = serde_json::json!({ "next": 5 });
            checkpoints.save_with(5, &half, &SaveArgs::new().metadata(position))?;
            // What is saved are the values of now: these are given away while they are written.
            train(&rules, half, 5..7)?;
        }
        let mut checkpoints = CheckpointManager::new(&folder.0, CheckpointManagerOptions::new())?;
        // Another seed: nothing of it is left.
        let latest = checkpoints.restore_latest(&start(&rules, 99)?)?.expect("a checkpoint");
        let next_position = latest.metadata["next"].as_u64().expect("a position") as usize;
        assert_eq!((latest.step, next_position), (5, 5));
        let (again, rest) = train(&rules, latest.tree, next_position..10)?;
        assert_eq!(rest, losses[5..], "{name}");
        assert_eq!(bits(&again)?, bits(&whole)?, "{name}");
    }
    Ok(())
}

/// A state saved on some devices resumes on others, where each device has the bits of a run that began there.
#[test]
fn a_training_resumes_on_other_devices() -> Result<()> {
    setup();
    let folder = Folder::new();
    let all_placements = placements()?;
    let mut checkpoints = CheckpointManager::new(&folder.0, CheckpointManagerOptions::new())?;
    for (at, (_, rules)) in all_placements.iter().enumerate() {
        let (state, _) = train(rules, start(rules, 3)?, 0..2)?;
        checkpoints.save(at as u64 + 1, &state)?;
        checkpoints.wait_until_finished()?;
        let types = eval_shape(|()| start(&Rules::default(), 0), ())?;
        for (name, to) in &all_placements {
            let shardings = to.shardings(&state)?;
            let options = RestoreOptions::new().shardings(&shardings);
            let restored = checkpoints.restore_with(at as u64 + 1, &types, &options)?;
            assert_eq!(bits(&restored)?, bits(&state)?, "{name}");
            for ((path, array), want) in tree::leaves_with_path(&restored).iter().zip(shardings.leaves()) {
                let lies = array.sharding()?;
                assert!(
                    want.as_ref().is_none_or(|want| lies.is_equivalent_to(want, array.ndim())),
                    "{name} {path}: {lies}"
                );
            }
            // From one of them, since each is compiled separately.
            if at == 4 {
                assert!(train(to, restored, 2..3)?.1[0].is_finite(), "{name}");
            }
        }
    }
    Ok(())
}
