//! Printing arrays as NumPy does.

use std::fmt;

use super::{Array, Repr, Tracer, transfer};
use crate::core::program::concretize;
use crate::dtype::{Category, DType, Element, Scalar};
use crate::shape::size;

/// Arrays with more elements are summarized with `...`.
const MAX_PRINTED_ELEMENTS: usize = 1000;
/// The number of elements shown on each side of `...`.
const EDGE_ELEMENTS: usize = 3;
const LINE_WIDTH: usize = 75;
/// The maximum number of digits after the decimal point.
const MAX_DECIMALS: usize = 8;

/// The format that a format string requests for numbers: `{:.4}`, `{:e}`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NumberFormat {
    /// The number of digits after the decimal point.
    precision: Option<usize>,
    /// The exponent, if one is requested.
    exponent: Option<Exponent>,
}

#[derive(Clone, Copy, Debug)]
enum Exponent {
    Lower,
    Upper,
}

impl NumberFormat {
    fn of(f: &fmt::Formatter<'_>, exponent: Option<Exponent>) -> Self {
        NumberFormat { precision: f.precision(), exponent }
    }

    /// The text of one number, as Rust formats it; `None` if no format is requested.
    fn float(self, v: f64, dtype: DType) -> Option<String> {
        if !v.is_finite() && (self.precision.is_some() || self.exponent.is_some()) {
            return Some(special(v));
        }
        // The shortest text of a narrow type is the shortest text of its float32 value.
        let narrow = dtype != DType::F64;
        Some(match (self.exponent, self.precision) {
            (None, None) => return None,
            (None, Some(digits)) => format!("{v:.digits$}"),
            (Some(Exponent::Lower), Some(digits)) => format!("{v:.digits$e}"),
            (Some(Exponent::Upper), Some(digits)) => format!("{v:.digits$E}"),
            (Some(Exponent::Lower), None) if narrow => format!("{:e}", v as f32),
            (Some(Exponent::Lower), None) => format!("{v:e}"),
            (Some(Exponent::Upper), None) if narrow => format!("{:E}", v as f32),
            (Some(Exponent::Upper), None) => format!("{v:E}"),
        })
    }

    fn integer(self, v: i128) -> String {
        match (self.exponent, self.precision) {
            (None, _) => v.to_string(),
            (Some(Exponent::Lower), None) => format!("{v:e}"),
            (Some(Exponent::Lower), Some(digits)) => format!("{v:.digits$e}"),
            (Some(Exponent::Upper), None) => format!("{v:E}"),
            (Some(Exponent::Upper), Some(digits)) => format!("{v:.digits$E}"),
        }
    }
}

/// Writes the values, and pads a scalar to the requested width.
fn write_values(array: &Array, f: &mut fmt::Formatter<'_>, exponent: Option<Exponent>) -> fmt::Result {
    let text = match values(array, NumberFormat::of(f, exponent)) {
        Ok(text) | Err(text) => text,
    };
    let missing = f.width().unwrap_or(0).saturating_sub(text.chars().count());
    if missing == 0 || array.ndim() > 0 {
        return f.write_str(&text);
    }
    let missing_before = match f.align() {
        Some(fmt::Alignment::Left) => 0,
        Some(fmt::Alignment::Center) => missing / 2,
        // Numbers are right-aligned by default.
        _ => missing,
    };
    let fill = f.fill().to_string();
    let (before, after) = (fill.repeat(missing_before), fill.repeat(missing - missing_before));
    write!(f, "{before}{text}{after}")
}

/// Prints the values as NumPy does, and random keys as their type and words. Waits for the values. An array without
/// values prints its type or its error. A precision sets the digits of each number, and a width the width of a scalar:
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([0.5f32, 100.0 / 3.0]);
/// assert_eq!(format!("{x:.2}"), "[ 0.50 33.33]");
/// assert_eq!(format!("{:8.3}|{:e}", x.get(1), x.get(0)), "  33.333|5e-1");
/// # Ok::<(), shardax::Error>(())
/// ```
impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_values(self, f, None)
    }
}

/// Prints the values with exponents: `{:e}`, `{:.3e}`.
impl fmt::LowerExp for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_values(self, f, Some(Exponent::Lower))
    }
}

