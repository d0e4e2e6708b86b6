//! Interpolation on grids, as in
//! [`jax.scipy.interpolate`](https://docs.jax.dev/en/latest/jax.scipy.html#module-jax.scipy.interpolate).

use crate::choice::{Choice, IntoChoice, NamedOption};
use crate::core::array::Array;
use crate::core::program::trace::{at_caller, or_failed};
use crate::dtype::DType;
use crate::error::{AtCaller, Result, err};
use crate::ops::lax;
use crate::ops::numpy::{promote_dtypes, to_inexact, where_};
use crate::ops::operators::{ArrayLike, IntoArrays};

/// The rule of a [`RegularGridInterpolator`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GridMethod {
    /// Linear along each dimension.
    #[default]
    Linear,
    /// The nearest point of the grid.
    Nearest,
}

/// JAX's names.
impl NamedOption for GridMethod {
    const KIND: &'static str = "method";
    const NAMES: &'static [(&'static str, Self)] = &[("linear", GridMethod::Linear), ("nearest", GridMethod::Nearest)];
}

/// Values on a rectangular grid, interpolated between its points.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::interpolate::RegularGridInterpolator;
/// let (x, y) = (array([0.0f32, 1.0, 3.0]), array([0.0f32, 2.0]));
/// let values = x.expand_dims(1) * 10 + &y;
/// let f = RegularGridInterpolator::new([x, y], values)?;
/// assert_eq!(f.call(array([[2.0f32, 1.0]])).to_vec::<f32>()?, [21.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RegularGridInterpolator {
    points: Vec<Array>,
    values: Array,
    method: Choice<GridMethod>,
    fill_value: Option<f64>,
}

/// Appends dimensions of size 1.
fn with_dims(x: &Array, count: usize) -> Array {
    (0..count).fold(x.clone(), |x, _| x.expand_dims(-1))
}

/// The sum of the indices along each dimension, which are already multiplied by the strides.
fn flat_index(indices: impl Iterator<Item = Array>) -> Array {
    indices.reduce(|a, b| a + b).unwrap_or_else(|| Array::from(0i32))
}

impl RegularGridInterpolator {
    /// Creates an interpolator of `values`. `points` has one ascending vector of coordinates for each dimension of the
    /// grid; the grid's dimensions are the leading dimensions of `values`. Points outside of the grid result in NaN.
    ///
    /// # Errors
    /// Returns an error for shapes that do not fit, and for fewer than two points along a dimension.
    #[track_caller]
    pub fn new<Form>(points: impl IntoArrays<Form>, values: impl ArrayLike) -> Result<Self> {
        let (points, values) = (points.into_arrays(), values.into_array());
        at_caller(|| {
            points.iter().chain([&values]).try_for_each(Array::check)?;
            let fits = points
                .iter()
                .enumerate()
                .all(|(d, p)| p.ndim() == 1 && p.size() >= 2 && values.shape().get(d).is_some_and(|n| *n == p.size()));
            if points.is_empty() || !fits {
                let grid: Vec<String> = points.iter().map(Array::type_name).collect();
                return Err(err!(Value, "a grid of {grid:?} does not fit values {}", values.type_name())
                    .help("pass a vector of at least two coordinates for each leading dimension of the values"));
            }
            let values = promote_dtypes(&[&values], to_inexact)?.swap_remove(0);
            Ok(RegularGridInterpolator {
                points,
                values,
                method: Choice::Value(GridMethod::Linear),
                fill_value: Some(f64::NAN),
            })
        })
        .at_caller()
    }

    /// Sets the rule. Default linear.
    pub fn method(mut self, method: impl IntoChoice<GridMethod>) -> Self {
        self.method = method.into_choice();
        self
    }

    /// Sets the value for points outside of the grid; `None` extrapolates. Default NaN.
    pub fn fill_value(mut self, value: impl Into<Option<f64>>) -> Self {
        self.fill_value = value.into();
        self
    }

    /// Interpolates the values at points `[..., d]`, whose last dimension has the coordinates.
    ///
    /// # Errors
    /// The result carries an error if a point has more or fewer coordinates than the grid has dimensions.
    #[track_caller]
    pub fn call(&self, xi: impl ArrayLike) -> Array {
        let xi = xi.into_array();
        or_failed(&xi, || self.at(&xi))
    }

    fn at(&self, xi: &Array) -> Result<Array> {
        xi.check()?;
        let d = self.points.len();
        if xi.shape().last() != Some(&d) {
            return Err(err!(Value, "the points {} do not have the {d} dimensions of the grid", xi.type_name())
                .help("pass points whose last dimension has one coordinate for each dimension of the grid"));
        }
        let axis = xi.ndim() - 1;
        // For each dimension, the index of the grid point below, and the fraction of the way to the next grid point.
        let mut places = Vec::new();
        // The positions in the flattened grid can exceed int32, even if no index of a dimension does.
        let grid_size = self.values.shape()[..d].iter().product();
        let dtype = DType::for_indices(&[grid_size]);
        let mut outside: Option<Array> = None;
        for (i, grid) in self.points.iter().enumerate() {
            let args =
                promote_dtypes(&[&lax::slice_in_dim(xi, i, i + 1, axis).squeeze(axis as i32), grid], to_inexact)?;
            let (x, grid) = (&args[0], &args[1]);
            let n = grid.size();
            let below = (grid.searchsorted(x) - 1).maximum(0).minimum(n as i64 - 2);
            let (low, high) = (grid.take(&below, 0), grid.take(&below + 1, 0));
            let beyond = x.less(grid.get(0)) | x.greater(grid.get(-1)) | x.isnan();
            outside = Some(outside.map_or(beyond.clone(), |outside| outside | beyond));
            places.push((below.astype(dtype), (x - &low) / (high - low)));
        }
        let strides: Vec<i64> =
            (0..d).map(|i| self.values.shape()[i + 1..d].iter().product::<usize>() as i64).collect();
        let value_shape = &self.values.shape()[d..];
        let flat = lax::reshape(&self.values, &[&[grid_size], value_shape].concat());
        let y = match self.method.value("RegularGridInterpolator")? {
            GridMethod::Nearest => {
                let index = places
                    .iter()
                    .zip(&strides)
                    .map(|((below, share), stride)| where_(share.less_equal(0.5), below, below + 1) * *stride);
                flat.take(flat_index(index), 0)
            }
            GridMethod::Linear => {
                // A corner of the cell around a point has one bit for each dimension, which is set for the upper grid point.
                let corners = (0..1usize << d).map(|corner| {
                    let is_upper: Vec<bool> = (0..d).map(|dim| corner >> dim & 1 == 1).collect();
                    let shares = places
                        .iter()
                        .zip(&is_upper)
                        .map(|((_, share), is_upper)| if *is_upper { share.clone() } else { 1 - share });
                    let weight = shares.reduce(|a, b| a * b);
                    let index = places
                        .iter()
                        .zip(&strides)
                        .zip(&is_upper)
                        .map(|(((below, _), stride), is_upper)| (below + i64::from(*is_upper)) * *stride);
                    let value = flat.take(flat_index(index), 0);
                    value * with_dims(&weight.unwrap_or_else(|| Array::from(1)), value_shape.len())
                });
                corners.reduce(|sum, weighted| sum + weighted).unwrap_or_else(|| flat.clone())
            }
        };
        Ok(match (self.fill_value, outside) {
            (Some(value), Some(outside)) => where_(with_dims(&outside, value_shape.len()), value, &y).astype(y.dtype()),
            _ => y,
        })
    }
}
