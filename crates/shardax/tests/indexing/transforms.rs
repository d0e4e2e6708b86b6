//! Gradients and batches of indexing, blocks at computed positions, sorting, and arrays that are split.

use super::*;

#[test]
fn rows() -> Result<()> {
    setup();
    let x = arange(0..6).reshape([3, 2]);
    let sums: Vec<i32> = x.iter().map(|row| row.sum(..).item::<i32>()).collect::<Result<_>>()?;
    assert_eq!(sums, [1, 5, 9]);
    assert_eq!(x.iter().len(), 3);
    let mut total = Array::from(0);
    for row in &x {
        total = total + row;
    }
    assert_eq!(ints(&total), [6, 9]);
    let stacked = jit(|x: Array| stack(&x.iter().map(|r| r * 2).collect::<Vec<_>>(), 0)).call(&x)?;
    assert_eq!(ints(&stacked), [0, 2, 4, 6, 8, 10]);
    let mut none = array(1).iter();
    assert!(error_of(none.next().expect("one entry")).message().contains("iteration over a 0-d array"));
    assert!(none.next().is_none());
    Ok(())
}

/// The gradient of the sum of `f`'s squares, compared with central differences.
fn check_gradient(name: &str, f: impl Fn(Array) -> Array + Clone, x: &Array) -> Result<()> {
    let loss = |x: Array| f(x).square().sum(..);
    let want: Vec<f64> = {
        let values = floats(x);
        let eps = 1e-2;
        let value_at = |i: usize, d: f32| -> Result<f64> {
            let mut v = values.clone();
            v[i] += d;
            loss(Array::from_vec(v, x.shape())?).to_f64()
        };
        (0..values.len())
            .map(|i| Ok((value_at(i, eps)? - value_at(i, -eps)?) / (2.0 * eps as f64)))
            .collect::<Result<_>>()?
    };
    let eager = grad(loss).call(x)?;
    let compiled = jit(grad(loss)).call(x)?;
    for got in [eager, compiled] {
        for (g, w) in got.to_f64_vec()?.iter().zip(&want) {
            assert!((g - w).abs() <= 5e-3 * (1.0 + w.abs()), "{name}: {:?} against {want:?}", got.to_f64_vec());
        }
    }
    Ok(())
}

