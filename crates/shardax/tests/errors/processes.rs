//! Mistakes that concern a whole process: a plugin that is missing or broken, and settings that make no sense. Each runs
//! in a process of its own, which must report the error and end well, within a minute.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use shardax::prelude::*;

/// Says which part a child process plays.
const CHILD: &str = "SHARDAX_TEST_ERRORS_CHILD";

/// The program of a child: asks for devices and for values, twice, and prints the results.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let first = (array([1, 2]) + 1).to_vec::<i32>().expect_err("there is no plugin");
    println!("first: {first}");
    println!("kind: {:?}", first.kind());
    println!("again: {}", devices().expect_err("still none"));
    println!("jit: {}", jit(|x: Array| x * 2).call(1.0).expect_err("still none"));
    println!("pmap: {}", pmap(|x: Array| x * 2).call(ones(2)).expect_err("still none"));
    println!("count: {} {}", device_count(), process_count());
}

struct Case {
    name: &'static str,
    variables: Vec<(&'static str, PathBuf)>,
    kind: &'static str,
    phrases: Vec<String>,
}

fn command(home: &Path) -> Result<Command, String> {
    let mut command = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
    command.args(["processes::child", "--exact", "--nocapture"]);
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX", "SHARDAX_CPU_PLUGIN", "SHARDAX_NUM_CPU_DEVICES", "SHARDAX_PLATFORM"] {
        command.env_remove(name);
    }
    command.env(CHILD, "1").env("SHARDAX_OFFLINE", "1").env("PATH", home);
    command.env("HOME", home).env("XDG_CACHE_HOME", home.join("cache"));
    Ok(command)
}

