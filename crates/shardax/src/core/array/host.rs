//! Arrays from and to the host.

use std::borrow::Cow;
use std::sync::Arc;

use shardax_pjrt::HostBytes;

use super::transfer;
use crate::core::program::Aval;
use crate::dtype::{DType, Element, Scalar};
use crate::error::{AtCaller, Error, Result, err};
use crate::shape::{Shape, size};
use crate::sharding::device;
use crate::sharding::{Sharding, SingleDeviceSharding};

use super::{Array, Concrete, Literal};

/// A host value that [`array()`] takes: a number, or nested arrays, slices or `Vec`s of numbers.
pub trait IntoHostArray {
    /// The type of the numbers inside.
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
/// Rust's own floating point numbers are `f64`, so 64 bits there need not be meant. Such an array is weakly typed, as a
/// plain number is: alone it keeps its 64 bits, and where it meets float32 it becomes float32. [`array_of`] states the
/// dtype.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([[1, 2, 3], [4, 5, 6]]);
/// assert_eq!((x.shape(), x.dtype()), (&[2, 3][..], DType::I32));
/// let weights = array([0.25, 0.75]);
/// assert_eq!((weights.dtype(), (ones([2]) * weights).dtype()), (DType::F64, DType::F32));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn array<T: IntoHostArray>(values: T) -> Array {
    let made = collected(&values).and_then(|(elements, shape)| Array::from_slice(&elements, shape.as_slice()));
    Array::from_result(made, &Array::literal(Scalar::Int(0), T::Element::DTYPE, false))
}

/// The same of this dtype, to which the values are converted as by [`Array::astype`].
///
/// ```
/// # use shardax::prelude::*;
/// let x = array_of([0.1, 0.2], DType::F64);
/// assert_eq!((ones([2]) * x).dtype(), DType::F64);
/// assert_eq!(array_of([1, 2], DType::Bf16).dtype(), DType::Bf16);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails for an integer that an integer dtype cannot hold.
#[track_caller]
pub fn array_of<T: IntoHostArray>(values: T, dtype: DType) -> Array {
    let made = collected(&values).and_then(|(elements, shape)| {
        let mut bytes = Vec::with_capacity(elements.len() * dtype.byte_size());
        for element in elements {
            let value = element.to_scalar();
            Literal { value, dtype, weak: false }.check_fits(dtype)?;
            value.write(dtype, &mut bytes);
        }
        Array::from_bytes(&bytes, dtype, shape.as_slice())
    });
    Array::from_result(made, &Array::literal(Scalar::Int(0), dtype, false))
}

/// The elements in row-major order, and the shape.
fn collected<T: IntoHostArray>(values: &T) -> Result<(Vec<T::Element>, Shape)> {
    let mut elements = Vec::new();
    match values.collect(&mut elements) {
        Some(shape) => Ok((elements, shape)),
        None => {
            Err(err!(Value, "array got rows of different lengths")
                .help("all rows of a nested array must have one length"))
        }
    }
}

impl Array {
    /// An array of `shape` with these elements in row-major order, weakly typed if they are `f64` (see [`array()`]).
    ///
    /// Fails when the number of elements is not the product of the shape.
    #[track_caller]
    pub fn from_slice<T: Element>(elements: &[T], shape: &[usize]) -> Result<Array> {
        bytes_of(elements, shape).and_then(|bytes| place(&bytes, Aval::of_host(T::DTYPE, shape))).at_caller()
    }

    /// The same, laid out by a device or a sharding: each device gets its part straight from the host, so that none has
    /// to hold the whole. The array is committed, as one that [`device_put`](crate::device_put) places. Over devices of
    /// several processes every process gives the whole, which is checked to be the same on each; of their own parts
    /// [`make_array_from_process_local_data`](crate::make_array_from_process_local_data) makes an array.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # shardax::config::set_num_cpu_devices(8).ok();
    /// let rows = NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]);
    /// let batch: Vec<f32> = (0..64).map(|i| i as f32).collect();
    /// let x = Array::from_slice_on(&batch, &[32, 2], &rows)?;
    /// assert_eq!(x.addressable_data(7)?.to_vec::<f32>()?, batch[56..]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// Fails also when the sharding does not divide the shape.
    #[track_caller]
    pub fn from_slice_on<T: Element>(elements: &[T], shape: &[usize], to: impl Into<Sharding>) -> Result<Array> {
        let placed = bytes_of(elements, shape)
            .and_then(|bytes| put_on("from_slice_on", &bytes, Aval::of_host(T::DTYPE, shape), to.into()));
        placed.at_caller()
    }

