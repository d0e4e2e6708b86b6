//! Examples on the host, before they become arrays.

use std::collections::BTreeMap;

use shardax::dtype::Element;
use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;
use shardax::shape::IntoSizes;
use shardax::sharding::Sharding;

use super::file::room;

/// An array on the host: a dtype, a shape, and the elements' bytes in row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostArray {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// The named arrays of an example, or of a batch.
pub type Example = BTreeMap<String, HostArray>;

/// Creates a named array of an example.
///
/// ```
/// use shardax_train::data::{Example, arrays, field};
/// let (x, y) = (vec![0.5f32; 6], vec![1i32; 3]);
/// let example = Example::from([field("x", &x, [3, 2])?, field("y", &y, [3])?, field("weight", &[2.0f32], [])?]);
/// let [x, y] = arrays(&example, ["x", "y"])?;
/// assert_eq!((x.shape(), y.shape()), (&[3, 2][..], &[3][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the number of elements is not the product of `shape`.
#[track_caller]
pub fn field<T: Element>(
    name: impl Into<String>,
    elements: &[T],
    shape: impl IntoSizes,
) -> Result<(String, HostArray)> {
    Ok((name.into(), HostArray::from_slice(elements, &shape.into_sizes())?))
}

/// Returns the arrays of an example or a batch by their names, copied to the default device: see [`field`].
///
/// # Errors
/// Returns an error for a name that the example does not have.
#[track_caller]
pub fn arrays<const N: usize>(example: &Example, names: [&str; N]) -> Result<[Array; N]> {
    let mut arrays = Vec::with_capacity(N);
    for name in names {
        let Some(x) = example.get(name) else {
            let message = format!("the example has no {name:?}: it has {:?}", example.keys().collect::<Vec<_>>());
            return Err(Error::new(ErrorKind::Value, message).at(std::panic::Location::caller()));
        };
        arrays.push(x.to_array()?);
    }
    arrays
        .try_into()
        .map_err(|_| Error::new(ErrorKind::Runtime, "internal error: arrays of an example; please report this"))
}

impl HostArray {
    /// Creates an array of these elements.
    ///
    /// ```
    /// use shardax_train::data::HostArray;
    /// let x = HostArray::from_slice(&[1.0f32, 2.0], &[2])?;
    /// assert_eq!(x.to_array()?.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the number of elements is not the product of `shape`.
    #[track_caller]
    pub fn from_slice<T: Element>(elements: &[T], shape: &[usize]) -> Result<HostArray> {
        let mut bytes = Vec::with_capacity(std::mem::size_of_val(elements));
        match T::as_bytes(elements) {
            Some(all) => bytes.extend_from_slice(all),
            None => elements.iter().for_each(|element| element.write(&mut bytes)),
        }
        HostArray::from_bytes(bytes, T::DTYPE, shape)
    }

    /// Creates an array of bytes in native byte order.
    ///
    /// # Errors
    /// Returns an error if the number of bytes does not match `dtype` and `shape`.
    #[track_caller]
    pub fn from_bytes(bytes: Vec<u8>, dtype: DType, shape: &[usize]) -> Result<HostArray> {
        let want = shape.iter().try_fold(dtype.byte_size(), |n, d| n.checked_mul(*d));
        if want != Some(bytes.len()) {
            let message = format!("an array {dtype}{shape:?} does not have {} bytes", bytes.len());
            return Err(Error::new(ErrorKind::Value, message)
                .help("pass as many elements as the product of the shape")
                .at(std::panic::Location::caller()));
        }
        Ok(HostArray { dtype, shape: shape.to_vec(), bytes })
    }

    /// Returns the same elements with another shape.
    ///
    /// ```
    /// use shardax_train::data::HostArray;
    /// let x = HostArray::from_slice(&[1, 2, 3, 4], &[4])?;
    /// assert_eq!(x.reshape(&[2, 2])?.shape(), [2, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if `shape` has another number of elements.
    #[track_caller]
    pub fn reshape(self, shape: &[usize]) -> Result<HostArray> {
        HostArray::from_bytes(self.bytes, self.dtype, shape)
    }

