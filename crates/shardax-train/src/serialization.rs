//! Trees as bytes in the format of [`flax.serialization`](https://flax.readthedocs.io/en/latest/api_reference/flax.serialization.html):
//! nested maps of arrays in MessagePack.
//!
//! ```
//! use shardax_nn::prelude::*;
//! use shardax_train::serialization::{from_bytes, msgpack_restore, to_bytes};
//! let model = Linear::new(2, 3, &mut Rngs::new(0));
//! let bytes = to_bytes(&model)?;
//! let state = msgpack_restore(&bytes)?;
//! assert_eq!(state.keys().collect::<Vec<_>>(), ["bias", "kernel"]);
//! let restored = from_bytes(&Linear::new(2, 3, &mut Rngs::new(1)), &bytes)?;
//! assert_eq!(restored.forward(ones([2])).to_vec::<f32>()?, model.forward(ones([2])).to_vec::<f32>()?);
//! # Ok::<(), shardax::Error>(())
//! ```
//!
//! Flax writes the same bytes for the same tree of dicts, and can read them. Random keys, which Flax does not write,
//! are written as their words. Lists are maps from `0`, `1`, …, as in Flax. Key paths are joined by dots:
//! `layers.0.kernel`.

use std::collections::{HashMap, HashSet};

use rmpv::Value;
use shardax::prelude::*;
use shardax::random::PrngImpl;
use shardax::tree::Flat;
use shardax::{Error, ErrorKind};
use shardax_nn::State;

/// The size in bytes from which Flax cuts arrays into pieces.
const MAX_CHUNK_SIZE: usize = 1 << 30;
const CHUNKED: &str = "__msgpack_chunked_array__";
/// The extension types of Flax: an array, and a NumPy scalar.
const NDARRAY: i8 = 1;
const SCALAR: i8 = 3;

fn fail(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Value, what.into())
        .help("use bytes from `to_bytes` here, or from `flax.serialization.to_bytes`")
}

/// The names and indices of a key path: `.layers[0].kernel` has three.
fn segments(path: &str) -> Vec<String> {
    let (mut parts, mut rest) = (Vec::new(), path);
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix("[\"") {
            let (key, after) = quoted.split_once("\"]").unwrap_or((quoted, ""));
            parts.push(key.to_owned());
            rest = after;
        } else if let Some(index) = rest.strip_prefix('[') {
            let (index, after) = index.split_once(']').unwrap_or((index, ""));
            parts.push(index.to_owned());
            rest = after;
        } else {
            let name = rest.strip_prefix('.').unwrap_or(rest);
            let end = name.find(['.', '[']).unwrap_or(name.len());
            parts.push(name[..end].to_owned());
            rest = &name[end..];
        }
    }
    parts
}

/// Returns the arrays of a tree by their key paths, joined by dots: Flax's `flatten_dict(to_state_dict(tree),
/// sep=".")`.
///
/// ```
/// use shardax_nn::prelude::*;
/// use shardax_train::serialization::to_state_dict;
/// let state = to_state_dict(&vec![(ones([2]), zeros([3]))]);
/// assert_eq!(state.keys().collect::<Vec<_>>(), ["0.0", "0.1"]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn to_state_dict<T: Tree>(tree: &T) -> State {
    tree::leaves_with_path(tree).into_iter().map(|(path, leaf)| (segments(&path).join("."), leaf)).collect()
}

/// Replaces the arrays of a tree by the arrays of a state dict.
///
/// # Errors
/// Returns an error that names the array if the state lacks an array of the tree, if it has an array that the tree lacks, or if
/// the shapes of an array differ.
#[track_caller]
pub fn from_state_dict<T: Tree>(target: &T, state: &State) -> Result<T> {
    let mut flat = Flat::of(target);
    let keys: Vec<String> = flat.def.paths().iter().map(|path| segments(path).join(".")).collect();
    for (leaf, key) in flat.leaves.iter_mut().zip(&keys) {
        let array = state.get(key).ok_or_else(|| fail(format!("the state dict has no array {key:?}")))?;
        let array = match PrngImpl::of(leaf.dtype()).filter(|_| !array.dtype().is_key()) {
            Some(prng) => &prng.wrap_key_data(array),
            None => array,
        };
        array.check()?;
        if array.shape() != leaf.shape() {
            return Err(fail(format!(
                "the array {key:?} is {} in the state dict, but {} in the tree",
                array.aval(),
                leaf.aval()
            )));
        }
        // A Python number has the dtype of what it replaces.
        *leaf = if array.weak_type() { array.astype(leaf.dtype()) } else { array.clone() };
    }
    let keys: HashSet<&str> = keys.iter().map(String::as_str).collect();
    match state.keys().find(|key| !keys.contains(key)) {
        Some(unknown) => Err(fail(format!("the tree has no array {unknown:?}, which the state dict has"))),
        None => flat.build(),
    }
}

