//! Usual programs, with the types and the numbers of JAX.

use super::*;
use shardax::lax::DotOptions;

fn einsum_to(spec: &str, x: &Array, y: &Array, out: PartitionSpec) -> Array {
    DotOptions::new().out_sharding(out).einsum(spec, &[x, y])
}

#[test]
fn model_with_data_and_tensor_parallel_parts() -> Result<()> {
    let (_, _mesh) = mesh(4);
    // The second matrix is split by columns and the third by rows, so that hidden features stay on their devices.
    let params = vec![
        num(&[16, 8], 0.3, 0.0, P![None, "y"]),
        num(&[8, 16], 0.2, 0.0, P![None, "y"]),
        num(&[16, 8], 0.1, 0.0, P!["y", None]),
        num(&[8, 16], 0.4, 0.0, P![None, "y"]),
    ];
    let tok: Vec<i32> = (0..24).map(|i| i * 5 % 16).collect();
    let tok = device_put(&array(tok).reshape([4, 6]), P!["x"])?;
    fn loss(p: Vec<Array>, tok: Array) -> Array {
        let h = p[0].at(&tok).out_sharding(P!["x", None, None]).get();
        assert_eq!(h.type_name(), "float32[4@x,6,8]");
        let u = einsum("btd,df->btf", &[&h, &p[1]]);
        assert_eq!(u.type_name(), "float32[4@x,6,16@y]");
        let u = maximum(&u, 0.0);
        let h = &h + einsum_to("btf,fd->btd", &u, &p[2], P!["x", None, None]);
        let h = &h / ((&h * &h).mean_keepdims(-1) + 1e-6).sqrt();
        assert_eq!(h.type_name(), "float32[4@x,6,8]");
        let lg = einsum("btd,dv->btv", &[&h, &p[3]]);
        assert_eq!(lg.type_name(), "float32[4@x,6,16@y]");
        let lse = shardax::scipy::special::logsumexp(&lg, -1);
        assert_eq!(lse.type_name(), "float32[4@x,6]");
        let hot = reshard(shardax::nn::one_hot(&tok, 16), P!["x", None, "y"]);
        (lse - (lg * hot).sum(-1)).mean(..)
    }
    let (l, g) = jit(value_and_grad(loss)).call((params.clone(), &tok))?;
    near(l.item::<f32>()?.into(), 5.873714, 1e-5);
    for ((g, p), want) in g.iter().zip(&params).zip([10.234921, 49.006142, 8.374476, 9.062039]) {
        assert_eq!(typed(g), typed(p));
        near(absolute(g), want, 1e-4);
    }
    let next: Vec<Array> = params.iter().zip(&g).map(|(p, g)| p - g * 0.1).collect();
    near(jit(loss).call((next, &tok))?.item::<f32>()?.into(), 6.285285, 1e-4);
    Ok(())
}

