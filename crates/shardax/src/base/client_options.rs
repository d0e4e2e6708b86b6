//! Options of GPU clients: memory allocation and visible devices.

use std::sync::{Mutex, PoisonError};

use shardax_pjrt as pjrt;

use crate::error::{Error, Result, err};

/// The memory allocator on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Allocator {
    /// The plugin chooses.
    Default,
    /// Allocates every array with the driver: slow, but no memory is reserved.
    Platform,
    /// One large block that XLA subdivides (best fit with coalescing).
    Bfc,
    /// The driver's own pool (`cudaMallocAsync`).
    CudaAsync,
    /// Virtual memory, mapped piece by piece.
    Vmm,
}

impl Allocator {
    const NAMES: [(&str, Allocator); 5] = [
        ("default", Allocator::Default),
        ("platform", Allocator::Platform),
        ("bfc", Allocator::Bfc),
        ("cuda_async", Allocator::CudaAsync),
        ("vmm", Allocator::Vmm),
    ];

    fn named(name: &str) -> Option<Allocator> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, allocator)| *allocator)
    }

    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, known)| *known == self).map_or("default", |(name, _)| name)
    }
}

/// Options of a GPU client. Options that are not set are read from the environment variables that JAX uses. Otherwise
/// the plugin's defaults apply: it allocates three quarters of each GPU's memory at the start.
///
/// ```
/// # use shardax::config::{self, Allocator, ClientOptions};
/// let half = ClientOptions { memory_fraction: Some(0.5), allocator: Some(Allocator::Bfc), ..Default::default() };
/// config::set_client_options(half)?;
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientOptions {
    /// The fraction of a GPU's memory to use (`XLA_CLIENT_MEM_FRACTION`, formerly `XLA_PYTHON_CLIENT_MEM_FRACTION`).
    pub memory_fraction: Option<f32>,
    /// Allocates that memory at the start (`XLA_PYTHON_CLIENT_PREALLOCATE`).
    pub preallocate: Option<bool>,
    /// The allocator (`XLA_PYTHON_CLIENT_ALLOCATOR`: `default`, `platform`, `bfc`, `cuda_async` or `vmm`).
    pub allocator: Option<Allocator>,
    /// The GPUs to use, by their indices in this machine (`JAX_CUDA_VISIBLE_DEVICES`).
    pub visible_devices: Option<Vec<usize>>,
}

// The options are read once, when the client starts, so a lock is cheap enough.
static SET: Mutex<Option<ClientOptions>> = Mutex::new(None);

pub(crate) fn set(options: ClientOptions) -> Result<()> {
    check_fraction(options.memory_fraction, "memory_fraction")?;
    *SET.lock().unwrap_or_else(PoisonError::into_inner) = Some(options);
    Ok(())
}

/// The options for this platform's plugin.
pub(crate) fn of(platform: &str) -> Result<Vec<(&'static str, pjrt::Value)>> {
    if !matches!(platform, "cuda" | "gpu") {
        return Ok(Vec::new());
    }
    // Options that are set in code have priority over the environment.
    let set = SET.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
    Ok(set.or_from(&|name| std::env::var(name).ok().filter(|text| !text.is_empty()))?.values())
}

fn invalid(name: &str, text: &str, expected: &str) -> Error {
    err!(Value, "invalid value {text:?} for {name}: expected {expected}")
        .help("correct the environment variable, or unset it")
}

impl ClientOptions {
    /// Fills in missing options from the environment.
    fn or_from(self, variable: &dyn Fn(&str) -> Option<String>) -> Result<ClientOptions> {
        const FRACTIONS: [&str; 2] = ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"];
        // The variables are JAX's, and so are the values that they accept.
        let fraction = match FRACTIONS.map(variable) {
            [Some(_), Some(_)] => {
                return Err(err!(Value, "{} is specified together with {}", FRACTIONS[0], FRACTIONS[1])
                    .help("unset the latter, which is the old name of the former"));
            }
            [new, old] => new.or(old),
        };
        let fraction = match fraction {
            Some(text) => {
                Some(text.parse::<f32>().map_err(|_| invalid(FRACTIONS[0], &text, "a number, for example 0.75"))?)
            }
            None => None,
        };
        check_fraction(fraction, FRACTIONS[0])?;
        let allocator = "XLA_PYTHON_CLIENT_ALLOCATOR";
        let allocator = match variable(allocator) {
            Some(text) => Some(Allocator::named(&text.to_lowercase()).ok_or_else(|| {
                invalid(allocator, &text, "\"default\", \"platform\", \"bfc\", \"cuda_async\" or \"vmm\"")
            })?),
            None => None,
        };
        let preallocate =
            variable("XLA_PYTHON_CLIENT_PREALLOCATE").map(|text| !matches!(&*text, "false" | "False" | "0"));
        let visible = "JAX_CUDA_VISIBLE_DEVICES";
        let visible = match variable(visible).filter(|text| text != "all") {
            Some(text) => {
                let numbers = text.split(',').map(|n| n.trim().parse()).collect::<std::result::Result<Vec<usize>, _>>();
                Some(numbers.map_err(|_| invalid(visible, &text, "\"all\", or numbers separated by commas"))?)
            }
            None => None,
        };
        Ok(ClientOptions {
            memory_fraction: self.memory_fraction.or(fraction),
            preallocate: self.preallocate.or(preallocate),
            allocator: self.allocator.or(allocator),
            visible_devices: self.visible_devices.or(visible),
        })
    }