/// Prints the values with exponents: `{:E}`, `{:.3E}`.
impl fmt::UpperExp for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_values(self, f, Some(Exponent::Upper))
    }
}

/// `Array([1, 2], dtype=int32)`
impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match values(self, NumberFormat::of(f, None)) {
            Ok(text) if self.dtype().is_key() => f.write_str(&text),
            Ok(text) => {
                let pad = format!("\n{}", " ".repeat("Array(".len()));
                write!(f, "Array({}, dtype={})", text.replace('\n', &pad), self.dtype())
            }
            Err(text) => f.write_str(&text),
        }
    }
}

fn values(array: &Array, format: NumberFormat) -> Result<String, String> {
    match &array.0 {
        Repr::Traced(t) => return Err(traced(t)),
        // Printing does not count as reading, so the program continues as if the array had a value.
        Repr::Error(e) => return Err(format!("<{}>", e.0)),
        _ => {}
    }
    if let Repr::Concrete(c) = &array.0
        && !transfer::is_here(c)
    {
        return Err(format!("Array(shape={:?}, dtype={})", array.shape(), array.dtype()));
    }
    let (dtype, shape) = (array.dtype(), array.shape());
    let bytes = array.bytes_at(&shown_elements(shape, dtype)).map_err(|e| format!("<{e}>"))?;
    let scalars: Vec<Scalar> = bytes.chunks_exact(dtype.byte_size()).map(|b| Scalar::read(dtype, b)).collect();
    Ok(format_shown(&scalars, shape, dtype, format))
}

/// The text of a traced array: its type, and also its value if the function runs eagerly, per shard inside a
/// `shard_map`.
fn traced(t: &Tracer) -> String {
    let mut text = format!("Traced<{}>", t.aval.short());
    if let Ok(Some(blocks)) = concretize::per_device(t) {
        for (coordinates, block) in blocks {
            text.push_str(&format!("\nOn devices at mesh coordinates ({coordinates}):\n{block}"));
        }
    } else if let Ok(Some(value)) = concretize::value(t) {
        text.push_str(&format!(" with value {}", Array(Repr::Concrete(value))));
    }
    text
}

/// The text of elements, read from their bytes.
pub(crate) fn text_of_bytes(bytes: &[u8], dtype: DType, shape: &[usize]) -> String {
    let width = dtype.byte_size();
    let shown = shown_elements(shape, dtype);
    let scalars: Vec<Scalar> = shown.iter().map(|i| Scalar::read(dtype, &bytes[i * width..][..width])).collect();
    format_shown(&scalars, shape, dtype, NumberFormat::default())
}

/// The words of a key. The first word is the low half of the element. A key of `rbg` repeats both words.
fn key_words(key: Scalar, dtype: DType) -> Vec<Scalar> {
    let key = key.to_i128() as u64;
    [key as u32, (key >> 32) as u32].map(Element::to_scalar).repeat(if dtype == DType::KeyRbg { 2 } else { 1 })
}

/// The count of printed numbers per element. A key is printed as its words.
fn numbers_per_element(dtype: DType) -> usize {
    if dtype.is_key() { key_words(Scalar::Int(0), dtype).len() } else { 1 }
}

/// Returns `true` if an array of this type is printed with `...`.
fn is_summarized(shape: &[usize], dtype: DType) -> bool {
    size(shape).saturating_mul(numbers_per_element(dtype)) > MAX_PRINTED_ELEMENTS
}

/// The row-major positions of the printed elements. Their number is bounded, however large the array is.
fn shown_elements(shape: &[usize], dtype: DType) -> Vec<usize> {
    let mut shown = Vec::new();
    visit(shape, is_summarized(shape, dtype), &mut |position| shown.push(position));
    shown
}

/// The text of an array. `scalars` are its [`shown_elements`].
fn format_shown(scalars: &[Scalar], shape: &[usize], dtype: DType, format: NumberFormat) -> String {
    let summarize = is_summarized(shape, dtype);
    if dtype.is_key() {
        let words: Vec<Scalar> = scalars.iter().flat_map(|key| key_words(*key, dtype)).collect();
        let shape_of_words = [shape, &[numbers_per_element(dtype)]].concat();
        let words = write_elements(&words, &shape_of_words, summarize, DType::U32, NumberFormat::default());
        return format!("Array(shape={shape:?}, dtype={dtype}) overlaying:\n{words}");
    }
    write_elements(scalars, shape, summarize, dtype, format)
}

