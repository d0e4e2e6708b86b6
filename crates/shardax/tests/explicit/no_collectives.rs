//! `no_collectives`: types and errors equal JAX 0.12's.

use shardax::prelude::*;
use shardax::{lax, no_collectives};

use crate::mesh;

fn message(x: &Array) -> String {
    x.check().err().map_or_else(String::new, |e| e.message().to_owned())
}

/// The error of an operation that loses the axis.
fn lost(name: &str) -> String {
    format!(
        "Collective across axis 'x' is forbidden by `no_collectives`, but `{name}` loses sharding axis 'x' in the output without marking it unreduced"
    )
}

#[test]
fn no_collectives_of_typed_operations() -> Result<()> {
    let (_mesh, _guard) = mesh(2);
    let x = reshard(arange(0..64).astype(DType::F32).reshape([8, 8]), P!["x", "y"]);
    let _forbidden = no_collectives("x");
    assert_eq!(x.sum(1).type_name(), "float32[8@x]");
    assert_eq!(x.sin().type_name(), "float32[8@x,8@y]");
    assert_eq!(x.t().type_name(), "float32[8@y,8@x]");
    assert_eq!(lax::slice_in_dim(&x, 0, 4, 0).type_name(), "float32[4@x,8@y]");
    assert_eq!(reshard(x.clone(), P!["x"]).type_name(), "float32[8@x,8]");
    assert_eq!(message(&x.sum(0)), lost("reduce_sum"));
    assert_eq!(message(&x.max(0)), lost("reduce_max"));
    assert_eq!(message(&x.mean(0)), lost("reduce_sum"));
    assert_eq!(message(&x.argmax(0)), lost("argmax"));
    assert_eq!(message(&reshard(x.clone(), P![])), lost("reshard"));
    assert_eq!(
        message(&reshard(x.clone(), P![None, "x"])),
        "Collective across axis 'x' is forbidden by `no_collectives`, but `reshard` changes the sharded dimension of axis 'x'"
    );
    // Addends stay on their devices.
    let unreduced = shardax::out_sharding(P!["y", None].unreduced(["x"]), || x.t().dot(&x));
    assert_eq!(unreduced.type_name(), "float32[8@y,8]{U:x}");
    assert!(message(&reshard(unreduced, P!["y"])).contains("`reshard` consumes unreduced axis 'x' without keeping it"));
    Ok(())
}

/// A function that was traced where collectives are allowed is traced again where they are not, and the other way round.
#[test]
fn no_collectives_of_compiled_functions() -> Result<()> {
    let (_mesh, _guard) = mesh(2);
    let x = reshard(ones([8, 8]), P!["x", "y"]);
    let f = jit(|x: Array| x.sum(0));
    assert_eq!(f.call(&x)?.type_name(), "float32[8@y]");
    {
        let _forbidden = no_collectives("x");
        let error = f.call(&x).unwrap_err().to_string();
        assert!(error.contains("forbidden by `no_collectives`") && error.contains("no_collectives.rs"), "{error}");
        // The inner guard replaces the outer one, as in JAX.
        let _other = no_collectives("y");
        assert_eq!(f.call(&x)?.type_name(), "float32[8@y]");
    }
    assert_eq!(f.call(&x)?.type_name(), "float32[8@y]");
    // Gradients are computed outside of the scope, where they may communicate.
    fn inside(x: Array) -> Array {
        let _forbidden = no_collectives("x");
        x.sin()
    }
    assert_eq!(grad(move |x: Array| inside(x).sum(..)).call(&x)?.shape(), [8, 8]);
    Ok(())
}

#[test]
fn no_collectives_in_shard_maps() -> Result<()> {
    let (mesh, _guard) = mesh(2);
    let x = reshard(ones([8, 8]), P!["x", "y"]);
    let _forbidden = no_collectives("x");
    fn over(axis: &'static str, mesh: &Mesh, x: &Array) -> Result<Array> {
        let f = move |x: Array| &x + psum(axis_index(axis) + 0 * x.astype(DType::I32), axis);
        shard_map(f, mesh).in_specs(P!["x", "y"]).out_specs(P!["x", "y"]).call(x)
    }
    assert!(over("y", &mesh, &x).is_ok());
    let error = over("x", &mesh, &x).unwrap_err().to_string();
    assert!(error.contains("Collective across axis 'x' is forbidden by `no_collectives`"), "{error}");
    // An axis of `vmap` does not communicate.
    let _mapped = no_collectives("i");
    let rows = vmap(|row: Array| &row + psum(row.clone(), "i")).axis_name("i").call(ones([4, 2]))?;
    assert_eq!(rows.to_vec::<f32>()?, [5.0; 8]);
    Ok(())
}
