//! Convolutions and windowed reductions: ways that must agree, nested derivatives, errors. `golden.rs` compares with JAX.

mod common;

use common::quick::setup;
use shardax::lax::{self, ConvOptions, Padding};
use shardax::nn::{Pool, avg_pool, max_pool, min_pool, relu};
use shardax::prelude::*;

/// A number in the middle of nowhere for each element, with ties.
fn numbers(shape: &[usize], seed: u32) -> Array {
    let mut state = seed;
    let values: Vec<f32> = (0..shape.iter().product::<usize>())
        .map(|_| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            ((state >> 16) % 7) as f32 - 3.0
        })
        .collect();
    Array::from_vec(values, shape).expect("as many numbers as elements")
}

/// The elements from `start` to `limit`.
fn part(x: &Array, start: &[usize], limit: &[usize]) -> Array {
    let cuts = (0..x.ndim()).map(|d| (-(start[d] as i64), limit[d] as i64 - x.shape()[d] as i64, 0));
    lax::pad(x, 0.0f32, &cuts.collect::<Vec<_>>())
}

/// The gradient of a weighted sum of `f(x)`.
fn weighted_grad(f: impl Fn(&Array) -> Array, x: &Array, weights: &Array) -> Result<Vec<f32>> {
    jit(grad(|x: Array| (f(&x) * weights).sum(..))).call(x)?.to_vec::<f32>()
}

/// Max pooling takes one of four ways by window; all must choose the same element.
#[test]
fn every_way_to_pool_agrees() -> Result<()> {
    setup();
    // A window of 81 elements in steps of 9 tiles; with a padding of nothing but a different shape it does not.
    let x = relu(numbers(&[2, 18, 18, 3], 1));
    let weights = numbers(&[2, 2, 2, 3], 2);
    let tiled = weighted_grad(|x| max_pool(x, [9, 9], [9, 9]), &x, &weights)?;
    let scattered =
        weighted_grad(|x| Pool::new([9, 9]).strides([9, 9]).padding([(0, 0), (0, 1)]).max(x), &x, &weights)?;
    assert_eq!(tiled, scattered);

    let weights = numbers(&[2, 9, 9, 3], 3);
    let tiled = weighted_grad(|x| max_pool(x, [2, 2], [2, 2]), &x, &weights)?;
    let sliced = weighted_grad(|x| Pool::new([2, 2]).strides([2, 2]).padding([(0, 0), (0, 1)]).max(x), &x, &weights)?;
    assert_eq!(tiled, sliced);

    // A large window that overlaps, forward and backward, against one output at a time.
    let x = numbers(&[1, 12, 12, 1], 4);
    let weights = numbers(&[1, 4, 4, 1], 5);
    let expected = weighted_grad(|x| min_pool(x, [9, 9], [1, 1]), &x, &weights)?;
    let mut sum = vec![0.0; 144];
    for i in 0..4usize {
        for j in 0..4usize {
            let gradient = weighted_grad(
                |x| {
                    let gradient = part(x, &[0, i, j, 0], &[1, i + 9, j + 9, 1]);
                    min_pool(gradient, [9, 9], [9, 9])
                },
                &x,
                &part(&weights, &[0, i, j, 0], &[1, i + 1, j + 1, 1]),
            )?;
            sum.iter_mut().zip(gradient).for_each(|(s, o)| *s += o);
        }
    }
    assert_eq!(expected, sum);
    fn push(x: Array, t: Array) -> Result<Array> {
        jvp(|x: Array| min_pool(x, [9, 9], [1, 1]), x, t).map(|(_, t)| t)
    }
    let t = numbers(&[1, 12, 12, 1], 6);
    let forward = (push(x.clone(), t.clone())? * &weights).sum(..).item::<f32>()?;
    let backward: f32 = expected.iter().zip(t.to_vec::<f32>()?).map(|(a, b)| a * b).sum();
    assert_eq!(forward, backward);
    Ok(())
}

