//! Configuration of the process.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

use crate::client_options;
pub use crate::client_options::{Allocator, ClientOptions};
use crate::compiler_options::{self, CompilerOption};
pub use crate::compiler_options::{gpu_training, tpu_training, v5e_training};
use crate::default_dtype;
use crate::error::{AtCaller, Result, err};
use crate::flag::{self, Flag};
use crate::precision::{self, Precision};
use crate::prng::PrngImpl;
use crate::rank_promotion::RankPromotion;
use crate::settings;
use crate::transfer_guard::{self, TransferGuardLevel};
use crate::warning;

// Settings that are read when the client starts or a program is compiled.
static CONFIG: Mutex<Config> = Mutex::new(Config {
    num_cpu_devices: None,
    platform: None,
    cache_dir: None,
    cache_max_size: None,
    attention_kernels: None,
});

// Settings that every call reads are atomics, because a lock would serialize threads.
static MAX_PROGRAMS: AtomicUsize = AtomicUsize::new(4096);
static MAX_BYTES: AtomicUsize = AtomicUsize::new(2 << 30);
static EXPLAIN_MISSES: Flag = Flag::new(&settings::EXPLAIN_CACHE_MISSES);
static LOG_COMPILES: Flag = Flag::new(&settings::LOG_COMPILES);
static DEBUG_NANS: Flag = Flag::new(&settings::DEBUG_NANS);
static DEBUG_INFS: Flag = Flag::new(&settings::DEBUG_INFS);

/// The number of devices, once they are in use. From then on the options that determine it are fixed.
static IN_USE: OnceLock<usize> = OnceLock::new();

/// Records that the devices were created.
pub(crate) fn freeze(devices: usize) {
    let _ = IN_USE.set(devices);
}

/// The number of devices of this process, if they are in use.
pub(crate) fn devices_in_use() -> Option<usize> {
    IN_USE.get().copied()
}

struct Config {
    num_cpu_devices: Option<usize>,
    platform: Option<String>,
    /// An empty path disables the cache.
    cache_dir: Option<PathBuf>,
    cache_max_size: Option<u64>,
    /// An empty path disables it.
    attention_kernels: Option<PathBuf>,
}

fn with<R>(f: impl FnOnce(&mut Config) -> R) -> R {
    f(&mut CONFIG.lock().unwrap_or_else(|e| e.into_inner()))
}

/// Sets the number of simulated CPU devices (JAX's `jax_num_cpu_devices`; the environment variable
/// `SHARDAX_NUM_CPU_DEVICES`). By default a CPU host has one device. You must call it before anything creates an array or asks
/// for devices, usually at the start of `main`.
///
/// ```
/// # use shardax::prelude::*;
/// shardax::config::set_num_cpu_devices(4)?;
/// assert_eq!(device_count(), 4);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `n` is 0 or more than 2,048, or if devices are already in use and their number differs.
#[track_caller]
pub fn set_num_cpu_devices(n: usize) -> Result<()> {
    use_cpu_devices(n).at_caller()
}

fn use_cpu_devices(n: usize) -> Result<()> {
    if n == 0 {
        return Err(err!(Value, "the number of CPU devices must be at least 1")
            .help("use 1 for a host without simulated devices"));
    }
    check_count(n)?;
    if let Some(&have) = IN_USE.get() {
        if have == n {
            return Ok(());
        }
        return Err(err!(Runtime, "num_cpu_devices cannot be set to {n}: {have} devices are in use already")
            .help("set it before anything creates an array or asks for devices"));
    }
    with(|c| c.num_cpu_devices = Some(n));
    Ok(())
}

fn check_count(n: usize) -> Result<usize> {
    const MAX_CPU_DEVICES: usize = shardax_pjrt::Client::MAX_CPU_DEVICES;
    if n > MAX_CPU_DEVICES {
        return Err(err!(Value, "{n} CPU devices are more than XLA can simulate")
            .help(format!("ask for at most {MAX_CPU_DEVICES}")));
    }
    Ok(n)
}

