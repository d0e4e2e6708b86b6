//! NumPy's elementwise functions, which `lax`, `numpy`, the operators of `Array` and the rules of primitives share.

mod one_array;
mod two_arrays;

pub use one_array::*;
pub use two_arrays::*;
