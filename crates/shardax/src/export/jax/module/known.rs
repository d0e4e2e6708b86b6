//! Integers that follow from the sizes in a program with symbolic sizes: dimensions, and values computed from them.

use std::rc::Rc;

use super::super::attribute::{Attribute, Dictionary};
use super::super::operation::Named;
use super::{Operation, Value};

/// The maximum number of values of a tensor to track. Shapes have few dimensions, so this is enough.
const MOST: usize = 256;

/// The known elements of a tensor of integers or booleans, in row-major order.
#[derive(Clone, Default)]
pub(super) struct Known {
    pub values: Option<Rc<[i64]>>,
    /// A value that was added to known values, such as the start of a slice of known size.
    pub sum: Option<(String, Rc<[i64]>)>,
}

impl Known {
    pub fn one(value: i64) -> Known {
        Known::of(vec![value])
    }

    fn of(values: Vec<i64>) -> Known {
        Known { values: (values.len() <= MOST).then(|| values.into()), sum: None }
    }
}

/// The known result of an operation of one result.
pub(super) fn known(dictionary: &Dictionary, op: &Operation) -> Known {
    let &[of] = op.results.as_slice() else { return Known::default() };
    let called = op.name.rsplit_once("_v").map_or(op.name, |(name, _)| name);
    let Ok((shape, element)) = dictionary.tensor_type(of) else { return Known::default() };
    let Ok(element) = dictionary.type_text(element) else { return Known::default() };
    let count = shape.iter().try_fold(1usize, |all, &size| all.checked_mul(usize::try_from(size).ok()?));
    let Some(count) = count.filter(|count| *count <= MOST) else { return Known::default() };
    if !element.starts_with('i') && !element.starts_with("ui") {
        return Known::default();
    }
    if called == "add"
        && let [a, b] = op.operands.as_slice()
        && let (None, Some(by), of) | (Some(by), None, of) =
            (&a.known.values, &b.known.values, if a.known.values.is_none() { a } else { b })
    {
        return Known { values: None, sum: Some((of.name.clone(), by.clone())) };
    }
    let made = values(dictionary, called, &op.named, &op.operands, shape.len(), count);
    let made = made.filter(|made| made.len() == count);
    made.map_or_else(Known::default, |made| Known::of(made.into_iter().map(|value| wrapped(value, &element)).collect()))
}

fn values(
    dictionary: &Dictionary,
    called: &str,
    named: &Named,
    operands: &[Value],
    rank: usize,
    count: usize,
) -> Option<Vec<i64>> {
    let operand = |i: usize| operands.get(i)?.known.values.as_deref();
    let attribute = |name: &str| named.iter().find(|(of, _)| *of == name).map(|(_, attribute)| attribute);
    let integer = |name: &str| if let Attribute::Int(_, value) = attribute(name)? { Some(*value) } else { None };
    let numbers = |name: &str| match attribute(name)? {
        Attribute::Tensor(of, bytes) => dictionary.integers(*of, bytes).ok(),
        _ => None,
    };
    let one = |f: &dyn Fn(i64) -> i64| Some(operand(0)?.iter().map(|&a| f(a)).collect());
    let two = |f: &dyn Fn(i64, i64) -> Option<i64>| -> Option<Vec<i64>> {
        operand(0)?.iter().zip(operand(1)?).map(|(&a, &b)| f(a, b)).collect()
    };
    match called {
        "constant" => numbers("value"),
        "get_dimension_size" => {
            let (shape, _) = dictionary.tensor_type(operands.first()?.of).ok()?;
            Some(vec![*shape.get(usize::try_from(integer("dimension")?).ok()?)?])
        }
        "reshape" | "convert" => operand(0).map(<[i64]>::to_vec),
        "broadcast_in_dim" => match operand(0)? {
            &[value] => Some(vec![value; count]),
            values if values.len() == count => Some(values.to_vec()),
            _ => None,
        },
        "concatenate" if integer("dimension")? == 0 => {
            let all: Option<Vec<&[i64]>> = (0..operands.len()).map(operand).collect();
            Some(all?.concat())
        }
        "slice" => {
            let (begin, end, step) = (numbers("start_indices")?, numbers("limit_indices")?, numbers("strides")?);
            let (&[begin], &[end], &[step]) = (&begin[..], &end[..], &step[..]) else { return None };
            let range = usize::try_from(begin).ok()?..usize::try_from(end).ok()?;
            Some(operand(0)?.get(range)?.iter().copied().step_by(usize::try_from(step).ok()?.max(1)).collect())
        }
        "iota" if rank == 1 => Some((0..count as i64).collect()),
        "add" => two(&|a, b| a.checked_add(b)),
        "subtract" => two(&|a, b| a.checked_sub(b)),
        "multiply" => two(&|a, b| a.checked_mul(b)),
        "divide" => two(&i64::checked_div),
        "remainder" => two(&i64::checked_rem),
        "maximum" => two(&|a, b| Some(a.max(b))),
        "minimum" => two(&|a, b| Some(a.min(b))),
        "and" => two(&|a, b| Some(a & b)),
        "or" => two(&|a, b| Some(a | b)),
        "xor" => two(&|a, b| Some(a ^ b)),
        "negate" => one(&i64::wrapping_neg),
        "abs" => one(&i64::wrapping_abs),
        "sign" => one(&i64::signum),
        "not" => {
            let (_, element) = dictionary.tensor_type(operands.first()?.of).ok()?;
            let boolean = dictionary.type_text(element).ok()? == "i1";
            one(&|a| if boolean { i64::from(a == 0) } else { !a })
        }
        "compare" => {
            let Attribute::Choice(_, direction) = attribute("comparison_direction")? else { return None };
            let holds = |a: i64, b: i64| match *direction {
                "EQ" => a == b,
                "NE" => a != b,
                "GE" => a >= b,
                "GT" => a > b,
                "LE" => a <= b,
                _ => a < b,
            };
            two(&|a, b| Some(i64::from(holds(a, b))))
        }
        "select" => {
            let (which, yes, no) = (operand(0)?, operand(1)?, operand(2)?);
            let pick =
                |i: usize| Some(if *which.get(if which.len() == 1 { 0 } else { i })? != 0 { yes } else { no }[i]);
            (0..yes.len().min(no.len())).map(pick).collect()
        }
        "clamp" => {
            let (low, x, high) = (operand(0)?, operand(1)?, operand(2)?);
            let bound = |of: &[i64], i: usize| of.get(if of.len() == 1 { 0 } else { i }).copied();
            x.iter().enumerate().map(|(i, &x)| Some(x.max(bound(low, i)?).min(bound(high, i)?))).collect()
        }
        _ => None,
    }
}

/// A number, wrapped to the range of this type.
fn wrapped(value: i64, element: &str) -> i64 {
    match element {
        "i1" => i64::from(value != 0),
        "i8" => i64::from(value as i8),
        "i16" => i64::from(value as i16),
        "i32" => i64::from(value as i32),
        "ui8" => i64::from(value as u8),
        "ui16" => i64::from(value as u16),
        "ui32" => i64::from(value as u32),
        _ => value,
    }
}
