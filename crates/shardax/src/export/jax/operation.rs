//! Attributes of VHLO operations, and their form in StableHLO.
//!
//! The table of attributes is written by hand, for the operations that JAX writes: bytecode has the values of properties
//! without their names. `tools/export/vhlo.py` compares it with the attributes that MLIR's verifier requires.

use super::attribute::{Attribute, Dictionary, quoted, symbol};
use super::bytecode::{Bytes, at};
use super::damaged;
use crate::error::{Result, err};

/// The attributes of an operation in alphabetical order, the order of its properties in bytecode.
fn names(operation: &str) -> Option<&'static [&'static str]> {
    Some(match operation {
        // The order is part of VHLO's format: properties are written without names.
        "all_gather_v1" | "all_gather_v2" => {
            &["all_gather_dim", "channel_id", "replica_groups", "use_global_device_ids"]
        }
        "all_reduce_v1" | "all_reduce_v2" => &["channel_id", "replica_groups", "use_global_device_ids"],
        "all_to_all_v1" | "all_to_all_v2" => {
            &["channel_id", "concat_dimension", "replica_groups", "split_count", "split_dimension"]
        }
        "batch_norm_grad_v1" | "batch_norm_inference_v1" | "batch_norm_training_v1" => &["epsilon", "feature_index"],
        "broadcast_in_dim_v1" => &["broadcast_dimensions"],
        "broadcast_v1" => &["broadcast_sizes"],
        "call_v1" => &["callee"],
        "cbrt_v2"
        | "cosine_v2"
        | "exponential_minus_one_v2"
        | "exponential_v2"
        | "log_plus_one_v2"
        | "log_v2"
        | "logistic_v2"
        | "rsqrt_v2"
        | "sine_v2"
        | "sqrt_v2"
        | "tan_v2"
        | "tanh_v2" => &["result_accuracy"],
        "cholesky_v1" => &["lower"],
        "collective_broadcast_v1" => &["channel_id", "replica_groups"],
        "collective_permute_v1" => &["channel_id", "source_target_pairs"],
        "compare_v1" => &["compare_type", "comparison_direction"],
        "composite_v1" | "composite_v2" => &["composite_attributes", "decomposition", "name", "version"],
        "concatenate_v1" => &["dimension"],
        "constant_v1" => &["value"],
        "convolution_v1" => &[
            "batch_group_count",
            "feature_group_count",
            "input_batch_dimension",
            "input_feature_dimension",
            "input_spatial_dimensions",
            "kernel_input_feature_dimension",
            "kernel_output_feature_dimension",
            "kernel_spatial_dimensions",
            "lhs_dilation",
            "output_batch_dimension",
            "output_feature_dimension",
            "output_spatial_dimensions",
            "padding",
            "precision_config",
            "rhs_dilation",
            "window_reversal",
            "window_strides",
        ],
        "custom_call_v1" => &[
            "api_version",
            "backend_config",
            "call_target_name",
            "called_computations",
            "has_side_effect",
            "operand_layouts",
            "output_operand_aliases",
            "result_layouts",
        ],
        "custom_call_v2" => &[
            "api_version",
            "backend_config",
            "call_target_name",
            "called_computations",
            "has_side_effect",
            "operand_layouts",
            "output_operand_aliases",
            "result_layouts",
            "result_tilings",
        ],
        "dot_general_v1" => &[
            "lhs_batching_dimensions",
            "lhs_contracting_dimensions",
            "precision_config",
            "rhs_batching_dimensions",
            "rhs_contracting_dimensions",
        ],
        "dot_general_v2" => &[
            "accumulation_type",
            "allow_imprecise_accumulation",
            "lhs_batching_dimensions",
            "lhs_component_count",
            "lhs_contracting_dimensions",
            "lhs_precision_type",
            "num_primitive_operations",
            "precision_config",
            "rhs_batching_dimensions",
            "rhs_component_count",
            "rhs_contracting_dimensions",
            "rhs_precision_type",
        ],
        "dynamic_broadcast_in_dim_v1" => {
            &["broadcast_dimensions", "known_expanding_dimensions", "known_nonexpanding_dimensions"]
        }
        "dynamic_conv_v2" => &[
            "batch_group_count",
            "feature_group_count",
            "input_batch_dimension",
            "input_feature_dimension",
            "input_spatial_dimensions",
            "kernel_input_feature_dimension",
            "kernel_output_feature_dimension",
            "kernel_spatial_dimensions",
            "lhs_dilation",
            "output_batch_dimension",
            "output_feature_dimension",
            "output_spatial_dimensions",
            "precision_config",
            "rhs_dilation",
            "window_reversal",
            "window_strides",
        ],
        "dynamic_gather_v2" => &[
            "collapsed_slice_dims",
            "index_vector_dim",
            "indices_are_sorted",
            "offset_dims",
            "operand_batching_dims",
            "start_index_map",
            "start_indices_batching_dims",
        ],
        "dynamic_iota_v1" => &["iota_dimension"],
        "dynamic_slice_v1" => &["slice_sizes"],
        "fft_v1" => &["fft_length", "fft_type"],
        "func_v1" => &["arg_attrs", "function_type", "res_attrs", "sym_name", "sym_visibility"],
        "gather_v1" => &[
            "collapsed_slice_dims",
            "index_vector_dim",
            "indices_are_sorted",
            "offset_dims",
            "slice_sizes",
            "start_index_map",
        ],
        "gather_v2" => &[
            "collapsed_slice_dims",
            "index_vector_dim",
            "indices_are_sorted",
            "offset_dims",
            "operand_batching_dims",
            "slice_sizes",
            "start_index_map",
            "start_indices_batching_dims",
        ],
        "get_dimension_size_v1" => &["dimension"],
        "get_tuple_element_v1" => &["index"],
        "iota_v1" => &["iota_dimension"],
        "map_v1" | "reduce_v1" | "reverse_v1" => &["dimensions"],
        "pad_v1" => &["edge_padding_high", "edge_padding_low", "interior_padding"],
        "reduce_precision_v1" => &["exponent_bits", "mantissa_bits"],
        "reduce_scatter_v1" => &["channel_id", "replica_groups", "scatter_dimension", "use_global_device_ids"],
        "reduce_window_v1" => &["base_dilations", "padding", "window_dilations", "window_dimensions", "window_strides"],
        "rng_bit_generator_v1" => &["rng_algorithm"],
        "rng_v1" => &["rng_distribution"],
        "scatter_v1" => &[
            "index_vector_dim",
            "indices_are_sorted",
            "inserted_window_dims",
            "scatter_dims_to_operand_dims",
            "unique_indices",
            "update_window_dims",
        ],
        "scatter_v2" => &[
            "index_vector_dim",
            "indices_are_sorted",
            "input_batching_dims",
            "inserted_window_dims",
            "scatter_dims_to_operand_dims",
            "scatter_indices_batching_dims",
            "unique_indices",
            "update_window_dims",
        ],
        "select_and_scatter_v1" => &["padding", "window_dimensions", "window_strides"],
        "slice_v1" => &["limit_indices", "start_indices", "strides"],
        "sort_v1" => &["dimension", "is_stable"],
        "transpose_v1" => &["permutation"],
        "triangular_solve_v1" => &["left_side", "lower", "transpose_a", "unit_diagonal"],
        "manual_computation" => &["in_shardings", "manual_axes", "out_shardings"],
        "mesh" => &["mesh", "sym_name"],
        "sharding_constraint" => &["sharding"],
        "sharding_group" => &["group_id"],
        _ => return None,
    })
}

