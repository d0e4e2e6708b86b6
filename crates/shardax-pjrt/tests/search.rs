//! Finding and installing plugins, with fake home folders and a fake pip. Nothing here uses the network.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use shardax_pjrt::*;

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("shardax-search-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.0.join(relative)
    }

    /// Writes a file and creates its folders.
    fn file(&self, relative: &str, contents: &[u8]) -> PathBuf {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        path
    }

    /// Another process writes the script. If this process wrote it, a process that another test starts at that moment would
    /// have it open for writing too, and the system runs no file that is being written.
    fn script(&self, relative: &str, text: &str) {
        let source = self.file(&format!("{relative}.text"), text.as_bytes());
        let status = Command::new("install").args(["-m", "755"]).arg(source).arg(self.path(relative)).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const MEMBER: &str = "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so";
const SITE: &str = "lib/python3.11/site-packages/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so";

/// A minimal file that passes for a complete shared library of this machine: a header whose tables end with the file.
fn library() -> Vec<u8> {
    let mut file = vec![0; 4096];
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    file[16] = 3;
    file[18] = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let mut put = |at: usize, value: u64, len: usize| file[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
    put(32, 64, 8); // program table: at 64, one entry of 56
    put(54, 56, 2);
    put(56, 1, 2);
    put(40, 4096 - 64, 8); // section table: one entry of 64 at the end
    put(58, 64, 2);
    put(60, 1, 2);
    file
}

fn cached(home: &Folder) -> PathBuf {
    home.path(&format!(".cache/shardax/xla-cpu-pjrt-0.0.1-{}/xla_cpu_pjrt.so", std::env::consts::ARCH))
}

#[test]
fn the_order_of_the_search() {
    let home = Folder::new();
    let env = |vars: &[(&'static str, PathBuf)]| {
        let mut variables = vec![("HOME", home.0.clone()), ("SHARDAX_OFFLINE", PathBuf::from("1"))];
        variables.extend(vars.iter().cloned());
        Environment::from_vars(variables)
    };
    let find = |vars: &[(&'static str, PathBuf)]| PluginSpec::CPU.locate(&env(vars));

    let cache = cached(&home);
    fs::create_dir_all(cache.parent().unwrap()).unwrap();
    fs::write(&cache, "c").unwrap();
    assert_eq!(find(&[]).unwrap(), cache);

    let xdg = home.file(&format!("xdg/shardax/xla-cpu-pjrt-0.0.1-{}/xla_cpu_pjrt.so", std::env::consts::ARCH), b"x");
    assert_eq!(find(&[("XDG_CACHE_HOME", home.path("xdg"))]).unwrap(), xdg);

    // python3 on PATH: in a plain prefix, then in a virtual environment whose python3 is a link to it.
    let base = home.file(&format!("base/{SITE}"), b"b");
    home.script("base/bin/python3", "#!/bin/sh\nexit 1\n");
    let path = ("PATH", home.path("base/bin"));
    assert_eq!(find(std::slice::from_ref(&path)).unwrap(), base);
    fs::create_dir_all(home.path("linked/bin")).unwrap();
    std::os::unix::fs::symlink(home.path("base/bin/python3"), home.path("linked/bin/python3")).unwrap();
    let linked_path = ("PATH", home.path("linked/bin"));
    assert_eq!(find(std::slice::from_ref(&linked_path)).unwrap(), base);
    let linked = home.file(&format!("linked/{SITE}"), b"l");
    assert_eq!(find(&[linked_path]).unwrap(), linked);

    let conda = home.file(&format!("conda/{SITE}"), b"o");
    let conda_prefix = ("CONDA_PREFIX", home.path("conda"));
    assert_eq!(find(&[path.clone(), conda_prefix.clone()]).unwrap(), conda);

    let venv = home.file(&format!("venv/{SITE}"), b"v");
    let virtual_env = ("VIRTUAL_ENV", home.path("venv"));
    assert_eq!(find(&[path.clone(), conda_prefix.clone(), virtual_env.clone()]).unwrap(), venv);

    let named = home.file("named.so", b"n");
    let variable = ("SHARDAX_CPU_PLUGIN", named.clone());
    assert_eq!(find(&[path, conda_prefix, virtual_env.clone(), variable]).unwrap(), named);

    // A missing file is an error; the search does not continue.
    let error = find(&[virtual_env, ("SHARDAX_CPU_PLUGIN", home.path("nowhere.so"))]).unwrap_err();
    assert_eq!(error.code, Code::NotFound);
    assert!(error.message.contains("SHARDAX_CPU_PLUGIN is set to") && error.message.contains("nowhere.so"), "{error}");
}

#[test]
fn pyenv_is_searched_without_running_it() {
    let home = Folder::new();
    home.script("pyenv/shims/python3", "#!/bin/sh\ntouch \"$0.started\"\n");
    let older = home.file(&format!("pyenv/versions/3.10.1/{}", SITE.replace("3.11", "3.10")), b"o");
    let newer = home.file(&format!("pyenv/versions/3.11.7/{SITE}"), b"n");
    fn env(vars: &[(&'static str, &str)], home: &Folder) -> Environment {
        let mut variables = vec![("PATH", home.path("pyenv/shims").into_os_string()), ("HOME", home.0.clone().into())];
        variables.extend(vars.iter().map(|(k, v)| (*k, (*v).into())));
        Environment::from_vars(variables)
    }
    assert_eq!(PluginSpec::CPU.locate(&env(&[], &home)).unwrap(), newer);
    assert_eq!(PluginSpec::CPU.locate(&env(&[("PYENV_VERSION", "3.10.1")], &home)).unwrap(), older);
    home.file("pyenv/version", b"3.10.1\n");
    assert_eq!(PluginSpec::CPU.locate(&env(&[], &home)).unwrap(), older);
    let root = home.path("pyenv").into_os_string().into_string().unwrap();
    assert_eq!(PluginSpec::CPU.locate(&env(&[("PYENV_ROOT", &root)], &home)).unwrap(), older);
    assert!(!home.path("pyenv/shims/python3.started").exists());
}

#[test]
fn other_platforms_and_offline() {
    let home = Folder::new();
    let env = Environment::from_vars([("HOME", home.0.clone()), ("VIRTUAL_ENV", home.path("venv"))]);
    let error = PluginSpec::for_platform("cuda").unwrap().locate(&env).unwrap_err();
    assert!(error.message.contains("jax-cuda13-plugin"), "{error}");
    // If both versions are installed, the newer one is chosen.
    let older = home.file("venv/lib/python3.12/site-packages/jax_plugins/xla_cuda12/xla_cuda_plugin.so", b"12");
    assert_eq!(PluginSpec::CUDA.locate(&env).unwrap(), older);
    let newer = home.file("venv/lib/python3.12/site-packages/jax_plugins/xla_cuda13/xla_cuda_plugin.so", b"13");
    assert_eq!(PluginSpec::for_platform("GPU").unwrap().locate(&env).unwrap(), newer);
    assert!(PluginSpec::for_platform("abacus").unwrap_err().message.contains("cpu, cuda, tpu"));

    let offline = Environment::from_vars([
        ("HOME", home.0.clone()),
        ("VIRTUAL_ENV", home.path("venv")),
        ("SHARDAX_OFFLINE", "1".into()),
    ]);
    let error = PluginSpec::CPU.locate(&offline).unwrap_err();
    assert_eq!(error.code, Code::NotFound);
    for part in [
        "SHARDAX_OFFLINE prevents",
        "SHARDAX_CPU_PLUGIN",
        "venv/lib/python3.12/site-packages/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
        ".cache/shardax/",
        "python3 -m pip install xla-cpu-pjrt==0.0.1",
    ] {
        assert!(error.message.contains(part), "{part} is missing in {error}");
    }
    assert!(!home.path(".cache").exists(), "a search leaves nothing behind");
}

/// Leaks a text, because a specification needs `'static`.
fn forever(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// A wheel with `contents` as the library, a fake pip that "downloads" it, and a specification that expects it.
fn fake_wheel(home: &Folder, contents: &[u8]) -> PluginSpec {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    zip.start_file(MEMBER, options).unwrap();
    zip.write_all(contents).unwrap();
    let wheel = zip.finish().unwrap().into_inner();
    let path = home.file("index/xla_cpu_pjrt-0.0.1-py3-none-any.whl", &wheel);
    // Records each start, and is slow, so that others arrive meanwhile.
    home.script(
        "bin/python3",
        &format!(
            "#!/bin/sh\necho \"$@\" >> '{0}/started'\nPATH=/usr/bin:/bin\nsleep 0.2\nwhile [ $# -gt 1 ]; do\n\
             if [ \"$1\" = --dest ]; then cp '{1}' \"$2\"; exit 0; fi\nshift\ndone\nexit 1\n",
            home.0.display(),
            path.display()
        ),
    );
    let sha256: String = Sha256::digest(&wheel).iter().map(|b| format!("{b:02x}")).collect();
    PluginSpec {
        wheel: Some(Wheel {
            sha256: Box::leak(Box::new([(std::env::consts::ARCH, forever(sha256))])),
            ..PluginSpec::CPU.wheel.unwrap()
        }),
        ..PluginSpec::CPU
    }
}

fn install_env(home: &Path) -> Environment {
    Environment::from_vars([("HOME", home.to_owned()), ("PATH", home.join("bin"))])
}

fn starts(home: &Folder) -> usize {
    fs::read_to_string(home.path("started")).unwrap_or_default().lines().count()
}

#[test]
fn two_threads_install_once() {
    let home = Folder::new();
    let contents = library();
    let spec = fake_wheel(&home, &contents);
    // Leftovers of an installation that was killed.
    let leftover = cached(&home).parent().unwrap().join("tmp-1");
    fs::create_dir_all(&leftover).unwrap();
    fs::write(leftover.join("library"), "half").unwrap();

    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| spec.locate(&install_env(&home.0)).unwrap())).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), cached(&home));
        }
    });
    assert_eq!(fs::read(cached(&home)).unwrap(), contents);
    assert_eq!(starts(&home), 1);
    let command = fs::read_to_string(home.path("started")).unwrap();
    assert!(command.contains("-m pip download --no-deps") && command.trim_end().ends_with("xla-cpu-pjrt==0.0.1"));
    let files: Vec<_> =
        fs::read_dir(cached(&home).parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(files.iter().all(|name| name == "lock" || name == "xla_cpu_pjrt.so"), "{files:?}");
    // Once installed, Python is not started.
    spec.locate(&install_env(&home.0)).unwrap();
    assert_eq!(starts(&home), 1);
}

/// The code of the child processes that the next test starts.
#[test]
#[ignore = "part of two_processes_install_once"]
fn install_child() {
    let home = PathBuf::from(std::env::var_os("TEST_HOME").expect("started by the other test"));
    let sha256 = forever(std::env::var("TEST_SHA256").unwrap());
    let wheel =
        Wheel { sha256: Box::leak(Box::new([(std::env::consts::ARCH, sha256)])), ..PluginSpec::CPU.wheel.unwrap() };
    let spec = PluginSpec { wheel: Some(wheel), ..PluginSpec::CPU };
    assert!(spec.locate(&install_env(&home)).unwrap().is_file());
}

#[test]
fn two_processes_install_once() {
    let home = Folder::new();
    let spec = fake_wheel(&home, &library());
    let sha256 = spec.wheel.unwrap().sha256[0].1;
    let start = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "install_child", "--nocapture"])
            .env("TEST_HOME", &home.0)
            .env("TEST_SHA256", sha256)
            .stderr(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children = [start(), start(), start()];
    let mut announced = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        announced += stderr.matches("shardax: installing the plugin xla-cpu-pjrt 0.0.1 (63 MB) into").count();
    }
    assert_eq!((starts(&home), announced), (1, 1));
}

