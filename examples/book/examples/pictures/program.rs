//! The types of a program over explicit axes: each value with the parts that devices have, and what each step sends.

use std::fmt::Write as _;

use shardax::lax::DotOptions;
use shardax::prelude::*;

/// A value of the program: its name, its type, its sharding, and where it is drawn, in columns and rows.
struct Value {
    name: &'static str,
    ty: String,
    sharding: NamedSharding,
    at: (usize, usize),
}

/// A step: the operands and the result by their places in the list of values, the operation, and what it sends.
struct Step {
    operands: Vec<usize>,
    result: usize,
    operation: &'static str,
    sends: &'static str,
}

const SIDE: usize = 132;
/// From one value to the next.
const COLUMN: usize = 300;
const ROW: usize = 216;
/// The space above a picture, for the value's name.
const TOP: usize = 26;
const MARGIN: usize = 44;

/// The two layers of "Shardings in types" in `docs/many-devices.md`.
fn layers() -> Result<(Vec<Value>, Vec<Step>)> {
    let mesh = make_mesh([("data", 2), ("model", 4)])?;
    let _mesh = set_mesh(&mesh)?;
    let x = device_put(&ones([8, 16]), P!["data"])?;
    let w1 = device_put(&ones([16, 32]), P![None, "model"])?;
    let w2 = device_put(&ones([32, 16]), P!["model"])?;
    // The types are read from real arrays, so that the picture cannot differ from what a program computes.
    let hidden = maximum(x.matmul(&w1), 0.0);
    let y = DotOptions::new().out_sharding(P!["data", None]).matmul(&hidden, &w2);
    let loss = (&y * &y).mean(..);
    let value = |name, array: &Array, at| -> Result<Value> {
        let sharding = array.sharding()?.as_named().cloned().unwrap_or_else(|| NamedSharding::new(&mesh, P![]));
        Ok(Value { name, ty: array.type_name(), sharding, at })
    };
    let values = vec![
        value("x", &x, (0, 0))?,
        value("w1", &w1, (0, 1))?,
        value("hidden", &hidden, (1, 0))?,
        value("w2", &w2, (1, 1))?,
        value("y", &y, (2, 0))?,
        value("loss", &loss, (3, 0))?,
    ];
    let steps = vec![
        Step { operands: vec![0, 1], result: 2, operation: "matmul, maximum", sends: "nothing" },
        Step { operands: vec![2, 3], result: 4, operation: "matmul\nout P[\"data\", None]", sends: "sums over model" },
        Step { operands: vec![4], result: 5, operation: "mean", sends: "sums over data" },
    ];
    Ok((values, steps))
}

/// The left upper corner of a value's picture.
fn corner(value: &Value) -> (usize, usize) {
    (MARGIN + value.at.0 * COLUMN, TOP + value.at.1 * ROW)
}

fn text(out: &mut String, (x, y): (usize, usize), class: &str, words: &str) {
    let words = words.replace('"', "&quot;");
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" class=\"words {class}\">{words}</text>");
}

/// The picture of the page on many devices.
pub fn draw() -> Result<String> {
    let (values, steps) = layers()?;
    let (width, height) = (2 * MARGIN + 3 * COLUMN + SIDE, TOP + ROW + SIDE + 40);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <style>.words {{ font-family: monospace; font-size: 13px }} .name {{ font-weight: bold }} \
         .sends {{ fill: #a03020 }} .nothing {{ fill: #2a7a3a }}</style>\n\
         <defs><marker id=\"end\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" \
         orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"#555\"/></marker></defs>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for step in &steps {
        let to = corner(&values[step.result]);
        let end = (to.0 - 6, to.1 + SIDE / 2);
        for operand in &step.operands {
            let from = corner(&values[*operand]);
            let start = (from.0 + SIDE + 6, from.1 + SIDE / 2);
            // An operand below joins the one next to the result, left of the result's type.
            let bend = end.0 - 50;
            let _ = writeln!(
                out,
                "<path d=\"M{} {}H{bend}V{}H{}\" fill=\"none\" stroke=\"#555\" marker-end=\"url(#end)\"/>",
                start.0, start.1, end.1, end.0
            );
        }
        let middle = (to.0 + SIDE + to.0 - COLUMN) / 2;
        for (line, words) in step.operation.lines().rev().enumerate() {
            text(&mut out, (middle, end.1 - 24 - 16 * line), "operation", words);
        }
        let class = if step.sends == "nothing" { "nothing" } else { "sends" };
        text(&mut out, (middle, end.1 - 8), class, step.sends);
    }
    for value in &values {
        let (x, y) = corner(value);
        text(&mut out, (x + SIDE / 2, y - 8), "name", value.name);
        text(&mut out, (x + SIDE / 2, y + SIDE + 18), "type", &value.ty);
        let picture = visualize_sharding_svg(&[8, 8], &value.sharding)?;
        // A part is labelled only with the numbers of its devices, so that "0,4" fits into a quarter of the width.
        let picture = picture.replace("font-size=\"14\"", "font-size=\"46\"").replace("CPU ", "");
        let _ = write!(out, "<svg x=\"{x}\" y=\"{y}\" width=\"{SIDE}\" height=\"{SIDE}\" ");
        out += picture.find("viewBox").map_or(&picture, |at| &picture[at..]);
    }
    out += "</svg>\n";
    Ok(out)
}
