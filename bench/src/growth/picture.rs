//! The picture of the growth: for each phase of each case, a panel with the costs of shardax and JAX over the size, on
//! logarithmic axes.

use std::error::Error;

use plotters::prelude::*;

use super::Side;
use super::cases::Case;
use super::results::{Results, counted, digits, power};

/// Few, so that the text is legible at the width of a page.
const COLUMNS: usize = 3;
/// Cases with more phases are only in the table.
const MAX_PHASES: usize = 6;
const PANEL: (u32, u32) = (300, 210);
/// The height of the line that explains the colors.
const LEGEND: u32 = 40;
const OURS: RGBColor = RGBColor(37, 99, 235);
const JAX: RGBColor = RGBColor(234, 88, 12);
const GRID: RGBColor = RGBColor(229, 231, 235);

pub fn draw<'a>(results: &'a Results, cases: &[&'a Case]) -> Result<String, Box<dyn Error>> {
    // The smallest costs, and cases of many phases, are only in the table.
    let panels: Vec<(&Case, &str)> = cases
        .iter()
        .flat_map(|case| results.phases(case).into_iter().map(|phase| (*case, phase)).collect::<Vec<_>>())
        .filter(|(case, phase)| {
            case.phases.len() <= MAX_PHASES
                && [Side::Shardax, Side::Jax].iter().any(|side| power(&results.costs(case, *side, phase)).is_some())
        })
        .collect();
    let rows = panels.len().div_ceil(COLUMNS).max(1);
    let size = (PANEL.0 * COLUMNS as u32, PANEL.1 * rows as u32 + LEGEND);
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    area.fill(&WHITE)?;
    let (legend, grid) = area.split_vertically(LEGEND);
    draw_legend(&legend)?;
    for ((case, phase), area) in panels.iter().zip(grid.split_evenly((rows, COLUMNS))) {
        draw_panel(results, case, phase, &area)?;
    }
    area.present()?;
    drop((area, legend, grid));
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw_legend(area: &Area<'_>) -> Result<(), Box<dyn Error>> {
    let font = ("sans-serif", 15).into_font();
    let mut x = 14;
    for (name, color) in [("shardax", OURS), ("JAX", JAX)] {
        area.draw(&PathElement::new([(x, 20), (x + 24, 20)], color.stroke_width(3)))?;
        area.draw(&Text::new(name, (x + 32, 13), font.clone()))?;
        x += 130;
    }
    let unit = "ms of CPU time unless a phase says otherwise; the numbers above a panel are the fitted exponents";
    area.draw(&Text::new(unit, (x, 13), font))?;
    Ok(())
}

fn draw_panel(results: &Results, case: &Case, phase: &str, area: &Area<'_>) -> Result<(), Box<dyn Error>> {
    let sides = [(Side::Shardax, OURS), (Side::Jax, JAX)];
    let curves = sides.map(|(side, color)| (results.costs(case, side, phase), color));
    // A logarithmic axis cannot show a cost of 0.
    let costs = curves.iter().flat_map(|(costs, _)| costs).map(|(_, cost)| cost.max(1e-3));
    let (least, most) = costs.fold((f64::INFINITY, 0.0f64), |(low, high), cost| (low.min(cost), high.max(cost)));
    let (low, high) = (least / 1.6, (most * 1.6).max(least * 4.0));
    let sizes: Vec<f64> = case.sizes.iter().map(|size| *size as f64).collect();
    let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
    // An axis has two labels, or one where two would overlap: the plot is about 12 times as high as a label.
    let is_flat = (most / least).ln() < (high / low).ln() / 12.0;
    let labelled_costs = if is_flat { vec![most] } else { vec![least, most] };
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_top(34)
        .x_label_area_size(20)
        .y_label_area_size(46)
        .build_cartesian_2d(
            (first / 1.1..last * 1.1).log_scale().with_key_points(vec![first, last]),
            (low..high).log_scale().with_key_points(labelled_costs),
        )?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(GRID)
        .label_style(("sans-serif", 11))
        .x_label_formatter(&|size| counted(size.round() as usize))
        .y_label_formatter(&|cost| digits(*cost))
        .draw()?;
    for (costs, color) in &curves {
        let points: Vec<(f64, f64)> = costs.iter().map(|(size, cost)| (*size, cost.max(1e-3))).collect();
        chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?;
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
    }
    area.draw(&Text::new(format!("{}: {phase}", case.grows), (12, 6), ("sans-serif", 13)))?;
    let mut x = PANEL.0 as i32 - 72;
    for (costs, color) in &curves {
        if let Some(power) = power(costs) {
            let style = ("sans-serif", 12).into_font().color(color);
            area.draw(&Text::new(format!("{power:.2}"), (x, 21), style))?;
        }
        // A missing exponent leaves its place empty, so that each library's is at the same place in all panels.
        x += 34;
    }
    Ok(())
}
