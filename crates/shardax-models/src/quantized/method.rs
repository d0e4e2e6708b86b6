//! The quantization method that a `quantization_config` describes.

use serde_json::Value;
use shardax::error::{Error, Result};

use super::Groups;
use super::scaled::{Scaled, Scales};
use super::source::{awq, gptq, mxfp4};
use crate::error::value_error;
use crate::huggingface::Raw;

/// A quantization method that stores a kernel as several arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Integers of 4 or 8 bits, packed along the inputs.
    Gptq {
        bits: usize,
        /// The number that is added to stored zero points: 1 in the first version of the format.
        zero_offset: i32,
    },
    /// Integers of 4 bits, packed along the outputs in a special order.
    Awq,
    /// Blocks of 32 numbers in the e2m1 format.
    Mxfp4,
    /// Kernels with scales in other arrays.
    Scaled(Scaled),
    /// Kernels without quantization.
    Dense,
}

/// The endings of the names of the arrays that store a kernel.
pub(crate) struct Endings {
    /// The ending of an array that all such kernels have, and no others.
    pub first: &'static str,
    /// The ending of the kernel's name.
    pub kernel: &'static str,
    /// The endings of its other arrays.
    pub others: &'static [&'static str],
    /// The endings of arrays that kernels can have.
    pub optional: &'static [&'static str],
    /// The endings of arrays that do not change kernels.
    pub ignored: &'static [&'static str],
}

/// The methods that are supported, for messages.
const SUPPORTED: &str = "gptq, awq, auto-round, mxfp4, fp8, fbgemm_fp8, compressed-tensors, bitsandbytes and bitnet";

impl Method {
    /// Reads the method from a `quantization_config`.
    ///
    /// Returns an error for unknown methods, and for variants of a method that are not supported.
    pub fn of(about: &Value) -> Result<Method> {
        match text_of(about, "quant_method").or_else(|| bnb_without_name(about)) {
            // The older name of the field takes precedence, as in transformers.
            Some("gptq") => gptq_method(about, text_of(about, "checkpoint_format").or(text_of(about, "format"))),
            Some("awq") => awq_method(about, text_of(about, "version").or(text_of(about, "format"))),
            Some("auto-round") => match text_of(about, "packing_format").unwrap_or("auto_round:auto_gptq") {
                "auto_round:auto_gptq" => gptq_method(about, None),
                "auto_round:auto_awq" => awq_method(about, None),
                other => not_read(format!(
                    "has the packing_format {other:?}, but only \"auto_round:auto_gptq\" and \"auto_round:auto_awq\" are supported"
                )),
            },
            Some("mxfp4") => Ok(Method::Mxfp4),
            Some("fp8") => fp8(about),
            Some("fbgemm_fp8") => Ok(Method::Scaled(Scaled::Bytes { scales: Scales::Usual, block: None })),
            Some("compressed-tensors") => compressed_tensors(about),
            Some("bitsandbytes" | "bitsandbytes_4bit" | "bitsandbytes_8bit") => bitsandbytes(about),
            Some("bitnet") => bitnet(about),
            other => not_read(format!("has the quant_method {other:?}, but only {SUPPORTED} are supported")),
        }
    }

    /// Returns the endings of the names of a kernel's arrays.
    pub fn endings(self) -> Option<Endings> {
        let others = &[".qzeros", ".scales"];
        Some(match self {
            Method::Gptq { .. } => {
                Endings { first: ".qweight", kernel: ".weight", others, optional: &[".g_idx"], ignored: &[] }
            }
            Method::Awq => Endings { first: ".qweight", kernel: ".weight", others, optional: &[], ignored: &[] },
            Method::Mxfp4 => {
                Endings { first: "_blocks", kernel: "", others: &["_scales"], optional: &[], ignored: &[] }
            }
            Method::Scaled(scaled) => scaled.endings(),
            Method::Dense => return None,
        })
    }

    /// Returns the shape of the kernel without quantization, given the shapes of its parts. `read` reads a part.
    pub fn shape(self, shapes: &[Option<&[usize]>], read: impl Fn(usize) -> Option<Raw>) -> Option<Vec<usize>> {
        match (self, shapes.first().copied().flatten()?) {
            (Method::Gptq { bits, .. }, &[words, outputs]) => Some(vec![outputs, words.checked_mul(32 / bits)?]),
            (Method::Awq, &[inputs, words]) => Some(vec![words.checked_mul(8)?, inputs]),
            // `transformers` stores the inputs first.
            (Method::Mxfp4, &[experts, outputs, blocks, 16]) => Some(vec![experts, blocks.checked_mul(32)?, outputs]),
            (Method::Scaled(scaled), _) => scaled.shape(shapes, read),
            _ => None,
        }
    }

