//! Pretrained models: a configurable [`Decoder`], encoders, text generation, LoRA adapters, and the files of Hugging Face's
//! `transformers` and `peft`.
//!
//! You can load a pretrained model with `from_pretrained` ([`Pretrained`]), or create a model with random weights, as in
//! this example. Models are modules, so you can use them with `jit`, `grad`, sharding rules and optimizers. If texts
//! start and end at different times, for example in a server, you should use a [`Batcher`] instead of `generate`.
//!
//! ```
//! use shardax_models::{Decoder, DecoderConfig, GenerateOptions};
//! use shardax_nn::prelude::*;
//!
//! let config = DecoderConfig { kv_heads: 2, ..DecoderConfig::new(256, 2, 32, 4) };
//! let model = Decoder::new(&config, &mut Rngs::new(0))?;
//! assert_eq!(model.forward(array([[1, 2, 3]])).shape(), [1, 3, 256]);
//! let written = model.generate(&[vec![1, 2, 3]], &GenerateOptions::new(4))?;
//! assert_eq!(written[0].len(), 4);
//! # Ok::<(), shardax::Error>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod adapter;
mod batcher;
mod decoder;
mod encoder_decoder;
mod error;
mod generate;
mod generation_config;
pub mod gguf;
pub mod huggingface;
mod pytorch;
mod quantized;
#[cfg(test)]
#[path = "../../shardax/tests/common/quick.rs"]
#[allow(dead_code)]
mod quick;
mod ranks;
mod sampling;
mod shardings;
#[cfg(feature = "text")]
pub mod text;

pub use adapter::Adapter;
pub use batcher::{Batcher, End, NextToken, TextBounds};
pub use decoder::{
    Activation, AttentionGate, BesideMlp, Biases, Block, ConvConfig, Decoder, DecoderConfig, DeltaConfig,
    ExpertsConfig, GatedDelta, GatedNorm, HeadSizes, Indexer, LatentAttention, LatentConfig, LatentGate,
    LayerEmbedding, LayerEmbeddingConfig, LayerInput, LayerParts, LightningAttention, LightningConfig, LowRank,
    LowRankAdapter, Mlp, Norm, NormKind, NormPlace, Positions, QkNorm, ResidualFactors, ResidualSums, Residuals, RgLru,
    RgLruConfig, SelectiveConfig, SelectiveState, SharedConfig, SharedLayer, SharedUse, ShortConv, SparseConfig,
    StateSpace, StateSpaceConfig, StateSpaceNorm, StateSpaceScales, Streams, StreamsConfig, Xielu,
};
pub use encoder_decoder::{
    BlipAnswerer, BlipMatcher, BlipMatcherConfig, EncodedInput, EncoderDecoder, EncoderDecoderConfig,
    EncoderDecoderPositions, Florence, FlorenceConfig, FramesEncoderConfig, ImageEncoderConfig, ImageTower,
    LocalEncoderConfig, SamplesEncoderConfig, Side, log_mel,
};
pub use generate::{GenerateOptions, Generation, TextModel};
pub use huggingface::{
    Bert, BertOptions, Bit, ChineseClip, Clap, Clip, ClipSeg, ConditionalDetr, Config, ConvNext, CrossEncoder, Deberta,
    DeformableDetr, DepthEstimator, Detr, Glpn, GroundingDino, Levit, LoadOptions, MobileBert, MobileNet, MobileVit,
    ModernBert, Owl, PoolFormer, Pretrained, Resnet, RtDetr, Sam, SamPrompts, Segformer, SentenceEncoder, Siglip,
    SoundEncoder, SpectrogramEncoder, Swin, Vit, VitPose, Yolos,
};
pub use quantized::Packed;
