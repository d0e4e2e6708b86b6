//! XLA options by name, for all programs of the process or for one function.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

pub use shardax_pjrt::Value as CompilerOption;

use crate::error::{Result, err};

/// The prefixes of XLA's option names, and the platforms that support them. Other names are for all platforms.
const PLATFORM_PREFIXES: [(&str, &[&str]); 4] = [
    ("xla_cpu_", &["cpu"]),
    ("xla_gpu_", &["cuda", "rocm", "gpu"]),
    ("xla_tpu_", &["tpu"]),
    ("xla_enable_async_", &["tpu"]),
];

/// The size up to which collectives of one kind are combined, in bytes.
const COMBINED: i64 = 512 << 20;

/// Returns options for training on many GPUs, as set by public training programs. Collectives are scheduled early,
/// combined up to 512 MiB, and moved to the loop iteration before the one that needs them. Loops are unrolled twice for
/// that.
///
/// The documentation describes [their
/// effects](https://github.com/shardax/shardax/blob/main/docs/platforms.md#options-for-training) in a decoder that is
/// compiled for H100. Nobody has measured their time here.
///
/// ```
/// use shardax::prelude::*;
/// config::set_compiler_options(config::gpu_training());
/// // Or for one function.
/// let y = jit(|x: Array| x * 2).compiler_options(config::gpu_training()).call(ones([3]))?;
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn gpu_training() -> Vec<(&'static str, CompilerOption)> {
    let flags = [
        "xla_gpu_enable_latency_hiding_scheduler",
        "xla_gpu_enable_pipelined_all_gather",
        "xla_gpu_enable_pipelined_all_reduce",
        "xla_gpu_enable_pipelined_reduce_scatter",
        "xla_gpu_enable_while_loop_double_buffering",
        "xla_gpu_enable_highest_priority_async_stream",
    ];
    let thresholds = [
        "xla_gpu_all_gather_combine_threshold_bytes",
        "xla_gpu_all_reduce_combine_threshold_bytes",
        "xla_gpu_reduce_scatter_combine_threshold_bytes",
    ];
    let flags = flags.map(|name| (name, true.into()));
    flags.into_iter().chain(thresholds.map(|name| (name, COMBINED.into()))).collect()
}

/// Returns options for training on many TPUs of any kind, as set by public training programs: asynchronous gathers and
/// reductions next to matmuls, and reductions of gradients over several iterations.
///
/// The documentation describes [their
/// effects](https://github.com/shardax/shardax/blob/main/docs/platforms.md#options-for-training) in a decoder that is
/// compiled for v5p. Nobody has measured their time here.
///
/// ```
/// use shardax::prelude::*;
/// // Options of other platforms are left out, so a program can set both.
/// config::set_compiler_options(config::gpu_training());
/// config::set_compiler_options(config::tpu_training());
/// ```
pub fn tpu_training() -> Vec<(&'static str, CompilerOption)> {
    let flags = [
        "xla_enable_async_all_gather",
        "xla_enable_async_all_reduce",
        "xla_tpu_data_parallel_opt_different_sized_ops",
        "xla_tpu_enable_data_parallel_all_reduce_opt",
        "xla_tpu_overlap_compute_collective_tc",
    ];
    flags.map(|name| (name, true.into())).into()
}

/// Returns options for training on many TPUs v5e: the options of [`tpu_training`], and collectives that run inside of
/// fusions with other work, in several steps.
///
/// The compilers of other TPUs reject them with an error that says so. The documentation describes [their
/// effects](https://github.com/shardax/shardax/blob/main/docs/platforms.md#options-for-training) in a decoder that is
/// compiled for v5e. Nobody has measured their time here.
///
/// ```
/// use shardax::prelude::*;
/// let y = jit(|x: Array| x * 2).compiler_options(config::v5e_training()).call(ones([3]))?;
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn v5e_training() -> Vec<(&'static str, CompilerOption)> {
    let flags = [
        "xla_tpu_enable_async_collective_fusion",
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather",
        "xla_tpu_enable_async_collective_fusion_fuse_all_reduce",
        "xla_tpu_enable_async_collective_fusion_multiple_steps",
    ];
    tpu_training().into_iter().chain(flags.map(|name| (name, true.into()))).collect()
}

// The options of the process, ordered by name, so that equal options hash equally in the keys of caches.
static PROCESS_OPTIONS: Mutex<BTreeMap<String, CompilerOption>> = Mutex::new(BTreeMap::new());

/// Options by name; later values replace earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct CompilerOptions(BTreeMap<String, CompilerOption>);

impl CompilerOptions {
    pub fn process_defaults() -> CompilerOptions {
        CompilerOptions(PROCESS_OPTIONS.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Adds options, which take precedence.
    pub fn and(mut self, others: &CompilerOptions) -> CompilerOptions {
        self.0.extend(others.0.iter().map(|(name, value)| (name.clone(), value.clone())));
        self
    }

    /// Returns the options that a platform supports, because a function can set options for several platforms.
    pub fn on<'a>(&'a self, platform: &'a str) -> impl Iterator<Item = (&'a str, &'a CompilerOption)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value)).filter(move |(name, _)| {
            let platforms = PLATFORM_PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix));
            platforms.is_none_or(|(_, platforms)| platforms.contains(&platform))
        })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl<Name: Into<String>, Value: Into<CompilerOption>> FromIterator<(Name, Value)> for CompilerOptions {
    fn from_iter<T: IntoIterator<Item = (Name, Value)>>(options: T) -> Self {
        CompilerOptions(options.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

pub(crate) fn set_of_process(options: CompilerOptions) {
    PROCESS_OPTIONS.lock().unwrap_or_else(PoisonError::into_inner).extend(options.0);
}

/// Parses an option value: a boolean, a number, or otherwise a string.
pub(crate) fn parsed(name: &str, text: &str) -> Result<CompilerOption> {
    if text.is_empty() {
        return Err(err!(Value, "{name} has no value").help("write `true`, `false`, a number or a name"));
    }
    Ok(match text {
        "true" | "True" => true.into(),
        "false" | "False" => false.into(),
        _ => match (text.parse::<i64>(), text.parse::<f32>()) {
            (Ok(number), _) => number.into(),
            (_, Ok(number)) if number.is_finite() => number.into(),
            _ => text.into(),
        },
    })
}
