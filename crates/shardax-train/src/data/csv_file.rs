//! CSV tables of numbers.

use std::path::Path;

use shardax::error::{Error, ErrorKind, Result};

use super::HostArray;
use super::file::{Lines, room, unpacked, unreadable};
use super::source::InMemory;

/// Reads a table of numbers with the columns' names in its first line, which may be a gzip file. An example has each
/// column by its name, float32 `[]`.
///
/// ```
/// use shardax_train::data::{Source, csv};
/// # let path = std::env::temp_dir().join(format!("shardax-doc-csv-{}", std::process::id()));
/// std::fs::write(&path, "height,weight\n1.5,60\n2,80\n").expect("a file");
/// let table = csv(&path)?;
/// assert_eq!((table.len(), table.get(1)?["weight"].to_vec::<f32>()?), (2, vec![80.0]));
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails, with the file, the line and its offset in bytes, if a line has a different number of columns, or a value is
/// not a number.
#[track_caller]
pub fn csv(path: impl AsRef<Path>) -> Result<InMemory> {
    let location = std::panic::Location::caller();
    read(path.as_ref()).map_err(|error| error.at(location))
}

fn read(path: &Path) -> Result<InMemory> {
    let file = Lines::new(unpacked(path).map_err(|error| unreadable(path, &error))?.0);
    let mut reader = ::csv::ReaderBuilder::new().flexible(true).from_reader(file);
    let wrong = |line: u64, byte: u64, what: String| {
        let message = format!("{} line {line}, at byte {byte}: {what}", path.display());
        Error::new(ErrorKind::Value, message).help("a line holds a number for each of the columns that the first names")
    };
    let headers = reader.headers().map_err(|error| wrong(1, 0, error.to_string()))?.clone();
    let names: Vec<&str> = headers.iter().map(str::trim).collect();
    if let Some(twice) = (1..names.len()).find(|i| names[..*i].contains(&names[*i])) {
        return Err(wrong(1, 0, format!("two columns are called {:?}", names[twice])));
    }
    let mut columns: Vec<Vec<f32>> = vec![Vec::new(); names.len()];
    let mut record = ::csv::StringRecord::new();
    loop {
        let at = reader.position().clone();
        let wrong = |what: String| wrong(at.line(), at.byte(), what);
        if !reader.read_record(&mut record).map_err(|error| wrong(error.to_string()))? {
            break;
        }
        if record.len() != names.len() {
            return Err(wrong(format!("it has {} columns, and the first line names {}", record.len(), names.len())));
        }
        for ((field, name), column) in record.iter().zip(&names).zip(&mut columns) {
            let number = field.trim().parse().map_err(|_| wrong(format!("{field:?}, of {name:?}, is not a number")))?;
            column.push(number);
        }
        // Only columns at their capacity will be reallocated, to twice their size.
        let bytes: usize = columns.iter().filter(|column| column.len() == column.capacity()).map(Vec::len).sum();
        room(8 * bytes as u64).map_err(|error| wrong(error.to_string()))?;
    }
    let arrays = names.iter().zip(&columns).map(|(name, column)| Ok((*name, HostArray::of(column, &[column.len()])?)));
    InMemory::new(arrays.collect::<Result<Vec<_>>>()?)
}
