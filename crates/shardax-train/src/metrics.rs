//! Metrics: trees of sums that stay on the devices until they are read.
//!
//! A step returns the metrics of its batch. Metrics of several devices are added with [`psum`], metrics of many steps
//! are merged, and the host reads the result once.

use std::collections::BTreeMap;
use std::panic::Location;

use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;

use crate::sum::{Sum, widened};

/// A metric that is accumulated over batches and devices. It is a tree, so a compiled step can return it.
///
/// You can sum metrics over devices with [`psum`], except [`LastValue`], which is not a sum.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a metric",
    label = "not a metric",
    note = "`Average`, `Accuracy`, `Std`, …, or a struct of arrays with `#[derive(Tree, Clone)]` that implements `Metric`"
)]
pub trait Metric: Tree {
    /// Combines two metrics of separate data.
    fn merge(&self, other: &Self) -> Self;

    /// The value, a scalar on the device; NaN without data.
    fn compute(&self) -> Array;

    /// Waits for the value and returns it.
    ///
    /// Fails when its computation failed.
    #[track_caller]
    fn value(&self) -> Result<f64> {
        let location = Location::caller();
        self.compute().to_f64().map_err(|error| error.at(location))
    }
}

/// An average of scalars. Its sums are accurate in every dtype: values in half precision are added in float32 and
/// merged without rounding, and counts can exceed int32.
///
/// Adding a value does not wait. Reading makes the host wait for the device, so you should read once, with
/// [`value`](Metric::value), instead of in each step.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax_train::{Average, Metric};
///
/// let mut loss = Average::new();
/// loss.add(array(2.0f32));
/// loss.add(array(1.0f32));
/// assert_eq!(loss.value()?, 1.5);
///
/// // 5 right of 8, and 1 right of 2.
/// let accuracy = Average::from_sum(array(5), array(8)).merge(&Average::from_sum(array(1), array(2)));
/// assert_eq!(accuracy.value()?, 0.6000000238418579);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Tree, Clone, Debug)]
pub struct Average {
    total: Sum,
    count: Sum,
}

impl Default for Average {
    fn default() -> Self {
        Average::from_sum(zeros_dtype((), DType::F32), zeros_dtype((), DType::I32))
    }
}

impl Average {
    /// Creates an average without values.
    pub fn new() -> Self {
        Self::default()
    }

    /// Averages all of these values.
    #[track_caller]
    pub fn of(values: impl ArrayLike) -> Self {
        let sums = jit(|values: Array| {
            let count = array(i64::try_from(values.size()).unwrap_or(i64::MAX));
            Average { total: Sum::from_values(&values), count: Sum::of(&count) }
        });
        sums.call(values.into_array()).unwrap_or_else(Average::failed)
    }

    /// Averages the values where `mask`, of the same shape, is true. A numeric mask is a weight:
    /// `(loss * mask).sum() / mask.sum()`.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax_train::{Average, Metric};
    /// let loss = Average::masked(array([1.0f32, 3.0, f32::NAN]), array([true, true, false]));
    /// assert_eq!(loss.value()?, 2.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn masked(values: impl ArrayLike, mask: impl ArrayLike) -> Self {
        let (values, mask) = (values.into_array(), mask.into_array());
        if values.shape() != mask.shape() {
            let message =
                format!("Average: the values are {}, but the mask is {}", values.type_name(), mask.type_name());
            let error = Error::new(ErrorKind::Value, message).help("the mask must have one entry for each value");
            let wrong = Sum::of(&Array::from_error(error, &values.sum(..)));
            return Average { total: wrong.clone(), count: wrong };
        }
        let (values, mask) = (widened(&values), widened(&mask));
        // Masked values may be NaN, so multiplying them by 0 would not remove them.
        let chosen = where_(mask.not_equal(0), values * &mask, 0);
        Average { total: Sum::from_values(&chosen), count: Sum::from_values(&mask) }
    }

    /// Averages `count` values whose sum is `sum`; both are scalars.
    #[track_caller]
    pub fn from_sum(sum: impl ArrayLike, count: impl ArrayLike) -> Self {
        // One program, because the host waits if it is many small launches ahead of the device.
        let sums = jit(|sum: Array, count: Array| Average { total: Sum::of(&sum), count: Sum::of(&count) });
        sums.call((require_scalar(sum.into_array()), require_scalar(count.into_array())))
            .unwrap_or_else(Average::failed)
    }

    /// An average of a computation that failed.
    fn failed(error: Error) -> Self {
        let sum = Sum::failed(error);
        Average { total: sum.clone(), count: sum }
    }

    /// Returns the average so far; NaN without values. Waits for the values.
    ///
    /// # Errors
    /// Returns an error if one is not a scalar, or if its computation failed.
    #[track_caller]
    pub fn value(&self) -> Result<f64> {
        Metric::value(self)
    }

    /// Adds `value`, a scalar.
    #[track_caller]
    pub fn add(&mut self, value: impl ArrayLike) {
        self.add_sum(value, 1);
    }

    /// Adds `count` values whose sum is `sum`; both are scalars.
    #[track_caller]
    pub fn add_sum(&mut self, sum: impl ArrayLike, count: impl ArrayLike) {
        *self = self.merge(&Average::from_sum(sum, count));
    }
}

