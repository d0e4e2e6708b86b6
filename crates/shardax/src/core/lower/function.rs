//! Functions next to `main`: programs that several equations call and that are written once.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use super::{Lowering, Value, attr};
use crate::core::program::shared::SharedProgram;
use crate::core::program::{Aval, Program};
use crate::error::Result;

/// The functions of a module next to `main`, each under a unique key.
#[derive(Default)]
pub(super) struct Functions {
    numbers: HashMap<String, usize>,
    texts: Vec<String>,
    /// The programs that more than one equation of the module calls.
    repeated: HashSet<usize>,
}

impl Functions {
    /// Creates an empty set of functions for the module of this program.
    pub fn of(program: &Program) -> Self {
        let (mut called, mut repeated) = (HashSet::new(), HashSet::new());
        program.for_each_distinct_eqn(&mut |eqn| {
            if let Some(callee) = eqn.primitive.callee()
                && !called.insert(callee.id())
            {
                repeated.insert(callee.id());
            }
        });
        Functions { repeated, ..Functions::default() }
    }

    /// The number of the function under this key.
    pub fn find(&self, key: &str) -> Option<usize> {
        self.numbers.get(key).copied()
    }

    /// Reserves the next number for a function that is defined later.
    pub fn reserve(&mut self, key: String) -> usize {
        let number = self.reserve_next();
        self.numbers.insert(key, number);
        number
    }

    /// Reserves the next number for a function that is called once, so that it needs no key.
    fn reserve_next(&mut self) -> usize {
        self.texts.push(String::new());
        self.texts.len() - 1
    }

    pub fn define(&mut self, number: usize, text: String) {
        self.texts[number] = text;
    }

    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(String::as_str)
    }
}

impl Lowering {
    /// Calls a program that several equations of the module call, as a separate function. Returns `None` if the program
    /// must be written in place, because no other equation calls it or because its text depends on the caller.
    ///
    /// XLA inlines the calls before it optimizes, so that the compiled code is the same as for a program written in
    /// place. In modules for several devices programs are written in place unless they call others several times,
    /// because the text of a function has one sharding for all its calls.
    pub(crate) fn call_function(
        &mut self,
        name: &str,
        program: &SharedProgram,
        args: &[Value],
        outs: &[Aval],
    ) -> Result<Option<Vec<Value>>> {
        let may_call = !self.many_devices || program.repeats_equations();
        if !may_call || !self.functions.repeated.contains(&program.id()) {
            return Ok(None);
        }
        // The text depends on the caller if an argument is the caller's index of platforms.
        if args.iter().any(|arg| self.platform_index(*arg).is_some()) {
            return Ok(None);
        }
        let key = format!("call {} {:?}", program.id(), self.manual_axes);
        let number = match self.functions.find(&key) {
            Some(number) => number,
            None => {
                let number = self.functions.reserve(key);
                let inputs: Vec<Aval> = program.in_avals().cloned().collect();
                let body = self.function_body(&inputs, |cx, args| cx.program(program, args))?;
                self.functions.define(number, body.function(&symbol(name, number), &program.out_avals()));
                number
            }
        };
        let attrs = format!("callee = @{}", symbol(name, number));
        Ok(Some(self.op_with("func.call", args, &attrs, Vec::new(), outs)))
    }

    /// Writes the operations of `body` as a separate function, and a call of it with these attributes. Returns `None`,
    /// and writes no call, if `accepts` returns `false` for the operations.
    ///
    /// `body` must not refer to values other than its arguments.
    pub(crate) fn outline(
        &mut self,
        (name, attrs): (&str, &str),
        args: &[Value],
        outs: &[Aval],
        body: impl FnOnce(&mut Lowering, &[Value]) -> Result<Vec<Value>>,
        accepts: impl FnOnce(&str) -> bool,
    ) -> Result<Option<Vec<Value>>> {
        let inputs: Vec<Aval> = args.iter().map(|arg| self.aval(*arg)).collect();
        let outer = std::mem::replace(&mut self.outlining, true);
        let body = self.function_body(&inputs, body);
        self.outlining = outer;
        let body = body?;
        if !accepts(&body.text) {
            return Ok(None);
        }
        let number = self.functions.reserve_next();
        let symbol = symbol(name, number);
        self.functions.define(number, body.function(&symbol, outs));
        let attrs = format!("callee = @{symbol}, {attrs}");
        Ok(Some(self.op_with("func.call", args, &attrs, Vec::new(), outs)))
    }

    /// Returns `true` while the operations of a function are written by [`outline`](Self::outline).
    pub(crate) fn is_outlining(&self) -> bool {
        self.outlining
    }

    /// Writes the operations of a function with inputs of these types.
    fn function_body(
        &mut self,
        inputs: &[Aval],
        body: impl FnOnce(&mut Lowering, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<FunctionBody> {
        // The function's operations are at the top level of the module, wherever the first call is.
        let (outer, indent) = (std::mem::take(&mut self.text), std::mem::replace(&mut self.indent, 2));
        let mut args = Vec::with_capacity(inputs.len());
        let mut parameters = String::new();
        for (i, aval) in inputs.iter().enumerate() {
            let name = self.fresh();
            args.push(self.define(name, None, aval));
            let _ = write!(parameters, "{}%{name}: ", if i > 0 { ", " } else { "" });
            attr::write_type(&mut parameters, aval.dtype, &aval.shape);
        }
        let values = self.named_in_function(|cx| body(cx, &args));
        if let Ok(values) = &values {
            self.op_with("func.return", values, "", Vec::new(), &[]);
        }
        self.indent = indent;
        let text = std::mem::replace(&mut self.text, outer);
        values.map(|_| FunctionBody { parameters, text })
    }
}

/// The text of a function's parameters and operations.
struct FunctionBody {
    parameters: String,
    text: String,
}

impl FunctionBody {
    /// Returns the text of a private function with this body.
    fn function(&self, symbol: &str, outs: &[Aval]) -> String {
        let mut text = format!("  func.func private @{symbol}({}) -> (", self.parameters);
        for (i, aval) in outs.iter().enumerate() {
            text.push_str(if i > 0 { ", " } else { "" });
            attr::write_type(&mut text, aval.dtype, &aval.shape);
        }
        text.push_str(") {\n");
        text.push_str(&self.text);
        text.push_str("  }\n");
        text
    }
}

/// The symbol of a called function.
fn symbol(name: &str, number: usize) -> String {
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("{name}_{number}")
}
