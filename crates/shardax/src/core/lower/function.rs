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

    /// Returns the number of the function under this key.
    pub fn find(&self, key: &str) -> Option<usize> {
        self.numbers.get(key).copied()
    }

    /// Reserves the next number for a function that is defined later.
    pub fn reserve(&mut self, key: String) -> usize {
        self.texts.push(String::new());
        self.numbers.insert(key, self.texts.len() - 1);
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
                let text = self.function_text(&symbol(name, number), program)?;
                self.functions.define(number, text);
                number
            }
        };
        let attrs = format!("callee = @{}", symbol(name, number));
        Ok(Some(self.op_with("func.call", args, &attrs, Vec::new(), outs)))
    }

    /// The text of a private function that computes the program.
    fn function_text(&mut self, symbol: &str, program: &Program) -> Result<String> {
        // The function's operations are at the top level of the module, wherever the first call is.
        let (outer, indent) = (std::mem::take(&mut self.text), std::mem::replace(&mut self.indent, 2));
        let mut args = Vec::with_capacity(program.inputs.len());
        for aval in program.in_avals() {
            let name = self.fresh();
            args.push(self.define(name, None, aval));
        }
        let values = self.named_in_function(|cx| cx.program(program, &args));
        if let Ok(values) = &values {
            self.op_with("func.return", values, "", Vec::new(), &[]);
        }
        self.indent = indent;
        let body = std::mem::replace(&mut self.text, outer);
        values?;

        let mut text = format!("  func.func private @{symbol}(");
        for (i, (arg, aval)) in args.iter().zip(program.in_avals()).enumerate() {
            let _ = write!(text, "{}%{}: ", if i > 0 { ", " } else { "" }, self.values[arg.0 as usize].name);
            attr::write_type(&mut text, aval.dtype, &aval.shape);
        }
        text.push_str(") -> (");
        for (i, aval) in program.out_avals().iter().enumerate() {
            text.push_str(if i > 0 { ", " } else { "" });
            attr::write_type(&mut text, aval.dtype, &aval.shape);
        }
        text.push_str(") {\n");
        text.push_str(&body);
        text.push_str("  }\n");
        Ok(text)
    }
}

/// The symbol of a called function.
fn symbol(name: &str, number: usize) -> String {
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("{name}_{number}")
}
