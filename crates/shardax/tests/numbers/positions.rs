//! Positions of maxima and minima of many elements, which are two reductions on CPU.

use shardax::prelude::*;

use super::common::quick::setup;

/// The position of the first largest element, or of the first NaN.
fn expected(x: &[f64], is_max: bool) -> i32 {
    let mut best = 0;
    for (i, value) in x.iter().enumerate() {
        let is_better = if is_max { *value > x[best] } else { *value < x[best] };
        if !x[best].is_nan() && (is_better || value.is_nan()) {
            best = i;
        }
    }
    best as i32
}

#[test]
fn positions_of_ties_zeros_infinities_and_nan() -> Result<()> {
    setup();
    let (rows, columns) = (60, 37);
    let special = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 2.0, -2.0];
    // The first rows are ties of two values, and the last ones have a NaN or an infinity each.
    fn value(row: usize, column: usize, special: &[f64; 7], columns: usize) -> f64 {
        match row {
            0..20 => [special[row % 2], special[(row / 2) % 2], special[5 + row % 2]][(column * 7 + row) % 3],
            20..30 => f64::from((column * column * 5 + row) as u32 % 11) - 5.0,
            _ if column == (row * 5) % columns => special[2 + row % 3],
            _ => f64::from((column * 3 + row) as u32 % 17) - 8.0,
        }
    }
    let numbers: Vec<f64> = (0..rows * columns).map(|i| value(i / columns, i % columns, &special, columns)).collect();
    for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16, DType::I32, DType::U8] {
        let is_float = dtype.is_float();
        let numbers: Vec<f64> = numbers
            .iter()
            .map(|x| if is_float { *x } else { x.abs().min(100.0) })
            .map(|x| if x.is_nan() && !is_float { 3.0 } else { x })
            .collect();
        let x = Array::from_vec(numbers.clone(), &[rows, columns])?.astype(dtype);
        let (max, min) = jit(|x: Array| (x.argmax(1), x.argmin(1))).call(&x)?;
        let transposed = jit(|x: Array| x.argmax(0)).call(x.t())?;
        for (row, values) in numbers.chunks(columns).enumerate() {
            let context = format!("{dtype}, row {row}: {values:?}");
            assert_eq!(max.to_vec::<i32>()?[row], expected(values, true), "{context}");
            assert_eq!(transposed.to_vec::<i32>()?[row], expected(values, true), "{context}");
            assert_eq!(min.to_vec::<i32>()?[row], expected(values, false), "{context}");
        }
        let position = jit(|x: Array| x.argmin(..)).call(&x)?;
        assert_eq!(position.item::<i32>()?, expected(&numbers, false), "{dtype}");
    }
    Ok(())
}

/// GPUs reduce parts of an axis in any order, so each NaN is compared with each other one, whichever of them comes first.
/// On an H200, the position of the first NaN was another one's.
#[test]
fn positions_for_gpus_do_not_depend_on_the_order() -> Result<()> {
    setup();
    let options = shardax::export::ExportOptions::new().platforms(["cuda"]);
    let exported = options.export(|x: Array| x.argmin(..), shape_dtype_struct([60, 37], DType::F32))?;
    let text = exported.mlir_module("cuda").unwrap_or_default();
    for (direction, count) in [("NE", 2), ("EQ", 2), ("LT", 2)] {
        assert_eq!(text.matches(&format!("comparison_direction {direction}>")).count(), count, "{direction}: {text}");
    }
    Ok(())
}

/// Threads of the plugin take subnormal numbers for zeros, so they are compared as integers.
#[test]
fn positions_of_subnormal_numbers() -> Result<()> {
    setup();
    let mut numbers = vec![0.0f32; 40 * 50];
    for (row, values) in numbers.chunks_mut(50).enumerate() {
        (values[row], values[row + 1]) = (1e-40, -1e-40);
    }
    let x = Array::from_vec(numbers, &[40, 50])?;
    let (max, min) = jit(|x: Array| (x.argmax(1), x.argmin(1))).call(&x)?;
    assert_eq!(max.to_vec::<i32>()?, (0..40).collect::<Vec<i32>>());
    assert_eq!(min.to_vec::<i32>()?, (1..41).collect::<Vec<i32>>());
    Ok(())
}

/// Both reductions compute their elements from the operand. Integers that both read were stored, and took as much memory as
/// the operand.
#[test]
fn positions_store_no_integers_of_all_elements() -> Result<()> {
    setup();
    let x = zeros([512, 4096]);
    for axis in [0, 1] {
        let program = jit(move |x: Array| (x * 2).argmax(axis)).lower(&x)?.compile()?;
        let bytes = program.memory_analysis()?.temporaries as usize;
        assert!(bytes < x.nbytes() / 2, "axis {axis}: {bytes} bytes, and the operand {}", x.nbytes());
    }
    Ok(())
}
