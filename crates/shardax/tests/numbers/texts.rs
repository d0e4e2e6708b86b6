//! JAX's texts in place of enums.

use shardax::fft::FftOptions;
use shardax::image::{ResizeMethod, resize};
use shardax::lax::Padding;
use shardax::linalg::NormOrder;
use shardax::nn::initializers::{Distribution, Fan, variance_scaling};
use shardax::numpy::{ConvolveMode, MeshgridOptions, PadMode, PadOptions, choose, ravel_multi_index, trim_zeros};
use shardax::prelude::*;
use shardax::scipy::linalg::{self as scipy_linalg, Trans};
use shardax::scipy::ndimage::map_coordinates;
use shardax::scipy::signal;
use shardax::scipy::stats::rankdata;

use super::common::quick::setup;

#[test]
fn texts_name_the_same_options_as_enums() -> Result<()> {
    setup();
    let (x, kernel) = (arange(0..16).astype(DType::F32).reshape([1, 1, 4, 4]), ones([1, 1, 3, 3]));
    let convolved = |padding: Padding| lax::conv(&x, &kernel, [2, 2], padding).to_vec::<f32>();
    assert_eq!(convolved("SAME".into())?, convolved(Padding::Same)?);
    assert_eq!(convolved("same_lower".into())?, convolved(Padding::SameLower)?);
    assert_eq!(convolved("VALID".into())?, convolved(Padding::Valid)?);
    assert_eq!(convolved(1.into())?, convolved([(1, 1), (1, 1)].into())?);
    assert_eq!(jnp::pad(array([1, 2]), 1, "edge").to_vec::<i32>()?, [1, 1, 2, 2]);
    assert_eq!(jnp::pad(array([1, 2]), 1, "constant").to_vec::<i32>()?, [0, 1, 2, 0]);
    let odd = PadOptions::new().reflect_type("odd").pad(array([1, 2, 4]), 1, "reflect");
    assert_eq!(odd.to_vec::<i32>()?, [0, 1, 2, 4, 6]);
    let rows = MeshgridOptions::new().indexing("ij").meshgrid((array([1, 2]), array([3, 4])))[0].clone();
    assert_eq!(rows.to_vec::<i32>()?, [1, 1, 2, 2]);
    for (text, mode) in [("reflect", PadMode::Reflect), ("symmetric", PadMode::Symmetric), ("median", PadMode::Median)]
    {
        assert_eq!(PadMode::from(text), mode);
    }
    let image = x.reshape([4, 4]);
    let resized = resize(&image, [2, 2], "bilinear").to_vec::<f32>()?;
    assert_eq!(resized, resize(&image, [2, 2], ResizeMethod::Linear).to_vec::<f32>()?);
    assert_eq!(linalg::norm(&image, "nuc", ..).item::<f32>()?, linalg::norm(&image, NormOrder::Nuc, ..).item::<f32>()?);
    Ok(())
}

#[test]
fn texts_that_name_no_option_are_rejected() {
    setup();
    let x = ones([1, 1, 4, 4]);
    let cases = [
        (lax::conv(&x, &x, [1, 1], "SAMME"), "unknown padding \"SAMME\"", "\"SAME_LOWER\""),
        (jnp::pad(&x, 1, "edges"), "unknown mode \"edges\"", "\"edge\""),
        (resize(&x, [1, 1, 2, 2], "linea"), "unknown method \"linea\"", "\"linear\""),
        (linalg::norm(ones([2, 2]), "frob", ..), "\"frob\"", "NormOrder::Fro"),
        (linalg::norm(ones(2), "frob", ..), "\"frob\"", "NormOrder::Fro"),
    ];
    for (result, text, fix) in cases {
        let error = result.to_vec::<f32>().expect_err("a text that names nothing").to_string();
        assert!(error.contains(text) && error.contains(fix), "{error}");
    }
}