    /// The same as [`from_slice`](Array::from_slice), of a `Vec` whose memory is taken over: on CPU nothing is copied where it begins at a
    /// multiple of 64 bytes, and elsewhere the copy is made while the program goes on. Complex numbers are copied.
    #[track_caller]
    pub fn from_vec<T: Element>(elements: Vec<T>, shape: &[usize]) -> Result<Array> {
        let large = size_of_val(elements.as_slice()) >= LARGE && T::as_bytes(&elements).is_some();
        if !large || elements.len() != size(shape) {
            return Array::from_slice(&elements, shape);
        }
        let placed = device::uncommitted_device().and_then(|device| {
            let data: Arc<dyn HostBytes> = Arc::new(Owned(elements));
            transfer::array_of_shared(data, Aval::new(T::DTYPE, shape), device, false)
        });
        placed.at_caller()
    }

    /// An array of `shape` from its elements' bytes, in the machine's order and row-major.
    ///
    /// Fails for another number of bytes than the shape and the dtype have, and for booleans other than 0 and 1.
    #[track_caller]
    pub fn from_bytes(bytes: &[u8], dtype: DType, shape: &[usize]) -> Result<Array> {
        place(bytes, Aval::new(dtype, shape)).at_caller()
    }

    /// The same, laid out by a device or a sharding, as [`from_slice_on`](Array::from_slice_on) does it.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = Array::from_bytes_on(&[1, 0, 2, 0], DType::U16, &[2], &devices()?[0])?;
    /// assert!(x.committed() && x.to_vec::<u16>()? == [1, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn from_bytes_on(bytes: &[u8], dtype: DType, shape: &[usize], to: impl Into<Sharding>) -> Result<Array> {
        put_on("from_bytes_on", bytes, Aval::new(dtype, shape), to.into()).at_caller()
    }

    /// The same values whose dtype gives way in promotion, or does not (see [`weak_type`](Array::weak_type)): for what
    /// was written down and is read back. Shares the memory. Nothing changes for a plain number, a traced array or a
    /// failed one.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = array([1.0f32]).with_weak_type(true);
    /// assert_eq!((x * ones([1]).astype(DType::Bf16)).dtype(), DType::Bf16);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn with_weak_type(&self, weak: bool) -> Array {
        match self.concrete_ref().filter(|c| c.aval.weak != weak && c.check_alive().is_ok()) {
            Some(c) => {
                let aval = Aval { weak, ..c.aval.clone() };
                Array::from_concrete(Concrete::new(aval, c.sharding.clone(), c.committed, c.buffers.clone()))
            }
            None => self.clone(),
        }
    }

    /// The elements' bytes in row-major order, in the machine's order. Waits for the values.
    #[track_caller]
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.concrete().and_then(|c| transfer::to_host(&c)).at_caller()
    }

    /// The elements in row-major order. Waits for the values.
    ///
    /// Fails when `T` is not the array's dtype.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.check()?;
        if T::DTYPE != self.dtype() {
            let wrong = err!(Type, "an array of type {} cannot be read as {}", self.type_name(), T::DTYPE)
                .help(format!("read it as {}, or convert it with `astype(DType::{:?})`", self.dtype(), T::DTYPE));
            return Err(wrong).at_caller();
        }
        let bytes = self.to_bytes()?;
        Ok(bytes.chunks_exact(size_of::<T>()).map(T::read).collect())
    }

    /// The only element. Waits for the value.
    ///
    /// Fails when there is not exactly one, or when `T` is not the array's dtype.
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T> {
        self.check()?;
        match self.to_vec::<T>()?.as_slice() {
            [value] => Ok(*value),
            _ => Err(self.not_one("item")).at_caller(),
        }
    }

    /// The elements as host numbers of any dtype.
    #[track_caller]
    pub(crate) fn to_scalars(&self) -> Result<Vec<Scalar>> {
        let dtype = self.dtype();
        Ok(self.to_bytes()?.chunks_exact(dtype.byte_size()).map(|b| Scalar::read(dtype, b)).collect())
    }

    /// The elements as `f64`, whatever the dtype; of complex numbers the real part. Waits for the values.
    #[track_caller]
    pub fn to_f64_vec(&self) -> Result<Vec<f64>> {
        Ok(self.to_scalars()?.into_iter().map(Scalar::to_f64).collect())
    }

    /// The only element as `f64`, whatever the dtype. Waits for the value.
    #[track_caller]
    pub fn to_f64(&self) -> Result<f64> {
        match self.to_f64_vec()?.as_slice() {
            [value] => Ok(*value),
            _ => Err(self.not_one("to_f64")).at_caller(),
        }
    }

    fn not_one(&self, name: &str) -> Error {
        err!(Value, "{name} needs an array of one element, got {}", self.type_name())
            .help("reduce or index it first, or read all elements with `to_vec`")
    }
}