/// Processes that install are killed at random moments, in pairs. Their leftovers never pass for a plugin, and the next
/// process installs.
#[test]
fn an_installer_can_be_killed_at_any_moment() {
    let home = Folder::new();
    let contents = library();
    let sha256 = fake_wheel(&home, &contents).wheel.unwrap().sha256[0].1;
    let start = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "install_child", "--nocapture"])
            .env("TEST_HOME", &home.0)
            .env("TEST_SHA256", sha256)
            .stderr(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut random = std::process::id();
    let mut pause = || {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        std::thread::sleep(Duration::from_micros(u64::from(random >> 12) % 330_000));
    };
    let mut ended_well = 0;
    for round in 0..12 {
        let _ = fs::remove_file(cached(&home));
        let mut pair = [start(), start()];
        pause();
        pair[round % 2].kill().unwrap();
        if round % 3 == 0 {
            pause();
            pair[1 - round % 2].kill().unwrap();
        }
        for child in &mut pair {
            let start = Instant::now();
            let status = loop {
                match child.try_wait().unwrap() {
                    Some(status) => break status,
                    None if start.elapsed() > Duration::from_secs(60) => panic!("round {round}: it hangs"),
                    None => std::thread::sleep(Duration::from_millis(5)),
                }
            };
            ended_well += usize::from(status.success());
            assert_ne!(status.code(), Some(101), "round {round}: it failed");
        }
        // Complete or absent.
        assert!(fs::read(cached(&home)).is_ok_and(|bytes| bytes == contents) || !cached(&home).exists());
    }
    assert!(ended_well >= 4, "only {ended_well} were not killed");
    let _ = fs::remove_file(cached(&home));
    assert!(start().wait().unwrap().success());
    assert_eq!(fs::read(cached(&home)).unwrap(), contents);
    let files: Vec<_> =
        fs::read_dir(cached(&home).parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(files.iter().all(|name| name == "lock" || name == "xla_cpu_pjrt.so"), "{files:?}");
}

#[test]
fn a_pip_that_never_returns_times_out() {
    let home = Folder::new();
    let spec = fake_wheel(&home, &library());
    // The fake pip has started another process, as pyenv's does, which keeps the pipe open.
    home.script("bin/python3", "#!/bin/sh\nPATH=/usr/bin:/bin\nsleep 30 &\nwait\n");
    let mut env = install_env(&home.0);
    env.set("SHARDAX_INSTALL_SECONDS", "0.3");
    let start = Instant::now();
    let error = spec.locate(&env).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(error.code, Code::DeadlineExceeded);
    assert!(error.message.contains("pip download xla-cpu-pjrt==0.0.1` did not finish within 300ms"), "{error}");
    assert!(error.message.contains("SHARDAX_INSTALL_SECONDS"), "{error}");

    // Another process that holds the lock forever.
    let lock = fs::File::create(cached(&home).parent().unwrap().join("lock")).unwrap();
    lock.lock().unwrap();
    let error = spec.locate(&env).unwrap_err();
    assert!(error.message.contains("another process, which has locked"), "{error}");
    drop(lock);
    fake_wheel(&home, &library()).locate(&install_env(&home.0)).unwrap();
}

#[test]
fn files_that_others_can_write_are_not_loaded() {
    let home = Folder::new();
    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap()
    }
    fn rejected(path: &Path, phrase: &str) {
        let error = Plugin::load(path).unwrap_err();
        assert!(error.message.contains(phrase), "{phrase} is missing in {error}");
        let env = Environment::from_vars([("SHARDAX_CPU_PLUGIN", path.to_owned())]);
        assert_eq!(PluginSpec::CPU.locate(&env).unwrap(), path, "it is found, and rejected when it is loaded");
    }
    let plugin = home.file("own/plugin.so", &library());
    mode(&plugin, 0o646);
    rejected(&plugin, "others may write to it (mode 646), and its contents are run as code; `chmod go-w`");
    mode(&plugin, 0o644);
    mode(&home.path("own"), 0o777);
    rejected(&plugin, "others may write to it (mode 777)");
    mode(&home.path("own"), 0o755);
    // The permissions are correct now, but the file is not a plugin.
    assert_eq!(Plugin::load(&plugin).unwrap_err().code, Code::FailedPrecondition);

    // Opening a FIFO would wait for a writer.
    let fifo = home.path("own/fifo.so");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    rejected(&fifo, "it is not a file");

    let cache = cached(&home);
    fs::create_dir_all(cache.parent().unwrap()).unwrap();
    mode(cache.parent().unwrap(), 0o777);
    let error = fake_wheel(&home, &library()).locate(&install_env(&home.0)).unwrap_err();
    assert!(error.message.contains("others may write to it"), "{error}");
    assert_eq!(starts(&home), 0, "nothing is downloaded");

    match std::os::unix::fs::chown(&plugin, Some(12345), None) {
        Ok(()) => rejected(&plugin, "it belongs to user 12345, but this process runs as user 0"),
        Err(_) => eprintln!("only root can change the owner of files: skipped"),
    }
}