impl Metric for Average {
    #[track_caller]
    fn merge(&self, other: &Self) -> Self {
        jit(|a: Average, b: Average| Average { total: a.total.merge(&b.total), count: a.count.merge(&b.count) })
            .call((self.clone(), other.clone()))
            .unwrap_or_else(Average::failed)
    }

    fn compute(&self) -> Array {
        (self.total.value() / self.count.value()).astype(self.total.dtype())
    }
}

/// The fraction of examples whose largest logit is the label's.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax_train::{Accuracy, Metric};
/// let logits = array([[0.1f32, 0.9], [0.8, 0.2], [0.3, 0.7]]);
/// assert_eq!(Accuracy::masked(&logits, array([1, 1, 1]), array([true, true, false])).value()?, 0.5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Tree, Clone, Debug, Default)]
pub struct Accuracy(Average);

impl Accuracy {
    /// Creates a metric without values.
    pub fn new() -> Self {
        Self::default()
    }

    /// Computes the accuracy of logits `[..., classes]` and labels `[...]`.
    #[track_caller]
    pub fn of(logits: impl ArrayLike, labels: impl ArrayLike) -> Self {
        Accuracy(Average::of(right(logits.into_array(), labels.into_array())))
    }

    /// Computes the accuracy of the examples where `mask`, of the labels' shape, is true.
    #[track_caller]
    pub fn masked(logits: impl ArrayLike, labels: impl ArrayLike, mask: impl ArrayLike) -> Self {
        Accuracy(Average::masked(right(logits.into_array(), labels.into_array()), mask))
    }
}

/// True if the prediction is the label.
#[track_caller]
fn right(logits: Array, labels: Array) -> Array {
    let predictions = logits.argmax(-1);
    if predictions.shape() != labels.shape() || !labels.dtype().is_integer() {
        let message = format!("Accuracy: logits are {}, but labels are {}", logits.type_name(), labels.type_name());
        let help = "logits must be [..., classes], and labels integers of shape [...]";
        return Array::from_error(Error::new(ErrorKind::Value, message).help(help), &predictions);
    }
    predictions.equal(labels)
}

impl Metric for Accuracy {
    #[track_caller]
    fn merge(&self, other: &Self) -> Self {
        Accuracy(self.0.merge(&other.0))
    }

    fn compute(&self) -> Array {
        self.0.compute()
    }
}

/// `exp` of the average loss per token.
#[derive(Tree, Clone, Debug, Default)]
pub struct Perplexity(Average);

impl Perplexity {
    /// Creates a metric without values.
    pub fn new() -> Self {
        Self::default()
    }

    /// Computes the perplexity of tokens with these losses.
    #[track_caller]
    pub fn of(losses: impl ArrayLike) -> Self {
        Perplexity(Average::of(losses))
    }

    /// Computes the perplexity of the tokens where `mask` is true.
    #[track_caller]
    pub fn masked(losses: impl ArrayLike, mask: impl ArrayLike) -> Self {
        Perplexity(Average::masked(losses, mask))
    }
}

impl Metric for Perplexity {
    #[track_caller]
    fn merge(&self, other: &Self) -> Self {
        Perplexity(self.0.merge(&other.0))
    }

    fn compute(&self) -> Array {
        self.0.compute().exp()
    }
}

/// The population standard deviation of scalars (`ddof=0`). It is accurate even if they differ little from their mean.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax_train::{Metric, Std};
/// let std = Std::of(array([10000.0f32, 10001.0])).merge(&Std::of(array([10002.0f32, 10003.0])));
/// assert_eq!(std.value()? as f32, 1.25f32.sqrt());
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Tree, Clone, Debug)]
pub struct Std {
    count: Sum,
    total: Sum,
    /// The squared deviations from the mean of the values that one device has seen.
    deviations: Sum,
    /// `total² / count` of one device. Its sum over devices by `psum` is larger than `total² / count` of all, by the
    /// squared deviations between the devices' means.
    means: Sum,
}

