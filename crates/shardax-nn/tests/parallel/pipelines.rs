//! Pipelines: their memory, and rejected arguments.

use shardax_nn::prelude::*;

use super::setup;

type Layers = Stack<Sequential<(Linear, Apply, Linear, Apply)>>;

fn layers(rules: &Rules) -> Result<Layers> {
    let mut rngs = Rngs::new(0).with_rules(rules);
    let layer =
        |rngs: &mut Rngs| Sequential((Linear::new(32, 64, rngs), Apply(gelu), Linear::new(64, 32, rngs), Apply(gelu)));
    Ok(Stack::new(8, &mut rngs, layer)?.axis_name("layers"))
}

/// A pipeline that consists only of eight layers.
fn loss_by(pipeline: Pipeline, checkpointed: bool) -> impl Fn(Layers, Array, Array) -> Result<Array> {
    let stage = move |mut layers: Layers, x: Array| {
        if checkpointed {
            checkpoint(|mut layers: Layers, x: Array| layers.forward(x)).call((layers, x))
        } else {
            Ok(layers.forward(x))
        }
    };
    move |layers: Layers, x: Array, y: Array| {
        fn first((): (), x: Array) -> Array {
            x
        }
        fn last((): (), x: Array, y: Array) -> Array {
            (x - y).square().mean(..)
        }
        pipeline.loss((first, stage, last), ((), layers, ()), x, y)
    }
}

/// 1F1B retains as many micro-batches as there are stages, GPipe all of them.
#[test]
fn one_f_one_b_keeps_few_micro_batches() -> Result<()> {
    setup();
    let rules = Rules::new(&make_mesh([("stage", 4)])?, [("layers", "stage")]);
    let model = rules.init(|| layers(&rules))?;
    let temporaries = |schedule, micro_batches: usize, checkpointed| -> Result<i64> {
        let pipeline = Pipeline::of(&rules, "layers", micro_batches).schedule(schedule);
        let x = zeros([64 * micro_batches, 32]);
        let step = jit(grad(loss_by(pipeline, checkpointed)));
        Ok(step.lower((&model, &x, &x))?.compile()?.memory_analysis()?.temporaries)
    };
    use PipelineSchedule::*;
    let more = |schedule, checkpointed| -> Result<i64> {
        Ok((temporaries(schedule, 32, checkpointed)? - temporaries(schedule, 16, checkpointed)?) / 16)
    };
    // Inputs and targets of a micro-batch, which are as large as the array that a stage sends to the next one.
    let hidden_bytes = 64 * 32 * 4;
    let (inside, inputs, few) = (more(GPipe, false)?, more(GPipe, true)?, more(OneFOneB, false)?);
    println!("bytes for each micro-batch more: {inside}, {inputs}, {few}; one has {hidden_bytes}");
    assert!(
        few <= 2 * hidden_bytes + hidden_bytes / 8,
        "1F1B: {few} bytes for a micro-batch more, which has {hidden_bytes}"
    );
    assert!(2 * inputs >= 5 * hidden_bytes && inside > 3 * inputs, "GPipe: {inside}, {inputs}");
    Ok(())
}

/// In a `shard_map` of one's own, over stages and rows, checkpointed or not, in both orders: as on one device.
#[test]
fn pipelines_by_hand_are_one_device() -> Result<()> {
    setup();
    let mesh = make_mesh([("data", 2), ("stage", 4)])?;
    let model = layers(&Rules::default())?;
    let (x, y) = (random::normal(random::key(1), [12, 32]), random::normal(random::key(2), [12, 32]));
    let single = loss_by(Pipeline::of(&Rules::default(), "layers", 1), false);
    let (want, want_grads) = jit(value_and_grad(single)).call((&model, &x, &y))?;
    for (schedule, checkpointed) in [(PipelineSchedule::GPipe, true), (PipelineSchedule::OneFOneB, false)] {
        // Fewer micro-batches than stages.
        let loss = loss_by(Pipeline::new("stage", 3).schedule(schedule), checkpointed);
        let inside = |model: Layers, x: Array, y: Array| -> Result<Array> { Ok(pmean(loss(model, x, y)?, "data")) };
        let split = shard_map(inside, &mesh).in_specs((P!["stage"], P!["data"], P!["data"])).out_specs(P![]);
        let (got, got_grads) = jit(value_and_grad(split)).call((&model, &x, &y))?;
        assert!(allclose(got, &want, 1e-5, 0.0)?, "{schedule:?}");
        for ((path, got), want) in tree::leaves_with_path(&got_grads).into_iter().zip(tree::leaves(&want_grads)) {
            assert!(allclose(got, want, 1e-4, 1e-6)?, "{schedule:?} {path}");
        }
    }
    Ok(())
}

#[test]
fn pipelines_reject_mismatched_shapes() -> Result<()> {
    setup();
    let rules = Rules::new(&make_mesh([("stage", 4)])?, [("layers", "stage")]);
    let model = layers(&rules)?;
    let x = ones([6, 32]);
    fn error_text(loss: Result<Array>) -> String {
        loss.err().map(|error| error.to_string()).unwrap_or_default()
    }
    // Rows that do not divide, counts of 0, axes that are not bound or not tracked, and stages and losses of other
    // types.
    let text = error_text(loss_by(Pipeline::of(&rules, "layers", 4), false)(model.clone(), x.clone(), x.clone()));
    assert!(
        text.contains("must divide into 4 micro-batches, got float32[6,32]") && text.contains("pipelines.rs"),
        "{text}"
    );
    let text = error_text(loss_by(Pipeline::of(&rules, "layers", 0), false)(model.clone(), x.clone(), x.clone()));
    assert!(text.contains("micro_batches must be at least 1, got 0"), "{text}");
    let text = error_text(loss_by(Pipeline::new("stage", 2), false)(model.clone(), x.clone(), x.clone()));
    assert!(text.contains("unbound axis name"), "{text}");
    let loss = loss_by(Pipeline::new("stage", 2), false);
    let unchecked = shard_map(loss, rules.mesh()).in_specs((P!["stage"], P![], P![])).out_specs(P![]).check_vma(false);
    let text = error_text(unchecked.call((&model, &x, &x)));
    assert!(text.contains("need a shard_map that tracks varying axes") && text.contains("pipelines.rs"), "{text}");
    fn narrow(mut layers: Layers, x: Array) -> Array {
        layers.forward(x).get((.., ..16))
    }
    fn last((): (), x: Array, y: Array) -> Array {
        (x - y).square().mean(..)
    }
    let pipeline = Pipeline::of(&rules, "layers", 2);
    let text =
        error_text(pipeline.loss((|(): (), x: Array| x, narrow, last), ((), model.clone(), ()), x.clone(), x.clone()));
    assert!(
        text.contains("a stage must return the type of its argument, got float32[3, 16] for float32[3, 32]"),
        "{text}"
    );
    fn rows((): (), x: Array, _: Array) -> Array {
        x.sum(-1)
    }
    fn through(mut layers: Layers, x: Array) -> Array {
        layers.forward(x)
    }
    let text = error_text(pipeline.loss((|(): (), x: Array| x, through, rows), ((), model, ()), x.clone(), x));
    assert!(text.contains("the loss must be a scalar, got float32[3"), "{text}");
    let two = Rules::new(&make_mesh([("a", 2), ("b", 4)])?, [("layers", ("a", "b"))]);
    let text = two.axis("layers").err().map(|e| e.to_string()).unwrap_or_default();
    assert!(text.contains("\"layers\" must be split over one axis of the mesh"), "{text}");
    Ok(())
}
