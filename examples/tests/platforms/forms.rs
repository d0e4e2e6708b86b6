//! Pipelines, sequence parallelism and experts over eight devices.

use shardax_nn::prelude::*;

use crate::{Waiting, waiting};

#[derive(Module, Clone)]
struct Deep {
    layers: Stack<Sequential<(Linear, Apply)>>,
    last: Linear,
    #[tree(static)]
    pipeline: Pipeline,
}

impl Deep {
    fn loss(self, x: Array, y: Array) -> Result<Array> {
        self.pipeline.loss(
            (
                |(): (), x: Array| x,
                |mut layers: Stack<Sequential<(Linear, Apply)>>, x: Array| layers.forward(x),
                |last: Linear, x: Array, y: Array| (last.forward(x) - y).square().mean(..),
            ),
            ((), self.layers, self.last),
            x,
            y,
        )
    }
}

/// Two layers on each of eight stages, with sixteen micro-batches.
fn pipeline(schedule: PipelineSchedule) -> Result<Waiting> {
    let rules = Rules::new(&make_mesh([("stage", 8)])?, [("layers", "stage")]);
    let pipeline = Pipeline::of(&rules, "layers", 16).schedule(schedule);
    let make = move || -> Result<Deep> {
        let mut rngs = Rngs::new(0);
        let layers = Stack::new(16, &mut rngs, |rngs: &mut Rngs| Sequential((Linear::new(64, 64, rngs), Apply(relu))))?
            .axis_name("layers");
        Ok(Deep { layers, last: Linear::new(64, 1, &mut rngs), pipeline: pipeline.clone() })
    };
    let types = eval_shape(make, ())?;
    let shardings = rules.shardings(&types)?;
    let none = UNSPECIFIED;
    let step = jit(value_and_grad(Deep::loss)).in_shardings((&shardings, none.clone(), none));
    let float = |shape: &[usize]| shape_dtype_struct(shape, DType::F32);
    Ok(waiting(step.lower((types, float(&[128, 64]), float(&[128, 1])))?))
}

pub fn gpipe() -> Result<Waiting> {
    pipeline(PipelineSchedule::GPipe)
}

pub fn one_f_one_b() -> Result<Waiting> {
    pipeline(PipelineSchedule::OneFOneB)
}

/// Attention with a split sequence, and its gradient.
pub fn sequence_parallel() -> Result<Waiting> {
    let mesh = make_mesh([("sequence", 8)])?;
    let rules = Rules::new(&mesh, [("length", "sequence")]);
    let types = eval_shape(
        move || {
            let builder = MultiHeadAttention::builder(4, 64).num_kv_heads(2).is_causal(true).rope(Rope::default());
            builder.sequence_axis("length").build(&mut Rngs::new(0).with_rules(&rules))
        },
        (),
    )?;
    let objective = |layer: MultiHeadAttention, x: Array| layer.forward(x).square().sum(..);
    let x = shape_dtype_struct_on([2, 256, 64], DType::F32, NamedSharding::new(&mesh, P![None, "sequence"]));
    Ok(waiting(jit(value_and_grad(objective)).lower((types, x))?))
}

type Experts = MixtureOfExperts<Sequential<(Linear, Apply, Linear)>>;

/// Sixteen experts with top-2 routing, two on each device, and their gradients.
pub fn experts() -> Result<Waiting> {
    let mesh = make_mesh([("expert", 8)])?;
    let rules = Rules::new(&mesh, [("expert", "expert"), ("batch", "expert")]);
    let model_rules = rules.clone();
    let types = eval_shape(
        move || -> Result<Experts> {
            let expert =
                |rngs: &mut Rngs| Sequential((Linear::new(32, 128, rngs), Apply(relu), Linear::new(128, 32, rngs)));
            MixtureOfExperts::new(16, 2, 32, &mut Rngs::new(0).with_rules(&model_rules), expert)
        },
        (),
    )?;
    let shardings = rules.shardings(&types)?;
    let rows = NamedSharding::new(&mesh, P!["expert"]);
    let step = jit(value_and_grad(|moe: Experts, x: Array| -> Result<Array> {
        let routed = moe.forward(x)?;
        Ok(routed.y.square().mean(..) + routed.balance_loss * 0.01)
    }))
    .in_shardings((&shardings, &rows));
    Ok(waiting(step.lower((types, shape_dtype_struct([16, 32, 32], DType::F32)))?))
}
