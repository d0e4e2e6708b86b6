//! Updates at a place of an array: `x.at(index).set(v)`, `add`, `multiply`, `min`, `max`.

use super::IndexItem;
use super::index_plan::{self, Options};
use crate::core::array::{Array, Repr};
use crate::core::program::trace::at_caller;
use crate::core::sharding_like::ShardingLike;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::auto_axes::in_auto_axes;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::gather::GatherScatterMode;
use crate::ops::primitive::scatter::ScatterKind;

/// A place in an array; see [`Array::at`].
#[derive(Clone, Debug)]
#[must_use = "a place does nothing until it is read or updated"]
pub struct At {
    array: Array,
    items: Vec<IndexItem>,
    options: Options,
    fill: Option<Array>,
    out_sharding: Option<ShardingLike>,
}

/// The number that a fill value is, as an element of `dtype`.
fn fill_of(fill: &Array, dtype: DType) -> Result<Scalar> {
    fill.check()?;
    fill.check_fits(dtype)?;
    if let Repr::Literal(number) = &fill.0 {
        return Ok(number.value);
    }
    let scalars = fill.to_scalars().map_err(|e| e.context("fill_value of an indexed get()"))?;
    match (fill.ndim(), scalars.as_slice()) {
        (0, [value]) => Ok(*value),
        _ => Err(err!(Value, "fill_value argument to indexed get() must be a scalar, got {}", fill.type_name())
            .help("use `where_` to choose among the elements of an array")),
    }
}

impl At {
    pub(crate) fn new(array: &Array, items: Vec<IndexItem>) -> Self {
        At { array: array.clone(), items, options: Options::default(), fill: None, out_sharding: None }
    }

    /// What is done with places of integer arrays that are out of bounds: by default [`get`](Self::get) clamps them,
    /// and updates drop them.
    pub fn mode(mut self, mode: GatherScatterMode) -> Self {
        self.options.mode = Some(mode);
        self
    }

    /// Out of bounds, [`get`](Self::get) reads `value`, a number or a scalar whose value is known (and the mode is
    /// [`GatherScatterMode::FillOrDrop`]). It is converted to the array's dtype as by [`Array::astype`].
    ///
    /// [`get`](Self::get) fails for other arrays, and for a plain integer that the dtype cannot hold.
    pub fn fill_value(mut self, value: impl ArrayLike) -> Self {
        self.options.mode = Some(GatherScatterMode::FillOrDrop);
        self.fill = Some(value.into_array());
        self
    }

    /// The caller vouches that no element is named twice: updates may then be made in any order, and
    /// [`multiply`](Self::multiply) can be differentiated with respect to them.
    pub fn unique_indices(mut self) -> Self {
        self.options.unique = true;
        self
    }

    /// The caller vouches that the places of integer arrays ascend.
    pub fn indices_are_sorted(mut self) -> Self {
        self.options.sorted = true;
        self
    }

    /// The sharding in the type of the result, over mesh axes of type [`Explicit`](crate::AxisType::Explicit). Default: that
    /// which follows from the array's, where each device has what it reads or updates.
    pub fn out_sharding(mut self, sharding: impl Into<ShardingLike>) -> Self {
        self.out_sharding = Some(sharding.into());
        self
    }

    /// The array and the arrays of the index, which [`with_arrays`](Self::with_arrays) takes.
    fn arrays(&self) -> Vec<Array> {
        let of_items = self.items.iter().filter_map(|item| match item {
            IndexItem::Array(a) => Some(a.clone()),
            _ => None,
        });
        std::iter::once(self.array.clone()).chain(of_items).collect()
    }

    /// The same place in other arrays, without a sharding asked for.
    fn with_arrays(&self, arrays: &[Array]) -> At {
        let mut rest = arrays[1..].iter();
        let items = self.items.iter().map(|item| match item {
            IndexItem::Array(a) => IndexItem::Array(rest.next().unwrap_or(a).clone()),
            item => item.clone(),
        });
        At { array: arrays[0].clone(), items: items.collect(), out_sharding: None, ..self.clone() }
    }

    /// The part at the place, as [`Array::get`] with the options that were set.
    #[track_caller]
    pub fn get(&self) -> Array {
        let get = || {
            self.array.check()?;
            if let Some(out) = &self.out_sharding {
                let arrays = self.arrays();
                return in_auto_axes(&arrays, out, |args| Ok(self.with_arrays(args).get()));
            }
            let fill = self.fill.as_ref().map(|fill| fill_of(fill, self.array.dtype())).transpose()?;
            index_plan::get(&self.array, &self.items, &Options { fill, ..self.options })
        };
        Array::from_result(at_caller(get), &self.array)
    }

    /// The array with `value` at the place, broadcast to it. Its dtype must not be wider than the array's.
    #[track_caller]
    pub fn set(&self, value: impl ArrayLike) -> Array {
        Array::from_result(self.update(ScatterKind::Set, value.into_array()), &self.array)
    }

    /// The array with `value` added at the place; where a place is named twice, both are added.
    #[track_caller]
    pub fn add(&self, value: impl ArrayLike) -> Array {
        Array::from_result(self.update(ScatterKind::Add, value.into_array()), &self.array)
    }

    /// The array with `value` subtracted at the place.
    #[track_caller]
    pub fn subtract(&self, value: impl ArrayLike) -> Array {
        Array::from_result(self.update(ScatterKind::Add, -value.into_array()), &self.array)
    }

    /// The array multiplied by `value` at the place.
    #[track_caller]
    pub fn multiply(&self, value: impl ArrayLike) -> Array {
        Array::from_result(self.update(ScatterKind::Mul, value.into_array()), &self.array)
    }

    /// The array with the smaller of itself and `value` at the place.
    #[track_caller]
    pub fn min(&self, value: impl ArrayLike) -> Array {
        Array::from_result(self.update(ScatterKind::Min, value.into_array()), &self.array)
    }

    /// The array with the larger of itself and `value` at the place.
    #[track_caller]
    pub fn max(&self, value: impl ArrayLike) -> Array {
        Array::from_result(self.update(ScatterKind::Max, value.into_array()), &self.array)
    }

    /// The array divided by `value` at the place, floating point; where a place is named twice, by both.
    #[track_caller]
    pub fn divide(&self, value: impl ArrayLike) -> Array {
        &self.array / self.ones().multiply(value)
    }

    /// The array to the power `value` at the place; where a place is named twice, to both.
    #[track_caller]
    pub fn power(&self, value: impl ArrayLike) -> Array {
        self.array.pow(self.ones().multiply(value))
    }

    /// The array with `f` of the elements at the place there; where a place is named twice, once.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = array([1.0f32, 4.0, 9.0]).at(1..).apply(|x| x.sqrt());
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0, 3.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn apply(&self, f: impl FnOnce(Array) -> Array) -> Array {
        self.set(f(self.get()))
    }

    /// The same place in an array of ones.
    fn ones(&self) -> At {
        At { array: crate::ops::numpy::ones_like(&self.array), ..self.clone() }
    }

    #[track_caller]
    fn update(&self, kind: ScatterKind, value: Array) -> Result<Array> {
        if let Some(out) = &self.out_sharding {
            let mut arrays = self.arrays();
            arrays.push(value);
            arrays.iter().try_for_each(Array::check)?;
            return in_auto_axes(&arrays, out, |args| match args.split_last() {
                Some((value, args)) => self.with_arrays(args).update(kind, value.clone()),
                None => Ok(self.array.clone()),
            });
        }
        at_caller(|| index_plan::update(&self.array, &self.items, kind, &value, &self.options))
    }
}
