//! Indexing by NumPy's rules, updates at places, blocks at computed positions, sorting and accumulating.

mod common;

use common::setup;
use common::values::{error_of, ints};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use shardax::ErrorKind;
use shardax::array::IndexItem;
use shardax::lax::GatherScatterMode;
use shardax::prelude::*;

/// 0, 1, 2, … of shape `[2, 3, 4]`.
fn cube() -> Array {
    arange(0..24).reshape([2, 3, 4])
}

fn floats(x: &Array) -> Vec<f32> {
    x.to_vec().expect("float32 values")
}

#[test]
fn numbers_and_ranges() -> Result<()> {
    setup();
    let x = cube();
    // SPEC 118
    assert_eq!((x.get(0).shape(), ints(&x.get(1))), (&[3, 4][..], (12..24).collect()));
    assert_eq!(ints(&x.get((1, 2, 3))), [23]);
    assert_eq!(ints(&x.get((-1, -3, -4))), [12]);
    assert_eq!(ints(&x.get((0, 1..3, ..)).ravel()), (4..12).collect::<Vec<_>>());
    assert_eq!(x.get((.., NewAxis, -1)).shape(), [2, 1, 4]);
    assert_eq!(x.get((Ellipsis, 0)).shape(), [2, 3]);
    assert_eq!(x.get((0, Ellipsis, NewAxis)).shape(), [3, 4, 1]);
    assert_eq!(x.get(()).shape(), [2, 3, 4]);
    assert_eq!(x.get(NewAxis).shape(), [1, 2, 3, 4]);
    // Ranges are clamped, as in NumPy.
    assert_eq!(x.get((.., 1..100)).shape(), [2, 2, 4]);
    assert_eq!(x.get((.., 5..)).shape(), [2, 0, 4]);
    assert_eq!(x.get((.., 2..1)).shape(), [2, 0, 4]);
    assert_eq!(x.get((.., -2..-1, 0)).shape(), [2, 1]);
    assert_eq!(ints(&x.get((0, 0, 1..=2))), [1, 2]);
    assert_eq!(ints(&x.get((0, 0, 2..=-1))), [2, 3]);
    assert_eq!(ints(&x.get((0, 0, ..=-2))), [0, 1, 2]);
    // Steps.
    assert_eq!(ints(&x.get(s![0, ..;-1, 1]).ravel()), [9, 5, 1]);
    assert_eq!(ints(&x.get(s![0, 0, 3..0;-2])), [3, 1]);
    assert_eq!(ints(&x.get((1, 0, Slice::new(-1, None, -3)))), [15, 12]);
    assert_eq!(ints(&x.get(s![1, 1, -100..100; 3])), [16, 19]);
    assert_eq!(ints(&x.get(s![.., 0, 100..;-3]).ravel()), [3, 0, 15, 12]);
    // Different integer types.
    assert_eq!(ints(&x.get((1usize, 2u8, 3i64))), [23]);
    assert_eq!(x.get(0usize..1).shape(), [1, 3, 4]);
    Ok(())
}

