//! Tree prefixes: axes or specs for entire arguments or for parts of them.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::array::Array;
use super::program::Aval;
use super::tree::{Flat, Tree, TreeDef};
use crate::error::{Error, Result, err};
use crate::shape::normalize_axis;
use crate::sharding::PartitionSpec;

/// One value for an entire subtree, or one prefix for each of its children.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Prefix<T> {
    /// One value for all leaves below.
    Leaf(T),
    /// A prefix for each child.
    Node(Vec<Prefix<T>>),
    /// One prefix for each child, by the key of a map or the name of a field.
    Named(Vec<(String, Prefix<T>)>),
}

/// A mapped axis for each argument or part of one; `None` if it is not mapped.
pub type Axes = Prefix<Option<i32>>;
/// A partition spec for each argument or part of one.
pub type Specs = Prefix<PartitionSpec>;

impl<T: Clone + std::fmt::Debug> Prefix<T> {
    /// Returns the value for each leaf of `def`, in order. `what` names the prefix in errors: `pmap in_axes`.
    ///
    /// # Errors
    /// Returns an error if the structure of the prefix differs from `def`. The error names the key path.
    pub fn resolve(&self, def: &TreeDef, what: &str) -> Result<Vec<T>> {
        let mut out = Vec::with_capacity(def.leaf_count());
        self.fill(def, what, String::new(), &mut out)?;
        Ok(out)
    }

    fn fill(&self, def: &TreeDef, what: &str, path: String, out: &mut Vec<T>) -> Result<()> {
        let children = def.root_children();
        match (self, &children) {
            (Prefix::Leaf(value), _) => {
                out.extend(std::iter::repeat_n(value.clone(), def.leaf_count()));
                Ok(())
            }
            (Prefix::Node(prefixes), Some(children)) => {
                // Entries for parts without arrays, such as static fields and numbers, are optional.
                let with_arrays: Vec<_> = children.iter().filter(|(_, child)| child.leaf_count() > 0).collect();
                let parts: Vec<_> = match prefixes.len() {
                    n if n == children.len() => children.iter().collect(),
                    n if n == with_arrays.len() => with_arrays,
                    n => return Err(prefix_error(what, &path, format!("{n} entries"), Some(children))),
                };
                prefixes
                    .iter()
                    .zip(parts)
                    .try_for_each(|(prefix, (key, child))| prefix.fill(child, what, format!("{path}{key}"), out))
            }
            (Prefix::Named(prefixes), Some(children)) => {
                if prefixes.len() < children.iter().filter(|(_, child)| child.leaf_count() > 0).count() {
                    return Err(prefix_error(what, &path, entries_text(prefixes), Some(children)));
                }
                children.iter().try_for_each(|(key, child)| {
                    match prefixes.iter().find(|(name, _)| is_named(key, name)) {
                        Some((_, prefix)) => prefix.fill(child, what, format!("{path}{key}"), out),
                        None if child.leaf_count() == 0 => Ok(()),
                        None => Err(prefix_error(what, &path, format!("no entry {key}"), Some(children))),
                    }
                })?;
                match prefixes.iter().find(|(name, _)| !children.iter().any(|(key, _)| is_named(key, name))) {
                    Some((name, _)) => Err(prefix_error(what, &path, format!("an entry {name:?}"), Some(children))),
                    None => Ok(()),
                }
            }
            (Prefix::Node(prefixes), None) => {
                Err(prefix_error(what, &path, format!("{} entries", prefixes.len()), None))
            }
            (Prefix::Named(prefixes), None) => Err(prefix_error(what, &path, entries_text(prefixes), None)),
        }
    }
}

fn entries_text<T>(prefixes: &[(String, Prefix<T>)]) -> String {
    format!("the entries {:?}", prefixes.iter().map(|(name, _)| name).collect::<Vec<_>>())
}

/// Returns `true` if `key` is the key of the entry `name` of a map or of the field `name` of a struct.
fn is_named(key: &str, name: &str) -> bool {
    key == format!("[{name:?}]") || key == format!(".{name}")
}

/// The error for a prefix with entries that do not fit the value's `children`.
fn prefix_error(what: &str, path: &str, entries: String, children: Option<&[(String, TreeDef)]>) -> Error {
    let parts = children.map_or_else(|| "no children (it is an array)".to_owned(), children_text);
    err!(Value, "{what} tree prefix error: {what}{path} has {entries}, but the corresponding value has {parts}").help(
        "pass one entry for each part of the value that has arrays, in order or by name, or one entry for all of it",
    )
}

/// The number and the keys of the children, for errors.
fn children_text(children: &[(String, TreeDef)]) -> String {
    const MAX_LISTED_CHILDREN: usize = 12;
    let listed = children.iter().take(MAX_LISTED_CHILDREN);
    let mut keys: Vec<String> = listed
        .map(|(key, child)| match child.leaf_count() {
            0 => format!("{key} (without arrays)"),
            _ => key.clone(),
        })
        .collect();
    if children.len() > MAX_LISTED_CHILDREN {
        keys.push("…".to_owned());
    }
    let colon = if keys.is_empty() { "" } else { ": " };
    format!("{} children{colon}{}", children.len(), keys.join(", "))
}

