//! Editing of protobuf messages at wire level: known fields are changed, unknown ones are preserved.
//!
//! A decoder that knows only some fields would drop the others and thereby change the program.

use std::borrow::Cow;

use crate::error::{Code, Error, Result};

/// A message: its fields in their original order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Wire<'a> {
    fields: Vec<(u32, Data<'a>)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Data<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(Cow<'a, [u8]>),
    Fixed32([u8; 4]),
}

impl Data<'_> {
    fn into_owned<'b>(self) -> Data<'b> {
        match self {
            Data::Varint(value) => Data::Varint(value),
            Data::Fixed64(value) => Data::Fixed64(value),
            Data::Bytes(bytes) => Data::Bytes(Cow::Owned(bytes.into_owned())),
            Data::Fixed32(value) => Data::Fixed32(value),
        }
    }
}

impl<'a> Wire<'a> {
    /// Parses a message, one level deep.
    pub(crate) fn parse(mut bytes: &'a [u8]) -> Result<Wire<'a>> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = read_varint(&mut bytes)?;
            let data = match key & 7 {
                0 => Data::Varint(read_varint(&mut bytes)?),
                1 => Data::Fixed64(split(&mut bytes, 8)?.try_into().map_err(|_| cut_short())?),
                2 => {
                    let len = usize::try_from(read_varint(&mut bytes)?).map_err(|_| cut_short())?;
                    Data::Bytes(split(&mut bytes, len)?.into())
                }
                5 => Data::Fixed32(split(&mut bytes, 4)?.try_into().map_err(|_| cut_short())?),
                kind => return Err(damaged(format!("wire type {kind}"))),
            };
            fields.push((u32::try_from(key >> 3).map_err(|_| damaged("a field number".into()))?, data));
        }
        Ok(Wire { fields })
    }

    /// Like [`Wire::parse`], for bytes that you can own or borrow.
    pub(crate) fn parse_cow(bytes: Cow<'a, [u8]>) -> Result<Wire<'a>> {
        match bytes {
            Cow::Borrowed(bytes) => Wire::parse(bytes),
            Cow::Owned(bytes) => Ok(Wire::parse(&bytes)?.into_owned()),
        }
    }

    fn into_owned<'b>(self) -> Wire<'b> {
        Wire { fields: self.fields.into_iter().map(|(number, data)| (number, data.into_owned())).collect() }
    }

    /// Removes and returns the messages of a repeated field.
    pub(crate) fn take_bytes(&mut self, field: u32) -> Vec<Cow<'a, [u8]>> {
        let (bytes, rest) = std::mem::take(&mut self.fields).into_iter().partition(|(number, _)| *number == field);
        self.fields = rest;
        let bytes: Vec<(u32, Data<'a>)> = bytes;
        bytes
            .into_iter()
            .filter_map(|(_, data)| match data {
                Data::Bytes(bytes) => Some(bytes),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, data) in &self.fields {
            let kind = match data {
                Data::Varint(_) => 0,
                Data::Fixed64(_) => 1,
                Data::Bytes(_) => 2,
                Data::Fixed32(_) => 5,
            };
            write_varint(&mut out, u64::from(*number) << 3 | kind);
            match data {
                Data::Varint(value) => write_varint(&mut out, *value),
                Data::Fixed64(value) => out.extend(value),
                Data::Fixed32(value) => out.extend(value),
                Data::Bytes(bytes) => {
                    write_varint(&mut out, bytes.len() as u64);
                    out.extend(bytes.iter());
                }
            }
        }
        out
    }

    /// The integer in a field; 0, protobuf's default, if it is absent.
    pub(crate) fn int(&self, field: u32) -> i64 {
        let value = self.fields.iter().rev().find_map(|(number, data)| match data {
            Data::Varint(value) if *number == field => Some(*value as i64),
            _ => None,
        });
        value.unwrap_or(0)
    }

    /// The integers of a repeated field, packed or not.
    pub(crate) fn ints(&self, field: u32) -> Result<Vec<i64>> {
        let mut numbers = Vec::new();
        for (_, data) in self.fields.iter().filter(|(number, _)| *number == field) {
            match data {
                Data::Varint(value) => numbers.push(*value as i64),
                Data::Bytes(bytes) => {
                    let mut bytes: &[u8] = bytes;
                    while !bytes.is_empty() {
                        numbers.push(read_varint(&mut bytes)? as i64);
                    }
                }
                _ => return Err(damaged(format!("field {field}"))),
            }
        }
        Ok(numbers)
    }

    /// The bytes, string or message in a field.
    pub(crate) fn bytes(&self, field: u32) -> Option<&[u8]> {
        self.all_bytes(field).next_back()
    }

    /// The bytes of each element of a repeated field.
    pub(crate) fn all_bytes(&self, field: u32) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.fields.iter().filter_map(move |(number, data)| match data {
            Data::Bytes(bytes) if *number == field => Some(&**bytes),
            _ => None,
        })
    }

    pub(crate) fn text(&self, field: u32) -> &str {
        self.bytes(field).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or("")
    }

    pub(crate) fn remove(&mut self, fields: &[u32]) {
        self.fields.retain(|(number, _)| !fields.contains(number));
    }

    pub(crate) fn push_int(&mut self, field: u32, value: i64) {
        self.fields.push((field, Data::Varint(value as u64)));
    }

    pub(crate) fn push_bytes(&mut self, field: u32, bytes: impl Into<Vec<u8>>) {
        self.fields.push((field, Data::Bytes(Cow::Owned(bytes.into()))));
    }

    /// Replaces the integer in a field.
    pub(crate) fn set_int(&mut self, field: u32, value: i64) {
        self.remove(&[field]);
        self.push_int(field, value);
    }

    /// Replaces the bytes in a field.
    pub(crate) fn set_bytes(&mut self, field: u32, bytes: impl Into<Vec<u8>>) {
        self.remove(&[field]);
        self.push_bytes(field, bytes);
    }

    /// Replaces the integers of a repeated field.
    pub(crate) fn set_ints(&mut self, field: u32, values: &[i64]) {
        self.remove(&[field]);
        if !values.is_empty() {
            let mut packed = Vec::new();
            values.iter().for_each(|&value| write_varint(&mut packed, value as u64));
            self.push_bytes(field, packed);
        }
    }
}

