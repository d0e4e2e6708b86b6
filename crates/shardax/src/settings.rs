//! The variables of the environment that set something: their names, and the values that they take.
//!
//! Paths (of plugins, of the MPI library, of the compilation cache) are read where they are used.

use std::time::Duration;

use shardax_exchange::SumOrder;
use shardax_pjrt::{PluginSpec, Setting, check_settings};

use crate::error::{Result, err};

/// How long processes wait for each other.
pub(crate) const COLLECTIVE_TIMEOUT: Setting<Duration> = Setting::seconds("SHARDAX_COLLECTIVE_TIMEOUT");
/// After how long a wait for other processes is worth a warning.
pub(crate) const COLLECTIVE_PATIENCE: Setting<Duration> = Setting::seconds("SHARDAX_COLLECTIVE_PATIENCE");
/// In which order sums over the devices of several processes are made.
pub(crate) const SUM_ORDER: Setting<SumOrder> =
    Setting::new("SHARDAX_SUM_ORDER", "`exact` or `fast`, the same on all processes", |text| match text {
        "exact" => Some(SumOrder::Exact),
        "fast" => Some(SumOrder::Fast),
        _ => None,
    });
/// How many bytes of compiled programs are kept on disk.
pub(crate) const CACHE_MAX_SIZE: Setting<u64> =
    Setting::new("SHARDAX_COMPILATION_CACHE_MAX_SIZE", "a whole number of bytes, such as 536870912", |text| {
        text.trim().parse().ok()
    });
/// How many CPU devices this process has.
pub(crate) const NUM_CPU_DEVICES: Setting<usize> =
    Setting::new("SHARDAX_NUM_CPU_DEVICES", "a number of devices: a whole number of at least 1", |text| {
        text.trim().parse().ok().filter(|&n| n > 0)
    });
/// The platform that programs run on.
pub(crate) const PLATFORM: Setting<String> = Setting::new("SHARDAX_PLATFORM", "`cpu`, `cuda` or `tpu`", |text| {
    PluginSpec::for_platform(text.trim()).is_ok().then(|| text.trim().to_lowercase())
});
/// Which matrix multiplications and attentions run on the CPU kernels instead of XLA.
pub(crate) const CPU_KERNELS: Setting<CpuKernels> =
    Setting::new("SHARDAX_CPU_KERNELS", "`auto`, `xla` or `all`", |text| match text {
        "auto" => Some(CpuKernels::Auto),
        "xla" => Some(CpuKernels::Xla),
        "all" => Some(CpuKernels::All),
        _ => None,
    });

/// The operations that run on the CPU kernels instead of XLA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CpuKernels {
    /// Those that are large enough to be faster.
    Auto,
    /// None.
    Xla,
    /// All that the kernels can compute.
    All,
}

/// Fails where a setting that is read later, without a way to report it, has a value that it does not take.
pub(crate) fn check() -> Result<()> {
    fn valid<T>(setting: &Setting<T>) -> Result<()> {
        read(setting).map(drop)
    }
    check_settings().map_err(|error| err!(Value, "{}", error.message))?;
    valid(&COLLECTIVE_TIMEOUT)?;
    valid(&COLLECTIVE_PATIENCE)?;
    valid(&SUM_ORDER)?;
    valid(&CACHE_MAX_SIZE)?;
    valid(&CPU_KERNELS)
}

/// The value of a setting; `None` where it is not set.
pub(crate) fn read<T>(setting: &Setting<T>) -> Result<Option<T>> {
    setting.read().map_err(|error| err!(Value, "{}", error.message))
}
