//! Reads the output of `jax.export.Exported.serialize()`: a flatbuffer that holds a portable artifact of StableHLO.
//!
//! XLA accepts the artifact, but only as a whole program: to call it inside other programs it must become text. The
//! PJRT C API has no function for this conversion, so it is done here: the container ([`bytecode`]), attributes and
//! types ([`attribute`]), operations ([`operation`], [`module`]).

mod attribute;
mod bytecode;
mod module;
mod operation;
mod table;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use bytecode::Bytecode;
use module::Module;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use table::Table;

use super::program::Exchanged;
use crate::core::lower::write_type;
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::{Error, Result, err};
use crate::shape::AxisName;
use crate::sharding::{DimSpec, PartitionSpec};
use crate::stack::grow;

fn damaged(what: impl Display) -> Error {
    err!(Value, "this is no exported function, of this library or of `jax.export`: {what}").help(
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
    function(Table::root(bytes)?, &digest)
}

fn function(table: Table, digest: &str) -> Result<Exchanged> {
    let name = table.text(field::NAME)?.to_owned();
    for effects in [field::ORDERED_EFFECTS, field::UNORDERED_EFFECTS] {
        if let Some(effect) = table.tables(effects)?.first() {
            return Err(err!(NotImplemented, "{name} has the effect {}, which cannot leave JAX", effect.text(0)?)
                .help("export a function without callbacks and prints, and call them around it"));
        }
    }
    let in_avals = avals(&table, field::IN_AVALS, &name)?;
    let out_avals = avals(&table, field::OUT_AVALS, &name)?;
    let kept = table.shorts(field::KEPT)?;
    if !kept.iter().all(|&i| i < in_avals.len()) {
        return Err(damaged("it has no such arguments as its program takes"));
    }
    let devices = match table.int(field::DEVICES)? {
        0 => usize::from(table.short(field::DEVICES_SHORT)?),
        devices => devices as usize,
    };
    let code = Bytecode::of(table.bytes(field::MODULE)?)?;
    let mut texts = BTreeMap::new();
    let mut meshes = Vec::new();
    for (number, platform) in table.texts(field::PLATFORMS)?.into_iter().enumerate() {
        let module = Module::of(&code, kept.len(), number)?;
        check(&module.inputs, kept.iter().map(|&i| &in_avals[i]), "arguments")?;
        check(&module.results, out_avals.iter(), "results")?;
        texts.insert(platform.to_owned(), Arc::from(module.text));
        meshes = module.meshes;
    }
    let mut read = Exchanged {
        name,
        in_specs: Vec::new(),
        out_specs: Vec::new(),
        axes: Vec::new(),
        in_tree: Value::Null,
        out_tree: Value::Null,
        in_paths: vec![String::new(); in_avals.len()],
        out_paths: vec![String::new(); out_avals.len()],
        in_avals,
        kept,
        out_avals,
        texts,
        captures: Vec::new(),
        digest: digest.to_owned(),
        vjp: None,
    };
    sharded(&mut read, &table, devices, meshes)?;
    if let Some(tree) = table.table(field::OUT_TREE)? {
        let (steps, paths) = structure(tree)?;
        (read.out_tree, read.out_paths) = (steps, agreeing(paths, read.out_avals.len())?);
    }
    if let Some(tree) = table.table(field::IN_TREE)? {
        // Positional and keyword arguments.
        match tree.tables(1)?.as_slice() {
            [places, names] if names.byte(0)? == DICTIONARY && names.tables(1)?.is_empty() => {
                let (steps, paths) = structure(*places)?;
                (read.in_tree, read.in_paths) = (steps, agreeing(paths, read.in_avals.len())?);
            }
            _ => {
                return Err(err!(NotImplemented, "{} takes arguments by name, which have no place in Rust", read.name)
                    .help("export a function of arguments by place"));
            }
        }
    }
    if let Some(vjp) = table.table(field::VJP)? {
        read.vjp = Some(Arc::new(derivative(grow(|| function(vjp, &format!("vjp.{digest}")))?)?));
    }
    Ok(read)
}

/// Checks that the types of its `main` match the metadata.
fn check<'a>(types: &[String], avals: impl Iterator<Item = &'a Aval>, what: &str) -> Result<()> {
    let text = |aval: &Aval| {
        let mut text = String::new();
        write_type(&mut text, aval.dtype, &aval.shape);
        text
    };
    let said: Vec<String> = avals.map(text).collect();
    match types == said {
        true => Ok(()),
        false => Err(damaged(format!("its program has {what} {types:?}, and it says {said:?}"))),
    }
}

