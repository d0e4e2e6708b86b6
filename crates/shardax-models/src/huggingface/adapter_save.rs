//! Saving of adapters in the format of `peft`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, json};
use shardax_nn::prelude::*;

use super::adapter::{BEFORE, CONFIG, FILE, part_of};
use super::adapter_experts::{Experts, experts_of, is_interleaved};
use super::adapter_joined as joined;
use super::adapter_names::{is_divided, written_layer};
use super::kinds::keys_of;
use super::layout::Raw;
use super::save::{Named, flat_shape, write};
use super::{Config, KeyMap, Layout};
use crate::Adapter;
use crate::error::value_error;

/// The matrices of a layer of the files, as `peft` stores them: `first` is `[rank, inputs]`, and `second` is `[outputs, rank]`. An
/// array of experts has the matrices of all experts in both.
pub(super) struct Matrices {
    pub first: Raw,
    pub second: Raw,
    pub rank: usize,
}

impl Matrices {
    fn of(lora: &LoRA) -> Result<Matrices> {
        let (first, second) = (Raw::of(&lora.lora_a.t())?, Raw::of(&lora.lora_b.t())?);
        Ok(Matrices { rank: first.shape.first().copied().unwrap_or(0), first, second })
    }
}

/// The layers of the files that an adapter adapts.
#[derive(Default)]
struct Layers<'a> {
    /// The matrices, by the name of the layer.
    matrices: BTreeMap<String, Matrices>,
    /// The names of the weights of layers, or of the arrays of experts, that peft must adapt as parameters.
    parameters: BTreeMap<String, String>,
    /// The layers that the files store as one, by the name of its weight.
    parts: BTreeMap<String, Vec<(Layout, &'a LoRA)>>,
    /// The experts of each layer, by the name of their module.
    experts: BTreeMap<String, Experts<'a>>,
    /// True if files store kernels as `[in, out]`. peft transposes the matrices of these layers.
    fan_in_fan_out: bool,
}

