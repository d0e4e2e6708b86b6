//! Indices at and beyond the ends of arrays, and gradients of elements that are not read or written.

use shardax::lax::{self, GatherScatterMode, ScatterDimensionNumbers, ScatterKind};
use shardax::numpy as np;
use shardax::numpy::IndexMode;
use shardax::prelude::*;
use shardax::stages::CompilerOption;

use super::common::quick::setup;
use super::edges::same;
use super::floats;

#[test]
fn entries_out_of_bounds_get_no_gradient() -> Result<()> {
    setup();
    let slope = grad(|x: Array| (x.get([-5, 3]) * array([1.0f32, 10.0])).sum(..)).call(ones([3]))?;
    same(&slope, &[0.0; 3]);
    let slope = grad(|x: Array| (x.get([-1, 3]) * array([1.0f32, 10.0])).sum(..)).call(ones([3]))?;
    same(&slope, &[0.0, 0.0, 1.0]);
    Ok(())
}

#[test]
fn clipped_indices_do_not_count_from_the_end() {
    setup();
    let x = array([10.0f32, 20.0, 30.0]);
    same(&x.take_mode([-1, 5, 1], 0, GatherScatterMode::Clip), &[10.0, 30.0, 20.0]);
    same(&x.take_mode(-1, 0, GatherScatterMode::Clip), &[10.0]);
}

#[test]
fn elements_that_are_not_read_get_no_gradient() -> Result<()> {
    setup();
    let none = Array::from_slice(&[] as &[i32], &[0])?;
    // The slope of digamma is NaN at infinity, so it must not be multiplied by a zero.
    let loss = |x: Array| np::digamma(&x).get(&none).sum(..);
    same(&grad(loss).call(array([0.5, f32::INFINITY]))?, &[0.0, 0.0]);
    let loss = |x: Array| np::digamma(&x).reshape([1, 2]).get((.., &none)).sum(..);
    same(&grad(loss).call(array([0.5, f32::INFINITY]))?, &[0.0, 0.0]);
    Ok(())
}

#[test]
fn updates_of_no_elements_can_have_any_shape() -> Result<()> {
    setup();
    let (x, none) = (ones([2, 3]), Array::from_slice(&[] as &[i32], &[0])?);
    same(&x.at(&none).min(ones([7, 5])), &[1.0; 6]);
    same(&x.at(2..).add(ones([7, 5, 4])), &[1.0; 6]);
    assert_eq!(zeros([0, 3]).at((.., 1)).set(ones([7, 5])).shape(), [0, 3]);
    let (dx, du) = grad(|(x, u): (Array, Array)| x.at(&none).set(&u).sum(..)).call((x.clone(), ones([2, 2])))?;
    same(&dx, &[1.0; 6]);
    same(&du, &[0.0; 4]);
    // The dtype must fit even if nothing is updated, and the shape must fit if something is updated.
    assert!(x.at(&none).set(array_of([1.5], DType::F64)).error().is_some());
    assert!(x.at(0).set(ones([7, 5])).error().is_some());
    Ok(())
}

#[test]
fn select_n_by_any_integers_and_dot_general_of_mixed_dtypes() -> Result<()> {
    setup();
    for dtype in [DType::I8, DType::U8, DType::U32, DType::I64] {
        let which = array([2, 0, 1]).astype(dtype);
        let cases = [array([1.0f32, 2.0, 3.0]), array([4.0f32, 5.0, 6.0]), array([7.0f32, 8.0, 9.0])];
        same(&lax::select_n(&which, &cases), &[7.0, 2.0, 6.0]);
    }
    let (a, b) = (ones([2, 3]).astype(DType::Bf16), ones([3, 2]) * 0.5);
    let product = lax::dot_general(&a, &b, (&[1], &[0]), (&[], &[]), None);
    assert_eq!(product.dtype(), DType::F32);
    same(&product, &[1.5; 4]);
    fn slope(a: Array, b: &Array) -> Array {
        lax::dot_general(&a, b, (&[1], &[0]), (&[], &[]), None).sum(..)
    }
    assert_eq!(grad(|a: Array| slope(a, &b)).call(&a)?.dtype(), DType::Bf16);
    Ok(())
}