#[test]
fn failed_installs_say_why_and_leave_nothing() {
    let home = Folder::new();
    fn fails(spec: &PluginSpec, code: Code, phrase: &str, home: &Folder) {
        let error = spec.locate(&install_env(&home.0)).unwrap_err();
        assert_eq!(error.code, code, "{error}");
        assert!(error.message.contains(phrase), "{phrase} is missing in {error}");
        assert!(error.message.contains("python3 -m pip install xla-cpu-pjrt==0.0.1"), "{error}");
        assert!(!cached(home).exists());
        for entry in fs::read_dir(cached(home).parent().unwrap()).unwrap() {
            assert_eq!(entry.unwrap().file_name(), "lock");
        }
    }
    let good = fake_wheel(&home, &library());
    let wrong_wheel = PluginSpec { wheel: PluginSpec::CPU.wheel, ..good.clone() };
    fails(&wrong_wheel, Code::DataLoss, "is not the expected one", &home);
    fails(&fake_wheel(&home, b"no library"), Code::DataLoss, "no ELF header", &home);
    let library = library();
    fails(&fake_wheel(&home, &library[..library.len() / 2]), Code::DataLoss, "truncated", &home);
    // A full disk when the library is unpacked: the file is a link to a device that is always full.
    if Path::new("/dev/full").exists() {
        let full = fake_wheel(&home, &library);
        let script = fs::read_to_string(home.path("bin/python3")).unwrap();
        home.script("bin/python3", &script.replace("exit 0", "ln -s /dev/full \"$2/library\"; exit 0"));
        fails(&full, Code::Unavailable, "No space left on device", &home);
        fails(&full, Code::Unavailable, "Make room there, or name a folder on another disk in XDG_CACHE_HOME", &home);
    }
    home.script("bin/python3", "#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n");
    fails(&good, Code::Unavailable, "No module named pip", &home);
    fs::remove_file(home.path("bin/python3")).unwrap();
    fails(&good, Code::NotFound, "no python3 on PATH", &home);
    // Afterwards an installation succeeds.
    let good = fake_wheel(&home, &library);
    good.locate(&install_env(&home.0)).unwrap();
}

