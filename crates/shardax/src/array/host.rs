//! Arrays from and to the host.

use crate::dtype::{DType, Element, Scalar};
use crate::error::{Result, bail, err};
use crate::program::Aval;
use crate::runtime::{self, transfer};
use crate::shape::{Shape, size};
use crate::sharding::{Sharding, SingleDeviceSharding};

use super::Array;

/// A host value that [`array`] takes: a number, or nested arrays, slices or `Vec`s of numbers.
pub trait IntoHostArray {
    type Element: Element;

    /// Appends the elements in row-major order; returns the shape, or `None` when rows differ in length.
    fn collect(&self, out: &mut Vec<Self::Element>) -> Option<Shape>;
}

macro_rules! host_numbers {
    ($($t:ty),*) => {$(
        impl IntoHostArray for $t {
            type Element = $t;
            fn collect(&self, out: &mut Vec<$t>) -> Option<Shape> {
                out.push(*self);
                Some(Shape::new())
            }
        }
    )*};
}

host_numbers!(
    bool,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
    half::f16,
    half::bf16,
    f32,
    f64,
    num_complex::Complex<f32>,
    num_complex::Complex<f64>
);

impl<T: IntoHostArray> IntoHostArray for [T] {
    type Element = T::Element;
    fn collect(&self, out: &mut Vec<T::Element>) -> Option<Shape> {
        let mut inner: Option<Shape> = None;
        for row in self {
            let shape = row.collect(out)?;
            if inner.get_or_insert_with(|| shape.clone()) != &shape {
                return None;
            }
        }
        let mut shape = inner.unwrap_or_default();
        shape.insert(0, self.len());
        Some(shape)
    }
}

impl<T: IntoHostArray, const N: usize> IntoHostArray for [T; N] {
    type Element = T::Element;
    fn collect(&self, out: &mut Vec<T::Element>) -> Option<Shape> {
        self.as_slice().collect(out)
    }
}

impl<T: IntoHostArray> IntoHostArray for Vec<T> {
    type Element = T::Element;
    fn collect(&self, out: &mut Vec<T::Element>) -> Option<Shape> {
        self.as_slice().collect(out)
    }
}

impl<T: IntoHostArray + ?Sized> IntoHostArray for &T {
    type Element = T::Element;
    fn collect(&self, out: &mut Vec<T::Element>) -> Option<Shape> {
        (**self).collect(out)
    }
}

/// An array of host values: a number, or nested arrays, slices or `Vec`s. Its dtype is the Rust type's.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([[1, 2, 3], [4, 5, 6]]);
/// assert_eq!((x.shape(), x.dtype()), (&[2, 3][..], DType::I32));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn array<T: IntoHostArray>(values: T) -> Array {
    let location = std::panic::Location::caller();
    let mut elements = Vec::new();
    let made =
        match values.collect(&mut elements) {
            Some(shape) => Array::from_slice(&elements, shape.as_slice()),
            None => Err(err!(Value, "array got rows of different lengths")
                .help("all rows of a nested array must have one length")),
        };
    made.unwrap_or_else(|e| Array::failed(e.at(location), Aval::scalar(T::Element::DTYPE)))
}

impl Array {
    /// An array of `shape` with these elements in row-major order.
    ///
    /// Fails when the number of elements is not the product of the shape.
    pub fn from_slice<T: Element>(elements: &[T], shape: &[usize]) -> Result<Array> {
        if elements.len() != size(shape) {
            bail!(Value, "an array of shape {shape:?} has {} elements, but {} were given", size(shape), elements.len());
        }
        let mut bytes = Vec::with_capacity(size_of_val(elements));
        elements.iter().for_each(|e| e.write(&mut bytes));
        Array::from_bytes(&bytes, T::DTYPE, shape)
    }

    /// The same, from a `Vec`.
    pub fn from_vec<T: Element>(elements: Vec<T>, shape: &[usize]) -> Result<Array> {
        Array::from_slice(&elements, shape)
    }

    /// An array of `shape` from its elements' bytes, in the machine's order and row-major.
    pub fn from_bytes(bytes: &[u8], dtype: DType, shape: &[usize]) -> Result<Array> {
        let need = size(shape) * dtype.byte_size();
        if bytes.len() != need {
            bail!(Value, "an array {dtype}{shape:?} has {need} bytes, but {} were given", bytes.len());
        }
        let device = runtime::default_device()?.clone();
        let sharding = Sharding::Single(SingleDeviceSharding(device));
        transfer::array_from_host(bytes, Aval::new(dtype, shape), sharding, false)
    }

    /// The elements' bytes in row-major order, in the machine's order. Waits for the values.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        transfer::to_host(&*self.concrete()?)
    }

    /// The elements in row-major order. Waits for the values.
    ///
    /// Fails when `T` is not the array's dtype.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.check()?;
        if T::DTYPE != self.dtype() {
            return Err(err!(Type, "an array of type {} cannot be read as {}", self.type_name(), T::DTYPE)
                .help(format!("read it as {}, or convert it with `astype(DType::{:?})`", self.dtype(), T::DTYPE)));
        }
        let bytes = self.to_bytes()?;
        Ok(bytes.chunks_exact(size_of::<T>()).map(T::read).collect())
    }

    /// The only element. Waits for the value.
    ///
    /// Fails when there is not exactly one, or when `T` is not the array's dtype.
    pub fn item<T: Element>(&self) -> Result<T> {
        self.check()?;
        if self.size() != 1 {
            bail!(Value, "item needs an array of one element, got shape {:?}", self.shape());
        }
        Ok(self.to_vec::<T>()?[0])
    }

    /// The elements as host numbers of any dtype.
    pub(crate) fn to_scalars(&self) -> Result<Vec<Scalar>> {
        let dtype = self.dtype();
        Ok(self.to_bytes()?.chunks_exact(dtype.byte_size()).map(|b| Scalar::read(dtype, b)).collect())
    }

    /// The elements as `f64`, whatever the dtype; of complex numbers the real part. Waits for the values.
    pub fn to_f64_vec(&self) -> Result<Vec<f64>> {
        Ok(self.to_scalars()?.into_iter().map(Scalar::to_f64).collect())
    }

    /// The only element as `f64`, whatever the dtype. Waits for the value.
    pub fn to_f64(&self) -> Result<f64> {
        match self.to_f64_vec()?.as_slice() {
            [value] => Ok(*value),
            _ => Err(err!(Value, "to_f64 needs an array of one element, got shape {:?}", self.shape())),
        }
    }
}
