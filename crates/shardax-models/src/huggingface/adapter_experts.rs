//! Adapters for experts whose weights are a single array in the model of `transformers` (`target_parameters` of
//! `peft`).

use std::collections::BTreeMap;

use shardax_nn::prelude::*;

use super::adapter::{BEFORE, Ranks};
use super::adapter_save::Matrices;
use super::fields::Fields;
use super::layout::Raw;
use super::{Config, Weights};
use crate::error::value_error;

/// The arrays of experts, in the order in which peft wraps them.
const ARRAYS: [&str; 2] = ["gate_up_proj", "down_proj"];

/// The parameters that the field `target_parameters` lists: arrays of experts, and weights of layers.
pub(super) struct TargetParameters<'a> {
    ends: Vec<&'a str>,
    /// The number of experts of a layer.
    experts: usize,
    is_interleaved: bool,
}

impl<'a> TargetParameters<'a> {
    /// Reads the field. If it is missing, the list is empty.
    pub fn read(fields: &Fields<'a>, config: &Config, experts: usize) -> Result<Self> {
        let list = fields.list_opt("target_parameters")?;
        let ends: Option<Vec<&str>> = list.into_iter().flatten().map(|entry| entry.as_str()).collect();
        let ends = ends.ok_or_else(|| fields.error("field `target_parameters` must be a list of names"))?;
        let is_array = |end: &str| ARRAYS.iter().any(|array| end == *array || is_end(end, &format!("experts.{array}")));
        let mut arrays = ends.iter().filter(|end| !end.ends_with(".weight"));
        if let Some(other) = arrays.clone().find(|end| !is_array(end)) {
            return Err(fields.error(format!("`target_parameters` has {other:?}, which is not an array of experts")));
        }
        if arrays.next().is_some() && experts < 2 {
            return Err(fields.error("`target_parameters` has arrays of experts, but the model has no experts"));
        }
        Ok(TargetParameters { ends, experts, is_interleaved: is_interleaved(config) })
    }

    /// Returns the name of a layer that the patterns of ranks match: the name of its weight, if this is a parameter of the list.
    pub fn name_in_patterns(&self, layer: &str) -> String {
        let weight = format!("{layer}.weight");
        if self.is_target(&weight) { weight } else { layer.to_owned() }
    }

