//! Reading a family of reference values.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors};
use serde_json::Value;
use shardax::prelude::*;

/// Values as the file has them.
#[derive(Clone, Debug)]
pub struct Host {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Host {
    pub fn array(&self) -> Array {
        Array::from_bytes(&self.bytes, self.dtype, &self.shape).expect("values of a reference file")
    }
}

/// One case: a function at a point, and what JAX makes of it.
#[derive(Debug)]
pub struct Case {
    pub family: &'static str,
    pub name: String,
    pub op: String,
    pub meta: Value,
    pub tensors: BTreeMap<String, Host>,
}

impl Case {
    pub fn path(&self) -> String {
        format!("{}/{}", self.family, self.name)
    }

    /// A parameter; null where it has none of this name.
    pub fn param(&self, name: &str) -> &Value {
        &self.meta["params"][name]
    }

    /// A list of integers among the parameters.
    pub fn ints(&self, name: &str) -> Vec<i64> {
        ints(self.param(name))
    }

    pub fn axes(&self, name: &str) -> Vec<i32> {
        self.ints(name).into_iter().map(|i| i as i32).collect()
    }

    pub fn int(&self, name: &str) -> i64 {
        self.param(name).as_i64().unwrap_or_else(|| panic!("{}: parameter {name} is no integer", self.path()))
    }

    pub fn axis(&self, name: &str) -> i32 {
        self.int(name) as i32
    }

    pub fn flag(&self, name: &str) -> bool {
        self.param(name).as_bool().unwrap_or(false)
    }

    pub fn text(&self, name: &str) -> &str {
        self.param(name).as_str().unwrap_or_default()
    }

    pub fn doc(&self) -> &str {
        self.meta["doc"].as_str().unwrap_or_default()
    }

    /// A dtype among the parameters, by its short name.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        self.param(name).as_str().map(dtype)
    }

    pub fn count(&self, what: &str) -> usize {
        self.meta[what].as_u64().unwrap_or(0) as usize
    }

    pub fn host(&self, key: &str) -> Option<&Host> {
        self.tensors.get(key)
    }
}

fn name_and_reason(line: &str) -> Option<(String, String)> {
    line.split_once(": ").map(|(name, why)| (name.to_owned(), why.to_owned()))
}

/// Known differences with their reasons: lines `name: reason` of a file; lines that begin with `#` are comments.
pub fn known(path: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let lines = text.lines().filter(|l| !l.starts_with('#') && !l.is_empty());
    lines
        .map(|line| name_and_reason(line).unwrap_or_else(|| panic!("{}: {line:?} has no reason", path.display())))
        .collect()
}

/// A JSON list of integers; nothing for null.
pub fn ints(value: &Value) -> Vec<i64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_i64).collect()
}

/// The dtype of this short name.
pub fn dtype(short: &str) -> DType {
    DType::ALL.into_iter().find(|d| d.short() == short).unwrap_or_else(|| panic!("dtype {short}"))
}

pub fn golden_dir() -> PathBuf {
    // The tests of crates above read them too.
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shardax/tests/golden")
}

/// The cases of a file, in the order of `index.txt`.
pub fn family(name: &'static str) -> Vec<Case> {
    cases(&golden_dir().join(format!("{name}.safetensors")), name)
}

/// The cases of any file in this format.
pub fn cases(path: &Path, name: &'static str) -> Vec<Case> {
    // The header describes the cases; the tensors are their inputs and JAX's results.
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("a safetensors header");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let mut tensors: BTreeMap<String, BTreeMap<String, Host>> = BTreeMap::new();
    let metadata = header.metadata().clone().unwrap_or_default();
    let mut cases: Vec<Case> = metadata
        .iter()
        .map(|(case, json)| {
            let meta: Value = serde_json::from_str(json).expect("a case's metadata");
            let op = meta["op"].as_str().expect("a case's op").to_owned();
            Case { family: name, name: case.clone(), op, meta, tensors: BTreeMap::new() }
        })
        .collect();
    for (key, tensor) in file.tensors() {
        let (case, key) = key.split_once('/').expect("a key of the form case/what");
        let host =
            Host { dtype: host_dtype(tensor.dtype()), shape: tensor.shape().to_vec(), bytes: tensor.data().to_vec() };
        tensors.entry(case.to_owned()).or_default().insert(key.to_owned(), host);
    }
    for case in &mut cases {
        case.tensors = tensors.remove(&case.name).unwrap_or_default();
        for key in case.meta["complex"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let host = case.tensors.get_mut(key).expect("a complex tensor");
            host.dtype = if host.dtype == DType::F64 { DType::Complex128 } else { DType::Complex64 };
            host.shape.pop();
        }
        for (key, short) in case.meta["narrow"].as_object().into_iter().flatten() {
            let host = case.tensors.get_mut(key).expect("a narrow tensor");
            host.dtype = dtype(short.as_str().expect("a dtype"));
        }
    }
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    cases
}

fn host_dtype(dtype: Dtype) -> DType {
    match dtype {
        Dtype::BOOL => DType::Bool,
        Dtype::I8 => DType::I8,
        Dtype::I16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::U8 => DType::U8,
        Dtype::U16 => DType::U16,
        Dtype::U32 => DType::U32,
        Dtype::U64 => DType::U64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::Bf16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        other => panic!("dtype {other:?} in a reference file"),
    }
}
