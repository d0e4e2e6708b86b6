//! A page about a run: curves, last numbers, how arrays lie, what devices tell each other.

use std::collections::BTreeSet;
use std::fmt::{Display, Write};
use std::path::Path;

use shardax::array::TreeOrRef;
use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;
use shardax::visualize_sharding_svg;

use crate::log::Line;
use crate::plot::{Panel, Plot};

/// Curves of each number of some runs by step, in panels of two a row: `test/loss` is drawn beside `loss`.
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
    let names: BTreeSet<&str> = runs
        .iter()
        .flat_map(|(_, lines)| lines.iter().flat_map(|line| line.values.keys().map(String::as_str)))
        .collect();
    // Where a name is measured on several data sets the panel is that of its last part.
    let last = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
    let panels: BTreeSet<String> =
        names.iter().filter(|name| !name.starts_with("time/")).map(|name| last(name)).collect();
    let panel = |title: &String| {
        let mut panel = Panel::new(title, "step");
        for (run, lines) in runs {
            for name in names.iter().filter(|name| last(name) == *title) {
                let points = lines.iter().filter_map(|line| Some((line.step as f64, *line.values.get(*name)?)));
                let label = if runs.len() == 1 { (*name).to_owned() } else { format!("{run}: {name}") };
                panel = panel.points(&label, points);
            }
        }
        panel
    };
    let panels: Vec<Panel> = panels.iter().map(panel).collect();
    panels.chunks(2).map(|row| row.iter().cloned().fold(Plot::new(), Plot::panel)).collect()
}

/// A page in one file, which needs no other: a run as a browser shows it.
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
    body: String,
}

/// As many arrays are drawn; the others are in the table.
const DRAWN: usize = 6;

impl Report {
    /// An empty page.
    pub fn new(title: &str) -> Self {
        Report { title: title.to_owned(), body: String::new() }
    }

    /// Curves of some runs, by their names, and a table of their last numbers.
    pub fn curves(mut self, runs: &[(&str, &[Line])]) -> Result<Self> {
        self.heading("Curves");
        for plot in curves(runs) {
            self.body.push_str(&plot.to_svg()?);
        }
        self.heading("Last numbers");
        let names: BTreeSet<&String> =
            runs.iter().flat_map(|(_, lines)| lines.iter().flat_map(|line| line.values.keys())).collect();
        let header = ["".to_owned()].into_iter().chain(runs.iter().map(|(run, _)| (*run).to_owned())).collect();
        let row = |name: &String| {
            let last = |lines: &[Line]| lines.iter().rev().find_map(|line| Some((*line.values.get(name)?, line.step)));
            let cell = |lines| last(lines).map_or(String::new(), |(x, step)| format!("{x:.6} at step {step}"));
            [name.clone()].into_iter().chain(runs.iter().map(|(_, lines)| cell(lines))).collect()
        };
        self.table(header, names.into_iter().map(row).collect());
        Ok(self)
    }

    /// How the arrays of a tree lie on the devices: a table, and pictures of the largest that are split.
    ///
    /// Takes a tree, a reference to one, or a tuple of references: `report.shardings((&state, &batch))`.
    pub fn shardings<Kind>(mut self, tree: impl TreeOrRef<Kind>) -> Result<Self> {
        self.heading("Arrays");
        let flat = tree.flat();
        let mut leaves: Vec<(String, Array)> = flat.def.paths().into_iter().zip(flat.leaves).collect();
        leaves.sort_by_key(|(_, leaf)| std::cmp::Reverse(leaf.nbytes()));
        let row = |(path, leaf): &(String, Array)| -> Result<Vec<String>> {
            let sharding = leaf.sharding()?;
            let part = sharding.shard_shape(leaf.shape())?.iter().product::<usize>() * leaf.dtype().byte_size();
            let spec = sharding.as_named().map_or("one device".to_owned(), |named| named.spec().to_string());
            Ok(vec![path.clone(), leaf.type_name(), spec, leaf.nbytes().to_string(), part.to_string()])
        };
        let header = ["array", "type", "split", "bytes", "bytes on a device"].map(str::to_owned).to_vec();
        self.table(header, leaves.iter().map(row).collect::<Result<_>>()?);
        let split = leaves.iter().filter(|(_, leaf)| (1..=2).contains(&leaf.ndim()) && !leaf.is_fully_replicated());
        for (path, leaf) in split.take(DRAWN) {
            let picture = visualize_sharding_svg(leaf.shape(), leaf.sharding()?)?;
            let _ = write!(self.body, "<figure>{picture}<figcaption>{}</figcaption></figure>", escaped(path));
        }
        Ok(self)
    }

    /// What the devices tell each other in a compiled step.
    pub fn communication(mut self, step: &Compiled<impl Sized, impl Sized>) -> Result<Self> {
        self.heading("Communication in a step");
        let all = step.collectives()?;
        let row = |c: &Collective| {
            let axes: Vec<String> = c.axes.iter().map(|axis| axis.to_string()).collect();
            let often = if c.in_loop { format!("{} in a loop", c.count) } else { c.count.to_string() };
            vec![c.kind.to_string(), axes.join(", "), c.participants.to_string(), c.bytes.to_string(), often]
        };
        let header = ["what", "over", "devices", "bytes on each", "times"].map(str::to_owned).to_vec();
        self.table(header, all.iter().map(row).collect());
        Ok(self)
    }

    fn heading(&mut self, text: &str) {
        let _ = write!(self.body, "<h2>{}</h2>", escaped(text));
    }

    fn table(&mut self, header: Vec<String>, rows: Vec<Vec<String>>) {
        let cells = |tag: &str, row: &[String]| -> String {
            row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect()
        };
        let body: String = rows.iter().map(|row| format!("<tr>{}</tr>", cells("td", row))).collect();
        let _ = write!(self.body, "<table><tr>{}</tr>{body}</table>", cells("th", &header));
    }

    /// The page as text.
    pub fn to_html(&self) -> String {
        let title = escaped(&self.title);
        format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title><style>\
             body{{font:15px system-ui,sans-serif;color:#1f2937;max-width:960px;margin:2em auto;padding:0 1em}}\
             table{{border-collapse:collapse}}th,td{{text-align:left;padding:.2em .8em;border-bottom:1px solid #e5e7eb}}\
             figure{{display:inline-block;margin:1em}}svg{{max-width:100%}}</style><h1>{title}</h1>{}</html>\n",
            self.body
        )
    }

    /// Writes the page. Fails where the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        std::fs::write(path, self.to_html()).map_err(|error| {
            Error::new(ErrorKind::Runtime, format!("cannot write {}: {error}", path.display())).help("look at the path")
        })
    }
}

fn escaped(text: impl Display) -> String {
    text.to_string().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