/// Convolutions of few features are sums of products; with more outputs, which are zeros, the compiler computes them.
#[test]
fn convolutions_of_few_features() -> Result<()> {
    setup();
    let last = ("NHWC", "HWIO", "NHWC");
    for ([inputs, outputs], window, stride, pad, [dilation, apart], specs) in [
        ([1, 2], [3, 3], 1, (0, 0), [1, 1], last),
        ([3, 1], [5, 5], 1, (2, 1), [1, 1], last),
        ([1, 1], [1, 7], 2, (1, 1), [1, 1], ("NCHW", "OIHW", "NHWC")),
        ([2, 4], [2, 3], 1, (-1, 1), [2, 1], ("NHWC", "HWIO", "NCHW")),
        ([4, 4], [1, 2], 1, (1, 0), [1, 2], ("NCHW", "OIHW", "NHWC")),
    ] {
        let x = numbers(&[2, 17, 19, inputs], 7);
        let filter = numbers(&[window[0], window[1], inputs, outputs], 8);
        let conv = |x: Array, filter: Array| {
            let is_first = specs.0 == "NCHW";
            let x = if is_first { x.moveaxis(-1, 1) } else { x };
            let filter = if is_first { filter.transpose([3, 2, 0, 1]) } else { filter };
            let options = ConvOptions::new().dimension_numbers(specs.0, specs.1, specs.2);
            let options = options.rhs_dilation([dilation; 2]).lhs_dilation([apart; 2]);
            let y = lax::conv_general_dilated(x, filter, [stride; 2], equal_padding(2, pad), options);
            if specs.2 == "NCHW" { y.moveaxis(1, -1) } else { y }
        };
        let more = lax::pad(&filter, 0.0f32, &[(0, 0, 0), (0, 0, 0), (0, 0, 0), (0, 100, 0)]);
        let expected = jit(conv).call((&x, &more))?;
        let expected = part(&expected, &[0; 4], &[&expected.shape()[..3], &[outputs]].concat());
        for dtype in [DType::F32, DType::F16] {
            let [x, filter] = [&x, &filter].map(|x| x.astype(dtype));
            let y = jit(conv).call((&x, &filter))?;
            assert_eq!((y.dtype(), y.shape()), (dtype, expected.shape()));
            assert_eq!(y.astype(DType::F32).to_vec::<f32>()?, expected.to_vec::<f32>()?, "{inputs} to {outputs}");
        }
    }
    Ok(())
}

#[test]
fn convolutions_of_f64_are_exact() -> Result<()> {
    setup();
    for (inputs, outputs, window) in [(16, 3, [3, 3]), (5, 7, [2, 4]), (17, 1, [1, 1])] {
        let (x, filter) = (numbers(&[2, 9, 10, inputs], 9), numbers(&[window[0], window[1], inputs, outputs], 10));
        for (stride, pad, dilation) in [(1, (1, 1), 1), (2, (0, 1), 1), (1, (2, 0), 2)] {
            let results = [DType::F32, DType::F64].map(|dtype| -> Result<Vec<Vec<f64>>> {
                let [x, filter] = [&x, &filter].map(|x| x.astype(dtype));
                let conv = |x: Array, filter: Array| {
                    let options =
                        ConvOptions::new().dimension_numbers("NHWC", "HWIO", "NHWC").rhs_dilation([dilation; 2]);
                    lax::conv_general_dilated(x, filter, [stride; 2], equal_padding(2, pad), options)
                };
                let y = jit(conv).call((&x, &filter))?;
                let square = |x: Array, filter: Array| conv(x, filter).square().sum(..);
                let (dx, dfilter) = jit(grad(square).argnums((Arg::<0>, Arg::<1>))).call((&x, &filter))?;
                [y, dx, dfilter].iter().map(|x| x.astype(DType::F64).to_vec::<f64>()).collect()
            });
            let [narrow, wide] = results;
            assert_eq!(narrow?, wide?, "{inputs} to {outputs}");
        }
    }
    Ok(())
}

/// Padding of `n` dimensions, all with these widths.
fn equal_padding(n: usize, pad: (i64, i64)) -> Padding {
    Padding::Explicit(vec![pad; n])
}

