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
    /// The array with its elements converted, as by [`Array::astype`].
    #[track_caller]
    pub fn astype(&self, dtype: DType) -> BCOO {
        self.with_data(self.data.astype(dtype))
    }

    /// The product of each element with that of a scalar or an array that broadcasts to the array's shape (`m * x`).
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
    /// The result's data carry an error for an array of another shape.
    #[track_caller]
    pub fn multiply(&self, x: impl ArrayLike) -> BCOO {
        let x = x.into_array();
        let made = at_caller(|| Ok(&self.data * self.factors(&x)?));
        self.with_data(Array::from_result(made, &self.data))
    }

    /// The elements of a dense array that belong to the stored ones, as a factor of `data`.
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
            .help("give an array that broadcasts to the sparse array's shape, or convert with `todense`"));
        }
        let new: Vec<i32> = (0..(self.ndim() - x.ndim()) as i32).collect();
        let x = if new.is_empty() { x.clone() } else { x.expand_dims(new.as_slice()) };
        if self.n_sparse() == 0 {
            return Ok(x.expand_dims(0));
        }
        // The data have no elements along a dimension of size 1, so its only index is read.
        let at = column_arrays(&self.indices).into_iter().zip(x.shape());
        let at = at.map(|(column, &size)| IndexItem::Array(if size == 1 { column * 0 } else { column }));
        Ok(x.get(at.collect::<Vec<_>>()))
    }

    /// The elements of both arrays; those with the same indices are added by what reads them.
    fn joined(&self, other: &BCOO, name: &str, of_other: impl FnOnce(&Array) -> Array) -> BCOO {
        let made = || {
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
                .help("give arrays of one shape, with the same sparse dimensions"));
            }
            let data = promote_dtypes(&[&self.data, &of_other(&other.data)], |dtype| dtype)?;
            let indices = promote_dtypes(&[&self.indices, &other.indices], |dtype| dtype)?;
            Ok((lax::concatenate(&data, 0), lax::concatenate(&indices, 0)))
        };
        match at_caller(made) {
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
                let made = at_caller(|| Ok(&self.data / self.factors(&x)?));
                self.with_data(Array::from_result(made, &self.data))
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
                self.joined(other, "add", Array::clone)
            }
        }

        impl Sub<&BCOO> for $type {
            type Output = BCOO;
            #[track_caller]
            fn sub(self, other: &BCOO) -> BCOO {
                self.joined(other, "subtract", |data| -data)
            }
        }
    )*};
}

operators!(BCOO & BCOO);
