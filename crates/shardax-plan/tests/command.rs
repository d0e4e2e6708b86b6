//! The command `shardax-plan`.

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shardax-plan")).args(args).output().expect("the command starts")
}

#[test]
fn a_report_in_three_forms() {
    let dir = std::env::temp_dir().join(format!("shardax-plan-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    fn file(name: &str, dir: &std::path::Path) -> String {
        dir.join(name).to_string_lossy().into_owned()
    }
    let (json, svg) = (file("plan.json", &dir), file("plan.svg", &dir));
    let output = run(&[
        "mlp",
        "--target",
        "cpu:4",
        "--mesh",
        "data=2,fsdp=2",
        "--set",
        "hidden=256",
        "--micro-batch",
        "8",
        "--json",
        &json,
        "--svg",
        &svg,
    ]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("mlp on cpu:4 (4 devices, data=2,fsdp=2)"), "{output:?}");
    fn read(file: &str) -> String {
        std::fs::read_to_string(file).expect("it is written")
    }
    // The same plan as JSON and as a picture.
    let report: serde_json::Value = serde_json::from_str(&read(&json)).expect("JSON");
    assert_eq!(report["devices"], 4);
    assert!(read(&svg).contains("fsdp (2)"));
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn advice_is_compiled() {
    let file = std::env::temp_dir().join(format!("shardax-plan-small-{}.json", std::process::id()));
    let small =
        r#"{"name": "small", "memory": 1e5, "flops": 1e12, "memory_bandwidth": 1e12, "switch": 1e11, "outside": 1e10}"#;
    std::fs::write(&file, small).expect("it is written");
    let target = format!("{}:4", file.display());
    let sizes = ["--set", "features=64", "--set", "hidden=256", "--remat", "full"];
    let output =
        run(&[&["mlp", "--target", &target, "--mesh", "data=4", "--micro-batch", "4096"], &sizes[..]].concat());
    std::fs::remove_file(file).ok();
    let text = String::from_utf8_lossy(&output.stdout);
    for wanted in ["It does not fit. What would help:", "--mesh fsdp=4: ", "--micro-batch 2048: "] {
        assert!(text.contains(wanted), "{wanted:?} is not in\n{text}");
    }
    assert_eq!(text.matches(" (compiled)").count(), 2, "{text}");
}

#[test]
fn invalid_options_are_errors() {
    for (args, wanted) in [
        (&["nonsense"][..], "none of mlp, cnn"),
        (&["mlp", "--target", "v9:1"], "none of cpu, v5e"),
        (&["mlp", "--mesh", "data"], "write a mesh as data=2,fsdp=4"),
        (&["mlp", "--mesh", "data=3"], "the mesh data=3 has 3 devices, but cpu:8 has 8"),
        (&["mlp", "--remat", "some"], "'some' for '--remat <WHAT>': choose none, dots or full"),
        (&["mlp", "--micro-batch", "0"], "'0' for '--micro-batch <N>': this is not a number above 0"),
        (&["mlp", "--compile", "few"], "'few' for '--compile <N>': this is not a number above 0"),
        (&["mlp", "--set", "hidden=many"], "must be a number"),
        (&["mlp", "--set", "hidden"], "'hidden' for '--set <NAME=VALUE>': write name=value"),
        (&["mlp", "--xla", "fast"], "--xla \"fast\" is not an option of XLA"),
        (&["mlp", "--json"], "a value is required for '--json <FILE>'"),
        (&["mlp", "--targets", "cpu:8"], "unexpected argument '--targets' found"),
        (&["mlp", "--targets", "cpu:8"], "a similar argument exists: '--target'"),
        (&["mlp", "--cpu", "extra"], "unexpected argument 'extra' found"),
        (&["mlp", "--mesh", "data=8", "--mesh", "data=4"], "'--mesh <AXES>' cannot be used multiple times"),
    ] {
        let output = run(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(wanted), "{args:?}: {error}");
    }
    let help = run(&["--help"]);
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("--micro-batch"));
}
