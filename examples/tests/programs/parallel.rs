//! The programs for parallelism.

use crate::{numbers, output, run_of};

/// A model with a split sequence learns, its results equal the results of one device, and the run's files are written.
#[test]
fn ring_attention() {
    let folder = std::env::temp_dir().join(format!("shardax-ring-{}", std::process::id()));
    let run = folder.display().to_string();
    let plot = std::env::temp_dir().join(format!("shardax-ring-{}.svg", std::process::id())).display().to_string();
    let small = "--devices 4 --length 64 --steps 150 --log-every 50 --save-every 50";
    let files = ["--run", &run, "--plot", &plot];
    let text = output("ring_attention", &small.split(' ').chain(files).collect::<Vec<_>>());
    assert!(
        text.contains("16 tokens on each of 4 devices\n") && text.contains("collective-permute over 'sequence'"),
        "{text}"
    );
    let losses = numbers(&text, "loss");
    assert!(losses.len() == 3 && losses[2] < 0.5 * losses[0], "{text}");
    assert!(numbers(&text, "largest difference from one device:")[0] < 1e-3, "{text}");
    let report = std::fs::read_to_string(folder.join("report.html")).expect("the report");
    assert!(report.contains("<svg") && report.contains("collective-permute"));
    assert!(std::fs::read_to_string(&plot).expect("the plot").starts_with("<svg"));
    // The run is complete, so nothing remains to be done.
    let again = output("ring_attention", &small.split(' ').chain(files).collect::<Vec<_>>());
    assert!(again.contains("resumes after step 150\n") && !again.contains("loss"), "{again}");
    std::fs::remove_file(plot).expect("the plot is removed");
    std::fs::remove_dir_all(folder).expect("the folder is removed");
    let rejected = run_of("ring_attention", &["--devices", "4", "--length", "66"]);
    assert!(rejected.contains("66") && !rejected.contains("panicked"), "{rejected}");
}

/// Both schedules learn the same; 1F1B needs less memory.
#[test]
fn pipeline() {
    let small = "--stages 2 --layers 4 --features 32 --micro-batches 16 --steps 40 --log-every 20";
    let trained = |order: &str| output("pipeline", &small.split(' ').chain(["--schedule", order]).collect::<Vec<_>>());
    let (all, turns) = (trained("gpipe"), trained("1f1b"));
    let (want, got) = (numbers(&all, "loss"), numbers(&turns, "loss"));
    assert!(want.len() == 2 && want[1] < want[0], "{all}");
    for (want, got) in want.iter().zip(got) {
        assert!((want - got).abs() < 2e-3 * want, "{all}\n{turns}");
    }
    let needs = |text: &str| numbers(text, "a step needs")[0];
    assert!(needs(&turns) < needs(&all), "{all}\n{turns}");
    let rejected = run_of("pipeline", &["--layers", "3"]);
    assert!(rejected.contains("3 layers do not divide into 4 stages") && !rejected.contains("panicked"), "{rejected}");
}

/// Experts on four devices learn the same as on one.
#[test]
fn moe() {
    let trained = |mesh: &str| output("moe", &["--steps", "60", "--log-every", "30", "--mesh", mesh]);
    let (alone, split) = (trained("data=1"), trained("data=2,expert=4"));
    assert!(split.contains("8 experts, 2 on each device\n") && split.contains("all-to-all over 'expert'"), "{split}");
    assert!(alone.contains("no communication"), "{alone}");
    let (want, got) = (numbers(&alone, "loss"), numbers(&split, "loss"));
    assert!(want.len() == 2 && want[1] < want[0], "{alone}");
    for (want, got) in want.iter().zip(got) {
        assert!((want - got).abs() < 1e-2 * want, "{alone}\n{split}");
    }
    let rejected = run_of("moe", &["--mesh", "rows=2"]);
    assert!(rejected.contains("\"rows=2\" is no mesh") && rejected.contains("data=2,expert=4"), "{rejected}");
}
