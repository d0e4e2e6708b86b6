//! In-memory caches of compiled programs: tables with a lookup by hash and one comparison, and with common limits.
//!
//! Each table belongs to the user of its programs: to a `jit`, or to eager operations. If all tables together exceed
//! the limits, the least recently used programs are evicted first, from any table.
//!
//! Lock order: release the list of tables before you lock a part of a table, and lock only one part at a time. No lock
//! is held while programs are compared, compiled or freed.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use smallvec::SmallVec;

use super::execute::LoadedProgram;
use crate::config;

/// The totals of all tables.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// A logical clock that counts insertions: cheap to read, and precise enough for eviction.
static CLOCK: AtomicU64 = AtomicU64::new(1);

// Weak references, because a table belongs to its function and is dropped with it.
static TABLES: Mutex<Vec<Weak<dyn Evictable>>> = Mutex::new(Vec::new());

/// The time of a program's last use.
#[derive(Default)]
pub(crate) struct LastUse(AtomicU64);

impl LastUse {
    #[inline]
    pub fn touch(&self) {
        let current = CLOCK.load(Ordering::Relaxed);
        // Written once per tick, so that threads that use one program do not contend for it.
        if self.0.load(Ordering::Relaxed) != current {
            self.0.store(current, Ordering::Relaxed);
        }
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// An entry of a table: a compiled program with its key.
pub(crate) trait CachedProgram: Clone {
    fn program(&self) -> &LoadedProgram;
}

impl CachedProgram for Arc<LoadedProgram> {
    fn program(&self) -> &LoadedProgram {
        self
    }
}

/// The hash of a value, for tables.
pub(crate) fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A hasher that returns its input: keys are already hashes.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _bytes: &[u8]) {}
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// A program's share of the totals, while it exists.
struct Share(usize);

impl Share {
    fn new(bytes: usize) -> Self {
        COUNT.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes, Ordering::Relaxed);
        Share(bytes)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        BYTES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// The programs with one hash. There is more than one only if hashes collide.
type Bucket<V> = SmallVec<[(V, Share); 1]>;
type Part<V> = RwLock<HashMap<u64, Bucket<V>, BuildHasherDefault<Identity>>>;

/// A table of compiled programs, in parts with a lock each.
pub(crate) struct Table<V>(Box<[Part<V>]>);

impl<V: CachedProgram> Table<V> {
    pub fn new(parts: usize) -> Self {
        Table((0..parts).map(|_| Part::default()).collect())
    }

    fn part(&self, hash: u64) -> &Part<V> {
        &self.0[(hash >> 32) as usize % self.0.len()]
    }

    /// Returns the entry with this hash that `matches`; compared outside of the lock.
    pub fn find(&self, hash: u64, matches: impl Fn(&V) -> bool) -> Option<V> {
        // Clones the candidates, because comparing arguments under the lock would delay other threads.
        let candidates: SmallVec<[V; 1]> = {
            let part = self.part(hash).read().unwrap_or_else(PoisonError::into_inner);
            part.get(&hash)?.iter().map(|(value, _)| value.clone()).collect()
        };
        let candidates = candidates.into_iter().find(matches)?;
        candidates.program().last_use.touch();
        Some(candidates)
    }

    /// Inserts an entry. The table's owner must be [`registered`](register), so that entries can be evicted.
    pub fn insert(&self, hash: u64, value: V) {
        CLOCK.fetch_add(1, Ordering::Relaxed);
        value.program().last_use.touch();
        let share = Share::new(value.program().bytes);
        self.part(hash).write().unwrap_or_else(PoisonError::into_inner).entry(hash).or_default().push((value, share));
        make_room();
    }

    /// Returns all entries.
    pub fn values(&self) -> Vec<V> {
        let mut values = Vec::new();
        for part in &self.0 {
            let part = part.read().unwrap_or_else(PoisonError::into_inner);
            values.extend(part.values().flatten().map(|(value, _)| value.clone()));
        }
        values
    }

