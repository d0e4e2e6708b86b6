//! Installing a plugin: pip downloads a pinned wheel, the library is checked and moved into the cache in one step.
//!
//! It may be killed at any moment, and several processes may do it at once. None of it takes longer than
//! `SHARDAX_INSTALL_SECONDS` (600).

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

/// Puts the wheel's library at `library` inside `folder`. Several processes may do so at once; one of them works.
pub(crate) fn install(wheel: &Wheel, env: &Environment, folder: &Path, library: &Path) -> Result<()> {
    let arch = std::env::consts::ARCH;
    let sha256 = wheel.sha256.iter().find(|(name, _)| *name == arch).map(|(_, sha256)| *sha256).ok_or_else(|| {
        Error::new(Code::Unimplemented, format!("{} {} has no wheel for {arch}", wheel.package, wheel.version))
    })?;
    let limit = Limit::of(env)?;
    permissions::make_folder(folder)?;

    // The lock goes with the process that holds it, so one that was killed blocks nobody.
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

/// Between looks at what other processes do.
const POLL: Duration = Duration::from_millis(20);

/// When an installation is given up.
struct Limit {
    time: Duration,
    end: Instant,
}

impl Limit {
    fn of(env: &Environment) -> Result<Limit> {
        let given = env.var(INSTALL_SECONDS.name()).map(OsString::as_os_str);
        let time = INSTALL_SECONDS.of(given)?.unwrap_or(Duration::from_secs(600));
        // Further off than a clock can say is as good as a year.
        let now = Instant::now();
        Ok(Limit { time, end: now.checked_add(time).unwrap_or(now + Duration::from_secs(365 * 24 * 3600)) })
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    fn error(&self, who: String) -> Error {
        let message = format!(
            "{who} was not done after {:?} (SHARDAX_INSTALL_SECONDS sets another limit, in seconds)",
            self.time
        );
        Error::new(Code::DeadlineExceeded, message)
    }
}

/// How it ended; `None` when it had to be killed.
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

/// Has the process be killed when this one is, lest it go on writing where another installs.
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

/// What an interrupted install left; nobody else can be at work, since the caller holds the lock.
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
                "the downloaded wheel is not the one expected (sha256 {actual}, expected {sha256}); it was thrown away"
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
        Error::new(Code::NotFound, "there is no python3 on PATH, and its pip is what downloads the plugin")
    })?;
    let requirement = format!("{}=={}", wheel.package, wheel.version);
    let command = format!("`{} -m pip download {requirement}`", python.display());
    // Into a file: a pipe would stay open for as long as any process that pip started.
    let said = work.join("stderr");
    let stderr = File::create(&said).map_err(|e| io_error(e, "cannot write", &said))?;
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
        let stderr = fs::read(&said).unwrap_or_default();
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
    let write = |e| io_error(e, "cannot write", to);
    let mut target = File::create(to).map_err(write)?;
    io::copy(&mut source, &mut target).map_err(write)?;
    target.flush().map_err(write)?;
    // The rename must not become durable before the contents are.
    target.sync_all().map_err(write)
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
