//! Indexing.

use super::*;

fn tokens(spec: PartitionSpec) -> Array {
    let values: Vec<i32> = (0..24).map(|i| i * 5 % 16).collect();
    device_put(&array(values).reshape([4, 6]), spec).unwrap()
}

#[test]
fn auto_gather_out_sharding() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let table = num(&[16, 8], 0.3, 0.0, P![None, "y"]);
    let tok = tokens(P!["x"]);
    let f = |table: Array, tok: Array| table.at(&tok).out_sharding(P!["x", None, None]).get();
    let out = jit(f).call((&table, &tok))?;
    assert_eq!(typed(&out), "float32[4@x,6,8]");
    let (t, want) = (host(&table), tok.to_vec::<i32>()?);
    same(&out, &want.iter().flat_map(|r| t[*r as usize * 8..][..8].to_vec()).collect::<Vec<_>>());
    assert_eq!(typed(&f(table.clone(), tok.clone())), "float32[4@x,6,8]");
    let g = jit(grad(move |table: Array, tok: Array| f(table, tok).sin().sum(..))).call((&table, &tok))?;
    assert_eq!(typed(&g), "float32[16,8@y]");
    Ok(())
}

#[test]
fn indices_sharded_gather_error() {
    let (_, _mesh) = mesh(4);
    let text = refused(&num(&[16, 8], 0.3, 0.0, P![None, "y"]).get(&tokens(P!["x"])));
    assert!(
        text.contains("the sharding of the result cannot be inferred") && text.contains("float32[16,8@y]"),
        "{text}"
    );
    assert!(text.contains("`x.at(index).out_sharding(spec).get()`"), "{text}");
    // Whole indices read whole dimensions of what is split over others.
    assert_eq!(typed(&num(&[16, 8], 0.3, 0.0, P![None, "y"]).get(&tokens(P![]))), "float32[4,6,8@y]");
}

#[test]
fn dynamic_slice() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", "y"]);
    assert_eq!(typed(&x.get((2..6, ..))), "float32[4@x,8@y]");
    let text = refused(&x.get(0));
    assert!(text.contains("out dim (1) is not divisible by mesh axes (2) with spec (x)"), "{text}");
    let g = jit(grad(|x: Array| x.get((2..6, ..)).sin().sum(..))).call(&x)?;
    assert_eq!(typed(&g), "float32[8@x,8@y]");
    Ok(())
}

#[test]
fn scatter_of_whole_dimensions() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P![None, "y"]);
    let at = array([1, 3]);
    let out = jit(|x: Array, at: Array| x.at(&at).add(1.0)).call((&x, &at))?;
    assert_eq!(typed(&out), "float32[8,8@y]");
    assert_eq!(host(&out)[8], 9.0);
    let text = refused(&ramp(&[8, 8], P!["x"]).at(&at).add(1.0));
    assert!(text.contains("out_sharding(spec).set(value)"), "{text}");
    let out = ramp(&[8, 8], P!["x"]).at(&at).out_sharding(P!["x"]).add(1.0);
    assert_eq!(typed(&out), "float32[8@x,8]");
    assert_eq!(host(&out)[8], 9.0);
    Ok(())
}

#[test]
fn conv_general_dilated() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (x, k) = (num(&[8, 4, 16], 0.1, 0.0, P!["x"]), num(&[2, 4, 3], 0.2, 0.0, P![]));
    let f = |x: Array, k: Array| lax::conv(&x, &k, &[1], lax::Padding::Same);
    let out = jit(f).call((&x, &k))?;
    assert_eq!(typed(&out), "float32[8@x,2,16]");
    let g = grad(move |x: Array, k: Array| f(x, k).sin().sum(..)).argnums((Arg::<0>, Arg::<1>));
    let (gx, gk) = jit(g).call((&x, &k))?;
    assert_eq!((typed(&gx), typed(&gk)), (typed(&x), typed(&k)));
    let text = refused(&f(num(&[8, 4, 16], 0.1, 0.0, P![None, "y"]), k));
    assert!(text.contains("the kernel and the input's features must not be sharded"), "{text}");
    Ok(())
}

#[test]
fn linalg_of_split_batches() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let a = num(&[4, 3, 3], 1.3, 0.0, P!["x"]);
    assert_eq!(typed(&linalg::det(&a)), "float32[4@x]");
    let text = refused(&linalg::det(&num(&[4, 4], 1.3, 0.0, P!["x"])));
    assert!(text.contains("must not be sharded"), "{text}");
    Ok(())
}
