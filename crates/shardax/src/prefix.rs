//! Tree prefixes: axes or specs given for whole arguments, or for parts of them.

use crate::error::{Result, err};
use crate::sharding::PartitionSpec;
use crate::tree::TreeDef;

/// One value for a whole subtree, or one prefix for each of its children.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Prefix<T> {
    Leaf(T),
    Node(Vec<Prefix<T>>),
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
        let prefixes = match self {
            Prefix::Leaf(value) => {
                out.extend(std::iter::repeat_n(value.clone(), def.leaf_count()));
                return Ok(());
            }
            Prefix::Node(prefixes) => prefixes,
        };
        let found = def.root_children();
        let count = found.as_ref().map(Vec::len);
        let Some(children) = found.filter(|c| c.len() == prefixes.len()) else {
            let has = match count {
                Some(n) => format!("{n} children"),
                None => "no children (it is an array)".to_owned(),
            };
            return Err(err!(
                Value,
                "{what} tree prefix error: {what}{path} has {} entries, but the corresponding value has {has}",
                prefixes.len()
            )
            .help("give one entry for each part of the value, or one entry for all of it"));
        };
        for (prefix, (key, child)) in prefixes.iter().zip(children) {
            prefix.fill(&child, what, format!("{path}{key}"), out)?;
        }
        Ok(())
    }
}

/// What a prefix may be written as: a value, or a tuple or list of prefixes.
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