/// Returns the bytes of a tree: `flax.serialization.to_bytes`.
///
/// # Errors
/// Returns an error if the values cannot be read.
#[track_caller]
pub fn to_bytes<T: Tree>(tree: &T) -> Result<Vec<u8>> {
    let leaves = tree::leaves_with_path(tree);
    packed(leaves.into_iter().map(|(path, leaf)| (segments(&path), leaf)), MAX_CHUNK_SIZE)
}

/// Replaces the arrays of a tree by the arrays of these bytes: `flax.serialization.from_bytes`.
///
/// # Errors
/// Returns an error for bytes that are not of this format, and the errors of [`from_state_dict`].
#[track_caller]
pub fn from_bytes<T: Tree>(target: &T, bytes: &[u8]) -> Result<T> {
    from_state_dict(target, &msgpack_restore(bytes)?)
}

/// Returns the bytes of a state dict, whose key paths are split at dots: `flax.serialization.msgpack_serialize`.
///
/// # Errors
/// Returns an error if the values cannot be read, and for a key path that begins with another one.
#[track_caller]
pub fn msgpack_serialize(state: &State) -> Result<Vec<u8>> {
    let leaves = state.iter().map(|(key, array)| (key.split('.').map(str::to_owned).collect(), array.clone()));
    packed(leaves, MAX_CHUNK_SIZE)
}

/// Returns the arrays of bytes that Flax or [`to_bytes`] wrote, by their key paths, joined by dots:
/// `flax.serialization.msgpack_restore`.
///
/// # Errors
/// Returns an error for bytes that are not of this format, and for values that are neither arrays nor numbers.
#[track_caller]
pub fn msgpack_restore(bytes: &[u8]) -> Result<State> {
    let mut remaining = bytes;
    let value = rmpv::decode::read_value_with_max_depth(&mut remaining, 256)
        .map_err(|e| fail(format!("{} bytes are no MessagePack: {e}", bytes.len())))?;
    if !remaining.is_empty() {
        return Err(fail(format!("{} bytes follow the tree", remaining.len())));
    }
    let mut arrays = Vec::new();
    collect(&value, &mut Vec::new(), &mut arrays)?;
    Ok(arrays.into_iter().collect())
}

fn packed(leaves: impl Iterator<Item = (Vec<String>, Array)>, chunk: usize) -> Result<Vec<u8>> {
    let mut root = Packed::default();
    for (path, array) in leaves {
        let value = array_value(&array, chunk)?;
        root.insert(&path, value)?;
    }
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &root.into_value())
        .map_err(|e| fail(format!("the tree cannot be written: {e}")))?;
    Ok(bytes)
}

/// A level of the tree being packed: a map whose keys keep the order in which they came, or an array.
#[derive(Default)]
struct Packed {
    entries: Vec<(String, Packed)>,
    /// The position of each key among the entries.
    positions: HashMap<String, usize>,
    array: Option<Value>,
}

impl Packed {
    fn insert(&mut self, path: &[String], value: Value) -> Result<()> {
        let mut level = self;
        for name in path {
            if level.array.is_some() {
                return Err(fail(format!(
                    "the key path {:?} begins with the key path of another array",
                    path.join(".")
                )));
            }
            let end = level.entries.len();
            let position = *level.positions.entry(name.clone()).or_insert(end);
            if position == end {
                level.entries.push((name.clone(), Packed::default()));
            }
            level = &mut level.entries[position].1;
        }
        level.array = Some(value);
        Ok(())
    }

    fn into_value(self) -> Value {
        let map = self.entries.into_iter().map(|(key, level)| (key.into(), level.into_value()));
        self.array.unwrap_or_else(|| Value::Map(map.collect()))
    }
}

fn numbered(values: impl Iterator<Item = Value>) -> Value {
    Value::Map(values.enumerate().map(|(i, value)| (i.to_string().into(), value)).collect())
}

