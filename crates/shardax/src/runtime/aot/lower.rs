//! Lowering a function: it is traced for its arguments, pruned, and placed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::LoweredFn;
use crate::backend::options::Effort;
use crate::compiler_options::CompilerOptions;
use crate::core::array::Concrete;
use crate::core::program::trace::Traced;
use crate::core::program::{Aval, Program};
use crate::core::sharding_like::RequestedSharding;
use crate::core::tree::{Flat, LeafInfo, TreeDef};
use crate::defaults::Defaults;
use crate::dependence::{Dependence, recorded};
use crate::error::{Result, err};
use crate::interpret::flat::{FlatFn, trace_flat, types_of, with_arguments};
use crate::ops::state::lift::{Lifted, lift};
use crate::runtime::callable::CallConvention;
use crate::runtime::counts;
use crate::runtime::eager::input_name;
use crate::runtime::inner_traces::{InnerKey, InnerTraces};
use crate::runtime::input_names::InputNames;
use crate::runtime::layouts;
use crate::runtime::load::Request;
use crate::runtime::placement::{Input, Place, Placed, Placing};
use crate::sharding::context::mesh_for_key;
use crate::sharding::device::client_number;
use crate::sharding::layout::RequestedLayout;
use crate::sharding::memory::MemoryKind;
use crate::sharding::{AbstractMesh, Mesh, Sharding};
use crate::warning;

/// The options of lowering a function. `jit` and `pmap` differ in these only.
pub(crate) struct LowerOptions<'a> {
    /// The function's name in errors.
    pub function: &'a str,
    /// The program's name in texts and profiles.
    pub program: String,
    /// Marks the donated arguments, leaf by leaf.
    pub donated: Vec<bool>,
    /// `true` if unused arguments are kept.
    pub keep_unused: bool,
    /// The requested sharding of each argument.
    pub in_shardings: Vec<RequestedSharding>,
    /// XLA options.
    pub compiler_options: CompilerOptions,
    /// The sharding of captured arrays; `None` leaves them where they are.
    pub captured: Option<Sharding>,
    /// The requested sharding of each result, from the structure of the results and the program.
    pub out_shardings: &'a dyn Fn(&TreeDef, &Program) -> Result<Vec<RequestedSharding>>,
    /// The function's cached traces, which can be placed on other devices without a new trace.
    pub traces: Option<&'a Traces>,
    /// The function's traces inside of other functions, if these depend on no other options than the function.
    pub inner: Option<&'a InnerTraces>,
}

/// The last traces of a function. Arguments of the same types on other devices need no new trace.
#[derive(Default)]
pub(crate) struct Traces(Mutex<VecDeque<Arc<Trace>>>);

/// The maximum number of cached traces of a function, enough for a loop over a few device sets or types.
const MAX_TRACES: usize = 4;

/// The arguments and the settings that a trace depends on.
struct TraceKey {
    /// The context mesh.
    mesh: Option<Mesh>,
    /// The client of captured arrays.
    client_number: usize,
    defaults: Defaults,
    in_def: TreeDef,
    in_avals: Vec<Aval>,
}

struct Trace {
    key: TraceKey,
    /// `true` if the trace depends on the devices of the context mesh.
    depends_on_devices: bool,
    pruned: Pruned,
    out_def: TreeDef,
}

impl TraceKey {
    fn abstract_mesh(&self) -> Option<&AbstractMesh> {
        self.mesh.as_ref().map(Mesh::abstract_mesh)
    }
}

impl Trace {
    /// Returns `true` if the trace is valid for these arguments and settings. A trace that does not depend on devices is valid
    /// for any mesh with the same axes.
    fn is_valid_for(&self, key: &TraceKey) -> bool {
        let is_valid_mesh =
            self.key.mesh == key.mesh || (!self.depends_on_devices && self.key.abstract_mesh() == key.abstract_mesh());
        is_valid_mesh
            && (self.key.client_number, &self.key.defaults) == (key.client_number, &key.defaults)
            && self.key.in_def == key.in_def
            && self.key.in_avals == key.in_avals
    }
}

/// Warns if the function draws from a layer's stream of random keys but no result contains the stream's next count.
fn warn_of_dropped_counts(function: &str, in_def: &TreeDef, kept: &[usize], out_def: &TreeDef) {
    let infos = in_def.leaf_infos();
    let Some(used) = kept.iter().map(|&i| &infos[i]).find(|leaf| leaf.counts_keys_of_a_layer()) else { return };
    if out_def.leaf_infos().iter().any(LeafInfo::counts_keys_of_a_layer) {
        return;
    }
    warning::warn(
        &format!(
            "{function} draws random numbers by argument{}, and returns no next count: every call draws the same numbers",
            used.path
        ),
        "return the model, or the `Optimizer` that holds it, and pass it to the next call; to evaluate, call `model.eval()` first",
    );
}

