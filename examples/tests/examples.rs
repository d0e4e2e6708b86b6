//! Runs the examples as a newcomer does, each in its own process, and checks their output.

#[path = "programs/parallel.rs"]
mod parallel;

mod running;

use std::process::Command;

use running::{compile_quickly, example, numbers, one_of, output, run, run_of};

#[test]
fn scale() {
    let text = output("scale", &[]);
    assert!(text.contains("[CpuDevice(id=0), CpuDevice(id=1), CpuDevice(id=2), CpuDevice(id=3)]"), "{text}");
    assert!(text.contains("[[100. 102. 104. 106.]"), "{text}");
    assert!(text.contains("as each device has it: [240 240 240 240]"), "{text}");
    assert!(text.contains("without devices: 240"), "{text}");

    let text = output("scale", &["2"]);
    assert!(text.contains("[[ 0  2  4  6]\n [ 8 10 12 14]]"), "{text}");
    assert!(text.contains("[56 56]"), "{text}");
}

/// The examples show what users write: all of them use the allocator with which they were measured.
#[test]
fn every_example_names_the_allocator() {
    let manifest = include_str!("../Cargo.toml");
    let paths =
        manifest.split("[[example]]").skip(1).filter_map(|entry| entry.split("path = \"").nth(1)?.split('"').next());
    let without = paths.chain(["serve/main.rs"]).filter(|path| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        !std::fs::read_to_string(path).expect("an example").contains("use shardax_alloc as _;")
    });
    assert_eq!(without.collect::<Vec<_>>(), [""; 0]);
}

/// The losses that JAX prints.
#[test]
fn linear_regression() {
    let text = output("linear_regression", &[]);
    assert_eq!(numbers(&text, "loss"), [1.7352, 0.2214, 0.0359, 0.0127, 0.0098], "{text}");
    assert!(text.contains("replicas identical: true"), "{text}");
}

/// The program also works on one device.
#[test]
fn linear_regression_on_one_device() {
    let text = output("linear_regression", &["--devices", "1"]);
    assert!(text.contains("note: one device"), "{text}");
    assert!(numbers(&text, "loss").last().is_some_and(|loss| *loss < 0.05), "{text}");
}

/// Gaps are filled, and the forecasts are better than the last value.
#[test]
fn forecast() {
    let text = output("forecast", &["--epochs", "3"]);
    assert!(text.contains("1128 windows to train, 288 to test"), "{text}");
    let (errors, naive) = (numbers(&text, "test error"), numbers(&text, "of the last value")[0]);
    assert!(errors.len() == 3 && errors[2] < 0.7 * naive, "{text}");
}

/// The adapter learns the task, and has a small part of the parameters.
#[test]
fn bert_lora() {
    let text = output("bert_lora", &[]);
    assert!(text.contains("20898 parameters, of which 1024 are trained"), "{text}");
    assert!(numbers(&text, "accuracy before:")[0] < 0.7, "{text}");
    assert!(numbers(&text, "accuracy after:")[0] > 0.95, "{text}");
}

/// The equation is solved in float64, by L-BFGS.
#[test]
fn physics() {
    let text = output("physics", &[]);
    assert!(text.contains("float64"), "{text}");
    assert!(numbers(&text, "largest error:")[0] < 5e-6, "{text}");
}

/// The whole program: the model learns, the replicas stay equal, and the curves are drawn.
#[test]
fn digits() {
    let plot = std::env::temp_dir().join(format!("shardax-digits-{}.svg", std::process::id()));
    let text = output("digits", &["--plot", &plot.display().to_string()]);
    assert!(text.contains("devices: 8\n"), "{text}");
    assert!(text.contains("replicas identical: true\n"), "{text}");
    assert!(numbers(&text, "\ntest accuracy: ")[0] >= 0.97, "{text}");
    assert!(numbers(&text, "samples/s: ")[0] > 0.0, "{text}");
    let losses = numbers(&text, "train loss");
    assert!(losses.len() > 2 && losses[losses.len() - 1] < 0.1 * losses[0], "{text}");

    let svg = std::fs::read_to_string(&plot).expect("the plot");
    assert!(svg.starts_with("<svg") && svg.contains("Accuracy"));
    std::fs::remove_file(plot).expect("the plot is removed");
}

