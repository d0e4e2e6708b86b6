//! The search for plugins. Everything specific to one plugin is in its [`PluginSpec`].

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::{Code, Error, Result};
use crate::install;

/// Describes a plugin: its names, where to find it, and how to install it.
#[derive(Clone, Debug)]
pub struct PluginSpec {
    /// Platform names that select it, the plugin's name first.
    pub platforms: &'static [&'static str],
    /// Environment variable with the path of the library.
    pub variable: &'static str,
    /// Another variable, which the plugin itself defines. It is used only if its file exists.
    pub other_variable: Option<&'static str>,
    /// Paths of the library inside `site-packages`, in order of preference.
    pub site_packages: &'static [&'static str],
    /// The command that installs it.
    pub command: &'static str,
    /// A smaller installation that is enough to compile for hardware you do not have.
    pub command_to_compile: Option<&'static str>,
    /// The Python wheel that contains the library, for plugins that are installed automatically.
    pub wheel: Option<Wheel>,
}

/// A pinned Python wheel that contains a plugin.
#[derive(Clone, Debug)]
pub struct Wheel {
    /// The name in the package index.
    pub package: &'static str,
    /// The version to install.
    pub version: &'static str,
    /// Compressed size in megabytes, for the progress message.
    pub megabytes: u32,
    /// SHA-256 of the wheel for each `std::env::consts::ARCH`, in lower-case hex.
    pub sha256: &'static [(&'static str, &'static str)],
    /// The path of the library inside the wheel.
    pub member: &'static str,
}

impl PluginSpec {
    /// OpenXLA's CPU plugin.
    pub const CPU: PluginSpec = PluginSpec {
        platforms: &["cpu", "host"],
        variable: "SHARDAX_CPU_PLUGIN",
        other_variable: None,
        site_packages: &["xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so"],
        command: "python3 -m pip install xla-cpu-pjrt==0.0.1",
        command_to_compile: None,
        wheel: Some(Wheel {
            package: "xla-cpu-pjrt",
            version: "0.0.1",
            megabytes: 63,
            sha256: &[
                ("x86_64", "55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc"),
                ("aarch64", "8f613be6e891858f40d64f9799319502fff42689661944fc18a6ffd8210b30c9"),
            ],
            member: "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
        }),
    };

    /// JAX's CUDA plugin.
    pub const CUDA: PluginSpec = PluginSpec {
        platforms: &["cuda", "gpu"],
        variable: "SHARDAX_CUDA_PLUGIN",
        other_variable: None,
        site_packages: &["jax_plugins/xla_cuda13/xla_cuda_plugin.so", "jax_plugins/xla_cuda12/xla_cuda_plugin.so"],
        command: "python3 -m pip install 'jax-cuda13-plugin[with-cuda]'",
        command_to_compile: Some("python3 -m pip install jax-cuda12-pjrt nvidia-cuda-nvcc-cu12"),
        wheel: None,
    };

    /// Google's TPU plugin.
    pub const TPU: PluginSpec = PluginSpec {
        platforms: &["tpu"],
        variable: "SHARDAX_TPU_PLUGIN",
        other_variable: Some("TPU_LIBRARY_PATH"),
        site_packages: &["libtpu/libtpu.so"],
        command: "python3 -m pip install libtpu",
        command_to_compile: None,
        wheel: None,
    };

    /// All known plugins.
    pub const ALL: &'static [PluginSpec] = &[PluginSpec::CPU, PluginSpec::CUDA, PluginSpec::TPU];