/// Converts an array to a MessagePack value, in pieces if it is larger than `chunk` bytes.
fn array_value(array: &Array, chunk: usize) -> Result<Value> {
    if array.dtype().is_key() {
        return array_value(&random::key_data(array), chunk);
    }
    let (bytes, dtype) = (array.to_bytes()?, array.dtype());
    if bytes.len() <= chunk {
        return extension(dtype, array.shape(), &bytes);
    }
    let size = dtype.byte_size().max(1);
    let pieces = bytes.chunks((chunk / size).max(1) * size);
    let pieces = pieces.map(|piece| extension(dtype, &[piece.len() / size], piece));
    Ok(Value::Map(vec![
        (CHUNKED.into(), Value::Boolean(true)),
        ("shape".into(), numbered(array.shape().iter().map(|n| Value::from(*n as u64)))),
        ("chunks".into(), numbered(pieces.collect::<Result<Vec<_>>>()?.into_iter())),
    ]))
}

/// Flax's extension value of an array.
fn extension(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Value> {
    let shape = Value::Array(shape.iter().map(|n| Value::from(*n as u64)).collect());
    let parts = Value::Array(vec![shape, dtype.to_string().into(), Value::Binary(bytes.to_vec())]);
    let mut packed = Vec::new();
    rmpv::encode::write_value(&mut packed, &parts).map_err(|e| fail(format!("an array cannot be written: {e}")))?;
    Ok(Value::Ext(NDARRAY, packed))
}

/// Adds the arrays of a value and their key paths to `found`.
fn collect(value: &Value, path: &mut Vec<String>, found: &mut Vec<(String, Array)>) -> Result<()> {
    let key_path = path.join(".");
    let array = match value {
        // Flax splits arrays of more than 1 GiB into chunks, which are a map with this key.
        Value::Map(entries) if entries.iter().any(|(key, _)| key.as_str() == Some(CHUNKED)) => {
            joined(value, &key_path)?
        }
        Value::Map(entries) => {
            for (key, value) in entries {
                let key = key.as_str().ok_or_else(|| fail(format!("a key of {key_path:?} is not a string: {key}")))?;
                path.push(key.to_owned());
                collect(value, path, found)?;
                path.pop();
            }
            return Ok(());
        }
        Value::Ext(NDARRAY | SCALAR, bytes) => restored(bytes, &key_path)?,
        Value::Boolean(value) => array(*value),
        Value::Integer(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => i32::try_from(n).map_or_else(|_| array(n), array).with_weak_type(true),
            (None, n) => array(n.unwrap_or_default()),
        },
        Value::F32(x) => array(*x).with_weak_type(true),
        Value::F64(x) => array(*x).with_weak_type(true),
        other => return Err(fail(format!("{key_path:?} is neither an array nor a number: {other}"))),
    };
    found.push((path.join("."), array));
    Ok(())
}

/// An array of an extension's bytes.
fn restored(bytes: &[u8], path: &str) -> Result<Array> {
    let parts = rmpv::decode::read_value_with_max_depth(&mut &*bytes, 8).map_err(|_| damaged(path))?;
    let Some([shape, name, data]) = parts.as_array().map(Vec::as_slice) else { return Err(damaged(path)) };
    let sizes = shape.as_array().ok_or_else(|| damaged(path))?.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>();
    let sizes: Vec<usize> = sizes.ok_or_else(|| damaged(path))?.into_iter().map(|n| n as usize).collect();
    let name = name.as_str().ok_or_else(|| damaged(path))?;
    // Keys are written as their words, and NumPy has no dtype of the name `float0`.
    let dtype = DType::from_name(name).filter(|dtype| DType::ALL.contains(dtype));
    let dtype = dtype.ok_or_else(|| fail(format!("the array {path:?} has the unknown dtype {name}")))?;
    Array::from_bytes(data.as_slice().ok_or_else(|| damaged(path))?, dtype, &sizes)
        .map_err(|e| e.context(format!("the array {path:?}")))
}

/// An array that was cut into pieces.
fn joined(value: &Value, path: &str) -> Result<Array> {
    let shape = numbered_entries(value, "shape").ok_or_else(|| damaged(path))?;
    let shape: Option<Vec<usize>> = shape.into_iter().map(|n| n.as_u64().map(|n| n as usize)).collect();
    let pieces = numbered_entries(value, "chunks").ok_or_else(|| damaged(path))?;
    let pieces = pieces.into_iter().map(|piece| match piece {
        Value::Ext(NDARRAY, bytes) => restored(bytes, path),
        _ => Err(damaged(path)),
    });
    let pieces = pieces.collect::<Result<Vec<_>>>()?;
    let dtype = pieces.first().ok_or_else(|| damaged(path))?.dtype();
    let mut bytes = Vec::new();
    for piece in &pieces {
        if piece.dtype() != dtype {
            return Err(damaged(path));
        }
        bytes.extend(piece.to_bytes()?);
    }
    Array::from_bytes(&bytes, dtype, &shape.ok_or_else(|| damaged(path))?)
        .map_err(|e| e.context(format!("the array {path:?}")))
}

fn damaged(path: &str) -> Error {
    fail(format!("the array {path:?} is damaged"))
}

/// The values of the map `name` in `value`, whose keys are `0`, `1`, …, in this order.
fn numbered_entries<'a>(value: &'a Value, name: &str) -> Option<Vec<&'a Value>> {
    let entries = get(value, name)?;
    let count = entries.as_map()?.len();
    (0..count).map(|i| get(entries, &i.to_string())).collect()
}

