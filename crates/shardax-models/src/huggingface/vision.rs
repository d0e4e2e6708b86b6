//! Parts of encoders of images whose stages have different sizes.

use shardax_nn::prelude::*;

use super::config::Fields;
use super::{KeyMap, Layout};
use crate::error::value_error;

/// Returns the number of classes, or `None` if `architectures` names a class without a head.
pub(super) fn classes(fields: &Fields) -> Result<Option<usize>> {
    let list = fields.list_opt("architectures")?;
    let name = list.and_then(|list| list.first()).and_then(|name| name.as_str()).unwrap_or("ForImageClassification");
    let count = fields.count_opt("id2label")?.filter(|count| *count > 0).unwrap_or(2);
    match name {
        name if name.ends_with("ForImageClassification") => Ok(Some(count)),
        name if name.ends_with("Model") => Ok(None),
        other => Err(fields.error(format!("the class {other:?} of `architectures` is not supported"))),
    }
}

/// Returns the features and the numbers of blocks of all stages. `name` is the field of the features.
pub(super) fn stages<'a>(fields: &Fields<'a>, name: &'a str) -> Result<(Vec<usize>, Vec<usize>)> {
    let (sizes, depths) = (fields.size_list(name)?, fields.size_list("depths")?);
    if sizes.len() != depths.len() {
        return Err(fields.error(format!("`{name}` has {} stages, but `depths` has {}", sizes.len(), depths.len())));
    }
    Ok((sizes, depths))
}

/// Marks the fields as read that select features of several stages for other models, and fields for training.
pub(super) fn skip_features_of_stages(fields: &Fields) {
    fields.skip(&["out_features", "out_indices", "stage_names", "drop_path_rate"]);
}

/// Adds the names of each stage. The arguments of `add` are the names so far, the key path and the index of the stage.
pub(super) fn stage_keys(keys: KeyMap, stages: usize, add: impl Fn(KeyMap, &str, usize) -> KeyMap) -> KeyMap {
    (0..stages).fold(keys, |keys, stage| add(keys, &format!("stages[{stage}]"), stage))
}

/// Returns an error if images are not `[batch, rows, columns, channels]`.
pub(super) fn check_channels(model: &str, images: &Array, conv: &Conv) -> Result<()> {
    images.check()?;
    let channels = conv.kernel.shape().get(2).copied();
    if images.ndim() == 4 && images.shape().last().copied() == channels {
        return Ok(());
    }
    let message = format!(
        "{model}: images of the shape {:?} are not [batch, rows, columns, {}]",
        images.shape(),
        channels.unwrap_or(0)
    );
    Err(value_error(message, "transpose images whose channels come first with `transpose([0, 2, 3, 1])`"))
}

/// A norm of features with the means and variances of a data set (batch normalization after training).
#[derive(Module, Clone, Debug)]
pub(super) struct FrozenNorm {
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
}

/// Added to the variance.
const EPSILON: f64 = 1e-5;

impl FrozenNorm {
    pub fn new(features: usize, rngs: &Rngs) -> FrozenNorm {
        let dtype = rngs.policy().param_dtype;
        let [zeros, ones] = [zeros_dtype([features], dtype), ones_dtype([features], dtype)];
        FrozenNorm { scale: ones.clone(), bias: zeros.clone(), mean: zeros, variance: ones }
    }

    /// Normalizes the last dimension. The factor of each feature is computed in float32.
    #[track_caller]
    pub fn forward(&self, x: Array) -> Array {
        let [scale, bias, mean, variance] =
            [&self.scale, &self.bias, &self.mean, &self.variance].map(|x| x.astype(DType::F32));
        let factor = scale * (variance + EPSILON).rsqrt();
        let shift = bias - mean * &factor;
        &x * factor.astype(x.dtype()) + shift.astype(x.dtype())
    }
}

/// Adds the names of a [`FrozenNorm`].
pub(super) fn frozen_norm_keys(keys: KeyMap, path: &str, name: &str) -> KeyMap {
    let parts = [("scale", "weight"), ("bias", "bias"), ("mean", "running_mean"), ("variance", "running_var")];
    let keys = parts.into_iter().fold(keys, |keys, (part, array)| {
        keys.array(format!("{path}.{part}"), format!("{name}.{array}"), Layout::Same)
    });
    // The number of training steps.
    keys.ignore(&format!("{name}.num_batches_tracked"))
}
