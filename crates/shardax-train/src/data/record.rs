//! Structs whose fields are the arrays of an example.

use shardax::dtype::Element;
use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;
/// Derives the trait [`Record`](trait@Record).
pub use shardax_macros::Record;

use super::example::stack;
use super::source::{Source, no_example};
use super::{Example, HostArray};

/// A struct whose fields are the arrays of an example, by their names.
///
/// You can derive it for your examples and for the arrays of a batch. A `Vec` of records is a [`Source`]. Fields are
/// numbers, booleans, `[T; N]` and `Vec<T>` of them, [`HostArray`] and [`Array`].
///
/// ```
/// use shardax::prelude::*;
/// use shardax_train::data::{Record, Source, Stream};
///
/// #[derive(Record)]
/// struct Reading {
///     position: [f32; 2],
///     #[record(shape = [2, 3])]
///     window: Vec<f32>,
///     label: i32,
/// }
///
/// #[derive(Record, Tree, Clone)]
/// struct Batch {
///     window: Array,
///     label: Array,
/// }
///
/// let reading = |i: i32| Reading { position: [0.5, i as f32], window: vec![i as f32; 6], label: i };
/// let readings: Vec<Reading> = (0..10).map(reading).collect();
/// let mut batches = readings.stream().batch(4).map(Batch::from_example);
/// let batch = batches.next_item().expect("a batch")?;
/// assert_eq!(batch.window.shape(), [4, 2, 3]);
/// assert_eq!(batch.label.to_vec::<i32>()?, [0, 1, 2, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a record: its fields are not known as the arrays of an example",
    label = "not a record",
    note = "`#[derive(Record)]` with `use shardax_train::data::Record`; its fields are numbers, `[T; N]`, `Vec<T>` or arrays"
)]
pub trait Record: Sized {
    /// Converts the fields to arrays. Fails if the rows of a field have different lengths, or do not have the field's shape.
    fn to_example(&self) -> Result<Example>;

    /// Creates a record of the arrays with its fields' names. Ignores other arrays, such as a mask. Fails for a missing array,
    /// and for an array of another dtype or shape than the field's.
    fn from_example(example: Example) -> Result<Self>;
}

/// Records in memory, in order.
impl<T: Record + Send> Source for Vec<T> {
    type Item = Example;
    fn len(&self) -> usize {
        self.as_slice().len()
    }
    fn get(&self, i: usize) -> Result<Example> {
        let record = self.as_slice().get(i).ok_or_else(|| no_example(i, self.as_slice().len()))?;
        record.to_example()
    }
}

/// The type of a field of a [`Record`](trait@Record).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a field of a record",
    label = "not a number, and not an array of numbers",
    note = "numbers, `bool`, `[T; N]` and `Vec<T>` of them, `HostArray` and `Array` can be fields",
    note = "text is bytes or tokens: `text.into_bytes()`, or a `Vec<i32>` of a tokenizer"
)]
pub trait RecordField: Sized {
    /// Converts the field to an array.
    fn to_host(&self) -> Result<HostArray>;

    /// Converts an array to the field.
    fn from_host(array: HostArray) -> Result<Self>;

    /// The dtype and shape, if the type determines them.
    #[doc(hidden)]
    fn static_type() -> Option<(DType, Vec<usize>)> {
        None
    }

    /// Converts fields to an array with a leading axis.
    #[doc(hidden)]
    fn slice_to_host(fields: &[Self]) -> Result<HostArray> {
        if fields.is_empty() {
            let (dtype, shape) = Self::static_type()
                .ok_or_else(|| Error::new(ErrorKind::Value, "an empty list whose rows have no known shape"))?;
            return HostArray::from_bytes(Vec::new(), dtype, &[&[0], shape.as_slice()].concat());
        }
        let rows: Vec<Example> = fields
            .iter()
            .map(|field| Ok(Example::from([("row".to_owned(), field.to_host()?)])))
            .collect::<Result<_>>()?;
        let differing = rows.iter().position(|row| row["row"].shape() != rows[0]["row"].shape());
        if let Some(i) = differing {
            let (first, row) = (rows[0]["row"].shape(), rows[i]["row"].shape());
            return Err(Error::new(ErrorKind::Value, format!("row 0 has the shape {first:?}, and row {i} {row:?}"))
                .help("make all rows of the field equally long, for example by padding the shorter ones"));
        }
        stack(&rows)?
            .remove("row")
            .ok_or_else(|| Error::new(ErrorKind::Runtime, "internal error: no rows; please report this"))
    }

    /// Converts the rows of an array to fields.
    #[doc(hidden)]
    fn slice_from_host(array: HostArray) -> Result<Vec<Self>> {
        let Some(rows) = array.shape().first().copied() else { return Err(unexpected(&array, "a list")) };
        (0..rows).map(|i| array.row(i).map_or_else(|| Err(no_example(i, rows)), Self::from_host)).collect()
    }
}

fn unexpected(array: &HostArray, expected: &str) -> Error {
    Error::new(ErrorKind::Type, format!("the array is {}{:?}, and the field {expected}", array.dtype(), array.shape()))
        .help("declare the field with the dtype and shape of the array, or as an `Array`")
}

