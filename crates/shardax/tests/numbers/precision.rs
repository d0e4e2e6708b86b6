//! The precision of products: asked for, kept through transformations, and set for all.

use shardax::lax::{self, ConvOptions, DotOptions, Padding, Precision};
use shardax::prelude::*;
use shardax::{config, default_matmul_precision};

/// The number of a program's matmuls of each precision.
fn count(text: &str) -> [usize; 3] {
    ["DEFAULT", "HIGH", "HIGHEST"].map(|name| text.matches(&format!("<precision {name}>")).count())
}

/// All products of a function of two matrices, of its gradient and of its batch are of this precision, of which there
/// are two for each.
#[track_caller]
fn all_highest(name: &str, f: impl Fn(Array, Array) -> Array + Copy) {
    let (x, y) = (shape_dtype_struct([3, 3], DType::F32), shape_dtype_struct([3, 3], DType::F32));
    let loss = move |x: Array, y: Array| f(x, y).square().sum(..);
    let rows = shape_dtype_struct([2, 3, 3], DType::F32);
    let texts = [
        jit(f).lower((&x, &y)).map(|l| l.as_text().to_string()),
        jit(grad(loss).argnums((Arg::<0>, Arg::<1>))).lower((&x, &y)).map(|l| l.as_text().to_string()),
        jit(vmap(loss)).lower((&rows, &rows)).map(|l| l.as_text().to_string()),
    ];
    for (text, products) in texts.iter().zip([1, 3, 1]) {
        let text = text.as_ref().expect("a program");
        assert_eq!(count(text), [0, 0, 2 * products], "{name}:\n{text}");
    }
}

#[test]
fn products_keep_their_precision() {
    super::common::quick::setup();
    fn dot() -> DotOptions {
        DotOptions::new().precision(Precision::Highest)
    }
    all_highest("dot", move |x, y| dot().dot(x, y));
    all_highest("matmul", move |x, y| dot().matmul(x, y));
    all_highest("inner", move |x, y| dot().inner(x, y));
    all_highest("vdot", move |x, y| dot().vdot(x, y));
    all_highest("tensordot", move |x, y| dot().tensordot(x, y, 1));
    all_highest("einsum", move |x, y| dot().einsum("ij,kj->ik", &[&x, &y]));
    all_highest("dot_general", move |x, y| dot().dot_general(&x, &y, (&[0], &[1]), (&[], &[])));
    all_highest("conv", |x, y| {
        let options = ConvOptions::new().precision(Precision::Highest);
        lax::conv_general_dilated(x.reshape([3, 3, 1]), y.reshape([3, 3, 1]), [1], Padding::Valid, options)
    });
}

#[test]
fn a_default_holds_while_its_guard_lives() {
    super::common::quick::setup();
    let f = jit(|x: Array| x.dot(&x));
    let text = || f.lower(ones([2, 2])).map(|l| l.as_text().to_string());
    let x = ones([2, 2]);
    let traced = |n: u64| assert_eq!(shardax::count(|| f.call(&x).expect("a product")).1.traces, n);
    traced(1);
    traced(0);
    assert_eq!(count(&text().expect("a program")), [2, 0, 0]);
    let high = default_matmul_precision(Precision::High);
    traced(1);
    assert_eq!(count(&text().expect("a program")), [0, 2, 0]);
    {
        let _highest = default_matmul_precision(Precision::Highest);
        assert_eq!(count(&text().expect("a program")), [0, 0, 2]);
        // What is asked for comes first.
        let with_default = jit(|x: Array| DotOptions::new().precision(Precision::Default).dot(&x, &x));
        assert_eq!(count(with_default.lower(&x).expect("a program").as_text()), [2, 0, 0]);
    }
    assert_eq!(count(&text().expect("a program")), [0, 2, 0]);
    drop(high);
    // The programs of before are found again.
    traced(0);
    assert_eq!(count(&text().expect("a program")), [2, 0, 0]);
}

#[test]
fn names_of_precisions_are_jax_s() {
    for (name, precision) in [
        ("default", Precision::Default),
        ("bfloat16", Precision::Default),
        ("tensorfloat32", Precision::High),
        ("bfloat16_3x", Precision::High),
        ("float32", Precision::Highest),
        ("HIGHEST", Precision::Highest),
    ] {
        assert_eq!(Precision::from_name(name).expect("a precision"), precision);
    }
    let error = config::update("jax_default_matmul_precision", "double").expect_err("no precision");
    assert!(error.to_string().contains("Precision value must be one of default, high and highest, got \"double\""));
}

