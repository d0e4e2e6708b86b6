//! Installing a plugin: pip downloads a pinned wheel; the library is checked and renamed into the cache.
//!
//! The process can be killed at any moment, and several processes can install at once. An installation takes at most
//! `SHARDAX_INSTALL_SECONDS` (600). Noticed by `search::two_processes_install_once`,
//! `search::an_installer_can_be_killed_at_any_moment`.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::error::{Code, Error, Result};
use crate::permissions;
use crate::plugin_search::{Environment, Wheel};
use crate::settings::INSTALL_SECONDS;

/// Installs the library of a wheel at `library` inside `folder`. If several processes call it at once, one installs.
pub(crate) fn install(wheel: &Wheel, env: &Environment, folder: &Path, library: &Path) -> Result<()> {
    let arch = std::env::consts::ARCH;
    let sha256 = wheel.sha256.iter().find(|(name, _)| *name == arch).map(|(_, sha256)| *sha256).ok_or_else(|| {
        Error::new(Code::Unimplemented, format!("{} {} has no wheel for {arch}", wheel.package, wheel.version))
    })?;
    let limit = Limit::from_environment(env)?;
    permissions::make_folder(folder)?;

    // The system releases the lock when its process ends, so a killed process blocks nobody.
    let lock_path = folder.join("lock");
    let lock = File::create(&lock_path).map_err(|e| io_error(e, "cannot make the lock file", &lock_path))?;
    while let Err(error) = lock.try_lock() {
        match error {
            TryLockError::WouldBlock if !limit.is_over() => std::thread::sleep(POLL),
            TryLockError::WouldBlock => {
                return Err(limit.error(format!("another process, which has locked {},", lock_path.display())));
            }
            TryLockError::Error(e) => return Err(io_error(e, "cannot lock", &lock_path)),
        }
    }
    if library.is_file() {
        return Ok(()); // another process was faster
    }
    remove_leftovers(folder);

    let Wheel { package, version, megabytes, .. } = wheel;
    eprintln!("shardax: installing the plugin {package} {version} ({megabytes} MB) into {}", folder.display());
    let work = folder.join(format!("{WORK_PREFIX}{}", std::process::id()));
    let result = download_and_unpack(wheel, env, &limit, sha256, &work, library);
    let _ = fs::remove_dir_all(&work);
    result
}

const WORK_PREFIX: &str = "tmp-";

/// Interval at which it checks for other processes.
const POLL: Duration = Duration::from_millis(20);

/// The deadline of an installation.
struct Limit {
    time: Duration,
    end: Instant,
}

