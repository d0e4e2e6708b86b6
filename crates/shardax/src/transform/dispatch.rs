//! The hot path of a compiled function: find the program for these arguments, run it, rebuild the result.
//!
//! Finding it compares the arguments' structure, types and shardings with those of the last call, then of others;
//! nothing of the program's size is looked at.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, RwLock};

use smallvec::SmallVec;

use crate::array::{Array, Concrete};
use crate::error::Result;
use crate::program::Aval;
use crate::runtime::execute::LoadedProgram;
use crate::sharding::{Mesh, Sharding};
use crate::spmd::{context, get_mesh};
use crate::tree::{Flat, TreeDef};

/// A compiled program, and the arguments that it is for.
pub(crate) struct Entry {
    /// The context mesh, which the function may have used.
    mesh: Option<Mesh>,
    def: TreeDef,
    args: SmallVec<[ArgKey; 8]>,
    pub loaded: Arc<LoadedProgram>,
    /// Arrays that the function captured: the program's first inputs.
    pub captures: Vec<Arc<Concrete>>,
    /// Which arguments the program takes.
    pub kept: Vec<usize>,
    pub out_def: TreeDef,
    /// Whether results stay on their devices.
    pub committed: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct ArgKey {
    aval: Aval,
    sharding: Option<Sharding>,
    committed: bool,
}

/// What compiling a function for its arguments gives.
pub(crate) struct Built {
    pub loaded: Arc<LoadedProgram>,
    pub captures: Vec<Arc<Concrete>>,
    pub kept: Vec<usize>,
    pub out_def: TreeDef,
    pub committed: bool,
}

/// The compiled programs of one function.
#[derive(Default)]
pub(crate) struct Cache {
    last: RwLock<Option<Arc<Entry>>>,
    all: Mutex<Vec<(u64, Arc<Entry>)>>,
}

impl Entry {
    fn matches(&self, flat: &Flat) -> bool {
        self.args.len() == flat.leaves.len()
            && self.args.iter().zip(&flat.leaves).all(|(key, leaf)| key.matches(leaf))
            && self.def == flat.def
            && context::is_current(self.mesh.as_ref())
    }
}

impl ArgKey {
    fn of(leaf: &Array) -> Self {
        ArgKey {
            aval: leaf.aval(),
            sharding: leaf.concrete_ref().map(|c| c.sharding.clone()),
            committed: leaf.committed(),
        }
    }

    fn matches(&self, leaf: &Array) -> bool {
        match leaf.concrete_ref() {
            Some(c) => {
                self.committed == c.committed && self.sharding.as_ref() == Some(&c.sharding) && self.aval == c.aval
            }
            None => self.sharding.is_none() && self.aval == leaf.aval(),
        }
    }
}

impl Cache {
    /// Runs the function on these arguments; `build` compiles it where it has not been compiled for such arguments.
    pub fn call(&self, flat: &Flat, build: &dyn Fn(&Flat) -> Result<Built>) -> Result<Flat> {
        let entry = self.find(flat, build)?;
        let mut args: SmallVec<[Arc<Concrete>; 16]> = entry.captures.iter().cloned().collect();
        for &i in &entry.kept {
            args.push(flat.leaves[i].concrete()?);
        }
        let leaves = entry.loaded.run(&args, entry.committed)?.into_iter().collect();
        Ok(Flat { leaves, def: entry.out_def.clone() })
    }

    /// The compiled program for these arguments.
    pub fn find(&self, flat: &Flat, build: &dyn Fn(&Flat) -> Result<Built>) -> Result<Arc<Entry>> {
        if let Some(last) = self.last.read().unwrap_or_else(|e| e.into_inner()).as_ref()
            && last.matches(flat)
        {
            return Ok(last.clone());
        }
        for leaf in &flat.leaves {
            leaf.check()?;
        }
        let args: SmallVec<[ArgKey; 8]> = flat.leaves.iter().map(ArgKey::of).collect();
        let mut hasher = std::hash::DefaultHasher::new();
        args.hash(&mut hasher);
        flat.def.hash(&mut hasher);
        let mesh = get_mesh();
        mesh.hash(&mut hasher);
        let hash = hasher.finish();
        let known = {
            let all = self.all.lock().unwrap_or_else(|e| e.into_inner());
            all.iter().find(|(h, e)| *h == hash && e.matches(flat)).map(|(_, e)| e.clone())
        };
        let entry = match known {
            Some(entry) => entry,
            None => {
                let Built { loaded, captures, kept, out_def, committed } = build(flat)?;
                let entry =
                    Arc::new(Entry { mesh, def: flat.def.clone(), args, loaded, captures, kept, out_def, committed });
                self.all.lock().unwrap_or_else(|e| e.into_inner()).push((hash, entry.clone()));
                entry
            }
        };
        *self.last.write().unwrap_or_else(|e| e.into_inner()) = Some(entry.clone());
        Ok(entry)
    }
}

/// The cache of a function that captures nothing: every transformation of the same function with the same options
/// shares it, so that a fresh `pmap` of a known function does not compile again.
pub(crate) fn shared<F>(options: impl Hash) -> Arc<Cache> {
    type Registry = Mutex<std::collections::HashMap<(std::any::TypeId, u64), Arc<Cache>>>;
    static REGISTRY: std::sync::OnceLock<Registry> = std::sync::OnceLock::new();
    if size_of::<F>() != 0 {
        return Arc::default();
    }
    let mut hasher = std::hash::DefaultHasher::new();
    options.hash(&mut hasher);
    let key = (typeid::of::<F>(), hasher.finish());
    REGISTRY.get_or_init(Default::default).lock().unwrap_or_else(|e| e.into_inner()).entry(key).or_default().clone()
}
