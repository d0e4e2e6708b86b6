//! The structure of a tree without its leaves, and the key paths in it.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::dtype::Scalar;
use crate::error::{AtCaller, Result, err};

/// The structure of a tree without its leaves. Comparing and hashing it is cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TreeDef(SmallVec<[Token; 8]>);

/// One token of a structure, in pre-order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Token {
    Leaf,
    Node(Node),
    /// A plain Rust number.
    Number(Scalar, &'static str),
    Static(StaticValue),
}

/// A node of a tree and the names of its children.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Node {
    /// A tuple, with the number of its children.
    Tuple(usize),
    /// A `Vec` or an array, with the number of its children.
    List(usize),
    /// A map; the keys in order.
    Map(Arc<[String]>),
    /// A struct or an enum's variant; the names of its fields in order.
    Struct {
        /// The type's name, with the variant's name for an enum.
        name: &'static str,
        /// The names of the fields; numbers for a tuple struct.
        fields: &'static [&'static str],
    },
    /// `Option::Some`: one child, which adds no key to the path.
    Some,
    /// `Option::None`: no children.
    None,
    /// Metadata of the leaves below: one child, which adds no key to the path.
    Metadata(Metadata),
}

/// Metadata of leaves, in addition to their place in the tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Metadata {
    /// The kind of variable, such as `BatchStat`.
    Kind(&'static str),
    /// The logical name of each dimension.
    AxisNames(AxisNames),
    /// The arrays below are stacks: they have an additional leading dimension with this name.
    Stacked(Option<&'static str>),
}

/// A logical name, such as `embed`, for each dimension of an array that has one.
pub type AxisNames = Arc<[Option<&'static str>]>;

/// The place of a leaf in a tree, and its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafInfo {
    /// The key path: `.conv1.kernel`.
    pub path: String,
    /// The type of the innermost struct or variant around it.
    pub owner: Option<&'static str>,
    /// The kind set by the outermost metadata node around the leaf.
    pub kind: Option<&'static str>,
    /// The names of the leaf's dimensions. The names of the stacks around it come first, then the names from the
    /// innermost metadata node that has any.
    pub axis_names: Option<AxisNames>,
}

impl LeafInfo {
    /// Returns `true` if the leaf is the count of a layer's stream of random keys, for example of a dropout
    /// (`shardax_nn::RngStream`). Streams in `Rngs`, which only create models, do not count.
    pub(crate) fn counts_keys_of_a_layer(&self) -> bool {
        let makes_models = self.path.ends_with(".default.count") || self.path.contains(".named[");
        self.kind == Some("RngCount") && !makes_models
    }
}

impl Token {
    /// The number of children.
    pub(super) fn arity(&self) -> usize {
        match self {
            Token::Node(node) => node.arity(),
            Token::Leaf | Token::Number(..) | Token::Static(_) => 0,
        }
    }
}

impl Node {
    pub(super) fn arity(&self) -> usize {
        match self {
            Node::Tuple(n) | Node::List(n) => *n,
            Node::Map(keys) => keys.len(),
            Node::Struct { fields, .. } => fields.len(),
            Node::Some | Node::Metadata(_) => 1,
            Node::None => 0,
        }
    }

    /// The names of the children, if they have names.
    pub(super) fn names(&self) -> Option<Vec<&str>> {
        match self {
            Node::Map(keys) => Some(keys.iter().map(String::as_str).collect()),
            Node::Struct { fields, .. } => Some(fields.to_vec()),
            _ => None,
        }
    }

    fn child_key(&self, i: usize) -> String {
        match self {
            Node::Tuple(_) | Node::List(_) | Node::None => format!("[{i}]"),
            Node::Some | Node::Metadata(_) => String::new(),
            Node::Map(keys) => format!("[{:?}]", keys[i]),
            Node::Struct { fields, .. } => format!(".{}", fields[i]),
        }
    }
}

/// A static value of any type, part of the structure.
#[derive(Clone)]
pub(super) struct StaticValue {
    pub value: Arc<dyn Any + Send + Sync>,
    pub hash: u64,
    pub equal: fn(&dyn Any, &dyn Any) -> bool,
    pub text: fn(&dyn Any, &mut fmt::Formatter<'_>) -> fmt::Result,
}

impl PartialEq for StaticValue {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && (self.equal)(&*self.value, &*other.value)
    }
}

impl Eq for StaticValue {}

impl Hash for StaticValue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

impl fmt::Debug for StaticValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.text)(&*self.value, f)
    }
}

