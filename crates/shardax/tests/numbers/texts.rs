//! JAX's texts in place of enums.

use shardax::image::{ResizeMethod, resize};
use shardax::lax::Padding;
use shardax::linalg::NormOrder;
use shardax::numpy::PadMode;
use shardax::prelude::*;

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
