//! Counts of values: bins, histograms and their edges.

use super::options::options;
use super::{checked_or_failed, convert, diff, filled, stack, to_inexact, to_strong_type, where_};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::core::sharding_like::ShardingLike;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::auto_axes::out_sharding;
use crate::ops::index::{IndexItem, IntoIndexItem};
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::sharding::PartitionSpec;

/// Counts how often each number from 0 up to `length` occurs in an array of any shape, int32. Larger numbers are not counted; negative
/// numbers count as 0.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::bincount;
/// assert_eq!(bincount(&array([1, 3, 1, 0]), 4).to_vec::<i32>()?, [1, 2, 0, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn bincount(x: impl ArrayLike, length: usize) -> Array {
    let x = &x.into_array();
    checked_or_failed(x, || {
        check_integers("bincount", x)?;
        composite1("bincount", length, std::slice::from_ref(x), |&length, args| {
            let index = args[0].ravel().maximum(0);
            Ok(vec![filled(&[length], Scalar::Int(0), DType::for_indices(&[index.size()])).at(&index).add(1)])
        })
    })
}

/// Like [`bincount`], for an array whose type has a sharding. The counts are replicated, or unreduced over the axes
/// that split `x`, which needs no communication.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::bincount_sharded;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("x", 8)])?;
/// let _mesh = set_mesh(&mesh)?;
/// let x = reshard(array([1, 1, 0, 3, 1, 2, 2, 1]), P!["x"]);
/// let counts = bincount_sharded(&x, 4, P![].unreduced(["x"]));
/// assert_eq!(counts.type_name(), "int32[4]{U:x}");
/// assert_eq!(reshard(counts, P![]).to_vec::<i32>()?, [1, 4, 2, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for counts that are split.
#[track_caller]
pub fn bincount_sharded(x: impl ArrayLike, length: usize, sharding: impl Into<ShardingLike>) -> Array {
    let x = &x.into_array();
    checked_or_failed(x, || {
        check_integers("bincount", x)?;
        let out = sharding.into().out_sharding("bincount out_sharding", &[length], &[x])?;
        let Some(out) = out else { return Ok(bincount(x, length)) };
        if out.split_axes().next().is_some() {
            return Err(err!(
                Sharding,
                "bincount: the result can only be fully replicated or fully unreduced, got out_sharding {} for an operand of type {}",
                out.spec(),
                x.type_name()
            )
            .help("split the counts afterwards with `reshard(x, spec)`"));
        }
        let index = x.ravel().maximum(0);
        Ok(filled(&[length], Scalar::Int(0), DType::for_indices(&[index.size()])).at(&index).out_sharding(out).add(1))
    })
}

fn check_integers(name: &str, x: &Array) -> Result<()> {
    if x.dtype().is_integer() || x.dtype() == DType::Bool {
        Ok(())
    } else {
        Err(err!(Type, "{name} requires integers, got {}", x.type_name())
            .help("convert them with `astype(DType::I32)`"))
    }
}

/// Computes a histogram. Returns the counts of the elements in `bins` of equal width between the smallest and the
/// largest element, float32, and the `bins + 1` edges. The last bin includes its upper edge. [`HistogramOptions`] has a
/// range, weights and densities.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::histogram;
/// let (counts, edges) = histogram(&array([0.0f32, 0.1, 0.5, 1.0]), 2);
/// assert_eq!(counts.to_vec::<f32>()?, [2.0, 2.0]);
/// assert_eq!(edges.to_vec::<f32>()?, [0.0, 0.5, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn histogram(x: impl ArrayLike, bins: impl IntoBins) -> (Array, Array) {
    HistogramOptions::new().histogram(x, bins)
}

/// Returns the edges of the bins of [`histogram`]: `bins + 1` numbers.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(histogram_bin_edges(array([0.0f32, 4.0]), 2).to_vec::<f32>()?, [0.0, 2.0, 4.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn histogram_bin_edges(x: impl ArrayLike, bins: impl IntoBins) -> Array {
    HistogramOptions::new().histogram_bin_edges(x, bins)
}

/// The bins of a histogram: the number of bins, or an array of ascending edges.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not describe the bins of a histogram",
    label = "neither a number of bins nor edges",
    note = "the number of bins, or an array of ascending edges: `histogram(&x, 10)`, `histogram(&x, array([0.0, 1.0, 2.0]))`"
)]
pub trait IntoBins {
    /// The number, or the edges.
    fn into_bins(self) -> Bins;
}

/// The number of bins, or their edges.
#[derive(Clone, Debug)]
pub enum Bins {
    /// A number of bins of equal width.
    Count(usize),
    /// The ascending edges, one more than there are bins.
    Edges(Array),
}

