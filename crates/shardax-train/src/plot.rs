//! Curves of a training run as an SVG picture.

use std::fmt::Display;
use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use shardax::error::{Error, ErrorKind, Result};

const PANEL: (u32, u32) = (460, 340);
const COLORS: [RGBColor; 5] = [
    RGBColor(37, 99, 235),
    RGBColor(234, 88, 12),
    RGBColor(5, 150, 105),
    RGBColor(147, 51, 234),
    RGBColor(202, 138, 4),
];
const TEXT_COLOR: RGBColor = RGBColor(31, 41, 55);
const SECONDARY_COLOR: RGBColor = RGBColor(107, 114, 128);
const GRID: RGBColor = RGBColor(229, 231, 235);
/// The largest value that is drawn, because the distance of two larger ones might not be finite.
const MAX_VALUE: f64 = 1e100;
/// The smallest range of an axis, absolute and relative to the values. Tick labels of a smaller range would be equal.
const MIN_RANGE: (f64, f64) = (1e-100, 1e-9);
/// The number of points from which a curve has no dots.
const MAX_DOTS: usize = 40;

/// A row of panels, each with curves.
///
/// ```
/// use shardax_train::{Panel, Plot};
///
/// let loss = Panel::new("loss", "epoch").line("train", [1.2, 0.6, 0.4]);
/// let accuracy = Panel::new("accuracy", "epoch").line("train", [0.6, 0.8, 0.9]).line("test", [0.5, 0.7, 0.8]);
/// let svg = Plot::new().panel(loss).panel(accuracy).to_svg()?;
/// assert!(svg.starts_with("<svg"));
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Plot {
    panels: Vec<Panel>,
}

/// Curves over one pair of axes; see [`Plot`].
#[derive(Clone, Debug)]
pub struct Panel {
    title: String,
    x_label: String,
    lines: Vec<Line>,
}

#[derive(Clone, Debug)]
struct Line {
    name: String,
    /// `(x, y)`
    points: Vec<(f64, f64)>,
}

impl Panel {
    /// Creates a panel without curves. `title` names the values, `x_label` the horizontal axis.
    pub fn new(title: &str, x_label: &str) -> Self {
        Panel { title: title.into(), x_label: x_label.into(), lines: Vec::new() }
    }

    /// Adds a curve through these values, the first at 1. Values that are not finite, or beyond ±1e100, leave gaps.
    pub fn line(mut self, name: &str, values: impl IntoIterator<Item = f64>) -> Self {
        let points = values.into_iter().enumerate().map(|(i, y)| (i as f64 + 1.0, y)).collect();
        self.lines.push(Line { name: name.into(), points });
        self
    }

    /// Adds a curve through these points, such as the steps and numbers of a log. You should sort them from left to
    /// right, because the curve connects them in this order.
    pub fn points(mut self, name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let points = points.into_iter().filter(|(x, _)| is_drawn(*x)).collect();
        self.lines.push(Line { name: name.into(), points });
        self
    }

    /// The points that are drawn.
    fn finite(&self) -> impl Iterator<Item = (f64, f64)> {
        self.lines.iter().flat_map(|l| l.points.iter().copied()).filter(|(_, y)| is_drawn(*y))
    }

    fn x_range(&self) -> Range<f64> {
        let ends = self.lines.iter().flat_map(|l| l.points.iter().map(|(x, _)| *x));
        let (low, high) = ends.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        match low < high {
            // Tick labels of a smaller range would be equal.
            true => low..high.max(low + low.abs().max(high.abs()) * MIN_RANGE.1),
            false if low.is_finite() => low..low + 1.0,
            false => 1.0..2.0,
        }
    }

    /// The range of all values, with a margin above and below.
    fn y_range(&self) -> Range<f64> {
        let (low, high) = self.finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), (_, y)| (l.min(y), h.max(y)));
        if low > high {
            return 0.0..1.0;
        }
        let size = low.abs().max(high.abs());
        let room = match high - low {
            0.0 => size.max(1.0) * 0.06,
            height => (height * 0.06).max(size * MIN_RANGE.1).max(MIN_RANGE.0),
        };
        // No margin below 0 for values that are never negative.
        let bottom = if low >= 0.0 { (low - room).max(0.0) } else { low - room };
        bottom..high + room
    }
}

/// True if a value can be drawn on the axis.
fn is_drawn(y: f64) -> bool {
    y.abs() <= MAX_VALUE
}

impl Plot {
    /// Creates a plot without panels.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a panel on the right.
    pub fn panel(mut self, panel: Panel) -> Self {
        self.panels.push(panel);
        self
    }

