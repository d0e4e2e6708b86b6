//! Traces of a compiled function that other traced functions call. As in JAX, equal arguments share one trace.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::core::program::Aval;
use crate::core::tree::TreeDef;
use crate::defaults::Defaults;
use crate::ops::primitive::call::Call;
use crate::sharding::axis_env::Environment;
use crate::sharding::context::{get_abstract_mesh, get_mesh};
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
}

/// Everything that tracing can read: the types of the arguments, and the context.
#[derive(PartialEq)]
pub(crate) struct InnerKey {
    def: TreeDef,
    avals: Vec<Aval>,
    mesh: Option<Mesh>,
    abstract_mesh: Option<AbstractMesh>,
    axes: Environment,
    defaults: Defaults,
    device: Option<Device>,
}

impl InnerKey {
    /// The key of arguments of these types in the current context.
    pub fn new(def: &TreeDef, avals: Vec<Aval>) -> Self {
        InnerKey {
            def: def.clone(),
            avals,
            mesh: get_mesh(),
            abstract_mesh: get_abstract_mesh(),
            axes: Environment::current(),
            defaults: Defaults::current(),
            device: chosen_device(),
        }
    }

    pub fn avals(&self) -> &[Aval] {
        &self.avals
    }
}

impl InnerTraces {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<InnerTrace>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn find(&self, key: &InnerKey) -> Option<Arc<InnerTrace>> {
        self.lock().iter().find(|trace| trace.key == *key).cloned()
    }

    pub fn insert(&self, trace: Arc<InnerTrace>) {
        let mut all = self.lock();
        let length = all.len();
        let rest = all.split_off(length.min(MAX_TRACES - 1));
        all.push_front(trace);
        // A program may hold arrays, so programs are freed outside of the lock.
        drop(all);
        drop(rest);
    }

    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.lock());
        drop(all);
    }
}
