//! Pictures of shardings: boxes in the terminal, with or without colours, or SVG.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::ops::Range;

use super::Sharding;
use crate::error::{AtCaller, Result, err};

/// A rectangle of an array and the devices that hold it.
struct Cell {
    rows: Range<usize>,
    columns: Range<usize>,
    devices: Vec<usize>,
}

/// The distinct shards of an array of one or two dimensions, row by row. A vector is one row.
struct Grid {
    /// The height of the array.
    height: usize,
    width: usize,
    is_vector: bool,
    platform: String,
    cells: Vec<Cell>,
}

impl Grid {
    /// Computes the cells of an array of this shape.
    fn of(shape: &[usize], sharding: &Sharding) -> Result<Grid> {
        let (height, width) = match *shape {
            [n] => (1, n),
            [m, n] => (m, n),
            _ => {
                return Err(err!(
                    Value,
                    "`visualize_sharding` only works for shapes with 1 and 2 dimensions, got shape {shape:?}"
                )
                .help("draw a slice of two dimensions: pass its shape and its sharding"));
            }
        };
        // Devices with the same shard share a cell.
        let mut cells: Vec<Cell> = Vec::new();
        for (device, index) in sharding.devices_indices_map(shape)? {
            let columns = index.last().cloned().unwrap_or_default();
            let rows = if shape.len() == 1 { 0..1 } else { index[0].clone() };
            match cells.iter_mut().find(|c| c.rows == rows && c.columns == columns) {
                Some(cell) => cell.devices.push(device.id()),
                None => cells.push(Cell { rows, columns, devices: vec![device.id()] }),
            }
        }
        cells.sort_by_key(|c| (c.rows.start, c.columns.start));
        cells.iter_mut().for_each(|c| c.devices.sort_unstable());
        let platform = sharding.devices().first().map(|d| d.platform().to_uppercase()).unwrap_or_default();
        Ok(Grid { height, width, is_vector: shape.len() == 1, platform, cells })
    }

    fn label(&self, cell: &Cell) -> String {
        let ids: Vec<String> = cell.devices.iter().map(usize::to_string).collect();
        format!("{} {}", self.platform, ids.join(","))
    }

    /// Draws boxes with about the array's proportions, at most 80 columns wide if the names fit.
    fn boxes(&self, color: bool) -> String {
        const HEIGHT: f64 = 10.0;
        const MAX_COLUMNS: usize = 80;
        // The height of a character divided by its width.
        const CHARACTER: f64 = 2.5;
        let rows: Vec<&[Cell]> = self.cells.chunk_by(|a, b| a.rows == b.rows).collect();
        let columns = rows.first().map_or(0, |row| row.len());
        let aspect =
            if self.is_vector { 1.0 / self.width.max(1) as f64 } else { self.width as f64 / self.height.max(1) as f64 };
        let base_width = (HEIGHT * aspect).floor();
        let widest_label = self.cells.iter().map(|c| self.label(c).len()).max().unwrap_or(0);
        let widths = self.cells.iter().map(|c| fraction(&c.columns, self.width) * base_width * CHARACTER);
        let widest = widths.map(|width| (width as usize).clamp(9, MAX_COLUMNS) - 2).max().unwrap_or(0);
        let room = MAX_COLUMNS.saturating_sub(columns + 1) / columns.max(1);
        let width = widest.min(room).max(widest_label);

        let bars = vec!["─".repeat(width); columns];
        let mut out = format!("┌{}┐\n", bars.join("┬"));
        for (i, row) in rows.iter().enumerate() {
            if i > 0 {
                let _ = writeln!(out, "├{}┤", bars.join("┼"));
            }
            let lines = if self.is_vector {
                1
            } else {
                ((fraction(&row[0].rows, self.height) * HEIGHT) as usize).saturating_sub(1).max(1)
            };
            for line in 0..lines {
                for cell in *row {
                    let text = if line == (lines - 1) / 2 { self.label(cell) } else { String::new() };
                    let _ = if color {
                        write!(out, "│\x1b[30;48;5;{}m{text:^width$}\x1b[0m", terminal_color(cell.devices[0]))
                    } else {
                        write!(out, "│{text:^width$}")
                    };
                }
                out.push_str("│\n");
            }
        }
        let _ = writeln!(out, "└{}┘", bars.join("┴"));
        out
    }

    /// A label that is as short as possible but legible: `CPU 0–7`, and `CPU 0, 4 … 28` if many devices hold a part.
    fn short_label(&self, cell: &Cell) -> String {
        match cell.devices.as_slice() {
            [first, second, .., last] if cell.devices.len() > 4 => {
                let step = second - first;
                match cell.devices.windows(2).all(|pair| pair[1] - pair[0] == step) {
                    true if step == 1 => format!("{} {first}–{last}", self.platform),
                    true => format!("{} {first}, {second} … {last}", self.platform),
                    false => format!("{} {first}, {second} … ({})", self.platform, cell.devices.len()),
                }
            }
            _ => self.label(cell),
        }
    }