#[test]
fn gradients() -> Result<()> {
    setup();
    let x = array([[0.5f32, -1.0, 2.0], [1.5, 0.25, -0.75]]);
    let row = array([3.0f32, -2.0, 0.5]);
    check_gradient("number", |x| x.get((1, -1)), &x)?;
    check_gradient("range", |x| x.get(s![..;-1, 1..]) * 3.0, &x)?;
    check_gradient("repeated rows", |x| x.get([1, 1, 0, -1]), &x)?;
    // As in JAX, a position out of bounds reads the nearest element, and its cotangent is dropped.
    let clamped = grad(|x: Array| x.get([5, 0]).square().sum(..)).call(&x)?;
    assert_eq!(floats(&clamped), [1.0, -2.0, 4.0, 0.0, 0.0, 0.0]);
    check_gradient("points", |x| x.get(([0, 1, 1], [2, 2, 2])), &x)?;
    check_gradient("filled", |x| x.at([0, 9]).fill_value(1.0).get(), &x)?;
    check_gradient("take_along_axis", |x| x.take_along_axis(&array([[0, 0, 2], [1, 1, 1]]), 1), &x)?;
    let r = row.clone();
    check_gradient("set a row", move |x| x.at(0).set(&r * x.get(1)), &x)?;
    check_gradient("set with repeats", |x| x.at([1, 1]).set(x.get([0, 0]) * 2.0), &x)?;
    check_gradient("add", |x| x.at((.., [0, 0, 2])).add(x.clone() * 0.5), &x)?;
    check_gradient("multiply", |x| x.at((.., 1..)).multiply(x.get((.., ..2))), &x)?;
    check_gradient("multiply rows", |x| x.at([1]).unique_indices().multiply(x.get([0])), &x)?;
    check_gradient("min", |x| x.at([0, 1]).min(x.get([1, 0])), &x)?;
    check_gradient("max", |x| x.at((.., 0)).max(x.get((.., 1))), &x)?;
    check_gradient("steps", |x| x.at(s![.., ..;2]).set(x.get(s![.., ..;-2]) * 2.0), &x)?;
    let indices = array(1);
    check_gradient("dynamic_slice", move |x| lax::dynamic_slice(&x, &[indices.clone(), array(-2)], &[1, 2]), &x)?;
    check_gradient(
        "dynamic_update_slice",
        |x| lax::dynamic_update_slice(&x, &(x.get((..1, ..2)) * 3.0), &[array(1), array(0)]),
        &x,
    )?;
    check_gradient("sort", |x| x.sort(0) * array([[1.0f32], [2.0]]), &x)?;
    check_gradient("top_k", |x| lax::top_k(&x, 2).0 * array([1.0f32, 3.0]), &x)?;
    check_gradient("cumsum", |x| x.cumsum(1), &x)?;
    check_gradient("cumprod", |x| x.cumprod(..), &x)?;
    check_gradient("cummax", |x| x.cummax(1), &x)?;
    check_gradient("cumlogsumexp", |x| lax::CumulativeOptions::new().reverse(true).cumlogsumexp(&x, 1), &x)?;
    check_gradient("roll", |x| x.roll(1, 1) * &row, &x)?;
    // What cannot be differentiated says so.
    let e = grad(|x: Array| x.at([0, 0]).multiply(x.get([1, 1])).sum(..)).call(&x).expect_err("repeated positions");
    assert!(
        e.kind() == ErrorKind::NotImplemented && e.help_text().is_some_and(|h| h.contains("unique_indices")),
        "{e}"
    );
    // Second derivatives.
    let second =
        grad(|x: Array| grad(|x: Array| (x.get([0, 0]) * x.get([1, 0])).square().sum(..)).call(x).map(|g| g.sum(..)));
    assert!(second.call(&x)?.check().is_ok());
    Ok(())
}

/// `vmap` of a function against a loop over its batch.
fn check_batch(name: &str, f: impl Fn(Array, Array) -> Array + Clone, xs: &Array, ys: &Array) -> Result<()> {
    let n = xs.shape()[0];
    let per_row: Vec<Array> = (0..n).map(|i| f(xs.get(i), ys.get(i))).collect();
    let got = vmap(f.clone()).call((xs, ys))?;
    assert_eq!(got.to_f64_vec()?, stack(&per_row, 0).to_f64_vec()?, "{name}: both");
    let first: Vec<Array> = (0..n).map(|i| f(xs.get(i), ys.get(0))).collect();
    let got = vmap(f.clone()).in_axes((0, None)).call((xs, ys.get(0)))?;
    assert_eq!(got.to_f64_vec()?, stack(&first, 0).to_f64_vec()?, "{name}: the first");
    let second: Vec<Array> = (0..n).map(|i| f(xs.get(0), ys.get(i))).collect();
    let got = vmap(f).in_axes((None, 0)).call((xs.get(0), ys))?;
    assert_eq!(got.to_f64_vec()?, stack(&second, 0).to_f64_vec()?, "{name}: the second");
    Ok(())
}

#[test]
fn batches_agree_with_loops() -> Result<()> {
    setup();
    let xs = (arange(0..36).reshape([3, 3, 4]) * 7 % 11).astype(DType::F32);
    // Some positions are negative and some are out of bounds.
    let indices = array([0, 5, -1]);
    let places = array([[0, 2], [1, 1], [-1, 9]]);
    check_batch("one place", |x, i| x.get(i), &xs, &indices)?;
    check_batch("places", |x, i| x.get((.., i)), &xs, &places)?;
    check_batch("set", |x, i| x.at((i, 1..3)).set(-1.0), &xs, &array([[0, 2], [1, 0], [-1, 1]]))?;
    check_batch("add", |x, i| x.at((.., i)).add(1.5), &xs, &places)?;
    check_batch("max", |x, i| x.at((i, 0)).max(4.0), &xs, &indices)?;
    check_batch("dynamic_slice", |x, i| lax::dynamic_slice(&x, &[i, Array::from(1)], &[2, 2]), &xs, &indices)?;
    check_batch(
        "dynamic_update_slice",
        |x, i| lax::dynamic_update_slice(&x, &(x.get((..2, ..1)) + 100.0), &[i, Array::from(2)]),
        &xs,
        &indices,
    )?;
    check_batch("take", |x, i| x.take(i, 1), &xs, &array([[0, 2], [1, 1], [-1, 3]]))?;
    check_batch(
        "sort by key",
        |x, k| lax::sort(&[k, x], 0, 1).map(|s| s[1].clone()).unwrap_or(array(0)),
        &xs,
        &(-&xs),
    )?;
    check_batch("top_k", |x, y| lax::top_k(&(x + y), 2).0, &xs, &xs)?;
    check_batch("cumsum", |x, y| lax::CumulativeOptions::new().reverse(true).cumsum(&(x * y), 1), &xs, &xs)?;
    Ok(())
}

