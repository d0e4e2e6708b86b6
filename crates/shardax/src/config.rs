//! Settings of the process, made before the first use of a device.

use std::path::PathBuf;
use std::sync::Mutex;

use crate::error::{AtCaller, Result, err};
use crate::{runtime, warning};

static CONFIG: Mutex<Config> = Mutex::new(Config { num_cpu_devices: None, platform: None, cache_dir: None });

struct Config {
    num_cpu_devices: Option<usize>,
    platform: Option<String>,
    /// Empty turns the cache off.
    cache_dir: Option<PathBuf>,
}

fn with<R>(f: impl FnOnce(&mut Config) -> R) -> R {
    f(&mut CONFIG.lock().unwrap_or_else(|e| e.into_inner()))
}

/// Sets the number of CPU devices that the host simulates (JAX's `jax_num_cpu_devices`; the environment
/// variable `SHARDAX_NUM_CPU_DEVICES`). Without it a CPU host has one device.
///
/// Fails when `n` is 0, or when devices are in use already and their number differs.
#[track_caller]
pub fn set_num_cpu_devices(n: usize) -> Result<()> {
    use_cpu_devices(n).at_caller()
}

fn use_cpu_devices(n: usize) -> Result<()> {
    if n == 0 {
        return Err(err!(Value, "the number of CPU devices must be at least 1")
            .help("use 1 for a host without simulated devices"));
    }
    if runtime::is_started() {
        let have = runtime::device_count();
        if have == n {
            return Ok(());
        }
        return Err(err!(Runtime, "num_cpu_devices cannot be set to {n}: {have} devices are in use already")
            .help("set it before anything creates an array or asks for devices"));
    }
    with(|c| c.num_cpu_devices = Some(n));
    Ok(())
}

/// Chooses the platform: `cpu` (the default), `cuda` or `tpu` (the environment variable `SHARDAX_PLATFORM`).
#[track_caller]
pub fn set_platform(name: &str) -> Result<()> {
    if runtime::is_started() {
        let late = err!(Runtime, "the platform cannot be set to {name:?}: devices are in use already")
            .help("set it before anything creates an array or asks for devices");
        return Err(late).at_caller();
    }
    with(|c| c.platform = Some(name.to_lowercase()));
    Ok(())
}

/// Keeps compiled programs in this directory, where later processes find them (JAX's `jax_compilation_cache_dir`; the
/// environment variable `SHARDAX_COMPILATION_CACHE_DIR`). Off by default; an empty path turns it off.
///
/// It may be set at any time and holds for what is compiled afterwards. Any number of processes may share a
/// directory, in which nothing is ever deleted. Programs are found again by the same plugin on a machine of the same
/// kind. A damaged file costs a warning and a compilation. The directory must be one that only trusted
/// users can write to: what lies there is run.
///
/// Fails when the directory cannot be made.
#[track_caller]
pub fn set_compilation_cache_dir(dir: impl Into<PathBuf>) -> Result<()> {
    let dir = dir.into();
    if !dir.as_os_str().is_empty() {
        std::fs::create_dir_all(&dir)
            .map_err(|e| {
                err!(Value, "the compilation cache cannot be in {}: {e}", dir.display())
                    .help("name a directory that this process may write to")
            })
            .at_caller()?;
    }
    with(|c| c.cache_dir = Some(dir));
    Ok(())
}

/// Takes over the warnings, which are lines on standard error otherwise: `hook` gets the text of each, which holds the
/// user's line and how what is warned of is avoided. It may be set at any time, and again.
///
/// There are few: of donated arguments whose memory no result can take over, of those that have to be moved first, and
/// of files of the compilation cache that cannot be read or written.
///
/// ```
/// # use shardax::prelude::*;
/// let (send, warnings) = std::sync::mpsc::sync_channel(16);
/// config::set_warning_hook(move |text| drop(send.try_send(text.to_owned())));
/// jit(|x: Array| x.sum(..)).donate_argnums([0]).call(ones(8))?;
/// assert!(warnings.try_recv().is_ok_and(|text| text.starts_with("Some donated buffers were not usable: float32[8]")));
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn set_warning_hook(hook: impl Fn(&str) + Send + Sync + 'static) {
    warning::set_hook(std::sync::Arc::new(hook));
}

/// Sets an option by its name: `num_cpu_devices`, `platform` or `compilation_cache_dir` (JAX's names with `jax_` are
/// taken too).
#[track_caller]
pub fn update(name: &str, value: &str) -> Result<()> {
    match name.strip_prefix("jax_").unwrap_or(name) {
        "num_cpu_devices" => {
            let n = value
                .parse()
                .map_err(|_| {
                    err!(Value, "{name} takes a number, got {value:?}").help("write a whole number of at least 1")
                })
                .at_caller()?;
            set_num_cpu_devices(n)
        }
        "platform" | "platforms" => set_platform(value),
        "compilation_cache_dir" => set_compilation_cache_dir(value),
        _ => Err(err!(Value, "Unrecognized config option: {name}")
            .help("known: num_cpu_devices, platform, compilation_cache_dir"))
        .at_caller(),
    }
}

/// Where compiled programs are kept, if they are.
pub(crate) fn compilation_cache_dir() -> Option<PathBuf> {
    with(|c| c.cache_dir.clone())
        .or_else(|| std::env::var_os("SHARDAX_COMPILATION_CACHE_DIR").map(PathBuf::from))
        .filter(|dir| !dir.as_os_str().is_empty())
}

pub(crate) fn num_cpu_devices() -> Result<usize> {
    const VARIABLE: &str = "SHARDAX_NUM_CPU_DEVICES";
    if let Some(n) = with(|c| c.num_cpu_devices) {
        return Ok(n);
    }
    match std::env::var(VARIABLE) {
        Err(_) => Ok(1),
        Ok(text) if text.is_empty() => Ok(1),
        Ok(text) => match text.parse() {
            Ok(n) if n > 0 => Ok(n),
            _ => Err(err!(Value, "the environment variable {VARIABLE} is {text:?}, which is not a number of devices")
                .help("set it to a whole number of at least 1, or unset it")),
        },
    }
}

pub(crate) fn platform() -> String {
    with(|c| c.platform.clone())
        .or_else(|| std::env::var("SHARDAX_PLATFORM").ok())
        .map(|p| p.to_lowercase())
        .unwrap_or_else(|| "cpu".into())
}