fn write_elements(scalars: &[Scalar], shape: &[usize], summarize: bool, dtype: DType, format: NumberFormat) -> String {
    if size(shape) == 0 {
        return "[]".into();
    }
    let mut texts = format_elements(scalars, dtype, shape.is_empty(), format).into_iter();
    let mut out = String::new();
    write_axis(&mut out, shape, summarize, 0, &mut || texts.next().unwrap_or_default());
    out
}

/// The positions that are shown along an axis of `len`; `None` is the gap.
fn positions(len: usize, summarize: bool) -> Vec<Option<usize>> {
    if summarize && len > 2 * EDGE_ELEMENTS {
        (0..EDGE_ELEMENTS).map(Some).chain([None]).chain((len - EDGE_ELEMENTS..len).map(Some)).collect()
    } else {
        (0..len).map(Some).collect()
    }
}

fn visit(shape: &[usize], summarize: bool, f: &mut dyn FnMut(usize)) {
    fn visit_shown(shape: &[usize], summarize: bool, base: usize, f: &mut dyn FnMut(usize)) {
        match shape.split_first() {
            None => f(base),
            Some((&len, rest)) => {
                for i in positions(len, summarize).into_iter().flatten() {
                    visit_shown(rest, summarize, base + i * size(rest), f);
                }
            }
        }
    }
    visit_shown(shape, summarize, 0, f);
}

fn write_axis(out: &mut String, shape: &[usize], summarize: bool, depth: usize, next: &mut dyn FnMut() -> String) {
    let Some((&len, rest)) = shape.split_first() else {
        out.push_str(&next());
        return;
    };
    out.push('[');
    let mut column = depth + 1;
    for (n, i) in positions(len, summarize).into_iter().enumerate() {
        if rest.is_empty() {
            let text = if i.is_some() { next() } else { "...".into() };
            if n > 0 && column + 1 + text.len() > LINE_WIDTH {
                out.push('\n');
                out.push_str(&" ".repeat(depth + 1));
                column = depth + 1;
            } else if n > 0 {
                out.push(' ');
                column += 1;
            }
            column += text.len();
            out.push_str(&text);
        } else {
            if n > 0 {
                // One line break for each closing bracket above the rows, as NumPy separates sub-arrays.
                out.push_str(&"\n".repeat(rest.len()));
                out.push_str(&" ".repeat(depth + 1));
            }
            match i {
                Some(_) => write_axis(out, rest, summarize, depth + 1, next),
                None => out.push_str("..."),
            }
        }
    }
    out.push(']');
}

/// The texts of the elements, all of one width.
fn format_elements(scalars: &[Scalar], dtype: DType, scalar: bool, format: NumberFormat) -> Vec<String> {
    let texts: Vec<String> = match dtype.category() {
        Category::Bool => {
            scalars.iter().map(|s| if s.is_zero() { "False".into() } else { "True".to_owned() }).collect()
        }
        Category::Signed | Category::Unsigned | Category::Key => {
            scalars.iter().map(|s| format.integer(s.to_i128())).collect()
        }
        Category::Float if scalar => scalars
            .iter()
            .map(|s| s.to_f64())
            .map(|v| format.float(v, dtype).unwrap_or_else(|| format_scalar(v, dtype)))
            .collect(),
        Category::Float => float_texts(scalars.iter().map(|s| s.to_f64()).collect(), dtype, format),
        Category::Complex => {
            let re = float_texts(scalars.iter().map(|s| s.to_f64()).collect(), dtype.real(), format);
            let im = float_texts(scalars.iter().map(|s| s.imag()).collect(), dtype.real(), format);
            re.iter()
                .zip(&im)
                .map(|(r, i)| {
                    let i = i.trim();
                    let sign = if i.starts_with('-') { "" } else { "+" };
                    format!("{r}{sign}{i}j")
                })
                .collect()
        }
    };
    // The elements of an array are aligned, but a scalar is only its number.
    if scalar {
        return texts.into_iter().map(|t| t.trim().to_owned()).collect();
    }
    let width = texts.iter().map(String::len).max().unwrap_or(0);
    texts.into_iter().map(|t| format!("{t:>width$}")).collect()
}

