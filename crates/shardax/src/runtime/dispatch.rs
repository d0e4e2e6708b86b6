//! The hot path of a compiled function: finds the program for the arguments, runs it, rebuilds the result.
//!
//! The lookup compares the arguments' structure, types and shardings with the previous call's, then falls back to a hash
//! table. Its cost does not depend on the size of the program.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use smallvec::SmallVec;

use super::aot::lower::Traces;
use super::cache_miss::{self, Numbers};
use super::callable::{Callable, check_all};
use super::execute::LoadedProgram;
use super::inner_traces::InnerTraces;
use super::program_cache::{CachedProgram, Evictable, Table, hash_of, register};
use crate::config;
use crate::core::array::Array;
use crate::core::program::Aval;
use crate::core::tree::{self, Flat, Tree, TreeDef};
use crate::defaults::Defaults;
use crate::error::Result;
use crate::fast_hash::FastHasher;
use crate::sharding::context;
use crate::sharding::context::get_mesh;
use crate::sharding::device::{Device, chosen_device, is_chosen};
use crate::sharding::{Mesh, Sharding};
use crate::warning;

/// A function compiled for its arguments, and their key.
pub(crate) struct Entry {
    key: Key,
    pub callable: Callable,
}

/// The key of a program: properties of its arguments and context.
pub(super) struct Key {
    /// The context mesh, which the function may have used.
    pub mesh: Option<Mesh>,
    pub defaults: Defaults,
    /// The default device of uncommitted arrays.
    pub device: Option<Device>,
    pub def: TreeDef,
    pub args: SmallVec<[ArgKey; 8]>,
}

pub(super) struct ArgKey {
    pub aval: Aval,
    pub sharding: Option<Sharding>,
    pub committed: bool,
}

/// The compiled programs of one function.
pub(crate) struct Cache {
    last: RwLock<Option<Arc<Entry>>>,
    all: Table<Arc<Entry>>,
    numbers: Numbers,
    pub traces: Traces,
    pub inner: InnerTraces,
    /// The time of the last use, relative to other caches.
    used: AtomicU64,
}

impl CachedProgram for Arc<Entry> {
    fn program(&self) -> &LoadedProgram {
        &self.callable.loaded
    }
}

impl Evictable for Cache {
    fn visit(&self, visit: &mut dyn FnMut(&LoadedProgram)) {
        self.all.visit(visit);
    }

    fn retain(&self, keep: &mut dyn FnMut(&LoadedProgram) -> bool) {
        self.all.retain(keep);
        // The other entries are found by hash.
        self.set_last(None);
        self.traces.clear();
        self.inner.clear();
    }
}

impl Entry {
    fn matches(&self, flat: &Flat) -> bool {
        self.key.matches(flat) && !self.callable.loaded.executable.client().is_broken()
    }
}

impl Key {
    fn matches(&self, flat: &Flat) -> bool {
        self.args.len() == flat.leaves.len()
            && self.args.iter().zip(&flat.leaves).all(|(key, leaf)| key.matches(leaf))
            && self.def == flat.def
            && context::is_current(self.mesh.as_ref())
            && Defaults::current() == self.defaults
            && is_chosen(self.device.as_ref())
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

    pub fn matches(&self, leaf: &Array) -> bool {
        match leaf.concrete_ref() {
            Some(c) => {
                self.committed == c.committed && self.sharding.as_ref() == Some(&c.sharding) && self.aval == c.aval
            }
            // The leaf is a plain number. Failed and traced arrays never match, whatever their type.
            None => leaf.is_number() && self.sharding.is_none() && self.aval == leaf.aval(),
        }
    }
}

pub(super) fn hash_leaf<H: Hasher>(leaf: &Array, state: &mut H) {
    match leaf.concrete_ref() {
        Some(c) => (&c.aval, &c.sharding, c.committed).hash(state),
        None => leaf.aval().hash(state),
    }
}

impl Cache {
    pub fn new() -> Arc<Self> {
        register(Cache {
            last: RwLock::default(),
            all: Table::new(1),
            numbers: Numbers::default(),
            traces: Traces::default(),
            inner: InnerTraces::default(),
            used: AtomicU64::default(),
        })
    }

    fn touch(&self) {
        // A logical clock; the order of uses is all that eviction needs.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.used.store(NEXT.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    fn set_last(&self, entry: Option<Arc<Entry>>) {
        let mut last_entry = self.last.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *last_entry, entry);
        // Dropping the entry may free a program, so it is dropped after the lock is released.
        drop(last_entry);
        drop(before);
    }