/// From so many bytes on, to take memory over is quicker than to copy it.
const LARGE: usize = 4096;

/// A `Vec` that became an array's memory.
struct Owned<T>(Vec<T>);

impl<T: Element> HostBytes for Owned<T> {
    fn bytes(&self) -> &[u8] {
        T::as_bytes(&self.0).unwrap_or_default()
    }
}

/// The bytes of host elements, of which there must be as many as the shape says.
fn bytes_of<'a, T: Element>(elements: &'a [T], shape: &[usize]) -> Result<Cow<'a, [u8]>> {
    if elements.len() != size(shape) {
        return Err(err!(
            Value,
            "an array of shape {shape:?} has {} elements, but {} were given",
            size(shape),
            elements.len()
        )
        .help("give as many elements as the product of the shape"));
    }
    if let Some(bytes) = T::as_bytes(elements) {
        return Ok(Cow::Borrowed(bytes));
    }
    let mut bytes = Vec::with_capacity(size_of_val(elements));
    elements.iter().for_each(|e| e.write(&mut bytes));
    Ok(Cow::Owned(bytes))
}

/// An array of host bytes on the default device.
pub(crate) fn place(bytes: &[u8], aval: Aval) -> Result<Array> {
    let device = device::uncommitted_device()?;
    put(bytes, aval, Sharding::Single(SingleDeviceSharding::new(device)), false)
}

/// An array of host bytes, placed as the user asked: the same on all processes whose devices it is on.
fn put_on(function: &str, bytes: &[u8], aval: Aval, to: Sharding) -> Result<Array> {
    check_bytes(bytes, &aval)?;
    transfer::check_same(function, bytes, &aval, &to)?;
    put(bytes, aval, to, true)
}

/// An array of host bytes, placed.
fn put(bytes: &[u8], aval: Aval, to: Sharding, committed: bool) -> Result<Array> {
    check_bytes(bytes, &aval)?;
    to.check_constrained("an array of host data")?;
    transfer::array_from_host(bytes, aval, to, committed)
}

/// Fails unless these are the bytes of an array of this type.
pub(super) fn check_bytes(bytes: &[u8], aval: &Aval) -> Result<()> {
    let need = aval.byte_size()?;
    if bytes.len() != need {
        return Err(err!(Value, "an array {aval} has {need} bytes, but {} were given", bytes.len())
            .help("give as many elements as the product of the shape, in the machine's byte order"));
    }
    let highest = match aval.dtype {
        DType::Bool => Some(1),
        DType::Float0 => Some(0),
        _ => None,
    };
    // Other dtypes have no byte that is wrong: a gigabyte is not looked through.
    if let Some(odd) = highest.and_then(|highest| bytes.iter().position(|b| *b > highest)) {
        return Err(err!(Value, "byte {odd} of an array {aval} is {}, which is no {}", bytes[odd], aval.dtype)
            .help("a boolean is a byte 0 or 1; compare the bytes with 0 first"));
    }
    Ok(())
}
