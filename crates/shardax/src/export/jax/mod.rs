//! Reads the output of `jax.export.Exported.serialize()`: a flatbuffer that holds a portable artifact of StableHLO.
//!
//! XLA accepts the artifact, but only as an entire program. To call it inside other programs, it must become text. The
//! PJRT C API has no function for this conversion, so these modules do it: the container ([`bytecode`]), attributes and
//! types ([`attribute`]), operations ([`operation`], [`module`]).

mod attribute;
mod bytecode;
mod lapack;
mod module;
mod operation;
mod table;
mod tree;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use bytecode::Bytecode;
use module::Module;
use serde_json::Value;
use sha2::{Digest, Sha256};
use table::Table;

use super::program::{Exchanged, Source, Symbolic, explicit_types};
use crate::core::lower::write_type;
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::{Error, Result, err};
use crate::shape::AxisName;
use crate::sharding::{AxisType, DimSpec, PartitionSpec};
use crate::stack::grow;

fn damaged(what: impl Display) -> Error {
    err!(Value, "this is not an exported function, of this library or of `jax.export`: {what}").help(
        "pass the complete output of `Exported::serialize`, of shardax or JAX; a truncated or changed file is rejected",
    )
}

/// The fields of the tables, by number.
mod field {
    pub const NAME: usize = 1;
    pub const IN_TREE: usize = 2;
    pub const IN_AVALS: usize = 3;
    pub const OUT_TREE: usize = 4;
    pub const OUT_AVALS: usize = 5;
    pub const DEVICES_SHORT: usize = 6;
    pub const PLATFORMS: usize = 9;
    pub const ORDERED_EFFECTS: usize = 10;
    pub const UNORDERED_EFFECTS: usize = 11;
    pub const MODULE: usize = 13;
    pub const KEPT: usize = 15;
    pub const VJP: usize = 17;
    pub const DEVICES: usize = 18;
    pub const MESHES: usize = 20;
    pub const SHARDINGS: usize = 21;
    pub const IN_SHARDINGS: usize = 24;
    pub const OUT_SHARDINGS: usize = 25;
}

/// Reads the function from such bytes.
pub(super) fn exchanged(bytes: &[u8]) -> Result<Exchanged> {
    let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut read = function(Table::root(bytes)?, &digest, None)?;
    if let Some(symbolic) = read.symbolic.as_mut().and_then(Arc::get_mut) {
        symbolic.source = Source::Jax(bytes.into());
    }
    Ok(read)
}

/// Reads the function of a file with symbolic sizes, for arguments of these shapes.
pub(super) fn sized(bytes: &[u8], digest: &str, shapes: &[Vec<usize>]) -> Result<Exchanged> {
    function(Table::root(bytes)?, &format!("{digest} {shapes:?}"), Some(shapes))
}

