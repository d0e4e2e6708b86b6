//! A cache of derived programs for loops that search for the carries that have tangents or are batched.
//!
//! A loop applies a rule to its body until no further carry is marked. A loop inside the body does the same in each of
//! these passes, so the time would be exponential in the depth of the loops. Therefore equal programs are derived only
//! once during the outermost search.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Debug;
use std::rc::Rc;

use crate::core::program::Program;
use crate::error::Result;
use crate::sharding::axis_env::Environment;
use crate::sharding::{AbstractMesh, get_abstract_mesh};

thread_local! {
    static SEARCH: RefCell<Search> = RefCell::default();
}

#[derive(Default)]
struct Search {
    /// The number of nested searches.
    depth: usize,
    derived: HashMap<Key, Vec<Derived>>,
}

/// A program, the rule, and the rule's other arguments.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    rule: &'static str,
    program: Program,
    marks: String,
    mesh: Option<AbstractMesh>,
}

struct Derived {
    /// The axes that were bound during the derivation.
    axes: Environment,
    result: Rc<dyn Any>,
}

/// A search of a loop. Dropping it ends the search.
pub(crate) struct SearchGuard(());

/// Starts the search of a loop.
pub(crate) fn search() -> SearchGuard {
    SEARCH.with_borrow_mut(|search| search.depth += 1);
    SearchGuard(())
}

impl Drop for SearchGuard {
    fn drop(&mut self) {
        let ended = SEARCH.with_borrow_mut(|search| {
            search.depth -= 1;
            if search.depth == 0 { std::mem::take(&mut search.derived) } else { HashMap::new() }
        });
        // Programs may hold arrays, so they are dropped while nothing is borrowed.
        drop(ended);
    }
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
    let key = Key { rule, program: program.clone(), marks: format!("{marks:?}"), mesh: get_abstract_mesh() };
    let axes = Environment::current();
    let known = SEARCH.with_borrow(|search| {
        let all = search.derived.get(&key)?.iter().find(|derived| derived.axes == axes)?;
        all.result.clone().downcast::<R>().ok()
    });
    if let Some(known) = known {
        return Ok(R::clone(&known));
    }
    let result = derive()?;
    if is_closed(&result) {
        let kept = Derived { axes, result: Rc::new(result.clone()) };
        SEARCH.with_borrow_mut(|search| search.derived.entry(key).or_default().push(kept));
    }
    Ok(result)
}