#[test]
fn blocks_at_computed_positions() -> Result<()> {
    setup();
    let x = cube();
    let block = lax::dynamic_slice(&x, &[array(1), array(-1), array(100)], &[1, 2, 2]);
    assert_eq!(ints(&block), [18, 19, 22, 23]);
    assert_eq!(ints(&lax::dynamic_slice_in_dim(&x, 1, 1, -1).ravel()), [1, 5, 9, 13, 17, 21]);
    assert_eq!(ints(&lax::dynamic_index_in_dim(&x, array(2), 1).ravel()), [8, 9, 10, 11, 20, 21, 22, 23]);
    let y = lax::dynamic_update_index_in_dim(&x, &zeros_dtype([3, 4], DType::I32), 1, 0);
    assert_eq!(y.get(1).sum(..).item::<i32>()?, 0);
    let e = error_of(lax::dynamic_slice(&x, &[array(0)], &[1]));
    assert!(e.message().contains("start index for each dimension"), "{e}");
    let e = error_of(lax::dynamic_slice(&x, &[array(0), array(0), array(0)], &[1, 4, 1]));
    assert!(e.message().contains("larger than the operand") && e.message().contains("[2, 3, 4]"), "{e}");
    let e = error_of(lax::dynamic_update_slice(&x, &zeros([1, 1, 1]), &[array(0), array(0), array(0)]));
    assert!(e.message().contains("dtype"), "{e}");
    assert!(lax::dynamic_slice_in_dim(&x, 0, 1, 3).check().is_err());
    assert!(lax::dynamic_slice_in_dim(&x, 0.5, 1, 0).check().is_err());
    // In a loop the position is a value of the program.
    fn f(x: Array) -> Result<Array> {
        fori_loop(0, 3, |i, sum| sum + lax::dynamic_index_in_dim(&x, i, 1).sum(..), Array::from(0))
    }
    assert_eq!(jit(f).call(&x)?.item::<i32>()?, 276);
    Ok(())
}

