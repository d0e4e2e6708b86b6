//! Loading and saving of adapters in the format of `peft`: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use shardax_nn::prelude::*;

use super::adapter_experts::TargetParameters;
use super::adapter_joined as joined;
use super::adapter_names::older_names;
use super::adapter_save::save;
use super::fields::Fields;
use super::kinds::keys_of;
use super::{Config, KeyMap, Weights};
use crate::Adapter;
use crate::adapter::stacked;
use crate::error::value_error;

pub(super) const CONFIG: &str = "adapter_config.json";
pub(super) const FILE: &str = "adapter_model.safetensors";
/// The file of early versions of peft.
const OLDER_FILE: &str = "adapter_model.bin";
/// The prefix that peft adds to all layer names.
pub(super) const BEFORE: &str = "base_model.model.";

/// Fields that only describe the training of an adapter, or that the names of the arrays also contain.
const WITHOUT_EFFECT: [&str; 17] = [
    "auto_mapping",
    "base_model_name_or_path",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
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
    /// Loads an adapter from a folder of `peft`, for the model that `config` describes.
    ///
    /// # Errors
    /// Returns an error if a file is missing or damaged, if the adapter is not a LoRA, or if it has an option or an array
    /// that is not supported.
    #[track_caller]
    pub fn from_pretrained(config: &Config, folder: impl AsRef<Path>) -> Result<Adapter> {
        let location = std::panic::Location::caller();
        read(config, folder.as_ref()).map_err(|error| error.at(location))
    }

    /// Saves the adapter to a folder that `peft` can load, for the model that `config` describes.
    ///
    /// If the files store several layers as one, such as the queries, keys and values of GPT-2, `peft` has one pair of
    /// matrices for all of them. Its rank is the sum of the ranks of these layers.
    ///
    /// # Errors
    /// Returns an error if the adapter has a layer that peft cannot adapt in `transformers` 5, if it has magnitudes for a
    /// layer that the files join with other layers, or if a file cannot be written.
    #[track_caller]
    pub fn save_pretrained(&self, config: &Config, folder: impl AsRef<Path>) -> Result<()> {
        let location = std::panic::Location::caller();
        save(self, config, folder.as_ref()).map_err(|error| error.at(location))
    }
}

/// Returns the error for a layer that the files join with other layers.
pub(super) fn part_of(path: &str, name: &str) -> shardax::Error {
    let message = format!("`{path}` is a part of the layer {name:?} of the files, which has one adapter for all parts");
    value_error(message, "leave this layer out of the adapter, and adapt layers that the files store separately")
}

/// Returns the key path of a layer by its name and, for experts, the number of the expert.
fn layer_of(config: &Config, keys: &KeyMap, name: &str) -> Result<(String, Option<usize>)> {
    let found = older_names(config, name).iter().find_map(|name| keys.path_of_entry(&format!("{name}.weight")));
    match found {
        Some((path, layout, _)) if joined::is_part(layout) => Err(part_of(&path, name)),
        Some((path, _, entry)) => Ok((path.trim_end_matches(".kernel").to_owned(), entry)),
        None => Err(value_error(
            format!("the adapter is for a layer {name:?}, which the model does not have"),
            "check that the adapter was trained for this model",
        )),
    }
}

