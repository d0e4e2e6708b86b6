//! The file format of an exported function: safetensors, with metadata that describes the tensors.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::program::{Exchanged, Source, Symbolic};
use super::symbolic::Symbols;
use crate::core::array::Array;
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::{Error, Result, err};
use crate::shape::{AxisName, AxisSet};
use crate::sharding::{AxisType, DimSpec, PartitionSpec, UnreducedKind};

/// The metadata key of the format, and its version.
const KEY: &str = "shardax.export";
const VERSION: u64 = 1;
/// The version of files with open sizes.
const OPEN_VERSION: u64 = 2;

fn damaged(what: impl std::fmt::Display) -> Error {
    err!(Value, "this is not an exported function: {what}")
        .help("pass the complete output of `Exported::serialize`; a truncated or changed file is rejected")
}

fn aval_json(aval: &Aval) -> Value {
    json!({ "dtype": aval.dtype.to_string(), "shape": aval.shape.as_slice(), "weak_type": aval.weak })
}

fn aval_of(value: &Value) -> Option<Aval> {
    let dtype = DType::from_name(value["dtype"].as_str()?)?;
    let shape =
        value["shape"].as_array()?.iter().map(|n| usize::try_from(n.as_u64()?).ok()).collect::<Option<Vec<_>>>()?;
    let mut aval = Aval::new(dtype, shape.as_slice());
    aval.weak = value["weak_type"].as_bool()?;
    Some(aval)
}

/// The axes of each dimension as JSON. With unreduced or reduced axes, it is an object.
fn spec_json(spec: &Option<PartitionSpec>) -> Value {
    let Some(spec) = spec else { return Value::Null };
    let dims: Value =
        spec.dims().iter().map(|dim| dim.axes().iter().map(|name| json!(name.as_str())).collect::<Value>()).collect();
    // Files written before unreduced axes existed have a plain list.
    if spec.unreduced_axes().is_empty() && spec.reduced_axes().is_empty() {
        dims
    } else {
        let mut json = json!({ "dims": dims, "unreduced": set_json(spec.unreduced_axes()), "reduced": set_json(spec.reduced_axes()) });
        if spec.kind() != UnreducedKind::Sum {
            json["unreduced_kind"] = json!(spec.kind().name());
        }
        json
    }
}

fn set_json(axes: &AxisSet) -> Value {
    axes.iter().map(|name| json!(name.as_str())).collect()
}

fn dim_spec(value: &Value) -> Option<DimSpec> {
    let axes = value.as_array()?.iter().map(|name| name.as_str().map(AxisName::from));
    Some(DimSpec::Axes(axes.collect::<Option<_>>()?))
}