    /// Returns the layers and their matrices for the array with this name, which ends with `.lora_A.weight`. Returns
    /// `None` if the array does not belong to these parameters.
    ///
    /// peft wraps a module once for each of its arrays, so the wrapper of the first array is the base layer of the
    /// second one.
    pub fn matrices(
        &self,
        weights: &Weights,
        first: &str,
        (ranks, fields): (&Ranks, &Fields),
    ) -> Result<Option<Vec<(String, LoRA)>>> {
        let Some(name) = first.strip_prefix(BEFORE).and_then(|name| name.strip_suffix(".lora_A.weight")) else {
            return Ok(None);
        };
        let (module, is_inner) = match name.strip_suffix(".base_layer") {
            Some(module) => (module, true),
            None => (name, false),
        };
        let is_listed = ARRAYS.iter().any(|array| self.is_target(&format!("{module}.{array}")));
        if !is_end(module, "experts") || !is_listed {
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
        let (rank, scale) = ranks.of_layer(fields, &format!("{module}.{array}"))?;
        let count = self.experts;
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
        // An adapter has one scale for all layers, so the second matrix includes what differs.
        let b = if scale == ranks.scale() { b } else { b * (scale / ranks.scale()) };
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

/// Returns `true` if the columns of `gate_up_proj` alternate between the gate and the first layer. Otherwise the first half is the
/// gate.
pub(super) fn is_interleaved(config: &Config) -> bool {
    config.get("model_type").and_then(|kind| kind.as_str()) == Some("gpt_oss")
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

/// The matrices of the experts of a layer, by part: `gate`, `up` or `down`.
#[derive(Default)]
pub(super) struct Experts<'a> {
    parts: BTreeMap<&'static str, &'a LoRA>,
}

/// Returns the module of the experts and the part of its arrays, from the key path of a layer of experts and the name of its kernel in
/// files. Returns `None` for other layers, and for experts that `transformers` does not store in two arrays.
pub(super) fn experts_of(path: &str, name: &str) -> Option<(String, &'static str)> {
    let (_, part) = path.split_once(".experts.experts.layers.")?;
    let part = ["gate", "up", "down"].into_iter().find(|other| *other == part)?;
    // The experts of Nemotron-H have no gate.
    if name.contains(".mixer.") {
        return None;
    }
    let module = match name.strip_suffix("[#]") {
        Some(array) => array.trim_end_matches(".weight").rsplit_once('.')?.0.to_owned(),
        None => name.split_once(".#.")?.0.to_owned(),
    };
    Some((if is_end(&module, "experts") { module } else { format!("{module}.experts") }, part))
}

impl<'a> Experts<'a> {
    pub fn insert(&mut self, part: &'static str, lora: &'a LoRA) {
        self.parts.insert(part, lora);
    }

    /// Returns the adapted arrays, the names of their layers, and the matrices.
    pub fn arrays(&self, module: &str, is_interleaved: bool) -> Result<Vec<(&'static str, String, Matrices)>> {
        let (gate, up, down) = (self.parts.get("gate"), self.parts.get("up"), self.parts.get("down"));
        let mut arrays = Vec::new();
        if let Some(some) = gate.or(up) {
            // peft wraps the module once for each array, so this array is inside of the other one.
            let layer = if down.is_some() { format!("{module}.base_layer") } else { module.to_owned() };
            let (a, b) = join_gate((some, gate.copied(), up.copied()), is_interleaved)?;
            arrays.push((ARRAYS[0], layer, matrices_of(&a, &b)?));
        }
        if let Some(down) = down {
            arrays.push((ARRAYS[1], module.to_owned(), matrices_of(&down.lora_a, &down.lora_b)?));
        }
        Ok(arrays)
    }
}

/// Joins the matrices of the gate and of the first layer, which the files store as one array. A part without an adapter gets zeros.
fn join_gate((some, gate, up): (&LoRA, Option<&LoRA>, Option<&LoRA>), is_interleaved: bool) -> Result<(Array, Array)> {
    let columns = zeros_like(&*some.lora_b);
    let second = |lora: Option<&LoRA>| lora.map_or(columns.clone(), |lora| (*lora.lora_b).clone());
    let (gate_b, up_b) = (second(gate), second(up));
    let (a, halves) = match (gate, up) {
        // Both have the same first matrix in an adapter that peft wrote.
        (Some(gate), Some(up)) if Raw::of(&gate.lora_a)?.bytes != Raw::of(&up.lora_a)?.bytes => {
            let a = concatenate(&[&*gate.lora_a, &*up.lora_a], 2);
            let gate = concatenate(&[&gate_b, &zeros_like(&up_b)], 1);
            (a, [gate, concatenate(&[&zeros_like(&gate_b), &up_b], 1)])
        }
        _ => ((*some.lora_a).clone(), [gate_b, up_b]),
    };
    let [experts, rank, half] = halves[0].shape()[..] else { return Ok((a, columns)) };
    let b = if is_interleaved { stack(halves, 3).reshape([experts, rank, 2 * half]) } else { concatenate(&halves, 2) };
    Ok((a, b))
}

/// Lays out the matrices `[experts, inputs, rank]` and `[experts, rank, outputs]` as peft does.
fn matrices_of(a: &Array, b: &Array) -> Result<Matrices> {
    let ([experts, inputs, rank], [_, _, outputs]) = (a.shape(), b.shape()) else {
        let message = format!("the matrices of experts are {} and {}", a.type_name(), b.type_name());
        return Err(value_error(message, "create the adapter with `Adapter::new`"));
    };
    let first = Raw::of(&a.swapaxes(1, 2).reshape([experts * rank, *inputs]))?;
    // In the second matrix, the experts are the last dimension.
    let second = Raw::of(&b.transpose([2, 1, 0]).reshape([*outputs, rank * experts]))?;
    Ok(Matrices { first, second, rank: *rank })
}