/// Attributes that are lists of numbers in StableHLO and tensors in VHLO.
const LISTS: &[&str] = &[
    "base_dilations",
    "broadcast_dimensions",
    "broadcast_sizes",
    "dimensions",
    "edge_padding_high",
    "edge_padding_low",
    "fft_length",
    "interior_padding",
    "lhs_dilation",
    "limit_indices",
    "permutation",
    "rhs_dilation",
    "slice_sizes",
    "start_indices",
    "strides",
    "window_dilations",
    "window_dimensions",
    "window_strides",
];

/// Attributes that VHLO splits into several: the name, the prefix, and the fields.
type Joined = (&'static str, &'static str, &'static [&'static str]);

fn joined(operation: &str) -> Option<Joined> {
    // StableHLO writes these fields in this order.
    const DOT: &[&str] = &[
        "lhs_batching_dimensions",
        "rhs_batching_dimensions",
        "lhs_contracting_dimensions",
        "rhs_contracting_dimensions",
    ];
    const GATHER: &[&str] = &[
        "offset_dims",
        "collapsed_slice_dims",
        "operand_batching_dims",
        "start_indices_batching_dims",
        "start_index_map",
        "index_vector_dim",
    ];
    const SCATTER: &[&str] = &[
        "update_window_dims",
        "inserted_window_dims",
        "input_batching_dims",
        "scatter_indices_batching_dims",
        "scatter_dims_to_operand_dims",
        "index_vector_dim",
    ];
    const CONVOLUTION: &[&str] = &[
        "input_batch_dimension",
        "input_feature_dimension",
        "input_spatial_dimensions",
        "kernel_input_feature_dimension",
        "kernel_output_feature_dimension",
        "kernel_spatial_dimensions",
        "output_batch_dimension",
        "output_feature_dimension",
        "output_spatial_dimensions",
    ];
    Some(match operation {
        "dot_general_v1" | "dot_general_v2" => ("dot_dimension_numbers", "#stablehlo.dot", DOT),
        "gather_v1" | "gather_v2" => ("dimension_numbers", "#stablehlo.gather", GATHER),
        "scatter_v1" | "scatter_v2" => ("scatter_dimension_numbers", "#stablehlo.scatter", SCATTER),
        "convolution_v1" => ("dimension_numbers", "#stablehlo.conv", CONVOLUTION),
        _ => return None,
    })
}

