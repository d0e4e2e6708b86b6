//! CSV tables of numbers.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::Path;

use shardax::error::{Error, ErrorKind, Result};

use super::HostArray;
use super::file::{Lines, room, unpacked, unreadable};
use super::source::InMemory;

/// The treatment of a cell without a number, such as an empty one: see [`CsvOptions::missing`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Missing {
    /// An error that names the line and the column.
    Error,
    /// This number. You can pass `f32::NAN` and mask the gaps later.
    Value(f32),
    /// The value of the line before; an error in the first line.
    Previous,
    /// The line is skipped.
    SkipLine,
}

/// Options of reading a CSV table.
///
/// ```
/// use shardax_train::data::{CsvOptions, Missing, Source};
/// # let path = std::env::temp_dir().join(format!("shardax-doc-csv-options-{}", std::process::id()));
/// let text = "date;site;load\n2024-01-01;north;1.5\n2024-01-02;north;NA\n2024-01-03;south;2.5\n";
/// std::fs::write(&path, text).expect("a file");
/// let options = CsvOptions::new().delimiter(b';').columns(["date", "load"]).dates(["date"]);
/// let table = options.missing(Missing::SkipLine).read(&path)?;
/// assert_eq!(table.fields()["load"].to_vec::<f32>()?, [1.5, 2.5]);
/// assert_eq!(table.fields()["date"].to_vec::<f64>()?, [19723.0, 19725.0]);
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing until `read` is called"]
pub struct CsvOptions {
    delimiter: u8,
    columns: Option<Vec<String>>,
    names: Option<Vec<String>>,
    dates: Vec<String>,
    categories: Vec<String>,
    missing: Missing,
    missing_texts: Vec<String>,
}

impl Default for CsvOptions {
    fn default() -> Self {
        let missing_texts = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"];
        CsvOptions {
            delimiter: b',',
            columns: None,
            names: None,
            dates: Vec::new(),
            categories: Vec::new(),
            missing: Missing::Error,
            missing_texts: missing_texts.map(str::to_owned).to_vec(),
        }
    }
}

impl CsvOptions {
    /// Returns all columns, named by the first line, separated by commas, each cell with a number.
    pub fn new() -> Self {
        CsvOptions::default()
    }

    /// Sets the character between columns. Default a comma.
    pub fn delimiter(mut self, delimiter: u8) -> Self {
        self.delimiter = delimiter;
        self
    }

    /// Chooses columns by their names. The other columns are not read, so they can hold anything, such as text.
    pub fn columns<N: Into<String>>(mut self, columns: impl IntoIterator<Item = N>) -> Self {
        self.columns = Some(columns.into_iter().map(Into::into).collect());
        self
    }