/// Reads the adapter: its configuration first, then the matrices of each layer, then the arrays that it replaces.
fn read(config: &Config, folder: &Path) -> Result<Adapter> {
    let (keys, experts) = keys_of(config)?;
    let about = Config::open_file(&folder.join(CONFIG))?;
    let fields = about.fields();
    if fields.text("peft_type")? != "LORA" {
        return Err(fields.error("the `peft_type` is not \"LORA\""));
    }
    let ranks = Ranks::read(&fields)?;
    init_is_identity(&fields)?;
    if !matches!(fields.text_opt("bias")?, None | Some("none")) {
        return Err(fields.error("field `bias` is not \"none\", but adapters cannot change biases"));
    }
    let has_magnitudes = fields.flag("use_dora")?;
    let saved = saved_modules(&fields, config)?;
    let targets = TargetParameters::read(&fields, config, experts)?;
    fields.skip(&WITHOUT_EFFECT);
    fields.finish_but_empty()?;
    let (file, older) = (folder.join(FILE), folder.join(OLDER_FILE));
    let file = if older.exists() && !file.exists() { older } else { file };
    let weights = Weights::open(&file)?;
    let mut layers = BTreeMap::new();
    let mut of_experts: BTreeMap<String, BTreeMap<usize, LoRA>> = BTreeMap::new();
    let (mut magnitudes, mut replaced) = (BTreeMap::new(), BTreeMap::new());
    let mut used = BTreeSet::new();
    // Each layer has two matrices. `first` is the name of the first one.
    for first in weights.names() {
        let Some(name) = first.strip_prefix(BEFORE).and_then(|name| name.strip_suffix(".lora_A.weight")) else {
            continue;
        };
        let second = format!("{BEFORE}{name}.lora_B.weight");
        if let Some(matrices) = targets.matrices(&weights, first, (&ranks, &fields))? {
            layers.extend(matrices);
            used.extend([first.to_owned(), second]);
            continue;
        }
        if keys.ignores(&format!("{name}.weight")) {
            // For example a pooler, which no result depends on.
            used.extend([first.to_owned(), second]);
            continue;
        }
        let parts = if has_magnitudes { Vec::new() } else { joined::parts_of(&keys, name) };
        let located = if parts.is_empty() { Some(layer_of(config, &keys, name)?) } else { None };
        let (layer_rank, layer_scale) = ranks.of_layer(&fields, &targets.name_in_patterns(name))?;
        let (a, b) = (matrix(&weights, first, layer_rank, 0)?, matrix(&weights, &second, layer_rank, 1)?);
        // An adapter has one scale for all layers, so the second matrix includes what differs.
        let b = if layer_scale == ranks.scale() { b } else { b * (layer_scale / ranks.scale()) };
        used.extend([first.to_owned(), second]);
        for (path, layout) in parts {
            layers.insert(path, joined::part(name, layout, &a, &b)?);
        }
        let Some((path, expert)) = located else { continue };
        let mut lora = LoRA::new(1, 1, 1, &mut Rngs::new(0));
        (lora.lora_a, lora.lora_b) = (a.t().into(), b.t().into());
        if has_magnitudes {
            let name = format!("{BEFORE}{name}.lora_magnitude_vector");
            magnitudes.insert(path.clone(), weights.get(&name)?.ravel().into());
            used.insert(name);
        }
        match expert {
            Some(expert) => drop(of_experts.entry(path).or_default().insert(expert, lora)),
            None => drop(layers.insert(path, lora)),
        }
    }
    // The matrices of single experts become stacks, as in the model.
    for (path, matrices) in of_experts {
        layers.insert(path.clone(), all_experts(&path, matrices, experts)?);
    }
    for name in weights.names().filter(|name| !used.contains(*name)) {
        let Some((path, array)) = saved_array(&weights, (config, &keys), &saved, name)? else { continue };
        replaced.insert(path, array.into());
    }
    used.extend(weights.names().filter(|name| saved_module(&saved, name).is_some()).map(str::to_owned));
    // An array that nothing has read would change the results.
    if let Some(unused) = weights.names().find(|name| !used.contains(*name)) {
        let message = format!("{} has the array {unused:?}, which is not part of a LoRA", file.display());
        return Err(value_error(message, "save an adapter that contains only LoRA matrices with `peft`"));
    }
    let mut adapter = Adapter::of(layers, ranks.scale());
    (adapter.magnitudes, adapter.replaced) = (magnitudes, replaced);
    Ok(adapter)
}

/// The ranks of the layers' matrices, and the factors of their products.
pub(super) struct Ranks {
    rank: usize,
    alpha: f64,
    is_rank_stabilized: bool,
    /// The ranks of single layers, by the ends of their names.
    rank_pattern: Vec<(String, f64)>,
    /// The numerators of the factors of single layers.
    alpha_pattern: Vec<(String, f64)>,
}