#[test]
fn texts_name_options_of_functions_of_signals_and_matrices() -> Result<()> {
    setup();
    let (x, y) = (array([1.0f32, 2.0, 3.0]), array([1.0f32, 1.0]));
    for (text, mode) in [("full", ConvolveMode::Full), ("same", ConvolveMode::Same), ("valid", ConvolveMode::Valid)] {
        assert_eq!(jnp::convolve(&x, &y, text).to_vec::<f32>()?, convolve(&x, &y, mode).to_vec::<f32>()?);
        let mode = text.to_owned();
        assert_eq!(jnp::correlate(&x, &y, &mode).shape(), signal::correlate(&x, &y, text).shape());
        assert_eq!(signal::fftconvolve(&x, &y, text, ..).shape(), signal::convolve(&x, &y, mode).shape());
        assert_eq!(scipy_linalg::convolution_matrix(&x, 2, text).shape()[1], 2);
    }
    let lower = array([[2.0f32, 0.0], [1.0, 4.0]]);
    let solved = |trans: Trans| scipy_linalg::solve_triangular(&lower, &y, trans, true, false).to_vec::<f32>();
    assert_eq!(scipy_linalg::solve_triangular(&lower, &y, 0, true, false).to_vec::<f32>()?, solved(Trans::No)?);
    assert_eq!(
        scipy_linalg::solve_triangular(&lower, &y, "T", true, false).to_vec::<f32>()?,
        solved(Trans::Transpose)?
    );
    let spd = lower.matmul(lower.t());
    assert!(allclose(scipy_linalg::solve(&spd, &y, "pos"), scipy_linalg::solve(&spd, &y, "gen"), 1e-5, 1e-5)?);
    let (_, p) = scipy_linalg::polar(&lower, "left");
    assert!(allclose(&p, p.t(), 1e-5, 1e-5)?);
    assert_eq!(scipy_linalg::pascal(3, "lower").get((2, 1)).item::<f32>()?, 2.0);
    assert_eq!(scipy_linalg::invpascal(3, "upper").get((1, 2)).item::<f32>()?, -2.0);
    assert_eq!(scipy_linalg::schur(&spd, "complex")?.0.dtype(), DType::Complex64);
    assert!(allclose(scipy_linalg::dft(4, "n").abs(), full([4, 4], 0.25), 1e-6, 1e-6)?);
    assert_eq!(rankdata(array([0, 2, 3, 2]), "dense", 0).to_vec::<f32>()?, [1.0, 2.0, 3.0, 2.0]);
    assert_eq!(signal::detrend(array([1.0f32, 3.0]), -1, "constant").to_vec::<f32>()?, [-1.0, 1.0]);
    let psd = signal::SpectralOptions::new().nperseg(4).scaling("spectrum").average("median").welch(ones(8))?;
    assert_eq!(psd.0.shape(), [3]);
    Ok(())
}

#[test]
fn texts_name_options_of_arrays_and_transformations() -> Result<()> {
    setup();
    let x = array([1.0f32, 2.0, 3.0, 4.0]);
    let norm = FftOptions::new().norm("ortho").fft(&x).get(0).real().item::<f32>()?;
    assert_eq!(norm, 5.0);
    let [hermitian, expected] = ["forward", "backward"].map(|norm| FftOptions::new().norm(norm).hfft(&x));
    assert!(allclose(hermitian * 6.0, expected, 1e-5, 1e-5)?);
    assert_eq!(x.at(array([0, 9])).mode("drop").set(7).to_vec::<f32>()?, [7.0, 2.0, 3.0, 4.0]);
    assert_eq!(x.at(array([0, 9])).mode("clip").get().to_vec::<f32>()?, [1.0, 4.0]);
    assert_eq!(choose(array([1, 5]), [array([1, 2]), array([10, 20])], "wrap").to_vec::<i32>()?, [10, 20]);
    assert_eq!(ravel_multi_index([array([1]), array([9])], [2, 3], "clip").to_vec::<i32>()?, [5]);
    assert_eq!(unpackbits(packbits(array([1, 0, 1]), "little"), "little").shape(), [8]);
    assert_eq!(trim_zeros(array([0, 2, 0]), "f", ..).to_vec::<i32>()?, [2, 0]);
    let weights = variance_scaling(2.0, "fan_in", "truncated_normal").init(&random::key(0), &[4, 3], DType::F32);
    let expected =
        variance_scaling(2.0, Fan::In, Distribution::TruncatedNormal).init(&random::key(0), &[4, 3], DType::F32);
    assert_eq!(weights.to_vec::<f32>()?, expected.to_vec::<f32>()?);
    let image = x.reshape([2, 2]);
    assert_eq!(map_coordinates(&image, [array([2.0f32]), array([0.0f32])], 1, "nearest").to_vec::<f32>()?, [3.0]);
    let double = pure_callback(
        |args, results| results[0].write(args[0].values::<f32>()?.map(|x| 2.0 * x)),
        shape_dtype_struct((), DType::F32),
    );
    let each = double.vmap_method("sequential");
    assert_eq!(vmap(move |x: Array| each.call(x)).call(&x)?.to_vec::<f32>()?, [2.0, 4.0, 6.0, 8.0]);
    Ok(())
}

