//! Which variables of a model are meant.

use std::ops::{BitAnd, BitOr, Not};
use std::sync::Arc;

use shardax::prelude::*;
use shardax::tree::{Flat, LeafInfo};

use crate::shared::Shared;
use crate::variable::{Kind, kind};

/// A function of a parameter's key path, such as `conv1.kernel`, and the parameter.
pub(crate) type Of<R> = Shared<dyn Fn(&str, &Array) -> R + Send + Sync>;

/// Which variables of a model are meant: by kind, by key path, or by a function of both path and array.
///
/// One value serves gradients, optimizers and their masks, and taking models apart. Filters are combined by `&`, `|` and
/// `!`; a string is a pattern of key paths.
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
    /// All variables.
    pub fn everything() -> Self {
        Filter(Rule::Everything)
    }

    /// None of them.
    pub fn nothing() -> Self {
        !Filter::everything()
    }

    /// The variables of a kind: `Filter::of::<BatchStat>()`. What a variable holds is of its kind, whatever is in it.
    pub fn of<K: Kind>() -> Self {
        Filter(Rule::Kind(K::NAME))
    }

    /// The variables whose key path is like this: `*` stands for any part of a name or an index, `**` for any number of
    /// them. `layers[*].kernel` and `layers.*.kernel` say the same.
    pub fn path(pattern: impl Into<String>) -> Self {
        Filter(Rule::Path(pattern.into()))
    }

    /// The variables for which a function of key path and array says so. Filters of functions are equal only to copies
    /// of themselves, and programs are compiled anew for each: make it once.
    pub fn predicate(f: impl Fn(&str, &Array) -> bool + Send + Sync + 'static) -> Self {
        Filter(Rule::Predicate(Shared(Arc::new(f))))
    }

    /// Whether this variable is meant.
    pub fn matches(&self, leaf: &LeafInfo, array: &Array) -> bool {
        self.0.matches(leaf, array)
    }

    /// Which leaves of a tree are meant.
    pub(crate) fn choose(&self, flat: &Flat) -> Vec<bool> {
        let infos = flat.def.leaf_infos();
        infos.iter().zip(&flat.leaves).map(|(leaf, array)| self.matches(leaf, array)).collect()
    }
}

impl Rule {
    fn matches(&self, leaf: &LeafInfo, array: &Array) -> bool {
        match self {
            Rule::Everything => true,
            // What says nothing is a parameter.
            Rule::Kind(kind) => leaf.kind.unwrap_or(kind::Param::NAME) == *kind,
            Rule::Path(pattern) => {
                let names = segments(&leaf.path);
                like(&segments(pattern), &names)
            }
            Rule::Predicate(f) => f.0(key(&leaf.path), array),
            Rule::Not(rule) => !rule.matches(leaf, array),
            Rule::And(a, b) => a.matches(leaf, array) && b.matches(leaf, array),
            Rule::Or(a, b) => a.matches(leaf, array) || b.matches(leaf, array),
        }
    }
}

/// A key path without the dot in front; that of a state's array is the key itself.
pub(crate) fn key(path: &str) -> &str {
    let path = path.strip_prefix('.').unwrap_or(path);
    path.strip_prefix("[\"").and_then(|rest| rest.strip_suffix("\"]")).filter(|key| !key.contains('"')).unwrap_or(path)
}

/// The names and indices of a key path: `layers[0].kernel` has three.
fn segments(path: &str) -> Vec<&str> {
    path.split(['.', '[', ']', '"']).filter(|part| !part.is_empty()).collect()
}

fn like(pattern: &[&str], names: &[&str]) -> bool {
    match pattern {
        [] => names.is_empty(),
        ["**", rest @ ..] => (0..=names.len()).any(|n| like(rest, &names[n..])),
        [first, rest @ ..] => names.split_first().is_some_and(|(name, names)| wild(first, name) && like(rest, names)),
    }
}

/// Whether a name is like a pattern with stars.
fn wild(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices().map(|(i, _)| i).chain([rest.len()]).any(|i| wild(after, &rest[i..]))
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
