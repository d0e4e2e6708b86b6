//! Adapters as the files of `peft`: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};
use shardax_nn::prelude::*;

use super::config::Fields;
use super::layout::Raw;
use super::save::{Named, write};
use super::{Config, KeyMap, Layout, Pretrained, Weights};
use crate::error::value_error;
use crate::{Adapter, Decoder};

const CONFIG: &str = "adapter_config.json";
const FILE: &str = "adapter_model.safetensors";
/// The prefix of layers' names.
const BEFORE: &str = "base_model.model.";

/// Fields that tell how an adapter was trained, or stand in the files' names.
const WITHOUT_EFFECT: [&str; 13] = [
    "auto_mapping",
    "base_model_name_or_path",
    "fan_in_fan_out",
    "inference_mode",
    "lora_dropout",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
];

impl Adapter {
    /// The adapter of a [`Decoder`] in a folder of `peft`, for the model that `config` describes.
    ///
    /// Fails when a file is missing or damaged, when it is no LoRA, and when it has something else that is not
    /// understood.
    #[track_caller]
    pub fn from_pretrained(config: &Config, folder: impl AsRef<Path>) -> Result<Adapter> {
        let location = std::panic::Location::caller();
        read(config, folder.as_ref()).map_err(|error| error.at(location))
    }

    /// Writes a folder that `peft` reads, for the [`Decoder`] that `config` describes.
    ///
    /// Fails for layers that are several in the model and one in the files, and when a file cannot be written.
    #[track_caller]
    pub fn save_pretrained(&self, config: &Config, folder: impl AsRef<Path>) -> Result<()> {
        let location = std::panic::Location::caller();
        saved(self, config, folder.as_ref()).map_err(|error| error.at(location))
    }
}

/// The error of a layer that is a part of a layer of the files.
fn part_of(path: &str, name: &str) -> shardax::Error {
    let what = format!("`{path}` is a part of the layer {name:?} of the files, which has one adapter for all parts");
    value_error(what, "adapt the other layers")
}

/// The layer of this name, and its key path.
fn layer_of(keys: &KeyMap, name: &str) -> Result<String> {
    let weight = format!("{name}.weight");
    let found = keys.path_of(&weight).or_else(|| keys.path_of(weight.strip_prefix("transformer.")?));
    match found {
        Some((path, Layout::Part { .. } | Layout::Rows { .. })) => Err(part_of(&path, name)),
        Some((path, _)) => Ok(path.trim_end_matches(".kernel").to_owned()),
        None => Err(value_error(
            format!("the adapter is for a layer {name:?}, which the model does not have"),
            "look whether it is of this model",
        )),
    }
}

fn read(config: &Config, folder: &Path) -> Result<Adapter> {
    let (_, keys) = Decoder::read(config)?;
    let about = Config::open_file(&folder.join(CONFIG))?;
    let fields = about.fields();
    if fields.text("peft_type")? != "LORA" {
        return Err(fields.error("it is no LoRA"));
    }
    let (rank, alpha) = (fields.size("r")?, fields.number_or("lora_alpha", 8.0)?);
    let is_rank_stabilized = fields.flag_or("use_rslora", false)?;
    init_is_identity(&fields)?;
    if !matches!(fields.text_opt("bias")?, None | Some("none")) {
        return Err(fields.error("it changes biases"));
    }
    fields.skip(&WITHOUT_EFFECT);
    fields.finish_but_empty()?;
    let weights = Weights::open(folder.join(FILE))?;
    let mut layers = BTreeMap::new();
    let mut used = BTreeSet::new();
    for first in weights.names() {
        let Some(name) = first.strip_prefix(BEFORE).and_then(|name| name.strip_suffix(".lora_A.weight")) else {
            continue;
        };
        let second = format!("{BEFORE}{name}.lora_B.weight");
        let path = layer_of(&keys, name)?;
        let (a, b) = (matrix(&weights, first, rank, 0)?, matrix(&weights, &second, rank, 1)?);
        let mut lora = LoRA::new(1, 1, 1, &mut Rngs::new(0));
        (lora.lora_a, lora.lora_b) = (a.t().into(), b.t().into());
        layers.insert(path, lora);
        used.extend([first.to_owned(), second]);
    }
    if let Some(left) = weights.names().find(|name| !used.contains(*name)) {
        let what = format!("{} has the array {left:?}, which is not part of a LoRA", folder.join(FILE).display());
        return Err(value_error(what, "save it by `peft` without other changes to the model"));
    }
    let rank = rank as f64;
    Ok(Adapter::of(layers, alpha / if is_rank_stabilized { rank.sqrt() } else { rank }))
}

