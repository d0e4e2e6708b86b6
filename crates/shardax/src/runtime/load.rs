//! Compiling programs, and keeping what was compiled.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use shardax_pjrt as pjrt;

use super::execute::LoadedProgram;
use super::op_sharding;
use super::placement::Place;
use super::{client, disk_cache};
use crate::error::{Result, err};
use crate::lower::module::{Donation, Module};
use crate::profiler;
use crate::program::{Aval, Program};
use crate::sharding::{NamedSharding, Sharding};

/// Everything that a compiled program depends on.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    pub name: String,
    pub program: Program,
    pub place: Place,
    /// The sharding of each input.
    pub in_shardings: Vec<Sharding>,
    /// The sharding of each output; `None` leaves it to the compiler.
    pub out_shardings: Vec<Option<NamedSharding>>,
    /// The inputs whose memory may be taken over.
    pub donated: Vec<bool>,
    pub effort: Effort,
}

/// How much the compiler does for the program's speed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Effort {
    #[default]
    Full,
    /// For a program that takes far longer to compile than to run: a fraction of the time to compile it.
    Quick,
}

type Cache = Mutex<HashMap<Request, Arc<LoadedProgram>>>;

fn cache() -> &'static Cache {
    static CACHE: OnceLock<Cache> = OnceLock::new();
    CACHE.get_or_init(Default::default)
}

/// Options of the CPU compiler that the plugin was found not to know.
static UNKNOWN: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

fn unknown() -> MutexGuard<'static, Vec<&'static str>> {
    UNKNOWN.lock().unwrap_or_else(|e| e.into_inner())
}

/// The options of the CPU compiler that every program is compiled with; see `docs/engine.md`.
fn cpu_options(effort: Effort) -> Vec<(&'static str, pjrt::Value)> {
    let mut options = vec![
        // By default `maximum` and `minimum` may lose a NaN.
        ("xla_cpu_enable_fast_min_max", pjrt::Value::Bool(false)),
        // XNNPACK's matrix products pack the right operand and keep the packed copy for as long as operands come at the
        // same address: an array changed in place, or a new one in freed memory, is multiplied by its old contents.
        ("xla_cpu_use_xnnpack", pjrt::Value::Bool(false)),
        // Sums of f32 by YNNPACK, which uses vectors where XLA's own loops add element by element.
        ("xla_cpu_experimental_ynn_fusion_type", pjrt::Value::String("LIBRARY_FUSION_TYPE_REDUCE".to_owned())),
    ];
    if effort == Effort::Quick {
        options.push(("xla_cpu_use_fusion_emitters", pjrt::Value::Bool(false)));
        options.push(("xla_backend_optimization_level", pjrt::Value::Int(1)));
    }
    options.retain(|(name, _)| !unknown().contains(name));
    options
}

/// Drops every compiled program that is not held elsewhere.
pub fn clear_caches() {
    cache().lock().unwrap_or_else(|e| e.into_inner()).clear();
    super::eager::clear();
}

impl Request {
    /// The StableHLO text.
    pub fn lower(&self) -> Result<String> {
        let named: Vec<Option<NamedSharding>> = match &self.place {
            Place::Single(_) => Vec::new(),
            Place::Mesh(_) => self.in_shardings.iter().map(|s| s.as_named().cloned()).collect(),
        };
        Module {
            name: &self.name,
            program: &self.program,
            in_shardings: &named,
            out_shardings: &self.out_shardings,
            donations: &self.donations(),
            num_partitions: self.place.devices().len(),
        }
        .text()
    }

    /// What becomes of each input's memory: the first output of the same type and sharding that is free takes it over.
    pub fn donations(&self) -> Vec<Donation> {
        let outs = self.program.out_avals();
        let mut free = vec![true; outs.len()];
        let mut donations = vec![Donation::None; self.program.inputs.len()];
        // Whether they lie alike, where that is known before compilation.
        let alike = |i: usize, o: usize, rank: usize| match (&self.place, &self.out_shardings[o]) {
            (Place::Single(_), _) => Some(true),
            (_, Some(s)) => Some(self.in_shardings[i].is_equivalent_to(&Sharding::Named(s.clone()), rank)),
            (_, None) => None,
        };
        for (i, aval) in self.program.in_avals().enumerate().filter(|(i, _)| self.donated[*i]) {
            let same_type = |o: &usize| free[*o] && (outs[*o].dtype, &outs[*o].shape) == (aval.dtype, &aval.shape);
            let first = |want| (0..outs.len()).filter(same_type).find(|&o| alike(i, o, aval.rank()) == want);
            let to = first(Some(true)).map(|o| (o, Donation::To(o)));
            if let Some((o, donation)) = to.or_else(|| first(None).map(|o| (o, Donation::ToAny))) {
                free[o] = false;
                donations[i] = donation;
            }
        }
        donations
    }