fn run(case: &Case, home: &Path) -> Result<(), String> {
    // The case runs in a child process, because a wrong plugin or setting affects the entire process.
    let mut command = command(home)?;
    let mut child = command
        .envs(case.variables.iter().cloned())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let start = Instant::now();
    while child.try_wait().map_err(|e| e.to_string())?.is_none() {
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().map_err(|e| e.to_string())?;
            return Err("it hangs".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        return Err(format!("it ends with {}:\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    if text.contains("Delete") {
        return Err(format!("it advises to delete a file that is not shardax's:\n{text}"));
    }
    let kind = format!("kind: {}", case.kind);
    let expected =
        case.phrases.iter().map(String::as_str).chain([kind.as_str(), "again: ", "jit: ", "pmap: ", "count: 0 1"]);
    let lacking: Vec<&str> = expected.filter(|phrase| !text.contains(phrase)).collect();
    let ours = text.matches("tests/errors/processes.rs:").count();
    match (lacking.as_slice(), ours) {
        ([], 4..) => Ok(()),
        ([], n) => Err(format!("only {n} of 4 errors name the user's line:\n{text}")),
        (_, _) => Err(format!("it lacks {lacking:?}:\n{text}")),
    }
}

/// A setting with an invalid value.
fn setting(name: &'static str, value: &str, expected: &str) -> Case {
    let phrases = vec![
        format!("invalid value {value:?} for the environment variable {name}: expected {expected}"),
        "correct the variable, or unset it".into(),
    ];
    Case { name, variables: vec![(name, value.into())], kind: "Value", phrases }
}

/// The variable that selects a plugin.
fn plugin_variable(path: &Path) -> Vec<(&'static str, PathBuf)> {
    vec![("SHARDAX_CPU_PLUGIN", path.to_owned())]
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn a_process_without_a_plugin_reports_it() {
    let home = std::env::temp_dir().join(format!("shardax-errors-{}", std::process::id()));
    std::fs::create_dir_all(&home).expect("a folder for the test");
    let garbage = home.join("garbage.so");
    std::fs::write(&garbage, b"this is not a library").expect("a file for the test");
    let empty = home.join("empty.so");
    std::fs::write(&empty, b"").expect("a file for the test");
    // A real library, though not a plugin; and the first half of one.
    let library = std::env::current_exe().expect("this program");
    let half = home.join("half.so");
    let bytes = std::fs::read(&library).expect("this program");
    std::fs::write(&half, &bytes[..bytes.len() / 2]).expect("a file for the test");
    let missing = home.join("missing.so");

    let cases = [
        Case {
            name: "plugin: nowhere",
            variables: vec![],
            kind: "Plugin",
            phrases: vec!["no cpu PJRT plugin".into(), "Searched:".into(), "pip install xla-cpu-pjrt".into()],
        },
        Case {
            name: "plugin: no such file",
            variables: plugin_variable(&missing),
            kind: "Plugin",
            phrases: vec![path_text(&missing), "there is no such file".into()],
        },
        Case {
            name: "plugin: a folder",
            variables: plugin_variable(&home),
            kind: "Plugin",
            phrases: vec![path_text(&home)],
        },
        Case {
            name: "plugin: garbage",
            variables: plugin_variable(&garbage),
            kind: "Plugin",
            phrases: vec![path_text(&garbage)],
        },
        Case {
            name: "plugin: empty",
            variables: plugin_variable(&empty),
            kind: "Plugin",
            phrases: vec![path_text(&empty)],
        },
        Case {
            name: "plugin: cut short",
            variables: plugin_variable(&half),
            kind: "Plugin",
            phrases: vec![path_text(&half)],
        },
        Case {
            name: "plugin: a program",
            variables: plugin_variable(&library),
            kind: "Plugin",
            phrases: vec![path_text(&library)],
        },
        Case {
            name: "platform: unknown",
            variables: vec![("SHARDAX_PLATFORM", "abacus".into())],
            kind: "Value",
            phrases: vec![
                "invalid value \"abacus\" for the environment variable SHARDAX_PLATFORM".into(),
                "`cpu`, `cuda` or `tpu`".into(),
            ],
        },
        Case {
            name: "platform: not installed",
            variables: vec![("SHARDAX_PLATFORM", "tpu".into())],
            kind: "Plugin",
            phrases: vec!["no tpu PJRT plugin".into(), "pip install libtpu".into()],
        },
        Case {
            name: "devices: no number",
            variables: vec![("SHARDAX_NUM_CPU_DEVICES", "many".into())],
            kind: "Value",
            phrases: vec!["SHARDAX_NUM_CPU_DEVICES".into(), "\"many\"".into()],
        },
        Case {
            name: "devices: none",
            variables: vec![("SHARDAX_NUM_CPU_DEVICES", "0".into())],
            kind: "Value",
            phrases: vec!["SHARDAX_NUM_CPU_DEVICES".into(), "\"0\"".into()],
        },
        setting("SHARDAX_EXIT_SECONDS", "ten", "a number of seconds"),
        setting("SHARDAX_INSTALL_SECONDS", "-1", "a number of seconds"),
        setting("SHARDAX_COLLECTIVE_TIMEOUT", "10min", "a number of seconds"),
        setting("SHARDAX_COLLECTIVE_PATIENCE", "nan", "a number of seconds"),
        setting("SHARDAX_COMPILATION_CACHE_MAX_SIZE", "1GB", "a whole number of bytes"),
        setting("SHARDAX_SUM_ORDER", "quick", "`exact` or `fast`"),
        setting("SHARDAX_CPU_KERNELS", "mkl", "`auto`, `xla` or, with the feature `cpu-kernels`, `all`"),
        setting("SHARDAX_DEBUG_NANS", "maybe", "`true` or `false`"),
        Case {
            name: "plugin: a file of the system",
            variables: plugin_variable(Path::new("/etc/passwd")),
            kind: "Plugin",
            phrases: vec!["SHARDAX_CPU_PLUGIN names that file, /etc/passwd".into(), "unset it".into()],
        },
    ];
    let failures: Vec<String> =
        cases.iter().filter_map(|case| run(case, &home).err().map(|why| format!("{}: {why}", case.name))).collect();
    let _ = std::fs::remove_dir_all(&home);
    assert!(failures.is_empty(), "{} of {} fail\n\n{}", failures.len(), cases.len(), failures.join("\n\n"));
}

/// The program of a child that has settings only in its environment.
#[test]
fn flags_child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let error = jit(|x: Array| x.log() * 2).call(-1.0f32).expect_err("a NaN");
    println!("error: {}\ndtype: {:?}", error.message(), zeros(2).dtype());
}

#[test]
fn flags_are_read_from_the_environment() -> Result<(), String> {
    let mut command = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
    command.args(["processes::flags_child", "--exact", "--nocapture"]).env(CHILD, "1");
    command.env("SHARDAX_DEBUG_NANS", "true").env("SHARDAX_ENABLE_X64", "1").env("SHARDAX_LOG_COMPILES", "true");
    let output = command.output().map_err(|e| e.to_string())?;
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    for phrase in ["error: invalid value (nan) encountered in log", "dtype: F64", "Finished XLA compilation of"] {
        assert!(text.contains(phrase), "no {phrase:?} in:\n{text}");
    }
    Ok(())
}

#[test]
fn a_misspelt_variable_is_named_once_with_the_nearest_setting() -> Result<(), String> {
    let home = std::env::temp_dir().join(format!("shardax-misspelt-{}", std::process::id()));
    let misspelt = "SHARDAX_NUM_CPU_DEVICES".trim_end_matches('S');
    let mut command = command(&home)?;
    command.env(misspelt, "4").env("SHARDAX_TEST_STEPS", "4").env("MY_SHARDAX_RUN", "4");
    let output = command.output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text.matches(&format!("ignoring unknown environment variable {misspelt}")).count(), 1, "{text}");
    assert!(text.contains(&format!("help: the name nearest to {misspelt} is SHARDAX_NUM_CPU_DEVICES")), "{text}");
    assert!(!text.contains("SHARDAX_TEST_STEPS") && !text.contains("MY_SHARDAX_RUN"), "{text}");
    Ok(())
}