/// Fails for initializations that peft also applies when it loads an adapter, where it changes the weights of the model.
fn init_is_identity(fields: &Fields) -> Result<()> {
    const KEEPS_WEIGHTS: [&str; 3] = ["gaussian", "orthogonal", "eva"];
    let changes_weights = match fields.value("init_lora_weights") {
        Some(Value::String(name)) => !KEEPS_WEIGHTS.contains(&name.as_str()),
        _ => false,
    };
    if !changes_weights {
        return Ok(());
    }
    let init = fields.text("init_lora_weights")?;
    Err(fields
        .error(format!("`init_lora_weights` is {init:?}, for which peft changes the weights of the model too"))
        .help(
            "convert it to an adapter that leaves the model as it is: \
         `save_pretrained(folder, path_initial_model_for_weight_conversion=first_adapter)` of peft, or merge it by \
         `merge_and_unload`",
        ))
}

/// A matrix of this rank along a dimension.
fn matrix(weights: &Weights, name: &str, rank: usize, dimension: usize) -> Result<Array> {
    let raw = weights.read(name)?;
    if raw.shape.len() != 2 || raw.shape[dimension] != rank || !raw.dtype.is_float() {
        let what = format!("the array {name:?} is {}{:?}, which is not a matrix of rank {rank}", raw.dtype, raw.shape);
        return Err(value_error(what, "look whether adapter_config.json belongs to the file"));
    }
    raw.to_array(None)
}

fn saved(adapter: &Adapter, config: &Config, folder: &Path) -> Result<()> {
    let (_, keys) = Decoder::read(config)?;
    let mut arrays = Named::new();
    let (mut modules, mut ranks, mut fan_in_fan_out) = (BTreeSet::new(), BTreeSet::new(), false);
    for (path, lora) in &adapter.layers {
        let Some((name, layout)) = keys.find(&format!("{path}.kernel")) else {
            return Err(value_error(
                format!("the model of the configuration has no layer {path:?}"),
                "give the adapter's",
            ));
        };
        if matches!(layout, Layout::Part { .. } | Layout::Rows { .. }) {
            return Err(part_of(path, &name));
        }
        fan_in_fan_out |= layout == Layout::Same;
        let name = keys.written(name.trim_end_matches(".weight"));
        modules.insert(name.rsplit('.').next().unwrap_or_default().to_owned());
        ranks.insert(lora.lora_b.shape().first().copied().unwrap_or(0));
        arrays.insert(format!("{BEFORE}{name}.lora_A.weight"), Raw::of(&lora.lora_a.t())?);
        arrays.insert(format!("{BEFORE}{name}.lora_B.weight"), Raw::of(&lora.lora_b.t())?);
    }
    let ranks: Vec<usize> = ranks.into_iter().collect();
    let [rank] = ranks[..] else {
        return Err(value_error(format!("the adapter has matrices of ranks {ranks:?}"), "save adapters of one rank"));
    };
    let about = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": adapter.scale() * rank as f64,
        "target_modules": modules, "bias": "none", "lora_dropout": 0.0, "fan_in_fan_out": fan_in_fan_out,
        "inference_mode": true, "base_model_name_or_path": null,
    });
    let text = serde_json::to_string_pretty(&about).unwrap_or_default() + "\n";
    write(folder, &arrays, FILE, (CONFIG, &text))
}
