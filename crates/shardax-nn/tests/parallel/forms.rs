//! Every form of parallelism against one device: loss, gradients and ten steps of AdamW, and what is sent.

use std::sync::OnceLock;

use shardax_nn::prelude::*;

use super::model::*;
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
            let run = || {
                let (tokens, targets) = batch();
                let step = jit(step);
                Run::of(start(&Config { experts, ..Config::default() })?, |state| step.call((state, &tokens, &targets)))
            };
            run().expect("one device")
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

/// A compiled step by these rules, run ten times and compared; what it sends.
#[track_caller]
fn by_rules(config: &Config) -> Result<Sent> {
    let own = config.clone();
    let state = config.rules.init(move || start(&own))?;
    let place = |x: Array| match config.rules.sharding(["batch", "length"]) {
        Some(sharding) => device_put(&x, &sharding),
        None => Ok(x),
    };
    let (tokens, targets) = batch();
    let (tokens, targets) = (place(tokens)?, place(targets)?);
    let shardings = (config.rules.shardings(&state)?, config.rules.shardings(&state.model)?);
    let step = jit(step).out_shardings((&shardings.0, None::<shardax::ShardingLike>, &shardings.1));
    let compiled = step.lower((&state, &tokens, &targets))?.compile()?;
    Run::of(state, |state| compiled.call((state, &tokens, &targets)))?.equals(Run::alone(config.experts))?;
    Ok(Sent::of(&compiled)?)
}

/// A line of the communication report: what, over which axes, in a loop or not, and the bytes of one and how many.
#[derive(Debug, PartialEq)]
struct Sent(Vec<(String, usize)>);

impl Sent {
    fn of<A: Tree, O: Tree>(compiled: &Compiled<A, O>) -> Result<Self> {
        let mut lines: Vec<(String, usize)> = Vec::new();
        println!("{}", compiled.collectives()?);
        for c in compiled.collectives()?.iter() {
            let axes: Vec<&str> = c.axes.iter().map(|axis| axis.as_str()).collect();
            let what = format!("{} {}{}", c.kind, axes.join(","), if c.in_loop { " in a loop" } else { "" });
            match lines.iter_mut().find(|line| line.0 == what) {
                Some(line) => line.1 += c.bytes * c.count,
                None => lines.push((what, c.bytes * c.count)),
            }
        }
        lines.sort();
        Ok(Sent(lines))
    }
}