/// Sets the platform: `cpu` (the default), `cuda` or `tpu` (the environment variable `SHARDAX_PLATFORM`).
///
/// # Errors
/// Returns an error if devices are in use already. You must set the platform before you create an array or ask for
/// devices.
#[track_caller]
pub fn set_platform(name: &str) -> Result<()> {
    if IN_USE.get().is_some() {
        let late = err!(Runtime, "the platform cannot be set to {name:?}: devices are in use already")
            .help("set it before anything creates an array or asks for devices");
        return Err(late).at_caller();
    }
    with(|c| c.platform = Some(name.to_lowercase()));
    Ok(())
}

/// Sets the options of GPU clients: memory allocation and visible devices. Options that are not set are read from the
/// environment variables that JAX uses (`XLA_PYTHON_CLIENT_PREALLOCATE` and others; see [`ClientOptions`]).
///
/// # Errors
/// Returns an error if devices are already in use, or if `memory_fraction` is not positive.
#[track_caller]
pub fn set_client_options(options: ClientOptions) -> Result<()> {
    if IN_USE.get().is_some() {
        let late = err!(Runtime, "the client's options cannot be set: devices are in use already")
            .help("set them before anything creates an array or asks for devices");
        return Err(late).at_caller();
    }
    client_options::set(options).at_caller()
}

/// Sets the directory of the persistent compilation cache, shared by later processes (JAX's
/// `jax_compilation_cache_dir`; the environment variable `SHARDAX_COMPILATION_CACHE_DIR`). By default it is
/// `shardax/programs` in the user's cache (`$XDG_CACHE_HOME` or `~/.cache`); an empty path turns it off.
///
/// You can set it at any time; it applies to later compilations. Any number of processes can share a directory; see
/// [`set_compilation_cache_max_size`] for its size limit. A program is found again by the same plugin with the same
/// options on a processor of the same kind. A damaged file causes a warning and a compilation.
///
/// # Errors
/// Returns an error if the directory cannot be created, belongs to another user, or is writable by others, because its
/// contents are executed.
#[track_caller]
pub fn set_compilation_cache_dir(dir: impl Into<PathBuf>) -> Result<()> {
    let dir = dir.into();
    if !dir.as_os_str().is_empty() {
        shardax_pjrt::permissions::make_folder(&dir)
            .map_err(|e| {
                err!(Value, "the compilation cache cannot be in {}: {e}", dir.display())
                    .help("name a directory that this user may write to, and nobody else")
            })
            .at_caller()?;
    }
    with(|c| c.cache_dir = Some(dir));
    Ok(())
}

/// Sets the folder with attention kernels that JAX exported for TPUs (the environment variable
/// `SHARDAX_ATTENTION_KERNELS`). `tools/export/attention.py` writes them for the shapes of a model, and names them so
/// that attention of these shapes, on each device, finds them. An empty path turns this off.
///
/// You must set it before the programs are traced, because compiled programs are not affected.
pub fn set_attention_kernels(folder: impl Into<PathBuf>) {
    let folder = folder.into();
    with(|c| c.attention_kernels = Some(folder));
}

/// Sets a hook for warnings, which otherwise are lines on standard error. `hook` receives the text of each warning,
/// with the user's line and advice. You can set it at any time, and more than once.
///
/// There are only a few warnings, for example for donated arguments whose memory no result can reuse, for donated
/// arguments that must be moved first, and for files of the compilation cache that cannot be read or written.
///
/// ```
/// # use shardax::prelude::*;
/// let (send, warnings) = std::sync::mpsc::sync_channel(16);
/// config::set_warning_hook(move |text| drop(send.try_send(text.to_owned())));
/// let _ = jit(|x: Array| x.sum(..)).donate_argnums([0]).call(ones(8))?;
/// assert!(warnings.try_recv().is_ok_and(|text| text.starts_with("Some donated buffers were not usable: float32[8]")));
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn set_warning_hook(hook: impl Fn(&str) + Send + Sync + 'static) {
    warning::set_hook(std::sync::Arc::new(hook));
}

/// Emits a warning like the library's own: a problem that is not an error, and advice.
///
/// ```
/// shardax::config::warn("step_100 is damaged", "step_50 was restored; free it by removing the folder");
/// ```
pub fn warn(message: &str, help: &str) {
    warning::warn(message, help);
}

