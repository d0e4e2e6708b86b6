//! Settings from environment variables: their names and values.
//!
//! Paths (of plugins, of the MPI library, of the compilation cache) are read where they are used.

use std::time::Duration;

use shardax_exchange::SumOrder;
use shardax_pjrt::{PluginSpec, Setting, check_settings};

use crate::error::{Result, err};

/// The timeout between processes.
pub(crate) const COLLECTIVE_TIMEOUT: Setting<Duration> = Setting::seconds("SHARDAX_COLLECTIVE_TIMEOUT");
/// The wait for other processes after which a warning is given.
pub(crate) const COLLECTIVE_PATIENCE: Setting<Duration> = Setting::seconds("SHARDAX_COLLECTIVE_PATIENCE");
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
/// The matrix multiplications and attentions that run on the CPU kernels instead of XLA.
pub(crate) const CPU_KERNELS: Setting<CpuKernels> =
    Setting::new("SHARDAX_CPU_KERNELS", "`auto`, `xla` or, with the feature `cpu-kernels`, `all`", |text| match text {
        "auto" => Some(CpuKernels::Auto),
        "xla" => Some(CpuKernels::Xla),
        // Without the feature there are none, and tests that ask for them would compare XLA with itself.
        "all" if cfg!(feature = "cpu-kernels") => Some(CpuKernels::All),
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

/// Fails for an invalid value of a setting that is read later, where the error cannot be reported.
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

/// The value of a setting; `None` if it is not set.
pub(crate) fn read<T>(setting: &Setting<T>) -> Result<Option<T>> {
    setting.read().map_err(|error| err!(Value, "{}", error.message))
}
