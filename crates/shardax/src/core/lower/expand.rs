//! Lowering a primitive as a program of other primitives.

use super::{Lowering, Value};
use crate::core::array::Array;
use crate::core::program::Aval;
use crate::core::program::trace::{Body, trace};
use crate::error::{Result, err};
use crate::sharding::context::with_abstract_mesh;

impl Lowering {
    /// Lowers `f`, applied to these values. `f` can use plain numbers but no arrays from outside.
    ///
    /// # Errors
    /// Returns an error if `f` fails, or if it uses an array from outside. Pass such an array as an operand
    /// instead.
    pub fn expand(&mut self, args: &[Value], f: impl FnOnce(&[Array]) -> Result<Vec<Array>>) -> Result<Vec<Value>> {
        self.expand_boxed(args, Box::new(f))
    }

    fn expand_boxed(&mut self, args: &[Value], f: Body<'_>) -> Result<Vec<Value>> {
        // The compiler chooses how the intermediate values are sharded, and the result is constrained to the sharding
        // in its type. Only addends keep their types, because the compiler would otherwise sum them, and then use the
        // sum as the addend of each device.
        let mesh = args.iter().find_map(|v| self.typed(*v).filter(|typed| !typed.unreduced().is_empty()));
        let mesh = mesh.map(|typed| typed.mesh().clone());
        let mut avals: Vec<Aval> = Vec::with_capacity(args.len());
        for &v in args {
            avals.push(Aval { sharding: mesh.as_ref().and_then(|_| self.typed(v)), ..self.aval(v) });
        }
        let traced = with_abstract_mesh(mesh.clone(), || trace(&avals, f))?;
        if !traced.captures.is_empty() {
            return Err(err!(NotImplemented, "a primitive's expansion uses an array that is not its operand")
                .help("pass the array to the primitive as an operand"));
        }
        // The operations of an expansion share the source line of the primitive.
        let before = self.locations.share_location(true);
        let outs = self.program(&traced.program.simplified(), args);
        self.locations.share_location(before);
        outs
    }
}