impl Default for Std {
    fn default() -> Self {
        let zero = Sum::of(&zeros_dtype((), DType::F32));
        Std { count: zero.clone(), total: zero.clone(), deviations: zero.clone(), means: zero }
    }
}

impl Std {
    /// Creates a metric without values.
    pub fn new() -> Self {
        Self::default()
    }

    /// Computes the standard deviation of these values.
    #[track_caller]
    pub fn of(values: impl ArrayLike) -> Self {
        let values = values.into_array();
        let dtype = if values.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let count = array(i64::try_from(values.size()).unwrap_or(i64::MAX)).astype(DType::F64);
        let values = values.astype(DType::F64);
        let total = values.sum(..);
        let deviations = (values - &total / maximum(&count, 1.0)).square().sum(..);
        Std::from_parts(&count, &total, &deviations, dtype)
    }

    /// The metric of `count` values with this sum and these squared deviations from their mean, all float64, kept in
    /// `dtype`.
    fn from_parts(count: &Array, total: &Array, deviations: &Array, dtype: DType) -> Self {
        let [count, total, deviations] = [count, total, deviations].map(|x| Sum::in_dtype(x, dtype));
        let means = total.clone();
        let mut std = Std { count, total, deviations, means };
        std.means = Sum::in_dtype(&std.square_of_mean(), dtype);
        std
    }

    /// `total² / count`, 0 without values.
    fn square_of_mean(&self) -> Array {
        self.total.value().square() / maximum(self.count.value(), 1.0)
    }

    /// The squared deviations from the mean of all values, of all devices.
    fn all_deviations(&self) -> Array {
        // Exactly 0 unless devices were added.
        let between = self.means.value() - self.square_of_mean();
        self.deviations.value() + where_(between.isfinite(), maximum(between, 0.0), 0.0)
    }
}

impl Metric for Std {
    #[track_caller]
    fn merge(&self, other: &Self) -> Self {
        let (n, m) = (self.count.value(), other.count.value());
        let (count, total) = (&n + &m, self.total.value() + other.total.value());
        // Chan's formula for the deviations of two sets of values together: it subtracts means, not squares.
        let distance = self.total.value() / maximum(&n, 1.0) - other.total.value() / maximum(&m, 1.0);
        let between = distance.square() * (n * m / maximum(&count, 1.0));
        let deviations = self.all_deviations() + other.all_deviations() + between;
        Std::from_parts(&count, &total, &deviations, self.total.merge(&other.total).dtype())
    }

    fn compute(&self) -> Array {
        (self.all_deviations() / self.count.value()).sqrt().astype(self.total.dtype())
    }
}

/// The value of the last batch, such as a learning rate. You cannot sum it over devices, because it is not a sum.
#[derive(Tree, Clone, Debug)]
pub struct LastValue(Array);

impl LastValue {
    /// Creates a metric with this value, a scalar.
    pub fn of(value: impl ArrayLike) -> Self {
        LastValue(value.into_array())
    }
}

impl Metric for LastValue {
    fn merge(&self, other: &Self) -> Self {
        other.clone()
    }

    fn compute(&self) -> Array {
        self.0.clone()
    }
}

macro_rules! any_metric {
    ($($kind:ident)*) => {
        /// Any of the metrics of this module.
        // A program has a few of them, each with arrays on the heap.
        #[allow(clippy::large_enum_variant)]
        #[derive(Tree, Clone, Debug)]
        pub enum AnyMetric {
            $(
                #[doc = concat!("[`", stringify!($kind), "`].")]
                $kind($kind),
            )*
        }

        $(
            impl From<$kind> for AnyMetric {
                fn from(metric: $kind) -> Self {
                    AnyMetric::$kind(metric)
                }
            }
        )*

        /// Merging metrics of different kinds returns a metric that carries an error.
        impl Metric for AnyMetric {
            #[track_caller]
            fn merge(&self, other: &Self) -> Self {
                match (self, other) {
                    $((AnyMetric::$kind(a), AnyMetric::$kind(b)) => AnyMetric::$kind(a.merge(b)),)*
                    _ => {
                        let error = Error::new(ErrorKind::Type, "metrics of two kinds under one name were merged");
                        let error = error.help("use the same kind of metric under a name in each step");
                        AnyMetric::LastValue(LastValue(Array::from_error(error, &zeros_dtype((), DType::F32))))
                    }
                }
            }

            fn compute(&self) -> Array {
                match self {
                    $(AnyMetric::$kind(metric) => metric.compute(),)*
                }
            }
        }
    };
}