impl Limit {
    fn from_environment(env: &Environment) -> Result<Limit> {
        let text = env.var(INSTALL_SECONDS.name()).map(OsString::as_os_str);
        let time = INSTALL_SECONDS.parse(text)?.unwrap_or(Duration::from_secs(600));
        // Adding `Duration::MAX` to an `Instant` overflows; a year is long enough.
        let start = Instant::now();
        Ok(Limit { time, end: start.checked_add(time).unwrap_or(start + Duration::from_secs(365 * 24 * 3600)) })
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    fn error(&self, who: String) -> Error {
        let message =
            format!("{who} did not finish within {:?} (SHARDAX_INSTALL_SECONDS sets the limit in seconds)", self.time);
        Error::new(Code::DeadlineExceeded, message)
    }
}

/// Waits for a process; `None` if it was killed at the deadline.
fn wait(child: &mut Child, limit: &Limit) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if limit.is_over() {
            let _ = child.kill();
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}

/// Makes the system kill the process when this one dies, so that it does not write to a folder where another installs.
fn end_with_this_process(command: &mut Command) {
    #[cfg(target_os = "linux")]
    // SAFETY: between fork and exec only this one system call is made.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(command, || {
            match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}

/// Removes the files of an interrupted installation. The caller has the lock, so nobody else uses them.
fn remove_leftovers(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(WORK_PREFIX) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn download_and_unpack(
    wheel: &Wheel,
    env: &Environment,
    limit: &Limit,
    sha256: &str,
    work: &Path,
    library: &Path,
) -> Result<()> {
    permissions::make_folder(work)?;
    let downloaded = download(wheel, env, limit, work)?;
    let actual = sha256_of(&downloaded).map_err(|e| io_error(e, "cannot read", &downloaded))?;
    if actual != sha256 {
        return Err(Error::new(
            Code::DataLoss,
            format!(
                "the downloaded wheel is not the expected one (sha256 {actual}, expected {sha256}) and was deleted"
            ),
        ));
    }
    let unpacked = work.join("library");
    unpack(&downloaded, wheel.member, &unpacked)?;
    crate::elf::check(&unpacked).map_err(|e| e.during(format_args!("{} from the wheel", wheel.member)))?;
    fs::rename(&unpacked, library).map_err(|e| io_error(e, "cannot move the library to", library))
}

fn download(wheel: &Wheel, env: &Environment, limit: &Limit, work: &Path) -> Result<PathBuf> {
    let python = env.on_path("python3").next().ok_or_else(|| {
        Error::new(Code::NotFound, "there is no python3 on PATH, whose pip would download the plugin")
    })?;
    let requirement = format!("{}=={}", wheel.package, wheel.version);
    let command = format!("`{} -m pip download {requirement}`", python.display());
    // To a file: a pipe would stay open as long as any process that pip started.
    let log = work.join("stderr");
    let stderr = File::create(&log).map_err(|e| io_error(e, "cannot write", &log))?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--dest"])
        .arg(work)
        .arg(&requirement)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr);
    end_with_this_process(&mut pip);
    let mut pip = pip.spawn().map_err(|e| io_error(e, "cannot start", &python))?;
    let status = wait(&mut pip, limit).map_err(|e| io_error(e, "cannot wait for", &python))?;
    let Some(status) = status else {
        return Err(limit.error(command));
    };
    if !status.success() {
        let stderr = fs::read(&log).unwrap_or_default();
        let stderr = String::from_utf8_lossy(&stderr);
        let tail: Vec<&str> = stderr.lines().rev().filter(|line| !line.trim().is_empty()).take(4).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        return Err(Error::new(Code::Unavailable, format!("{command} failed ({status}): {}", tail.join(" / "))));
    }
    let files = fs::read_dir(work).map_err(|e| io_error(e, "cannot read the folder", work))?;
    files
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| Error::new(Code::NotFound, format!("pip downloaded no wheel for {requirement}")))
}

fn sha256_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 1 << 16];
    loop {
        let n = file.read(&mut chunk)?;
        if n == 0 {
            return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        hash.update(&chunk[..n]);
    }
}

fn unpack(wheel: &Path, member: &str, to: &Path) -> Result<()> {
    let bad =
        |e: zip::result::ZipError| Error::new(Code::DataLoss, format!("cannot unpack {member} from the wheel: {e}"));
    let file = File::open(wheel).map_err(|e| io_error(e, "cannot read", wheel))?;
    let mut archive = zip::ZipArchive::new(io::BufReader::new(file)).map_err(bad)?;
    let mut source = archive.by_name(member).map_err(bad)?;
    write_durably(&mut source, to).map_err(|e| io_error(e, "cannot write", to))
}

/// Writes a file that is complete on disk when this returns, because a rename makes it visible next.
fn write_durably(source: &mut impl io::Read, to: &Path) -> io::Result<()> {
    let mut target = File::create(to)?;
    io::copy(source, &mut target)?;
    target.flush()?;
    target.sync_all()
}

fn io_error(error: io::Error, what: &str, path: &Path) -> Error {
    let code = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Code::PermissionDenied,
        io::ErrorKind::StorageFull => Code::Unavailable,
        _ => Code::Unknown,
    };
    let help = match error.kind() {
        io::ErrorKind::StorageFull => ". Make room there, or name a folder on another disk in XDG_CACHE_HOME",
        _ => "",
    };
    Error::new(code, format!("{what} {}: {error}{help}", path.display()))
}
