//! What users call the inputs of a program: where in the arguments each is.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::core::tree::TreeDef;

/// Names that are written when they are asked for. Programs that differ in them alone are one.
#[derive(Clone, Default)]
pub(crate) struct InputNames(Option<Arc<Inputs>>);

struct Inputs {
    /// So many arrays that the function captured come first.
    captures: usize,
    arguments: TreeDef,
    /// The arguments that the program takes.
    kept: Vec<usize>,
}

impl InputNames {
    pub fn new(captures: usize, arguments: &TreeDef, kept: &[usize]) -> InputNames {
        InputNames(Some(Arc::new(Inputs { captures, arguments: arguments.clone(), kept: kept.to_vec() })))
    }

    /// `captured[0]`, `argument[1].w`; empty where nothing is known of the inputs.
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