impl LowerOptions<'_> {
    /// Traces `f`, decides its placement, then resolves the layouts, which depend on the platform of the placement.
    pub fn lower(self, flat: &Flat, f: FlatFn<'_>) -> Result<LoweredFn> {
        let trace = self.trace(flat, f)?;
        let Trace { key, pruned, out_def, .. } = &*trace;
        let Pruned { program, captures, refs, kept } = pruned;
        if !self.keep_unused {
            warn_of_dropped_counts(self.function, &flat.def, kept, out_def);
        }
        let mut requested = (self.out_shardings)(out_def, program)?;
        requested.resize_with(requested.len() + refs.results(), Default::default);
        let outputs: Vec<Option<Sharding>> = requested.iter().map(|request| request.sharding.clone()).collect();
        let output_name =
            |i: usize| format!("output{}", out_def.paths().get(i).map(String::as_str).unwrap_or_default());
        let placed = self.place(flat, pruned, &outputs, &output_name)?;
        let Placed { place, mut in_shardings, out_shardings, committed } = placed;
        let arguments = &mut in_shardings[captures.len()..];
        let auto_arguments = self.set_layouts(flat, kept, &place, arguments)?;
        let auto_inputs = auto_arguments.into_iter().map(|position| captures.len() + position).collect();
        let out_layouts = layouts::requested_results(&requested, &program.out_avals(), place.platform(), &output_name)?;
        // Captured arrays are never donated, because the function needs them in the next call.
        let donated = captures.iter().map(|_| false).chain(kept.iter().map(|&i| self.donated[i]));
        let request = Request {
            name: self.program,
            donated: donated.collect(),
            program: program.clone(),
            input_names: InputNames::new(captures.len(), &flat.def, kept),
            place,
            in_shardings,
            out_shardings,
            out_kinds: outputs
                .iter()
                .map(|sharding| sharding.as_ref().map(|s| s.kind().unwrap_or(MemoryKind::DEVICE)))
                .collect(),
            auto_inputs,
            out_layouts,
            effort: Effort::Full,
            compiler_options: CompilerOptions::process_defaults().and(&self.compiler_options),
        };
        request.check_donated_layouts()?;
        let convention = CallConvention {
            captures: captures.clone(),
            refs: refs.clone(),
            kept: kept.clone(),
            out_def: out_def.clone(),
            committed,
        };
        Ok(LoweredFn {
            request,
            convention,
            in_def: flat.def.clone(),
            in_avals: key.in_avals.clone(),
            donated: self.donated,
        })
    }

    /// Chooses the devices of the program, and the shardings of its inputs and results.
    fn place(
        &self,
        flat: &Flat,
        pruned: &Pruned,
        outputs: &[Option<Sharding>],
        output_name: &dyn Fn(usize) -> String,
    ) -> Result<Placed> {
        let Pruned { program, captures, kept, .. } = pruned;
        // Captured arrays are the first inputs of the program, followed by the arguments that it uses.
        let captured = captures.iter().map(|c| match &self.captured {
            Some(sharding) => Input { committed: None, requested: Some(sharding.clone()) },
            None => Input { committed: c.committed.then(|| c.sharding.clone()), requested: None },
        });
        let arguments = kept.iter().map(|&i| Input {
            committed: flat.leaves[i].committed_sharding().cloned(),
            requested: self.in_shardings[i].sharding.clone(),
        });
        Placing {
            program,
            function: self.function,
            inputs: &captured.chain(arguments).collect::<Vec<_>>(),
            input_name: &|i| input_name(i.checked_sub(captures.len()).map(|i| kept[i]), &|| flat.def.paths()),
            outputs,
            output_name,
        }
        .place()
    }

    /// Sets the layouts of arguments. Returns the positions of arguments whose layouts the compiler chooses.
    fn set_layouts(
        &self,
        flat: &Flat,
        kept: &[usize],
        place: &Place,
        in_shardings: &mut [Sharding],
    ) -> Result<Vec<usize>> {
        let mut auto_arguments = Vec::new();
        for (position, &i) in kept.iter().enumerate() {
            let name = || format!("argument{}", flat.def.path(i));
            let layout =
                layouts::input_sharding(&flat.leaves[i], self.in_shardings[i].layout, place.platform(), &name)?;
            if layout == Some(RequestedLayout::Auto) {
                auto_arguments.push(position);
            }
            in_shardings[position] = in_shardings[position].in_layout(layout.and_then(RequestedLayout::known));
        }
        Ok(auto_arguments)
    }

    /// Returns a cached trace for such arguments if there is one; otherwise traces `f`.
    fn trace(&self, flat: &Flat, f: FlatFn<'_>) -> Result<Arc<Trace>> {
        // Host data is placed as `in_shardings` say, so its type has the same sharding.
        let requested = self.in_shardings.iter().map(|requested| requested.sharding.as_ref());
        let key = TraceKey {
            mesh: mesh_for_key(),
            client_number: client_number(),
            defaults: Defaults::current(),
            in_def: flat.def.clone(),
            in_avals: types_of(flat)?.into_iter().zip(requested).map(placed).collect(),
        };
        let known = self.traces.and_then(|traces| traces.lock().iter().find(|trace| trace.is_valid_for(&key)).cloned());
        if let Some(trace) = known {
            return Ok(trace);
        }
        if let Some((pruned, out_def)) = self.inner.and_then(|inner| pruned_inside(inner, flat, &key.in_avals)) {
            return Ok(self.cached(Trace { key, depends_on_devices: true, pruned, out_def }));
        }
        let (pruned, out_def, dependence) = self.trace_anew(flat, &key.in_avals, f)?;
        let trace = Trace { key, depends_on_devices: dependence.devices, pruned, out_def };
        // A trace that depends on the mesh of the arguments is valid for these arguments only, so it is not cached.
        Ok(if dependence.argument_meshes { Arc::new(trace) } else { self.cached(trace) })
    }

    /// Traces `f` for arguments of these types. Also returns what else the trace depends on.
    fn trace_anew(&self, flat: &Flat, in_avals: &[Aval], f: FlatFn<'_>) -> Result<(Pruned, TreeDef, Dependence)> {
        let begun = Instant::now();
        // `pmap` maps over its own mesh, whatever mesh an argument is on. A type over another mesh would become the
        // type of the result, and each device would have to gather all slices.
        let traced_avals = match self.captured {
            Some(_) => in_avals.iter().map(|aval| aval.with_sharding(None)).collect(),
            None => in_avals.to_vec(),
        };
        let (result, dependence) =
            recorded(|| with_arguments(&flat.leaves, || trace_flat(&flat.def, &traced_avals, f)));
        let (traced, out_def) = result?;
        counts::traced(self.function, begun);
        let (traced, refs) = lift(&traced)?.unwrap_or_else(|| (traced, Lifted::default()));
        if !refs.is_empty() && self.captured.is_some() {
            return Err(err!(Value, "{} uses a ref that was made outside of it", self.function)
                .help("make the ref inside of the function, or pass its value as an argument and return the new one"));
        }
        Ok((Pruned::new(&traced, refs, self.keep_unused)?, out_def, dependence))
    }

    /// Adds a trace to the cache of the function, which keeps the latest ones.
    fn cached(&self, trace: Trace) -> Arc<Trace> {
        let trace = Arc::new(trace);
        if let Some(traces) = self.traces {
            let mut traces = traces.lock();
            traces.truncate(MAX_TRACES - 1);
            traces.push_front(trace.clone());
        }
        trace
    }
}

