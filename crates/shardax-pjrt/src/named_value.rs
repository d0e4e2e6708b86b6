//! Named values: client options, plugin attributes, cost estimates.

use std::ffi::c_void;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::mem::size_of;

use crate::api::{slice, text};
use crate::error::{Error, Result};
use crate::raw::{NamedValue, NamedValueUnion};

/// An option or attribute value.
#[derive(Clone, Debug)]
pub enum Value {
    /// A string.
    String(String),
    /// An integer.
    Int(i64),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A floating-point number.
    Float(f32),
    /// A Boolean.
    Bool(bool),
}

/// Floating-point numbers are compared by their bits.
impl Eq for Value {}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::String(a), Value::String(b)) => a == b,
            (Value::Int(a), Value::Int(b)) => a == b,
            (Value::Ints(a), Value::Ints(b)) => a == b,
            (Value::Float(a), Value::Float(b)) => a.to_bits() == b.to_bits(),
            (Value::Bool(a), Value::Bool(b)) => a == b,
            _ => false,
        }
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        match self {
            Value::String(v) => v.hash(state),
            Value::Int(v) => v.hash(state),
            Value::Ints(v) => v.hash(state),
            Value::Float(v) => v.to_bits().hash(state),
            Value::Bool(v) => v.hash(state),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::String(v) => f.write_str(v),
            Value::Int(v) => write!(f, "{v}"),
            Value::Ints(v) => write!(f, "{v:?}"),
            Value::Float(v) => write!(f, "{v}"),
            Value::Bool(v) => write!(f, "{v}"),
        }
    }
}

macro_rules! from {
    ($( $ty:ty => $make:expr; )*) => { $(
        impl From<$ty> for Value {
            fn from(value: $ty) -> Value {
                $make(value)
            }
        }
    )* };
}
from! {
    String => Value::String;
    &str => |v: &str| Value::String(v.to_owned());
    i64 => Value::Int;
    Vec<i64> => Value::Ints;
    f32 => Value::Float;
    bool => Value::Bool;
}

/// Converts options to the C struct, which points into them.
pub(crate) fn to_raw(options: &[(&str, Value)]) -> Vec<NamedValue> {
    options
        .iter()
        .map(|(name, value)| {
            let (kind, union, value_size) = match value {
                Value::String(v) => (0, NamedValueUnion { string: v.as_ptr().cast() }, v.len()),
                Value::Int(v) => (1, NamedValueUnion { int: *v }, 1),
                Value::Ints(v) => (2, NamedValueUnion { ints: v.as_ptr() }, v.len()),
                Value::Float(v) => (3, NamedValueUnion { float: *v }, 1),
                Value::Bool(v) => (4, NamedValueUnion { boolean: *v }, 1),
            };
            NamedValue {
                struct_size: size_of::<NamedValue>(),
                extension_start: std::ptr::null_mut::<c_void>(),
                name: name.as_ptr().cast(),
                name_size: name.len(),
                kind,
                value: union,
                value_size,
            }
        })
        .collect()
}

/// Copies values that belong to the plugin.
///
/// # Safety
/// `values` is null or points to `len` valid named values.
pub(crate) unsafe fn from_raw(values: *const NamedValue, len: usize) -> Result<Vec<(String, Value)>> {
    // SAFETY: promised by the caller; `kind` says which member of the union is set.
    unsafe { slice(values, len) }
        .iter()
        .map(|raw| unsafe {
            let value = match raw.kind {
                0 => Value::String(text(raw.value.string, raw.value_size).into_owned()),
                1 => Value::Int(raw.value.int),
                2 => Value::Ints(slice(raw.value.ints, raw.value_size).to_vec()),
                3 => Value::Float(raw.value.float),
                4 => Value::Bool(raw.value.boolean),
                kind => {
                    return Err(Error::invalid_argument(format!("the plugin returned a value of unknown kind {kind}")));
                }
            };
            Ok((text(raw.name, raw.name_size).into_owned(), value))
        })
        .collect()
}
