//! The limits of dtypes, which are JAX's.

use shardax::numpy::{finfo, iinfo};
use shardax::prelude::*;

#[test]
fn of_floating_point() -> Result<()> {
    // eps, max, smallest normal, smallest subnormal; bits, bits of the mantissa, of the exponent.
    type Row = (DType, [f64; 4], (usize, i32, i32));
    let rows: [Row; 4] = [
        (DType::F64, [f64::EPSILON, f64::MAX, f64::MIN_POSITIVE, 5e-324], (64, 52, 11)),
        (
            DType::F32,
            [1.1920928955078125e-07, 3.4028234663852886e38, 1.1754943508222875e-38, 1.401298464324817e-45],
            (32, 23, 8),
        ),
        (DType::F16, [0.0009765625, 65504.0, 6.103515625e-05, 5.960464477539063e-08], (16, 10, 5)),
        (DType::Bf16, [0.0078125, 3.3895313892515355e38, 1.1754943508222875e-38, 9.183549615799121e-41], (16, 7, 8)),
    ];
    for (dtype, [eps, max, normal, subnormal], (bits, nmant, nexp)) in rows {
        let f = finfo(dtype)?;
        assert_eq!([f.eps, f.max, f.smallest_normal, f.smallest_subnormal], [eps, max, normal, subnormal], "{dtype}");
        assert_eq!((f.min, f.epsneg, f.bits, f.nmant, f.nexp, f.dtype), (-max, eps / 2.0, bits, nmant, nexp, dtype));
    }
    assert_eq!(finfo(DType::Complex64)?, finfo(DType::F32)?);
    assert!(finfo(DType::I32).is_err() && finfo(DType::Bool).is_err());
    Ok(())
}

#[test]
fn of_integers() -> Result<()> {
    for (dtype, min, max) in [
        (DType::I8, -128, 127),
        (DType::U32, 0, 4_294_967_295),
        (DType::I64, i128::from(i64::MIN), i128::from(i64::MAX)),
        (DType::U64, 0, i128::from(u64::MAX)),
    ] {
        let i = iinfo(dtype)?;
        assert_eq!((i.min, i.max, i.bits), (min, max, dtype.bits()), "{dtype}");
    }
    assert!(iinfo(DType::F32).is_err() && iinfo(DType::Bool).is_err());
    Ok(())
}
