//! Settings from environment variables: their names and values.
//!
//! Paths (of plugins, of the MPI library, of the compilation cache) are read where they are used.

use std::sync::Once;
use std::time::Duration;

use shardax_exchange::SumOrder;
use shardax_pjrt::{PluginSpec, Setting, check_settings};

use crate::error::{Result, err};
use crate::{flag, warning};

/// The prefix of all names of settings.
const PREFIX: &str = "SHARDAX_";

/// The settings, as on the page `docs/settings.md`, without their [`PREFIX`].
const NAMES: [&str; 26] = [
    "ATTENTION_KERNELS",
    "COLLECTIVE_PATIENCE",
    "COLLECTIVE_TIMEOUT",
    "COMPILATION_CACHE_DIR",
    "COMPILATION_CACHE_MAX_SIZE",
    "COMPILE_ALSO_FOR",
    "COORDINATOR_ADDRESS",
    "CPU_KERNELS",
    "CPU_PLUGIN",
    "CUDA_PLUGIN",
    "DEBUG_INFS",
    "DEBUG_NANS",
    "ENABLE_X64",
    "EXIT_SECONDS",
    "EXPLAIN_CACHE_MISSES",
    "INSTALL_SECONDS",
    "LOG_COMPILES",
    "MPI_LIBRARY",
    "NUM_CPU_DEVICES",
    "NUM_PROCESSES",
    "OFFLINE",
    "PLATFORM",
    "PROCESS_ID",
    "QUIRKS",
    "SUM_ORDER",
    "TPU_PLUGIN",
];

/// Prefixes of other names. `shardax-run` tells a program about its restarts with them, and this repository's tests and
/// tools use them for their own variables.
const OTHERS: [&str; 2] = ["RESTART", "TEST_"];

/// The timeout between processes.
pub(crate) const COLLECTIVE_TIMEOUT: Setting<Duration> = Setting::seconds("SHARDAX_COLLECTIVE_TIMEOUT");
/// The wait for other processes after which a warning is emitted.
pub(crate) const COLLECTIVE_PATIENCE: Setting<Duration> = Setting::seconds("SHARDAX_COLLECTIVE_PATIENCE");
/// The store by which processes join without MPI.
pub(crate) const COORDINATOR_ADDRESS: Setting<String> =
    Setting::new("SHARDAX_COORDINATOR_ADDRESS", "`file:` and the path of a folder that all hosts see", |text| {
        Some(text.trim().to_owned())
    });
/// The number of processes that join without MPI.
pub(crate) const NUM_PROCESSES: Setting<usize> =
    Setting::new("SHARDAX_NUM_PROCESSES", "a number of processes: a whole number of at least 1", |text| {
        text.trim().parse().ok().filter(|&n| n > 0)
    });
/// The number of this process among the processes that join without MPI.
pub(crate) const PROCESS_ID: Setting<usize> =
    Setting::new("SHARDAX_PROCESS_ID", "the number of a process, from 0", |text| text.trim().parse().ok());
/// The order of sums over the devices of several processes.
pub(crate) const SUM_ORDER: Setting<SumOrder> =
    Setting::new("SHARDAX_SUM_ORDER", "`exact` or `fast`, the same on all processes", |text| match text {
        "exact" => Some(SumOrder::Exact),
        "fast" => Some(SumOrder::Fast),
        _ => None,
    });
/// The size limit of the compilation cache on disk, in bytes.
pub(crate) const CACHE_MAX_SIZE: Setting<u64> =
    Setting::new("SHARDAX_COMPILATION_CACHE_MAX_SIZE", "a whole number of bytes, such as 536870912", |text| {
        text.trim().parse().ok()
    });
/// The number of CPU devices of this process.
pub(crate) const NUM_CPU_DEVICES: Setting<usize> =
    Setting::new("SHARDAX_NUM_CPU_DEVICES", "a number of devices: a whole number of at least 1", |text| {
        text.trim().parse().ok().filter(|&n| n > 0)
    });
