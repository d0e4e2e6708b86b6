//! `shardax-top` and `shardax-doctor`, as they are called.

#[path = "../../shardax/tests/common/child.rs"]
mod child;

use std::path::PathBuf;
use std::process::Command;

use shardax_cli::top::{Run, text};

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("shardax-cli-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder");
    path
}

#[test]
fn a_run_is_drawn_from_its_folder() {
    let folder = folder("top");
    fn line(step: u64) -> String {
        format!(
            "{{\"step\":{step},\"loss\":{},\"steps_per_second\":12.5,\"time/input_wait\":0.25,\"time/remaining_seconds\":7300.0,\
             \"memory/host_bytes\":3221225472.0,\"accuracy\":0.75}}\n",
            4.0 / step as f64
        )
    }
    std::fs::write(folder.join("metrics.jsonl"), (1..=100).map(line).collect::<String>()).expect("a log");
    for step in [40, 80] {
        std::fs::create_dir_all(folder.join(format!("checkpoints/{step}"))).expect("a folder");
        std::fs::write(folder.join(format!("checkpoints/{step}/commit")), "").expect("a file");
    }
    std::fs::create_dir_all(folder.join("checkpoints/100.unfinished")).expect("a folder");
    let run = Run::read(&folder).expect("a run");
    assert_eq!(run.checkpoints.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [40, 80]);
    let drawn = text(&run, "loss", 100, 28).expect("a picture");
    for part in ["step 100", "2 h 1 min left", "12.5000 steps/s", "saving", "host memory      3.00 GiB"] {
        assert!(drawn.contains(part), "{part:?} is not in\n{drawn}");
    }
    for part in ["waits for data   25 %", "step 80", "accuracy", "0.7500", "4.0000", "0.0400"] {
        assert!(drawn.contains(part), "{part:?} is not in\n{drawn}");
    }
    let drawn = text(&run, "perplexity", 100, 28).expect("a picture");
    assert!(
        drawn.contains("the log has no number `perplexity`; draw another with `--curve`: accuracy, loss"),
        "{drawn}"
    );
    // A long list continues on the next line.
    assert!(drawn.contains("time/remaining_seconds"), "{drawn}");
    // A run whose last step is logged is finished, however long ago; one that is only quiet is not.
    assert!(!drawn.contains("finished") && !run.is_finished());
    let log = folder.join("metrics.jsonl");
    let finished_line = line(101).replace("7300.0", "0.0");
    std::fs::write(&log, (1..=100).map(line).chain([finished_line]).collect::<String>()).expect("a log");
    let drawn = text(&Run::read(&folder).expect("a run"), "loss", 100, 28).expect("a picture");
    assert!(drawn.contains("step 101   finished   12.5000 steps/s"), "{drawn}");
    // Any size is drawn.
    for (width, height) in [(1, 1), (10, 4), (40, 12), (400, 100)] {
        text(&run, "loss", width, height).expect("a picture");
    }
    let once = Command::new(env!("CARGO_BIN_EXE_shardax-top")).arg("--once").arg(&folder).output().expect("it runs");
    assert!(once.status.success() && String::from_utf8_lossy(&once.stdout).contains("step 101"));
    let none = Command::new(env!("CARGO_BIN_EXE_shardax-top")).arg("/nowhere").output().expect("it runs");
    assert_eq!(none.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&none.stderr).contains("/nowhere has no log of JSON lines"));
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn the_doctor_finds_a_cpu_in_order() {
    let folder = folder("doctor");
    let report = folder.join("report.md");
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_shardax-doctor"));
    // Compiled quickly: only the values are compared.
    let flags = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false";
    doctor.args(["cpu", "--report"]).arg(&report).env("SHARDAX_NUM_CPU_DEVICES", "4").env("XLA_FLAGS", flags);
    let output = doctor.output().expect("it runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    let report = std::fs::read_to_string(&report).expect("a report");
    assert!(
        report.contains("| collectives | ok | psum, ppermute, all_gather, psum_scatter, all_to_all over 4 devices |"),
        "{report}"
    );
    assert_eq!(report.matches("| ok |").count(), 18, "{report}");
    assert!(report.contains("| functions | ok | 26 of 26 cases agree with JAX"), "{report}");
    assert!(report.contains("| products | ok | 17 of 17 cases agree with JAX"), "{report}");
    assert!(report.contains("\n| cpu | 4 × cpu | PJRT 0."), "{report}");
    let _ = std::fs::remove_dir_all(&folder);
}

/// A plugin that is not one, and one that hangs, are failures with their reasons.
#[test]
fn the_doctor_reports_invalid_and_hanging_plugins() {
    let folder = folder("doctor-fails");
    let report = folder.join("report.md");
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_shardax-doctor"));
    let output =
        doctor.args(["cuda", "--report"]).arg(&report).env("SHARDAX_CUDA_PLUGIN", "/nowhere/plugin.so").output();
    let output = output.expect("it runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    assert!(stdout.contains("plugin       FAILED") && stdout.contains("/nowhere/plugin.so"), "{stdout}");
    assert!(std::fs::read_to_string(&report).expect("a report").contains("| plugin | **failed** |"));
    // No check is done in no time.
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_shardax-doctor"));
    let output = doctor.args(["cpu", "--limit", "0", "--report"]).arg(&report).output().expect("it runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && stdout.contains("it ran past 0 s and was ended"), "{stdout}");
    let _ = std::fs::remove_dir_all(&folder);
}

/// Failures of hardware and its plugins, brought about by a plugin that is made for it: each is in the report with its reason, and the
/// checks that it does not concern pass.
#[test]
fn the_doctor_reports_failures_of_hardware() {
    let folder = child::Folder::new();
    let Some(plugin) = child::faulty_plugin(&folder.0) else { return };
    let launch = folder.0.join("launch");
    std::fs::write(&launch, "").expect("a file");
    let launch = launch.to_str().expect("a path");
    // Each row: the fault and its value, the check that runs, whether it passes, and a text of the report.
    let slow = "it ran past 3 s and was ended";
    for (fault, value, check, passes, text) in [
        ("FAULTY_EXECUTE", "memory", "arithmetic", false, "Out of memory while trying to allocate 17179869184 bytes"),
        ("FAULTY_EXECUTE", "hang", "arithmetic", false, slow),
        ("FAULTY_EXECUTE", "crash", "arithmetic", false, "signal: 6"),
        ("FAULTY_EXECUTE", "hang", "devices", true, "4 in all, process 0 of 1"),
        ("FAULTY_MEMORY", "1", "arithmetic", false, "element 0 is"),
        ("FAULTY_EXTENSIONS", "none", "ffi", true, "this plugin has no FFI"),
        ("FAULTY_EXTENSIONS", "none", "arithmetic", true, "largest error"),
        ("FAULTY_LAUNCH", launch, "collectives", false, "create meshes and arrays again"),
        ("FAULTY_SLICE", "1", "devices", true, "4 in all, process 0 of 2"),
        ("FAULTY_OPTION", "xla_cpu_use_xnnpack", "matmul", true, "does not know the option xla_cpu_use_xnnpack"),
        ("FAULTY_PROFILER", "fails", "profiler", true, "the counters are in use"),
        ("FAULTY_PROFILER", "fails at its end", "profiler", true, "cannot end its own profile"),
    ] {
        let report = folder.0.join("report.md");
        let mut doctor = Command::new(env!("CARGO_BIN_EXE_shardax-doctor"));
        doctor
            .args(["cpu", "--only", check, "--limit", if text == slow { "3" } else { "60" }, "--report"])
            .arg(&report);
        doctor
            .envs(plugin.clone())
            .env(fault, value)
            .env("SHARDAX_NUM_CPU_DEVICES", "4")
            .env("SHARDAX_EXIT_SECONDS", "3");
        let output = doctor.output().expect("it runs");
        let (said, report) =
            (String::from_utf8_lossy(&output.stdout), std::fs::read_to_string(&report).expect("a report"));
        assert_eq!(output.status.code(), Some(i32::from(!passes)), "{fault}={value}: {said}");
        assert!(
            said.contains(text) && report.contains(text),
            "{text:?} is not in, for {fault}={value}:\n{said}\n{report}"
        );
        let result = if passes { "ok" } else { "**failed**" };
        assert!(report.contains(&format!("| {check} | {result} |")), "{report}");
    }
    let output =
        Command::new(env!("CARGO_BIN_EXE_shardax-doctor")).args(["--only", "speeds"]).output().expect("it runs");
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("there is no check \"speeds\"; the checks are plugin, devices")
    );
}