#[test]
fn sorting() -> Result<()> {
    setup();
    let nan = f32::NAN;
    let x = array([3.0f32, nan, -0.0, 0.0, f32::NEG_INFINITY, f32::INFINITY]);
    let sorted = floats(&x.sort(0));
    assert_eq!(sorted[..5], [f32::NEG_INFINITY, 0.0, 0.0, 3.0, f32::INFINITY]);
    // -0 equals 0 and keeps its place before it.
    assert!(sorted[1].is_sign_negative() && sorted[2].is_sign_positive() && sorted[5].is_nan());
    assert_eq!(ints(&x.argsort(-1)), [4, 2, 3, 0, 5, 1]);
    assert_eq!(ints(&array([2, 1, 2, 1]).argsort(0)), [1, 3, 0, 2]);
    assert_eq!(ints(&array([2, 1, 2, 1]).argsort_descending(0)), [0, 2, 1, 3]);
    assert_eq!(ints(&array([[3, 1], [2, 0]]).sort(..)), [0, 1, 2, 3]);
    let (v, i) = lax::top_k(&array([[1, 9, 3], [9, 2, 9]]), 2);
    assert_eq!((ints(&v), ints(&i)), (vec![9, 3, 9, 9], vec![1, 2, 0, 2]));
    assert!(error_of(lax::top_k(&array([1, 2]), 3).0).message().contains("k=3"));
    assert!(array(1).sort(0).check().is_err());
    assert!(array([1]).sort(1).check().is_err());
    assert!(lax::sort(&[array([1]), array([1, 2])], 0, 1).is_err());
    assert!(lax::sort(&[], 0, 1).is_err());
    assert!(lax::sort(&[array([1])], 0, 2).is_err());
    // Numbers are found where they would be put.
    assert_eq!(ints(&array([1.0f32, 2.0, nan]).searchsorted(array([0.5f32, 2.0, 9.0, nan]))), [0, 1, 2, 2]);
    let squares: Vec<i32> = (0..37).map(|i| i * i).collect();
    let result = Array::from_slice(&squares, &[37])?.searchsorted(arange(-1..1400));
    let want: Vec<i32> = (-1..1400).map(|v| squares.iter().filter(|s| **s < v).count() as i32).collect();
    assert_eq!(ints(&result), want);
    assert_eq!(ints(&zeros([0]).searchsorted(array([1.0f32]))), [0]);
    assert!(zeros([1, 1]).searchsorted(1).check().is_err());
    Ok(())
}

#[test]
fn accumulating_and_moving() -> Result<()> {
    setup();
    // Sizes around powers of two, because cumulative operations are computed in blocks.
    for n in [1usize, 2, 3, 7, 64, 1000] {
        let values: Vec<i32> = (0..n as i32).map(|i| i * 7 % 13 - 6).collect();
        let mut sum = 0;
        let want: Vec<i32> = values
            .iter()
            .map(|v| {
                sum += v;
                sum
            })
            .collect();
        let x = Array::from_slice(&values, &[n])?;
        assert_eq!(ints(&x.cumsum(0)), want, "{n}");
        let reversed: Vec<i32> = want.iter().zip(&values).map(|(w, v)| sum - w + v).collect();
        assert_eq!(ints(&lax::CumulativeOptions::new().reverse(true).cumsum(&x, 0)), reversed, "{n} reversed");
        let want: Vec<i32> = (0..n).map(|i| values[..=i].iter().copied().max().unwrap_or(0)).collect();
        assert_eq!(ints(&x.cummax(0)), want, "{n} max");
        let want: Vec<i32> = (0..n).map(|i| values[..=i].iter().copied().min().unwrap_or(0)).collect();
        assert_eq!(ints(&x.cummin(-1)), want, "{n} min");
    }
    assert_eq!(ints(&array([true, true, false]).cumsum(0)), [1, 2, 2]);
    assert_eq!(ints(&array([[1, 2], [3, 4]]).cumprod(..)), [1, 2, 6, 24]);
    // Large differences and infinities must not overflow in `exp`.
    let x = [0.5f32, -100.0, 3.0, f32::NEG_INFINITY, 2.0];
    let mut sum = 0.0f64;
    for (got, v) in floats(&lax::cumlogsumexp(&array(x), 0)).into_iter().zip(x) {
        sum += (v as f64).exp();
        assert!((got as f64 - sum.ln()).abs() < 1e-6, "{got} {}", sum.ln());
    }
    assert_eq!(
        floats(&lax::CumulativeOptions::new().reverse(true).cumlogsumexp(&array([f32::NEG_INFINITY; 2]), 0)),
        [f32::NEG_INFINITY; 2]
    );
    // The sum of 1,000 eighths is 125 only if it is accumulated in float32.
    let halves = full_like(&zeros([1000]).astype(DType::Bf16), 0.125).cumsum(0);
    assert_eq!(halves.get(-1).to_f64()?, 125.0);
    assert_eq!(array([0i32; 0]).cumsum(0).shape(), [0]);
    assert!(array([1]).cumsum(1).check().is_err());

    // Moving elements: `roll`, `flip` and `take`, with axes from the end and positions out of bounds.
    let x = array([[1, 2, 3], [4, 5, 6]]);
    assert_eq!(ints(&x.roll(-1, 1)), [2, 3, 1, 5, 6, 4]);
    assert_eq!(ints(&x.roll(8, ..)), [5, 6, 1, 2, 3, 4]);
    assert_eq!(ints(&x.flip(0)), [4, 5, 6, 1, 2, 3]);
    assert_eq!(ints(&x.flip(..)), [6, 5, 4, 3, 2, 1]);
    assert_eq!(ints(&x.take(array([[0], [-1]]), 1)), [1, 3, 4, 6]);
    assert_eq!(ints(&x.take(array([5, 0]), ..)), [6, 1]);
    assert_eq!(x.take(1, 0).shape(), [3]);
    assert!(x.astype(DType::F32).take([3], 1).get((0, 0)).item::<f32>()?.is_nan());
    assert!(x.take([0], 2).check().is_err());
    assert!(x.take_along_axis(&array([0]), 0).check().is_err());
    Ok(())
}

