//! Loading plugins: one instance per file, with checks before `dlopen`.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::api::Api;
use crate::error::{Error, Result};
use crate::named_value::Value;
use crate::plugin_search::{Environment, PluginSpec};
use crate::raw::*;
use crate::{elf, named_value, permissions, plugin_environment};

/// A loaded PJRT plugin. Cloning increments a reference count; the library is never unloaded.
#[derive(Clone)]
pub struct Plugin(Arc<Inner>);

struct Inner {
    path: PathBuf,
    api: Api,
}

impl Plugin {
    /// Loads the shared library at `path`. Loading a file again returns the same plugin.
    ///
    /// # Errors
    /// Returns an error if the file does not exist, is not a library for this machine, is truncated, is not a PJRT
    /// plugin, has another major version of the C API, or fails to initialize. Also returns an error if the file or its
    /// folder belongs to another user than this one and root, or others may write to it: loading a library runs its
    /// code.
    pub fn load(path: &Path) -> Result<Plugin> {
        Plugin::load_once(path)
            .map_err(|error| error.during(format_args!("cannot load the PJRT plugin {}", path.display())))
    }

    /// Loads a library, or returns the plugin if this process has loaded it before.
    fn load_once(path: &Path) -> Result<Plugin> {
        // The lock is held while a library is loaded, so that two threads do not load and initialize it twice.
        static LOADED: OnceLock<Mutex<HashMap<PathBuf, Plugin>>> = OnceLock::new();

        elf::check(path)?;
        let key = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        permissions::check_folder(key.parent().unwrap_or(&key))?;
        let mut loaded = LOADED.get_or_init(Default::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plugin) = loaded.get(&key) {
            return Ok(plugin.clone());
        }
        let plugin = Plugin(Arc::new(open(path)?));
        loaded.insert(key, plugin.clone());
        Ok(plugin)
    }

    /// The CPU plugin, found or installed into the user's cache folder (see [`PluginSpec::locate`]).
    ///
    /// # Errors
    /// Returns the errors of [`Plugin::find`].
    pub fn cpu() -> Result<Plugin> {
        Plugin::find("cpu")
    }

    /// The plugin for a platform: `cpu`, `cuda` (also `gpu`) or `tpu`.
    ///
    /// # Errors
    /// Returns an error if the platform is unknown, no plugin was found (the message lists the places searched and the
    /// command that installs it), or it cannot be loaded.
    pub fn find(platform: &str) -> Result<Plugin> {
        let spec = PluginSpec::for_platform(platform)?;
        let env = Environment::from_process();
        let path = spec.locate(&env)?;
        if spec.platforms == PluginSpec::TPU.platforms {
            plugin_environment::for_tpu(); // the file may have any name
        }
        Plugin::load(&path).map_err(|mut error| {
            error.message.push_str(&spec.advice_for_bad_file(&env, &path));
            error
        })
    }

    /// The path of the library.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Major and minor version of the plugin's C API.
    pub fn api_version(&self) -> (i32, i32) {
        self.0.api.version
    }

    /// Attributes of the plugin, such as `stablehlo_current_version`; empty if it has none.
    pub fn attributes(&self) -> Vec<(String, Value)> {
        let mut args = PluginAttributes::default();
        // SAFETY: no inputs; the attributes are never freed.
        unsafe {
            match self.api().call(&mut args) {
                Ok(()) => named_value::from_raw(args.attributes, args.num_attributes).unwrap_or_default(),
                Err(_) => Vec::new(),
            }
        }
    }

    #[inline]
    pub(crate) fn api(&self) -> &Api {
        &self.0.api
    }
}

impl PartialEq for Plugin {
    fn eq(&self, other: &Plugin) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Plugin {}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin").field("path", &self.0.path).field("api_version", &self.0.api.version).finish()
    }
}

fn open(path: &Path) -> Result<Inner> {
    plugin_environment::for_file(path);
    // SAFETY: the user chose to load this plugin, which runs its initializers. The library is never unloaded, so its
    // functions and data stay valid.
    let api = unsafe {
        let library = libloading::Library::new(path).map_err(|e| Error::failed_precondition(describe(&e)))?;
        let get_api = library
            .get::<unsafe extern "C" fn() -> *const RawApiHeader>(b"GetPjrtApi\0")
            .map(|symbol| *symbol)
            .map_err(|_| Error::failed_precondition("it has no function GetPjrtApi, so it is not a PJRT plugin"));
        std::mem::forget(library);
        let header = get_api?();
        if header.is_null() {
            return Err(Error::failed_precondition("its GetPjrtApi returned null"));
        }
        Api::read(header)?
    };
    // SAFETY: no inputs.
    unsafe { api.call(&mut PluginInitialize::default())? };
    Ok(Inner { path: path.to_owned(), api })
}

fn describe(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
