//! NumPy's elementwise functions, which `lax`, `numpy`, the operators of `Array` and the rules of primitives share.

mod binary;
mod unary;

pub use binary::*;
pub use unary::*;