    /// Converts the values to the CUDA plugin's options.
    fn values(self) -> Vec<(&'static str, pjrt::Value)> {
        let mut values = vec![("platform_name", "cuda".into())];
        values.extend(self.allocator.map(|a| ("allocator", a.name().into())));
        values.extend(self.memory_fraction.map(|f| ("memory_fraction", f.into())));
        values.extend(self.preallocate.map(|p| ("preallocate", p.into())));
        if let Some(ids) = self.visible_devices {
            let ids: Vec<i64> = ids.into_iter().map(|id| id as i64).collect();
            values.push(("visible_devices", ids.into()));
        }
        values
    }
}

fn check_fraction(fraction: Option<f32>, name: &str) -> Result<()> {
    match fraction {
        Some(f) if !(f.is_finite() && f > 0.0) => Err(err!(Value, "{name} is {f}, but must be a positive number")
            .help("0.75 is three quarters of a GPU's memory")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(variables: &[(&str, &str)], set: ClientOptions) -> Result<Vec<(&'static str, pjrt::Value)>> {
        let options = set.or_from(&|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))?;
        Ok(options.values())
    }

    #[test]
    fn variables_are_read_as_jax_reads_them() {
        let variables = [
            ("XLA_PYTHON_CLIENT_ALLOCATOR", "BFC"),
            ("XLA_PYTHON_CLIENT_MEM_FRACTION", ".5"),
            ("XLA_PYTHON_CLIENT_PREALLOCATE", "False"),
            ("JAX_CUDA_VISIBLE_DEVICES", "0, 2"),
        ];
        let values = from(&variables, ClientOptions::default()).unwrap();
        let expected: Vec<(&str, pjrt::Value)> = vec![
            ("platform_name", "cuda".into()),
            ("allocator", "bfc".into()),
            ("memory_fraction", 0.5f32.into()),
            ("preallocate", false.into()),
            ("visible_devices", vec![0i64, 2].into()),
        ];
        assert_eq!(values, expected);
        assert_eq!(from(&[("JAX_CUDA_VISIBLE_DEVICES", "all")], ClientOptions::default()).unwrap().len(), 1);
        // Options set in the program take precedence.
        let set = ClientOptions { memory_fraction: Some(0.9), preallocate: Some(true), ..Default::default() };
        let values = from(&variables, set).unwrap();
        assert_eq!((&values[2].1, &values[3].1), (&0.9f32.into(), &true.into()));
    }

    #[test]
    fn wrong_variables_are_errors_that_name_them() {
        for (variables, words) in [
            (
                vec![("XLA_CLIENT_MEM_FRACTION", "0.5"), ("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")],
                "is specified together with",
            ),
            (vec![("XLA_CLIENT_MEM_FRACTION", "half")], "invalid value \"half\" for XLA_CLIENT_MEM_FRACTION"),
            (vec![("XLA_CLIENT_MEM_FRACTION", "-1")], "XLA_CLIENT_MEM_FRACTION is -1"),
            (vec![("XLA_CLIENT_MEM_FRACTION", "nan")], "must be a positive number"),
            (vec![("XLA_PYTHON_CLIENT_ALLOCATOR", "malloc")], "\"default\", \"platform\", \"bfc\""),
            (vec![("JAX_CUDA_VISIBLE_DEVICES", "first")], "invalid value \"first\" for JAX_CUDA_VISIBLE_DEVICES"),
        ] {
            let error = from(&variables, ClientOptions::default()).unwrap_err();
            assert!(error.message().contains(words), "{variables:?}: {error}");
        }
    }
}
