//! A log of JSON lines.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use shardax::error::{Error, ErrorKind, Result};

use super::Logger;

/// A log file with a line for each logged step: `{"step":100,"loss":0.25}`. NaN and infinities are strings: `"NaN"`.
///
/// ```
/// use shardax_train::log::{JsonLines, Logger};
/// # let path = std::env::temp_dir().join(format!("shardax-doc-jsonl-{}", std::process::id()));
/// let mut log = JsonLines::new(&path)?;
/// log.begin(0)?;
/// log.log(100, &[("loss".to_owned(), 0.25)].into())?;
/// log.flush()?;
/// let lines = JsonLines::read(&path)?;
/// assert_eq!((lines[0].step, lines[0].values["loss"]), (100, 0.25));
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: Option<BufWriter<fs::File>>,
}

/// A line of the log: the numbers of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The step.
    pub step: u64,
    /// The numbers by their names.
    pub values: BTreeMap<String, f64>,
}

impl JsonLines {
    /// Opens the log in this file to append to it, and creates it and its folder if necessary.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created. An error of the file itself is returned by the first
    /// write.
    #[track_caller]
    pub fn new(path: impl AsRef<Path>) -> Result<Self> {
        let log = JsonLines { path: path.as_ref().to_owned(), file: None };
        let folder = log.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let created = folder.map_or(Ok(()), |folder| {
            fs::create_dir_all(folder).map_err(|error| log.failed("create the folder of", &error))
        });
        created.map_err(|error| error.at(std::panic::Location::caller()))?;
        Ok(log)
    }

    /// Reads a log. A truncated last line is skipped.
    ///
    /// # Errors
    /// Returns an error, with the line number, for any other line that is not one of a log.
    #[track_caller]
    pub fn read(path: impl AsRef<Path>) -> Result<Vec<Line>> {
        let location = std::panic::Location::caller();
        let log = JsonLines { path: path.as_ref().to_owned(), file: None };
        let text = text_of(&log.path).map_err(|error| log.failed("read", &error).at(location))?;
        let lines = log.complete_lines(&text).map_err(|error| error.at(location))?;
        Ok(lines.into_iter().map(|(_, line)| line).collect())
    }

    /// The lines of a log as texts and as numbers, without a last line that an interrupted program wrote in part.
    fn complete_lines<'a>(&self, text: &'a str) -> Result<Vec<(&'a str, Line)>> {
        let line_count = text.lines().count();
        let mut lines = Vec::new();
        for (at, line) in text.lines().enumerate() {
            match parse(line) {
                Some(parsed) => lines.push((line, parsed)),
                None if at + 1 == line_count => {}
                None => {
                    let message = format!("{} line {} is not a line of a log: {line:?}", self.path.display(), at + 1);
                    return Err(Error::new(ErrorKind::Value, message)
                        .help("remove this line from the file, or choose a file that `JsonLines` wrote"));
                }
            }
        }
        Ok(lines)
    }

    fn failed(&self, what: &str, error: &std::io::Error) -> Error {
        Error::new(ErrorKind::Runtime, format!("cannot {what} {}: {error}", self.path.display()))
            .help("check that the path is correct and that the disk has space")
    }
}

fn text_of(path: &Path) -> io::Result<String> {
    let bytes = crate::data::file::read(path)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn parse(line: &str) -> Option<Line> {
    let fields: Map<String, Value> = serde_json::from_str(line).ok()?;
    let step = fields.get("step")?.as_u64()?;

    let values = fields.iter().filter(|(name, _)| *name != "step");
    let values = values.map(|(name, value)| Some((name.clone(), parse_number(value)?)));
    Some(Line { step, values: values.collect::<Option<_>>()? })
}

/// A number, or the text of one that JSON cannot represent, such as `"NaN"`.
fn parse_number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

impl Logger for JsonLines {
    /// Removes the lines of later steps. A file with other lines is an error, because it may be no log.
    fn begin(&mut self, step: u64) -> Result<()> {
        self.file = None;
        if self.path.exists() {
            let text = text_of(&self.path).map_err(|error| self.failed("read", &error))?;
            let lines = self.complete_lines(&text)?.into_iter().filter(|(_, line)| line.step <= step);
            let remaining: String = lines.flat_map(|(line, _)| [line, "\n"]).collect();
            if remaining != text {
                let new = self.path.with_extension("jsonl.unfinished");
                let written = fs::write(&new, remaining).and_then(|()| fs::rename(&new, &self.path));
                written.map_err(|error| self.failed("write", &error))?;
            }
        }
        let file = fs::File::options().create(true).append(true).open(&self.path);
        self.file = Some(BufWriter::new(file.map_err(|error| self.failed("write", &error))?));
        Ok(())
    }

    /// You cannot name a number `step`, because each line has the step under that name.
    fn log(&mut self, step: u64, values: &BTreeMap<String, f64>) -> Result<()> {
        if values.contains_key("step") {
            let message = format!(
                "a number named \"step\" cannot be written to {}, because each line has the step under that name",
                self.path.display()
            );
            return Err(Error::new(ErrorKind::Value, message).help("choose another name for the metric"));
        }
        let number =
            |x: f64| serde_json::Number::from_f64(x).map_or_else(|| Value::String(x.to_string()), Value::Number);
        let fields = values.iter().map(|(name, x)| format!("{}:{}", Value::String(name.clone()), number(*x)));
        let line: String = fields.map(|field| format!(",{field}")).collect();
        if self.file.is_none() {
            self.begin(step)?;
        }
        let written = self.file.as_mut().map_or(Ok(()), |file| writeln!(file, "{{\"step\":{step}{line}}}"));
        written.map_err(|error| self.failed("write", &error))
    }

    fn flush(&mut self) -> Result<()> {
        let flushed = self.file.as_mut().map_or(Ok(()), BufWriter::flush);
        flushed.map_err(|error| self.failed("write", &error))
    }
}