#[test]
fn attention_of_split_heads() -> Result<()> {
    let (_, _mesh) = mesh(4);
    // Heads are split over `y`; only the output projection sums over devices.
    let x = num(&[4, 6, 8], 0.15, 0.0, P!["x"]);
    fn w(i: f32) -> Array {
        num(&[8, 4, 2], 0.2, i, P![None, "y", None])
    }
    let wo = num(&[4, 2, 8], 0.3, 0.0, P!["y", None, None]);
    fn attend(x: Array, wq: Array, wk: Array, wv: Array, wo: Array) -> Array {
        fn head(w: &Array, x: &Array) -> Array {
            einsum("btd,dhk->bthk", &[x, w])
        }
        let (q, k, v) = (head(&wq, &x), head(&wk, &x), head(&wv, &x));
        assert_eq!(q.type_name(), "float32[4@x,6,4@y,2]");
        let s = einsum("bthk,bshk->bhts", &[&q, &k]) / 2f32.sqrt();
        assert_eq!(s.type_name(), "float32[4@x,4@y,6,6]");
        let mask = tril(&ones([6, 6]), 0).greater(0.0);
        let s = where_(mask.reshape([1, 1, 6, 6]), &s, -1e9);
        let o = einsum("bhts,bshk->bthk", &[&shardax::nn::softmax(&s, -1), &v]);
        assert_eq!(o.type_name(), "float32[4@x,6,4@y,2]");
        einsum_to("bthk,hkd->btd", &o, &wo, P!["x", None, None])
    }
    let args = (x, w(0.0), w(1.0), w(2.0), wo);
    let y = jit(attend).call(args.clone())?;
    assert_eq!(typed(&y), "float32[4@x,6,8]");
    near(total(&y), 13.53504, 1e-4);
    let bytes = (6 + 2) * 8;
    for (have, want) in host(&y)[bytes..bytes + 4].iter().zip([0.160119, 0.216915, 0.254334, 0.269035]) {
        near((*have).into(), want, 1e-4);
    }
    fn loss(x: Array, q: Array, k: Array, v: Array, o: Array) -> Array {
        let y = attend(x, q, k, v, o);
        (&y * &y).sum(..)
    }
    let (gx, gq, go) = jit(grad(loss).argnums((Arg::<0>, Arg::<1>, Arg::<4>))).call(args.clone())?;
    assert_eq!((typed(&gx), typed(&gq), typed(&go)), (typed(&args.0), typed(&args.1), typed(&args.4)));
    near(absolute(&gx), 132.3805, 1e-4);
    near(absolute(&gq), 8.5923, 1e-4);
    near(absolute(&go), 83.3016, 1e-4);
    Ok(())
}

#[test]
fn fully_sharded_weights_in_a_scan() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let w = num(&[3, 8, 8], 0.17, 0.0, P![None, "x", None]);
    let x = num(&[8, 8], 0.3, 0.0, P![("x", "y")]);
    let f = |w: Array, x: Array| {
        fn layer(h: Array, w: Array) -> Result<(Array, ())> {
            Ok((h.matmul(reshard(w, P![])).tanh(), ()))
        }
        let h = shardax::scan(layer, x, w)?.0;
        Ok::<_, shardax::Error>((&h * &h).sum(..))
    };
    let (l, g) = jit(value_and_grad(f)).call((&w, &x))?;
    near(l.item::<f32>()?.into(), 9.751321, 1e-5);
    assert_eq!(typed(&g), "float32[3,8@x,8]");
    near(absolute(&g), 769.0476, 1e-4);
    // Sequence parallel: between blocks the sequence is split.
    let h = num(&[4, 8, 8], 0.1, 0.0, P!["x", None, None]);
    fn block(h: Array) -> Array {
        reshard(reshard(h, P!["x", "y", None]).tanh(), P!["x", None, None])
    }
    let out = jit(block).call(&h)?;
    assert_eq!(typed(&out), "float32[4@x,8,8]");
    same(&out, &host(&h).iter().map(|v| v.tanh()).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn auto_axes_of_operations_without_a_rule() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (x, w) = (num(&[8, 8], 0.3, 0.0, P!["x"]), num(&[8, 4], 0.2, 0.0, P![None, "y"]));
    fn route(x: Array, w: Array) -> Result<Array> {
        let f = auto_axes(|x: Array, w: Array| shardax::nn::softmax(&sort(x.matmul(w), 0), -1));
        f.out_sharding(P!["x", None]).call((x, w))
    }
    let out = jit(move |x: Array, w: Array| Ok::<_, shardax::Error>(route(x, w)? * 2)).call((&x, &w))?;
    assert_eq!(typed(&out), "float32[8@x,4]");
    for (have, want) in host(&out).iter().zip([0.501378, 0.479951, 0.508079, 0.510592]) {
        near((*have).into(), want, 1e-4);
    }
    fn loss(x: Array, w: Array) -> Result<Array> {
        let y = route(x, w)?;
        Ok::<_, shardax::Error>((&y * &y).sum(..))
    }
    let (gx, gw) = jit(grad(loss).argnums((Arg::<0>, Arg::<1>))).call((&x, &w))?;
    assert_eq!((typed(&gx), typed(&gw)), (typed(&x), typed(&w)));
    near(absolute(&gx), 0.27012, 1e-3);
    near(absolute(&gw), 1.23006, 1e-3);
    Ok(())
}