#[test]
fn files_that_are_not_plugins_are_errors() {
    let home = Folder::new();
    let library = library();
    let cases = [
        (home.path("missing.so"), "there is no such file"),
        (home.0.clone(), "not a file"),
        (home.file("empty.so", b""), "no ELF header"),
        (home.file("text.so", b"#!/bin/sh\n"), "no ELF header"),
        (home.file("cut.so", &library[..library.len() / 2]), "truncated"),
        (home.file("head.so", &library[..64]), "truncated"),
    ];
    for (path, phrase) in cases {
        let error = Plugin::load(&path).unwrap_err();
        assert!(error.message.contains("cannot load the PJRT plugin"), "{error}");
        assert!(error.message.contains(phrase), "{phrase} is missing in {error}");
        assert!(error.message.contains(&path.display().to_string()), "{error}");
    }
    let mut other_machine = library.clone();
    other_machine[18] = 8;
    assert!(Plugin::load(&home.file("mips.so", &other_machine)).unwrap_err().message.contains("another machine"));
    // Libraries that are not plugins, and one of another major version, if there is a compiler to build them.
    for (name, source, phrase) in [
        ("none", "int nothing;", "no function GetPjrtApi"),
        ("null", "void *GetPjrtApi(void) { return 0; }", "returned null"),
        (
            "major",
            "static struct { long size; void *ext; long vsize; void *vext; int major, minor; } api =\n\
             {40, 0, 24, 0, 7, 1}; void *GetPjrtApi(void) { return &api; }",
            "it has PJRT C API 7.1",
        ),
        (
            "short",
            "static struct { long size; void *ext; long vsize; void *vext; int major, minor; } api =\n\
             {40, 0, 24, 0, 0, 1}; void *GetPjrtApi(void) { return &api; }",
            "does not have PJRT_Plugin_Initialize",
        ),
    ] {
        let source = home.file(&format!("{name}.c"), source.as_bytes());
        let library = home.path(&format!("{name}.so"));
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
        if !built.is_ok_and(|status| status.success()) {
            eprintln!("no C compiler: skipped");
            return;
        }
        let error = Plugin::load(&library).unwrap_err();
        assert!(error.message.contains(phrase), "{phrase} is missing in {error}");
    }
}
