//! Filters that select variables of a model.

use std::ops::{BitAnd, BitOr, Not};
use std::sync::Arc;

use shardax::prelude::*;
use shardax::tree::{Flat, LeafInfo};

use crate::shared::Shared;
use crate::variable::{Kind, kind};

/// A function of a parameter's key path, such as `conv1.kernel`, and the parameter.
pub(crate) type Of<R> = Shared<dyn Fn(&str, &Array) -> R + Send + Sync>;

/// A filter that selects variables of a model: by kind, by key path, or by a function of path and array.
///
/// Gradients, optimizers, masks and [`Module::split_by`](crate::Module::split_by) accept filters. You can combine filters
/// with `&`, `|` and `!`. A string is a pattern of key paths.
///
/// ```
/// use shardax_nn::prelude::*;
///
/// #[derive(Module, Clone)]
/// struct Mlp { layers: Vec<Linear>, norm: LayerNorm }
/// let mut rngs = Rngs::new(0);
/// let layers = vec![Linear::new(2, 4, &mut rngs), Linear::new(4, 2, &mut rngs)];
/// let model = Mlp { layers, norm: LayerNorm::new(2, &mut rngs) };
///
/// let keys = |filter: Filter| model.state_of(filter).keys().map(str::to_owned).collect::<Vec<_>>();
/// assert_eq!(keys(Filter::path("layers[*].bias")), ["layers[0].bias", "layers[1].bias"]);
/// assert_eq!(keys(Filter::path("**.bias") & !Filter::path("layers.**")), ["norm.bias"]);
/// assert_eq!(keys(Filter::predicate(|_, p| p.ndim() == 2)), ["layers[0].kernel", "layers[1].kernel"]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Filter(Rule);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Rule {
    Everything,
    Kind(&'static str),
    Path(String),
    Predicate(Of<bool>),
    Not(Box<Rule>),
    And(Box<Rule>, Box<Rule>),
    Or(Box<Rule>, Box<Rule>),
}

impl Filter {
    /// Selects all variables.
    pub fn everything() -> Self {
        Filter(Rule::Everything)
    }

    /// Selects no variable.
    pub fn nothing() -> Self {
        !Filter::everything()
    }

    /// Selects the variables of a kind: `Filter::of::<BatchStat>()`. Every array inside a variable has the variable's
    /// kind.
    pub fn of<K: Kind>() -> Self {
        Filter(Rule::Kind(K::NAME))
    }

    /// Selects variables by a pattern of their key path: `*` matches any part of a name or an index, `**` any number of
    /// them. `layers[*].kernel` and `layers.*.kernel` are equivalent.
    pub fn path(pattern: impl Into<String>) -> Self {
        Filter(Rule::Path(pattern.into()))
    }

    /// Selects the variables for which a function of key path and array returns true. Create such a filter only once,
    /// because it only equals its clones, and programs are compiled again for each other filter.
    pub fn predicate(f: impl Fn(&str, &Array) -> bool + Send + Sync + 'static) -> Self {
        Filter(Rule::Predicate(Shared(Arc::new(f))))
    }

    /// Returns true if the filter selects this variable.
    pub fn matches(&self, leaf: &LeafInfo, array: &Array) -> bool {
        self.0.matches(leaf, array)
    }

    /// Returns for each leaf of a tree whether it is selected.
    pub(crate) fn choose(&self, flat: &Flat) -> Vec<bool> {
        let infos = flat.def.leaf_infos();
        infos.iter().zip(&flat.leaves).map(|(leaf, array)| self.matches(leaf, array)).collect()
    }
}

impl Rule {
    fn matches(&self, leaf: &LeafInfo, array: &Array) -> bool {
        match self {
            Rule::Everything => true,
            // A leaf without a kind is a parameter.
            Rule::Kind(kind) => leaf.kind.unwrap_or(kind::Param::NAME) == *kind,
            Rule::Path(pattern) => {
                let names = segments(&leaf.path);
                matches_path(&segments(pattern), &names)
            }
            Rule::Predicate(f) => f.0(key(&leaf.path), array),
            Rule::Not(rule) => !rule.matches(leaf, array),
            Rule::And(a, b) => a.matches(leaf, array) && b.matches(leaf, array),
            Rule::Or(a, b) => a.matches(leaf, array) || b.matches(leaf, array),
        }
    }
}

/// Removes the dot in front of a key path. A state's key paths have none.
pub(crate) fn key(path: &str) -> &str {
    let path = path.strip_prefix('.').unwrap_or(path);
    path.strip_prefix("[\"").and_then(|rest| rest.strip_suffix("\"]")).filter(|key| !key.contains('"')).unwrap_or(path)
}

/// Splits a key path into names and indices: `layers[0].kernel` has three.
fn segments(path: &str) -> Vec<&str> {
    path.split(['.', '[', ']', '"']).filter(|part| !part.is_empty()).collect()
}

/// Returns true if the names match a pattern.
fn matches_path(pattern: &[&str], names: &[&str]) -> bool {
    match pattern {
        [] => names.is_empty(),
        ["**", rest @ ..] => (0..=names.len()).any(|n| matches_path(rest, &names[n..])),
        [first, rest @ ..] => {
            names.split_first().is_some_and(|(name, names)| matches_stars(first, name) && matches_path(rest, names))
        }
    }
}

/// Returns true if a name matches a pattern with stars.
fn matches_stars(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices().map(|(i, _)| i).chain([rest.len()]).any(|i| matches_stars(after, &rest[i..]))
        }),
    }
}

impl From<&str> for Filter {
    fn from(pattern: &str) -> Self {
        Filter::path(pattern)
    }
}

impl From<&Filter> for Filter {
    fn from(filter: &Filter) -> Self {
        filter.clone()
    }
}

impl Not for Filter {
    type Output = Filter;
    fn not(self) -> Filter {
        Filter(Rule::Not(Box::new(self.0)))
    }
}

impl BitAnd for Filter {
    type Output = Filter;
    fn bitand(self, other: Filter) -> Filter {
        Filter(Rule::And(Box::new(self.0), Box::new(other.0)))
    }
}

impl BitOr for Filter {
    type Output = Filter;
    fn bitor(self, other: Filter) -> Filter {
        Filter(Rule::Or(Box::new(self.0), Box::new(other.0)))
    }
}