#[test]
fn integer_arrays_follow_numpy() -> Result<()> {
    setup();
    let x = cube();
    let (i, j, k) = (array([1, 0, 1]), array([[2], [0]]), array([3, -1, 0]));
    let cases: Vec<(&str, Array, &[usize], &[i32])> = vec![
        ("x[:, j, k]", x.get((.., &j, &k)), &[2, 2, 3], &[11, 11, 8, 3, 3, 0, 23, 23, 20, 15, 15, 12]),
        ("x[i, :, k]", x.get((&i, .., &k)), &[3, 3], &[15, 19, 23, 3, 7, 11, 12, 16, 20]),
        ("x[0, :, k]", x.get((0, .., &k)), &[3, 3], &[3, 7, 11, 3, 7, 11, 0, 4, 8]),
        ("x[:, 0, k]", x.get((.., 0, &k)), &[2, 3], &[3, 3, 0, 15, 15, 12]),
        ("x[i, None, 0]", x.get((&i, NewAxis, 0)), &[3, 1, 4], &[12, 13, 14, 15, 0, 1, 2, 3, 12, 13, 14, 15]),
        ("x[None, i, 0, 1:3]", x.get((NewAxis, &i, 0, 1..3)), &[1, 3, 2], &[13, 14, 1, 2, 13, 14]),
        ("x[..., j]", x.get((Ellipsis, &j)), &[2, 3, 2, 1], &[2, 0, 6, 4, 10, 8, 14, 12, 18, 16, 22, 20]),
        ("x[::-1, [0, 2], ::2]", x.get(s![..;-1, [0, 2], ..;2]), &[2, 2, 2], &[12, 14, 20, 22, 0, 2, 8, 10]),
        ("x[1, i, k]", x.get((1, &i, &k)), &[3], &[19, 15, 16]),
        ("unsigned", x.get((array([1u8]), 0, 0)), &[1], &[12]),
    ];
    for (name, got, shape, values) in cases {
        assert_eq!((got.shape(), ints(&got)), (shape, values.to_vec()), "{name}");
    }
    // Integer arrays are clamped to the bounds, in a program as outside.
    let out = array([7, -9, 1]);
    assert_eq!(ints(&array([10, 20, 30]).get(&out)), [30, 10, 20]);
    assert_eq!(ints(&jit(|x: Array, i: Array| x.get(&i)).call((array([10, 20, 30]), &out))?), [30, 10, 20]);
    let picked = jit(|x: Array, i: Array| x.get(i)).call((array([10, 20, 30]), array(-1)))?;
    assert_eq!(picked.item::<i32>()?, 30);
    // Nothing can be taken from nothing, but nothing can be taken nothing of.
    assert_eq!(zeros([0, 2]).get(array([0i32; 0])).shape(), [0, 2]);
    assert_eq!(error_of(zeros([0, 2]).get(array([0]))).kind(), ErrorKind::Index);
    Ok(())
}

/// The elements that an index names, found one by one.
fn model(shape: &[usize], items: &[IndexItem]) -> Option<(Vec<usize>, Vec<i32>)> {
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let (mut out, mut axis) = (Vec::new(), 0);
    let taken = items.iter().filter(|i| !matches!(i, IndexItem::NewAxis | IndexItem::Ellipsis)).count();
    shape.len().checked_sub(taken)?;
    let mut items = items.to_vec();
    if !items.iter().any(|i| matches!(i, IndexItem::Ellipsis)) {
        items.push(IndexItem::Ellipsis);
    }
    for item in items {
        match item {
            IndexItem::NewAxis => out.push(1),
            IndexItem::Ellipsis => {
                for _ in 0..shape.len().checked_sub(taken)? {
                    parts.push((0..shape[axis]).collect());
                    out.push(shape[axis]);
                    axis += 1;
                }
            }
            IndexItem::At(i) => {
                let n = shape[axis] as i64;
                parts.push(vec![usize::try_from(if i < 0 { i + n } else { i }).ok().filter(|i| *i < n as usize)?]);
                axis += 1;
            }
            IndexItem::Slice(s) => {
                // Python's own definition, by walking.
                let n = shape[axis] as i64;
                let clamp = |b: i64, low: i64, high: i64| if b < 0 { (b + n).max(low) } else { b.min(high) };
                let (first, last) = if s.step > 0 { (0, n) } else { (n - 1, -1) };
                let start = s.start.map_or(first, |b| clamp(b, first.min(last), first.max(last)));
                let stop = s.stop.map_or(last, |b| clamp(b, first.min(last), first.max(last)));
                let (mut at, mut part) = (start, Vec::new());
                while if s.step > 0 { at < stop } else { at > stop } {
                    part.push(at as usize);
                    at += s.step;
                }
                out.push(part.len());
                parts.push(part);
                axis += 1;
            }
            IndexItem::Array(_) => return None,
        }
    }
    let mut values = vec![0];
    for (part, n) in parts.iter().zip(shape) {
        values = values.iter().flat_map(|v| part.iter().map(move |p| v * *n as i32 + *p as i32)).collect();
    }
    Some((out, values))
}

