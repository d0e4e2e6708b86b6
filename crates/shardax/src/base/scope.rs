//! Named scopes: names of operations in lowered texts, optimized programs and profiles.
//!
//! Each thread has a stack of the current names. A trace uses the names that were entered after it began. Interpreters
//! enter the names of equations again, under the name of the transformation.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::local::{Stack, StackKey};

/// A part of an operation's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A user's scope, or a higher-order primitive.
    Name(Arc<str>),
    /// A transformation. It is written around the following name.
    Transform(&'static str),
}

/// The names of an equation, outermost first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope(Option<Arc<[Part]>>);

/// The scope of values recomputed by `checkpoint`, as in JAX.
pub(crate) const RECOMPUTED: &str = "rematted_computation";

// Names are a thread-local, because the functions that record equations have no argument for them.
thread_local! {
    static PARTS: Stack<Part> = const { Stack::new() };
    /// The last result of [`since`], for later equations under the same names.
    static LAST: RefCell<Option<(usize, Scope)>> = const { RefCell::new(None) };
}

/// The number of current names.
pub(crate) fn depth() -> usize {
    PARTS.with_borrow(|parts| parts.len())
}

/// Removes the names that were entered beyond this depth.
pub(crate) fn truncate(depth: usize) {
    PARTS.with_borrow_mut(|parts| parts.truncate(depth));
    forget();
}

fn forget() {
    // At the end of a thread the local may be gone, and then there is nothing to reset.
    let _ = LAST.try_with(|last| last.borrow_mut().take());
}

/// The names entered since the stack had this depth.
pub(crate) fn since(depth: usize) -> Scope {
    PARTS.with_borrow(|parts| {
        let Some(entered @ [_, ..]) = parts.get(depth..) else { return Scope(None) };
        // Equations under the same names share one list of names. The thread-local is gone when a thread ends.
        let shared = LAST.try_with(|last| {
            let mut cached = last.borrow_mut();
            match &*cached {
                Some((start, scope)) if *start == depth => scope.clone(),
                _ => cached.insert((depth, Scope(Some(entered.into())))).1.clone(),
            }
        });
        shared.unwrap_or_else(|_| Scope(Some(entered.into())))
    })
}

/// Runs `f` with these names added.
pub(crate) fn within<R>(parts: impl IntoIterator<Item = Part>, f: impl FnOnce() -> R) -> R {
    let _guard = Entered::new(parts);
    f()
}

/// Runs `f` under the name of a transformation.
pub(crate) fn transform<R>(name: &'static str, f: impl FnOnce() -> R) -> R {
    within([Part::Transform(name)], f)
}

struct Entered(usize);

impl Entered {
    fn new(parts: impl IntoIterator<Item = Part>) -> Self {
        let before = depth();
        PARTS.with_borrow_mut(|all| all.extend(parts));
        forget();
        Entered(before)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        truncate(self.0);
    }
}

impl Scope {
    pub fn parts(&self) -> &[Part] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Runs `f` with these names added.
    pub fn within<R>(&self, f: impl FnOnce() -> R) -> R {
        match &self.0 {
            None => f(),
            Some(parts) => within(parts.iter().cloned(), f),
        }
    }
}

/// Joins names with `/` and appends `last`: `jit(f)/jvp(outer)/inner/sin`.
pub(crate) fn path<'a>(parts: impl Iterator<Item = &'a Part>, last: &str) -> String {
    let mut path = String::new();
    let mut open = 0;
    for part in parts {
        match part {
            Part::Transform(name) => {
                if open == 0 && !path.is_empty() {
                    path.push('/');
                }
                // Writing to a string cannot fail.
                let _ = write!(path, "{name}(");
                open += 1;
            }
            Part::Name(name) => {
                if open == 0 && !path.is_empty() {
                    path.push('/');
                }
                path.push_str(name);
                path.extend(std::iter::repeat_n(')', open));
                open = 0;
            }
        }
    }
    path.extend(std::iter::repeat_n(')', open));
    if !path.is_empty() && !last.is_empty() {
        path.push('/');
    }
    path + last
}

/// Ends the scope when it is dropped; see [`named_scope`].
#[must_use = "the scope lasts as long as this lives: `let _scope = named_scope(…)`"]
pub struct NamedScope {
    _entered: Entered,
    /// Makes the guard stay on its thread, because the names belong to it.
    _thread: PhantomData<*const ()>,
}

/// Names the operations on this thread until the guard is dropped. Scopes nest.
///
/// The names do not affect the computation or the compiled code. They precede the operation's own name in the locations
/// of a lowered program ([`as_text_with_debug_info`](crate::Lowered::as_text_with_debug_info)), in the metadata of the
/// compiled program ([`Compiled::as_text`](crate::Compiled::as_text)), and therefore in profiles:
/// `jit(step)/attention/softmax/exp`. Transformations are written around the outermost name, as in JAX:
/// `jit(step)/transpose(jvp(attention))/softmax/mul`.
///
/// ```
/// # use shardax::prelude::*;
/// let f = jit(|x: Array| {
///     let y = {
///         let _scope = named_scope("encoder");
///         x.sin()
///     };
///     y + 1
/// });
/// let text = f.lower(ones([4]))?.as_text_with_debug_info()?;
/// assert!(text.contains("jit(lambda)/encoder/sin") && text.contains("jit(lambda)/add"));
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn named_scope(name: impl Into<String>) -> NamedScope {
    let name: String = name.into();
    NamedScope { _entered: Entered::new([Part::Name(name.into())]), _thread: PhantomData }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Follows JAX's `NameStack.__str__`.
    #[test]
    fn transformations_stand_around_the_next_name() {
        fn name(text: &str) -> Part {
            Part::Name(text.into())
        }
        let cases = [
            (vec![], "sin"),
            (vec![name("a"), name("b")], "a/b/sin"),
            (vec![Part::Transform("jvp"), name("a"), name("b")], "jvp(a)/b/sin"),
            (vec![name("o"), Part::Transform("vmap"), Part::Transform("jvp"), name("a")], "o/vmap(jvp(a))/sin"),
            (vec![name("o"), Part::Transform("transpose"), Part::Transform("jvp")], "o/transpose(jvp())/sin"),
        ];
        for (parts, want) in cases {
            assert_eq!(path(parts.iter(), "sin"), want);
        }
    }

    #[test]
    fn guards_dropped_in_any_order_leave_nothing() {
        let outer = named_scope("outer");
        let inner = named_scope("inner");
        assert_eq!(path(since(0).parts().iter(), "sin"), "outer/inner/sin");
        drop(outer);
        assert_eq!(depth(), 0);
        drop(inner);
        assert_eq!(since(0).parts(), []);
    }
}
