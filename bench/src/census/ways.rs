//! The ways in which the census calls a function.

use shardax::prelude::*;

use super::Kind;

/// A way to call a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Compiled.
    Jit,
    /// Operation by operation.
    Eager,
    /// The compiled gradient of the sum of the result's squares with respect to all arrays.
    Gradient,
    /// Compiled, with arrays of bfloat16.
    Bf16,
    /// Compiled, with arrays of float64.
    F64,
}

impl Way {
    /// The ways and sizes in which functions of these arrays are measured.
    pub fn of(kind: Kind) -> Vec<(Way, usize)> {
        let jit = [0, 1, 2].map(|size| (Way::Jit, size));
        let eager = [0, 1].map(|size| (Way::Eager, size));
        let gradient = [1, 2].map(|size| (Way::Gradient, size));
        let dtypes: &[(Way, usize)] = match kind {
            Kind::Product16 | Kind::Product8 | Kind::Integers | Kind::Key => return [jit.as_slice(), &eager].concat(),
            // Decompositions have no bfloat16.
            Kind::Square | Kind::Definite | Kind::System | Kind::Batch | Kind::DefiniteBatch => &[(Way::F64, 1)],
            _ => &[(Way::Bf16, 1), (Way::F64, 1)],
        };
        [&jit, eager.as_slice(), &gradient, dtypes].concat()
    }

    pub fn name(self) -> &'static str {
        match self {
            Way::Jit => "jit",
            Way::Eager => "eager",
            Way::Gradient => "gradient",
            Way::Bf16 => "bf16",
            Way::F64 => "f64",
        }
    }

    /// The arrays in the dtype of this way.
    pub fn converted(self, arrays: Vec<Array>) -> Vec<Array> {
        // Also turned off again, because random numbers would be float64 otherwise.
        config::enable_x64(self == Way::F64);
        let dtype = match self {
            Way::Bf16 => DType::Bf16,
            Way::F64 => DType::F64,
            _ => return arrays,
        };
        arrays.into_iter().map(|x| x.astype(dtype)).collect()
    }

    /// The function, called in this way.
    pub fn function(self, function: fn(&[Array]) -> Array) -> Box<dyn Fn(&[Array]) -> Result<Vec<Array>>> {
        // A function of integers has no gradient, and an error says so.
        match self {
            Way::Eager => Box::new(move |arrays| Ok(vec![function(arrays)])),
            Way::Gradient => {
                let gradient = jit(grad(move |arrays: Vec<Array>| function(&arrays).square().sum(..)));
                Box::new(move |arrays| gradient.call(arrays.to_vec()))
            }
            _ => {
                let compiled = jit(move |arrays: Vec<Array>| vec![function(&arrays)]);
                Box::new(move |arrays| compiled.call(arrays.to_vec()))
            }
        }
    }
}