/// Lists of numbers are converted at once, which is faster than number by number.
macro_rules! number_fields {
    ($($number:ty)*) => {$(
        impl RecordField for $number {
            fn to_host(&self) -> Result<HostArray> {
                HostArray::from_slice(&[*self], &[])
            }
            fn from_host(array: HostArray) -> Result<Self> {
                match (array.shape(), array.dtype() == <$number>::DTYPE) {
                    ([], true) => Ok(<$number as Element>::read(array.bytes())),
                    _ => Err(unexpected(&array, concat!("`", stringify!($number), "`"))),
                }
            }
            fn static_type() -> Option<(DType, Vec<usize>)> {
                Some((<$number>::DTYPE, Vec::new()))
            }
            fn slice_to_host(fields: &[Self]) -> Result<HostArray> {
                HostArray::from_slice(fields, &[fields.len()])
            }
            fn slice_from_host(array: HostArray) -> Result<Vec<Self>> {
                match (array.shape(), array.dtype() == <$number>::DTYPE) {
                    ([_], true) => array.to_vec(),
                    _ => Err(unexpected(&array, concat!("a list of `", stringify!($number), "`"))),
                }
            }
        }
    )*};
}

number_fields! { bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 }

impl<F: RecordField> RecordField for Vec<F> {
    fn to_host(&self) -> Result<HostArray> {
        F::slice_to_host(self)
    }
    fn from_host(array: HostArray) -> Result<Self> {
        F::slice_from_host(array)
    }
}

impl<F: RecordField, const N: usize> RecordField for [F; N] {
    fn to_host(&self) -> Result<HostArray> {
        F::slice_to_host(self)
    }
    fn from_host(array: HostArray) -> Result<Self> {
        let (dtype, shape) = (array.dtype(), array.shape().to_vec());
        let expected =
            |_| Error::new(ErrorKind::Type, format!("the array is {dtype}{shape:?}, and the field has {N} rows"));
        F::slice_from_host(array)?.try_into().map_err(expected)
    }
    fn static_type() -> Option<(DType, Vec<usize>)> {
        let (dtype, shape) = F::static_type()?;
        Some((dtype, [&[N], shape.as_slice()].concat()))
    }
}

impl RecordField for HostArray {
    fn to_host(&self) -> Result<HostArray> {
        Ok(self.clone())
    }
    fn from_host(array: HostArray) -> Result<Self> {
        Ok(array)
    }
}

/// An array on the default device.
impl RecordField for Array {
    fn to_host(&self) -> Result<HostArray> {
        HostArray::from_bytes(self.to_bytes()?, self.dtype(), self.shape())
    }
    fn from_host(array: HostArray) -> Result<Self> {
        array.to_array()
    }
}

/// Functions that the derive calls.
#[doc(hidden)]
pub mod derive {
    use super::*;

    #[track_caller]
    pub fn field_to_host<F: RecordField>(
        record: &str,
        name: &str,
        field: &F,
        shape: Option<&dyn AsRef<[usize]>>,
    ) -> Result<HostArray> {
        let location = std::panic::Location::caller();
        let shaped = field.to_host().and_then(|array| match shape {
            Some(shape) => array.reshape(shape.as_ref()),
            None => Ok(array),
        });
        shaped.map_err(|error| error.context(format_args!("field `{name}` of {record}")).at(location))
    }

    /// Called first, because reading the fields removes arrays from the example.
    ///
    /// # Errors
    /// Returns an error if an array is missing.
    #[track_caller]
    pub fn check_names(record: &str, names: &[&str], example: &Example) -> Result<()> {
        let Some(missing) = names.iter().find(|name| !example.contains_key(**name)) else { return Ok(()) };
        let names_of_example = example.keys().collect::<Vec<_>>();
        let message = format!(
            "field `{missing}` of {record}: the example has no array of this name: it has {names_of_example:?}"
        );
        Err(Error::new(ErrorKind::Value, message)
            .help("name the fields after the example's arrays")
            .at(std::panic::Location::caller()))
    }

    #[track_caller]
    pub fn field_from_host<F: RecordField>(
        record: &str,
        name: &str,
        example: &mut Example,
        shape: Option<&dyn AsRef<[usize]>>,
    ) -> Result<F> {
        let location = std::panic::Location::caller();
        let shape = shape.map(|shape| shape.as_ref());
        flat_field(example, name, shape)
            .and_then(F::from_host)
            .map_err(|error| error.context(format_args!("field `{name}` of {record}")).at(location))
    }

    /// Removes an array from the example; an array with a required shape is returned as a vector.
    fn flat_field(example: &mut Example, name: &str, shape: Option<&[usize]>) -> Result<HostArray> {
        let array = example.remove(name).ok_or_else(|| {
            Error::new(ErrorKind::Runtime, "internal error: a field without an array; please report this")
        })?;
        match shape {
            Some(shape) if shape != array.shape() => Err(unexpected(&array, &format!("has the shape {shape:?}"))),
            Some(shape) => array.reshape(&[shape.iter().product()]),
            None => Ok(array),
        }
    }
}