/// Reads a function. If it has symbolic sizes, it is read for arguments of these shapes.
fn function(table: Table, digest: &str, shapes: Option<&[Vec<usize>]>) -> Result<Exchanged> {
    let name = table.text(field::NAME)?.to_owned();
    check_effects(&table, &name)?;
    let (mut in_avals, in_sizes) = avals(&table, field::IN_AVALS, &name)?;
    let (mut out_avals, out_sizes) = avals(&table, field::OUT_AVALS, &name)?;
    let symbolic = in_sizes.iter().chain(&out_sizes).flatten().any(|size| size.parse::<usize>().is_err());
    for (aval, shape) in in_avals.iter_mut().zip(shapes.unwrap_or_default()) {
        *aval = Aval::new(aval.dtype, shape.as_slice());
    }
    let used = table.shorts(field::KEPT)?;
    if !used.iter().all(|&i| i < in_avals.len()) {
        return Err(damaged("it has no such arguments as its program takes"));
    }
    let devices = match table.int(field::DEVICES)? {
        0 => usize::from(table.short(field::DEVICES_SHORT)?),
        devices => devices as usize,
    };
    let is_unknown = symbolic && shapes.is_none();
    // The file has one module for all platforms. It is written as text for each of them, unless its symbolic sizes are not
    // known yet.
    let code = Bytecode::of(table.bytes(field::MODULE)?)?;
    let platforms = table.texts(field::PLATFORMS)?;
    let (texts, module) = if is_unknown {
        (platforms.iter().map(|platform| (platform.to_string(), Arc::from(""))).collect(), None)
    } else {
        let arguments: Vec<&Aval> = used.iter().map(|&i| &in_avals[i]).collect();
        texts_for(&code, &name, &platforms, &arguments, (&mut out_avals, symbolic))?
    };
    let (meshes, takes, gives) = module.map(|module| (module.meshes, module.takes, module.gives)).unwrap_or_default();
    // Shardings, trees and paths come from other fields of the file, and are set below.
    let mut read = Exchanged {
        name,
        in_specs: Vec::new(),
        out_specs: Vec::new(),
        axes: Vec::new(),
        axis_types: Vec::new(),
        meshes: Vec::new(),
        in_tree: Value::Null,
        out_tree: Value::Null,
        in_paths: vec![String::new(); in_avals.len()],
        out_paths: vec![String::new(); out_avals.len()],
        in_avals,
        kept: used,
        out_avals,
        keys_are_words: true,
        texts,
        captures: Vec::new(),
        digest: digest.to_owned(),
        vjp: None,
        symbolic: is_unknown.then(|| Arc::new(Symbolic::of(in_sizes, out_sizes, Source::Jax(Arc::from([]))))),
    };
    sharded(&mut read, &table, devices, meshes, [takes, gives])?;
    read = read.typed();
    read_trees(&mut read, &table)?;
    if let Some(vjp) = table.table(field::VJP)? {
        // The derivative takes the function's arguments, and a cotangent of each result.
        let vjp_shapes: Vec<Vec<usize>> =
            read.in_avals.iter().chain(&read.out_avals).map(|aval| aval.shape.to_vec()).collect();
        let shapes = shapes.map(|_| vjp_shapes.as_slice());
        read.vjp = Some(Arc::new(derivative(grow(|| function(vjp, &format!("vjp.{digest}"), shapes))?)?));
    }
    Ok(read)
}

/// Writes the module as text for each platform, and compares its types with the types in the file. If sizes of results are
/// symbolic, they are replaced by the sizes that follow from the arguments. Also returns the last platform's module.
fn texts_for(
    code: &Bytecode,
    name: &str,
    platforms: &[&str],
    arguments: &[&Aval],
    (out_avals, symbolic): (&mut [Aval], bool),
) -> Result<(BTreeMap<String, Arc<str>>, Option<Module>)> {
    let (mut texts, mut last) = (BTreeMap::new(), None);
    for (number, platform) in platforms.iter().enumerate() {
        let mut module = module_for(code, number, arguments)
            .map_err(|e| e.context(format!("{name}, exported by JAX for {platform}")))?;
        if symbolic && module.result_shapes.len() == out_avals.len() {
            set_result_sizes(out_avals, &module.result_shapes)?;
        }
        let passed = arguments.iter().copied().filter(|aval| aval.dtype != DType::Float0);
        check(&module.inputs, passed, "arguments")?;
        check(&module.results, out_avals.iter(), "results")?;
        texts.insert(platform.to_string(), Arc::from(std::mem::take(&mut module.text)));
        last = Some(module);
    }
    Ok((texts, last))
}

/// Writes the module as text for the platform with this number, and for arguments of these types.
fn module_for(code: &Bytecode, platform: usize, arguments: &[&Aval]) -> Result<Module> {
    let shapes = arguments.iter().map(|aval| in_program(aval).shape.iter().map(|&size| size as i64).collect());
    let shapes: Vec<Vec<i64>> = shapes.collect();
    let is_empty = arguments.iter().map(|aval| aval.dtype == DType::Float0).collect();
    Module::of(code, &shapes, is_empty, platform)
}

/// Fails for a function with effects, because they call Python.
fn check_effects(table: &Table, name: &str) -> Result<()> {
    for effects in [field::ORDERED_EFFECTS, field::UNORDERED_EFFECTS] {
        if let Some(effect) = table.tables(effects)?.first() {
            return Err(err!(NotImplemented, "{name} has the effect {}, which cannot leave JAX", effect.text(0)?)
                .help("export a function without callbacks and prints, and call them around it"));
        }
    }
    Ok(())
}

