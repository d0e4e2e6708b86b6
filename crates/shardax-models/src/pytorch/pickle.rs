//! An interpreter for the pickle instructions that `torch.save` writes for dictionaries of tensors.

use std::collections::HashMap;

use shardax::prelude::*;

/// A tensor that a pickle rebuilds.
#[derive(Clone, Debug)]
pub(super) struct Rebuilt {
    pub name: String,
    pub dtype: DType,
    /// The key of the storage in the archive.
    pub storage: String,
    /// The index of the first element in the storage.
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

/// The index of a value. Values are referred to by index, because a pickle can use the same value several times.
type Id = usize;

#[derive(Clone, Debug)]
enum Value {
    /// The start of a list of arguments.
    Mark,
    /// A value that tensors do not depend on, such as none or a float.
    Other,
    Flag(bool),
    Integer(i64),
    Text(String),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// A supported class or function.
    Known(Function),
    Storage {
        dtype: DType,
        key: String,
    },
    Tensor {
        dtype: DType,
        storage: String,
        offset: usize,
        shape: Vec<usize>,
        strides: Vec<usize>,
    },
}

/// The supported functions.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Function {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    /// The class of storages with a dtype.
    StorageOf(DType),
    /// A dtype object.
    Dtype,
}

/// The maximal depth of nested dictionaries.
const MAX_DEPTH: usize = 8;
/// The maximal number of values, which is more than any model has.
const MAX_VALUES: usize = 1_000_000;

/// Returns a function by name, or `None` if it is not supported.
fn known(module: &str, name: &str) -> Option<Function> {
    Some(match (module, name) {
        ("collections", "OrderedDict") => Function::OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2") => Function::RebuildTensor,
        ("torch._utils", "_rebuild_parameter") => Function::RebuildParameter,
        ("torch", "FloatStorage") => Function::StorageOf(DType::F32),
        ("torch", "DoubleStorage") => Function::StorageOf(DType::F64),
        ("torch", "HalfStorage") => Function::StorageOf(DType::F16),
        ("torch", "BFloat16Storage") => Function::StorageOf(DType::Bf16),
        ("torch", "LongStorage") => Function::StorageOf(DType::I64),
        ("torch", "IntStorage") => Function::StorageOf(DType::I32),
        ("torch", "ShortStorage") => Function::StorageOf(DType::I16),
        ("torch", "CharStorage") => Function::StorageOf(DType::I8),
        ("torch", "ByteStorage") => Function::StorageOf(DType::U8),
        ("torch", "BoolStorage") => Function::StorageOf(DType::Bool),
        ("torch", "float32" | "float16" | "bfloat16" | "float64" | "int64" | "int32") => Function::Dtype,
        _ => return None,
    })
}

/// Runs a pickle and lists the tensors of the dictionary that it builds.
///
/// # Errors
/// Returns a description of the first instruction that is not supported.
pub(super) fn tensors(pickle: &[u8]) -> Result<Vec<Rebuilt>, String> {
    let mut machine =
        Machine { input: pickle, position: 0, values: Vec::new(), stack: Vec::new(), memo: HashMap::new() };
    let root = machine.run()?;
    let (mut tensors, mut visits) = (Vec::new(), 0);
    machine.collect(root, "", 0, (&mut tensors, &mut visits))?;
    if tensors.is_empty() { Err("its pickle has no tensors".to_owned()) } else { Ok(tensors) }
}

/// The number with which files of the older format start.
const MAGIC: &[u8] = b"l\xfc\x9cF\xf9 j\xa8P\x19";
/// The end of the first pickle of such a file.
const MAX_MAGIC_BYTES: usize = 32;

/// Returns `true` if these bytes are the start of a file of the format before PyTorch 1.6.
pub(super) fn is_older_format(bytes: &[u8]) -> bool {
    bytes[..bytes.len().min(MAX_MAGIC_BYTES)].windows(MAGIC.len()).any(|window| window == MAGIC)
}

/// The contents of a file of the format before PyTorch 1.6.
pub(super) struct OlderFile {
    pub tensors: Vec<Rebuilt>,
    /// The keys of the storages, in the order in which they follow.
    pub storages: Vec<String>,
    /// The position of the first storage.
    pub end: usize,
}

