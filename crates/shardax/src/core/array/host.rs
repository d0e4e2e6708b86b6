//! Conversions between arrays and host data.

use std::borrow::Cow;
use std::sync::Arc;

use shardax_pjrt::HostBytes;

use super::transfer;
use crate::core::program::Aval;
use crate::dtype::{self, DType, Element, Scalar};
use crate::error::{AtCaller, Error, Result, err};
use crate::shape::{Shape, size};
use crate::sharding::device;
use crate::sharding::{Sharding, SingleDeviceSharding};
use crate::source;
use crate::transfer_guard::{self, Direction};

use super::{Array, Concrete, Literal};

/// A type of numbers that [`Array::to_vec`] and [`Array::item`] return: the type of the elements, or `usize` for integers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a type of array elements",
    label = "not an element type",
    note = "elements are `f32`, `f64`, `bf16`, `f16`, `i8` to `i64`, `u8` to `u64`, `bool`, `Complex<f32>` and `Complex<f64>`; integers can be read as `usize` too",
    note = "`x.to_vec::<f32>()?` returns all elements in row-major order; its rows are `chunks(x.shape()[1])`",
    note = "`!` stands for a type that rustc cannot infer: write it, `x.item::<f32>()?`, or `let loss: f32 = x.item()?`"
)]
pub trait HostNumber: Copy {
    /// Returns the elements of an array in row-major order.
    #[doc(hidden)]
    fn read_array(array: &Array) -> Result<Vec<Self>>;
}

impl<T: Element> HostNumber for T {
    fn read_array(array: &Array) -> Result<Vec<T>> {
        array.elements()
    }
}

impl HostNumber for usize {
    fn read_array(array: &Array) -> Result<Vec<usize>> {
        array.indices()
    }
}

/// A host value that [`array()`] accepts: a number, or nested arrays, slices or `Vec`s of numbers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not data that `array` accepts",
    label = "not a number or a list of numbers",
    note = "numbers, nested arrays, slices and `Vec`s are accepted; collect an iterator: `array(numbers.collect::<Vec<f32>>())`",
    note = "numbers are `f32`, `f64`, `i32`, `i64`, `bool` and the other element types; convert `usize` to `i32` or `i64`",
    note = "arrays are joined by `stack([x, y], 0)` and `concatenate([x, y], 0)`"
)]
pub trait IntoHostArray {
    /// The type of the numbers.
    type Element: Element;

    /// Appends the elements in row-major order. Returns the shape, or `None` if rows differ in length.
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
    num_complex::Complex<f64>,
    dtype::I2,
    dtype::I4,
    dtype::U2,
    dtype::U4,
    dtype::F4E2M1Fn,
    dtype::F8E3M4,
    dtype::F8E4M3,
    dtype::F8E4M3B11Fnuz,
    dtype::F8E4M3Fn,
    dtype::F8E4M3Fnuz,
    dtype::F8E5M2,
    dtype::F8E5M2Fnuz,
    dtype::F8E8M0Fnu
);

// An empty slice has no row that says its shape, so it has one dimension, as in NumPy.
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

/// Creates an array from host values: a number, or nested arrays, slices or `Vec`s. The dtype follows from the Rust
/// type.
///
/// Rust's float literals are `f64` by default, so 64 bits there may not be intended. Such an array is weakly typed,
/// like a plain number: on its own it keeps its 64 bits, and combined with float32 it becomes float32. Use [`array_of`]
/// to state the dtype.
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
    let _line = source::enter();
    let result = collected(&values).and_then(|(elements, shape)| Array::from_slice(&elements, shape.as_slice()));
    Array::from_result(result, &Array::literal(Scalar::Int(0), T::Element::DTYPE, false))
}

