//! Losses of segmentations that measure the overlap of regions.

use shardax::nn::{sigmoid, softmax};
use shardax::prelude::*;

use crate::check::{floating, require, same_shape};
use crate::ranks::allow_any_ranks;

/// Options of the [`dice_loss`].
///
/// ```
/// use shardax_nn::losses::DiceOptions;
/// use shardax_nn::prelude::*;
/// let (logits, targets) = (zeros([1, 4, 2]), one_hot(array([[0, 0, 1, 1]]), 2));
/// let loss = DiceOptions::new().dice_loss(&logits, &targets);
/// let foreground = DiceOptions::new().ignore_background(true).dice_loss(&logits, &targets);
/// assert!(allclose(loss, foreground, 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing until `dice_loss` is called"]
pub struct DiceOptions {
    class_weights: Option<Array>,
    smooth: f64,
    alpha: f64,
    beta: f64,
    apply_softmax: bool,
    ignore_background: bool,
}

impl Default for DiceOptions {
    fn default() -> Self {
        let (alpha, beta) = (0.5, 0.5);
        DiceOptions { class_weights: None, smooth: 1.0, alpha, beta, apply_softmax: true, ignore_background: false }
    }
}

impl DiceOptions {
    /// Creates the default options, which are Optax's defaults.
    pub fn new() -> Self {
        DiceOptions::default()
    }

    /// Sets a weight for each class, `[classes]`. Default none.
    pub fn class_weights(mut self, weights: impl ArrayLike) -> Self {
        self.class_weights = Some(weights.into_array());
        self
    }

    /// Sets the number that is added to numerator and denominator. Default 1.
    pub fn smooth(mut self, smooth: f64) -> Self {
        self.smooth = smooth;
        self
    }

    /// Sets the weight of false positives. Default 0.5.
    pub fn alpha(mut self, alpha: f64) -> Self {
        self.alpha = alpha;
        self
    }

    /// Sets the weight of false negatives. Default 0.5.
    pub fn beta(mut self, beta: f64) -> Self {
        self.beta = beta;
        self
    }

    /// Sets whether predictions are logits; otherwise they are probabilities. Default true.
    pub fn apply_softmax(mut self, apply: bool) -> Self {
        self.apply_softmax = apply;
        self
    }

    /// Sets whether the first of several classes is ignored. Default false.
    pub fn ignore_background(mut self, ignore: bool) -> Self {
        self.ignore_background = ignore;
        self
    }

    /// Computes [`dice_loss`] with these options.
    #[track_caller]
    pub fn dice_loss(&self, predictions: impl ArrayLike, targets: impl ArrayLike) -> Array {
        self.loss_of_classes(predictions.into_array(), targets.into_array(), |loss| loss.mean(-1))
    }

    /// Computes the losses of all classes, `[batch, classes]`, and reduces them.
    fn loss_of_classes(&self, predictions: Array, targets: Array, reduce: impl Fn(Array) -> Array) -> Array {
        require!(
            &predictions,
            floating("dice_loss", "predictions", &predictions),
            targets.check(),
            same_shape("dice_loss", ("predictions", predictions.shape()), ("targets", targets.shape())),
        );
        let classes = predictions.shape().last().copied().unwrap_or(1);
        let probabilities = match (self.apply_softmax, classes) {
            (false, _) => predictions,
            (true, 1) => sigmoid(predictions),
            (true, _) => softmax(predictions, -1),
        };
        // Areas are sums over the spatial dimensions. There may be no spatial dimension.
        let spatial: Vec<i32> = (1..probabilities.ndim() as i32 - 1).collect();
        let [overlap, predicted, expected] = [&probabilities * &targets, probabilities, targets]
            .map(|x| if spatial.is_empty() { x } else { x.sum(spatial.as_slice()) });
        let (false_positives, false_negatives) = (predicted - &overlap, expected - &overlap);
        let denominator = &overlap + self.alpha * false_positives + self.beta * false_negatives + self.smooth;
        let loss = 1 - (overlap + self.smooth) / denominator;
        let loss = match &self.class_weights {
            Some(weights) => {
                let _ranks = allow_any_ranks();
                loss * weights
            }
            None => loss,
        };
        let loss = if self.ignore_background && classes > 1 {
            shardax::lax::slice_in_dim(&loss, 1, classes, -1)
        } else {
            loss
        };
        reduce(loss)
    }
}

/// Returns the dice loss: one minus the overlap of predicted and true regions relative to their sizes, averaged over
/// classes. The result is `[batch]` for logits and one-hot targets `[batch, …, classes]`. A single class is binary. See
/// [`DiceOptions`] for options.
///
/// Source: [Milletari et al. 2016](https://arxiv.org/abs/1606.04797).
///
/// ```
/// use shardax_nn::losses::dice_loss;
/// use shardax_nn::prelude::*;
/// let targets = one_hot(array([[0, 1, 1]]), 2);
/// let right = dice_loss(&targets * 100, &targets).mean(..);
/// assert!(right.item::<f32>()? < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn dice_loss(predictions: impl ArrayLike, targets: impl ArrayLike) -> Array {
    DiceOptions::new().dice_loss(predictions, targets)
}

/// Returns the [`dice_loss`] of one class. Logits and targets are `[batch, …]`, or have a last dimension of 1.
#[track_caller]
pub fn binary_dice_loss(predictions: impl ArrayLike, targets: impl ArrayLike) -> Array {
    let (predictions, targets) = (predictions.into_array(), targets.into_array());
    if predictions.ndim() == targets.ndim() && predictions.shape().last() != Some(&1) {
        dice_loss(predictions.expand_dims(-1), targets.expand_dims(-1))
    } else {
        dice_loss(predictions, targets)
    }
}

/// Returns the [`dice_loss`] with classes weighted by the inverse squares of their frequencies, a scalar.
///
/// Source: [Sudre et al. 2017](https://arxiv.org/abs/1707.03237).
#[track_caller]
pub fn multiclass_generalized_dice_loss(predictions: impl ArrayLike, targets: impl ArrayLike) -> Array {
    let (predictions, targets) = (predictions.into_array(), targets.into_array());
    require!(&predictions, predictions.check(), targets.check());
    let outer: Vec<i32> = (0..targets.ndim() as i32 - 1).collect();
    let frequency = if outer.is_empty() { targets.clone() } else { targets.sum(outer.as_slice()) };
    let weights = 1 / (frequency.square() + 1e-7);
    let weights = &weights / weights.sum(..) * targets.shape().last().copied().unwrap_or(1) as f64;
    DiceOptions::new().class_weights(weights).loss_of_classes(predictions, targets, |loss| loss.mean(..))
}
