//! A page about a run: curves, last numbers, the shardings of arrays and the communication of steps.

mod arrays;
mod communication;
mod leaves;
mod live;

use std::collections::BTreeSet;
use std::fmt::{Display, Write};
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;

pub use leaves::Leaves;
pub use live::LiveReport;

use crate::log::Line;
use crate::picture::Picture;
use crate::plot::{Panel, Plot};
use crate::progress::is_of_machine;

/// Plots each number of some runs by step, in rows of two panels. `test/loss` is drawn in the panel of `loss`.
///
/// ```
/// # use shardax_train::log::Line;
/// let line = |step: u64, loss: f64| Line { step, values: [("loss".to_owned(), loss)].into() };
/// let run = [line(10, 2.0), line(20, 1.0)];
/// let svg = shardax_train::report::curves(&[("a run", &run)])[0].to_svg()?;
/// assert!(svg.contains("loss"));
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn curves(runs: &[(&str, &[Line])]) -> Vec<Plot> {
    panels(runs).chunks(2).map(|row| row.iter().cloned().fold(Plot::new(), Plot::panel)).collect()
}

fn panels(runs: &[(&str, &[Line])]) -> Vec<Panel> {
    let names: BTreeSet<&str> = runs
        .iter()
        .flat_map(|(_, lines)| lines.iter().flat_map(|line| line.values.keys().map(String::as_str)))
        .collect();
    // A number that is measured on several data sets shares the panel of its last name component.
    let titles: BTreeSet<&str> =
        names.iter().filter(|name| !is_of_machine(name)).map(|name| last_component(name)).collect();
    let mut panels = Vec::with_capacity(titles.len());
    for title in titles {
        let mut panel = Panel::new(title, "step");
        for (run, lines) in runs {
            for name in names.iter().filter(|name| last_component(name) == title) {
                let points = lines.iter().filter_map(|line| Some((line.step as f64, *line.values.get(*name)?)));
                let label = if runs.len() == 1 { (*name).to_owned() } else { format!("{run}: {name}") };
                panel = panel.points(&label, points);
            }
        }
        panels.push(panel);
    }
    panels
}

/// The last component of a name: `loss` of `test/loss`.
fn last_component(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or_default()
}

/// A self-contained HTML page about a run.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax_train::log::Line;
/// use shardax_train::report::Report;
/// let line = |step: u64, loss: f64| Line { step, values: [("loss".to_owned(), loss)].into() };
/// let html = Report::new("digits")
///     .curves(&[("first", &[line(10, 2.0), line(20, 1.0)])])?
///     .shardings(&(ones([4, 2]), zeros([3])))?
///     .to_html();
/// assert!(html.contains("<svg") && html.contains("float32[4,2]"));
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Report {
    title: String,
    sections: Vec<(Section, String)>,
    refresh: Option<Duration>,
    /// The line below the title.
    state: Option<String>,
}

/// Sections in the order of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Section {
    Curves,
    Pictures,
    Communication,
    Arrays,
}

impl Report {
    /// Creates an empty page. Sections have a fixed order: curves, pictures, communication, arrays.
    pub fn new(title: &str) -> Self {
        Report { title: title.to_owned(), sections: Vec::new(), refresh: None, state: None }
    }

    /// Makes browsers reload the page at this interval, for a page that is rewritten ([`LiveReport`]).
    pub fn refresh(mut self, interval: Duration) -> Self {
        self.refresh = Some(interval);
        self
    }

    /// Sets the line below the title, the state of the run.
    fn state(mut self, text: String) -> Self {
        self.state = Some(text);
        self
    }

    /// Adds curves of some runs, by their names, and a table of their last numbers.
    ///
    /// # Errors
    /// Returns an error if a plot cannot be drawn.
    pub fn curves(mut self, runs: &[(&str, &[Line])]) -> Result<Self> {
        let mut body = "<h2>Curves</h2><div>".to_owned();
        for panel in panels(runs) {
            let _ = write!(body, "<figure>{}</figure>", Plot::new().panel(panel).to_svg()?);
        }
        body.push_str("</div><h2>Last numbers</h2>");
        let names: BTreeSet<&String> =
            runs.iter().flat_map(|(_, lines)| lines.iter().flat_map(|line| line.values.keys())).collect();
        let header: Vec<&str> = std::iter::once("").chain(runs.iter().map(|(run, _)| *run)).collect();
        let mut rows = Vec::with_capacity(names.len());
        for name in names {
            let cells = runs.iter().map(|(_, lines)| last_value(lines, name));
            rows.push(std::iter::once(name.clone()).chain(cells).collect::<Vec<_>>());
        }
        body.push_str(&table(&header, 1, &rows, &[]));
        self.sections.push((Section::Curves, body));
        Ok(self)
    }