/// Limits the size of the compilation cache on disk, in bytes (JAX's `jax_compilation_cache_max_size`; the environment
/// variable `SHARDAX_COMPILATION_CACHE_MAX_SIZE`); 512 MiB by default. A process evicts the least recently used
/// programs when it writes its first program, unless another process did so within a minute, and then after each
/// sixteenth of the size.
pub fn set_compilation_cache_max_size(bytes: u64) {
    with(|c| c.cache_max_size = Some(bytes));
}

/// Limits the number of compiled programs in memory, for all functions and operations together. Beyond `count` (4096 by
/// default), the least recently used programs are evicted, and compiled again when they are needed.
///
/// You can set it at any time; it applies from the next compilation. [`clear_caches`](crate::clear_caches) drops all
/// programs at once.
///
/// # Errors
/// Returns an error if `count` is 0.
#[track_caller]
pub fn set_max_compiled_programs(count: usize) -> Result<()> {
    if count == 0 {
        return Err(err!(Value, "max_compiled_programs must be at least 1, got 0")
            .help("a running program stays in memory; `clear_caches` drops all programs"))
        .at_caller();
    }
    MAX_PROGRAMS.store(count, Relaxed);
    Ok(())
}

/// Limits the estimated memory of the cached compiled programs, in bytes (2 GiB by default). The newest program is
/// never evicted.
pub fn set_max_compiled_bytes(bytes: usize) {
    MAX_BYTES.store(bytes, Relaxed);
}

/// Logs the reason if a function is traced and compiled again (JAX's `jax_explain_cache_misses`), like a warning. It
/// names the argument that changed, and its change.
///
/// ```
/// # use shardax::prelude::*;
/// let (send, reports) = std::sync::mpsc::sync_channel(16);
/// config::set_warning_hook(move |text| drop(send.try_send(text.to_owned())));
/// config::set_explain_cache_misses(true);
/// let f = jit(|x: Array| x * 2);
/// let (two, three) = (ones(2), ones(3));
/// let _ = f.call(&two)?;
/// let _ = f.call(&three)?;
/// assert!(reports.recv().is_ok_and(|text| text.contains("never seen function")));
/// assert!(reports.recv().is_ok_and(|text| text.contains("at argument[0], now float32[3] and before float32[2]")));
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn set_explain_cache_misses(explain: bool) {
    EXPLAIN_MISSES.set(explain);
}

/// Logs each trace, lowering and compilation with its duration, like a warning (JAX's
/// `jax_log_compiles`). [`count`](crate::count) counts them for tests.
pub fn set_log_compiles(log: bool) {
    LOG_COMPILES.set(log);
}

/// Sets the default precision of matrix multiplications and convolutions (JAX's `jax_default_matmul_precision`); `None`
/// uses the platform's default. To set it on one thread, until a guard is dropped, use
/// [`default_matmul_precision`](crate::default_matmul_precision).
///
/// You can set it at any time. A function compiled with another precision is compiled again.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::lax::Precision;
/// config::set_default_matmul_precision(Some(Precision::High));
/// let lowered = jit(|x: Array| x.dot(&x)).lower(ones([2, 2]))?;
/// assert!(lowered.as_text().contains("precision HIGH"));
/// # config::set_default_matmul_precision(None);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn set_default_matmul_precision(precision: Option<Precision>) {
    precision::set_of_process(precision);
}

/// Sets the algorithm of keys that do not name one (JAX's `jax_default_prng_impl`): keys of
/// [`random::key`](crate::random::key()), of [`random::PRNGKey`](crate::random::PRNGKey) and of models' streams.
///
/// Existing keys keep their algorithm. You should set it at the start, because compiled functions are traced again
/// after a change, and programs that were lowered ahead of time keep the algorithm of their trace.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::random::PrngImpl;
/// config::set_default_prng_impl(PrngImpl::Rbg);
/// assert_eq!(random::key(0).type_name(), "key<rbg>[]");
/// # let seeded = jit(|seed: Array| random::key(seed));
/// # assert_eq!(seeded.call(array(0))?.type_name(), "key<rbg>[]");
/// # config::update("jax_default_prng_impl", "threefry2x32")?;
/// # assert_eq!(seeded.call(array(0))?.type_name(), "key<fry>[]");
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn set_default_prng_impl(prng: PrngImpl) {
    prng.set_default();
}

