//! A transformer by rules: data, tensor and fully sharded parallelism, experts, a ring, on meshes of both types.

use super::model::*;
use super::*;

/// Losses of three steps and the first gradients.
fn run(config: &Config) -> Result<(Vec<f32>, ModuleState)> {
    let mut state = config.rules.device_put(&start(config)?)?;
    let place = |x: Array| match config.rules.sharding(["batch", "length"]) {
        Some(sharding) => device_put(&x, &sharding),
        None => Ok(x),
    };
    let (tokens, targets) = batch();
    let (tokens, targets) = (place(tokens)?, place(targets)?);
    let explicit =
        config.rules.mesh().is_some_and(|mesh| mesh.abstract_mesh().axis_types().contains(&AxisType::Explicit));
    let compiled = jit(step).lower((&state, &tokens, &targets))?.compile_with_options(&QUICK)?;
    let (mut losses, mut first) = (Vec::new(), None);
    for _ in 0..3 {
        let (next, loss, grads) = compiled.call((state.clone(), &tokens, &targets))?;
        if explicit {
            // Without out_shardings, only the types determine the sharding of the next state.
            assert_eq!(types(&next.model), types(&state.model));
            assert_eq!(types(&grads), types(&state.model));
            assert_eq!(types(&next.opt_state), types(&state.opt_state));
        }
        state = next;
        losses.push(loss.item::<f32>()?);
        first.get_or_insert(grads);
    }
    Ok((losses, first.map(|grads| grads.state()).unwrap_or_default()))
}

#[track_caller]
fn check(axes: &[(&'static str, usize)], rules: &[(&'static str, &'static str)], experts: bool) -> Result<()> {
    setup();
    let mesh = make_mesh(axes.iter().copied())?.with_axis_types(vec![AxisType::Explicit; axes.len()])?;
    let single = run(&Config { experts, ..Config::default() })?;
    let config = Config { rules: Rules::new(&mesh, rules.iter().copied()), experts, ..Config::default() };
    let result = run(&config)?;
    for (have, want) in result.0.iter().zip(&single.0) {
        assert!((have - want).abs() <= 2e-5 * want, "losses {:?}, want {:?}", result.0, single.0);
    }
    for ((path, have), (_, want)) in result.1.iter().zip(single.1.iter()) {
        equal(have, want, 1e-5, path);
    }
    Ok(())
}

#[test]
fn data_parallel() -> Result<()> {
    if quick::is_left_to_sweeps("the next tests, whose rules have these too,") {
        return Ok(());
    }
    check(&[("data", 8)], &[("batch", "data")], false)
}

#[test]
fn fully_sharded() -> Result<()> {
    if quick::is_left_to_sweeps("`fully_sharded_and_tensor_parallel_on_two_by_four`") {
        return Ok(());
    }
    check(&[("data", 8)], &[("batch", "data"), ("embed", "data")], false)
}

#[test]
fn data_and_tensor_parallel() -> Result<()> {
    if quick::is_left_to_sweeps("`fully_sharded_and_tensor_parallel_on_two_by_four`") {
        return Ok(());
    }
    check(&[("data", 4), ("model", 2)], &[("batch", "data"), ("heads", "model"), ("mlp", "model")], false)
}

#[test]
fn fully_sharded_and_tensor_parallel_on_two_by_four() -> Result<()> {
    check(&[("data", 2), ("model", 4)], &[("batch", "data"), ("embed", "data"), ("mlp", "model")], false)
}

#[test]
fn experts_on_their_own_axis() -> Result<()> {
    check(&[("data", 2), ("expert", 4)], &[("batch", "data"), ("batch", "expert"), ("expert", "expert")], true)
}

#[test]
fn a_ring_over_the_sequence() -> Result<()> {
    check(&[("data", 2), ("seq", 4)], &[("batch", "data"), ("length", "seq")], false)
}

/// Types show the decisions of layers: an activation names the axes of its rows and features.
#[test]
fn types_between_layers() -> Result<()> {
    let mesh = mesh(AxisType::Explicit);
    let rules = Rules::new(&mesh, [("batch", "data"), ("mlp", "model"), ("embed", "data")]);
    let up = Linear::builder(16, 32).kernel_axes(["embed", "mlp"]).build(&mut Rngs::new(0));
    let down = Linear::builder(32, 16).kernel_axes(["mlp", "embed"]).build(&mut Rngs::new(1));
    let (up, down) = rules.device_put(&(up, down))?;
    assert_eq!(up.kernel.type_name(), "float32[16@data,32@model]");
    let x = device_put(&ones([8, 16]), &NamedSharding::new(&mesh, P!["data"]))?;
    let f = jit(|up: Linear, down: Linear, x: Array| {
        let hidden = up.forward(x);
        assert_eq!(hidden.type_name(), "float32[8@data,32@model]");
        down.forward(hidden)
    });
    // The contraction over `model` is summed, and `data` stays with the rows.
    assert_eq!(f.call((up, down, x))?.type_name(), "float32[8@data,16]");
    Ok(())
}

fn mesh_of(types: [AxisType; 2]) -> Result<Mesh> {
    make_mesh([("x", 2), ("y", 4)])?.with_axis_types(types)
}

#[test]
fn rules_constrain_by_the_types_of_axes() -> Result<()> {
    setup();
    let (auto, explicit) = (AxisType::Auto, AxisType::Explicit);
    for (types, want) in
        [([auto; 2], "float32[8,8]"), ([explicit, auto], "float32[8@x,8]"), ([explicit; 2], "float32[8@x,8@y]")]
    {
        let mesh = mesh_of(types)?;
        let rules = Rules::new(&mesh, [("a", "x"), ("b", "y")]);
        let x = device_put(&ones([8, 8]), &NamedSharding::new(&mesh, P![]))?;
        let y = jit(move |x: Array| rules.constrain(x * 2, ["a", "b"])).call(&x)?;
        assert_eq!(y.type_name(), want);
        assert_eq!(y.sharding()?.spec()?.trimmed(), P!["x", "y"], "{types:?}");
    }
    Ok(())
}
