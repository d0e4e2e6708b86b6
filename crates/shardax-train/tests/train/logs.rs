//! Logs: lines of JSON that a resumed run continues, and event files as TensorBoard reads them.

use std::collections::BTreeMap;

use shardax::prelude::*;
use shardax_train::Picture;
use shardax_train::log::{EventFile, JsonLines, Line, Logger};
use shardax_train::report::Report;

use super::{Folder, fails};

fn values(x: f64) -> BTreeMap<String, f64> {
    [("loss".to_owned(), x), ("test/\"accuracy\"".to_owned(), 0.5)].into()
}

#[test]
fn resumed_runs_replace_lines_of_later_steps() -> Result<()> {
    let folder = Folder::new();
    let path = folder.join("deep/metrics.jsonl");
    let mut log = JsonLines::new(&path)?;
    log.begin(0)?;
    for (step, x) in [(10, 1.0), (20, f64::NAN), (30, 0.1 + 0.2), (40, f64::INFINITY)] {
        log.log(step, &values(x))?;
    }
    log.flush()?;
    let lines = JsonLines::read(&path)?;
    assert_eq!(lines.iter().map(|line| line.step).collect::<Vec<_>>(), [10, 20, 30, 40]);
    assert!(lines[1].values["loss"].is_nan());
    assert_eq!((lines[2].values["loss"], lines[3].values["loss"]), (0.1 + 0.2, f64::INFINITY));
    assert_eq!(lines[0].values["test/\"accuracy\""], 0.5);

    // The run was killed while it wrote a line, and resumes from step 20.
    let text = std::fs::read_to_string(&path).expect("the log");
    std::fs::write(&path, format!("{text}{{\"step\":50,\"lo")).expect("the log");
    assert_eq!(JsonLines::read(&path)?.len(), 4);
    let mut log = JsonLines::new(&path)?;
    log.begin(20)?;
    log.log(30, &values(7.0))?;
    log.flush()?;
    let steps: Vec<(u64, f64)> = JsonLines::read(&path)?.iter().map(|line| (line.step, line.values["loss"])).collect();
    assert_eq!((steps.len(), steps[0], steps[2]), (3, (10, 1.0), (30, 7.0)));
    std::fs::write(&path, "{\"step\":1}\nodd\n{\"step\":2}\n").expect("the log");
    fails(JsonLines::read(&path), &["metrics.jsonl line 2 is not a line of a log", "odd"]);
    // The file of another program is not changed.
    fails(JsonLines::new(&path)?.begin(0), &["metrics.jsonl line 2 is not a line of a log", "odd"]);
    assert_eq!(std::fs::read_to_string(&path).expect("the file"), "{\"step\":1}\nodd\n{\"step\":2}\n");
    fails(log.log(40, &[("step".to_owned(), 1.0)].into()), &["a number named \"step\"", "metrics.jsonl"]);
    fails(JsonLines::new(folder.write("file", "").join("x.jsonl")), &["cannot create the folder"]);
    Ok(())
}

/// The bytes that TensorBoard's own reader has read: `tools/golden/tensorboard_events.py` says how.
#[test]
fn event_file_is_read_by_tensorboard() -> Result<()> {
    let folder = Folder::new();
    let path = folder.join("runs/events.out.tfevents.golden");
    let mut log = EventFile::at_time(&path, 1_700_000_000.25)?;
    log.begin(0)?;
    log.log(1, &values(2.5))?;
    log.log(300, &[("loss".to_owned(), f64::NAN), ("\u{e9}tat".to_owned(), -1e30)].into())?;
    log.begin(299)?;
    log.log(1 << 40, &BTreeMap::new())?;
    log.flush()?;
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/events.out.tfevents.golden");
    let bytes = std::fs::read(&path).expect("the file");
    if std::env::var_os("SHARDAX_TEST_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(golden, &bytes).expect("the golden file");
    }
    assert_eq!(bytes, std::fs::read(golden).expect("the golden file"));
    let event_file = EventFile::new(folder.join("runs"))?;
    assert_ne!(EventFile::new(folder.join("runs"))?.path(), event_file.path());
    assert!(
        event_file.path().file_name().is_some_and(|name| name.to_string_lossy().starts_with("events.out.tfevents."))
    );
    Ok(())
}

