//! Reductions, sorting, and other operations along a dimension.

use super::*;

#[test]
fn reduce_sum() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", "y"]);
    assert_eq!(typed(&x.sum(0)), "float32[8@y]");
    assert_eq!(typed(&x.sum(1)), "float32[8@x]");
    assert_eq!(typed(&x.sum(..)), "float32[]");
    assert_eq!(typed(&ramp(&[8, 8], P![("x", "y")]).sum(0)), "float32[8]");
    assert_eq!(typed(&ramp(&[8, 8], P![None, "x"]).sum(1)), "float32[8]");
    let expected = jit(|x: Array| x.sum(1)).lower(&ramp(&[8, 8], P!["x"]))?.compile()?;
    assert_eq!(expected.collectives()?.count(), 0);
    let f = jit(|x: Array| x.sum(0));
    assert_eq!(typed(&f.call(&x)?), "float32[8@y]");
    assert_eq!(host(&f.call(&x)?)[0], 224.0);
    assert!(f.lower(&x)?.compile()?.as_text()?.contains("all-reduce"));
    assert_eq!(typed(&x.max(1)), "float32[8@x]");
    assert_eq!(typed(&x.argmax(1)), "int32[8@x]");
    assert_eq!(typed(&jit(grad(|x: Array| x.sum(0).sin().sum(..))).call(&x)?), "float32[8@x,8@y]");
    Ok(())
}

#[test]
fn cumsum() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 4], P!["x", None]);
    let sums = x.cumsum(1);
    assert_eq!(typed(&sums), "float32[8@x,4]");
    assert_eq!(host(&sums)[..4], [0.0, 1.0, 3.0, 6.0]);
    let flat = ramp(&[8, 4], P![]).cumsum(..);
    assert_eq!((typed(&flat), host(&flat)[31]), ("float32[32]".into(), 496.0));
    let text = rejected(&x.cumsum(0));
    assert!(text.contains("dimension 0 must not be sharded") && text.contains("float32[8@x,4]"), "{text}");
    Ok(())
}

#[test]
fn argsort_error() {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 4], P!["x", None]);
    assert_eq!(typed(&sort(&x, 1)), "float32[8@x,4]");
    let text = rejected(&argsort(&x, 0));
    assert!(text.contains("dimension 0 must not be sharded"), "{text}");
}

#[test]
fn topk() -> Result<()> {
    let (_, _mesh) = mesh(2);
    let x = num(&[4, 8, 16], 0.3, 0.0, P!["x", None, None]);
    fn f(x: Array) -> Array {
        let (values, _) = lax::top_k(&x, 6);
        assert_eq!(values.type_name(), "float32[4@x,8,6]");
        values
    }
    let out = jit(f).call(&x)?;
    assert_eq!(typed(&out), "float32[4@x,8,6]");
    let mut first = host(&x)[..16].to_vec();
    first.sort_by(|a, b| b.total_cmp(a));
    assert_eq!(host(&out)[..6], first[..6]);
    let g = jit(grad(move |x: Array| f(x).sum(..))).call(&x)?;
    assert_eq!(typed(&g), "float32[4@x,8,16]");
    near(total(&g), 4.0 * 8.0 * 6.0, 1e-6);
    Ok(())
}