/// Replaces the symbolic sizes of results by the sizes that follow from the arguments.
fn set_result_sizes(out_avals: &mut [Aval], shapes: &[Vec<i64>]) -> Result<()> {
    for (aval, shape) in out_avals.iter_mut().zip(shapes) {
        // For keys, the dimension of their words is left out.
        let sizes = shape.iter().take(aval.rank()).map(|&size| usize::try_from(size).map_err(damaged));
        *aval = Aval::new(aval.dtype, sizes.collect::<Result<Vec<_>>>()?.as_slice());
    }
    Ok(())
}

/// Reads the trees of arguments and results, and the paths of their leaves.
fn read_trees(read: &mut Exchanged, table: &Table) -> Result<()> {
    if let Some(tree) = table.table(field::OUT_TREE)? {
        let (steps, paths) = tree::structure(tree)?;
        (read.out_tree, read.out_paths) = (steps, agreeing(paths, read.out_avals.len())?);
    }
    if let Some(tree) = table.table(field::IN_TREE)? {
        let (steps, paths) = tree::arguments(tree)?;
        (read.in_tree, read.in_paths) = (steps, agreeing(paths, read.in_avals.len())?);
    }
    Ok(())
}

/// The type of a value in JAX's programs, which contain keys as words.
pub(super) fn in_program(aval: &Aval) -> Aval {
    if !aval.dtype.is_key() {
        return aval.clone();
    }
    let mut shape = aval.shape.clone();
    shape.push(2);
    Aval::new(DType::U32, shape)
}

/// Checks that the types of its `main` match the metadata.
fn check<'a>(types: &[String], avals: impl Iterator<Item = &'a Aval>, what: &str) -> Result<()> {
    let expected: Vec<String> = avals.map(program_type).collect();
    if types == expected {
        Ok(())
    } else {
        Err(damaged(format!("its program has {what} {types:?}, and it says {expected:?}")))
    }
}

fn program_type(aval: &Aval) -> String {
    let mut text = String::new();
    let aval = in_program(aval);
    write_type(&mut text, aval.dtype, &aval.shape);
    text
}

fn agreeing(paths: Vec<String>, leaves: usize) -> Result<Vec<String>> {
    if paths.len() == leaves {
        Ok(paths)
    } else {
        Err(damaged(format!("its structure has {} leaves, and there are {leaves}", paths.len())))
    }
}

/// Converts JAX's derivative, which has an entry for every argument and result, to shardax's, which has entries only
/// for inexact ones.
fn derivative(mut read: Exchanged) -> Result<Exchanged> {
    let moves: Vec<bool> = read.in_avals.iter().map(|aval| aval.dtype != DType::Float0).collect();
    let mut used = read.kept.iter();
    read.in_specs.retain(|_| used.next().is_some_and(|&i| moves[i]));
    // Arguments are renumbered without the ones that are removed.
    let used = read.kept.iter().filter(|&&i| moves[i]);
    read.kept = used.map(|&i| moves[..i].iter().filter(|moves| **moves).count()).collect();
    let mut is_moving = moves.iter();
    read.in_avals.retain(|_| is_moving.next() == Some(&true));
    read.in_paths = vec![String::new(); read.in_avals.len()];
    (read.in_tree, read.out_tree) = (Value::Null, Value::Null);
    Ok(read)
}

/// The numbers and JAX's names of element types that shardax lacks.
const KEYS: [(u8, &str); 2] = [(28, "key<rbg>"), (29, "key<urbg>")];

/// Reads the types of arguments or results, and the texts of their sizes. A symbolic size is 0 in the types.
fn avals(table: &Table, field: usize, name: &str) -> Result<(Vec<Aval>, Vec<Vec<String>>)> {
    table.tables(field)?.iter().map(|table| aval(table, name)).collect()
}

