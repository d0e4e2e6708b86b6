//! Products.

use super::*;
use shardax::lax::DotOptions;

#[test]
fn dot_general() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let cases = [
        (P!["x", None], P![None, "y"], "float32[8@x,8@y]"),
        (P![None, "x"], P![None, "y"], "float32[8,8@y]"),
        (P!["x", None], P!["y", None], "float32[8@x,8]"),
        (P![None, None], P![None, "x"], "float32[8,8@x]"),
        (P![("x", "y"), None], P![None, None], "float32[8@(x,y),8]"),
    ];
    let whole = |x: &Array| device_put(x, &devices().unwrap()[0]).unwrap();
    for (left, right, want) in cases {
        let (a, b) = (num(&[8, 8], 0.1, 0.0, left), num(&[8, 8], 0.2, 1.0, right));
        let f = jit(|a: Array, b: Array| a.matmul(b));
        let out = f.call((&a, &b))?;
        assert_eq!(typed(&out), want);
        let g = jit(grad(|a: Array, b: Array| a.matmul(b).sin().sum(..)).argnums((Arg::<0>, Arg::<1>)));
        let (ga, gb) = g.call((&a, &b))?;
        assert_eq!((typed(&ga), typed(&gb)), (typed(&a), typed(&b)));
        let _ = whole;
    }
    Ok(())
}

#[test]
fn dot_general_out_sharding() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (a, b) = (num(&[8, 8], 0.1, 0.0, P!["x", "y"]), num(&[8, 8], 0.2, 1.0, P!["y", None]));
    let f = jit(|a: Array, b: Array| DotOptions::new().out_sharding(P!["x", None]).matmul(a, b));
    let out = f.call((&a, &b))?;
    assert_eq!(typed(&out), "float32[8@x,8]");
    let (ha, hb) = (host(&a), host(&b));
    let want: Vec<f32> = (0..64).map(|i| (0..8).map(|k| ha[i / 8 * 8 + k] * hb[k * 8 + i % 8]).sum()).collect();
    same(&out, &want);
    let g = grad(|a: Array, b: Array| DotOptions::new().out_sharding(P!["x", None]).matmul(a, b).sum(..));
    let (ga, gb) = jit(g.argnums((Arg::<0>, Arg::<1>))).call((&a, &b))?;
    assert_eq!((typed(&ga), typed(&gb)), (typed(&a), typed(&b)));
    near(host(&ga)[1].into(), hb[8..16].iter().sum::<f32>().into(), 1e-4);
    Ok(())
}

#[test]
fn einsum_with_out_sharding() -> Result<()> {
    let (mesh, _guard) = mesh(4);
    let (a, b) = (num(&[8, 4], 0.1, 0.0, P!["x", "y"]), num(&[4, 8], 0.2, 1.0, P!["y", "x"]));
    let spec = DotOptions::new().out_sharding(P!["x", None]);
    assert_eq!(typed(&spec.einsum("xy,yz->xz", &[&a, &b])), "float32[8@x,8]");
    let named = DotOptions::new().out_sharding(NamedSharding::new(&mesh, P!["x", None]));
    let f = move |a: Array, b: Array| named.einsum("xy,yz->xz", &[&a, &b]).sum(..);
    let (ga, gb) = jit(grad(f).argnums((Arg::<0>, Arg::<1>))).call((&a, &b))?;
    assert_eq!((typed(&ga), typed(&gb)), (typed(&a), typed(&b)));
    // Of a transposed result, and of one operand.
    let t = DotOptions::new().out_sharding(P!["y", "x"]);
    assert_eq!(typed(&t.einsum("xy,yz->zx", &[&a, &b])), "float32[8@y,8@x]");
    assert_eq!(typed(&t.einsum("xy->xy", &[&a])), "float32[8@y,4@x]");
    Ok(())
}

#[test]
fn jnp_matmul() {
    let (_, _mesh) = mesh(4);
    let (a, b) = (ramp(&[8, 4], P!["x", "y"]), ramp(&[4, 8], P!["y", "x"]));
    let out = DotOptions::new().out_sharding(P![None, "y"]).matmul(&a, &b);
    assert_eq!(typed(&out), "float32[8,8@y]");
}

#[test]
fn dot_empty_mesh_lhs_rhs() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let a = ramp(&[8, 4], P!["x", "y"]);
    let data = array([[0.5f32; 8]; 4]);
    let f = jit(|a: Array, b: Array| a.matmul(b));
    assert_eq!(typed(&f.call((&a, &data))?), "float32[8@x,8]");
    let g = jit(grad(|a: Array, b: Array| a.matmul(b).sum(..)).argnums((Arg::<0>, Arg::<1>)));
    let (ga, gb) = g.call((&a, &data))?;
    assert_eq!((typed(&ga), typed(&gb)), ("float32[8@x,4@y]".into(), "float32[4,8]".into()));
    Ok(())
}