    /// Names the columns of a table without a line of names. You must name every column; the first line is then read as
    /// numbers.
    pub fn names<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.names = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Declares columns of dates, `2024-01-31`, or times, `2024-01-31 12:30` or `2024-01-31T12:30:05Z`: float64, in days
    /// since 1970-01-01.
    pub fn dates<N: Into<String>>(mut self, columns: impl IntoIterator<Item = N>) -> Self {
        self.dates = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Declares columns of texts, such as names and ids: int32, the position of each text among the column's different texts
    /// in alphabetical order, which [`InMemory::categories`] returns.
    ///
    /// ```
    /// use shardax_train::data::CsvOptions;
    /// # let path = std::env::temp_dir().join(format!("shardax-doc-csv-categories-{}", std::process::id()));
    /// std::fs::write(&path, "user,rating\nwren,4.5\nada,3\nwren,5\n").expect("a file");
    /// let table = CsvOptions::new().categories(["user"]).read(&path)?;
    /// assert_eq!(table.fields()["user"].to_vec::<i32>()?, [1, 0, 1]);
    /// assert_eq!(table.categories("user"), ["ada", "wren"]);
    /// # std::fs::remove_file(&path).ok();
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn categories<N: Into<String>>(mut self, columns: impl IntoIterator<Item = N>) -> Self {
        self.categories = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the treatment of cells without a number. Default [`Missing::Error`].
    pub fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }

    /// Sets the texts that stand for a missing number. Default an empty cell, `NA`, `N/A`, `NaN`, `nan`, `null`, `NULL` and
    /// `None`.
    pub fn missing_texts<N: Into<String>>(mut self, texts: impl IntoIterator<Item = N>) -> Self {
        self.missing_texts = texts.into_iter().map(Into::into).collect();
        self
    }

    /// Reads the table, which can be a gzip file. An example has each column by its name, float32 `[]`; dates are
    /// float64, and texts int32.
    ///
    /// # Errors
    /// Returns an error, with the file, the line and its offset in bytes, if a line has a different number of columns,
    /// or a value is not a number; and for a chosen column that does not exist.
    #[track_caller]
    pub fn read(&self, path: impl AsRef<Path>) -> Result<InMemory> {
        let location = std::panic::Location::caller();
        self.read_file(path.as_ref()).map_err(|error| error.at(location))
    }

    fn read_file(&self, path: &Path) -> Result<InMemory> {
        let file = Lines::new(unpacked(path).map_err(|error| unreadable(path, &error))?.0);
        let mut reader = ::csv::ReaderBuilder::new()
            .flexible(true)
            .has_headers(self.names.is_none())
            .delimiter(self.delimiter)
            .from_reader(file);
        let names = self.column_names(&mut reader).map_err(|problem| wrong_line(path, 1, 0, &problem))?;
        let mut columns = self.chosen(&names).map_err(|error| error.context(path.display()))?;
        let mut record = ::csv::StringRecord::new();
        loop {
            let position = reader.position().clone();
            let wrong = |problem: String| wrong_line(path, position.line(), position.byte(), &problem);
            if !reader.read_record(&mut record).map_err(|error| wrong(error.to_string()))? {
                break;
            }
            if record.len() != names.len() {
                let namer = if self.names.is_some() { "`CsvOptions::names`" } else { "the first line" };
                let (count, expected) = (record.len(), names.len());
                return Err(wrong(format!("it has {count} columns, but {namer} names {expected}")));
            }
            self.read_line(&record, &mut columns).map_err(|problem| match problem {
                Problem::Missing(column) => {
                    let message = wrong(format!("column {column:?} has no number"));
                    message.help(
                        "choose a treatment of such cells with `CsvOptions::missing`: `Missing::Value(f32::NAN)`, \
                         `Previous` or `SkipLine`",
                    )
                }
                Problem::Odd(what) => wrong(what).help(
                    "declare a column of texts with `CsvOptions::categories`, and of dates with `CsvOptions::dates`, or \
                     leave it out with `CsvOptions::columns`",
                ),
            })?;
            // Only columns at their capacity will be reallocated, to twice their size.
            let full = columns.iter().filter(|column| column.values.len() == column.values.capacity());
            let bytes: usize = full.map(|column| column.values.len()).sum();
            room(16 * bytes as u64).map_err(|error| wrong(error.to_string()))?;
        }
        let (mut arrays, mut categories) = (Vec::new(), BTreeMap::new());
        for column in columns {
            let shape = [column.values.len()];
            let array = match column.kind {
                Kind::Date => HostArray::from_slice(&column.values, &shape),
                Kind::Number => {
                    let numbers: Vec<f32> = column.values.iter().map(|value| *value as f32).collect();
                    HostArray::from_slice(&numbers, &shape)
                }
                Kind::Category => {
                    let (positions, texts) = alphabetical(&column.values, column.codes);
                    categories.insert(column.name.clone(), texts);
                    HostArray::from_slice(&positions, &shape)
                }
            };
            arrays.push((column.name, array?));
        }
        Ok(InMemory::new(arrays)?.with_categories(categories))
    }

    /// The names of all columns of the table. A byte order mark, which some programs write, is not part of a name.
    fn column_names<R: Read>(&self, reader: &mut ::csv::Reader<R>) -> std::result::Result<Vec<String>, String> {
        let names = match &self.names {
            Some(names) => names.clone(),
            None => {
                let headers = reader.headers().map_err(|error| error.to_string())?;
                headers.iter().map(|name| name.trim().trim_start_matches('\u{feff}').to_owned()).collect()
            }
        };
        if names.is_empty() {
            return Err("there is no line of column names".to_owned());
        }
        match (1..names.len()).find(|i| names[..*i].contains(&names[*i])) {
            Some(twice) => Err(format!("two columns are called {:?}", names[twice])),
            None => Ok(names),
        }
    }

    /// The columns to read, each with its place in a line.
    fn chosen(&self, names: &[String]) -> Result<Vec<Column>> {
        self.dates.iter().chain(&self.categories).try_for_each(|name| place_of(names, name).map(drop))?;
        let mut columns = Vec::new();
        for name in self.columns.as_deref().unwrap_or(names) {
            let kind = match (self.categories.contains(name), self.dates.contains(name)) {
                (true, _) => Kind::Category,
                (_, true) => Kind::Date,
                _ => Kind::Number,
            };
            let place = place_of(names, name)?;
            columns.push(Column { name: name.clone(), place, kind, values: Vec::new(), codes: HashMap::new() });
        }
        Ok(columns)
    }

    fn read_line(&self, record: &::csv::StringRecord, columns: &mut [Column]) -> std::result::Result<(), Problem> {
        let mut values = Vec::with_capacity(columns.len());
        for column in columns.iter() {
            let field = record.get(column.place).unwrap_or_default();
            let text = field.trim();
            let is_missing = self.missing_texts.iter().any(|missing| missing == text);
            let number = match column.kind {
                Kind::Date => days(text),
                // `nan` is a number and the text of a missing one.
                Kind::Number => text.parse::<f32>().ok().map(f64::from),
                Kind::Category => (!is_missing).then(|| column.code(text)),
            };
            let value = match (number, is_missing, self.missing) {
                (Some(number), is_missing, missing) if !is_missing || missing == Missing::Error => number,
                (None, false, _) => {
                    let kind = if column.kind == Kind::Date { "a date such as 2024-01-31" } else { "a number" };
                    return Err(Problem::Odd(format!("{field:?}, of {:?}, is not {kind}", column.name)));
                }
                (_, _, Missing::Value(value)) if column.kind != Kind::Category => f64::from(value),
                (_, _, Missing::SkipLine) => return Ok(()),
                (_, _, Missing::Previous) => {
                    *column.values.last().ok_or_else(|| Problem::Missing(column.name.clone()))?
                }
                (_, _, Missing::Error | Missing::Value(_)) => return Err(Problem::Missing(column.name.clone())),
            };
            values.push(value);
        }
        for (column, value) in columns.iter_mut().zip(values) {
            column.push(value, record.get(column.place).unwrap_or_default().trim());
        }
        Ok(())
    }
}

/// The index of the column with this name.
fn place_of(names: &[String], name: &String) -> Result<usize> {
    names.iter().position(|known| known == name).ok_or_else(|| {
        Error::new(ErrorKind::Value, format!("the table has no column {name:?}: it has {names:?}")).help(
            "use a name from the first line, or name the columns with `CsvOptions::names` if the first line has no names",
        )
    })
}

fn wrong_line(path: &Path, line: u64, byte: u64, problem: &str) -> Error {
    Error::new(ErrorKind::Value, format!("{} line {line}, at byte {byte}: {problem}", path.display()))
        .help("a line must have a number for each of the columns that the first line names")
}

/// The error of a line.
enum Problem {
    Missing(String),
    Odd(String),
}

struct Column {
    name: String,
    place: usize,
    kind: Kind,
    /// Numbers, days, or codes of texts.
    values: Vec<f64>,
    /// The different texts of a column of texts, numbered in the order in which they occur.
    codes: HashMap<String, usize>,
}

/// The meaning of the cells of a column.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Number,
    Date,
    Category,
}

