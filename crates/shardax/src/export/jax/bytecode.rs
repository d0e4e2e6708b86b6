//! The container of MLIR bytecode: sections, strings, operation names, and the positions of attributes and types.

use super::damaged;
use crate::error::{Result, err};

/// A byte reader with bounds checks.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(|| damaged("its program ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    /// Reads a number. The trailing zeros of the first byte count the bytes that follow.
    pub fn varint(&mut self) -> Result<u64> {
        let first_byte = self.byte()?;
        let more = first_byte.trailing_zeros() as usize;
        let mut number = [0; 8];
        if more == 8 {
            number.copy_from_slice(self.take(8)?);
            return Ok(u64::from_le_bytes(number));
        }
        number[0] = first_byte;
        number[1..=more].copy_from_slice(self.take(more)?);
        Ok(u64::from_le_bytes(number) >> (more + 1))
    }

    pub fn signed(&mut self) -> Result<i64> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Reads a number and a flag; the flag is the lowest bit.
    pub fn flagged(&mut self) -> Result<(usize, bool)> {
        let value = self.varint()?;
        Ok((index(value >> 1)?, value & 1 == 1))
    }

    pub fn index(&mut self) -> Result<usize> {
        index(self.varint()?)
    }

    /// Reads the number of items that follow; each has at least one byte.
    pub fn count(&mut self) -> Result<usize> {
        let count = self.index()?;
        if count <= self.0.len() {
            Ok(count)
        } else {
            Err(damaged(format!("its program says that {count} things follow in {} bytes", self.0.len())))
        }
    }

    pub fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        (0..self.count()?).map(|_| one(self)).collect()
    }

    /// Reads a section and its number. If the section is aligned, padding precedes it.
    pub fn section(&mut self, module_size: usize) -> Result<(u8, Bytes<'a>)> {
        let kind = self.byte()?;
        let size = self.index()?;
        if kind & 0x80 != 0 {
            let alignment = self.index()?.max(1);
            while !(module_size - self.0.len()).is_multiple_of(alignment) {
                self.byte()?;
            }
        }
        Ok((kind & 0x7f, Bytes(self.take(size)?)))
    }
}

fn index(value: u64) -> Result<usize> {
    usize::try_from(value).map_err(damaged)
}

/// An attribute or a type: its dialect, and `true` if its bytes are numbers instead of a text.
pub(super) struct Entry<'a> {
    pub dialect: &'a str,
    pub encoded: bool,
    pub bytes: &'a [u8],
}

/// A module split into sections, not yet interpreted.
pub(super) struct Bytecode<'a> {
    /// Texts, most of them UTF-8.
    pub strings: Vec<&'a [u8]>,
    /// Dialect and name of operations.
    pub operations: Vec<(&'a str, &'a str)>,
    pub attributes: Vec<Entry<'a>>,
    pub types: Vec<Entry<'a>>,
    pub properties: Vec<Bytes<'a>>,
    pub ir: Bytes<'a>,
    /// The version of the bytecode, which decides how operations and regions are written.
    pub version: u64,
    /// The number of bytes read.
    pub size: usize,
}

/// The bytecode versions of portable artifacts: StableHLO 0.9 writes the first, StableHLO 0.15 and later the last.
const VERSIONS: std::ops::RangeInclusive<u64> = 0..=6;

/// The first versions in which dialects have versions, isolated regions are sections, blocks contain the order of uses,
/// locations of arguments can be missing, and properties are separate from the attributes.
pub(super) const VERSIONED: u64 = 1;
pub(super) const SECTIONS: u64 = 2;
pub(super) const ORDERS: u64 = 3;
pub(super) const NO_LOCATIONS: u64 = 4;
pub(super) const PROPERTIES: u64 = 5;

