//! Unreduced maxima and minima. JAX 0.12 has the same types, values and errors for the same programs
//! (`jax.lax.reduce_max(x, axes=(0,), out_sharding=P("y", unreduced={"x"}, unreduced_kind=UnreducedKind.max))`).

use super::*;
use shardax::sharding::UnreducedKind;

const COLUMNS: [f32; 4] = [12.0, -1.0, 14.0, -3.0];
const SMALLEST: [f32; 4] = [0.0, -13.0, 2.0, -15.0];

/// Rows of `0..16` whose odd columns are negative, split over `x` and `y`.
fn rows() -> Array {
    let signs = array([1.0f32, -1.0, 1.0, -1.0]);
    reshard(arange(0..16).astype(DType::F32).reshape([4, 4]) * signs, P!["x", "y"])
}

fn spec(kind: UnreducedKind) -> PartitionSpec {
    P!["y"].unreduced(["x"]).unreduced_kind(kind)
}

fn largest() -> Array {
    rows().max(over(0).out_sharding(spec(UnreducedKind::Max)))
}

fn message(x: Array) -> String {
    x.check().unwrap_err().to_string()
}

#[test]
fn unreduced_maxima_and_minima_are_combined_by_reshard() -> Result<()> {
    let (_, _mesh) = mesh(2);
    fn smallest() -> Array {
        rows().min(over(0).out_sharding(spec(UnreducedKind::Min)))
    }
    assert_eq!(typed(&largest()), "float32[4@y]{U_max:x}");
    assert_eq!(typed(&smallest()), "float32[4@y]{U_min:x}");
    assert_eq!(spec(UnreducedKind::Max).to_string(), "P('y', unreduced={'x'}, unreduced_kind=max)");
    for to in [P!["y"], P![], P![("y", "x")], P!["x"]] {
        assert_eq!(host(&reshard(largest(), to.clone())), COLUMNS, "{to}");
        assert_eq!(host(&reshard(smallest(), to.clone())), SMALLEST, "{to}");
        let spec = to.clone();
        let f = jit(move |x: Array| reshard(x.max(over(0).out_sharding(self::spec(UnreducedKind::Max))), spec.clone()));
        assert_eq!(host(&f.call(&rows())?), COLUMNS, "{to} in one program");
    }
    let text = largest().to_vec::<f32>().unwrap_err().to_string();
    assert!(text.contains("float32[4@y]{U_max:x} has no values yet"), "{text}");
    assert_eq!(host(&device_put(&largest(), P!["y"])?), COLUMNS);
    assert_eq!(typed(&jit(|x: Array| x).call(&largest())?), "float32[4@y]{U_max:x}");
    Ok(())
}

#[test]
fn unreduced_maxima_are_reduced_further() -> Result<()> {
    let (_, _mesh) = mesh(2);
    let maximum = largest().max(..);
    assert_eq!(typed(&maximum), "float32[]{U_max:x}");
    assert_eq!(host(&reshard(maximum, P![])), [14.0]);
    let parts = largest().max(over(0).out_sharding(P![].unreduced(["x", "y"]).unreduced_kind(UnreducedKind::Max)));
    assert_eq!(typed(&parts), "float32[]{U_max:(x,y)}");
    let over_y = reshard(parts.clone(), P![].unreduced(["y"]).unreduced_kind(UnreducedKind::Max));
    assert_eq!(typed(&over_y), "float32[]{U_max:y}");
    assert_eq!(host(&reshard(over_y, P![])), [14.0]);
    assert_eq!(host(&reshard(parts, P![])), [14.0]);
    Ok(())
}