    /// The plugin for a platform name.
    ///
    /// # Errors
    /// Returns an error if the platform is unknown.
    pub fn for_platform(platform: &str) -> Result<&'static PluginSpec> {
        PluginSpec::ALL
            .iter()
            .find(|spec| spec.platforms.iter().any(|name| name.eq_ignore_ascii_case(platform)))
            .ok_or_else(|| {
                let platforms: Vec<_> = PluginSpec::ALL.iter().map(|spec| spec.platforms[0]).collect();
                Error::invalid_argument(format!(
                    "no PJRT plugin is known for platform {platform:?}; known are {}. Any plugin file can be loaded \
                     with Plugin::load(path)",
                    platforms.join(", ")
                ))
            })
    }

    /// Finds the library in this order: the environment variables; `site-packages` of the active Python environment,
    /// found without starting Python; the user's cache folder. If it is not found and has a wheel, installs it into the
    /// cache folder with pip, unless `SHARDAX_OFFLINE` is set to a value other than `0`.
    ///
    /// # Errors
    /// Returns an error if the variable names a missing file, or nothing was found and nothing could be installed. The
    /// message lists the places searched and the command that installs the plugin.
    pub fn locate(&self, env: &Environment) -> Result<PathBuf> {
        if let Some(path) = env.path(self.variable) {
            if path.exists() {
                return Ok(path); // loading it reports what is wrong with the file
            }
            return Err(Error::new(
                Code::NotFound,
                format!(
                    "{} is set to {}, and there is no such file. Correct it, or unset it to search for the plugin",
                    self.variable,
                    path.display()
                ),
            ));
        }

        let mut searched = vec![format!("{} (environment variable): not set", self.variable)];
        if let Some(name) = self.other_variable {
            match env.path(name) {
                Some(path) if path.is_file() => return Ok(path),
                Some(path) => searched.push(format!("{name} (environment variable): {}, no such file", path.display())),
                None => searched.push(format!("{name} (environment variable): not set")),
            }
        }
        let sites = env.site_packages();
        for site in &sites {
            for relative in self.site_packages {
                let path = site.join(relative);
                if path.is_file() {
                    return Ok(path);
                }
                searched.push(path.display().to_string());
            }
        }
        if sites.is_empty() {
            searched.push(
                "site-packages: no active Python environment (VIRTUAL_ENV, CONDA_PREFIX, python3 on PATH)".into(),
            );
        }
        let Some(wheel) = &self.wheel else {
            return Err(self.not_found(&searched, "it is not installed automatically"));
        };
        let Some(folder) = env.cache_folder() else {
            searched.push("cache folder: neither XDG_CACHE_HOME nor HOME is set".into());
            return Err(self.not_found(&searched, "there is no folder to install it into"));
        };
        let folder = folder.join(format!("{}-{}-{}", wheel.package, wheel.version, std::env::consts::ARCH));
        let library = folder.join(Path::new(wheel.member).file_name().unwrap_or_default());
        if library.is_file() {
            return Ok(library);
        }
        searched.push(library.display().to_string());
        if env.var("SHARDAX_OFFLINE").is_some_and(|v| !v.is_empty() && v != "0") {
            return Err(self.not_found(&searched, "SHARDAX_OFFLINE prevents installing it"));
        }
        install::install(wheel, env, &folder, &library).map_err(|error| Error {
            code: error.code,
            ..self.not_found(&searched, &format!("installing it failed: {}", error.message))
        })?;
        Ok(library)
    }

    fn not_found(&self, searched: &[String], why: &str) -> Error {
        let less = self.command_to_compile.map(|command| {
            format!("\nor, only to compile for hardware you do not have, as topologies do:\n  {command}")
        });
        Error::new(
            Code::NotFound,
            format!(
                "no {} PJRT plugin, and {why}.\nSearched:\n  {}\nTo install it, run:\n  {}{}\nor set {} to the library's path.",
                self.platforms[0],
                searched.join("\n  "),
                self.command,
                less.unwrap_or_default(),
                self.variable
            ),
        )
    }

    /// Advice for a library that cannot be loaded. You should delete only files in the cache of this crate.
    pub(crate) fn advice_for_bad_file(&self, env: &Environment, path: &Path) -> String {
        let (command, platform) = (self.command, self.platforms[0]);
        let mut variables = [Some(self.variable), self.other_variable].into_iter().flatten();
        if let Some(variable) = variables.find(|name| env.path(name).as_deref() == Some(path)) {
            return format!(
                ". {variable} names that file, {}: set it to the path of a {platform} plugin, or unset it to search \
                 for one (`{command}` installs one)",
                path.display()
            );
        }
        let installed = env.cache_folder().is_some_and(|folder| path.starts_with(folder));
        format!(
            ". {} `{command}`, or set {} to the path of another {platform} plugin (this one: {})",
            if installed { "Delete that file and run" } else { "Run" },
            self.variable,
            path.display()
        )
    }
}

/// The environment variables that a search reads, as a value that tests can replace.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: HashMap<String, OsString>,
}

