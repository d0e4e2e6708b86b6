//! An exported program: its text for each platform, its types, structures, shardings and captured values, and the
//! program of its derivative.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use super::symbolic::Symbols;
use crate::core::array::Array;
use crate::core::lower::Platform;
use crate::core::program::{Aval, Program};
use crate::error::{Error, Result, err};
use crate::runtime::aot::LoweredFn;
use crate::runtime::placement::Place;
use crate::shape::AxisName;
use crate::sharding::device::Device;
use crate::sharding::{
    AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, Sharding, Typed, get_mesh, make_mesh,
};

/// The metadata of a program, and its texts.
#[derive(Clone)]
pub(super) struct Exchanged {
    pub name: String,
    /// The types of all arguments.
    pub in_avals: Vec<Aval>,
    /// The arguments that `main` uses, which it receives after the captured values.
    pub kept: Vec<usize>,
    pub out_avals: Vec<Aval>,
    /// `true` if `main` takes random keys as words, as in JAX's files.
    pub keys_are_words: bool,
    /// The shardings of the inputs and results of `main`; empty in a program for one device.
    pub in_specs: Vec<Option<PartitionSpec>>,
    pub out_specs: Vec<Option<PartitionSpec>>,
    /// The axes of the program's mesh; empty for one device.
    pub axes: Vec<(AxisName, usize)>,
    /// The axes of all meshes in the text, in order, if there are several; all meshes have the same devices.
    pub meshes: Vec<Vec<(AxisName, usize)>>,
    /// The types of these axes; empty if all are `Auto`.
    pub axis_types: Vec<AxisType>,
    /// The structures of its arguments and of its result; see [`TreeDef::to_json`](crate::tree::TreeDef).
    pub in_tree: Value,
    pub out_tree: Value,
    /// The key paths of its arguments and results.
    pub in_paths: Vec<String>,
    pub out_paths: Vec<String>,
    /// StableHLO for each platform.
    pub texts: BTreeMap<String, Arc<str>>,
    pub captures: Vec<Array>,
    /// The digest of its contents, captured values included.
    pub digest: String,
    /// The program from its arguments and the cotangents of its inexact results to the cotangents of its inexact
    /// arguments.
    pub vjp: Option<Arc<Exchanged>>,
    /// The symbolic sizes, if any; they are 0 in the types.
    pub symbolic: Option<Arc<Symbolic>>,
}

/// The symbolic sizes of a function.
pub(super) struct Symbolic {
    /// The texts of the sizes of arguments and results, such as `b` or `2*b + 1`.
    pub in_sizes: Vec<Vec<String>>,
    pub out_sizes: Vec<Vec<String>>,
    pub source: Source,
    /// Refined programs by the shapes of the arguments.
    refined: Mutex<HashMap<Vec<Vec<usize>>, Arc<Exchanged>>>,
}

/// The source of a program for known sizes.
pub(super) enum Source {
    /// A file of JAX.
    Jax(Arc<[u8]>),
    /// The texts, in which numbers are expressions of these symbols.
    Template(Symbols),
}

/// The maximum number of refined programs that a function keeps.
const MAX_REFINED_PROGRAMS: usize = 256;

impl Symbolic {
    pub fn of(in_sizes: Vec<Vec<String>>, out_sizes: Vec<Vec<String>>, source: Source) -> Self {
        Symbolic { in_sizes, out_sizes, source, refined: Mutex::default() }
    }
}

/// Formats a type with its symbolic sizes.
pub(super) fn type_of(aval: &Aval, sizes: &[String]) -> String {
    format!("{}[{}]", aval.dtype, sizes.join(","))
}