impl<T> Prefix<T> {
    /// Prefixes by the names of a struct's fields, or by the keys of a map. You can omit fields without arrays.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::prefix::Prefix;
    /// #[derive(Tree, Clone)]
    /// struct Params { w: Array, b: Array, rate: f64 }
    ///
    /// let f = vmap(|p: Params, x: Array| x * p.w * p.rate + p.b).in_axes((Prefix::named([("w", None), ("b", Some(0))]), 0));
    /// let params = Params { w: array(2.0f32), b: array([0.0f32, 1.0]), rate: 0.5 };
    /// assert_eq!(f.call((params, array([3.0f32, 4.0])))?.to_vec::<f32>()?, [3.0, 5.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn named<K: Into<String>, A: IntoPrefix<T>>(entries: impl IntoIterator<Item = (K, A)>) -> Prefix<T> {
        Prefix::Named(entries.into_iter().map(|(name, entry)| (name.into(), entry.into_prefix())).collect())
    }

    /// Computes a value for each array of `tree` from its key path and the array, for example specs or axes for a tree
    /// of the same type.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::prefix::Prefix;
    /// # shardax::config::set_num_cpu_devices(8).ok();
    /// let params = (ones([8, 2]), vec![zeros(2)]);
    /// let specs = Prefix::for_leaves(&params, |_, x| if x.ndim() == 2 { P!["x"] } else { P![] });
    /// let mesh = make_mesh([("x", 8)])?.auto();
    /// let shapes = shard_map(|p: (Array, Vec<Array>)| p.0.sum(..).expand_dims(0) + p.1[0].sum(..), &mesh);
    /// assert_eq!(shapes.in_specs((specs,)).out_specs(P!["x"]).call(&params)?.to_vec::<f32>()?, [2.0; 8]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn for_leaves<A: Tree>(tree: &A, mut f: impl FnMut(&str, &Array) -> T) -> Prefix<T> {
        let flat = Flat::of(tree);
        let paths = flat.def.paths();
        let mut values = paths.iter().zip(&flat.leaves).map(|(path, leaf)| f(path, leaf));
        Prefix::like(&flat.def, &mut values)
    }

    /// The values, one for each leaf of `def`.
    fn like(def: &TreeDef, values: &mut impl Iterator<Item = T>) -> Prefix<T> {
        match def.root_children() {
            Some(children) => {
                let with_arrays = children.iter().filter(|(_, child)| child.leaf_count() > 0);
                Prefix::Node(with_arrays.map(|(_, child)| Prefix::like(child, values)).collect())
            }
            None => values.next().map_or(Prefix::Node(Vec::new()), Prefix::Leaf),
        }
    }
}

impl Axes {
    /// The mapped dimension of each leaf of the arguments; `function` names the transformation in errors.
    pub(crate) fn dims(&self, def: &TreeDef, avals: &[Aval], function: &str) -> Result<Vec<Option<usize>>> {
        let axes = self.resolve(def, &format!("{function} in_axes"))?;
        let mut dims = Vec::with_capacity(avals.len());
        for (i, (axis, aval)) in axes.iter().zip(avals).enumerate() {
            dims.push(match axis {
                None => None,
                Some(axis) if aval.rank() == 0 => {
                    return Err(err!(
                        Value,
                        "{function} was requested to map its argument{} along axis {axis}, which implies that its rank \
                         should be at least 1, but is only 0 (its shape is ())",
                        def.paths().swap_remove(i)
                    )
                    .help("use in_axes None for arguments that are not mapped"));
                }
                Some(axis) => {
                    Some(normalize_axis(*axis as isize, aval.rank()).map_err(|e| {
                        e.context(format!("{function} in_axes of argument{}", def.paths().swap_remove(i)))
                    })?)
                }
            });
        }
        Ok(dims)
    }

    /// The mapped dimension of each result. `avals` are the results' types without that dimension.
    pub(crate) fn out_dims(&self, def: &TreeDef, avals: &[Aval], function: &str) -> Result<Vec<Option<usize>>> {
        let argument = format!("{function} out_axes");
        let axes = self.resolve(def, &argument)?;
        axes.iter()
            .zip(avals)
            .map(|(axis, aval)| {
                let dim = axis.map(|axis| normalize_axis(axis as isize, aval.rank() + 1));
                dim.transpose().map_err(|e| e.context(&argument))
            })
            .collect()
    }
}

