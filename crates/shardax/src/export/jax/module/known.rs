//! Integers that follow from the sizes in a program with symbolic sizes: dimensions, and values computed from them.

use std::rc::Rc;

use super::super::attribute::{Attribute, Dictionary};
use super::super::operation::Named;
use super::{Operation, Value};

/// The maximum number of values of a tensor to track. Shapes have few dimensions, so this is enough.
const MAX_TRACKED_VALUES: usize = 256;

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
        Known { values: (values.len() <= MAX_TRACKED_VALUES).then(|| values.into()), sum: None }
    }
}

/// The known result of an operation of one result.
pub(super) fn known(dictionary: &Dictionary, op: &Operation) -> Known {
    let &[of] = op.results.as_slice() else { return Known::default() };
    let called = op.name.rsplit_once("_v").map_or(op.name, |(name, _)| name);
    let Ok((shape, element)) = dictionary.tensor_type(of) else { return Known::default() };
    let Ok(element) = dictionary.type_text(element) else { return Known::default() };
    let count = shape.iter().try_fold(1usize, |all, &size| all.checked_mul(usize::try_from(size).ok()?));
    let Some(count) = count.filter(|count| *count <= MAX_TRACKED_VALUES) else { return Known::default() };
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
    let operation = Foldable { dictionary, called, named: &op.named, operands: &op.operands, count };
    match operation.values(shape.len()).filter(|values| values.len() == count) {
        Some(values) => Known::of(values.into_iter().map(|value| wrapped(value, &element)).collect()),
        None => Known::default(),
    }
}

/// An operation whose result has `count` integers, which follow from its attributes and operands.
struct Foldable<'a, 'd> {
    dictionary: &'a Dictionary<'d>,
    called: &'a str,
    named: &'a Named<'d>,
    operands: &'a [Value],
    count: usize,
}

impl Foldable<'_, '_> {
    /// Computes the result, of this rank; `None` if an operand is not known, or the operation is not for shapes.
    fn values(&self, rank: usize) -> Option<Vec<i64>> {
        let count = self.count;
        match self.called {
            "constant" => self.numbers("value"),
            "get_dimension_size" => {
                let (shape, _) = self.dictionary.tensor_type(self.operands.first()?.of).ok()?;
                Some(vec![*shape.get(usize::try_from(self.integer("dimension")?).ok()?)?])
            }
            "reshape" | "convert" => self.operand(0).map(<[i64]>::to_vec),
            "broadcast_in_dim" => match self.operand(0)? {
                &[value] => Some(vec![value; count]),
                values if values.len() == count => Some(values.to_vec()),
                _ => None,
            },
            "concatenate" if self.integer("dimension")? == 0 => {
                let parts: Option<Vec<&[i64]>> = (0..self.operands.len()).map(|i| self.operand(i)).collect();
                Some(parts?.concat())
            }
            "slice" => {
                let begin = self.numbers("start_indices")?;
                let (end, step) = (self.numbers("limit_indices")?, self.numbers("strides")?);
                let (&[begin], &[end], &[step]) = (&begin[..], &end[..], &step[..]) else { return None };
                let range = usize::try_from(begin).ok()?..usize::try_from(end).ok()?;
                let step = usize::try_from(step).ok()?.max(1);
                Some(self.operand(0)?.get(range)?.iter().copied().step_by(step).collect())
            }
            "iota" if rank == 1 => Some((0..count as i64).collect()),
            // A sum that overflows has no size, so it is unknown instead of wrapped.
            "add" => self.zip(i64::checked_add),
            "subtract" => self.zip(i64::checked_sub),
            "multiply" => self.zip(i64::checked_mul),
            "divide" => self.zip(i64::checked_div),
            "remainder" => self.zip(i64::checked_rem),
            "maximum" => self.zip(|a, b| Some(a.max(b))),
            "minimum" => self.zip(|a, b| Some(a.min(b))),
            "and" => self.zip(|a, b| Some(a & b)),
            "or" => self.zip(|a, b| Some(a | b)),
            "xor" => self.zip(|a, b| Some(a ^ b)),
            "negate" => self.map(i64::wrapping_neg),
            "abs" => self.map(i64::wrapping_abs),
            "sign" => self.map(i64::signum),
            "not" => {
                let (_, element) = self.dictionary.tensor_type(self.operands.first()?.of).ok()?;
                let boolean = self.dictionary.type_text(element).ok()? == "i1";
                self.map(|a| if boolean { i64::from(a == 0) } else { !a })
            }
            "compare" => {
                let Attribute::Choice(_, direction) = self.attribute("comparison_direction")? else { return None };
                self.zip(|a, b| Some(i64::from(compared(direction, a, b))))
            }
            "select" => {
                let (which, yes, no) = (self.operand(0)?, self.operand(1)?, self.operand(2)?);
                let indices = 0..yes.len().min(no.len());
                indices.map(|i| Some(if broadcast(which, i)? != 0 { yes[i] } else { no[i] })).collect()
            }
            "clamp" => {
                let (low, x, high) = (self.operand(0)?, self.operand(1)?, self.operand(2)?);
                x.iter().enumerate().map(|(i, &x)| Some(x.max(broadcast(low, i)?).min(broadcast(high, i)?))).collect()
            }
            _ => None,
        }
    }

    fn operand(&self, i: usize) -> Option<&[i64]> {
        self.operands.get(i)?.known.values.as_deref()
    }

    fn attribute(&self, name: &str) -> Option<&Attribute<'_>> {
        self.named.iter().find(|(key, _)| *key == name).map(|(_, attribute)| attribute)
    }

    fn integer(&self, name: &str) -> Option<i64> {
        match self.attribute(name)? {
            Attribute::Int(_, value) => Some(*value),
            _ => None,
        }
    }

    fn numbers(&self, name: &str) -> Option<Vec<i64>> {
        match self.attribute(name)? {
            Attribute::Tensor(ty, bytes) => self.dictionary.integers(*ty, bytes).ok(),
            _ => None,
        }
    }

    fn map(&self, f: impl Fn(i64) -> i64) -> Option<Vec<i64>> {
        Some(self.operand(0)?.iter().map(|&a| f(a)).collect())
    }

    fn zip(&self, f: impl Fn(i64, i64) -> Option<i64>) -> Option<Vec<i64>> {
        self.operand(0)?.iter().zip(self.operand(1)?).map(|(&a, &b)| f(a, b)).collect()
    }
}

fn compared(direction: &str, a: i64, b: i64) -> bool {
    match direction {
        "EQ" => a == b,
        "NE" => a != b,
        "GE" => a >= b,
        "GT" => a > b,
        "LE" => a <= b,
        _ => a < b,
    }
}

/// Element `i`; a single element is the value of all.
fn broadcast(values: &[i64], i: usize) -> Option<i64> {
    values.get(if values.len() == 1 { 0 } else { i }).copied()
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
