//! Adapters for experts whose weights are a single array in the model of `transformers` (`target_parameters` of
//! `peft`).

use shardax_nn::prelude::*;

use super::adapter::BEFORE;
use super::fields::Fields;
use super::{Config, Weights};
use crate::error::value_error;

/// The arrays of experts, in the order in which peft wraps them.
const ARRAYS: [&str; 2] = ["gate_up_proj", "down_proj"];

/// The parameters that the field `target_parameters` lists.
pub(super) struct TargetParameters<'a> {
    ends: Vec<&'a str>,
    /// The number of experts of a layer.
    experts: usize,
    /// True if the columns of `gate_up_proj` alternate between the gate and the first layer. Otherwise the first half
    /// is the gate.
    is_interleaved: bool,
    rank: usize,
}

impl<'a> TargetParameters<'a> {
    /// Reads the field, if it is present.
    pub fn read(fields: &Fields<'a>, config: &Config, experts: usize, rank: usize) -> Result<Option<Self>> {
        let Some(list) = fields.list_opt("target_parameters")?.filter(|list| !list.is_empty()) else { return Ok(None) };
        let ends: Option<Vec<&str>> = list.iter().map(|entry| entry.as_str()).collect();
        let ends = ends.ok_or_else(|| fields.error("field `target_parameters` must be a list of names"))?;
        if let Some(other) =
            ends.iter().find(|end| !ARRAYS.iter().any(|array| is_end(end, &format!("experts.{array}"))))
        {
            return Err(fields.error(format!("`target_parameters` has {other:?}, which is not an array of experts")));
        }
        if ["rank_pattern", "alpha_pattern"].iter().any(|name| {
            fields.value(name).and_then(|value| value.as_object()).is_some_and(|pattern| !pattern.is_empty())
        }) {
            return Err(fields.error("patterns of ranks cannot be combined with `target_parameters`"));
        }
        if experts < 2 {
            return Err(fields.error("`target_parameters` has arrays of experts, but the model has no experts"));
        }
        let is_interleaved = config.get("model_type").and_then(|kind| kind.as_str()) == Some("gpt_oss");
        Ok(Some(TargetParameters { ends, experts, is_interleaved, rank }))
    }

    /// Returns the layers and their matrices for the array with this name, which ends with `.lora_A.weight`. Returns
    /// `None` if the array does not belong to these parameters.
    ///
    /// peft wraps a module once for each of its arrays, so the wrapper of the first array is the base layer of the
    /// second one.
    pub fn matrices(&self, weights: &Weights, first: &str) -> Result<Option<Vec<(String, LoRA)>>> {
        let Some(name) = first.strip_prefix(BEFORE).and_then(|name| name.strip_suffix(".lora_A.weight")) else {
            return Ok(None);
        };
        let (module, is_inner) = match name.strip_suffix(".base_layer") {
            Some(module) => (module, true),
            None => (name, false),
        };
        if !is_end(module, "experts") {
            return Ok(None);
        }
        let targets: Vec<&&str> = ARRAYS.iter().filter(|array| self.is_target(&format!("{module}.{array}"))).collect();
        let array = match (targets[..].first(), targets.get(1), is_inner) {
            (Some(first), Some(_), true) => **first,
            (Some(_), Some(last), false) => **last,
            (Some(only), None, false) => **only,
            _ => {
                let message =
                    format!("the adapter has the array {first:?}, which belongs to no entry of `target_parameters`");
                return Err(value_error(
                    message,
                    "check that adapter_config.json and the file belong to the same adapter",
                ));
            }
        };
        let number = module.split('.').find(|part| part.parse::<usize>().is_ok()).unwrap_or("0");
        let second = format!("{BEFORE}{name}.lora_B.weight");
        let (a, b) = (weights.get(first)?, weights.get(&second)?);
        let (count, rank) = (self.experts, self.rank);
        let rows = count.saturating_mul(rank);
        let is_even = b.ndim() == 2 && (array == "down_proj" || b.shape()[0].is_multiple_of(2));
        if a.ndim() != 2 || !is_even || a.shape()[0] != rows || b.shape()[1] != rows {
            let message = format!(
                "the arrays {first:?} and {second:?} are {} and {}, which are not matrices for {count} experts with rank {rank}",
                a.type_name(),
                b.type_name()
            );
            return Err(value_error(message, "check that adapter_config.json and the file belong to the same adapter"));
        }
        let (inputs, outputs) = (a.shape()[1], b.shape()[0]);
        let a = a.reshape([count, rank, inputs]).swapaxes(1, 2);
        // In the second matrices, the experts are the last dimension.
        let b = b.reshape([outputs, rank, count]).transpose([2, 1, 0]);
        let layers = format!("blocks[{number}].experts.experts.layers");
        if array == "down_proj" {
            return Ok(Some(vec![(format!("{layers}.down"), lora_of(&a, b))]));
        }
        let half = outputs / 2;
        let [gate, up] = if self.is_interleaved {
            let pairs = b.reshape([count, rank, half, 2]);
            [pairs.get((.., .., .., 0)), pairs.get((.., .., .., 1))]
        } else {
            [b.get((.., .., ..half)), b.get((.., .., half..))]
        };
        Ok(Some(vec![(format!("{layers}.gate"), lora_of(&a, gate)), (format!("{layers}.up"), lora_of(&a, up))]))
    }

    /// Returns `true` if `target_parameters` names this array.
    fn is_target(&self, array: &str) -> bool {
        self.ends.iter().any(|end| is_end(array, end))
    }
}

/// Creates a low-rank update from its two matrices.
fn lora_of(a: &Array, b: Array) -> LoRA {
    let mut lora = LoRA::new(1, 1, 1, &mut Rngs::new(0));
    (lora.lora_a, lora.lora_b) = (a.clone().into(), b.into());
    lora
}

/// Returns `true` if a name ends with these parts.
fn is_end(name: &str, end: &str) -> bool {
    name.strip_suffix(end).is_some_and(|start| start.is_empty() || start.ends_with('.'))
}
