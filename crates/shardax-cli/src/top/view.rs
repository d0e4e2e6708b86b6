//! Drawing a run.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Paragraph, Wrap};

use super::Run;

/// Draws the run on a terminal, with the curve of this number.
pub fn draw(frame: &mut Frame, run: &Run, curve: &str) {
    let areas =
        Layout::vertical([Constraint::Length(2), Constraint::Min(6), Constraint::Length(9)]).split(frame.area());
    frame.render_widget(Paragraph::new(head(run)), areas[0]);
    draw_curve(frame, areas[1], run, curve);
    let columns =
        Layout::horizontal([Constraint::Percentage(34), Constraint::Percentage(33), Constraint::Percentage(33)]);
    let columns = columns.split(areas[2]);
    let boxed =
        |title: &'static str, lines: Vec<Line<'static>>| Paragraph::new(lines).block(Block::bordered().title(title));
    frame.render_widget(boxed(" numbers ", numbers(run)), columns[0]);
    frame.render_widget(boxed(" machine ", machine(run)), columns[1]);
    frame.render_widget(boxed(" checkpoints ", checkpoints(run)), columns[2]);
}

fn head(run: &Run) -> Vec<Line<'static>> {
    let step = run.last().map_or_else(|| "no step yet".to_owned(), |line| format!("step {}", line.step));
    let mut first_line = vec![Span::from(step).bold()];
    // The remaining time was logged with the last step, so the age of the log is subtracted.
    let remaining = run
        .value("time/remaining_seconds")
        .map(|remaining| remaining - run.written.map_or(0.0, |age| age.as_secs_f64()));
    if run.is_finished() {
        first_line.push(Span::from("   finished").green());
    } else if let Some(remaining) = remaining {
        let remaining = if remaining > 0.0 { format!("   {} left", duration(remaining)) } else { String::new() };
        first_line.push(Span::from(remaining));
    }
    if let Some(rate) = run.value("steps_per_second") {
        first_line.push(Span::from(format!("   {} steps/s", short(rate))));
    }
    if run.is_saving {
        first_line.push(Span::from("   saving").yellow());
    }
    let age =
        run.written.map_or_else(|| "in the future".to_owned(), |age| format!("{} ago", duration(age.as_secs_f64())));
    let second = Span::from(format!("{}, written {age}", run.log.display()));
    // A run that has not logged for long is late, or was stopped.
    let quiet = !run.is_finished() && run.written.is_some_and(|age| age > Duration::from_secs(300));
    vec![Line::from(first_line), Line::from(if quiet { second.red() } else { second.dark_gray() })]
}

fn draw_curve(frame: &mut Frame, area: Rect, run: &Run, name: &str) {
    let points = run.curve(name);
    let block = Block::bordered().title(format!(" {name} "));
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        let names: Vec<&str> =
            run.last().map_or_else(Vec::new, |line| line.values.keys().map(String::as_str).collect());
        let text = format!("the log has no number `{name}`; draw another with `--curve`: {}", names.join(", "));
        return frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }).block(block), area);
    };
    // A constant curve needs a range around its value, because the axis would have no height otherwise.
    let low = points.iter().map(|(_, y)| *y).fold(f64::INFINITY, f64::min);
    let high = points.iter().map(|(_, y)| *y).fold(f64::NEG_INFINITY, f64::max);
    let (low, high) = if low < high { (low, high) } else { (low - 0.5, high + 0.5) };
    let end = last.0.max(first.0 + 1.0);
    let data = Dataset::default().marker(Marker::Braille).graph_type(GraphType::Line);
    let data = data.style(Style::default().fg(Color::Cyan)).data(&points);
    let chart = Chart::new(vec![data])
        .block(block)
        .x_axis(
            Axis::default().bounds([first.0, end]).labels([first.0, end].map(|step| Span::from(format!("{step:.0}")))),
        )
        .y_axis(
            Axis::default()
                .bounds([low, high])
                .labels([low, low / 2.0 + high / 2.0, high].map(|y| Span::from(short(y)))),
        );
    frame.render_widget(chart, area);
}

fn row(name: &str, value: String) -> Line<'static> {
    Line::from(format!("{name:<16} {value}"))
}

fn numbers(run: &Run) -> Vec<Line<'static>> {
    let Some(last) = run.last() else { return Vec::new() };
    let shown =
        |name: &&String| !name.starts_with("time/") && !name.starts_with("memory/") && *name != "steps_per_second";
    last.values.keys().filter(shown).map(|name| row(name, short(last.values[name]))).collect()
}

fn percent(x: f64) -> String {
    format!("{:.0} %", 100.0 * x)
}

fn gibibytes(x: f64) -> String {
    format!("{:.2} GiB", x / (1u64 << 30) as f64)
}

/// Numbers about the machine. Numbers that the log does not have are omitted.
fn machine(run: &Run) -> Vec<Line<'static>> {
    const ROWS: [(&str, &str, fn(f64) -> String); 7] = [
        ("memory/host_bytes", "host memory", gibibytes),
        ("memory/device_bytes", "device memory", gibibytes),
        ("time/input_wait", "waits for data", percent),
        ("time/dispatch", "starts steps", percent),
        ("time/device_wait", "waits for device", percent),
        ("tokens_per_second", "tokens/s", short),
        ("mfu", "MFU", percent),
    ];
    let lines = ROWS.map(|(name, label, format)| Some(row(label, format(run.value(name)?))));
    lines.into_iter().flatten().collect()
}

fn checkpoints(run: &Run) -> Vec<Line<'static>> {
    if run.checkpoints.is_empty() {
        return vec![Line::from("none")];
    }
    let lines = run.checkpoints.iter().rev().take(7).map(|(step, age)| {
        row(&format!("step {step}"), age.map_or_else(String::new, |age| format!("{} ago", duration(age.as_secs_f64()))))
    });
    lines.collect()
}

/// Four digits.
fn short(x: f64) -> String {
    match x.abs() {
        0.0 => "0".to_owned(),
        1000.0..1e7 => format!("{x:.0}"),
        0.001..1000.0 => format!("{x:.4}"),
        _ => format!("{x:.3e}"),
    }
}

/// The two largest units: `2 h 5 min`.
fn duration(seconds: f64) -> String {
    let seconds = seconds.clamp(0.0, 1e12) as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86400, seconds % 86400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units() {
        let texts = [0.4, 59.9, 61.0, 7500.0, 90_000.0, -3.0].map(duration);
        assert_eq!(texts, ["0 s", "59 s", "1 min 1 s", "2 h 5 min", "1 d 1 h", "0 s"]);
    }
}
