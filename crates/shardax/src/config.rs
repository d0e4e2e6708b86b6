//! Settings of the process, made before the first use of a device.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

use crate::client_options;
pub use crate::client_options::{Allocator, ClientOptions};
use crate::compiler_options::{self, CompilerOption};
use crate::error::{AtCaller, Result, err};
use crate::precision::{self, Precision};
use crate::settings;
use crate::warning;

static CONFIG: Mutex<Config> =
    Mutex::new(Config { num_cpu_devices: None, platform: None, cache_dir: None, cache_max_size: None });

static MAX_PROGRAMS: AtomicUsize = AtomicUsize::new(4096);
static MAX_BYTES: AtomicUsize = AtomicUsize::new(2 << 30);
static EXPLAIN_MISSES: AtomicBool = AtomicBool::new(false);
static LOG_COMPILES: AtomicBool = AtomicBool::new(false);
static DEBUG_NANS: AtomicBool = AtomicBool::new(false);
static DEBUG_INFS: AtomicBool = AtomicBool::new(false);
/// Either of the two.
static DEBUG_VALUES: AtomicBool = AtomicBool::new(false);

/// How many devices there are, once they are in use: what they were made from is settled then.
static IN_USE: OnceLock<usize> = OnceLock::new();

/// Says that the devices were made.
pub(crate) fn freeze(devices: usize) {
    let _ = IN_USE.set(devices);
}

/// How many devices of this process there are, if they are in use.
pub(crate) fn devices_in_use() -> Option<usize> {
    IN_USE.get().copied()
}

struct Config {
    num_cpu_devices: Option<usize>,
    platform: Option<String>,
    /// Empty turns the cache off.
    cache_dir: Option<PathBuf>,
    cache_max_size: Option<u64>,
}

fn with<R>(f: impl FnOnce(&mut Config) -> R) -> R {
    f(&mut CONFIG.lock().unwrap_or_else(|e| e.into_inner()))
}

/// Sets the number of CPU devices that the host simulates (JAX's `jax_num_cpu_devices`; the environment
/// variable `SHARDAX_NUM_CPU_DEVICES`). Without it a CPU host has one device.
///
/// Fails when `n` is 0 or more than 2,048, or when devices are in use already and their number differs.
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
    const MOST: usize = shardax_pjrt::Client::MAX_CPU_DEVICES;
    if n > MOST {
        return Err(
            err!(Value, "{n} CPU devices are more than XLA can simulate").help(format!("ask for at most {MOST}"))
        );
    }
    Ok(n)
}

/// Chooses the platform: `cpu` (the default), `cuda` or `tpu` (the environment variable `SHARDAX_PLATFORM`).
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

/// How the client of a GPU is started: what memory it takes, and which devices it uses. What is not said is what the
/// variables say that JAX reads (`XLA_PYTHON_CLIENT_PREALLOCATE` and the like; see [`ClientOptions`]).
///
/// Fails when devices are in use already, or `memory_fraction` is not positive.
#[track_caller]
pub fn set_client_options(options: ClientOptions) -> Result<()> {
    if IN_USE.get().is_some() {
        let late = err!(Runtime, "the client's options cannot be set: devices are in use already")
            .help("set them before anything creates an array or asks for devices");
        return Err(late).at_caller();
    }
    client_options::set(options).at_caller()
}

/// Keeps compiled programs in this directory, where later processes find them (JAX's `jax_compilation_cache_dir`; the
/// environment variable `SHARDAX_COMPILATION_CACHE_DIR`). By default it is `shardax/programs` in the user's cache
/// (`$XDG_CACHE_HOME` or `~/.cache`); an empty path turns it off.
///
/// It may be set at any time and holds for what is compiled afterwards. Any number of processes may share a
/// directory; see [`set_compilation_cache_max_size`] for what it may hold. Programs are found again by the same plugin
/// with the same options on a processor of the same kind. A damaged file costs a warning and a compilation.
///
/// Fails when the directory cannot be made, belongs to another user, or may be written to by others: what lies there is
/// run.
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

/// Warns as the library does: of what a user should know although nothing failed, and how it is avoided.
///
/// ```
/// shardax::config::warn("step_100 is damaged", "step_50 was restored; free it by removing the folder");
/// ```
pub fn warn(message: &str, help: &str) {
    warning::warn(message, help);
}