impl PartialEq for Exchanged {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Exchanged {}

impl Hash for Exchanged {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl fmt::Debug for Exchanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

/// The types of a mesh's axes, if one is `Explicit`.
pub(super) fn explicit_types(types: &[AxisType]) -> Vec<AxisType> {
    if types.contains(&AxisType::Explicit) { types.to_vec() } else { Vec::new() }
}

/// Fails for host functions, because they are addresses of this process.
fn check_host_functions(program: &Program) -> Result<()> {
    let mut host_function = None;
    program.for_each_distinct_eqn(&mut |eqn| {
        if host_function.is_none() && eqn.primitive.retained().is_some() {
            host_function = Some(eqn.primitive.name());
        }
    });
    match host_function {
        Some(name) => Err(err!(Value, "'{name}' calls a host function, which cannot be exported")
            .help("export a function without callbacks and `debug_print`, and call them around it")),
        None => Ok(()),
    }
}

/// Returns `true` if a mesh with these axes has every axis of the spec.
fn has_axes(axes: &[(AxisName, usize)], spec: &PartitionSpec) -> bool {
    spec.dims().iter().flat_map(|dim| dim.axes()).all(|name| axes.iter().any(|(axis, _)| axis == name))
}

fn with_spec(aval: &Aval, mesh: &AbstractMesh, spec: &Option<PartitionSpec>) -> Aval {
    aval.with_sharding(spec.as_ref().map(|spec| Typed::from_spec(mesh, spec, aval.rank())))
}

impl Exchanged {
    /// Converts a function lowered for its leaves. Structures are added later.
    pub fn of(lowered: &LoweredFn, platforms: &[String]) -> Result<Exchanged> {
        let mut request = lowered.request.clone();
        check_host_functions(&request.program)?;
        // The caller decides on donation, so nothing is donated here.
        request.donated.fill(false);
        let platforms = match platforms {
            [] => vec![request.place.devices().first().map_or("cpu", |device| device.platform()).to_owned()],
            some => some.to_vec(),
        };
        let texts = platforms.into_iter().map(|name| {
            let platform = Platform::named(&name);
            if platform == Platform::Other {
                return Err(
                    err!(Value, "no platform is named {name:?}").help("name \"cpu\", \"cuda\", \"rocm\" or \"tpu\"")
                );
            }
            Ok((name, Arc::from(request.portable_text(platform, false)?)))
        });
        let texts: BTreeMap<String, Arc<str>> = texts.collect::<Result<_>>()?;
        if texts.values().any(|text| text.contains("sdy.mesh @mesh_1 ")) {
            return Err(err!(NotImplemented, "{} is over several meshes, and cannot be exported", request.name)
                .help("use a single mesh that has the axes of all meshes"));
        }
        let in_specs = request.in_shardings.iter().map(|sharding| Some(sharding.as_named()?.spec().clone())).collect();
        let (axes, axis_types) = match &request.place {
            Place::Mesh(mesh) => (mesh.axes().to_vec(), explicit_types(mesh.abstract_mesh().axis_types())),
            Place::Single(_) => Default::default(),
        };
        Ok(Exchanged {
            name: request.name.clone(),
            in_avals: lowered.in_avals.clone(),
            kept: lowered.convention.kept.clone(),
            out_avals: request.program.out_avals(),
            keys_are_words: false,
            in_specs,
            out_specs: request.out_shardings.iter().map(|s| s.as_ref().map(|named| named.spec().clone())).collect(),
            axes,
            axis_types,
            meshes: Vec::new(),
            in_tree: Value::Null,
            out_tree: Value::Null,
            in_paths: Vec::new(),
            out_paths: Vec::new(),
            texts,
            captures: lowered.convention.captures.iter().map(|c| Array::from_shared(c.clone())).collect(),
            digest: String::new(),
            vjp: None,
            symbolic: None,
        })
    }

    /// Returns the program for these arguments. If it has symbolic sizes, it is refined for the sizes of the arguments.
    pub fn sized(self: &Arc<Self>, leaves: &[Array]) -> Result<Arc<Exchanged>> {
        let Some(symbolic) = &self.symbolic else { return Ok(self.clone()) };
        for (i, (leaf, (aval, sizes))) in leaves.iter().zip(self.in_avals.iter().zip(&symbolic.in_sizes)).enumerate() {
            let have = leaf.aval();
            let number = leaf.is_number() && sizes.is_empty();
            // Only sizes that are numbers are compared here; `solved` compares symbols.
            let fits = have.shape.len() == sizes.len()
                && have.shape.iter().zip(sizes).all(|(size, text)| text.parse().map_or(true, |n: usize| n == *size));
            if !(number || have.dtype == aval.dtype && fits) {
                let (path, want) = (&self.in_paths[i], type_of(aval, sizes));
                return Err(err!(Type, "argument{path} must have type {want}, got {have}").help(
                    "an exported function is for the types it was exported for; export it for these, or convert the argument",
                ));
            }
        }
        let shapes: Vec<Vec<usize>> = leaves.iter().map(|leaf| leaf.shape().to_vec()).collect();
        if let Some(program) = symbolic.refined.lock().unwrap_or_else(PoisonError::into_inner).get(&shapes) {
            return Ok(program.clone());
        }
        // Refines without the lock, because it can take seconds; two threads that refine at once get equal programs.
        let sized = Arc::new(match &symbolic.source {
            Source::Jax(file) => super::jax::sized(file, &self.digest, &shapes)?,
            Source::Template(symbols) => {
                let sizes = symbolic.in_sizes.iter().map(|sizes| symbols.read(sizes)).collect::<Result<Vec<_>>>()?;
                self.at(&symbols.solved(&sizes, &shapes)?)?
            }
        });
        let mut refined = symbolic.refined.lock().unwrap_or_else(PoisonError::into_inner);
        if refined.len() >= MAX_REFINED_PROGRAMS {
            refined.clear();
        }
        refined.insert(shapes, sized.clone());
        Ok(sized)
    }

    /// Sets the name of the function.
    pub fn rename(&mut self, name: &str) {
        self.name = name.to_owned();
        if let Some(vjp) = self.vjp.as_mut().and_then(Arc::get_mut) {
            vjp.rename(&format!("vjp of {name}"));
        }
    }

    /// Returns the number of devices.
    pub fn devices(&self) -> usize {
        self.axes.iter().map(|(_, size)| size).product()
    }