impl IntoBins for usize {
    fn into_bins(self) -> Bins {
        Bins::Count(self)
    }
}

impl IntoBins for Array {
    fn into_bins(self) -> Bins {
        Bins::Edges(self)
    }
}

impl IntoBins for &Array {
    fn into_bins(self) -> Bins {
        Bins::Edges(self.clone())
    }
}

options! {
    /// Options of [`histogram`](histogram()) and [`histogram_bin_edges`](histogram_bin_edges()).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::numpy::HistogramOptions;
    /// let options = HistogramOptions::new().range(0.0, 4.0).weights(array([1.0f32, 2.0, 3.0]));
    /// let (sums, _) = options.histogram(array([0.5f32, 3.0, 9.0]), 2);
    /// assert_eq!(sums.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    HistogramOptions {
        /// A weight for each element. Default 1.
        weights: Option<Array> = None, |weights: impl ArrayLike| Some(weights.into_array());
        /// If true, counts are divided by their sum and the widths of the bins. Default `false`.
        density: bool = false, |density: bool| density;
        /// The least and the greatest edge; elements beyond them are not counted. Default: the extremes of the elements.
        ends: Option<[Array; 2]> = None, |ends: [Array; 2]| Some(ends);
        /// The sharding in the type of the counts, over mesh axes of type [`Explicit`](crate::AxisType::Explicit). The
        /// edges are replicated. Elements that are split over such axes require it.
        out_sharding: Option<ShardingLike> = None, |sharding: impl Into<ShardingLike>| Some(sharding.into());
    }
}

impl HistogramOptions {
    /// Sets the least and the greatest edge; elements beyond them are not counted. Default: the extremes of the
    /// elements.
    pub fn range(self, low: impl ArrayLike, high: impl ArrayLike) -> Self {
        self.ends([low.into_array(), high.into_array()])
    }

    /// See [`histogram_bin_edges`](histogram_bin_edges()).
    #[track_caller]
    pub fn histogram_bin_edges(&self, x: impl ArrayLike, bins: impl IntoBins) -> Array {
        let x = &x.into_array();
        let bins = bins.into_bins();
        checked_or_failed(x, || {
            if x.dtype().is_complex() {
                return Err(err!(Type, "histogram does not accept complex numbers, got {}", x.type_name())
                    .help("pass an array of real numbers"));
            }
            let dtype = to_inexact(x.dtype());
            // Edges that are passed stay as they are; a number of bins needs the ends of the data.
            let bins = match bins {
                Bins::Edges(edges) if edges.ndim() == 1 && edges.size() > 1 => return Ok(edges.astype(dtype)),
                Bins::Edges(edges) => {
                    edges.check()?;
                    return Err(err!(
                        Value,
                        "histogram bins must be a vector of at least two edges, got {}",
                        edges.type_name()
                    )
                    .help("pass a vector of at least two ascending edges"));
                }
                Bins::Count(0 | 0x7fff_ffff..) => {
                    return Err(err!(Value, "histogram of {} cannot have {bins:?} bins", x.type_name())
                        .help("pass a number of bins from 1 to 2147483646"));
                }
                Bins::Count(bins) => bins,
            };
            let ends = match (&self.ends, x.size()) {
                (Some(ends), _) => ends.clone(),
                (None, 0) => [0.into_array(), 1.into_array()],
                (None, _) => [x.min(..), x.max(..)],
            };
            let [low, high] = ends.map(|end| to_strong_type(&end, dtype));
            low.check()?;
            high.check()?;
            composite1("histogram_bin_edges", bins, &[low, high], |&bins, args| {
                let (low, high) = (&args[0], &args[1]);
                let flat = low.equal(high);
                let (low, high) = (where_(&flat, low - 0.5, low), where_(&flat, high + 0.5, high));
                let part = convert(&lax::iota(DType::I32, &[bins], 0), low.dtype(), false) / bins as f64;
                let inner = &low * (1.0 - &part) + &high * part;
                Ok(vec![lax::concatenate(&[inner, lax::reshape(&high, &[1])], 0)])
            })
        })
    }