macro_rules! from_lists {
    ($($(#[$doc:meta])* [$($generics:tt)*] $t:ty;)*) => {$(
        $(#[$doc])*
        impl<$($generics)*> From<$t> for Array
        where
            $t: IntoHostArray,
        {
            #[track_caller]
            fn from(values: $t) -> Array {
                array(values)
            }
        }
    )*};
}

from_lists! {
    /// See [`array()`].
    [T] Vec<T>;
    /// See [`array()`].
    ['a, T] &'a [T];
    /// See [`array()`].
    [T, const N: usize] [T; N];
}

/// A vector of these numbers.
///
/// ```
/// # use shardax::prelude::*;
/// let x: Array = (0..4).map(|i| i as f32 / 2.0).collect();
/// assert_eq!(x.to_vec::<f32>()?, [0.0, 0.5, 1.0, 1.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
impl<T: Element> FromIterator<T> for Array {
    #[track_caller]
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Array {
        let elements: Vec<T> = elements.into_iter().collect();
        let like = Array::literal(Scalar::Int(0), T::DTYPE, false);
        Array::from_result(Array::from_slice(&elements, &[elements.len()]), &like)
    }
}

/// Creates an array of the given dtype from host values, converted as by [`Array::astype`].
///
/// ```
/// # use shardax::prelude::*;
/// let x = array_of([0.1, 0.2], DType::F64);
/// assert_eq!((ones([2]) * x).dtype(), DType::F64);
/// assert_eq!(array_of([1, 2], DType::Bf16).dtype(), DType::Bf16);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for an integer that does not fit an integer dtype.
#[track_caller]
pub fn array_of<T: IntoHostArray>(values: T, dtype: DType) -> Array {
    let _line = source::enter();
    let result = collected(&values).and_then(|(elements, shape)| {
        let mut bytes = Vec::with_capacity(elements.len() * dtype.byte_size());
        for element in elements {
            let value = element.to_scalar();
            Literal { value, dtype: T::Element::DTYPE, weak: false }.check_fits(dtype)?;
            value.write(dtype, &mut bytes);
        }
        Array::from_bytes(&bytes, dtype, shape.as_slice())
    });
    Array::from_result(result, &Array::literal(Scalar::Int(0), dtype, false))
}

/// Returns the elements in row-major order, and the shape.
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
    /// Creates an array of `shape` from elements in row-major order; weakly typed if they are `f64` (see [`array()`]).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = Array::from_slice(&[1, 2, 3, 4, 5, 6], &[2, 3])?;
    /// assert_eq!(x.type_name(), "int32[2,3]");
    /// assert!(Array::from_slice(&[1, 2, 3], &[2, 2]).is_err());
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the number of elements is not the product of the shape.
    #[track_caller]
    pub fn from_slice<T: Element>(elements: &[T], shape: &[usize]) -> Result<Array> {
        let _line = source::enter();
        bytes_of(elements, shape).and_then(|bytes| place(&bytes, Aval::for_host(T::DTYPE, shape))).at_caller()
    }

    /// Creates an array on a device or a sharding. Each device receives only its shard, straight from the host. The
    /// array is committed, as by [`device_put`](crate::device_put). If the devices belong to several processes, every
    /// process must pass the entire array, and the call checks that it is equal on all of them; for process-local parts
    /// see [`make_array_from_process_local_data`](crate::make_array_from_process_local_data).
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
    /// # Errors
    /// Also returns an error if the sharding does not divide the shape.
    #[track_caller]
    pub fn from_slice_on<T: Element>(elements: &[T], shape: &[usize], to: impl Into<Sharding>) -> Result<Array> {
        let _line = source::enter();
        let placed = bytes_of(elements, shape)
            .and_then(|bytes| put_on("from_slice_on", &bytes, Aval::for_host(T::DTYPE, shape), to.into()));
        placed.at_caller()
    }

    /// Like [`from_slice`](Array::from_slice), but takes over the memory of a `Vec`. On CPU nothing is copied if the
    /// memory begins at a multiple of 64 bytes; otherwise the copy runs in the background. Complex numbers are always
    /// copied.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = Array::from_vec(vec![1.0f32; 6], &[2, 3])?;
    /// assert_eq!(x.type_name(), "float32[2,3]");
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the number of elements is not the product of `shape`, or if the default device cannot be
    /// used.
    #[track_caller]
    pub fn from_vec<T: Element>(elements: Vec<T>, shape: &[usize]) -> Result<Array> {
        let _line = source::enter();
        let large = size_of_val(elements.as_slice()) >= MIN_BYTES_TO_SHARE && T::as_bytes(&elements).is_some();
        if !large || elements.len() != size(shape) {
            return Array::from_slice(&elements, shape);
        }
        let placed = device::uncommitted_device().and_then(|device| {
            let aval = Aval::new(T::DTYPE, shape);
            transfer_guard::check(Direction::HostToDevice, true, &aval)?;
            let data: Arc<dyn HostBytes> = Arc::new(Owned(elements));
            transfer::array_of_shared(data, aval, device, false)
        });
        placed.at_caller()
    }

    /// Creates an array of `shape` from the bytes of its elements, row-major, in the machine's byte order.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(Array::from_bytes(&[1, 2], DType::U8, &[2])?.to_vec::<u8>()?, [1, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the length does not match the shape and the dtype, and for booleans other than 0 and 1.
    #[track_caller]
    pub fn from_bytes(bytes: &[u8], dtype: DType, shape: &[usize]) -> Result<Array> {
        let _line = source::enter();
        place(bytes, Aval::new(dtype, shape)).at_caller()
    }

    /// Like [`from_bytes`](Array::from_bytes), on a device or a sharding as for
    /// [`from_slice_on`](Array::from_slice_on).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = Array::from_bytes_on(&[1, 0, 2, 0], DType::U16, &[2], &devices()?[0])?;
    /// assert!(x.committed() && x.to_vec::<u16>()? == [1, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the number of bytes does not fit `dtype` and `shape`, or if an array of this shape cannot
    /// have the sharding.
    #[track_caller]
    pub fn from_bytes_on(bytes: &[u8], dtype: DType, shape: &[usize], to: impl Into<Sharding>) -> Result<Array> {
        let _line = source::enter();
        put_on("from_bytes_on", bytes, Aval::new(dtype, shape), to.into()).at_caller()
    }

    /// Returns an array with these values that is weakly typed, or is not (see [`weak_type`](Array::weak_type)). You
    /// can use it to restore saved values. It shares the memory. It has no effect on a plain number, a traced array or
    /// a failed one.
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

    /// Returns the bytes of the elements, row-major, in the machine's byte order. Waits for the values.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([1u8, 2]).to_bytes()?, [1, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the array is traced, was deleted or failed, or if this process does not have all of its
    /// elements.
    #[track_caller]
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.bytes(false).at_caller()
    }

    /// The bytes of the elements. [`transfer_guard`](crate::transfer_guard()) distinguishes explicit from implicit
    /// reads.
    pub(super) fn bytes(&self, is_explicit: bool) -> Result<Vec<u8>> {
        let c = self.concrete_as(is_explicit)?;
        transfer_guard::check(Direction::DeviceToHost, is_explicit, &c.aval)?;
        transfer::to_host(&c)
    }

    /// The bytes of the elements at these row-major positions. The host does not copy the other elements.
    pub(super) fn bytes_at(&self, positions: &[usize]) -> Result<Vec<u8>> {
        let c = self.concrete_as(false)?;
        transfer_guard::check(Direction::DeviceToHost, false, &c.aval)?;
        transfer::elements_to_host(&c, positions)
    }

    /// Starts copying the values to the host and returns at once. The next read waits only for this copy. If you read
    /// several arrays, start the copies of all of them before you read the first. Does nothing if host and device share
    /// memory, as on CPU.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let (loss, accuracy) = (ones(()) * 0.5, ones(()) * 0.75);
    /// loss.copy_to_host_async()?;
    /// accuracy.copy_to_host_async()?;
    /// // … the next step starts …
    /// assert_eq!((loss.item::<f32>()?, accuracy.item::<f32>()?), (0.5, 0.75));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error for an array without values: deleted, donated, traced, unreduced, or one that carries an error.
    #[track_caller]
    pub fn copy_to_host_async(&self) -> Result<()> {
        self.begin_copy(false).at_caller()
    }

    /// Starts the copy that [`bytes`](Self::bytes) waits for.
    pub(super) fn begin_copy(&self, is_explicit: bool) -> Result<()> {
        // A plain number is already on the host.
        if self.is_number() {
            return Ok(());
        }
        let c = self.concrete_as(is_explicit)?;
        transfer_guard::check(Direction::DeviceToHost, is_explicit, &c.aval)?;
        c.check_values()?;
        transfer::begin_to_host(&c)
    }

    /// Returns the elements in row-major order. Waits for the values, so you should not call it in every step of a loop:
    /// the device would be idle until the host has started the next step.
    ///
    /// Integers of any dtype can be read as `usize`, to index a slice, unless one is negative.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = array([[1, 2], [3, 4]]);
    /// assert_eq!(x.to_vec::<i32>()?, [1, 2, 3, 4]);
    /// assert!(x.to_vec::<f32>().is_err());
    ///
    /// let names = ["cat", "dog"];
    /// let classes = array([[0.1, 0.9], [0.8, 0.2]]).argmax(1).to_vec::<usize>()?;
    /// assert_eq!(classes.iter().map(|class| names[*class]).collect::<Vec<_>>(), ["dog", "cat"]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if `T` is not the array's dtype, and for random keys;
    /// [`random::key_data`](crate::random::key_data) returns their words.
    #[track_caller]
    pub fn to_vec<T: HostNumber>(&self) -> Result<Vec<T>> {
        self.check()?;
        self.check_no_key().at_caller()?;
        T::read_array(self).at_caller()
    }

    /// Returns the elements, of this dtype.
    fn elements<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype() {
            let wrong = err!(Type, "an array of type {} cannot be read as {}", self.type_name(), T::DTYPE);
            return Err(wrong.help(format!(
                "read it as {}, or convert it with `astype(DType::{:?})`",
                self.dtype(),
                T::DTYPE
            )));
        }
        let c = self.concrete_as(false)?;
        transfer_guard::check(Direction::DeviceToHost, false, &c.aval)?;
        T::filled(c.aval.size(), &mut |bytes| transfer::to_host_into(&c, bytes))
    }

    /// Returns the elements, integers of any dtype.
    fn indices(&self) -> Result<Vec<usize>> {
        if !self.dtype().is_integer() {
            let wrong = err!(Type, "an array of type {} cannot be read as usize", self.type_name());
            return Err(wrong.help(format!("read it as {}; only integers can be read as usize", self.dtype())));
        }
        self.convert_elements(|element| self.index(element))
    }

    /// Converts an element to an index.
    fn index(&self, element: Scalar) -> Result<usize> {
        let Scalar::Int(number) = element else {
            return Err(err!(Runtime, "internal error: {element:?} in an array of integers; please report this"));
        };
        usize::try_from(number).map_err(|_| {
            let wrong = err!(
                Value,
                "an array of type {} has the element {number}, which does not fit in usize",
                self.type_name()
            );
            wrong.help(format!("read it as {}", self.dtype()))
        })
    }

    /// Returns the only element. Waits for the value.
    ///
    /// An integer of any dtype can be read as `usize`, unless it is negative.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([1, 2, 3]).sum(..).item::<i32>()?, 6);
    /// assert!(array([1, 2, 3]).item::<i32>().is_err());
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if there is not exactly one element, or if `T` is not the array's dtype.
    #[track_caller]
    pub fn item<T: HostNumber>(&self) -> Result<T> {
        self.check()?;
        match self.to_vec::<T>()?.as_slice() {
            [value] => Ok(*value),
            _ => Err(self.not_one_element("item")).at_caller(),
        }
    }

    /// Returns the elements as host numbers of any dtype.
    #[track_caller]
    pub(crate) fn to_scalars(&self) -> Result<Vec<Scalar>> {
        self.convert_elements(Ok)
    }

    /// Converts each element. A `Scalar` has 32 bytes, so a list of them would be larger than the array.
    #[track_caller]
    fn convert_elements<T>(&self, convert: impl Fn(Scalar) -> Result<T>) -> Result<Vec<T>> {
        self.check_no_key()?;
        let dtype = self.dtype();
        self.to_bytes()?.chunks_exact(dtype.byte_size()).map(|bytes| convert(Scalar::read(dtype, bytes))).collect()
    }

    /// Fails for random keys, which are not numbers.
    fn check_no_key(&self) -> Result<()> {
        if self.dtype().is_key() {
            Err(err!(Type, "an array of type {} cannot be read as numbers", self.type_name())
                .help("read the words of keys, which are uint32, with `random::key_data(&key)`"))
        } else {
            Ok(())
        }
    }

    /// Returns the elements as `f64`, whatever the dtype. Complex numbers lose their imaginary parts. Waits for the
    /// values.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([1, 2]).to_f64_vec()?, [1.0, 2.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the array is traced, was deleted or failed, if this process does not have all of its
    /// elements, or if its elements are random keys.
    #[track_caller]
    pub fn to_f64_vec(&self) -> Result<Vec<f64>> {
        self.convert_elements(|element| Ok(element.to_f64())).at_caller()
    }

    /// Returns the only element as `f64`, whatever the dtype. Waits for the value.
    ///
    /// # Errors
    /// Returns an error if the array does not have exactly one element, if it is traced, or if its computation
    /// failed.
    #[track_caller]
    pub fn to_f64(&self) -> Result<f64> {
        match self.to_f64_vec()?.as_slice() {
            [value] => Ok(*value),
            _ => Err(self.not_one_element("to_f64")).at_caller(),
        }
    }

    fn not_one_element(&self, name: &str) -> Error {
        err!(Value, "{name} needs an array of one element, got {}", self.type_name())
            .help("reduce or index it first, or read all elements with `to_vec`")
    }
}