    /// Adds a picture with a caption, such as samples of the model. Small ones are enlarged.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax_train::{Picture, report::Report};
    /// let report = Report::new("digits").picture("samples", &Picture::grid(&zeros([8, 8, 8]), 4)?)?;
    /// assert!(report.to_html().contains("data:image/png;base64,"));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the picture cannot be compressed.
    pub fn picture(mut self, caption: &str, picture: &Picture) -> Result<Self> {
        let png = base64::engine::general_purpose::STANDARD.encode(picture.to_png()?);
        // Pixels stay squares.
        let width = picture.width() * (360 / picture.width().max(1)).clamp(1, 8);
        let is_first = self.sections.iter().all(|(section, _)| *section != Section::Pictures);
        let heading = if is_first { "<h2>Pictures</h2>" } else { "" };
        let caption = escaped(caption);
        let body = format!(
            "{heading}<figure><img width=\"{width}\" alt=\"{caption}\" src=\"data:image/png;base64,{png}\">\
             <figcaption>{caption}</figcaption></figure>"
        );
        self.sections.push((Section::Pictures, body));
        Ok(self)
    }

    /// Adds the shardings of a tree's arrays, or of several trees' (`&(&state, &batch)`). The table has one row for
    /// arrays whose paths differ only in a number, such as a model's layers; a picture shows each way to split them.
    ///
    /// # Errors
    /// Returns an error if an array of the tree was deleted or carries an error.
    pub fn shardings<Kind>(mut self, tree: &impl Leaves<Kind>) -> Result<Self> {
        self.sections.push((Section::Arrays, arrays::section(tree.leaves())?));
        Ok(self)
    }

    /// Adds the collectives of a compiled step, the largest first, with totals.
    ///
    /// Collectives inside custom calls are not included.
    ///
    /// # Errors
    /// Returns an error if the plugin does not return the text of the compiled program, from which the collectives
    /// are read.
    pub fn communication(mut self, step: &Compiled<impl Sized, impl Sized>) -> Result<Self> {
        self.sections.push((Section::Communication, communication::section(&step.collectives()?)));
        Ok(self)
    }

    /// Renders the page as text.
    pub fn to_html(&self) -> String {
        let title = escaped(&self.title);
        let mut sections = self.sections.clone();
        sections.sort_by_key(|(section, _)| *section);
        let body: String = sections.into_iter().map(|(_, body)| body).collect();
        let refresh = self.refresh.map_or_else(String::new, |interval| {
            format!("<meta http-equiv=\"refresh\" content=\"{}\">", interval.as_secs().max(1))
        });
        let state = self.state.as_ref().map_or_else(String::new, |text| format!("<p>{}</p>", escaped(text)));
        format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">{refresh}\
             <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title><style>\
             body{{font:15px system-ui,sans-serif;color:#1f2937;max-width:960px;margin:2em auto;padding:0 1em}}\
             .wide{{overflow-x:auto;margin-bottom:.6em}}table{{border-collapse:collapse}}tfoot{{font-weight:600}}\
             th,td{{text-align:left;padding:.2em .8em;border-bottom:1px solid #e5e7eb;white-space:nowrap}}\
             .n{{text-align:right;font-variant-numeric:tabular-nums}}\
             figure{{display:inline-block;margin:0 1em 1em 0;max-width:100%;vertical-align:top}}\
             svg,img{{max-width:100%;height:auto}}.wide svg{{max-width:none}}img{{image-rendering:pixelated}}\
             figcaption{{font-size:13px;color:#6b7280}}</style><h1>{title}</h1>{state}{body}</html>\n"
        )
    }

    /// Writes the page.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        std::fs::write(path, self.to_html()).map_err(|error| {
            Error::new(ErrorKind::Runtime, format!("cannot write {}: {error}", path.display()))
                .help("check that the path is correct and that this user may use it")
        })
    }
}

/// A table that scrolls on narrow pages. Columns from index `numbers` on are aligned on the right.
fn table(header: &[&str], numbers: usize, rows: &[Vec<String>], totals: &[Vec<String>]) -> String {
    let header: Vec<String> = header.iter().map(|cell| (*cell).to_owned()).collect();
    format!(
        "<div class=\"wide\"><table><thead>{}</thead><tbody>{}</tbody><tfoot>{}</tfoot></table></div>",
        table_row("th", &header, numbers),
        rows.iter().map(|cells| table_row("td", cells, numbers)).collect::<String>(),
        totals.iter().map(|cells| table_row("td", cells, numbers)).collect::<String>()
    )
}

/// A row of a table whose columns from index `numbers` on are numbers.
fn table_row(tag: &str, cells: &[String], numbers: usize) -> String {
    let mut row = "<tr>".to_owned();
    for (column, cell) in cells.iter().enumerate() {
        let class = if column >= numbers { " class=\"n\"" } else { "" };
        let _ = write!(row, "<{tag}{class}>{}</{tag}>", escaped(cell));
    }
    row + "</tr>"
}

/// The last value of this name and its step; empty if there is none.
fn last_value(lines: &[Line], name: &str) -> String {
    let last_line = lines.iter().rev().find_map(|line| Some((*line.values.get(name)?, line.step)));
    last_line.map_or(String::new(), |(x, step)| format!("{x:.6} at step {step}"))
}

/// Formats a number of bytes, such as `1.50 MiB`.
fn bytes_text(bytes: usize) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (0..UNITS.len()).rposition(|unit| bytes >> (10 * unit) > 0).unwrap_or(0);
    match unit {
        0 => format!("{bytes} B"),
        unit => format!("{:.2} {}", bytes as f64 / (1u64 << (10 * unit)) as f64, UNITS[unit]),
    }
}

fn escaped(text: impl Display) -> String {
    text.to_string().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