/// Reads the pickles at the start of a file of the format before PyTorch 1.6: a number, a version, a description of the machine, the
/// dictionary of tensors, and the keys of storages.
pub(super) fn older_file(bytes: &[u8]) -> Result<OlderFile, String> {
    let mut position = 0;
    let mut next = |name: &str| {
        let mut machine =
            Machine { input: bytes, position, values: Vec::new(), stack: Vec::new(), memo: HashMap::new() };
        let root = machine.run().map_err(|what| format!("{what} ({name})"))?;
        position = machine.position;
        Ok::<_, String>((machine, root))
    };
    next("the number of the format")?;
    next("the version")?;
    let (machine, root) = next("the description of the machine")?;
    if let Value::Dict(pairs) = &machine.values[root] {
        let is_order = |key: Id| matches!(&machine.values[key], Value::Text(text) if text == "little_endian");
        if pairs.iter().any(|(key, value)| is_order(*key) && matches!(machine.values[*value], Value::Flag(false))) {
            return Err("its numbers are big-endian, which is not supported".to_owned());
        }
    }
    let (machine, root) = next("the dictionary of tensors")?;
    let (mut tensors, mut visits) = (Vec::new(), 0);
    machine.collect(root, "", 0, (&mut tensors, &mut visits))?;
    let (machine, root) = next("the keys of storages")?;
    let Value::List(keys) = &machine.values[root] else { return Err("the keys of storages are not a list".to_owned()) };
    let storages = keys.iter().map(|key| Ok(machine.as_text(*key)?.to_owned())).collect::<Result<_, String>>()?;
    let end = machine.position;
    if tensors.is_empty() {
        Err("its pickle has no tensors".to_owned())
    } else {
        Ok(OlderFile { tensors, storages, end })
    }
}

/// The state of a running pickle.
struct Machine<'a> {
    input: &'a [u8],
    position: usize,
    values: Vec<Value>,
    stack: Vec<Id>,
    memo: HashMap<u32, Id>,
}

impl<'a> Machine<'a> {
    /// Runs all instructions and returns the value on the stack.
    fn run(&mut self) -> Result<Id, String> {
        loop {
            let start = self.position;
            let code = self.take(1)?[0];
            match code {
                b'.' => return self.pop(),
                _ => self.step(code).map_err(|what| format!("at byte {start} of its pickle, {what}"))?,
            }
        }
    }

    /// Runs one instruction. The codes are defined in Python's `pickletools`.
    fn step(&mut self, code: u8) -> Result<(), String> {
        match code {
            // The version of the protocol, and the length of a frame.
            0x80 => self.take(1).map(drop),
            0x95 => self.take(8).map(drop),
            b'(' => self.push(Value::Mark),
            b'}' => self.push(Value::Dict(Vec::new())),
            b']' => self.push(Value::List(Vec::new())),
            b')' => self.push(Value::Tuple(Vec::new())),
            b'N' => self.push(Value::Other),
            0x88 | 0x89 => self.push(Value::Flag(code == 0x88)),
            b'G' => self.take(8).map(drop).and_then(|()| self.push(Value::Other)),
            b'J' => {
                let value = i32::from_le_bytes(self.bytes()?);
                self.push(Value::Integer(value.into()))
            }
            b'K' => {
                let [value] = self.bytes::<1>()?;
                self.push(Value::Integer(value.into()))
            }
            b'M' => {
                let value = u16::from_le_bytes(self.bytes()?);
                self.push(Value::Integer(value.into()))
            }
            0x8a => self.long(),
            b'X' => {
                let length = u32::from_le_bytes(self.bytes()?) as usize;
                self.text(length)
            }
            0x8c => {
                let [length] = self.bytes::<1>()?;
                self.text(length.into())
            }
            b'q' => {
                let [index] = self.bytes::<1>()?;
                self.remember(index.into())
            }
            b'r' => {
                let index = u32::from_le_bytes(self.bytes()?);
                self.remember(index)
            }
            0x94 => self.remember(self.memo.len() as u32),
            b'h' => {
                let [index] = self.bytes::<1>()?;
                self.recall(index.into())
            }
            b'j' => {
                let index = u32::from_le_bytes(self.bytes()?);
                self.recall(index)
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (module, name) = (self.as_text(module)?.to_owned(), self.as_text(name)?.to_owned());
                self.global(&module, &name)
            }
            0x85..=0x87 => {
                let mut items = Vec::new();
                for _ in 0..code - 0x84 {
                    items.insert(0, self.pop()?);
                }
                self.push(Value::Tuple(items))
            }
            b't' => {
                let items = self.pop_to_mark()?;
                self.push(Value::Tuple(items))
            }
            b'a' => {
                let item = self.pop()?;
                self.extend_list(vec![item])
            }
            b'e' => {
                let items = self.pop_to_mark()?;
                self.extend_list(items)
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.extend_dict(vec![key, value])
            }
            b'u' => {
                let items = self.pop_to_mark()?;
                self.extend_dict(items)
            }
            b'Q' => self.persistent(),
            b'R' => self.call(),
            // Attributes of a dictionary, such as `_metadata` of a `state_dict`, are ignored.
            b'b' => {
                let (_, target) = (self.pop()?, self.last()?);
                match self.values[target] {
                    Value::Dict(_) => Ok(()),
                    _ => Err("it sets attributes of a value that is not a dictionary".to_owned()),
                }
            }
            b'0' => self.pop().map(drop),
            other => Err(format!(
                "it has the instruction {:?}, which is not supported because a dictionary of tensors does not need it",
                char::from(other)
            )),
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let end = self.position.checked_add(count);
        let bytes = end.and_then(|end| self.input.get(self.position..end)).ok_or("its pickle ends early")?;
        self.position += count;
        Ok(bytes)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let bytes = self.take(N)?;
        Ok(std::array::from_fn(|i| bytes[i]))
    }

    fn line(&mut self) -> Result<&'a str, String> {
        let remaining = self.input.get(self.position..).unwrap_or_default();
        let length = remaining.iter().position(|byte| *byte == b'\n').ok_or("a name has no newline at its end")?;
        let line = std::str::from_utf8(self.take(length)?).map_err(|_| "a name is not UTF-8")?;
        self.take(1)?;
        Ok(line)
    }