/// The size of the mapped axis, which all mapped arguments share; `None` if none is mapped.
pub(crate) fn mapped_size(
    def: &TreeDef,
    avals: &[Aval],
    dims: &[Option<usize>],
    requested: Option<usize>,
    function: &str,
) -> Result<Option<usize>> {
    let mapped = dims.iter().zip(avals).enumerate().filter_map(|(i, (d, a))| d.map(|d| (a.shape[d], a, d, i)));
    let mut size = requested;
    if mapped.clone().all(|(n, ..)| *size.get_or_insert(n) == n) {
        return Ok(size);
    }
    // Groups the mapped axes by size, because the error shows one example for each size.
    let paths = def.paths();
    let mut sizes: Vec<AxesOfSize> = Vec::new();
    let mut position_of_size: HashMap<usize, usize> = HashMap::new();
    for (size, aval, dim, i) in mapped {
        let position = *position_of_size.entry(size).or_insert(sizes.len());
        match sizes.get_mut(position) {
            Some(known) => known.count += 1,
            None => sizes.push(AxesOfSize {
                size,
                count: 1,
                example: format!("axis {dim} of argument{} of type {aval}", paths[i]),
            }),
        }
    }
    Err(err!(
        Value,
        "{function} got inconsistent sizes for array axes to be mapped: {}",
        inconsistent_sizes(requested, sizes)
    )
    .help("pass mapped arguments of equal size, and set in_axes to None for arguments that are the same for all"))
}

/// All mapped axes of one size.
struct AxesOfSize {
    size: usize,
    count: usize,
    /// A description of the first axis.
    example: String,
}

/// The number of sizes that an error lists.
const MAX_LISTED_SIZES: usize = 6;

/// Describes mapped axes of different sizes, the most common size first. It gives one example for each size, so that
/// the message does not grow with the number of arguments.
fn inconsistent_sizes(requested: Option<usize>, mut sizes: Vec<AxesOfSize>) -> String {
    sizes.sort_by_key(|axes| Reverse(axes.count));
    let mut parts: Vec<String> = requested.map(|size| format!("axis_size {size} was passed")).into_iter().collect();
    for (i, AxesOfSize { size, count, example }) in sizes.iter().take(MAX_LISTED_SIZES).enumerate() {
        parts.push(match (count, i) {
            (1, _) => format!("one axis had size {size}: {example}"),
            (_, 0) => format!("most axes ({count} of them) had size {size}, for example {example}"),
            _ => format!("some axes ({count} of them) had size {size}, for example {example}"),
        });
    }
    let unlisted = sizes.len().saturating_sub(MAX_LISTED_SIZES);
    if unlisted > 0 {
        parts.push(format!("{unlisted} more sizes"));
    }
    parts.join("; ")
}

/// Types accepted as a prefix: a value, or a tuple, list or map of prefixes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a value nor a tuple, list or map of values that can be converted to `{T}`",
    label = "no such value, nor a tree of them",
    note = "write the value or a reference to it, `&sharding`, where there is one, not `Some(&sharding)`; and `None` for an argument that has none",
    note = "a sharding is `P![\"x\"]` over the mesh of `set_mesh`, `&NamedSharding::new(&mesh, P![\"x\"])` or a device; an axis is a number or `None`",
    note = "for a struct, name its fields: `Prefix::named([(\"w\", P![\"x\"]), (\"b\", P![])])` of `shardax::prefix`; a struct that derives `Tree` with its arrays' type as a parameter, `struct Params<T = Array>`, can have such values as fields"
)]
pub trait IntoPrefix<T> {
    /// The value as a prefix.
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

impl IntoPrefix<PartitionSpec> for &PartitionSpec {
    fn into_prefix(self) -> Specs {
        Prefix::Leaf(self.clone())
    }
}

/// `None` means that the value is not split, because it is static or because every device receives all of it.
impl IntoPrefix<PartitionSpec> for Option<PartitionSpec> {
    fn into_prefix(self) -> Specs {
        Prefix::Leaf(self.unwrap_or_default())
    }
}

impl IntoPrefix<Option<PartitionSpec>> for PartitionSpec {
    fn into_prefix(self) -> Prefix<Option<PartitionSpec>> {
        Prefix::Leaf(Some(self))
    }
}

impl IntoPrefix<Option<PartitionSpec>> for &PartitionSpec {
    fn into_prefix(self) -> Prefix<Option<PartitionSpec>> {
        Prefix::Leaf(Some(self.clone()))
    }
}

impl IntoPrefix<Option<PartitionSpec>> for Option<PartitionSpec> {
    fn into_prefix(self) -> Prefix<Option<PartitionSpec>> {
        Prefix::Leaf(self)
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

/// A prefix for maps, and for structs by the names of their fields.
impl<T, K: std::fmt::Display, A: IntoPrefix<T>> IntoPrefix<T> for std::collections::HashMap<K, A> {
    fn into_prefix(self) -> Prefix<T> {
        Prefix::Named(self.into_iter().map(|(key, prefix)| (key.to_string(), prefix.into_prefix())).collect())
    }
}

/// A prefix for maps, and for structs by the names of their fields.
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

crate::tuples::each!(tuple_prefixes);
