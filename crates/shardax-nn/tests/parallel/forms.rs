//! Every form of parallelism compared with one device: loss, gradients, ten steps of AdamW, and communication.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use shardax_nn::prelude::*;

use super::model::*;
use super::quick::{QUICK, is_complete};
use super::setup;

/// The losses of ten steps, the first gradients, and the model at the end.
struct Run {
    losses: Vec<f32>,
    grads: ModuleState,
    last: ModuleState,
}

impl Run {
    fn of(mut state: State, step: impl Fn(State) -> Result<(State, Array, Lm)>) -> Result<Run> {
        let (mut losses, mut first) = (Vec::new(), None);
        for _ in 0..10 {
            let (next, loss, grads) = step(state)?;
            state = next;
            losses.push(loss.item::<f32>()?);
            first.get_or_insert(grads);
        }
        let grads = first.map(|grads| grads.state()).unwrap_or_default();
        Ok(Run { losses, grads, last: state.model.state() })
    }

    /// On one device.
    fn alone(experts: bool) -> &'static Run {
        static RUNS: [OnceLock<Run>; 2] = [const { OnceLock::new() }; 2];
        RUNS[usize::from(experts)].get_or_init(|| {
            fn run(experts: bool) -> Result<Run> {
                let (tokens, targets) = batch();
                let state = start(&Config { experts, ..Config::default() })?;
                let step = jit(step).lower((&state, &tokens, &targets))?.compile_with_options(&QUICK)?;
                Run::of(state, |state| step.call((state, &tokens, &targets)))
            }
            run(experts).expect("one device")
        })
    }

    #[track_caller]
    fn equals(&self, want: &Run) -> Result<()> {
        assert!(want.losses[9] < want.losses[0]);
        for (got, want) in self.losses.iter().zip(&want.losses) {
            assert!((got - want).abs() <= 2e-5 * want, "losses {:?}, want {:?}", self.losses, want);
        }
        for (what, got, want, tolerance) in
            [("gradient", &self.grads, &want.grads, 2e-6), ("after ten steps", &self.last, &want.last, 2e-4)]
        {
            for ((path, got), (_, want)) in got.iter().zip(want.iter()) {
                assert_eq!(got.shape(), want.shape(), "{path}");
                let (got, want) = (device_get(got)?, device_get(want)?);
                assert!(allclose(&got, &want, 1e-4, tolerance)?, "{what} of {path}: {got} {want}");
            }
        }
        Ok(())
    }
}

/// Compiles a step with these rules, runs it ten times and compares it; returns its communication.
#[track_caller]
fn by_rules(config: &Config) -> Result<Sent> {
    let state = config.rules.device_put(&start(config)?)?;
    let place = |x: Array| match config.rules.sharding(["batch", "length"]) {
        Some(sharding) => device_put(&x, &sharding),
        None => Ok(x),
    };
    let (tokens, targets) = batch();
    let (tokens, targets) = (place(tokens)?, place(targets)?);
    let shardings = (config.rules.shardings(&state)?, config.rules.shardings(&state.model)?);
    let step = jit(step).out_shardings((&shardings.0, UNSPECIFIED, &shardings.1));
    let compiled = step.lower((&state, &tokens, &targets))?.compile_with_options(&QUICK)?;
    Run::of(state, |state| compiled.call((state, &tokens, &targets)))?.equals(Run::alone(config.experts))?;
    Sent::of(&compiled)
}

/// The bytes of the communication report, by collective, axes, and inside or outside a loop.
#[derive(Debug)]
struct Sent(BTreeMap<String, usize>);

impl Sent {
    fn of<A: Tree, O: Tree>(compiled: &Compiled<A, O>) -> Result<Self> {
        let mut lines = BTreeMap::new();
        for c in compiled.collectives()?.iter() {
            let axes: Vec<&str> = c.axes.iter().map(|axis| axis.as_str()).collect();
            let description = format!("{} {}{}", c.kind, axes.join(","), if c.in_loop { " loop" } else { "" });
            *lines.entry(description).or_default() += c.bytes * c.count;
        }
        Ok(Sent(lines))
    }