#[test]
fn operations_that_move_elements_keep_unreduced_maxima() -> Result<()> {
    let (_, _mesh) = mesh(2);
    let square = largest().reshape([2, 2]);
    assert_eq!(typed(&square), "float32[2@y,2]{U_max:x}");
    assert_eq!(host(&reshard(square.clone(), P![])), COLUMNS);
    assert_eq!(typed(&square.t()), "float32[2,2@y]{U_max:x}");
    assert_eq!(host(&reshard(square.t(), P![])), [12.0, 14.0, -1.0, -3.0]);
    let twice = concatenate(&[largest(), largest()], 0);
    assert_eq!(typed(&twice), "float32[8@y]{U_max:x}");
    assert_eq!(host(&reshard(twice, P![])), [COLUMNS, COLUMNS].concat());
    let f = jit(|x: Array| {
        let m = x.max(over(0).out_sharding(spec(UnreducedKind::Max)));
        reshard(concatenate(&[m.reshape([2, 2]), m.reshape([2, 2])], 1).t(), P![])
    });
    assert_eq!(host(&f.call(&rows())?), [12.0, 14.0, -1.0, -3.0, 12.0, 14.0, -1.0, -3.0]);
    let (_, carried) = scan(|_: (), m: Array| ((), m), (), largest().reshape([2, 2]).t())?;
    assert_eq!(typed(&carried), "float32[2,2@y]{U_max:x}");
    assert_eq!(host(&reshard(carried, P![])), [12.0, 14.0, -1.0, -3.0]);
    Ok(())
}

#[test]
fn pmax_of_unreduced_maxima_is_equal_on_all_devices() -> Result<()> {
    let (mesh, _mesh) = mesh(2);
    let most = shard_map(|v: Array| pmax(v, "x"), &mesh).in_specs(spec(UnreducedKind::Max)).out_specs(P!["y"]);
    assert_eq!(host(&most.call(&largest())?), COLUMNS);
    let passed = shard_map(|v: Array| v, &mesh).in_specs(spec(UnreducedKind::Max)).out_specs(spec(UnreducedKind::Max));
    let passed = passed.call(&largest())?;
    assert_eq!((typed(&passed), host(&reshard(passed, P![]))), ("float32[4@y]{U_max:x}".into(), COLUMNS.to_vec()));
    let sum = shard_map(|v: Array| psum(v, "x"), &mesh).in_specs(spec(UnreducedKind::Max)).out_specs(P!["y"]);
    let text = sum.call(&largest()).unwrap_err().to_string();
    assert!(text.contains("operands with the unreduced_kind max are not supported"), "{text}");
    let another = shard_map(|v: Array| v, &mesh).in_specs(P!["y"].unreduced(["x"])).out_specs(P!["y"].unreduced(["x"]));
    let text = another.call(&largest()).unwrap_err().to_string();
    assert!(text.contains("does not match the specs of the input"), "{text}");
    let wrong = shard_map(|v: Array| v, &mesh).in_specs(spec(UnreducedKind::Max)).out_specs(spec(UnreducedKind::Min));
    let text = wrong.call(&largest()).unwrap_err().to_string();
    assert!(text.contains("should be equal to the unreduced"), "{text}");
    Ok(())
}

#[test]
fn nan_stays_in_unreduced_maxima() -> Result<()> {
    let (_, _mesh) = mesh(2);
    let x = reshard(array([[1.0f32, f32::NAN], [f32::NAN, 2.0], [3.0, 4.0], [5.0, 6.0]]), P!["x", None]);
    let m = x.max(over(0).out_sharding(P![].unreduced(["x"]).unreduced_kind(UnreducedKind::Max)));
    assert!(host(&reshard(m, P![])).iter().all(|v| v.is_nan()));
    let bits = reshard(array([3i32, 9, -2, 4]), P!["x"]);
    let m = bits.min(over(0).out_sharding(P![].unreduced(["x"]).unreduced_kind(UnreducedKind::Min)));
    assert_eq!(reshard(m, P![]).item::<i32>()?, -2);
    Ok(())
}

