//! Pictures of shardings: boxes in the terminal, or SVG.

use std::fmt::Write as _;

use super::Sharding;
use crate::error::{Result, bail};

/// A rectangle of an array and the devices that hold it.
struct Cell {
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
    devices: Vec<usize>,
}

/// The distinct parts of an array of one or two dimensions; a vector is one row.
fn cells(shape: &[usize], sharding: &Sharding) -> Result<Vec<Cell>> {
    if shape.is_empty() || shape.len() > 2 {
        bail!(Value, "only arrays of one or two dimensions can be drawn, got shape {shape:?}");
    }
    let mut cells: Vec<Cell> = Vec::new();
    for (device, index) in sharding.devices_indices_map(shape)? {
        let (rows, columns) = match index.as_slice() {
            [columns] => (0..1, columns.clone()),
            [rows, columns] => (rows.clone(), columns.clone()),
            _ => continue,
        };
        match cells.iter_mut().find(|c| c.rows == rows && c.columns == columns) {
            Some(cell) => cell.devices.push(device.id()),
            None => cells.push(Cell { rows, columns, devices: vec![device.id()] }),
        }
    }
    cells.sort_by_key(|c| (c.rows.start, c.columns.start));
    Ok(cells)
}

fn label(platform: &str, cell: &Cell) -> String {
    let ids: Vec<String> = cell.devices.iter().map(usize::to_string).collect();
    format!("{platform} {}", ids.join(","))
}

fn platform(sharding: &Sharding) -> String {
    sharding.devices().first().map(|d| d.platform().to_uppercase()).unwrap_or_default()
}

/// How an array of this shape lies on devices, as boxes of text: one for each part, with the devices that hold it.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let sharding = NamedSharding::new(&make_mesh([("i", 2), ("j", 2)])?, P!["i", "j"]);
/// println!("{}", visualize_sharding(&[4, 4], &sharding)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails for arrays of other than one or two dimensions, and where the sharding does not divide the shape.
pub fn visualize_sharding(shape: &[usize], sharding: impl Into<Sharding>) -> Result<String> {
    let sharding = sharding.into();
    let cells = cells(shape, &sharding)?;
    let platform = platform(&sharding);
    let rows: Vec<Vec<&Cell>> = cells.chunk_by(|a, b| a.rows == b.rows).map(|row| row.iter().collect()).collect();
    let width = cells.iter().map(|c| label(&platform, c).len()).max().unwrap_or(0) + 2;
    let columns = rows.first().map_or(0, Vec::len);
    let rule = |left: char, middle: char, right: char| {
        let bars = vec!["─".repeat(width); columns].join(&middle.to_string());
        format!("{left}{bars}{right}\n")
    };
    let mut out = rule('┌', '┬', '┐');
    for (i, row) in rows.iter().enumerate() {
        if i > 0 {
            out.push_str(&rule('├', '┼', '┤'));
        }
        for cell in row {
            let _ = write!(out, "│{:^width$}", label(&platform, cell));
        }
        out.push_str("│\n");
    }
    out.push_str(&rule('└', '┴', '┘'));
    Ok(out)
}

/// The same as an SVG picture: parts in proportion, coloured by the first device that holds them.
pub fn visualize_sharding_svg(shape: &[usize], sharding: impl Into<Sharding>) -> Result<String> {
    let sharding = sharding.into();
    let cells = cells(shape, &sharding)?;
    let platform = platform(&sharding);
    let (height, width) = match *shape {
        [n] => (1, n),
        [m, n] => (m, n),
        _ => (1, 1),
    };
    let (w, h) =
        (640.0, if height == 1 { 80.0 } else { (640.0 * height as f64 / width.max(1) as f64).clamp(120.0, 960.0) });
    let (sx, sy) = (w / width.max(1) as f64, h / height.max(1) as f64);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" font-family=\"sans-serif\" font-size=\"14\">\n"
    );
    for cell in &cells {
        let (x, y) = (cell.columns.start as f64 * sx, cell.rows.start as f64 * sy);
        let (cw, ch) = (cell.columns.len() as f64 * sx, cell.rows.len() as f64 * sy);
        // Hues a golden angle apart differ for neighbouring devices.
        let hue = (cell.devices[0] as f64 * 137.5) % 360.0;
        let _ = writeln!(
            out,
            "  <rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{cw:.1}\" height=\"{ch:.1}\" fill=\"hsl({hue:.0},60%,80%)\" stroke=\"#444\"/>\n  <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" dominant-baseline=\"middle\">{}</text>",
            x + cw / 2.0,
            y + ch / 2.0,
            label(&platform, cell)
        );
    }
    out.push_str("</svg>\n");
    Ok(out)
}

/// Prints how an array lies on its devices; see [`visualize_sharding`].
pub fn visualize_array_sharding(array: &crate::Array) -> Result<()> {
    print!("{}", visualize_sharding(array.shape(), array.sharding()?)?);
    Ok(())
}
