//! Compiling programs, and keeping what was compiled.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use shardax_pjrt as pjrt;

use super::client;
use super::execute::LoadedProgram;
use super::op_sharding;
use super::placement::Place;
use crate::error::{Result, err};
use crate::lower::module::Module;
use crate::program::{Aval, Program};
use crate::sharding::{NamedSharding, Sharding, SingleDeviceSharding};

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
}

type Cache = Mutex<HashMap<Request, Arc<LoadedProgram>>>;

fn cache() -> &'static Cache {
    static CACHE: OnceLock<Cache> = OnceLock::new();
    CACHE.get_or_init(Default::default)
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
            aliases: &self.aliases(),
            num_partitions: self.place.devices().len(),
        }
        .text()
    }

    /// The output that takes over each donated input: the first of the same type and sharding that is free.
    fn aliases(&self) -> Vec<Option<usize>> {
        let outs = self.program.out_avals();
        let mut taken = vec![false; outs.len()];
        self.program
            .in_avals()
            .enumerate()
            .map(|(i, aval)| {
                if !self.donated.get(i).copied().unwrap_or(false) {
                    return None;
                }
                let fits = |o: usize, out: &Aval| {
                    let same_place = match (&self.place, &self.out_shardings[o]) {
                        (Place::Single(_), _) => true,
                        (_, Some(s)) => self.in_shardings[i].is_equivalent_to(&Sharding::Named(s.clone()), aval.rank()),
                        (_, None) => false,
                    };
                    same_place && out.dtype == aval.dtype && out.shape == aval.shape
                };
                let found = outs.iter().enumerate().position(|(o, out)| !taken[o] && fits(o, out))?;
                taken[found] = true;
                Some(found)
            })
            .collect()
    }

    /// The compiled program, from memory where it was compiled before.
    pub fn load(self) -> Result<Arc<LoadedProgram>> {
        if let Some(found) = cache().lock().unwrap_or_else(|e| e.into_inner()).get(&self) {
            return Ok(found.clone());
        }
        let loaded = Arc::new(self.compile()?);
        cache().lock().unwrap_or_else(|e| e.into_inner()).insert(self, loaded.clone());
        Ok(loaded)
    }

    /// Lowers and compiles.
    pub fn compile(&self) -> Result<LoadedProgram> {
        let text = self.lower()?;
        let devices = self.place.devices();
        let spmd = devices.len() > 1;
        let aliases = self.aliases();
        let parameters = self
            .program
            .in_avals()
            .enumerate()
            .map(|(i, aval)| {
                let dims = self.in_shardings[i].shard_shape(&aval.shape)?;
                Ok(pjrt::ParameterSpec {
                    ty: aval.dtype.element_type(),
                    dims: dims.iter().map(|&d| d as i64).collect(),
                    donated: aliases[i].is_some(),
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
            // By default the CPU's `maximum` and `minimum` may lose a NaN.
            overrides: vec![("xla_cpu_enable_fast_min_max".into(), pjrt::Value::Bool(false))],
            ..Default::default()
        };
        let executable = client()?
            .pjrt
            .compile(&text, &options, pjrt::Signature { parameters })
            .map_err(|e| err!(Runtime, "XLA could not compile {}: {e}", self.name))?;
        let out_shardings = self.result_shardings(&executable)?;
        Ok(LoadedProgram {
            name: self.name.clone(),
            executable,
            place: self.place.clone(),
            in_shardings: self.in_shardings.clone(),
            out_avals: self.program.out_avals().into_iter().map(|a| Aval { vma: Default::default(), ..a }).collect(),
            out_shardings,
            donated: aliases.iter().map(Option::is_some).collect(),
            text,
        })
    }

    fn result_shardings(&self, executable: &pjrt::Executable) -> Result<Vec<Sharding>> {
        let mesh = match &self.place {
            Place::Single(d) => {
                let single = Sharding::Single(SingleDeviceSharding(d.clone()));
                return Ok(vec![single; self.program.outputs.len()]);
            }
            Place::Mesh(mesh) => mesh,
        };
        let chosen = match self.out_shardings.iter().any(Option::is_none) {
            true => executable.output_shardings()?,
            false => None,
        };
        self.program
            .out_avals()
            .iter()
            .enumerate()
            .map(|(i, aval)| {
                if let Some(s) = &self.out_shardings[i] {
                    return Ok(Sharding::Named(s.clone()));
                }
                let op = chosen.as_ref().and_then(|c| c.get(i));
                let named = match op {
                    Some(op) => op_sharding::to_named(op, mesh, aval.rank()),
                    None => Some(NamedSharding::new(mesh, Default::default())),
                };
                named.map(Sharding::Named).ok_or_else(|| {
                    err!(
                        NotImplemented,
                        "the compiler split output {i} of {} in a way that no PartitionSpec over {mesh} expresses",
                        self.name
                    )
                })
            })
            .collect()
    }
}
