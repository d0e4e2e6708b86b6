//! Programs on other numbers of devices and on other platforms: each in a process of its own, as both are chosen
//! once.

use std::process::{Command, Output};

use shardax::prelude::*;

/// A program that names no platform and no number of devices. Prints where it ran.
#[test]
#[ignore = "run by other tests"]
fn program() -> Result<()> {
    fn run() -> Result<String> {
        let n = devices()?.len();
        let x = arange(0..n as i32 * 4).reshape([n, 4]);
        let total = pmap(|x: Array| psum(x.sum(..), "i")).axis_name("i").out_axes(None).call(&x)?;
        let mesh = make_mesh([("i", n)])?;
        let doubled = shard_map(|x: Array| x * 2, &mesh).in_specs(P!["i"]).out_specs(P!["i"]);
        let y = jit(doubled).call(&x)?;
        let (value, gradient) = value_and_grad(|x: Array| x.square().sum(..)).call(y.astype(DType::F32))?;
        assert_eq!(total.item::<i32>()?, (0..n as i32 * 4).sum::<i32>());
        assert_eq!(gradient.to_vec::<f32>()?, (y * 2).astype(DType::F32).to_vec::<f32>()?);
        assert!(value.item::<f32>()? > 0.0);
        Ok(format!("{n} of {}", devices()?[0].platform()))
    }
    match run() {
        Ok(place) => println!("ran on {place}."),
        Err(e) => println!("error of kind {:?}: {e}", e.kind()),
    }
    Ok(())
}

fn run(settings: &[(&str, &str)]) -> (String, Output) {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["--exact", "program", "--ignored", "--nocapture", "-q"]);
    for name in ["NUM_CPU_DEVICES", "PLATFORM", "CUDA_PLUGIN", "TPU_PLUGIN"] {
        command.env_remove(format!("SHARDAX_{name}"));
    }
    let output = command.envs(settings.iter().copied()).output().expect("it can be started");
    (String::from_utf8_lossy(&output.stdout).into_owned(), output)
}

#[track_caller]
fn says(settings: &[(&str, &str)], words: &[&str]) {
    let (text, output) = run(settings);
    assert!(output.status.success(), "{settings:?}: {output:?}");
    for word in words {
        assert!(text.contains(word), "{settings:?}: {word:?} is not in {text}");
    }
}

#[test]
fn a_cpu_host_has_one_device_by_default() {
    says(&[], &["ran on 1 of cpu."]);
    says(&[("SHARDAX_NUM_CPU_DEVICES", "")], &["ran on 1 of cpu."]);
    says(&[("SHARDAX_NUM_CPU_DEVICES", "3")], &["ran on 3 of cpu."]);
    for wrong in ["0", "-1", "many"] {
        says(
            &[("SHARDAX_NUM_CPU_DEVICES", wrong)],
            &[
                "error of kind Value",
                "SHARDAX_NUM_CPU_DEVICES",
                wrong,
                "a whole number of at least 1; correct the variable, or unset it",
            ],
        );
    }
}

#[test]
fn more_devices_than_the_plugin_takes_are_rejected_at_once() {
    for wrong in ["2049", "100000"] {
        says(
            &[("SHARDAX_NUM_CPU_DEVICES", wrong)],
            &["error of kind Value", "SHARDAX_NUM_CPU_DEVICES: ", wrong, "help: ask for at most 2048"],
        );
    }
}

#[test]
fn one_program_for_every_platform() {
    for cpu in ["cpu", "CPU"] {
        says(&[("SHARDAX_PLATFORM", cpu), ("SHARDAX_NUM_CPU_DEVICES", "8")], &["ran on 8 of cpu."]);
    }
    // A host without the plugin says where it looked and how to get one. (No Python environment, so that none is
    // found.)
    let nowhere = [("PATH", "/nowhere"), ("VIRTUAL_ENV", ""), ("CONDA_PREFIX", ""), ("SHARDAX_OFFLINE", "1")];
    for (platform, variable) in [("cuda", "SHARDAX_CUDA_PLUGIN"), ("tpu", "SHARDAX_TPU_PLUGIN")] {
        let settings = [&nowhere[..], &[("SHARDAX_PLATFORM", platform)]].concat();
        let not_set = format!("{variable} (environment variable): not set");
        let no_plugin = format!("no {platform} PJRT plugin");
        let words = ["error of kind Plugin", &no_plugin, "Searched:", &not_set, "To install it, run:", "pip install"];
        says(&settings, &words);
        let settings = [&settings[..], &[(variable, "/nowhere/plugin.so")]].concat();
        says(&settings, &["error of kind Plugin", &format!("{variable} is set to /nowhere/plugin.so"), "no such file"]);
    }
    says(
        &[("SHARDAX_PLATFORM", "abacus")],
        &[
            "error of kind Value",
            "invalid value \"abacus\" for the environment variable SHARDAX_PLATFORM: expected `cpu`, `cuda` or `tpu`",
        ],
    );
    // The plugin that a variable names is loaded, whatever the name of the platform is.
    if let Ok(plugin) = std::env::var("SHARDAX_CPU_PLUGIN") {
        says(&[("SHARDAX_PLATFORM", "cuda"), ("SHARDAX_CUDA_PLUGIN", &plugin)], &["ran on ", " of cpu."]);
    }
}
