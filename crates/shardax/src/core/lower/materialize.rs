//! Materialized values: values that are computed once, although the compiler would fuse them into each loop that uses
//! them.

use std::fmt::Write as _;

use super::attr::write_type;
use super::{Lowering, Value};

impl Lowering {
    /// Materializes `v` in memory, because XLA fuses nothing across the call of a function that must not be inlined.
    /// (An `optimization_barrier` is not enough: XLA drops it before it fuses.)
    pub(crate) fn materialize(&mut self, v: Value) -> Value {
        let aval = self.aval(v);
        let mut key = String::from("keep ");
        write_type(&mut key, aval.dtype, &aval.shape);
        let number = self.functions.find(&key).unwrap_or_else(|| {
            let number = self.functions.reserve(key.clone());
            let (ty, mut text) = (&key["keep ".len()..], String::new());
            let _ = writeln!(text, "  func.func private @keep_{number}(%0: {ty}) -> ({ty}) {{");
            let _ = writeln!(text, "    \"func.return\"(%0) : ({ty}) -> ()\n  }}");
            self.functions.define(number, text);
            number
        });
        let attrs = format!("callee = @keep_{number}, mhlo.frontend_attributes = {{inlineable = \"false\"}}");
        let result = self.op("func.call", &[v], &attrs, &aval);
        self.values[result.0 as usize].converted_from = self.converted_from(v);
        result
    }
}
