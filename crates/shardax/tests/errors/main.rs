//! Bad input, listed. Each mistake is an `Err` of the right kind that names the values involved, the user's own line and
//! the fix; nothing panics, aborts or hangs; and the process works on afterwards.
//!
//! A row is run at once and, where it makes sense, inside a function that is being traced.

#[path = "../common/mod.rs"]
mod common;

mod arrays;
mod collectives;
mod control_flow;
mod grid;
mod lifetimes;
mod linalg;
mod processes;
mod random;
mod shardings;
mod spmd;
mod transforms;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

use shardax::prelude::*;
use shardax::{Error, ErrorKind};

thread_local! {
    /// The line that the next error must name.
    static MARK: Cell<u32> = const { Cell::new(0) };
}

/// Evaluates an expression on one line, which the error of the row must name.
macro_rules! at {
    ($e:expr) => {{
        crate::mark(line!());
        $e
    }};
}
pub(crate) use at;

pub(crate) fn mark(line: u32) {
    MARK.set(line);
}

/// The results that a row may return: a `Result`, or an array that carries an error.
pub(crate) trait Outcome {
    fn error(self) -> Option<Error>;
}

impl Outcome for Array {
    fn error(self) -> Option<Error> {
        Array::error(&self).cloned()
    }
}

impl<T> Outcome for Result<T> {
    fn error(self) -> Option<Error> {
        self.err()
    }
}

/// One mistake and what must come of it.
pub(crate) struct Row {
    name: &'static str,
    kind: ErrorKind,
    phrases: &'static [&'static str],
    /// True if it is also run inside a function being traced.
    traced: bool,
    run: Box<dyn Fn() -> Option<Error>>,
}

impl Row {
    /// For mistakes that are none inside a traced function, where nothing is placed, read or donated.
    pub(crate) fn at_once_only(&mut self) {
        self.traced = false;
    }
}

#[derive(Default)]
pub(crate) struct Table(Vec<Row>);

impl Table {
    pub(crate) fn row<T: Outcome>(
        &mut self,
        name: &'static str,
        kind: ErrorKind,
        phrases: &'static [&'static str],
        run: impl Fn() -> T + 'static,
    ) -> &mut Row {
        let run = Box::new(move || run().error());
        self.0.push(Row { name, kind, phrases, traced: true, run });
        self.0.last_mut().expect("a row was just pushed")
    }
}

/// Judges the error of a row; `Err` names its fault.
fn judge(row: &Row, outcome: Option<Error>) -> Result<(), String> {
    let Some(error) = outcome else { return Err("it succeeds".into()) };
    let mut wrong = Vec::new();
    if error.kind() != row.kind {
        wrong.push(format!("its kind is not {:?}", row.kind));
    }
    for phrase in row.phrases {
        if !error.to_string().contains(phrase) {
            wrong.push(format!("it lacks {phrase:?}"));
        }
    }
    match error.location() {
        None => wrong.push("it has no location".into()),
        Some(l) if l.file().contains("shardax/src") || !l.file().contains("tests") => {
            wrong.push("its location is not the user's".into());
        }
        Some(l) if l.line() != MARK.get() => wrong.push(format!("its line is not {}", MARK.get())),
        Some(_) => {}
    }
    if error.help_text().is_none_or(str::is_empty) {
        wrong.push("it has no help".into());
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("{}:\n{error}", wrong.join("; "))) }
}

/// Runs `f`; a panic is a mistake of the library's.
fn quietly(f: impl FnOnce() -> Option<Error>) -> Result<Option<Error>, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        format!("it panics: {}", text.or(panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default())
    })
}

/// The process still computes, compiles, and runs on all devices.
pub(crate) fn works() -> Result<(), String> {
    fn all_finished() -> Result<bool> {
        let eager = (arange(0..3) + 1).to_vec::<i32>()? == [1, 2, 3];
        let compiled = jit(|x: Array| x * 2 + 1).call(arange(0..3))?.to_vec::<i32>()? == [1, 3, 5];
        let mapped = pmap(|x: Array| psum(x, "i")).axis_name("i").call(arange(0..8))?.to_vec::<i32>()? == [28; 8];
        Ok(eager && compiled && mapped)
    }
    match catch_unwind(AssertUnwindSafe(all_finished)) {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err("afterwards the numbers are wrong".into()),
        Ok(Err(e)) => Err(format!("afterwards nothing works: {e}")),
        Err(_) => Err("afterwards the library panics".into()),
    }
}

fn check(row: &Row) -> Result<(), String> {
    // Twice: what the first run left in caches must not change what the second sees.
    for _ in 0..2 {
        quietly(&row.run).and_then(|outcome| judge(row, outcome)).and_then(|()| works())?;
    }
    if row.traced {
        let inside = |x: Array| -> Result<Array> {
            match (row.run)() {
                Some(error) => Err(error),
                None => Ok(x),
            }
        };
        let traced = quietly(|| jit(inside).call(0).err());
        traced.and_then(|outcome| judge(row, outcome)).and_then(|()| works()).map_err(|e| format!("traced, {e}"))?;
    }
    Ok(())
}

#[test]
fn every_mistake_is_an_error_that_names_the_users_line() {
    common::quick::setup();
    let only = std::env::var("ERRORS_ONLY").unwrap_or_default();
    let is_unfiltered = only.is_empty();
    let (report, reports) = mpsc::channel();
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // Panics of rows are part of the verdict, not of the output.
        if std::thread::current().name() != Some("rows") {
            default_hook(info);
        }
    }));
    let rows = std::thread::Builder::new().name("rows".into());
    let started = rows.spawn(move || {
        let mut table = Table::default();
        arrays::rows(&mut table);
        random::rows(&mut table);
        linalg::rows(&mut table);
        control_flow::rows(&mut table);
        transforms::rows(&mut table);
        shardings::rows(&mut table);
        spmd::rows(&mut table);
        collectives::rows(&mut table);
        lifetimes::rows(&mut table);
        for row in table.0.iter().filter(|row| row.name.contains(&only)) {
            let _ = report.send((row.name, None));
            let _ = report.send((row.name, Some(check(row))));
        }
    });
    started.expect("a thread");

    let (mut running, mut count, mut failures) = ("", 0, Vec::new());
    loop {
        match reports.recv_timeout(Duration::from_secs(60)) {
            Ok((name, None)) => running = name,
            Ok((name, Some(verdict))) => {
                count += 1;
                if let Err(why) = verdict {
                    failures.push(format!("{name}: {why}"));
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("row {running:?} hangs"),
        }
    }
    println!("{count} rows");
    assert!(failures.is_empty(), "{} of {count} rows fail\n\n{}", failures.len(), failures.join("\n\n"));
    assert!(!is_unfiltered || count >= 450, "only {count} rows ran");
}

/// Every error on the page has an example, a cause and a fix.
#[test]
fn every_error_of_the_page_has_a_cause_and_a_fix() {
    let page = include_str!("../../../../docs/errors.md");
    let sections: Vec<&str> = page.split("\n## ").skip(1).collect();
    assert!(sections.len() >= 12, "{} sections", sections.len());
    for section in sections {
        let title = section.lines().next().unwrap_or_default();
        let parts: Vec<&str> = section.split("\n### ").collect();
        let [_, example, cause, fix] = parts.as_slice() else { panic!("{title} has {} parts", parts.len() - 1) };
        assert!(example.starts_with("Example\n") && example.contains("```"), "{title}");
        assert!(cause.starts_with("Cause\n") && fix.starts_with("Fix\n"), "{title}");
    }
}
