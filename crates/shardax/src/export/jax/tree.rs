//! The structures of arguments and results.

use serde_json::{Value, json};

use super::damaged;
use super::table::Table;
use crate::error::{Result, err};
use crate::stack::grow;

/// Kinds of nodes.
const LEAF: u8 = 0;
const NONE: u8 = 1;
const TUPLE: u8 = 2;
const LIST: u8 = 3;
const DICTIONARY: u8 = 4;
const CUSTOM: u8 = 5;

/// The steps of a tree and the paths of its leaves, as [`TreeDef`](crate::tree::TreeDef) writes them.
#[derive(Default)]
struct Walk {
    steps: Vec<Value>,
    paths: Vec<String>,
    /// The number of nodes so far. Tables and texts can be shared, so a small file could describe an endless tree.
    nodes: usize,
    text: usize,
}

/// The maximum length of all texts of one structure together.
const MAX_TEXT_BYTES: usize = 1 << 25;

/// The structure of a result.
pub(super) fn structure(tree: Table) -> Result<(Value, Vec<String>)> {
    let mut walk = Walk { nodes: tree.most(), ..Walk::default() };
    walk.node(tree, String::new())?;
    Ok((Value::Array(walk.steps), walk.paths))
}

/// The structure of arguments: the positional arguments, then, if there are any, the named arguments as one additional
/// argument.
pub(super) fn arguments(tree: Table) -> Result<(Value, Vec<String>)> {
    let parts = tree.tables(1)?;
    let [places, names] = parts.as_slice() else {
        return Err(damaged("its structure has no arguments"));
    };
    if places.byte(0)? != TUPLE || names.byte(0)? != DICTIONARY {
        return Err(damaged("its structure has no arguments"));
    }
    let mut children = places.tables(1)?;
    if !names.tables(1)?.is_empty() {
        children.push(*names);
    }
    let mut walk = Walk { nodes: tree.most(), ..Walk::default() };
    walk.steps.push(json!({ "tuple": children.len() }));
    for (i, child) in children.into_iter().enumerate() {
        walk.node(child, format!("[{i}]"))?;
    }
    Ok((Value::Array(walk.steps), walk.paths))
}

impl Walk {
    fn node(&mut self, tree: Table, path: String) -> Result<()> {
        let (kind, children) = (tree.byte(0)?, tree.tables(1)?);
        let keys: Vec<String> = match kind {
            CUSTOM => names(&tree)?,
            _ => tree.texts(2)?.into_iter().map(str::to_owned).collect(),
        };
        // Limits the text and the number of nodes, because parts of a damaged file can refer to each other.
        let text = keys.iter().map(|key| 24 + key.len()).sum::<usize>() + path.len();
        self.text = self.text.saturating_add(text);
        self.nodes = self
            .nodes
            .checked_sub(1)
            .filter(|_| self.text <= MAX_TEXT_BYTES)
            .ok_or_else(|| damaged("its structure is larger than its bytes can say"))?;
        match kind {
            LEAF | NONE if !children.is_empty() => return Err(damaged("its structure has a leaf with parts")),
            LEAF => {
                self.steps.push(json!("array"));
                self.paths.push(path);
                return Ok(());
            }
            NONE => self.steps.push(json!("none")),
            TUPLE => self.steps.push(json!({ "tuple": children.len() })),
            LIST => self.steps.push(json!({ "list": children.len() })),
            DICTIONARY | CUSTOM if keys.len() == children.len() => self.steps.push(json!({ "map": keys })),
            DICTIONARY | CUSTOM => return Err(damaged("its structure has a dictionary of other keys")),
            kind => return Err(damaged(format!("its structure has a node of kind {kind}"))),
        }
        for (i, child) in children.into_iter().enumerate() {
            let step = keys.get(i).map_or_else(|| format!("[{i}]"), |key| format!("[{}]", json!(key)));
            grow(|| self.node(child, format!("{path}{step}")))?;
        }
        Ok(())
    }
}

/// The names of the parts of an `OrderedDict` or a named tuple, which JAX writes as a list in JSON.
fn names(tree: &Table) -> Result<Vec<String>> {
    serde_json::from_slice(tree.bytes(4)?).map_err(|_| {
        err!(
            NotImplemented,
            "the type {:?} has no counterpart in Rust, because the file does not contain the names of its parts",
            tree.text(3).unwrap_or_default()
        )
        .help("export a function of dictionaries, named tuples, tuples and lists")
    })
}
