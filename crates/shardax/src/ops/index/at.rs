//! Updates of a part of an array: `x.at(index).set(v)`, `add`, `multiply`, `min`, `max`.

use std::borrow::Cow;

use super::IndexItem;
use super::index_plan::{self, Options};
use crate::choice::{Choice, IntoChoice};
use crate::core::array::{Array, Repr};
use crate::core::program::Aval;
use crate::core::program::trace::{at_caller, bind1, or_failed, trace};
use crate::core::sharding_like::ShardingLike;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::auto_axes::in_auto_axes;
use crate::ops::constants::filled;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::gather::GatherScatterMode;
use crate::ops::primitive::scatter::ScatterKind;
use crate::ops::shard_map::ShardMap;
use crate::shape::{AxisName, AxisSet};
use crate::sharding::{PartitionSpec, Typed, get_mesh};

/// An indexed part of an array, to be updated; see [`Array::at`].
#[derive(Clone, Debug)]
#[must_use = "a place does nothing until it is read or updated"]
pub struct At {
    array: Array,
    items: Vec<IndexItem>,
    options: Options,
    fill: Option<Array>,
    /// The text of [`mode`](Self::mode), if it names none.
    unknown_mode: Option<Choice<GatherScatterMode>>,
    out_sharding: Option<ShardingLike>,
}

