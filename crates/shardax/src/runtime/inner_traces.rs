//! Traces of a compiled function that other traced functions call. As in JAX, equal arguments share one trace.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::core::program::Aval;
use crate::core::tree::TreeDef;
use crate::defaults::Defaults;
use crate::dependence::{Dependence, depend_on};
use crate::ops::primitive::call::Call;
use crate::sharding::axis_env::Environment;
use crate::sharding::context::{get_abstract_mesh, mesh_for_key};
use crate::sharding::device::{Device, chosen_device};
use crate::sharding::{AbstractMesh, Mesh};

/// The last traces of a function that were made inside other functions.
#[derive(Default)]
pub(crate) struct InnerTraces(Mutex<VecDeque<Arc<InnerTrace>>>);

/// The number of cached traces: enough for a few layers of different sizes, each differentiated and batched.
const MAX_TRACES: usize = 16;

/// A function as the equation of another program.
pub(crate) struct InnerTrace {
    pub key: InnerKey,
    pub call: Arc<Call>,
    /// The inputs that the program uses.
    pub used: Vec<bool>,
    pub out_def: TreeDef,
    pub dependence: Dependence,
}

impl InnerTrace {
    /// Returns `true` if the trace is valid for a call. Another mesh with the same axes needs another trace only if the
    /// function asked for its devices.
    fn serves(&self, key: &InnerKey) -> bool {
        let same_mesh = if self.dependence.devices {
            self.key.mesh == key.mesh
        } else {
            self.key.mesh.as_ref().map(Mesh::abstract_mesh) == key.mesh.as_ref().map(Mesh::abstract_mesh)
        };
        same_mesh && self.key.call == key.call
    }
}

/// Everything that tracing can read: the types of the arguments, and the context.
pub(crate) struct InnerKey {
    mesh: Option<Mesh>,
    call: CallKey,
}

#[derive(PartialEq)]
struct CallKey {
    def: TreeDef,
    avals: Vec<Aval>,
    abstract_mesh: Option<AbstractMesh>,
    axes: Environment,
    defaults: Defaults,
    device: Option<Device>,
}

impl InnerKey {
    /// Returns the key of arguments of these types in the current context.
    pub fn new(def: &TreeDef, avals: Vec<Aval>) -> Self {
        let call = CallKey {
            def: def.clone(),
            avals,
            abstract_mesh: get_abstract_mesh(),
            axes: Environment::current(),
            defaults: Defaults::current(),
            device: chosen_device(),
        };
        InnerKey { mesh: mesh_for_key(), call }
    }

    pub fn avals(&self) -> &[Aval] {
        &self.call.avals
    }
}

impl InnerTraces {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<InnerTrace>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a trace for a call. The function that is being traced then also depends on everything that this trace read.
    pub fn find(&self, key: &InnerKey) -> Option<Arc<InnerTrace>> {
        let trace = self.lock().iter().find(|trace| trace.serves(key)).cloned()?;
        depend_on(trace.dependence);
        Some(trace)
    }

    pub fn insert(&self, trace: Arc<InnerTrace>) {
        let mut traces = self.lock();
        let length = traces.len();
        let evicted = traces.split_off(length.min(MAX_TRACES - 1));
        traces.push_front(trace);
        // A program may hold arrays, so programs are freed outside of the lock.
        drop(traces);
        drop(evicted);
    }

    pub fn clear(&self) {
        // Takes the traces out first, so that they are freed outside of the lock.
        let traces = std::mem::take(&mut *self.lock());
        drop(traces);
    }
}
