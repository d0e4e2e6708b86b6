//! Text that another program was lowered to, as functions beside `main`.

use std::collections::BTreeMap;

use super::location::MAIN;
use super::{Lowering, Value};
use crate::core::program::Aval;
use crate::error::{Result, err};
use crate::sharding::Mesh;

/// A module of StableHLO with one operation a line and without locations: as
/// [`Module::text`](super::module::Module::text) writes it, or MLIR's own printer.
pub(crate) struct Imported<'a> {
    /// What tells it from every other.
    pub key: &'a str,
    pub text: &'a str,
    /// Its meshes, in the order in which they stand there.
    pub meshes: &'a [Mesh],
}

impl Lowering {
    /// Calls the `main` of a foreign module, which is written once, however often it is called.
    pub(crate) fn call_imported(&mut self, of: &Imported, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let at = match self.functions.iter().position(|(key, _)| key == of.key) {
            Some(at) => at,
            None => {
                let functions = self.renamed(of, self.functions.len())?;
                self.functions.push((of.key.to_owned(), functions));
                self.functions.len() - 1
            }
        };
        Ok(self.op_with("func.call", args, &format!("callee = @{}", named(at, "main")), Vec::new(), outs))
    }

    /// The functions of the module of this number: under names of their own, with this module's names of meshes and its own
    /// channels, and without the attributes of `main`'s arguments, which only the first of a program may have.
    fn renamed(&mut self, of: &Imported, number: usize) -> Result<String> {
        let (mut names, mut meshes) = (BTreeMap::new(), of.meshes.iter());
        let mut kept = Vec::new();
        for line in of.text.lines().filter(|line| line.starts_with("  ")) {
            let symbol = line.split_once('@').map_or("", |(_, rest)| symbol(rest));
            if line.starts_with("  sdy.mesh @") {
                let mesh = meshes
                    .next()
                    .ok_or_else(|| err!(Value, "the program has mesh @{symbol}, of which nothing is said"))?;
                names.insert(symbol, self.mesh_name(mesh));
                continue;
            }
            if line.starts_with("  func.func ") {
                names.insert(symbol, named(number, symbol));
            }
            kept.push(match line.strip_prefix(MAIN) {
                Some(signature) => format!("  func.func private @main({}", without_attributes(signature)),
                None => line.to_owned(),
            });
        }
        if !names.contains_key("main") {
            return Err(err!(Value, "the program has no function @main"));
        }
        let text = replaced(&(kept.join("\n") + "\n"), "@", |rest| {
            let symbol = symbol(rest);
            Some((format!("@{}", names.get(symbol)?), symbol.len()))
        });
        const CHANNEL: &str = "channel_handle<handle = ";
        Ok(replaced(&text, CHANNEL, |rest| Some((format!("{CHANNEL}{}", self.channel()), digits(rest).len()))))
    }
}

/// What a function of a foreign module is called here.
fn named(number: usize, function: &str) -> String {
    format!("exported_{number}_{function}")
}

/// The symbol that a text begins with.
fn symbol(text: &str) -> &str {
    let part = |c: char| c.is_ascii_alphanumeric() || "_.$-".contains(c);
    &text[..text.find(|c| !part(c)).unwrap_or(text.len())]
}

fn digits(text: &str) -> &str {
    &text[..text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())]
}

/// The text with what stands at each `pattern`, and so many bytes behind it, replaced, where `with` says by what.
fn replaced(text: &str, pattern: &str, mut with: impl FnMut(&str) -> Option<(String, usize)>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(pattern) {
        let (before, after) = (&rest[..at], &rest[at + pattern.len()..]);
        out.push_str(before);
        let (new, taken) = with(after).unwrap_or_else(|| (pattern.to_owned(), 0));
        out.push_str(&new);
        rest = &after[taken..];
    }
    out.push_str(rest);
    out
}

/// The types of a signature without the attributes in braces behind them; the brace that opens the body stays.
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
