//! The text of types, constants and attributes in MLIR.

use std::fmt::{Display, Write as _};

use half::{bf16, f16};

use crate::dtype::{Category, DType, Format, Scalar};

/// `tensor<8x128xf32>`
pub(crate) fn write_type(text: &mut String, dtype: DType, shape: &[usize]) {
    text.push_str("tensor<");
    for d in shape {
        let _ = write!(text, "{d}x");
    }
    text.push_str(dtype.mlir());
    text.push('>');
}

/// The attributes of a comparison of elements of this dtype; `direction` is `EQ`, `NE`, `LT`, `LE`, `GT` or `GE`.
pub(crate) fn comparison(direction: &str, dtype: DType) -> String {
    let kind = match dtype.category() {
        Category::Float | Category::Complex => "FLOAT",
        Category::Signed => "SIGNED",
        Category::Unsigned | Category::Bool | Category::Key => "UNSIGNED",
    };
    format!(
        "comparison_direction = #stablehlo<comparison_direction {direction}>, compare_type = #stablehlo<comparison_type {kind}>"
    )
}

/// An attribute of integers: `array<i64: 1, 2>`.
pub fn ints<T: Display>(values: &[T]) -> String {
    list("i64", values)
}

/// An attribute of booleans: `array<i1: true, false>`.
pub fn bools(values: &[bool]) -> String {
    list("i1", values)
}

fn list<T: Display>(ty: &str, values: &[T]) -> String {
    let mut text = format!("array<{ty}");
    for (i, v) in values.iter().enumerate() {
        let _ = write!(text, "{}{v}", if i == 0 { ": " } else { ", " });
    }
    text.push('>');
    text
}

/// The text inside `dense<…>` for a number of this dtype.
pub(crate) fn constant_text(value: Scalar, dtype: DType) -> String {
    match dtype.category() {
        Category::Bool => (!value.is_zero()).to_string(),
        Category::Signed | Category::Unsigned | Category::Key => {
            // Integers wrap as in a conversion, so this prints the value of the converted element.
            let mut bytes = Vec::new();
            value.write(dtype, &mut bytes);
            Scalar::read(dtype, &bytes).to_i128().to_string()
        }
        Category::Float => float_text(value.to_f64(), dtype),
        Category::Complex => {
            format!("({}, {})", float_text(value.to_f64(), dtype.real()), float_text(value.imag(), dtype.real()))
        }
    }
}

fn float_text(v: f64, dtype: DType) -> String {
    if let Some(format) = Format::of(dtype) {
        // MLIR accepts no other text for powers of two without 0.
        let code = format.encode(v);
        let rounded = format.decode(code);
        return if rounded.is_finite() && dtype != DType::F8E8M0Fnu {
            decimal_text(format!("{rounded:e}"))
        } else {
            format!("0x{code:02X}")
        };
    }
    // Infinities and NaN are written as bits.
    let (bits, rounded) = match dtype {
        DType::F16 => (format!("0x{:04X}", f16::from_f64(v).to_bits()), f16::from_f64(v).to_f64()),
        DType::Bf16 => (format!("0x{:04X}", bf16::from_f64(v).to_bits()), bf16::from_f64(v).to_f64()),
        DType::F32 => (format!("0x{:08X}", (v as f32).to_bits()), v as f32 as f64),
        _ => (format!("0x{:016X}", v.to_bits()), v),
    };
    if !rounded.is_finite() {
        return bits;
    }
    // The shortest digits that read back as this value.
    decimal_text(if dtype == DType::F32 { format!("{:e}", v as f32) } else { format!("{rounded:e}") })
}

/// A number with an exponent, and with the point that MLIR requires.
fn decimal_text(text: String) -> String {
    match text.split_once('e') {
        Some((mantissa, exponent)) if !mantissa.contains('.') => format!("{mantissa}.0e{exponent}"),
        _ => text,
    }
}