any_metric! { Average Accuracy Perplexity Std LastValue }

/// Named metrics.
///
/// ```
/// use shardax_nn::prelude::*;
/// use shardax_train::{Accuracy, Average, MultiMetric, Perplexity};
///
/// let step = jit(|logits: Array, labels: Array, mask: Array| {
///     let losses = softmax_cross_entropy_with_integer_labels(&logits, &labels);
///     MultiMetric::new()
///         .with("loss", Average::masked(&losses, &mask))
///         .with("perplexity", Perplexity::masked(&losses, &mask))
///         .with("accuracy", Accuracy::masked(&logits, &labels, &mask))
/// });
/// let mut window = MultiMetric::new();
/// for labels in [array([0, 1]), array([1, 1])] {
///     window = window.merge(&step.call((zeros([2, 2]), labels, array([true, true])))?);
/// }
/// let values = window.values()?;
/// assert_eq!((values["accuracy"], values["perplexity"]), (0.25, 2.0));
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Tree, Clone, Debug, Default)]
pub struct MultiMetric {
    metrics: BTreeMap<String, AnyMetric>,
}

impl MultiMetric {
    /// Creates an empty set of metrics.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metric.
    pub fn with(mut self, name: impl Into<String>, metric: impl Into<AnyMetric>) -> Self {
        self.metrics.insert(name.into(), metric.into());
        self
    }

    /// Returns the metric of this name.
    pub fn get(&self, name: &str) -> Option<&AnyMetric> {
        self.metrics.get(name)
    }

    /// Returns `true` if there is no metric.
    pub fn is_empty(&self) -> bool {
        self.metrics.is_empty()
    }

    /// Merges metrics by name; a metric that only one side has is unchanged.
    #[track_caller]
    pub fn merge(&self, other: &Self) -> Self {
        let mut metrics = self.metrics.clone();
        for (name, theirs) in &other.metrics {
            let merged = metrics.get(name).map_or_else(|| theirs.clone(), |own| own.merge(theirs));
            metrics.insert(name.clone(), merged);
        }
        MultiMetric { metrics }
    }

    /// Waits for all values once and returns them.
    ///
    /// # Errors
    /// Returns an error if a computation failed; the message names the metric.
    #[track_caller]
    pub fn values(&self) -> Result<BTreeMap<String, f64>> {
        let location = Location::caller();
        self.computed().values().map_err(|error| error.at(location))
    }

    /// All values, on the devices: their computation is enqueued now, and can be read at any time.
    pub(crate) fn computed(&self) -> Computed {
        // One program, because the host waits if it is many small launches ahead of the device. It fails if one of the
        // metrics did; computing each metric separately then tells which one.
        Computed(jit(compute_each).call(self.clone()).unwrap_or_else(|_| compute_each(self.clone())))
    }
}

fn compute_each(metrics: MultiMetric) -> BTreeMap<String, Array> {
    metrics.metrics.into_iter().map(|(name, metric)| (name, metric.compute())).collect()
}

/// The values of metrics by name, scalars that the devices can still be computing.
#[derive(Debug)]
pub(crate) struct Computed(BTreeMap<String, Array>);

impl Computed {
    /// Waits for the values and returns them by name.
    ///
    /// # Errors
    /// Returns an error if a value could not be computed; the error names the metric.
    pub fn values(self) -> Result<BTreeMap<String, f64>> {
        let mut values = BTreeMap::new();
        for (name, value) in self.0 {
            let value = value.to_f64().map_err(|error| error.context(format!("metric {name:?}")))?;
            values.insert(name, value);
        }
        Ok(values)
    }
}

/// Returns a scalar, or a failed array for an array with dimensions.
fn require_scalar(x: Array) -> Array {
    if x.error().is_some() || x.shape().is_empty() {
        return x;
    }
    let message = format!("an average accepts only scalars, got {}", x.type_name());
    let help = "compute the mean of the values first, or pass them to `Average::of`";
    Array::from_error(Error::new(ErrorKind::Value, message).help(help), &x.sum(..))
}
