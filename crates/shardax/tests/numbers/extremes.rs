//! Maxima and minima of special numbers, at sizes that are reduced in several steps.

use shardax::prelude::*;

use super::common::quick::setup;
use super::floats;

const DTYPES: [DType; 4] = [DType::F32, DType::F64, DType::Bf16, DType::F16];

/// Numbers of both signs with this value in each row.
fn rows_with(value: f64, dtype: DType) -> Array {
    let numbers = random::uniform(random::key(1), [40, 1000]).astype(dtype) - 2;
    numbers.at(s![.., 617]).set(array(value).astype(dtype))
}

/// Compares the maximum and minimum of all elements, of the rows and of the columns with these numbers.
#[track_caller]
fn check(x: &Array, maximum: f64, minimum: f64) {
    let extremes = jit(|x: Array| (x.max(..), x.max(1), x.max(0).max(..), x.min(..), x.min(1), x.min(0).min(..)));
    let (a, b, c, d, e, f) = extremes.call(x).expect("extremes");
    for (found, expected) in [(a, maximum), (b, maximum), (c, maximum), (d, minimum), (e, minimum), (f, minimum)] {
        for number in floats(&found) {
            let is_equal = number == expected || number.is_nan() && expected.is_nan();
            assert!(is_equal, "{}: {number}, expected {expected}", x.dtype());
        }
    }
}

#[test]
fn extremes_of_special_numbers() {
    setup();
    for dtype in DTYPES {
        for value in [f64::INFINITY, 0.0, 2.0, 2f64.powi(-14)] {
            let x = rows_with(value, dtype);
            let rows = floats(&x.at(s![.., 617]).get());
            assert!(rows.iter().all(|number| *number == value));
            check(&x.maximum(-1.5), value, -1.5);
            check(&-x.maximum(-1.5), 1.5, -value);
        }
        check(&rows_with(f64::NAN, dtype), f64::NAN, f64::NAN);
        // A NaN with a sign.
        check(&-rows_with(f64::NAN, dtype), f64::NAN, f64::NAN);
        check(&full([40, 1000], f32::NEG_INFINITY).astype(dtype), f64::NEG_INFINITY, f64::NEG_INFINITY);
        check(&full([40, 1000], f32::INFINITY).astype(dtype), f64::INFINITY, f64::INFINITY);
        check(&full([40, 1000], -0.0f32).astype(dtype), 0.0, 0.0);
    }
}

#[test]
fn extremes_of_all_numbers_of_half_precision() -> Result<()> {
    setup();
    for dtype in [DType::Bf16, DType::F16] {
        // Without NaN, in the order of the bits.
        let every_value = lax::bitcast_convert_type(&arange(0..65536).astype(DType::U16), dtype);
        let every_value = where_(every_value.isnan(), 0, every_value).reshape([256, 256]);
        let numbers = floats(&every_value);
        let rows: Vec<f64> =
            numbers.chunks(256).map(|row| row.iter().copied().fold(f64::NEG_INFINITY, f64::max)).collect();
        assert_eq!(floats(&jit(|x: Array| x.max(1)).call(&every_value)?), rows);
        let columns: Vec<f64> =
            (0..256).map(|i| numbers[i..].iter().step_by(256).copied().fold(f64::INFINITY, f64::min)).collect();
        assert_eq!(floats(&jit(|x: Array| x.min(0)).call(&every_value)?), columns);
    }
    Ok(())
}