    fn push(&mut self, value: Value) -> Result<(), String> {
        self.stack.push(self.values.len());
        self.values.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Id, String> {
        let id = self.stack.pop().ok_or("its stack is empty")?;
        match self.values[id] {
            Value::Mark => Err("a mark is used as a value".to_owned()),
            _ => Ok(id),
        }
    }

    fn last(&self) -> Result<Id, String> {
        self.stack.last().copied().ok_or_else(|| "its stack is empty".to_owned())
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>, String> {
        let mark =
            self.stack.iter().rposition(|id| matches!(self.values[*id], Value::Mark)).ok_or("a mark is missing")?;
        let items = self.stack.split_off(mark + 1);
        self.stack.pop();
        Ok(items)
    }

    fn remember(&mut self, index: u32) -> Result<(), String> {
        let id = self.last()?;
        self.memo.insert(index, id);
        Ok(())
    }

    fn recall(&mut self, index: u32) -> Result<(), String> {
        let id = self
            .memo
            .get(&index)
            .copied()
            .ok_or_else(|| format!("it reads entry {index} of the memo, which is empty"))?;
        self.stack.push(id);
        Ok(())
    }

    fn text(&mut self, length: usize) -> Result<(), String> {
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| "a text is not UTF-8")?;
        self.push(Value::Text(text.to_owned()))
    }

    /// Reads an integer that is preceded by its number of bytes. Tensors do not need integers of more than eight bytes.
    fn long(&mut self) -> Result<(), String> {
        let [length] = self.bytes::<1>()?;
        let bytes = self.take(length.into())?;
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let fill = if negative { 0xff } else { 0 };
        let value: [u8; 8] = std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(fill));
        self.push(if bytes.len() <= 8 { Value::Integer(i64::from_le_bytes(value)) } else { Value::Other })
    }

    fn global(&mut self, module: &str, name: &str) -> Result<(), String> {
        match known(module, name) {
            Some(function) => self.push(Value::Known(function)),
            None => Err(format!(
                "it calls {module}.{name}, which is not supported because a dictionary of tensors does not need it"
            )),
        }
    }

    fn extend_list(&mut self, items: Vec<Id>) -> Result<(), String> {
        let list = self.last()?;
        match &mut self.values[list] {
            Value::List(values) => {
                values.extend(items);
                Ok(())
            }
            _ => Err("it appends to a value that is not a list".to_owned()),
        }
    }

    fn extend_dict(&mut self, items: Vec<Id>) -> Result<(), String> {
        let dict = self.last()?;
        match &mut self.values[dict] {
            Value::Dict(pairs) if items.len().is_multiple_of(2) => {
                pairs.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
                Ok(())
            }
            _ => Err("it sets items of a value that is not a dictionary".to_owned()),
        }
    }

