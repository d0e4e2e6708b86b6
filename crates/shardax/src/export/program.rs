//! A program that travels: its text for each platform, its types, structures, shardings and captured values, and the
//! program of its derivative.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::core::array::Array;
use crate::core::lower::Platform;
use crate::core::program::{Aval, Program};
use crate::error::{Error, Result, err};
use crate::runtime::aot::LoweredFn;
use crate::runtime::placement::Place;
use crate::shape::AxisName;
use crate::sharding::{Mesh, NamedSharding, PartitionSpec, Sharding, get_mesh, make_mesh};
use crate::stack::grow;

/// What is said of a program beside its text.
pub(super) struct Exchanged {
    pub name: String,
    /// The types of all arguments, and which of them `main` takes, behind what was captured.
    pub in_avals: Vec<Aval>,
    pub kept: Vec<usize>,
    pub out_avals: Vec<Aval>,
    /// How `main` takes its inputs and gives its results; nothing in a program for one device.
    pub in_specs: Vec<Option<PartitionSpec>>,
    pub out_specs: Vec<Option<PartitionSpec>>,
    /// The axes of the mesh that it is for; none for one device.
    pub axes: Vec<(AxisName, usize)>,
    /// The structures of its arguments and of its result, as [`TreeDef::to_json`](crate::tree::TreeDef) writes them.
    pub in_tree: Value,
    pub out_tree: Value,
    /// The key paths of its arguments and results.
    pub in_paths: Vec<String>,
    pub out_paths: Vec<String>,
    /// StableHLO for each platform.
    pub texts: BTreeMap<String, Arc<str>>,
    pub captures: Vec<Array>,
    /// What tells it from every other, of the same captured values or not.
    pub digest: String,
    /// From its arguments and cotangents of its inexact results to the cotangents of its inexact arguments.
    pub vjp: Option<Arc<Exchanged>>,
    /// Where sizes are symbolic: there is no text before they are known, and they are 0 in the types.
    pub symbolic: Option<Symbolic>,
}

/// A function of JAX with symbolic sizes.
pub(super) struct Symbolic {
    /// The sizes of arguments and results as they are written, such as `b` or `2*b + 1`.
    pub in_sizes: Vec<Vec<String>>,
    pub out_sizes: Vec<Vec<String>>,
    /// The file that it came from, from which it is made for known sizes.
    pub file: Arc<[u8]>,
    /// What was made of it, by the shapes of the arguments.
    made: Mutex<HashMap<Vec<Vec<usize>>, Arc<Exchanged>>>,
}

/// At most so many sets of sizes are remembered.
const SIZES: usize = 256;

impl Symbolic {
    pub fn of(in_sizes: Vec<Vec<String>>, out_sizes: Vec<Vec<String>>) -> Self {
        Symbolic { in_sizes, out_sizes, file: Arc::from([]), made: Mutex::default() }
    }
}

/// A type as it prints, with its symbolic sizes.
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

/// Functions of the host are addresses of this process.
fn check_host_functions(program: &Program) -> Result<()> {
    for eqn in &program.eqns {
        if eqn.primitive.retained().is_some() {
            return Err(err!(
                Value,
                "'{}' calls a function of the host, which cannot leave its process",
                eqn.primitive.name()
            )
            .help("export a function without callbacks and `debug_print`, and call them around it"));
        }
        eqn.primitive.programs().into_iter().try_for_each(|program| grow(|| check_host_functions(program)))?;
    }
    Ok(())
}