/// Finds a trace that a call inside of another function made for arguments of these types. It captures nothing.
fn pruned_inside(inner: &InnerTraces, flat: &Flat, in_avals: &[Aval]) -> Option<(Pruned, TreeDef)> {
    let trace = inner.find(&InnerKey::new(&flat.def, in_avals.to_vec()))?;
    let kept = trace.used.iter().enumerate().filter(|(_, used)| **used).map(|(i, _)| i).collect();
    let program = Program::clone(&trace.call.program);
    let pruned = Pruned { program, captures: Vec::new(), refs: Lifted::default(), kept };
    Some((pruned, trace.out_def.clone()))
}

/// Returns the type of an argument, with the sharding that the user requested for it, if any.
fn placed((aval, requested): (Aval, Option<&Sharding>)) -> Aval {
    match requested {
        Some(requested) if aval.sharding.is_none() => aval.placed_as(requested),
        _ => aval,
    }
}

impl Traces {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Trace>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn clear(&self) {
        // A trace may hold arrays, so traces are freed outside of the lock.
        let traces = std::mem::take(&mut *self.lock());
        drop(traces);
    }
}

/// A traced function without unused equations and inputs.
struct Pruned {
    program: Program,
    captures: Vec<Arc<Concrete>>,
    refs: Lifted,
    /// The remaining arguments.
    kept: Vec<usize>,
}

impl Pruned {
    /// Removes unused equations and inputs. With `keep_unused`, all arguments remain.
    fn new(traced: &Traced, refs: Lifted, keep_unused: bool) -> Result<Self> {
        let mut program = traced.program.simplified();
        let mut used = program.used_inputs();
        let count = traced.captures.len();
        if keep_unused {
            used[count..].fill(true);
        }
        used[count - refs.len()..count].fill(true);
        let captures = traced.captures.iter().zip(&used).filter(|(_, u)| **u).map(|(c, _)| c.concrete());
        let captures = captures.collect::<Result<Vec<_>>>()?;
        let kept = used[count..].iter().enumerate().filter(|(_, u)| **u).map(|(i, _)| i).collect();
        let mut flags = used.iter();
        program.inputs.retain(|_| *flags.next().unwrap_or(&true));
        Ok(Pruned { program, captures, refs, kept })
    }
}
