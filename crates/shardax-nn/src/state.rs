//! The arrays of a module by their key paths.

use std::collections::BTreeMap;
use std::ops::Index;
use std::sync::Arc;

use shardax::prelude::*;
use shardax::tree::{AxisNames, Flat, Metadata, Node, Unflatten, flatten_named, unflatten_named};
use shardax::{Error, ErrorKind};

/// The arrays of a module, or some of them, sorted by their key paths, such as `conv1.kernel`. It is a tree.
///
/// It also stores the names of the arrays' dimensions, so that [`Rules`](crate::Rules) shard derived trees, such as the
/// state of an optimizer, like the model.
///
/// ```
/// use shardax_nn::prelude::*;
/// let model = Linear::new(2, 3, &mut Rngs::new(0));
/// let state = model.state();
/// assert_eq!(state.keys().collect::<Vec<_>>(), ["bias", "kernel"]);
/// assert_eq!(state["bias"].shape(), [3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct State {
    keys: Arc<[String]>,
    names: Arc<[Option<AxisNames>]>,
    arrays: Vec<Array>,
}

impl State {
    /// Creates a state without arrays.
    pub fn new() -> Self {
        State::default()
    }

    /// Returns the array at this key path.
    pub fn get(&self, key: &str) -> Option<&Array> {
        Some(&self.arrays[self.find(key).ok()?])
    }

    /// Returns a mutable reference to the array at this key path.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Array> {
        let index = self.find(key).ok()?;
        Some(&mut self.arrays[index])
    }

    /// Puts an array at this key path, and returns the previous one.
    pub fn insert(&mut self, key: impl Into<String>, array: Array) -> Option<Array> {
        let key = key.into();
        match self.find(&key) {
            Ok(index) => Some(std::mem::replace(&mut self.arrays[index], array)),
            Err(index) => {
                let mut keys = self.keys.to_vec();
                keys.insert(index, key);
                let mut names = self.names.to_vec();
                names.insert(index, None);
                self.arrays.insert(index, array);
                (self.keys, self.names) = (keys.into(), names.into());
                None
            }
        }
    }

    /// Removes the array at this key path, and returns it.
    pub fn remove(&mut self, key: &str) -> Option<Array> {
        let index = self.find(key).ok()?;
        self.keys = (0..self.len()).filter(|i| *i != index).map(|i| self.keys[i].clone()).collect();
        self.names = (0..self.names.len()).filter(|i| *i != index).map(|i| self.names[i].clone()).collect();
        Some(self.arrays.remove(index))
    }

    /// Returns true if there is an array at this key path.
    pub fn contains_key(&self, key: &str) -> bool {
        self.find(key).is_ok()
    }

    /// Returns the key paths.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(String::as_str)
    }

    /// Returns the arrays, in the order of their key paths.
    pub fn values(&self) -> impl Iterator<Item = &Array> {
        self.arrays.iter()
    }

    /// Returns the key paths with their arrays.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Array)> {
        self.keys().zip(self.values())
    }

    /// Returns the number of arrays.
    pub fn len(&self) -> usize {
        self.arrays.len()
    }

    /// Returns true if there are no arrays.
    pub fn is_empty(&self) -> bool {
        self.arrays.is_empty()
    }

    /// Returns the index of a key path, or the index at which it would be inserted.
    fn find(&self, key: &str) -> std::result::Result<usize, usize> {
        self.keys.binary_search_by(|k| k.as_str().cmp(key))
    }

    /// Builds the state of these entries. The last entry of a key wins.
    pub(crate) fn of(entries: impl IntoIterator<Item = (String, Option<AxisNames>, Array)>) -> Self {
        let sorted: BTreeMap<_, _> = entries.into_iter().map(|(key, names, array)| (key, (names, array))).collect();
        let (mut keys, mut names, mut arrays) = (Vec::new(), Vec::new(), Vec::new());
        for (key, (dim_names, array)) in sorted {
            keys.push(key);
            names.push(dim_names);
            arrays.push(array);
        }
        State { keys: keys.into(), names: names.into(), arrays }
    }
}

impl Index<&str> for State {
    type Output = Array;

    /// Panics if there is no array at this key path, like a map. [`State::get`] returns `None` instead.
    fn index(&self, key: &str) -> &Array {
        match self.get(key) {
            Some(array) => array,
            None => panic!("the state has no array {key:?}; it has {:?}", self.keys),
        }
    }
}

impl<K: Into<String>> FromIterator<(K, Array)> for State {
    fn from_iter<I: IntoIterator<Item = (K, Array)>>(entries: I) -> Self {
        State::of(entries.into_iter().map(|(key, array)| (key.into(), None, array)))
    }
}

impl IntoIterator for State {
    type Item = (String, Array);
    type IntoIter = std::vec::IntoIter<(String, Array)>;

    fn into_iter(self) -> Self::IntoIter {
        self.keys.iter().cloned().zip(self.arrays).collect::<Vec<_>>().into_iter()
    }
}

impl Tree for State {
    fn flatten(&self, out: &mut Flat) {
        out.node(Node::Map(self.keys.clone()));
        for (array, names) in self.arrays.iter().zip(&*self.names) {
            flatten_named(array, names, out);
        }
    }

    fn unflatten(from: &mut Unflatten<'_>) -> Result<Self> {
        let Node::Map(keys) = from.node()? else {
            return Err(Error::new(ErrorKind::Type, "tree structure mismatch: expected a state")
                .help("rebuild the type that was flattened"));
        };
        let mut names = Vec::with_capacity(keys.len());
        let mut arrays = Vec::with_capacity(keys.len());
        for _ in 0..keys.len() {
            names.push(match from.peek_metadata() {
                Some(Metadata::AxisNames(names)) => Some(names.clone()),
                _ => None,
            });
            arrays.push(unflatten_named(from)?);
        }
        Ok(State { keys, names: names.into(), arrays })
    }
}