/// The platform that programs run on.
pub(crate) const PLATFORM: Setting<String> = Setting::new("SHARDAX_PLATFORM", "`cpu`, `cuda` or `tpu`", |text| {
    PluginSpec::for_platform(text.trim()).is_ok().then(|| text.trim().to_lowercase())
});
/// The quirks of plugins for which programs must not use workarounds.
pub(crate) const QUIRKS: Setting<Vec<String>> = Setting::new(
    "SHARDAX_QUIRKS",
    "`none`, or names of quirks that each begin with `-`, separated by commas",
    |text| {
        if text.trim() == "none" {
            return Some(vec!["none".to_owned()]);
        }
        text.split(',').map(|name| name.trim().strip_prefix('-').map(str::to_owned)).collect()
    },
);
/// Makes a NaN in a result an error.
pub(crate) static DEBUG_NANS: Setting<bool> = on_or_off("SHARDAX_DEBUG_NANS");
/// Makes an infinity in a result an error.
pub(crate) static DEBUG_INFS: Setting<bool> = on_or_off("SHARDAX_DEBUG_INFS");
/// Makes 64 bits the default of floating point numbers.
pub(crate) static ENABLE_X64: Setting<bool> = on_or_off("SHARDAX_ENABLE_X64");
/// Logs why functions are traced again.
pub(crate) static EXPLAIN_CACHE_MISSES: Setting<bool> = on_or_off("SHARDAX_EXPLAIN_CACHE_MISSES");
/// Logs traces, lowerings and compilations.
pub(crate) static LOG_COMPILES: Setting<bool> = on_or_off("SHARDAX_LOG_COMPILES");
/// The operations that run on the CPU kernels instead of XLA.
pub(crate) const CPU_KERNELS: Setting<CpuKernels> =
    Setting::new("SHARDAX_CPU_KERNELS", "`auto`, `xla` or, with the feature `cpu-kernels`, `all`", |text| match text {
        "auto" => Some(CpuKernels::Auto),
        "xla" => Some(CpuKernels::Xla),
        // Without the feature there are no kernels, and tests that request them would compare XLA with itself.
        "all" if cfg!(feature = "cpu-kernels") => Some(CpuKernels::All),
        _ => None,
    });

/// The operations that run on the CPU kernels instead of XLA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CpuKernels {
    /// Operations that are large enough to be faster on the kernels.
    Auto,
    /// No operations.
    Xla,
    /// All operations that the kernels can compute.
    All,
}

/// Fails for an invalid value of a setting that is read later, at a point where the error could not be reported. Warns
/// once about variables that are not settings.
pub(crate) fn check() -> Result<()> {
    static UNKNOWN: Once = Once::new();
    UNKNOWN.call_once(warn_of_unknown);
    fn valid<T>(setting: &Setting<T>) -> Result<()> {
        read(setting).map(drop)
    }
    check_settings().map_err(|error| err!(Value, "{}", error.message))?;
    valid(&COLLECTIVE_TIMEOUT)?;
    valid(&COLLECTIVE_PATIENCE)?;
    valid(&COORDINATOR_ADDRESS)?;
    valid(&NUM_PROCESSES)?;
    valid(&PROCESS_ID)?;
    valid(&SUM_ORDER)?;
    valid(&CACHE_MAX_SIZE)?;
    valid(&QUIRKS)?;
    valid(&CPU_KERNELS)?;
    [&DEBUG_NANS, &DEBUG_INFS, &ENABLE_X64, &EXPLAIN_CACHE_MISSES, &LOG_COMPILES].into_iter().try_for_each(valid)
}

const fn on_or_off(name: &'static str) -> Setting<bool> {
    Setting::new(name, "`true` or `false`", flag::parse)
}

/// Warns about variables that are named like settings but are none.
fn warn_of_unknown() {
    let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut unknown: Vec<String> = variables.filter(|name| is_unknown(name)).collect();
    unknown.sort();
    let Some(first) = unknown.first() else { return };
    let variables = if unknown.len() == 1 { "variable" } else { "variables" };
    warning::warn(
        &format!("ignoring unknown environment {variables} {}", unknown.join(", ")),
        &format!("the name nearest to {first} is {PREFIX}{}", nearest(first)),
    );
}