#[test]
fn kinds_that_do_not_fit_are_errors() -> Result<()> {
    let (mesh, _mesh) = mesh(2);
    let (max, min) = (UnreducedKind::Max, UnreducedKind::Min);
    // A maximum of addends is not the addend of a maximum, and so on for the other pairs.
    for (got, text) in [
        (rows().max(over(0).out_sharding(P!["y"].unreduced(["x"]))), "out_sharding must have the unreduced_kind max"),
        (rows().max(over(0).out_sharding(spec(min))), "out_sharding must have the unreduced_kind max"),
        (rows().sum(over(0).out_sharding(spec(max))), "out_sharding must have the unreduced_kind sum"),
        (reshard(largest(), spec(min)), "must be the same"),
        (reshard(largest(), P!["y"].unreduced(["x"])), "must be the same"),
        (reshard(rows(), P![None, "y"].unreduced(["x"]).unreduced_kind(max)), "cannot be more unreduced"),
        (-largest(), "operands with the unreduced_kind max are not supported"),
        (largest() + largest(), "operands with the unreduced_kind max are not supported"),
        (largest().min(..), "operands with the unreduced_kind max are not supported"),
        (largest().sum(..), "operands with the unreduced_kind max are not supported"),
        (largest().astype(DType::Bf16), "operands with the unreduced_kind max are not supported"),
        (reshard(rows(), P!["x"].unreduced_kind(max)), "no unreduced axes"),
    ] {
        let got = message(got);
        assert!(got.contains(text), "{got}");
    }
    let sharding = NamedSharding::new(&mesh, spec(max));
    let text = device_put(&arange(0..4), &sharding).unwrap_err().to_string();
    assert!(text.contains("cannot be more unreduced"), "{text}");
    let slope = grad(|x: Array| reshard(x.max(over(0).out_sharding(spec(max))), P![]).sum(..)).call(&rows());
    let text = slope.unwrap_err().to_string();
    assert!(text.contains("has no derivative"), "{text}");
    Ok(())
}

#[test]
fn maxima_with_a_sharding_have_slopes() -> Result<()> {
    let (_, _mesh) = mesh(2);
    fn f(x: Array) -> Array {
        (x.max(over(0).out_sharding(P!["x"])) * array([1.0f32, 2.0, 3.0, 4.0])).sum(..)
    }
    let d = grad(f).call(&rows())?;
    let mut expected = [0.0; 16];
    (expected[12], expected[1], expected[14], expected[3]) = (1.0, 2.0, 3.0, 4.0);
    assert_eq!(host(&reshard(d, P![])), expected);
    assert_eq!(typed(&rows().min(over(0).out_sharding(P!["x"]))), "float32[4@x]");
    assert_eq!(typed(&rows().max(over(0).out_sharding(P![None]))), "float32[4]");
    Ok(())
}

#[test]
fn blocks_become_unreduced_maxima_by_the_spec() -> Result<()> {
    let (mesh, _mesh) = mesh(2);
    let largest = shard_map(|v: Array| v.max(0), &mesh).in_specs(P!["x", "y"]).out_specs(spec(UnreducedKind::Max));
    let largest = largest.call(&rows())?;
    assert_eq!(typed(&largest), "float32[4@y]{U_max:x}");
    assert_eq!(host(&reshard(largest, P![])), COLUMNS);
    Ok(())
}

#[test]
fn exported_functions_keep_kinds() -> Result<()> {
    let (_, _mesh) = mesh(2);
    fn f(x: Array) -> Array {
        x.max(over(0).out_sharding(spec(UnreducedKind::Max)))
    }
    let bytes = shardax::export::export(f, rows())?.serialize()?;
    let read = shardax::export::Exported::<(Array,), Array>::deserialize(&bytes)?;
    let largest = read.call(rows())?;
    assert_eq!(typed(&largest), "float32[4@y]{U_max:x}");
    assert_eq!(host(&reshard(largest, P![])), COLUMNS);
    Ok(())
}