fn read_varint(bytes: &mut &[u8]) -> Result<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or_else(cut_short)?;
        *bytes = rest;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Ok(value);
        }
    }
    Err(damaged("an integer of more than 64 bits".into()))
}

fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 127 {
        out.push(value as u8 & 127 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}

fn split<'a>(bytes: &mut &'a [u8], len: usize) -> Result<&'a [u8]> {
    let (first, rest) = bytes.split_at_checked(len).ok_or_else(cut_short)?;
    *bytes = rest;
    Ok(first)
}

fn cut_short() -> Error {
    damaged("it is truncated".into())
}

fn damaged(what: String) -> Error {
    Error::new(Code::DataLoss, format!("the program is not a protobuf message: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message with every wire type, and with fields out of order and repeated.
    fn message() -> Vec<u8> {
        let mut bytes = vec![0x08, 0x96, 0x01]; // 1: 150
        bytes.extend([0x92, 0xce, 0x04, 3, b'a', b'b', b'c']); // 9442: "abc"
        bytes.extend([0x1d, 1, 2, 3, 4]); // 3: fixed32
        bytes.extend([0x11, 1, 2, 3, 4, 5, 6, 7, 8]); // 2: fixed64
        bytes.extend([0x22, 3, 3, 0x96, 0x01]); // 4: packed 3, 150
        bytes.extend([0x20, 5]); // 4: 5, unpacked
        bytes
    }

    #[test]
    fn fields_that_are_not_edited_are_preserved() {
        let bytes = message();
        let mut wire = Wire::parse(&bytes).unwrap();
        assert_eq!(wire.encode(), bytes);
        assert_eq!((wire.int(1), wire.int(7), wire.text(9442)), (150, 0, "abc"));
        assert_eq!(wire.ints(4).unwrap(), [3, 150, 5]);
        wire.set_ints(4, &[-1]);
        wire.set_int(1, 7);
        let edited = wire.encode();
        let again = Wire::parse(&edited).unwrap();
        assert_eq!((again.int(1), again.ints(4).unwrap()), (7, vec![-1]));
        assert!(edited.windows(5).any(|w| w == [0x1d, 1, 2, 3, 4]));
        assert!(edited.windows(9).any(|w| w == [0x11, 1, 2, 3, 4, 5, 6, 7, 8]));
    }

    #[test]
    fn damage_is_an_error() {
        let bytes = message();
        // Messages that end between fields are complete.
        let valid_lengths = [0, 3, 10, 15, 24, 29, 31];
        for end in (0..bytes.len()).filter(|end| !valid_lengths.contains(end)) {
            let error = Wire::parse(&bytes[..end]).unwrap_err();
            assert_eq!(error.message, "the program is not a protobuf message: it is truncated", "at {end}");
        }
        assert!(Wire::parse(&[0x0b]).unwrap_err().message.ends_with("wire type 3"));
        assert!(Wire::parse(&[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]).is_err());
    }
}