/// Returns `true` if a Rust number of the named type can hold this value, apart from rounding.
pub(super) fn can_hold(of: &str, value: Scalar) -> bool {
    let (low, high): (i128, i128) = match of {
        "i8" => (i8::MIN.into(), i8::MAX.into()),
        "i16" => (i16::MIN.into(), i16::MAX.into()),
        "i32" => (i32::MIN.into(), i32::MAX.into()),
        "i64" => (i64::MIN.into(), i64::MAX.into()),
        "u8" => (0, u8::MAX.into()),
        "u16" => (0, u16::MAX.into()),
        "u32" => (0, u32::MAX.into()),
        "u64" => (0, u64::MAX.into()),
        "usize" => (0, usize::MAX as i128),
        "bool" => return matches!(value, Scalar::Bool(_)),
        _ => {
            let v = value.to_f64();
            let becomes_infinite = of == "f32" && v.is_finite() && !(v as f32).is_finite();
            return matches!(value, Scalar::Int(_) | Scalar::Float(_)) && !becomes_infinite;
        }
    };
    matches!(value, Scalar::Int(i) if (low..=high).contains(&i))
}

impl TreeDef {
    pub(super) fn push(&mut self, token: Token) {
        self.0.push(token);
    }

    pub(super) fn extend(&mut self, other: &TreeDef) {
        self.0.extend(other.0.iter().cloned());
    }

