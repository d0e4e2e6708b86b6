//! Parquet files.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ::parquet::basic::{ConvertedType, Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::record::{Field, List, Row};
use ::parquet::schema::types::ColumnDescriptor;
use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;

use super::file::{unreadable, wrong};
use super::{Example, HostArray, Source};

/// Reads the rows of Parquet files in order. Requires the cargo feature `parquet`.
///
/// An example has each column by its name: numbers and booleans as scalars of their dtype, texts and bytes as uint8
/// `[length]`, lists of numbers as `[length]`; dates and times as their integers. Only one row group at a time is in
/// memory, so reading neighbouring rows is fast and jumping between groups is slow. You should therefore shuffle with a
/// buffer ([`shuffle`](super::Stream::shuffle)) instead of over all rows.
///
/// ```no_run
/// use shardax_train::data::{Source, Stream, parquet};
/// let rows = parquet(["train-0.parquet", "train-1.parquet"])?.stream();
/// let mut batches = rows.shuffle(10_000, 0).batch(32).prefetch(2);
/// # let _ = batches.next_item();
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error, with the file and the offset, if one is damaged or not a Parquet file.
#[track_caller]
pub fn parquet<P: AsRef<Path>>(files: impl IntoIterator<Item = P>) -> Result<Parquet> {
    let location = std::panic::Location::caller();
    let paths: Vec<PathBuf> = files.into_iter().map(|file| file.as_ref().to_owned()).collect();
    open(paths).map_err(|error| error.at(location))
}

/// The source of [`parquet()`].
pub struct Parquet {
    files: Vec<(PathBuf, SerializedFileReader<fs::File>)>,
    groups: Vec<Group>,
    len: usize,
    /// The index of the row group that was read last, and its rows.
    read: Mutex<Option<(usize, Arc<Vec<Example>>)>>,
}

/// A row group: its file, its index there, the location of its bytes, and the number of its first row overall.
struct Group {
    file: usize,
    number: usize,
    offset: u64,
    first: usize,
}

impl fmt::Debug for Parquet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: Vec<&PathBuf> = self.files.iter().map(|(path, _)| path).collect();
        f.debug_struct("Parquet").field("files", &files).field("len", &self.len).finish_non_exhaustive()
    }
}

fn open(paths: Vec<PathBuf>) -> Result<Parquet> {
    let (mut files, mut groups, mut len) = (Vec::new(), Vec::new(), 0usize);
    for path in paths {
        let file = super::file::open(&path).map_err(|error| unreadable(&path, &error))?;
        let end = file.metadata().map_or(0, |about| about.len());
        // The metadata is at the end of the file.
        let reader =
            guarded(&path, end, || SerializedFileReader::new(file).map_err(|error| damaged(&path, end, &error)))?;
        for (number, group) in reader.metadata().row_groups().iter().enumerate() {
            let rows = usize::try_from(group.num_rows()).ok().filter(|rows| len.checked_add(*rows).is_some());
            let Some(rows) = rows else {
                return Err(wrong(&path, end, format!("a row group has {} rows", group.num_rows())));
            };
            let starts = group.columns().iter().map(|column| u64::try_from(column.data_page_offset()).unwrap_or(0));
            groups.push(Group { file: files.len(), number, offset: starts.min().unwrap_or(0), first: len });
            len += rows;
        }
        files.push((path, reader));
    }
    Ok(Parquet { files, groups, len, read: Mutex::new(None) })
}

fn damaged(path: &Path, offset: u64, error: &ParquetError) -> Error {
    wrong(path, offset, format!("it cannot be read as Parquet: {error}"))
}

/// Calls the reader. The parquet crate panics on some damaged files, which must not end the program.
fn guarded<T>(path: &Path, offset: u64, read: impl FnOnce() -> Result<T>) -> Result<T> {
    let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
    read.unwrap_or_else(|_| Err(wrong(path, offset, "the reader of Parquet files panicked")))
}

impl Parquet {
    /// Reads the rows of a group.
    fn group(&self, index: usize) -> Result<Arc<Vec<Example>>> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, rows)) = read.as_ref().filter(|(group, _)| *group == index) {
            return Ok(rows.clone());
        }
        let Group { file, number, offset, .. } = self.groups[index];
        let (path, reader) = &self.files[file];
        let rows = guarded(path, offset, || {
            let group = reader.get_row_group(number).map_err(|error| damaged(path, offset, &error))?;
            let rows = group.get_row_iter(None).map_err(|error| damaged(path, offset, &error))?;
            let dtypes = dtypes(reader);
            let examples = rows.map(|row| example(&row.map_err(|error| damaged(path, offset, &error))?, &dtypes, path));
            examples.collect::<Result<Vec<_>>>()
        })?;
        let rows = Arc::new(rows);
        *read = Some((index, rows.clone()));
        Ok(rows)
    }
}

