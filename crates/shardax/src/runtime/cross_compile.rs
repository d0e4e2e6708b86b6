//! Cross-compilation for described devices.

use shardax_pjrt as pjrt;

use super::counts;
use super::load::{Request, with_known_options};
use super::placement::Place;
use crate::error::{Result, err};
use crate::sharding::{Device, Mesh, NamedSharding, Sharding, Topology};
use crate::timeline;

/// A program compiled for the devices of a topology.
pub(crate) struct CrossCompiledProgram {
    /// The request, on the topology's devices.
    pub request: Request,
    pub executable: pjrt::CrossCompiledExecutable,
    pub place: Place,
    pub in_shardings: Vec<Sharding>,
    pub out_shardings: Vec<Sharding>,
}

impl Request {
    /// Compiles the request for devices of this topology: for the devices that it is placed on, or for as many
    /// replacements.
    pub fn compile_for(
        &self,
        topology: &Topology,
        xla_options: &[(&str, pjrt::Value)],
    ) -> Result<CrossCompiledProgram> {
        let _span = timeline::span(|| format!("compile {} for {topology}", self.name).into());
        let moved = self.moved_to(topology)?;
        let mut request = moved.clone();
        // The first round may find results that the compiler would split in a way that no spec expresses; the second
        // round replicates these results.
        for _ in 0..2 {
            let text = request.lower(true)?;
            let ids = request.place.devices().iter().map(Device::id).collect();
            let overrides = request.overrides(topology.platform(), xla_options);
            let mut options = pjrt::CompileOptions { overrides, ..request.options(ids) };
            let signature = request.signature(&request.donations())?;
            counts::compiling(&self.name, self.program.in_avals());
            let mut compiled = topology.pjrt().compile(&text, &options, signature.clone());
            let is_requested = options.overrides.iter().any(|(name, _)| name == TILED_PRODUCTS);
            if !is_requested && compiled.as_ref().is_err_and(|error| error.message.contains(NO_TILES)) {
                options.overrides.push((TILED_PRODUCTS.to_owned(), pjrt::Value::Bool(false)));
                compiled = topology.pjrt().compile(&text, &options, signature);
            }
            let executable = compiled
                .map_err(|e| request.explained(rejected(&self.name, topology, &e), request.place.platform()))?;
            let out_shardings = request.result_shardings(&executable, None)?;
            if let Some(replicated) = request.with_replicated(&out_shardings) {
                request = replicated;
                continue;
            }
            return Ok(CrossCompiledProgram {
                request: moved,
                in_shardings: request.canonical_inputs(&executable)?,
                executable,
                place: request.place,
                out_shardings: out_shardings.into_iter().flatten().collect(),
            });
        }
        Err(err!(
            Runtime,
            "internal error: XLA split a result of {} that should be replicated on {topology}; please report this",
            self.name
        ))
    }

    /// Moves the request to devices of this topology.
    fn moved_to(&self, topology: &Topology) -> Result<Request> {
        if self.place.devices().iter().all(|device| device.topology() == Some(topology.pjrt())) {
            return Ok(self.clone());
        }
        let count = self.place.devices().len();
        let available = topology.num_devices();
        if count > available {
            return Err(err!(Value, "{} is for {count} devices, but {topology} has {available}", self.name)
                .help(format!("lower it for a mesh of at most {available} devices, or choose a larger topology")));
        }
        let place = match &self.place {
            Place::Single(_) => Place::Single(topology.devices().swap_remove(0)),
            Place::Mesh(mesh) => {
                let shape: Vec<usize> = mesh.axes().iter().map(|(_, size)| *size).collect();
                let devices = if count == available {
                    topology.ordered(&shape)?
                } else {
                    topology.devices().into_iter().take(count).collect()
                };
                let moved = Mesh::new(devices, mesh.axes().to_vec())?;
                Place::Mesh(moved.with_axis_types(mesh.axis_types().to_vec())?)
            }
        };
        let meshes = self.moved_meshes(&place)?;
        Ok(Request {
            in_shardings: self
                .in_shardings
                .iter()
                .map(|s| {
                    let moved = match (s, &place) {
                        (Sharding::Named(s), _) => Sharding::Named(on_moved_mesh(s, &meshes)),
                        (Sharding::Single(_), Place::Single(device)) => Sharding::from(device).in_memory(s.kind()),
                        // A single device is equivalent to a mesh of this one device.
                        (Sharding::Single(_), Place::Mesh(_)) => place.replicated().in_memory(s.kind()),
                    };
                    moved.in_layout(s.layout())
                })
                .collect(),
            out_shardings: self.out_shardings.iter().map(|s| s.as_ref().map(|s| on_moved_mesh(s, &meshes))).collect(),
            place: place.clone(),
            ..self.clone()
        })
    }