#[test]
fn a_report_is_one_page() -> Result<()> {
    super::setup();
    fn line(step: u64, loss: f64) -> Line {
        Line { step, values: [("loss".to_owned(), loss), ("test/loss".to_owned(), 2.0 * loss)].into() }
    }
    let (a, b) = ([line(10, 2.0), line(20, 1.0)], [line(10, f64::NAN)]);
    let mesh = make_mesh([("x", 8)])?.auto();
    let tree = (device_put(&ones([16, 4]), &NamedSharding::new(&mesh, P!["x"]))?, array(1.0f32));
    let mean = shard_map(|x: Array| pmean(x, "x"), &mesh).in_specs(P!["x"]).out_specs(P![]);
    let step = jit(mean).lower(&tree.0)?.compile()?;
    let report =
        Report::new("a <run>").curves(&[("first", &a), ("second", &b)])?.shardings(&tree)?.communication(&step)?;
    let html = report.to_html();
    for text in [
        "<h1>a &lt;run&gt;</h1>",
        "first: test/loss",
        "<td>loss</td><td class=\"n\">1.000000 at step 20</td><td class=\"n\">NaN at step 10</td>",
        "<td>[0]</td><td>float32[16,4]</td><td>P('x',)",
        "<td class=\"n\">256 B</td><td class=\"n\">32 B</td>",
        "<td>all-reduce</td><td>x</td><td class=\"n\">8</td>",
    ] {
        assert!(html.contains(text), "{text} is not in {html}");
    }
    let two = Report::new("two").shardings(&(&tree, &tree.1))?.to_html();
    assert!(two.contains("<td>[0][0]</td><td>float32[16,4]</td>") && two.contains("<td>[1]</td>"), "{two}");
    // The page needs no network: it has no scripts, and does not reload itself.
    assert!(html.matches("<svg").count() >= 2 && !html.contains("http-equiv") && !html.contains("<script"));
    assert!(Report::new("nothing").curves(&[])?.to_html().ends_with("</html>\n"));
    fails(report.save("/nowhere/at/all.html"), &["/nowhere/at/all.html"]);
    Ok(())
}

#[test]
fn a_report_of_a_large_model_is_short_and_in_order() -> Result<()> {
    super::setup();
    let mesh = make_mesh([("data", 2), ("model", 4)])?.auto();
    fn put(x: Array, spec: PartitionSpec, mesh: &Mesh) -> Result<Array> {
        device_put(&x, &NamedSharding::new(mesh, spec))
    }
    let layer = || -> Result<(Array, Array)> {
        Ok((put(ones([32, 64]), P![None, "model"], &mesh)?, put(ones([64]), P![], &mesh)?))
    };
    let layers = (0..12).map(|_| layer()).collect::<Result<Vec<_>>>()?;
    let state = (
        layers,
        put(ones([4096, 16]), P![("data", "model")], &mesh)?,
        put(ones([2, 3, 8, 8]), P![None, None, "model"], &mesh)?,
    );
    let batch = put(ones([32, 32]), P!["data"], &mesh)?;
    type State = (Vec<(Array, Array)>, Array, Array);
    let step = jit(|(layers, ..): State, x: Array| layers.iter().fold(x, |x, (w, _)| x.dot(w).dot(w.t())).mean(..));
    let compiled = step.lower((state.clone(), batch.clone()))?.compile()?;
    let collectives = compiled.collectives()?;
    fn line(step: u64, loss: f64) -> Line {
        Line { step, values: [("loss".to_owned(), loss)].into() }
    }
    let pixels = arange(0..6 * 64).astype(DType::F32).reshape([6, 8, 8, 1]) / 384.0;
    // A tuple of references, in which nothing is cloned; the parts in any order.
    let report = Report::new("large")
        .shardings(&(&state, &batch))?
        .communication(&compiled)?
        .picture("six <samples>", &Picture::grid(&pixels, 3)?)?
        .curves(&[("run", &[line(1, 2.0), line(2, 1.0)])])?;
    let html = report.to_html();
    let places = ["Curves", "Pictures", "Communication in a step", "Arrays"];
    let places: Vec<usize> = places.iter().filter_map(|text| html.find(&format!("<h2>{text}</h2>"))).collect();
    assert!(places.len() == 4 && places.is_sorted(), "{places:?}");
    // Twelve layers are one row for each of their arrays.
    for row in ["<td>[0][0][0–11][0]</td><td>float32[32,64]</td>", "<td>[0][0][0–11][1]</td>", "<td>[1]</td>"] {
        assert_eq!(html.matches(row).count(), 1, "{row} is not once in {html}");
    }
    assert!(html.contains("<tfoot><tr><td>total</td><td></td><td></td><td class=\"n\">27</td>"), "{html}");
    // Collectives: the most first, and all of them.
    assert!(!collectives.is_empty());
    let total = collectives.bytes();
    assert!(html.contains(&format!(
        "<td>total</td><td></td><td class=\"n\"></td><td class=\"n\">{}</td>",
        collectives.count()
    )));
    assert!(total > 0 && html.contains("in a step</th>"));
    // Labels are drawn as large as they are, each part of a way to split once.
    assert!(html.contains(">CPU 0–7<") || html.contains(">CPU 0,4<"), "{html}");
    assert!(html.matches("<svg xmlns").count() >= 4 && html.contains("six &lt;samples&gt;"));
    Ok(())
}