impl<'a> Layers<'a> {
    /// Inserts the layer of a key path, which is `name` in the files. Returns the name of the layer, if it is not only a part of one.
    fn insert(
        &mut self,
        config: &Config,
        keys: &KeyMap,
        (path, lora): (&str, &'a LoRA),
        (name, layout): (String, Layout),
    ) -> Result<Option<String>> {
        if is_divided(config, &name) {
            return Err(unknown_to_peft(path, &name));
        }
        if let Some((module, part)) = experts_of(path, &keys.written(&name)) {
            // peft exchanges the inputs and outputs of these experts.
            if is_llama4(config) {
                return Err(unknown_to_peft(path, &name));
            }
            let module = written_layer(config, &KeyMap::new(), &module);
            self.experts.entry(module).or_default().insert(part, lora);
            return Ok(None);
        }
        // peft adapts layers, whose kernels have this name.
        if !name.ends_with(".weight") || name.contains('#') {
            return Err(unknown_to_peft(path, &name));
        }
        self.fan_in_fan_out |= matches!(layout, Layout::Same | Layout::Part { .. });
        if joined::is_part(layout) {
            self.parts.entry(name).or_default().push((layout, lora));
            return Ok(None);
        }
        let name = written_layer(config, keys, &name);
        self.matrices.insert(name.clone(), Matrices::of(lora)?);
        Ok(Some(name))
    }

    /// Computes the matrices of layers and of arrays that consist of several parts.
    fn join_parts(&mut self, config: &Config, keys: &KeyMap) -> Result<()> {
        for (name, parts) in std::mem::take(&mut self.parts) {
            let matrices = joined::join(keys, &name, &parts)?;
            self.matrices.insert(written_layer(config, keys, &name), matrices);
        }
        for (module, parts) in std::mem::take(&mut self.experts) {
            for (array, layer, matrices) in parts.arrays(&module, is_interleaved(config))? {
                self.parameters.insert(layer.clone(), format!("{module}.{array}"));
                self.matrices.insert(layer, matrices);
            }
        }
        Ok(())
    }
}

/// Saves the matrices of each layer, then the replaced arrays, and describes both in the configuration.
pub(super) fn save(adapter: &Adapter, config: &Config, folder: &Path) -> Result<()> {
    let (keys, experts) = keys_of(config)?;
    let (mut arrays, mut layers) = (Named::new(), Layers::default());
    let has_magnitudes = !adapter.magnitudes.is_empty();
    for (path, lora) in &adapter.layers {
        let Some(place) = keys.find(&format!("{path}.kernel")) else {
            return Err(value_error(
                format!("the model of the configuration has no layer {path:?}"),
                "pass the configuration of the model that the adapter belongs to",
            ));
        };
        if has_magnitudes && joined::is_part(place.1) {
            return Err(part_of(path, &place.0));
        }
        let Some(name) = layers.insert(config, &keys, (path, lora), place)? else { continue };
        match adapter.magnitudes.get(path) {
            Some(lengths) => drop(arrays.insert(format!("{BEFORE}{name}.lora_magnitude_vector"), Raw::of(lengths)?)),
            None if has_magnitudes => {
                let message = format!("the layer {path:?} has no magnitudes, but other layers have");
                return Err(value_error(message, "save an adapter in which all layers use DoRA, or none"));
            }
            None if experts > 1 && is_named_like_expert(&name) => {
                layers.parameters.insert(name.clone(), format!("{name}.weight"));
            }
            None => {}
        }
    }
    layers.join_parts(config, &keys)?;
    let saved = insert_replaced(adapter, (config, &keys), &mut arrays)?;
    let about = about(adapter, config, &layers, saved)?;
    for (name, matrices) in layers.matrices {
        arrays.insert(format!("{BEFORE}{name}.lora_A.weight"), matrices.first);
        arrays.insert(format!("{BEFORE}{name}.lora_B.weight"), matrices.second);
    }
    write(folder, &arrays, FILE, (CONFIG, &about))
}

/// Returns the error for a layer that peft cannot adapt in the model of transformers.
fn unknown_to_peft(path: &str, name: &str) -> shardax::Error {
    let message = format!("`{path}` is the layer {name:?} of the files, which peft cannot adapt in transformers 5");
    value_error(
        message,
        "leave this layer out of the adapter, or save the adapted model with `apply` and `save_pretrained`",
    )
}

fn is_llama4(config: &Config) -> bool {
    config.get("model_type").and_then(|kind| kind.as_str()).is_some_and(|kind| kind.starts_with("llama4"))
}

/// Returns `true` for a layer whose name ends like the names of experts in earlier versions of transformers. For models with experts,
/// peft takes such entries of `target_modules` for experts only, so these layers are adapted as parameters.
fn is_named_like_expert(name: &str) -> bool {
    const ENDS: [&str; 7] = ["gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"];
    name.rsplit('.').next().is_some_and(|end| ENDS.contains(&end))
}

/// Returns the text of the configuration.
fn about(adapter: &Adapter, config: &Config, layers: &Layers, saved: BTreeSet<String>) -> Result<String> {
    let Some(rank) = layers.matrices.values().map(|matrices| matrices.rank).min() else {
        return Err(value_error(
            "the adapter has no matrices, which peft cannot load",
            "adapt at least one layer, or save the model itself",
        ));
    };
    let is_module = |name: &&String| !layers.parameters.contains_key(*name);
    let modules = layers.matrices.keys().filter(is_module).filter_map(|name| name.rsplit('.').next());
    let (modules, parameters): (BTreeSet<&str>, Vec<&String>) =
        (modules.collect(), layers.parameters.values().collect());
    let (mut ranks, mut alphas) = (Map::new(), Map::new());
    for (name, matrices) in layers.matrices.iter().filter(|(_, matrices)| matrices.rank != rank) {
        let name = layers.parameters.get(name).unwrap_or(name);
        ranks.insert(name.clone(), json!(matrices.rank));
        alphas.insert(name.clone(), json!(adapter.scale() * matrices.rank as f64));
    }
    let about = json!({
        "peft_type": "LORA", "task_type": task_type(config)?, "r": rank, "lora_alpha": adapter.scale() * rank as f64,
        "rank_pattern": ranks, "alpha_pattern": alphas, "target_modules": modules, "target_parameters": parameters,
        "bias": "none", "lora_dropout": 0.0, "fan_in_fan_out": layers.fan_in_fan_out, "inference_mode": true,
        "base_model_name_or_path": null, "use_dora": !adapter.magnitudes.is_empty(), "modules_to_save": saved,
    });
    Ok(serde_json::to_string_pretty(&about).unwrap_or_default() + "\n")
}

/// Returns the task of a model that generates text. Without a task, peft accepts every class.
fn task_type(config: &Config) -> Result<Option<&'static str>> {
    let class = config.fields().class()?;
    let generates = class.is_some_and(|class| class.ends_with("ForCausalLM") || class.ends_with("LMHeadModel"));
    Ok(generates.then_some("CAUSAL_LM"))
}

/// Inserts the arrays that replace arrays of the model. Returns the names of their modules.
fn insert_replaced(
    adapter: &Adapter,
    (config, keys): (&Config, &KeyMap),
    arrays: &mut Named,
) -> Result<BTreeSet<String>> {
    let mut modules = BTreeSet::new();
    for (path, array) in &adapter.replaced {
        let Some((name, layout)) = keys.find(path).filter(|(name, _)| !name.contains('#')) else {
            let message = format!("the model of the configuration does not store {path:?} as a separate array");
            return Err(value_error(message, "pass the configuration of the model that the adapter belongs to"));
        };
        let raw = Raw::of(array)?;
        let shape = flat_shape(path, &raw.shape, layout);
        let Some(raw) = raw.reshaped(&shape).written_as(layout).filter(|_| !joined::is_part(layout)) else {
            return Err(part_of(path, &name));
        };
        let name = match name.rsplit_once('.') {
            Some((module, array)) => {
                let module = written_layer(config, keys, &format!("{module}.weight"));
                let name = format!("{module}.{array}");
                modules.insert(module);
                name
            }
            None => keys.written(&name),
        };
        arrays.insert(format!("{BEFORE}{name}"), raw);
    }
    Ok(modules)
}