#[test]
fn rows_of_sharded_arrays() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 8)])?.auto();
    let value = arange(0..8 * 8 * 4).reshape([8, 8, 4]);
    for (spec, want) in [(P![], P![]), (P![None, "x", None], P!["x", None]), (P!["x", None, None], P![])] {
        let x = device_put(&value, &NamedSharding::new(&mesh, spec.clone()))?;
        let row = x.get(0);
        assert_eq!(ints(&row.ravel()), (0..32).collect::<Vec<_>>(), "{spec}");
        let want = Sharding::Named(NamedSharding::new(&mesh, want));
        assert!(row.sharding()?.is_equivalent_to(&want, 2), "{spec}: {:?}", row.sharding()?);
        assert_eq!(ints(&x.at((1, 0, 0)).set(-1).get((1, 0, ..2))), [-1, 33], "{spec}");
        assert_eq!(ints(&x.get((array([0, 3]), 0, 0))), [0, 96], "{spec}");
    }
    Ok(())
}

/// An embedding looked up by each device's own tokens: what varies over the mesh meets what does not.
#[test]
fn inside_of_shard_map() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?.auto();
    let table = (arange(0..20).reshape([5, 4]) % 7).astype(DType::F32) / 3.0;
    let tokens = (arange(0..16) * 3 % 5).reshape([8, 2]);
    fn loss(table: &Array, tokens: &Array) -> Array {
        let rows = table.get(tokens);
        let sorted = rows.sort(-1).cumsum(-1) + rows.cumprod(-1);
        let changed = sorted.at((0, 0)).set(table.get((1, 1))).at((.., tokens.get((0, ..)) % 4)).add(0.5);
        let first = lax::dynamic_slice_in_dim(&changed, tokens.get((0, 0)), 1, -1);
        (changed.square().sum(..) + first.sum(..)) + lax::top_k(&rows, 2).0.sum(..)
    }
    fn per_device(table: Array, tokens: Array) -> Result<Array> {
        let mesh = make_mesh([("i", 8)])?.auto();
        shard_map(|table: Array, tokens: Array| psum(loss(&table, &tokens), "i"), &mesh)
            .in_specs((P![], P!["i"]))
            .out_specs(P![])
            .call((table, tokens))
    }
    fn together(table: Array, tokens: Array) -> Array {
        (0..8).map(|d| loss(&table, &tokens.get(d..d + 1))).fold(Array::from(0.0), |sum, l| sum + l)
    }
    let (v, g) = value_and_grad(per_device).call((&table, &tokens))?;
    let (want, want_g) = value_and_grad(together).call((&table, &tokens))?;
    assert!(allclose(&v, &want, 1e-5, 1e-5)? && allclose(&g, &want_g, 1e-5, 1e-5)?, "{v} {want}\n{g}\n{want_g}");
    // Each device draws its own numbers from one key.
    let draw = shard_map(|key: Array| random::uniform(&random::fold_in(&key, axis_index("i")), [1]), &mesh);
    let drawn = draw.in_specs(P![]).out_specs(P!["i"]).call(random::key(0))?;
    for i in 0..8 {
        let sample = random::uniform(&random::fold_in(&random::key(0), i), [1]);
        assert_eq!(floats(&drawn.get(i..i + 1)), floats(&sample));
    }
    Ok(())
}
