//! Reduced and unreduced values in gathers, scatters, slices, loops and segment sums.

use super::*;

fn u(axes: &[&'static str]) -> PartitionSpec {
    P![].unreduced(axes.iter().copied())
}

fn shards<T: shardax::dtype::Element>(x: &Array) -> Vec<Vec<T>> {
    x.addressable_shards().unwrap().iter().map(|s| s.data.to_vec::<T>().unwrap()).collect()
}

#[test]
fn segment_sum() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 4)])?.with_axis_types([AxisType::Explicit])?;
    let _mesh = shardax::set_mesh(&mesh)?;
    let (a, b) = (reshard(arange(0..8), P!["x"]), reshard(array([0, 0, 1, 1, 1, 2, 2, 3]), P!["x"]));
    let f = |spec: PartitionSpec| jit(move |a: Array, b: Array| segment_sum_sharded(a, b, 4, spec.clone()));
    let out = f(P![]).call((&a, &b))?;
    assert_eq!((typed(&out), out.to_vec::<i32>()?), ("int32[4]".into(), vec![1, 9, 11, 7]));
    let out = f(u(&["x"])).call((&a, &b))?;
    assert_eq!(typed(&out), "int32[4]{U:x}");
    let want = [[1, 0, 0, 0], [0, 5, 0, 0], [0, 4, 5, 0], [0, 0, 6, 7]];
    assert_eq!(shards::<i32>(&out), want);
    assert_eq!(reshard(out, P![]).to_vec::<i32>()?, [1, 9, 11, 7]);
    Ok(())
}

#[test]
fn scalar_to_unreduced() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let out = reshard(array(3.0f32), u(&["x"]));
    assert_eq!(typed(&out), "float32[]{U:x}");
    assert_eq!(shards::<f32>(&out)[0], [3.0]);
    assert_eq!(shards::<f32>(&out)[7], [0.0]);
    assert!(!out.sharding()?.is_fully_replicated());
    assert_eq!(host(&reshard(out, P![])), [3.0]);
    Ok(())
}

#[test]
fn gather_reduced_fwd_unreduced_bwd() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let table = num(&[8, 2], 0.3, 0.0, P![].reduced(["x"]));
    let indices = device_put(&arange(0..4), P![])?;
    fn f(table: Array, indices: Array) -> Array {
        table.get(&indices)
    }
    let out = jit(f).call((&table, &indices))?;
    assert_eq!(typed(&out), "float32[4,2]{R:x}");
    assert_eq!(host(&out), host(&table)[..8]);
    let g = jit(grad(move |table: Array, indices: Array| f(table, indices).sin().sum(..))).call((&table, &indices))?;
    assert_eq!(typed(&g), "float32[8,2]{U:x}");
    let want: Vec<f32> = host(&table).iter().enumerate().map(|(i, v)| if i < 8 { v.cos() } else { 0.0 }).collect();
    same(&reshard(g, P![]), &want);
    Ok(())
}

#[test]
fn scatter_unreduced_fwd_reduced_bwd() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (x, v) = (reshard(zeros([8, 2]), u(&["x"])), reshard(ramp(&[3, 2], P![]), u(&["x"])));
    let indices = device_put(&array([1, 3, 5]), P![])?;
    fn f(x: Array, indices: Array, v: Array) -> Array {
        x.at(&indices).add(v)
    }
    let out = jit(f).call((&x, &indices, &v))?;
    assert_eq!(typed(&out), "float32[8,2]{U:x}");
    assert_eq!(host(&reshard(out, P![])), [0., 0., 0., 1., 0., 0., 2., 3., 0., 0., 4., 5., 0., 0., 0., 0.]);
    fn loss(x: Array, indices: Array, v: Array) -> Array {
        reshard(f(x, indices, v), P![]).sum(..)
    }
    let (gx, gv) = jit(grad(loss).argnums((Arg::<0>, Arg::<2>))).call((&x, &indices, &v))?;
    assert_eq!((typed(&gx), typed(&gv)), ("float32[8,2]{R:x}".into(), "float32[3,2]{R:x}".into()));
    assert_eq!((host(&gx), host(&gv)), (vec![1.0; 16], vec![1.0; 6]));
    let text = rejected(&(x.at(&indices).multiply(&v)));
    assert!(text.contains("unreduced operands are not supported") && text.contains("float32[8,2]{U:x}"), "{text}");
    Ok(())
}