    /// Combines the parts of a kernel, with one row for each output. Returns `None` if the parts do not match each
    /// other, or if the kernel can only be dequantized.
    pub fn groups(self, parts: &[Option<Raw>]) -> Option<Groups> {
        match (self, parts) {
            (Method::Gptq { bits, zero_offset }, [Some(weights), Some(zeros), Some(scales), group_of]) => {
                gptq((bits, zero_offset), weights, zeros, scales, group_of.as_ref())
            }
            (Method::Awq, [Some(weights), Some(zeros), Some(scales)]) => awq(weights, zeros, scales),
            (Method::Mxfp4, [Some(blocks), Some(scales)]) => mxfp4(blocks, scales),
            (Method::Scaled(scaled), _) => scaled.groups(parts),
            _ => None,
        }
    }

    /// Returns `true` if kernels can stay quantized in memory.
    pub fn has_groups(self) -> bool {
        match self {
            Method::Gptq { .. } | Method::Awq | Method::Mxfp4 => true,
            Method::Scaled(scaled) => matches!(scaled, Scaled::Packed { .. }),
            Method::Dense => false,
        }
    }

    /// Dequantizes a kernel of this shape. Returns `None` if its parts do not match each other.
    pub fn widened(self, shape: &[usize], parts: &[Option<Raw>]) -> Option<Raw> {
        match self {
            Method::Scaled(scaled) => scaled.widened(shape, parts),
            Method::Dense => None,
            Method::Gptq { .. } | Method::Awq | Method::Mxfp4 => {
                let groups = self.groups(parts)?;
                let stored = Raw::of_f32(groups.shape.clone(), &groups.widened());
                // The model stores the kernels of experts with the inputs before the outputs.
                if self == Method::Mxfp4 { stored.last_two_swapped() } else { Some(stored) }
            }
        }
    }
}

fn gptq_method(about: &Value, format: Option<&str>) -> Result<Method> {
    let bits = bits_of_integers(about);
    if let Some(dtype) = text_of(about, "pack_dtype").filter(|dtype| *dtype != "int32") {
        return not_read(format!("packs integers into {dtype}, but only \"int32\" is supported"));
    }
    match (bits, format.unwrap_or("gptq").to_lowercase().as_str()) {
        (4 | 8, "gptq") => Ok(Method::Gptq { bits: bits as usize, zero_offset: 1 }),
        (4 | 8, "gptq_v2") => Ok(Method::Gptq { bits: bits as usize, zero_offset: 0 }),
        (_, format) => not_read(format!(
            "is GPTQ with {bits} bits in the format {format:?}, but only 4 and 8 bits in the formats \"gptq\" and \"gptq_v2\" are supported"
        )),
    }
}

fn awq_method(about: &Value, version: Option<&str>) -> Result<Method> {
    let bits = bits_of_integers(about);
    if text_of(about, "backend") == Some("llm-awq") {
        return not_read("is AWQ of the backend \"llm-awq\", but only the version \"gemm\" is supported".to_owned());
    }
    match (bits, version.unwrap_or("gemm").to_lowercase().as_str()) {
        (4, "gemm") => Ok(Method::Awq),
        (_, version) => not_read(format!(
            "is AWQ with {bits} bits in the version {version:?}, but only 4 bits in the version \"gemm\" are supported"
        )),
    }
}

fn bits_of_integers(about: &Value) -> u64 {
    about.get("bits").and_then(Value::as_u64).unwrap_or(4)
}

fn fp8(about: &Value) -> Result<Method> {
    if let Some(dtype) = text_of(about, "expert_dtype").filter(|dtype| *dtype != "fp8") {
        return not_read(format!("has the expert_dtype {dtype:?}, but only \"fp8\" is supported"));
    }
    let block = match about.get("weight_block_size") {
        Some(Value::Null) => None,
        // The default of the class.
        None => Some([128, 128]),
        Some(sizes) => Some(block_of(sizes)?),
    };
    Ok(Method::Scaled(Scaled::Bytes { scales: Scales::Inverse, block }))
}

/// Reads the rows and columns of a block.
fn block_of(sizes: &Value) -> Result<[usize; 2]> {
    let size = |index: usize| sizes.get(index).and_then(Value::as_u64).filter(|size| *size > 0);
    match (size(0), size(1), sizes.get(2)) {
        (Some(rows), Some(columns), None) => Ok([rows as usize, columns as usize]),
        _ => Err(error(format!("has blocks of {sizes}, but a block must have two positive sizes"))),
    }
}