    /// Returns the mesh that the program runs on for these arguments, and `true` if the devices are known. There is no
    /// mesh for one device without a requested sharding. The devices are the context mesh's or else the arguments', in
    /// their order, if their number is right; otherwise the first devices, if no argument is on others. For traced arguments
    /// they are not known before the program is placed.
    pub fn mesh(&self, leaves: &[Array]) -> Result<(Option<Mesh>, bool)> {
        if self.axes.is_empty() {
            return Ok((None, false));
        }
        let placed = leaves.iter().filter(|leaf| leaf.committed()).filter_map(|leaf| leaf.sharding().ok());
        let placed = placed.map(|sharding| match &sharding {
            Sharding::Named(named) => named.mesh().devices().to_vec(),
            other => other.devices().to_vec(),
        });
        let placed: Vec<Vec<Device>> = placed.collect();
        let mut candidates = get_mesh().map(|mesh| mesh.devices().to_vec()).into_iter().chain(placed.iter().cloned());
        let axes = self.axes.iter().copied();
        let devices = candidates.find(|devices| devices.len() == self.devices());
        if let (None, Some(others)) = (&devices, placed.first()) {
            let (name, count, others) = (&self.name, self.devices(), others.len());
            return Err(err!(Value, "{name} was exported for {count} devices, but an argument is on {others}")
                .help("move the arguments to as many devices with `device_put`, or export the function for theirs"));
        }
        // The first devices are only a guess while an argument is traced.
        let is_known = devices.is_some() || !leaves.iter().any(Array::is_traced);
        let mesh = match devices {
            Some(devices) => Mesh::new(devices, axes),
            None => make_mesh(axes).map(|mesh| mesh.auto()),
        };
        match self.axis_types.as_slice() {
            [] => mesh,
            types => mesh.and_then(|mesh| mesh.with_axis_types(types.iter().copied())),
        }
        .map(|mesh| (Some(mesh), is_known))
        .map_err(|e| e.context(format!("{} was exported for {} devices", self.name, self.devices())))
    }

    /// Returns the meshes of the text, over the devices of `mesh`.
    pub fn text_meshes(&self, mesh: &Mesh) -> Result<Vec<Mesh>> {
        if self.meshes.is_empty() {
            return Ok(vec![mesh.clone()]);
        }
        let meshes = self.meshes.iter().map(|axes| {
            if *axes == self.axes { Ok(mesh.clone()) } else { Mesh::new(mesh.devices().to_vec(), axes.iter().copied()) }
        });
        meshes.collect()
    }

    /// A sharding over the program's mesh, or over the mesh that has the axes of the spec.
    fn named(&self, spec: &PartitionSpec, mesh: &Mesh) -> NamedSharding {
        let axes = self.meshes.iter().find(|axes| has_axes(axes, spec)).filter(|_| !has_axes(&self.axes, spec));
        let mesh_of_axes = axes.and_then(|axes| Mesh::new(mesh.devices().to_vec(), axes.iter().copied()).ok());
        NamedSharding::new(mesh_of_axes.as_ref().unwrap_or(mesh), spec.clone())
    }

    /// Returns the program's mesh without devices, if types have shardings over it.
    pub fn explicit_mesh(&self) -> Option<AbstractMesh> {
        let types = Some(&self.axis_types).filter(|types| !types.is_empty())?;
        AbstractMesh::new(self.axes.iter().copied()).with_axis_types(types.iter().copied()).ok()
    }

    /// Adds the shardings, which a file contains separately, to the types of arguments and results.
    pub fn typed(mut self) -> Self {
        let Some(mesh) = self.explicit_mesh() else { return self };
        for (&i, spec) in self.kept.iter().zip(self.in_specs.iter().skip(self.captures.len())) {
            self.in_avals[i] = with_spec(&self.in_avals[i], &mesh, spec);
        }
        let out_avals = self.out_avals.iter().zip(&self.out_specs);
        self.out_avals = out_avals.map(|(aval, spec)| with_spec(aval, &mesh, spec)).collect();
        self
    }

    /// Returns the text for a platform.
    pub fn text(&self, platform: Platform) -> Result<&Arc<str>> {
        let entry = self.texts.iter().find(|(name, _)| Platform::named(name) == platform);
        entry.map(|(_, text)| text).ok_or_else(|| self.unsupported_platform(platform))
    }

    fn unsupported_platform(&self, platform: Platform) -> Error {
        let names: Vec<_> = self.texts.keys().map(String::as_str).collect();
        err!(Value, "{} was exported for {}, but is called on {}", self.name, names.join(" and "), platform.text())
            .help("export it for this platform too, with `ExportOptions::platforms`")
    }

    /// Returns the sharding of an input of `main`.
    pub fn in_sharding(&self, input: usize, mesh: &Mesh) -> Option<NamedSharding> {
        self.in_specs.get(input)?.as_ref().map(|spec| self.named(spec, mesh))
    }

    /// Returns the sharding of a result.
    pub fn out_sharding(&self, result: usize, mesh: &Mesh) -> Option<NamedSharding> {
        self.out_specs.get(result)?.as_ref().map(|spec| self.named(spec, mesh))
    }
}