#[test]
fn unknown_texts_of_functions_list_the_names() {
    setup();
    let (x, square) = (ones(3), eye(2));
    let cases = [
        (jnp::convolve(&x, &x, "sames"), "convolve got the unknown mode \"sames\"", "\"same\""),
        (signal::convolve2d(eye(2), eye(2), "all"), "convolve2d got the unknown mode \"all\"", "\"full\""),
        (signal::fftconvolve(&x, &x, "all", ..), "fftconvolve", "\"valid\""),
        (FftOptions::new().norm("orth").fft(&x), "fft got the unknown norm \"orth\"", "\"ortho\""),
        (x.at(0).mode("wrap").set(1), "at got the unknown mode \"wrap\"", "\"promise_in_bounds\""),
        (x.at(0).mode("wrap").get(), "at got the unknown mode \"wrap\"", "\"clip\""),
        (variance_scaling(1.0, "in", "normal").init(&random::key(0), &[2, 2], DType::F32), "\"in\"", "\"fan_in\""),
        (
            variance_scaling(1.0, "fan_in", "gauss").init(&random::key(0), &[2, 2], DType::F32),
            "\"gauss\"",
            "\"normal\"",
        ),
        (scipy_linalg::solve(&square, &square, "spd"), "unknown assumption \"spd\"", "\"pos\""),
        (scipy_linalg::solve_triangular(&square, &square, 3, true, false), "unknown trans \"3\"", "\"T\""),
        (scipy_linalg::polar(&square, "both").0, "unknown side \"both\"", "\"left\""),
        (scipy_linalg::pascal(3, "full"), "unknown kind \"full\"", "\"symmetric\""),
        (scipy_linalg::dft(3, "sqrt"), "unknown scale \"sqrt\"", "\"sqrtn\""),
        (rankdata(&x, "mean", ..), "unknown method \"mean\"", "\"average\""),
        (packbits(array([1]), "large"), "unknown order of bits \"large\"", "\"little\""),
        (trim_zeros(&x, "front", ..), "unknown side \"front\"", "\"fb\""),
        (MeshgridOptions::new().indexing("yx").meshgrid([&x, &x])[1].clone(), "unknown indexing \"yx\"", "\"ij\""),
        (PadOptions::new().reflect_type("half").pad(&x, 1, "reflect"), "unknown reflect_type \"half\"", "\"odd\""),
    ];
    for (result, text, fix) in cases {
        let error = result.to_vec::<f32>().expect_err("a text that names nothing").to_string();
        assert!(error.contains(text) && error.contains(fix), "{error}");
    }
    let error = scipy_linalg::schur(&square, "float").expect_err("a text that names nothing").to_string();
    assert!(error.contains("schur got the unknown output \"float\"") && error.contains("\"real\""), "{error}");
    let callback = pure_callback(|_, _| Ok(()), shape_dtype_struct((), DType::F32)).vmap_method("loop");
    let error = callback.call(&x).expect_err("a text that names nothing").to_string();
    assert!(error.contains("unknown vmap method \"loop\"") && error.contains("\"expand_dims\""), "{error}");
}

#[test]
fn texts_name_precisions() -> Result<()> {
    setup();
    let x = ones([2, 2]);
    let lowered = jit(|x: Array| lax::DotOptions::new().precision("highest").matmul(&x, &x)).lower(&x)?;
    assert!(lowered.as_text().contains("precision HIGHEST"));
    let convolved =
        |x: Array| lax::conv_general_dilated(&x, &x, [1], Padding::Valid, lax::ConvOptions::new().precision("high"));
    assert!(jit(convolved).lower(ones([1, 2, 2]))?.as_text().contains("precision HIGH"));
    {
        let _precise = shardax::default_matmul_precision("tensorfloat32");
        assert!(jit(|x: Array| x.matmul(&x)).lower(&x)?.as_text().contains("precision HIGH"));
    }
    let unknown =
        lax::DotOptions::new().precision("highst").matmul(&x, &x).check().expect_err("no precision").to_string();
    assert!(unknown.contains("unknown precision \"highst\"") && unknown.contains("\"highest\""), "{unknown}");
    Ok(())
}

#[test]
fn texts_of_guards_that_name_nothing_are_errors_where_they_apply() -> Result<()> {
    setup();
    let (x, product) = (ones([2, 2]), jit(|x: Array| x.matmul(&x)));
    assert_eq!(product.call(&x)?.to_vec::<f32>()?, [2.0; 4]);
    {
        let _guard = shardax::default_matmul_precision("double");
        for error in [x.matmul(&x).check(), product.call(&x).map(|_| ())] {
            let error = error.expect_err("no precision").to_string();
            assert!(error.contains("unknown precision \"double\""), "{error}");
        }
        assert_eq!((&x + 1).to_vec::<f32>()?, [2.0; 4]);
    }
    {
        let _guard = shardax::numpy_rank_promotion("error");
        let error = (&x + ones(2)).check().expect_err("no rule").to_string();
        assert!(error.contains("unknown rule \"error\"") && error.contains("\"raise\""), "{error}");
    }
    {
        let _guard = shardax::transfer_guard("forbid");
        let error = x.to_vec::<f32>().expect_err("no level").to_string();
        assert!(error.contains("unknown level \"forbid\"") && error.contains("\"disallow\""), "{error}");
    }
    assert_eq!(product.call(&x)?.to_vec::<f32>()?, [2.0; 4]);
    Ok(())
}