#[test]
fn pictures_of_arrays_are_png_files() -> Result<()> {
    let folder = Folder::new();
    let grey = Picture::of(&array([[0.0f32, 0.5], [2.0, f32::NAN]]))?;
    assert_eq!(pixels(&grey)?, (2, 2, vec![0, 0, 0, 128, 128, 128, 255, 255, 255, 255, 0, 0]));
    let color = Picture::of(&array([[[1u8, 2, 3, 9]]]))?;
    assert_eq!(pixels(&color)?, (1, 1, vec![1, 2, 3]));
    let three = Picture::grid(&array([[[true]], [[false]], [[true]]]), 2)?;
    let white = [255; 3];
    let (width, height, rgb) = pixels(&three)?;
    assert_eq!((width, height, &rgb[..3], &rgb[9..12]), (4, 4, &white[..], &[0; 3][..]));
    assert_eq!((&rgb[3 * 12..][..3], &rgb[3 * 15..][..3]), (&white[..], &white[..]));
    grey.save(folder.join("a.png"))?;
    assert_eq!(std::fs::read(folder.join("a.png")).expect("the file"), grey.to_png()?);
    for (wrong, columns) in [(ones([2]), 1), (ones([2, 2, 2, 2]), 1), (ones([0, 2, 2]), 3), (ones([2, 2, 2]), 0)] {
        fails(Picture::grid(&wrong, columns), &["a picture of float32[", "images, rows, columns"]);
    }
    fails(Picture::of(&array([[1, 2]])), &["int32[1,1,2]", "uint8 or bool"]);
    fails(grey.save("/nowhere/at/all.png"), &["/nowhere/at/all.png"]);
    // In an event file: the tag, the sizes and the bytes of the PNG.
    let path = folder.join("runs/events.out.tfevents.x");
    let mut log = EventFile::at_time(&path, 1_700_000_000.25)?;
    log.picture(7, "samples", &grey)?;
    log.flush()?;
    let (bytes, png) = (std::fs::read(&path).expect("the file"), grey.to_png()?);
    let offset = bytes.windows(png.len()).position(|window| window == png).expect("the picture");
    assert!(bytes[..offset].ends_with(&[8, 2, 16, 2, 24, 3, 34, png.len() as u8]), "{:?}", &bytes[..offset]);
    assert!(bytes[..offset].windows(9).any(|window| window == b"\x0a\x07samples"));
    Ok(())
}

/// The width, height and pixels that a PNG decoder reads.
fn pixels(picture: &Picture) -> Result<(u32, u32, Vec<u8>)> {
    let file = picture.to_png()?;
    let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().expect("a PNG file");
    let mut rgb = vec![0; reader.output_buffer_size().expect("a size")];
    let info = reader.next_frame(&mut rgb).expect("a picture");
    Ok((info.width, info.height, rgb))
}
