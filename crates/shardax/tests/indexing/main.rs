//! Indexing by NumPy's rules, updates at places, blocks at computed positions, sorting and accumulating.

#[path = "../common/mod.rs"]
mod common;
mod consecutive;
mod transforms;

use common::quick::{one_of, setup};
use common::values::{error_of, ints};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use shardax::ErrorKind;
use shardax::array::IndexItem;
use shardax::lax::GatherScatterMode;
use shardax::prelude::*;
use shardax_alloc as _;

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
    let consumed = items.iter().filter(|i| !matches!(i, IndexItem::NewAxis | IndexItem::Ellipsis)).count();
    shape.len().checked_sub(consumed)?;
    let mut items = items.to_vec();
    if !items.iter().any(|i| matches!(i, IndexItem::Ellipsis)) {
        items.push(IndexItem::Ellipsis);
    }
    for item in items {
        match item {
            IndexItem::NewAxis => out.push(1),
            IndexItem::Ellipsis => {
                for _ in 0..shape.len().checked_sub(consumed)? {
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
                fn clamp(b: i64, low: i64, high: i64, n: i64) -> i64 {
                    if b < 0 { (b + n).max(low) } else { b.min(high) }
                }
                let (first, last) = if s.step > 0 { (0, n) } else { (n - 1, -1) };
                let start = s.start.map_or(first, |b| clamp(b, first.min(last), first.max(last), n));
                let stop = s.stop.map_or(last, |b| clamp(b, first.min(last), first.max(last), n));
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
    let config = Config { cases: 32 / one_of(4) as u32, failure_persistence: None, ..Config::default() };
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
                let mut entries: Vec<i32> = (0..n as i32).collect();
                values.iter().for_each(|v| entries[*v as usize] += 100);
                prop_assert_eq!(ints(&written), entries);
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
    let location = e.location().expect("a source line");
    assert!(location.file() == file!() && location.line() == line, "{e}");
    // The same inside of a program, as `Err` of the call.
    let e = jit(|x: Array| x.get(-3)).call(cube()).expect_err("an index out of range");
    assert!(e.message().contains("index -3 is out of bounds for axis 0 with size 2"), "{e}");
    assert!(e.location().is_some_and(|location| location.file() == file!()), "{e}");

    let e = error_of(x.get((0, 0, 0, 0)));
    assert!(e.message().contains("too many indices") && e.message().contains("3-dimensional"), "{e}");
    assert_eq!(error_of(x.get((Ellipsis, Ellipsis))).kind(), ErrorKind::Index);
    assert!(error_of(x.get(s![..;0])).message().contains("slice step cannot be zero"));
    assert_eq!(error_of(x.get(i64::MAX)).kind(), ErrorKind::Index);
    assert_eq!(error_of(x.get(u64::MAX)).kind(), ErrorKind::Index);
    assert_eq!(x.get(i64::MIN..i64::MAX).shape(), [2, 3, 4]);
    assert_eq!(x.get(s![i64::MAX..i64::MIN; i64::MIN]).shape(), [1, 3, 4]);

    let e = jit(|x: Array| x.get(x.greater(8))).call(&x).expect_err("a mask without values");
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
fn constant_slices_lie_inside() -> Result<()> {
    setup();
    let x = arange(0..6).reshape([2, 3]);
    let outside: [(&[usize], &[usize]); 5] =
        [(&[1, 2], &[2, 1]), (&[1, 1], &[2, 4]), (&[3, 0], &[3, 3]), (&[1], &[2]), (&[1, 0, 0], &[2, 3, 1])];
    for (start, limit) in outside {
        let eager = error_of(lax::slice(&x, start, limit, None));
        let compiled =
            jit(|x: Array| lax::slice(&x, start, limit, None)).call(&x).expect_err("bounds outside of the array");
        assert_eq!(eager.message(), compiled.message(), "{start:?}..{limit:?}");
    }
    assert_eq!(lax::slice(&x, &[1, 1], &[2, 3], None).to_vec::<i32>()?, [4, 5]);
    Ok(())
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

/// JAX's `x.at[11].get(mode="fill")`: a stated mode decides for numbers as it does for arrays.
#[test]
fn modes_apply_to_numbers_out_of_bounds() -> Result<()> {
    setup();
    let v = array([1.0f32, 5.0, 3.0]);
    let f = jit(|v: Array| {
        let at = v.at(7);
        let read = [at.clone().mode("clip").get(), v.at(-4).fill_value(-1).get()];
        (read, [at.clone().mode("drop").set(9), at.mode("clip").set(9), v.at(1).mode("clip").add(2)])
    });
    let (read, updated) = f.call(&v)?;
    assert_eq!([floats(&read[0]), floats(&read[1])], [[3.0], [-1.0]]);
    assert_eq!(floats(&updated[0]), [1.0, 5.0, 3.0]);
    assert_eq!(floats(&updated[1]), [1.0, 5.0, 9.0]);
    assert_eq!(floats(&updated[2]), [1.0, 7.0, 3.0]);
    let rows = cube().at((.., 5, ..2)).fill_value(-1).get();
    assert_eq!((rows.shape(), ints(&rows)), (&[2, 2][..], vec![-1; 4]));
    assert!(error_of(v.get(7)).to_string().contains("out of bounds"));
    assert!(error_of(v.at(7).mode("promise_in_bounds").get()).to_string().contains("out of bounds"));
    Ok(())
}

/// A mask names the places where it is true, as long as its values are known.
#[test]
fn known_masks_are_indices() -> Result<()> {
    setup();
    let x = arange(0..12).reshape([3, 4]);
    assert_eq!(x.get(x.greater(8)).to_vec::<i32>()?, [9, 10, 11]);
    assert_eq!(x.get(array([true, false, true])).to_vec::<i32>()?, [0, 1, 2, 3, 8, 9, 10, 11]);
    assert_eq!(x.get((.., array([false, true, true, false]))).shape(), [3, 2]);
    assert_eq!(x.get((1, array([false, true, true, false]))).to_vec::<i32>()?, [5, 6]);
    assert_eq!(x.get(x.less(0)).shape(), [0]);
    assert_eq!(x.at(x.greater(8)).set(0).sum(..).item::<i32>()?, 36);
    assert_eq!(x.at(x.greater(8)).add(array([1, 2, 3])).get((2, ..)).to_vec::<i32>()?, [8, 10, 12, 14]);
    let y = array([-1.0f32, 2.0, 3.0]);
    let slope = grad(|y: Array| y.get(y.greater(0)).square().sum(..)).call(&y)?;
    assert_eq!(slope.to_vec::<f32>()?, [0.0, 4.0, 6.0]);
    for error in [
        jit(|x: Array| x.get(x.greater(8))).call(&x).expect_err("a mask of a program"),
        x.get(array([true, false])).check().expect_err("a mask of other sizes"),
        x.get(array(true)).check().expect_err("a mask of no sizes"),
    ] {
        assert!(error.message().to_lowercase().contains("boolean"), "{error}");
    }
    Ok(())
}

#[test]
fn the_largest_index_of_32_bits_is_out_of_bounds() -> Result<()> {
    setup();
    let x = array([1, 2, 3, 4, 5]);
    assert_eq!(x.get(&array([u32::MAX])).to_vec::<i32>()?, [5]);
    assert_eq!(x.at(&array([u32::MAX])).set(7).to_vec::<i32>()?, [1, 2, 3, 4, 5]);
    Ok(())
}
