//! Lowering a primitive as a program of other primitives.

use super::{Lowering, Value};
use crate::array::Array;
use crate::error::{Result, err};
use crate::program::Aval;
use crate::program::trace::trace;

impl Lowering {
    /// Writes what `f` computes on these values. `f` may use plain numbers but no arrays from outside.
    pub fn expand(&mut self, args: &[Value], f: impl FnOnce(&[Array]) -> Result<Vec<Array>>) -> Result<Vec<Value>> {
        let avals: Vec<Aval> = args.iter().map(|&v| self.aval(v)).collect();
        let traced = trace(&avals, f)?;
        if !traced.captures.is_empty() {
            return Err(err!(NotImplemented, "a primitive's expansion uses an array that is not its operand"));
        }
        self.program(&traced.program.simplified(), args)
    }
}