/// The attributes of an operation by name.
pub(super) type Named<'a> = Vec<(&'static str, Attribute<'a>)>;

impl<'a> Dictionary<'a> {
    /// Reads the properties of an operation.
    pub fn named_properties(&self, operation: &str, properties: Option<usize>) -> Result<Named<'a>> {
        let Some(index) = properties else { return Ok(Vec::new()) };
        let mut r: Bytes<'a> = *at(&self.code.properties, index)?;
        let names = match names(operation) {
            Some(names) => names,
            None if r.is_empty() => &[],
            None => {
                return Err(err!(NotImplemented, "the program has the operation {operation}, which is not supported")
                    .help(
                        "write the function with `exchange.save` of `tools/export`, which stores its program as text",
                    ));
            }
        };
        let named_properties =
            names.iter().map(|name| Ok((*name, self.attribute(r.index()?)?))).collect::<Result<_>>()?;
        if r.is_empty() {
            Ok(named_properties)
        } else {
            Err(damaged(format!("its program has more attributes for {operation} than are known")))
        }
    }

    /// Moves the properties of an operation out of its other attributes, for bytecode that does not separate them.
    pub fn among(&self, operation: &str, attributes: &mut Vec<(&'a str, usize)>) -> Result<Named<'a>> {
        let mut named = Vec::new();
        for name in names(operation).unwrap_or_default() {
            if let Some(position) = attributes.iter().position(|(of, _)| of == name) {
                named.push((*name, self.attribute(attributes.remove(position).1)?));
            }
        }
        Ok(named)
    }

    /// Returns the attributes as StableHLO text. Attributes with StableHLO's default value are left out.
    pub fn attributes(&self, operation: &str, named: &Named<'a>) -> Result<Vec<String>> {
        let mut texts = Vec::new();
        let joined = joined(operation);
        if let Some((name, begin, fields)) = joined {
            texts.push(format!("{name} = {begin}<{}>", self.fields(begin, fields, named)?));
        }
        let parts = joined.map_or(&[][..], |(_, _, fields)| fields);
        if let Some(algorithm) = self.algorithm(named)? {
            texts.push(format!("algorithm = {algorithm}"));
        }
        for (name, attribute) in named {
            if parts.contains(name) || ALGORITHM.contains(name) {
                continue;
            }
            if let Some(text) = self.converted(operation, name, attribute)? {
                texts.push(text);
            }
        }
        Ok(texts)
    }

    fn converted(&self, operation: &str, name: &str, attribute: &Attribute<'a>) -> Result<Option<String>> {
        let text = match (name, attribute) {
            // StableHLO's parser supplies defaults, so attributes with default values are left out.
            ("channel_id", Attribute::Int(_, 0)) | ("use_global_device_ids", Attribute::Bool(false)) => {
                return Ok(None);
            }
            ("channel_id", Attribute::Int(_, channel)) => {
                return Ok(Some(format!("channel_handle = #stablehlo.channel_handle<handle = {channel}, type = 0>")));
            }
            ("use_global_device_ids", _) => return Ok(Some(name.to_owned())),
            ("compare_type", Attribute::Choice(_, "NOTYPE")) => return Ok(None),
            ("result_accuracy", Attribute::Accuracy(_, _, mode)) if self.is(*mode, "DEFAULT") => return Ok(None),
            ("backend_config", Attribute::Text("")) => return Ok(None),
            ("precision_config", Attribute::Array(items)) if items.iter().all(|&one| self.is(one, "DEFAULT")) => {
                return Ok(None);
            }
            ("backend_config", Attribute::Dictionary(items)) if items.is_empty() => return Ok(None),
            (
                "called_computations"
                | "operand_layouts"
                | "result_layouts"
                | "output_operand_aliases"
                | "result_tilings",
                Attribute::Array(items),
            ) if items.is_empty() => return Ok(None),
            ("called_computations", Attribute::Array(items)) => {
                let items = items.iter().map(|&one| Ok(symbol(self.string(one)?)));
                format!("[{}]", items.collect::<Result<Vec<_>>>()?.join(", "))
            }
            ("callee" | "decomposition", Attribute::Text(name)) => symbol(name),
            ("window_reversal", Attribute::Tensor(of, bytes)) => {
                let items: Vec<_> = self.integers(*of, bytes)?.iter().map(|bit| (*bit != 0).to_string()).collect();
                list("i1", &items)
            }
            (_, Attribute::Tensor(of, bytes)) if LISTS.contains(&name) && !operation.starts_with("custom_call") => {
                let items: Vec<_> = self.integers(*of, bytes)?.iter().map(i64::to_string).collect();
                list("i64", &items)
            }
            (_, Attribute::Numbers(_, values)) if LISTS.contains(&name) => {
                list("i64", &values.iter().map(i64::to_string).collect::<Vec<_>>())
            }
            _ => self.print(attribute)?,
        };
        Ok(Some(format!("{name} = {text}")))
    }

    fn is(&self, attribute: usize, choice: &str) -> bool {
        matches!(self.attribute(attribute), Ok(Attribute::Choice(_, name)) if name == choice)
    }

    pub fn attribute_named<'n>(&self, named: &'n Named<'a>, name: &str) -> Result<&'n Attribute<'a>> {
        let attribute = named.iter().find(|(of, _)| *of == name).map(|(_, attribute)| attribute);
        attribute.ok_or_else(|| damaged(format!("its program does not say {name} of an operation")))
    }

    /// The dimension numbers of a dot, a convolution, a gather or a scatter.
    fn fields(&self, begin: &str, fields: &[&str], named: &Named<'a>) -> Result<String> {
        let mut texts = Vec::new();
        for name in fields {
            // Earlier versions have no batching dimensions, so they are empty.
            if name.ends_with("batching_dims") && named.iter().all(|(of, _)| of != name) {
                continue;
            }
            let text = match self.attribute_named(named, name)? {
                Attribute::Int(_, value) => value.to_string(),
                Attribute::Tensor(of, bytes) => {
                    let integers: Vec<_> = self.integers(*of, bytes)?.iter().map(i64::to_string).collect();
                    if integers.is_empty() && begin != "#stablehlo.conv" {
                        continue;
                    }
                    format!("[{}]", integers.join(", "))
                }
                other => return Err(damaged(format!("its program has {other:?} for {name}"))),
            };
            texts.push(match begin {
                "#stablehlo.conv" => text,
                _ => format!("{name} = {text}"),
            });
        }
        if begin == "#stablehlo.conv" {
            return convolution(&texts);
        }
        Ok(texts.join(", "))
    }

    /// The algorithm of a dot, if specified.
    fn algorithm(&self, named: &Named<'a>) -> Result<Option<String>> {
        let mut texts = Vec::new();
        for name in ALGORITHM {
            let Some((_, attribute)) = named.iter().find(|(of, _)| of == name) else { return Ok(None) };
            let text = match attribute {
                Attribute::Int(_, value) => value.to_string(),
                other => self.print(other)?,
            };
            if text == "none" {
                return Ok(None);
            }
            texts.push(format!("{name} = {text}"));
        }
        Ok(Some(format!("#stablehlo.dot_algorithm<{}>", texts.join(", "))))
    }
}

