//! Imported text of another lowered program, as functions next to `main`.

use std::collections::BTreeMap;

use super::location::MAIN;
use super::{Lowering, Value};
use crate::core::program::Aval;
use crate::error::{Result, err};
use crate::sharding::Mesh;

/// A StableHLO module with one operation per line and without locations, as printed by
/// [`Module::text`](super::module::Module::text) or by MLIR's printer.
pub(crate) struct Imported<'a> {
    /// A unique key.
    pub key: &'a str,
    pub text: &'a str,
    /// The meshes of the module, in textual order.
    pub meshes: &'a [Mesh],
}

impl Lowering {
    /// Calls the `main` of an imported module. Its text is added once, however often it is called.
    pub(crate) fn call_imported(&mut self, module: &Imported, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let number = match self.functions.find(module.key) {
            Some(number) => number,
            None => {
                let number = self.functions.reserve(module.key.to_owned());
                let functions = self.renamed(module, number)?;
                self.functions.define(number, functions);
                number
            }
        };
        Ok(self.op_with("func.call", args, &format!("callee = @{}", named(number, "main")), Vec::new(), outs))
    }

    /// The functions of imported module `number`, with this module's names of meshes and with new channels.
    fn renamed(&mut self, of: &Imported, number: usize) -> Result<String> {
        let (mut names, mut meshes) = (BTreeMap::new(), of.meshes.iter());
        for line in of.text.lines().filter(|line| line.starts_with("  sdy.mesh @")) {
            let symbol = line.split_once('@').map_or("", |(_, rest)| symbol(rest));
            // Meshes with the same axes have one name.
            let mesh = meshes
                .next()
                .or(of.meshes.last())
                .ok_or_else(|| err!(Value, "the program names the mesh @{symbol}, which it does not define"))?;
            names.insert(symbol, self.mesh_name(mesh));
        }
        let text = functions(of.text, &named(number, ""), names)?;
        const CHANNEL: &str = "channel_handle<handle = ";
        Ok(replaced(&text, CHANNEL, |rest| Some((format!("{CHANNEL}{}", self.channel()), digits(rest).len()))))
    }
}

/// The functions of a module without meshes, for insertion into a module that does not come from a program. Their names
/// begin with `prefix`.
pub(crate) fn private_functions(text: &str, prefix: &str) -> Result<String> {
    functions(text, prefix, BTreeMap::new())
}

/// The functions of a module. Their names begin with `prefix`, meshes are renamed by `names`, and the attributes of
/// `main`'s arguments are removed, because only the outermost `main` of a program can have them.
fn functions<'a>(text: &'a str, prefix: &str, mut names: BTreeMap<&'a str, String>) -> Result<String> {
    let mut output = Vec::new();
    let lines = text.lines().filter(|line| line.starts_with("  ") && !line.starts_with("  sdy.mesh @"));
    for line in lines {
        if line.starts_with("  func.func ") {
            let symbol = line.split_once('@').map_or("", |(_, rest)| symbol(rest));
            names.insert(symbol, format!("{prefix}{symbol}"));
        }
        output.push(match line.strip_prefix(MAIN) {
            Some(signature) => format!("  func.func private @main({}", without_attributes(signature)),
            None => line.to_owned(),
        });
    }
    if !names.contains_key("main") {
        return Err(err!(Value, "the program has no function @main"));
    }
    Ok(replaced(&(output.join("\n") + "\n"), "@", |rest| {
        let symbol = symbol(rest);
        Some((format!("@{}", names.get(symbol)?), symbol.len()))
    }))
}

/// The name of an imported function in this module.
fn named(number: usize, function: &str) -> String {
    format!("exported_{number}_{function}")
}

/// The symbol at the start of a text.
fn symbol(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"_.$-".contains(c));
    &text[..end.unwrap_or(text.len())]
}

fn digits(text: &str) -> &str {
    &text[..text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())]
}

/// Replaces each match of `pattern` and some text after it. `with` returns the replacement and the number of bytes to
/// replace after the match.
fn replaced(text: &str, pattern: &str, mut with: impl FnMut(&str) -> Option<(String, usize)>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut remaining = text;
    while let Some(position) = remaining.find(pattern) {
        let (before, after) = (&remaining[..position], &remaining[position + pattern.len()..]);
        out.push_str(before);
        let (new, consumed) = with(after).unwrap_or_else(|| (pattern.to_owned(), 0));
        out.push_str(&new);
        remaining = &after[consumed..];
    }
    out.push_str(remaining);
    out
}

/// Removes the attributes in braces from the types of a signature; the brace that opens the body remains.
fn without_attributes(signature: &str) -> String {
    let (mut out, mut depth, end) = (String::new(), 0, signature.len().saturating_sub(1));
    for (at, c) in signature.char_indices() {
        match c {
            '{' if at < end => depth += 1,
            '}' => depth -= 1,
            c if depth == 0 => out.push(c),
            _ => {}
        }
    }
    out
}
