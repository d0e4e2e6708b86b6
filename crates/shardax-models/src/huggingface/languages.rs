//! Adapters of languages (MMS), which are files next to the weights of a model.

use std::path::Path;

use shardax_nn::prelude::*;

use super::{Config, LoadOptions, Pretrained, SoundEncoder, Weights, from_weights};
use crate::error::value_error;

/// The files of a language's adapter, without the language.
const ADAPTERS: [(&str, &str); 2] = [("adapter.", ".safetensors"), ("adapter.", ".bin")];

/// Returns the weights of a folder with the adapter and the letters of a language, and their configuration.
fn weights_of_language(folder: &Path, language: &str, options: &LoadOptions) -> Result<(Weights, Config)> {
    if language.is_empty() || !language.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
        let message = format!("{language:?} is not the code of a language");
        return Err(value_error(
            message,
            "pass a code such as \"fra\", which is a part of the name of an adapter's file",
        ));
    }
    let paths = ADAPTERS.map(|(start, end)| folder.join(format!("{start}{language}{end}")));
    let Some(path) = paths.iter().find(|path| path.exists()) else {
        let message = format!("{} has no file adapter.{language}.safetensors", folder.display());
        return Err(value_error(message, "download the adapter of the language into the folder, or pass another code"));
    };
    let adapter = Weights::open(path)?;
    let Some(&[letters, _]) = adapter.shape("lm_head.weight") else {
        let message = format!("{} has no matrix \"lm_head.weight\"", path.display());
        return Err(value_error(message, "use the adapter of a model with a head for letters"));
    };
    let weights = Weights::open(folder)?.replaced_by(adapter, is_of_language)?;
    Ok((weights, options.config(folder)?.with_size("vocab_size", letters)))
}

/// Returns `true` for the names of arrays that each language has.
fn is_of_language(name: &str) -> bool {
    name.contains(".adapter_layer.") || name.starts_with("lm_head.")
}

impl SoundEncoder {
    /// Loads a model with the adapter of a language (MMS), `adapter.fra.safetensors` for the language `fra`. The adapter replaces the
    /// adapter and the letters of `model.safetensors`. Also returns the configuration with the number of these letters, which you need
    /// for `save_pretrained`.
    ///
    /// # Errors
    /// Returns an error if the folder has no adapter for the language, or if the adapter does not belong to the model.
    #[track_caller]
    pub fn from_pretrained_for(
        folder: impl AsRef<Path>,
        language: &str,
        options: &LoadOptions,
    ) -> Result<(SoundEncoder, Config)> {
        let location = std::panic::Location::caller();
        let load = || {
            let (weights, config) = weights_of_language(folder.as_ref(), language, options)?;
            let (architecture, keys) = SoundEncoder::read(&config)?;
            let model = from_weights::<SoundEncoder>(&weights, (architecture, &keys), options)?;
            Ok((model, config))
        };
        load().map_err(|error: Error| error.at(location))
    }
}
