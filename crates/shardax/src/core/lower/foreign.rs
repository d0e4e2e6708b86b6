//! Text that another program was lowered to, as a function beside `main`.

use super::{Lowering, Value};
use crate::core::program::Aval;
use crate::error::{Result, err};
use crate::sharding::Mesh;

/// A module as [`Module::text`](super::module::Module::text) writes it, without locations.
pub(crate) struct Foreign<'a> {
    /// What tells it from every other.
    pub key: &'a str,
    pub text: &'a str,
    /// Its meshes, in the order in which it names them.
    pub meshes: &'a [Mesh],
}

impl Lowering {
    /// Calls the `main` of a foreign module, which is written once, however often it is called.
    pub(crate) fn call_foreign(&mut self, of: &Foreign, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let at = match self.functions.iter().position(|(key, _)| key == of.key) {
            Some(at) => at,
            None => {
                let function = self.function(of, self.functions.len())?;
                self.functions.push((of.key.to_owned(), function));
                self.functions.len() - 1
            }
        };
        Ok(self.op_with("func.call", args, &format!("callee = @exported_{at}"), Vec::new(), outs))
    }

    /// The function of this number: under a name of its own, with this module's names of meshes and its own channels, and
    /// without the attributes of its arguments, which only `main` may have. Functions that it brings along go with it.
    fn function(&mut self, of: &Foreign, number: usize) -> Result<String> {
        let meshes: Vec<String> = of.meshes.iter().map(|mesh| self.mesh_name(mesh)).collect();
        let mut text = String::new();
        for line in of.text.lines().filter(|line| line.starts_with("  ") && !line.starts_with("  sdy.mesh ")) {
            let line = match line.strip_prefix("  func.func public @main(") {
                Some(rest) => format!("  func.func private @main({}", without_attributes(rest)),
                None => line.to_owned(),
            };
            let line = line.replace("@exported_", &format!("@exported_{number}_"));
            let line = line.replace("@main(", &format!("@exported_{number}("));
            text.push_str(&line);
            text.push('\n');
        }
        let mut failed = None;
        let text = replaced(&text, "@mesh", |rest| {
            let (own, taken) = match rest.strip_prefix('_').map(digits) {
                Some(digits) if !digits.is_empty() => (digits.parse::<usize>().ok()?, digits.len() + 1),
                _ => (0, 0),
            };
            let name = meshes.get(own);
            if name.is_none() {
                failed = Some(own);
            }
            Some((format!("@{}", name?), taken))
        });
        if let Some(own) = failed {
            return Err(err!(Value, "the program names mesh {own}, of which nothing is said"));
        }
        const CHANNEL: &str = "channel_handle<handle = ";
        Ok(replaced(&text, CHANNEL, |rest| Some((format!("{CHANNEL}{}", self.channel()), digits(rest).len()))))
    }
}

/// The digits that a text begins with.
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
        match with(after) {
            Some((new, taken)) => {
                out.push_str(&new);
                rest = &after[taken..];
            }
            None => {
                out.push_str(pattern);
                rest = after;
            }
        }
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
