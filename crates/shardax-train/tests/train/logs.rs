//! Logs: lines of JSON that a run goes on with, and event files as TensorBoard reads them.

use std::collections::BTreeMap;

use shardax::prelude::*;
use shardax_train::log::{EventFile, JsonLines, Line, Logger};
use shardax_train::report::Report;

use super::{Folder, fails};

fn values(x: f64) -> BTreeMap<String, f64> {
    [("loss".to_owned(), x), ("test/\"accuracy\"".to_owned(), 0.5)].into()
}

#[test]
fn lines_of_later_steps_are_those_of_the_run_that_goes_on() -> Result<()> {
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

    // It was killed within a line, and goes on from step 20.
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
    fails(JsonLines::read(&path), &["metrics.jsonl line 2 is not one of a log", "odd"]);
    fails(log.log(40, &[("step".to_owned(), 1.0)].into()), &["a number called \"step\"", "metrics.jsonl"]);
    fails(JsonLines::new(folder.write("file", "").join("x.jsonl")), &["cannot make the folder"]);
    Ok(())
}

/// The bytes that TensorBoard's own reader has read: `tools/golden/tensorboard_events.py` says how.
#[test]
fn event_files_are_those_that_tensorboard_reads() -> Result<()> {
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
    if std::env::var_os("SHARDAX_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(golden, &bytes).expect("the golden file");
    }
    assert_eq!(bytes, std::fs::read(golden).expect("the golden file"));
    let own = EventFile::new(folder.join("runs"))?;
    assert!(own.path().file_name().is_some_and(|name| name.to_string_lossy().starts_with("events.out.tfevents.")));
    Ok(())
}

#[test]
fn a_report_is_one_page() -> Result<()> {
    super::setup();
    let line = |step: u64, loss: f64| Line {
        step,
        values: [("loss".to_owned(), loss), ("test/loss".to_owned(), 2.0 * loss)].into(),
    };
    let (a, b) = ([line(10, 2.0), line(20, 1.0)], [line(10, f64::NAN)]);
    let mesh = make_mesh([("x", 8)])?;
    let tree = (device_put(&ones([16, 4]), &NamedSharding::new(&mesh, P!["x"]))?, array(1.0f32));
    let mean = shard_map(|x: Array| pmean(x, "x"), &mesh).in_specs(P!["x"]).out_specs(P![]);
    let step = jit(mean).lower(&tree.0)?.compile()?;
    let report =
        Report::new("a <run>").curves(&[("first", &a), ("second", &b)])?.shardings(&tree)?.communication(&step)?;
    let html = report.to_html();
    for text in [
        "<h1>a &lt;run&gt;</h1>",
        "first: test/loss",
        "<td>loss</td><td>1.000000 at step 20</td><td>NaN at step 10</td>",
        "<td>[0]</td><td>float32[16,4]</td><td>P('x',)",
        "<td>256</td><td>32</td>",
        "<td>all-reduce</td><td>x</td><td>8</td>",
    ] {
        assert!(html.contains(text), "{text} is not in {html}");
    }
    let two = Report::new("two").shardings(&(&tree, &tree.1))?.to_html();
    assert!(two.contains("<td>[0][0]</td><td>float32[16,4]</td>") && two.contains("<td>[1]</td>"), "{two}");
    assert!(html.matches("<svg").count() >= 2 && !html.contains("http-equiv") && !html.contains("<script"));
    assert!(Report::new("nothing").curves(&[])?.to_html().ends_with("</html>\n"));
    fails(report.save("/nowhere/at/all.html"), &["/nowhere/at/all.html"]);
    Ok(())
}
