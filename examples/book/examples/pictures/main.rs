//! Draws the shardings in `docs/images`, with [`visualize_sharding_svg`]. Its test fails if a committed picture is
//! stale.
//!
//!     cargo run -p shardax-book --example pictures

mod program;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use shardax::prelude::*;

/// A square array in a picture.
struct Panel {
    caption: &'static str,
    sharding: NamedSharding,
}

fn panel(caption: &'static str, mesh: &Mesh, spec: PartitionSpec) -> Panel {
    Panel { caption, sharding: NamedSharding::new(mesh, spec) }
}

/// The pictures of the book by their names, without `.svg`.
fn pictures() -> Result<Vec<(&'static str, Vec<Panel>)>> {
    let grid = make_mesh([("x", 4), ("y", 2)])?;
    let data = make_mesh([("data", 8)])?;
    let tensor = make_mesh([("data", 2), ("model", 4)])?;
    let stage = make_mesh([("stage", 4)])?;
    let sequence = make_mesh([("sequence", 4)])?;
    let expert = make_mesh([("expert", 8)])?;
    let batch = make_mesh([("batch", 8)])?;
    let hosts = make_mesh([("host", 2), ("device", 4)])?;
    // Each picture is named after the page that shows it.
    Ok(vec![
        ("sharding", vec![panel("weights over data=2, model=4", &tensor, P!["data", "model"])]),
        (
            "many-devices",
            vec![
                panel("P![\"x\", \"y\"]", &grid, P!["x", "y"]),
                panel("P![\"x\"]", &grid, P!["x"]),
                panel("P![(\"x\", \"y\")]", &grid, P![("x", "y")]),
                panel("P![]", &grid, P![]),
            ],
        ),
        (
            "shard-map",
            vec![panel("in_specs P![\"x\"]", &grid, P!["x"]), panel("out_specs P![\"x\", \"y\"]", &grid, P!["x", "y"])],
        ),
        ("data-parallel", vec![panel("parameters", &data, P![]), panel("batch", &data, P!["data"])]),
        ("fsdp", vec![panel("parameters", &data, P!["data"]), panel("batch", &data, P!["data"])]),
        (
            "tensor-parallel",
            vec![
                panel("first layer [embed, mlp]", &tensor, P![None, "model"]),
                panel("second layer [mlp, embed]", &tensor, P!["model"]),
                panel("activations [batch, mlp]", &tensor, P!["data", "model"]),
            ],
        ),
        ("pipeline", vec![panel("parameters [layers, ..]", &stage, P!["stage"])]),
        ("sequence-parallel", vec![panel("x [batch, length, ..]", &sequence, P![None, "sequence"])]),
        (
            "expert-parallel",
            vec![
                panel("parameters [expert, ..]", &expert, P!["expert"]),
                panel("tokens [batch, length]", &expert, P!["expert"]),
            ],
        ),
        (
            "migrating",
            vec![
                panel("in_axes 0 is P![\"batch\"]", &batch, P!["batch"]),
                panel("in_axes 1 is P![None, \"batch\"]", &batch, P![None, "batch"]),
                panel("in_axes None is P![]", &batch, P![]),
            ],
        ),
        (
            "processes",
            vec![
                panel("P![(\"host\", \"device\")]", &hosts, P![("host", "device")]),
                panel("P![\"host\"]", &hosts, P!["host"]),
                panel("P![\"device\"]", &hosts, P!["device"]),
            ],
        ),
    ])
}

/// Draws panels side by side, each below its caption.
fn draw(panels: &[Panel]) -> Result<String> {
    const SIDE: usize = 240;
    const GAP: usize = 24;
    const CAPTION: usize = 28;
    let width = panels.len() * (SIDE + GAP) + GAP;
    let height = CAPTION + SIDE + GAP;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for (i, panel) in panels.iter().enumerate() {
        let x = GAP + i * (SIDE + GAP);
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"18\" text-anchor=\"middle\" font-family=\"monospace\" font-size=\"13\">{}</text>",
            x + SIDE / 2,
            panel.caption
        );
        // The image is scaled down, text included. An image wider than 400 has columns too narrow for "CPU 0": its
        // parts are labelled with numbers, and it is stretched to the square of the panel.
        let picture = visualize_sharding_svg(&[8, 8], &panel.sharding)?;
        let (picture, aspect) = if picture.contains("width=\"400\"") {
            (picture.replacen("font-size=\"14\"", "font-size=\"20\"", 1), "")
        } else {
            let picture = picture.replacen("font-size=\"14\"", "font-size=\"26\"", 1);
            (picture.replace("\"middle\">CPU ", "\"middle\">"), "preserveAspectRatio=\"none\" ")
        };
        let place = format!("<svg x=\"{x}\" y=\"{CAPTION}\" width=\"{SIDE}\" height=\"{SIDE}\" {aspect}");
        // Replaces the size of the image by the size of the panel.
        out += &place;
        out += picture.find("viewBox").map_or(&picture, |at| &picture[at..]);
    }
    out += "</svg>\n";
    Ok(out)
}

/// Draws every picture: its path and its text.
fn drawn() -> Result<Vec<(PathBuf, String)>> {
    config::set_num_cpu_devices(8)?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images");
    let shardings =
        pictures()?.into_iter().map(|(name, panels)| Ok((folder.join(name).with_extension("svg"), draw(&panels)?)));
    shardings.chain([program::draw().map(|text| (folder.join("types.svg"), text))]).collect()
}

fn main() -> Result<()> {
    for (path, text) in drawn()? {
        std::fs::write(&path, text)
            .map_err(|e| shardax::Error::new(shardax::ErrorKind::Runtime, format!("{path:?}: {e}")))?;
    }
    Ok(())
}

#[test]
fn committed_pictures_are_current() -> Result<()> {
    for (path, text) in drawn()? {
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == text, "{path:?} is stale: run `cargo run -p shardax-book --example pictures`");
    }
    Ok(())
}
