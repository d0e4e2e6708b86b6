//! An exported model, compiled for several batch sizes.

use std::fs;
use std::path::Path;

use shardax::export::{Exported, export};
use shardax::nn;
use shardax::prelude::*;
use shardax::{Error, ErrorKind};

use crate::server::Batched;

/// A function of rows, exported for several numbers of rows.
pub struct Model {
    features: usize,
    sizes: Vec<(usize, Compiled<(Array,), Array>)>,
    /// The number of programs that were compiled; the others were loaded.
    pub compiled: usize,
}

fn file_error(path: &Path, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Runtime, format!("{}: {error}", path.display()))
}

impl Model {
    /// Loads the functions in a folder. Compiled programs are saved next to them and loaded the next time.
    pub fn load(folder: &Path) -> Result<Model> {
        let mut model = Model { features: 0, sizes: Vec::new(), compiled: 0 };
        let mut missing = Vec::new();
        for entry in fs::read_dir(folder).map_err(|e| file_error(folder, e))? {
            let path = entry.map_err(|e| file_error(folder, e))?.path();
            // Files that JAX exported work too.
            if path.extension().is_none_or(|extension| extension != "safetensors" && extension != "jax") {
                continue;
            }
            let exported = Exported::<(Array,), Array>::load(&path)?;
            let shapes: Vec<_> = exported.in_avals().map(|(_, aval)| aval.shape.to_vec()).collect();
            let [shape] = shapes.as_slice() else {
                return Err(Error::new(
                    ErrorKind::Value,
                    format!("{}: a function of rows was expected", path.display()),
                ));
            };
            let &[rows, features] = shape.as_slice() else {
                return Err(Error::new(
                    ErrorKind::Value,
                    format!("{}: a function of rows was expected", path.display()),
                ));
            };
            if model.features != features && model.features != 0 {
                return Err(Error::new(ErrorKind::Value, format!("{}: another number of features", path.display())));
            }
            model.features = features;
            let lowered =
                jit(move |x: Array| exported.call(x)).lower(shape_dtype_struct([rows, features], DType::F32))?;
            let executable_path = path.with_extension("executable");
            match fs::read(&executable_path).ok().and_then(|bytes| Compiled::load(&lowered, &bytes).ok()) {
                Some(compiled) => model.sizes.push((rows, compiled)),
                // It does not exist, or belongs to another plugin, processor or model.
                None => missing.push((rows, executable_path, lowered)),
            }
        }
        let lowered: Vec<_> = missing.iter().map(|(_, _, lowered)| lowered.clone()).collect();
        for ((rows, kept, _), compiled) in missing.into_iter().zip(compile_all(&lowered)?) {
            fs::write(&kept, compiled.serialize()?).map_err(|e| file_error(&kept, e))?;
            model.compiled += 1;
            model.sizes.push((rows, compiled));
        }
        // The first call of a program initializes it.
        for (rows, compiled) in &model.sizes {
            compiled.call(zeros([*rows, model.features]))?.block_until_ready()?;
        }
        model.sizes.sort_by_key(|(rows, _)| *rows);
        if !model.sizes.is_empty() {
            Ok(model)
        } else {
            Err(Error::new(ErrorKind::Value, format!("{}: no exported function is there", folder.display())))
        }
    }

    pub fn features(&self) -> usize {
        self.features
    }

    pub fn sizes(&self) -> impl Iterator<Item = usize> {
        self.sizes.iter().map(|(rows, _)| *rows)
    }
}

impl Batched for Model {
    fn largest(&self) -> usize {
        self.sizes().last().unwrap_or(1)
    }

    fn check(&self, row: &[f32]) -> Result<(), String> {
        if row.len() == self.features {
            Ok(())
        } else {
            Err(format!("it has {} features, and the model takes {}", row.len(), self.features))
        }
    }

    /// Runs the smallest program that is large enough, padded with zeros.
    async fn run(&self, rows: &[Vec<f32>]) -> Result<Vec<Vec<f32>>> {
        let (size, program) = self.sizes.iter().find(|(size, _)| *size >= rows.len()).unwrap_or(&self.sizes[0]);
        let mut data = rows.concat();
        data.resize(size * self.features, 0.0);
        let out = program.call(Array::from_vec(data, &[*size, self.features])?)?;
        // The thread runs other tasks until the result is ready.
        out.ready().await?;
        let width = out.shape()[1..].iter().product::<usize>().max(1);
        Ok(out.to_vec::<f32>()?.chunks(width).take(rows.len()).map(<[f32]>::to_vec).collect())
    }
}

/// Writes a classifier with random weights for each size, in place of a trained one.
pub fn write(folder: &Path, sizes: &[usize], hidden: usize) -> Result<()> {
    fs::create_dir_all(folder).map_err(|e| file_error(folder, e))?;
    let keys: [Array; 3] = random::split(&random::key(0), 3).unstack()?;
    let weights: Vec<Array> = keys
        .iter()
        .zip([[784, hidden], [hidden, hidden], [hidden, 10]])
        .map(|(key, [n, m])| random::normal(key, [n, m]) / (n as f32).sqrt())
        .collect();
    for &rows in sizes {
        let weights = weights.clone();
        let classify = move |x: Array| {
            let x = nn::relu(x.matmul(&weights[0]));
            let x = nn::relu(x.matmul(&weights[1]));
            nn::softmax(x.matmul(&weights[2]), -1)
        };
        let exported = export(classify, shape_dtype_struct([rows, 784], DType::F32))?;
        exported.save(folder.join(format!("{rows}.safetensors")))?;
    }
    Ok(())
}
