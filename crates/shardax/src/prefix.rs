//! Tree prefixes: axes or specs given for whole arguments, or for parts of them.

use crate::error::{Result, err};
use crate::sharding::PartitionSpec;
use crate::tree::TreeDef;

/// One value for a whole subtree, or one prefix for each of its children.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Prefix<T> {
    Leaf(T),
    Node(Vec<Prefix<T>>),
    /// One prefix for each child, by the key of a map or the name of a field.
    Named(Vec<(String, Prefix<T>)>),
}

/// A mapped axis for each argument or part of one; `None` where it is not mapped.
pub type Axes = Prefix<Option<i32>>;
/// A partition spec for each argument or part of one.
pub type Specs = Prefix<PartitionSpec>;

impl<T: Clone + std::fmt::Debug> Prefix<T> {
    /// The value for each leaf of `def`, in order. `what` names the prefix in errors: `pmap in_axes`.
    pub(crate) fn resolve(&self, def: &TreeDef, what: &str) -> Result<Vec<T>> {
        let mut out = Vec::with_capacity(def.leaf_count());
        self.fill(def, what, String::new(), &mut out)?;
        Ok(out)
    }

    fn fill(&self, def: &TreeDef, what: &str, path: String, out: &mut Vec<T>) -> Result<()> {
        let children = def.root_children();
        let wrong = |has: String| {
            let found = match &children {
                Some(children) => format!("{} children", children.len()),
                None => "no children (it is an array)".to_owned(),
            };
            Err(err!(
                Value,
                "{what} tree prefix error: {what}{path} has {has}, but the corresponding value has {found}"
            )
            .help("give one entry for each part of the value, or one entry for all of it"))
        };
        match (self, &children) {
            (Prefix::Leaf(value), _) => {
                out.extend(std::iter::repeat_n(value.clone(), def.leaf_count()));
                Ok(())
            }
            (Prefix::Node(prefixes), Some(children)) if prefixes.len() == children.len() => prefixes
                .iter()
                .zip(children)
                .try_for_each(|(prefix, (key, child))| prefix.fill(child, what, format!("{path}{key}"), out)),
            (Prefix::Node(prefixes), _) => wrong(format!("{} entries", prefixes.len())),
            (Prefix::Named(prefixes), Some(children)) if prefixes.len() == children.len() => {
                children.iter().try_for_each(|(key, child)| {
                    let named = |name: &str| *key == format!("[{name:?}]") || *key == format!(".{name}");
                    match prefixes.iter().find(|(name, _)| named(name)) {
                        Some((_, prefix)) => prefix.fill(child, what, format!("{path}{key}"), out),
                        None => wrong(format!("no entry {key}")),
                    }
                })
            }
            (Prefix::Named(prefixes), _) => {
                wrong(format!("the entries {:?}", prefixes.iter().map(|(name, _)| name).collect::<Vec<_>>()))
            }
        }
    }
}

/// What a prefix may be written as: a value, or a tuple, list or map of prefixes.
pub trait IntoPrefix<T> {
    fn into_prefix(self) -> Prefix<T>;
}

impl<T> IntoPrefix<T> for Prefix<T> {
    fn into_prefix(self) -> Prefix<T> {
        self
    }
}

impl IntoPrefix<Option<i32>> for i32 {
    fn into_prefix(self) -> Axes {
        Prefix::Leaf(Some(self))
    }
}

impl IntoPrefix<Option<i32>> for Option<i32> {
    fn into_prefix(self) -> Axes {
        Prefix::Leaf(self)
    }
}

impl IntoPrefix<PartitionSpec> for PartitionSpec {
    fn into_prefix(self) -> Specs {
        Prefix::Leaf(self)
    }
}

/// `None` stands for a value that is not split: a static one, or one that every device gets whole.
impl IntoPrefix<PartitionSpec> for Option<PartitionSpec> {
    fn into_prefix(self) -> Specs {
        Prefix::Leaf(self.unwrap_or_default())
    }
}

impl<T, A: IntoPrefix<T>> IntoPrefix<T> for Vec<A> {
    fn into_prefix(self) -> Prefix<T> {
        Prefix::Node(self.into_iter().map(IntoPrefix::into_prefix).collect())
    }
}

impl<T, A: IntoPrefix<T>, const N: usize> IntoPrefix<T> for [A; N] {
    fn into_prefix(self) -> Prefix<T> {
        Prefix::Node(self.into_iter().map(IntoPrefix::into_prefix).collect())
    }
}

/// For maps, and for structs by the names of their fields.
impl<T, K: std::fmt::Display, A: IntoPrefix<T>> IntoPrefix<T> for std::collections::BTreeMap<K, A> {
    fn into_prefix(self) -> Prefix<T> {
        Prefix::Named(self.into_iter().map(|(key, prefix)| (key.to_string(), prefix.into_prefix())).collect())
    }
}

macro_rules! tuple_prefixes {
    ($(($($t:ident $i:tt),+))*) => {$(
        impl<T, $($t: IntoPrefix<T>),+> IntoPrefix<T> for ($($t,)+) {
            fn into_prefix(self) -> Prefix<T> {
                Prefix::Node(vec![$(self.$i.into_prefix()),+])
            }
        }
    )*};
}

tuple_prefixes! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}