    /// Drops the entries that `keep` rejects. Their memory is freed outside of the lock.
    fn retain(&self, keep: &mut dyn FnMut(&LoadedProgram) -> bool) {
        for part in &self.0 {
            let mut dropped: Vec<(V, Share)> = Vec::new();
            part.write().unwrap_or_else(PoisonError::into_inner).retain(|_, bucket| {
                let mut i = 0;
                while i < bucket.len() {
                    if keep(bucket[i].0.program()) {
                        i += 1;
                    } else {
                        dropped.push(bucket.swap_remove(i));
                    }
                }
                !bucket.is_empty()
            });
        }
    }
}

/// An owner of tables.
pub(crate) trait Evictable: Send + Sync {
    fn visit(&self, visit: &mut dyn FnMut(&LoadedProgram));
    /// Drops the programs that `keep` rejects.
    fn retain(&self, keep: &mut dyn FnMut(&LoadedProgram) -> bool);
}

impl<V: CachedProgram + Send + Sync> Evictable for Table<V> {
    fn visit(&self, visit: &mut dyn FnMut(&LoadedProgram)) {
        self.values().iter().for_each(|value| visit(value.program()));
    }

    fn retain(&self, keep: &mut dyn FnMut(&LoadedProgram) -> bool) {
        Table::retain(self, keep);
    }
}

fn tables() -> MutexGuard<'static, Vec<Weak<dyn Evictable>>> {
    TABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Subjects the programs of `table` to the limits, while it exists.
pub(crate) fn register<K: Evictable + 'static>(table: K) -> Arc<K> {
    let table = Arc::new(table);
    let weak: Weak<K> = Arc::downgrade(&table);
    let mut tables = tables();
    if tables.len() == tables.capacity() {
        // Dropped tables are removed before the list grows.
        tables.retain(|table| table.strong_count() > 0);
    }
    tables.push(weak);
    table
}

/// The existing tables, to be used outside of the lock.
fn evictable() -> Vec<Arc<dyn Evictable>> {
    tables().iter().filter_map(Weak::upgrade).collect()
}

/// Evicts the least recently used programs, if there are too many.
fn make_room() {
    static IS_EVICTING: AtomicBool = AtomicBool::new(false);
    let (max_count, max_bytes) = config::compiled_bounds();
    let too_much = COUNT.load(Ordering::Relaxed) > max_count || BYTES.load(Ordering::Relaxed) > max_bytes;
    if !too_much || IS_EVICTING.swap(true, Ordering::Acquire) {
        return;
    }
    let tables = evictable();
    let mut programs = Vec::new();
    tables.iter().for_each(|table| table.visit(&mut |program| programs.push((program.last_use.get(), program.bytes))));
    programs.sort_unstable_by_key(|(used, _)| std::cmp::Reverse(*used));
    // Evicts an eighth more than necessary, so that not every new program triggers an eviction. The newest program is
    // never evicted.
    let (count, mut bytes) = (max_count - max_count / 8, max_bytes - max_bytes / 8);
    let kept_count = programs
        .iter()
        .enumerate()
        .take_while(|(at, (_, size))| {
            bytes = bytes.saturating_sub(*size);
            *at == 0 || (*at < count && bytes > 0)
        })
        .count();
    if let Some(&(oldest, _)) = programs.get(kept_count) {
        // Some programs may have equal times, so only as many of them as necessary are evicted.
        let mut ties = programs[..kept_count].iter().filter(|(used, _)| *used == oldest).count();
        for table in &tables {
            table.retain(&mut |program: &LoadedProgram| {
                let last_use = program.last_use.get();
                let is_kept_tie = last_use == oldest && ties > 0;
                ties -= usize::from(is_kept_tie);
                last_use > oldest || is_kept_tie
            });
        }
    }
    IS_EVICTING.store(false, Ordering::Release);
}

/// Drops all cached programs of functions, of eager operations, and of transformations called outside of `jit`. Later
/// calls compile again.
///
/// You rarely need this, because the caches are limited in number and bytes
/// ([`config::set_max_compiled_programs`](crate::config::set_max_compiled_programs)), and the programs of a function
/// that captures something are dropped with its last [`Jit`](crate::Jit) or [`Pmap`](crate::Pmap).
pub fn clear_caches() {
    evictable().iter().for_each(|table| table.retain(&mut |_| false));
}
