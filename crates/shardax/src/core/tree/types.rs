//! `Tree` for Rust's own types.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use super::structure::{StaticValue, Token, can_hold};
use super::{Flat, Node, Tree, Unflatten, mismatch};
use crate::core::array::Array;
use crate::dtype::{Element, Scalar};
use crate::error::{Result, bail, err};
use crate::stack::grow;

impl Tree for Array {
    fn flatten(&self, out: &mut Flat) {
        out.leaf(self.clone());
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        from.leaf()
    }
}

// A recursive type refers to itself through a `Vec`, a map or a `Box`, so the stack is extended in these
// implementations.

impl<T: Tree> Tree for Vec<T> {
    fn flatten(&self, out: &mut Flat) {
        out.node(Node::List(self.len()));
        grow(|| self.iter().for_each(|x| x.flatten(out)));
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        match from.node()? {
            Node::List(n) => grow(|| (0..n).map(|_| T::unflatten(from)).collect()),
            other => Err(err!(Type, "tree structure mismatch: expected a list, found {other:?}")
                .help("rebuild the type that was flattened")),
        }
    }
}

impl<T: Tree, const N: usize> Tree for [T; N] {
    fn flatten(&self, out: &mut Flat) {
        out.node(Node::List(N));
        self.iter().for_each(|x| x.flatten(out));
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        from.expect(Node::List(N))?;
        let items: Vec<T> = (0..N).map(|_| T::unflatten(from)).collect::<Result<_>>()?;
        items.try_into().map_err(|_| {
            err!(Type, "tree structure mismatch: expected a list of {N}")
                .help("pass the structure and all leaves of one tree of this type")
        })
    }
}

impl<K, T> Tree for BTreeMap<K, T>
where
    K: Ord + Clone + fmt::Display + std::str::FromStr,
    T: Tree,
{
    fn flatten(&self, out: &mut Flat) {
        out.node(Node::Map(self.keys().map(|k| k.to_string()).collect()));
        grow(|| self.values().for_each(|x| x.flatten(out)));
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        let Node::Map(keys) = from.node()? else { bail!(Type, "tree structure mismatch: expected a map") };
        grow(|| {
            keys.iter()
                .map(|key| {
                    let parsed = key.parse().map_err(|_| {
                        err!(Type, "map key {key:?} does not read back as its type")
                            .help("use a type of keys whose `FromStr` reads what its `Display` writes")
                    })?;
                    Ok((parsed, T::unflatten(from)?))
                })
                .collect()
        })
    }
}

/// The leaves are in the order of the keys, as in a `BTreeMap`.
impl<K, T, S> Tree for HashMap<K, T, S>
where
    K: Ord + Hash + Clone + fmt::Display + std::str::FromStr,
    T: Tree,
    S: BuildHasher + Default + Clone,
{
    fn flatten(&self, out: &mut Flat) {
        let mut items: Vec<(&K, &T)> = self.iter().collect();
        items.sort_unstable_by_key(|(key, _)| *key);
        out.node(Node::Map(items.iter().map(|(key, _)| key.to_string()).collect()));
        items.iter().for_each(|(_, x)| x.flatten(out));
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        Ok(BTreeMap::<K, T>::unflatten(from)?.into_iter().collect())
    }
}

impl<T: Tree> Tree for Option<T> {
    fn flatten(&self, out: &mut Flat) {
        match self {
            // `Some` is a node, so that `Some(None)` and `None` differ.
            Some(x) => {
                out.node(Node::Some);
                x.flatten(out);
            }
            None => out.node(Node::None),
        }
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        match from.node()? {
            Node::None => Ok(None),
            _ => T::unflatten(from).map(Some),
        }
    }
}

impl<T: Tree> Tree for Box<T> {
    fn flatten(&self, out: &mut Flat) {
        grow(|| (**self).flatten(out));
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        grow(|| T::unflatten(from).map(Box::new))
    }
}

macro_rules! tuple_trees {
    ($(($n:literal $($t:ident $i:tt),*))*) => {$(
        impl<$($t: Tree),*> Tree for ($($t,)*) {
            fn flatten(&self, out: &mut Flat) {
                out.node(Node::Tuple($n));
                $(self.$i.flatten(out);)*
            }
            fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
                from.expect(Node::Tuple($n))?;
                Ok(($($t::unflatten(from)?,)*))
            }
        }
    )*};
}

tuple_trees! {
    (0)
    (1 A 0)
    (2 A 0, B 1)
    (3 A 0, B 1, C 2)
    (4 A 0, B 1, C 2, D 3)
    (5 A 0, B 1, C 2, D 3, E 4)
    (6 A 0, B 1, C 2, D 3, E 4, F 5)
    (7 A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (8 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
    (9 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8)
    (10 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9)
    (11 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10)
    (12 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11)
    (13 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12)
    (14 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13)
    (15 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13, O 14)
    (16 A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13, O 14, P 15)
}

macro_rules! number_trees {
    ($($t:ty, |$v:ident| $back:expr;)*) => {$(
        impl Tree for $t {
            fn flatten(&self, out: &mut Flat) {
                out.def.push(Token::Number(Element::to_scalar(*self), stringify!($t)));
            }
            fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
                match from.tokens.next() {
                    Some(Token::Number($v, of @ stringify!($t))) if can_hold(of, *$v) => Ok($back),
                    token => Err(mismatch(concat!("a number of type ", stringify!($t)), token)),
                }
            }
        }
    )*};
}

number_trees! {
    bool, |v| !v.is_zero();
    i8, |v| v.to_i128() as i8;
    i16, |v| v.to_i128() as i16;
    i32, |v| v.to_i128() as i32;
    i64, |v| v.to_i128() as i64;
    u8, |v| v.to_i128() as u8;
    u16, |v| v.to_i128() as u16;
    u32, |v| v.to_i128() as u32;
    u64, |v| v.to_i128() as u64;
    f32, |v| v.to_f64() as f32;
    f64, |v| v.to_f64();
}

impl Tree for usize {
    fn flatten(&self, out: &mut Flat) {
        out.def.push(Token::Number(Scalar::Int(*self as i128), "usize"));
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        match from.tokens.next() {
            Some(Token::Number(v, of @ "usize")) if can_hold(of, *v) => Ok(v.to_i128() as usize),
            token => Err(mismatch("a number of type usize", token)),
        }
    }
}

/// A value that is part of a tree's structure rather than its data: configuration, a flag, a name.
///
/// A compiled function is traced again for each value. The type must be comparable and hashable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Static<T>(pub T);

impl<T> Deref for Static<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Tree for Static<T>
where
    T: Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static,
{
    fn flatten(&self, out: &mut Flat) {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        out.def.push(Token::Static(StaticValue {
            value: Arc::new(self.0.clone()),
            hash: hasher.finish(),
            equal: |a, b| matches!((a.downcast_ref::<T>(), b.downcast_ref::<T>()), (Some(a), Some(b)) if a == b),
            text: |v, f| match v.downcast_ref::<T>() {
                Some(v) => v.fmt(f),
                None => f.write_str("?"),
            },
        }));
    }
    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        match from.tokens.next() {
            Some(Token::Static(v)) => match v.value.downcast_ref::<T>() {
                Some(v) => Ok(Static(v.clone())),
                None => Err(err!(Type, "static value {v:?} is not a {}", std::any::type_name::<T>())
                    .help("pass the structure and all leaves of one tree of this type")),
            },
            token => Err(mismatch("a static value", token)),
        }
    }
}