fn agreeing(paths: Vec<String>, leaves: usize) -> Result<Vec<String>> {
    match paths.len() == leaves {
        true => Ok(paths),
        false => Err(damaged(format!("its structure has {} leaves, and there are {leaves}", paths.len()))),
    }
}

/// JAX's derivative has an entry for every argument and result; shardax's only for inexact ones.
fn derivative(mut read: Exchanged) -> Result<Exchanged> {
    let moves: Vec<bool> = read.in_avals.iter().map(|aval| aval.dtype != DType::Float0).collect();
    if read.kept.iter().any(|&i| !moves[i]) {
        return Err(err!(NotImplemented, "the derivative of {} takes cotangents of integers", read.name));
    }
    let before = |i: usize| moves[..i].iter().filter(|moves| **moves).count();
    read.kept = read.kept.iter().map(|&i| before(i)).collect();
    let mut stays = moves.iter();
    read.in_avals.retain(|_| stays.next() == Some(&true));
    read.in_paths = vec![String::new(); read.in_avals.len()];
    (read.in_tree, read.out_tree) = (Value::Null, Value::Null);
    Ok(read)
}

/// The element types, in the order of their numbers; `None` for those that shardax does not support.
const DTYPES: [Option<DType>; 23] = [
    Some(DType::Bool),
    Some(DType::I8),
    Some(DType::I16),
    Some(DType::I32),
    Some(DType::I64),
    Some(DType::U8),
    Some(DType::U16),
    Some(DType::U32),
    Some(DType::U64),
    Some(DType::F16),
    Some(DType::F32),
    Some(DType::F64),
    Some(DType::Complex64),
    Some(DType::Complex128),
    Some(DType::Bf16),
    None,
    None,
    None,
    None,
    None,
    None,
    None,
    Some(DType::Float0),
];

fn avals(table: &Table, field: usize, name: &str) -> Result<Vec<Aval>> {
    let aval = |table: &Table| {
        let sizes = table.texts(1)?;
        let number = table.byte(2)?;
        let dtype = DTYPES.get(usize::from(number)).copied().flatten().ok_or_else(|| {
            err!(NotImplemented, "{name} has arrays of JAX's element type {number}, which arrays have not here")
                .help("keys of random numbers travel as their data (`jax.random.key_data`), small floats as wider ones")
        })?;
        let shape: Vec<usize> = sizes
            .iter()
            .map(|size| {
                size.parse().map_err(|_| {
                    err!(NotImplemented, "{name} was exported for sizes that are symbols: [{}]", sizes.join(", ")).help(
                        "export it for the sizes that are called, one function for each, by `exchange.save` of `tools/export` or without `symbolic_shape`",
                    )
                })
            })
            .collect::<Result<_>>()?;
        let bytes = shape.iter().try_fold(dtype.byte_size(), |all, &size| all.checked_mul(size));
        match bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok()) {
            true => Ok(Aval::new(dtype, shape.as_slice())),
            false => Err(damaged(format!("it has an array of shape {shape:?}"))),
        }
    };
    table.tables(field)?.iter().map(aval).collect()
}

/// The kinds of tree nodes.
const LEAF: u8 = 0;
const NONE: u8 = 1;
const TUPLE: u8 = 2;
const LIST: u8 = 3;
const DICTIONARY: u8 = 4;

/// The tokens of a tree and the paths of its leaves, as [`TreeDef`](crate::tree::TreeDef) writes them.
fn structure(tree: Table) -> Result<(Value, Vec<String>)> {
    let (mut steps, mut paths) = (Vec::new(), Vec::new());
    node(tree, String::new(), &mut steps, &mut paths)?;
    Ok((Value::Array(steps), paths))
}