impl Ranks {
    fn read(fields: &Fields) -> Result<Ranks> {
        let (rank, alpha) = (fields.size("r")?, fields.number_or("lora_alpha", 8.0)?);
        let is_rank_stabilized = fields.flag_or("use_rslora", false)?;
        let (rank_pattern, alpha_pattern) = (pattern(fields, "rank_pattern")?, pattern(fields, "alpha_pattern")?);
        let ranks = Ranks { rank, alpha, is_rank_stabilized, rank_pattern, alpha_pattern };
        if ranks.scale() == 0.0 && !ranks.alpha_pattern.is_empty() {
            return Err(fields.error("`lora_alpha` is 0, but `alpha_pattern` sets other numbers for some layers"));
        }
        Ok(ranks)
    }

    /// Returns the factor of layers that no pattern names.
    pub fn scale(&self) -> f64 {
        lora_scale(self.rank, self.alpha, self.is_rank_stabilized)
    }

    /// Returns the rank and the factor of a layer, or of a parameter of `target_parameters`.
    pub fn of_layer(&self, fields: &Fields, name: &str) -> Result<(usize, f64)> {
        let rank = match matching(fields, &self.rank_pattern, name)? {
            Some(rank) if rank >= 1.0 && rank.fract() == 0.0 => rank as usize,
            Some(rank) => {
                return Err(
                    fields.error(format!("`rank_pattern` has the rank {rank}, which is not a positive integer"))
                );
            }
            None => self.rank,
        };
        let alpha = matching(fields, &self.alpha_pattern, name)?.unwrap_or(self.alpha);
        Ok((rank, lora_scale(rank, alpha, self.is_rank_stabilized)))
    }
}

/// Returns the factor of the product of the two matrices. Rank-stabilized adapters divide by the square root of the
/// rank.
fn lora_scale(rank: usize, alpha: f64, is_rank_stabilized: bool) -> f64 {
    let rank = rank as f64;
    alpha / if is_rank_stabilized { rank.sqrt() } else { rank }
}

/// Returns the names of the modules that are trained in full.
///
/// Returns an error for a token table that is also the last layer, because peft replaces only one of the two uses.
fn saved_modules(fields: &Fields, config: &Config) -> Result<Vec<String>> {
    let Some(list) = fields.list_opt("modules_to_save")? else { return Ok(Vec::new()) };
    let names: Option<Vec<String>> = list.iter().map(|name| name.as_str().map(str::to_owned)).collect();
    let Some(names) = names else { return Err(fields.error("field `modules_to_save` must be a list of names")) };
    const TABLES: [&str; 6] = ["embed_tokens", "lm_head", "wte", "shared", "word_embeddings", "embed_in"];
    match names.iter().find(|name| TABLES.iter().any(|table| name.ends_with(table))) {
        Some(name) if config.fields().flag("tie_word_embeddings")? => Err(fields.error(format!(
            "`modules_to_save` has {name:?}, but this model uses its token table as the last layer too, and only one of them would be replaced"
        ))),
        _ => Ok(names),
    }
}

/// Returns the module of `modules_to_save` that contains the array with this name.
fn saved_module<'a>(saved: &'a [String], name: &str) -> Option<&'a String> {
    let module = name.strip_prefix(BEFORE)?.rsplit_once('.')?.0;
    let is_module =
        |end: &&String| module.strip_suffix(end.as_str()).is_some_and(|start| start.is_empty() || start.ends_with('.'));
    saved.iter().find(is_module)
}

/// Returns the key path and the values of an array that replaces an array of the model, or `None` if no saved module
/// contains it.
fn saved_array(
    weights: &Weights,
    (config, keys): (&Config, &KeyMap),
    saved: &[String],
    name: &str,
) -> Result<Option<(String, Array)>> {
    if saved_module(saved, name).is_none() {
        return Ok(None);
    }
    let bare = name.strip_prefix(BEFORE).unwrap_or(name);
    let (module, array) = bare.rsplit_once('.').unwrap_or((bare, ""));
    let found = older_names(config, module).iter().find_map(|module| keys.path_of_entry(&format!("{module}.{array}")));
    let Some((path, layout, None)) = found else {
        let message = format!("the adapter replaces {bare:?}, which is not an array of the model");
        return Err(value_error(message, "check that the adapter was trained for this model"));
    };
    if joined::is_part(layout) {
        return Err(part_of(&path, bare));
    }
    let raw = weights.read(name)?.read_as(layout);
    let Some(raw) = raw else {
        let message = format!("the array {name:?} cannot be laid out as {layout:?}");
        return Err(value_error(message, "check that the adapter was trained for this model"));
    };
    Ok(Some((path, raw.to_array(None)?)))
}