/// The size in bytes from which taking over memory is faster than copying it.
const MIN_BYTES_TO_SHARE: usize = 4096;

/// A `Vec` whose memory is used by an array.
struct Owned<T>(Vec<T>);

impl<T: Element> HostBytes for Owned<T> {
    fn bytes(&self) -> &[u8] {
        T::as_bytes(&self.0).unwrap_or_default()
    }
}

/// The bytes of host elements. Fails if their number does not match the shape.
fn bytes_of<'a, T: Element>(elements: &'a [T], shape: &[usize]) -> Result<Cow<'a, [u8]>> {
    if elements.len() != size(shape) {
        return Err(err!(
            Value,
            "an array of shape {shape:?} has {} elements, but {} were given",
            size(shape),
            elements.len()
        )
        .help("pass as many elements as the product of the shape"));
    }
    if let Some(bytes) = T::as_bytes(elements) {
        return Ok(Cow::Borrowed(bytes));
    }
    let mut bytes = Vec::with_capacity(size_of_val(elements));
    elements.iter().for_each(|e| e.write(&mut bytes));
    Ok(Cow::Owned(bytes))
}

/// Creates an array on the default device from host bytes.
pub(crate) fn place(bytes: &[u8], aval: Aval) -> Result<Array> {
    let device = device::uncommitted_device()?;
    put(bytes, aval, Sharding::Single(SingleDeviceSharding::new(device)), false)
}