/// Converts a fill value to an element of `dtype`.
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
        At {
            array: array.clone(),
            items,
            options: Options::default(),
            fill: None,
            unknown_mode: None,
            out_sharding: None,
        }
    }

    /// Sets the mode for indices that are out of bounds. By default, [`get`](Self::get) clamps the indices of integer arrays,
    /// updates drop them, and a plain number is an error. JAX's texts are accepted too: `"clip"`, `"drop"`, `"fill"` and
    /// `"promise_in_bounds"`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = array([1, 2]).at(array([0, 5])).mode("clip").set(7);
    /// assert_eq!(x.to_vec::<i32>()?, [7, 7]);
    /// assert_eq!(x.at(5).mode("clip").get().item::<i32>()?, 7);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn mode(mut self, mode: impl IntoChoice<GatherScatterMode>) -> Self {
        match mode.into_choice() {
            Choice::Value(mode) => self.options.mode = Some(mode),
            unknown => self.unknown_mode = Some(unknown),
        }
        self
    }

    /// Sets the value that [`get`](Self::get) reads out of bounds, a number or a concrete scalar, and sets the mode to
    /// [`GatherScatterMode::FillOrDrop`]. The value is converted to the array's dtype like by [`Array::astype`].
    ///
    /// [`get`](Self::get) fails for other arrays, and for a plain integer that does not fit the dtype.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = array([1, 2]).at(array([0, 5])).fill_value(-1).get();
    /// assert_eq!(x.to_vec::<i32>()?, [1, -1]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn fill_value(mut self, value: impl ArrayLike) -> Self {
        self.options.mode = Some(GatherScatterMode::FillOrDrop);
        self.fill = Some(value.into_array());
        self
    }

    /// Promises that no element is indexed twice. Updates can then happen in any order, and
    /// [`multiply`](Self::multiply) is differentiable with respect to them.
    pub fn unique_indices(mut self) -> Self {
        self.options.unique = true;
        self
    }

    /// Promises that the indices of integer arrays are in ascending order.
    pub fn indices_are_sorted(mut self) -> Self {
        self.options.sorted = true;
        self
    }

    /// Sets the sharding in the type of the result, over mesh axes of type [`Explicit`](crate::AxisType::Explicit). By
    /// default, it follows from the array's sharding if each device can read and update its shard without the others.
    pub fn out_sharding(mut self, sharding: impl Into<ShardingLike>) -> Self {
        self.out_sharding = Some(sharding.into());
        self
    }

    /// Returns the array and the arrays of the index, in the order that [`with_arrays`](Self::with_arrays) expects.
    fn arrays(&self) -> Vec<Array> {
        let of_items = self.items.iter().filter_map(|item| match item {
            IndexItem::Array(a) => Some(a.clone()),
            _ => None,
        });
        std::iter::once(self.array.clone()).chain(of_items).collect()
    }

    /// Returns this index into other arrays, without the requested sharding.
    fn with_arrays(&self, arrays: &[Array]) -> At {
        let mut remaining = arrays[1..].iter();
        let items = self.items.iter().map(|item| match item {
            IndexItem::Array(a) => IndexItem::Array(remaining.next().unwrap_or(a).clone()),
            item => item.clone(),
        });
        At { array: arrays[0].clone(), items: items.collect(), out_sharding: None, ..self.clone() }
    }

    /// Returns the indexed part, like [`Array::get`] with these options.
    #[track_caller]
    pub fn get(&self) -> Array {
        or_failed(&self.array, || {
            self.array.check()?;
            self.unknown_mode.map_or(Ok(()), |mode| mode.value("at").map(drop))?;
            if let Some(out) = &self.out_sharding {
                let arrays = self.arrays();
                return in_auto_axes(&arrays, out, |args| Ok(self.with_arrays(args).get()));
            }
            let fill = self.fill.as_ref().map(|fill| fill_of(fill, self.array.dtype())).transpose()?;
            index_plan::get(&self.array, &self.items_in_mode(), &Options { fill, ..self.options })
        })
    }

    /// Returns the array with the indexed elements set to `value`, which is broadcast. Its dtype must not be wider than
    /// the array's dtype.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = zeros([2, 3]).at((0, 1..)).set(5);
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 5.0, 5.0, 0.0, 0.0, 0.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn set(&self, value: impl ArrayLike) -> Array {
        Array::from_result(self.update(ScatterKind::Set, value.into_array()), &self.array)
    }

    /// Returns the array with `value` added to the indexed elements. An element that is indexed twice receives both
    /// values.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(zeros([3]).at(array([1, 1, 2])).add(1).to_vec::<f32>()?, [0.0, 2.0, 1.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn add(&self, value: impl ArrayLike) -> Array {
        Array::from_result(self.update(ScatterKind::Add, value.into_array()), &self.array)
    }

    /// Returns the array with `value` subtracted from the indexed elements.
    #[track_caller]
    pub fn subtract(&self, value: impl ArrayLike) -> Array {
        Array::from_result(self.update(ScatterKind::Add, -value.into_array()), &self.array)
    }

    /// Returns the array with the indexed elements multiplied by `value`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([1, 2, 3]).at(s![1..]).multiply(10).to_vec::<i32>()?, [1, 20, 30]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn multiply(&self, value: impl ArrayLike) -> Array {
        Array::from_result(self.update(ScatterKind::Mul, value.into_array()), &self.array)
    }

    /// Returns the array with the indexed elements replaced by the minimum of the element and `value`.
    #[track_caller]
    pub fn min(&self, value: impl ArrayLike) -> Array {
        Array::from_result(self.update(ScatterKind::Min, value.into_array()), &self.array)
    }

    /// Returns the array with the indexed elements replaced by the maximum of the element and `value`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(array([1, 2, 3]).at(..2).max(2).to_vec::<i32>()?, [2, 2, 3]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn max(&self, value: impl ArrayLike) -> Array {
        Array::from_result(self.update(ScatterKind::Max, value.into_array()), &self.array)
    }

    /// Returns the array with the indexed elements divided by `value`, in floating point. An element that is indexed
    /// twice is divided by both values.
    #[track_caller]
    pub fn divide(&self, value: impl ArrayLike) -> Array {
        &self.array / self.ones().multiply(value)
    }

    /// Returns the array with the indexed elements raised to the power `value`. An element that is indexed twice is
    /// raised to both powers.
    #[track_caller]
    pub fn power(&self, value: impl ArrayLike) -> Array {
        self.array.pow(self.ones().multiply(value))
    }

    /// Returns the array with `f` applied to the indexed elements, once even if an element is indexed twice.
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

    /// Returns this index into an array of ones.
    fn ones(&self) -> At {
        At { array: crate::ops::constants::ones_like(&self.array), ..self.clone() }
    }

    #[track_caller]
    fn update(&self, kind: ScatterKind, value: Array) -> Result<Array> {
        self.unknown_mode.map_or(Ok(()), |mode| mode.value("at").map(drop))?;
        if let Some(out) = &self.out_sharding {
            let mut arrays = self.arrays();
            arrays.push(value);
            arrays.iter().try_for_each(Array::check)?;
            if kind == ScatterKind::Add
                && let Some(out) = out.out_sharding("out_sharding", self.array.shape(), &[&self.array])?
                && let Some(added) = at_caller(|| self.added_apart(&arrays[1..], &out))?
            {
                return Ok(added);
            }
            return in_auto_axes(&arrays, out, |args| match args.split_last() {
                Some((value, args)) => self.with_arrays(args).update(kind, value.clone()),
                None => Ok(self.array.clone()),
            });
        }
        at_caller(|| index_plan::update(&self.array, &self.items_in_mode(), kind, &value, &self.options))
    }

    /// Returns the entries of the index. A number out of bounds becomes an array if the mode applies to it. It is an error
    /// without a mode, and if it breaks the promise to be in bounds.
    fn items_in_mode(&self) -> Cow<'_, [IndexItem]> {
        if matches!(self.options.mode, None | Some(GatherScatterMode::PromiseInBounds)) {
            return Cow::Borrowed(&self.items);
        }
        let shape = self.array.shape();
        let indexed: usize = self.items.iter().map(index_plan::axis_count).sum();
        let mut axis = 0;
        let items = self.items.iter().map(|item| {
            let size = shape.get(axis).map_or(0, |&n| n as i64);
            axis += match item {
                IndexItem::Ellipsis => shape.len().saturating_sub(indexed),
                item => index_plan::axis_count(item),
            };
            match item {
                IndexItem::At(i) if !(-size..size).contains(i) => {
                    IndexItem::Array(Array::literal(Scalar::Int(i128::from(*i)), DType::I64, false))
                }
                item => item.clone(),
            }
        });
        Cow::Owned(items.collect())
    }

    fn zeros(&self) -> Array {
        filled(self.array.shape(), Scalar::Int(0), self.array.dtype())
    }

    /// Adds values without communication: the result is unreduced over the axes that split the positions, and each
    /// device adds its values to its addend. Returns `None` if other axes split the array or the result.
    fn added_apart(&self, arrays: &[Array], out: &Typed) -> Result<Option<Array>> {
        let specs: Vec<PartitionSpec> = arrays
            .iter()
            .map(|x| x.aval().sharding().map_or_else(PartitionSpec::default, |typed| typed.spec().trimmed()))
            .collect();
        let over: AxisSet = specs.iter().flat_map(PartitionSpec::all_axes).collect();
        let apart = out.unreduced() == &over && out.split_axes().next().is_none();
        let Some(mesh) = get_mesh().filter(|_| apart && !over.is_empty()) else { return Ok(None) };
        let manual: Vec<AxisName> = mesh.axis_names().collect();
        let blocks =
            arrays.iter().zip(&specs).map(|(x, spec)| ShardMap::shard_aval(&mesh, &manual, spec, &x.aval(), true));
        let blocks: Vec<Aval> = blocks.collect::<Result<_>>()?;
        // Each device adds its updates to zeros. The sum of all devices stays unreduced, as requested.
        let body = ShardMap::bind_axes(&mesh, &manual, true, || {
            trace(&blocks, |args| {
                let place: Vec<Array> =
                    std::iter::once(self.zeros().varying_over(&over)).chain(args.iter().cloned()).collect();
                let sum = match place.split_last() {
                    Some((value, place)) => self.with_arrays(place).update(ScatterKind::Add, value.clone())?,
                    None => self.zeros(),
                };
                Ok(vec![sum.varying_over(&over)])
            })
        })?;
        let out_specs = vec![PartitionSpec::default().unreduced(over.iter())];
        let map = ShardMap { mesh, manual, in_specs: specs, out_specs, checked: true, body: body.program };
        Ok(Some(self.array.sharded(out) + bind1(map, arrays)))
    }
}