/// Positions, shifts, exponents and counts can have a dtype that is narrower than the sizes of the array, or wider than int32.
#[test]
fn integers_of_every_width_are_positions() -> Result<()> {
    setup();
    let narrow = array([3i8, 100, -1]);
    let labels = array([3u8, 129, 255]);
    assert_eq!(np::segment_sum(ones(3), &narrow, 200).to_vec::<f32>()?.iter().sum::<f32>(), 2.0);
    assert_eq!(np::segment_sum(ones(3), &labels, 256).get(255).item::<f32>()?, 1.0);
    assert_eq!(np::unravel_index(&narrow, &[20, 10])[0].to_vec::<i32>()?, [0, 10, 19]);
    assert_eq!(np::ravel_multi_index([&narrow], &[200], IndexMode::Wrap).to_vec::<i32>()?, [3, 100, 199]);
    assert_eq!(np::ravel_multi_index([&labels], &[300], IndexMode::Clip).to_vec::<i32>()?, [3, 129, 255]);
    let choices: Vec<Array> = (0..130).map(Array::from).collect();
    assert_eq!(np::choose(&narrow, choices, IndexMode::Wrap).to_vec::<i32>()?, [3, 100, 129]);

    let x = np::arange(0..10);
    let far = array([(1i64 << 32) + 3]);
    assert_eq!(np::roll(&x, &far, 0).to_vec::<i32>()?, np::roll(&x, 9, 0).to_vec::<i32>()?);
    assert_eq!(np::roll(&x, array([(1u32 << 31) + 1]), 0).to_vec::<i32>()?, np::roll(&x, 9, 0).to_vec::<i32>()?);
    assert_eq!(np::ldexp(array([1.5f32]), &far).to_vec::<f32>()?, [f32::INFINITY]);
    assert_eq!(np::ldexp(array([1.5f32]), -&far).to_vec::<f32>()?, [0.0]);
    assert!(np::repeat(&x, &far, 0).check().is_err());
    Ok(())
}

/// If the index vectors are empty, XLA would apply only the last of several updates without the workaround.
#[test]
fn updates_of_a_scatter_without_positions_add_up() -> Result<()> {
    setup();
    let dims = ScatterDimensionNumbers { update_window_dims: vec![1], ..Default::default() };
    for (kind, expected) in
        [(ScatterKind::Add, [13.0, 3.0]), (ScatterKind::Mul, [48.0, 3.0]), (ScatterKind::Max, [8.0, 3.0])]
    {
        let dims = dims.clone();
        let write = jit(move |x: Array, positions: Array, updates: Array| {
            lax::scatter(kind, &x, &positions, &updates, dims.clone(), GatherScatterMode::Clip)
        });
        // The quick options skip the pass that loses the updates.
        let default_options = [
            ("xla_cpu_use_fusion_emitters", CompilerOption::Bool(true)),
            ("xla_backend_optimization_level", CompilerOption::Int(3)),
        ];
        let write = write.compiler_options(default_options);
        let written = write.call((array([2.0f32, 3.0]), zeros_dtype([2, 0], DType::I32), array([[3.0f32], [8.0]])))?;
        assert_eq!(written.to_vec::<f32>()?, expected);
    }
    Ok(())
}