    /// The formulas count numbers of four bytes.
    #[track_caller]
    fn is<const N: usize>(&self, theory: [(&str, usize); N]) {
        let want: BTreeMap<String, usize> = theory.into_iter().map(|(what, n)| (what.to_owned(), 4 * n)).collect();
        assert_eq!(self.0, want);
    }
}

// The terms of the formulas in `docs/parallelism.md`, as counts of numbers.
const DEPTH: usize = FEATURES / HEADS;
/// The matrices of a block: queries and output, keys and values, and the two of its MLP.
const MATRICES: usize = 2 * FEATURES * FEATURES + 2 * FEATURES * KV_HEADS * DEPTH + 2 * FEATURES * HIDDEN;
const NORMS: usize = 2 * FEATURES;
const BLOCK: usize = MATRICES + NORMS;
/// The embedding table, and the layers after the blocks: a norm and the output layer.
const TABLE: usize = VOCABULARY * FEATURES;
const LAST: usize = FEATURES + FEATURES * VOCABULARY;
const TOKENS: usize = ROWS * LENGTH;
/// The activations between blocks.
const X: usize = TOKENS * FEATURES;
/// Sums over `model` in a block: forward of attention and MLP, backward of the MLP, of queries, keys and values.
const SUMS: usize = 2 + 1 + 3;

