//! Printing programs.
//!
//! ```text
//! { lambda a:f32[4] b:f32[].
//!   c:f32[4] = broadcast_in_dim[shape=(4,) dims=()] b
//!   d:f32[4] = mul a c
//!   in (d) }
//! ```

use std::collections::HashMap;
use std::fmt;

use super::{Atom, Aval, Program, Var};
use crate::dtype::{DType, Scalar};
use crate::sharding::typed::entry_text;
use crate::stack::grow;

/// `float32[8,128]`, with a weak type marked by `~` and varying axes by `{V:i}`.
impl fmt::Display for Aval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dtype)?;
        write_shape(f, self)
    }
}

impl fmt::Debug for Aval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn write_shape(f: &mut impl fmt::Write, aval: &Aval) -> fmt::Result {
    f.write_char('[')?;
    for (i, d) in aval.shape.iter().enumerate() {
        write!(f, "{}{d}", if i == 0 { "" } else { "," })?;
        if let Some(entry) = aval.sharding().and_then(|typed| typed.dims().get(i)) {
            f.write_str(&entry_text(entry))?;
        }
    }
    f.write_char(']')?;
    if aval.weak {
        f.write_char('~')?;
    }
    let mut sets = aval.sharding().map_or_else(Vec::new, |typed| typed.sets_text());
    if !aval.vma.is_empty() {
        let names: Vec<_> = aval.vma.iter().map(|n| n.as_str()).collect();
        sets.insert(0, format!("V:{}", names.join(",")));
    }
    if !sets.is_empty() {
        write!(f, "{{{}}}", sets.join(", "))?;
    }
    Ok(())
}

impl Aval {
    /// Returns the type in a printed program: `f32[8,128]`.
    pub fn short(&self) -> String {
        let mut text = self.dtype.short().to_owned();
        // Writing to a string cannot fail.
        let _ = write_shape(&mut text, self);
        text
    }
}

/// Names variables a, b, … z, ba, bb, … in the order of their definition.
struct Names(Vec<Option<String>>, usize);

impl Names {
    fn define(&mut self, var: Var) -> String {
        let mut n = self.1;
        self.1 += 1;
        let mut name = Vec::new();
        loop {
            name.push(b'a' + (n % 26) as u8);
            n /= 26;
            if n == 0 {
                break;
            }
        }
        name.reverse();
        let name: String = name.into_iter().map(char::from).collect();
        self.0[var.index()] = Some(name.clone());
        name
    }

    fn atom(&self, atom: &Atom) -> String {
        match atom {
            Atom::Var(v) => self.0[v.index()].clone().unwrap_or_else(|| "_".into()),
            Atom::Literal { value, dtype, weak } => {
                format!("{}:{}[]{}", literal(*value, *dtype), dtype.short(), if *weak { "~" } else { "" })
            }
        }
    }
}

fn literal(value: Scalar, dtype: DType) -> String {
    match value {
        Scalar::Float(bits) if dtype == DType::F32 => format!("{:?}", f64::from_bits(bits) as f32),
        other => format!("{other:?}"),
    }
}

impl Program {
    /// Prints the program. A program that repeats the equations of others is printed once with a number, so that the
    /// text is not exponential in the depth of calls; `numbers` has the programs so far.
    fn print(&self, f: &mut fmt::Formatter<'_>, indent: usize, numbers: &mut HashMap<usize, usize>) -> fmt::Result {
        let mut names = Names(vec![None; self.avals.len()], 0);
        write!(f, "{{ lambda")?;
        for &var in &self.inputs {
            let aval = self.aval_of(var).short();
            write!(f, " {}:{aval}", names.define(var))?;
        }
        writeln!(f, ".")?;
        let pad = " ".repeat(indent + 2);
        for eqn in &self.eqns {
            f.write_str(&pad)?;
            for &var in &eqn.outputs {
                let aval = self.aval_of(var).short();
                write!(f, "{}:{aval} ", names.define(var))?;
            }
            write!(f, "= {}", eqn.primitive.name())?;
            let params = eqn.primitive.print_params();
            let mut programs = eqn.primitive.programs();
            if !params.is_empty() || !programs.is_empty() {
                write!(f, "[{params}")?;
                // A program that several equations call is printed once, and referred to by its number.
                if let Some(callee) = eqn.primitive.callee().filter(|callee| callee.repeats_equations()) {
                    let new_number = numbers.len() + 1;
                    let number = *numbers.entry(callee.id()).or_insert(new_number);
                    write!(f, " program={number}")?;
                    if number < new_number {
                        programs.clear();
                    }
                }
                for inner in programs {
                    write!(f, "\n{pad}  ")?;
                    grow(|| inner.print(f, indent + 4, numbers))?;
                }
                write!(f, "]")?;
            }
            for atom in &eqn.inputs {
                write!(f, " {}", names.atom(atom))?;
            }
            writeln!(f)?;
        }
        let outs: Vec<_> = self.outputs.iter().map(|a| names.atom(a)).collect();
        write!(f, "{pad}in ({}) }}", outs.join(", "))
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.print(f, 0, &mut HashMap::new())
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.print(f, 0, &mut HashMap::new())
    }
}
