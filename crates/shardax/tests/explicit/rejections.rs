//! Programs that are rejected, with the words of their errors.

use super::*;

#[test]
fn elementwise_of_two_shardings() {
    let (_, _mesh) = mesh(4);
    let (a, b) = (ramp(&[8, 8], P!["x", None]), ramp(&[8, 8], P!["y", None]));
    let text = rejected(&(&a * &b));
    assert!(text.starts_with("sharding type error: mul: got incompatible shardings for broadcasting: P('x', None) and P('y', None), for operands of type float32[8@x,8], float32[8@y,8]"), "{text}");
    assert!(text.contains("rejections.rs:") && text.contains("reshard(x, spec)"), "{text}");
    let text = rejected(&(&ramp(&[8, 8], P![("x", "y")]) * &a));
    assert!(text.contains("P(('x', 'y'), None) and P('x', None)"), "{text}");
    let text = rejected(&(&a * &ramp(&[8, 8], P![None, "x"])));
    assert!(text.contains("mul operation with inputs: float32[8@x,8], float32[8,8@x] produces an illegally sharded result: float32[8@x,8@x]"), "{text}");
}

#[test]
fn dot_general_error() {
    let (_, _mesh) = mesh(4);
    fn with_spec(spec: PartitionSpec) -> Array {
        ramp(&[8, 8], spec)
    }
    let text = rejected(&with_spec(P!["x", "y"]).matmul(with_spec(P!["y", None])));
    assert!(text.contains("ambiguous how the output should be sharded, got lhs_contracting_spec=P('y',) and rhs_contracting_spec=P('y',)"), "{text}");
    assert!(text.contains("DotOptions::new().out_sharding(spec)"), "{text}");
    let text = rejected(&with_spec(P!["x", "y"]).matmul(with_spec(P!["x", "y"])));
    assert!(
        text.contains("consistent sharding, got lhs_contracting_spec=P('y',) and rhs_contracting_spec=P('x',)"),
        "{text}"
    );
    let text = rejected(&with_spec(P!["x", None]).matmul(with_spec(P![None, "x"])));
    assert!(text.contains("dot_general operation with inputs: float32[8@x,8], float32[8,8@x] produces an illegally sharded result: float32[8@x,8@x]"), "{text}");
    fn batch(spec: PartitionSpec) -> Array {
        ramp(&[8, 4, 4], spec)
    }
    let text = rejected(&batch(P!["x"]).matmul(batch(P!["y"])));
    assert!(text.contains("batch dimensions need to have consistent sharding"), "{text}");
}

#[test]
fn bare_spec_without_a_mesh() {
    setup();
    let text = rejected(&reshard(array([1.0f32; 8]), P!["x"]));
    assert!(text.contains("reshard requires a non-empty mesh in context"), "{text}");
    assert!(text.contains("set_mesh(&mesh)"), "{text}");
}

#[test]
fn axes_of_other_types_and_unknown_ones() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 2), ("y", 4)])?.with_axis_types([AxisType::Explicit, AxisType::Auto])?;
    let _mesh = set_mesh(&mesh)?;
    let x = array([[1.0f32; 8]; 8]);
    let text = rejected(&reshard(x.clone(), P!["y"]));
    assert!(
        text.contains(
            "reshard can only refer to axes that are Explicit, but got P('y',), whose axis 'y' is of type Auto"
        ),
        "{text}"
    );
    let text = rejected(&reshard(x.clone(), P!["z"]));
    assert!(text.contains("Resource axis: z is not found in mesh"), "{text}");
    let text = rejected(&reshard(x.clone(), P!["x", "x"]));
    assert!(text.contains("cannot use the mesh axis 'x' twice"), "{text}");
    let text = rejected(&reshard(x, P![None, None, "x"]));
    assert!(text.contains("only valid for values of rank at least 3"), "{text}");
    Ok(())
}