#[test]
fn slices_and_selections_of_reduced_values() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = num(&[4, 4], 0.3, 0.0, P![].reduced(["x"]));
    // Operations whose results stay reduced.
    type Part = fn(Array) -> Array;
    let parts: [(&str, Part); 8] = [
        ("slice", |x| x.get((.., 0..3))),
        ("dynamic_slice", |x| lax::dynamic_slice_in_dim(&x, &Array::from(1), 2, 0)),
        ("dynamic_update_slice", |x| {
            lax::dynamic_update_slice(&x, &x.get((0..2, ..)), &[Array::from(1), Array::from(0)])
        }),
        ("select", |x| where_(x.greater(0), &x, &x * 2)),
        ("div", |x| &x / (&x * &x + 1)),
        ("cumsum", |x| x.cumsum(0)),
        ("integer power", |x| x.pow(2)),
        ("checkpoint", |x| checkpoint(|x: Array| x.sin()).call(x).unwrap_or_else(|e| panic!("{e}"))),
    ];
    for (name, part) in parts.into_iter().step_by(one_of(2)) {
        let out = jit(part).call(&x)?;
        assert!(typed(&out).ends_with("{R:x}"), "{name}: {}", typed(&out));
        let g = jit(grad(move |x: Array| part(x).sin().sum(..))).call(&x)?;
        assert_eq!(typed(&g), "float32[4,4]{U:x}", "{name}");
        let want = jit(grad(move |x: Array| part(x).sin().sum(..))).call(&reshard(x.clone(), P![]))?;
        same(&reshard(g, P![]), &host(&want));
    }
    Ok(())
}

#[test]
fn padding_of_addends_is_zero() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = reshard(ramp(&[4], P![]), u(&["x"]));
    let padded = lax::pad(&x, &Array::from(0.0f32), &[(1, 1, 0)]);
    assert_eq!(host(&reshard(padded, P![])), [0.0, 0.0, 1.0, 2.0, 3.0, 0.0]);
    let text = rejected(&lax::pad(&x, &Array::from(1.0f32), &[(1, 1, 0)]));
    assert!(text.contains("the padding of unreduced operands must be 0") && text.contains("float32[4]{U:x}"), "{text}");
    Ok(())
}

#[test]
fn broadcast_reduced_inp_unreduced_out() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8], P![].reduced(["x"]));
    fn f(x: Array) -> Array {
        x.broadcast_to_sharded([2, 8], P!["x", None])
    }
    assert_eq!(typed(&jit(f).call(&x)?), "float32[2@x,8]");
    let g = jit(grad(move |x: Array| (f(x) * 3).sum(..))).call(&x)?;
    assert_eq!(typed(&g), "float32[8]{U:x}");
    assert_eq!(host(&reshard(g, P![])), [6.0; 8]);
    Ok(())
}

#[test]
fn cond_fori_reduced_fwd() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let k = num(&[8], 0.3, 0.0, P!["x"]);
    let reduced_k = reshard(k.clone(), P![].reduced(["x"]));
    fn f(p: Array, reduced_k: Array, k: Array) -> Result<Array> {
        let body = move |_: Array, store: Array| {
            let k = k.clone();
            cond(p.clone(), move |_: Array| reshard(k.clone(), P![].reduced(["x"])), |s: Array| s, store)
        };
        fori_loop(0, 4, body, reduced_k)
    }
    let p = array(true);
    assert_eq!(typed(&jit(f).call((&p, &reduced_k, &k))?), "float32[8]{R:x}");
    fn loss(p: Array, reduced_k: Array, k: Array) -> Result<Array> {
        f(p, reduced_k, k).map(|y| y.sum(..))
    }
    let (gs, gk) = jit(grad(loss).argnums((Arg::<1>, Arg::<2>))).call((&p, &reduced_k, &k))?;
    assert_eq!((typed(&gs), typed(&gk)), ("float32[8]{U:x}".into(), "float32[8@x]".into()));
    assert_eq!((host(&reshard(gs, P![])), host(&gk)), (vec![0.0; 8], vec![1.0; 8]));
    Ok(())
}