    /// See [`histogram`](histogram()).
    #[track_caller]
    pub fn histogram(&self, x: impl ArrayLike, bins: impl IntoBins) -> (Array, Array) {
        let x = &x.into_array();
        if let Some(sharding) = &self.out_sharding {
            let (options, bins) = (HistogramOptions { out_sharding: None, ..self.clone() }, bins.into_bins());
            let counts = at_caller(|| out_sharding(sharding.clone(), || options.histogram(x, bins.clone()).0));
            let edges =
                at_caller(|| out_sharding(PartitionSpec::default(), || options.histogram_bin_edges(x, bins.clone())));
            return (counts, edges);
        }
        let edges = at_caller(|| self.histogram_bin_edges(x, bins.into_bins()));
        let counts = checked_or_failed(x, || {
            edges.check()?;
            let ones = Array::literal(Scalar::Int(1), DType::F32, true);
            let weights = self.weights.as_ref().unwrap_or(&ones);
            if self.weights.is_some() && weights.shape() != x.shape() {
                return Err(err!(
                    Value,
                    "histogram weights must have the shape of the array {}, got {}",
                    x.type_name(),
                    weights.type_name()
                )
                .help("pass one weight for each element of the array"));
            }
            // Integers become floating point first, because int64 and the plain weight 1 are float32 together.
            let x = &super::promote_dtypes(&[x], to_inexact)?[0];
            let args = super::promote_dtypes(&[x, weights], to_inexact)?;
            let args = [to_strong_type(&args[0], args[0].dtype()).ravel(), args[1].ravel(), edges.clone()];
            composite1("histogram", self.density, &args, |&density, args| {
                let (x, weights, edges) = (&args[0], args[1].broadcast_to(args[0].shape()), &args[2]);
                let bins = edges.size() - 1;
                // Bin 0 has the elements before the first edge, and elements after the last edge are out of bounds.
                let edges_before = edges.searchsorted_right(x);
                let bin = where_(x.equal(edges.get(-1)), bins, edges_before);
                let counts = filled(&[bins + 1], Scalar::Int(0), x.dtype()).at(&bin).add(weights);
                let counts = lax::slice_in_dim(&counts, 1, bins + 1, 0usize);
                Ok(vec![if density { &counts / diff(edges, 1, 0) / counts.sum(..) } else { counts }])
            })
        });
        (counts, edges)
    }
}

/// Computes the histogram of points in several dimensions. `sample` has a row for each point, and `bins` has the bins of
/// each dimension. Returns the counts, int32 without weights, with a dimension for each column of `sample`; and the edges of
/// each dimension. [`HistogramOptions`] has weights and densities.
///
/// ```
/// # use shardax::prelude::*;
/// let points = array([[0.0f32, 0.0], [1.0, 0.2], [1.0, 1.0]]);
/// let (counts, edges) = histogramdd(&points, [2, 2]);
/// assert_eq!(counts.to_vec::<i32>()?, [1, 0, 1, 1]);
/// assert_eq!(edges[1].to_vec::<f32>()?, [0.0, 0.5, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn histogramdd<B: IntoBins>(sample: impl ArrayLike, bins: impl IntoIterator<Item = B>) -> (Array, Vec<Array>) {
    HistogramOptions::new().histogramdd(sample, bins)
}

/// Computes the histogram of points with these coordinates. Returns the counts and the edges of both dimensions; see
/// [`histogramdd`].
///
/// ```
/// # use shardax::prelude::*;
/// let (counts, x_edges, y_edges) = histogram2d(array([0.0f32, 1.0, 1.0]), array([0.0f32, 0.2, 1.0]), [2, 1]);
/// assert_eq!(counts.to_vec::<i32>()?, [1, 2]);
/// assert_eq!((x_edges.shape(), y_edges.shape()), (&[3][..], &[2][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn histogram2d<B: IntoBins>(x: impl ArrayLike, y: impl ArrayLike, bins: [B; 2]) -> (Array, Array, Array) {
    HistogramOptions::new().histogram2d(x, y, bins)
}

impl HistogramOptions {
    /// See [`histogram2d`](histogram2d()).
    #[track_caller]
    pub fn histogram2d<B: IntoBins>(
        &self,
        x: impl ArrayLike,
        y: impl ArrayLike,
        bins: [B; 2],
    ) -> (Array, Array, Array) {
        let (x, y) = (x.into_array(), y.into_array());
        let sample = checked_or_failed(&x, || {
            y.check()?;
            if x.ndim() != 1 || y.ndim() != 1 {
                return Err(err!(
                    Value,
                    "histogram2d needs two vectors of coordinates, got {} and {}",
                    x.type_name(),
                    y.type_name()
                )
                .help("flatten them with `ravel()`"));
            }
            Ok(stack([&x, &y], 1))
        });
        let (counts, edges) = at_caller(|| self.histogramdd(sample, bins));
        (counts, edges[0].clone(), edges[1].clone())
    }

