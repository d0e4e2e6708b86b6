//! The growth of times with sizes and devices: a table, and a picture of time over size.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use plotters::prelude::*;
use shardax::prelude::*;

use crate::data::{line, split, uniform};
use crate::{cnn, gpt, training};

const DEVICES: [usize; 4] = [1, 2, 4, 8];
/// The number of timed calls for each point, whose median is reported. An additional call before them compiles.
const CALLS: usize = 5;
const COLORS: [RGBColor; 4] =
    [RGBColor(37, 99, 235), RGBColor(234, 88, 12), RGBColor(5, 150, 105), RGBColor(147, 51, 234)];
const PANEL: (u32, u32) = (360, 270);
const COLUMNS: usize = 3;

type Call = Box<dyn FnMut() -> Result<()>>;

/// A row: its name, what its sizes count, these, and what makes a call for a size and a number of devices.
type Row = (&'static str, &'static str, [usize; 3], fn(usize, usize) -> Result<Call>);

const ROWS: [Row; 9] = [
    ("mlp_step", "rows", [256, 512, 1024], |size, n| stepping(training::mlp(n, size / n)?)),
    ("cnn_step", "images", [64, 128, 256], |size, n| stepping(cnn::stepping(n, size / n)?)),
    ("gpt_pmap", "rows of 256 tokens", [8, 16, 32], |size, n| stepping(gpt::mapped_stepping(n, size)?)),
    ("matmul", "rows, times 1024 × 1024", [1024, 2048, 4096], |size, n| {
        let w = uniform(&[1024, 1024], 0)?;
        let f = pmap(|x: Array, w: Array| x.matmul(w)).axis_name("i").in_axes((0, None));
        let x = split(uniform(&[n, size / n, 1024], 1)?, &line(n, "i")?, "i")?;
        Ok(Box::new(move || block_until_ready(f.call((&x, &w))?).map(drop)))
    }),
    ("elementwise", "elements of tanh(x) * x", [4 << 20, 8 << 20, 16 << 20], |size, n| {
        mapped(|x: Array| x.tanh() * &x, uniform(&[n, size / n], 0)?, n)
    }),
    ("psum", "bytes a device", [1 << 20, 4 << 20, 16 << 20], |size, n| {
        mapped(|x: Array| psum(x, "i"), ones([n, size / 4]), n)
    }),
    ("arguments", "arrays f32[4] a device", [16, 64, 256], |size, n| {
        let xs = (0..size).map(|_| split(ones([n, 4]), &line(n, "i")?, "i")).collect::<Result<Vec<_>>>()?;
        let f = pmap(|xs: Vec<Array>| xs.iter().map(|x| x + 1).collect::<Vec<_>>()).axis_name("i");
        Ok(Box::new(move || block_until_ready(f.call(&xs)?).map(drop)))
    }),
    ("gpt_trace_lower", "layers", [6, 12, 24], |size, n| {
        let mut lower = gpt::lowering(n, size)?;
        Ok(Box::new(move || lower().map(drop)))
    }),
    ("gpt_compile", "layers", [3, 6, 12], |size, n| {
        let lowered = gpt::lowering(n, size)?()?;
        Ok(Box::new(move || {
            shardax::clear_caches();
            lowered.compile().map(drop)
        }))
    }),
];

fn stepping(mut step: impl FnMut() -> Result<Array> + 'static) -> Result<Call> {
    Ok(Box::new(move || step().map(drop)))
}

fn mapped(f: fn(Array) -> Array, x: Array, n: usize) -> Result<Call> {
    let (f, x) = (pmap(f).axis_name("i"), split(x, &line(n, "i")?, "i")?);
    Ok(Box::new(move || block_until_ready(f.call(&x)?).map(drop)))
}

/// The median time of a call in ms.
fn time(mut call: Call) -> Result<f64> {
    call()?;
    let mut times = Vec::new();
    for _ in 0..CALLS {
        let start = Instant::now();
        call()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[CALLS / 2])
}

