//! Operations that read across the ends of a split dimension, found by random programs: each computes what one device does.

use super::*;
use shardax::lax::{self, Triangular};
use shardax::nn;
use shardax::numpy::{PadMode, prod};

#[test]
fn slices_that_begin_outside_are_clamped() -> Result<()> {
    setup();
    for types in [AxisType::Auto, AxisType::Explicit] {
        let mesh = make_mesh([("x", 2), ("y", 4)])?.with_axis_types([types; 2])?;
        let _guard = set_mesh(&mesh)?;
        let split = NamedSharding::new(&mesh, P!["y"]);
        let x = device_put(&arange(0..16), &split)?;
        let block = device_put(&(arange(0..8) + 100), &split)?;
        let read = jit(|x: Array, i: Array| lax::dynamic_slice(&x, &[i], &[8])).out_shardings(&split);
        let write = jit(|x: Array, u: Array, i: Array| lax::dynamic_update_slice(&x, &u, &[i])).out_shardings(&split);
        for start in [-100, -3, 3, 5, 9, 12, 100] {
            let begin = (if start < 0 { start + 16 } else { start }).clamp(0, 8);
            let got = read.call((&x, start))?.to_vec::<i32>()?;
            assert_eq!(got, (begin..begin + 8).collect::<Vec<_>>(), "{types:?}, read from {start}");
            let got = write.call((&x, &block, start))?.to_vec::<i32>()?;
            fn inside(i: i32, begin: i32) -> bool {
                (begin..begin + 8).contains(&i)
            }
            let want: Vec<i32> = (0..16).map(|i| if inside(i, begin) { 100 + i - begin } else { i }).collect();
            assert_eq!(got, want, "{types:?}, written from {start}");
        }
        // Of a start index whose dtype does not hold the last one.
        let long = device_put(&arange(0..512), &split)?;
        let read = jit(|x: Array, i: Array| lax::dynamic_slice(&x, &[i.astype(DType::U8)], &[8])).out_shardings(&split);
        assert_eq!(read.call((&long, 255))?.to_vec::<i32>()?, (255..263).collect::<Vec<_>>());
    }
    Ok(())
}

#[test]
fn triangular_solves_keep_split_dimensions_that_are_not_summed() -> Result<()> {
    let (_, _guard) = mesh(4);
    fn a(spec: PartitionSpec) -> Array {
        num(&[8, 8], 0.7, 0.3, spec) + device_put(&(eye(8) * 4), P![]).unwrap()
    }
    for left_side in [true, false] {
        for transpose_a in [true, false] {
            let options = Triangular { left_side, lower: true, transpose_a, ..Triangular::default() };
            let solve = move |a: Array, b: Array| lax::triangular_solve(&a, &b, options);
            let spec_a = if left_side == transpose_a { P![None, "x"] } else { P!["x", None] };
            let spec_b = if left_side { P![None, "y"] } else { P!["y", None] };
            let expected = jit(solve).call((a(P![]), num(&[8, 8], 0.2, 0.5, P![])))?;
            let split = jit(solve).call((a(spec_a), num(&[8, 8], 0.2, 0.5, spec_b)))?;
            let want = if left_side { "float32[8@x,8@y]" } else { "float32[8@y,8@x]" };
            assert_eq!(typed(&split), want, "left_side {left_side}, transpose_a {transpose_a}");
            same(&split, &host(&expected));
        }
    }
    let options = Triangular { left_side: true, lower: true, ..Triangular::default() };
    let pair = lax::triangular_solve(&a(P!["x", None]), &num(&[8, 8], 0.2, 0.5, P![None, "x"]), options);
    let text = rejected(&pair);
    assert!(text.contains("both dimensions of the result would be sharded over 'x'"), "{text}");
    Ok(())
}

#[test]
fn paddings_by_own_elements_keep_the_sharding() -> Result<()> {
    let (_, _guard) = mesh(4);
    for mode in [PadMode::Wrap, PadMode::Edge, PadMode::Reflect, PadMode::Symmetric] {
        fn f(x: Array, mode: PadMode) -> Array {
            shardax::numpy::pad(&x, [(0, 0), (3, 6)], mode)
        }
        let expected = f(num(&[4, 4], 0.9, 0.0, P![]), mode);
        let split = f(num(&[4, 4], 0.9, 0.0, P!["x"]), mode);
        assert_eq!((typed(&split), host(&split)), ("float32[4@x,13]".into(), host(&expected)), "{mode:?}");
        let slope = |spec| {
            grad(move |x: Array| (f(x, mode) * device_put(&num(&[4, 13], 0.3, 0.1, P![]), P![]).unwrap()).sum(..))
                .call(num(&[4, 4], 0.9, 0.0, spec))
        };
        same(&slope(P!["x"])?, &host(&slope(P![])?));
    }
    Ok(())
}

#[test]
fn gradients_of_products_keep_the_sharding() -> Result<()> {
    let (_, _guard) = mesh(4);
    for axes in [&[][..], &[1], &[2], &[1, 2]] {
        let f = move |x: Array| prod(&x, axes).square().sum(..);
        let slope = |spec| grad(f).call(num(&[4, 3, 2], 0.9, 0.2, spec));
        let split = slope(P!["y"])?;
        assert_eq!(typed(&split), "float32[4@y,3,2]");
        same(&split, &host(&slope(P![])?));
    }
    Ok(())
}

#[test]
fn gradients_of_sorts_of_reduced_values_are_unreduced() -> Result<()> {
    let (_, _guard) = mesh(4);
    fn f(x: Array) -> Array {
        fn reduced(x: &Array) -> Array {
            reshard(x.clone(), P![].reduced(["x"]))
        }
        (sort(reduced(&x), 0) * reduced(&ramp(&[8], P![]))).sum(..)
    }
    let slope = jit(grad(f)).call(num(&[8], 0.9, 0.0, P![]))?;
    assert_eq!((typed(&slope), host(&slope)), ("float32[8]".into(), vec![3.0, 6.0, 7.0, 5.0, 2.0, 0.0, 1.0, 4.0]));
    Ok(())
}

#[test]
fn gradients_of_overlapping_pools_are_split_as_the_image() -> Result<()> {
    let (_, _guard) = mesh(4);
    fn f(x: Array) -> Array {
        (nn::Pool::new([3, 3]).strides([2, 2]).padding(lax::Padding::Same).max(&x).square()).sum(..)
    }
    fn slope(spec: PartitionSpec) -> Result<Array> {
        jit(grad(f)).call(num(&[2, 8, 8, 3], 0.9, 0.0, spec))
    }
    let split = slope(P![None, "y", "x"])?;
    assert_eq!(typed(&split), "float32[2,8@y,8@x,3]");
    same(&split, &host(&slope(P![])?));
    Ok(())
}

#[test]
fn where_of_other_shapes_takes_the_sharding_of_all() -> Result<()> {
    let (_, _guard) = mesh(4);
    fn condition(spec: PartitionSpec) -> Array {
        num(&[4], 1.0, 0.0, spec).greater(0)
    }
    let chosen = where_(condition(P![]), num(&[1, 4], 0.3, 0.0, P![]), num(&[4, 4], 0.7, 0.0, P!["y", "x"]));
    assert_eq!(typed(&chosen), "float32[4@y,4@x]");
    let expected = where_(condition(P![]), num(&[1, 4], 0.3, 0.0, P![]), num(&[4, 4], 0.7, 0.0, P![]));
    assert_eq!(host(&chosen), host(&expected));
    Ok(())
}