/// Convolutions from `inputs` to `outputs` features with the channels last, and in the layout that has them first.
fn layouts_agree(inputs: usize, outputs: usize, groups: usize) -> Result<()> {
    setup();
    // One to three spatial dimensions, and a filter of size 1, which XLA computes as a matmul.
    for (spatial, kernel, specs, first) in [
        (&[11][..], &[3][..], ("NWC", "WIO", "NWC"), ("NCW", "OIW", "NCW")),
        (&[9, 8], &[3, 2], ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")),
        (&[9, 8], &[1, 1], ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")),
        (&[5, 4, 6], &[2, 1, 3], ("NDHWC", "DHWIO", "NDHWC"), ("NCDHW", "OIDHW", "NCDHW")),
    ] {
        let n = spatial.len();
        let x = numbers(&[&[2][..], spatial, &[inputs]].concat(), 5);
        let k = numbers(&[kernel, &[inputs / groups, outputs]].concat(), 6);
        fn to_first(x: &Array) -> Array {
            x.moveaxis(-1, 1)
        }
        for (stride, pad, dilation) in
            [(1, (1, 1), 1), (2, (0, 1), 1), (1, (2, 0), 2), (2, (-1, 2), 1), (3, (1, 1), 1), (1, (0, 0), 1)]
        {
            let conv = |x: &Array, k: &Array, s: (&str, &str, &str)| {
                let options = ConvOptions::new().dimension_numbers(s.0, s.1, s.2).rhs_dilation(vec![dilation; n]);
                let options = options.feature_group_count(groups);
                lax::conv_general_dilated(x, k, vec![stride; n], equal_padding(n, pad), options)
            };
            let last = |x: Array, k: Array| conv(&x, &k, specs);
            let feature_first = |x: Array, k: Array| {
                let k = k.moveaxis(-1, 0).moveaxis(-1, 1);
                conv(&to_first(&x), &k, first).moveaxis(1, -1)
            };
            let (a, b) = (jit(last).call((&x, &k))?, jit(feature_first).call((&x, &k))?);
            assert_eq!(
                (a.shape(), a.to_vec::<f32>()?),
                (b.shape(), b.to_vec()?),
                "{specs:?} {stride} {pad:?} {dilation}"
            );
            // The gradients are equal bit by bit too, because the reductions have the same order in both layouts.
            let weights = numbers(b.shape(), 7);
            let argnums = (Arg::<0>, Arg::<1>);
            let (da, db) = (
                jit(grad(|k: Array, x: Array| (last(x, k) * &weights).sum(..)).argnums(argnums)).call((&k, &x))?,
                jit(grad(|k: Array, x: Array| (feature_first(x, k) * &weights).sum(..)).argnums(argnums))
                    .call((&k, &x))?,
            );
            assert_eq!(da.0.to_vec::<f32>()?, db.0.to_vec::<f32>()?);
            assert_eq!(da.1.to_vec::<f32>()?, db.1.to_vec::<f32>()?);
        }
    }
    Ok(())
}

/// A convolution of few features is a matrix product where its layout has the channels last; any layout must agree.
#[test]
fn convolutions_of_few_features_agree() -> Result<()> {
    layouts_agree(3, 20, 1)
}

/// The CPU plugin's convolution (xla-cpu-pjrt 0.0.1) has wrong numbers for some negative paddings with a stride. Results and
/// gradients equal the gradients of an operand whose edges are cut off before.
#[test]
fn convolutions_with_negative_padding() -> Result<()> {
    setup();
    let (x, k) = (numbers(&[2, 3, 9, 8], 5), numbers(&[20, 3, 3, 2], 6));
    for (stride, pad) in [(1, (-2, 0)), (2, (-1, 2)), (2, (2, -1)), (3, (-1, 3))] {
        for (lhs_dilation, rhs_dilation) in [(1, 1), (2, 1), (1, 2)] {
            fn options(lhs_dilation: usize, rhs_dilation: usize) -> ConvOptions {
                ConvOptions::new().lhs_dilation([lhs_dilation; 2]).rhs_dilation([rhs_dilation; 2])
            }
            let padded_by_conv = |x: Array, k: Array| {
                lax::conv_general_dilated(x, k, [stride; 2], [pad; 2], options(lhs_dilation, rhs_dilation))
            };
            // The same padding before the convolution, where it only cuts or adds elements.
            let padded_before = |x: Array, k: Array| {
                let spatial = (pad.0, pad.1, lhs_dilation as i64 - 1);
                let x = lax::pad(&x, 0.0f32, &[(0, 0, 0), (0, 0, 0), spatial, spatial]);
                lax::conv_general_dilated(x, k, [stride; 2], [(0, 0); 2], options(1, rhs_dilation))
            };
            let place = format!("stride {stride}, padding {pad:?}, dilations {lhs_dilation} and {rhs_dilation}");
            let (a, b) = (jit(padded_by_conv).call((&x, &k))?, jit(padded_before).call((&x, &k))?);
            assert_eq!((a.shape(), a.to_vec::<f32>()?), (b.shape(), b.to_vec::<f32>()?), "{place}");
            let weights = numbers(a.shape(), 7);
            let loss_by_conv = |x: Array, k: Array| (padded_by_conv(x, k) * &weights).sum(..);
            let loss_before = |x: Array, k: Array| (padded_before(x, k) * &weights).sum(..);
            let operands = (Arg::<0>, Arg::<1>);
            let (dx, dk) = jit(grad(loss_by_conv).argnums(operands)).call((&x, &k))?;
            let (expected_dx, expected_dk) = jit(grad(loss_before).argnums(operands)).call((&x, &k))?;
            assert_eq!(dx.to_vec::<f32>()?, expected_dx.to_vec::<f32>()?, "gradient of the operand, {place}");
            assert_eq!(dk.to_vec::<f32>()?, expected_dk.to_vec::<f32>()?, "gradient of the filter, {place}");
        }
    }
    Ok(())
}

/// A convolution of each feature by itself is a sum of products there.
#[test]
fn depthwise_convolutions_agree() -> Result<()> {
    layouts_agree(5, 5, 5)?;
    fn options() -> ConvOptions {
        ConvOptions::new().channels_last(1).feature_group_count(4)
    }
    fn conv(x: Array, k: Array) -> Array {
        lax::conv_general_dilated(&x, &k, [1], Padding::Same, options())
    }
    let lowered = jit(conv).lower((ones([2, 9, 4]), ones([3, 1, 4])))?;
    assert!(!lowered.as_text().contains("stablehlo.convolution"));
    Ok(())
}

/// Second derivatives, and derivatives of a batch, go through the same rules.
#[test]
fn derivatives_nest() -> Result<()> {
    setup();
    let x = numbers(&[1, 6, 6, 2], 7);
    let kernel = numbers(&[3, 3, 2, 2], 8);
    fn f(x: &Array, kernel: &Array) -> Array {
        let y = shardax::nn::conv(x, kernel, [1, 1], Padding::Same);
        max_pool(&y * &y, [2, 2], [2, 2]).sum(..)
    }
    // Where the choice of the maxima does not change f is quadratic: its gradient is linear in x.
    fn slope(x: Array, kernel: &Array) -> Result<Array> {
        grad(|x: Array| f(&x, kernel)).call(x)
    }
    let (g, dg) = jvp(|x: Array| slope(x, &kernel), &x, &x)?;
    assert!(allclose(&dg, &g, 1e-5, 1e-4)?);

    let xs = stack(&[x.clone(), &x + 1, &x * 2], 0);
    let batched = vmap(|x: Array| slope(x, &kernel)).call(&xs)?;
    for i in 0..3usize {
        let image = part(&xs, &[i, 0, 0, 0, 0], &[i + 1, 1, 6, 6, 2]).squeeze(0);
        let row = part(&batched, &[i, 0, 0, 0, 0], &[i + 1, 1, 6, 6, 2]).squeeze(0);
        assert!(allclose(slope(image, &kernel)?, row, 1e-5, 1e-4)?);
    }
    Ok(())
}

#[test]
fn avg_pool_is_the_mean() -> Result<()> {
    setup();
    let x = arange(0.0f32..16.0).reshape([1, 4, 4, 1]);
    assert_eq!(avg_pool(&x, [2, 2], [2, 2]).to_vec::<f32>()?, [2.5, 4.5, 10.5, 12.5]);
    Ok(())
}

fn message(x: Array) -> String {
    x.check().expect_err("an error").to_string()
}

#[test]
fn errors_name_operands_and_the_fix() {
    setup();
    let x = ones([2, 8, 8, 3]);
    fn nhwc() -> ConvOptions {
        ConvOptions::new().dimension_numbers("NHWC", "HWIO", "NHWC")
    }
    let conv =
        |kernel: Array, options: ConvOptions| lax::conv_general_dilated(&x, kernel, [1, 1], Padding::Same, options);

    // Sizes that do not fit, layouts that are not permutations, strides and windows of size 0, and sizes that
    // overflow.
    let text = message(conv(ones([3, 3, 4, 5]), nhwc()));
    assert!(
        text.contains("3 / 1 != 4") && text.contains("float32[2,8,8,3]") && text.contains("float32[3,3,4,5]"),
        "{text}"
    );
    assert!(text.contains("convolution.rs"), "{text}");
    let text = message(conv(ones([3, 3, 1, 4]), nhwc().feature_group_count(3)));
    assert!(text.contains("4 is not a multiple of 3"), "{text}");
    let text = message(conv(ones([3, 3, 3, 4]), nhwc().batch_group_count(4)));
    assert!(text.contains("2 is not a multiple of 4"), "{text}");
    let text = message(conv(ones([3, 3, 3]), nhwc()));
    assert!(text.contains("rank") && text.contains("float32[3,3,3]"), "{text}");
    let text = message(conv(ones([3, 3, 3, 4]).astype(DType::Bf16), nhwc()));
    assert!(text.contains("same dtypes") && text.contains("bfloat16"), "{text}");
    let text = message(conv(ones([3, 3, 3, 4]), ConvOptions::new().dimension_numbers("NHWC", "HHIO", "NHWC")));
    assert!(text.contains("HHIO"), "{text}");
    let text = message(conv(ones([3, 3, 3, 4]), ConvOptions::new().dimension_numbers("NHWC", "HWIO", "NHC")));
    assert!(text.contains("NHC"), "{text}");
    let text = message(lax::conv_general_dilated(&x, ones([3, 3, 3, 4]), [1], Padding::Same, nhwc()));
    assert!(text.contains("window_strides is [1]"), "{text}");
    let text = message(lax::conv_general_dilated(&x, ones([3, 3, 3, 4]), [0, 1], Padding::Valid, nhwc()));
    assert!(text.contains("stride 0"), "{text}");
    let text = message(lax::conv_general_dilated(&x, ones([3, 3, 3, 4]), [1, 1], [(-9, 0), (0, 0)], nhwc()));
    assert!(text.contains("(-9, 0)"), "{text}");
    let text = message(lax::conv_general_dilated(&x, ones([3, 3, 3, 4]), [1, 1], [(1, 1)], nhwc()));
    assert!(text.contains("1 pairs"), "{text}");
    let text = message(conv(ones([3, 3, 3, 4]), nhwc().lhs_dilation([2, 2])));
    assert!(text.contains("lhs_dilation"), "{text}");

    let text = message(max_pool(ones([4]), [2, 2], [2, 2]));
    assert!(text.contains("max_pool") && text.contains("float32[4]"), "{text}");
    let text = message(max_pool(&x, [2, 2], [0, 2]));
    assert!(text.contains("stride 0"), "{text}");
    let text = message(max_pool(&x, [0, 2], [1, 1]));
    assert!(text.contains("size 0"), "{text}");
    let text = message(max_pool(&x, [usize::MAX, 2], [usize::MAX, 1]));
    assert!(text.contains("too large"), "{text}");
    let text =
        message(lax::conv_general_dilated(&x, ones([3, 3, 3, 4]), [1, 1], [(i64::MAX, i64::MAX), (0, 0)], nhwc()));
    assert!(text.contains("too large"), "{text}");
}

#[test]
fn pools_of_a_number_cover_all_spatial_dimensions() -> Result<()> {
    setup();
    let x = arange(0..16).astype(f32).reshape([1, 4, 4, 1]);
    for (found, expected) in [
        (Pool::new(2).max(&x), Pool::new([2, 2]).max(&x)),
        (Pool::new(2).strides(2).avg(&x), Pool::new([2, 2]).strides([2, 2]).avg(&x)),
        (
            Pool::new(3).padding(1).count_include_pad(false).avg(&x),
            Pool::new([3, 3]).padding(1).count_include_pad(false).avg(&x),
        ),
    ] {
        assert_eq!(found.shape(), expected.shape());
        assert_eq!(found.to_vec::<f32>()?, expected.to_vec::<f32>()?);
    }
    let error = Pool::new([2, 2]).max(ones([4, 4])).check().expect_err("no features").to_string();
    assert!(error.contains("the window [2, 2] needs an array of at least 3 dimensions, got float32[4,4]"), "{error}");
    Ok(())
}
