//! Tokenizers and chat templates.
//!
//! ```no_run
//! use shardax_models::text::Tokenizer;
//! use shardax_models::{Decoder, GenerateOptions, Pretrained};
//!
//! let folder = "Qwen3-0.6B";
//! let (model, tokenizer) = (Decoder::from_pretrained(folder)?, Tokenizer::from_pretrained(folder)?);
//! let options = GenerateOptions::from_pretrained(folder, 200)?;
//!
//! let messages = r#"[{"role": "user", "content": "Who was Ada Lovelace?"}]"#;
//! let prompt = tokenizer.encode_chat(messages)?;
//! let written = model.generate(&[prompt], &options)?;
//! println!("{}", tokenizer.decode(&written[0])?);
//! # Ok::<(), shardax::Error>(())
//! ```

mod chat;
mod json;
mod tokenizer;

pub use chat::ChatTemplate;
pub use tokenizer::{TextStream, Tokenizer};
