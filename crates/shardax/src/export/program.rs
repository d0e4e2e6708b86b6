//! An exported program: its text for each platform, its types, structures, shardings and captured values, and the
//! program of its derivative.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde_json::Value;

use crate::core::array::Array;
use crate::core::lower::Platform;
use crate::core::program::{Aval, Program};
use crate::error::{Error, Result, err};
use crate::runtime::aot::LoweredFn;
use crate::runtime::placement::Place;
use crate::shape::AxisName;
use crate::sharding::{Mesh, NamedSharding, PartitionSpec, Sharding, make_mesh};
use crate::stack::grow;

/// The metadata of a program, and its texts.
pub(super) struct Exchanged {
    pub name: String,
    /// The types of all arguments, and those that `main` uses, after the captured values.
    pub in_avals: Vec<Aval>,
    pub kept: Vec<usize>,
    pub out_avals: Vec<Aval>,
    /// The shardings of the inputs and results of `main`; empty in a program for one device.
    pub in_specs: Vec<Option<PartitionSpec>>,
    pub out_specs: Vec<Option<PartitionSpec>>,
    /// The axes of its mesh; empty for one device.
    pub axes: Vec<(AxisName, usize)>,
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

/// Fails for host functions, which are addresses of this process.
fn check_host_functions(program: &Program) -> Result<()> {
    for eqn in &program.eqns {
        if eqn.primitive.retained().is_some() {
            return Err(err!(Value, "'{}' calls a host function, which cannot be exported", eqn.primitive.name())
                .help("export a function without callbacks and `debug_print`, and call them around it"));
        }
        eqn.primitive.programs().into_iter().try_for_each(|program| grow(|| check_host_functions(program)))?;
    }
    Ok(())
}

impl Exchanged {
    /// Converts a function lowered for its leaves. Structures are added later.
    pub fn of(lowered: &LoweredFn, platforms: &[String]) -> Result<Exchanged> {
        let mut request = lowered.request.clone();
        check_host_functions(&request.program)?;
        // The caller decides on donation.
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
        })
    }

    /// Renames its function.
    pub fn rename(&mut self, name: &str) {
        self.name = name.to_owned();
        if let Some(vjp) = self.vjp.as_mut().and_then(Arc::get_mut) {
            vjp.rename(&format!("vjp of {name}"));
        }
    }

    /// The number of its devices.
    pub fn devices(&self) -> usize {
        self.axes.iter().map(|(_, size)| size).product()
    }

    /// Its mesh in this process; `None` for one device.
    pub fn mesh(&self) -> Result<Option<Mesh>> {
        if self.axes.is_empty() {
            return Ok(None);
        }
        make_mesh(self.axes.iter().copied())
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

    /// The sharding of an input of `main`.
    pub fn in_sharding(&self, input: usize, mesh: &Mesh) -> Option<NamedSharding> {
        self.in_specs.get(input)?.as_ref().map(|spec| NamedSharding::new(mesh, spec.clone()))
    }

    /// The sharding of a result.
    pub fn out_sharding(&self, result: usize, mesh: &Mesh) -> Option<NamedSharding> {
        self.out_specs.get(result)?.as_ref().map(|spec| NamedSharding::new(mesh, spec.clone()))
    }
}