/// A run that stops after its first epoch resumes with the same results, even on another number of devices.
#[test]
fn digits_resume_from_a_checkpoint() {
    let folder = std::env::temp_dir().join(format!("shardax-digits-run-{}", std::process::id()));
    let run = folder.display().to_string();
    let epoch = |text: &str| {
        text.lines().find(|line| line.starts_with("epoch  2: train loss")).map(str::to_owned).expect("the second epoch")
    };
    let uninterrupted = output("digits", &["--epochs", "2"]);
    output("digits", &["--epochs", "1", "--checkpoints", &run]);
    let resumed = output("digits", &["--epochs", "2", "--checkpoints", &run]);
    assert!(resumed.contains("resumes after epoch 1\n") && !resumed.contains("epoch  1:"), "{resumed}");
    assert_eq!(epoch(&resumed), epoch(&uninterrupted));
    let done = output("digits", &["--epochs", "2", "--checkpoints", &run, "--devices", "4"]);
    assert!(done.contains("resumes after epoch 2\n") && done.contains("devices: 4\n"), "{done}");
    assert_eq!(numbers(&done, "\ntest accuracy: "), numbers(&uninterrupted, "\ntest accuracy: "));
    std::fs::remove_dir_all(folder).expect("the run's folder");
}

/// The average of the devices' gradients is the gradient of the whole batch.
#[test]
fn digits_learn_the_same_on_one_device() {
    if one_of(2) == 2 {
        eprintln!("left to `.ci/run sweeps`; `data_parallel_hosts` and `moe` would notice most of its faults");
        return;
    }
    let loss = |devices| numbers(&output("digits", &["--epochs", "1", "--devices", devices]), "train loss")[0];
    let (one, eight) = (loss("1"), loss("8"));
    assert!((one - eight).abs() < 1e-4 * one, "{one} on one device, {eight} on eight");
}

/// Impossible sizes are errors with advice.
#[test]
fn digits_reject_batches_that_do_not_fit() {
    for (size, message) in [
        ("100", "Batch size 100 must be divisible by num_devices (8)"),
        ("2000", "batch size 2000 is larger than the data set (1500 examples)"),
        ("0", "batch size 0"),
    ] {
        let out = run("digits", &["--batch-size", size]);
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{text}");
        assert!(text.contains(message) && !text.contains("panicked"), "{text}");
    }
}

/// The output of the program as a job of processes; `None` without `mpirun`.
fn job(processes: &str, name: &str, args: &[&str]) -> Option<String> {
    let mut command = Command::new("mpirun");
    command.args(["-n", processes, "--oversubscribe", "--bind-to", "none"]).arg(example(name)).args(args);
    command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    // Open MPI maps its description of the machine at an address that may be in its own stack.
    command.env("OMPI_MCA_rtc_hwloc_vmhole", "none");
    compile_quickly(args, &mut command);
    let Ok(out) = command.output() else {
        assert!(std::env::var_os("CI").is_none(), "no mpirun was found, and CI must have one");
        println!("skipped: no mpirun");
        return None;
    };
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    Some(text)
}

/// Each process takes its rows of each batch; losses and weights have the same bits for any number of processes.
#[test]
fn data_parallel_hosts() {
    let args = |devices| ["--epochs", "2", "--devices", devices];
    let one_process = output("data_parallel_hosts", &args("8"));
    let lines =
        |text: &str| text.lines().filter(|line| !line.starts_with("devices")).map(str::to_owned).collect::<Vec<_>>();
    let losses = numbers(&one_process, "train loss");
    assert!(losses.len() == 2 && losses[1] < 0.9 * losses[0], "{one_process}");
    for (processes, devices) in [("4", "2"), ("2", "4")].into_iter().step_by(one_of(2)) {
        let Some(text) = job(processes, "data_parallel_hosts", &args(devices)) else { return };
        assert!(text.contains(&format!("devices: 8 in {processes} processes")), "{text}");
        assert_eq!(lines(&text), lines(&one_process), "{processes} processes of {devices} devices");
    }
}

