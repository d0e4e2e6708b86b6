//! Names of a program's inputs in errors: their key paths in the arguments.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::core::tree::TreeDef;

/// Names that are formatted on demand. Equality of programs ignores them.
#[derive(Clone, Default)]
pub(crate) struct InputNames(Option<Arc<Inputs>>);

struct Inputs {
    /// The number of captured arrays, which come first.
    captures: usize,
    arguments: TreeDef,
    /// The arguments that the program uses.
    kept: Vec<usize>,
}

impl InputNames {
    pub fn new(captures: usize, arguments: &TreeDef, kept: &[usize]) -> InputNames {
        InputNames(Some(Arc::new(Inputs { captures, arguments: arguments.clone(), kept: kept.to_vec() })))
    }

    /// Returns the names: `captured[0]`, `argument[1].w`; empty if the inputs are anonymous.
    pub fn all(&self) -> Vec<String> {
        let Some(Inputs { captures, arguments, kept }) = self.0.as_deref() else { return Vec::new() };
        let paths = arguments.paths();
        let captured = (0..*captures).map(|i| format!("captured[{i}]"));
        captured.chain(kept.iter().filter_map(|&i| Some(format!("argument{}", paths.get(i)?)))).collect()
    }
}

impl PartialEq for InputNames {
    fn eq(&self, _: &InputNames) -> bool {
        true
    }
}

impl Eq for InputNames {}

impl Hash for InputNames {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
