//! Reading the true values.

use std::path::PathBuf;

use safetensors::SafeTensors;

/// The folder of the true values and of JAX's errors.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/accuracy")
}

/// A function's arguments, one list for each operand, and its true values: the function, its first derivatives, and its
/// second derivatives.
pub struct Values {
    pub arguments: Vec<Vec<f64>>,
    pub rows: Vec<Vec<f64>>,
}

impl Values {
    /// The operands that the function is differentiated with respect to: all, or only the last.
    pub fn partials(&self) -> Vec<usize> {
        let count = (self.rows.len() - 1) / 2;
        (self.arguments.len() - count..self.arguments.len()).collect()
    }
}

/// The contents of the file.
pub struct File(Vec<u8>);

impl File {
    pub fn open() -> File {
        File(std::fs::read(folder().join("values.safetensors")).expect("the file of true values"))
    }

    /// The names of the functions, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.tensors().names().iter().filter_map(|name| name.strip_suffix("/x")).map(str::to_string).collect();
        names.sort();
        names
    }

    pub fn function(&self, name: &str) -> Values {
        let read = |part: &str| {
            let tensors = self.tensors();
            let tensor = tensors.tensor(&format!("{name}/{part}")).expect("a function of the file");
            let numbers: Vec<f64> =
                tensor.data().as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
            numbers.chunks(tensor.shape()[1]).map(<[f64]>::to_vec).collect()
        };
        Values { arguments: read("x"), rows: read("y") }
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.0).expect("a file of true values")
    }
}