/// The power of the size that the time grows with, from the least size to the largest.
fn slope(sizes: &[usize; 3], times: &[f64; 3]) -> f64 {
    (times[2] / times[0]).ln() / (sizes[2] as f64 / sizes[0] as f64).ln()
}

/// Prints the table as it is measured, and writes the picture.
pub fn run(picture: &Path, filter: &str) -> std::result::Result<(), Box<dyn Error>> {
    println!("| row | sizes | 1 device: ms, slope | 2 devices | 4 devices | 8 devices |\n|:--|:--|--:|--:|--:|--:|");
    let mut measured = Vec::new();
    for row in ROWS.iter().filter(|row| row.0.contains(filter)) {
        let (name, counts, sizes, make) = row;
        let mut cells = Vec::new();
        let mut of_devices = Vec::new();
        for n in DEVICES {
            let mut times = [0.0; 3];
            for (time_of, &size) in times.iter_mut().zip(sizes) {
                *time_of = time(make(size, n)?)?;
                // Programs of other sizes would otherwise stay in memory until the end.
                shardax::clear_caches();
            }
            let [a, b, c] = times.map(digits);
            cells.push(format!("{a}, {b}, {c}; {:.2}", slope(sizes, &times)));
            of_devices.push(times);
        }
        let [a, b, c] = sizes.map(counted);
        println!("| `{name}` | {a}, {b}, {c} {counts} | {} |", cells.join(" | "));
        measured.push((row, of_devices));
    }
    Ok(std::fs::write(picture, draw(&measured)?)?)
}

/// Three digits.
fn digits(ms: f64) -> String {
    format!("{ms:.*}", if ms < 1.0 { 3 } else { usize::from(ms < 100.0) })
}

fn counted(size: usize) -> String {
    match size {
        0..0x10_0000 => size.to_string(),
        _ => format!("{} Mi", size >> 20),
    }
}

/// Returns the labels of the time axes: 1, 2 and 5 of each power of ten, because more labels would overlap.
fn round_times() -> Vec<f64> {
    (-3..6).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power))).collect()
}

/// Draws a panel for each row, with a curve for each number of devices, on logarithmic axes.
fn draw(measured: &[(&Row, Vec<[f64; 3]>)]) -> std::result::Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    let rows = measured.len().div_ceil(COLUMNS).max(1);
    let area = SVGBackend::with_string(&mut svg, (PANEL.0 * COLUMNS as u32, PANEL.1 * rows as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    for (((name, counts, sizes, _), of_devices), area) in measured.iter().zip(area.split_evenly((rows, COLUMNS))) {
        let times = of_devices.iter().flatten().copied();
        let (least, most) = times.fold((f64::INFINITY, 0.0f64), |(low, high), ms| (low.min(ms), high.max(ms)));
        let mut chart = ChartBuilder::on(&area)
            .caption(format!("{name}, ms"), ("sans-serif", 15))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(48)
            .build_cartesian_2d(
                (sizes[0] as f64..sizes[2] as f64).log_scale().with_key_points(sizes.map(|size| size as f64).to_vec()),
                // With room for the names above the curves.
                (least * 0.8..most * (most / least).max(4.0).powf(0.8)).log_scale().with_key_points(round_times()),
            )?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(RGBColor(229, 231, 235))
            .x_desc(*counts)
            .x_labels(3)
            .x_label_formatter(&|size| counted(*size as usize))
            .y_labels(round_times().len())
            .y_label_formatter(&|ms| format!("{ms}"))
            .draw()?;
        for ((n, times), color) in DEVICES.iter().zip(of_devices).zip(COLORS) {
            let points = sizes.iter().zip(times).map(|(size, ms)| (*size as f64, *ms));
            let name = format!("{n} device{}, slope {:.2}", if *n == 1 { "" } else { "s" }, slope(sizes, times));
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], color.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .label_font(("sans-serif", 11))
            .draw()?;
    }
    area.present()?;
    drop(area);
    Ok(svg)
}
