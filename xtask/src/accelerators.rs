//! Installs the TPU and GPU compilers for tests: pinned Python packages, verified by pip, in the user's cache.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages: name, version, SHA-256, and a file of each. libtpu is under Google's licence, `ptxas` under NVIDIA's,
/// so they are installed only on request.
const PACKAGES: [(&str, &str, &str, &str); 3] = [
    ("libtpu", "0.0.52", "f5e2e596eaea9357fbb5a6755a7a9007c6ab75bfde4a55191b03eff402971140", "libtpu/libtpu.so"),
    (
        "jax-cuda12-pjrt",
        "0.10.2",
        "806d1fd29038b6acf5a2b289dd62192abea977ee26aef60ea295b1d28a23acf8",
        "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
    ),
    (
        "nvidia-cuda-nvcc-cu12",
        "12.9.86",
        "5d6a0d32fdc7ea39917c20065614ae93add6f577d840233237ff08e9a38f58f0",
        "nvidia/cuda_nvcc/bin/ptxas",
    ),
];

/// libtpu's file is independent of the Python version, although its package specifies one.
const PYTHON: &str = "3.11";
const PLATFORMS: [&str; 3] = ["manylinux_2_31_x86_64", "manylinux_2_27_x86_64", "manylinux2010_x86_64"];

/// The folder in which the tests look for them.
fn folder() -> Result<PathBuf, String> {
    let cache = absolute_path("XDG_CACHE_HOME").or_else(|| Some(absolute_path("HOME")?.join(".cache")));
    cache.map(|cache| cache.join("shardax/accelerators")).ok_or_else(|| "neither XDG_CACHE_HOME nor HOME is set".into())
}

fn absolute_path(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Returns the path of a plugin in the folder; an error if it is not installed.
fn plugin(folder: &Path, file: &str) -> Result<PathBuf, String> {
    let path = folder.join(file);
    if path.is_file() {
        Ok(path)
    } else {
        Err(format!("{} does not exist: run `cargo xtask accelerators`", path.display()))
    }
}

/// Returns `true` if the folder contains the plugins of all packages.
fn is_complete(folder: &Path) -> bool {
    PACKAGES.iter().all(|(_, _, _, file)| folder.join(file).is_file())
}

/// The environment variables with the paths of the plugins; an error if they are not installed.
pub fn variables() -> Result<[(&'static str, PathBuf); 2], String> {
    let folder = folder()?;
    let [tpu, cuda] = [plugin(&folder, PACKAGES[0].3)?, plugin(&folder, PACKAGES[1].3)?];
    Ok([("SHARDAX_TPU_PLUGIN", tpu), ("SHARDAX_CUDA_PLUGIN", cuda)])
}

/// Installs the packages if they are missing, and prints the folder.
pub fn run() -> Result<(), String> {
    let folder = folder()?;
    let note = folder.join("versions");
    let versions: String =
        PACKAGES.iter().map(|(name, version, sha, _)| format!("{name}=={version} --hash=sha256:{sha}\n")).collect();
    if is_complete(&folder) && std::fs::read_to_string(&note).is_ok_and(|text| text == versions) {
        println!("the compilers are in {}", folder.display());
        return Ok(());
    }
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|e| crate::file_error(&folder, &e))?;
    }
    std::fs::create_dir_all(&folder).map_err(|e| crate::file_error(&folder, &e))?;
    let requirements = folder.join("requirements.txt");
    std::fs::write(&requirements, &versions).map_err(|e| crate::file_error(&folder, &e))?;
    println!("downloading 350 MB into {}", folder.display());
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]);
    // Fails early without a network.
    pip.args(["--retries", "2", "--timeout", "20"]);
    pip.args(["--disable-pip-version-check", "--implementation", "cp", "--python-version", PYTHON]);
    for platform in PLATFORMS {
        pip.args(["--platform", platform]);
    }
    let status = pip.arg("--target").arg(&folder).arg("--requirement").arg(&requirements).status();
    let status = status.map_err(|e| format!("cannot start python3, whose pip installs the compilers: {e}"))?;
    if !status.success() || !is_complete(&folder) {
        return Err(format!("pip did not install all compilers into {}", folder.display()));
    }
    std::fs::write(&note, &versions).map_err(|e| crate::file_error(&folder, &e))?;
    for (name, version, _, file) in PACKAGES {
        println!("{name} {version}: {}", folder.join(file).display());
    }
    println!("now `cargo test -p shardax-system-tests --test accelerators` compiles for TPUs and GPUs");
    Ok(())
}
