//! The hot path of a compiled function: find the program for these arguments, run it, rebuild the result.
//!
//! Finding it compares the arguments' structure, types and shardings with those of the last call, and else with those
//! of the call that has their hash; nothing of the program's size is looked at.

use std::any::TypeId;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use smallvec::SmallVec;

use super::eager::input_name;
use super::execute::LoadedProgram;
use super::programs::{Keeper, Kept, Table, hash_of, register};
use crate::config;
use crate::core::array::{Array, Concrete};
use crate::core::program::Aval;
use crate::core::program::trace::check_usable;
use crate::core::tree::{self, Flat, Tree, TreeDef};
use crate::error::{Error, ErrorKind, Result, err};
use crate::ops::checkify::Errors;
use crate::sharding::context;
use crate::sharding::context::get_mesh;
use crate::sharding::{Mesh, Sharding};
use crate::source;
use crate::warning;

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
    /// The errors among its results, which come first.
    pub errors: Errors,
}

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
    pub errors: Errors,
    /// Whether it is the program of all such arguments. It is not where their values were read.
    pub reusable: bool,
}

/// The compiled programs of one function.
pub(crate) struct Cache {
    last: RwLock<Option<Arc<Entry>>>,
    all: Table<Arc<Entry>>,
    numbers: Numbers,
}

impl Kept for Arc<Entry> {
    fn program(&self) -> &LoadedProgram {
        &self.loaded
    }
}

impl Keeper for Cache {
    fn visit(&self, visit: &mut dyn FnMut(&LoadedProgram)) {
        self.all.visit(visit);
    }

    fn retain(&self, keep: &mut dyn FnMut(&LoadedProgram) -> bool) {
        self.all.retain(keep);
        // What stays is found again by its hash.
        self.set_last(None);
    }
}

