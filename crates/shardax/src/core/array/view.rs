//! Views of arrays without a copy, and futures that await arrays.

use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};

use shardax_pjrt as pjrt;

use super::Array;
use crate::dtype::Element;
use crate::error::{AtCaller, Error, Result};

/// The elements of an array on the host; see [`Array::view`].
pub struct HostView<'a, T>(Elements<'a, T>);

enum Elements<'a, T> {
    InPlace(pjrt::BufferView<'a>),
    Copied(Vec<T>),
}

impl<T: Element> HostView<'_, T> {
    /// Returns `true` if the elements are read in place, without a copy.
    pub fn is_in_place(&self) -> bool {
        matches!(self.0, Elements::InPlace(_))
    }
}

/// In row-major order.
impl<T: Element> Deref for HostView<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match &self.0 {
            Elements::InPlace(bytes) => T::from_bytes(bytes).unwrap_or_default(),
            Elements::Copied(elements) => elements,
        }
    }
}

impl<T: Element> fmt::Debug for HostView<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Prevents an array from being donated or deleted; see [`Array::retain`].
#[derive(Debug)]
pub struct Retained {
    array: Array,
    _holds: Vec<pjrt::BufferReference>,
}

impl Retained {
    /// Appends the bytes of the elements, row-major, in the machine's byte order. Waits for the values.
    ///
    /// # Errors
    /// Returns an error if the computation failed, or if this process has only some of the shards.
    #[track_caller]
    pub fn copy_to(&self, out: &mut Vec<u8>) -> Result<()> {
        let location = std::panic::Location::caller();
        pjrt::BufferReference::while_copying(|| self.array.with_bytes(|bytes| out.extend_from_slice(bytes)))
            .map_err(|error| error.at(location))
    }
}

impl Array {
    /// Reads the elements in row-major order. An array in host memory that is on one device or replicated is read in
    /// place. Other arrays, booleans and complex numbers are copied, as by [`to_vec`](Array::to_vec). Waits for the
    /// values.
    ///
    /// While the view exists you can use the array, but neither donate nor delete it.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = arange(0..1000).astype(DType::F32);
    /// let values = x.view::<f32>()?;
    /// assert!(values.is_in_place());
    /// assert_eq!(values[999], 999.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if `T` is not the array's dtype.
    #[track_caller]
    pub fn view<T: Element>(&self) -> Result<HostView<'_, T>> {
        if let Some(c) = self.concrete_ref().filter(|c| c.aval.dtype == T::DTYPE && c.sharding.is_fully_replicated()) {
            c.check_alive().at_caller()?;
            let view = c.buffers.first().map(|buffer| buffer.view()).transpose();
            if let Some(view) = view.map_err(Error::from).at_caller()?.flatten()
                && T::from_bytes(&view).is_some()
            {
                return Ok(HostView(Elements::InPlace(view)));
            }
        }
        Ok(HostView(Elements::Copied(self.to_vec()?)))
    }

    /// Calls `f` with the bytes of the elements, row-major, in the machine's byte order. An array in host memory that
    /// is on one device or replicated is read in place; others are copied. Waits for the values.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let ones = array([1u16, 256, 257]).with_bytes(|bytes| bytes.iter().filter(|b| **b == 1).count())?;
    /// assert_eq!(ones, 4);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the array is traced, was deleted or failed, or if this process does not have all of its
    /// elements.
    #[track_caller]
    pub fn with_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        if let Some(c) = self.concrete_ref().filter(|c| c.sharding.is_fully_replicated()) {
            c.check_alive().at_caller()?;
            if let Some(buffer) = c.buffers.first() {
                return buffer.with_bytes(f).map_err(Error::from).at_caller();
            }
        }
        Ok(f(&self.to_bytes()?))
    }

    /// Keeps the values unchanged for work on another thread, for example while it writes them to a disk. While the
    /// returned guard exists you can use the array, but operations that donate or delete it wait. Does not wait for the
    /// values.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # shardax::config::set_num_cpu_devices(1).ok();
    /// let x = ones([4]) * 3;
    /// let values = x.retain()?;
    /// let writer = std::thread::spawn(move || {
    ///     let mut bytes = Vec::new();
    ///     values.copy_to(&mut bytes).map(|()| bytes)
    /// });
    /// // Takes the memory of `x`, once the thread has its copy.
    /// let y = jit(|x: Array| x + 1).donate_argnums([0]).call(x)?;
    /// assert_eq!(writer.join().expect("no panic")?[..4], 3.0f32.to_ne_bytes());
    /// assert_eq!(y.get(0).item::<f32>()?, 4.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// If the thread that holds the guard donates the array itself, the donation fails after ten seconds in which no
    /// other guard was dropped or copied from.
    ///
    /// # Errors
    /// Returns an error for an array without values: deleted, donated, traced, unreduced, or one that carries an error.
    #[track_caller]
    pub fn retain(&self) -> Result<Retained> {
        let c = self.concrete().at_caller()?;
        c.check_values().at_caller()?;
        let holds = c.buffers.iter().map(pjrt::BufferReference::acquire).collect::<std::result::Result<Vec<_>, _>>();
        let holds = holds.map_err(Error::from).at_caller()?;
        Ok(Retained { array: self.clone(), _holds: holds })
    }

    /// Returns a future that is ready when the values are computed or their computation has failed. It blocks no
    /// thread.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// async fn serve(x: Array) -> Result<f32> {
    ///     let y = jit(|x: Array| x.square().sum(..)).call(x)?;
    ///     y.ready().await?;
    ///     // Does not wait any more.
    ///     y.item::<f32>()
    /// }
    /// # drop(serve(ones([2])));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn ready(&self) -> Ready {
        let buffers = self.concrete_ref().map(|c| &c.buffers[..]).unwrap_or_default();
        let events: Result<Vec<pjrt::EventFuture>> =
            self.check().and_then(|()| buffers.iter().map(|buffer| Ok(buffer.ready()?.into_future())).collect());
        match events {
            Ok(waiting) => Ready { waiting, failed: None },
            Err(error) => Ready { waiting: Vec::new(), failed: Some(error) },
        }
    }
}

/// A future that resolves when an array is computed; see [`Array::ready`].
#[must_use = "a future does nothing until it is awaited"]
#[derive(Debug)]
pub struct Ready {
    waiting: Vec<pjrt::EventFuture>,
    failed: Option<Error>,
}

impl Future for Ready {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        while let Some(event) = self.waiting.last_mut() {
            match Pin::new(event).poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(result) => {
                    self.waiting.pop();
                    if let Err(error) = result {
                        self.failed.get_or_insert(error.into());
                    }
                }
            }
        }
        Poll::Ready(self.failed.clone().map_or(Ok(()), Err))
    }
}

/// Awaits the array, and resolves to it when it is computed.
impl IntoFuture for Array {
    type Output = Result<Array>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Array>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            self.ready().await?;
            Ok(self)
        })
    }
}
