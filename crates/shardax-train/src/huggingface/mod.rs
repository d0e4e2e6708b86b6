//! Models of Hugging Face's `transformers`, with the weights that it saves: a folder with `config.json` and
//! `model.safetensors`, or several such files with an index.
//!
//! [`Gpt2`], [`Llama`], [`Vit`] and [`Bert`] are written on the layers of `shardax_nn`, so that they are trained,
//! split over devices and saved as any model. [`Weights`] reads the files, and a [`KeyMap`] says which array of a
//! model is which of a file: with both, weights of other models are loaded too ([`load`]).
//!
//! ```no_run
//! use shardax_nn::prelude::*;
//! use shardax_train::huggingface::{Gpt2, LoadOptions, Pretrained};
//!
//! let model = Gpt2::from_pretrained("gpt2")?;
//! let logits = jit(|model: Gpt2, tokens: Array| model.forward(tokens)).call((&model, array([[464, 3290]])))?;
//!
//! // Split over devices as it is read, and computing in bfloat16.
//! let mesh = make_mesh([("model", 4)])?;
//! let rules = Rules::new(&mesh, [("heads", "model"), ("mlp", "model"), ("vocab", "model")]);
//! let model = Gpt2::from_pretrained_with("gpt2", &LoadOptions::new().policy(Policy::bf16_compute()).rules(&rules))?;
//! # let _ = (model, logits);
//! # Ok::<(), shardax::Error>(())
//! ```

mod bert;
mod gpt2;
mod keys;
mod llama;
mod vit;
mod weights;

use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use shardax::error::{Error, ErrorKind};
use shardax_nn::prelude::*;

pub use bert::{Bert, BertConfig, BertOptions};
pub use gpt2::{Gpt2, Gpt2Config};
pub use keys::{KeyMap, Layout, load};
pub use llama::{Llama, LlamaConfig, LlamaRope};
pub use vit::{Vit, VitConfig};
pub use weights::Weights;

/// How the weights of a model are loaded.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    policy: Policy,
    rules: Rules,
}

impl LoadOptions {
    /// Float32, on the default device.
    pub fn new() -> Self {
        LoadOptions::default()
    }

    /// The dtypes of the parameters, to which the file's are converted, and of computing.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// How the arrays lie. The models name their dimensions `vocab`, `embed`, `heads`, `mlp`.
    pub fn rules(mut self, rules: &Rules) -> Self {
        self.rules = rules.clone();
        self
    }
}

/// A model of `transformers`, which can be made of the files that are saved there.
pub trait Pretrained: Module {
    /// What `config.json` says of it.
    type Config: DeserializeOwned + Send + Sync + 'static;

    /// A model with random weights.
    ///
    /// Fails when sizes of the configuration do not divide each other, and for functions that are not known.
    fn new(config: &Self::Config, rngs: &mut Rngs) -> Result<Self>;

    /// Which array is which of a file.
    fn keys() -> KeyMap;

    /// The model in a folder that `save_pretrained` wrote.
    ///
    /// Fails when a file is missing or damaged, and when it is of another kind of model.
    #[track_caller]
    fn from_pretrained(folder: impl AsRef<Path>) -> Result<Self> {
        Self::from_pretrained_with(folder, &LoadOptions::new())
    }

    /// The same, with dtypes and shardings.
    #[track_caller]
    fn from_pretrained_with(folder: impl AsRef<Path>, options: &LoadOptions) -> Result<Self> {
        let location = std::panic::Location::caller();
        pretrained(folder.as_ref(), options).map_err(|error| error.at(location))
    }
}

/// A model with the weights in this folder in the place of first ones, which are never computed.
fn pretrained<M: Pretrained>(folder: &Path, options: &LoadOptions) -> Result<M> {
    let config: M::Config = config(folder)?;
    let config = Arc::new(config);
    let policy = options.policy;
    let like = eval_shape(move || M::new(&config, &mut Rngs::new(0).with_policy(policy)), ())?;
    load(&Weights::open(folder)?, &like, &M::keys(), &options.rules)
}

/// Room for the keys and values of texts of this length.
fn init_cache(attention: &mut MultiHeadAttention, batch: usize, length: usize) {
    let kernel = &attention.key.kernel;
    let (features, dtype) = (kernel.shape().first().copied().unwrap_or(0), kernel.dtype());
    attention.init_cache([batch, length, features], dtype);
}

/// What `config.json` in this folder says.
fn config<T: DeserializeOwned>(folder: &Path) -> Result<T> {
    let path = folder.join("config.json");
    let text = fs::read_to_string(&path).map_err(|error| {
        Error::new(ErrorKind::Value, format!("cannot read {}: {error}", path.display()))
            .help("give the folder that `save_pretrained` wrote")
    })?;
    serde_json::from_str(&text).map_err(|error| unsupported(&path.display(), error))
}

/// The error of a model that is of another kind.
fn unsupported(what: &dyn Display, why: impl Display) -> Error {
    Error::new(ErrorKind::Value, format!("{what} is not the configuration of a model that is known: {why}"))
        .help("give a folder of the kind of the model that is asked for")
}

/// Fails unless `divisor` divides `all`; both are numbers of a configuration.
fn divides((divisor, by): (&str, usize), (all, of): (&str, usize)) -> Result<()> {
    match by > 0 && of.is_multiple_of(by) {
        true => Ok(()),
        false => Err(unsupported(&"config.json", format!("{divisor} ({by}) does not divide {all} ({of})"))),
    }
}

/// The nonlinear function between the layers of an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Activation {
    Gelu,
    GeluTanh,
    Silu,
    Relu,
}

impl Activation {
    /// That of this name in a configuration.
    fn named(name: &str) -> Result<Activation> {
        Ok(match name {
            "gelu" => Activation::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
            "silu" | "swish" => Activation::Silu,
            "relu" => Activation::Relu,
            _ => return Err(unsupported(&"config.json", format!("the activation {name:?} is not known"))),
        })
    }

    fn of(self, x: Array) -> Array {
        match self {
            Activation::Gelu => gelu_exact(x),
            Activation::GeluTanh => gelu(x),
            Activation::Silu => silu(x),
            Activation::Relu => relu(x),
        }
    }
}

/// The two layers of an MLP with a function between them.
#[derive(Module, Clone, Debug)]
struct Mlp {
    up: Linear,
    down: Linear,
    #[tree(static)]
    activation: Activation,
}

impl Mlp {
    fn new(features: usize, hidden: usize, activation: Activation, rngs: &mut Rngs) -> Mlp {
        Mlp {
            up: Linear::builder(features, hidden).kernel_axes(["embed", "mlp"]).build(rngs),
            down: Linear::builder(hidden, features).kernel_axes(["mlp", "embed"]).build(rngs),
            activation,
        }
    }

    fn forward(&self, x: impl ArrayLike) -> Array {
        self.down.forward(self.activation.of(self.up.forward(x)))
    }
}

/// Attention whose dimensions have names.
fn attention(heads: usize, features: usize) -> MultiHeadAttentionBuilder {
    let builder = MultiHeadAttention::builder(heads, features);
    builder.kernel_axes([Some("embed"), Some("heads"), None]).out_kernel_axes([Some("heads"), None, Some("embed")])
}
