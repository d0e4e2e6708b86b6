//! XLA options by name: those of all programs of the process, and those of one function.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

pub use shardax_pjrt::Value as CompilerOption;

use crate::error::{Result, err};

/// The prefixes of XLA's option names, and the platforms that know them; other names are for all platforms.
const OF_PLATFORMS: [(&str, &[&str]); 3] =
    [("xla_cpu_", &["cpu"]), ("xla_gpu_", &["cuda", "rocm", "gpu"]), ("xla_tpu_", &["tpu"])];

static OF_PROCESS: Mutex<BTreeMap<String, CompilerOption>> = Mutex::new(BTreeMap::new());

/// Options by name; later values replace earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct CompilerOptions(BTreeMap<String, CompilerOption>);

impl CompilerOptions {
    pub fn of_process() -> CompilerOptions {
        CompilerOptions(OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Adds options, which take precedence.
    pub fn and(mut self, others: &CompilerOptions) -> CompilerOptions {
        self.0.extend(others.0.iter().map(|(name, value)| (name.clone(), value.clone())));
        self
    }

    /// The options that a platform knows: a function may set options for several.
    pub fn on<'a>(&'a self, platform: &'a str) -> impl Iterator<Item = (&'a str, &'a CompilerOption)> {
        let known = move |name: &str| {
            let of = OF_PLATFORMS.iter().find(|(prefix, _)| name.starts_with(prefix));
            of.is_none_or(|(_, platforms)| platforms.contains(&platform))
        };
        self.0.iter().map(|(name, value)| (name.as_str(), value)).filter(move |(name, _)| known(name))
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
    OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner).extend(options.0);
}

/// Parses an option value: a boolean, a number, or else a string.
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