    /// See [`histogramdd`](histogramdd()).
    #[track_caller]
    pub fn histogramdd<B: IntoBins>(
        &self,
        sample: impl ArrayLike,
        bins: impl IntoIterator<Item = B>,
    ) -> (Array, Vec<Array>) {
        let sample = sample.into_array();
        let bins: Vec<Bins> = bins.into_iter().map(IntoBins::into_bins).collect();
        // Each dimension has edges, even if they carry the error of the sample.
        let columns: Vec<Array> = (0..bins.len())
            .map(|column| {
                checked_or_failed(&sample, || self.check_sample(&sample, bins.len()).map(|()| sample.get((.., column))))
            })
            .collect();
        let edges: Vec<Array> = at_caller(|| {
            columns.iter().zip(&bins).map(|(column, bins)| self.histogram_bin_edges(column, bins.clone())).collect()
        });
        let counts = checked_or_failed(&sample, || {
            self.check_sample(&sample, bins.len())?;
            edges.iter().try_for_each(Array::check)?;
            // As in JAX, points without weights are counted by integers.
            let ones = Array::literal(Scalar::Int(1), DType::I32, false);
            let weights = self.weights.as_ref().unwrap_or(&ones);
            let points = super::promote_dtypes(&[&sample], to_inexact)?.swap_remove(0);
            let args = [&[to_strong_type(&points, points.dtype()), weights.ravel()], &edges[..]].concat();
            composite1("histogramdd", self.density, &args, |&density, args| Ok(vec![count_points(args, density)]))
        });
        (counts, edges)
    }

    /// Returns an error unless the sample is a matrix with a column for each dimension, and a weight for each row.
    fn check_sample(&self, sample: &Array, dimensions: usize) -> Result<()> {
        if dimensions == 0 || sample.ndim() != 2 || sample.shape()[1] != dimensions {
            return Err(err!(
                Value,
                "histogramdd needs a matrix with a column for each of the {dimensions} dimensions of the bins, got {}",
                sample.type_name()
            )
            .help("pass a row for each point, such as `stack([&x, &y], 1)`, and bins for each column"));
        }
        if let Some(weights) = self.weights.as_ref().filter(|weights| weights.shape() != &sample.shape()[..1]) {
            return Err(err!(
                Value,
                "histogramdd weights must have one number for each row of {}, got {}",
                sample.type_name(),
                weights.type_name()
            )
            .help("pass a vector with one weight for each point"));
        }
        if self.ends.is_some() || self.out_sharding.is_some() {
            return Err(err!(Type, "histogramdd does not have the options `range` and `out_sharding`")
                .help("pass arrays of edges as bins: `linspace(low, high, bins + 1)`"));
        }
        Ok(())
    }
}

/// Counts the points of the arguments: the sample, the weights, and the edges of each dimension.
fn count_points(args: &[Array], density: bool) -> Array {
    let (sample, edges) = (&args[0], &args[2..]);
    let weights = args[1].broadcast_to(&sample.shape()[..1]);
    // Each dimension has a bin before its first edge and a bin after its last edge, which are cut off at the end.
    let bins = edges.iter().enumerate().map(|(column, edges)| {
        let x = sample.get((.., column));
        let is_last_edge = x.equal(edges.get(-1));
        where_(is_last_edge, edges.size().saturating_sub(1), edges.searchsorted_right(&x))
    });
    let index: Vec<IndexItem> = bins.map(IntoIndexItem::into_index_item).collect();
    let shape: Vec<usize> = edges.iter().map(|edges| edges.size() + 1).collect();
    let all_counts = filled(&shape, Scalar::Int(0), weights.dtype()).at(index).add(weights);
    let inner: Vec<IndexItem> = edges.iter().map(|edges| (1..edges.size()).into_index_item()).collect();
    let counts = all_counts.get(inner);
    if !density {
        return counts;
    }
    let total = counts.sum(..);
    let per_width = edges.iter().enumerate().fold(counts, |counts, (d, edges)| {
        let mut shape = vec![1; counts.ndim()];
        shape[d] = edges.size() - 1;
        counts / lax::reshape(&diff(edges, 1, 0), &shape)
    });
    per_width / total
}

impl IntoBins for Bins {
    fn into_bins(self) -> Bins {
        self
    }
}

/// Returns the bin of each element between these edges, int32. It is the number of edges that are at most the element if the
/// edges ascend, and the number of edges that are greater if they descend.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(digitize(array([-1.0f32, 0.5, 2.5]), array([0.0f32, 1.0, 2.0])).to_vec::<i32>()?, [0, 1, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error unless the edges have one dimension.
#[track_caller]
pub fn digitize(x: impl ArrayLike, edges: impl ArrayLike) -> Array {
    let (x, edges) = (&x.into_array(), &edges.into_array());
    checked_or_failed(x, || {
        let count = edges.size();
        if edges.ndim() != 1 || count < 2 {
            return Ok(edges.searchsorted_right(x));
        }
        let descends = edges.get(-1).less(edges.get(0));
        let bins = where_(&descends, edges.flip(0), edges).searchsorted_right(x);
        Ok(where_(descends, Array::literal(Scalar::Int(count as i128), bins.dtype(), false) - &bins, &bins))
    })
}
