//! The hot path of a compiled function: find the program for these arguments, run it, rebuild the result.
//!
//! Finding it compares the arguments' structure, types and shardings with those of the last call, then of others;
//! nothing of the program's size is looked at.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, RwLock};

use smallvec::SmallVec;

use crate::array::{Array, Concrete};
use crate::error::{Error, Result, err};
use crate::program::Aval;
use crate::program::trace::check_usable;
use crate::runtime::eager::input_name;
use crate::runtime::execute::LoadedProgram;
use crate::sharding::{Mesh, Sharding};
use crate::spmd::{context, get_mesh};
use crate::tree::{self, Flat, Tree, TreeDef};

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

/// Every argument can be used, also those that the program does not take.
fn check_all(flat: &Flat) -> Result<()> {
    let mut leaves = flat.leaves.iter().enumerate();
    leaves.try_for_each(|(i, leaf)| check_usable(leaf).map_err(|e| of_argument(flat, i, e)))
}

/// An error of an argument says which; one that happened before the call does not.
fn of_argument(flat: &Flat, i: usize, error: Error) -> Error {
    if flat.leaves[i].error().is_some() {
        return error;
    }
    error.context(format!("argument{}", flat.def.paths().get(i).cloned().unwrap_or_default()))
}

/// An execution that was refused because of a donation, in the caller's terms.
pub(crate) fn explain(
    loaded: &LoadedProgram,
    captures: &[Arc<Concrete>],
    kept: &[usize],
    flat: &Flat,
    error: Error,
) -> Error {
    let donated = |i: usize| loaded.donated.get(i).copied().unwrap_or(false);
    let captured = captures.iter().map(|c| Some(&**c));
    let args: Vec<_> = captured.chain(kept.iter().map(|&i| flat.leaves[i].concrete_ref())).collect();
    let share = |a: &Concrete, b: &Concrete| a.buffers.iter().any(|x| b.buffers.iter().any(|y| Arc::ptr_eq(x, y)));
    let name = |i: usize| input_name(i.checked_sub(captures.len()).map(|i| kept[i]), &|| flat.def.paths());
    for (j, arg) in args.iter().enumerate() {
        let Some(arg) = arg else { continue };
        let shared = |i: &usize| args[*i].is_some_and(|other| share(other, arg));
        let Some(i) = (0..j).find(shared).filter(|&i| donated(i) || donated(j)) else { continue };
        let (first, second) = (name(i), name(j));
        return err!(
            Value,
            "Attempt to use a buffer that was previously donated in the same call to Execute(): {first} and {second} of {} are the same array of type {}, and {} is donated",
            loaded.name,
            arg.aval,
            if donated(i) { &first } else { &second }
        )
        .help("pass a copy, or leave the argument out of donate_argnums");
    }
    error
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
            // A plain number: what failed or was traced is no argument, whatever its type.
            None => leaf.is_number() && self.sharding.is_none() && self.aval == leaf.aval(),
        }
    }
}

impl Cache {
    /// Runs the function on these arguments; `build` compiles it where it has not been compiled for such arguments.
    pub fn call<T: Tree>(&self, flat: &Flat, build: &dyn Fn(&Flat) -> Result<Built>) -> Result<T> {
        let entry = self.find(flat, build)?;
        if entry.kept.len() < flat.leaves.len() {
            check_all(flat)?;
        }
        let Entry { loaded, captures, kept, .. } = &*entry;
        match loaded.call(captures, kept, &flat.leaves, entry.committed) {
            Ok(leaves) => tree::rebuild(&entry.out_def, leaves),
            // What the program takes is checked as it starts; why it was refused is looked for only then.
            Err(error) => Err(check_all(flat).err().unwrap_or_else(|| explain(loaded, captures, kept, flat, error))),
        }
    }

    /// The compiled program for these arguments.
    pub fn find(&self, flat: &Flat, build: &dyn Fn(&Flat) -> Result<Built>) -> Result<Arc<Entry>> {
        if let Some(last) = self.last.read().unwrap_or_else(|e| e.into_inner()).as_ref()
            && last.matches(flat)
        {
            return Ok(last.clone());
        }
        check_all(flat)?;
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
