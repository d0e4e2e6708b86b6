//! Arguments that layers and transformations reject, and their error messages.

use shardax_nn::optim::projections::projection_simplex;
use shardax_nn::optim::{LookaheadParams, ScaleByZoomLinesearch, lookahead, scale_by_zoom_linesearch};
use shardax_nn::prelude::*;

use super::setup;

fn message(y: impl std::borrow::Borrow<Array>) -> String {
    y.borrow().check().err().map(|e| e.to_string()).unwrap_or_default()
}

fn rejection<T>(made: Result<T>) -> String {
    made.err().map(|e| e.to_string()).unwrap_or_default()
}

#[test]
fn layers_name_mismatched_shapes_and_options() {
    setup();
    let r = &mut Rngs::new(0);
    let heads = ones([1, 2, 2, 4]);
    let reflected = Conv::builder(2, 3, [9]).padding(ConvPadding::Reflect).build(r);
    for (found, want) in [
        (
            message(Linear::new(3, 4, r).forward(ones([2, 5]))),
            "float32[2,5] has 5 features in its last dimension, and the layer takes 3",
        ),
        (
            message(Linear::new(3, 4, r).forward(ones([2, 5]))),
            "make the layer with 5 input features, or pass an array of the shape [..., 3]",
        ),
        (message(Linear::new(8, 4, r).forward(ones([5, 2, 2, 2]))), "flatten the input: `x.reshape([5, -1])`"),
        (
            message(Linear::new(3, 4, r).forward(ones([2, 3, 5]))),
            "move the features to the last dimension: `x.moveaxis(1, -1)`",
        ),
        (message(Linear::new(3, 4, r).forward(ones(()))), "is one number, and the layer takes 3 features"),
        (message(LoRALinear::new(3, 4, 2, r).forward(ones([2, 5]))), "Linear: the input float32[2,5]"),
        (message(LoRA::new(3, 2, 4, r).forward(ones([2, 5]))), "LoRA: the input float32[2,5]"),
        (message(Fp8Linear::new(Linear::new(3, 4, r)).forward(ones([2, 5]))), "Fp8Linear: the input float32[2,5]"),
        (message(GruCell::new(3, 4, r).forward(ones([2, 4]), ones([2, 5])).1), "Linear: the input float32[2,5]"),
        (message(LinearGeneral::new([3], [4], r).forward(ones([2, 5]))), "expects [3] in the dimensions [1]"),
        (message(LinearGeneral::new([3], [4], r).forward(ones(()))), "expects [3] in the dimensions [-1]"),
        (message(LinearGeneral::builder([3], [4]).axis([0, 1]).build(r).forward(ones([3, 3]))), "same length"),
        (message(LinearGeneral::builder([3], [4]).batch_sizes([7]).build(r).forward(ones([2, 3]))), "batches of [7]"),
        (message(Einsum::new("ab,bc", [3, 4], r).forward(ones([2, 3]))), "must be explicit"),
        (message(Einsum::new("ab,bc,cd->ad", [3, 4], r).forward(ones([2, 3]))), "exactly two operands, got 3"),
        (message(Einsum::new("ab,bcd->ad", [3, 4], r).forward(ones([2, 3]))), "a letter for each dimension of [3, 4]"),
        (
            message(Conv::builder(2, 3, [3, 3]).padding(ConvPadding::Causal).build(r).forward(ones([1, 4, 4, 2]))),
            "one spatial dimension, got 2",
        ),
        (
            message(Conv::builder(3, 4, [3]).feature_group_count(2).build(r).forward(ones([1, 4, 3]))),
            "must divide the 3 features, got 2",
        ),
        (
            message(ConvTranspose::builder(2, 3, [3]).padding(ConvPadding::Causal).build(r).forward(ones([1, 4, 2]))),
            "zeros or circular, got Causal",
        ),
        (message(Dropout::new(0.5, r).broadcast_dims([3]).forward(ones([2, 2]))), "[3] are out of bounds for float32"),
        (message(Rnn::new(GruCell::new(2, 3, r)).forward(ones([2]))), "must be [batch, steps, features]"),
        (
            rejection(Rnn::new(GruCell::new(2, 3, r)).run(ones([2, 4, 2]), None, Some(&ones([2])))),
            "seq_lengths to have a dtype that is a subdtype of integer",
        ),
        (
            rejection(Rnn::new(GruCell::new(2, 3, r)).run(ones([2, 4, 2]), None, Some(&array([1, 2, 3])))),
            "seq_lengths [3] and the batch [2]",
        ),
        (
            rejection(WeightNorm::with(Linear::new(2, 3, r), [2], "kernel")),
            "feature_axes [2] are out of bounds for the parameter",
        ),
        (
            message(WeightNorm::new(Linear::new(2, 3, r)).expect("a kernel").epsilon(-1.0).forward(ones([1, 2]))),
            "epsilon",
        ),
        (message(SpectralNorm::new(Linear::new(2, 3, r), r).n_steps(0).forward(ones([1, 2]))), "n_steps must be"),
        (
            rejection(MixtureOfExperts::new(2, 3, 4, r, |r| Linear::new(4, 4, r))),
            "k must be at most the 2 experts, got 3",
        ),
        (rejection(Stack::new(0, r, |r| Linear::new(2, 2, r))), "at least one layer"),
        (message(Conv::new(1, 2, [3, 3], r).forward(ones([2, 8, 8]))), "has 8 features in its last dimension"),
        (message(Conv::new(1, 2, [3, 3], r).forward(ones([2, 8, 8]))), "`x.expand_dims(-1)`"),
        (
            message(Conv::new(1, 2, [3, 3], r).forward(ones([8, 8]))),
            "a kernel of 2 spatial dimensions needs an input of at least 3 dimensions, got float32[8,8]",
        ),
        (message(max_pool(ones([8, 8]), [2, 2], [2, 2])), "`x.expand_dims(-1)`"),
        (message(Linear::builder(3, 2).precision("hi").build(r).forward(ones([2, 3]))), "unknown precision \"hi\""),
        (
            message(AttentionOptions::new().implementation("fast").dot_product_attention(&heads, &heads, &heads)),
            "unknown implementation \"fast\"",
        ),
        (rejection(combine_masks([Some(ones([2])), Some(ones([1, 2]))])), "masks must have the same rank, got [1, 2]"),
    ] {
        assert!(found.contains(want), "{found:?} does not say {want:?}");
    }
    // Mirroring more than the input's size does not panic.
    let _ = reflected.forward(ones([1, 2, 2])).check();
    let _ = Conv::new(2, 3, [0], r).forward(ones([1, 4, 2])).check();
    let _ = Rnn::new(LstmCell::new(2, 3, r)).forward(ones([2, 0, 2])).check();
    let _ = dot_product_attention(ones([0, 3, 2, 4]), ones([0, 0, 2, 4]), ones([0, 0, 2, 4])).check();
}

