//! Elementwise operations that map zero to zero.

use std::ops::{Add, Div, Mul, Neg, Sub};

use super::bcoo::{BCOO, column_arrays, extract};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::index::IndexItem;
use crate::ops::lax;
use crate::ops::numpy::promote_dtypes;
use crate::ops::operators::ArrayLike;
use crate::shape::broadcast_shapes;

impl BCOO {
    /// Converts the elements to a dtype, like [`Array::astype`].
    #[track_caller]
    pub fn astype(&self, dtype: DType) -> BCOO {
        self.with_data(self.data.astype(dtype))
    }

    /// Multiplies by a scalar, or elementwise by an array that broadcasts to the sparse array's shape (`m * x`).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::experimental::sparse::BCOO;
    /// let m = BCOO::fromdense(array([[0.0f32, 2.0], [1.0, 0.0]]), None)?;
    /// assert_eq!((&m * 3).todense().to_vec::<f32>()?, [0.0, 6.0, 3.0, 0.0]);
    /// assert_eq!((&m * array([10.0f32, 20.0])).todense().to_vec::<f32>()?, [0.0, 40.0, 10.0, 0.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// If the array does not broadcast, the result's data carry an error.
    #[track_caller]
    pub fn multiply(&self, x: impl ArrayLike) -> BCOO {
        let x = x.into_array();
        let products = at_caller(|| Ok(&self.data * self.factors(&x)?));
        self.with_data(Array::from_result(products, &self.data))
    }

    /// Returns the elements of a dense array at the indices of the stored elements, in a shape that broadcasts against
    /// `data`.
    fn factors(&self, x: &Array) -> Result<Array> {
        self.check()?;
        x.check()?;
        if x.ndim() == 0 {
            return Ok(x.clone());
        }
        if x.shape() == self.shape {
            return Ok(extract(&self.indices, x));
        }
        if broadcast_shapes(&[&self.shape, x.shape()]).as_deref() != Some(&self.shape[..]) {
            return Err(err!(
                NotImplemented,
                "the product of a sparse array of shape {:?} and {} would have another shape",
                self.shape,
                x.type_name()
            )
            .help(
                "use an array that broadcasts to the sparse array's shape, or convert the sparse array with `todense`",
            ));
        }
        let missing_dims: Vec<i32> = (0..(self.ndim() - x.ndim()) as i32).collect();
        let x = if missing_dims.is_empty() { x.clone() } else { x.expand_dims(missing_dims.as_slice()) };
        if self.n_sparse() == 0 {
            return Ok(x.expand_dims(0));
        }
        // A dimension of size 1 broadcasts, so that every element reads its only entry.
        let columns = column_arrays(&self.indices).into_iter().zip(x.shape());
        let index = columns.map(|(column, &size)| IndexItem::Array(if size == 1 { column * 0 } else { column }));
        Ok(x.get(index.collect::<Vec<_>>()))
    }

    /// Concatenates the stored elements of both arrays, and applies `map` to the data of `other`. The result is the sum,
    /// because readers of a sparse array add elements with the same indices.
    fn concatenate(&self, other: &BCOO, name: &str, map: impl FnOnce(&Array) -> Array) -> BCOO {
        let parts = at_caller(|| {
            self.check()?;
            other.check()?;
            if self.shape != other.shape || self.n_sparse() != other.n_sparse() {
                return Err(err!(
                    Value,
                    "{name} of sparse arrays of shapes {:?} and {:?}, with {} and {} sparse dimensions",
                    self.shape,
                    other.shape,
                    self.n_sparse(),
                    other.n_sparse()
                )
                .help("both arrays must have the same shape and the same number of sparse dimensions"));
            }
            let data = promote_dtypes(&[&self.data, &map(&other.data)], |dtype| dtype)?;
            let indices = promote_dtypes(&[&self.indices, &other.indices], |dtype| dtype)?;
            Ok((lax::concatenate(&data, 0), lax::concatenate(&indices, 0)))
        });
        match parts {
            Ok((data, indices)) => BCOO { data, indices, shape: self.shape.clone() },
            Err(e) => self.with_data(Array::from_result(Err(e), &self.data)),
        }
    }
}

macro_rules! operators {
    ($($type:ty)*) => {$(
        impl<X: ArrayLike> Mul<X> for $type {
            type Output = BCOO;
            #[track_caller]
            fn mul(self, x: X) -> BCOO {
                self.multiply(x)
            }
        }

        impl<X: ArrayLike> Div<X> for $type {
            type Output = BCOO;
            #[track_caller]
            fn div(self, x: X) -> BCOO {
                let x = x.into_array();
                let quotients = at_caller(|| Ok(&self.data / self.factors(&x)?));
                self.with_data(Array::from_result(quotients, &self.data))
            }
        }

        impl Neg for $type {
            type Output = BCOO;
            #[track_caller]
            fn neg(self) -> BCOO {
                self.with_data(-&self.data)
            }
        }

        impl Add<&BCOO> for $type {
            type Output = BCOO;
            #[track_caller]
            fn add(self, other: &BCOO) -> BCOO {
                self.concatenate(other, "add", Array::clone)
            }
        }

        impl Sub<&BCOO> for $type {
            type Output = BCOO;
            #[track_caller]
            fn sub(self, other: &BCOO) -> BCOO {
                self.concatenate(other, "subtract", |data| -data)
            }
        }
    )*};
}

operators!(BCOO & BCOO);