impl<'a> Bytecode<'a> {
    pub fn of(bytes: &'a [u8]) -> Result<Bytecode<'a>> {
        // The header: a magic number, the version, and the name of the producer.
        let mut reader =
            Bytes(bytes.strip_prefix(b"ML\xefR").ok_or_else(|| damaged("its program is no MLIR bytecode"))?);
        let version = reader.varint()?;
        let end = reader.0.iter().position(|&byte| byte == 0).ok_or_else(|| damaged("its program has no producer"))?;
        let producer = String::from_utf8_lossy(reader.take(end)?).into_owned();
        reader.byte()?;
        if !VERSIONS.contains(&version) || !producer.starts_with("StableHLO") {
            return Err(err!(
                Value,
                "the program is bytecode of version {version} by {producer:?}, and StableHLO's of versions {} to {} is read",
                VERSIONS.start(),
                VERSIONS.end()
            )
            .help("write the function with `exchange.save` of `tools/export`, which stores its program as text"));
        }
        // Sections can come in any order, and refer to each other.
        let mut sections = [Bytes(&[]); 9];
        while !reader.is_empty() {
            let (kind, section) = reader.section(bytes.len())?;
            let slot = sections.get_mut(usize::from(kind));
            *slot.ok_or_else(|| damaged(format!("its program has a section {kind}")))? = section;
        }
        let [strings, dialects, entries, offsets, ir, _, _, _, properties] = sections;
        let strings = self::strings(strings)?;
        let (dialects, operations) = names(dialects, &strings, version)?;
        let (attributes, types) = self::entries(entries, offsets, &dialects)?;
        let mut properties = properties;
        let properties = if properties.is_empty() {
            Vec::new()
        } else {
            properties.list(|r| {
                let size = r.count()?;
                Ok(Bytes(r.take(size)?))
            })?
        };
        Ok(Bytecode { strings, operations, attributes, types, properties, ir, version, size: bytes.len() })
    }

    pub fn string(&self, r: &mut Bytes<'a>) -> Result<&'a str> {
        text(&self.strings, r.index()?)
    }
}

/// Returns an element of one of the module's lists.
pub(super) fn at<T>(of: &[T], index: usize) -> Result<&T> {
    of.get(index).ok_or_else(|| damaged(format!("its program asks for entry {index} of {}", of.len())))
}

/// Reads texts: first their lengths in reverse order, then the texts, each followed by a zero.
fn strings(mut r: Bytes<'_>) -> Result<Vec<&[u8]>> {
    let lengths = r.list(|r| r.index())?;
    let mut texts = Vec::with_capacity(lengths.len());
    for length in lengths.into_iter().rev() {
        let text = r.take(length)?;
        texts.push(text.split_last().map_or(text, |(_, text)| text));
    }
    Ok(texts)
}

/// The names of dialects, and of operations with their dialects.
type Names<'a> = (Vec<&'a str>, Vec<(&'a str, &'a str)>);

/// One of the strings, as a text.
fn text<'a>(strings: &[&'a [u8]], index: usize) -> Result<&'a str> {
    std::str::from_utf8(at(strings, index)?).map_err(damaged)
}

fn names<'a>(mut r: Bytes<'a>, strings: &[&'a [u8]], version: u64) -> Result<Names<'a>> {
    let module_size = r.0.len();
    let dialects = r.list(|r| {
        let (name, versioned) = if version < VERSIONED { (r.index()?, false) } else { r.flagged()? };
        if versioned {
            r.section(module_size)?;
        }
        text(strings, name)
    })?;
    if version >= NO_LOCATIONS {
        // The number of operation names of the dialect.
        r.index()?;
    }
    let mut operations = Vec::new();
    while !r.is_empty() {
        let dialect = *at(&dialects, r.index()?)?;
        for name in r.list(|r| if version < PROPERTIES { r.index() } else { Ok(r.flagged()?.0) })? {
            operations.push((dialect, text(strings, name)?));
        }
    }
    Ok((dialects, operations))
}

/// The attributes and the types, in sequence, grouped by dialect.
fn entries<'a>(
    mut bytes: Bytes<'a>,
    mut r: Bytes<'a>,
    dialects: &[&'a str],
) -> Result<(Vec<Entry<'a>>, Vec<Entry<'a>>)> {
    let counts = [r.count()?, r.count()?];
    let mut groups = [Vec::new(), Vec::new()];
    for (all, count) in groups.iter_mut().zip(counts) {
        while all.len() < count {
            let dialect = *at(dialects, r.index()?)?;
            for (size, encoded) in r.list(|r| r.flagged())? {
                all.push(Entry { dialect, encoded, bytes: bytes.take(size)? });
            }
        }
    }
    let [attributes, types] = groups;
    Ok((attributes, types))
}
