//! Texts of programs in which numbers are expressions: `tensor<$(b)x4xf32>`, and constants `dense<$(f32 1/b)>`.

use super::size::Size;
use super::symbols::Symbols;
use crate::core::lower::constant_text;
use crate::dtype::{DType, Scalar};

const BEGIN: &str = "$(";

/// The float types of constants that can follow from sizes.
const FLOATS: [DType; 4] = [DType::F16, DType::Bf16, DType::F32, DType::F64];

/// Builds the text for all sizes from the texts on the grid. `Err` is the number of the first line with a difference
/// other than numbers that are expressions of the symbols.
pub(super) fn template(symbols: &Symbols, texts: &[&str]) -> Result<String, usize> {
    let mut merged = String::with_capacity(texts[0].len());
    let mut lines: Vec<_> = texts.iter().map(|text| text.lines()).collect();
    let mut number = 0usize;
    loop {
        let row: Vec<Option<&str>> = lines.iter_mut().map(Iterator::next).collect();
        if row.iter().all(Option::is_none) {
            return Ok(merged);
        }
        let row: Vec<&str> = row.into_iter().collect::<Option<_>>().ok_or(number)?;
        if row.iter().all(|line| *line == row[0]) && !row[0].contains(BEGIN) {
            merged.push_str(row[0])
        } else {
            merged.push_str(&line(symbols, &row).ok_or(number)?)
        }
        merged.push('\n');
        number += 1;
    }
}

fn line(symbols: &Symbols, row: &[&str]) -> Option<String> {
    let parts: Vec<Vec<Part>> = row.iter().map(|line| split(line)).collect();
    if row[0].contains(BEGIN) || parts.iter().any(|other| other.len() != parts[0].len()) {
        return None;
    }
    let mut text = String::new();
    for i in 0..parts[0].len() {
        let numbers: Vec<&Part> = parts.iter().map(|parts| &parts[i]).collect();
        if numbers.iter().all(|part| *part == numbers[0]) {
            text.push_str(numbers[0].text);
            continue;
        }
        // A constant such as the divisor of a mean is a size or the inverse of a size.
        let float = numbers[0].float.filter(|_| numbers.iter().all(|part| part.float == numbers[0].float));
        let expression = match float {
            None => size_expression(symbols, numbers.iter().map(|part| part.text.parse().ok()))?,
            Some(dtype) => {
                let values = numbers.iter().map(|part| part.text.parse::<f64>().ok()).collect::<Option<Vec<_>>>()?;
                let size = size_expression(symbols, values.iter().map(|value| integer(*value)));
                let size = size.or_else(|| {
                    let inverse = size_expression(symbols, values.iter().map(|value| integer((1.0 / value).round())))?;
                    Some(format!("1/{inverse}"))
                })?;
                format!("{dtype} {size}")
            }
        };
        text.push_str(&format!("{BEGIN}{expression})"));
    }
    Some(text)
}

fn integer(value: f64) -> Option<i64> {
    (value.fract() == 0.0 && value.abs() < 9e15).then_some(value as i64)
}

/// The expression with these values on the grid.
fn size_expression(symbols: &Symbols, values: impl Iterator<Item = Option<i64>>) -> Option<String> {
    Some(Size::from_values(&symbols.corner(), &values.collect::<Option<Vec<_>>>()?)?.text(&symbols.names))
}

/// A piece of a line: a number, or the text between numbers.
#[derive(PartialEq)]
struct Part<'a> {
    text: &'a str,
    /// The type of a float constant.
    float: Option<DType>,
    is_number: bool,
}