const ALGORITHM: &[&str] = &[
    "lhs_precision_type",
    "rhs_precision_type",
    "accumulation_type",
    "lhs_component_count",
    "rhs_component_count",
    "num_primitive_operations",
    "allow_imprecise_accumulation",
];

fn list(of: &str, each: &[String]) -> String {
    match each {
        [] => format!("array<{of}>"),
        each => format!("array<{of}: {}>", each.join(", ")),
    }
}

/// The dimension numbers of a convolution: `[b, f, 0, 1]x[0, 1, i, o]->[b, f, 0, 1]`.
fn convolution(fields: &[String]) -> Result<String> {
    match fields {
        [_, _, _, _, _, _, _, _, _] => Ok(format!(
            "{}x{}->{}",
            convolution_dims('b', 'f', &fields[..3])?,
            convolution_dims('i', 'o', &fields[3..6])?,
            convolution_dims('b', 'f', &fields[6..])?
        )),
        _ => Err(damaged("its program has a convolution without dimensions")),
    }
}

/// The order of one array's dimensions. The fields are the positions of its two named dimensions, and the list of its
/// spatial dimensions.
fn convolution_dims(first: char, second: char, fields: &[String]) -> Result<String> {
    let spatial = fields[2].trim_matches(['[', ']']).split(", ").filter_map(|number| number.parse().ok());
    let spatial: Vec<usize> = spatial.collect();
    let mut dims = vec![String::new(); spatial.len() + 2];
    let named = [(fields[0].parse().ok(), first.to_string()), (fields[1].parse().ok(), second.to_string())];
    let spatial = spatial.into_iter().enumerate().map(|(i, position)| (Some(position), i.to_string()));
    for (position, name) in named.into_iter().chain(spatial) {
        let dim = position.and_then(|position: usize| dims.get_mut(position));
        *dim.ok_or_else(|| damaged("its program has a convolution of dimensions that it does not have"))? = name;
    }
    Ok(format!("[{}]", dims.join(", ")))
}

/// Joins attributes in braces.
pub(super) fn braces(open: &str, all: &[String], close: &str) -> String {
    if all.is_empty() { String::new() } else { format!(" {open}{}{close}", all.join(", ")) }
}

/// The name of a discardable attribute.
pub(super) fn foreign(name: &str, text: &str) -> String {
    format!("{} = {text}", if name.contains(['-', ' ']) { quoted(name) } else { name.to_owned() })
}