/// The dtype of a product of matrices of `from` that is requested in `to`, or the error.
fn dot_of_dtypes(from: DType, to: DType) -> std::result::Result<DType, String> {
    let x = ones([2, 2]).astype(from);
    let y = DotOptions::new().preferred_element_type(to).dot(&x, &x);
    y.check().map(|()| y.dtype()).map_err(|e| e.to_string())
}

/// JAX's rules of what a product may accumulate in.
#[test]
fn what_products_accumulate_in_holds_their_operands() {
    super::common::quick::setup();
    for (from, to) in [
        (DType::Bf16, DType::F32),
        (DType::F32, DType::Bf16),
        (DType::F64, DType::F32),
        (DType::F32, DType::I32),
        (DType::F32, DType::Complex64),
        (DType::I8, DType::I32),
        (DType::I8, DType::U32),
        (DType::I8, DType::F32),
        (DType::U8, DType::I32),
    ] {
        assert_eq!(dot_of_dtypes(from, to), Ok(to), "{from} in {to}");
    }
    // Of integers nothing may be lost, nor of a complex number its imaginary part.
    assert!(dot_of_dtypes(DType::I32, DType::I8).is_err_and(|e| e.contains("must not be narrower")));
    assert!(dot_of_dtypes(DType::Complex64, DType::F32).is_err());
}

/// Numbers of JAX 0.10.2 on CPU.
#[test]
fn algorithms_of_products() -> Result<()> {
    super::common::quick::setup();
    let x = linspace(0.1, 1.7, 12).reshape([3, 4]);
    let y = linspace(-1.3, 0.9, 8).reshape([4, 2]);
    let want = [0.0025975481, 0.4025974571, -0.8285710812, 0.30285725, -1.6597397327, 0.2031171471];
    for (name, tol) in [("F16_F16_F16", 2e-3), ("BF16_BF16_F32_X3", 1e-6), ("f64_f64_f64", 1e-6)] {
        let precision = Precision::from_name(name)?;
        fn product(x: Array, precision: &Precision, y: &Array) -> Array {
            DotOptions::new().precision(*precision).matmul(&x, y)
        }
        let z = product(x.clone(), &precision, &y);
        assert_eq!(z.dtype(), DType::F32);
        assert!(allclose(z.ravel(), array(want), tol, tol)?, "{name}: {z}");
        // Only the algorithm that accumulates in float16 has results that float16 can represent.
        let rounded = z.astype(DType::F16).astype(DType::F32);
        assert_eq!(z.equal(rounded).all(..).item::<bool>()?, name == "F16_F16_F16", "{name}");
        let slope = grad(|x: Array| product(x, &precision, &y).sum(..)).call(&x)?;
        let row = array([-2.285714, -1.0285714, 0.2285716, 1.4857144]);
        assert!(allclose(slope.get(0), row, tol, tol)?, "{name}: {slope}");
    }
    // Algorithms that CPUs do not have, and operands for which there is none.
    let tf32 = Precision::Algorithm(lax::DotAlgorithmPreset::Tf32Tf32F32X3);
    let product = move |x: Array| DotOptions::new().precision(tf32).matmul(&x, x.t());
    let error = product(x.clone()).check().expect_err("no such algorithm on CPU").to_string();
    assert!(error.contains("The precision 'TF32_TF32_F32_X3' is not supported by dot_general on CPU"), "{error}");
    let integers = DotOptions::new().precision(Precision::Algorithm(lax::DotAlgorithmPreset::F32F32F32));
    let error = integers.matmul(array([[1]]), array([[1]])).check().expect_err("integers").to_string();
    assert!(error.contains("is for floating-point operands, got int32[1,1]"), "{error}");
    let convolution = ConvOptions::new().precision(tf32);
    let error = lax::conv_general_dilated(&ones([1, 1, 3]), &ones([1, 1, 2]), &[1], Padding::Valid, convolution);
    assert!(error.check().expect_err("no algorithms").to_string().contains("convolutions have no algorithms"));
    Ok(())
}