/// The losses are equal on one device and on a mesh of three axes; a run resumes on another mesh; all files are
/// written.
#[test]
fn lm() {
    let folder = std::env::temp_dir().join(format!("shardax-lm-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let words = ["the sea ", "is blue ", "and deep, ", "a ship ", "goes by. "];
    let text: String = (0..3000usize).map(|i| words[(i * i + i / 7) % words.len()]).collect();
    std::fs::write(folder.join("text"), text).expect("a text");
    let (text, run) = (folder.join("text").display().to_string(), folder.join("run").display().to_string());
    let lm = |more: &[&str]| {
        let small = "--layers 1 --features 32 --batch-size 8 --length 32 --log-every 6 --save-every 6 --sample 12";
        let arguments: Vec<&str> =
            ["--text", &text].into_iter().chain(small.split(' ')).chain(more.iter().copied()).collect();
        output("lm", &arguments)
    };
    let one_process = lm(&["--steps", "12"]);
    let losses = numbers(&one_process, ": loss");
    assert!(losses.len() == 2 && losses[1] < losses[0], "{one_process}");
    assert!(one_process.contains("\n---\nThe "), "{one_process}");
    let split = lm(&["--steps", "12", "--mesh", "data=2,fsdp=2,model=2", "--run", &run]);
    assert!(split.contains("parameters on 8 devices\n"), "{split}");
    for name in [": loss", "test/loss", "test/perplexity"] {
        for (a, b) in numbers(&one_process, name).iter().zip(numbers(&split, name)) {
            assert!((a - b).abs() < 2e-3 * a, "{name}: {a} alone, {b} on the mesh");
        }
    }
    let plot = folder.join("lm.svg");
    let on = lm(&["--steps", "18", "--mesh", "fsdp=2", "--run", &run, "--plot", &plot.display().to_string()]);
    assert!(on.contains("resumes after step 12\n") && on.contains("step 18: loss") && !on.contains("step 12:"), "{on}");
    assert!(std::fs::read_to_string(plot).expect("the plot").contains("perplexity"));
    let log = std::fs::read_to_string(folder.join("run/metrics.jsonl")).expect("the log");
    let steps: Vec<bool> =
        log.lines().zip([6, 12, 18]).map(|(l, n)| l.starts_with(&format!("{{\"step\":{n},"))).collect();
    assert_eq!(steps, [true; 3], "{log}");
    let report = std::fs::read_to_string(folder.join("run/report.html")).expect("the report");
    for text in ["<svg", "test/loss", ".embed.embedding", "all-reduce", "fsdp"] {
        assert!(report.contains(text), "{text}");
    }
    let rejected = run_of("lm", &["--text", &text, "--mesh", "rows=2"]);
    assert!(rejected.contains("\"rows=2\" is no mesh") && rejected.contains("data=2,fsdp=2,model=2"), "{rejected}");
    std::fs::remove_dir_all(folder).expect("the folder is removed");
}

/// Byte pair encoding: the tokens are learned once and saved with the run.
#[cfg(feature = "tokenizers")]
#[test]
fn lm_of_byte_pairs() {
    let folder = std::env::temp_dir().join(format!("shardax-lm-bpe-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let text = "the sea is blue and deep, a ship goes by. ".repeat(400);
    std::fs::write(folder.join("text"), text).expect("a text");
    let (text, run) = (folder.join("text").display().to_string(), folder.join("run").display().to_string());
    let lm = |more: &[&str]| {
        let small =
            "--layers 1 --features 32 --batch-size 8 --length 16 --log-every 15 --save-every 30 --sample 12 --bpe 290";
        let arguments: Vec<&str> = ["--text", &text, "--run", &run].into_iter().chain(small.split(' ')).collect();
        output("lm", &[&arguments[..], more].concat())
    };
    let first_run = lm(&["--steps", "30"]);
    let losses = numbers(&first_run, ": loss");
    assert!(losses.len() == 2 && losses[1] < losses[0], "{first_run}");
    let written =
        || std::fs::metadata(folder.join("run/tokenizer.json")).and_then(|about| about.modified()).expect("a time");
    let learned = written();
    let on = lm(&["--steps", "45"]);
    assert!(on.contains("step 45: loss") && !on.contains("step 30:"), "{on}");
    assert_eq!(written(), learned);
    std::fs::remove_dir_all(folder).expect("the folder is removed");
}