    pub(super) fn tokens(&self) -> std::slice::Iter<'_, Token> {
        self.0.iter()
    }

    /// The structure with only these tokens.
    pub(super) fn part(&self, span: std::ops::Range<usize>) -> TreeDef {
        TreeDef(self.0[span].iter().cloned().collect())
    }

    /// The end of the subtree that begins at this token.
    pub(super) fn end_of(&self, start: usize) -> usize {
        let mut position = start;
        self.skip(&mut position);
        position
    }

    /// The key path of this token, or an empty string if there is none.
    pub(super) fn path_of_token(&self, token: usize) -> String {
        let (mut at, mut found) = (0, String::new());
        self.walk(&mut |path, _| {
            if at == token {
                found = path.to_owned();
            }
            at += 1;
        });
        found
    }

    /// Returns the number of leaves of a tree of this structure.
    pub fn leaf_count(&self) -> usize {
        self.0.iter().filter(|t| matches!(t, Token::Leaf)).count()
    }

    /// Returns the key path of each leaf: `.conv1.kernel`, `[0]` or `["image"]`.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.walk(&mut |path, token| {
            if matches!(token, Token::Leaf) {
                paths.push(path.to_owned());
            }
        });
        paths
    }

    /// Returns the place and the metadata of each leaf.
    pub fn leaf_infos(&self) -> Vec<LeafInfo> {
        let mut infos = Vec::new();
        // The enclosing nodes. Each entry has the number of remaining children, the metadata for the leaves below the
        // node, and the enclosing stacks.
        let mut above: Vec<(usize, LeafInfo, Vec<Option<&'static str>>)> = Vec::new();
        self.walk(&mut |path, token| {
            let (mut here, mut stacks) = match above.last_mut() {
                Some((left, info, stacks)) => {
                    *left -= 1;
                    (info.clone(), stacks.clone())
                }
                None => (LeafInfo { path: String::new(), owner: None, kind: None, axis_names: None }, Vec::new()),
            };
            match token {
                Token::Leaf => infos.push(LeafInfo { path: path.to_owned(), ..here }),
                Token::Node(node) => {
                    match node {
                        Node::Struct { name, .. } => here.owner = Some(name),
                        Node::Metadata(Metadata::Kind(own)) => here.kind = here.kind.or(Some(own)),
                        Node::Metadata(Metadata::AxisNames(own)) => {
                            here.axis_names = Some(stacks.iter().chain(own.iter()).copied().collect());
                        }
                        Node::Metadata(Metadata::Stacked(name)) => {
                            stacks.push(*name);
                            let named = stacks.iter().any(Option::is_some);
                            here.axis_names = named.then(|| stacks.iter().copied().collect());
                        }
                        _ => {}
                    }
                    above.push((node.arity(), here, stacks));
                }
                _ => {}
            }
            while above.last().is_some_and(|(left, ..)| *left == 0) {
                above.pop();
            }
        });
        infos
    }

    /// Returns the plain numbers in the structure with their key paths. They are configuration, such as a rate or a
    /// count.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let def = tree::structure(&(ones([2]), vec![3usize], 0.5f32));
    /// let numbers = def.numbers();
    /// assert_eq!(format!("{numbers:?}"), r#"[("[1][0]", 3), ("[2]", 0.5)]"#);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn numbers(&self) -> Vec<(String, Scalar)> {
        let mut numbers = Vec::new();
        self.walk(&mut |path, token| {
            if let Token::Number(value, _) = token {
                numbers.push((path.to_owned(), *value));
            }
        });
        numbers
    }

    /// Replaces the plain numbers, in the order of [`numbers`](TreeDef::numbers). The rest of the structure is
    /// unchanged.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::dtype::Scalar;
    /// let def = tree::structure(&(3u8, 0.5f32));
    /// assert_eq!(format!("{:?}", def.with_numbers([Scalar::Int(4)])?.numbers()), r#"[("[0]", 4), ("[1]", 0.5)]"#);
    /// let error = def.with_numbers([Scalar::Int(300)]).unwrap_err();
    /// assert_eq!(error.message(), "the number `[0]` is of type u8, which cannot hold 300");
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error for a number that does not fit the type of the number it replaces: an integer out of range, a
    /// fraction for an integer, a float beyond `f32`. Floats are rounded.
    #[track_caller]
    pub fn with_numbers(&self, numbers: impl IntoIterator<Item = Scalar>) -> Result<TreeDef> {
        let mut numbers = numbers.into_iter();
        let mut new = self.clone();
        for (at, token) in new.0.iter_mut().enumerate() {
            if let Token::Number(value, of) = token
                && let Some(other) = numbers.next()
            {
                if !can_hold(of, other) {
                    let path = self.path_of_token(at);
                    let place = if path.is_empty() { String::new() } else { format!(" `{path}`") };
                    return Err(err!(Value, "the number{place} is of type {of}, which cannot hold {other:?}"))
                        .at_caller();
                }
                *value = other;
            }
        }
        Ok(new)
    }

    /// Returns the structure in which the lists that are variables of this kind are empty.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// // Without such variables it stays.
    /// let def = tree::structure(&vec![ones([2])]);
    /// assert_eq!(def.without_lists_of_kind("Intermediate")?, def);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error for a variable of this kind that is not a list.
    #[track_caller]
    pub fn without_lists_of_kind(&self, kind: &str) -> Result<TreeDef> {
        let (mut new, mut position) = (TreeDef::default(), 0);
        while position < self.0.len() {
            let Token::Node(Node::Metadata(Metadata::Kind(variable_kind))) = &self.0[position] else {
                new.push(self.0[position].clone());
                position += 1;
                continue;
            };
            let after = self.end_of(position);
            // Only the outermost kind counts, so variables inside of another kind stay.
            if *variable_kind != kind {
                self.0[position..after].iter().for_each(|token| new.push(token.clone()));
            } else if let Some(Token::Node(Node::List(_))) = self.0.get(position + 1) {
                new.push(self.0[position].clone());
                new.push(Token::Node(Node::List(0)));
            } else {
                return Err(err!(Type, "a variable of the kind {kind} is not a list, and cannot be taken out")
                    .help("declare it as a `Vec`, which is empty afterwards"))
                .at_caller();
            }
            position = after;
        }
        Ok(new)
    }

    /// Returns `true` if the structure holds plain numbers.
    pub(crate) fn has_numbers(&self) -> bool {
        self.0.iter().any(|token| matches!(token, Token::Number(..)))
    }

    /// Hashes everything except the values of plain numbers.
    pub(crate) fn hash_without_numbers<H: Hasher>(&self, state: &mut H) {
        for token in &self.0 {
            match token {
                Token::Number(_, of) => of.hash(state),
                token => token.hash(state),
            }
        }
    }

    /// Returns the plain numbers that differ between two otherwise equal structures, as the key path and both numbers.
    pub(crate) fn different_numbers(&self, other: &TreeDef) -> Vec<(String, Scalar, Scalar)> {
        let mut differences = Vec::new();
        let mut other_tokens = other.0.iter();
        self.walk(&mut |path, token| {
            if let (Token::Number(a, _), Some(Token::Number(b, _))) = (token, other_tokens.next())
                && a != b
            {
                differences.push((path.to_owned(), *a, *b));
            }
        });
        differences
    }

    /// The key path of one leaf, or an empty string if there is none.
    pub(crate) fn path(&self, leaf: usize) -> String {
        let (mut at, mut found) = (0, String::new());
        self.walk(&mut |path, token| {
            if matches!(token, Token::Leaf) {
                if at == leaf {
                    found = path.to_owned();
                }
                at += 1;
            }
        });
        found
    }

    /// The key and the structure of each child of the root node, in order. `None` if the root has no children.
    pub(crate) fn root_children(&self) -> Option<Vec<(String, TreeDef)>> {
        let Some(Token::Node(node)) = self.0.first() else { return None };
        let mut end = 1;
        Some(
            (0..node.arity())
                .map(|i| {
                    let start = end;
                    self.skip(&mut end);
                    (node.child_key(i), TreeDef(self.0[start..end].iter().cloned().collect()))
                })
                .collect(),
        )
    }

    /// The names of the root node's children, if they have names.
    pub(crate) fn root_names(&self) -> Vec<String> {
        match self.0.first() {
            Some(Token::Node(node)) => node.names().unwrap_or_default().into_iter().map(str::to_owned).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the position of each leaf of this structure in `other`, which must name the same parts. A struct's
    /// fields can be a map's keys, and names can be in any order. `None` for structures that differ otherwise.
    pub(crate) fn leaves_by_name(&self, other: &TreeDef) -> Option<Vec<usize>> {
        fn walk(a: &TreeDef, b: &TreeDef, start: usize, positions: &mut Vec<usize>) -> Option<()> {
            if a == b {
                positions.extend(start..start + a.leaf_count());
                return Some(());
            }
            let (Token::Node(node_a), Token::Node(node_b)) = (a.0.first()?, b.0.first()?) else { return None };
            let (children, other_children) = (a.root_children()?, b.root_children()?);
            let begins = other_children.iter().scan(start, |next, (_, part)| {
                let begin = *next;
                *next += part.leaf_count();
                Some(begin)
            });
            let other_children: Vec<_> = other_children.iter().zip(begins).collect();
            if children.len() != other_children.len() {
                return None;
            }
            // Named children can be in another order; positional ones need nodes of the same kind.
            let names = node_a.names().zip(node_b.names());
            for (i, (_, part)) in children.iter().enumerate() {
                let index = match &names {
                    Some((a, b)) => b.iter().position(|name| *name == a[i])?,
                    None if std::mem::discriminant(node_a) == std::mem::discriminant(node_b) => i,
                    None => return None,
                };
                let ((_, other), begin) = other_children[index];
                crate::stack::grow(|| walk(part, other, begin, positions))?;
            }
            Some(())
        }
        let mut positions = Vec::new();
        walk(self, other, 0, &mut positions).map(|()| positions)
    }

    /// Advances to the end of the subtree that begins here.
    fn skip(&self, position: &mut usize) {
        let mut open = 1;
        while open > 0 {
            open = open - 1 + self.0[*position].arity();
            *position += 1;
        }
    }

    /// Visits every token with its key path.
    fn walk(&self, visit: &mut dyn FnMut(&str, &Token)) {
        let mut path = String::new();
        // The nodes above, each with the number of visited children and the length of its part of the path.
        let mut above: Vec<(&Node, usize, usize)> = Vec::new();
        for token in &self.0 {
            if let Some((node, visited, own)) = above.last_mut() {
                path.truncate(*own);
                path.push_str(&node.child_key(*visited));
                *visited += 1;
            }
            visit(&path, token);
            if let Token::Node(node) = token {
                above.push((node, 0, path.len()));
            }
            while above.last().is_some_and(|(node, visited, _)| *visited == node.arity()) {
                above.pop();
            }
        }
    }

    /// Describes the first difference between two structures: the key path and the two sides.
    pub(crate) fn difference(&self, other: &TreeDef) -> String {
        for (a, b) in self.described().into_iter().zip(other.described()) {
            if a != b {
                let path = if a.0.is_empty() { "the root".to_owned() } else { format!("`{}`", a.0) };
                return format!("at {path} one has {}, the other {}", a.1, b.1);
            }
        }
        "one has more children than the other".to_owned()
    }

    /// Returns the key path and a description of each token.
    fn described(&self) -> Vec<(String, String)> {
        let mut out = Vec::new();
        self.walk(&mut |path, token| {
            let description = match token {
                Token::Leaf => "an array".to_owned(),
                Token::Node(Node::Tuple(n)) => format!("a tuple of {n}"),
                Token::Node(Node::List(n)) => format!("a list of {n}"),
                Token::Node(Node::Map(keys)) => format!("a map with keys {keys:?}"),
                Token::Node(Node::Struct { name, .. }) => format!("a {name}"),
                Token::Node(Node::Some) => "Some".to_owned(),
                Token::Node(Node::None) => "None".to_owned(),
                Token::Node(Node::Metadata(Metadata::Kind(kind))) => format!("a {kind}"),
                Token::Node(Node::Metadata(Metadata::AxisNames(names))) => format!("axes named {names:?}"),
                Token::Node(Node::Metadata(Metadata::Stacked(name))) => format!("a stack along {name:?}"),
                Token::Number(value, _) => format!("the number {value:?}"),
                Token::Static(value) => format!("the static value {value:?}"),
            };
            out.push((path.to_owned(), description));
        });
        out
    }
}

pub(crate) fn same_structure(a: &TreeDef, b: &TreeDef) -> Result<()> {
    if a == b {
        return Ok(());
    }
    Err(err!(Type, "trees of different structure: {}", a.difference(b))
        .help("both must have the same keys, lengths, options and static values at every node"))
}
