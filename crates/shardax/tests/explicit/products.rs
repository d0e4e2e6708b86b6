//! Products.

use super::*;
use shardax::lax::DotOptions;
use shardax::nn::attention::{Attention, Operands, Window, attention};

#[test]
fn dot_general() -> Result<()> {
    let (_, _mesh) = mesh(4);
    // The specs of both operands, and the type of the product.
    let cases = [
        (P!["x", None], P![None, "y"], "float32[8@x,8@y]"),
        (P![None, "x"], P![None, "y"], "float32[8,8@y]"),
        (P!["x", None], P!["y", None], "float32[8@x,8]"),
        (P![None, None], P![None, "x"], "float32[8,8@x]"),
        (P![("x", "y"), None], P![None, None], "float32[8@(x,y),8]"),
    ];
    for (left, right, want) in cases {
        let (a, b) = (num(&[8, 8], 0.1, 0.0, left), num(&[8, 8], 0.2, 1.0, right));
        let f = jit(|a: Array, b: Array| a.matmul(b));
        let out = f.call((&a, &b))?;
        assert_eq!(typed(&out), want);
        let g = jit(grad(|a: Array, b: Array| a.matmul(b).sin().sum(..)).argnums((Arg::<0>, Arg::<1>)));
        let (ga, gb) = g.call((&a, &b))?;
        assert_eq!((typed(&ga), typed(&gb)), (typed(&a), typed(&b)));
        let _none = shardax::set_mesh(None)?;
        let (a, b) = (whole(&a), whole(&b));
        same(&out, &host(&a.matmul(&b)));
        let (wa, wb) =
            grad(|a: Array, b: Array| a.matmul(b).sin().sum(..)).argnums((Arg::<0>, Arg::<1>)).call((&a, &b))?;
        same(&ga, &host(&wa));
        same(&gb, &host(&wb));
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
    // Where the compiler chooses there is nothing to say.
    fn inside(a: Array, b: Array) -> Array {
        DotOptions::new().out_sharding(P!["x", None]).matmul(a, b)
    }
    let f = auto_axes(inside).out_sharding(P!["x", None]);
    let text = jit(move |a: Array, b: Array| f.call((a, b))).call((&a, &b)).unwrap_err().to_string();
    assert!(
        text.contains("out_sharding can only refer to axes that are Explicit") && text.contains("of type Auto"),
        "{text}"
    );
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
    same(&ga, &[4.0; 32]);
    // The other way round.
    let (data, b) = (array([[0.5f32; 8]; 4]), ramp(&[8, 4], P!["x", "y"]));
    assert_eq!(typed(&f.call((&data, &b))?), "float32[4,4@y]");
    let (ga, gb) = g.call((&data, &b))?;
    assert_eq!((typed(&ga), typed(&gb)), ("float32[4,8]".into(), "float32[8@x,4@y]".into()));
    same(&gb, &[2.0; 32]);
    Ok(())
}

#[test]
fn einsum_inverse() -> Result<()> {
    let (_, _mesh) = mesh(2);
    let (a, b) = (num(&[8, 4, 2], 0.1, 0.0, P!["x", "y", None]), num(&[2, 4, 8], 0.2, 1.0, P![None, "x", "y"]));
    fn f(a: Array, b: Array) -> Array {
        let out = DotOptions::new().out_sharding(P!["x", None, "y", None]).einsum("btd,dhq->bhtq", &[&a, &b]);
        assert_eq!(out.type_name(), "float32[8@x,4,4@y,8]");
        out
    }
    let out = jit(f).call((&a, &b))?;
    assert_eq!(typed(&out), "float32[8@x,4,4@y,8]");
    let (ha, hb) = (host(&a), host(&b));
    fn want(b: usize, h: usize, t: usize, q: usize, ha: &[f32], hb: &[f32]) -> f32 {
        (0..2).map(|d| ha[(b * 4 + t) * 2 + d] * hb[(d * 4 + h) * 8 + q]).sum()
    }
    near(host(&out)[((3 * 4 + 2) * 4 + 1) * 8 + 5].into(), want(3, 2, 1, 5, &ha, &hb).into(), 1e-5);
    let g = || grad(move |a: Array, b: Array| f(a, b).sin().sum(..)).argnums((Arg::<0>, Arg::<1>));
    let (ga, gb) = jit(g()).call((&a, &b))?;
    assert_eq!((typed(&ga), typed(&gb)), (typed(&a), typed(&b)));
    let (ea, eb) = g().call((&a, &b))?;
    assert_eq!((typed(&ea), typed(&eb)), (typed(&a), typed(&b)));
    same(&ea, &host(&ga));
    same(&eb, &host(&gb));
    Ok(())
}

#[test]
fn fused_attention() -> Result<()> {
    let (_, _mesh) = mesh(4);
    fn x(b: f32, heads: usize, spec: PartitionSpec) -> Array {
        num(&[4, 6, heads, 8], 0.13, b, spec)
    }
    let heads = P!["x", None, "y", None];
    fn attend(q: Array, k: Array, v: Array) -> Array {
        let causal = Window { before: usize::MAX, after: 0 };
        attention(&Attention::default().window(causal), &Operands::new(&q, &k, &v))[0].clone()
    }
    for (q, k, v, want) in [
        (x(0.0, 4, heads.clone()), x(1.0, 4, heads.clone()), x(2.0, 4, heads.clone()), "float32[4@x,6,4@y,8]"),
        // One head of keys for all, and queries that are split.
        (x(0.0, 4, heads.clone()), x(1.0, 1, P!["x"]), x(2.0, 1, P!["x"]), "float32[4@x,6,4@y,8]"),
        (
            x(0.0, 4, P![None, "x", "y"]),
            x(1.0, 4, P![None, None, "y"]),
            x(2.0, 4, P![None, None, "y"]),
            "float32[4,6@x,4@y,8]",
        ),
    ] {
        let out = jit(attend).call((&q, &k, &v))?;
        assert_eq!(typed(&out), want);
        fn loss(q: Array, k: Array, v: Array) -> Array {
            attend(q, k, v).sin().sum(..)
        }
        let g = || grad(loss).argnums((Arg::<0>, Arg::<1>, Arg::<2>));
        let (gq, gk, gv) = jit(g()).call((&q, &k, &v))?;
        assert_eq!((typed(&gq), typed(&gk), typed(&gv)), (typed(&q), typed(&k), typed(&v)));
        let _none = shardax::set_mesh(None)?;
        let [q, k, v] = [q, k, v].map(|x| device_put(&x, &devices().unwrap()[0]).unwrap());
        same(&out, &host(&attend(q.clone(), k.clone(), v.clone())));
        let (pq, pk, pv) = g().call((&q, &k, &v))?;
        same(&gq, &host(&pq));
        same(&gk, &host(&pk));
        same(&gv, &host(&pv));
    }
    let text = rejected(&attend(x(0.0, 4, heads.clone()), x(1.0, 4, P![None, "x"]), x(2.0, 4, heads.clone())));
    assert!(text.contains("dimension 1 must not be sharded") && text.contains("float32[4,6@x,4,8]"), "{text}");
    Ok(())
}

/// JAX takes the left operand's entry, and gathers the right one.
#[test]
fn batches_split_in_either_operand_stay_split() -> Result<()> {
    let (_, _guard) = mesh(4);
    fn product(a: &Array, b: &Array) -> Array {
        shardax::numpy::einsum("bij,bjk->bik", &[a, b])
    }
    let (a, b) = (|spec| num(&[4, 8, 2], 0.3, 0.1, spec), |spec| num(&[4, 2, 8], 0.2, 0.4, spec));
    let want = host(&product(&a(P![]), &b(P![])));
    for (left, right, of) in [
        (P!["x"], P![], "float32[4@x,8,8]"),
        (P![], P!["x"], "float32[4@x,8,8]"),
        (P![None, "y"], P!["x"], "float32[4@x,8@y,8]"),
        (P![None, "x"], P!["x"], "float32[4,8@x,8]"),
    ] {
        let result = product(&a(left), &b(right));
        assert_eq!(typed(&result), of);
        same(&result, &want);
        let slope = |spec| jit(grad(move |b: Array| product(&a(P![]), &b).square().sum(..))).call(b(spec));
        assert_eq!(typed(&slope(P!["x"])?), "float32[4@x,2,8]");
        same(&slope(P!["x"])?, &host(&slope(P![])?));
    }
    Ok(())
}

#[test]
fn intermediate_einsum() -> Result<()> {
    let (_, _mesh) = mesh(4);
    fn matrix(spec: PartitionSpec) -> Array {
        num(&[8, 8], 0.1, 0.0, spec)
    }
    let to = DotOptions::new().out_sharding(P![None, "x"]);
    let operands = [matrix(P!["x", "y"]), matrix(P!["y", "x"]), matrix(P!["x", "y"])];
    let f = move |[a, b, c]: [Array; 3]| to.einsum("ij,jk,kl->il", &[&a, &b, &c]);
    let out = jit(f).call(operands.clone())?;
    assert_eq!(typed(&out), "float32[8,8@x]");
    let _none = shardax::set_mesh(None)?;
    let [a, b, c] = operands.map(|x| whole(&x));
    same(&out, &host(&a.matmul(b).matmul(c)));
    Ok(())
}
