//! Source locations of operations. These are MLIR's locations, which become the metadata of the compiled program and of
//! profiles.
//!
//! While the text is being written, the line of each operation ends with the number of its location, `loc(#loc7)`. The
//! locations follow the module.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::core::program::{Eqn, Program};
use crate::scope::{Part, path};
use crate::source::Line;

#[derive(Default)]
pub(super) struct Locations {
    /// The current name parts.
    parts: Vec<Part>,
    current: usize,
    /// The text of each location, by number.
    all: Vec<String>,
    numbers: HashMap<String, usize>,
    /// `true` if the equations being written share the location of the one that they implement.
    shared: bool,
    /// `true` if locations are written.
    on: bool,
}

/// The state before an equation.
pub(super) struct Outer {
    depth: usize,
    current: usize,
}

impl Locations {
    /// Locations of a program of this name. None are written unless `on`.
    pub fn of(name: &str, on: bool) -> Self {
        if !on {
            return Locations::default();
        }
        let mut locations =
            Locations { parts: vec![Part::Name(format!("jit({name})").into())], on, ..Default::default() };
        let root = format!("loc({})", quoted(&path(locations.parts.iter(), "")));
        locations.current = locations.number(root);
        locations
    }

    fn number(&mut self, text: String) -> usize {
        *self.numbers.entry(text).or_insert_with_key(|text| {
            self.all.push(text.clone());
            self.all.len() - 1
        })
    }

    /// Attributes the following operations to this equation.
    pub fn enter(&mut self, eqn: &Eqn) -> Outer {
        let around = Outer { depth: self.parts.len(), current: self.current };
        if self.on && !self.shared {
            self.parts.extend_from_slice(eqn.scope.parts());
            let name = path(self.parts.iter(), eqn.primitive.name());
            let (file, line, column) = (eqn.source.file(), eqn.source.line(), eqn.source.column());
            self.current = self.number(format!("loc({}({}:{line}:{column}))", quoted(&name), quoted(file)));
        }
        around
    }

    pub fn leave(&mut self, around: Outer) {
        self.truncate(around.depth);
        self.current = around.current;
    }

    /// Adds a part to the names, and returns their previous number.
    pub fn push(&mut self, part: Option<Part>) -> usize {
        let depth = self.parts.len();
        self.parts.extend(part);
        depth
    }

    /// Replaces all names.
    pub fn replace(&mut self, parts: Vec<Part>) -> Vec<Part> {
        std::mem::replace(&mut self.parts, parts)
    }

    pub fn truncate(&mut self, depth: usize) {
        self.parts.truncate(depth);
    }

    /// Sets whether the following equations share the current location; returns the previous setting.
    pub fn share_location(&mut self, shared: bool) -> bool {
        std::mem::replace(&mut self.shared, shared)
    }

    /// Ends the line of an operation with its location.
    pub fn mark(&self, text: &mut String) {
        if !self.on {
            return;
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{REFERENCE}{})", self.current);
    }

    /// Adds the location of an input of the function, with the user's name for it.
    pub fn mark_input(&mut self, text: &mut String, name: &str) {
        let number = self.number(format!("loc({})", quoted(name)));
        let _ = write!(text, "{REFERENCE}{number})");
    }

    /// Writes the locations.
    pub fn write(&self, text: &mut String) {
        for (number, location) in self.all.iter().enumerate() {
            let _ = writeln!(text, "{DEFINITION}{number} = {location}");
        }
    }
}

const REFERENCE: &str = " loc(#loc";
const DEFINITION: &str = "#loc";

/// The beginning of the line of the function with named inputs.
pub(super) const MAIN: &str = "  func.func public @main(";

/// Removes the locations of a function's inputs from its line.
fn without_inputs(line: &str, plain: &mut String) {
    let mut parts = line.split(REFERENCE);
    plain.push_str(parts.next().unwrap_or_default());
    for part in parts {
        plain.push_str(part.split_once(')').map_or(part, |(_, rest)| rest));
    }
}

/// Removes the locations from a text.
pub(crate) fn without_locations(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for line in text.lines().filter(|line| !line.starts_with(DEFINITION)) {
        if line.starts_with(MAIN) {
            without_inputs(line, &mut plain);
        } else {
            let marked = line.ends_with(')').then(|| line.rfind(REFERENCE)).flatten();
            plain.push_str(&line[..marked.unwrap_or(line.len())]);
        }
        plain.push('\n');
    }
    plain
}

/// The user's line of the operation on this line of a text with locations. If the line has no location, it uses the
/// next line that has one.
pub(crate) fn source_on(text: &str, line: usize, program: &Program) -> Option<Line> {
    let number = text.lines().skip(line).find_map(|line| Some(line.rsplit_once(REFERENCE)?.1.trim_end_matches(')')))?;
    let begin = format!("{DEFINITION}{number} = ");
    let definition = text.lines().find(|line| line.starts_with(&begin))?;
    let mut source = None;
    program.for_each_distinct_eqn(&mut |eqn| {
        let (file, line, column) = (eqn.source.file(), eqn.source.line(), eqn.source.column());
        if definition.ends_with(&format!("({}:{line}:{column}))", quoted(file))) {
            source = Some(eqn.source);
        }
    });
    source
}

/// An MLIR string. Characters that are not plain are written as byte escapes.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for byte in text.bytes() {
        match byte {
            b'\\' => out.push_str("\\\\"),
            b' '..=b'~' if byte != b'"' => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "\\{byte:02X}");
            }
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removing_locations_equals_writing_without_locations() {
        let plain = "module @f {\n  func.func public @main(%0: tensor<2xf32> {a = \"loc(x)\"}, %1: tensor<f32>) -> (tensor<f32>) {\n    \
                     %2 = \"op\"(%0) : (tensor<2xf32>) -> tensor<f32>\n    \"func.return\"(%2) : (tensor<f32>) -> ()\n  }\n}\n";
        // Writes the same text with locations.
        let mut locations = Locations::of("f", true);
        let mut marked = String::new();
        for line in plain.lines() {
            match line.split_once(", %1: tensor<f32>)") {
                Some((first, rest)) => {
                    marked.push_str(first);
                    locations.mark_input(&mut marked, "argument[0]");
                    marked.push_str(", %1: tensor<f32>");
                    locations.mark_input(&mut marked, "argument[1].\"w\"");
                    let _ = write!(marked, "){rest}");
                }
                None => {
                    marked.push_str(line);
                    if line.starts_with("    ") {
                        locations.mark(&mut marked);
                    }
                }
            }
            marked.push('\n');
        }
        locations.write(&mut marked);
        assert!(marked.contains("loc(\"argument[1].\\22w\\22\")"), "{marked}");
        assert_eq!(without_locations(&marked), plain);
    }
}
