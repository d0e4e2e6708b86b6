//! Values that the rules of `custom_vjp` functions log during a backward pass.
//!
//! A rule records its entries in the innermost backward pass of the thread. A primitive that transposes its program in a
//! separate trace returns the arrays of the entries from this trace ([`nested`]), and records them again outside.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::core::array::Array;
use crate::core::tree::{Flat, Node, Tree, TreeDef};
use crate::error::{Result, err};
use crate::local::{Stack, StackKey};

/// The logged trees by key.
pub(crate) type Logs = BTreeMap<String, Flat>;

/// The entries of one backward pass.
struct Pass {
    /// `false` if nobody receives the values: the keys are still compared, and entries are recorded without arrays.
    wanted: bool,
    logs: Logs,
}

// The backward passes on this thread, innermost last. A rule that logs finds its pass here.
thread_local! {
    static PASSES: Stack<Pass> = const { Stack::new() };
}

/// Ends the pass at this depth, even if a rule panics.
struct Running(usize);

impl Drop for Running {
    fn drop(&mut self) {
        PASSES.with_borrow_mut(|passes| passes.truncate(self.0));
    }
}

/// Runs a backward pass and returns its entries.
pub(crate) fn collect<R>(wanted: bool, pass: impl FnOnce() -> Result<R>) -> Result<(R, Logs)> {
    let running = PASSES.with_borrow_mut(|passes| {
        passes.push(Pass { wanted, logs: Logs::new() });
        Running(passes.len() - 1)
    });
    let result = pass()?;
    let logs = PASSES.with_borrow_mut(|passes| passes.pop()).map(|pass| pass.logs).unwrap_or_default();
    drop(running);
    Ok((result, logs))
}

/// Returns `true` if the entries of the current backward pass are received.
pub(crate) fn are_received() -> bool {
    PASSES.with_borrow(|passes| passes.last().is_some_and(|pass| pass.wanted))
}

/// Records entries in the current backward pass. Fails if the pass already has an entry with the same key.
pub(crate) fn record(logs: Logs) -> Result<()> {
    PASSES.with_borrow_mut(|passes| {
        let Some(pass) = passes.last_mut() else { return Ok(()) };
        for (key, value) in logs {
            match pass.logs.entry(key) {
                Entry::Vacant(entry) => entry.insert(if pass.wanted { value } else { Flat::default() }),
                Entry::Occupied(entry) => {
                    return Err(err!(
                        Value,
                        "Duplicate backward-pass log key {:?}. Each key must be unique within a backward pass.",
                        entry.key()
                    )
                    .help("use a separate key for each call of the function, or log in a loop or in `vmap`, which stack the values"));
                }
            };
        }
        Ok(())
    })
}

/// Splits a tree with named parts, such as a map or a struct, into entries. `None` and `()` are no entries.
pub(crate) fn entries_of<T: Tree>(logs: &T) -> Result<Logs> {
    let flat = Flat::of(logs);
    let names = flat.def.root_names();
    let parts = flat.def.root_children().unwrap_or_default();
    if names.len() != parts.len() {
        return Err(err!(
            Type,
            "Custom VJP bwd rule was registered with defvjp_with_logs, and so the second element of the pair it returns \
             must be a map or a struct of backward-pass log entries, but got {:?}",
            flat.def
        )
        .help("return `BTreeMap::from([(\"name\".to_owned(), value)])`, a struct with `#[derive(Tree)]`, or `()`"));
    }
    let mut leaves = flat.leaves.into_iter();
    Ok(names
        .into_iter()
        .zip(parts)
        .map(|(name, (_, def))| {
            let leaves = leaves.by_ref().take(def.leaf_count()).collect();
            (name, Flat { leaves, def })
        })
        .collect())
}

/// The keys and structures of entries whose arrays are results of a program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout(Vec<(String, TreeDef)>);

impl Layout {
    /// Separates entries into their layout and their arrays.
    pub fn of(logs: Logs) -> (Layout, Vec<Array>) {
        let mut leaves = Vec::new();
        let layout = logs.into_iter().map(|(key, flat)| {
            leaves.extend(flat.leaves);
            (key, flat.def)
        });
        (Layout(layout.collect()), leaves)
    }

    /// Returns the entries with these arrays.
    pub fn entries(&self, leaves: impl IntoIterator<Item = Array>) -> Logs {
        let mut leaves = leaves.into_iter();
        self.0
            .iter()
            .map(|(key, def)| {
                (key.clone(), Flat { leaves: leaves.by_ref().take(def.leaf_count()).collect(), def: def.clone() })
            })
            .collect()
    }

    /// Returns the number of arrays.
    pub fn count(&self) -> usize {
        self.0.iter().map(|(_, def)| def.leaf_count()).sum()
    }
}

/// Runs a backward pass in a trace of its own. Returns the cotangents, and the layout and the arrays of the entries,
/// which must become results of the trace. Call [`record`] with these results outside of the trace.
pub(crate) fn nested<R>(pass: impl FnOnce() -> Result<R>) -> Result<(R, Layout, Vec<Array>)> {
    let (cts, logs) = collect(are_received(), pass)?;
    let (layout, leaves) = Layout::of(logs);
    Ok((cts, layout, leaves))
}

/// Combines what the branches of a conditional logged. The entry of a key is a pair: the index of the branch that ran,
/// and for each branch `None` or the value that it logged, which is zero unless the branch ran.
pub(crate) fn join_branches(index: &Array, branches: &[Logs]) -> Logs {
    let mut combined = Logs::new();
    for key in branches.iter().flat_map(Logs::keys) {
        if combined.contains_key(key) {
            continue;
        }
        let mut entry = Flat::default();
        entry.node(Node::Tuple(2));
        entry.leaf(index.clone());
        entry.node(Node::List(branches.len()));
        for logs in branches {
            match logs.get(key) {
                Some(value) => {
                    entry.node(Node::Some);
                    entry.append(value);
                }
                None => entry.node(Node::None),
            }
        }
        combined.insert(key.clone(), entry);
    }
    combined
}
