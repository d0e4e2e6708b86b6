//! Pipelines whose layers are split over further axes.

use super::*;

type Layers = Stack<Sequential<(Linear, Apply, Linear)>>;

#[derive(Module, Clone)]
struct Model {
    first: Linear,
    layers: Layers,
    last: Linear,
    #[tree(static)]
    rules: Rules,
}

impl Model {
    fn new(rules: &Rules) -> Result<Self> {
        let mut rngs = Rngs::new(0).with_rules(rules);
        let linear =
            |n, m, axes: [&'static str; 2], rngs: &mut Rngs| Linear::builder(n, m).kernel_axes(axes).build(rngs);
        let layer = |rngs: &mut Rngs| {
            let (up, down) = (linear(8, 16, ["embed", "mlp"], rngs), linear(16, 8, ["mlp", "embed"], rngs));
            Sequential((up, Apply(tanh), down))
        };
        let first = linear(4, 8, ["in", "embed"], &mut rngs);
        let layers = Stack::new(4, &mut rngs, layer)?.axis_name("layers");
        Ok(Model { first, layers, last: linear(8, 2, ["embed", "out"], &mut rngs), rules: rngs.rules() })
    }

    fn loss(self, schedule: PipelineSchedule, x: Array, y: Array) -> Result<Array> {
        fn first(layer: Linear, x: Array) -> Array {
            layer.forward(x)
        }
        fn stage(mut layers: Layers, x: Array) -> Array {
            layers.forward(x)
        }
        fn last(layer: Linear, x: Array, y: Array) -> Array {
            (layer.forward(x) - y).square().mean(..)
        }
        let pipeline = Pipeline::of(&self.rules, "layers", 4).schedule(schedule);
        pipeline.loss((first, stage, last), (self.first, self.layers, self.last), x, y)
    }
}

/// Losses and gradients of both schedules equal the results of one device, and gradients have the types of their parameters.
#[test]
fn stages_of_split_layers() -> Result<()> {
    use PipelineSchedule::{GPipe, OneFOneB};
    setup();
    let (x, y) = (random::normal(random::key(1), [8, 4]), random::normal(random::key(2), [8, 2]));
    let step = |schedule| jit(value_and_grad(move |model: Model, x: Array, y: Array| model.loss(schedule, x, y)));
    let (want, want_grads) = step(GPipe).call((Model::new(&Rules::default())?, &x, &y))?;
    let mesh = make_mesh([("data", 2), ("stage", 2), ("model", 2)])?.with_axis_types([AxisType::Explicit; 3])?;
    let rows = Rules::new(&mesh, [("layers", "stage"), ("batch", "data")]);
    let hidden = rows.clone().and("mlp", "model");
    let ways = [
        ("hidden features", hidden.clone(), GPipe),
        ("hidden features, 1F1B", hidden, OneFOneB),
        // The arrays that a stage sends to the next one are split too.
        ("features", rows.clone().and("embed", "model"), GPipe),
        ("features, 1F1B", rows.and("embed", "model"), OneFOneB),
    ];
    for (what, rules, schedule) in ways.into_iter().step_by(quick::one_of(3)) {
        let model = rules.device_put(&Model::new(&rules)?)?;
        // Rows that no one split are split where the pipeline takes them.
        let x = if schedule == GPipe { device_put(&x, &NamedSharding::new(&mesh, P!["data"]))? } else { x.clone() };
        let step = step(schedule).lower((&model, &x, &y))?.compile_with_options(&QUICK)?;
        let (loss, grads) = step.call((&model, &x, &y)).map_err(|e| e.context(what))?;
        equal(&loss, &want, 1e-5, what);
        assert_eq!(types(&grads), types(&model), "{what}");
        for ((path, have), want) in tree::leaves_with_path(&grads).into_iter().zip(tree::leaves(&want_grads)) {
            equal(&have, &want, 1e-4, &format!("{what} {path}"));
        }
    }
    Ok(())
}