/// The shortest text that reads back as the element.
fn shortest(v: f64, dtype: DType) -> String {
    match dtype {
        DType::F32 | DType::F16 | DType::Bf16 => format!("{}", v as f32),
        _ => format!("{v}"),
    }
}

/// The shortest text with an exponent that reads back as the element: `1.5e-7`.
fn shortest_exponent(v: f64, dtype: DType) -> String {
    match dtype {
        DType::F64 => format!("{v:e}"),
        _ => format!("{:e}", v as f32),
    }
}

fn exponent_text(e: i32) -> String {
    format!("e{}{:02}", if e < 0 { '-' } else { '+' }, e.abs())
}

/// The text of a single float, with all its digits.
fn format_scalar(v: f64, dtype: DType) -> String {
    if !v.is_finite() {
        return special(v);
    }
    if v != 0.0 && !(1e-4..1e16).contains(&v.abs()) {
        let text = shortest_exponent(v, dtype);
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{mantissa}{}", exponent_text(exponent.parse().unwrap_or(0)));
    }
    let text = shortest(v, dtype);
    if text.contains('.') { text } else { format!("{text}.0") }
}

fn special(v: f64) -> String {
    match v.is_nan() {
        true => "nan",
        false if v > 0.0 => "inf",
        false => "-inf",
    }
    .to_owned()
}

/// Formats floats with as many decimals as the longest one needs to read back, at most 8. If their magnitudes differ
/// too much, the format is scientific.
fn format_floats(values: &[f64], dtype: DType) -> Vec<String> {
    let finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite() && *v != 0.0).map(f64::abs).collect();
    let max = finite.iter().copied().fold(0.0, f64::max);
    let min = finite.iter().copied().fold(f64::INFINITY, f64::min);
    let scientific = !finite.is_empty() && (max >= 1e8 || min < 1e-4 || max / min > 1e3);
    if scientific {
        let parts: Vec<Option<(String, i32)>> = values
            .iter()
            .map(|&v| {
                let short = shortest_exponent(v, dtype);
                let (mantissa, _) = short.split_once('e')?;
                let text = if decimals(mantissa) > MAX_DECIMALS { format!("{v:.MAX_DECIMALS$e}") } else { short };
                let (mantissa, exponent) = text.split_once('e')?;
                Some((mantissa.to_owned(), exponent.parse().ok()?))
            })
            .collect();
        let digits = parts.iter().flatten().map(|(mantissa, _)| decimals(mantissa)).max().unwrap_or(0);
        return values
            .iter()
            .zip(parts)
            .map(|(v, part)| match part {
                // The mantissa is padded with zeros, as NumPy does only in this case.
                Some((mantissa, e)) if v.is_finite() => {
                    let point = if mantissa.contains('.') { "" } else { "." };
                    let zeros = "0".repeat(digits - decimals(&mantissa));
                    format!("{mantissa}{point}{zeros}{}", exponent_text(e))
                }
                _ => special(*v),
            })
            .collect();
    }
    let finite = values.iter().filter(|v| v.is_finite());
    let digits = finite.map(|v| decimals(&shortest(*v, dtype))).max().unwrap_or(0).min(MAX_DECIMALS);
    values
        .iter()
        .map(|&v| {
            if !v.is_finite() {
                return special(v);
            }
            let short = shortest(v, dtype);
            let text = if decimals(&short) > digits { format!("{v:.digits$}") } else { short };
            // NumPy drops trailing zeros but keeps the decimal points aligned.
            let (integer, fraction) = text.split_once('.').unwrap_or((&text, ""));
            let fraction = fraction.trim_end_matches('0');
            format!("{integer}.{fraction}{}", " ".repeat(digits - fraction.len()))
        })
        .collect()
}

/// Returns the number of digits after the point in a number's text.
fn decimals(text: &str) -> usize {
    text.split_once('.').map_or(0, |(_, digits)| digits.len())
}

/// Formats floats as the user requested, otherwise as arrays are printed.
fn float_texts(values: Vec<f64>, dtype: DType, format: NumberFormat) -> Vec<String> {
    let texts: Option<Vec<String>> = values.iter().map(|v| format.float(*v, dtype)).collect();
    texts.unwrap_or_else(|| format_floats(&values, dtype))
}