/// Reads the type of one array of the function `name`, and the texts of its sizes.
fn aval(table: &Table, name: &str) -> Result<(Aval, Vec<String>)> {
    let sizes = table.texts(1)?;
    let number = table.byte(2)?;
    let dtype = DType::from_jax_number(number).ok_or_else(|| {
        let element = KEYS.iter().find(|(key, _)| *key == number).map_or("of an unknown number", |(_, name)| name);
        err!(NotImplemented, "{name} has arrays of JAX's element type {element}, which shardax lacks")
            .help("use keys of Threefry, JAX's default, or export a function of their `jax.random.key_data`")
    })?;
    let shape: Vec<usize> = sizes.iter().map(|size| size.parse().unwrap_or(0)).collect();
    let bytes = shape.iter().try_fold(dtype.byte_size(), |bytes, &size| bytes.checked_mul(size));
    if bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok()) {
        Ok((Aval::new(dtype, shape.as_slice()), sizes.into_iter().map(str::to_owned).collect()))
    } else {
        Err(damaged(format!("it has an array of shape {shape:?}")))
    }
}

/// The product of the sizes of axes; `None` if it exceeds 64 bits.
fn device_count(axes: &[(String, usize)]) -> Option<usize> {
    axes.iter().try_fold(1usize, |count, (_, size)| count.checked_mul(*size))
}

fn named_axes(axes: &[(String, usize)]) -> Vec<(AxisName, usize)> {
    axes.iter().map(|(name, size)| (AxisName::new(name), *size)).collect()
}

/// Returns `true` if an array of this type can have this sharding over one of the meshes.
fn fits(spec: &Option<PartitionSpec>, aval: &Aval, meshes: &[Vec<(String, usize)>]) -> bool {
    let dims = spec.as_ref().map_or(&[][..], |spec| spec.dims());
    let names = dims.iter().flat_map(|dim| dim.axes());
    dims.len() <= aval.rank()
        && meshes.iter().any(|axes| names.clone().all(|name| axes.iter().any(|(axis, _)| axis == name.as_str())))
}

/// The number of the mesh that all shardings have.
fn mesh_of_all(shardings: &[Table]) -> Option<usize> {
    let mut meshes = shardings.iter().filter_map(|sharding| sharding.int(3).ok());
    let mesh = meshes.next()?;
    meshes.all(|other| other == mesh).then_some(mesh as usize)
}

/// The number of `AxisType.Explicit`.
const EXPLICIT: u8 = 2;

/// Reads the mesh and the shardings of arguments and results: from the tables, or from `main` in files of JAX before
/// 0.10.1.
fn sharded(
    read: &mut Exchanged,
    table: &Table,
    devices: usize,
    meshes: Vec<Vec<(String, usize)>>,
    [takes, gives]: [Vec<String>; 2],
) -> Result<()> {
    let mut all_axes = meshes;
    let tables = table.tables(field::MESHES)?;
    let in_tables = tables.iter().map(mesh_axes).collect::<Result<Vec<_>>>()?;
    all_axes.extend(in_tables.iter().cloned());
    all_axes.retain(|axes| !axes.is_empty());
    if devices <= 1 && all_axes.is_empty() || read.symbolic.is_some() {
        return Ok(());
    }
    let shardings = table.tables(field::SHARDINGS)?;
    if all_axes.iter().any(|axes| device_count(axes) != Some(devices)) {
        return Err(err!(NotImplemented, "{} is for {devices} devices on the meshes {all_axes:?}", read.name)
            .help("export it for meshes of all its devices"));
    }
    // If an axis has one size on all meshes, a spec has the same meaning on each of them.
    let mut named_sizes = all_axes.iter().flatten();
    let differs = named_sizes.any(|(name, size)| all_axes.iter().flatten().any(|(axis, n)| axis == name && n != size));
    let axes = if !differs {
        all_axes.first().cloned().unwrap_or_default()
    } else {
        mesh_of_all(&shardings).and_then(|mesh| in_tables.get(mesh)).cloned().ok_or_else(|| {
            // If axes of one name have several sizes, a spec alone does not determine its mesh.
            err!(NotImplemented, "{} has arguments and results on several of the meshes {all_axes:?}", read.name)
                .help("put all arguments and results on one mesh, or give axes of different sizes different names")
        })?
    };
    if all_axes.iter().any(|other| *other != axes) {
        read.meshes = all_axes.iter().map(|axes| named_axes(axes)).collect();
    }
    let specs = shardings.iter().map(spec).collect::<Result<Vec<_>>>()?;
    let (ins, outs) = (
        numbered_specs(&specs, table.ints(field::IN_SHARDINGS)?)?,
        numbered_specs(&specs, table.ints(field::OUT_SHARDINGS)?)?,
    );
    read.in_specs = if ins.is_empty() {
        takes.iter().map(|text| written(text)).collect::<Result<_>>()?
    } else {
        read.kept.iter().map(|&i| ins.get(i).cloned().flatten()).collect()
    };
    read.out_specs =
        if outs.is_empty() { gives.iter().map(|text| written(text)).collect::<Result<_>>()? } else { outs };
    let in_avals = read.kept.iter().map(|&i| &read.in_avals[i]);
    let mut specs_and_avals = read.in_specs.iter().zip(in_avals).chain(read.out_specs.iter().zip(&read.out_avals));
    if !specs_and_avals.all(|(spec, aval)| fits(spec, aval, &all_axes)) {
        return Err(damaged("it has shardings of axes or dimensions that there are not"));
    }
    read.axes = named_axes(&axes);
    // The first mesh with axes is the mesh of arguments and results. Later meshes are from `auto_axes` inside the
    // program.
    match in_tables.iter().position(|axes_of_mesh| *axes_of_mesh == axes) {
        Some(mesh) => read_axis_types(read, &tables[mesh]),
        None => Ok(()),
    }
}