impl Source for Parquet {
    type Item = Example;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, i: usize) -> Result<Example> {
        // The row is in the last group that begins at or before it. Empty groups begin at the same row as the group after them.
        let group_after = self.groups.partition_point(|group| group.first <= i);
        let row = match group_after.checked_sub(1).filter(|_| i < self.len) {
            Some(group) => self.group(group)?.get(i - self.groups[group].first).cloned(),
            None => None,
        };
        row.ok_or_else(|| {
            Error::new(ErrorKind::Index, format!("row {i} of {} was requested", self.len)).help(
                "use an index below that number; the first is 0. A file that states more rows than it has is damaged",
            )
        })
    }
}

/// The dtype of each column that has numbers of one type, alone or in lists.
fn dtypes(reader: &SerializedFileReader<fs::File>) -> HashMap<String, DType> {
    let columns = reader.metadata().file_metadata().schema_descr().columns();
    columns.iter().filter_map(|column| Some((column.path().parts().first()?.clone(), dtype(column)?))).collect()
}

fn dtype(column: &ColumnDescriptor) -> Option<DType> {
    Some(match (column.physical_type(), column.converted_type()) {
        (Type::BOOLEAN, _) => DType::Bool,
        (Type::INT32, ConvertedType::INT_8) => DType::I8,
        (Type::INT32, ConvertedType::INT_16) => DType::I16,
        (Type::INT32, ConvertedType::UINT_8) => DType::U8,
        (Type::INT32, ConvertedType::UINT_16) => DType::U16,
        (Type::INT32, ConvertedType::UINT_32) => DType::U32,
        (Type::INT64, ConvertedType::UINT_64) => DType::U64,
        (_, ConvertedType::DECIMAL) => return None,
        (Type::INT32, _) => DType::I32,
        (Type::INT64, _) => DType::I64,
        (Type::FLOAT, _) => DType::F32,
        (Type::DOUBLE, _) => DType::F64,
        _ => return None,
    })
}

fn example(row: &Row, dtypes: &HashMap<String, DType>, path: &Path) -> Result<Example> {
    let columns = row.get_column_iter().map(|(name, field)| {
        let value = value(field, dtypes.get(name).copied())?.ok_or_else(|| {
            let message = format!("the column {name:?} of {} has {field:?}", path.display());
            Error::new(ErrorKind::Value, message)
                .help("numbers, texts, bytes and lists of numbers are read; fill gaps first")
        })?;
        Ok((name.clone(), value))
    });
    columns.collect()
}

/// A field's value; `None` if no array dtype can represent it. A list without elements has `dtype`.
fn value(field: &Field, dtype: Option<DType>) -> Result<Option<HostArray>> {
    Ok(Some(match field {
        Field::Bool(x) => HostArray::from_slice(&[*x], &[])?,
        Field::Byte(x) => HostArray::from_slice(&[*x], &[])?,
        Field::Short(x) => HostArray::from_slice(&[*x], &[])?,
        Field::Int(x) | Field::Date(x) | Field::TimeMillis(x) => HostArray::from_slice(&[*x], &[])?,
        Field::Long(x) | Field::TimeMicros(x) | Field::TimestampMillis(x) | Field::TimestampMicros(x) => {
            HostArray::from_slice(&[*x], &[])?
        }
        Field::UByte(x) => HostArray::from_slice(&[*x], &[])?,
        Field::UShort(x) => HostArray::from_slice(&[*x], &[])?,
        Field::UInt(x) => HostArray::from_slice(&[*x], &[])?,
        Field::ULong(x) => HostArray::from_slice(&[*x], &[])?,
        Field::Float(x) => HostArray::from_slice(&[*x], &[])?,
        Field::Double(x) => HostArray::from_slice(&[*x], &[])?,
        Field::Str(text) => HostArray::from_slice(text.as_bytes(), &[text.len()])?,
        Field::Bytes(bytes) => HostArray::from_slice(bytes.data(), &[bytes.len()])?,
        Field::ListInternal(list) => return list_array(list, dtype),
        _ => return Ok(None),
    }))
}

/// Converts a list of numbers of one type.
fn list_array(list: &List, dtype: Option<DType>) -> Result<Option<HostArray>> {
    let items = list.elements().iter().map(|item| value(item, None));
    let Some(items) = items.collect::<Result<Option<Vec<HostArray>>>>()? else {
        return Ok(None);
    };
    let Some(first) = items.first() else {
        return dtype.map(|dtype| HostArray::from_bytes(Vec::new(), dtype, &[0])).transpose();
    };
    if items.iter().any(|item| item.dtype() != first.dtype() || !item.shape().is_empty()) {
        return Ok(None);
    }
    let bytes = items.iter().flat_map(|item| item.bytes()).copied().collect();
    HostArray::from_bytes(bytes, first.dtype(), &[items.len()]).map(Some)
}