    /// The compiled program, from memory where it was compiled before.
    pub fn load(self) -> Result<Arc<LoadedProgram>> {
        if let Some(found) = cache().lock().unwrap_or_else(|e| e.into_inner()).get(&self) {
            return Ok(found.clone());
        }
        let loaded = Arc::new(self.compile(&[])?);
        cache().lock().unwrap_or_else(|e| e.into_inner()).insert(self, loaded.clone());
        Ok(loaded)
    }

    /// Lowers and compiles, with options of XLA.
    pub fn compile(&self, xla_options: &[(&str, pjrt::Value)]) -> Result<LoadedProgram> {
        let _span = profiler::span(|| format!("compile {}", self.name).into());
        let text = self.lower()?;
        let client = client()?;
        let ours = if client.platform_name == "cpu" { cpu_options(self.effort) } else { Vec::new() };
        let overrides =
            ours.iter().chain(xla_options).map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let devices = self.place.devices();
        let spmd = devices.len() > 1;
        let donations = self.donations();
        let parameters = self
            .program
            .in_avals()
            .enumerate()
            .map(|(i, aval)| {
                let dims = self.in_shardings[i].shard_shape(&aval.shape)?;
                Ok(pjrt::ParameterSpec {
                    ty: aval.dtype.element_type(),
                    dims: dims.iter().map(|&d| d as i64).collect(),
                    donated: donations[i] != Donation::None,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let options = pjrt::CompileOptions {
            num_replicas: 1,
            num_partitions: devices.len(),
            device_ids: devices.iter().map(|d| d.id()).collect(),
            use_shardy: spmd,
            propagate_to_outputs: if spmd {
                self.out_shardings.iter().map(Option::is_none).collect()
            } else {
                Vec::new()
            },
            overrides,
            ..Default::default()
        };
        let signature = pjrt::Signature { parameters };
        let executable = match disk_cache::load_or_compile(&client.pjrt, &text, &options, signature) {
            Ok(executable) => executable,
            Err(error) => match ours
                .iter()
                .find(|(name, _)| error.message.contains(name) && !xla_options.iter().any(|(given, _)| given == name))
            {
                // Another version of the plugin.
                Some((name, _)) => {
                    unknown().push(*name);
                    return self.compile(xla_options);
                }
                None => return Err(err!(Runtime, "XLA could not compile {}: {error}", self.name)),
            },
        };
        let found = self.result_shardings(&executable)?;
        if found.iter().any(Option::is_none) {
            let whole = |(given, found): (&Option<NamedSharding>, Option<Sharding>)| match found {
                Some(_) => given.clone(),
                None => self.place.replicated().as_named().cloned(),
            };
            let out_shardings = self.out_shardings.iter().zip(found).map(whole).collect();
            return Request { out_shardings, ..self.clone() }.compile(xla_options);
        }
        Ok(LoadedProgram {
            apart: LoadedProgram::runs_apart(&executable),
            warned: Default::default(),
            name: self.name.clone(),
            executable,
            place: self.place.clone(),
            in_shardings: self.in_shardings.clone(),
            out_avals: self.program.out_avals().into_iter().map(|a| Aval { vma: Default::default(), ..a }).collect(),
            out_shardings: found.into_iter().flatten().collect(),
            donated: donations.iter().map(|d| *d != Donation::None).collect(),
        })
    }

    /// How each result lies. `None` where the compiler chose to split it in a way that no spec expresses, or into
    /// parts of which some are padded.
    fn result_shardings(&self, executable: &pjrt::Executable) -> Result<Vec<Option<Sharding>>> {
        let Place::Mesh(mesh) = &self.place else {
            return Ok(vec![Some(self.place.replicated()); self.program.outputs.len()]);
        };
        let chosen = match self.out_shardings.iter().any(Option::is_none) {
            true => executable.output_shardings()?,
            false => None,
        };
        let lies = |(i, (aval, part)): (usize, (&Aval, &[i64]))| {
            if let Some(given) = &self.out_shardings[i] {
                return Some(Sharding::Named(given.clone()));
            }
            let named = match chosen.as_ref().and_then(|c| c.get(i)) {
                Some(op) => op_sharding::to_named(op, mesh, aval.rank())?,
                None => NamedSharding::new(mesh, Default::default()),
            };
            let shape = named.shard_shape(&aval.shape).ok()?;
            shape.iter().map(|&d| d as i64).eq(part.iter().copied()).then_some(Sharding::Named(named))
        };
        Ok(self.program.out_avals().iter().zip(executable.output_dims()).enumerate().map(lies).collect())
    }
}
