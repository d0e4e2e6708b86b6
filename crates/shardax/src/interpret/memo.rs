//! Two caches of derived programs.
//!
//! A loop applies a rule to its body until no further carry is marked. A loop inside the body does the same in each of
//! these passes, so the time would be exponential in the depth of the loops. Therefore equal programs are derived only
//! once during the outermost search.
//!
//! Functions that call each other twice at n levels have 2ⁿ calls. Therefore each called program is derived only once
//! during the outermost transformation.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::thread::LocalKey;

use crate::core::program::Program;
use crate::core::program::shared::SharedProgram;
use crate::error::Result;
use crate::local::{Lasting, LastingKey};
use crate::sharding::axis_env::Environment;
use crate::sharding::{AbstractMesh, get_abstract_mesh};

// A cache lasts for one outermost search or transformation, which runs on one thread.
thread_local! {
    static SEARCH: Lasting<Cache<Program>> = Lasting::default();
    static CALLEES: Lasting<Cache<Callee>> = Lasting::default();
}

type LocalCache<P> = LocalKey<Lasting<Cache<P>>>;

struct Cache<P> {
    /// The number of nested users. The cache is empty if there are none.
    depth: usize,
    derived: HashMap<Key<P>, Vec<Derived>>,
}

impl<P> Default for Cache<P> {
    fn default() -> Self {
        Cache { depth: 0, derived: HashMap::new() }
    }
}

/// A program, the rule, and the rule's other arguments.
#[derive(PartialEq, Eq, Hash)]
struct Key<P> {
    rule: &'static str,
    program: P,
    marks: String,
    mesh: Option<AbstractMesh>,
}

/// A called program, compared by identity.
#[derive(Clone)]
struct Callee(SharedProgram);

impl PartialEq for Callee {
    fn eq(&self, other: &Self) -> bool {
        self.0.id() == other.0.id()
    }
}

impl Eq for Callee {}

impl Hash for Callee {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id().hash(state);
    }
}

struct Derived {
    /// The axes that were bound during the derivation.
    axes: Environment,
    result: Rc<dyn Any>,
}

/// A use of a cache. Dropping it ends the use.
pub(crate) struct Use<P: 'static>(&'static LocalCache<P>);

impl<P> Use<P> {
    fn begin(cache: &'static LocalCache<P>) -> Self {
        cache.with_borrow_mut(|cache| cache.depth += 1);
        Use(cache)
    }
}

impl<P> Drop for Use<P> {
    fn drop(&mut self) {
        let ended = self.0.with_borrow_mut(|cache| {
            cache.depth -= 1;
            if cache.depth == 0 { std::mem::take(&mut cache.derived) } else { HashMap::new() }
        });
        // Programs may hold arrays, so they are dropped while nothing is borrowed.
        drop(ended);
    }
}

/// Starts the search of a loop.
pub(crate) fn search() -> impl Drop {
    Use::begin(&SEARCH)
}

/// Starts the transformation of a program.
pub(crate) fn transformation() -> impl Drop {
    Use::begin(&CALLEES)
}

/// Returns the result of a rule for a program and these marks. Within a search it reuses an earlier result. Results
/// that refer to a trace, so that `is_closed` returns `false`, are not kept.
pub(crate) fn derived<R: Clone + 'static>(
    rule: &'static str,
    program: &Program,
    marks: &dyn Debug,
    is_closed: impl Fn(&R) -> bool,
    derive: impl FnOnce() -> Result<R>,
) -> Result<R> {
    if SEARCH.with_borrow(|search| search.depth == 0) {
        return derive();
    }
    derived_in(&SEARCH, (rule, program.clone(), marks), is_closed, derive)
}

/// Like [`derived`], for a called program within a transformation.
pub(crate) fn derived_of_callee<R: Clone + 'static>(
    rule: &'static str,
    program: &SharedProgram,
    marks: &dyn Debug,
    is_closed: impl Fn(&R) -> bool,
    derive: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let _transformation = transformation();
    derived_in(&CALLEES, (rule, Callee(program.clone()), marks), is_closed, derive)
}

fn derived_in<P: Eq + Hash, R: Clone + 'static>(
    cache: &'static LocalCache<P>,
    (rule, program, marks): (&'static str, P, &dyn Debug),
    is_closed: impl Fn(&R) -> bool,
    derive: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let key = Key { rule, program, marks: format!("{marks:?}"), mesh: get_abstract_mesh() };
    let axes = Environment::current();
    let cached = cache.with_borrow(|cache| {
        let derivation = cache.derived.get(&key)?.iter().find(|derived| derived.axes == axes)?;
        derivation.result.clone().downcast::<R>().ok()
    });
    if let Some(cached) = cached {
        return Ok(R::clone(&cached));
    }
    let result = derive()?;
    if is_closed(&result) {
        let entry = Derived { axes, result: Rc::new(result.clone()) };
        cache.with_borrow_mut(|cache| cache.derived.entry(key).or_default().push(entry));
    }
    Ok(result)
}