/// Reads the format of compressed-tensors. All kernels must have the same one.
fn compressed_tensors(about: &Value) -> Result<Method> {
    let sparsity = about.get("sparsity_config").and_then(|sparsity| text_of(sparsity, "format"));
    if let Some(format) = sparsity.filter(|format| *format != "dense") {
        return not_read(format!("has sparse kernels in the format {format:?}, but only \"dense\" is supported"));
    }
    let transforms = about.get("transform_config").and_then(Value::as_object);
    if transforms.is_some_and(|transforms| !transforms.is_empty()) {
        return not_read("has a transform_config, which changes inputs of layers, and is not supported".to_owned());
    }
    let format = text_of(about, "format").unwrap_or("dense");
    let groups = about.get("config_groups").and_then(Value::as_object);
    let groups: Vec<&Value> = groups.into_iter().flat_map(|groups| groups.values()).collect();
    let [first, rest @ ..] = &groups[..] else {
        return if format == "dense" { Ok(Method::Dense) } else { not_read("has no config_groups".to_owned()) };
    };
    let weights = |group: &Value, name: &str| group.get("weights").and_then(|weights| weights.get(name)).cloned();
    let differs = |name: &str| rest.iter().any(|group| weights(group, name) != weights(first, name));
    let has_formats = rest.iter().any(|group| text_of(group, "format") != text_of(first, "format"));
    if has_formats || ["num_bits", "type", "block_structure"].into_iter().any(differs) {
        return not_read("has config_groups with several formats of kernels, but only one is supported".to_owned());
    }
    let format = text_of(first, "format").unwrap_or(format);
    let bits = weights(first, "num_bits").and_then(|bits| bits.as_u64()).unwrap_or(8);
    let is_block = weights(first, "strategy").is_some_and(|strategy| strategy == "block");
    let block = match weights(first, "block_structure").filter(|_| is_block) {
        Some(sizes) => Some(block_of(&sizes)?),
        None => {
            let size = weights(first, "group_size").and_then(|size| size.as_u64()).filter(|size| *size > 0);
            size.map(|size| [1, size as usize])
        }
    };
    match (format, bits) {
        ("dense", _) => Ok(Method::Dense),
        ("float-quantized" | "int-quantized" | "naive-quantized", 8) => {
            Ok(Method::Scaled(Scaled::Bytes { scales: Scales::Usual, block }))
        }
        ("pack-quantized", 4 | 8) => Ok(Method::Scaled(Scaled::Packed { bits: bits as usize })),
        ("nvfp4-pack-quantized", _) => Ok(Method::Scaled(Scaled::Nvfp4)),
        _ => not_read(format!(
            "is compressed-tensors with {bits} bits in the format {format:?}, but only 8 bits in \"float-quantized\", \"int-quantized\" and \"naive-quantized\", 4 and 8 bits in \"pack-quantized\", and \"nvfp4-pack-quantized\" are supported"
        )),
    }
}

/// Returns `true` if an option of bitsandbytes is set. Its name can have an underscore in front.
fn bnb_option(about: &Value, name: &str) -> bool {
    about.get(name).or_else(|| about.get(format!("_{name}"))).is_some_and(|value| value == true)
}

/// Returns the name of bitsandbytes for files of early versions, which have only its options.
fn bnb_without_name(about: &Value) -> Option<&'static str> {
    (bnb_option(about, "load_in_4bit") || bnb_option(about, "load_in_8bit")).then_some("bitsandbytes")
}

fn bitsandbytes(about: &Value) -> Result<Method> {
    match (bnb_option(about, "load_in_4bit"), bnb_option(about, "load_in_8bit")) {
        (true, _) => match text_of(about, "bnb_4bit_quant_storage").unwrap_or("uint8") {
            "uint8" => Ok(Method::Scaled(Scaled::Table)),
            other => not_read(format!("has the bnb_4bit_quant_storage {other:?}, but only \"uint8\" is supported")),
        },
        (false, true) => Ok(Method::Scaled(Scaled::Bnb8)),
        (false, false) => Ok(Method::Dense),
    }
}

fn bitnet(about: &Value) -> Result<Method> {
    if about.get("use_rms_norm").is_some_and(|value| value == true) {
        return not_read("is bitnet with use_rms_norm, but norms of inputs are not supported".to_owned());
    }
    let class = text_of(about, "linear_class").unwrap_or("bitlinear");
    let mode = text_of(about, "quantization_mode").unwrap_or("offline");
    match (class, mode) {
        ("bitlinear", _) => Ok(Method::Scaled(Scaled::Ternary { divides: true })),
        ("autobitlinear", "offline") => Ok(Method::Scaled(Scaled::Ternary { divides: false })),
        ("autobitlinear", "online") => Ok(Method::Scaled(Scaled::RoundedToTernary)),
        _ => not_read(format!(
            "is bitnet with the linear_class {class:?} and the quantization_mode {mode:?}, which are not supported"
        )),
    }
}

fn text_of<'a>(about: &'a Value, name: &str) -> Option<&'a str> {
    about.get(name).and_then(Value::as_str)
}

fn error(what: String) -> Error {
    let help = "load the model with `transformers`, dequantize it and save it with `save_pretrained`";
    value_error(format!("`quantization_config` of config.json {what}"), help)
}

fn not_read(what: String) -> Result<Method> {
    Err(error(what))
}