/// Makes a NaN in any result an error (JAX's `jax_debug_nans`) that names the operation and its source line, also
/// inside `jit`, loops, branches and `pmap`.
///
/// Because every result is read, each call waits. A program that produced a NaN is run again with each operation
/// checked, and donated arguments are copied for this.
///
/// ```
/// # use shardax::prelude::*;
/// config::set_debug_nans(true);
/// let f = jit(|x: Array| x.log() * 2);
/// let error = f.call(-1.0f32).err().map(|e| e.message().to_owned());
/// assert_eq!(error.as_deref(), Some("invalid value (nan) encountered in log"));
/// # config::set_debug_nans(false);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn set_debug_nans(debug: bool) {
    DEBUG_NANS.set(debug);
}

/// Makes an infinity in any result an error (JAX's `jax_debug_infs`); see [`set_debug_nans`].
pub fn set_debug_infs(debug: bool) {
    DEBUG_INFS.set(debug);
}

/// Makes 64 bits the default of floating point numbers (JAX's `jax_enable_x64`), for a program that computes in double
/// precision. If the program calls them without a dtype, `zeros`, `ones`, `eye`, `linspace`, `fftfreq` and the
/// distributions of [`random`](crate::random) return float64, and plain numbers that meet no floating point array are
/// float64.
///
/// Unlike in JAX, you do not need this for 64-bit arrays, and turning it off narrows none, because a stated dtype is
/// always kept. Everything that states its dtype is unchanged: Rust's integers (`array([1, 2])` is int32), indices such
/// as `argmax`'s (int32), counts (`random::poisson`), and the parameters of layers, which have a `param_dtype`. A
/// function that was traced before a change is traced again.
///
/// ```
/// # use shardax::prelude::*;
/// config::enable_x64(true); // or config::update("jax_enable_x64", "true")?;
/// assert_eq!((zeros(3).dtype(), random::normal(random::key(0), 3).dtype()), (DType::F64, DType::F64));
/// assert_eq!((arange(0..3) / 2.0).to_vec::<f64>()?, [0.0, 0.5, 1.0]);
/// # assert_eq!(((1 / array(3)).to_f64()?, array([3, 4]).mean(..).dtype()), (1.0 / 3.0, DType::F64));
/// # let f = jit(|| linspace(0.0, 1.0, 3) * ones(3));
/// # assert_eq!(f.call(())?.to_vec::<f64>()?, [0.0, 0.5, 1.0]);
/// # assert_eq!((eye(2).to_vec::<f64>()?, shardax::nn::softmax(array([1.0f32]), -1).dtype()), (vec![1.0, 0.0, 0.0, 1.0], DType::F32));
/// config::enable_x64(false);
/// assert_eq!((zeros(3).dtype(), array_of([1.0, 2.0], DType::F64).dtype()), (DType::F32, DType::F64));
/// # assert_eq!(f.call(())?.dtype(), DType::F32);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn enable_x64(on: bool) {
    default_dtype::set_x64(on);
}

/// Sets the rule for operands of different ranks (JAX's `jax_numpy_rank_promotion`). For example, `float32[3]` next to
/// `float32[2,3]` is broadcast, broadcast with a warning, or an error.
/// [`numpy_rank_promotion`](crate::numpy_rank_promotion) sets the rule of a thread, and explains which operations it
/// affects.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::RankPromotion;
/// config::set_numpy_rank_promotion(RankPromotion::Raise);
/// let add = jit(|(x, y): (Array, Array)| x + y);
/// assert!(add.call((ones([2, 3]), ones(3))).is_err());
/// config::update("jax_numpy_rank_promotion", "allow")?;
/// assert!(add.call((ones([2, 3]), ones(3))).is_ok());
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn set_numpy_rank_promotion(rule: RankPromotion) {
    rule.set_of_process();
}