/// Stacks the matrices of all experts of a layer. Experts without an adapter get zeros.
fn all_experts(path: &str, mut matrices: BTreeMap<usize, LoRA>, experts: usize) -> Result<LoRA> {
    let Some(first) = matrices.values().next().cloned() else { return Err(part_of(path, path)) };
    let differs = matrices.values().any(|lora| shapes(lora) != shapes(&first));
    if differs || matrices.last_key_value().is_some_and(|(last, _)| *last >= experts) {
        let message =
            format!("the matrices of the experts of {path:?} differ in shape, or are of more than {experts} experts");
        return Err(value_error(
            message,
            "check that the adapter was trained for this model, and that all experts of a layer have the same rank",
        ));
    }
    let mut zeros = first.clone();
    let [a, b] = shapes(&first).map(|shape| zeros_dtype(shape, DType::F32));
    (zeros.lora_a, zeros.lora_b) = (a.into(), b.into());
    Ok(stacked(true, (0..experts).map(|expert| matrices.remove(&expert).unwrap_or_else(|| zeros.clone())).collect()))
}

/// Returns a number for each entry of a pattern field. Entries are suffixes of layer names, which can follow `.*\\.`, as peft writes
/// them for experts. Other regular expressions are not supported.
fn pattern(fields: &Fields, field: &'static str) -> Result<Vec<(String, f64)>> {
    let Some(map) = fields.value(field).and_then(Value::as_object) else { return Ok(Vec::new()) };
    let entries =
        map.iter().map(|(name, number)| {
            let end = name.strip_prefix(r".*\.").unwrap_or(name).replace(r"\.", ".");
            let is_name = end.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
            match number.as_f64() {
                Some(number) if is_name => Ok((end, number)),
                Some(_) => Err(fields
                    .error(format!("`{field}` has the expression {name:?}, which is not the end of a layer's name"))),
                None => Err(fields.error(format!("`{field}` has {number} for {name:?}, which is not a number"))),
            }
        });
    entries.collect()
}

/// Returns the number that a pattern has for the layer with this name, if there is one.
fn matching(fields: &Fields, pattern: &[(String, f64)], name: &str) -> Result<Option<f64>> {
    let numbers: Vec<f64> = pattern.iter().filter(|(end, _)| is_end_of(end, name)).map(|(_, number)| *number).collect();
    match numbers[..] {
        [] => Ok(None),
        [number] => Ok(Some(number)),
        _ => Err(fields.error(format!("several entries of a pattern match the layer {name:?}"))),
    }
}

/// Returns an error for initializations that change the weights of the model, because peft would also apply them when
/// it loads the adapter.
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
    Err(fields.error(format!("`init_lora_weights` is {init:?}, which also changes the weights of the model")).help(
        "convert it to an adapter that leaves the model as it is: \
         `save_pretrained(folder, path_initial_model_for_weight_conversion=first_adapter)` of peft, or merge it by \
         `merge_and_unload`",
    ))
}

/// Reads a matrix whose size along `dimension` must be the rank.
fn matrix(weights: &Weights, name: &str, rank: usize, dimension: usize) -> Result<Array> {
    let raw = weights.read(name)?;
    if raw.shape.len() != 2 || raw.shape[dimension] != rank || !raw.dtype.is_float() {
        let message =
            format!("the array {name:?} is {}{:?}, which is not a matrix of rank {rank}", raw.dtype, raw.shape);
        return Err(value_error(message, "check that adapter_config.json and the file belong to the same adapter"));
    }
    let matrix = raw.to_array(None)?;
    // As in peft, because their product would lose digits.
    Ok(if matches!(matrix.dtype(), DType::F16 | DType::Bf16) { matrix.astype(DType::F32) } else { matrix })
}

fn shapes(lora: &LoRA) -> [Vec<usize>; 2] {
    [lora.lora_a.shape().to_vec(), lora.lora_b.shape().to_vec()]
}

/// Returns `true` if a key path ends with these names.
fn is_end_of(end: &str, path: &str) -> bool {
    path.strip_suffix(end).is_some_and(|start| start.is_empty() || start.ends_with('.'))
}
