//! JSON formatted like Python's `json.dumps`, because models were trained with such texts.

use std::io;

use minijinja::value::Value;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Formats a value in one line with spaces after colons and commas, or indented.
pub(super) fn written(value: &Value, indent: Option<usize>) -> serde_json::Result<String> {
    let mut out = Vec::new();
    match indent {
        Some(width) => {
            let spaces = vec![b' '; width];
            value.serialize(&mut Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(&spaces)))?;
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut out, OneLine))?,
    }
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// A JSON formatter that writes one line, with a space after each comma and colon.
struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