fn an_item() -> impl Strategy<Value = IndexItem> {
    let bound = prop::option::of(-6i64..6);
    prop_oneof![
        (-4i64..4).prop_map(IndexItem::At),
        (bound.clone(), bound, prop_oneof![Just(1i64), Just(-1), Just(2), Just(-3)])
            .prop_map(|(start, stop, step)| IndexItem::Slice(Slice { start, stop, step })),
        Just(IndexItem::NewAxis),
        Just(IndexItem::Ellipsis),
    ]
}

#[test]
fn constant_indices_agree_with_a_model() {
    setup();
    let config = Config { cases: 32, failure_persistence: None, ..Config::default() };
    let inputs = (prop::collection::vec(1usize..5, 1..4), prop::collection::vec(an_item(), 0..5));
    let run = TestRunner::new(config).run(&inputs, |(shape, items)| {
        let n: usize = shape.iter().product();
        let x = arange(0..n as i32).reshape(shape.as_slice());
        let ellipses = items.iter().filter(|i| matches!(i, IndexItem::Ellipsis)).count();
        let want = if ellipses > 1 { None } else { model(&shape, &items) };
        let eager = x.get(items.as_slice());
        let traced = jit(|x: Array| x.get(items.as_slice())).call(&x);
        match want {
            None => prop_assert!(eager.check().is_err() && traced.is_err()),
            Some((shape, values)) => {
                for got in [eager, traced.map_err(|e| TestCaseError::fail(e.to_string()))?] {
                    prop_assert_eq!(got.shape(), shape.as_slice());
                    prop_assert_eq!(ints(&got), values.clone());
                }
                // What is written there is read there, and nothing else changes.
                let written = x.at(items.as_slice()).add(100);
                let mut all: Vec<i32> = (0..n as i32).collect();
                values.iter().for_each(|v| all[*v as usize] += 100);
                prop_assert_eq!(ints(&written), all);
            }
        }
        Ok(())
    });
    run.unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn errors_name_index_axis_and_size() {
    setup();
    let x = cube();
    let line = line!() + 1;
    let e = error_of(x.get((0, 3)));
    assert_eq!(e.kind(), ErrorKind::Index);
    assert!(e.message().contains("index 3 is out of bounds for axis 1 with size 3"), "{e}");
    let at = e.location().expect("a source line");
    assert!(at.file().ends_with("indexing.rs") && at.line() == line, "{e}");
    // The same inside of a program, as `Err` of the call.
    let e = jit(|x: Array| x.get(-3)).call(cube()).expect_err("an index out of range");
    assert!(e.message().contains("index -3 is out of bounds for axis 0 with size 2"), "{e}");
    assert!(e.location().is_some_and(|at| at.file().ends_with("indexing.rs")), "{e}");

    let e = error_of(x.get((0, 0, 0, 0)));
    assert!(e.message().contains("too many indices") && e.message().contains("3-dimensional"), "{e}");
    assert_eq!(error_of(x.get((Ellipsis, Ellipsis))).kind(), ErrorKind::Index);
    assert!(error_of(x.get(s![..;0])).message().contains("slice step cannot be zero"));
    assert_eq!(error_of(x.get(i64::MAX)).kind(), ErrorKind::Index);
    assert_eq!(error_of(x.get(u64::MAX)).kind(), ErrorKind::Index);
    assert_eq!(x.get(i64::MIN..i64::MAX).shape(), [2, 3, 4]);
    assert_eq!(x.get(s![i64::MAX..i64::MIN; i64::MIN]).shape(), [1, 3, 4]);

    let mask = array([true, false]);
    let e = error_of(x.get(&mask));
    assert!(e.message().contains("boolean") && e.help_text().is_some_and(|h| h.contains("where_")), "{e}");
    assert_eq!(error_of(x.get(array([0.5f32]))).kind(), ErrorKind::Type);
    let e = error_of(x.get((array([0, 1]), array([0, 1, 2]))));
    assert!(e.message().contains("could not be broadcast together"), "{e}");

    let e = error_of(x.at(0).set(zeros_dtype([5], DType::I32)));
    assert!(e.message().contains("[5]") && e.message().contains("[3, 4]"), "{e}");
    let e = error_of(x.at(0).set(0.5));
    assert!(e.kind() == ErrorKind::Type && e.message().contains("float32") && e.message().contains("int32"), "{e}");
    assert_eq!(error_of(x.at(7).add(1)).kind(), ErrorKind::Index);
    // A failed array stays failed.
    assert!(x.get(9).get(0).at(0).set(1).check().is_err());
}

#[test]
fn updates() -> Result<()> {
    setup();
    let x = cube();
    let set = x.at(s![..;-1, 1.., ..;2]).set(arange(0..8).reshape([2, 2, 2]) * 100);
    let want = [0, 1, 2, 3, 400, 5, 500, 7, 600, 9, 700, 11, 12, 13, 14, 15, 0, 17, 100, 19, 200, 21, 300, 23];
    assert_eq!(ints(&set), want);
    let added = x.at((.., [1, 0, 1], 1..3)).add(1000);
    let want =
        [0, 1001, 1002, 3, 4, 2005, 2006, 7, 8, 9, 10, 11, 12, 1013, 1014, 15, 16, 2017, 2018, 19, 20, 21, 22, 23];
    assert_eq!(ints(&added), want);
    let column = x.at((0, Ellipsis, NewAxis, -1)).set(array([[7], [8], [9]]));
    assert_eq!(ints(&column.get(0).ravel()), [0, 1, 2, 7, 4, 5, 6, 8, 8, 9, 10, 9]);
    let split = x.at(([1, 0], .., [3, -1])).set(array([[100, 200, 300], [400, 500, 600]]));
    assert_eq!(ints(&split.get((.., .., 3)).ravel()), [400, 500, 600, 100, 200, 300]);
    // The same in a program.
    let f = jit(|x: Array, i: Array| x.at((i, 1..)).multiply(2).at((0, 0, 0)).subtract(5));
    let want: Vec<i32> = (0..24).map(|v| if v >= 16 { 2 * v } else { v - 5 * (v == 0) as i32 }).collect();
    assert_eq!(ints(&f.call((&x, 1))?), want);

    let v = array([1.0f32, 5.0, 3.0]);
    assert_eq!(floats(&v.at(1).min(2.0)), [1.0, 2.0, 3.0]);
    assert_eq!(floats(&v.at(..2).max(4.0)), [4.0, 5.0, 3.0]);
    assert_eq!(floats(&v.at([0, 0, 2]).add(array([1.0f32, 1.0, 2.0]))), [3.0, 5.0, 5.0]);
    assert_eq!(floats(&v.at([7, 1]).set(9)), [1.0, 9.0, 3.0]);
    assert_eq!(floats(&v.at([7, 1]).mode(GatherScatterMode::Clip).set(9)), [1.0, 9.0, 9.0]);
    assert_eq!(floats(&v.at([7, 1]).fill_value(-1).get()), [-1.0, 5.0]);
    assert_eq!(floats(&v.at(1..1).set(9)), [1.0, 5.0, 3.0]);
    // A plain number takes the array's dtype; a narrower value is widened.
    let half = v.astype(DType::Bf16).at(0).set(2.5);
    assert_eq!((half.dtype(), half.get(0).to_f64()?), (DType::Bf16, 2.5));
    assert_eq!(floats(&v.at(0).set(array(7i32))), [7.0, 5.0, 3.0]);
    Ok(())
}

#[test]
fn rows() -> Result<()> {
    setup();
    let x = arange(0..6).reshape([3, 2]);
    // SPEC 126
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
        let at = |i: usize, d: f32| -> Result<f64> {
            let mut v = values.clone();
            v[i] += d;
            loss(Array::from_vec(v, x.shape())?).to_f64()
        };
        (0..values.len()).map(|i| Ok((at(i, eps)? - at(i, -eps)?) / (2.0 * eps as f64))).collect::<Result<_>>()?
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
    // As in JAX, what is read beyond the bounds is the nearest, and its cotangent goes nowhere.
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
    let at = array(1);
    check_gradient("dynamic_slice", move |x| lax::dynamic_slice(&x, &[at.clone(), array(-2)], &[1, 2]), &x)?;
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
    check_gradient("cumlogsumexp", |x| lax::CumulativeOptions::default().reverse(true).cumlogsumexp(&x, 1), &x)?;
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
    let both: Vec<Array> = (0..n).map(|i| f(xs.get(i), ys.get(i))).collect();
    let got = vmap(f.clone()).call((xs, ys))?;
    assert_eq!(got.to_f64_vec()?, stack(&both, 0).to_f64_vec()?, "{name}: both");
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
    let at = array([0, 5, -1]);
    let places = array([[0, 2], [1, 1], [-1, 9]]);
    check_batch("one place", |x, i| x.get(i), &xs, &at)?;
    check_batch("places", |x, i| x.get((.., i)), &xs, &places)?;
    check_batch("set", |x, i| x.at((i, 1..3)).set(-1.0), &xs, &array([[0, 2], [1, 0], [-1, 1]]))?;
    check_batch("add", |x, i| x.at((.., i)).add(1.5), &xs, &places)?;
    check_batch("max", |x, i| x.at((i, 0)).max(4.0), &xs, &at)?;
    check_batch("dynamic_slice", |x, i| lax::dynamic_slice(&x, &[i, Array::from(1)], &[2, 2]), &xs, &at)?;
    check_batch(
        "dynamic_update_slice",
        |x, i| lax::dynamic_update_slice(&x, &(x.get((..2, ..1)) + 100.0), &[i, Array::from(2)]),
        &xs,
        &at,
    )?;
    check_batch("take", |x, i| x.take(i, 1), &xs, &array([[0, 2], [1, 1], [-1, 3]]))?;
    check_batch(
        "sort by key",
        |x, k| lax::sort(&[k, x], 0, 1).map(|s| s[1].clone()).unwrap_or(array(0)),
        &xs,
        &(-&xs),
    )?;
    check_batch("top_k", |x, y| lax::top_k(&(x + y), 2).0, &xs, &xs)?;
    check_batch("cumsum", |x, y| lax::CumulativeOptions::default().reverse(true).cumsum(&(x * y), 1), &xs, &xs)?;
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
    let f = |x: Array| fori_loop(0, 3, |i, sum| sum + lax::dynamic_index_in_dim(&x, i, 1).sum(..), Array::from(0));
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
    let found = Array::from_slice(&squares, &[37])?.searchsorted(arange(-1..1400));
    let want: Vec<i32> = (-1..1400).map(|v| squares.iter().filter(|s| **s < v).count() as i32).collect();
    assert_eq!(ints(&found), want);
    assert_eq!(ints(&zeros([0]).searchsorted(array([1.0f32]))), [0]);
    assert!(zeros([1, 1]).searchsorted(1).check().is_err());
    Ok(())
}

#[test]
fn accumulating_and_moving() -> Result<()> {
    setup();
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
        assert_eq!(ints(&lax::CumulativeOptions::default().reverse(true).cumsum(&x, 0)), reversed, "{n} reversed");
        let want: Vec<i32> = (0..n).map(|i| values[..=i].iter().copied().max().unwrap_or(0)).collect();
        assert_eq!(ints(&x.cummax(0)), want, "{n} max");
        let want: Vec<i32> = (0..n).map(|i| values[..=i].iter().copied().min().unwrap_or(0)).collect();
        assert_eq!(ints(&x.cummin(-1)), want, "{n} min");
    }
    assert_eq!(ints(&array([true, true, false]).cumsum(0)), [1, 2, 2]);
    assert_eq!(ints(&array([[1, 2], [3, 4]]).cumprod(..)), [1, 2, 6, 24]);
    let x = [0.5f32, -100.0, 3.0, f32::NEG_INFINITY, 2.0];
    let mut sum = 0.0f64;
    for (got, v) in floats(&lax::cumlogsumexp(&array(x), 0)).into_iter().zip(x) {
        sum += (v as f64).exp();
        assert!((got as f64 - sum.ln()).abs() < 1e-6, "{got} {}", sum.ln());
    }
    assert_eq!(
        floats(&lax::CumulativeOptions::default().reverse(true).cumlogsumexp(&array([f32::NEG_INFINITY; 2]), 0)),
        [f32::NEG_INFINITY; 2]
    );
    let halves = full_like(&zeros([1000]).astype(DType::Bf16), 0.125).cumsum(0);
    assert_eq!(halves.get(-1).to_f64()?, 125.0);
    assert_eq!(array([0i32; 0]).cumsum(0).shape(), [0]);
    assert!(array([1]).cumsum(1).check().is_err());

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
    let mesh = make_mesh([("x", 8)])?;
    let value = arange(0..8 * 8 * 4).reshape([8, 8, 4]);
    // SPEC 119 120 121
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
    let mesh = make_mesh([("i", 8)])?;
    let table = (arange(0..20).reshape([5, 4]) % 7).astype(DType::F32) / 3.0;
    let tokens = (arange(0..16) * 3 % 5).reshape([8, 2]);
    let loss = |table: &Array, tokens: &Array| {
        let rows = table.get(tokens);
        let sorted = rows.sort(-1).cumsum(-1) + rows.cumprod(-1);
        let changed = sorted.at((0, 0)).set(table.get((1, 1))).at((.., tokens.get((0, ..)) % 4)).add(0.5);
        let first = lax::dynamic_slice_in_dim(&changed, tokens.get((0, 0)), 1, -1);
        (changed.square().sum(..) + first.sum(..)) + lax::top_k(&rows, 2).0.sum(..)
    };
    let per_device = |table: Array, tokens: Array| -> Result<Array> {
        let mesh = make_mesh([("i", 8)])?;
        shard_map(|table: Array, tokens: Array| psum(loss(&table, &tokens), "i"), &mesh)
            .in_specs((P![], P!["i"]))
            .out_specs(P![])
            .call((table, tokens))
    };
    let together = |table: Array, tokens: Array| {
        (0..8).map(|d| loss(&table, &tokens.get(d..d + 1))).fold(Array::from(0.0), |sum, l| sum + l)
    };
    let (v, g) = value_and_grad(per_device).call((&table, &tokens))?;
    let (want, want_g) = value_and_grad(together).call((&table, &tokens))?;
    assert!(allclose(&v, &want, 1e-5, 1e-5)? && allclose(&g, &want_g, 1e-5, 1e-5)?, "{v} {want}\n{g}\n{want_g}");
    // Each device draws its own numbers from one key.
    let draw = shard_map(|key: Array| random::uniform(&random::fold_in(&key, axis_index("i")), [1]), &mesh);
    let drawn = draw.in_specs(P![]).out_specs(P!["i"]).call(random::key(0))?;
    for i in 0..8 {
        let one = random::uniform(&random::fold_in(&random::key(0), i), [1]);
        assert_eq!(floats(&drawn.get(i..i + 1)), floats(&one));
    }
    Ok(())
}