    /// Reads a reference to a storage, which is the tuple `('storage', class, key, device, size)`. In the older format, none
    /// follows, unless the storage is a part of another one.
    fn persistent(&mut self) -> Result<(), String> {
        let id = self.pop()?;
        let parts = self.as_tuple(id)?;
        let wrong = "it refers to something other than a tensor's storage";
        let [kind, class, key] = match *parts {
            [kind, class, key, _, _] => [kind, class, key],
            [kind, class, key, _, _, part] if matches!(self.values[part], Value::Other) => [kind, class, key],
            _ => return Err(wrong.to_owned()),
        };
        match (&self.values[kind], &self.values[class], &self.values[key]) {
            (Value::Text(kind), Value::Known(Function::StorageOf(dtype)), Value::Text(key)) if kind == "storage" => {
                self.push(Value::Storage { dtype: *dtype, key: key.clone() })
            }
            _ => Err(wrong.to_owned()),
        }
    }

    fn call(&mut self) -> Result<(), String> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let arguments = self.as_tuple(arguments)?.to_vec();
        let Value::Known(function) = self.values[function] else {
            return Err("it calls a value that is not a function".to_owned());
        };
        match (function, arguments.as_slice()) {
            (Function::OrderedDict, []) => self.push(Value::Dict(Vec::new())),
            (Function::RebuildParameter, [tensor, ..]) => {
                self.stack.push(*tensor);
                Ok(())
            }
            (Function::RebuildTensor, [storage, offset, shape, strides, ..]) => {
                let Value::Storage { dtype, key } = self.values[*storage].clone() else {
                    return Err("a tensor is rebuilt without a storage".to_owned());
                };
                let (shape, strides) = (self.sizes(*shape)?, self.sizes(*strides)?);
                let offset = self.size(*offset)?;
                self.push(Value::Tensor { dtype, storage: key, offset, shape, strides })
            }
            _ => Err(format!("it calls {function:?} with {} arguments", arguments.len())),
        }
    }

    fn size(&self, id: Id) -> Result<usize, String> {
        match &self.values[id] {
            Value::Integer(value) => usize::try_from(*value).map_err(|_| format!("a size is {value}")),
            _ => Err("a size is not an integer".to_owned()),
        }
    }

    fn sizes(&self, id: Id) -> Result<Vec<usize>, String> {
        self.as_tuple(id)?.iter().map(|id| self.size(*id)).collect()
    }

    fn as_tuple(&self, id: Id) -> Result<&[Id], String> {
        match &self.values[id] {
            Value::Tuple(items) => Ok(items),
            _ => Err("a value should be a tuple, but is not".to_owned()),
        }
    }

    fn as_text(&self, id: Id) -> Result<&str, String> {
        match &self.values[id] {
            Value::Text(text) => Ok(text),
            _ => Err("a value should be a string, but is not".to_owned()),
        }
    }

    /// Collects the tensors in a value. The name of a tensor is the path of keys that leads to it.
    ///
    /// Visits are counted, because dictionaries can share values, so that a short pickle can describe more values than
    /// fit in memory.
    fn collect(
        &self,
        id: Id,
        name: &str,
        depth: usize,
        (tensors, visits): (&mut Vec<Rebuilt>, &mut usize),
    ) -> Result<(), String> {
        *visits += 1;
        match &self.values[id] {
            _ if *visits > MAX_VALUES => Err(format!("it has more than {MAX_VALUES} values")),
            Value::Tensor { dtype, storage, offset, shape, strides } => {
                tensors.push(Rebuilt {
                    name: name.to_owned(),
                    dtype: *dtype,
                    storage: storage.clone(),
                    offset: *offset,
                    shape: shape.clone(),
                    strides: strides.clone(),
                });
                Ok(())
            }
            Value::Dict(_) if depth >= MAX_DEPTH => {
                Err(format!("dictionaries are nested more than {MAX_DEPTH} levels deep"))
            }
            Value::Dict(pairs) => {
                for (key, value) in pairs {
                    // Entries with other keys are not tensors of a model, but for example the state of an optimizer.
                    if let Value::Text(key) = &self.values[*key] {
                        let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                        self.collect(*value, &name, depth + 1, (&mut *tensors, &mut *visits))?;
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
