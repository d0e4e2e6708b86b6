//! Connectionist temporal classification: a loss for labels of a sequence whose positions in time are unknown.

use shardax::nn::{log_softmax, one_hot};
use shardax::prelude::*;
use shardax::{Error, ErrorKind};

use crate::check::{FINITE, floating, integer, same_shape, within};

/// Returns the connectionist temporal classification (CTC) loss of each sequence: minus the logarithm of the
/// probability of `labels`, summed over all alignments with `logits`.
///
/// | argument | type |
/// |---|---|
/// | `logits` | `[batch, time, classes]`, floating point |
/// | `logit_paddings` | `[batch, time]`: 1 where a step is padding, 0 elsewhere |
/// | `labels` | `[batch, labels]`, integers; a label below 0 or beyond the classes is emitted with probability 1, as in Optax: mark padding in `label_paddings` instead |
/// | `label_paddings` | `[batch, labels]`, like `logit_paddings`; padding must be at the end |
/// | `blank_id` | the class that means no label; Optax's default is 0 |
/// | `log_epsilon` | the number that replaces the logarithm of 0; Optax's default is -1e5 |
///
/// The result is `[batch]`. If the shapes do not match, the result is an error.
///
/// Source: [Graves et al. 2006](https://dl.acm.org/doi/abs/10.1145/1143844.1143891).
///
/// ```
/// use shardax_nn::prelude::*;
/// // Two steps, the label 1: "1 1", "- 1" and "1 -", each with probability 1/9.
/// let loss = ctc_loss(zeros([1, 2, 3]), zeros([1, 2]), array([[1]]), zeros([1, 1]), 0, -1e5);
/// assert!((loss.item::<f32>()? - 3.0f32.ln()).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn ctc_loss(
    logits: impl ArrayLike,
    logit_paddings: impl ArrayLike,
    labels: impl ArrayLike,
    label_paddings: impl ArrayLike,
    blank_id: usize,
    log_epsilon: f64,
) -> Array {
    ctc_loss_with_forward_probs(logits, logit_paddings, labels, label_paddings, blank_id, log_epsilon).0
}

/// Computes [`ctc_loss`] and the logarithms of the forward probabilities. You can use them to decode an alignment.
/// Their shapes are `[time, batch, labels + 1]` for the blanks between labels, and `[time, batch, labels]` for the
/// labels.
#[track_caller]
pub fn ctc_loss_with_forward_probs(
    logits: impl ArrayLike,
    logit_paddings: impl ArrayLike,
    labels: impl ArrayLike,
    label_paddings: impl ArrayLike,
    blank_id: usize,
    log_epsilon: f64,
) -> (Array, Array, Array) {
    let logits = logits.into_array();
    let (paddings, labels) = (logit_paddings.into_array(), labels.into_array());
    match forward(&logits, paddings, labels, label_paddings.into_array(), blank_id, log_epsilon) {
        Ok(results) => results,
        Err(error) => {
            let failed = Array::from_error(error, &logits);
            (failed.clone(), failed.clone(), failed)
        }
    }
}

/// Computes the loss and the forward probabilities, after checking the arguments.
fn forward(
    logits: &Array,
    logit_paddings: Array,
    labels: Array,
    label_paddings: Array,
    blank_id: usize,
    log_epsilon: f64,
) -> Result<(Array, Array, Array)> {
    let name = "ctc_loss";
    floating(name, "logits", logits)?;
    integer(name, "labels", &labels)?;
    within(name, "log_epsilon", log_epsilon, FINITE)?;
    logit_paddings.check()?;
    label_paddings.check()?;
    let (&[batch, time, classes], &[_, longest]) = (logits.shape(), labels.shape()) else {
        let message = format!(
            "{name}: expected logits of rank 3 and labels of rank 2, got {} and {}",
            logits.type_name(),
            labels.type_name()
        );
        return Err(Error::new(ErrorKind::Value, message));
    };
    same_shape(name, ("labels", labels.shape()), ("label_paddings", label_paddings.shape()))?;
    same_shape(name, ("logits without the classes", &[batch, time]), ("logit_paddings", logit_paddings.shape()))?;
    same_shape(name, ("labels", labels.shape()), ("a batch like the logits'", &[batch, longest]))?;
    if blank_id >= classes {
        let message = format!("{name}: blank_id must be one of the {classes} classes, got {blank_id}");
        return Err(Error::new(ErrorKind::Value, message));
    }

    // Sums over time are in float32 at least, also if paddings and labels have other dtypes.
    let dtype = if logits.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let logit_paddings = logit_paddings.astype(dtype);
    let logs = log_softmax(logits, -1).astype(dtype);
    let lengths = -label_paddings.sum(1).astype(DType::I32) + longest;
    let repeat = labels.get((.., ..-1)).equal(labels.get((.., 1..))).astype(dtype);
    let repeat = pad(&repeat, &[(0, 0), (0, 1)], PadMode::Constant(0.0));
    // The loop is over time, so it becomes the first dimension.
    let blank = blank_id as i64;
    let log_blank = logs.get((.., .., blank..blank + 1)).transpose(&[1, 0, 2]);
    let log_labels = einsum("btk,bnk->tbn", &[&logs, &one_hot(&labels, classes).astype(dtype)]);
    let nothing = zeros_dtype([batch, longest + 1], dtype) + log_epsilon;
    let start = (nothing.at((.., 0)).set(0.0), zeros_dtype([batch, longest], dtype) + log_epsilon);
    // A step emits either a label or a blank. A label follows the blank before it or itself. The blank after a label
    // can be skipped unless the next label is the same.
    let (_, (blanks, emits)) = scan(
        |(blanks, emits): (Array, Array), (log_label, log_blank, padding): (Array, Array, Array)| {
            let before = add_to_blanks(&blanks, &emits + &repeat * log_epsilon);
            let next_emits = logaddexp(before.get((.., ..-1)) + &log_label, &emits + &log_label);
            let next_blanks = add_to_blanks(&(before + &log_blank), &emits + &log_blank + (1 - &repeat) * log_epsilon);
            let padding = padding.reshape([batch, 1]);
            // In padding, the probabilities do not change.
            let blanks = &padding * blanks + (1 - &padding) * next_blanks;
            let emits = &padding * emits + (1 - &padding) * next_emits;
            ((blanks.clone(), emits.clone()), (blanks, emits))
        },
        start,
        (log_labels, log_blank, logit_paddings.t()),
    )?;
    let total = add_to_blanks(&blanks.get(-1), emits.get(-1));
    let blanks = blanks.at(-1).set(&total);
    let loss = -(total * one_hot(lengths, longest + 1).astype(dtype)).sum(-1);
    Ok((loss, blanks, emits))
}

/// Adds the probabilities of labels to the probabilities of the blanks that follow them. Both arguments are logarithms.
fn add_to_blanks(blanks: &Array, labels: Array) -> Array {
    concatenate(&[blanks.get((.., ..1)), logaddexp(blanks.get((.., 1..)), labels)], -1)
}