impl Exchanged {
    /// Of a function staged for its leaves. Structures are to follow.
    pub fn of(lowered: &LoweredFn, platforms: &[String]) -> Result<Exchanged> {
        let mut request = lowered.request.clone();
        check_host_functions(&request.program)?;
        // Whoever calls it says what may be taken over.
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
            Ok((name, Arc::from(request.portable_text(platform)?)))
        });
        let texts: BTreeMap<String, Arc<str>> = texts.collect::<Result<_>>()?;
        if texts.values().any(|text| text.contains("sdy.mesh @mesh_1 ")) {
            return Err(err!(NotImplemented, "{} is over several meshes, and cannot be exported", request.name)
                .help("use one mesh, whose axes are those of all"));
        }
        let spec = |sharding: &Sharding| sharding.as_named().map(|named| named.spec().clone());
        let axes = match &request.place {
            Place::Mesh(mesh) => mesh.axes().to_vec(),
            Place::Single(_) => Vec::new(),
        };
        Ok(Exchanged {
            name: request.name.clone(),
            in_avals: lowered.in_avals.clone(),
            kept: lowered.convention.kept.clone(),
            out_avals: request.program.out_avals(),
            in_specs: request.in_shardings.iter().map(spec).collect(),
            out_specs: request.out_shardings.iter().map(|s| s.as_ref().map(|named| named.spec().clone())).collect(),
            axes,
            in_tree: Value::Null,
            out_tree: Value::Null,
            in_paths: Vec::new(),
            out_paths: Vec::new(),
            texts,
            captures: lowered.convention.captures.iter().map(|c| Array::of_concrete(c.clone())).collect(),
            digest: String::new(),
            vjp: None,
            symbolic: None,
        })
    }

    /// The program for these arguments: itself, or where its sizes are symbolic what it is for theirs.
    pub fn sized(self: &Arc<Self>, leaves: &[Array]) -> Result<Arc<Exchanged>> {
        let Some(symbolic) = &self.symbolic else { return Ok(self.clone()) };
        for (i, (leaf, (aval, sizes))) in leaves.iter().zip(self.in_avals.iter().zip(&symbolic.in_sizes)).enumerate() {
            let have = leaf.aval();
            let number = leaf.is_number() && sizes.is_empty();
            let fits = |(size, said): (&usize, &String)| said.parse().map_or(true, |said: usize| said == *size);
            let same_rank = have.shape.len() == sizes.len();
            if !(number || have.dtype == aval.dtype && same_rank && have.shape.iter().zip(sizes).all(fits)) {
                let (path, want) = (&self.in_paths[i], type_of(aval, sizes));
                return Err(err!(Type, "argument{path} must have type {want}, got {have}").help(
                    "an exported function is for the types it was exported for; export it for these, or convert the argument",
                ));
            }
        }
        let shapes: Vec<Vec<usize>> = leaves.iter().map(|leaf| leaf.shape().to_vec()).collect();
        let made = || symbolic.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = made().get(&shapes) {
            return Ok(made.clone());
        }
        let sized = Arc::new(super::jax::sized(&symbolic.file, &self.digest, &shapes)?);
        let mut all = made();
        if all.len() >= SIZES {
            all.clear();
        }
        all.insert(shapes, sized.clone());
        Ok(sized)
    }

    /// Gives it the name of its function.
    pub fn rename(&mut self, name: &str) {
        self.name = name.to_owned();
        if let Some(vjp) = self.vjp.as_mut().and_then(Arc::get_mut) {
            vjp.rename(&format!("vjp of {name}"));
        }
    }

    /// How many devices it is for.
    pub fn devices(&self) -> usize {
        self.axes.iter().map(|(_, size)| size).product()
    }

    /// The mesh that it runs on for these arguments; none for one device that nothing is said of. Its devices are those of the
    /// context mesh or else of the arguments, in their order, where they are as many; else the first ones.
    pub fn mesh(&self, leaves: &[Array]) -> Result<Option<Mesh>> {
        if self.axes.is_empty() {
            return Ok(None);
        }
        let placed = leaves.iter().filter(|leaf| leaf.committed()).filter_map(|leaf| leaf.sharding().ok());
        let placed = placed.map(|sharding| match &sharding {
            Sharding::Named(named) => named.mesh().devices().to_vec(),
            other => other.devices().to_vec(),
        });
        let mut known = get_mesh().map(|mesh| mesh.devices().to_vec()).into_iter().chain(placed);
        let axes = self.axes.iter().copied();
        match known.find(|devices| devices.len() == self.devices()) {
            Some(devices) => Mesh::new(devices, axes),
            None => make_mesh(axes),
        }
        .map(Some)
        .map_err(|e| e.context(format!("{} was exported for {} devices", self.name, self.devices())))
    }

    /// The text for a platform.
    pub fn text(&self, platform: Platform) -> Result<&Arc<str>> {
        let found = self.texts.iter().find(|(name, _)| Platform::named(name) == platform);
        found.map(|(_, text)| text).ok_or_else(|| self.not_for(platform))
    }

    fn not_for(&self, platform: Platform) -> Error {
        let names: Vec<_> = self.texts.keys().map(String::as_str).collect();
        err!(Value, "{} was exported for {}, and is called on {}", self.name, names.join(" and "), platform.text())
            .help("export it for this platform too, with `ExportOptions::platforms`")
    }

    /// How it takes an input of `main`.
    pub fn in_sharding(&self, input: usize, mesh: &Mesh) -> Option<NamedSharding> {
        self.in_specs.get(input)?.as_ref().map(|spec| NamedSharding::new(mesh, spec.clone()))
    }

    /// How it gives a result.
    pub fn out_sharding(&self, result: usize, mesh: &Mesh) -> Option<NamedSharding> {
        self.out_specs.get(result)?.as_ref().map(|spec| NamedSharding::new(mesh, spec.clone()))
    }
}
