//! Arrays whose types have shardings are restored with the requested types, on any mesh.

use shardax_nn::prelude::*;
use shardax_train::checkpoint::{self, CheckpointManager, CheckpointManagerOptions, RestoreOptions};

use super::common::fails;
use super::{Folder, setup};

fn mesh(axes: [(&'static str, usize); 2], ty: AxisType) -> Result<Mesh> {
    make_mesh(axes)?.with_axis_types([ty; 2])
}

type State = Optimizer<Linear>;

fn types<T: Tree>(tree: &T) -> Vec<String> {
    tree::leaves(tree).iter().map(Array::type_name).collect()
}

#[test]
fn types_of_restored_arrays() -> Result<()> {
    setup();
    let folder = Folder::new();
    let state =
        Optimizer::new(Linear::builder(8, 16).kernel_axes(["in", "out"]).build(&mut Rngs::new(0)), adamw(0.1, 0.0))?;
    fn rules(mesh: &Mesh) -> Rules {
        Rules::new(mesh, [("in", "x"), ("out", "y")])
    }
    let two_by_four = mesh([("x", 2), ("y", 4)], AxisType::Explicit)?;
    let mut state_on_two_by_four: State = rules(&two_by_four).device_put(&state)?;
    let _ = state_on_two_by_four.minimize(|layer: &mut Linear| layer.forward(ones([4, 8])).square().sum(..))?;
    assert_eq!(state_on_two_by_four.model.kernel.type_name(), "float32[8@x,16@y]");
    checkpoint::save(folder.join("state"), &state_on_two_by_four)?;
    let want = state_on_two_by_four.model.kernel.to_bytes()?;
    // As they were, on a mesh of other sizes, of another type of axes, on one device.
    for (place, kernel) in [
        (Some(two_by_four.clone()), "float32[8@x,16@y]"),
        (Some(mesh([("x", 4), ("y", 2)], AxisType::Explicit)?), "float32[8@x,16@y]"),
        (Some(mesh([("x", 2), ("y", 4)], AxisType::Auto)?), "float32[8,16]"),
        (None, "float32[8,16]"),
    ] {
        let like: State = match &place {
            Some(mesh) => rules(mesh).device_put(&state)?,
            None => state.clone(),
        };
        let back = checkpoint::restore(folder.join("state"), &like)?;
        assert_eq!(back.model.kernel.type_name(), kernel);
        assert_eq!(types(&back), types(&like));
        assert_eq!(back.model.kernel.to_bytes()?, want);
        // The restored state must be usable in the next step.
        let mut back = back;
        let _ = back.minimize(|layer: &mut Linear| layer.forward(ones([4, 8])).square().sum(..))?;
        assert_eq!(types(&back.model), types(&like.model));
    }
    Ok(())
}

/// Types without values determine the placement: results of `eval_shape`, and types with a sharding.
#[test]
fn restored_into_types_alone() -> Result<()> {
    setup();
    let folder = Folder::new();
    let mesh = mesh([("x", 2), ("y", 4)], AxisType::Explicit)?;
    let _guard = set_mesh(&mesh)?;
    let x = reshard(arange(0..32).reshape([8, 4]), P!["y", "x"]);
    checkpoint::save(folder.join("x"), &x)?;
    let like = eval_shape(|x: Array| reshard(x, P!["x", "y"]), &x)?;
    assert_eq!(like.type_name(), "int32[8@x,4@y]");
    let back = checkpoint::restore(folder.join("x"), &like)?;
    assert_eq!(back.type_name(), "int32[8@x,4@y]");
    assert_eq!(back.to_vec::<i32>()?, x.to_vec::<i32>()?);
    let options = RestoreOptions::new().shardings(P![("x", "y")]);
    let back = checkpoint::Checkpoint::open(folder.join("x"))?
        .restore_with(&shape_dtype_struct([8, 4], DType::I32), &options)?;
    assert_eq!(back.type_name(), "int32[8@(x,y),4]");
    Ok(())
}

/// Reduced values are restored as reduced. Unreduced values cannot be saved.
#[test]
fn reduced_values_and_addends() -> Result<()> {
    setup();
    let folder = Folder::new();
    let mesh = mesh([("x", 2), ("y", 4)], AxisType::Explicit)?;
    let _guard = set_mesh(&mesh)?;
    let x = device_put(&arange(0..8), P!["y"].reduced(["x"]))?;
    checkpoint::save(folder.join("x"), &x)?;
    let back = checkpoint::restore(folder.join("x"), &x)?;
    assert_eq!((back.type_name(), back.to_vec::<i32>()?), ("int32[8@y]{R:x}".into(), (0..8).collect()));
    let addends = reshard(arange(0..8), P![].unreduced(["x"]));
    let parts = ["int32[8]{U:x} has no values yet", "reshard(x, P![..])"];
    fails(checkpoint::save(folder.join("addends"), &addends), &parts);
    let mut manager = CheckpointManager::new(folder.join("manager"), CheckpointManagerOptions::new())?;
    fails(manager.save(1, &addends).and_then(|_| manager.wait_until_finished()), &parts);
    Ok(())
}