fn number(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

fn spec_of(value: &Value) -> Option<Option<PartitionSpec>> {
    if value.is_null() {
        return Some(None);
    }
    let dims = if value.is_object() { &value["dims"] } else { value };
    let spec = PartitionSpec::new(each(dims, dim_spec)?);
    if !value.is_object() {
        return Some(Some(spec));
    }
    let (unreduced, reduced) = (texts(&value["unreduced"])?, texts(&value["reduced"])?);
    let kinds = [UnreducedKind::Sum, UnreducedKind::Max, UnreducedKind::Min];
    let kind = match &value["unreduced_kind"] {
        Value::Null => UnreducedKind::Sum,
        name => kinds.into_iter().find(|kind| name == kind.name())?,
    };
    Some(Some(spec.unreduced(unreduced).reduced(reduced).unreduced_kind(kind)))
}

fn axis_type(value: &Value) -> Option<AxisType> {
    [AxisType::Auto, AxisType::Explicit].into_iter().find(|ty| value == &json!(format!("{ty:?}")))
}

/// Reads every item of a list; `None` if it is not a list or an item is invalid.
fn each<T>(value: &Value, of: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(of).collect()
}

fn texts(value: &Value) -> Option<Vec<String>> {
    each(value, |text| text.as_str().map(str::to_owned))
}

/// The open sizes of a function.
fn open(symbols: &Value, function: &Value) -> Option<Symbolic> {
    let (names, bounds) = each(symbols, symbol_with_bounds)?.into_iter().unzip();
    let symbols = Symbols { names, bounds };
    let (in_sizes, out_sizes) = (each(&function["in_sizes"], texts)?, each(&function["out_sizes"], texts)?);
    if in_sizes.iter().chain(&out_sizes).any(|sizes| symbols.read(sizes).is_err()) {
        return None;
    }
    Some(Symbolic::of(in_sizes, out_sizes, Source::Template(symbols)))
}

fn symbol_with_bounds(symbol: &Value) -> Option<(String, (usize, usize))> {
    Some((symbol[0].as_str()?.to_owned(), (number(&symbol[1])?, number(&symbol[2])?)))
}

fn axis(value: &Value) -> Option<(AxisName, usize)> {
    Some((AxisName::from(value[0].as_str()?), number(&value[1])?))
}

fn missing_field(name: &str) -> Error {
    damaged(format!("it does not say its {name}"))
}

fn tensor_bytes(tensors: &SafeTensors, name: &str) -> Result<Vec<u8>> {
    tensors.tensor(name).map(|tensor| tensor.data().to_vec()).map_err(|e| damaged(format!("{name}: {e}")))
}

/// Returns `true` if there is one list of sizes for each type, with one size for each dimension.
fn fits(avals: &[Aval], sizes: &[Vec<String>]) -> bool {
    avals.len() == sizes.len() && avals.iter().zip(sizes).all(|(aval, sizes)| aval.rank() == sizes.len())
}

/// A tensor of the file: name, type, shape and bytes.
type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

impl Exchanged {
    /// Converts the function to JSON. The text and the captured values become tensors, whose names have this prefix.
    fn write(&self, prefix: &str, tensors: &mut Vec<Tensor>) -> Result<Value> {
        for (platform, text) in &self.texts {
            let bytes = text.as_bytes().to_vec();
            tensors.push((format!("{prefix}stablehlo.{platform}"), Dtype::U8, vec![bytes.len()], bytes));
        }
        for (i, array) in self.captures.iter().enumerate() {
            let (dtype, parts) = array.dtype().stored();
            let mut shape = array.shape().to_vec();
            if parts > 1 {
                shape.push(parts);
            }
            tensors.push((format!("{prefix}captures.{i}"), dtype, shape, array.to_bytes()?));
        }
        let vjp = match &self.vjp {
            Some(vjp) => vjp.write(&format!("{prefix}vjp."), tensors)?,
            None => Value::Null,
        };
        // The digest covers this text, so the names of fields cannot change within a version.
        let mut json = json!({
            "name": self.name,
            "in_avals": self.in_avals.iter().map(aval_json).collect::<Value>(),
            "kept": self.kept,
            "out_avals": self.out_avals.iter().map(aval_json).collect::<Value>(),
            "in_specs": self.in_specs.iter().map(spec_json).collect::<Value>(),
            "out_specs": self.out_specs.iter().map(spec_json).collect::<Value>(),
            "mesh": self.axes.iter().map(|(name, size)| json!([name.as_str(), size])).collect::<Value>(),
            "in_tree": self.in_tree,
            "out_tree": self.out_tree,
            "in_paths": self.in_paths,
            "out_paths": self.out_paths,
            "platforms": self.texts.keys().collect::<Vec<_>>(),
            "captures": self.captures.iter().map(|array| aval_json(&array.aval())).collect::<Value>(),
            "vjp": vjp,
        });
        if let Some(Symbolic { in_sizes, out_sizes, source: Source::Template(symbols), .. }) = self.symbolic.as_deref()
        {
            let bounds = symbols.names.iter().zip(&symbols.bounds);
            json["symbols"] = bounds.map(|(name, (low, high))| json!([name, low, high])).collect();
            (json["in_sizes"], json["out_sizes"]) = (json!(in_sizes), json!(out_sizes));
        }
        if !self.axis_types.is_empty() {
            json["axis_types"] = self.axis_types.iter().map(|ty| json!(format!("{ty:?}"))).collect();
        }
        Ok(json)
    }

    fn read(value: &Value, prefix: &str, tensors: &SafeTensors, digest: &str) -> Result<Exchanged> {
        let mut texts_by_platform = BTreeMap::new();
        for platform in texts(&value["platforms"]).ok_or_else(|| missing_field("platforms"))? {
            let text =
                String::from_utf8(tensor_bytes(tensors, &format!("{prefix}stablehlo.{platform}"))?).map_err(damaged)?;
            texts_by_platform.insert(platform, Arc::from(text));
        }
        let mut captures = Vec::new();
        for (i, aval) in
            each(&value["captures"], aval_of).ok_or_else(|| missing_field("captures"))?.into_iter().enumerate()
        {
            captures.push(
                Array::from_bytes(&tensor_bytes(tensors, &format!("{prefix}captures.{i}"))?, aval.dtype, &aval.shape)?
                    .with_weak_type(aval.weak),
            );
        }
        let read = Exchanged {
            name: value["name"].as_str().ok_or_else(|| missing_field("name"))?.to_owned(),
            in_avals: each(&value["in_avals"], aval_of).ok_or_else(|| missing_field("arguments"))?,
            kept: each(&value["kept"], number).ok_or_else(|| missing_field("arguments"))?,
            out_avals: each(&value["out_avals"], aval_of).ok_or_else(|| missing_field("results"))?,
            keys_are_words: false,
            in_specs: each(&value["in_specs"], spec_of).ok_or_else(|| missing_field("shardings"))?,
            out_specs: each(&value["out_specs"], spec_of).ok_or_else(|| missing_field("shardings"))?,
            axes: each(&value["mesh"], axis).ok_or_else(|| missing_field("mesh"))?,
            axis_types: match &value["axis_types"] {
                Value::Null => Vec::new(),
                types => each(types, axis_type).ok_or_else(|| missing_field("mesh"))?,
            },
            in_tree: value["in_tree"].clone(),
            out_tree: value["out_tree"].clone(),
            in_paths: texts(&value["in_paths"]).ok_or_else(|| missing_field("arguments"))?,
            out_paths: texts(&value["out_paths"]).ok_or_else(|| missing_field("results"))?,
            texts: texts_by_platform,
            meshes: Vec::new(),
            captures,
            digest: format!("{prefix}{digest}"),
            vjp: match &value["vjp"] {
                Value::Null => None,
                vjp => Some(Arc::new(Exchanged::read(vjp, &format!("{prefix}vjp."), tensors, digest)?)),
            },
            symbolic: match &value["symbols"] {
                Value::Null => None,
                symbols => Some(Arc::new(open(symbols, value).ok_or_else(|| missing_field("sizes"))?)),
            },
        };
        // The fields are valid by themselves; indexing relies on their agreement.
        if let Some(open) = &read.symbolic
            && !(fits(&read.in_avals, &open.in_sizes) && fits(&read.out_avals, &open.out_sizes))
        {
            return Err(missing_field("sizes"));
        }
        if !read.kept.iter().all(|&i| i < read.in_avals.len()) {
            return Err(missing_field("arguments"));
        }
        if !read.axis_types.is_empty() && read.explicit_mesh().is_none() {
            return Err(missing_field("mesh"));
        }
        Ok(read.typed())
    }

    /// The JSON and the tensors, ordered by name as in a file, with the digest of both.
    fn parts(&self) -> Result<(Value, Vec<Tensor>, String)> {
        let mut tensors = Vec::new();
        let json = self.write("", &mut tensors)?;
        tensors.sort_by(|a, b| a.0.cmp(&b.0));
        let digest = digest_of(&json, tensors.iter().map(|(name, _, _, bytes)| (name.as_str(), bytes.as_slice())));
        Ok((json, tensors, digest))
    }

    /// Returns the bytes of the file.
    ///
    /// # Errors
    /// Returns an error if the captured arrays cannot be read, for example because they were deleted.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let version = match self.symbolic.as_deref().map(|symbolic| &symbolic.source) {
            Some(Source::Jax(file)) => return Ok(file.to_vec()),
            Some(Source::Template(_)) => OPEN_VERSION,
            None => VERSION,
        };
        let (metadata, tensors, digest) = self.parts()?;
        let metadata = json!({ "version": version, "sha256": digest, "function": metadata }).to_string();
        let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
            Ok((name, TensorView::new(*dtype, shape.clone(), bytes).map_err(|e| err!(Runtime, "{name}: {e}"))?))
        });
        let views: Vec<_> = views.collect::<Result<_>>()?;
        let metadata = HashMap::from([(KEY.to_owned(), metadata)]);
        serialize(views, Some(metadata)).map_err(|e| err!(Runtime, "{}: {e}", self.name))
    }

    /// Reads such a file, or a file of `jax.export`. The latter does not begin with the length of a JSON text.
    ///
    /// # Errors
    /// Returns an error if the bytes are damaged, or have a version that this library cannot read.
    pub fn from_bytes(bytes: &[u8]) -> Result<Exchanged> {
        if bytes.get(8).is_some_and(|&byte| byte != b'{') {
            return super::jax::exchanged(bytes);
        }
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(damaged)?;
        let tensors = SafeTensors::deserialize(bytes).map_err(damaged)?;
        let text = header.metadata().as_ref().and_then(|metadata| metadata.get(KEY));
        let text = text.ok_or_else(|| damaged(format!("its metadata have no {KEY:?}")))?;
        let value: Value = serde_json::from_str(text).map_err(damaged)?;
        if value["version"] != VERSION && value["version"] != OPEN_VERSION {
            return Err(err!(
                Value,
                "this exported function is of version {}, and this library reads versions {VERSION} and {OPEN_VERSION}",
                value["version"]
            )
            .help("export it again with this version of the library"));
        }
        let mut ordered = tensors.tensors();
        ordered.sort_by(|a, b| a.0.cmp(&b.0));
        let digest = digest_of(&value["function"], ordered.iter().map(|(name, tensor)| (name.as_str(), tensor.data())));
        // Checks the contents before reading them, so that a damaged file never becomes another function.
        if value["sha256"] != digest.as_str() {
            return Err(damaged(format!("its contents have the digest {digest}, and it says {}", value["sha256"])));
        }
        Exchanged::read(&value["function"], "", &tensors, &digest)
    }

    /// Sets the digests of the function and its derivatives to the values that they will have when the file is read.
    pub fn digested(mut self) -> Result<Exchanged> {
        let digest = self.parts()?.2;
        self.set_digest("", &digest);
        Ok(self)
    }

    fn set_digest(&mut self, prefix: &str, digest: &str) {
        self.digest = format!("{prefix}{digest}");
        if let Some(vjp) = &mut self.vjp {
            Arc::make_mut(vjp).set_digest(&format!("{prefix}vjp."), digest);
        }
    }
}

/// The digest of tensors and a JSON value; the text of the value has ordered keys.
fn digest_of<'a>(json: &Value, tensors: impl Iterator<Item = (&'a str, &'a [u8])>) -> String {
    let mut hasher = Sha256::new();
    hasher.update(json.to_string());
    for (name, bytes) in tensors {
        hasher.update(name);
        hasher.update(bytes);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