/// Reads which axes of the mesh are explicit.
fn read_axis_types(read: &mut Exchanged, mesh: &Table) -> Result<()> {
    let types = mesh.bytes(2)?.iter().map(|&ty| if ty == EXPLICIT { AxisType::Explicit } else { AxisType::Auto });
    read.axis_types = explicit_types(&types.collect::<Vec<_>>());
    if !read.axis_types.is_empty() && read.explicit_mesh().is_none() {
        return Err(damaged("it has a mesh of other axes than their types"));
    }
    Ok(())
}

/// The specs with these numbers, which count from 1; 0 means that there is none.
fn numbered_specs(specs: &[PartitionSpec], numbers: Vec<usize>) -> Result<Vec<Option<PartitionSpec>>> {
    let specs = numbers.into_iter().map(|number| match number.checked_sub(1) {
        None => Ok(None),
        Some(i) => specs.get(i).cloned().map(Some).ok_or_else(|| damaged("it has no such sharding")),
    });
    specs.collect()
}

/// The axes of a mesh.
fn mesh_axes(mesh: &Table) -> Result<Vec<(String, usize)>> {
    Ok(mesh.texts(1)?.into_iter().map(str::to_owned).zip(mesh.ints(0)?).collect())
}

/// Reads the spec of a sharding in text form: `{sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}`.
fn written(text: &str) -> Result<Option<PartitionSpec>> {
    let Some((_, dims)) = text.split_once(", [") else { return Ok(None) };
    if text.contains("unreduced=") || text.contains("\":(") {
        return Err(err!(NotImplemented, "an argument or a result has the sharding{text}")
            .help("use arguments and results that are split by entire axes, and reduced"));
    }
    let dims = dims.split(']').next().unwrap_or_default().split('{').skip(1);
    // Every second piece between quotes is a name.
    let dims = dims.map(|dim| DimSpec::Axes(dim.split('"').skip(1).step_by(2).map(AxisName::new).collect()));
    Ok(Some(PartitionSpec::new(dims.collect::<Vec<_>>())))
}

fn spec(sharding: &Table) -> Result<PartitionSpec> {
    let mut dims = Vec::new();
    if let Some(spec) = sharding.table(1)? {
        for dim in spec.tables(0)? {
            dims.push(DimSpec::Axes(dim.texts(0)?.into_iter().map(AxisName::new).collect()));
        }
        if !spec.texts(2)?.is_empty() {
            return Err(err!(
                NotImplemented,
                "the sharding of an argument or a result is not reduced over {:?}",
                spec.texts(2)?
            )
            .help("sum the value over the unreduced axes before the function returns it"));
        }
    }
    Ok(PartitionSpec::new(dims))
}
