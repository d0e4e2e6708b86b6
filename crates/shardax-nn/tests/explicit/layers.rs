//! Every layer with split rows and split parameters.

use super::*;

/// Three steps of `minimize` of the mean square of the results for `x`, whose first dimension is the batch: the losses.
fn losses<L: Layer + Module + Clone>(
    rules: &Rules,
    make: impl Fn(&mut Rngs) -> L + Clone,
    x: &Array,
) -> Result<Vec<f32>> {
    let captured = rules.clone();
    let build = move || Optimizer::new(make(&mut Rngs::new(0).with_rules(&captured)), sgd_momentum(0.05, 0.9, false));
    let mut state = rules.device_put(&build()?)?;
    let names = (0..x.ndim()).map(|d| (d == 0).then_some("batch")).collect();
    let x = match rules.sharding(&names) {
        Some(sharding) => device_put(x, &sharding)?,
        None => x.clone(),
    };
    let step = jit(|mut state: Optimizer<L>, x: Array| -> Result<_> {
        let loss = state.minimize(|layer: &mut L| layer.forward(x.clone()).square().mean(..))?;
        Ok((state, loss))
    });
    // Compiled with quick options, because several layers and rules are compared.
    let step = step.lower((&state, &x))?.compile_with_options(&QUICK)?;
    let mut result = Vec::new();
    for _ in 0..3 {
        // The types of a state, with their shardings, must stay equal, so that the step is not compiled again.
        let before = types(&state.model);
        let loss;
        (state, loss) = step.call((state, &x))?;
        assert_eq!(types(&state.model), before);
        result.push(loss.item::<f32>()?);
    }
    Ok(result)
}

/// The layer on one device and split by rules, with and without a context mesh. A slice has the rules with number `first` only.
#[track_caller]
fn check<L: Layer + Module + Clone>(first: usize, shape: &[usize], make: impl Fn(&mut Rngs) -> L + Clone) {
    check_near(first, shape, 1e-4, make);
}

#[track_caller]
fn check_near<L: Layer + Module + Clone>(
    first: usize,
    shape: &[usize],
    tolerance: f32,
    make: impl Fn(&mut Rngs) -> L + Clone,
) {
    setup();
    let x = random::normal(random::key(3), shape);
    let single = losses(&Rules::default(), make.clone(), &x).expect("one device");
    assert!(single[2] < single[0], "{single:?}");
    let mesh = mesh(AxisType::Explicit);
    // Tensor parallelism, and all parameters split, also over the axis of the rows.
    let tensor = Rules::new(&mesh, [("batch", "data"), ("out", "model")]);
    let fully = Rules::new(&mesh, [("batch", "data"), ("in", "data"), ("out", "model")]);
    let rows = Rules::new(&mesh, [("batch", "data"), ("out", "data"), ("in", "model")]);
    let ways = [("tensor", tensor, false), ("fully", fully, true), ("rows", rows, false)];
    for (what, rules, set) in ways.into_iter().skip(first % quick::one_of(3)).step_by(quick::one_of(3)) {
        let _mesh = set.then(|| set_mesh(&mesh).expect("no trace"));
        let result = losses(&rules, make.clone(), &x).unwrap_or_else(|e| panic!("{what}: {e}"));
        for (have, want) in result.iter().zip(&single) {
            let near = (have - want).abs() <= tolerance * want.abs().max(1e-2);
            assert!(near, "{what}: {result:?}, want {single:?}");
        }
    }
}

#[test]
fn linear() {
    check(0, &[8, 16], |rngs| {
        let up = Linear::builder(16, 32).kernel_axes(["in", "out"]).build(rngs);
        let down = Linear::builder(32, 8).kernel_axes(["out", "in"]).build(rngs);
        Sequential((up, Apply(relu), down))
    });
}

#[test]
fn linear_general_and_einsum() {
    check(1, &[8, 4, 16], |rngs| {
        let heads = LinearGeneral::builder([16], [4, 8]).kernel_axes([Some("in"), Some("out"), None]).build(rngs);
        let join = LinearGeneral::builder([4, 8], [16]).kernel_axes([Some("out"), None, Some("in")]).build(rngs);
        let mix = Einsum::builder("...a,ab->...b", [16, 8]).use_bias(true).kernel_axes(["in", "out"]).build(rngs);
        let back = Einsum::builder("nto,oa->nta", [8, 16]).kernel_axes(["out", "in"]).build(rngs);
        Sequential((heads, join, mix, back))
    });
}