    /// Returns the shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the elements' bytes, in native byte order.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Copies the elements to a vector.
    ///
    /// # Errors
    /// Returns an error if `T` is not the type of the elements.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype {
            let message = format!("host values of {} cannot be read as {}", self.dtype, T::DTYPE);
            return Err(Error::new(ErrorKind::Type, message)
                .help("read them with their dtype, and convert each value")
                .at(std::panic::Location::caller()));
        }
        Ok(self.bytes.chunks_exact(self.dtype.byte_size()).map(T::read).collect())
    }

    /// Copies the values to the default device.
    ///
    /// # Errors
    /// Returns an error if the device has no memory for the values.
    #[track_caller]
    pub fn to_array(&self) -> Result<Array> {
        Array::from_bytes(&self.bytes, self.dtype, &self.shape)
    }

    /// Copies the values to a device or a sharding, as [`Array::from_slice_on`] does. Over devices of several
    /// processes, the values must be the entire array, the same on each process. If you have only this process's part,
    /// for example of a shared batch, use [`to_array_of_process`](HostArray::to_array_of_process). That function does
    /// not communicate, so that a stream's threads can call it.
    ///
    /// # Errors
    /// Returns an error if an array of this shape cannot have the sharding.
    #[track_caller]
    pub fn to_array_on(&self, to: impl Into<Sharding>) -> Result<Array> {
        Array::from_bytes_on(&self.bytes, self.dtype, &self.shape, to)
    }

    /// Creates the global array from this process's part, with [`make_array_from_process_local_data`]: a batch of 8
    /// examples on each of two processes becomes one of 16.
    ///
    /// # Errors
    /// Returns an error if the sharding cannot split the global shape, or if this process's part has another shape
    /// than its devices need.
    #[track_caller]
    pub fn to_array_of_process(&self, sharding: impl Into<Sharding>) -> Result<Array> {
        make_array_from_process_local_data(sharding, &self.to_array()?)
    }

    /// Returns entry `i` along the first axis.
    pub(super) fn row(&self, i: usize) -> Option<HostArray> {
        let (count, shape) = self.shape.split_first()?;
        let size = self.bytes.len() / (*count).max(1);
        let bytes = self.bytes.get(i * size..(i + 1) * size).filter(|_| i < *count)?;
        Some(HostArray { dtype: self.dtype, shape: shape.to_vec(), bytes: bytes.to_vec() })
    }

    /// Pads with zeros to `count` entries along the first axis.
    pub(super) fn filled(mut self, count: usize) -> Result<HostArray> {
        let Some(entries) = self.shape.first_mut().filter(|entries| **entries > 0) else { return Ok(self) };
        let bytes = (self.bytes.len() / *entries).checked_mul(count).filter(|bytes| room(*bytes as u64).is_ok());
        let fits = bytes.filter(|bytes| self.bytes.try_reserve(bytes.saturating_sub(self.bytes.len())).is_ok());
        let Some(bytes) = fits else {
            let message = format!("{count} entries of {}{:?} do not fit in memory", self.dtype, &self.shape[1..]);
            return Err(Error::new(ErrorKind::Value, message)
                .help("pass a smaller number to `batch`, so that a batch fits in memory"));
        };
        *entries = count;
        self.bytes.resize(bytes, 0);
        Ok(self)
    }
}

/// Stacks examples: the values of each name get a leading axis.
pub(super) fn stack(examples: &[Example]) -> Result<Example> {
    let Some(first) = examples.first() else { return Ok(Example::new()) };
    let mut out = Example::new();
    for (name, like) in first {
        let mut parts = Vec::with_capacity(examples.len());
        for (at, example) in examples.iter().enumerate() {
            let matching = example.get(name).filter(|x| (x.dtype, &x.shape) == (like.dtype, &like.shape));
            let Some(x) = matching.filter(|_| example.len() == first.len()) else {
                let has: Vec<String> =
                    example.iter().map(|(name, x)| format!("{name}: {}{:?}", x.dtype, x.shape)).collect();
                let message = format!(
                    "example {at} of a batch has {has:?}, but the first has {name}: {}{:?}",
                    like.dtype, like.shape
                );
                return Err(Error::new(ErrorKind::Value, message).help(
                    "examples of a batch must have the same names, dtypes and shapes: convert them with `map`, or pad them",
                ));
            };
            parts.push(x.bytes.as_slice());
        }
        let shape = [&[examples.len()], like.shape.as_slice()].concat();
        out.insert(name.clone(), HostArray { dtype: like.dtype, shape, bytes: parts.concat() });
    }
    Ok(out)
}