/// Splits a line into pieces. The number of `dense<1.0e0> : tensor<f32>` is one piece.
fn split(line: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut remaining = line;
    while !remaining.is_empty() {
        let digits = remaining.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 {
            parts.push(Part { text: &remaining[..digits], float: None, is_number: true });
            remaining = &remaining[digits..];
            continue;
        }
        // A float constant is recognized by its type, which follows it.
        let constant = remaining.find("dense<").map(|end| end + "dense<".len());
        let number = remaining.find(|c: char| c.is_ascii_digit()).unwrap_or(remaining.len());
        match constant.filter(|end| *end <= number).and_then(|end| Some((end, float(&remaining[end..])?))) {
            Some((end, (text, dtype))) => {
                parts.push(Part { text: &remaining[..end], float: None, is_number: false });
                parts.push(Part { text, float: Some(dtype), is_number: true });
                remaining = &remaining[end + text.len()..];
            }
            None => {
                parts.push(Part { text: &remaining[..number], float: None, is_number: false });
                remaining = &remaining[number..];
            }
        }
    }
    parts
}

/// The number at the start of `1.0e0> : tensor<4xf32>`, and its type.
fn float(text: &str) -> Option<(&str, DType)> {
    let (number, rest) = text.split_once("> : tensor<")?;
    let type_name = rest.split('>').next()?.rsplit('x').next()?;
    let dtype = FLOATS.into_iter().find(|dtype| dtype.mlir() == type_name)?;
    number.parse::<f64>().is_ok().then_some((number, dtype))
}

/// The text for these values of the symbols; `None` if an expression cannot be read, or has no value.
pub(super) fn written(template: &str, names: &[String], values: &[usize]) -> Option<String> {
    let mut parts = template.split(BEGIN);
    let mut text = parts.next()?.to_owned();
    for part in parts {
        let (expression, rest) = part.split_once(')')?;
        match expression
            .split_once(' ')
            .and_then(|(name, size)| Some((FLOATS.into_iter().find(|dtype| dtype.to_string() == name)?, size)))
        {
            None => text.push_str(&size(expression, names, values)?.to_string()),
            Some((dtype, expression)) => {
                let value = match expression.strip_prefix("1/") {
                    Some(expression) => 1.0 / size(expression, names, values)? as f64,
                    None => size(expression, names, values)? as f64,
                };
                text.push_str(&constant_text(Scalar::float(value), dtype));
            }
        }
        text.push_str(rest);
    }
    Some(text)
}

fn size(expression: &str, names: &[String], values: &[usize]) -> Option<i64> {
    Size::parse(expression, names)?.at(values).filter(|size| *size >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program_text(b: usize, s: usize) -> String {
        let mean = constant_text(Scalar::float(1.0 / b as f64), DType::F32);
        format!(
            "  %2 = \"reshape\"(%1) : (tensor<{b}x{s}xf32>) -> tensor<{}xf32>\n  %3 = <{{value = dense<{mean}> : tensor<{b}xf32>}}> array<i64: 0, {}>\n",
            b * s,
            2 * s + 1
        )
    }

    #[test]
    fn numbers_that_follow_from_sizes_become_expressions() {
        let symbols = Symbols::of(&["b, s".to_owned()], &[]).expect("symbols");
        // A reshape to a product of sizes, the divisor of a mean, and an expression in a list.
        let points = Size::grid(&symbols.corner());
        let texts: Vec<String> = points.iter().map(|point| program_text(point[0], point[1])).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let open = template(&symbols, &texts).expect("a template");
        assert!(open.contains("tensor<$(b)x$(s)xf32>) -> tensor<$(b*s)xf32>"), "{open}");
        assert!(open.contains("dense<$(float32 1/b)>") && open.contains("$(2*s + 1)>"), "{open}");
        for (b, s) in [(1, 1), (3, 70), (1000, 7)] {
            assert_eq!(written(&open, &symbols.names, &[b, s]).as_deref(), Some(program_text(b, s).as_str()));
        }
        let mixed = texts
            .iter()
            .enumerate()
            .map(|(i, text)| text.replace("reshape", if i % 2 == 0 { "copy" } else { "slice" }));
        let mixed: Vec<String> = mixed.collect();
        assert_eq!(template(&symbols, &mixed.iter().map(String::as_str).collect::<Vec<_>>()), Err(0));
        assert_eq!(written("$(b", &symbols.names, &[1, 1]), None);
    }
}
