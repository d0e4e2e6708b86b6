//! Tables of a flatbuffer, with bounds checks of every offset.

use super::damaged;
use crate::error::Result;

/// The maximum nesting of tables, which allows trees as deep as users nest them.
const MAX_TABLE_DEPTH: usize = 500;

/// A table. Fields are found by number, and each field can be missing.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    let end = at.checked_add(N).ok_or_else(|| damaged("an offset leads out of it"))?;
    let bytes_of_number = bytes.get(at..end).and_then(|bytes_of_number| bytes_of_number.try_into().ok());
    bytes_of_number.ok_or_else(|| damaged("it ends too early, or an offset leads out of it"))
}

fn word(bytes: &[u8], at: usize) -> Result<usize> {
    Ok(u32::from_le_bytes(number(bytes, at)?) as usize)
}

/// Follows the offset at this position.
fn follow(bytes: &[u8], at: usize) -> Result<usize> {
    at.checked_add(word(bytes, at)?).ok_or_else(|| damaged("an offset leads out of it"))
}

impl<'a> Table<'a> {
    /// Returns the root table.
    pub fn root(bytes: &'a [u8]) -> Result<Table<'a>> {
        Ok(Table { bytes, at: follow(bytes, 0)?, depth: 0 })
    }

    /// An upper bound of the number of tables that are not shared, because each takes some bytes.
    pub fn most(&self) -> usize {
        self.bytes.len() / 4
    }

    /// The position of a field.
    fn field(&self, number_of: usize) -> Result<Option<usize>> {
        let back = i32::from_le_bytes(number(self.bytes, self.at)?);
        let fields = usize::try_from(self.at as i64 - i64::from(back)).map_err(|_| damaged("a table has no fields"))?;
        let size = usize::from(u16::from_le_bytes(number(self.bytes, fields)?));
        let slot = 4 + 2 * number_of;
        if slot + 2 > size {
            return Ok(None);
        }
        let offset = usize::from(u16::from_le_bytes(number(self.bytes, fields + slot)?));
        Ok((offset > 0).then_some(self.at + offset))
    }

    fn fixed<const N: usize>(&self, field: usize) -> Result<Option<[u8; N]>> {
        self.field(field)?.map(|at| number(self.bytes, at)).transpose()
    }

    /// A number of one byte. A missing number is zero; this also applies to the other number types.
    pub fn byte(&self, field: usize) -> Result<u8> {
        Ok(self.fixed::<1>(field)?.map_or(0, |[byte]| byte))
    }

    pub fn short(&self, field: usize) -> Result<u16> {
        Ok(self.fixed(field)?.map_or(0, u16::from_le_bytes))
    }

    pub fn int(&self, field: usize) -> Result<u32> {
        Ok(self.fixed(field)?.map_or(0, u32::from_le_bytes))
    }

    fn table_at(&self, at: usize) -> Result<Table<'a>> {
        if self.depth < MAX_TABLE_DEPTH {
            Ok(Table { bytes: self.bytes, at: follow(self.bytes, at)?, depth: self.depth + 1 })
        } else {
            Err(damaged(format!("its tables stand in each other more than {MAX_TABLE_DEPTH} deep")))
        }
    }

    pub fn table(&self, field: usize) -> Result<Option<Table<'a>>> {
        self.field(field)?.map(|at| self.table_at(at)).transpose()
    }

    /// The position of the elements of a vector, and their number. The size is checked to be within the file.
    fn vector(&self, field: usize, size: usize) -> Result<(usize, usize)> {
        match self.field(field)? {
            Some(at) => self.vector_at(at, size),
            None => Ok((0, 0)),
        }
    }

    fn vector_at(&self, at: usize, size: usize) -> Result<(usize, usize)> {
        let start = follow(self.bytes, at)?;
        let count = word(self.bytes, start)?;
        let end = count.checked_mul(size).and_then(|all| all.checked_add(start + 4));
        if end.is_some_and(|end| end <= self.bytes.len()) {
            Ok((start + 4, count))
        } else {
            Err(damaged(format!("a list of {count} leads out of it")))
        }
    }

    pub fn tables(&self, field: usize) -> Result<Vec<Table<'a>>> {
        let (at, count) = self.vector(field, 4)?;
        (0..count).map(|i| self.table_at(at + 4 * i)).collect()
    }

    pub fn bytes(&self, field: usize) -> Result<&'a [u8]> {
        let (at, count) = self.vector(field, 1)?;
        Ok(&self.bytes[at..at + count])
    }

    pub fn ints(&self, field: usize) -> Result<Vec<usize>> {
        let (at, count) = self.vector(field, 4)?;
        (0..count).map(|i| word(self.bytes, at + 4 * i)).collect()
    }

    pub fn shorts(&self, field: usize) -> Result<Vec<usize>> {
        let (at, count) = self.vector(field, 2)?;
        (0..count).map(|i| Ok(usize::from(u16::from_le_bytes(number(self.bytes, at + 2 * i)?)))).collect()
    }

    fn text_at(&self, at: usize) -> Result<&'a str> {
        let (at, count) = self.vector_at(at, 1)?;
        std::str::from_utf8(&self.bytes[at..at + count]).map_err(damaged)
    }

    pub fn text(&self, field: usize) -> Result<&'a str> {
        self.field(field)?.map_or(Ok(""), |at| self.text_at(at))
    }

    pub fn texts(&self, field: usize) -> Result<Vec<&'a str>> {
        let (at, count) = self.vector(field, 4)?;
        (0..count).map(|i| self.text_at(at + 4 * i)).collect()
    }
}