#[test]
fn transformations_name_options_out_of_range() {
    setup();
    let params = LookaheadParams::init_synced(ones([2]));
    let search = scale_by_zoom_linesearch(0);
    for (found, want) in [
        (rejection(lookahead(sgd(0.1), 0, 0.5).init(&params)), "sync_period must be at least 1"),
        (rejection(lookahead(sgd(0.1), 2, f64::NAN).init(&params)), "slow_step_size"),
        (rejection(search.init(&ones([2]))), "max_linesearch_steps must be at least 1"),
        (
            rejection(ScaleByZoomLinesearch { increase_factor: 0.5, ..scale_by_zoom_linesearch(2) }.init(&ones([2]))),
            "increase_factor must be at least 1",
        ),
        (rejection(projection_simplex(&ones([2]), 0.0)), "size must be"),
    ] {
        assert!(found.contains(want), "{found:?} does not say {want:?}");
    }
}

/// A misspelled path would train nothing.
#[test]
fn an_optimizer_of_nothing_is_rejected() {
    setup();
    let model = Linear::new(2, 3, &mut Rngs::new(0));
    let message = rejection(Optimizer::wrt(model.clone(), sgd(0.1), "**.kernal"));
    assert!(message.contains("no variable of the model matches"), "{message}");
    assert!(
        message.contains("kernal") && message.contains("kernel (Param)") && message.contains("rejected.rs"),
        "{message}"
    );
    let message = rejection(Optimizer::new(Frozen::new(model), sgd(0.1)));
    assert!(message.contains("kernel (Frozen)"), "{message}");
}

#[test]
fn gradients_of_other_variables_are_rejected() -> Result<()> {
    setup();
    let model = Linear::new(2, 3, &mut Rngs::new(0));
    let mut optimizer = Optimizer::wrt(model.clone(), sgd(0.1), "kernel")?;
    let message = rejection(optimizer.update(model.state()));
    assert!(message.contains("a gradient of bias, which the optimizer does not move"), "{message}");
    let message = rejection(optimizer.update(model.state_of("bias")));
    assert!(message.contains("there is no gradient of kernel") && message.contains("rejected.rs"), "{message}");
    // The optimizer uses only the gradients of its own parameters.
    optimizer.update(model)
}

/// Else attention would be whole, and experts on each device.
#[test]
fn rules_for_axes_that_the_mesh_has_not_are_rejected() -> Result<()> {
    setup();
    let mesh = make_mesh([("sequence", 4)])?;
    let rules = Rules::new(&mesh, [("length", "sequnce")]);
    let rngs = &mut Rngs::new(0).with_rules(&rules);
    let layer = MultiHeadAttention::builder(2, 8).sequence_axis("length").build(rngs);
    let message = message(layer.forward(ones([1, 4, 8])));
    assert!(
        message.contains("\"length\" is sharded over the axis sequnce, which is not in Mesh('sequence': 4"),
        "{message}"
    );
    Ok(())
}

/// Values that are put aside in a loss would change the structure of the model.
#[test]
fn a_loss_that_leaves_values_aside_names_capture() -> Result<()> {
    #[derive(Module, Clone)]
    struct Sower {
        layer: Linear,
        seen: Intermediate,
    }
    setup();
    let model = Sower { layer: Linear::new(2, 1, &mut Rngs::new(0)), seen: Intermediate::default() };
    let mut optimizer = Optimizer::new(model, sgd(0.1))?;
    fn loss(model: &mut Sower) -> Array {
        let y = model.layer.forward(ones([3, 2]));
        model.seen.sow(&y);
        y.square().mean(..)
    }
    let message = rejection(optimizer.minimize(loss));
    assert!(message.contains("no array \"seen[0]\"") && message.contains("with `capture` first"), "{message}");
    fn captured(model: &mut Sower) -> Result<Array> {
        Ok(capture(model, loss)?.0)
    }
    optimizer.minimize(captured).map(drop)
}
