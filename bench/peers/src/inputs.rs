//! The models and batches that `shardax-bench --inputs` wrote, and random matrices.

use std::path::Path;

use safetensors::{Dtype, SafeTensors};

use crate::Result;
use crate::settings::EDGE;

/// A row-major array.
pub struct Array<T> {
    pub shape: Vec<usize>,
    pub values: Vec<T>,
}

/// The arrays of one row, as a safetensors file. Their names are key paths: `[0]` is the model, the rest the batch.
pub struct Inputs(Vec<u8>);

impl Inputs {
    /// Reads the file of `row`.
    pub fn read(folder: &Path, row: &str) -> Result<Inputs> {
        let path = folder.join(row).join("device-00000.safetensors");
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Inputs(bytes)),
            Err(error) => Err(format!("{}: {error}", path.display()).into()),
        }
    }

    pub fn floats(&self, name: &str) -> Result<Array<f32>> {
        self.array(name, Dtype::F32, f32::from_le_bytes)
    }

    pub fn ints(&self, name: &str) -> Result<Array<i32>> {
        self.array(name, Dtype::I32, i32::from_le_bytes)
    }

    fn array<T>(&self, name: &str, dtype: Dtype, value: fn([u8; 4]) -> T) -> Result<Array<T>> {
        let arrays = SafeTensors::deserialize(&self.0)?;
        let view = arrays.tensor(name).map_err(|error| format!("{name}: {error}"))?;
        if view.dtype() != dtype {
            return Err(format!("{name} is {:?} instead of {dtype:?}", view.dtype()).into());
        }
        let (values, _) = view.data().as_chunks();
        Ok(Array { shape: view.shape().to_vec(), values: values.iter().map(|&bytes| value(bytes)).collect() })
    }
}

/// An `EDGE` × `EDGE` matrix of uniform random numbers from 0 to 1.
pub fn random_matrix(seed: u64) -> Array<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    Array { shape: vec![EDGE, EDGE], values: (0..EDGE * EDGE).map(|_| random.f32()).collect() }
}