/// XLA merges a slice of a slice. In JAX, a position that is out of bounds is then clamped to the wrong array.
#[test]
fn positions_out_of_bounds_of_a_slice_stay_in_it() -> Result<()> {
    setup();
    let x = np::arange(0..8).astype(DType::F32);
    fn block(x: &Array, p: &Array) -> Array {
        lax::dynamic_slice_in_dim(x, p, 4, 0)
    }
    let slice = jit(move |x: Array, p: Array, i: Array| lax::dynamic_slice_in_dim(&block(&x, &p), i, 1, 0));
    let clipped = jit(move |x: Array, p: Array, i: Array| block(&x, &p).at(i).mode(GatherScatterMode::Clip).get());
    let filled = jit(move |x: Array, p: Array, i: Array| block(&x, &p).at(i).mode(GatherScatterMode::FillOrDrop).get());
    let set = jit(move |x: Array, p: Array, i: Array| block(&x, &p).at(i).set(9));
    let added = jit(move |x: Array, p: Array, i: Array| block(&x, &p).at(i.reshape([1])).add(9));
    for p in [0, 2, 4, 6] {
        let begin = p.min(4) as f32;
        let part: Vec<f32> = (0..4).map(|k| begin + k as f32).collect();
        for i in -9..10i32 {
            let args = || (&x, array(p), array(i));
            // Negative positions count from the end.
            let row = if i < 0 { i + 4 } else { i };
            let clamped = part[row.clamp(0, 3) as usize];
            assert_eq!(slice.call(args())?.to_vec::<f32>()?, [clamped], "p {p}, i {i}");
            assert_eq!(clipped.call(args())?.item::<f32>()?, clamped, "p {p}, i {i}");
            let index = usize::try_from(row).ok().filter(|index| *index < 4);
            let got = filled.call(args())?.item::<f32>()?;
            assert!(index.map_or(got.is_nan(), |index| got == part[index]), "p {p}, i {i}: {got}");
            let changed = |f: &dyn Fn(f32) -> f32| {
                let mut part = part.clone();
                index.into_iter().for_each(|index| part[index] = f(part[index]));
                part
            };
            assert_eq!(set.call(args())?.to_vec::<f32>()?, changed(&|_| 9.0), "p {p}, i {i}");
            assert_eq!(added.call(args())?.to_vec::<f32>()?, changed(&|v| v + 9.0), "p {p}, i {i}");
        }
    }
    Ok(())
}

#[test]
fn nan_without_an_update_keeps_its_gradient() -> Result<()> {
    setup();
    let x = array([f32::NAN, 1.0, 4.0]);
    let slope = grad(|x: Array| x.at([1, 1]).max(array([2.0f32, 2.0])).sum(..)).call(&x)?;
    same(&slope, &[1.0, 0.0, 1.0]);
    let (_, tangent) = jvp(|x: Array| x.at([1]).min(2.0), x, ones([3]))?;
    same(&tangent, &[1.0, 1.0, 1.0]);
    Ok(())
}

/// The gradient of one element of each row, along each axis, compared with a product with zeros and ones. It contains no scatter.
#[test]
fn gradient_of_one_element_of_each_row_is_a_select() -> Result<()> {
    setup();
    let shape = [16, 20, 24];
    let x = (arange(0.0f32..7680.0) * 0.37).sin().reshape(shape);
    for axis in 0..3usize {
        let mut one_of_row = shape;
        one_of_row[axis] = 1;
        // Negative indices count from the end, and the largest ones are out of bounds.
        let count = one_of_row.iter().product::<usize>() as i32;
        let (indices, slopes) = (arange(0..count) * 7 % 40 - 12, arange(0..count).astype(DType::F32) - 50.5);
        let (indices, slopes) = (indices.reshape(one_of_row), slopes.reshape(one_of_row));
        let along = indices.clone();
        let weights = slopes.clone();
        let f = move |x: Array| (np::take_along_axis(x, &along, axis as i32) * &weights).sum(..);
        let gradient = jit(grad(f));
        let text = gradient.lower(&x)?.as_text().to_string();
        assert!(!text.contains("stablehlo.scatter"), "axis {axis}: {text}");
        let n = shape[axis] as i32;
        let from_front = where_(indices.less(0), &indices + n, &indices);
        let numbers = arange(0..n).reshape([0, 1, 2].map(|d| if d == axis { n } else { 1 }));
        let expected = where_(from_front.equal(numbers), slopes, 0);
        let by_select = floats(&gradient.call(&x)?);
        // Reads out of bounds are NaN, whose slope is zero.
        assert_eq!(by_select, floats(&expected), "axis {axis}");
    }
    Ok(())
}