impl Environment {
    /// The variables of this process.
    pub fn from_process() -> Environment {
        let variables = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v))).collect();
        Environment { variables }
    }

    /// An environment of exactly these variables.
    pub fn from_vars<V: Into<OsString>>(vars: impl IntoIterator<Item = (&'static str, V)>) -> Environment {
        Environment { variables: vars.into_iter().map(|(k, v)| (k.to_owned(), v.into())).collect() }
    }

    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.variables.insert(name.to_owned(), value.into());
    }

    pub(crate) fn var(&self, name: &str) -> Option<&OsString> {
        self.variables.get(name)
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.var(name).filter(|v| !v.is_empty()).map(PathBuf::from)
    }

    /// The folder for shardax in the user's cache: `$XDG_CACHE_HOME/shardax` or `~/.cache/shardax`.
    pub fn cache_folder(&self) -> Option<PathBuf> {
        // The XDG specification requires ignoring relative paths.
        let base = self.path("XDG_CACHE_HOME").filter(|p| p.is_absolute());
        let base = base.or_else(|| self.path("HOME").map(|home| home.join(".cache")))?;
        Some(base.join("shardax"))
    }

    /// The executables named `name` on PATH, in order; a shell would run the first.
    pub(crate) fn on_path<'a>(&'a self, name: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
        let path = self.var("PATH").cloned().unwrap_or_default();
        let folders: Vec<PathBuf> = std::env::split_paths(&path).filter(|p| p.is_absolute()).collect();
        folders.into_iter().map(move |folder| folder.join(name)).filter(|file| file.is_file())
    }

    /// The `site-packages` folders of the active Python in order of preference, found without starting it.
    pub fn site_packages(&self) -> Vec<PathBuf> {
        let mut prefixes: Vec<PathBuf> =
            ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| self.path(name)).collect();
        if let Some(python) = self.on_path("python3").next() {
            match pyenv_root(&python) {
                Some(root) => prefixes.extend(self.pyenv_prefixes(&root)),
                None => {
                    // The python3 of a virtual environment is a link to the base one, so its own prefix comes first.
                    prefixes.extend(prefix_of(&python));
                    prefixes.extend(python.canonicalize().ok().as_deref().and_then(prefix_of));
                }
            }
        }
        let mut folders = Vec::new();
        for prefix in &prefixes {
            for lib in ["lib", "lib64", "local/lib"] {
                let lib = prefix.join(lib);
                for version in python_folders(&lib) {
                    add_folder(&mut folders, version.join("site-packages"));
                    add_folder(&mut folders, version.join("dist-packages"));
                }
            }
        }
        // The folder of `pip install --user`, which pip uses if the system's folder is not writable.
        if let Some(home) = self.path("HOME") {
            for version in python_folders(&home.join(".local/lib")) {
                add_folder(&mut folders, version.join("site-packages"));
            }
        }
        folders
    }

    /// pyenv's `python3` is a script; the interpreters are under `versions`, with the selected one first.
    fn pyenv_prefixes(&self, root: &Path) -> Vec<PathBuf> {
        let root = self.path("PYENV_ROOT").unwrap_or_else(|| root.to_owned());
        let versions = root.join("versions");
        let chosen = match self.var("PYENV_VERSION") {
            Some(names) => names.to_string_lossy().into_owned(),
            None => std::fs::read_to_string(root.join("version")).unwrap_or_default(),
        };
        let mut prefixes: Vec<PathBuf> =
            chosen.split([':', '\n']).map(str::trim).filter(|n| !n.is_empty()).map(|n| versions.join(n)).collect();
        for folder in sorted_folders(&versions) {
            if !prefixes.contains(&folder) {
                prefixes.push(folder);
            }
        }
        prefixes
    }
}

fn pyenv_root(python: &Path) -> Option<PathBuf> {
    let folder = python.parent()?;
    let root = folder.parent()?;
    (folder.file_name()? == "shims" && root.join("versions").is_dir()).then(|| root.to_owned())
}

fn prefix_of(python: &Path) -> Option<PathBuf> {
    Some(python.parent()?.parent()?.to_owned())
}

fn python_folders(lib: &Path) -> impl Iterator<Item = PathBuf> {
    sorted_folders(lib)
        .into_iter()
        .filter(|folder| folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")))
}

/// Adds a folder that exists and is not in the list yet.
fn add_folder(folders: &mut Vec<PathBuf>, folder: PathBuf) {
    if folder.is_dir() && !folders.contains(&folder) {
        folders.push(folder);
    }
}

/// Sub-folders in descending order of their names, so that the newest version is first.
fn sorted_folders(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders.reverse();
    folders
}