/// Keeps at most so many bytes of compiled programs on disk (JAX's `jax_compilation_cache_max_size`; the environment
/// variable `SHARDAX_COMPILATION_CACHE_MAX_SIZE`); 512 MiB by default. Those that were not used for longest go first, when
/// a process writes its first and then after each sixteenth of the size.
pub fn set_compilation_cache_max_size(bytes: u64) {
    with(|c| c.cache_max_size = Some(bytes));
}

/// Bounds the compiled programs that are kept in memory, all functions' and operations' together: when there are more
/// than `count` (4096), those that were not used for the longest time go. They are compiled anew when they are needed again.
///
/// It may be set at any time, and holds from the next compilation on. Fails when `count` is 0. [`clear_caches`](crate::clear_caches) drops all at once.
#[track_caller]
pub fn set_max_compiled_programs(count: usize) -> Result<()> {
    if count == 0 {
        return Err(err!(Value, "max_compiled_programs must be at least 1, got 0")
            .help("a program that runs has to be kept; `clear_caches` drops them all"))
        .at_caller();
    }
    MAX_PROGRAMS.store(count, Relaxed);
    Ok(())
}

/// Bounds the memory of the compiled programs that are kept, about as much as the compiler takes for them (2 GiB). The
/// newest is kept in any case.
pub fn set_max_compiled_bytes(bytes: usize) {
    MAX_BYTES.store(bytes, Relaxed);
}

/// Whether it is told why a function is traced and compiled again (JAX's `jax_explain_cache_misses`), where the warnings
/// go: the argument that is not what it was, and in what.
///
/// ```
/// # use shardax::prelude::*;
/// let (send, told) = std::sync::mpsc::sync_channel(16);
/// config::set_warning_hook(move |text| drop(send.try_send(text.to_owned())));
/// config::set_explain_cache_misses(true);
/// let f = jit(|x: Array| x * 2);
/// let (two, three) = (ones(2), ones(3));
/// f.call(&two)?;
/// f.call(&three)?;
/// assert!(told.recv().is_ok_and(|text| text.contains("never seen function")));
/// assert!(told.recv().is_ok_and(|text| text.contains("at argument[0], now float32[3] and before float32[2]")));
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn set_explain_cache_misses(explain: bool) {
    EXPLAIN_MISSES.store(explain, Relaxed);
}

/// Whether each trace, lowering and compilation is told, with the time it took, where the warnings go (JAX's
/// `jax_log_compiles`). [`count`](crate::count) counts them for tests.
pub fn set_log_compiles(log: bool) {
    LOG_COMPILES.store(log, Relaxed);
}

/// The precision of products of matrices and convolutions that ask for none (JAX's `jax_default_matmul_precision`);
/// `None` for the platform's own. [`default_matmul_precision`](crate::default_matmul_precision) sets it on one thread
/// for a while.
///
/// It may be set at any time. A function that was compiled with another one is compiled again.
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

/// Whether a computation whose result holds a NaN is an error (JAX's `jax_debug_nans`), which names the operation that made it, and
/// the line that asked for that: inside `jit`, loops, branches and `pmap` too.
///
/// Every result is read, so that each call waits, and a program that made a NaN is run again with each operation checked. Donated
/// arguments are copied for that.
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
    DEBUG_NANS.store(debug, Relaxed);
    DEBUG_VALUES.store(debug || DEBUG_INFS.load(Relaxed), Relaxed);
}

/// The same of infinities (JAX's `jax_debug_infs`).
pub fn set_debug_infs(debug: bool) {
    DEBUG_INFS.store(debug, Relaxed);
    DEBUG_VALUES.store(debug || DEBUG_NANS.load(Relaxed), Relaxed);
}

/// Sets options of XLA, by their names, for all programs that are compiled from now on: a GPU's collectives, command buffers
/// and autotuning, a TPU's schedulers. [`Jit::compiler_options`](crate::Jit::compiler_options) are one function's. Those that
/// were set before stay, unless they are named again.
///
/// What begins with `xla_cpu_`, `xla_gpu_` or `xla_tpu_` is left out on other platforms, so that a program for all of them
/// sets all. A name that XLA does not know is an error of the compilation. A function that was compiled stays as it is.
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