fn node(tree: Table, path: String, steps: &mut Vec<Value>, paths: &mut Vec<String>) -> Result<()> {
    let (kind, children, keys) = (tree.byte(0)?, tree.tables(1)?, tree.texts(2)?);
    match kind {
        LEAF | NONE if !children.is_empty() => return Err(damaged("its structure has a leaf with parts")),
        LEAF => {
            steps.push(json!("array"));
            paths.push(path);
            return Ok(());
        }
        NONE => steps.push(json!("none")),
        TUPLE => steps.push(json!({ "tuple": children.len() })),
        LIST => steps.push(json!({ "list": children.len() })),
        DICTIONARY if keys.len() == children.len() => steps.push(json!({ "map": keys })),
        DICTIONARY => return Err(damaged("its structure has a dictionary of other keys")),
        _ => {
            return Err(err!(NotImplemented, "the type {:?} has no place in Rust", tree.text(3)?)
                .help("export a function of dictionaries, tuples and lists"));
        }
    }
    // Tables may be shared, so a small file could describe an enormous tree.
    if steps.len() * (1 + path.len()) > 1 << 26 {
        return Err(damaged("its structure has no end"));
    }
    for (i, child) in children.into_iter().enumerate() {
        let step = keys.get(i).map_or_else(|| format!("[{i}]"), |key| format!("[{}]", json!(key)));
        grow(|| node(child, format!("{path}{step}"), steps, paths))?;
    }
    Ok(())
}

/// Reads the mesh and the shardings of arguments and results.
fn sharded(read: &mut Exchanged, table: &Table, devices: usize, meshes: Vec<Vec<(String, usize)>>) -> Result<()> {
    if devices <= 1 {
        return Ok(());
    }
    let mut all = meshes;
    for mesh in table.tables(field::MESHES)? {
        all.push(mesh.texts(1)?.into_iter().map(str::to_owned).zip(mesh.ints(0)?).collect());
    }
    let axes = all.first().cloned().unwrap_or_default();
    let size = axes.iter().try_fold(1usize, |all, (_, size)| all.checked_mul(*size));
    if size != Some(devices) || all.iter().any(|other| *other != axes) {
        return Err(err!(NotImplemented, "{} is for {devices} devices on the meshes {all:?}", read.name)
            .help("export it for one mesh, whose axes are those of all"));
    }
    let specs = table.tables(field::SHARDINGS)?.iter().map(spec).collect::<Result<Vec<_>>>()?;
    let named = |number: usize| match number.checked_sub(1) {
        None => Ok(None),
        Some(i) => specs.get(i).cloned().map(Some).ok_or_else(|| damaged("it has no such sharding")),
    };
    let each = |field| table.ints(field)?.into_iter().map(named).collect::<Result<Vec<_>>>();
    let (ins, outs) = (each(field::IN_SHARDINGS)?, each(field::OUT_SHARDINGS)?);
    read.in_specs = read.kept.iter().map(|&i| ins.get(i).cloned().flatten()).collect();
    read.out_specs = outs;
    let fits = |spec: &Option<PartitionSpec>, aval: &Aval| {
        let dims = spec.as_ref().map_or(&[][..], |spec| spec.dims());
        let known = |name: &AxisName| axes.iter().any(|(axis, _)| axis == name.as_str());
        dims.len() <= aval.rank() && dims.iter().all(|dim| dim.axes().iter().all(known))
    };
    let (taken, given) = (read.kept.iter().map(|&i| &read.in_avals[i]), read.out_avals.iter());
    if !read.in_specs.iter().zip(taken).chain(read.out_specs.iter().zip(given)).all(|(spec, aval)| fits(spec, aval)) {
        return Err(damaged("it has shardings of axes or dimensions that there are not"));
    }
    read.axes = axes.iter().map(|(name, size)| (AxisName::new(name), *size)).collect();
    Ok(())
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
            .help("reduce it before it is returned"));
        }
    }
    Ok(PartitionSpec::new(dims))
}