    /// The meshes of the request's shardings, each with the corresponding mesh on the new devices.
    fn moved_meshes(&self, place: &Place) -> Result<Vec<(Mesh, Mesh)>> {
        let (Place::Mesh(from), Place::Mesh(to)) = (&self.place, place) else { return Ok(Vec::new()) };
        let mut meshes = vec![(from.clone(), to.clone())];
        let inputs = self.in_shardings.iter().filter_map(Sharding::as_named);
        for sharding in inputs.chain(self.out_shardings.iter().flatten()) {
            let mesh = sharding.mesh();
            if meshes.iter().any(|(from, _)| from == mesh) {
                continue;
            }
            let source = from.devices();
            let devices: Option<Vec<Device>> = mesh
                .devices()
                .iter()
                .map(|device| to.devices().get(source.iter().position(|other| other == device)?).cloned())
                .collect();
            let Some(devices) = devices else { continue };
            let moved = Mesh::new(devices, mesh.axes().to_vec())?.with_axis_types(mesh.axis_types().to_vec())?;
            meshes.push((mesh.clone(), moved));
        }
        Ok(meshes)
    }

    /// Replicates the results whose sharding is unknown.
    pub fn with_replicated(&self, shardings: &[Option<Sharding>]) -> Option<Request> {
        if shardings.iter().all(Option::is_some) {
            return None;
        }
        let out_shardings = self.out_shardings.iter().zip(shardings).map(|(requested, sharding)| match sharding {
            Some(_) => requested.clone(),
            None => self.place.replicated().as_named().cloned(),
        });
        Some(Request { out_shardings: out_shardings.collect(), ..self.clone() })
    }
}

/// Without a GPU for autotuning, the CUDA compiler (jax-cuda12-pjrt 0.10.2) uses one tile size for matmuls, and fails
/// if it does not fit an operand that is transposed on the fly (`vmap` over the last dimension). Without tiles it calls
/// cuBLAS.
const NO_TILES: &str = "Couldn't find output tile sizes";
const TILED_PRODUCTS: &str = "xla_gpu_enable_triton_gemm";

/// The error for a program that the platform's compiler rejected.
fn rejected(name: &str, topology: &Topology, error: &pjrt::Error) -> crate::error::Error {
    let rejected = err!(Runtime, "XLA could not compile {name} for {topology}: {error}");
    let rejected = with_known_options(rejected, error);
    match error.code {
        pjrt::Code::ResourceExhausted => rejected.help(
            "it needs more memory than a device has: split more of it, or over more devices (`PartitionSpec`), recompute instead of keeping (`checkpoint`), or use smaller batches",
        ),
        _ => rejected,
    }
}

impl CrossCompiledProgram {
    pub fn mesh(&self) -> Option<&Mesh> {
        match &self.place {
            Place::Mesh(mesh) => Some(mesh),
            Place::Single(_) => None,
        }
    }
}

/// Returns the sharding on the mesh that replaces its mesh.
fn on_moved_mesh(sharding: &NamedSharding, meshes: &[(Mesh, Mesh)]) -> NamedSharding {
    match meshes.iter().find(|(from, _)| from == sharding.mesh()) {
        Some((_, mesh)) => NamedSharding::new(mesh, sharding.spec().clone()).in_memory(Sharding::from(sharding).kind()),
        None => sharding.clone(),
    }
}