fn is_unknown(variable: &str) -> bool {
    let Some(name) = variable.strip_prefix(PREFIX) else { return false };
    !NAMES.contains(&name) && !OTHERS.iter().any(|other| name.starts_with(other))
}

/// The setting with the most similar name. An additional letter counts as two missing ones, because names are shortened
/// more often than extended.
fn nearest(variable: &str) -> &'static str {
    let unknown = variable.strip_prefix(PREFIX).unwrap_or(variable).as_bytes();
    let nearest = NAMES.into_iter().min_by_key(|name| {
        let common = common_letters(unknown, name.as_bytes());
        2 * (unknown.len() - common) + name.len() - common
    });
    nearest.unwrap_or_default()
}

/// The length of the longest common subsequence.
fn common_letters(a: &[u8], b: &[u8]) -> usize {
    let mut row = vec![0; b.len() + 1];
    for x in a {
        let mut diagonal = 0;
        for (j, y) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = if x == y { diagonal + 1 } else { above.max(row[j]) };
            diagonal = above;
        }
    }
    row[b.len()]
}

/// The value of a setting; `None` if it is not set.
pub(crate) fn read<T>(setting: &Setting<T>) -> Result<Option<T>> {
    setting.read().map_err(|error| err!(Value, "{}", error.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_names_are_unknown_and_have_a_nearest_one() {
        let cases = [
            ("SHARDAX_NUM_CPU_DEVICE", "NUM_CPU_DEVICES"),
            ("SHARDAX_NUM_DEVICES", "NUM_CPU_DEVICES"),
            ("SHARDAX_PLATFROM", "PLATFORM"),
            ("SHARDAX_PLATFORMS", "PLATFORM"),
            ("SHARDAX_CACHE_DIR", "COMPILATION_CACHE_DIR"),
            ("SHARDAX_TIMEOUT", "COLLECTIVE_TIMEOUT"),
            ("SHARDAX_COLLECTIVE_TIMEOUT_SECONDS", "COLLECTIVE_TIMEOUT"),
            ("SHARDAX_SUMORDER", "SUM_ORDER"),
        ];
        for (given, name) in cases {
            assert!(is_unknown(given), "{given}");
            assert_eq!(nearest(given), name, "{given}");
        }
        for known in ["SHARDAX_PLATFORM", "SHARDAX_RESTART", "SHARDAX_TEST_STEPS", "JAX_PLATFORMS", "XLA_FLAGS"] {
            assert!(!is_unknown(known), "{known}");
        }
        assert!(is_unknown("SHARDAX_") && is_unknown("SHARDAX_Ä"));
    }

    /// The page of settings must list these names, and every name in the sources must be one of them or one of the
    /// others.
    #[test]
    fn the_list_of_names_is_complete() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let Ok(page) = std::fs::read_to_string(root.join("docs/settings.md")) else { return };
        let listed = NAMES.into_iter().filter(|name| page.contains(&format!("`{PREFIX}{name}`")));
        assert_eq!(listed.collect::<Vec<_>>(), NAMES);
        let mut folders = vec![root.join("crates"), root.join("bench"), root.join("examples"), root.join("xtask")];
        let mut texts = vec![page];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("the folder can be read") {
                let path = entry.expect("an entry").path();
                match path.extension().and_then(|end| end.to_str()) {
                    _ if path.is_dir() => folders.push(path),
                    Some("rs" | "sh" | "py") if !path.ends_with("base/settings.rs") => {
                        texts.push(std::fs::read_to_string(path).expect("a text"));
                    }
                    _ => {}
                }
            }
        }
        for (text, at) in texts.iter().flat_map(|text| text.match_indices(PREFIX).map(move |(at, _)| (text, at))) {
            let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            let name = text[at..].split(|c| !is_part(c)).next().unwrap_or_default();
            let is_variable = text[..at].ends_with(['"', '`', ' ', '$', '{']);
            assert!(!is_variable || name == PREFIX || !is_unknown(name), "{name} is in neither list");
        }
    }
}