#[test]
fn convolutions_and_norms() {
    check(2, &[8, 8, 8, 4], |rngs| {
        let first = Conv::builder(4, 8, [3, 3]).kernel_axes([None, None, Some("in"), Some("out")]).build(rngs);
        let norm = BatchNorm::builder(8).axes(["out"]).build(rngs);
        let second = Conv::builder(8, 8, [3, 3]).strides([2, 2]);
        let second = second.kernel_axes([None, None, Some("out"), Some("in")]).build(rngs);
        let groups = GroupNorm::new(8, 4, rngs);
        let up = ConvTranspose::builder(8, 4, [2, 2]).strides([2, 2]);
        let up = up.kernel_axes([None, None, Some("in"), Some("out")]).build(rngs);
        Sequential((first, norm, Apply(relu), second, groups, up, InstanceNorm::new(4, rngs)))
    });
}

#[test]
fn norms_of_split_features() {
    check(0, &[8, 4, 16], |rngs| {
        let up = Linear::builder(16, 32).kernel_axes(["in", "out"]).build(rngs);
        let layer = LayerNorm::builder(32).axes(["out"]).build(rngs);
        let rms = RmsNorm::builder(32).axes(["in"]).scale_offset(1.0).build(rngs);
        let weight = WeightNorm::new(Linear::builder(32, 16).kernel_axes(["out", "in"]).build(rngs)).expect("a kernel");
        let spectral = SpectralNorm::new(Linear::builder(16, 8).kernel_axes(["in", "out"]).build(rngs), rngs);
        Sequential((up, layer, rms, weight, spectral))
    });
}

#[test]
fn recurrent_cells() {
    check(1, &[8, 5, 8], |rngs| {
        let lstm = Rnn::new(LstmCell::new(8, 16, rngs));
        let gru = Rnn::new(GruCell::new(16, 8, rngs));
        Sequential((lstm, gru, Linear::builder(8, 8).kernel_axes(["in", "out"]).build(rngs)))
    });
}

#[test]
fn attention_of_half_precision_and_with_dropout() {
    check_near(2, &[8, 6, 16], 1e-2, |rngs| {
        let attention = MultiHeadAttention::builder(4, 16)
            .is_causal(true)
            .normalize_qk(true)
            .kernel_axes([Some("in"), Some("out"), None])
            .out_kernel_axes([Some("out"), None, Some("in")]);
        let half = attention.clone().dtype(DType::Bf16).soft_cap(8.0).build(rngs);
        Sequential((half, Dropout::new(0.2, rngs), attention.dtype(DType::F32).build(rngs)))
    });
}

#[test]
fn stacks_with_checkpoints_and_adapters() {
    check(0, &[8, 16], |rngs| {
        fn block(rngs: &mut Rngs) -> Sequential<(RmsNorm, Linear, Apply, LoRA<Linear>)> {
            let up = Linear::builder(16, 32).kernel_axes(["in", "out"]).build(rngs);
            let lora =
                LoRA::new(32, 2, 16, rngs).around(Linear::builder(32, 16).kernel_axes(["out", "in"]).build(rngs));
            Sequential((RmsNorm::new(16, rngs), up, Apply(silu), lora))
        }
        let stack = Stack::new(3, rngs, block).expect("three layers");
        stack.checkpoint(CheckpointPolicy::NothingSaveable)
    });
}

/// A table whose rows are split over one axis and whose features over the other, also as the output layer.
#[test]
fn tables_of_split_rows() -> Result<()> {
    setup();
    #[derive(Module, Clone)]
    struct Table {
        embed: Embed,
    }
    let tokens = random::randint(random::key(1), [8, 6], 0, 32);
    fn loss(table: Table, tokens: Array) -> Array {
        let logits = table.embed.attend(table.embed.forward(&tokens).tanh());
        softmax_cross_entropy_with_integer_labels(logits, tokens).mean(..)
    }
    let table = Table { embed: Embed::builder(32, 16).axes(["vocab", "embed"]).build(&mut Rngs::new(0)) };
    let (want, slope) = jit(value_and_grad(loss)).call((&table, &tokens))?;
    let mesh = mesh(AxisType::Explicit);
    let rules_of_both = [("batch", "data"), ("vocab", "model"), ("embed", "data")];
    let entries = [
        &rules_of_both[..2],
        &[("batch", "data"), ("embed", "model")],
        &rules_of_both[..],
        &[("batch", "data"), ("vocab", "data")],
    ];
    // Rows split, features split, both split, and rows split over the axis of the batch.
    for (i, rules) in entries.into_iter().enumerate().skip(quick::one_of(3) - 1).step_by(quick::one_of(2)) {
        let rules = Rules::new(&mesh, rules.iter().copied());
        let table = rules.device_put(&table)?;
        let rows = NamedSharding::new(&mesh, rules.spec(["batch"]));
        let (have, grads) = jit(value_and_grad(loss)).call((&table, &device_put(&tokens, &rows)?))?;
        equal(&have, &want, 1e-5, "the loss");
        equal(&grads.embed.embedding, &slope.embed.embedding, 1e-5, &format!("the gradient by rules {i}"));
        assert_eq!(types(&grads), types(&table));
    }
    Ok(())
}