/// Sets XLA options by name for all later compilations, for example for a GPU's collectives, command buffers and
/// autotuning, or a TPU's schedulers. [`Jit::compiler_options`](crate::Jit::compiler_options) sets options of one
/// function. Options that were set earlier remain, unless you name them again.
///
/// Names that begin with `xla_cpu_`, `xla_gpu_` or `xla_tpu_` are ignored on other platforms, so one program can set
/// options for all platforms. [`gpu_training`], [`tpu_training`] and [`v5e_training`] are the options that training
/// programs set. A name unknown to XLA is an error of the compilation. Compiled functions are not affected.
///
/// ```
/// # use shardax::config;
/// config::set_compiler_options([("xla_gpu_enable_command_buffer", "FUSION,CUBLAS"), ("xla_gpu_autotune_level", "0")]);
/// config::update("xla_gpu_enable_latency_hiding_scheduler", "true")?;
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn set_compiler_options<Name: Into<String>, Value: Into<CompilerOption>>(
    options: impl IntoIterator<Item = (Name, Value)>,
) {
    compiler_options::set_of_process(options.into_iter().collect());
}

/// Sets an option by name: `num_cpu_devices`, `platform`, `compilation_cache_dir`, `compilation_cache_max_size`,
/// `max_compiled_programs`, `max_compiled_bytes`, `explain_cache_misses`, `log_compiles`, `default_matmul_precision`, `default_prng_impl`,
/// `enable_x64`, `numpy_rank_promotion`, `debug_nans`, `debug_infs` or `transfer_guard` and its three directions (JAX's names with `jax_` are accepted too), or an [XLA option](set_compiler_options),
/// whose name begins with `xla_`. The value is text, a number or a `bool`.
///
/// ```
/// use shardax::config;
/// config::update("jax_enable_x64", true)?;
/// config::update("max_compiled_programs", 100)?;
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if there is no option of this name, if the option does not accept the value, or if it must be
/// set before devices are in use and they are.
#[track_caller]
pub fn update(name: &str, value: impl std::fmt::Display) -> Result<()> {
    let value = &value.to_string();
    match name.strip_prefix("jax_").unwrap_or(name) {
        "num_cpu_devices" => set_num_cpu_devices(number(name, value).at_caller()?),
        "max_compiled_programs" => set_max_compiled_programs(number(name, value).at_caller()?),
        "max_compiled_bytes" => {
            set_max_compiled_bytes(number(name, value).at_caller()?);
            Ok(())
        }
        "explain_cache_misses" => {
            set_explain_cache_misses(on_or_off(name, value).at_caller()?);
            Ok(())
        }
        "log_compiles" => {
            set_log_compiles(on_or_off(name, value).at_caller()?);
            Ok(())
        }
        "default_matmul_precision" => {
            set_default_matmul_precision(Some(Precision::from_name(value).at_caller()?));
            Ok(())
        }
        "debug_nans" => {
            set_debug_nans(on_or_off(name, value).at_caller()?);
            Ok(())
        }
        "debug_infs" => {
            set_debug_infs(on_or_off(name, value).at_caller()?);
            Ok(())
        }
        "transfer_guard"
        | "transfer_guard_host_to_device"
        | "transfer_guard_device_to_device"
        | "transfer_guard_device_to_host" => {
            let level = TransferGuardLevel::from_name(value).at_caller()?;
            transfer_guard::set_of_process(name.strip_prefix("jax_").unwrap_or(name), level);
            Ok(())
        }
        // These options have only one value here, because Threefry's bits do not depend on the split, and Shardy
        // partitions.
        "threefry_partitionable" | "use_shardy_partitioner" if on_or_off(name, value).is_ok_and(|on| on) => Ok(()),
        "numpy_rank_promotion" => {
            set_numpy_rank_promotion(RankPromotion::from_name(value).at_caller()?);
            Ok(())
        }
        "default_prng_impl" => {
            set_default_prng_impl(PrngImpl::from_name(value).at_caller()?);
            Ok(())
        }
        "platform" | "platform_name" | "platforms" => set_platform(value),
        "compilation_cache_dir" => set_compilation_cache_dir(value),
        "compilation_cache_max_size" => {
            let bytes = value
                .parse()
                .map_err(|_| err!(Value, "{name} takes a number of bytes, got {value:?}").help("write a whole number of bytes"))
                .at_caller()?;
            set_compilation_cache_max_size(bytes);
            Ok(())
        }
        "enable_x64" => {
            enable_x64(on_or_off(name, value).at_caller()?);
            Ok(())
        }
        xla if xla.starts_with("xla_") => {
            set_compiler_options([(xla, compiler_options::parsed(name, value).at_caller()?)]);
            Ok(())
        }
        _ => Err(err!(Value, "Unrecognized config option: {name}")
            .help("known: num_cpu_devices, platform, compilation_cache_dir, compilation_cache_max_size, max_compiled_programs, max_compiled_bytes, explain_cache_misses, log_compiles, default_matmul_precision, default_prng_impl, enable_x64, numpy_rank_promotion, debug_nans, debug_infs, transfer_guard and its three directions, platform_name, and options of XLA, which begin with xla_"))
        .at_caller(),
    }
}