/// Creates an array from host bytes on the user's sharding. Checks that the bytes are equal on all processes of its
/// devices.
fn put_on(function: &str, bytes: &[u8], aval: Aval, to: Sharding) -> Result<Array> {
    check_bytes(bytes, &aval)?;
    transfer::check_same(function, bytes, &aval, &to)?;
    put(bytes, aval, to, true)
}

/// Creates an array from host bytes on a sharding.
fn put(bytes: &[u8], aval: Aval, to: Sharding, committed: bool) -> Result<Array> {
    check_bytes(bytes, &aval)?;
    transfer_guard::check(Direction::HostToDevice, true, &aval)?;
    to.check_constrained("an array of host data")?;
    transfer::array_from_host(bytes, aval, to, committed)
}

/// Fails unless `bytes` can be the bytes of an array of this type.
pub(super) fn check_bytes(bytes: &[u8], aval: &Aval) -> Result<()> {
    let need = aval.byte_size()?;
    if bytes.len() != need {
        return Err(err!(Value, "an array {aval} has {need} bytes, but got {}", bytes.len())
            .help("pass as many elements as the product of the shape, in the machine's byte order"));
    }
    // The largest valid byte, and the first byte that represents a negative number: its sign bit fills the bits above.
    let (highest, negative) = match aval.dtype {
        DType::Bool => (1, None),
        DType::Float0 => (0, None),
        DType::U2 => (3, None),
        DType::I2 => (3, Some(0xfe)),
        DType::U4 | DType::F4E2M1Fn => (15, None),
        DType::I4 => (15, Some(0xf8)),
        // Every byte of the other dtypes is valid, so their bytes are not searched.
        _ => return Ok(()),
    };
    let invalid = bytes.iter().position(|&byte| byte > highest && negative.is_none_or(|lowest| byte < lowest));
    if let Some(i) = invalid {
        return Err(err!(Value, "byte {i} of an array {aval} is {}, which is not a {}", bytes[i], aval.dtype).help(
            match aval.dtype {
                DType::Bool | DType::Float0 => "a boolean is a byte 0 or 1; compare the bytes with 0 first",
                _ => "each element takes the low bits of one byte; make them of wider numbers with `array_of`",
            },
        ));
    }
    Ok(())
}