fn rules(axes: &[(&'static str, usize)], rules: &[(&'static str, &'static str)]) -> Result<Rules> {
    let mesh = make_mesh(axes.iter().copied())?;
    Ok(Rules::new(&mesh, rules.iter().copied()))
}

#[test]
fn data_parallel() -> Result<()> {
    setup();
    let (tokens, targets) = batch();
    println!("-- pmap");
    let of_devices = |x: &Array| x.reshape([8, ROWS / 8, LENGTH]);
    let mapped = |mut state: State, tokens: Array, targets: Array| -> Result<(State, Array, Lm)> {
        let (loss, grads) = value_and_grad(Lm::loss).call((&state.model, tokens, targets))?;
        let (loss, grads) = pmean((loss, grads), "data");
        state.update(grads.clone())?;
        Ok((state, loss, grads))
    };
    let mapped = pmap(mapped).axis_name("data").in_axes((None, 0, 0)).out_axes(None);
    let state = start(&Config::default())?;
    let compiled = mapped.lower((&state, of_devices(&tokens), of_devices(&targets)))?.compile()?;
    println!("{:?}", Sent::of(&compiled)?);
    Run::of(state.clone(), |state| mapped.call((state, of_devices(&tokens), of_devices(&targets))))?
        .equals(Run::alone(false))?;

    println!("-- shard_map");
    let mesh = make_mesh([("data", 8)])?;
    let local = |mut state: State, tokens: Array, targets: Array| -> Result<(State, Array, Lm)> {
        let loss = |model: Lm, tokens: Array, targets: Array| Ok(pmean(model.loss(tokens, targets)?, "data"));
        let (loss, grads) = value_and_grad(loss).call((&state.model, tokens, targets))?;
        state.update(grads.clone())?;
        Ok((state, loss, grads))
    };
    let local = jit(shard_map(local, &mesh).in_specs((P![], P!["data"], P!["data"])).out_specs(P![]));
    let compiled = local.lower((&state, &tokens, &targets))?.compile()?;
    println!("{:?}", Sent::of(&compiled)?);
    Run::of(state, |state| local.call((state, &tokens, &targets)))?.equals(Run::alone(false))?;

    println!("-- jit");
    let sent = by_rules(&Config { rules: rules(&[("data", 8)], &[("batch", "data")])?, ..Config::default() })?;
    println!("{sent:?}");
    Ok(())
}

#[test]
fn parameters_and_layers_split() -> Result<()> {
    setup();
    println!("-- fsdp");
    let sent = by_rules(&Config {
        rules: rules(&[("data", 8)], &[("batch", "data"), ("embed", "data")])?,
        ..Config::default()
    })?;
    println!("{sent:?}");
    println!("-- tp");
    let sent = by_rules(&Config {
        rules: rules(&[("model", 2)], &[("heads", "model"), ("mlp", "model")])?,
        ..Config::default()
    })?;
    println!("{sent:?}");
    println!("-- data x fsdp x model");
    let mesh = make_mesh([("data", 2), ("fsdp", 2), ("model", 2)])?;
    let rules =
        Rules::new(&mesh, [("batch", ("data", "fsdp"))]).and("embed", "fsdp").and("heads", "model").and("mlp", "model");
    let sent = by_rules(&Config { rules, ..Config::default() })?;
    println!("{sent:?}");
    Ok(())
}

#[test]
fn pipelines() -> Result<()> {
    setup();
    for schedule in [PipelineSchedule::GPipe, PipelineSchedule::OneFOneB] {
        println!("-- {schedule:?}");
        let sent = by_rules(&Config {
            rules: rules(&[("stage", 4)], &[("layers", "stage")])?,
            schedule,
            ..Config::default()
        })?;
        println!("{sent:?}");
        println!("-- data x {schedule:?} x model");
        let three = [("data", 2), ("stage", 2), ("model", 2)];
        let rules = rules(&three, &[("batch", "data"), ("layers", "stage"), ("heads", "model"), ("mlp", "model")])?;
        let sent = by_rules(&Config { rules, schedule, ..Config::default() })?;
        println!("{sent:?}");
    }
    Ok(())
}

#[test]
fn sequences_split() -> Result<()> {
    setup();
    println!("-- ring");
    let sent = by_rules(&Config { rules: rules(&[("sequence", 4)], &[("length", "sequence")])?, ..Config::default() })?;
    println!("{sent:?}");
    println!("-- data x sequence x model");
    let three = [("data", 2), ("sequence", 2), ("model", 2)];
    let rules = rules(&three, &[("batch", "data"), ("length", "sequence"), ("heads", "model"), ("mlp", "model")])?;
    let sent = by_rules(&Config { rules, ..Config::default() })?;
    println!("{sent:?}");
    Ok(())
}

#[test]
fn experts_split() -> Result<()> {
    setup();
    println!("-- experts");
    let both = rules(&[("expert", 4)], &[("expert", "expert"), ("batch", "expert")])?;
    let sent = by_rules(&Config { rules: both, experts: true, ..Config::default() })?;
    println!("{sent:?}");
    println!("-- data x expert x model");
    let mesh = make_mesh([("data", 2), ("expert", 2), ("model", 2)])?;
    let rules = Rules::new(&mesh, [("batch", ("expert", "data"))])
        .and("expert", "expert")
        .and("heads", "model")
        .and("mlp", "model");
    let sent = by_rules(&Config { rules, experts: true, ..Config::default() })?;
    println!("{sent:?}");
    Ok(())
}