fn rules(axes: &[(&'static str, usize)], rules: &[(&'static str, &'static str)]) -> Result<Rules> {
    let mesh = make_mesh(axes.iter().copied())?;
    Ok(Rules::new(&mesh, rules.iter().copied()))
}

fn dense(rules: Rules) -> Config {
    Config { rules, ..Config::default() }
}

/// By `pmap`, by `shard_map` and by the compiler: gradients are reduced once per step.
#[test]
fn data_parallel() -> Result<()> {
    setup();
    let (tokens, targets) = batch();
    fn of_devices(x: &Array) -> Array {
        x.reshape([8, ROWS / 8, LENGTH])
    }
    fn mapped(mut state: State, tokens: Array, targets: Array) -> Result<(State, Array, Lm)> {
        let (loss, grads) = value_and_grad(Lm::loss).call((&state.model, tokens, targets))?;
        let (loss, grads) = pmean((loss, grads), "data");
        state.update(grads.clone())?;
        Ok((state, loss, grads))
    }
    let mapped = pmap(mapped).axis_name("data").in_axes((None, 0, 0)).out_axes(None);
    let state = start(&Config::default())?;
    let (own, own_targets) = (of_devices(&tokens), of_devices(&targets));
    let compiled = mapped.lower((&state, &own, &own_targets))?.compile_with_options(&QUICK)?;
    Sent::of(&compiled)?.is([("all-reduce data", LAYERS * BLOCK + TABLE + LAST + 1)]);
    Run::of(state.clone(), |state| compiled.call((state, &own, &own_targets)))?.equals(Run::alone(false))?;

    let mesh = make_mesh([("data", 8)])?;
    fn local(mut state: State, tokens: Array, targets: Array) -> Result<(State, Array, Lm)> {
        fn loss(model: Lm, tokens: Array, targets: Array) -> Result<Array> {
            Ok(pmean(model.loss(tokens, targets)?, "data"))
        }
        let (loss, grads) = value_and_grad(loss).call((&state.model, tokens, targets))?;
        state.update(grads.clone())?;
        Ok((state, loss, grads))
    }
    let local = jit(shard_map(local, &mesh).in_specs((P![], P!["data"], P!["data"])).out_specs(P![]));
    let state = device_put(&state, &NamedSharding::new(&mesh, P![]))?;
    let rows = NamedSharding::new(&mesh, P!["data"]);
    let (own, own_targets) = (device_put(&tokens, &rows)?, device_put(&targets, &rows)?);
    let compiled = local.lower((&state, &own, &own_targets))?.compile_with_options(&QUICK)?;
    Sent::of(&compiled)?.is([("all-reduce data loop", BLOCK), ("all-reduce data", TABLE + LAST + 1)]);
    Run::of(state, |state| compiled.call((state, &own, &own_targets)))?.equals(Run::alone(false))?;

    by_rules(&dense(rules(&[("data", 8)], &[("batch", "data")])?))?.is([
        ("all-reduce data loop", BLOCK),
        // A device sums the gradients of the table's rows for its own tokens.
        ("all-reduce data", TABLE + LAST + 1),
    ]);
    Ok(())
}

/// FSDP: a block's parameters are gathered forward and backward. Tensor parallelism: a block's activations are summed.
#[test]
fn parameters_and_layers_split() -> Result<()> {
    setup();
    by_rules(&dense(rules(&[("data", 8)], &[("batch", "data"), ("embed", "data")])?))?.is([
        ("all-gather data loop", 2 * MATRICES),
        ("all-reduce data loop", BLOCK),
        ("all-reduce data", LAST + 1),
        // Tokens; the matrix of the output layer.
        ("all-gather data", TOKENS + FEATURES * VOCABULARY),
        // From features to rows, and back.
        ("all-to-all data", 2 * X / 8),
    ]);
    // The mesh of three axes below has these rules too, and so have the next tests.
    if is_complete() {
        by_rules(&dense(rules(&[("model", 2)], &[("heads", "model"), ("mlp", "model")])?))?
            .is([("all-reduce model loop", SUMS * X)]);
    }
    let mesh = make_mesh([("data", 2), ("fsdp", 2), ("model", 2)])?;
    let three = Rules::new(&mesh, [("batch", ("data", "fsdp"))]).and("embed", "fsdp");
    by_rules(&dense(three.and("heads", "model").and("mlp", "model")))?.is([
        ("all-gather fsdp loop", 2 * MATRICES / 2),
        ("all-reduce model loop", SUMS * X / 4),
        // Gradients are summed over `fsdp`, and a device's half of them over `data`.
        ("all-reduce fsdp loop", MATRICES / 2),
        ("all-reduce data loop", MATRICES / 4),
        ("all-reduce data,fsdp loop", NORMS),
        ("all-reduce data,fsdp", FEATURES + FEATURES * VOCABULARY / 2 + TABLE / 2 + 1),
        // The output layer's matrix is moved from `fsdp` to `model` to all, and its gradient back; the table is moved
        // to `model`, and its gradient back; a device looks up half the features of its tokens, and gets the other
        // half.
        ("collective-permute fsdp,model", FEATURES * VOCABULARY + TABLE),
        ("all-gather model", FEATURES * VOCABULARY + X / 4),
    ]);
    Ok(())
}

/// GPipe sends the activations between stages in every tick, forward and then backward; 1F1B in both directions in
/// every slot.
#[test]
fn pipelines() -> Result<()> {
    setup();
    let micro = X / MICRO_BATCHES;
    for (schedule, sums) in [(PipelineSchedule::GPipe, SUMS), (PipelineSchedule::OneFOneB, SUMS + 2)] {
        fn with_rules(rules: Rules, schedule: &PipelineSchedule) -> Config {
            Config { rules, schedule: *schedule, ..Config::default() }
        }
        // A slice has this schedule on three axes only.
        if schedule == PipelineSchedule::GPipe || is_complete() {
            by_rules(&with_rules(rules(&[("stage", 4)], &[("layers", "stage")])?, &schedule))?
                .is([("collective-permute stage loop", 2 * micro), ("all-reduce stage", TABLE + LAST + 1)]);
        }
        if schedule == PipelineSchedule::GPipe && !is_complete() {
            continue;
        }
        let three = [("data", 2), ("stage", 2), ("model", 2)];
        let three = rules(&three, &[("batch", "data"), ("layers", "stage"), ("heads", "model"), ("mlp", "model")])?;
        by_rules(&with_rules(three, &schedule))?.is([
            ("collective-permute stage loop", 2 * micro / 2),
            ("all-reduce model loop", sums * micro / 2),
            ("all-reduce data", LAYERS / 2 * (MATRICES / 2 + NORMS) + 1),
            ("all-reduce data,stage", TABLE + LAST),
            ("all-reduce stage", 1),
        ]);
    }
    Ok(())
}

/// Keys and values are sent around the ring in both directions, their gradients in one, and once more at the end.
#[test]
fn sequences_split() -> Result<()> {
    setup();
    let hops = 2 + 4 + 2;
    let keys = TOKENS * KV_HEADS * DEPTH;
    if is_complete() {
        by_rules(&dense(rules(&[("sequence", 4)], &[("length", "sequence")])?))?.is([
            ("collective-permute sequence loop", hops * keys / 4),
            ("all-reduce sequence loop", BLOCK),
            ("all-reduce sequence", TABLE + LAST + 1),
        ]);
    }
    let three = [("data", 2), ("sequence", 2), ("model", 2)];
    let three = rules(&three, &[("batch", "data"), ("length", "sequence"), ("heads", "model"), ("mlp", "model")])?;
    by_rules(&dense(three))?.is([
        ("collective-permute sequence loop", hops * keys / 8),
        ("all-reduce model loop", SUMS * X / 4),
        // Over both axes in sequence.
        ("all-reduce sequence loop", MATRICES / 2 + NORMS),
        ("all-reduce data loop", MATRICES / 2 + NORMS),
        ("all-reduce sequence", TABLE + LAST + 1),
        ("all-reduce data", TABLE + LAST + 1),
    ]);
    Ok(())
}

/// The capacity of an expert for a row.
fn places() -> usize {
    (1.25 * (2 * LENGTH) as f64 / EXPERTS as f64).ceil() as usize
}

/// The slots of experts are exchanged there and back, and so are their gradients.
#[test]
fn experts_split() -> Result<()> {
    setup();
    let exchanged = EXPERTS * ROWS * places() * FEATURES;
    let router = FEATURES * EXPERTS;
    if is_complete() {
        let combined = rules(&[("expert", 4)], &[("expert", "expert"), ("batch", "expert")])?;
        by_rules(&Config { rules: combined, experts: true, ..Config::default() })?.is([
            ("all-to-all expert", 4 * exchanged / 4),
            ("all-reduce expert loop", BLOCK),
            ("all-reduce expert", TABLE + LAST + router + 2),
        ]);
    }
    let mesh = make_mesh([("data", 2), ("expert", 2), ("model", 2)])?;
    let three = Rules::new(&mesh, [("batch", ("expert", "data"))]).and("expert", "expert");
    let three = three.and("heads", "model").and("mlp", "model");
    by_rules(&Config { rules: three, experts: true, ..Config::default() })?.is([
        ("all-to-all expert", 4 * exchanged / 4),
        // In the experts, forward and backward, and in the blocks.
        ("all-reduce model", 2 * exchanged / 4),
        ("all-reduce model loop", SUMS * X / 4),
        // Each device's shard of the experts.
        ("all-reduce data", EXPERTS / 2 * 2 * FEATURES * HIDDEN / 2),
        ("all-reduce data,expert loop", MATRICES / 2 + NORMS),
        ("all-reduce data,expert", TABLE + LAST + router + 2),
    ]);
    Ok(())
}

/// Experts after a pipeline: a `shard_map` inside another, in a branch that only the last stage takes.
#[test]
fn experts_behind_stages() -> Result<()> {
    setup();
    let mesh = make_mesh([("data", 2), ("stage", 2), ("expert", 2)])?;
    let rules = Rules::new(&mesh, [("batch", ("data", "expert"))]).and("layers", "stage").and("expert", "expert");
    let sent = by_rules(&Config { rules, schedule: PipelineSchedule::OneFOneB, experts: true })?;
    let exchanged = EXPERTS * ROWS / MICRO_BATCHES * places() * FEATURES;
    assert_eq!(sent.0["all-to-all expert loop"], 4 * 4 * exchanged / 4, "{sent:?}");
    Ok(())
}