    /// Draws an SVG picture with about the array's proportions. It is as large as its labels need, because it is not
    /// meant to be scaled down.
    fn svg(&self) -> String {
        const FONT: f64 = 14.0;
        let rows = self.cells.chunk_by(|a, b| a.rows == b.rows).count();
        let columns = self.cells.len() / rows.max(1);
        let widest = self.cells.iter().map(|cell| self.short_label(cell).chars().count()).max().unwrap_or(0);
        // The proportions of capitals and digits in a sans-serif typeface.
        let (least_width, least_height) = ((widest as f64 + 2.0) * FONT * 0.62, 2.0 * FONT);
        let aspect = self.height as f64 / self.width.max(1) as f64;
        let (w, h) = (400.0, if self.is_vector { 48.0 } else { (400.0 * aspect).clamp(80.0, 400.0) });
        let (w, h) = (f64::max(w, columns as f64 * least_width).ceil(), f64::max(h, rows as f64 * least_height).ceil());
        let (sx, sy) = (w / self.width.max(1) as f64, h / self.height.max(1) as f64);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" font-family=\"sans-serif\" font-size=\"{FONT}\">\n"
        );
        for cell in &self.cells {
            let (x, y) = (cell.columns.start as f64 * sx, cell.rows.start as f64 * sy);
            let (cw, ch) = (cell.columns.len() as f64 * sx, cell.rows.len() as f64 * sy);
            // Hues that differ by the golden angle distinguish neighbouring devices.
            let hue = (cell.devices[0] as f64 * 137.5) % 360.0;
            let _ = writeln!(
                out,
                "  <rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{cw:.1}\" height=\"{ch:.1}\" fill=\"hsl({hue:.0},60%,80%)\" stroke=\"#444\"/>\n  <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" dominant-baseline=\"middle\">{}<title>{}</title></text>",
                x + cw / 2.0,
                y + ch / 2.0,
                self.short_label(cell),
                self.label(cell)
            );
        }
        out.push_str("</svg>\n");
        out
    }
}

/// The part of a dimension of `size` elements that a range covers.
fn fraction(range: &Range<usize>, size: usize) -> f64 {
    range.len() as f64 / size.max(1) as f64
}

/// A light colour of the terminal's 256. Neighbouring devices have different colours.
fn terminal_color(device: usize) -> u8 {
    const LIGHT: [u8; 12] = [117, 215, 150, 211, 183, 222, 115, 180, 153, 174, 193, 146];
    LIGHT[device % LIGHT.len()]
}

/// Draws the sharding of an array of this shape as text boxes, one for each shard, labelled with the devices that hold
/// it.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let sharding = NamedSharding::new(&make_mesh([("i", 2), ("j", 2)])?, P!["i", "j"]);
/// let picture = "\
/// ┌──────────┬──────────┐
/// │          │          │
/// │  CPU 0   │  CPU 1   │
/// │          │          │
/// │          │          │
/// ├──────────┼──────────┤
/// │          │          │
/// │  CPU 2   │  CPU 3   │
/// │          │          │
/// │          │          │
/// └──────────┴──────────┘
/// ";
/// assert_eq!(visualize_sharding(&[4, 4], &sharding)?, picture);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for arrays that do not have one or two dimensions, and if the sharding does not divide the shape.
#[track_caller]
pub fn visualize_sharding(shape: &[usize], sharding: impl Into<Sharding>) -> Result<String> {
    Ok(Grid::of(shape, &sharding.into()).at_caller()?.boxes(false))
}

/// Like [`visualize_sharding`] with terminal colours. Each box has the colour of the first device that holds it.
///
/// # Errors
/// Returns an error in the same cases as [`visualize_sharding`].
#[track_caller]
pub fn visualize_sharding_color(shape: &[usize], sharding: impl Into<Sharding>) -> Result<String> {
    Ok(Grid::of(shape, &sharding.into()).at_caller()?.boxes(true))
}

/// Like [`visualize_sharding`] as an SVG picture. Shards are drawn in proportion, in the colour of the first device
/// that holds them.
///
/// # Errors
/// Returns an error in the same cases as [`visualize_sharding`].
#[track_caller]
pub fn visualize_sharding_svg(shape: &[usize], sharding: impl Into<Sharding>) -> Result<String> {
    Ok(Grid::of(shape, &sharding.into()).at_caller()?.svg())
}

/// Prints the sharding of an array of this shape, in colour if standard output is a terminal and the environment
/// variable `NO_COLOR` is not set.
pub(crate) fn print(shape: &[usize], sharding: &Sharding) -> Result<()> {
    let color = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let picture = Grid::of(shape, sharding)?.boxes(color);
    // Writing to a closed standard output is not an error of the program.
    let _ = io::stdout().write_all(picture.as_bytes());
    Ok(())
}