impl Entry {
    fn matches(&self, flat: &Flat) -> bool {
        self.args.len() == flat.leaves.len()
            && self.args.iter().zip(&flat.leaves).all(|(key, leaf)| key.matches(leaf))
            && self.def == flat.def
            && context::is_current(self.mesh.as_ref())
            && !self.loaded.executable.client().is_broken()
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

fn hash_leaf<H: Hasher>(leaf: &Array, state: &mut H) {
    match leaf.concrete_ref() {
        Some(c) => (&c.aval, &c.sharding, c.committed).hash(state),
        None => leaf.aval().hash(state),
    }
}

impl Cache {
    pub fn new() -> Arc<Self> {
        register(Cache { last: RwLock::default(), all: Table::new(1), numbers: Numbers::default() })
    }

    fn set_last(&self, entry: Option<Arc<Entry>>) {
        let mut last = self.last.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *last, entry);
        // A program that goes with it is freed without the lock.
        drop(last);
        drop(before);
    }

    /// Runs the function on these arguments; `build` compiles it where it has not been compiled for such arguments.
    pub fn call<T: Tree>(&self, name: &str, flat: &Flat, build: &dyn Fn(&Flat) -> Result<Built>) -> Result<T> {
        let (entry, leaves) = self.run(name, flat, build)?;
        tree::rebuild(&entry.out_def, leaves)
    }

    /// The same, with the result in leaves, and the entry that has its structure.
    pub fn run(
        &self,
        name: &str,
        flat: &Flat,
        build: &dyn Fn(&Flat) -> Result<Built>,
    ) -> Result<(Arc<Entry>, SmallVec<[Array; 8]>)> {
        let entry = self.find(name, flat, build)?;
        if entry.kept.len() < flat.leaves.len() {
            check_all(flat)?;
        }
        let Entry { loaded, captures, kept, .. } = &*entry;
        match loaded.call(captures, kept, &flat.leaves, entry.committed) {
            Ok(leaves) => Ok((entry, leaves)),
            // It ran, and its arguments may be gone since.
            Err(error) if error.kind() == ErrorKind::FloatingPoint => Err(error),
            // What the program takes is checked as it starts; why it was refused is looked for only then.
            Err(error) => Err(check_all(flat).err().unwrap_or_else(|| explain(loaded, captures, kept, flat, error))),
        }
    }

    /// The compiled program for these arguments.
    fn find(&self, name: &str, flat: &Flat, build: &dyn Fn(&Flat) -> Result<Built>) -> Result<Arc<Entry>> {
        if let Some(last) = self.last.read().unwrap_or_else(PoisonError::into_inner).as_ref()
            && last.matches(flat)
        {
            last.loaded.last_use.touch();
            return Ok(last.clone());
        }
        check_all(flat)?;
        let mesh = get_mesh();
        let mut hasher = DefaultHasher::new();
        flat.leaves.iter().for_each(|leaf| hash_leaf(leaf, &mut hasher));
        (&flat.def, &mesh).hash(&mut hasher);
        let hash = hasher.finish();
        let entry = match self.all.find(hash, |entry| entry.matches(flat)) {
            Some(entry) => entry,
            None => {
                if config::explains_cache_misses() {
                    warning::log(&self.explain_miss(name, flat));
                }
                let args = flat.leaves.iter().map(ArgKey::of).collect();
                let Built { loaded, captures, kept, out_def, committed, errors, reusable } = build(flat)?;
                let def = flat.def.clone();
                let entry = Arc::new(Entry { mesh, def, args, loaded, captures, kept, out_def, committed, errors });
                if !reusable {
                    return Ok(entry);
                }
                self.numbers.compiled(name, flat, entry.mesh.as_ref());
                self.all.insert(hash, entry.clone());
                entry
            }
        };
        self.set_last(Some(entry.clone()));
        Ok(entry)
    }

    /// Why there is no program for these arguments yet, as JAX says it.
    fn explain_miss(&self, name: &str, flat: &Flat) -> String {
        let at = source::line().map_or("an unknown line".to_owned(), |at| at.to_string());
        let differences = self.all.values().into_iter().map(|entry| entry.differences(flat));
        match differences.min_by_key(|(rank, _, list)| (*rank, list.len())) {
            None => format!("TRACING CACHE MISS at {at}:\n  never seen function:\n    {name}"),
            Some((_, kind, list)) => format!(
                "TRACING CACHE MISS at {at}:\n  for {name}\n  all previously seen cache keys differ. For the closest previous key:\n  {kind}:\n  * {}",
                list.join("\n  * ")
            ),
        }
    }
}

impl Entry {
    /// What of these arguments is not as in those that it was compiled for, in what respect, and how far that is.
    fn differences(&self, flat: &Flat) -> (usize, &'static str, Vec<String>) {
        if self.def != flat.def {
            let numbers = |def: &TreeDef| {
                let mut hasher = DefaultHasher::new();
                def.hash_without_numbers(&mut hasher);
                hasher.finish()
            };
            if numbers(&self.def) != numbers(&flat.def) {
                return (4, "different input pytree", vec![flat.def.difference(&self.def)]);
            }
            let all = flat.def.different_numbers(&self.def);
            let text = |(path, now, before)| format!("at argument{path}, now {now:?} and before {before:?}");
            return (2, "different plain numbers", all.into_iter().map(text).collect());
        }
        let different = |what: &dyn Fn(&ArgKey, &Array) -> Option<String>| -> Vec<String> {
            let pairs = self.args.iter().zip(&flat.leaves).enumerate();
            pairs
                .filter_map(|(i, (key, leaf))| Some(format!("at argument{}, {}", flat.def.path(i), what(key, leaf)?)))
                .collect()
        };
        let types = different(&|key, leaf| {
            let now = leaf.aval();
            (now != key.aval).then(|| format!("now {now} and before {}", key.aval))
        });
        if !types.is_empty() {
            return (3, "different input types", types);
        }
        let places = different(&|key, leaf| {
            let place = |sharding: Option<&Sharding>, committed: bool| match sharding {
                Some(sharding) => format!("{sharding}{}", if committed { "" } else { ", uncommitted" }),
                None => "a plain number".to_owned(),
            };
            (!key.matches(leaf)).then(|| {
                let now = place(leaf.concrete_ref().map(|c| &c.sharding), leaf.committed());
                format!("now {now} and before {}", place(key.sharding.as_ref(), key.committed))
            })
        });
        if !places.is_empty() {
            return (1, "different input shardings", places);
        }
        let mesh = |mesh: Option<&Mesh>| mesh.map_or("none".to_owned(), Mesh::to_string);
        let text =
            format!("the context mesh, now {} and before {}", mesh(get_mesh().as_ref()), mesh(self.mesh.as_ref()));
        (0, "Tracing context doesn't match", vec![text])
    }
}

/// Compilations that differ in nothing but plain numbers: so many of them are not meant.
const MANY: usize = 8;

/// How often a function was compiled for arguments that are alike but for plain numbers, by the hash of the rest.
#[derive(Default)]
struct Numbers(Mutex<HashMap<u64, (usize, TreeDef)>>);

impl Numbers {
    /// The function was compiled for these arguments: the eighth time that only plain numbers differ, says so.
    fn compiled(&self, name: &str, flat: &Flat, mesh: Option<&Mesh>) {
        if !flat.def.has_numbers() {
            return;
        }
        let mut hasher = DefaultHasher::new();
        flat.def.hash_without_numbers(&mut hasher);
        flat.leaves.iter().for_each(|leaf| hash_leaf(leaf, &mut hasher));
        mesh.hash(&mut hasher);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= 1024 {
            // Other arguments differ too: this is no loop over numbers.
            all.clear();
        }
        let (count, before) = all.entry(hasher.finish()).or_insert_with(|| (0, TreeDef::default()));
        *count += 1;
        let before = std::mem::replace(before, flat.def.clone());
        if *count != MANY {
            return;
        }
        drop(all);
        let numbers = flat.def.different_numbers(&before).into_iter();
        let list: Vec<String> =
            numbers.map(|(path, now, before)| format!("argument{path} was {before:?} and is now {now:?}")).collect();
        warning::warn(
            &format!(
                "{name} was compiled {MANY} times for arguments that differ only in plain numbers: {}. A plain number is part of the program, which is compiled again for each value.",
                list.join(", ")
            ),
            "take what changes as an `Array`: a parameter of that type is data, also where a plain number is passed for it",
        );
    }
}

/// The cache of a function that captures nothing: every transformation of the same function with the same options
/// shares it, so that a fresh `pmap` of a known function does not compile again. Others have one of their own, which goes
/// with them.
pub(crate) fn shared<F>(options: impl Hash) -> Arc<Cache> {
    type Known = HashMap<(TypeId, u64), Arc<Cache>>;
    static KNOWN: RwLock<Option<Known>> = RwLock::new(None);
    if size_of::<F>() != 0 {
        return Cache::new();
    }
    let key = (typeid::of::<F>(), hash_of(options));
    let known =
        KNOWN.read().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(|known| known.get(&key).cloned());
    known.unwrap_or_else(|| {
        let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
        known.get_or_insert_default().entry(key).or_insert_with(Cache::new).clone()
    })
}