    /// Renders the plot as SVG text.
    ///
    /// # Errors
    /// Returns an error if the plot cannot be drawn.
    pub fn to_svg(&self) -> Result<String> {
        let mut svg = String::new();
        let count = self.panels.len().max(1);
        let area = SVGBackend::with_string(&mut svg, (PANEL.0 * count as u32, PANEL.1)).into_drawing_area();
        let drawn = area.fill(&WHITE).map_err(failed).and_then(|()| {
            let areas = area.split_evenly((1, count));
            self.panels.iter().zip(&areas).try_for_each(|(panel, area)| panel.draw(area))?;
            area.present().map_err(failed)
        });
        drop(area);
        drawn.map(|()| svg)
    }

    /// Writes the plot to a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        std::fs::write(path, self.to_svg()?).map_err(|e| {
            Error::new(ErrorKind::Runtime, format!("the plot cannot be written to {}: {e}", path.display()))
        })
    }
}

fn failed(error: impl Display) -> Error {
    Error::new(ErrorKind::Runtime, format!("the plot cannot be drawn: {error}"))
}

impl Panel {
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<()> {
        // The axes leave room for the header above them.
        self.draw_header(area)?;
        let mut chart = ChartBuilder::on(area)
            .margin_top(52)
            .margin_right(24)
            .margin_bottom(6)
            .margin_left(10)
            .x_label_area_size(40)
            .y_label_area_size(46)
            .build_cartesian_2d(self.x_range(), self.y_range())
            .map_err(failed)?;
        let (label, x_label) = (labels(&self.y_range()), labels(&self.x_range()));
        // Steps and epochs are counted, so that labels between them mean nothing.
        let counts = self.lines.iter().all(|line| line.points.iter().all(|(x, _)| x.fract() == 0.0));
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .x_desc(&self.x_label)
            .axis_desc_style(("sans-serif", 13).into_font().color(&SECONDARY_COLOR))
            .label_style(("sans-serif", 12).into_font().color(&SECONDARY_COLOR))
            .x_labels(if counts { self.x_range().end.clamp(2.0, 8.0) as usize } else { 6 })
            .y_labels(6)
            .x_label_formatter(&|x| match counts {
                false => x_label(x),
                true if x.fract() == 0.0 => format!("{x}"),
                true => String::new(),
            })
            .y_label_formatter(&label)
            .draw()
            .map_err(failed)?;
        for (line, color) in self.lines.iter().zip(COLORS.iter().cycle()) {
            let style = color.stroke_width(2);
            // Values that cannot be drawn interrupt the line.
            for run in line.points.split(|(_, y)| !is_drawn(*y)) {
                chart.draw_series(LineSeries::new(run.iter().copied(), style)).map_err(failed)?;
                if line.points.len() < MAX_DOTS {
                    let dots = run.iter().map(|&point| Circle::new(point, 3, color.filled()));
                    chart.draw_series(dots).map_err(failed)?;
                }
            }
        }
        Ok(())
    }

    /// Draws the title on the left and the curves' names on the right, above the axes.
    fn draw_header(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<()> {
        let title = ("sans-serif", 17).into_font().style(FontStyle::Bold).color(&TEXT_COLOR);
        let name = ("sans-serif", 13).into_font().color(&TEXT_COLOR).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw_text(&self.title, &title.pos(Pos::new(HPos::Left, VPos::Center)), (56, 28)).map_err(failed)?;
        let mut right = PANEL.0 as i32 - 24;
        let keys: Vec<_> = self.lines.iter().zip(COLORS.iter().cycle()).collect();
        for (line, color) in keys.into_iter().rev() {
            // The width is estimated, since the font is not available.
            let text_left = right - 7 * line.name.chars().count() as i32;
            area.draw_text(&line.name, &name, (text_left, 28)).map_err(failed)?;
            let key = PathElement::new([(text_left - 26, 28), (text_left - 8, 28)], color.stroke_width(3));
            area.draw(&key).map_err(failed)?;
            right = text_left - 42;
        }
        Ok(())
    }
}

/// Returns a formatter of an axis' labels. They have as many decimals as are necessary to distinguish them, or an
/// exponent if they are very large or small.
fn labels(range: &Range<f64>) -> impl Fn(&f64) -> String + use<> {
    let (step, size) = ((range.end - range.start) / 5.0, range.start.abs().max(range.end.abs()));
    let decimals = (-step.log10()).ceil().clamp(0.0, 6.0) as usize;
    let digits = ((size / step).log10().ceil() + 1.0).clamp(0.0, 12.0) as usize;
    let plain = (1e-6..1e9).contains(&size) && step >= 1e-6;
    move |y| if plain { format!("{y:.decimals$}") } else { format!("{y:.digits$e}") }
}