fn number(name: &str, value: &str) -> Result<usize> {
    let number = value.parse().map_err(|_| err!(Value, "{name} takes a number, got {value:?}"));
    number.map_err(|e| e.help("write a whole number of at least 1"))
}

fn on_or_off(name: &str, value: &str) -> Result<bool> {
    flag::parse(value)
        .ok_or_else(|| err!(Value, "{name} is either true or false, got {value:?}").help("write `true` or `false`"))
}

/// The limits of the program cache: number and bytes.
pub(crate) fn compiled_bounds() -> (usize, usize) {
    (MAX_PROGRAMS.load(Relaxed), MAX_BYTES.load(Relaxed))
}

pub(crate) fn explains_cache_misses() -> bool {
    EXPLAIN_MISSES.get()
}

/// The flags for NaN and infinity checks. `None` if both are off.
pub(crate) fn debugs_values() -> Option<(bool, bool)> {
    let (nans, infs) = (DEBUG_NANS.get(), DEBUG_INFS.get());
    (nans || infs).then_some((nans, infs))
}

pub(crate) fn logs_compiles() -> bool {
    LOG_COMPILES.get()
}

fn user_cache_dir() -> Option<PathBuf> {
    Some(shardax_pjrt::Environment::from_process().cache_folder()?.join("programs"))
}

/// The directory of the compilation cache, unless it is disabled.
pub(crate) fn compilation_cache_dir() -> Option<PathBuf> {
    static DEFAULT: OnceLock<Option<PathBuf>> = OnceLock::new();
    with(|c| c.cache_dir.clone())
        .or_else(|| std::env::var_os("SHARDAX_COMPILATION_CACHE_DIR").map(PathBuf::from))
        .or_else(|| DEFAULT.get_or_init(user_cache_dir).clone())
        .filter(|dir| !dir.as_os_str().is_empty())
}

/// The folder with kernels of attention, if there is one.
pub(crate) fn attention_kernels() -> Option<PathBuf> {
    with(|c| c.attention_kernels.clone())
        .or_else(|| std::env::var_os("SHARDAX_ATTENTION_KERNELS").map(PathBuf::from))
        .filter(|folder| !folder.as_os_str().is_empty())
}

/// The size limit of the compilation cache in bytes.
pub(crate) fn compilation_cache_max_size() -> u64 {
    with(|c| c.cache_max_size).or_else(|| settings::CACHE_MAX_SIZE.get()).unwrap_or(512 << 20)
}

pub(crate) fn num_cpu_devices() -> Result<usize> {
    if let Some(n) = with(|c| c.num_cpu_devices) {
        return Ok(n);
    }
    let variable = &settings::NUM_CPU_DEVICES;
    let count = settings::read(variable)?.unwrap_or(1);
    check_count(count).map_err(|e| e.context(format_args!("the environment variable {}", variable.name())))
}

pub(crate) fn platform() -> Result<String> {
    let set = with(|c| c.platform.clone());
    Ok(set.map_or_else(|| settings::read(&settings::PLATFORM), |set| Ok(Some(set)))?.unwrap_or_else(|| "cpu".into()))
}