impl Column {
    /// The code of a text, which is the next code if the text is new. [`Column::push`] adds it, because a line can still be
    /// skipped.
    fn code(&self, text: &str) -> f64 {
        self.codes.get(text).copied().unwrap_or(self.codes.len()) as f64
    }

    fn push(&mut self, value: f64, text: &str) {
        let next = self.codes.len();
        if self.kind == Kind::Category && value == next as f64 {
            self.codes.insert(text.to_owned(), next);
        }
        self.values.push(value);
    }
}

/// Replaces codes in the order of occurrence by positions in alphabetical order, so that they do not depend on the order of
/// the lines.
fn alphabetical(codes: &[f64], texts: HashMap<String, usize>) -> (Vec<i32>, Vec<String>) {
    let mut texts: Vec<(String, usize)> = texts.into_iter().collect();
    texts.sort();
    let mut positions = vec![0; texts.len()];
    for (position, (_, code)) in texts.iter().enumerate() {
        positions[*code] = position as i32;
    }
    let positions = codes.iter().map(|code| positions[*code as usize]).collect();
    (positions, texts.into_iter().map(|(text, _)| text).collect())
}

/// The days from 1970-01-01 to a date or time, in the calendar of today.
fn days(text: &str) -> Option<f64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "0:0"));
    let mut parts = date.splitn(3, '-').map(str::parse::<i64>);
    let (year, month, day) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    let is_leap_year = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_of_month = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if is_leap_year => 29,
        2 => 28,
        _ => return None,
    };
    if !(0..=9999).contains(&year) || !(1..=days_of_month).contains(&day) {
        return None;
    }
    let mut parts = time.splitn(3, ':');
    let (hour, minute): (u32, u32) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let second: f64 = parts.next().unwrap_or("0").parse().ok()?;
    if hour >= 24 || minute >= 60 || !(0.0..61.0).contains(&second) {
        return None;
    }
    // Years that begin in March, so that the day of a leap year is the last.
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days = 365 * year + leap_days + (153 * month + 2) / 5 + day - 1;
    Some((days - 719_468) as f64 + (f64::from(hour * 3600 + minute * 60) + second) / 86_400.0)
}

/// Reads a table of numbers with the columns' names in its first line. You can pass a gzip file too. An example has
/// each column by its name, float32 `[]`. Use [`CsvOptions`] to choose columns, and a treatment of gaps.
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
/// # Errors
/// Returns an error, with the file, the line and its offset in bytes, if a line has a different number of columns, or a
/// value is not a number.
#[track_caller]
pub fn csv(path: impl AsRef<Path>) -> Result<InMemory> {
    CsvOptions::new().read(path)
}