    /// Calls the function on these arguments; `build` compiles it on a cache miss.
    pub fn call<T: Tree>(&self, name: &str, flat: &Flat, build: &dyn Fn(&Flat) -> Result<Callable>) -> Result<T> {
        let entry = self.find(name, flat, build)?;
        tree::rebuild(&entry.callable.convention.out_def, entry.callable.call(flat)?)
    }

    /// Returns the compiled program for these arguments.
    pub fn find(&self, name: &str, flat: &Flat, build: &dyn Fn(&Flat) -> Result<Callable>) -> Result<Arc<Entry>> {
        // The previous call's entry usually matches, and comparing it is faster than hashing the arguments.
        if let Some(last) = self.last.read().unwrap_or_else(PoisonError::into_inner).as_ref()
            && last.matches(flat)
        {
            last.callable.loaded.last_use.touch();
            return Ok(last.clone());
        }
        check_all(flat)?;
        let (mesh, defaults, device) = (get_mesh(), Defaults::current(), chosen_device());
        let mut hasher = FastHasher::default();
        flat.leaves.iter().for_each(|leaf| hash_leaf(leaf, &mut hasher));
        (&flat.def, &mesh, defaults, &device).hash(&mut hasher);
        let hash = hasher.finish();
        let entry = match self.all.find(hash, |entry| entry.matches(flat)) {
            Some(entry) => entry,
            None => {
                if config::explains_cache_misses() {
                    warning::log(&self.explain_miss(name, flat));
                }
                let args = flat.leaves.iter().map(ArgKey::of).collect();
                let callable = build(flat)?;
                let entry =
                    Arc::new(Entry { key: Key { mesh, defaults, device, def: flat.def.clone(), args }, callable });
                if !entry.callable.reusable {
                    return Ok(entry);
                }
                self.numbers.compiled(name, flat, entry.key.mesh.as_ref());
                self.all.insert(hash, entry.clone());
                entry
            }
        };
        self.set_last(Some(entry.clone()));
        Ok(entry)
    }

    /// Explains a cache miss.
    fn explain_miss(&self, name: &str, flat: &Flat) -> String {
        cache_miss::explain(name, self.all.values().iter().map(|entry| entry.key.differences(flat)))
    }
}

/// Returns the cache of a function with these options. A function that captures nothing is identified by its
/// [identity](Function::identity): all its transformations with the same options share one cache, so that a new `pmap`
/// of the same function does not compile again. Every other function has a private cache, which is dropped with the
/// function.
pub(crate) fn shared(identity: Option<u64>, options: impl Hash) -> Arc<Cache> {
    let Some(identity) = identity else { return Cache::new() };
    let key = hash_of((identity, options));
    // Most calls find their cache, so they only need the read lock.
    if let Some(cache) =
        SHARED.read().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(|caches| caches.get(&key).cloned())
    {
        cache.touch();
        return cache;
    }
    // Another thread may have inserted the cache between the two locks, so `entry` looks again.
    let mut caches = SHARED.write().unwrap_or_else(PoisonError::into_inner);
    let caches = caches.get_or_insert_default();
    if caches.len() >= MAX_SHARED_CACHES && !caches.contains_key(&key) {
        // Options may differ from call to call (lists of axes, for example), so the least recently used half is
        // evicted.
        let mut uses: Vec<u64> = caches.values().map(|cache| cache.used.load(Ordering::Relaxed)).collect();
        let (_, middle, _) = uses.select_nth_unstable(MAX_SHARED_CACHES / 2);
        let middle = *middle;
        caches.retain(|_, cache| cache.used.load(Ordering::Relaxed) > middle);
    }
    let cache = caches.entry(key).or_insert_with(Cache::new).clone();
    cache.touch();
    cache
}

type SharedCaches = HashMap<u64, Arc<Cache>>;
static SHARED: RwLock<Option<SharedCaches>> = RwLock::new(None);

/// The maximum number of shared caches.
const MAX_SHARED_CACHES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_differ_in_options_make_room() {
        let used = shared(Some(1), "used all the time");
        let unused = Arc::downgrade(&shared(Some(1), "left alone"));
        for i in 0..2 * MAX_SHARED_CACHES {
            shared(Some(2), i);
            assert!(Arc::ptr_eq(&used, &shared(Some(1), "used all the time")));
        }
        assert!(unused.upgrade().is_none());
        assert!(SHARED.read().expect("no panic").as_ref().map_or(0, HashMap::len) <= MAX_SHARED_CACHES);
        assert!(!Arc::ptr_eq(&shared(None, 0), &shared(None, 0)));
    }
}