/// The entry of a map with this key.
fn get<'a>(map: &'a Value, key: &str) -> Option<&'a Value> {
    map.as_map()?.iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of `flax.serialization.to_bytes` (flax 0.12.8) for [`tree`].
    const OF_FLAX: &[u8] = include_bytes!("../tests/golden/flax.msgpack");

    fn tree() -> std::collections::BTreeMap<String, Vec<Array>> {
        let numbers = arange(0..6).reshape([2, 3]).astype(DType::F32);
        let first = vec![&numbers + 1, array([true, false])];
        let second = vec![&numbers + -2, array([true, false])];
        [("first".to_owned(), first), ("second".to_owned(), second)].into()
    }

    #[test]
    fn bytes_equal_flax() -> Result<()> {
        assert_eq!(to_bytes(&tree())?, OF_FLAX);
        let restored = from_bytes(&tree(), OF_FLAX)?;
        assert_eq!(restored["second"][0].to_vec::<f32>()?, tree()["second"][0].to_vec::<f32>()?);
        assert_eq!(msgpack_serialize(&msgpack_restore(OF_FLAX)?)?, OF_FLAX);
        Ok(())
    }

    #[test]
    fn narrow_types_are_read() -> Result<()> {
        // `flax.serialization.msgpack_serialize` (flax 0.12.8) of int4 and float8_e4m3fn.
        let of_flax = b"\x82\xa1a\xc7\r\x01\x93\x91\x03\xa4int4\xc4\x03\x08\x0f\x07\xa1b\xc7\x15\x01\x93\x91\x02\xadfloat8_e4m3fn\xc4\x020\xfe";
        let state = msgpack_restore(of_flax)?;
        assert_eq!([state["a"].dtype(), state["b"].dtype()], [DType::I4, DType::F8E4M3Fn]);
        assert_eq!(state["a"].astype(DType::I32).to_vec::<i32>()?, [-8, -1, 7]);
        assert_eq!(state["b"].astype(DType::F32).to_vec::<f32>()?, [0.5, -448.0]);
        // Only the low bits of an int4 count; Flax leaves the others empty.
        let again = msgpack_restore(&msgpack_serialize(&state)?)?;
        assert_eq!(again["a"].astype(DType::I32).to_vec::<i32>()?, [-8, -1, 7]);
        let mut of_key = of_flax.to_vec();
        of_key.splice(10..14, *b"key<");
        assert!(msgpack_restore(&of_key).is_err());
        Ok(())
    }

    #[test]
    fn large_arrays_are_cut_and_joined() -> Result<()> {
        let x = arange(0..10);
        let bytes = packed([(vec!["x".to_owned()], x)].into_iter(), 16)?;
        assert_eq!(msgpack_restore(&bytes)?["x"].to_vec::<i32>()?, (0..10).collect::<Vec<_>>());
        Ok(())
    }

    #[test]
    fn damaged_bytes_are_errors() {
        for n in 0..OF_FLAX.len() {
            assert!(msgpack_restore(&OF_FLAX[..n]).is_err(), "{n} bytes");
        }
        let mut state = to_state_dict(&tree());
        state.remove("first.0");
        let error = from_state_dict(&tree(), &state).expect_err("an array is missing");
        assert_eq!(error.message(), "the state dict has no array \"first.0\"");
    }
}