/// Sets an option by its name: `num_cpu_devices`, `platform`, `compilation_cache_dir`, `compilation_cache_max_size`,
/// `max_compiled_programs`, `max_compiled_bytes`, `explain_cache_misses`, `log_compiles`, `default_matmul_precision`,
/// `debug_nans` or `debug_infs` (JAX's names with `jax_` are taken too), or an [option of XLA](set_compiler_options), whose name
/// begins with `xla_`.
#[track_caller]
pub fn update(name: &str, value: &str) -> Result<()> {
    match name.strip_prefix("jax_").unwrap_or(name) {
        "num_cpu_devices" => set_num_cpu_devices(number(name, value).at_caller()?),
        "max_compiled_programs" => set_max_compiled_programs(number(name, value).at_caller()?),
        "max_compiled_bytes" => {
            set_max_compiled_bytes(number(name, value).at_caller()?);
            Ok(())
        }
        "explain_cache_misses" => {
            set_explain_cache_misses(flag(name, value).at_caller()?);
            Ok(())
        }
        "log_compiles" => {
            set_log_compiles(flag(name, value).at_caller()?);
            Ok(())
        }
        "default_matmul_precision" => {
            set_default_matmul_precision(Some(Precision::from_name(value).at_caller()?));
            Ok(())
        }
        "debug_nans" => {
            set_debug_nans(flag(name, value).at_caller()?);
            Ok(())
        }
        "debug_infs" => {
            set_debug_infs(flag(name, value).at_caller()?);
            Ok(())
        }
        "platform" | "platforms" => set_platform(value),
        "compilation_cache_dir" => set_compilation_cache_dir(value),
        "compilation_cache_max_size" => {
            let bytes = value
                .parse()
                .map_err(|_| err!(Value, "{name} takes a number of bytes, got {value:?}").help("write a whole number"))
                .at_caller()?;
            set_compilation_cache_max_size(bytes);
            Ok(())
        }
        xla if xla.starts_with("xla_") => {
            set_compiler_options([(xla, compiler_options::parsed(name, value).at_caller()?)]);
            Ok(())
        }
        _ => Err(err!(Value, "Unrecognized config option: {name}")
            .help("known: num_cpu_devices, platform, compilation_cache_dir, compilation_cache_max_size, max_compiled_programs, max_compiled_bytes, explain_cache_misses, log_compiles, default_matmul_precision, debug_nans, debug_infs, and options of XLA, which begin with xla_"))
        .at_caller(),
    }
}

fn number(name: &str, value: &str) -> Result<usize> {
    let number = value.parse().map_err(|_| err!(Value, "{name} takes a number, got {value:?}"));
    number.map_err(|e| e.help("write a whole number of at least 1"))
}

fn flag(name: &str, value: &str) -> Result<bool> {
    match value.to_lowercase().as_str() {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(err!(Value, "{name} is either true or false, got {value:?}").help("write `true` or `false`")),
    }
}

/// How many compiled programs are kept in memory, and how many bytes of them.
pub(crate) fn compiled_bounds() -> (usize, usize) {
    (MAX_PROGRAMS.load(Relaxed), MAX_BYTES.load(Relaxed))
}

pub(crate) fn explains_cache_misses() -> bool {
    EXPLAIN_MISSES.load(Relaxed)
}

/// Whether results are searched for NaN and for infinities. `None` where for neither, which is found out by one load.
pub(crate) fn debugs_values() -> Option<(bool, bool)> {
    DEBUG_VALUES.load(Relaxed).then(|| (DEBUG_NANS.load(Relaxed), DEBUG_INFS.load(Relaxed)))
}

pub(crate) fn logs_compiles() -> bool {
    LOG_COMPILES.load(Relaxed)
}

/// Where compiled programs are kept, if they are.
pub(crate) fn compilation_cache_dir() -> Option<PathBuf> {
    static DEFAULT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let of_user = || Some(shardax_pjrt::Environment::of_process().cache_folder()?.join("programs"));
    with(|c| c.cache_dir.clone())
        .or_else(|| std::env::var_os("SHARDAX_COMPILATION_CACHE_DIR").map(PathBuf::from))
        .or_else(|| DEFAULT.get_or_init(of_user).clone())
        .filter(|dir| !dir.as_os_str().is_empty())
}

/// How many bytes of compiled programs are kept.
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
